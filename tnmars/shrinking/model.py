"""A model on the path: its compiled layers in canonical form, what they cost, and the cuts. Rank 0 decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tnmars.decomposing.canonical import canonical
from tnmars.decomposing.tensors import check_plain
from tnmars.errors import Problem, TnmarsError, listing, plural
from tnmars.graph import Graph
from tnmars.graph.rewrite import drop_ones
from tnmars.layer.distributed import from_first_rank
from tnmars.layer.module import TNModule, layers
from tnmars.models.budget import UNITS
from tnmars.models.costs import Cost
from tnmars.models.data import Batch
from tnmars.pruning.by_rank import check_cores, take_
from tnmars.pruning.prune_model import prune_
from tnmars.shrinking.curve import fits
from tnmars.shrinking.cuts import Cut, LayerSlices
from tnmars.shrinking.folder import file_of
from tnmars.shrinking.prices import Prices, Sizes, parameters, resized
from tnmars.shrinking.rule import Goals
from tnmars.shrinking.saliency import Saliency, check
from tnmars.shrinking.settings import Staircase
from tnmars.store.model import load_into


def open_layers(model: nn.Module) -> dict[str, TNModule]:
    """The compiled layers that may be cut: those whose cores all require a gradient. Raises `TnmarsError`."""
    found: dict[str, TNModule] = {}
    owners: dict[int, str] = {}
    for name, layer in layers(model):
        for core in layer.graph.cores:
            owner = owners.setdefault(id(layer.cores.get(core)), name)
            if owner != name:
                text = f"core '{core}' of layer '{name}' is a core of layer '{owner}' too. Nothing was changed."
                raise TnmarsError(Problem(text, "Untie them first: a cut of one would change the other."))
        if layer.masks is not None:
            text = f"layer '{name}' has gates, which select ranks by themselves. Nothing was changed."
            raise TnmarsError(Problem(text, "Compile it without a selector, or prune it by its gates: prune(model)."))
        if layer.graph.bonds and all(layer.cores.get(core).requires_grad for core in layer.graph.cores):
            check_cores(model, name, layer)
            check_plain(layer.graph, f"a canonical form of layer '{name}', which decides what is cut,")
            found[name] = layer
    if not found:
        text = "the model has no compiled layer with ranks to choose. Nothing was changed."
        raise TnmarsError(Problem(text, "Compile layers, tnmars.compile(graph), or decompose a model, compress_."))
    return found


MUCH = 0.5
"""The share of the dense model's parameters above which parts that are not cut are named."""


