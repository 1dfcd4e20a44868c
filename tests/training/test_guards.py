"""Guards: a collapse, a penalty that outweighs the loss and NaN logits are said once; healthy training says nothing."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import tnmars
from tnmars import TnmarsError, families
from tnmars.select import SELECTORS
from tnmars.training.guards import WINDOW

GRAPH = families.lowrank("linear", inputs=(8,), outputs=(6,), rank=4)

NEXT = families.lowrank("linear", inputs=(6,), outputs=(6,), rank=4)


def schedule_of(layer: nn.Module) -> tnmars.MaskSchedule:
    return tnmars.MaskSchedule(layer, total_steps=1000, seed=0)


def run(layer: nn.Module, schedule: tnmars.MaskSchedule, loss: float, penalty: float = 0.0) -> list[str]:
    """The warnings of some steps with this loss; a gate moves in each of them."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2 * WINDOW):
            with torch.no_grad():
                layer.logits()[0].add_(1e-4)
            schedule.step(loss, penalty)
    assert all(entry.filename == __file__ for entry in seen), "warnings name the user's line"
    return [str(entry.message) for entry in seen]


def shut(layer: nn.Module, count: int) -> None:
    with torch.no_grad():
        layer.logits()[0][-count:] = -5.0


GATED = [name for name, kind in SELECTORS.items() if kind.has_gates]


@pytest.mark.parametrize("name", GATED)
def test_a_collapse_is_said_once(name: str) -> None:
    layer = tnmars.compile(GRAPH, selector=SELECTORS[name]())
    with torch.no_grad():
        layer.logits()[0].fill_(3.0)
    schedule = schedule_of(layer)
    assert run(layer, schedule, 1.0) == []
    shut(layer, 3)
    (text,) = run(layer, schedule, 2.0)
    assert "bond 'r' of the model is down to 1 of 4 slices, and the loss has risen from 1 to 2" in text
    assert SELECTORS[name].keeps_more in text and "mask_lr" in text
    assert run(layer, schedule, 3.0) == []


def noisy(mean: float, steps: int, seed: int = 0) -> list[float]:
    """Losses with a deviation of a tenth, as batches have them."""
    return (mean + 0.1 * torch.randn(steps, generator=torch.Generator().manual_seed(seed))).tolist()


