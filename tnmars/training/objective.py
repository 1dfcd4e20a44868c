"""What gates add to training: the penalty of a model, its expected size, and the parameter groups of an optimiser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import TnmarsError
from tnmars.layer.distributed import squares, whole
from tnmars.layer.module import TNModule, layers
from tnmars.program.expected import Monomial, evaluate, parameter_terms


def penalty(model: nn.Module) -> Tensor:
    """The prior of masks and cores in nats, to be divided by the number of data and added to the mean loss.

    While warm-up is on the masks' part is zero, with a gradient of zero; that of the cores stays.
    """
    total: Tensor | None = None
    for _, layer in layers(model):
        for part in _parts(layer):
            total = part if total is None else total + part
    return total if total is not None else torch.zeros(())


def _parts(layer: TNModule) -> Iterator[Tensor]:
    """The summands of a layer's penalty."""
    if layer.selector is None:
        return
    if layer.masks is not None:
        probability = layer.masks.probability([whole(value) for value in layer.logits()])
        nats = layer.selector.charge(_cost(layer, probability), probability)
        yield torch.where(layer.masks.is_warm, torch.zeros_like(nats), nats)
    factor = layer.selector.weight_decay
    if factor and layer.graph.terms:
        yield factor * squares(list(layer.cores.parameters()))


def _cost(layer: TNModule, probability: Tensor) -> Tensor:
    """The expected cost of the open slices, in slices of average price; for description length, in parameters."""
    assert layer.masks is not None
    price = layer.masks.selector.price
    if price == "uniform":
        return probability.sum()
    terms = _terms(layer, "parameters" if price == "bic" else price)
    expected: Tensor = evaluate(terms, _expected_sizes(layer, probability))
    return expected if price == "bic" else expected / layer.masks.unit.to(expected.dtype)


def _terms(layer: TNModule, what: str) -> tuple[Monomial, ...]:
    return parameter_terms(layer.graph) if what == "parameters" else layer.mac_terms()


def _expected_sizes(layer: TNModule, probability: Tensor) -> dict[str, Tensor]:
    sizes = [bond.size for bond in layer.graph.bonds.values()]
    return dict(zip(layer.graph.bonds, (part.sum() for part in torch.split(probability, sizes)), strict=True))


def expected(model: nn.Module, what: str = "parameters") -> Tensor:
    """The expected parameters of the cores, or MACs for the nominal batch, under the gates; differentiable.

    Layers without gates count as they are.
    """
    if what not in ("parameters", "macs"):
        raise TnmarsError(f"'{what}' is not something that is expected here; known: parameters, macs.")
    total = torch.zeros(())
    for _, layer in layers(model):
        sizes: dict[str, Any] = {name: bond.size for name, bond in layer.graph.bonds.items()}
        share = 1.0
        if layer.masks is not None:
            probability = layer.masks.probability([whole(value) for value in layer.logits()])
            sizes = _expected_sizes(layer, probability)
            share = float(probability.detach().mean())
        terms = parameter_terms(layer.graph) if what == "parameters" else layer.mac_terms(share)
        total = total + evaluate(terms, sizes)
    return total


def param_groups(
    model: nn.Module, lr: float, *, mask_lr: float | None = None, weight_decay: float | None = None
) -> list[dict[str, Any]]:
    """Groups for a torch optimiser: logits of gates by themselves, without weight decay, and all else.

    Without `weight_decay` the other group has the optimiser's own.
    """
    logits = {id(value) for _, layer in layers(model) for value in layer.logits()}
    trained = [value for value in model.parameters() if value.requires_grad]
    others: dict[str, Any] = {"params": [value for value in trained if id(value) not in logits], "lr": lr}
    if weight_decay is not None:
        others["weight_decay"] = weight_decay
    gates = {
        "params": [value for value in trained if id(value) in logits],
        "lr": lr if mask_lr is None else mask_lr,
        "weight_decay": 0.0,
    }
    groups = [others, gates]
    return [group for group in groups if group["params"]]