class Shrunk:
    """A model on the path."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch | None,
        goals: Goals,
        saliency: Saliency,
        rest_ms: float | None = None,
    ):
        self.model, self.goals, self.saliency = model, goals, saliency
        self.layers = open_layers(model)
        every = dict(layers(model))
        self.first = {name: layer.graph for name, layer in every.items()}
        self.fixed = {name: drop_ones(graph).graph for name, graph in self.first.items() if name not in self.layers}
        self.prices = Prices(model, every, batch, is_timed=goals.unit == "ms", rest_ms=rest_ms)
        self.full = self.prices.compiled(self.graphs)
        dense = self.prices.dense(self.first)
        self.dense = {unit: self.prices.of(dense, unit) for unit in UNITS}
        least = {name: _least(graph) for name, graph in self.graphs.items()}
        goals.check(self.dense, self._price(least, self.graphs), self._rest, self._uncut())

    @property
    def graphs(self) -> dict[str, Graph]:
        """The graphs of the layers that may be cut."""
        return {name: layer.graph for name, layer in self.layers.items()}

    def cost(self) -> Cost:
        """What the whole model costs now, once bonds of size 1 are dropped."""
        return self.prices.whole({**self.fixed, **{name: drop_ones(one).graph for name, one in self.graphs.items()}})

    def ranks(self) -> dict[str, dict[str, int]]:
        """The sizes of the bonds that all layers had first; 0 for bonds of terms that are gone."""
        found: dict[str, dict[str, int]] = {}
        for name, first in self.first.items():
            now = {term.name: term.bond_sizes for term in {**self.fixed, **self.graphs}[name].terms}
            found[name] = {
                first.bond_name(term, bond.name): now[term.name].get(bond.name, 1) if term.name in now else 0
                for term in first.terms
                for bond in term.bonds
            }
        return found

    def cores_and_others(self) -> tuple[set[int], set[int]]:
        """The identities of the cores of the layers, and of all parameters that are not in these layers."""
        own = {id(value) for layer in self.layers.values() for value in layer.parameters()}
        others = {id(value) for value in self.model.parameters()} - own
        return {id(value) for layer in self.layers.values() for value in layer.cores.parameters()}, others

    def steps(self, settings: Staircase, *, is_first: bool, is_last: bool = False) -> int:
        """The number of steps of the coming stage; `is_last` if it trains a point that is taken once more."""
        if is_first:
            return 2 * settings.first
        if is_last:
            return self.last_steps(settings, self.cost().parameters)
        return max(int(settings.first * self.full / max(self.prices.compiled(self.graphs), 1)), 1)

    def steps_left(self, settings: Staircase, *, is_first: bool) -> int | None:
        """About how many steps are left to the smallest budget; None without one."""
        if not self.goals.budgets:
            return None
        found = 2.0 * settings.first if is_first else 0.0
        room = self.goals.limits(self.dense)[-1] - self._rest
        cost, size = self._now() - self._rest, float(self.prices.compiled(self.graphs))
        while cost > room > 0:
            cost, size = cost * settings.factor, size * settings.factor
            found += settings.first * self.full / size
        now = self.cost()
        rest = now.parameters - self.prices.compiled(self.graphs)
        for limit in self.goals.limits(self.dense):
            share = min((limit - self._rest) / max(self._now() - self._rest, 1e-9), 1.0)
            found += self.last_steps(settings, rest + round(share * (now.parameters - rest)))
        return round(found)

    def last_steps(self, settings: Staircase, parameters: int) -> int:
        """The steps of the stage in which a point of so many parameters is trained once more."""
        rest = self.cost().parameters - self.prices.compiled(self.graphs)
        return max(int(settings.finish * settings.first * self.full / max(parameters - rest, 1)), 1)

    def is_smallest(self) -> bool:
        """Whether nothing is left to cut."""
        return all(not _slices(layer.graph).offers() for layer in self.layers.values())

    def load_(self, folder: str | Path, stage: int) -> None:
        """Makes the model that of a stage in a folder."""
        load_into(self.model, file_of(folder, stage))

    # --- cuts --------------------------------------------------------------------------------------------------------

    def gauge_(self) -> dict[str, Mapping[str, Tensor]]:
        """Puts every layer into its canonical form; returns the weights of its slices."""
        forms = {}
        for name, layer in self.layers.items():
            forms[name] = canonical(layer.graph, {core: layer.cores.get(core) for core in layer.graph.cores})
        take_(self.layers, forms)
        share_(value for layer in self.layers.values() for value in layer.cores.parameters())
        return {
            name: {bond: from_first_rank(value) for bond, value in form.weights.items()} for name, form in forms.items()
        }

    def cut_(self) -> None:
        """Cuts the slices of least saliency per unit saved: as many as a stage may lose, or down to a budget."""
        weights = self.gauge_()
        own = check(self.saliency(self.model, weights), weights)
        found = {name: {bond: from_first_rank(own[name][bond]) for bond in each} for name, each in weights.items()}
        graphs = self.graphs
        order = {name: {bond: _order(value) for bond, value in own.items()} for name, own in found.items()}
        cut = Cut({name: self._layer_slices(name, graph, found[name], order[name]) for name, graph in graphs.items()})
        limit = self._next_limit()
        if limit is None:
            cut.down_to(self.goals.settings.factor * cut.weight)
        else:
            cut.until(lambda ranks: fits(self._price(ranks, graphs), limit))
        keep = {
            name: {bond: tuple(sorted(order[name][bond][:size])) for bond, size in sizes.items()}
            for name, sizes in cut.ranks.items()
            if any(size < graphs[name].bonds[bond].size for bond, size in sizes.items())
        }
        if not keep:
            text = f"no slice that is left saves any {self.goals.unit}, so the path cannot go on."
            raise TnmarsError(Problem(text, "Give the budget in parameters."))
        prune_(self.model, None, keep, keep_gates=True)

    def _layer_slices(
        self, name: str, graph: Graph, found: Mapping[str, Tensor], order: Mapping[str, list[int]]
    ) -> LayerSlices:
        saliency = {bond: [float(found[bond][at]) for at in places] for bond, places in order.items()}
        return LayerSlices(graph, saliency, lambda sizes: self.prices.weight(name, graph, sizes, self.goals.unit))

    def _next_limit(self) -> float | None:
        """The budget that the coming cut is to meet; None if it is still far away, or there is none."""
        factor, rest, now = self.goals.settings.factor, self._rest, self._now()
        below = [limit for limit in self.goals.limits(self.dense) if not fits(now, limit)]
        if not below:
            return None
        is_near = (now - rest) * factor < (below[0] - rest) * (1 + 0.5 * (1 - factor))
        return below[0] if is_near else None

    def _now(self) -> float:
        return self.prices.of(self.cost(), self.goals.unit)

    @property
    def _rest(self) -> float:
        """What all parts that are not cut cost."""
        return self.prices.of(self.prices.whole(self.fixed), self.goals.unit)

    def uncut_words(self) -> str:
        """A sentence about what is not cut, if that is most of the dense model; else empty."""
        rest = self.prices.whole(self.fixed).parameters
        dense = self.dense["parameters"]
        if rest <= MUCH * dense:
            return ""
        return (
            f"Whatever the ranks, the model cannot become more than {dense / rest:.3g}x smaller in parameters, because "
            f"these parts are not cut: {listing(self._uncut(), 4)}."
        )

    def _uncut(self) -> list[str]:
        """The parts of the model with parameters that are not cut, the largest first, in words."""
        cut = {id(value) for layer in self.layers.values() for value in layer.parameters()}
        sizes: dict[str, int] = {}
        for name, value in self.model.named_parameters():
            if id(value) not in cut:
                inside = (layer for layer in self.first if name.startswith(f"{layer}."))
                part = next(inside, name.rpartition(".")[0] or name)
                sizes[part] = sizes.get(part, 0) + value.numel()
        largest = sorted(sizes, key=lambda part: -sizes[part])
        return [f"'{part}' ({plural(sizes[part], 'parameter')})" for part in largest]

    def _price(self, ranks: Mapping[str, Sizes], graphs: Mapping[str, Graph]) -> float:
        """What the whole model costs with other ranks, in the unit of the budgets."""
        unit = self.goals.unit
        if unit in ("macs", "ms"):
            cut = {name: resized(graphs[name], own) for name, own in ranks.items()}
            return self.prices.of(self.prices.whole({**self.fixed, **cut}), unit)
        numbers = self.prices.whole(self.fixed).parameters
        for name, own in ranks.items():
            graph = graphs[name]
            numbers += parameters(graph, own) + (graph.out_features if graph.has_bias else 0)
        return self.prices.of(Cost(numbers, 0, 0.0), unit)


@torch.no_grad()
def share_(values: Iterable[Tensor]) -> None:
    """Gives all ranks the values of rank 0; without several processes nothing happens."""
    for value in values:
        shared = from_first_rank(value)
        if shared is not value:
            value.copy_(shared)


def _order(saliency: Tensor) -> list[int]:
    """The slices of a bond, the largest saliency first."""
    places: list[int] = torch.argsort(saliency.detach().double().cpu(), descending=True, stable=True).tolist()
    return places


def _slices(graph: Graph) -> LayerSlices:
    """The slices of a graph, without saliencies."""
    return LayerSlices(
        graph, {name: [0.0] * bond.size for name, bond in graph.bonds.items()}, lambda sizes: parameters(graph, sizes)
    )


def _least(graph: Graph) -> dict[str, int]:
    """The smallest sizes that bonds can have: 1, and 0 for all terms but the one with the fewest numbers."""
    ones = dict.fromkeys(graph.bonds, 1)
    best = ones
    for term in graph.terms:
        gone = {
            graph.bond_name(other, bond.name): 0 for other in graph.terms if other is not term for bond in other.bonds
        }
        sizes = {**ones, **gone}
        best = min(best, sizes, key=lambda sizes: parameters(graph, sizes))
    return best
