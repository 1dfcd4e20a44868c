"""What every selector must satisfy: a new rule that passes this suite works everywhere in tnmars.

The suite runs over `SELECTORS` and over `Budget`, a rule that is defined here with the public interface alone.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, fields
from math import inf
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import tnmars
from tnmars.select import SELECTORS, Selector, from_settings
from tnmars.select.base import check_numbers


@dataclass(frozen=True)
class Budget(Selector):
    """Keeps the most open slices of a layer that fit into one budget for all its bonds, and one slice of each bond."""

    name: ClassVar[str] = "budget"

    share: float = 0.5
    price: str = "parameters"

    def __post_init__(self) -> None:
        check_numbers(self, "share", above=0.0)

    def sample(self, logits: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        return torch.sigmoid(logits + noise)

    def probability(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits)

    def charge(self, cost: Tensor, probability: Tensor) -> Tensor:
        return cost

    def keep_all(self, logits: Sequence[Tensor], costs: Sequence[float]) -> list[Tensor]:
        prices = torch.cat([torch.full_like(one, cost) for one, cost in zip(logits, costs, strict=True)])
        order = torch.argsort(torch.cat(list(logits)), descending=True, stable=True)
        kept = torch.zeros_like(prices, dtype=torch.bool)
        kept[order] = torch.cumsum(prices[order], 0) <= self.share * prices.sum()
        parts = torch.split(kept, [one.numel() for one in logits])
        return [part.scatter(0, one.argmax(0, keepdim=True), True) for part, one in zip(parts, logits, strict=True)]


KINDS: dict[str, type[Selector]] = {**SELECTORS, Budget.name: Budget}
every = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
gated = pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.has_gates], ids=lambda kind: kind.name)


judging = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS.values() if kind.judges_norms], ids=lambda kind: kind.name
)


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Budget` is listed, as a line in `tnmars/select/__init__.py` would."""
    monkeypatch.setitem(SELECTORS, Budget.name, Budget)


def layer(selector: Selector) -> tnmars.TNModule:
    """A layer with two bonds whose slices cost differently."""
    graph = tnmars.network(
        "linear", "A[i,r] B[r,j,s] C[s,o]", inputs=dict(i=2, j=3), outputs=dict(o=5), bonds=dict(r=4, s=6)
    )
    return tnmars.compile(graph, selector=selector, dtype=torch.float64, batch=7)


def train(model: tnmars.TNModule, steps: int = 3) -> tuple[torch.optim.Optimizer, tnmars.MaskSchedule]:
    schedule = tnmars.MaskSchedule(model, 20, seed=1)
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=1e-2))
    for _ in range(steps):
        (model(torch.randn(7, 6, dtype=torch.float64)).square().mean() + tnmars.penalty(model) / 10).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return optimizer, schedule


# --- a value ---------------------------------------------------------------------------------------------------------


@every
def test_it_is_a_frozen_value(kind: type[Selector]) -> None:
    selector = kind()
    assert kind() == selector and hash(kind()) == hash(selector) and kind.name in KINDS
    assert copy.deepcopy(selector) == pickle.loads(pickle.dumps(selector)) == selector  # noqa: S301
    for field in fields(kind):
        with pytest.raises(FrozenInstanceError):
            setattr(selector, field.name, None)


@every
def test_its_settings_are_plain_data(kind: type[Selector]) -> None:
    settings = kind().settings()
    assert settings["name"] == kind.name and set(settings) == {"name", *(field.name for field in fields(kind))}
    assert from_settings(json.loads(json.dumps(settings))) == kind()


# --- gates -----------------------------------------------------------------------------------------------------------


@gated
def test_random_numbers_come_from_the_generator(kind: type[Selector]) -> None:
    selector, state = kind(), torch.get_rng_state()
    for draw in (selector.start, selector.noise):
        first, second = (draw(50, torch.Generator().manual_seed(5)) for _ in range(2))
        assert first.shape == (50,) and first.isfinite().all() and torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


@gated
def test_samples_are_gates_entry_by_entry(kind: type[Selector]) -> None:
    selector, temperature = kind(), torch.tensor(0.5)
    logits, noise = torch.linspace(-3.0, 3.0, 50), selector.noise(50)
    gates = selector.sample(logits, noise, temperature)
    assert gates.shape == (50,) and gates.min() >= 0.0 and gates.max() <= 1.0
    order = torch.randperm(50)
    moved = selector.sample(logits[order], noise[order], temperature)
    torch.testing.assert_close(moved, gates[order])  # the last bit may depend on an entry's place in its vector
    larger = selector.sample(logits + 0.3, noise, temperature)
    assert bool((larger >= gates).all()) and bool((larger > gates).any())
    is_open = selector.is_open(logits, noise, temperature)
    assert is_open.dtype == torch.bool and bool(is_open[gates != 0.0].all())


