"""Plans for budgets, from weighed choices: cores are computed, the result is tried on data that were held out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import exp, log

import torch
from torch import Tensor, nn

from tnmars.decomposing.decompose import Decomposed, decompose
from tnmars.decomposing.sweep import is_swept
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph, Json
from tnmars.models.budget import Budget
from tnmars.models.calibration import Calibration, answers, as_is, distance, norms, put_, reestimated
from tnmars.models.costs import Cost
from tnmars.models.curves import Choice
from tnmars.models.plan import Change, CompressionPlan, WeightPlan
from tnmars.models.replacing import Replacement, apply_
from tnmars.models.rules import Rules
from tnmars.models.sites import sites
from tnmars.models.statistics import Collected
from tnmars.models.torch_layers import fingerprint
from tnmars.models.tying import Group
from tnmars.models.weighing import Watch, Weighed, Whole, allocated

STEPS = 4
"""Rounds of weighted least squares over the cores, after a start that is close: more gain little."""
SEARCHED, STARTS = 30, 1
"""The rounds and the random starts of graphs that are not trees. Starts of a trained weight end with similar losses."""
TRIES = 8
"""How many sizes are tried to find the smallest model within a drop of a metric."""


@dataclass(eq=False)
class Planning:
    """All that plans for different budgets have in common."""

    model: nn.Module
    groups: list[Group]
    refused: Mapping[str, str]
    weighed: list[Weighed]
    collected: Collected
    whole: Whole
    calibration: Calibration
    seed: int
    rules: Rules | None
    watch: Watch
    made: dict[Choice, Decomposed] = field(default_factory=dict)
    """Decompositions that were computed for some budget."""

    def __post_init__(self) -> None:
        self.expected: list[list[Tensor]] = answers(self.model, self.calibration.held_out)

    def plan(self, budget: Budget) -> CompressionPlan:
        """The plan for a budget, not tried yet."""
        chosen = allocated(self.weighed, budget, self.whole)
        found = {
            entry.group.name: self._weight(entry, choice) for entry, choice in zip(self.weighed, chosen, strict=True)
        }
        changes = {}
        for unit in ("parameters", "macs", "ms"):
            after = self.whole.rest[unit] + sum(entry.after.of(unit, 1) for entry in found.values())
            changes[unit] = Change(self.whole.now[unit], after)
        weights = [found.get(group.name) or _untouched(group) for group in self.groups]
        weights += [WeightPlan(name, reason=why) for name, why in self.refused.items()]
        return CompressionPlan(
            weights=tuple(weights),
            budget=str(budget),
            parameters=changes["parameters"],
            macs=changes["macs"],
            ms=changes["ms"],
            expected=sum(entry.loss for entry in weights),
            rules=_text(self.rules),
        )

    def _weight(self, entry: Weighed, choice: Choice | None) -> WeightPlan:
        group = entry.group
        places = tuple(group.sites)
        if choice is None:
            reason = group.reason or "best left dense"
            return WeightPlan(group.name, "", None, entry.dense, entry.dense, 0.0, reason, sites=places)
        if choice not in self.made:
            self.watch(f"cores of {group.name}", len(self.made) + 1, 0)
            weight = group.first.layer.weight.detach()
            self.made[choice] = decompose(
                weight, choice.graph, metric=entry.metric, seed=self.seed, steps=_effort(choice.graph), starts=STARTS
            )
        found = self.made[choice]
        return WeightPlan(
            name=group.name,
            family=choice.candidate.label,
            graph=found.graph,
            before=entry.dense,
            after=entry.setting.decomposed(found.graph),
            loss=choice.loss / max(self.collected.power, 1e-300),
            cores=found.cores,
            sites=places,
            batch=entry.setting.batch,
            image=entry.setting.image,
            rule=group.rule,
            fingerprint=fingerprint(group.first.layer.weight),
        )

    def tried(self, plan: CompressionPlan) -> CompressionPlan:
        """The plan with what it does to held-out data, and with new statistics of normalization if these help."""
        return self._compared(plan, _compressed(self.model, plan))

    def _compared(self, plan: CompressionPlan, trial: nn.Module) -> CompressionPlan:
        """Leaves `trial` with the better statistics."""
        away = distance(answers(trial, self.calibration.held_out), self.expected)
        plan = replace(plan, measured=away)
        if not plan.chosen or not norms(trial):
            return plan
        fresh = reestimated(trial, self.calibration.kept)
        buffers = dict(trial.named_buffers())
        before = {name: buffers[name].clone() for name in fresh}
        put_(trial, fresh)
        closer = distance(answers(trial, self.calibration.held_out), self.expected)
        if closer < away:
            return replace(plan, measured=closer, statistics=fresh)
        put_(trial, before)
        return plan

    def searched(self, evaluate: Callable[[nn.Module], float], max_drop: float) -> CompressionPlan:
        """The plan for the smallest of some sizes whose score is at most `max_drop` below that of the model."""
        with as_is(self.model):
            least = float(evaluate(self.model.eval())) - max_drop
        low, high = log(1.02), log(self._most())
        best: CompressionPlan | None = None
        for at in range(TRIES):
            self.watch("sizes tried", at + 1, TRIES)
            middle = (low + high) / 2
            try:
                plan = self.plan(Budget(exp(middle), "parameters", True))
            except TnmarsError:  # too small for the model
                high = middle
                continue
            trial = _compressed(self.model, plan)
            plan = self._compared(plan, trial)
            score = float(evaluate(trial.eval()))
            if score >= least:
                low, best = middle, replace(plan, score=score, budget=f"a drop of {max_drop:g} at most")
            else:
                high = middle
        if best is None:
            text = f"no size that was tried keeps the score within {max_drop:g} of the model's."
            raise TnmarsError(Problem(text, "Allow a larger drop, or fine-tune afterwards. Nothing was changed."))
        return best

    def _most(self) -> float:
        """The largest ratio that can be reached."""
        smallest = self.whole.rest["parameters"]
        for entry in self.weighed:
            smallest += min((choice.parameters for choice in entry.choices), default=entry.dense.parameters)
        return max(1.05, self.whole.now["parameters"] / max(smallest, 1.0))


def _effort(graph: Graph) -> int:
    """The rounds in which cores are searched: few on trees, whose start is close already."""
    return STEPS if is_swept(graph) else SEARCHED


def _untouched(group: Group) -> WeightPlan:
    cost = Cost(group.first.layer.weight.numel(), 0, 0.0)
    return WeightPlan(group.name, "", None, cost, cost, 0.0, group.reason, sites=tuple(group.sites))


def _text(rules: Rules | None) -> dict[str, str]:
    """Rules as plain text, for the record."""
    if rules is None:
        return {}

    def shown(target: object) -> str:
        if isinstance(target, Graph):
            return target.name or "graph"
        if isinstance(target, (list, tuple)):
            return ", ".join(map(shown, target))
        return "dense" if target is None else str(target)

    return {pattern: shown(target) for pattern, target in rules.items()}


def _compressed(model: nn.Module, plan: CompressionPlan) -> nn.Module:
    """A copy of the model, compressed by a plan."""
    trial = copy.deepcopy(model)
    own, _ = sites(trial)
    moved = [replace(entry, sites=[own[site.name] for site in entry.sites]) for entry in plan.chosen]
    carry_out_(trial, replace(plan, weights=tuple(moved)))
    return trial


def carry_out_(model: nn.Module, plan: CompressionPlan) -> None:
    replacements = []
    for entry in plan.chosen:
        assert entry.graph is not None
        record: dict[str, Json] = {"family": entry.family, "budget": plan.budget}
        if entry.rule:
            record["rule"] = entry.rule
        origin: Mapping[str, Json] = {"compression": record}
        replacements.append(Replacement(entry.sites, entry.graph, entry.cores, entry.batch, entry.image, origin))
    apply_(model, replacements)
    with torch.no_grad():
        put_(model, dict(plan.statistics))
