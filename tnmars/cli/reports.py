"""`report`: two files of a model, before and after pruning, as one page."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tnmars.cli.graphs import JSON, refuse
from tnmars.errors import TnmarsError


@click.command(epilog="Example: tnmars report trained.safetensors small.safetensors -o report.html")
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path())
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    type=click.Path(dir_okay=False),
    help="The page to write.",
)
@click.option("--history", type=click.Path(), help="The log of the training: log.jsonl, or a record with a history.")
@click.option("--title", help="What stands above [default: the layer's name].")
@click.option(
    "--batch", type=click.IntRange(1, 10**9), help="Count and time for this batch [default: the nominal one]."
)
@click.option("--measure/--no-measure", default=True, show_default=True, help="Time every layer, about a second each.")
@JSON
def report(
    before: str,
    after: str,
    output: str,
    history: str | None,
    title: str | None,
    batch: int | None,
    measure: bool,
    as_json: bool,
) -> None:
    """Show what became of a model: graphs, gates, sizes, speed and training as one HTML file.

    BEFORE and AFTER are files of tnmars.save or tnmars.save_checkpoint; the model's classes are not needed.
    """
    from tnmars.reporting import report as write
    from tnmars.reporting.history import read_history

    if Path(output).resolve() in [Path(given).resolve() for given in (before, after, history) if given]:
        raise click.BadParameter(f"'{output}' is what is read; name another file.", param_hint="--output")
    try:
        told = read_history(history) if history else None
        found = write(before, after, output, title=title, history=told, batch=batch, measure=measure)
    except TnmarsError as error:
        refuse(before, error.problems, as_json)
    if as_json:
        click.echo(json.dumps({"file": output, **found.as_json()}, indent=1))
        return
    for layer in found.layers:
        first, second = layer.before.count.cores, layer.after.count.cores
        click.echo(f"{layer.title}: {first:,} -> {second:,} parameters, {layer.after.count.sentence}")
    click.echo(f"wrote {output}")