@gated
def test_a_slice_that_takes_no_part_has_no_gradient(kind: type[Selector]) -> None:
    selector = kind()
    logits, noise = torch.linspace(-9.0, 9.0, 200).requires_grad_(), selector.noise(200)
    gates = selector.sample(logits, noise, torch.tensor(0.5))
    (slope,) = torch.autograd.grad(gates.sum(), logits)
    assert slope.isfinite().all() and slope.min() >= 0.0 and slope.max() > 0.0
    assert bool((slope[~selector.is_open(logits, noise, torch.tensor(0.5))] == 0.0).all())


@gated
def test_infinite_noise_opens_every_gate(kind: type[Selector]) -> None:
    logits = torch.linspace(-9.0, 9.0, 50).requires_grad_()
    gates = kind().sample(logits, torch.full((50,), inf), torch.tensor(0.5))
    assert torch.equal(gates, torch.ones(50))
    (slope,) = torch.autograd.grad(gates.sum(), logits)
    assert torch.equal(slope, torch.zeros(50))


@every
def test_probabilities_rise_with_logits(kind: type[Selector]) -> None:
    chances = kind().probability(torch.linspace(-3.0, 3.0, 50))
    assert chances.shape == (50,) and chances.min() >= 0.0 and chances.max() <= 1.0
    assert bool((chances.diff() >= 0.0).all()) and (not kind.has_gates or chances[-1] > chances[0])


# --- decisions -------------------------------------------------------------------------------------------------------


@every
def test_what_is_kept_is_a_mask_for_each_bond(kind: type[Selector]) -> None:
    logits = [torch.randn(4), torch.randn(6), torch.full((3,), -100.0)]
    kept = kind().keep_all(logits, [1.0, 2.0, 3.0])
    assert [one.shape for one in kept] == [one.shape for one in logits]
    assert all(one.dtype == torch.bool and bool(one.any()) for one in kept), "with default settings a bond stays"


@gated
def test_a_more_open_slice_is_kept_rather(kind: type[Selector]) -> None:
    logits = torch.tensor([5.0, -5.0, 4.0, -4.0])
    (kept,) = kind().keep_all([logits], [1.0])
    assert kept.tolist() == [True, False, True, False]


@gated
def test_kept_gates_are_open_at_evaluation(kind: type[Selector]) -> None:
    selector, logits = kind(), torch.linspace(-3.0, 3.0, 50)
    values, (kept,) = selector.rounded(logits), selector.keep_all([logits], [1.0])
    assert values.shape == (50,) and values.min() >= 0.0 and values.max() <= 1.0
    assert bool((values[kept] > 0.0).all()) and values[-1] == 1.0


@judging
def test_norms_decide_without_a_scale(kind: type[Selector]) -> None:
    selector, norms = kind(), torch.tensor([3.0, 0.0, 2.0, 1e-12], dtype=torch.float64)
    kept = [selector.keep_norms(norms * scale).tolist() for scale in (1e-30, 1.0, 1e30)]
    assert kept == [[True, False, True, False]] * 3 and not kind.has_gates
    assert selector.keep_norms(torch.zeros(3)).any(), "with default settings a bond stays"


@judging
def test_the_prior_of_norms_rises_with_them(kind: type[Selector]) -> None:
    norms, entries = torch.tensor([3.0, 0.0, 2.0]).requires_grad_(), torch.tensor([4.0, 4.0, 7.0])
    nats = kind().prior(norms, entries)
    (slope,) = torch.autograd.grad(nats, norms)
    assert nats.shape == () and slope.min() > 0.0 and slope.isfinite().all()


@every
def test_the_penalty_is_a_scalar_that_rises_with_cost(kind: type[Selector]) -> None:
    selector, chances = kind(), torch.full((6,), 0.5)
    low, high = (selector.charge(torch.tensor(cost), chances) for cost in (1.0, 2.0))
    assert low.shape == () and high >= low and (not kind.has_gates or high > low)
    assert selector.weight_decay >= 0.0


@every
def test_temperature_and_sharpness_are_positive(kind: type[Selector]) -> None:
    selector = kind()
    temperatures = [selector.temperature_at(progress) for progress in (0.0, 0.5, 1.0, 2.0)]
    assert min(temperatures) > 0.0 and temperatures == sorted(temperatures, reverse=True)
    assert all(selector.sharpness_at(progress) > 0.0 for progress in (0.0, 0.5, 1.0))
    assert selector.limits is None or selector.limits[0] < selector.limits[1]
    assert type(selector.for_samples(50)) is kind


# --- the way of a model ----------------------------------------------------------------------------------------------


@every
def test_masked_equals_pruned(kind: type[Selector]) -> None:
    model = layer(kind())
    train(model)
    if not kind.has_gates:
        assert not model.logits() and model.masks is None
        return
    with torch.no_grad():
        for logits in model.logits():
            logits.copy_(torch.randn_like(logits))
    x = torch.randn(7, 6, dtype=torch.float64)
    small = tnmars.prune(model)
    assert (small(x) - model.eval()(x)).abs().max() <= 1e-12
    assert tnmars.count(small.graph).cores < tnmars.count(model.graph).cores
    assert small.graph.origin["selector"] == kind().settings()


