"""The mechanism of `tnmars.parametrize_`: a parameter of a module that torch's parametrize asks a compiled layer for.

Torch gives a parametrized module a class of its own. What is added to that class here: recurrent layers take their
weights from the properties, torch's layers that read a weight several times a call rebuild it once, and modules can be
pickled. Nothing here knows how cores begin.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tnmars.errors import TnmarsError
from tnmars.layer.kinds.base import is_autocast
from tnmars.layer.module import TNModule
from tnmars.layer.torch_state import own_class_

INNER, LAYER = "parametrizations", "0.layer"
"""What stands before and after a parameter's name in the name of its layer: `parametrizations.weight.0.layer`."""
READ_OFTEN = (nn.RNNBase, nn.MultiheadAttention)
"""Torch's layers that read a weight several times in one call."""

_held: ContextVar[dict[tuple[int, bool, bool], Tensor] | None] = ContextVar("_held", default=None)
"""The weights that were rebuilt in this call of a module, by the parametrization and the gradient mode."""


class Rebuilt(nn.Module):
    """A parameter that is the dense weight of a compiled layer, as torch's parametrize takes it. It has no `original`.

    Args:
        layer: The compiled layer. Its bias, if it has one, is not used.
        order: The names of the module's parameters, to put this one back in its place.
    """

    def __init__(self, layer: TNModule, order: tuple[str, ...]):
        super().__init__()
        layer.is_rebuilt = True
        self.layer = layer
        self.order = order
        self.is_set = False

    def forward(self) -> Tensor:
        """The weight; within one call of a module that reads it often, always the same tensor."""
        held = None if torch.compiler.is_compiling() else _held.get()
        if held is None:
            return self._weight()
        key = (id(self), torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        if key not in held:
            held[key] = self._weight()
        return held[key]

    def _weight(self) -> Tensor:
        """The weight in the layer's dtype also under autocast: a parameter has its dtype there too."""
        if is_autocast(self.layer._anchor):
            with torch.autocast(self.layer.device.type, enabled=False):
                return self.value().contiguous()
        return self.value().contiguous()

    def value(self) -> Tensor:
        """What the parameter is, from the layer."""
        return self.layer.dense()

    def right_inverse(self, value: Tensor) -> tuple[Tensor, ...]:
        """Nothing: the layer has its cores already. Torch calls it again when somebody assigns to the parameter."""
        if self.is_set:
            raise TnmarsError(
                "the parameter is rebuilt from the cores of a graph, and cannot be assigned to.\n  Change the cores, "
                "or make it a plain parameter first: tnmars.models.parametrize.restore_(module, name)."
            )
        return ()


def register_(module: nn.Module, name: str, layer: TNModule, made: Rebuilt | None = None) -> None:
    """Lets a compiled layer give a parameter of a module, all of its weight or as `made` takes it from the layer.

    Shape and dtype must fit. The parameter itself is dropped.
    """
    if parametrize.is_parametrized(module):
        own_class_(module, parametrize.type_before_parametrizations(module))
    before = [other.order for other in map(partial(found, module), _names(module)) if other is not None]
    order = before[0] if before else tuple(module._parameters)
    rebuilt = Rebuilt(layer, order) if made is None else made
    rebuilt.order = order
    parametrize.register_parametrization(module, name, rebuilt)
    module.get_submodule(INNER).train(module.training)  # torch's own containers are made in training mode
    rebuilt.is_set = True
    _extend_(module)


def remove_(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Puts a plain parameter in the place of one that is rebuilt."""
    order = found(module, name).order  # type: ignore[union-attr]
    parametrize.remove_parametrizations(module, name)
    module._buffers.pop(name, None)
    module._parameters[name] = parameter
    places = {key: at for at, key in enumerate(order)}
    held = sorted(module._parameters.items(), key=lambda item: places.get(item[0], len(places)))
    module._parameters.clear()
    module._parameters.update(held)
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()


def found(module: nn.Module, name: str) -> Rebuilt | None:
    """What rebuilds a parameter of a module; None if nothing of ours does."""
    if not parametrize.is_parametrized(module, name):
        return None
    first = module.parametrizations[name][0]  # type: ignore[index]
    return first if isinstance(first, Rebuilt) else None


def _names(module: nn.Module) -> list[str]:
    """The parameters of a module that are parametrized, by us or by others."""
    return list(module.parametrizations) if parametrize.is_parametrized(module) else []  # type: ignore[arg-type]


def rebuilt_in(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, TNModule]]:
    """Every parameter of a model that is rebuilt: the name of its module, that module, its name there, its layer."""
    for path, module in list(model.named_modules()):
        for name in _names(module):
            rebuilt = found(module, name)
            if rebuilt is not None:
                yield path, module, name, rebuilt.layer


def place_of(name: str) -> tuple[str, str]:
    """The module and the parameter that a layer is for, from the layer's name in the model.

    >>> place_of("encoder.lstm.parametrizations.weight_hh_l0.0.layer")
    ('encoder.lstm', 'weight_hh_l0')
    """
    *path, inner, parameter, first, last = name.split(".")
    assert inner == INNER
    assert f"{first}.{last}" == LAYER
    return ".".join(path), parameter


def is_place(name: str) -> bool:
    """Whether a layer's name in a model is that of a layer that rebuilds a parameter, as `place_of` takes it."""
    *_, inner, parameter, first, last = ("", "", "", "", *name.split("."))
    return inner == INNER and parameter != "" and f"{first}.{last}" == LAYER


# --- the class of a parametrized module ------------------------------------------------------------------------------


def _extend_(module: nn.Module) -> None:
    """Gives the class that torch has made for a module what is needed here too."""
    made = type(module)
    base = made.__bases__[0]
    if "__deepcopy__" in made.__dict__:
        del made.__deepcopy__  # type: ignore[attr-defined]  # torch's lets a copy share the class of its original
    members = {"__reduce_ex__": _reduced, "__getstate__": _state, "__setstate__": _restore_state}
    if issubclass(base, READ_OFTEN):
        members["forward"] = _rebuilding_once(base)
    if issubclass(base, nn.RNNBase):
        members |= _RECURRENT
    for name, value in members.items():
        setattr(made, name, value)
    if isinstance(module, nn.RNNBase):
        module.__dict__["_flat_weights"] = []  # they would keep the dense weight alive
        module._init_flat_weights()


@contextmanager
def _one_call() -> Iterator[None]:
    token = _held.set({})
    try:
        yield
    finally:
        _held.reset(token)


def _rebuilding_once(base: type[nn.Module]) -> Any:
    """The forward pass of a class, in which every weight is rebuilt at most once."""

    @wraps(base.forward)
    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():  # what is traced twice is merged there
            return base.forward(self, *inputs, **named)
        with _one_call():
            return base.forward(self, *inputs, **named)

    return forward


def _flat_weights(self: Any) -> list[Tensor]:
    return [getattr(self, name) for name in self._flat_weights_names]


def _ignore(self: Any, value: object = None) -> None:
    """Weights are made when they are read, so there is nothing to keep up to date and nothing to flatten."""


def _init_flat_weights(self: Any) -> None:
    """Marks what torch keeps as stale, for the class that is back once no parameter is rebuilt."""
    self._flat_weight_refs = [weakref.ref(nn.Parameter(torch.empty(0))) for _ in self._flat_weights_names]


_RECURRENT: dict[str, Any] = {
    "_flat_weights": property(_flat_weights, _ignore),
    "_init_flat_weights": _init_flat_weights,
    "_update_flat_weights": _ignore,
    "flatten_parameters": _ignore,
}
"""Recurrent layers keep a list of their weights; here it is read from the properties each time."""


def _reduced(self: nn.Module, protocol: object) -> tuple[Any, ...]:
    """A copy or a pickle: the class that the module had before, and its state."""
    return _fresh, (type(self).__bases__[0],), _state(self)


def _state(self: nn.Module) -> Any:
    getstate = getattr(type(self).__bases__[0], "__getstate__", None)  # not in Python 3.10
    return dict(self.__dict__) if getstate is None else getstate(self)


def _fresh(base: type[nn.Module]) -> nn.Module:
    """A module without a state, whose class can restore one."""
    module = base.__new__(base)
    own_class_(module, base)
    type(module).__setstate__ = _restore_state  # type: ignore[method-assign]
    return module


def _restore_state(self: nn.Module, state: Any) -> None:
    base = type(self).__bases__[0]
    self.__class__ = base
    self.__setstate__(state)  # type: ignore[no-untyped-call]
    own_class_(self, base)
    _extend_(self)
