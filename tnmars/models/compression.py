"""`plan_compression` and `compress_`: from a trained model to a smaller one, under one budget for all layers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from tnmars.arguments import check_arguments, own, own_seed
from tnmars.errors import Problem, TnmarsError, listing
from tnmars.models.bar import bar
from tnmars.models.budget import Budget
from tnmars.models.calibration import Calibration, check_room
from tnmars.models.data import Inputs
from tnmars.models.plan import CompressionPlan
from tnmars.models.planning import Planning, carry_out_
from tnmars.models.rules import Rules
from tnmars.models.sites import sites
from tnmars.models.statistics import Collected
from tnmars.models.torch_layers import fingerprint
from tnmars.models.usage import one_pass
from tnmars.models.weighing import Watch, Weighed, groups, statistics, weighed, whole
from tnmars.plan.cost import CostModel, machine_model


class CompressionWarning(UserWarning):
    """Calibration data that are too few for what they decide.

    Example:
        >>> import tnmars
        >>> issubclass(tnmars.CompressionWarning, UserWarning)
        True
    """


def plan_compression(
    model: nn.Module,
    rules: Rules | None = None,
    *,
    budget: object = None,
    data: Iterable[Any] | None = None,
    inputs: Inputs | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    max_drop: float | None = None,
    tune: bool = False,
    seed: int = 0,
    cost_model: CostModel | None = None,
    progress: bool | None = None,
    watch: Watch | None = None,
) -> CompressionPlan:
    """How a trained model would be compressed to a budget. Nothing is changed; `print` shows a table.

    Every layer is decomposed in the metric of the data that it sees: errors count by how much they change the model's
    outputs. In that unit all layers share one budget, and each gets the ranks at which another parameter would help
    no more than elsewhere. A layer stays dense where that is best.

    Args:
        model: A trained model. Layers that are compiled already stay as they are.
        rules: Which layers are decomposed, and how: a mapping from patterns to a family, a graph, a spec file, a list
            of these (the best is taken), `"default"` (what suits the layer) or None, which keeps a layer dense. A
            pattern is a glob on the full name (`"encoder.*.fc?"`) or a regular expression for all of it
            (`"re:layer[23].*"`). The first match wins; what no pattern matches stays dense. By default every layer
            that can be decomposed is.
        budget: What the whole model may cost: `"4x"` for a quarter of its parameters, a number of parameters, or a
            text such as `"1.5 MB"`, `"2x macs"`, `"30M macs"` or `"12 ms"`.
        data: Calibration data without labels: a `DataLoader`, batches of model inputs, or a tensor with all samples.
            Some hundred samples are enough for most models. Every fifth batch is held out for comparison.
        inputs: Called with each batch of the data, returns the model's inputs; by default the first of a tuple.
        evaluate: Instead of a budget, with `max_drop`: returns the score of a model, the larger the better.
        max_drop: By how much the score may fall. The smallest of some sizes within it is taken.
        tune: Whether layers are timed for a budget in milliseconds, instead of predicted by the cost model.
        seed: The seed of random projections and starts.
        cost_model: What times are predicted by; by default the calibrated model of this machine.
        progress: Whether a progress bar is shown; by default on a terminal only.
        watch: Called with a text, a number and a total (0 if not known) as the work goes on.

    Returns:
        The plan: for each layer its family, ranks, size, MACs and time before and after, its share of the loss, and
        why it stays dense if it does. Pass it to `compress_`.

    Raises:
        PatternError: A pattern matches no layer.
        TnmarsError: The budget cannot be met, data are missing or do not fit, or no layer can be decomposed.

    Issues a `CompressionWarning` if there are few data for the width of a layer.

    Example:
        >>> import torch, tnmars
        >>> _ = torch.manual_seed(0)
        >>> first, second = torch.nn.Linear(64, 96), torch.nn.Linear(96, 10)
        >>> model = torch.nn.Sequential(first, torch.nn.ReLU(), second)
        >>> plan = tnmars.plan_compression(model, budget="2x", data=torch.randn(1024, 64))
        >>> plan.parameters.after <= plan.parameters.before / 2
        True
    """
    check_arguments(plan_compression, locals())
    budget, max_drop = own((budget, max_drop))
    seed = own_seed(seed)
    asked = _asked(budget, evaluate, max_drop)
    every, refused = groups(model, rules)
    if data is None:
        text = "data is missing: calibration data say which errors matter."
        hint = "Give some hundred model inputs, data=loader; labels are not needed. Nothing was changed."
        raise TnmarsError(Problem(text, hint))
    with bar("planning", None, progress) as advance, torch.random.fork_rng(devices=[]):

        def tell(what: str, step: int, steps: int) -> None:
            advance(step, f"{what}: {step} of {steps}" if steps else f"{what}: {step}")
            if watch is not None:
                watch(what, step, steps)

        calibration = Calibration(model, data, inputs)
        collected = statistics(model, every, calibration, seed, tell)
        check_room(calibration.held_out)
        now = one_pass(model, calibration.largest, collected.layers, is_timed=asked.unit == "ms")
        entries = weighed(every, collected, now, cost_model or machine_model(), tune, asked.unit, tell)
        costs = whole(model, entries, now, asked.unit)
        _warn_few(entries, collected)
        planning = Planning(model, every, refused, entries, collected, costs, calibration, seed, rules, tell)
        if evaluate is None or max_drop is None:
            return planning.tried(planning.plan(asked))
        return planning.searched(evaluate, max_drop)


def compress_(
    model: nn.Module,
    plan: CompressionPlan | Rules | None = None,
    *,
    rules: Rules | None = None,
    budget: object = None,
    data: Iterable[Any] | None = None,
    **options: Any,
) -> CompressionPlan:
    """Compresses a trained model in place: the layers of a plan are replaced by compiled ones, with the same calls.

    Make the optimizer afterwards: the parameters are new ones. Hooks of replaced layers are not taken over.

    Args:
        model: The model that the plan was made for.
        plan: What `plan_compression` returned; or the rules for a plan that is made now, by default for all layers.
        rules: The same as a keyword.
        budget: The budget of a plan that is made now, as in `plan_compression`.
        data: Its calibration data.
        **options: Its other options, as in `plan_compression`.

    Returns:
        The plan that was carried out.

    Raises:
        TnmarsError: As `plan_compression`; or the model is not the one that the plan was made for. Nothing was changed
            then.

    Example:
        >>> import torch, tnmars
        >>> _ = torch.manual_seed(0)
        >>> first, second = torch.nn.Linear(64, 96), torch.nn.Linear(96, 10)
        >>> model = torch.nn.Sequential(first, torch.nn.ReLU(), second)
        >>> plan = tnmars.compress_(model, budget="2x", data=torch.randn(1024, 64))
        >>> sum(value.numel() for value in model.parameters()) == plan.parameters.after
        True
    """
    check_arguments(compress_, locals())
    asked = {"rules": rules, "budget": budget, "data": data}
    given = [*(name for name, value in asked.items() if value is not None), *options]
    if not isinstance(plan, CompressionPlan):
        if plan is not None and rules is not None:
            raise TnmarsError("rules are given twice: as the second argument, and by name. Nothing was changed.")
        plan = plan_compression(model, rules if plan is None else plan, budget=budget, data=data, **options)
    elif given:
        text = f"{listing(given)}: a plan has these already."
        raise TnmarsError(Problem(text, "Give compress_ a plan alone, or rules with a budget and data."))
    _check_model(model, plan)
    carry_out_(model, plan)
    return plan


def _asked(budget: object, evaluate: object, max_drop: object) -> Budget:
    if (evaluate is None) != (max_drop is None) or (budget is None) == (evaluate is None):
        text = "give a budget, or evaluate and max_drop together."
        raise TnmarsError(Problem(text, "budget='4x', or evaluate=accuracy, max_drop=0.5. Nothing was changed."))
    return Budget.parse("2x" if budget is None else budget)


def _warn_few(entries: list[Weighed], collected: Collected) -> None:
    few = [
        entry.group.name
        for entry in entries
        if entry.group.first.is_layer and collected.layers[entry.group.name].is_few
    ]
    if few:
        text = f"the calibration data are few for {listing(few)}: fewer than four rows per output. Give more samples."
        warnings.warn(text, CompressionWarning, stacklevel=3)


def _check_model(model: nn.Module, plan: CompressionPlan) -> None:
    """Refuses a model whose layers are not those of the plan."""
    own, _ = sites(model)
    for entry in plan.chosen:
        for site in entry.sites:
            found = own.get(site.name)
            if found is None or found.layer.weight is not site.layer.weight:
                text = f"layer '{site.name}' is not the one that the plan was made for."
                raise TnmarsError(Problem(text, "Make a plan for this model: plan_compression. Nothing was changed."))
        if fingerprint(entry.sites[0].layer.weight) != entry.fingerprint:
            text = f"the weight of '{entry.name}' has changed since the plan was made."
            raise TnmarsError(Problem(text, "Make a new plan: plan_compression. Nothing was changed."))
