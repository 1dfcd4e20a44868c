"""`bench`: times of one graph on this machine. It imports torch."""

from __future__ import annotations

import json

import click

from tnmars.cli.graphs import JSON, SET, NamedPath, is_number, need_terms, read_graph
from tnmars.cli.plans import IMAGE
from tnmars.errors import plural
from tnmars.text.tables import markdown


def _threads(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(is_number(part, 4096) for part in parts):
        raise click.BadParameter(f"'{text}' must be a list of thread counts, such as 1,2.")
    return tuple(map(int, parts))


@click.command(epilog="Example: tnmars bench specs/tt_linear.yaml --batch 32")
@click.argument("file", type=NamedPath())
@SET
@click.option("--batch", type=click.IntRange(1, 10**9), default=128, show_default=True, help="Rows, images or tokens.")
@IMAGE
@click.option("--tune", is_flag=True, help="Time candidates that are close first, and choose the fastest.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=9, show_default=True, help="Rounds of timing.")
@click.option("--threads", default="1", show_default=True, callback=_threads, help="Thread counts, such as 1,2.")
@JSON
def bench(
    file: str,
    params: dict[str, int],
    batch: int,
    image: int,
    tune: bool,
    rounds: int,
    threads: tuple[int, ...],
    as_json: bool,
) -> None:
    """Time a graph on this machine.

    Compares the compiled and the frozen layer of FILE with the dense layer and with plain torch.
    """
    graph = read_graph(file, params, as_json)
    need_terms(file, graph, as_json, "time")

    from tnmars.bench import single
    from tnmars.timing import clock

    data, texts = [], []
    for count in threads:
        with clock.threads(count):
            result = single.bench_file(graph, batch, image, tune=tune, rounds=rounds)
        times = {"inference": dict(result.inference), "training": dict(result.training)}
        data.append({"file": file, "batch": batch, "image": image, "threads": count, **times})
        head = f"{str(graph).splitlines()[0]}; batch {batch}, {plural(count, 'thread')}"
        texts.append(f"{head}\n\n{markdown(single.table(result), padded=True)}")
    click.echo(json.dumps(data, indent=1) if as_json else "\n\n".join(texts))
