"""What gates add to training: the penalty of a model, its expected size, and the parameter groups of an optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments
from tnmars.errors import TnmarsError
from tnmars.layer.distributed import squares, whole
from tnmars.layer.kept import slice_entries, slice_norms
from tnmars.layer.module import TNModule, layers
from tnmars.program.expected import Monomial, evaluate, parameter_terms
from tnmars.training import joined


def penalty(model: nn.Module) -> Tensor:
    """The penalty of a model in nats: the negative log-prior of its masks and cores, without constants.

    Divide it by the number of training examples and add it to the mean loss. During warm-up the part of the masks is
    zero and has a gradient of zero; the part of the cores stays.

    Args:
        model: A model with compiled layers. Layers without a selector contribute nothing.

    Shape:
        Returns a scalar, differentiable in the logits and the cores.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=3)
        >>> layer = tnmars.compile(graph, selector=tnmars.Mars(pi=1e-2))
        >>> loss = layer(torch.randn(8, 6)).square().mean() + tnmars.penalty(layer) / 8
        >>> loss.shape
        torch.Size([])
    """
    check_arguments(penalty, locals())
    selecting = [layer for _, layer in layers(model) if layer.selector is not None]
    groups = joined.grouped(selecting)
    parts = [part for layer in selecting for part in _norms(layer)]
    if groups is None:
        parts += [part for layer in selecting for part in _parts(layer)]
    else:
        parts += [*map(joined.charged, groups), *joined.decay(selecting)]
    return sum(parts[1:], parts[0]) if parts else torch.zeros(())


def _norms(layer: TNModule) -> Iterator[Tensor]:
    """The penalty of a layer whose selector decides by the norms of slices."""
    if layer.selector is not None and layer.selector.judges_norms and layer.graph.bonds:
        norms = {bond: torch.stack(parts).sum(0) for bond, parts in slice_norms(layer).items()}
        entries = [norms[bond].new_full(norms[bond].shape, count) for bond, count in slice_entries(layer).items()]
        yield layer.selector.prior(torch.cat(list(norms.values())), torch.cat(entries))


def _parts(layer: TNModule) -> Iterator[Tensor]:
    """The other summands of a layer's penalty, where `joined` cannot compute those of all layers at once."""
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
    """The expected cost of the open slices, in slices of average price; for the price `bic`, in parameters."""
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
    """The expected size of a model under its gates, differentiable in the logits.

    Layers without gates count in full. Use it to watch what training leaves of a model, or as a budget in the loss.

    Args:
        model: A model with compiled layers. All other modules are ignored.
        what: `"parameters"` for the entries of all cores, or `"macs"` for the multiply-adds of inference with each
            layer's nominal batch (`compile(batch=...)`).

    Shape:
        Returns a scalar.

    Raises:
        TnmarsError: If `what` is something else.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=4)
        >>> layer = tnmars.compile(graph, selector=tnmars.Mars(alpha=0.0, spread=0.0))

        Half of the 4 slices are open; each holds 6 + 5 parameters.

        >>> tnmars.expected(layer).item()
        22.0
    """
    check_arguments(expected, locals())
    if what not in ("parameters", "macs"):
        raise TnmarsError(f"what is {what!r}, but must be 'parameters' or 'macs'.")
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
    """Parameter groups for a torch optimizer: all parameters but the gates, and the gates without weight decay.

    Weight decay would pull logits to 0, that is, every gate to half open; so the gates are a group of their own.

    Args:
        model: Any model. Parameters that do not require gradients are left out.
        lr: The learning rate of everything but the gates.
        mask_lr: The learning rate of the gates; `lr` by default. Choose a larger one if the ranks settle too late: the
            logits have a longer way to go than weights.
        weight_decay: The weight decay of everything but the gates; the optimizer's own by default. The penalty
            already has a prior on the cores (`sigma` of the selector).

    Returns:
        One or two groups, to be passed to an optimizer such as `torch.optim.Adam`. Pass `fused=True` with them: a
        factorized model has many small parameters, and one by one they take Adam several times as long.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=4)
        >>> layer = tnmars.compile(graph, selector=tnmars.Mars())
        >>> groups = tnmars.param_groups(layer, lr=1e-3, mask_lr=1e-2, weight_decay=0.01)
        >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in groups]
        [(3, 0.001, 0.01), (1, 0.01, 0.0)]
        >>> optimizer = torch.optim.Adam(groups, fused=True)
    """
    check_arguments(param_groups, locals())
    logits = {id(value) for _, layer in layers(model) if layer.gates is not None for value in layer.gates.parameters()}
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
