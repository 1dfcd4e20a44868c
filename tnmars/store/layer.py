"""A compiled layer as plain data, and back: graph, selector, nominal sizes and plans, but not its tensors.

What is read is checked: graphs by the reader of spec files, plans against the graph, selectors by their own checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import torch

from tnmars import select, spec
from tnmars.errors import CheckpointError, TnmarsError
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.plan.cost import CostModel
from tnmars.program.choice import Planner
from tnmars.program.codec import plan_from_json, plan_to_json
from tnmars.store.plain import decode, encode
from tnmars.timing.tuning import fastest

FLOATS = {str(kind): kind for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


def to_json(layer: TNModule) -> dict[str, Any]:
    """Everything about a layer except its tensors."""
    planner = layer.planner
    return {
        "spec": _text(replace(layer.graph, origin=None), layer.graph.name),
        "origin": encode(layer.graph.origin, "origin"),
        "selector": None if layer.selector is None else encode(layer.selector.settings(), "selector"),
        "gates": layer.masks is not None,
        "open_only": layer.open_only,
        "rebuilt": layer.is_rebuilt,
        "init": layer.rule,
        "batch": planner.nominal,
        "image": planner.image,
        "optimizer": planner.optimizer,
        "tune": planner.decide is not None,
        "cost_model": planner.model.to_json(),
        "dtype": str(layer.dtype),
        "fixed": [name for name, value in layer.named_parameters() if not value.requires_grad],
        "plans": plan_to_json(layer.programs.plans),
    }


@lru_cache(maxsize=512)
def _text(graph: Graph, name: str) -> str:
    """The text of a graph, known to be readable. `name` is in the cache's key: equal graphs may differ in it."""
    text = spec.dump(graph)
    try:
        is_same = spec.loads(text) == graph
    except TnmarsError as error:
        first = error.problems[0].text
        raise TnmarsError(f"graph '{name}' cannot be saved, because its spec file could not be read: {first}") from None
    assert is_same, "a graph is what its spec file says"
    return text


def graph_of(data: Mapping[str, Any]) -> Graph:
    """The graph of a layer, with its origin."""
    return replace(spec.loads(data["spec"]), origin=decode(data["origin"]))


def is_selecting(data: Mapping[str, Any]) -> bool:
    """Whether the selector of a layer decides what to keep of it, by gates or by norms."""
    if data["gates"] or data["selector"] is None:
        return bool(data["gates"])
    return select.from_settings(decode(data["selector"])).judges_norms and bool(graph_of(data).bonds)


def from_json(data: Mapping[str, Any], device: torch.device | str | None = None) -> TNModule:
    """The layer that `to_json` described, with uninitialized weights. The user's random state is not touched."""
    try:
        return _layer(data, device)
    except (KeyError, TypeError, AttributeError) as error:
        text = f"its description is not one that tnmars writes: {type(error).__name__} {error}"
        raise CheckpointError(text) from None


def _layer(data: Mapping[str, Any], device: torch.device | str | None) -> TNModule:
    graph = graph_of(data)
    selector = None if data["selector"] is None else select.from_settings(decode(data["selector"]))
    planner = Planner(
        graph,
        _cost_model(data["cost_model"]),
        int(data["batch"]),
        int(data["image"]),
        str(data["optimizer"]),
        fastest if data["tune"] else None,
    )
    with torch.random.fork_rng(devices=[]):
        layer = TNModule(
            planner,
            rule=data["init"],
            selector=selector if data["gates"] else None,
            open_only=bool(data["open_only"]),
            plans=plan_from_json(data["plans"], graph),
            device=device,
            dtype=FLOATS[data["dtype"]],
        )
    layer.selector = selector
    layer.is_rebuilt = bool(data.get("rebuilt", False))  # older files do not say
    for name, value in layer.named_parameters():
        value.requires_grad_(name not in data["fixed"])
    return layer


def _cost_model(data: Mapping[str, Any]) -> CostModel:
    known = {entry.name for entry in fields(CostModel)}
    return replace(CostModel(), **{key: value for key, value in data.items() if key in known})
