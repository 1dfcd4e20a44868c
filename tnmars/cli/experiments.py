"""`reproduce` and `demo`: the paper's experiments, and the whole workflow in a minute. They import torch."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tnmars.cli.graphs import JSON, NamedPath
from tnmars.errors import Problem, TnmarsError

NAMES = ("toy", "tucker", "mnist-2fc")


@click.command(epilog="Example: tnmars reproduce toy --seeds 0-2 --jobs 1")
@click.argument("name", type=click.Choice(NAMES))
@click.option(
    "--variants",
    default="",
    help="Only these variants, separated by commas [default: all, except the ablation of mnist-2fc: pi-1e-4, pi-1e-3, "
    "pi-1e-2 and pi-3e-1].",
)
@click.option("--seeds", "text", default="0-9", show_default=True, help="Seeds to run, such as 0-9 or 0,3,5-7.")
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
@click.option("--out", type=NamedPath(file_okay=False), help="Folder of the runs [default: build/reproduce/NAME].")
@click.option("--save", type=NamedPath(file_okay=False), help="Folder of the summary and the plots [default: --out].")
@click.option("--epochs", type=click.IntRange(1), help="Number of epochs, for a short trial [default: the paper's].")
@click.option("--save-every", type=click.FloatRange(0.0), help="Seconds between checkpoints [default: 60].")
@click.option("--resume", is_flag=True, help="Resume unfinished runs from their checkpoints, instead of starting over.")
@JSON
def reproduce(name: str, variants: str, text: str, jobs: int, as_json: bool, **asked: str | int | None) -> None:
    """Run one of the paper's experiments.

    Prints our figures next to the paper's. Finished runs are not repeated. On Ctrl-C every run writes a checkpoint;
    continue with --resume.
    """
    from tnmars.experiments.catalog import EXPERIMENTS
    from tnmars.experiments.jobs import planned, run_all, seeds
    from tnmars.experiments.results import collected, page, save

    experiment = EXPERIMENTS[name]
    chosen = [variant.strip() for variant in variants.split(",") if variant.strip()] or list(experiment.variants)
    known = (*experiment.variants, *experiment.more)
    unknown = [variant for variant in chosen if variant not in known]
    if unknown:
        raise TnmarsError(f"{name} has no variant '{unknown[0]}'; its variants are {', '.join(known)}.")
    folder = Path(str(asked["out"] or Path("build") / "reproduce" / name))
    data = str(asked["data"]) if asked["data"] else None
    epochs = int(asked["epochs"]) if asked["epochs"] else None
    todo = planned(name, chosen, seeds(text), folder, together=experiment.together, epochs=epochs)
    if experiment.prepare is not None and not all(job.is_done for job in todo):
        experiment.prepare(data)
    more = ["--resume"] if asked["resume"] else []
    for key in ("data", "save_every"):
        more += [f"--{key.replace('_', '-')}", str(asked[key])] if asked[key] is not None else []
    failed = run_all(todo, side_by_side=jobs, more=more)
    if len(failed) < len(todo):
        results = collected(name, folder, data=data, epochs=epochs)
        click.echo(json.dumps(results, indent=1) if as_json else page(results))
        written = save(results, Path(str(asked["save"] or folder)))
        click.echo(f"\nwrote {', '.join(map(str, written))}", err=as_json)
    if failed:
        listed = ", ".join(f"{job.variant} {','.join(map(str, job.seeds))}" for job in failed)
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
