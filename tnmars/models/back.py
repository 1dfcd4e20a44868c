"""Compiled layers back to torch's own: `to_dense_` with the dense weight, `as_torch_` as chains of small layers.

Both change a model in place and look at everything before they change anything. What comes out knows nothing of tnmars.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError, listing, nearest
from tnmars.graph import Graph
from tnmars.layer.cores import bias_of
from tnmars.layer.module import Shell, TNModule
from tnmars.models.chains import CONVOLUTIONS, TRANSPOSED, Part, chain
from tnmars.models.parametrize import restore_
from tnmars.models.rebuilt import rebuilt_in
from tnmars.pruning.prune_model import prune

SAME = 1e-6
"""Two weights of the same cores that differ by less than this, relative to their norm, are one weight."""
READERS = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
"""Modules of torch that read `weight` of their layers instead of calling them; a chain has no weight."""


def to_dense_(model: nn.Module, names: str | Iterable[str] | None = None) -> nn.Module:
    """The model given, whose compiled layers are torch's own layers again, with the dense weight.

    `nn.Linear`, `nn.Conv1d` to `Conv3d`, `nn.ConvTranspose1d` to `3d`, `nn.Embedding` or `nn.EmbeddingBag`, with the
    options, device, dtype, training flag and `requires_grad` of the compiled layer, and its bias. A layer with
    several names stays shared, and layers that share all cores, and so have the same weight, share the dense weight. A
    layer with gates becomes what it computes in `eval()`. The weights are new parameters: an optimizer must be made
    again.

    Args:
        model: A model with compiled layers, which is changed, or a compiled layer.
        names: The layers to convert: names or patterns such as `"encoder.*"`; by default all compiled layers.

    Returns:
        The model given. If it is a single compiled layer, torch's layer in its place.

    Raises:
        TnmarsError: If a name matches no compiled layer, torch has no layer of that kind (`tensor`, `map`), or a
            layer is frozen. Nothing was changed then.
        ShapeError: If there is no memory for a weight. Nothing was changed then.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2)
        >>> model = nn.Sequential(tnmars.compile(graph), nn.ReLU())
        >>> tnmars.to_dense_(model)
        Sequential(
          (0): Linear(in_features=6, out_features=5, bias=True)
          (1): ReLU()
        )
    """
    check_arguments(to_dense_, locals())
    chosen = _chosen(model, names)
    problems = [problem for name, layer in chosen.items() for problem in _dense_problems(name, layer)]
    if problems:
        raise TnmarsError([*problems, Problem("Nothing was changed.")])
    weights = _Weights()
    made: dict[Shell, nn.Module] = {}
    rebuilt = {layer: (owner, key) for _, owner, key, layer in rebuilt_in(model)}
    for layer in chosen.values():
        if layer not in made and layer not in rebuilt:
            assert isinstance(layer, TNModule)
            made[layer] = _dense_layer(layer, weights.of(layer))
    for layer in {layer for layer in chosen.values() if layer in rebuilt}:
        _restore_(model, layer)
    return _put(model, {name: made[layer] for name, layer in chosen.items() if layer in made})


def _restore_(model: nn.Module, layer: Shell) -> None:
    """Puts back a parameter that is rebuilt from cores, wherever the model has it; of a tensor all slices."""
    while places := [(name, key) for name, _, key, other in rebuilt_in(model) if other is layer]:
        restore_(model, ".".join(part for part in places[0] if part))


def _chosen(model: nn.Module, names: str | Iterable[str] | None) -> dict[str, Shell]:
    """The layers to convert, by all their names."""
    known = {name: layer for name, layer in model.named_modules(remove_duplicate=False) if isinstance(layer, Shell)}
    if names is None:
        return known
    patterns = [names] if isinstance(names, str) else [str(name) for name in names]
    problems = []
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            hint = f"Compiled layers: {listing(list(known))}.{nearest(pattern, known)}"
            problems.append(Problem(f"'{pattern}' matches no compiled layer of the model.", hint))
    if problems:
        raise TnmarsError([*problems, Problem("Nothing was changed.")])
    objects = {layer for name, layer in known.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}
    return {name: layer for name, layer in known.items() if layer in objects}


def _dense_problems(name: str, layer: Shell) -> Iterator[Problem]:
    """Why a layer cannot become one of torch's."""
    called = f"layer '{name}'" if name else "the layer"
    if not isinstance(layer, TNModule):
        yield Problem(f"{called} is frozen, and has no cores.", "Convert the model that it was made from.")
    elif layer.graph.kind not in BLANK and not layer.is_rebuilt:
        hint = "Name the layers to convert: to_dense_(model, names=[...]). The weight itself is layer.dense()."
        yield Problem(f"{called} is of kind {layer.graph.kind}, for which torch has no layer.", hint)


