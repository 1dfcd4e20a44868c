"""The gates of all layers of a model in a few operations: their penalty, and their sample.

Layer by layer, the bookkeeping of torch would take longer than the numbers. The results are the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, zip_longest

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments
from tnmars.graph import Graph
from tnmars.layer.cores import parameters_of
from tnmars.layer.distributed import is_sharded, squares
from tnmars.layer.masks import Masks
from tnmars.layer.module import TNModule, layers
from tnmars.layer.torch_state import is_undisturbed
from tnmars.program.expected import Monomial, mac_terms, parameter_terms
from tnmars.program.form import Form
from tnmars.select.base import Selector

Structure = tuple[Graph, Form | None, int]
"""What the price of a layer's slices depends on: the graph, and where multiply-adds are counted, a form and a batch."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the gates of some layers are in one vector, and the polynomials of their costs."""

    counts: Tensor
    """The number of gates of each layer."""
    firsts: Tensor
    """The position of the first gate of each bond."""
    segments: Tensor
    """For each gate the layer, where every slice costs 1, else the bond, all bonds counted through."""
    bonds: int
    factors: Tensor
    """For each monomial its factor."""
    columns: tuple[Tensor, ...]
    """For each monomial its first bond, its second, and so on; the number of bonds where it has none."""
    owners: Tensor
    """For each monomial its layer."""


@lru_cache(maxsize=32)
def _layout(price: str, structures: tuple[Structure, ...], device: torch.device) -> Layout:
    sizes = [[bond.size for bond in graph.bonds.values()] for graph, _, _ in structures]
    flat = list(chain(*sizes))
    parts = list(map(sum, sizes)) if price == "uniform" else flat
    starts = [0]
    for size in flat:
        starts.append(starts[-1] + size)
    factors: list[float] = []
    places: list[list[int]] = []
    owners: list[int] = []
    before = 0
    for at, (graph, form, batch) in enumerate(structures if price != "uniform" else ()):
        position = {bond: before + index for index, bond in enumerate(graph.bonds)}
        before += len(position)
        terms: Sequence[Monomial] = parameter_terms(graph) if form is None else mac_terms(graph, form, batch)
        for factor, bonds in terms:
            factors.append(float(factor))
            places.append([position[bond] for bond in bonds])
            owners.append(at)
    with torch.inference_mode(False):
        made = [torch.tensor(column, device=device) for column in zip_longest(*places, fillvalue=len(flat))]
        return Layout(
            counts=torch.tensor(list(map(sum, sizes)), device=device),
            firsts=torch.tensor(starts[:-1], device=device),
            segments=torch.arange(len(parts), device=device).repeat_interleave(torch.tensor(parts, device=device)),
            bonds=len(flat),
            factors=torch.tensor(factors, dtype=torch.float64, device=device),
            columns=tuple(made),
            owners=torch.tensor(owners, dtype=torch.long, device=device),
        )


Group = list[tuple[TNModule, Masks, list[nn.Parameter]]]
"""Layers with equal selectors, their masks and their logits."""


def grouped(gated: Sequence[TNModule]) -> list[Group] | None:
    """Layers with gates by selector, dtype and device; None if they must be computed one by one.

    That is so while torch traces or transforms, and where logits are sharded or of a class of their own.
    """
    if not is_undisturbed():
        return None
    groups: dict[object, Group] = {}
    known: dict[int, object] = {}
    for layer in gated:
        logits, masks = layer.logits(), layer.masks
        if masks is None or not logits:
            continue
        if any(type(value) is not nn.Parameter or is_sharded(value) for value in logits):
            return None
        selector = masks.selector
        if id(selector) not in known:  # layers often share one object
            known[id(selector)] = _settings(selector)
        key = (known[id(selector)], logits[0].dtype, logits[0].device)
        groups.setdefault(key, []).append((layer, masks, logits))
    return list(groups.values())


def _settings(selector: Selector) -> object:
    """What tells selectors apart: all that one of the user's own has, not only what its class compares."""
    try:
        return type(selector), frozenset(vars(selector).items())
    except TypeError:  # a setting that is a list
        return id(selector)


