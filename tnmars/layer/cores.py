"""Parameters by name, where any name is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

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

    def computed(self, names: Iterable[str]) -> dict[str, tuple[str, str, str]]:
        """The values among `names` that are not parameters: what makes each one, the path of its holder, its name."""
        found = {}
        for name in names:
            holder, last = self._holder(name)
            if holder._parameters.get(last) is None:
                found[name] = (way_back(holder, last), ".".join(name.split(".")[:-1]), last)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        """As in `nn.Module`, but a parameter keeps its shape: the plans are made for it."""
        held = self.__dict__.get("_parameters", {}).get(name)
        if held is not None:
            check_shape(name, value, tuple(held.shape))
        home = self.__dict__.get("_tied", {}).get(name)
        if home is not None:
            text = f"core '{name}' has no numbers of its own: it is core '{home}' in another place."
            raise TnmarsError(Problem(text, f"Set '{home}' instead."))
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
        fix = "For a layer without a bias, compile with bias=False." if name == "bias" else ""
        raise ShapeError(Problem(f"'{name}' of the layer has shape {shape}, but it was set to None.", fix))
    if isinstance(value, Tensor) and tuple(value.shape) != shape:
        text = f"'{name}' of the layer has shape {shape}, but it was set to a tensor of shape {tuple(value.shape)}."
        raise ShapeError(Problem(text, "For other ranks use tnmars.prune_ or tnmars.widen_, or compile a graph."))


def check_bias(layer: Any, value: object) -> None:
    """Raises `ShapeError` if a layer would lose its bias, get one that its graph does not have, or of another shape."""
    if layer.graph.has_bias:
        check_shape("bias", value, (layer.graph.out_features,))
    elif value is not None:
        text = "the layer has no bias, because its graph has none, but its bias was set."
        raise ShapeError(Problem(text, "Compile it with bias=True."))


def computed(layer: Any) -> dict[str, str]:
    """What torch computes of a compiled layer from other parameters, each with the call that makes it a parameter."""
    found = {}
    held = (("core", "cores", layer.graph.cores), ("gate", "gates", layer.graph.bonds))
    for what, attribute, names in held:
        holder = layer._modules.get(attribute)
        for name, (function, path, last) in ({} if holder is None else holder.computed(names)).items():
            place = ".".join(filter(None, ("layer", attribute, path)))
            found[f"{what} '{name}'"] = f"torch.nn.utils.{function}({place}, '{last}')"
    if layer.graph.has_bias and layer._parameters.get("bias") is None:
        found["the bias"] = f"torch.nn.utils.{way_back(layer, 'bias')}(layer, 'bias')"
    return found


def check_parameters(
    layer: Any, name: str, outcome: str = "Nothing was changed.", but: tuple[str, ...] = ("the bias",)
) -> None:
    """Raises `TnmarsError` if torch computes a core or a gate of a layer from other parameters, so that none can be
    written; with `but=()` also for the bias."""
    for what, call in computed(layer).items():
        if not what.startswith(but):
            text = f"{what} of layer '{name}' is not a parameter, because torch computes it. {outcome}"
            raise TnmarsError(Problem(text, f"Make it a parameter first: {call}."))


def way_back(holder: nn.Module, name: str) -> str:
    """The function of `torch.nn.utils` that makes a computed value of a module a parameter again."""
    if name in getattr(holder, "parametrizations", ()):
        return "parametrize.remove_parametrizations"
    if f"{name}_mask" in holder._buffers:
        return "prune.remove"
    return "remove_weight_norm" if f"{name}_g" in holder._parameters else "remove_spectral_norm"


def bias_of(layer: Any) -> Any:
    """The bias of a layer as the next pass takes it: what the hooks of `torch.nn.utils` compute is computed now."""
    if layer._parameters.get("bias") is None:
        for hook in layer._forward_pre_hooks.values():
            if isinstance(hook, (BasePruningMethod, WeightNorm, SpectralNorm)):
                hook(layer, ())
    return layer.bias


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a module for a copy. What hooks have computed is made again; torch would not copy it."""
    return {key: value.detach() if isinstance(value, Tensor) else value for key, value in state.items()}
