"""`fit`: ranks for a tensor of the user's own. It imports torch."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import click

from tnmars.cli.graphs import JSON, SET, NamedPath, need_terms, read_graph
from tnmars.cli.outputs import check_folder
from tnmars.files import resolved

ELIMINATION = "elimination"
ENDINGS = (".yaml", ".safetensors", ".json")
EVERY = 2.0
"""Seconds between lines of progress."""


@click.command(epilog="Example: tnmars fit specs/tucker_tensor.yaml target.npy -o result")
@click.argument("spec", type=NamedPath())
@click.argument("target", type=NamedPath())
@SET
@click.option("--key", help="The name of the tensor in a .safetensors file; not needed if it holds one tensor.")
@click.option(
    "--observed", type=NamedPath(), help="A mask file (.npy, .safetensors): 1 where an entry may be fitted, else 0."
)
@click.option(
    "--held-out", type=NamedPath(), help="A mask file (.npy, .safetensors): 1 where an entry must not be fitted."
)
@click.option(
    "--selector",
    default=ELIMINATION,
    show_default=True,
    help="The rule that selects the ranks: elimination, or a selector with gates, such as annealed or mars.",
)
@click.option("--pi", type=float, help="For --selector mars: the prior probability of an open gate [default: 0.01].")
@click.option("--alpha", type=float, help="For --selector mars: the mean of the initial logits [default: 3].")
@click.option("--error", type=click.FloatRange(0, 1), help="Do not search: the largest relative error.")
@click.option("--energy", type=click.FloatRange(0, 1), help="Do not search: the share of the squared norm to keep.")
@click.option("--parameters", type=click.IntRange(1), help="Do not search: the maximum number of parameters.")
@click.option("--ranks", help="Do not search: one rank, one for each bond (2,3,4 or r1=2,r2=3), or evbmf.")
@click.option(
    "--steps",
    type=click.IntRange(1, 10**7),
    help="For a selector with gates: the number of training steps [default: 4000].",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Seed of all random numbers.")
@click.option(
    "--threads",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="Number of threads; more than one helps for large tensors.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@click.option(
    "-o", "--output", type=NamedPath(), help="Stem of the files to write [default: TARGET's stem with '-fit']."
)
@JSON
def fit(spec: str, target: str, as_json: bool, **asked: Any) -> None:
    """Find the ranks that a given tensor needs.

    The search starts from the ranks of SPEC, which should be too large. With --error, --energy, --parameters or --ranks
    the tensor is decomposed without a search. TARGET is a .npy or .safetensors file. Its axes
    are the modes of SPEC, in its order. Or it is a weight in torch's layout, such as [out, in] of a linear layer; a
    tensor that could be both (a square one) is read as a weight. Masks have the shape of TARGET. Entries that are NaN
    are unknown: the others are fitted, and the layer fills in the unknown ones.

    Prints the ranks, and the error against the number of parameters. Writes the pruned spec (.yaml), the layer
    (.safetensors) and a summary (.json).
    """
    import torch

    from tnmars.experiments.progress import Progress, fit_callbacks
    from tnmars.fitting import FitWarning
    from tnmars.fitting import fit as fit_tensor
    from tnmars.store.arrays import read

    selector = _selector(asked)
    graph = read_graph(spec, asked["params"], as_json)
    need_terms(spec, graph, as_json, "fit")
    masks = {name: asked[name] for name in ("observed", "held_out") if asked[name]}
    stem = asked["output"] or str(Path(target).with_suffix("")) + "-fit"
    _check_stem(stem, spec, target, *masks.values())
    given = read(target, asked["key"])
    options: dict[str, Any] = {name: read(path) for name, path in masks.items()}
    options |= {"steps": asked["steps"]} if asked["steps"] else {}
    options |= {name: asked[name] for name in ("error", "energy", "parameters") if asked[name] is not None}
    options |= {"ranks": _ranks(asked["ranks"])} if asked["ranks"] is not None else {}
    progress = None if asked["quiet"] else Progress("fit", sys.stderr, every=EVERY)
    if progress is not None:
        options["watch"], options["shown"] = fit_callbacks(progress)
    torch.set_num_threads(asked["threads"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # printed below, without a line of code
            fitted = fit_tensor(graph, given, **options, selector=selector, seed=asked["seed"])
    finally:
        if progress is not None:
            progress.close()
    for doubt in fitted.doubts:
        click.echo(f"warning: {doubt}", err=True)
    _check_stem(stem, spec, target, *masks.values())  # the work took a while
    paths = fitted.save(stem)
    if as_json:
        click.echo(json.dumps({"files": [str(path) for path in paths], **fitted.as_json()}, indent=1))
        return
    click.echo(str(fitted))
    click.echo(f"error against size:\n{fitted.curve_text()}")
    for path in paths:
        click.echo(f"wrote {path}")


def _selector(asked: dict[str, Any]) -> Any:
    """The requested selector, or `None` for elimination. Every selector of `tnmars.select.SELECTORS` is known."""
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
            raise click.UsageError(f"--{name} requires --selector {_either(users)}.")
    if kind is None:
        if asked["steps"]:
            raise click.UsageError(f"--steps requires --selector {_either(list(gated))}.")
        return None
    return kind(**settings)


def _ranks(text: str) -> Any:
    """The ranks that a text stands for."""
    words = [word.strip() for word in text.split(",")]
    try:
        if all("=" in word for word in words):
            return {name.strip(): int(size) for name, _, size in (word.partition("=") for word in words)}
        if text.strip().isidentifier():
            return text.strip()
        sizes = [int(word) for word in words]
    except ValueError:
        wrong = f"'{text}' must be a rank, one for each bond, such as 2,3,4 or r1=2,r2=3, or evbmf."
        raise click.BadParameter(wrong, param_hint="--ranks") from None
    return sizes[0] if len(sizes) == 1 else sizes


def _either(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _check_stem(stem: str, *read: str) -> None:
    """Refuses to overwrite what fit did not write, and a folder that does not exist, before the work starts."""
    from tnmars.fitting.digests import changed

    inputs = {resolved(path) for path in read}
    for ending in ENDINGS:
        if resolved(f"{stem}{ending}") in inputs:
            text = f"'{stem}{ending}' is an input and would be overwritten; choose another stem."
            raise click.BadParameter(text, param_hint="--output")
    check_folder(stem)
    there = [f"{stem}{ending}" for ending in ENDINGS if Path(f"{stem}{ending}").exists()]
    wrong = changed(stem) if there else None
    if wrong is not None:
        if wrong not in there:
            wrong = there[0]
        text = f"'{wrong}' exists and was not written by this command, or was changed since; "
        raise click.BadParameter(f"{text}remove it, or choose another stem.", param_hint="--output")
