"""`suggest`: all families for one layer at one size. It imports torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from tnmars.cli.graphs import JSON, NamedPath
from tnmars.errors import Problem, TnmarsError, listing, nearest

FILES = (".npy", ".safetensors")


@click.command(epilog="Example: tnmars suggest weight.npy --parameters 20000")
@click.argument("layer")
@click.option("--parameters", type=click.IntRange(1), required=True, help="How many parameters the cores may have.")
@click.option("--key", help="The name of the weight in a .safetensors file, or of the layer of a model.")
@click.option(
    "--kind",
    type=click.Choice(["linear", "conv", "conv_transpose", "embedding"]),
    help="What a weight belongs to [default: linear with 2 axes, else conv].",
)
@click.option(
    "--inputs", type=NamedPath(), help="Inputs of the layer (.npy, .safetensors): errors are those of its outputs."
)
@click.option("--family", "names", multiple=True, help="Compare only these families; may be repeated [default: all].")
@click.option("--batch", type=click.IntRange(1, 10**9), help="The batch to predict times for [default: 128].")
@click.option("--image", type=click.IntRange(1, 4096), help="The side of the images, for convolutions [default: 32].")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Seed of random starts.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@JSON
def suggest(layer: str, parameters: int, key: str | None, as_json: bool, **asked: Any) -> None:
    """Compare all families for one layer at one size.

    LAYER is a weight in torch's layout (.npy, .safetensors), or MODULE:FUNCTION, which returns a model or a layer.
    Prints a table, the best family first: ranks, parameters, error and predicted time. Nothing is trained.
    """
    from tnmars.models.suggesting import suggest as suggested
    from tnmars.store.arrays import read

    is_file = Path(layer).suffix.lower() in FILES
    given: Any = read(layer, key).float() if is_file else _named(layer, key)
    inputs = read(asked["inputs"]) if asked["inputs"] else None
    found = suggested(
        given,
        parameters,
        kind=asked["kind"],
        inputs=inputs,
        families=asked["names"] or None,
        batch=asked["batch"],
        image=asked["image"],
        seed=asked["seed"],
        watch=None if asked["quiet"] else lambda name: click.echo(f"suggest: {name}", file=sys.stderr),
    )
    click.echo(json.dumps(found.as_json(), indent=1) if as_json else str(found))


def _named(text: str, key: str | None) -> Any:
    """The layer of a model that a function returns."""
    from tnmars.models.command import built

    model = built(text, {}, Path.cwd())
    modules = {name: module for name, module in model.named_modules() if name}
    if key is None:
        return model
    if key not in modules:
        hint = f"Layers: {listing(list(modules))}.{nearest(key, modules)}"
        raise TnmarsError(Problem(f"the model has no layer '{key}'.", hint))
    return modules[key]
