"""`reproduce` and `demo`: the paper's experiments, and the whole loop in a minute. They import torch."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tnmars.cli.graphs import JSON
from tnmars.errors import TnmarsError

NAMES = ("toy", "tucker", "mnist-2fc")


@click.command(epilog="Example: tnmars reproduce toy --seeds 0-2 --jobs 1")
@click.argument("name", type=click.Choice(NAMES))
@click.option(
    "--variants",
    default="",
    help="Only these, by commas [default: all; mnist-2fc has pi-1e-4, pi-1e-3, pi-1e-2 and pi-3e-1 beside].",
)
@click.option("--seeds", "text", default="0-9", show_default=True, help="Seeds to run, such as 0-9 or 0,3,5-7.")
@click.option(
    "--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Runs side by side, a thread each."
)
@click.option(
    "--data", type=click.Path(file_okay=False), help="Where data sets are [default: $TNMARS_DATA, or a cache]."
)
@click.option("--out", type=click.Path(file_okay=False), help="Where runs go [default: build/reproduce/NAME].")
@click.option("--save", type=click.Path(file_okay=False), help="Where summary and plots go [default: as --out].")
@click.option("--epochs", type=click.IntRange(1), help="Fewer, to try it [default: as many as the experiment has].")
@click.option("--save-every", type=click.FloatRange(0.0), help="Seconds between checkpoints [default: 60].")
@click.option("--resume", is_flag=True, help="Go on from checkpoints; without it a run that is not done begins anew.")
@JSON
def reproduce(name: str, variants: str, text: str, jobs: int, as_json: bool, **asked: str | int | None) -> None:
    """Run one of the paper's experiments and show its row beside ours. Runs that are done are not done again."""
    from tnmars.experiments.catalog import EXPERIMENTS
    from tnmars.experiments.jobs import planned, run_all, seeds
    from tnmars.experiments.results import collected, page, save

    experiment = EXPERIMENTS[name]
    wanted = [variant.strip() for variant in variants.split(",") if variant.strip()] or list(experiment.variants)
    known = (*experiment.variants, *experiment.more)
    unknown = [variant for variant in wanted if variant not in known]
    if unknown:
        raise TnmarsError(f"'{unknown[0]}' is no variant of {name}; variants: {', '.join(known)}.")
    folder = Path(str(asked["out"] or Path("build") / "reproduce" / name))
    data = str(asked["data"]) if asked["data"] else None
    epochs = int(asked["epochs"]) if asked["epochs"] else None
    todo = planned(name, wanted, seeds(text), folder, together=experiment.together, epochs=epochs)
    if experiment.prepare is not None and not all(job.is_done for job in todo):
        experiment.prepare(data)
    more = ["--resume"] if asked["resume"] else []
    for key in ("data", "save_every"):
        more += [f"--{key.replace('_', '-')}", str(asked[key])] if asked[key] is not None else []
    failed = run_all(todo, side_by_side=jobs, more=more)
    if len(failed) < len(todo):
        found = collected(name, folder, data=data, epochs=epochs)
        click.echo(json.dumps(found, indent=1) if as_json else page(found))
        written = save(found, Path(str(asked["save"] or folder)))
        click.echo(f"\nwrote {', '.join(map(str, written))}", err=as_json)
    if failed:
        names = ", ".join(f"{job.variant} {','.join(map(str, job.seeds))}" for job in failed)
        raise TnmarsError(f"these runs did not end: {names}.\n  Their messages are above; --resume goes on.")


@click.command(epilog="Example: tnmars demo --out build/demo")
@click.option(
    "--out", default="build/demo", show_default=True, type=click.Path(file_okay=False), help="Where files go."
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Seed of all random numbers.")
@JSON
def demo(out: str, seed: int, as_json: bool) -> None:
    """The whole loop in a minute, without data: ranks are planted, lost in noise, and found again."""
    import torch

    from tnmars.experiments.demo import run

    torch.set_num_threads(1)
    results = run(Path(out), seed, (lambda text: click.echo(text, err=True)) if as_json else click.echo)
    if as_json:
        told = [{"name": r.case.name, "came_back": r.came_back, **r.found.as_json()} for r in results]
        click.echo(json.dumps(told, indent=1))
        return
    click.echo(
        f"\nWhat to do next: open {out}/tensor-train.html; draw a pruned graph, tnmars show {out}/tensor-train.yaml;"
        "\nfit a tensor of your own with tnmars fit SPEC TARGET; or put a layer into your model: docs/masks.md."
    )