@gated
@pytest.mark.parametrize("estimator", ["arm", "reinforce"])
def test_hard_gates_give_a_gradient(kind: type[Selector], estimator: str) -> None:
    selector = kind() if kind().rounds_to_one else kind(fold=False)
    model, x = layer(selector), torch.randn(7, 6, dtype=torch.float64)
    with torch.no_grad():
        for logits in model.logits():
            logits.copy_(torch.linspace(-0.5, 0.5, logits.numel()))
    seen = []

    def closure() -> Tensor:
        seen.extend(model.gate_values().values())
        return model(x).square().mean()

    loss = tnmars.gate_gradient_(model, closure, estimator, samples=8)
    assert loss > 0.0 and all(bool(((gates == 0.0) | (gates == 1.0)).all()) for gates in seen)
    slopes = torch.cat([logits.grad for logits in model.logits()])
    assert slopes.isfinite().all() and slopes.abs().max() > 0.0


@every
def test_warm_up_keeps_everything(kind: type[Selector]) -> None:
    model = layer(kind())
    plain = tnmars.compile(model.graph, dtype=torch.float64)
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if key in plain.state_dict()})
    tnmars.MaskSchedule(model, 20, warmup_steps=5)
    x = torch.randn(7, 6, dtype=torch.float64)
    for way in (model.train(), model.eval()):
        assert (way(x) - plain(x)).abs().max() <= 1e-12


@every
def test_a_run_goes_on_from_a_checkpoint(kind: type[Selector], tmp_path: Path) -> None:
    model = layer(kind())
    optimizer, schedule = train(model)
    tnmars.save_checkpoint(tmp_path / "run", model, optimizer, schedule)
    other = layer(kind())
    optimizer, schedule = train(other, steps=0)
    tnmars.load_checkpoint(tmp_path / "run", other, optimizer, schedule)
    assert other.selector == model.selector
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in other.state_dict().items())


@gated
def test_fit_trains_its_gates(kind: type[Selector]) -> None:
    torch.manual_seed(0)
    values = torch.randn(4, 2) @ torch.randn(2, 5)
    graph = tnmars.families.lowrank("tensor", free=(4, 5), rank=4)
    result = tnmars.fit(graph, values, selector=kind(), steps=10)
    expected = kind().for_samples(values.numel()).settings()
    assert result.selector == expected and result.layer().shape == (4, 5)


def test_fit_refuses_a_rule_without_gates() -> None:
    graph = tnmars.families.lowrank("tensor", free=(4, 5), rank=4)
    with pytest.raises(tnmars.TnmarsError, match="selector 'fixed' has no gates to train, but must have gates here"):
        tnmars.fit(graph, torch.randn(4, 5), selector=tnmars.Fixed())


def test_a_rule_with_gates_must_say_how_they_are_drawn() -> None:
    @dataclass(frozen=True)
    class Empty(Selector):
        name: ClassVar[str] = "empty"

    with pytest.raises(NotImplementedError, match=r"Empty has gates, so it must define sample\(\)."):
        layer(Empty())(torch.randn(7, 6, dtype=torch.float64))


# --- one budget for all bonds ----------------------------------------------------------------------------------------


def test_costs_are_those_of_a_slice() -> None:
    """A slice of r holds an entry of A for each i, and of B for each j and s."""
    model = layer(Budget())
    assert model.masks.costs == (2 + 3 * 6, 3 * 4 + 5)
    assert layer(tnmars.Mars()).masks.costs == (1.0, 1.0)
    model = layer(tnmars.Mars(price="macs", alpha=1000.0))
    before = tnmars.expected(model, "macs").item()
    with torch.no_grad():
        model.logits()[0][0] = -1000.0
    assert model.masks.costs[0] == before - tnmars.expected(model, "macs").item() > 0.0


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        (1.0, {"r": (0, 1, 2, 3), "s": (0, 1, 2, 3, 4, 5)}),
        (0.5, {"r": (0, 1, 2), "s": (0,)}),  # 3 * 20 + 17 of 182: the next of r would be the 97th
        (0.1, {"r": (0,), "s": (0,)}),
    ],
)
def test_one_budget_for_all_bonds(share: float, kept: dict[str, tuple[int, ...]]) -> None:
    model = layer(Budget(share=share))
    with torch.no_grad():
        r, s = model.logits()
        r.copy_(torch.tensor([9.0, 8.0, 7.0, 5.0]))
        s.copy_(torch.tensor([6.0, 4.0, 3.0, 2.0, 1.0, 0.0]))
    assert tnmars.keep(model) == {"": kept}
