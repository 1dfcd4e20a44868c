"""`fit`: ranks for a tensor of the user's own. It imports torch."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from tnmars.cli.graphs import JSON, SET, need_terms, read_graph

if TYPE_CHECKING:
    from tnmars.fitting import Point

ELIMINATION = "elimination"
EVERY = 2.0
"""Seconds between lines of progress."""


@click.command(epilog="Example: tnmars fit specs/tucker_tensor.yaml target.npy -o found")
@click.argument("spec", type=click.Path())
@click.argument("target", type=click.Path())
@SET
@click.option("--key", help="Which tensor of a .safetensors file; not needed where there is one alone.")
@click.option(
    "--observed", type=click.Path(), help="A mask (.npy, .safetensors): 1 where an entry may be fitted, 0 where not."
)
@click.option(
    "--held-out", type=click.Path(), help="A mask (.npy, .safetensors): 1 where an entry is left out of the fit."
)
@click.option(
    "--selector",
    default=ELIMINATION,
    show_default=True,
    help="The rule that picks ranks: elimination, or a selector with gates, such as annealed or mars.",
)
@click.option("--pi", type=float, help="For --selector mars: the prior probability of an open gate [default: 0.01].")
@click.option("--alpha", type=float, help="For --selector mars: the mean of the first logits [default: 0].")
@click.option(
    "--steps",
    type=click.IntRange(1, 10**7),
    help="For a selector with gates: the number of training steps [default: 4000].",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Seed of all random numbers.")
@click.option(
    "--threads", type=click.IntRange(1, 4096), default=1, show_default=True, help="Threads; more help large tensors."
)
@click.option("-q", "--quiet", is_flag=True, help="No lines of progress.")
@click.option("-o", "--output", help="Stem of the files to write [default: TARGET's, with '-fit'].")
@JSON
def fit(spec: str, target: str, as_json: bool, **asked: Any) -> None:
    """Find ranks for the tensor in TARGET (.npy, .safetensors): start from those of SPEC, and keep what it needs.

    The axes of TARGET are the modes of SPEC, in its order; or TARGET is a weight in torch's layout, such as [out, in]
    of a linear layer, and is read as that where it could be both (a square one). Masks have the shape of TARGET.
    Entries that are NaN are not known: the rest is fitted, and they are filled in. Prints ranks, and error against
    size. Writes the pruned spec (.yaml), the layer (.safetensors) and a summary (.json).
    """
    import torch

    from tnmars.fitting import FitWarning, read
    from tnmars.fitting import fit as fit_tensor

    selector = _selector(asked)
    graph = read_graph(spec, asked["params"], as_json)
    need_terms(spec, graph, as_json, "fit")
    masks = {name: asked[name] for name in ("observed", "held_out") if asked[name]}
    stem = asked["output"] or str(Path(target).with_suffix("")) + "-fit"
    _check_stem(stem, spec, target, *masks.values())
    given = read(target, asked["key"])
    options: dict[str, Any] = {name: read(path) for name, path in masks.items()}
    options |= {"steps": asked["steps"]} if asked["steps"] else {}
    told = _Lines(asked["quiet"])
    torch.set_num_threads(asked["threads"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # they are told below, without a line of code
        found = fit_tensor(
            graph, given, **options, selector=selector, seed=asked["seed"], watch=told.point, shown=told.step
        )
    for doubt in found.doubts:
        click.echo(f"warning: {doubt}", err=True)
    paths = found.save(stem)
    if as_json:
        click.echo(json.dumps({"files": [str(path) for path in paths], **found.as_json()}, indent=1))
        return
    click.echo(str(found))
    click.echo(f"error against size:\n{found.curve_text()}")
    for path in paths:
        click.echo(f"wrote {path}")


def _selector(asked: dict[str, Any]) -> Any:
    """The selector asked for; None for elimination. A selector that is added to `SELECTORS` is known here too."""
    from tnmars.select import SELECTORS

    gated = {name: kind for name, kind in SELECTORS.items() if kind.has_gates}
    kind = gated.get(asked["selector"])
    if kind is None and asked["selector"] != ELIMINATION:
        known = ", ".join((ELIMINATION, *gated))
        raise click.BadParameter(f"'{asked['selector']}' must be one of {known}.", param_hint="--selector")
    settings = {name: asked[name] for name in ("pi", "alpha") if asked[name] is not None}
    for name in settings:
        users = [other for other, one in gated.items() if name in {field.name for field in fields(cast(Any, one))}]
        if asked["selector"] not in users:
            raise click.UsageError(f"--{name} is for --selector {' or '.join(users)}.")
    if kind is None:
        if asked["steps"]:
            raise click.UsageError(f"--steps is for --selector {' or '.join(gated)}.")
        return None
    return kind(**settings)


def _check_stem(stem: str, *read: str) -> None:
    """Refuses to write where it reads, and where there is no folder, before the work and not after it."""
    inputs = {Path(path).resolve() for path in read}
    for ending in (".yaml", ".safetensors", ".json"):
        if Path(f"{stem}{ending}").resolve() in inputs:
            raise click.BadParameter(f"'{stem}{ending}' is what is read; name another stem.", param_hint="--output")
    if not Path(stem).resolve().parent.is_dir():
        raise click.BadParameter(f"the folder of '{stem}' is not there.", param_hint="--output")


class _Lines:
    """Progress as lines on standard error, not too many of them, or none."""

    def __init__(self, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._shown = time.monotonic()

    def point(self, found: Point) -> None:
        ranks = "-".join(map(str, found.ranks.values()))
        self._line(f"{found.parameters:,} parameters, ranks {ranks}, relative error {found.error:.4g}")

    def step(self, record: dict[str, Any], done: int, total: int) -> None:
        size = record["expected_parameters"]
        self._line(
            f"gates: step {done} of {total}, relative error {record['loss']:.4g}, expected parameters {size:,.0f}"
        )

    def _line(self, text: str) -> None:
        now = time.monotonic()
        if now - self._shown >= EVERY and not self._is_quiet:
            self._shown = now
            click.echo(text, err=True)
