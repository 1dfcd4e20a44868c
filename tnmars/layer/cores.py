"""Parameters by name, where any name is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from tnmars.errors import Problem, ShapeError, TnmarsError


class Cores(nn.Module):
    """Holds cores by name: `cores.G1`, or `cores.t1.G1`. Any identifier is a name here, also `type` or `forward`."""

    _tied: Mapping[str, str] = MappingProxyType({})
    """For the name of each core that is tied to another, that of the other."""

    def __init__(self, values: Mapping[str, nn.Parameter] | None = None, nodes: Mapping[str, str] | None = None):
        super().__init__()
        tied = {name: held for name, held in (nodes or {}).items() if name != held}
        if tied:
            self.__dict__["_tied"] = tied
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
        return holder._computed(last) if value is None else value

    def _computed(self, name: str) -> Any:
        """A value that torch computes: by a property (`parametrize`), or by hooks (`prune`, the old `weight_norm`).

        Torch runs the hooks when a module is called. This one never is, so they run here.
        """
        for hook in self._forward_pre_hooks.values():
            hook(self, ())
        return getattr(self, name)

    def computed(self, names: Iterable[str]) -> dict[str, str]:
        """The cores among `names` that are not parameters, each with the call that makes it one."""
        found = {}
        for name in names:
            holder, last = self._holder(name)
            if holder._parameters.get(last) is None:
                place = ".".join(["layer.cores", *name.split(".")[:-1]])
                found[name] = f"torch.nn.utils.{holder._way_back(last)}({place}, '{last}')"
        return found

    def _way_back(self, name: str) -> str:
        """The function of `torch.nn.utils` that makes a computed value a parameter again."""
        if name in getattr(self, "parametrizations", ()):
            return "parametrize.remove_parametrizations"
        if f"{name}_mask" in self._buffers:
            return "prune.remove"
        return "remove_weight_norm" if f"{name}_g" in self._parameters else "remove_spectral_norm"

    def __setattr__(self, name: str, value: Any) -> None:
        """As in `nn.Module`, but a parameter keeps its shape: the plans are made for it."""
        held = self.__dict__.get("_parameters", {}).get(name)
        if held is not None:
            check_shape(name, value, tuple(held.shape))
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return plain_state(self.__dict__)

    def place(self, name: str) -> tuple[dict[str, Any], str]:
        """The dictionary of the module that holds a core, and the core's name in it."""
        holder, last = self._holder(name)
        return holder._parameters, last

    def _holder(self, name: str) -> tuple[Cores, str]:
        first, _, rest = self._tied.get(name, name).partition(".")
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


def check_shape(name: str, value: object, shape: tuple[int, ...]) -> None:
    """Raises `ShapeError` if a parameter of a layer is given up, or replaced by one of another shape."""
    if value is None:
        raise ShapeError(f"'{name}' of the layer has shape {shape}, but it was set to None.")
    if isinstance(value, Tensor) and tuple(value.shape) != shape:
        text = f"'{name}' of the layer has shape {shape}, but it was set to a tensor of shape {tuple(value.shape)}."
        raise ShapeError(Problem(text, "For other ranks use tnmars.prune_ or tnmars.widen_, or compile a graph."))


def check_parameters(cores: Cores, names: Iterable[str], layer: str, outcome: str = "Nothing was changed.") -> None:
    """Raises `TnmarsError` if torch computes a core of a layer from other parameters, so that none can be written."""
    for name, call in cores.computed(names).items():
        text = f"core '{name}' of layer '{layer}' is not a parameter, because torch computes it. {outcome}"
        raise TnmarsError(Problem(text, f"Make it a parameter first: {call}."))


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a module for a copy. What hooks have computed is made again; torch would not copy it."""
    return {key: value.detach() if isinstance(value, Tensor) else value for key, value in state.items()}
