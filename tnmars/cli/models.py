"""`prune` and `diff`: files of trained models, and how two graphs differ. `diff` does not import torch."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from tnmars.cli.graphs import JSON, LAYER, NamedPath, read_graphs, refuse, titled
from tnmars.cli.outputs import check_folder, check_model
from tnmars.errors import TnmarsError, listing
from tnmars.files import resolved, write_together
from tnmars.graph import Graph


@click.command(epilog="Example: tnmars prune trained.safetensors -o small.safetensors")
@click.argument("checkpoint", type=NamedPath())
@click.option("-o", "--output", required=True, type=NamedPath(dir_okay=False), help="The file to write.")
@click.option(
    "--spec",
    type=NamedPath(dir_okay=False),
    help="The file for the pruned graph [default: OUTPUT with the ending .yaml].",
)
@JSON
def prune(checkpoint: str, output: str, spec: str | None, as_json: bool) -> None:
    """Prune the layers of a checkpoint to what their gates keep.

    CHECKPOINT is a file of tnmars.save or tnmars.save_checkpoint. The command writes the pruned weights, and the
    pruned graph of each layer with gates as a spec file. If there are several such layers, the name of each spec file
    contains the name of its layer.
    """
    from tnmars.spec import save_spec
    from tnmars.store.container import write
    from tnmars.store.prune_file import pruned, spec_paths

    target = spec or str(Path(output).with_suffix(".yaml"))
    check_model(output, checkpoint)
    for name, flag in ((output, "--output"), (target, "--spec")):
        check_folder(name, flag)
    try:
        held, cuts = pruned(checkpoint)
    except TnmarsError as error:
        refuse(checkpoint, error.problems, as_json)
    paths = spec_paths(cuts, target)
    for path in paths.values():
        _check_spec(str(path), output, checkpoint, is_named=str(path) == spec)
    specs = {str(paths[cut.name]): partial(save_spec, cut.graph) for cut in cuts}
    try:
        write_together({output: lambda path: write(path, held), **specs})
    except TnmarsError as error:
        refuse(checkpoint, error.problems, as_json)
    if as_json:
        layers = [{"name": cut.name, "spec": str(paths[cut.name]), **cut.difference.as_json()} for cut in cuts]
        click.echo(json.dumps({"file": output, "layers": layers}, indent=1))
        return
    for cut in cuts:
        click.echo(f"{cut.name or 'layer'}:\n{cut.difference}\nwrote {paths[cut.name]}\n")
    click.echo(f"wrote {output}")


def _check_spec(path: str, output: str, checkpoint: str, *, is_named: bool) -> None:
    """Refuses to write a spec over the weights or the input, and over a file of the user's that was not named."""
    if resolved(path) in (resolved(output), resolved(checkpoint)):
        raise click.BadParameter(f"'{path}' is also the file of weights.", param_hint="--spec")
    if not is_named and resolved(path).exists() and not _is_pruned(path):
        hint = "choose another --output or --spec"
        text = f"'{path}' exists and is not the spec of a pruned graph; remove it, or {hint}."
        raise click.BadParameter(text, param_hint="--spec")


def _is_pruned(path: str) -> bool:
    """Whether a file was written by this command: the spec of a graph that has an origin."""
    from tnmars.spec import load

    try:
        return load(path).origin is not None
    except TnmarsError:
        return False


@click.command(epilog="Example: tnmars diff before.yaml after.yaml -o pruned.pdf")
@click.argument("before", type=NamedPath())
@click.argument("after", type=NamedPath())
@click.option(
    "-o",
    "--output",
    type=NamedPath(dir_okay=False),
    help="Write a picture of both: .svg, .pdf, .png or .tex (TikZ). Needs tnmars[viz] for .pdf and .png.",
)
@LAYER
@JSON
def diff(before: str, after: str, output: str | None, layer: str | None, as_json: bool) -> None:
    """Compare the graphs of two spec files or saved models.

    Prints bonds, cores, parameters and compression before and after, for each layer that both models have. With
    --output, also draws both graphs on one scale: lines are as wide as the ranks, and what was cut is pale.
    """
    from tnmars.cli.pictures import check_picture, write_picture
    from tnmars.graph.difference import difference

    if output is not None:
        check_picture(output, before, after)
    first, second = (read_graphs(file, {}, as_json, _own(file, layer)) for file in (before, after))
    pairs = _pairs(first, second)
    if output is not None and len(pairs) > 1:
        text = f"the models have {len(pairs)} layers, and a picture shows one: {listing(list(pairs))}."
        raise click.BadParameter(text, param_hint="--layer")
    if output is not None:
        write_picture(output, *next(iter(pairs.values())))
    changes = {name: difference(*pair) for name, pair in pairs.items()}
    if as_json:
        data = [{**({"layer": name} if name else {}), **change.as_json()} for name, change in changes.items()]
        click.echo(json.dumps(data[0] if len(data) == 1 else data, indent=1))
        return
    click.echo(titled({name: str(change) for name, change in changes.items()}))
    if output is not None:
        click.echo(f"wrote {output}")


def _own(file: str, layer: str | None) -> str | None:
    """The layer to take from a file: none from a spec file, which is compared with a layer of the other one."""
    from tnmars.spec.model_file import is_model_file

    return layer if file != "-" and is_model_file(file) else None


def _pairs(first: dict[str, Graph], second: dict[str, Graph]) -> dict[str, tuple[Graph, Graph]]:
    """The graphs to compare: layers of one name, or the only graph of each file."""
    if len(first) == len(second) == 1:
        (name, before), (after,) = next(iter(first.items())), second.values()
        return {name: (before, after)}
    shared = {name: (graph, second[name]) for name, graph in first.items() if name in second}
    several = [list(graphs) for graphs in (first, second) if len(graphs) > 1]
    if not shared and ("" in first or "" in second):
        text = f"the model has {len(several[0])} layers, and a spec file is compared with one: {listing(several[0])}."
        raise click.BadParameter(text, param_hint="--layer")
    if not shared:
        text = f"the files have no layer in common: {listing(list(first))}; and {listing(list(second))}."
        raise click.BadParameter(text, param_hint="--layer")
    return shared
