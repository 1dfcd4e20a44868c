"""Stages for a loop of one's own: lengths, rates, weight decay, cuts in place, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tnmars
from tnmars import CheckpointError, TnmarsError, families
from tnmars.layer.module import layers
from tnmars.shrinking import scores

LOWRANK = families.lowrank("linear", inputs=(12,), outputs=(9,), rank=8)


def model_of(graph: tnmars.Graph = LOWRANK, **options: object) -> nn.Sequential:
    return nn.Sequential(tnmars.compile(graph, batch=16, **options), nn.ReLU(), nn.Linear(9, 3))


def size(model: nn.Module) -> int:
    return sum(value.numel() for _, layer in layers(model) for value in layer.parameters())


def test_stages_are_longer_for_smaller_models_and_twice_as_long_at_first() -> None:
    model = model_of()
    full = size(model)
    lengths, sizes = [], []
    for stage in tnmars.Stages(model, budget=60, settings=tnmars.Staircase(first=30)):
        lengths.append(stage.steps)
        sizes.append(size(model))
        stage.report(0.5)
    *sizes, again = sizes
    *lengths, last = lengths
    assert lengths == [60, *(int(30 * full / own) for own in sizes[1:])]
    assert again == sizes[-1] and last == int(3 * 30 * full / again), "the point that is taken is trained once more"
    assert sizes[0] == full and all(after < before for before, after in pairwise(sizes))
    each = 12 + 9  # numbers that a slice holds: no cut but the last is above 15 % and above one slice
    for before, after in pairwise(sizes):
        assert before - after == each or after >= 0.85 * before or after == sizes[-1]


def test_rates_are_relative_and_fall_to_zero() -> None:
    model = model_of()
    with torch.no_grad():
        model[0].cores.get("A").mul_(100.0)
    stage = next(iter(tnmars.Stages(model, budget="1.5x", settings=tnmars.Staircase(first=100, decay=0.02))))
    named = {id(value): name for name, value in model.named_parameters()}
    rates = {named[id(group["params"][0])]: group["lr"] for group in stage.optimizer.param_groups}
    for name, value in model.named_parameters():
        assert rates[name] == pytest.approx(
            0.07 * (value.detach().square().mean().sqrt().item() if value.dim() > 1 else 0.1)
        )
    decay = {named[id(group["params"][0])]: group["weight_decay"] for group in stage.optimizer.param_groups}
    assert {name for name, value in decay.items() if value} == {"0.cores.A", "0.cores.B"}
    for name in ("0.cores.A", "0.cores.B"):  # both shrink by the same share in a step
        assert decay[name] * rates[name] == pytest.approx(0.02 * 0.07)
    factors = [stage.factor(step) for step in range(200)]
    assert factors[:2] == [1 / 40, 2 / 40] and factors[39] == 1.0 and factors[-1] == 0.0
    assert factors[119] == pytest.approx(0.5, abs=1e-6)


def test_a_step_does_not_depend_on_the_scale_of_a_core_or_of_the_loss() -> None:
    """Cores of 100 and of 1/100 times the size, and a loss of 1,000 times the size, take the same relative steps."""
    torch.manual_seed(0)
    x, y = torch.randn(16, 12), torch.randint(3, (16,))
    model, other = model_of(), model_of()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other[0].cores.get("A").mul_(100.0)
        other[0].cores.get("B").div_(100.0)
    for one, scale in ((model, 1.0), (other, 1000.0)):
        stage = next(iter(tnmars.Stages(one, budget="1.5x", settings=tnmars.Staircase(decay=0.3))))
        for _ in range(20):
            (scale * cross_entropy(one(x), y)).backward()
            stage.step()
    for name, factor in (("A", 100.0), ("B", 0.01)):
        torch.testing.assert_close(other[0].cores.get(name), factor * model[0].cores.get(name), rtol=1e-3, atol=1e-4)


def test_decay_shrinks_cores_and_nothing_else() -> None:
    """Without a gradient, the first step shrinks a core by the rate times the decay; all else stays."""
    model = model_of()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    stage = next(iter(tnmars.Stages(model, budget="1.5x", settings=tnmars.Staircase(decay=0.3, ramp=1))))
    for value in model.parameters():
        value.grad = torch.zeros_like(value)
    stage.step()
    for name, value in model.named_parameters():
        factor = 1 - 0.07 * 0.3 if "cores" in name else 1.0
        torch.testing.assert_close(value.detach(), factor * before[name])


def test_the_prior_is_that_of_the_loss() -> None:
    """A step equals one on the loss with the squared entries added, also if the optimizer steps by itself."""
    torch.manual_seed(0)
    x, y = torch.randn(16, 12), torch.randint(3, (16,))
    model, other = model_of(), model_of()
    other.load_state_dict(model.state_dict())
    settings = tnmars.Staircase(prior=0.3, decay=0.0)
    stage = next(iter(tnmars.Stages(model, budget="1.5x", train_samples=2, settings=settings)))
    rates = [group["lr"] for group in stage.optimizer.param_groups]
    plain = torch.optim.Adam(
        [{"params": [value], "lr": rate} for value, rate in zip(other.parameters(), rates, strict=True)]
    )
    for _ in range(3):
        cross_entropy(model(x), y).backward()
        stage.optimizer.step()
        stage.optimizer.zero_grad()
        squares = sum(value.square().sum() for value in other[0].cores.parameters())
        (cross_entropy(other(x), y) + 0.3 / 2 * squares).backward()
        plain.step()
        plain.zero_grad()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_points_that_are_taken_are_trained_once_more_and_the_model_ends_as_the_chosen_one() -> None:
    model, x = model_of(), torch.randn(5, 12)
    path = tnmars.Stages(model, budget=[120, 60], settings=tnmars.Staircase(first=3))
    left = []
    for stage in path:
        for _ in range(stage.steps):
            model(x).square().mean().backward()
            stage.step()
        stage.report(0.5)
        left.append(path.steps_left)
    curve = path.curve
    ranks = [point.ranks["0"]["r"] for point in curve.points]
    assert ranks == [8, 7, 6, 5, 4, 3, 2, 1, 3, 1] and curve.chosen_at == 9  # 51 numbers of a slice and 9 + 30 others
    assert curve.budgets == {"120 parameters": 8, "60 parameters": 9}
    assert curve.at(120) is curve.points[8] and curve.at(60) is curve.points[9]
    torch.testing.assert_close(model(x), curve.chosen.model(x))
    assert curve.reason == ("it has at most 60 parameters (budget 60 parameters). It was trained once more at the end.")
    steps = [point.steps for point in curve.points]
    assert left[-3:] == [steps[-1] - steps[-3], steps[-1] - steps[-2], 0]


@pytest.mark.parametrize("broken", [2, 4, -1], ids=["a stage", "a later stage", "the last stage"])
def test_after_a_failure_the_model_is_the_chosen_one(broken: int) -> None:
    """Training diverges, so that the model itself is NaN when the path ends."""
    model, x = model_of(), torch.randn(5, 12)
    path = tnmars.Stages(model, budget=60, settings=tnmars.Staircase(first=3))
    for stage in path:
        is_last = path._untaken is not None
        if stage.number == broken or (is_last and broken < 0):
            with torch.no_grad():
                for value in model.parameters():
                    value.fill_(float("nan"))
            stage.report(float("nan"))
        else:
            stage.report(0.5)
    assert path.is_finished and "The path ended early" in path.curve.reason
    assert path.curve.chosen.ranks["0"]["r"] == model[0].graph.bonds["r"].size
    assert bool(model(x).isfinite().all())
    torch.testing.assert_close(model(x), path.curve.chosen.model(x))


def test_the_prior_counts_in_a_step_with_a_closure_and_with_scaled_gradients() -> None:
    """Lightning calls `step(closure)`, and a scaler of gradients divides them by its scale in the step."""
    settings = tnmars.Staircase(prior=0.3, decay=0.0)
    x, found = torch.randn(16, 12), []
    for way in ("plain", "closure", "scaler"):
        torch.manual_seed(0)
        model = model_of()
        stage = next(iter(tnmars.Stages(model, budget="1.5x", train_samples=2, settings=settings)))
        optimizer = stage.optimizer

        def loss(model: nn.Module = model) -> torch.Tensor:
            return model(x).square().mean()

        def closure(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            value = model(x).square().mean()
            value.backward()
            return value

        for _ in range(2):
            if way == "closure":
                assert optimizer.step(closure).item() > 0
            elif way == "scaler":
                scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
                optimizer.zero_grad()
                scaler.scale(loss()).backward()
                scaler.step(optimizer)
            else:
                closure()
                optimizer.step()
        found.append([value.detach().clone() for value in model.parameters()])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two)


def test_the_score_of_rank_0_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that validate on parts of their own would otherwise choose different points, and wait for each other."""
    path = tnmars.Stages(model_of(), budget="1.5x")
    stage = next(iter(path))
    monkeypatch.setattr(scores, "has_ranks", lambda: True)
    monkeypatch.setattr(scores, "from_first_rank", lambda figures: torch.tensor([0.25, float("nan")]))
    stage.report(0.75)
    monkeypatch.undo()
    assert path.curve.points[0].score == 0.25


