"""`compile`: the pipeline from a graph or a spec file to a module."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from tnmars import spec
from tnmars.arguments import check_arguments, own, shown
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.parts import is_int
from tnmars.layer.init import place
from tnmars.layer.module import TNModule
from tnmars.layer.numbers import dtype_name
from tnmars.layer.predicted import warn_if_slower
from tnmars.plan.cost import CostModel, machine_model
from tnmars.program.choice import NO_LIMIT, Planner
from tnmars.select.base import Selector
from tnmars.timing.tuning import fastest, measured_ratios


def compile(
    graph: Graph | str | Path,
    *,
    selector: Selector | None = None,
    open_only: bool = False,
    bias: bool | None = None,
    init: str | float | None = None,
    batch: int = 128,
    image: int = 32,
    memory_format: torch.memory_format = torch.contiguous_format,
    tune: bool = False,
    optimizer: str = "auto",
    model: CostModel | None = None,
    warn: bool = True,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    **options: object,
) -> TNModule:
    """A layer whose weight is the tensor network of a graph: an `nn.Module` that is called like torch's own layer.

    Args:
        graph: A graph, or the path of a spec file.
        selector: The rule that learns the ranks, such as `tnmars.Mars()`: every bond gets a gate that is trained with
            the model. See `tnmars.MaskSchedule`, `tnmars.penalty` and `tnmars.prune`. Without one there are no gates.
        open_only: Whether a training step contracts only the slices whose gates its sample leaves open. The numbers
            are the same; it is faster where most gates are shut.
        bias: Whether the layer has a bias; by default as the graph says.
        init: How cores are drawn: `"glorot"`, `"kaiming"`, or the variance of the weight. By default
            torch's variance for an embedding, else `"glorot"`.
        batch: The nominal batch. `torch.compile` and `torch.export` take the plan that is made for it; other batches
            are planned when they first occur.
        image: The nominal side of a convolution's input.
        memory_format: The memory layout that a convolution's inputs will have: `torch.channels_last` plans, and with
            `tune` times, for such images. Any layout is accepted, and the output has the layout of the input.
        tune: Whether close candidates are timed on this machine. Costs up to a few seconds per layer; equal layers are
            timed once, also in later processes, because the winners are kept in the user's cache folder.
        optimizer: Where contraction paths come from: `"auto"`, one of opt_einsum's searches, or `"cotengra"`.
        model: The cost model that plans are chosen by; by default the calibrated one of this machine for the type of
            device.
        warn: Whether to warn if the layer is predicted, or with `tune` measured, to be slower than torch's own at the
            nominal batch, for inference or in training. It never warns of tables, nor of weights with fewer than 4,096
            entries.
        device: Where parameters live, as in torch's layers.
        dtype: The floating-point or complex type of the parameters, as in torch's layers. Gates are always real. Plans
            and predicted times are for this type, also if the layer is converted later.
        **options: Options of the layer, such as `stride=2`. They override those of the graph.

    Shape:
        As torch's layer of the same kind: for `linear`, `(*, in_features)` to `(*, out_features)`; for `conv`,
        `(batch, channels, *image)`; for `embedding`, indices of any shape; a `tensor` is called without input.

    Returns:
        The layer, with `cores.NAME` and `bias` as parameters, and `gates.BOND` if there is a selector.

    Raises:
        TnmarsError: An argument is wrong. The message names it.
        SpecError: The spec file has problems; all of them are listed.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.tt("linear", inputs=(4, 6), outputs=(3, 5), rank=2)
        >>> layer = tnmars.compile(graph, batch=32)
        >>> layer(torch.zeros(7, 24)).shape
        torch.Size([7, 15])
    """
    check_arguments(compile, locals(), but=("selector", "init", "dtype"))
    bias, init, batch, image = own((bias, init, batch, image))
    if selector is not None and not isinstance(selector, Selector):
        raise TnmarsError(
            f"selector is {shown(selector)}, but must be a selector such as tnmars.Mars(pi=1e-2, alpha=-1.75)."
        )
    sizes: dict[str, object] = {"batch": batch, "image": image}
    for name, size in sizes.items():
        if not is_int(size, 1, NO_LIMIT):
            limit = f"an integer of at {f'most {NO_LIMIT:,}' if is_int(size, 1) else 'least 1'}"
            raise TnmarsError(f"{name} is {shown(size)}, but must be {limit}.")
    device, dtype = place(device, dtype)
    declared = graph if isinstance(graph, Graph) else spec.load(graph)
    if bias is not None:
        options["bias"] = bias
    if options:
        merged = {**dict(declared.options), **options}
        declared = replace(declared, options=tuple(merged.items()))  # type: ignore[arg-type]
    is_complex = dtype is not None and dtype.is_complex
    if is_complex and dict(declared.options).get("mode") == "max":
        text = f"the layer has mode 'max' and dtype {dtype}, but complex numbers have no order."
        raise TnmarsError(Problem(text, "Take mode 'sum' or 'mean', or real numbers."))
    if memory_format not in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d):
        raise TnmarsError(
            f"memory_format is {memory_format}, but must be torch.contiguous_format or torch.channels_last."
        )
    is_last = memory_format != torch.contiguous_format
    decide = fastest if tune else None
    kind = torch.device(device or torch.get_default_device()).type
    costs = (model or machine_model(kind)).for_numbers(dtype_name(dtype or torch.get_default_dtype()))
    planner = Planner(declared, costs, batch, image, optimizer, decide, is_last)
    layer = TNModule(planner, rule=init, selector=selector, open_only=open_only, device=device, dtype=dtype)
    if warn:
        warn_if_slower(layer, 3, measured_ratios(layer))
    return layer


compile_quietly = partial(compile, warn=False)
"""The same without warnings, for callers that compare with torch's layer themselves."""
