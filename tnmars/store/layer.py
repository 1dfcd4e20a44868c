"""A compiled layer as plain data, and back: graph, selector, nominal sizes and plans, but not its tensors.

What is read is checked: graphs by the reader of spec files, plans against the graph, selectors by their own checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tnmars import select, spec
from tnmars.errors import CheckpointError, Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.parts import is_int
from tnmars.layer.init import DTYPES
from tnmars.layer.memory import NoMemoryError
from tnmars.layer.module import TNModule
from tnmars.plan.cost import NUMBERS, AcceleratorModel, CostModel
from tnmars.plan.trees import OPTIMIZERS
from tnmars.program.choice import NO_LIMIT, Planner
from tnmars.program.codec import plan_from_json, plan_to_json
from tnmars.select.base import is_number
from tnmars.spec.nodes import shorten
from tnmars.store.plain import decode, encode
from tnmars.timing.tuning import fastest

FLOATS = {str(kind): kind for kind in DTYPES}


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
        "channels_last": planner.channels_last,
        "optimizer": planner.optimizer,
        "tune": planner.decide is not None,
        "cost_model": planner.model.to_json(),
        "accelerator": isinstance(planner.model, AcceleratorModel),
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
    """The graph of a layer, with its origin. Raises `CheckpointError`."""
    try:
        return replace(spec.loads(_field(data, "spec")), origin=decode(_field(data, "origin")))
    except TnmarsError as error:
        raise CheckpointError(error.problems) from None


def is_selecting(data: Mapping[str, Any]) -> bool:
    """Whether the selector of a layer decides what to keep of it, by gates or by norms. Raises `CheckpointError`."""
    selector = _selector(data)
    if _field(data, "gates") or selector is None:
        return bool(_field(data, "gates"))
    return selector.judges_norms and bool(graph_of(data).bonds)


def from_json(
    data: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device | str | None = None
) -> TNModule:
    """The layer that `to_json` described, with uninitialized weights. The user's random state is not touched.

    Raises `CheckpointError`, before memory is taken for weights, if the description is not one that `to_json` makes or
    does not fit the `tensors` that the file has for the layer.
    """
    try:
        return _layer(data, tensors, device)
    except NoMemoryError as error:  # the file is sound
        raise TnmarsError(Problem(error.problems[0].text, "Free some memory first.")) from None
    except TnmarsError as error:
        raise CheckpointError(error.problems) from None


def _layer(data: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device | str | None) -> TNModule:
    graph = graph_of(data)
    selector = _selector(data)
    gated: bool = _field(data, "gates")
    if gated and (selector is None or not selector.has_gates):
        raise CheckpointError("its description says that it has gates, but not which selector trains them.")
    _check_shapes(graph, tensors, gated)
    planner = Planner(
        graph,
        _cost_model(_field(data, "cost_model"), data.get("accelerator") is True),  # older files do not say
        _field(data, "batch"),
        _field(data, "image"),
        _field(data, "optimizer"),
        fastest if _field(data, "tune") else None,
        data.get("channels_last") is True,  # older files do not say
    )
    with torch.random.fork_rng(devices=[]):
        layer = TNModule(
            planner,
            rule=_field(data, "init"),
            selector=selector if gated else None,
            open_only=_field(data, "open_only"),
            plans=plan_from_json(_field(data, "plans"), graph),
            device=device,
            dtype=FLOATS[_field(data, "dtype")],
        )
    layer.selector = selector
    layer.is_rebuilt = data.get("rebuilt") is True  # older files do not say
    fixed = _field(data, "fixed")
    for name, value in layer.named_parameters():
        value.requires_grad_(name not in fixed)
    return layer


def _is_size(value: Any) -> bool:
    return is_int(value, 1) and value <= NO_LIMIT


FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "spec": (lambda value: isinstance(value, str), "the text of a spec file"),
    "origin": (lambda value: value is None or isinstance(value, dict), "a table"),
    "selector": (lambda value: value is None or isinstance(value, dict), "the settings of a selector"),
    "gates": (lambda value: isinstance(value, bool), "true or false"),
    "open_only": (lambda value: isinstance(value, bool), "true or false"),
    "init": (lambda value: value is None or isinstance(value, str) or is_number(value), "a rule or a variance"),
    "batch": (_is_size, "a whole number of at least 1"),
    "image": (_is_size, "a whole number of at least 1"),
    "optimizer": (lambda value: isinstance(value, str) and value in OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}"),
    "tune": (lambda value: isinstance(value, bool), "true or false"),
    "cost_model": (lambda value: isinstance(value, dict), "a table of numbers"),
    "dtype": (lambda value: isinstance(value, str) and value in FLOATS, f"one of {', '.join(FLOATS)}"),
    "fixed": (lambda value: isinstance(value, list), "a list of names"),
    "plans": (lambda value: isinstance(value, dict), "a table of plans"),
}
"""What each entry of a description must be."""


def _field(data: Mapping[str, Any], name: str) -> Any:
    """An entry of a description. Raises `CheckpointError` if `to_json` would not write it."""
    if name not in data:
        raise CheckpointError(f"its description has no '{name}'.")
    is_right, wanted = FIELDS[name]
    if not is_right(data[name]):
        raise CheckpointError(f"'{name}' of its description is {shorten(repr(data[name]))}, but must be {wanted}.")
    return data[name]


def _selector(data: Mapping[str, Any]) -> select.Selector | None:
    settings = _field(data, "selector")
    if settings is None:
        return None
    try:
        return select.from_settings(decode(settings))
    except TypeError as error:
        raise CheckpointError(f"'selector' of its description does not fit: {error}.") from None


def _check_shapes(graph: Graph, tensors: Mapping[str, Tensor], gated: bool) -> None:
    """Raises `CheckpointError` if the file does not have the tensors that a layer of the graph has."""
    expected = {f"cores.{name}": shape for name, shape in graph.cores.items()}
    if graph.has_bias:
        expected["bias"] = (graph.out_features,)
    if gated:
        expected |= {f"gates.{name}": (bond.size,) for name, bond in graph.bonds.items()}
    problems = []
    for name, shape in expected.items():
        held = tensors.get(name)
        if held is None:
            problems.append(Problem(f"its graph has '{name}', but the file has no such tensor."))
        elif tuple(held.shape) != tuple(shape):
            text = f"'{name}' has shape {tuple(shape)} by its graph, but the file's tensor has {tuple(held.shape)}."
            problems.append(Problem(text))
    if problems:
        raise CheckpointError(problems)


def _cost_model(data: Mapping[str, Any], is_accelerator: bool) -> CostModel:
    known = {entry.name for entry in fields(CostModel)}
    constants = {key: value for key, value in data.items() if key in known}
    for key, value in constants.items():
        if not is_number(value) or value <= 0 or (key in ("item", "parts") and not is_int(value, 1)):
            text = f"'{key}' of its cost model is {shorten(repr(value))}, but must be a number above 0."
            raise CheckpointError(text)
    if (constants.get("item"), constants.get("parts", 1)) not in NUMBERS.values():  # older files may have others
        constants = {key: value for key, value in constants.items() if key not in ("item", "parts")}
    return replace(AcceleratorModel() if is_accelerator else CostModel(), **constants)