def _put(model: nn.Module, made: Mapping[str, nn.Module]) -> nn.Module:
    """Puts modules into a model by name. Returns the model, or what takes its place."""
    for name, layer in made.items():
        if not name:
            return layer
        model.set_submodule(name, layer)
    return model


# --- the dense weight ------------------------------------------------------------------------------------------------


class _Weights:
    """The dense weights of layers. Layers with the same cores and the same weight share one parameter."""

    def __init__(self) -> None:
        self._known: dict[frozenset[int], list[tuple[Graph, nn.Parameter]]] = {}

    def of(self, layer: TNModule) -> nn.Parameter:
        weight = eval_weight(layer)
        cores = list(layer.cores.parameters())
        ids = frozenset(id(core) for core in [*cores, *layer.logits()])
        same = self._known.setdefault(ids, [])
        for graph, other in same if ids else []:
            if _is_same(other, weight) if not weight.is_meta else graph == layer.graph:
                return other
        made = nn.Parameter(weight, requires_grad=any(core.requires_grad for core in cores) if cores else True)
        same.append((layer.graph, made))
        return made


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return bool((one.detach() - other).norm() <= SAME * other.norm())


def eval_weight(layer: TNModule) -> Tensor:
    """The weight that the layer has in evaluation mode, without a gradient."""
    flags = {module: module.training for module in layer.modules()}
    try:
        layer.eval()
        with torch.no_grad():
            weight = layer.dense().detach().clone(memory_format=torch.contiguous_format)
            if layer.graph.has_torch_layer or layer.is_rebuilt:
                return weight
            return _block_diagonal(weight, layer.graph.groups)
    finally:
        for module, flag in flags.items():
            module.training = flag


def _block_diagonal(weight: Tensor, groups: int) -> Tensor:
    """The matrix of a linear map in groups, zero outside of its blocks."""
    outside, inside = weight.shape
    full = weight.new_zeros(groups, outside // groups, groups, inside)
    places = torch.arange(groups, device=weight.device)
    full[places, :, places] = weight.reshape(groups, -1, inside)
    return full.reshape(outside, groups * inside)


def _dense_layer(layer: TNModule, weight: nn.Parameter) -> nn.Module:
    made = BLANK[layer.graph.kind](layer.graph)
    made.register_parameter("weight", weight)
    if layer.bias is not None:
        made.register_parameter("bias", _bias(layer))
    return made.train(layer.training)


def _bias(layer: TNModule) -> nn.Parameter:
    """The layer's own bias; where torch computes it, a parameter with its value."""
    bias = bias_of(layer)
    return bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias.detach().clone())


def _linear(graph: Graph) -> nn.Module:
    return nn.Linear(graph.in_features, graph.out_features, bias=graph.has_bias, device="meta")


def _conv(graph: Graph) -> nn.Module:
    options: dict[str, Any] = {**dict(graph.options), "bias": graph.has_bias, "groups": graph.groups}
    kinds: Any = TRANSPOSED if graph.rules.is_transposed else CONVOLUTIONS
    kind = kinds[len(graph.kernel_size) - 1]
    made: nn.Module = kind(graph.in_features, graph.out_features, graph.kernel_size, device="meta", **options)
    return made


def _embedding(graph: Graph) -> nn.Module:
    options: dict[str, Any] = dict(graph.options)
    kind: Any = nn.EmbeddingBag if "mode" in options else nn.Embedding
    made: nn.Module = kind(graph.vocab, graph.out_features, device="meta", **options)
    return made


BLANK = {"linear": _linear, "conv": _conv, "conv_transpose": _conv, "embedding": _embedding}
"""Torch's own layer of each kind that it has, without memory for its tensors."""


# --- chains of torch's layers ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Converted:
    """What `as_torch_` did. `print` shows a line for each layer.

    Attributes:
        model: The model given; if it is a single compiled layer that was converted, what takes its place.
        became: For each layer that was converted, what it is now.
        stayed: For each layer that was not, why.
    """

    model: nn.Module
    became: Mapping[str, str]
    stayed: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{name or 'the layer'}: {text}" for name, text in self.became.items()]
        lines += [f"{name or 'the layer'}: stays compiled, because {text}" for name, text in self.stayed.items()]
        return "\n".join(lines) or "no compiled layer"


