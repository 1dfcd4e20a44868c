"""`plan`, `compile` and `calibrate`: how the compiler contracts a graph. Only `calibrate` imports torch."""

from __future__ import annotations

import json
from math import exp

import click

from tnmars.cli.graphs import FILE, JSON, LAYER, SET, is_number, need_terms, read_graph, read_graphs, titled
from tnmars.errors import SpecError
from tnmars.graph import Graph
from tnmars.plan.cost import NUMBERS, machine_model
from tnmars.plan.trees import OPTIMIZERS


def _batches(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(is_number(part, 10**9) for part in parts):
        raise click.BadParameter(f"'{text}' must be a list of batch sizes, such as 1,32,1024.")
    return tuple(map(int, parts))


BATCH = click.option(
    "--batch", default="1,32,1024", show_default=True, callback=_batches, help="Batch sizes, separated by commas."
)
TRAIN = click.option("--train", is_flag=True, help="Plan for training instead of inference.")
IMAGE = click.option(
    "--image",
    type=click.IntRange(1, 4096),
    default=32,
    show_default=True,
    help="Side length of the image, for convolutions.",
)
OPTIMIZER = click.option(
    "--optimizer",
    type=click.Choice(OPTIMIZERS),
    default="auto",
    show_default=True,
    help="The search for contraction orders.",
)


def _dtypes(file: str) -> dict[str, str]:
    """The types of the numbers in a saved model by layer; none in a spec file."""
    from tnmars.spec.model_file import dtypes_in, is_model_file

    found = dtypes_in(file) if file != "-" and is_model_file(file) else {}
    for name, dtype in found.items():
        if dtype not in NUMBERS:
            raise SpecError(f"{file}: is damaged: layer '{name}' has numbers of type '{dtype}'.")
    return found


def _dtype(graph: Graph) -> str:
    """The type that the numbers of a spec file have, which does not say."""
    return "complex64" if graph.conjugated else "float32"


@click.command(epilog="Example: tnmars plan specs/tucker2_conv.yaml --batch 1,32 --all")
@FILE
@SET
@BATCH
@TRAIN
@IMAGE
@OPTIMIZER
@click.option("--all", "everything", is_flag=True, help="Show all candidates, not only the chosen one.")
@LAYER
@JSON
def plan(
    file: str,
    params: dict[str, int],
    batch: tuple[int, ...],
    train: bool,
    image: int,
    optimizer: str,
    everything: bool,
    layer: str | None,
    as_json: bool,
) -> None:
    """Show how a graph is contracted, and what each step costs.

    FILE is a spec file or a saved model. For each batch size, prints the steps of the chosen plan with their
    multiply-adds and bytes, and compares the total with that of the dense layer. Steps above the line depend only on
    the cores. The numbers of a saved model have their own types; those of a spec file are float32, or complex64 if a
    core is conjugate. At the end, the time of the chosen plans relative to the dense layer, for inference and in
    training.
    """
    from tnmars.plan.layout import Weighing
    from tnmars.program.choice import choose
    from tnmars.program.codec import form_to_json
    from tnmars.program.explain import explain, ratio_table, table, time_ratios

    found = read_graphs(file, params, as_json, layer)
    dtypes = _dtypes(file)
    data, texts = [], {}
    for name, graph in found.items():
        model = machine_model().for_numbers(dtypes.get(name, _dtype(graph)))
        need_terms(file, graph, as_json, "contract")
        shown = []
        for size in batch:
            forms = choose(graph, size, Weighing(model, train), image, optimizer)
            shown += [
                (form, explain(graph, form, size, model, grad=train, image=image))
                for form in forms[: None if everything else 1]
            ]
        own = {"layer": name} if name else {}
        ratios = {size: time_ratios(graph, size, model, image=image, optimizer=optimizer) for size in batch}
        data += [
            {**own, **entry.to_json(), "time_ratios": ratios[entry.batch], "plan": form_to_json(form)}
            for form, entry in shown
        ]
        texts[name] = "\n\n".join([*(table(entry) for _, entry in shown), *ratio_table(ratios)])
    click.echo(json.dumps(data, indent=1) if as_json else titled(texts))


@click.command(epilog="Example: tnmars compile specs/tt_linear.yaml --batch 32")
@FILE
@SET
@click.option("--batch", type=click.IntRange(1, 10**9), default=128, show_default=True, help="The batch size.")
@TRAIN
@IMAGE
@OPTIMIZER
@JSON
def compile_(
    file: str, params: dict[str, int], batch: int, train: bool, image: int, optimizer: str, as_json: bool
) -> None:
    """Print the Python source that the compiler emits for a graph.

    It is the source of the plan that `tnmars plan` shows for FILE at this batch size.
    """
    from tnmars.plan.layout import Weighing
    from tnmars.program.choice import choose
    from tnmars.program.emit import emit

    graph = read_graph(file, params, as_json)
    need_terms(file, graph, as_json, "emit")
    form = choose(graph, batch, Weighing(machine_model().for_numbers(_dtype(graph)), train), image, optimizer)[0]
    source = emit(form.program, form.frame)
    made = {"file": file, "batch": batch, "mode": "train" if train else "infer", "form": form.name, "source": source}
    click.echo(json.dumps(made, indent=1) if as_json else source, nl=as_json)


@click.command(epilog="Example: tnmars calibrate --show")
@click.option("--show", is_flag=True, help="Print the cost model instead of saving it.")
@click.option("--device", default="cpu", show_default=True, help="The device to measure, such as cuda.")
@JSON
def calibrate(show: bool, device: str, as_json: bool) -> None:
    """Measure this machine, and save a cost model for it.

    The model is saved in the user's cache folder, one for each type of device. Plans are chosen by it from then on,
    instead of by the model that tnmars ships.
    """
    import torch

    from tnmars.plan.cost import shipped_model
    from tnmars.timing import calibrate as timings

    try:
        kind = torch.empty(0, device=device).device.type
    except (RuntimeError, AssertionError, NotImplementedError):
        raise click.BadParameter(f"torch has no device '{device}' here.", param_hint="--device") from None
    if kind == "meta":
        raise click.BadParameter("the meta device computes nothing.", param_hint="--device")
    shipped = shipped_model(kind)
    click.echo("timing matrix products, copies, convolutions and lookups; this takes about ten seconds", err=True)
    samples = timings.samples(device=device)
    model = timings.fit(samples, shipped)
    before, after = timings.error(shipped, samples) ** 0.5, timings.error(model, samples) ** 0.5
    if show:
        click.echo(json.dumps(model.to_json(), indent=1))
        return
    path = timings.save_model(model, device=kind)
    was, now = exp(before), exp(after)
    if as_json:
        made = {"file": str(path), "error": now, "shipped_error": was, "model": model.to_json()}
        click.echo(json.dumps(made, indent=1))
    else:
        click.echo(
            f"wrote {path}; estimated times are typically off by a factor of {now:.2f} (the shipped model: {was:.2f})"
        )