def steps(schedule: tnmars.MaskSchedule, losses: list[float]) -> list[str]:
    """The warnings of some steps with these losses, of which every other one is given as a tensor."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for at, loss in enumerate(losses):
            schedule.step(torch.tensor(loss) if at % 2 else loss)
    return [str(entry.message) for entry in seen if "has moved" not in str(entry.message)]


@pytest.mark.parametrize(("after", "count"), [(1.609, 1), (1.52, 0)])
def test_a_small_rise_is_a_collapse_only_beyond_the_noise(after: float, count: int) -> None:
    """From 1.5 to chance among five classes; the mean of 100 such losses has a standard error of 0.01."""
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    assert steps(schedule, noisy(1.5, 4 * WINDOW)) == []
    shut(layer, 3)
    assert len(steps(schedule, noisy(after, 6 * WINDOW, seed=1))) == count


def test_a_collapse_in_the_first_steps_is_seen() -> None:
    """After warm-up, when cores were trained, only the loss tells that slices were closed too soon."""
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = tnmars.MaskSchedule(layer, 1000, warmup_steps=2, optimizer=torch.optim.Adam([torch.ones(1)]), seed=0)
    assert steps(schedule, [1.35] * 2 + [1.35, 1.3, 1.3, 1.35] * 5) == []
    shut(layer, 3)
    (text,) = steps(schedule, [1.6, 1.6, 1.7] * 20)
    assert "is down to 1 of 4 slices, and the loss has risen from 1.3" in text


def test_gates_that_are_added_later_are_no_collapse() -> None:
    model = nn.Sequential(tnmars.compile(GRAPH, selector=tnmars.Mars()), tnmars.compile(NEXT))
    schedule = schedule_of(model)
    assert steps(schedule, [1.0]) == []
    tnmars.gate_(model, tnmars.Mars(alpha=-4.0))
    assert steps(schedule, [1.0] * WINDOW + [2.0] * 2 * WINDOW) == []


def test_only_the_first_rank_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tnmars.training.guards.is_first_rank", lambda: False)
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    shut(layer, 3)
    assert run(layer, schedule, 0.5, 20.0) == []


def test_a_loss_that_training_made_smaller_than_the_penalty_is_no_problem() -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    assert run(layer, schedule, 2.3, 0.1) == []
    assert run(layer, schedule, 0.01, 0.1) == []


def test_the_losses_of_warm_up_count_as_seen() -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    optimizer = torch.optim.Adam([torch.ones(1)])
    schedule = tnmars.MaskSchedule(layer, 1000, warmup_steps=2 * WINDOW, optimizer=optimizer, seed=0)
    assert run(layer, schedule, 2.3, 0.1) == []
    assert not schedule.is_warm and run(layer, schedule, 0.05, 0.1) == []
    (text,) = run(layer, schedule, 0.05, 2.5)
    assert "the penalty of the gates, 2.5, outweighs the loss, which was 2.3 at most" in text


def test_after_a_resume_the_largest_loss_is_not_known() -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    schedule.load_state_dict({**schedule.state_dict(), "steps": 400})
    assert run(layer, schedule, 0.05, 0.1) == []


def test_a_loss_that_is_huge_is_passed_over() -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    assert run(layer, schedule_of(layer), 1e300) == run(layer, schedule_of(layer), 1e38) == []


def test_losses_that_are_not_finite_are_passed_over() -> None:
    """One in ten is NaN or infinite, as with a scaled loss in float16; the others tell of the collapse."""
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    assert steps(schedule, [float("nan")] * WINDOW) == []
    assert steps(schedule, [1.0] * WINDOW) == []
    shut(layer, 3)
    assert len(steps(schedule, [*[2.0] * 9, float("inf")] * (2 * WINDOW // 10))) == 1


@pytest.mark.parametrize("each", [1, 5, 50])
@pytest.mark.parametrize("at", [5, 25, 49])
def test_a_collapse_is_seen_wherever_it_falls(at: int, each: int) -> None:
    """The loss falls until the bond closes within a window, which is the best one then. A trainer may log a mean of
    several steps, one step late."""
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    first = 10 * each + (10 * WINDOW if each < 50 else 20 * WINDOW) + at
    losses = [*(1.0 + 0.5 * (first - step) / first for step in range(first)), *[2.0] * (3000 * max(1, each // 25))]
    said: list[str] = []
    for step in range(len(losses)):
        if step == first:
            shut(layer, 3)
        if each == 1:
            said += steps(schedule, [losses[step]])
        else:
            mean = sum(losses[step - each : step]) / each if step >= each and step % each == 0 else None
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                schedule.step(mean)
            said += [str(entry.message) for entry in seen if "has moved" not in str(entry.message)]
    assert len(said) == 1 and "is down to 1 of 4 slices" in said[0]


def skewed(seed: int) -> list[float]:
    """Losses with an exponential distribution, as those of small batches may have."""
    return torch.empty(40 * WINDOW).exponential_(generator=torch.Generator().manual_seed(seed)).mul_(0.5).tolist()


@pytest.mark.parametrize("each", [1, 10, 50])
def test_noise_alone_is_no_collapse(each: int) -> None:
    """A bond that closes does no harm here: the losses are as before."""
    false = 0
    for seed in range(10):
        layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
        schedule = schedule_of(layer)
        losses = skewed(seed)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for step in range(len(losses)):
                if step == 12 * WINDOW + 3:
                    shut(layer, 3)
                is_logged = (step + 1) % each == 0
                schedule.step(sum(losses[step + 1 - each : step + 1]) / each if is_logged else None)
        false += any("slices" in str(entry.message) for entry in seen)
    assert false == 0


def test_a_rise_of_less_than_a_twentieth_is_no_collapse() -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    assert run(layer, schedule, 1.0) == []
    shut(layer, 3)
    assert run(layer, schedule, 1.03) == []


def test_a_layer_that_closes_at_once_is_said() -> None:
    """No loss shows it: there is none before the collapse that would be better."""
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    assert steps(schedule, [1.5] * 4) == []
    shut(layer, 3)
    (text,) = steps(schedule, [1.5] * 2 * WINDOW)
    assert "every bond of the model is down to its fewest slices after 10 steps" in text and "warmup_steps" in text
    train = families.tt("linear", inputs=(2, 2, 2), outputs=(2, 2, 2), rank=4)
    partly = tnmars.compile(train, selector=tnmars.Mars(), warn=False)
    schedule = schedule_of(partly)
    shut(partly, 3)
    assert steps(schedule, [1.5] * 2 * WINDOW) == []  # one bond of two
    both = nn.Sequential(tnmars.compile(GRAPH, selector=tnmars.Mars()), tnmars.compile(GRAPH, selector=tnmars.Mars()))
    schedule = schedule_of(both)
    assert steps(schedule, [1.5] * 4) == []
    shut(both[0], 3)
    assert len(steps(schedule, [1.5] * 4 * WINDOW)) == 1
    shut(both[1], 3)  # another collapse, which only the loss shows
    (text,) = steps(schedule, [3.0] * 3 * WINDOW)
    assert "1 of 4 slices, 1 other bond to the minimum too, and the loss has risen from 1.5 to" in text
    warmed = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = tnmars.MaskSchedule(
        warmed, total_steps=1000, warmup_steps=2, optimizer=torch.optim.Adam([torch.ones(1)])
    )
    assert steps(schedule, [1.5] * 4) == []
    shut(warmed, 3)
    assert steps(schedule, [1.5] * 2 * WINDOW) == []
    resumed = tnmars.compile(GRAPH, selector=tnmars.Mars())
    later = schedule_of(resumed)
    later.load_state_dict({**later.state_dict(), "steps": 400})
    shut(resumed, 3)
    assert steps(later, [1.5] * 2 * WINDOW) == []


def test_a_loss_that_is_changed_later_counts_as_it_was() -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    value = torch.tensor(0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(WINDOW - 1):
            schedule.step(value.fill_(1.0), torch.tensor(0.5))
            value.fill_(-0.1)


def test_a_collapse_without_gates_is_seen() -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Ard())
    schedule = schedule_of(layer)
    assert steps(schedule, noisy(1.0, 2 * WINDOW)) == []
    with torch.no_grad():
        for core in layer.cores.parameters():
            core.narrow(core.shape.index(4), 1, 3).mul_(1e-6)
    assert [len(kept) for kept in tnmars.keep(layer)[""].values()] == [1]
    (text,) = steps(schedule, noisy(2.0, 2 * WINDOW))
    assert tnmars.Ard.keeps_more in text and "mask_lr" not in text


def test_healthy_training_says_nothing() -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    assert run(layer, schedule, 1.0, 0.1) == []
    shut(layer, 3)
    assert run(layer, schedule, 0.9, 0.1) == []  # fewer slices, but no worse
    assert run(layer, schedule, 0.94, 0.1) == []  # hardly worse
    with torch.no_grad():
        layer.logits()[0][:] = 2.0
    assert run(layer, schedule, 2.0, 0.1) == []  # worse, but nothing is at its minimum


def test_a_closed_start_is_no_collapse() -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars.closed(alpha=-4.0))
    schedule = schedule_of(layer)
    assert [len(kept) for kept in tnmars.keep(layer)[""].values()] == [1]
    assert run(layer, schedule, 1.0) == []
    assert run(layer, schedule, 2.0) == []


def test_a_penalty_that_outweighs_the_loss_is_said_once() -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    assert run(layer, schedule, 0.5, 0.4) == []
    (text,) = run(layer, schedule, 0.5, 20.0)
    assert "the penalty of the gates, 20, outweighs the loss, which was 0.5 at most" in text
    assert "/ len(data)" in text
    assert run(layer, schedule, 0.5, 20.0) == []


def test_tensors_are_taken_as_they_are() -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars())
    schedule = schedule_of(layer)
    with pytest.warns(UserWarning, match="outweighs the loss"):
        for _ in range(WINDOW):
            with torch.no_grad():
                layer.logits()[0].add_(1e-4)
            loss = layer(torch.randn(4, 8)).square().mean()
            schedule.step(0.0 * loss, tnmars.penalty(layer))


@pytest.mark.parametrize("name", GATED)
def test_logits_that_are_nan_are_an_error(name: str) -> None:
    model = nn.Sequential(nn.ReLU(), tnmars.compile(GRAPH, selector=SELECTORS[name]()))
    schedule = schedule_of(model)
    with torch.no_grad():
        model[1].logits()[0][1] = torch.nan
    words = "the logits of bond 'r' of layer '1' are NaN or infinite: training has diverged"
    for action in (lambda: tnmars.keep(model), lambda: tnmars.prune(model), lambda: tnmars.prune_(model)):
        with pytest.raises(TnmarsError, match=words):
            action()
    with pytest.raises(TnmarsError, match=words):
        for _ in range(WINDOW):
            schedule.step()


def test_gates_are_open_by_default() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        layer = tnmars.compile(families.lowrank("linear", inputs=(50,), outputs=(60,), rank=40), selector=tnmars.Mars())
        assert tnmars.keep(layer) == {"": {"r": tuple(range(40))}}
    assert tnmars.Mars.closed() == tnmars.Mars(pi=1e-2, alpha=-1.75)
    assert tnmars.Mars.closed(alpha=-3.0, price="macs").price == "macs"