def as_torch_(model: nn.Module) -> Converted:
    """Turns compiled layers into chains of torch's own layers, in place, for quantizers, exporters and other tools.

    A layer whose graph is a chain from its inputs to its outputs becomes an `nn.Sequential`: a low-rank linear layer
    two of `nn.Linear`, a convolution of three cores a pointwise, a spatial and a pointwise convolution, a table of two
    cores an `nn.Embedding` and an `nn.Linear`. It follows from the graph, whatever family it came from. The size
    stays that of the cores. A chain of one core becomes that one layer. Every other layer stays compiled, with the
    reason: `to_dense_` converts it, at the size of the dense weight. Layers with gates are pruned first.

    Device, dtype, training flag, `requires_grad`, shared layers and biases are kept. The weights are new parameters:
    an optimizer must be made again.

    Args:
        model: A model with compiled layers, which is changed, or a compiled layer.

    Returns:
        A value with the model, what each converted layer became, and why the others stayed.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2)
        >>> done = tnmars.as_torch_(nn.Sequential(tnmars.compile(graph), nn.ReLU()))
        >>> print(done)
        0: Linear(6, 2), Linear(2, 5)
    """
    check_arguments(as_torch_, locals())
    made: dict[Shell, nn.Module] = {}
    shared: dict[object, list[nn.Parameter]] = {}
    became: dict[str, str] = {}
    stayed: dict[str, str] = {}
    chosen = _chosen(model, None)
    for name, layer in chosen.items():
        if not isinstance(layer, TNModule):
            stayed[name] = "it is frozen, and has no cores"
            continue
        if layer.is_rebuilt:
            stayed[name] = "its module uses the weight itself; to_dense_ puts it back"
            continue
        if layer not in made:
            parts = chain(layer if layer.masks is None else _pruned(layer))
            if not isinstance(parts, str) and len(parts) > 1:
                parts = _reader(model, [other for other, same in chosen.items() if same is layer]) or parts
            if isinstance(parts, str):
                stayed[name] = parts
                continue
            made[layer] = _sequence(layer, parts, shared.setdefault(_key(layer), []))
        became[name] = _shown(made[layer])
    changed = _put(model, {name: made[layer] for name, layer in chosen.items() if layer in made})
    return Converted(changed, became, stayed)


def _reader(model: nn.Module, names: Iterable[str]) -> str:
    """The reason why a layer with these names must have a weight; empty if there is none."""
    for name in names:
        parent = model.get_submodule(name.rpartition(".")[0])
        if isinstance(parent, READERS) and parent is not model.get_submodule(name):
            return f"nn.{type(parent).__name__} reads its weight, which a chain does not have"
    return ""


def _pruned(layer: TNModule) -> TNModule:
    small = prune(layer)
    assert isinstance(small, TNModule)
    return small


def _key(layer: TNModule) -> object:
    """What two layers have in common that have the same weight from the same cores."""
    plain = replace(layer.graph, options=(), origin=None)
    ids = [id(layer.cores.get(name)) for name in layer.graph.cores]
    return plain, (*ids, *map(id, layer.logits())) if ids else id(layer)


def _sequence(layer: TNModule, parts: list[Part], weights: list[nn.Parameter]) -> nn.Module:
    """The chain with its weights, which layers with the same cores share, and with the layer's own bias."""
    if not weights:
        for part in parts:
            value = part.weight.detach().clone(memory_format=torch.contiguous_format)
            weights.append(nn.Parameter(value, requires_grad=part.is_trained))
    for part, weight in zip(parts, weights, strict=True):
        part.blank.register_parameter("weight", weight)
    if layer.bias is not None:
        parts[-1].blank.register_parameter("bias", _bias(layer))
    made = parts[0].blank if len(parts) == 1 else nn.Sequential(*(part.blank for part in parts))
    return made.train(layer.training)


def _shown(module: nn.Module) -> str:
    """The layers of a chain on one line."""
    parts = list(module) if isinstance(module, nn.Sequential) else [module]
    return ", ".join(_layer_text(part) for part in parts)


def _layer_text(layer: nn.Module) -> str:
    if isinstance(layer, nn.Linear):
        return f"Linear({layer.in_features}, {layer.out_features})"
    if isinstance(layer, nn.Embedding):
        return f"Embedding({layer.num_embeddings}, {layer.embedding_dim})"
    assert isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED))
    kernel = "x".join(map(str, layer.kernel_size))
    groups = f", groups={layer.groups}" if layer.groups > 1 else ""
    return f"{type(layer).__name__}({layer.in_channels}, {layer.out_channels}, {kernel}{groups})"
