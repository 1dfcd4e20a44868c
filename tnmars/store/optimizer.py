"""The state of a torch optimizer as plain data and tensors, by the names of parameters, and back.

Groups and state are matched by name, never by position. So they find their parameters in a model whose graphs are not
the ones that the optimizer was made for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import CheckpointError, Problem, TnmarsError, listing
from tnmars.layer.distributed import is_sharded, whole
from tnmars.spec.nodes import shorten
from tnmars.store import trial
from tnmars.store.plain import decode, encode

Optimizer = torch.optim.Optimizer
MOST = 3
"""How many parameters of a group are reported that a step fails on."""


def to_json(optimizer: Optimizer, model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Groups and state as data, and the tensors in them by name."""
    names = {value: name for name, value in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    groups, state = [], {}
    for at, group in enumerate(optimizer.param_groups):
        plain = _split({key: value for key, value in group.items() if key != "params"}, f"groups.{at}", tensors)
        groups.append({"params": [_name(value, names) for value in group["params"]], "settings": plain})
    for parameter, entries in optimizer.state.items():
        name = _name(parameter, names)
        state[name] = _split(entries, f"state.{name}", tensors)
    return {"kind": type(optimizer).__name__, "groups": groups, "state": state}, tensors


def _name(parameter: Any, names: Mapping[nn.Parameter, str]) -> str:
    if parameter not in names:
        shape = tuple(parameter.shape) if isinstance(parameter, Tensor) else parameter
        text = f"the optimizer holds a parameter of shape {shape} that the model does not have."
        fix = "Save one module that holds all trained parameters. When pruning, pass the optimizer to prune_."
        raise TnmarsError(Problem(text, fix))
    return names[parameter]


def _split(entries: Mapping[str, Any], where: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Entries as data; a tensor is only marked, and put with the other tensors."""
    plain = {}
    for key, value in entries.items():
        if isinstance(value, Tensor):
            tensors[f"{where}.{key}"] = whole(value)
            plain[key] = {"$tensor": True}
        else:
            plain[key] = encode(value, f"optimizer.{where}.{key}")
    return plain


@dataclass(frozen=True)
class Saved:
    """The optimizer of a file."""

    kind: str
    groups: Sequence[tuple[Sequence[str], Mapping[str, Any]]]
    """For each group, the names of its parameters, and its settings."""
    state: Mapping[str, Mapping[str, Any]]
    """The state of each parameter by name."""


def from_json(data: object, tensors: Mapping[str, Tensor]) -> Saved:
    """What `to_json` was given. Raises `CheckpointError` for anything that it does not return."""
    try:
        assert isinstance(data, dict) and isinstance(data["kind"], str), "no kind"
        groups = []
        for at, group in enumerate(data["groups"]):
            assert isinstance(group["params"], list), "no list of parameters"
            assert all(isinstance(name, str) for name in group["params"]), "no names"
            groups.append((group["params"], _joined(group["settings"], f"groups.{at}", tensors)))
        state = {name: _joined(entries, f"state.{name}", tensors) for name, entries in data["state"].items()}
        return Saved(data["kind"], groups, state)
    except (AssertionError, LookupError, TypeError, AttributeError) as error:
        text = f"the optimizer of the file is not one that tnmars writes: {type(error).__name__} {error}."
        raise CheckpointError(text) from None


def _joined(entries: Mapping[str, Any], where: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What `_split` was given."""
    return {
        key: tensors[f"{where}.{key}"].clone() if value == {"$tensor": True} else decode(value)
        for key, value in entries.items()
    }


def problems(
    optimizer: Optimizer,
    saved: Saved,
    model: nn.Module,
    compiled: tuple[str, ...],
    after: frozenset[str],
    tensors: Mapping[str, Tensor],
) -> Iterator[Problem]:
    """What prevents loading; parameters whose names start with one of `compiled` may differ.

    `after` has the names of all parameters that the model will have, and `tensors` their values.
    """
    kind = type(optimizer).__name__
    if kind != saved.kind:
        yield Problem(f"the optimizer is {kind}, but {shorten(saved.kind)} in the file.")
    live = {
        **optimizer.defaults,
        **{key: value for group in optimizer.param_groups[:1] for key, value in group.items()},
    }
    device = next((value.device.type for group in optimizer.param_groups for value in group["params"]), "cpu")
    for params, settings in saved.groups if kind == saved.kind else ():
        wrong = list(trial.unlike(settings, live, "the optimizer"))
        yield from wrong
        if not wrong:
            known = {name: tensors[name] for name in params if name in tensors}
            yield from islice(trial.failures(optimizer, settings, saved.state, known, device), MOST)
    names = {value: name for name, value in model.named_parameters()}
    held = [names.get(value) for group in optimizer.param_groups for value in group["params"]]
    if None in held:
        yield Problem("the optimizer holds a parameter that the model does not have.")
    trained = [name for params, _ in saved.groups for name in params]
    have = {name for name in held if name is not None and not name.startswith(compiled)}
    want = {name for name in trained if not name.startswith(compiled)}
    if have - want:
        yield Problem(f"the optimizer trains {listing(sorted(have - want))}, but not in the file.")
    if want - have:
        yield Problem(f"the optimizer of the file trains {listing(sorted(want - have))}, but this one does not.")
    strange = {*trained, *saved.state} - after - want
    if strange:
        yield Problem(f"the optimizer of the file has {listing(sorted(strange))}, which the model does not have.")
    if len(set(trained)) < len(trained):
        yield Problem("the optimizer of the file has a parameter in two groups.")


@contextmanager
def kept(optimizer: Optimizer) -> Iterator[None]:
    """Within the block an optimizer may change; if the block raises, its groups and state are again what they were."""
    groups, state = [(group, dict(group)) for group in optimizer.param_groups], dict(optimizer.state)
    try:
        yield
    except BaseException:
        for group, inside in groups:
            group.clear()
            group.update(inside)
        optimizer.param_groups[:] = [group for group, _ in groups]
        optimizer.state.clear()
        optimizer.state.update(state)
        raise


def load_(optimizer: Optimizer, saved: Saved, model: nn.Module) -> None:
    """Gives an optimizer the groups and the state of a file, for the parameters that the model has now."""
    named = dict(model.named_parameters(remove_duplicate=False))
    groups = optimizer.param_groups
    for at, (params, settings) in enumerate(saved.groups):
        if at == len(groups):
            groups.append({})
        groups[at].update({"params": [named[name] for name in params], **optimizer.defaults, **settings})
    del groups[len(saved.groups) :]
    optimizer.state.clear()
    moved = any(group.get("capturable") or group.get("fused") for group in groups)
    for name, entries in saved.state.items():
        parameter = named[name]
        optimizer.state[parameter] = {
            key: _laid_out(value, parameter) if isinstance(value, Tensor) and (moved or key != "step") else value
            for key, value in entries.items()
        }


def _laid_out(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """A value where its parameter is, and in the same order in memory, which files do not keep.

    A fused optimizer goes through both from entry to entry, and would combine the wrong ones.
    """
    if value.shape != parameter.shape or is_sharded(parameter) or value.stride() == parameter.stride():
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
