"""`reproduce` and `demo`: the paper's experiments, and the whole workflow in a minute. They import torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tnmars.cli.graphs import JSON, NamedPath
from tnmars.errors import Problem, TnmarsError

if TYPE_CHECKING:
    from tnmars.experiments.jobs import Job

ROOT = Path("build") / "reproduce"
NAMES = (
    "toy",
    "tucker",
    "mnist-2fc",
    "lenet5",
    "sst",
    "imdb",
    "resnet110",
    "completion",
    "regression",
    "greedy",
    "tt-rnn",
)


@click.command(epilog="Example: tnmars reproduce toy --seeds 0-2 --jobs 1")
@click.argument("name", type=click.Choice(NAMES), required=False)
@click.option(
    "--variants",
    default="",
    help="Only these variants, separated by commas [default: all, except the ablation of mnist-2fc: pi-1e-4, pi-1e-3, "
    "pi-1e-2 and pi-3e-1].",
)
@click.option("--seeds", "text", help="Seeds to run, such as 0-9 or 0,3,5-7 [default: 0-9].")
@click.option("--all", "every", is_flag=True, help="Run what is missing of NAME, or of all experiments; see above.")
@click.option("--list-missing", is_flag=True, help="Run nothing; print a command for each missing run.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Number of parallel runs, with one thread each.",
)
@click.option(
    "--data",
    type=NamedPath(file_okay=False),
    help="Folder of the data sets [default: $TNMARS_DATA, or a folder in the user's cache].",
)
@click.option(
    "--out",
    type=NamedPath(file_okay=False),
    help="Folder of the runs; with --all or --list-missing, the folder above [default: build/reproduce/NAME].",
)
@click.option("--save", type=NamedPath(file_okay=False), help="Folder of the summary and the plots [default: --out].")
@click.option(
    "--epochs",
    type=click.IntRange(1),
    help="Number of epochs, for a short trial; for shrink, the steps of a stage [default: the experiment's].",
)
@click.option("--save-every", type=click.FloatRange(0.0), help="Seconds between checkpoints [default: 60].")
@click.option(
    "--speed",
    is_flag=True,
    help="After all runs, time the networks of lenet5 that were not timed yet, one at a time; part of --all.",
)
@click.option("--resume", is_flag=True, help="Resume unfinished runs from their checkpoints, instead of starting over.")
@JSON
def reproduce(name: str | None, jobs: int, as_json: bool, every: bool, list_missing: bool, **asked: Any) -> None:
    """Run one of the paper's experiments, or all of them.

    Prints our figures next to the paper's. Finished runs are not repeated. On Ctrl-C every run writes a checkpoint;
    continue with --resume.

    With --all, runs every variant with as many seeds as the tables need, the longest first, and prints what is left and
    how long it will take. It always resumes. To spread the runs over machines, give each some lines of --list-missing,
    and copy the folders of their runs into one.
    """
    if every or list_missing:
        _missing(name, jobs, as_json, list_missing, asked)
        return
    if name is None:
        raise TnmarsError(Problem("no experiment is given.", f"Name one of {', '.join(NAMES)}, or write --all."))
    from tnmars.experiments.catalog import EXPERIMENTS
    from tnmars.experiments.jobs import planned, run_all, seeds

    experiment = EXPERIMENTS[name]
    chosen = [each.strip() for each in asked["variants"].split(",") if each.strip()] or list(experiment.variants)
    known = (*experiment.variants, *experiment.more)
    unknown = [variant for variant in chosen if variant not in known]
    if unknown:
        raise TnmarsError(f"{name} has no variant '{unknown[0]}'; its variants are {', '.join(known)}.")
    folder = Path(asked["out"] or ROOT / name)
    numbers = seeds("0-9" if asked["text"] is None else asked["text"])
    todo = planned(name, chosen, numbers, folder, together=experiment.together, epochs=asked["epochs"])
    if experiment.prepare is not None and not all(job.is_done for job in todo):
        experiment.prepare(asked["data"])
    failed = run_all(todo, side_by_side=jobs, more=_passed_on(asked))
    if len(failed) < len(todo):
        if asked["speed"]:
            _time([name], folder, asked)
        _show([name], folder, asked, as_json)
    _report(failed)


def _missing(name: str | None, jobs: int, as_json: bool, is_listed: bool, asked: dict[str, Any]) -> None:
    """The effect of --all and --list-missing."""
    from tnmars.experiments.agenda import command, missing
    from tnmars.experiments.catalog import EXPERIMENTS
    from tnmars.experiments.jobs import run_all
    from tnmars.experiments.tables import records

    for key, word in (("variants", "variants"), ("text", "seeds"), ("epochs", "epochs")):
        if asked[key]:
            text = f"--{word} cannot be given with --all or --list-missing, which follow the catalog."
            raise TnmarsError(Problem(text, "Leave it out, or name an experiment without --all."))
    root = Path(asked["out"] or ROOT)
    names = [name] if name else list(NAMES)
    agenda = missing(root, names)
    data = ["--data", asked["data"]] if asked["data"] else []
    if is_listed:
        lines = [command(job, root / job.name, data) for job in agenda.jobs]
        click.echo(json.dumps(lines, indent=1) if as_json else "\n".join(lines), nl=bool(lines))
        click.echo(agenda.left(agenda.jobs, jobs), err=True)
        return
    for one in dict.fromkeys(job.name for job in agenda.jobs):
        prepare = EXPERIMENTS[one].prepare
        if prepare is not None:
            prepare(asked["data"])
    more = _passed_on({**asked, "resume": True})
    failed = run_all(
        agenda.jobs, side_by_side=jobs, more=more, left=lambda left: click.echo(agenda.left(left, jobs), err=True)
    )
    shown = [one for one in names if any(record.get("epochs") is None for record in records(one, root / one))]
    _time(shown, root, asked, is_above=True)
    _show(shown, root, asked, as_json, is_above=True)
    _report(failed)


def _passed_on(asked: dict[str, Any]) -> list[str]:
    """The options that every run is given."""
    more = ["--resume"] if asked["resume"] else []
    for key in ("data", "save_every"):
        more += [f"--{key.replace('_', '-')}", str(asked[key])] if asked[key] is not None else []
    return more


def _time(names: list[str], folder: Path, asked: dict[str, Any], *, is_above: bool = False) -> None:
    """Times the networks of finished runs, now that none is running."""
    from tnmars.experiments.results import timed

    for name in names:
        own = folder / name if is_above else folder
        timed(name, own, data=asked["data"], epochs=asked["epochs"], say=lambda text: click.echo(text, err=True))


def _show(names: list[str], folder: Path, asked: dict[str, Any], as_json: bool, *, is_above: bool = False) -> None:
    """Prints the results of experiments, and writes them. `folder` is that of the runs, or the one above."""
    from tnmars.experiments.results import collected, page, save

    found, written = [], []
    for name in names:
        own = folder / name if is_above else folder
        found.append(collected(name, own, data=asked["data"], epochs=asked["epochs"]))
        written += save(found[-1], Path(asked["save"] or own))
    shown: Any = found if is_above else found[0]
    click.echo(json.dumps(shown, indent=1) if as_json else "\n\n".join(map(page, found)))
    click.echo(f"\nwrote {', '.join(map(str, written))}", err=as_json)


def _report(failed: list[Job]) -> None:
    if failed:
        listed = ", ".join(f"{job.name} {job.variant} {','.join(map(str, job.seeds))}" for job in failed)
        hint = "Their messages are above; run again with --resume to continue."
        raise TnmarsError(Problem(f"these runs did not finish: {listed}.", hint))


@click.command(epilog="Example: tnmars demo --out build/demo")
@click.option(
    "--out", default="build/demo", show_default=True, type=NamedPath(file_okay=False), help="Folder to write to."
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Seed of all random numbers.")
@JSON
def demo(out: str, seed: int, as_json: bool) -> None:
    """Show the whole workflow in a minute, on generated data.

    A network is trained while its ranks choose themselves; the curve of size against score is written as a page. Then a
    tensor with known ranks and noise is fitted by a graph whose ranks are too large, the graph is pruned, and the
    pruned spec, the layer and a report are written.
    """
    import torch

    from tnmars.experiments.demo import run

    torch.set_num_threads(1)
    curve, results = run(Path(out), seed, (lambda text: click.echo(text, err=True)) if as_json else click.echo)
    if as_json:
        listed = [{"name": r.case.name, "came_back": r.came_back, **r.fitted.as_json()} for r in results]
        network = {"name": "network", "reason": curve.reason, "points": curve.table()["points"]}
        click.echo(json.dumps([network, *listed], indent=1))
        return
    click.echo(
        "\nWhat to do next:\n"
        f"  open the curve {out}/network.html and the report {out}/tensor-train.html in a browser\n"
        "  shrink a model of your own: docs/shrink.md\n"
        f"  draw a pruned graph: tnmars show {out}/tensor-train.yaml\n"
        "  fit a tensor of your own: tnmars fit SPEC TARGET\n"
        "  put a layer into your model: docs/masks.md"
    )