def test_a_first_stage_that_diverges_is_repeated_whoever_steps_the_optimizer() -> None:
    model = model_of()
    path = tnmars.Stages(model, budget="1.5x", start=0.5, settings=tnmars.Staircase(first=3))
    stages = iter(path)
    stage = next(stages)
    model(torch.randn(4, 12)).square().mean().backward()
    stage.optimizer.step()
    stage.report(float("nan"))
    again = next(stages)
    assert again.number == stage.number
    rates = [[group["lr"] for group in one.optimizer.param_groups] for one in (stage, again)]
    assert rates[1] == pytest.approx([rate / 4 for rate in rates[0]])


def test_a_path_continues_with_the_same_start_only(tmp_path: Path) -> None:
    model = model_of()
    tnmars.save(model, tmp_path / "model.safetensors")
    next(iter(tnmars.Stages(model, budget="1.5x", start=(0.5, 100), checkpoint=tmp_path / "path"))).report(0.6, 100)
    again = tnmars.load_into(model_of(), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"the score of its start is 0\.5, but now 0\.7"):
        tnmars.Stages(again, budget="1.5x", start=(0.7, 100), checkpoint=tmp_path / "path")


def test_a_point_that_its_last_stage_makes_worse_is_taken_as_it_was() -> None:
    model, x = model_of(), torch.randn(5, 12)
    path = tnmars.Stages(model, budget=60, settings=tnmars.Staircase(first=3))
    outputs = []
    for stage in path:
        model(x).square().mean().backward()
        stage.step()
        outputs.append(model(x).detach())
        stage.report(0.5 - 0.01 * stage.number)
    assert path.curve.chosen is path.curve.points[-2] and "once more" not in path.curve.reason
    torch.testing.assert_close(model(x), outputs[-2])
    assert not torch.allclose(outputs[-1], outputs[-2])