def charged(group: Group) -> Tensor:
    """The penalty of the gates of layers with equal selectors, a scalar."""
    selector = group[0][1].selector
    flat = torch.cat([value for _, _, logits in group for value in logits])
    probability = selector.probability(flat)
    price = selector.price
    layout = _layout(price, tuple(_structure(price, layer) for layer, _, _ in group), flat.device)
    if selector.opens_first:
        probability = probability.index_fill(0, layout.firsts, 1.0)
    count = len(group)
    if price == "uniform":
        costs = _sums(count, layout.segments, probability)
    else:
        sizes = torch.cat((_sums(layout.bonds, layout.segments, probability), probability.new_ones(1)))
        values = layout.factors.to(sizes.dtype)
        for column in layout.columns:
            values = values * sizes.index_select(0, column)
        costs = _sums(count, layout.owners, values)
        if price != "bic":
            costs = costs / torch.stack([masks.unit for _, masks, _ in group]).to(costs.dtype)
    charge = selector.charge_all if _is_joint(type(selector)) else partial(Selector.charge_all, selector)
    nats = charge(costs, probability, layout.counts)
    warm = torch.stack([masks.is_warm for _, masks, _ in group])
    return torch.where(warm, torch.zeros_like(nats), nats).sum()


def _is_joint(kind: type[Selector]) -> bool:
    """Whether `charge_all` of a selector knows its `charge`: no class below has changed only the latter."""
    one, all_ = (next(base for base in kind.__mro__ if name in vars(base)) for name in ("charge", "charge_all"))
    return issubclass(all_, one)


def _structure(price: str, layer: TNModule) -> Structure:
    return (layer.graph, *layer.mac_form()) if price == "macs" else (layer.graph, None, 0)


def _sums(count: int, segments: Tensor, values: Tensor) -> Tensor:
    return values.new_zeros(count).index_add(0, segments, values)


def decay(gated: Sequence[TNModule]) -> list[Tensor]:
    """The penalty of the cores of layers with selectors: their squared entries, in a sum for each weight decay."""
    cores: dict[tuple[float, torch.dtype, torch.device], list[nn.Parameter]] = {}
    for layer in gated:
        factor = 0.0 if layer.selector is None else layer.selector.weight_decay
        if factor and layer.graph.terms:
            for value in parameters_of(layer.cores):
                cores.setdefault((factor, value.dtype, value.device), []).append(value)
    return [factor * squares(values) for (factor, _, _), values in cores.items()]


@contextmanager
def sampled(model: nn.Module) -> Iterator[nn.Module]:
    """The model, with the gates of all its layers sampled at once, for the forward passes within a `with` block.

    Without it each layer samples its own gates in every pass, which takes a good part of a step if the model has many
    small layers. Within the block they are sampled in a few operations, from the same noise: gates differ at most in
    their last digit. `backward` may be called in the block or after it, but only once, so use one block for each. With
    `torch.utils.checkpoint`, call it in the block: what is computed again needs the same gates.

    Changes of the logits and of the noise are seen in the next block. Layers that are in `eval()`, have no gates, or
    have `open_only=True` compute as always. Where the model is traced or sharded, all layers do.

    Args:
        model: A model with compiled layers, or a compiled layer.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(6,), rank=4)
        >>> model = torch.nn.Sequential(
        ...     *(tnmars.compile(graph, selector=tnmars.Mars()) for _ in range(3))
        ... )
        >>> with tnmars.sampled(model):
        ...     loss = model(torch.randn(8, 6)).square().mean() + tnmars.penalty(model) / 8
        >>> loss.backward()
    """
    check_arguments(sampled, locals())
    drawn = [
        layer
        for _, layer in layers(model)
        if layer.masks is not None and layer.masks.draws_itself and not layer.open_only
    ]
    held: list[Masks] = []
    try:
        for group in grouped(drawn) or ():
            for masks, gates in _samples(group):
                masks.watch()
                masks.sampled = gates
                held.append(masks)
        yield model
    finally:
        for masks in held:
            masks.sampled = None


def _samples(group: Group) -> Iterator[tuple[Masks, tuple[Tensor, ...]]]:
    """The gates of layers with equal selectors, for each layer a vector for each bond."""
    every = [masks for _, masks, _ in group]
    flat = torch.cat([value for _, _, logits in group for value in logits])
    noise = torch.cat([masks.noise for masks in every])
    counts = [masks.noise.shape[0] for masks in every]
    temperatures = torch.stack([masks.temperature for masks in every])
    spread = temperatures.repeat_interleave(torch.tensor(counts, device=flat.device), output_size=sum(counts))
    lengths = [length for masks in every for length in masks.lengths]
    parts = iter(torch.split(every[0].selector.sample(flat, noise, spread), lengths))
    for masks in every:
        yield masks, tuple(next(parts) for _ in masks.lengths)
