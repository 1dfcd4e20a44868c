"""`compile`: the whole pipeline, from a graph or a spec file to a module."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from tnmars import spec
from tnmars.errors import TnmarsError
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.plan.cost import CostModel, machine_model
from tnmars.program.choice import Planner
from tnmars.select.base import Selector
from tnmars.timing.tuning import fastest


def compile(
    graph: Graph | str | Path,
    *,
    selector: Selector | None = None,
    open_only: bool = False,
    bias: bool | None = None,
    init: str | float | None = None,
    batch: int = 128,
    image: int = 32,
    tune: bool = False,
    optimizer: str = "auto",
    model: CostModel | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **options: object,
) -> TNModule:
    """The layer of a graph, or of the one in a spec file.

    With a `selector`, such as `tnmars.Mars()`, every bond has a gate that is trained with the model; see
    `tnmars.MaskSchedule`, `tnmars.penalty` and `tnmars.prune`. With `open_only` a training step contracts only the
    slices whose gates its sample leaves open: the same numbers, in less time where most are shut.
    `batch` (and `image`, the side of a convolution's input) are nominal: `torch.compile` and `torch.export` take the
    plan made for them; other sizes get plans of their own when they come. `tune` times close candidates on this
    machine. Options of the layer, such as `stride`, win over those of the graph. `init` is `"glorot"`, `"kaiming"` or
    the variance of the weight.
    """
    if selector is not None and not isinstance(selector, Selector):
        raise TnmarsError(f"selector is {selector!r}; it is a value such as tnmars.Mars(pi=1e-2, alpha=-1.75).")
    for name, size in (("batch", batch), ("image", image)):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise TnmarsError(f"{name} is {size!r}; it is a whole number from 1 on.")
    if dtype is not None and not dtype.is_floating_point:
        raise TnmarsError(f"dtype is {dtype}; cores hold floating-point numbers, such as torch.float32.")
    found = graph if isinstance(graph, Graph) else spec.load(graph)
    if bias is not None:
        options["bias"] = bias
    if options:
        merged = {**dict(found.options), **options}
        found = replace(found, options=tuple(merged.items()))  # type: ignore[arg-type]
    decide = partial(fastest, device=device, dtype=dtype) if tune else None
    planner = Planner(found, model or machine_model(), batch, image, optimizer, decide)
    return TNModule(planner, rule=init, selector=selector, open_only=open_only, device=device, dtype=dtype)
