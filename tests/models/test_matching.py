"""Matching a dense model without labels: it gets nearer on held-out data, or nothing has changed."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import oracle
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import tnmars
from tnmars.errors import TnmarsError
from tnmars.models import held_out, matching
from tnmars.models.held_out import Parts, split

GRAPH = tnmars.network("linear", "A[i,r] B[r,o]", inputs={"i": 8}, outputs={"o": 6}, bonds=3)


class Net(nn.Module):
    """A network with everything that differs between training and evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.first: nn.Module = nn.Linear(8, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


def pair() -> tuple[Net, Net]:
    """A model with a compiled layer, in training mode, and the dense one that it came from."""
    torch.manual_seed(0)
    dense = Net().train()
    with torch.no_grad():
        dense.norm.running_mean.normal_()
    small = copy.deepcopy(dense)
    small.first = oracle.compiled(GRAPH)
    return small, dense


X = torch.randn(400, 8, generator=torch.Generator().manual_seed(1))


def states(model: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}


def assert_same_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def true_distance(small: nn.Module, dense: nn.Module) -> float:
    """The relative squared error of the outputs on fresh data."""
    small, dense = copy.deepcopy(small).eval(), copy.deepcopy(dense).eval()
    x = torch.randn(500, 8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return float((small(x) - dense(x)).square().mean() / dense(x).square().mean())


@pytest.mark.parametrize(
    "data",
    [
        X,
        list(X.split(20)),
        [(part, part.sum(1)) for part in X.split(20)],
        DataLoader(TensorDataset(X, X[:, 0]), batch_size=20, shuffle=True),
        [{"x": part, "labels": part} for part in X.split(20)],
    ],
    ids=["tensor", "list", "pairs", "loader", "mappings"],
)
def test_small_model_gets_nearer(data: Any) -> None:
    small, dense = pair()
    before, buffers = true_distance(small, dense), states(dense)
    done = tnmars.match_(small, dense, data, epochs=8, lr=0.02, batch=20)
    assert done.is_better
    assert done.after < 0.3 * done.before
    assert true_distance(small, dense) < 0.4 * before
    assert done.steps == pytest.approx(8 * 18, abs=8)
    assert str(done).startswith("held-out distance ")
    assert_same_state(dense, buffers)
    assert all(module.training for module in (*small.modules(), *dense.modules()))
    assert all(value.grad is None for value in small.parameters())
    assert torch.equal(small.norm.running_mean, dense.norm.running_mean)


def test_reported_distance_is_that_of_the_model() -> None:
    small, dense = pair()
    held = X[:50]
    done = tnmars.match_(small, dense, X[50:], epochs=2, lr=0.02, held_out=[held])
    with torch.no_grad():
        error = (small.eval()(held) - dense.eval()(held)).square().mean() / dense(held).square().mean()
    assert done.after == pytest.approx(float(error), rel=1e-5)


def test_same_seed_same_model_and_the_users_random_state_stays() -> None:
    found = []
    for _ in range(2):
        small, dense = pair()
        torch.manual_seed(5)
        loader = DataLoader(TensorDataset(X), batch_size=20, shuffle=True)
        tnmars.match_(small, dense, loader, steps=12, seed=3)
        found.append((states(small), torch.rand(1), random.random()))
    torch.manual_seed(5)
    assert torch.equal(found[0][1], torch.rand(1))
    assert torch.equal(found[0][1], found[1][1])
    assert all(torch.equal(value, found[1][0][key]) for key, value in found[0][0].items())


def test_worse_states_are_never_kept() -> None:
    """A rate that ruins the model: the start comes back."""
    small, dense = pair()
    small.first = nn.Linear(8, 6)
    small.load_state_dict(dense.state_dict())
    with torch.no_grad():
        small.last.bias += 1e-3
    start = states(small)
    done = tnmars.match_(small, dense, X, epochs=1, lr=30.0)
    assert (done.best, done.is_better) == (0, False)
    assert done.after == done.before
    assert "nothing changed" in str(done)
    assert_same_state(small, start)


def test_best_state_is_kept_rather_than_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    distances = iter([1.0, 0.9, 0.4, 0.7, 0.8])
    seen: list[dict[str, Tensor]] = []
    small, dense = pair()

    def distance(run: matching._Run) -> float:
        seen.append(states(small))
        return next(distances)

    monkeypatch.setattr(matching._Run, "distance", distance)
    records: list[dict[str, float]] = []
    done = tnmars.match_(small, dense, list(X.split(20)), steps=4, watch=lambda record: records.append(dict(record)))
    assert (done.before, done.after, done.steps, done.best) == (1.0, 0.4, 4, 2)
    assert_same_state(small, seen[2])
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert [record["held_out"] for record in records] == [0.9, 0.4, 0.7, 0.8]


def test_loss_that_becomes_nan_restores_the_model() -> None:
    small, dense = pair()
    start = states(small)
    calls = iter(range(100))

    def loss(one: Tensor, other: Tensor) -> Tensor:
        return (one - other).abs().mean() * (torch.nan if next(calls) > 8 else 1.0)

    with pytest.raises(TnmarsError, match=r"the loss became NaN at step \d+ of 18\.\n  The model is as it was"):
        tnmars.match_(small, dense, list(X.split(20)), loss=loss)
    assert_same_state(small, start)
    assert small.training


def test_a_loss_that_overflows_lowers_default_rates_too() -> None:
    """In the first half of a run; given rates, and later overflows, are errors as before."""
    small, dense = pair()
    calls = iter(range(1000))

    def loss(one: Tensor, other: Tensor) -> Tensor:
        number = next(calls)
        return (one - other).square().mean() * (torch.inf if 2 < number <= 3 else 1.0)

    done = tnmars.match_(small, dense, list(X.split(20)), loss=loss, held_out=[X[:20]])
    assert done.share == 0.25
    assert done.after <= done.before


def test_a_half_precision_model_is_told_to_train_in_float32() -> None:
    small, dense = (model.half() for model in pair())
    start = states(small)
    with pytest.raises(
        TnmarsError, match=r"at step \d+ of 18\.\n  The model is as it was\. Train in float32: model\.float"
    ):
        tnmars.match_(small, dense, list(X.half().split(20)), lr=1e-3)
    assert_same_state(small, start)


@pytest.mark.parametrize("lr", [None, 0.01])
def test_default_rates_are_lowered_while_the_model_gets_worse(
    lr: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At checks 1 and 3 of 10 it is worse than at the start, so twice; after the middle no more. Given rates stay."""
    small, dense = pair()
    start, seen = states(small), []
    distances = iter([1.0, 2.0, 0.9, 1.1, 0.8, 0.7, 1.5, 0.75, 0.8, 0.8, 0.8])
    monkeypatch.setattr(matching._Run, "distance", lambda run: next(distances))
    step = matching._Run._step

    def noted(run: matching._Run, optimizer: torch.optim.Adam, batch: object) -> float:
        at, total = len(seen) + 1, 10
        is_start = all(
            torch.equal(one, other) for one, other in zip(states(small).values(), start.values(), strict=True)
        )
        rate = optimizer.param_groups[0]["lr"] / matching.annealed(at, total, matching.RAMP) if at < total else 0.0
        seen.append((rate, is_start, len(optimizer.state)))
        return step(run, optimizer, batch)

    monkeypatch.setattr(matching._Run, "_step", noted)
    done = tnmars.match_(small, dense, list(X.split(20)), steps=10, lr=lr)
    rates = [rate / seen[0][0] for rate, _, _ in seen[:-1]]
    if lr is None:
        assert rates == pytest.approx([1, 1 / 4, 1 / 4, *[1 / 16] * 6])
        assert [is_start for _, is_start, _ in seen] == [True, True, *[False] * 8], "restored, then the best state"
        assert [bool(known) for _, _, known in seen[:5]] == [False, False, True, False, True], "with a new optimizer"
        assert str(done) == "held-out distance 1 -> 0.7 (step 5 of 10, rates lowered to 1/16)"
    else:
        assert rates == pytest.approx([1] * 9)
        assert (done.best, done.share) == (5, 1.0)


def test_own_loss_is_used() -> None:
    small, dense = pair()
    done = tnmars.match_(
        small, dense, X, epochs=5, lr=0.02, loss=lambda one, other: (one - other).abs().mean(), held_out=[X[:64]]
    )
    with torch.no_grad():
        error = (small.eval()(X[:64]) - dense.eval()(X[:64])).abs().mean()
    assert done.after == pytest.approx(float(error), rel=1e-5)
    assert done.is_better


# --- hidden states ---------------------------------------------------------------------------------------------------


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def test_hidden_states_are_matched() -> None:
    small, dense = pair()
    plain = copy.deepcopy(small)
    done = tnmars.match_(small, dense, X, epochs=8, lr=0.02, hidden=["norm", "first"])
    tnmars.match_(plain, dense, X, epochs=8, lr=0.02)
    assert done.is_better
    with torch.no_grad():
        wanted = dense.eval().first(X)
        errors = [float((model.first(X) - wanted).square().mean()) for model in (small, plain)]
    assert errors[0] < 0.7 * errors[1]
    assert hooks(small) == hooks(dense) == 0


def test_scale_of_a_hidden_state_does_not_matter() -> None:
    """A state of large numbers would drown the others if each were not relative to its own size."""
    small, dense = pair()
    held = X[:64]
    both = tnmars.match_(small, dense, X, steps=1, hidden=["first"], held_out=[held], lr=1e-12)
    with torch.no_grad():
        terms = []
        for one, other in [(small.first, dense.first), (small.eval(), dense.eval())]:
            terms.append(float((one(held) - other(held)).square().mean() / other(held).square().mean()))
    assert both.before == pytest.approx(sum(terms), rel=1e-4)


def test_hooks_are_removed_after_an_error() -> None:
    small, dense = pair()
    start = states(small)
    with pytest.raises(TnmarsError, match=r"hidden state 'nrm' is not a module of Net\.\n.*Did you mean 'norm'"):
        tnmars.match_(small, dense, X, hidden=["first", "nrm"])
    with pytest.raises(RuntimeError):
        tnmars.match_(small, dense, torch.randn(100, 5), hidden=["first"])

    class Unused(Net):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Linear(2, 2)

    with pytest.raises(TnmarsError, match="module 'idle' was not called"):
        tnmars.match_(Unused(), Unused(), X, hidden=["idle"])
    assert hooks(small) == hooks(dense) == 0
    assert_same_state(small, start)


# --- inputs and outputs ----------------------------------------------------------------------------------------------


class Wrapped(nn.Module):
    """A model that takes and gives something other than a tensor."""

    def __init__(self, form: str):
        super().__init__()
        self.fc = nn.Linear(8, 6)
        self.form = form

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        y = self.fc(ids * mask)
        forms = {
            "tuple": (y, (y[:1], y.argmax(1))),
            "mapping": {"loss": y.sum(), "logits": y},
            "object": SimpleNamespace(last_hidden_state=y, pooler_output=None),
        }
        return forms[self.form]


@pytest.mark.parametrize("form", ["tuple", "mapping", "object"])
@pytest.mark.parametrize("given", ["mapping", "positional", "function"])
def test_outputs_and_inputs_of_other_forms(form: str, given: str) -> None:
    torch.manual_seed(0)
    small, dense = Wrapped(form), Wrapped(form)
    mask = torch.ones(20, 1)
    data: list[Any] = {
        "mapping": [{"ids": part, "mask": mask, "labels": mask} for part in X.split(20)],
        "positional": [(part, mask, mask) for part in X.split(20)],
        "function": [{"text": part} for part in X.split(20)],
    }[given]
    inputs = (lambda batch: (batch["text"], mask)) if given == "function" else None
    done = tnmars.match_(small, dense, data, epochs=10, lr=0.02, inputs=inputs)
    assert done.after < 0.1 * done.before


def test_recurrent_models_are_matched() -> None:
    torch.manual_seed(0)
    dense, small = nn.LSTM(8, 5, batch_first=True), nn.LSTM(8, 5, batch_first=True)
    done = tnmars.match_(small, dense, torch.randn(200, 4, 8), epochs=5, lr=0.02)
    assert done.is_better


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield torch.randn(8, generator=generator)


@pytest.mark.parametrize(
    "make", [lambda: DataLoader(Endless(), batch_size=20), lambda: iter(X.split(20)), lambda: (x for x in X.split(20))]
)
def test_data_without_a_length(make: Any) -> None:
    small, dense = pair()
    done = tnmars.match_(small, dense, make(), steps=18, lr=0.02)
    assert done.is_better
    assert done.steps == 18
    with pytest.raises(TnmarsError, match=r"data has no length\.\n  Say how long to train"):
        tnmars.match_(small, dense, make())


def test_iterator_that_ends_early_is_enough() -> None:
    small, dense = pair()
    done = tnmars.match_(small, dense, iter(X.split(20)), steps=100, held_out=[X[:50]], lr=0.02)
    assert done.steps == 20
    assert done.is_better


# --- held-out data ---------------------------------------------------------------------------------------------------


def rows(data: Iterable[Any]) -> list[int]:
    """The samples in some data, each of which is its own number."""
    found: list[int] = []
    for batch in data:
        found += [int(value) for value in (batch if isinstance(batch, Tensor) else batch[0]).reshape(-1)]
    return found


NUMBERS = torch.arange(100.0).reshape(100, 1)


@pytest.mark.parametrize(
    "data",
    [
        NUMBERS,
        list(NUMBERS.split(5)),
        DataLoader(TensorDataset(NUMBERS), batch_size=5, shuffle=True),
        DataLoader(TensorDataset(NUMBERS), batch_size=5),
        DataLoader(list(NUMBERS.split(5)), batch_size=None),
        DataLoader(list(NUMBERS), batch_size=8, drop_last=True, shuffle=True),
    ],
)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.001])
def test_no_sample_is_in_both_parts(data: Any, share: float) -> None:
    parts = split(data, share, rows=7, steps=None, seed=0)
    held = rows(parts.held)
    for _ in range(3):
        trained = rows(parts.training)
        assert sorted([*held, *trained]) == list(range(100))
    assert len(held) == pytest.approx(max(share * 100, 1), abs=5)
    assert parts.length == sum(1 for _ in parts.training)
    assert rows(parts.held) == held


def test_batches_of_a_list_come_in_another_order_each_time() -> None:
    parts = split(list(NUMBERS.split(5)), 0.1, rows=1, steps=None, seed=0)
    first, second = rows(parts.training), rows(parts.training)
    assert first != second
    assert sorted(first) == sorted(second)
    again: Parts = split(list(NUMBERS.split(5)), 0.1, rows=1, steps=None, seed=0)
    assert rows(again.training) == first


def test_held_out_data_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "MEMORY", 3000)
    monkeypatch.setattr(held_out, "MEMORY", 3000)
    small, dense = pair()
    seen: list[int] = []
    original = matching._Run.distance

    def distance(run: matching._Run) -> float:
        seen.append(len(run.held))
        return original(run)

    monkeypatch.setattr(matching._Run, "distance", distance)
    tnmars.match_(small, dense, list(X.split(20)), held_out=0.5, steps=1)
    assert set(seen) == {3}
    assert len(split(iter(X.split(20)), 0.5, rows=1, steps=20, seed=0).held) == 5


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"epochs": 1, "steps": 1}, "epochs and steps are both given"),
        ({"epochs": 0}, "epochs is 0, but must be a whole number of at least 1"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"lr": 0.0}, "lr is 0.0, but must be above 0"),
        ({"loss": "kl"}, "loss is 'kl', but must be 'mse' or a function"),
        ({"held_out": 0}, "held_out is 0, but must be a share between 0 and 1"),
        ({"held_out": 1.0}, "held_out is 1.0"),
        ({"held_out": []}, "data has no batch"),
        ({"data": []}, "data has 0 batch, so none can be held out"),
        ({"data": [X]}, "data has 1 batch, so none can be held out"),
        ({"data": X[:1]}, "data has 1 sample"),
        ({"data": X[:0]}, "data has 0 batch"),
        ({"data": iter([X, X]), "epochs": 1, "held_out": [X]}, "data has no length"),
        ({"data": X * torch.nan}, "has NaN in input 1"),
    ],
)
def test_mistakes_change_nothing(keywords: dict[str, Any], text: str) -> None:
    small, dense = pair()
    start = states(small)
    with pytest.raises(TnmarsError, match=text):
        tnmars.match_(small, dense, **{"data": X, **keywords})
    assert_same_state(small, start)
    assert small.training


def test_models_that_do_not_fit_are_refused() -> None:
    small, dense = pair()
    with pytest.raises(TnmarsError, match=r"share parameters that would be trained.*\n.*copy.deepcopy"):
        tnmars.match_(small, small, X)
    with pytest.raises(TnmarsError, match="no parameter of the model to train requires a gradient"):
        tnmars.match_(copy.deepcopy(small).requires_grad_(False), dense, X)
    with pytest.raises(TnmarsError, match=r"tensors of shapes \(40, 5\) and \(40, 4\)"):
        tnmars.match_(nn.Linear(8, 5), dense, X)
    with pytest.raises(TnmarsError, match="the models return 3 and 1 tensors"):
        tnmars.match_(nn.LSTM(8, 4), dense, X)
    with torch.no_grad():
        dense.last.bias.fill_(torch.nan)
    with pytest.raises(TnmarsError, match="the model to match gives numbers that are not finite"):
        tnmars.match_(small, dense, X)


def test_progress_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    small, dense = pair()
    tnmars.match_(small, dense, X, steps=3)
    assert capsys.readouterr().err == ""
    tnmars.match_(small, dense, X, steps=3, progress=True)
    assert "matching" in capsys.readouterr().err
