"""Two models to the value of a report: layers are matched by name, bonds by term and name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from tnmars import spec
from tnmars.errors import Problem, TnmarsError, listing
from tnmars.graph import Graph
from tnmars.graph.counts import Count, total
from tnmars.graph.counts import count as counted
from tnmars.layer.module import TNModule
from tnmars.models.plan import CompressionPlan
from tnmars.plan.network import BATCH, TOKENS
from tnmars.plan.network import data as data_axis
from tnmars.program.explain import explain
from tnmars.program.form import Form
from tnmars.reporting.about import settings, versions
from tnmars.reporting.bonds import bonds, threshold
from tnmars.reporting.dense_before import with_dense
from tnmars.reporting.history import History, checked
from tnmars.reporting.metrics import checked_metrics
from tnmars.reporting.sources import Source, opened
from tnmars.reporting.timing import latencies
from tnmars.reporting.value import Layer, Report, Side


def collect(
    before: nn.Module | str | Path,
    after: nn.Module | str | Path,
    *,
    title: str | None = None,
    history: History | None = None,
    metrics: Mapping[str, Sequence[float]] | None = None,
    batch: int | None = None,
    measure: bool = True,
    plan: CompressionPlan | None = None,
) -> Report:
    """The value of a report; `tnmars.report` describes the arguments and what raises."""
    if batch is not None and batch < 1:
        raise TnmarsError(f"batch is {batch}, but must be at least 1.")
    second = opened(after)
    first = with_dense(opened(before), second)
    names = [name for name in first.layers if name in second.layers]
    if not names:
        raise TnmarsError(_nothing(first, second))
    entries = checked(first.history if history is None else history)
    known = checked_metrics(metrics, entries)
    compared = tuple(_layer(name, first.layers[name], second.layers[name], batch, measure) for name in names)
    return Report(
        title=_title(compared) if title is None else title,
        layers=compared,
        before=_whole(first),
        after=_whole(second),
        threads=torch.get_num_threads(),
        is_measured=measure,
        history=entries,
        versions=versions(torch.get_num_threads()),
        notes=tuple(_notes(first, second)),
        metrics=known,
        plan=plan,
    )


def _nothing(first: Source, second: Source) -> Problem:
    text = "the two models have no compiled layer of the same name, so there is nothing to compare."
    before, after = (listing(_names(model.layers)) for model in (first, second))
    return Problem(text, f"Before: {before}. After: {after}.")


def _names(layers: Iterable[str]) -> list[str]:
    """The layers' names for a message; a model that is itself a compiled layer has none."""
    return [name or "the model itself" for name in layers]


def _title(found: Sequence[Layer]) -> str:
    return f"{len(found)} layers" if len(found) > 1 else found[0].before.graph.name or found[0].title


def _whole(model: Source) -> Count:
    return Count(model.cores, total(layer.graph for layer in model.layers.values()).dense, model.other)


def _notes(first: Source, second: Source) -> list[str]:
    found = []
    for when, model, rest in (("before", first, second), ("after", second, first)):
        alone = _names(name for name in model.layers if name not in rest.layers)
        if alone:
            found.append(f"compiled only {when}, and so not shown: {listing(alone)}")
    return found


def _layer(name: str, before: TNModule, after: TNModule, batch: int | None, measure: bool) -> Layer:
    size = batch or after.nominal
    image = after.planner.image
    seconds = latencies(before, after, size, image) if measure else (None, None, None)
    sides = [_side(layer, size, took) for layer, took in ((before, seconds[0]), (after, seconds[1]))]
    dense = sides[1].count.dense + sides[1].count.other
    macs = next((side.explained.dense_macs for side in sides if side.explained), 0)
    return Layer(
        name=name,
        before=sides[0],
        after=sides[1],
        dense_bytes=dense * after._anchor.element_size(),
        dense_macs=macs or None,
        dense_seconds=seconds[2],
        bonds=tuple(bonds(before, after)),
        threshold=threshold(before.masks.selector) if before.masks is not None else None,
        is_warm=before.masks is not None and bool(before.masks.is_warm),
        batch=size,
        image=(image,) * len(after.graph.kernel_size),
        settings=settings(before, after),
        spec=spec.dump(after.graph),
    )


def _sized(graph: Graph, form: Form, batch: int) -> Form:
    """The plan that a batch takes, which may have been made for another, with the sizes of this one."""
    if form.chunk:
        return form
    data = {BATCH, TOKENS, *(data_axis(name) for operand in graph.inputs for axis in operand.axes for name in axis)}
    sizes = tuple((label, batch if label in data else size) for label, size in form.program.sizes)
    return replace(form, program=replace(form.program, sizes=sizes))


def _side(layer: TNModule, batch: int, seconds: float | None) -> Side:
    held = [*layer.cores.parameters(), *([] if layer.bias is None else [layer.bias])]
    planner = layer.planner
    explained = None
    if layer.graph.terms:
        form = _sized(layer.graph, layer.plan("infer", batch), batch)
        explained = explain(layer.graph, form, batch, planner.model, image=planner.image)
    taken = sum(value.numel() * value.element_size() for value in held)
    return Side(layer.graph, counted(layer.graph), taken, explained, seconds)
