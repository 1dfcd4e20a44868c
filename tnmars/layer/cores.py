"""Parameters by name, where any name is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


class Cores(nn.Module):
    """Holds cores by name: `cores.G1`, or `cores.t1.G1`. Any identifier is a name here, also `type` or `forward`."""

    def __init__(self, values: Mapping[str, nn.Parameter] | None = None):
        super().__init__()
        for name, value in (values or {}).items():
            self.put(name, value)

    def put(self, name: str, value: nn.Parameter) -> None:
        first, _, rest = name.partition(".")
        if not rest:
            self._parameters[first] = value
            return
        child = self._modules.setdefault(first, Cores())
        assert isinstance(child, Cores)
        child.put(rest, value)

    def get(self, name: str) -> nn.Parameter:
        quick = self._parameters.get(name)
        if quick is not None:
            return quick
        holder, last = self._holder(name)
        value: nn.Parameter | None = holder._parameters.get(last)
        return getattr(holder, last) if value is None else value  # torch's parametrizations are properties

    def place(self, name: str) -> tuple[dict[str, Any], str]:
        """The dictionary of the module that holds a core, and the core's name in it."""
        holder, last = self._holder(name)
        return holder._parameters, last

    def _holder(self, name: str) -> tuple[Cores, str]:
        first, _, rest = name.partition(".")
        if not rest:
            return self, first
        child = self._modules[first]
        assert isinstance(child, Cores)
        return child._holder(rest)

    def train(self, mode: bool = True) -> Cores:
        """As in `nn.Module`, which would assign to a core named `training`."""
        self.__dict__["training"] = mode
        for child in self.children():
            child.train(mode)
        return self


def parameters_of(cores: Cores) -> list[nn.Parameter]:
    """The parameters of a module, each once: as its `parameters()`, but faster where nothing is nested."""
    own = [value for value in cores._parameters.values() if value is not None]
    is_flat = not cores._modules and len(own) == len(set(map(id, own)))
    return own if is_flat else list(cores.parameters())
