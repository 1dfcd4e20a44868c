"""Where a model has weights that can be decomposed: its layers, and weights that other modules use directly.

A layer that is called is replaced by a compiled one. A weight that its module uses without calling a layer (recurrent
layers, attention) is rebuilt from its cores instead, see `tnmars.parametrize_`. Several places may share one weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.utils import parametrize

from tnmars.models.torch_layers import DenseLayer, describe, holders

ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True, eq=False)
class Site:
    """A weight of a model."""

    name: str
    """The name of the layer, or of the weight: `encoder.fc1`, `lstm.weight_hh_l0`."""
    module: nn.Module
    layer: DenseLayer
    parameter: str = ""
    """The name of the weight in its module, where it is rebuilt; empty for a layer that is replaced."""
    names: tuple[str, ...] = ()
    """All names of the layer in the model."""

    @property
    def is_layer(self) -> bool:
        return not self.parameter


def sites(model: nn.Module) -> tuple[dict[str, Site], dict[str, str]]:
    """The weights of a model that can be decomposed, by name, and why others that look similar cannot."""
    found: dict[str, Site] = {}
    refused: dict[str, str] = {}
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    inner = {module.out_proj for _, module in holders(model) if isinstance(module, nn.MultiheadAttention)}
    for name, module in holders(model):
        for site in _weights(name, module, refused):
            found[site.name] = site
        if module in inner:
            continue
        layer = describe(module)
        if isinstance(layer, str):
            refused[name] = layer
        elif layer is not None:
            found[name] = Site(name, module, layer, names=tuple(names[module]))
    return found, refused


def _weights(name: str, module: nn.Module, refused: dict[str, str]) -> Iterator[Site]:
    """The weights that a module uses without calling a layer."""
    if isinstance(module, nn.RNNBase):
        kept = [key for key in module._flat_weights_names if key.startswith("weight")]
    elif isinstance(module, nn.RNNCellBase):
        kept = ["weight_ih", "weight_hh"]
    elif isinstance(module, nn.MultiheadAttention):
        kept = [key for key in ATTENTION if getattr(module, key, None) is not None]
        yield from _rebuilt(_joined(name, "out_proj"), module.out_proj, "weight", refused)
    else:
        return
    for key in kept:
        yield from _rebuilt(name, module, key, refused)


def _rebuilt(name: str, module: nn.Module, key: str, refused: dict[str, str]) -> Iterator[Site]:
    full = _joined(name, key)
    if parametrize.is_parametrized(module, key):
        refused[full] = "it is parametrized already"
        return
    weight = getattr(module, key)
    assert isinstance(weight, Tensor)
    outside, inside = weight.shape
    yield Site(full, module, DenseLayer("linear", inside, outside, (), {"bias": False}, weight), key, (full,))


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
