"""`parametrize_`: any parameter of any module, rebuilt from the cores of a graph whenever the module reads it.

For layers that cannot be replaced: recurrent layers, `nn.MultiheadAttention`, a layer of the user's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from tnmars import families, spec
from tnmars.arguments import check_arguments, own, own_seed
from tnmars.compiler import compile_quietly as compile
from tnmars.decomposing.decompose import decompose
from tnmars.decomposing.metric import Metric
from tnmars.errors import ShapeError, TnmarsError, listing, nearest
from tnmars.graph import Graph
from tnmars.layer.cores import Cores
from tnmars.layer.distributed import is_sharded
from tnmars.layer.module import Shell, TNModule
from tnmars.models.rebuilt import Rebuilt, found, rebuilt_in, register_, remove_
from tnmars.select.base import Selector

Place = tuple[nn.Module, str]
"""A module and the name of one of its parameters."""


def parametrize_(
    module: nn.Module,
    name: str,
    graph: Graph | str | Path,
    *,
    selector: Selector | None = None,
    open_only: bool = False,
    cores: Mapping[str, Tensor] | None = None,
    init: str | float | None = None,
    ranks: int | str | Sequence[int] | Mapping[str, int] | None = None,
    error: float | None = None,
    energy: float | None = None,
    parameters: int | None = None,
    metric: Metric | None = None,
    seed: int = 0,
) -> TNModule:
    """Rebuilds a parameter of a module from the cores of a graph, in place, and returns the layer that has the cores.

    For layers that `tnmars.compile` cannot replace: `nn.LSTM`, `nn.GRU` and their cells, `nn.MultiheadAttention`, or a
    layer of your own. The module computes with the dense weight, so this makes it smaller, not faster. Recurrent
    layers and `nn.MultiheadAttention` rebuild a weight once per call, other modules each time they read it; for a
    loop over `nn.LSTMCell`, use `torch.nn.utils.parametrize.cached()` around it.

    The parameter is gone; the cores are `parametrizations.NAME.0.layer.cores.CORE` in the state dict. So make the
    optimizer afterwards. Gates, penalty, pruning, summary and files work as for other compiled layers.

    Args:
        module: The module that has the parameter, or a model around it.
        name: The name of the parameter, such as `"weight_hh_l0"`; in a model `"encoder.lstm.weight_hh_l0"`. If the
            model has the same parameter in several places, it stays tied: all of them take it from the same cores.
        graph: A graph whose dense weight has the shape of the parameter, or the path of a spec file: of kind `linear`
            for a matrix (outputs, inputs), `conv` for a kernel, or `tensor`. It needs no bias. Or the name of a family,
            such as `"lowrank"`, with one of `ranks`, `error`, `energy` and `parameters`.
        selector: The rule that learns the ranks, as in `tnmars.compile`.
        open_only: Whether a training step contracts only the slices whose gates are open.
        cores: The cores to begin with, by name. By default they are computed from the present value of the parameter,
            by `tnmars.decompose`.
        init: How cores are drawn instead: `"glorot"`, `"kaiming"` or the variance of the weight. The present value is
            then lost.
        ranks: As in `tnmars.decompose`; by default the ranks of the graph.
        error: The relative error to stay below, as in `tnmars.decompose`.
        energy: The share of the squared norm to keep, as in `tnmars.decompose`.
        parameters: The number of parameters to stay below, as in `tnmars.decompose`.
        metric: The errors that matter, as in `tnmars.decompose`.
        seed: The seed of `tnmars.decompose`.

    Returns:
        The compiled layer whose `dense()` is the parameter now.

    Raises:
        ShapeError: If the weight of the graph, or one of the cores, has another shape.
        TnmarsError: If there is no such parameter, or it cannot be rebuilt. Nothing was changed then.

    Example:
        >>> import torch, tnmars
        >>> lstm = torch.nn.LSTM(6, 8)
        >>> graph = tnmars.families.lowrank("linear", inputs=(8,), outputs=(32,), rank=2)
        >>> layer = tnmars.parametrize_(lstm, "weight_hh_l0", graph, init="glorot")
        >>> torch.equal(lstm.weight_hh_l0, layer.dense())
        True
        >>> print(*(key for key in lstm.state_dict() if "cores" in key), sep="\\n")
        parametrizations.weight_hh_l0.0.layer.cores.A
        parametrizations.weight_hh_l0.0.layer.cores.B
    """
    check_arguments(parametrize_, locals())
    ranks = own(ranks, arrays=True)
    seed = own_seed(seed)
    if sum(value is not None for value in (cores, init)) > 1:
        raise TnmarsError("cores and init are both given, but only one of them can be what the cores begin with.")
    targets = {"ranks": ranks, "error": error, "energy": energy, "parameters": parameters, "metric": metric}
    given = [key for key, value in targets.items() if value is not None]
    if given and (cores is not None or init is not None):
        raise TnmarsError(f"{given[0]} is for cores that are computed from the parameter, not for given or drawn ones.")
    owner, key = _owner(module, name)
    value = rebuildable(owner, key, name)
    declared = _without_bias(_declared(graph, value, any(key != "metric" for key in given)))
    if declared.dense_shape != tuple(value.shape):
        raise ShapeError(_misfit(owner, name, value, declared))
    if cores is None and init is None and not value.is_meta:
        declared, cores = _start(value.detach(), declared, targets, seed)
    if cores is not None:
        check_given_cores(declared, cores)
    layer = _layer(declared, cores, value, init=init, selector=selector, open_only=open_only)
    places = _places(module, value)
    for place, held in places:
        register_(place, held, layer)
    return layer


def restore_(module: nn.Module, name: str, *, requires_grad: bool | None = None) -> nn.Parameter:
    """Puts the dense weight back as a plain parameter, in place; the reverse of `parametrize_`. Returns the parameter.

    The weight is the one of evaluation, as `tnmars.prune` would leave it. Places in `module` that take their parameter
    from the same cores get the same parameter. It trains if a core did, unless `requires_grad` says otherwise.

    Raises:
        TnmarsError: If the parameter is not one that `parametrize_` has made.

    >>> from tnmars import families
    >>> graph = families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2)
    >>> linear = nn.Linear(6, 5)
    >>> _ = parametrize_(linear, "weight", graph, init="glorot")
    >>> restore_(linear, "weight") is linear.weight
    True
    """
    owner, key = _owner(module, name)
    rebuilt = found(owner, key)
    if rebuilt is None:
        raise TnmarsError(f"parameter '{name}' of {_kind(owner)} is not rebuilt from cores. Nothing was changed.")
    layer = rebuilt.layer
    was = layer.training
    layer.eval()
    with torch.no_grad():
        value = getattr(owner, key).detach().clone(memory_format=torch.contiguous_format)
    layer.train(was)
    trains = any(core.requires_grad for core in layer.cores.parameters()) if requires_grad is None else requires_grad
    parameter = nn.Parameter(value, requires_grad=trains)
    if type(rebuilt) is not Rebuilt:  # a slice, which no other place has
        remove_(owner, key, parameter)
        return parameter
    for _, place, held, other in rebuilt_in(module):
        if other is layer:
            remove_(place, held, parameter)
    return parameter


def _owner(module: nn.Module, name: str) -> Place:
    """The module that has a parameter, and its name there."""
    path, _, key = name.rpartition(".")
    modules = dict(module.named_modules())
    if path not in modules:
        hint = f"Modules: {listing([name for name in modules if name])}.{nearest(path, modules)}"
        raise TnmarsError(f"'{name}': there is no module '{path}' in {_kind(module)}. Nothing was changed.\n  {hint}")
    return modules[path], key


def rebuildable(owner: nn.Module, key: str, name: str) -> nn.Parameter:
    """The parameter, if it can be rebuilt."""
    if isinstance(owner, (Shell, Cores)):
        raise TnmarsError(f"'{name}' belongs to a compiled layer, which is made of cores already.")
    where = f"parameter '{name}' of {_kind(owner)}"
    if parametrize.is_parametrized(owner, key):
        fix = "To take another graph, make it a plain parameter first: tnmars.models.parametrize.restore_."
        raise TnmarsError(f"{where} is parametrized already. Nothing was changed.\n  {fix}")
    value = owner._parameters.get(key)
    if value is None:
        known = [key for key, held in owner._parameters.items() if held is not None]
        kind = "is None" if key in owner._parameters else "is a buffer" if key in owner._buffers else "does not exist"
        hint = f"Parameters: {listing(known)}.{nearest(key, known)}"
        raise TnmarsError(f"{where} {kind}. Nothing was changed.\n  {hint}")
    if isinstance(value, UninitializedParameter):
        raise TnmarsError(f"{where} has no shape yet. Nothing was changed.\n  Run the module once before.")
    if is_sharded(value):
        raise TnmarsError(f"{where} is sharded over ranks. Nothing was changed.\n  Do it before the model is sharded.")
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        kinds = "a floating-point or complex one"
        raise TnmarsError(f"{where} has dtype {value.dtype}, but must have {kinds}. Nothing was changed.")
    if hasattr(nn.ModuleDict(), key):
        raise TnmarsError(f"{where} has a name that torch's parametrize cannot use. Nothing was changed.")
    return value


def _declared(graph: Graph | str | Path, value: Tensor, has_target: bool) -> Graph:
    """The graph that is meant; that of a family has bonds of size 1, and gets its ranks from the target."""
    if isinstance(graph, Graph):
        return graph
    if graph not in families.FAMILIES:
        return spec.load(graph)
    if not has_target:
        hint = "Give one of ranks=8, error=0.1, energy=0.9 or parameters=10_000."
        raise TnmarsError(f"no ranks are given for family '{graph}'. Nothing was changed.\n  {hint}")
    if not 2 <= value.dim() <= 5:
        raise ShapeError(f"a parameter of shape {tuple(value.shape)} is neither a matrix nor a kernel: give a graph.")
    outside, inside, *kernel = value.shape
    return families.of_layer(str(graph), "conv" if kernel else "linear", inside, outside, kernel=kernel, rank=1)


def _without_bias(graph: Graph) -> Graph:
    """The graph of the weight alone."""
    if not graph.has_bias:
        return graph
    options = {**dict(graph.options), "bias": False}
    return replace(graph, options=tuple(options.items()))


def _misfit(owner: nn.Module, name: str, value: Tensor, graph: Graph) -> str:
    modes = ", ".join(str(mode) for mode in graph.modes)
    have, want = tuple(value.shape), graph.dense_shape
    text = f"parameter '{name}' of {_kind(owner)} has shape {have}, but the weight of the graph has {want} (modes "
    return f"{text}{modes}). Nothing was changed."


def check_given_cores(graph: Graph, cores: Mapping[str, Tensor]) -> None:
    """Raises `ShapeError` where given cores are not those of the graph."""
    for name in cores:
        if name not in graph.cores:
            hint = f"Cores: {listing(list(graph.cores))}.{nearest(name, graph.cores)}"
            raise ShapeError(f"cores has '{name}', which is not a core of the graph. Nothing was changed.\n  {hint}")
    for name, shape in graph.cores.items():
        if name not in cores:
            raise ShapeError(f"cores lacks '{name}' of the graph. Nothing was changed.")
        if tuple(cores[name].shape) != shape:
            have = tuple(cores[name].shape)
            raise ShapeError(f"core '{name}' has shape {have}, but {shape} in the graph. Nothing was changed.")


def _start(weight: Tensor, graph: Graph, targets: Mapping[str, Any], seed: int) -> tuple[Graph, Mapping[str, Tensor]]:
    """The graph with its ranks, and cores whose weight is close to a given one."""
    start = decompose(weight, graph, seed=seed, **targets)
    return start.graph, start.cores


def _layer(graph: Graph, cores: Mapping[str, Tensor] | None, value: nn.Parameter, **settings: Any) -> TNModule:
    """The compiled layer, where and of the dtype that the parameter is."""
    layer = compile(graph, device=value.device, dtype=value.dtype, **settings)
    if cores is not None and not value.is_meta:
        with torch.no_grad():
            for name in graph.cores:
                layer.cores.get(name).copy_(cores[name])
    if not value.requires_grad:
        layer.requires_grad_(False)
    return layer


def _places(module: nn.Module, value: nn.Parameter) -> list[Place]:
    """Every place of a module where a parameter is."""

    def search() -> Iterator[Place]:
        for owner in module.modules():
            yield from ((owner, key) for key, other in owner._parameters.items() if other is value)

    return list(search())


def _kind(module: nn.Module) -> str:
    return parametrize.type_before_parametrizations(module).__name__