def test_without_a_last_stage_the_path_ends_with_its_last_cut() -> None:
    path = tnmars.Stages(model_of(), budget=60, settings=tnmars.Staircase(finish=0.0))
    for stage in path:
        stage.report(0.5)
    ranks = [point.ranks["0"]["r"] for point in path.curve.points]
    assert ranks == sorted(set(ranks), reverse=True)


def test_the_rate_of_ordinary_parts_can_be_given() -> None:
    model = model_of()
    stage = next(iter(tnmars.Stages(model, budget="1.5x", settings=tnmars.Staircase(other_rate=1e-3))))
    rates = [group["lr"] for group in stage.optimizer.param_groups]
    assert rates[-2:] == [1e-3, 1e-3] and 1e-3 not in rates[:-2]


def test_a_layer_with_a_fixed_core_is_left_alone() -> None:
    model = nn.Sequential(model_of()[0], tnmars.compile(families.lowrank("linear", inputs=(9,), outputs=(5,), rank=4)))
    model[1].cores.get("A").requires_grad_(False)
    path = tnmars.Stages(model, budget=150)
    for stage in path:
        stage.report(0.5)
    assert path.curve.chosen.ranks["1"] == {"r": 4} and model[1].graph.bonds["r"].size == 4
    dense = 12 * 9 + 9 + 9 * 5 + 5  # a fixed layer counts as dense in the ratio
    assert path.curve.dense["parameters"] == dense
    assert path.curve.chosen.ratio == pytest.approx(dense / path.curve.chosen.parameters)
    for point in path.curve.points:
        assert point.parameters == sum(value.numel() for value in point.model.parameters())


def test_a_budget_that_a_fixed_layer_exceeds_is_refused() -> None:
    fixed = tnmars.compile(families.lowrank("linear", inputs=(9,), outputs=(9,), rank=8))
    model = nn.Sequential(model_of()[0], fixed)
    fixed.cores.get("A").requires_grad_(False)
    with pytest.raises(TnmarsError, match="with all ranks 1 the model has 183 parameters") as caught:
        tnmars.Stages(model, budget=100)
    assert "Parts that are not cut count too" in str(caught.value)


