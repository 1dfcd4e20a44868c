"""`report`: two files of a model, before and after pruning, as one page."""

from __future__ import annotations

import json

import click

from tnmars.cli.graphs import JSON, NamedPath, refuse
from tnmars.cli.outputs import check_page
from tnmars.errors import TnmarsError


def _metrics(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, tuple[float, float]] | None:
    metrics: dict[str, tuple[float, float]] = {}
    for text in texts:
        name, _equals, values = text.partition("=")
        try:
            before, after = map(float, values.split(","))
        except ValueError:
            raise click.BadParameter(
                f"'{text}' must have the form NAME=BEFORE,AFTER, for example accuracy=0.981,0.979."
            ) from None
        metrics[name.strip()] = (before, after)
    return metrics or None


@click.command(epilog="Example: tnmars report trained.safetensors small.safetensors -o report.html")
@click.argument("before", type=NamedPath())
@click.argument("after", type=NamedPath())
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    type=NamedPath(dir_okay=False),
    help="The page to write.",
)
@click.option("--history", type=NamedPath(), help="The log of the training: log.jsonl, or a record with a history.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME=BEFORE,AFTER",
    callback=_metrics,
    help="What the model is for, before and after, such as accuracy=0.981,0.979 [default: from the history].",
)
@click.option("--title", help="The title of the page [default: the layer's name].")
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
    metrics: dict[str, tuple[float, float]] | None,
    title: str | None,
    batch: int | None,
    measure: bool,
    as_json: bool,
) -> None:
    """Write a report of a model before and after pruning.

    The report is one HTML file with graphs, gates, sizes, speed and training. BEFORE and AFTER are files of tnmars.save
    or tnmars.save_checkpoint. The model's classes are not needed.
    """
    from tnmars.reporting import report as write
    from tnmars.reporting.history import read_history
    from tnmars.reporting.metrics import figure

    check_page(output, before, after, history)
    try:
        entries = read_history(history) if history else None
        result = write(
            before, after, output, title=title, history=entries, metrics=metrics, batch=batch, measure=measure
        )
    except TnmarsError as error:
        refuse(before, error.problems, as_json)
    if as_json:
        click.echo(json.dumps({"file": output, **result.as_json()}, indent=1))
        return
    for metric in result.metrics:
        click.echo(f"{metric.name}: {figure(metric.before)} -> {figure(metric.after)}")
    for layer in result.layers:
        first, second = layer.before.count.cores, layer.after.count.cores
        click.echo(f"{layer.title}: {first:,} -> {second:,} parameters, {layer.after.count.sentence}")
    for note in result.notes:
        click.echo(note)
    click.echo(f"wrote {output}")
