"""`bench`: times on this machine, of one graph or of the whole benchmark. It imports torch."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from click.core import ParameterSource

from tnmars.cli.graphs import JSON, SET, need_terms, read_graph
from tnmars.errors import TnmarsError

OF_A_FILE = ("params", "batch", "image", "tune")
OF_THE_TABLE = ("rows", "quick", "no_sweep")
"""Options that mean nothing in the other case."""


def _threads(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 4096 for part in parts):
        raise click.BadParameter(f"'{text}' is not a list of numbers of threads, such as 1,2.")
    return tuple(map(int, parts))


@click.command(epilog="Example: tnmars bench specs/tt_linear.yaml --batch 32")
@click.argument("file", required=False, type=click.Path())
@SET
@click.option("--batch", type=click.IntRange(1, 10**9), default=128, show_default=True, help="Rows, images or tokens.")
@click.option("--image", type=click.IntRange(1, 4096), default=32, show_default=True, help="Side of the image.")
@click.option("--tune", is_flag=True, help="Time close candidates first, and take the fastest.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="Turns of each contender [default: 9; the table's: 15].")
@click.option("--threads", default="1", show_default=True, callback=_threads, help="Numbers of threads, such as 1,2.")
@click.option(
    "--rows", default="", help="Only rows of the table whose names contain one of these, by commas [default: all]."
)
@click.option("--quick", is_flag=True, help="A smoke run of the table: its figures mean little.")
@click.option("--no-sweep", is_flag=True, help="Leave out the sweep over rank, cores and batch after the table.")
@JSON
@click.pass_context
def bench(context: click.Context, /, file: str | None, as_json: bool, **asked: Any) -> None:
    """Time FILE on this machine: compiled, frozen, dense, and plain torch. Without FILE, the table of the benchmark."""
    strange = [name for name in (OF_A_FILE if file is None else OF_THE_TABLE) if _is_given(context, name)]
    if strange:
        flag = "--set" if strange[0] == "params" else f"--{strange[0].replace('_', '-')}"
        why = "for a FILE, and none is given" if file is None else "for the table, which runs without a FILE"
        raise click.UsageError(f"{flag} is {why}.")
    if file is None:
        _table(asked, as_json)
    else:
        _one(file, asked, as_json)


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _one(file: str, asked: dict[str, Any], as_json: bool) -> None:
    graph = read_graph(file, asked["params"], as_json)
    need_terms(file, graph, as_json, "time")

    from tnmars.bench import report, single
    from tnmars.timing.clock import threads

    data, texts = [], []
    for count in asked["threads"]:
        with threads(count):
            result = single.bench_file(
                graph, asked["batch"], asked["image"], tune=asked["tune"], rounds=asked["rounds"] or 9
            )
        times = {"inference": dict(result.inference), "training": dict(result.training)}
        data.append({"file": file, "batch": asked["batch"], "image": asked["image"], "threads": count, **times})
        head = f"{str(graph).splitlines()[0]}; batch {asked['batch']}, {count} thread{'s' if count > 1 else ''}"
        texts.append(f"{head}\n\n{report.markdown(single.table(result))}")
    click.echo(json.dumps(data, indent=1) if as_json else "\n\n".join(texts))


def _table(asked: dict[str, Any], as_json: bool) -> None:
    from tnmars.bench.__main__ import main
    from tnmars.bench.cases import cases
    from tnmars.bench.peers import absent

    if not cases(asked["rows"]):
        known = ", ".join(case.name for case in cases())
        raise TnmarsError(f"no row of the benchmark has a name with '{asked['rows']}'; rows: {known}.")
    for name in absent():
        click.echo(f"{name} is not installed and is left out: pip install 'tnmars[bench]' installs it.", err=True)
    given = ["--rows", asked["rows"], "--threads", ",".join(map(str, asked["threads"]))]
    given += ["--rounds", str(asked["rounds"])] if asked["rounds"] else []
    given += [flag for flag in ("--quick", "--no-sweep") if asked[flag.strip("-").replace("-", "_")]]
    if not as_json:
        main(given)
        return
    with TemporaryDirectory() as folder:
        target = Path(folder) / "bench.json"
        with contextlib.redirect_stdout(sys.stderr):  # the tables, for who waits
            main([*given, "--json", str(target)])
        click.echo(target.read_text(encoding="utf-8"), nl=False)