def test_the_points_are_what_the_models_are() -> None:
    graph = families.tt("linear", inputs=(3, 4), outputs=(3, 3), rank=5)
    model = nn.Sequential(tnmars.compile(graph, batch=16), nn.ReLU(), nn.Linear(9, 3))
    path = tnmars.Stages(model, max_drop=10.0)
    x, outputs = torch.randn(7, 12), []
    for stage in path:
        outputs.append(model(x).detach())
        stage.report(1.0 - 0.01 * stage.number)
    curve = path.curve
    for point, output in zip(curve.points, outputs, strict=True):
        assert point.parameters == sum(value.numel() for value in point.model.parameters())
        assert point.bytes == 4 * point.parameters
        torch.testing.assert_close(point.model(x), output)
    last = curve.points[-1]
    assert last.ranks == {"0": {"r1": 1}} and "r1" not in last.model[0].graph.bonds
    assert curve.points[0].ratio == pytest.approx((12 * 9 + 9 + 30) / curve.points[0].parameters)


def test_a_term_vanishes_and_the_curve_says_so() -> None:
    graph = families.btd("linear", inputs=(6,), outputs=(5,), rank=2, terms=3)
    model = nn.Sequential(tnmars.compile(graph))
    path = tnmars.Stages(model, budget=20)
    for stage in path:
        stage.report(0.5)
    last = path.curve.chosen
    alive = {bond.partition(".")[0] for bond, rank in last.ranks["0"].items() if rank}
    assert len(alive) == 1 and len(last.model[0].graph.terms) == 1
    assert last.parameters <= 20 and last.model(torch.randn(2, 6)).shape == (2, 5)


def test_budgets_are_met_to_within_one_slice_in_one_path() -> None:
    graph = families.tt("linear", inputs=(4, 4, 4), outputs=(4, 4, 4), rank=12)
    model = nn.Sequential(tnmars.compile(graph, batch=16))
    budgets = [900, 600, 350, 200]
    path = tnmars.Stages(model, budget=budgets)
    for stage in path:
        stage.report(0.5)
    curve = path.curve
    assert list(curve.budgets) == [f"{budget} parameters" for budget in budgets]
    assert curve.chosen is curve.at(200)
    for budget in budgets:
        point = curve.at(budget)
        own = point.ranks["0"]
        smallest = min(16 * own["r2"] + 16, 16 * own["r1"] + 16)  # what one more slice of a bond would hold
        assert budget - smallest < point.parameters <= budget


def test_a_first_stage_below_the_start_is_repeated_at_a_quarter_of_the_rate() -> None:
    model = model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path = tnmars.Stages(model, budget="1.5x", start=(0.9, 100), settings=tnmars.Staircase(first=4))
    rates, numbers = [], []
    for stage in path:
        if stage.number == 1:
            assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        rates.append(stage.optimizer.param_groups[0]["initial_lr"])
        numbers.append(stage.number)
        with torch.no_grad():
            model[2].bias.add_(1.0)
        stage.report((0.8 if len(numbers) < 3 else 0.88, 100))
    assert numbers == [1, 1, 1, *range(2, len(numbers) - 1)]
    assert rates[1] == pytest.approx(rates[0] / 4) and rates[2] == pytest.approx(rates[0] / 16)
    assert rates[3] < rates[0] / 8  # the lower rate stays
    assert path.curve.start == 0.9 and path.curve.points[0].steps == 0
    assert path.curve.reason.endswith(
        "All rates were divided by 16, because the first stage made the model given worse."
    )


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": "2x", "train_samples": -5}, "train_samples is -5, but must be a whole number above 0"),
        ({"budget": "2x", "train_samples": "many"}, "train_samples is 'many', but must be a whole number above 0"),
        ({"budget": "fast"}, "budget is 'fast'"),
        ({"budget": []}, "budget is an empty list"),
        ({"budget": "2x", "max_drop": 0.1}, "budget and max_drop are both given"),
        ({"budget": ["2x", "3x macs"]}, "the budgets are in macs and parameters"),
        ({"budget": 10}, "the budget of 10 parameters cannot be met: with all ranks 1 the model has 60 parameters"),
        ({"max_drop": -1}, "max_drop is -1"),
        ({"max_drop": "little"}, "max_drop is 'little'"),
        ({"budget": "2x", "settings": {"first": 3}}, r"settings is a dict, but must be a tnmars\.Staircase"),
        ({"budget": "2x", "example": 3}, "example is of type int"),
    ],
)
def test_wrong_goals_are_refused(options: dict[str, object], words: str) -> None:
    model = model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(TnmarsError, match=words):
        tnmars.Stages(model, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("budget", "rest"), [(20, "70 parameters"), ("80 B", "280 B")])
