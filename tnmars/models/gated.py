"""`gate_`: gates on the bonds of layers that were compiled without any, such as those of a compressed model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase

import torch
from torch import nn

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError, listing, nearest
from tnmars.layer.cores import check_parameters
from tnmars.layer.module import TNModule
from tnmars.select.base import Selector


def gate_(model: nn.Module, selector: Selector, names: str | Iterable[str] | None = None) -> nn.Module:
    """The model given, whose compiled layers have gates now, so that their ranks are learned in further training.

    Cores and biases stay the same parameters; the gates are new ones: make the optimizer afterwards. Layers that share
    cores with others keep their ranks, and so do layers that have gates or no bonds.

    Args:
        model: A model with compiled layers, such as one that `compress_` changed; or a compiled layer.
        selector: The rule that learns the ranks, such as `tnmars.Mars()`.
        names: The layers: names or patterns such as `"encoder.*"`; by default all.

    Returns:
        The model given. If it is a single compiled layer, the layer in its place.

    Raises:
        TnmarsError: No layer can have gates, a pattern matches none, the selector is not one, or torch computes a core
            or the bias of a layer (`torch.nn.utils.parametrize`). Nothing was changed then.

    Example:
        >>> import tnmars
        >>> model = nn.Sequential(tnmars.Linear(16, 16, family="tt", rank=3))
        >>> list(tnmars.gate_(model, tnmars.Mars())[0].graph.bonds), model[0].masks is None
        (['r1', 'r2'], False)
    """
    check_arguments(gate_, locals())
    if not isinstance(selector, Selector) or not selector.has_gates:
        raise TnmarsError(f"selector is {selector!r}, but must be a selector with gates, such as tnmars.Mars().")
    known = {name: layer for name, layer in model.named_modules(remove_duplicate=False) if isinstance(layer, TNModule)}
    ends = Counter(id(core) for layer in set(known.values()) for core in layer.cores.parameters())
    fitting = {
        name: layer
        for name, layer in known.items()
        if layer.masks is None
        and layer.graph.bonds
        and not layer.is_rebuilt
        and all(ends[id(core)] == 1 for core in layer.cores.parameters())
    }
    patterns = ["*"] if names is None else [names] if isinstance(names, str) else [str(name) for name in names]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in fitting):
            hint = f"Layers that can: {listing(list(fitting))}.{nearest(pattern, fitting)}"
            raise TnmarsError(Problem(f"'{pattern}' matches no layer that can have gates.", hint))
    chosen = {name: layer for name, layer in fitting.items() if any(fnmatchcase(name, text) for text in patterns)}
    for name, layer in chosen.items():
        check_parameters(layer, name, but=())
    made = {layer: _gated(layer, selector) for layer in dict.fromkeys(chosen.values())}
    for name, layer in chosen.items():
        if not name:
            return made[layer]
        model.set_submodule(name, made[layer])
    return model


def _gated(layer: TNModule, selector: Selector) -> TNModule:
    with torch.random.fork_rng(devices=[]):  # cores are drawn first
        made = TNModule(layer.planner, rule=layer.rule, selector=selector, device=layer.device, dtype=layer.dtype)
    for name in layer.graph.cores:
        made.cores.put(name, layer.cores.get(name))
    if layer.bias is not None:
        made.bias = layer.bias
    return made.train(layer.training)
