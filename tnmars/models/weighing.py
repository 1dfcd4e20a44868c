"""From a model, rules and data to choices: what each weight may become, what that costs, and what the budget takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from tnmars.decomposing.metric import Metric
from tnmars.errors import Problem, TnmarsError, listing
from tnmars.layer.numbers import dtype_name
from tnmars.models.budget import UNITS, Budget, allocate, amount
from tnmars.models.calibration import Calibration
from tnmars.models.costs import Cost, Setting, along
from tnmars.models.curves import Choice, choices, needs_inputs
from tnmars.models.rules import Rules, candidates, matched
from tnmars.models.sites import sites
from tnmars.models.statistics import MOST_INPUTS, Collected, Moments, WeightGradients, collect, of_table_and_layer
from tnmars.models.tying import Group, grouped, problem
from tnmars.models.usage import Pass, Use
from tnmars.plan.cost import CostModel

NO_GRADIENT = "no gradient reaches it: the outputs do not depend on it, or the model runs it without gradients"

Watch = Callable[[str, int, int], None]
"""Called with what is done, the number of the step, and the number of steps, or 0 where that is not known."""


@dataclass(eq=False)
class Weighed:
    """A weight with its choices and their costs in the unit of the budget."""

    group: Group
    setting: Setting
    metric: Metric
    dense: Cost
    choices: list[Choice]
    costs: list[float]


def groups(model: nn.Module, rules: Rules | None) -> tuple[list[Group], dict[str, str]]:
    """The weights of a model with the ways to decompose each, and why others cannot be."""
    found, refused = sites(model)
    matches = matched(rules, {name: site.names for name, site in found.items()}, refused)
    if not found:
        text = "the model has no layer that can be decomposed."
        hint = "Linear, convolutions and transposed ones, Embedding, EmbeddingBag, recurrent and attention layers can."
        if refused:
            name, why = next(iter(refused.items()))
            hint += f" '{name}': {why}."
        raise TnmarsError(Problem(text, hint))
    all_groups = grouped(found.values())
    for group in all_groups:
        _decide(group, matches)
    return all_groups, refused


def _decide(group: Group, matches: Mapping[str, tuple[str, Any]]) -> None:
    """Gives a weight its candidates, or the reason why it stays dense. None for one of its places keeps it dense."""
    ruled = [(site.name, *matches[site.name]) for site in group.sites if site.name in matches]
    dense = [(name, rule) for name, rule, target in ruled if target is None]
    if dense:
        name, group.rule = dense[0]
        group.reason = f"rule '{group.rule}'" + (f", for '{name}' that shares it" if name != group.name else "")
    elif not ruled:
        group.reason = "no rule"
    else:
        _, group.rule, target = ruled[0]
        group.reason = problem(group.sites)
        if not group.reason:
            group.candidates = candidates(target, group.first.layer, group.name)


def statistics(model: nn.Module, every: list[Group], calibration: Calibration, seed: int, watch: Watch) -> Collected:
    """What the data say about the weights that may be decomposed."""
    layers: dict[str, Moments] = {}
    weights: dict[str, WeightGradients] = {}
    for group in every:
        if not group.candidates:
            continue
        for site in group.sites:
            if site.is_layer:
                layers[site.name] = Moments(site.layer, _keeps_inputs(group))
            else:
                assert isinstance(site.layer.weight, nn.Parameter)
                weights[site.name] = WeightGradients(site.layer.weight)
    return collect(
        model, calibration.stream(), layers, weights, seed=seed, watch=lambda at: watch("statistics", at + 1, 0)
    )


def _keeps_inputs(group: Group) -> bool:
    layer = group.first.layer
    if any(site.layer.kind != layer.kind for site in group.sites):
        return True
    if layer.width > MOST_INPUTS:
        return False
    return layer.groups > 1 or any(needs_inputs(candidate.graph) for candidate in group.candidates)


def weighed(
    every: list[Group], collected: Collected, now: Pass, machine: CostModel, tune: bool, unit: str, watch: Watch
) -> list[Weighed]:
    """The weights that may be decomposed, with their choices and what each costs."""
    open_groups = [group for group in every if group.candidates]
    found = []
    for at, group in enumerate(open_groups):
        watch(f"ranks of {group.name}", at + 1, len(open_groups))
        own = machine.for_numbers(dtype_name(group.sites[0].layer.weight.dtype))
        setting = Setting(group.sites, [now.uses.get(site.name, Use()) for site in group.sites], own, tune)
        found.append(_weighed(group, collected, setting, unit))
    return found


def _weighed(group: Group, collected: Collected, setting: Setting, unit: str) -> Weighed:
    """A weight with its choices and what each costs."""
    site, item = group.first, group.first.layer.weight.element_size()
    if site.is_layer:
        moments = [collected.layers[place.name] for place in group.sites]
        group.reason = _unseen(moments)
        metric = _metric(moments) if not group.reason else Metric()
    else:
        metric = collected.weights[site.name].metric()
        group.reason = NO_GRADIENT if metric.is_empty else ""
    found: list[Choice] = []
    costs: list[float] = []
    if not group.reason:
        weight = site.layer.weight.detach()
        for candidate in group.candidates:
            path = choices(candidate, weight, metric)
            found += path
            costs += along(path, setting, unit, item)
        if not found:
            group.reason = "no decomposition is smaller than the weight"
    return Weighed(group, setting, metric, setting.dense(group.candidates[0].graph), found, costs)


def _unseen(moments: list[Moments]) -> str:
    """Why the data say nothing about a weight; empty if they do."""
    for one in moments:
        if one.reason:
            return one.reason
    if not any(one.rows for one in moments):
        return "the data do not reach it"
    return "" if any(one.has_gradients for one in moments) else NO_GRADIENT


def _metric(moments: list[Moments]) -> Metric:
    """The metric of a weight, from all places that have it."""
    by_kind: dict[str, Moments] = {}
    for one in moments:
        if one.rows:
            kind = one.layer.kind
            by_kind[kind] = by_kind[kind].joined(one) if kind in by_kind else one
    if len(by_kind) == 1:
        return next(iter(by_kind.values())).metric()
    return of_table_and_layer(by_kind["embedding"], by_kind["linear"])


@dataclass(frozen=True)
class Whole:
    """What the whole model costs now, and what of that is not in weights that may be decomposed."""

    unit: str
    item: int
    now: dict[str, float]
    rest: dict[str, float]


def whole(model: nn.Module, weighed: list[Weighed], now: Pass, unit: str) -> Whole:
    item = max((entry.group.first.layer.weight.element_size() for entry in weighed), default=4)
    inside = {name: sum(entry.dense.of(name, item) for entry in weighed) for name in UNITS}
    costs = {
        "parameters": float(sum(value.numel() for value in model.parameters())),
        "bytes": float(sum(value.numel() * value.element_size() for value in model.parameters())),
        "macs": float(now.macs),
        "ms": inside["ms"] if now.ms is None else now.ms,
    }
    rest = {name: max(0.0, costs[name] - inside[name]) for name in UNITS}
    return Whole(unit, item, {name: rest[name] + inside[name] for name in UNITS}, rest)


def allocated(weighed: list[Weighed], budget: Budget, whole: Whole) -> list[Choice | None]:
    """The choice for each weight that together meet the budget; None stays dense."""
    unit = budget.unit
    limit = budget.limit(whole.now[unit]) - whole.rest[unit]
    curves = [_Curve(entry, unit, whole.item) for entry in weighed]
    while True:
        try:
            places = allocate([curve.points for curve in curves], limit)
        except ValueError:
            least = sum(min(cost for cost, _ in curve.points) for curve in curves) + whole.rest[unit]
            raise _unreachable(budget, least, whole, weighed) from None
        left = limit - sum(curve.exact(at) for curve, at in zip(curves, places, strict=True))
        if left >= -1e-9 * max(1.0, limit):
            break
    _fill(curves, places, left)
    return [curve.choice(at) for curve, at in zip(curves, places, strict=True)]


class _Curve:
    """The costs and losses of the choices for a weight, the dense one last. Costs may be interpolated at first."""

    def __init__(self, entry: Weighed, unit: str, item: int) -> None:
        self.entry, self.unit, self.item = entry, unit, item
        losses = [choice.loss for choice in entry.choices]
        self.points = [*zip(entry.costs, losses, strict=True), (entry.dense.of(unit, item), 0.0)]
        self._known = {len(losses)} if unit in ("macs", "ms") else set(range(len(self.points)))

    def choice(self, at: int) -> Choice | None:
        return self.entry.choices[at] if at < len(self.entry.choices) else None

    def exact(self, at: int) -> float:
        """The cost of a choice, noted in the curve."""
        if at not in self._known:
            cost = self.entry.setting.decomposed(self.entry.choices[at].graph).of(self.unit, self.item)
            self.points[at] = (cost, self.points[at][1])
            self._known.add(at)
        return self.points[at][0]

    def wider(self, at: int) -> list[int]:
        """Of each candidate the choice that loses a little less than the present one."""
        nearest: dict[int, int] = {}
        for place, (_, loss) in enumerate(self.points):
            choice = self.choice(place)
            key = 0 if choice is None else id(choice.candidate)
            if loss < self.points[at][1] and (key not in nearest or loss > self.points[nearest[key]][1]):
                nearest[key] = place
        return list(nearest.values())


def _fill(curves: list[_Curve], places: list[int], left: float) -> None:
    """Takes wider choices that fit into what is left, by exact costs, the best gain for its cost first."""
    while True:
        best: tuple[float, int, int, float] | None = None
        for layer, (curve, at) in enumerate(zip(curves, places, strict=True)):
            for place in curve.wider(at):
                price = curve.exact(place) - curve.exact(at)
                gain = (curve.points[at][1] - curve.points[place][1]) / max(price, 1e-300)
                if price <= left and (best is None or gain > best[0]):
                    best = (gain, layer, place, price)
        if best is None:
            return
        _, layer, place, price = best
        places[layer] = place
        left -= price


def _unreachable(budget: Budget, least: float, whole: Whole, weighed: list[Weighed]) -> TnmarsError:
    text = f"the budget {budget} cannot be met: with all ranks at 1 the model has {amount(least, budget.unit)}"
    hint = f"It has {amount(whole.now[budget.unit], budget.unit)} now, "
    hint += f"{amount(whole.rest[budget.unit], budget.unit)} of them outside of what may be decomposed"
    fixed = [f"{entry.group.name} ({entry.group.reason})" for entry in weighed if not entry.choices]
    hint += f"; cannot be made smaller: {listing(fixed)}." if fixed else "."
    return TnmarsError(Problem(f"{text}. Nothing was changed.", hint))
