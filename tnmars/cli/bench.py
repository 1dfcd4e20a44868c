"""`bench`: times of one graph or of the whole benchmark on this machine. It imports torch."""

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
from tnmars.cli.plans import IMAGE
from tnmars.errors import TnmarsError, plural

OF_A_FILE = ("params", "batch", "image", "tune")
OF_THE_TABLE = ("rows", "quick", "no_sweep")
"""Options that make sense only with a FILE, and only without one."""


def _threads(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 4096 for part in parts):
        raise click.BadParameter(f"'{text}' must be a list of thread counts, such as 1,2.")
    return tuple(map(int, parts))


@click.command(epilog="Example: tnmars bench specs/tt_linear.yaml --batch 32")
@click.argument("file", required=False, type=click.Path())
@SET
@click.option("--batch", type=click.IntRange(1, 10**9), default=128, show_default=True, help="Rows, images or tokens.")
@IMAGE
@click.option("--tune", is_flag=True, help="Time candidates that are close first, and choose the fastest.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="Rounds of timing [default: 9; without FILE, 15].")
@click.option("--threads", default="1", show_default=True, callback=_threads, help="Thread counts, such as 1,2.")
@click.option(
    "--rows", default="", help="Only rows whose names contain one of these texts, separated by commas [default: all]."
)
@click.option("--quick", is_flag=True, help="A quick trial of the benchmark; its figures are rough.")
@click.option("--no-sweep", is_flag=True, help="Skip the sweep over rank, cores and batch size after the table.")
@JSON
@click.pass_context
def bench(context: click.Context, /, file: str | None, as_json: bool, **asked: Any) -> None:
    """Time a graph, or the whole benchmark, on this machine.

    With FILE, compares the compiled and the frozen layer of a spec file with the dense layer and with plain torch.
    Without FILE, prints the table of the benchmark.
    """
    strange = [name for name in (OF_A_FILE if file is None else OF_THE_TABLE) if _is_given(context, name)]
    if strange:
        flag = "--set" if strange[0] == "params" else f"--{strange[0].replace('_', '-')}"
        raise click.UsageError(f"{flag} requires a FILE." if file is None else f"{flag} cannot be used with a FILE.")
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
        head = f"{str(graph).splitlines()[0]}; batch {asked['batch']}, {plural(count, 'thread')}"
        texts.append(f"{head}\n\n{report.markdown(single.table(result))}")
    click.echo(json.dumps(data, indent=1) if as_json else "\n\n".join(texts))


def _table(asked: dict[str, Any], as_json: bool) -> None:
    from tnmars.bench.__main__ import main
    from tnmars.bench.cases import cases
    from tnmars.bench.peers import absent

    if not cases(asked["rows"]):
        known = ", ".join(case.name for case in cases())
        raise TnmarsError(f"no row of the benchmark has a name with '{asked['rows']}'; its rows are {known}.")
    for name in absent():
        click.echo(f"{name} is not installed and is left out; install it with pip install 'tnmars[bench]'.", err=True)
    given = ["--rows", asked["rows"], "--threads", ",".join(map(str, asked["threads"]))]
    given += ["--rounds", str(asked["rounds"])] if asked["rounds"] else []
    given += [flag for flag in ("--quick", "--no-sweep") if asked[flag.strip("-").replace("-", "_")]]
    if not as_json:
        main(given)
        return
    with TemporaryDirectory() as folder:
        target = Path(folder) / "bench.json"
        with contextlib.redirect_stdout(sys.stderr):  # the tables, for a user who watches
            main([*given, "--json", str(target)])
        click.echo(target.read_text(encoding="utf-8"), nl=False)