def test_a_budget_that_is_too_small_names_what_is_not_cut(budget: int | str, rest: str) -> None:
    """The head, a parameter of the model's own, and a layer whose cores are frozen: 4 + 3 cores and 3 biases."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = tnmars.compile(LOWRANK), nn.Linear(9, 5)
            self.still = tnmars.compile(families.lowrank("linear", inputs=(4,), outputs=(3,), rank=1))
            self.still.cores.requires_grad_(False)
            self.shift = nn.Parameter(torch.zeros(10))

    with pytest.raises(TnmarsError) as error:
        tnmars.Stages(Net(), budget=budget)
    parts = "'head' (50 parameters), 'shift' (10 parameters), 'still' (10 parameters)"
    assert f"Parts that are not cut count too: {rest}, in {parts}. Ask for less, or compile" in str(error.value)


@pytest.mark.parametrize(
    ("width", "options", "words"),
    [
        (
            40,
            {"max_drop": 0.1},
            "more than 1.29x smaller in parameters, because these parts are not cut: '2' (400 parameters).",
        ),
        (3, {"max_drop": 0.1}, ""),
        (40, {"budget": "1.01x"}, ""),
    ],
)
def test_the_reason_names_what_kept_the_model_large(width: int, options: dict[str, Any], words: str) -> None:
    """A dense weight of 12 x 9 with 9 biases and a head: 117 and 400, or 117 and 30 parameters."""
    model = nn.Sequential(tnmars.compile(LOWRANK, batch=16), nn.ReLU(), nn.Linear(9, width))
    path = tnmars.Stages(model, settings=tnmars.Staircase(first=2), **options)
    for stage in path:
        stage.report(0.5)
    assert words in path.curve.reason and ("not cut" in path.curve.reason) == bool(words)


def test_models_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(TnmarsError, match="the model has no compiled layer with ranks to choose"):
        tnmars.Stages(nn.Linear(3, 2), budget="2x")
    with pytest.raises(TnmarsError, match="layer '0' has gates"):
        tnmars.Stages(model_of(selector=tnmars.Mars()), budget="2x")
    shared = model_of()
    other = tnmars.compile(LOWRANK)
    other.cores = shared[0].cores
    with pytest.raises(TnmarsError, match=r"core 'A' of layer '2' is a core of layer '0\.0' too"):
        tnmars.Stages(nn.Sequential(shared, nn.Linear(3, 12), other), budget="2x")


def test_a_ratio_to_no_multiply_adds_is_refused() -> None:
    table = tnmars.Embedding(60, 8, family="lowrank", rank=6)
    with pytest.raises(TnmarsError, match=r"the budget of 1\.2x macs has no meaning") as caught:
        tnmars.Stages(table, budget="1.2x macs", example=torch.arange(50))
    assert "Give a ratio of parameters: '1.2x'." in str(caught.value)


def test_a_stage_needs_one_score() -> None:
    path = tnmars.Stages(model_of(), budget="1.5x")
    with pytest.raises(TnmarsError, match="no stage has a score yet"):
        _ = path.curve
    with pytest.raises(TnmarsError, match="stage 0 has no score"):
        for _ in path:
            pass
    stage = next(iter(tnmars.Stages(model_of(), budget="1.5x")))
    stage.report(0.5)
    with pytest.raises(TnmarsError, match="stage 0 has a score already"):
        stage.report(0.5)


def test_a_stage_that_was_left_early_is_trained_again_but_not_cut_twice() -> None:
    model = model_of()
    path = tnmars.Stages(model, budget=60, settings=tnmars.Staircase(first=10))
    for stage in path:
        for _ in range(stage.steps):
            model(torch.randn(4, 12)).square().mean().backward()
            stage.step()
        if stage.number == 1:
            break
        stage.report(0.5)
    size_now = size(model)
    again = next(iter(path))
    assert (again.number, again.steps, again.done) == (1, stage.steps, 0) and size(model) == size_now
    assert not again.optimizer.state
    assert {id(value) for group in again.optimizer.param_groups for value in group["params"]} == set(
        map(id, model.parameters())
    )
    again.step()
    assert again.optimizer.param_groups[0]["lr"] > 0
    with pytest.raises(TnmarsError, match="stage 1 was left before it had a score"):
        stage.report(0.5)
    again.report(0.5)
    assert path.curve.points[-1].stage == 1


def test_slices_that_save_nothing_end_the_path_with_an_error() -> None:
    model = nn.Sequential(model_of()[0])
    path = tnmars.Stages(model, budget="1.2x macs")
    path._shrunk.prices.weight = lambda *given: 1.0  # type: ignore[method-assign]
    stages = iter(path)
    next(stages).report(0.5)
    with pytest.raises(TnmarsError, match="no slice that is left saves any macs"):
        next(stages)


def test_without_goals_a_score_needs_its_error() -> None:
    stage = next(iter(tnmars.Stages(model_of())))
    with pytest.raises(TnmarsError, match=r"the standard error of the score is not known(.|\n)*stage\.report\(score, "):
        stage.report(0.5)
    with pytest.raises(TnmarsError, match="samples is 0, but must be a whole number above 0"):
        stage.report(0.5, samples=0)
    stage.report(0.5, samples=100)


def test_steps_are_those_that_were_trained() -> None:
    model = model_of()
    path = tnmars.Stages(model, budget="1.5x", settings=tnmars.Staircase(first=5))
    expected = []
    for stage in path:
        for _ in range(stage.number):  # none in the first stage
            model(torch.randn(4, 12)).square().mean().backward()
            stage.optimizer.step()  # by the optimizer itself, as with a scheduler
        expected.append(sum(range(stage.number + 1)))
        stage.report(0.5)
    assert [point.steps for point in path.curve.points] == expected


def test_an_example_may_be_a_mapping() -> None:
    path = tnmars.Stages(model_of()[0], budget="1.5x", example={"x": torch.randn(16, 12)})
    plain = tnmars.Stages(model_of()[0], budget="1.5x", example=torch.randn(16, 12))
    assert path._shrunk.dense == plain._shrunk.dense


def test_budgets_in_multiply_adds_say_that_they_are_planned() -> None:
    with pytest.raises(TnmarsError, match=r"has 192 macs, 9x, as planned for speed\. Nothing was changed") as caught:
        tnmars.Stages(model_of()[0], budget="50x macs")
    assert str(caught.value).endswith("\n  Ask for less.")
    with pytest.raises(
        TnmarsError, match=r"Parts that are not cut count too: 30 parameters, in '2' \(30 parameters\)\. Ask"
    ):
        tnmars.Stages(model_of(), budget="50x")


def test_a_score_that_is_not_finite_ends_the_path_once_there_is_a_point() -> None:
    path = tnmars.Stages(model_of(), budget="1.5x")
    stages = iter(path)
    stage = next(stages)
    with pytest.raises(TnmarsError, match="the score is nan"):
        stage.report(float("nan"))
    stage.report(0.5)
    next(stages).report(float("nan"))
    assert path.is_finished and len(path.curve.points) == 1 and list(stages) == []
    assert path.curve.reason.endswith("The path ended early: the score is nan, which is not a finite number.")


def test_a_checkpoint_of_another_path_is_refused(tmp_path: Path) -> None:
    next(iter(tnmars.Stages(model_of(), budget="1.5x", checkpoint=tmp_path))).report(0.5)
    with pytest.raises(CheckpointError, match=r"is another path: its goals are budget 1\.5x parameters"):
        tnmars.Stages(model_of(), budget="1.4x", checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="is another path: its settings are"):
        tnmars.Stages(model_of(), budget="1.5x", checkpoint=tmp_path, settings=tnmars.Staircase(rate=0.1))
    (tmp_path / "curve.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"curve\.json: is not a table of tnmars\.shrink"):
        tnmars.Stages(model_of(), budget="1.5x", checkpoint=tmp_path)


def test_a_path_continues_with_the_model_of_its_last_stage(tmp_path: Path) -> None:
    model = model_of()
    for stage in tnmars.Stages(model, budget=60, checkpoint=tmp_path):
        stage.report(0.5, position={"epoch": stage.number})
        if stage.number == 2:
            break
    again = tnmars.load_into(model_of(), tmp_path / "start.safetensors")
    path = tnmars.Stages(again, budget=60, checkpoint=tmp_path)
    assert path.position == {"epoch": 2} and len(path.curve.points) == 3
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)
    assert next(iter(path)).number == 3
    assert sum(map(prod, again[0].graph.cores.values())) < path.curve.points[-1].parameters
