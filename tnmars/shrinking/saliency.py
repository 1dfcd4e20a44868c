"""How much each slice of each bond matters: the rule that decides which slices are cut.

A rule is a function of a model whose layers are in canonical form, and of the weights of their slices. It returns a
number for each slice; slices with the smallest number per parameter saved are cut first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import Problem, TnmarsError, listing
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.models.data import Batch, call, device_of, placed
from tnmars.pruning.by_rank import compiled_layers

Saliencies = Mapping[str, Mapping[str, Tensor]]
"""For each layer and each of its bonds a vector with an entry for each slice."""
Saliency = Callable[[nn.Module, Saliencies], Saliencies]
"""From a model in canonical form, and the weights of its slices there, to the saliencies of the slices."""
Loss = Callable[[Any, Any], Tensor]

BATCHES = 32
"""How many batches the gradients are taken from."""


def from_norms(model: nn.Module, weights: Saliencies) -> Saliencies:
    """The share of a layer's squared norm that runs through each slice. It needs no data."""
    known = compiled_layers(model)
    return {name: shares(known[name].graph, dict(found)) for name, found in weights.items()}


def shares(graph: Graph, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The squared weight of each slice, relative to the squared norms of all terms of a layer.

    The squared norm of a term is the sum of the squared weights of any of its bonds; on bonds with three or more ends
    that is an estimate, so the mean over its bonds is taken.
    """
    norms = {}
    for term in graph.terms:
        sums = [float(weights[graph.bond_name(term, bond.name)].square().sum()) for bond in term.bonds]
        norms[term.name] = sum(sums) / max(len(sums), 1)
    whole = max(sum(norms.values()), 1e-300)
    found: dict[str, Tensor] = {}
    for term in graph.terms:
        for bond in term.bonds:
            name = graph.bond_name(term, bond.name)
            squares = weights[name].double().square()
            found[name] = squares / squares.sum().clamp(min=1e-300) * (norms[term.name] / whole)
    return found


def from_gradients(batches: Iterable[tuple[Batch, Any]], loss: Loss, count: int = BATCHES) -> Saliency:
    """The mean square of each slice's product with its gradient: what the loss would change if the slice were cut.

    To first order, the derivative by a gate on a slice is the sum of core times gradient over the slice, at any of its
    ends. `batches` are pairs of a model's inputs and a target; `count` of them are used each time.
    """

    def found(model: nn.Module, weights: Saliencies) -> Saliencies:
        known = {name: compiled_layers(model)[name] for name in weights}
        total = {name: {bond: torch.zeros(len(each)) for bond, each in own.items()} for name, own in weights.items()}
        flags = [(module, module.training) for module in model.modules()]
        cudnn = torch.backends.cudnn.enabled
        try:
            model.eval()
            # its recurrent layers have no backward pass in eval(); cudnn.flags() would fail with newer settings
            torch.backends.cudnn.enabled = False
            for inputs, target in islice(batches, count):
                model.zero_grad()
                output = call(model, inputs)
                loss(output, placed(target, device_of(model))).backward()  # type: ignore[no-untyped-call]
                for name, layer in known.items():
                    for bond, value in _products(layer).items():
                        total[name][bond] += value.square().cpu()
        finally:
            torch.backends.cudnn.enabled = cudnn
            model.zero_grad()
            for module, flag in flags:
                module.training = flag
        return total

    return found


@torch.no_grad()
def _products(layer: TNModule) -> dict[str, Tensor]:
    """For each bond, core times gradient summed over each slice, at the bond's first end."""
    found: dict[str, Tensor] = {}
    for name in layer.graph.cores:
        core = layer.cores.get(name)
        gradient = torch.zeros_like(core) if core.grad is None else core.grad
        for axis, bond in enumerate(layer.graph.bonds_of(name)):
            if bond and bond not in found:
                # the gradient is that by the conjugate, so the derivative by a real gate is the real part
                found[bond] = (core.conj() * gradient).real.movedim(axis, 0).flatten(1).sum(1).float()
    return found


def name_of(saliency: Saliency) -> str:
    """The name of a rule, as a user gives it: norm, gradient or that of a function."""
    name = str(getattr(saliency, "__qualname__", type(saliency).__name__))
    return {from_norms.__qualname__: "norm", f"{from_gradients.__qualname__}.<locals>.found": "gradient"}.get(
        name, name
    )


def check(given: object, weights: Saliencies) -> Saliencies:
    """What a rule returned. Raises `TnmarsError` if a slice has no number, or one that is not finite."""
    if not isinstance(given, Mapping):
        raise TnmarsError(Problem(f"saliency returned a {type(given).__name__}.", "Return {layer: {bond: tensor}}."))
    for name, own in weights.items():
        for bond, each in own.items():
            value = given.get(name, {}).get(bond)
            if not isinstance(value, Tensor) or value.shape != each.shape or not bool(value.isfinite().all()):
                text = f"saliency returned no finite numbers for the {len(each)} slices of bond '{bond}' of '{name}'."
                known = listing([str(key) for key in given])
                raise TnmarsError(Problem(text, f"Return a vector for each bond of each layer. Layers: {known}."))
    return given
