"""A model and what it is to become: the last step of loading, once everything is known to fit.

Layers and tensors of a file go into the model, which keeps its own modules and parameters wherever they fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.layer.memory import memory_to
from tnmars.layer.module import TNModule
from tnmars.models.rebuilt import place_of, register_
from tnmars.store.undo import all_or_nothing


@dataclass(frozen=True)
class Stored:
    """A model in a file: its compiled layers as data, and its tensors."""

    layers: Sequence[Mapping[str, Any]]
    tensors: Mapping[str, Tensor]
    source: str = "the file"
    """What messages call the file."""

    def of(self, layer: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors of a layer, by their names in its own state dict."""
        prefix = prefix_of(layer["names"][0])
        return {name[len(prefix) :]: value for name, value in self.tensors.items() if name.startswith(prefix)}


def prefix_of(name: str) -> str:
    return f"{name}." if name else ""


def plain_name(name: str) -> str:
    """The name of a parameter when it is a plain one, from the name of the layer that rebuilds it."""
    path, key = place_of(name)
    return f"{prefix_of(path)}{key}"


@dataclass
class Loading:
    """A model and what it is to become. Nothing changes before `apply`."""

    model: nn.Module
    held: Stored
    made: Mapping[str, TNModule]
    """The new layers by name."""

    def apply(self) -> nn.Module:
        """Puts layers and tensors into the model. Returns it, or its replacement. If it raises, nothing is changed."""
        with memory_to("load the model. Nothing was changed", "Free some memory first."), all_or_nothing(self.model):
            return self._applied()

    def _applied(self) -> nn.Module:
        self._share_parameters()
        for name, layer in self.made.items():
            old = self._module(name)
            if old is layer:
                continue
            if old is None:
                self._rebuild(name, layer)
            elif isinstance(old, TNModule):
                if layer.is_rebuilt:
                    layer.to(old.dtype)
                _become_(old, layer)
                self._take_over(layer, old)
            elif name:
                self.model.set_submodule(name, layer)
            else:
                self.model = layer
        self.model.load_state_dict(dict(self.held.tensors), strict=True)
        return self.model

    @property
    def prefixes(self) -> tuple[str, ...]:
        """How the names of the parameters start that the file's own replace."""
        plain = [plain_name(name) for name, layer in self.made.items() if layer.is_rebuilt]
        return (*map(prefix_of, self.made), *plain)

    @property
    def parameters(self) -> frozenset[str]:
        """The names that parameters will have in the model."""
        replaced = tuple(map(prefix_of, self.made))
        plain = {plain_name(name) for name, layer in self.made.items() if layer.is_rebuilt}
        named = self.model.named_parameters(remove_duplicate=False)
        kept = {name for name, _ in named if not name.startswith(replaced) and name not in plain}
        new = {f"{prefix_of(name)}{key}" for name, layer in self.made.items() for key, _ in layer.named_parameters()}
        return frozenset(kept | new)

    def _module(self, name: str) -> nn.Module | None:
        return dict(self.model.named_modules(remove_duplicate=False)).get(name)

    def _rebuild(self, name: str, layer: TNModule) -> None:
        """Lets a layer rebuild a plain parameter, in the dtype of the module that it belongs to."""
        path, key = place_of(name)
        module = self.model.get_submodule(path)
        layer.to(module._parameters[key].dtype)  # type: ignore[union-attr]
        register_(module, key, layer)

    def _take_over(self, layer: TNModule, old: TNModule) -> None:
        """Gives a layer with several names to all of them."""
        for name, other in self.made.items():
            if not name or other is not layer or self._module(name) is old:
                continue
            if self._module(name) is None:
                self._rebuild(name, old)
            else:
                self.model.set_submodule(name, old)

    def _share_parameters(self) -> None:
        """Gives new layers the file's dtypes and ties, and the model's own parameters wherever they fit."""
        own = self.model.state_dict(keep_vars=True)
        used: set[int] = set()
        place: dict[int, nn.Parameter] = {}
        prefixes = tuple(map(prefix_of, self.made))
        for key in sorted(own, key=lambda key: key.startswith(prefixes)):
            value, found = own[key], self.held.tensors.get(key)
            if found is None or not isinstance(value, nn.Parameter) or value.shape != found.shape:
                continue
            if (value.dtype == found.dtype or not key.startswith(prefixes)) and id(value) not in used:
                used.add(id(value))
                place.setdefault(id(found), value)
        for name, layer in self.made.items():
            for key in layer.state_dict():
                _put(layer, key, self.held.tensors[f"{prefix_of(name)}{key}"], place)


def _put(layer: nn.Module, key: str, found: Tensor, place: dict[int, nn.Parameter]) -> None:
    """Sets a parameter or buffer of a layer: the one already chosen for a tensor of the file, or a new one."""
    module, last = owner(layer, key)
    value = module._parameters.get(last)
    if value is None:
        buffer = module._buffers[last]
        assert buffer is not None
        module._buffers[last] = buffer.to(found.dtype)
        return
    if id(found) not in place:
        place[id(found)] = nn.Parameter(torch.empty_like(value, dtype=found.dtype))
    place[id(found)].requires_grad_(value.requires_grad)
    module._parameters[last] = place[id(found)]


def owner(layer: nn.Module, key: str) -> tuple[nn.Module, str]:
    """The module that holds a parameter or buffer of a layer, and its name there. A core may be called `forward`."""
    *path, last = key.split(".")
    for part in path:
        inner = layer._modules[part]
        assert inner is not None
        layer = inner
    return layer, last


def _become_(old: TNModule, new: TNModule) -> None:
    """Makes a layer another one; it stays the same object, with its hooks and its training mode."""
    base = nn.Module().__dict__.keys() - {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
    kept = {key: value for key, value in old.__dict__.items() if key in base}
    old.__dict__.clear()
    old.__dict__.update({**new.__dict__, **kept})
