"""`shrink` as a whole: planted ranks, every shape of graph, ordinary parts, trained starts, what is refused."""

from __future__ import annotations

import copy
import random
from collections import namedtuple
from collections.abc import Callable, Iterator
from operator import is_
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from shrink_kit import (
    CHAIN,
    HASTY,
    QUICK,
    SHAPES,
    X,
    Y,
    accuracy,
    assert_same,
    figures,
    loader,
    shrunk,
    student,
    trained,
)
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import pack_sequence
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import tnmars
from tnmars import TnmarsError, families
from tnmars.models.data import batches, placed
from tnmars.shrinking.batches import Reader, Stream, split

# --- ranks -----------------------------------------------------------------------------------------------------------


def test_the_planted_rank_is_found() -> None:
    curve = shrunk()
    assert curve.chosen.ranks == {"1": {"r": 2}}
    assert curve.chosen.score > 0.9 > curve.points[-2].score, "the last stage trains the chosen point once more"
    assert "the smallest of" in curve.reason and "within 2 standard errors" in curve.reason
    assert curve.start is not None and curve.start < 0.5
    score, count = accuracy(curve.chosen.model)
    assert score == curve.chosen.score and curve.chosen.error == pytest.approx(
        (score * (1 - score) / count) ** 0.5, rel=0.2
    )


def test_a_drop_or_a_budget_decides_instead() -> None:
    generous = shrunk(max_drop=0.5)
    assert generous.chosen.ranks == {"1": {"r": 1}} and "at most 0.5 below the best" in generous.reason
    asked = shrunk(budget=["1.1x", 70])
    assert asked.chosen.ranks == {"1": {"r": 3}} and asked.chosen.parameters == 20 * 3 + 8
    assert asked.reason == "it has at most 70 parameters (budget 70 parameters)."
    assert asked.at("1.1x").ranks == {"1": {"r": 4}}


def test_saliency_from_gradients_and_by_hand() -> None:
    assert shrunk(saliency="gradient").chosen.ranks == {"1": {"r": 2}}
    seen = []

    def first_slices_go(model: nn.Module, weights: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        seen.append({name: {bond: len(each) for bond, each in own.items()} for name, own in weights.items()})
        return {
            name: {bond: torch.arange(1.0, len(each) + 1) for bond, each in own.items()}
            for name, own in weights.items()
        }

    curve = shrunk(saliency=first_slices_go, budget=70)
    assert seen[0] == {"1": {"r": 8}} and curve.chosen.ranks == {"1": {"r": 3}}


def test_one_bad_number_does_not_lose_the_curve(tmp_path: Path) -> None:
    whole = shrunk(budget=50)
    calls = 0

    def evaluate(model: nn.Module) -> tuple[float, int]:
        nonlocal calls
        calls += 1
        return (float("nan"), 128) if calls == 4 else accuracy(model)

    curve = shrunk(budget=50, evaluate=evaluate, checkpoint=tmp_path)
    assert figures(curve)[:-1] == figures(whole)[:3] and curve.is_finished
    assert curve.reason.endswith("The path ended early: evaluate returned nan, which is not a finite number.")
    assert_same(shrunk(budget=50, checkpoint=tmp_path), whole)  # the stage is trained again

    steps = 0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        return cross_entropy(output, target) * (torch.nan if steps == whole.points[2].steps + 5 else 1.0)

    curve = shrunk(budget=50, loss=loss)
    assert figures(curve)[:-1] == figures(whole)[:3]
    assert curve.reason.endswith("The path ended early: the loss became NaN in step 5 of stage 3.")


def test_a_loss_that_diverges_at_first_is_repeated_at_a_lower_rate() -> None:
    steps = 0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        return cross_entropy(output, target) * (torch.inf if steps == 8 else 1.0)

    curve = shrunk(budget=90, loss=loss)
    assert curve.points[1].steps == 7 + 60 and "divided by 4" in curve.reason


def test_a_score_without_a_standard_error_takes_that_of_the_best() -> None:
    calls = 0

    def evaluate(model: nn.Module) -> tuple[float, int]:
        nonlocal calls
        calls += 1
        return (0.9, 100) if calls < 5 else (-0.2, 100)

    curve = shrunk(evaluate=evaluate)
    assert [point.score for point in curve.points] == [0.9] * 4 + [-0.2] * 2
    assert curve.points[-1].error == curve.points[0].error and curve.chosen_at == 3


@pytest.mark.long
@pytest.mark.parametrize("graph", SHAPES.values(), ids=SHAPES)
def test_any_graph_shrinks_to_fewer_numbers_with_little_error(graph: tnmars.Graph) -> None:
    torch.manual_seed(0)
    target = tnmars.compile(CHAIN)().detach().reshape([mode.size for mode in graph.modes])
    curve = tnmars.shrink(
        tnmars.compile(graph),
        train=[(target,)] * 4,
        loss=mse_loss,
        evaluate=lambda model: -mse_loss(model(), target),
        max_drop=0.02 * float(target.square().mean()),
        settings=tnmars.Staircase(first=100, decay=0.0),
    )
    first, chosen = curve.points[0], curve.chosen
    assert chosen.parameters < 0.6 * first.parameters
    assert mse_loss(chosen.model(), target).item() < 0.03 * float(target.square().mean())


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_from_a_complete_graph_a_planted_chain_emerges(seed: int) -> None:
    """The first and the last core of the teacher meet only through the one between them: their bond vanishes.

    A cycle holds the same weight in many ways; without a prior of the cores nothing prefers one that needs few slices.
    tests/scripts/topology.py counts how often that happens with it and without it.
    """
    torch.manual_seed(seed)
    target = tnmars.compile(families.tt("tensor", free=(5, 6, 7), ranks=(2, 3)))().detach()
    graph = families.complete("tensor", free=(5, 6, 7), rank=4)
    size = target.square().mean().item()
    curve = tnmars.shrink(
        tnmars.compile(graph),
        train=[(target,)] * 4,
        loss=mse_loss,
        evaluate=lambda model: -mse_loss(model(), target) / size,
        max_drop=0.003,
        settings=tnmars.Staircase(first=150),
    )
    (term,) = graph.terms
    places = {core.name: at for at, core in enumerate(term.cores)}
    ends = {bond.name: tuple(sorted(places[core] for core in term.ends()[bond.name])) for bond in term.bonds}
    found = {ends[bond]: rank for bond, rank in curve.chosen.ranks[""].items()}
    assert found == {(0, 1): 2, (1, 2): 3, (0, 2): 1}
    assert [len(core.edges) for core in curve.chosen.model.graph.terms[0].cores] == [2, 3, 2]


def test_ordinary_parts_train_along() -> None:
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = tnmars.compile(families.tt("embedding", lookup=(4, 5), outputs=(4, 2), rank=6))
            self.lstm = nn.LSTM(8, 6, batch_first=True)
            self.norm = nn.BatchNorm1d(6)
            self.head = nn.Linear(6, 2)

        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.norm(self.lstm(self.table(words))[0][:, -1]))

    words = torch.randint(20, (400, 5))
    labels = (words[:, -1] % 2).long()
    net = Net()
    curve = tnmars.shrink(
        net,
        train=DataLoader(TensorDataset(words[:300], labels[:300]), batch_size=50),
        loss=cross_entropy,
        evaluate=lambda model: (100 * float((model(words[300:]).argmax(-1) == labels[300:]).float().mean()), 100),
        budget=int(sum(value.numel() for value in net.parameters()) - 60),
        settings=QUICK,
    )
    small = curve.chosen.model
    assert curve.chosen.score > 90
    assert not torch.equal(small.lstm.weight_hh_l0, net.lstm.weight_hh_l0)
    assert not torch.equal(small.norm.running_mean, net.norm.running_mean)
    assert curve.chosen.parameters == sum(value.numel() for value in small.parameters())
    sizes = [sum(value.numel() for value in point.model.table.parameters()) for point in curve.points]
    assert sizes == [156, 156, 130, 104, 78, 78]  # one slice at a time: the cut counts the table alone


@pytest.mark.parametrize("is_training", [True, False])
def test_a_frozen_norm_in_evaluation_mode_stays_there(is_training: bool) -> None:
    class Noting(nn.Dropout):
        modes: list[bool] = []  # noqa: RUF012

        def forward(self, x: Tensor) -> Tensor:
            self.modes.append(self.training)
            return super().forward(x)

    fixed, free = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
    fixed.requires_grad_(False)
    model = nn.Sequential(student(), fixed, free, Noting()).train(is_training)
    fixed.eval()
    curve = shrunk(model, budget=120, settings=tnmars.Staircase(first=5))
    small = curve.points[1].model
    assert torch.equal(small[1].running_mean, fixed.running_mean)
    assert not torch.equal(small[2].running_mean, free.running_mean)
    assert True in Noting.modes  # dropout is active, whatever mode the model was given in


def test_a_compressed_model_is_a_start() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(dense.parameters(), lr=1e-2)
    for _ in range(150):
        cross_entropy(dense(X[:512]), Y[:512]).backward()
        optimizer.step()
        optimizer.zero_grad()
    tnmars.compress_(dense, {"*": "lowrank"}, data=X[:256], budget="1.5x")
    curve = shrunk(dense, budget="3x")
    assert curve.start is not None and curve.start > 0.7
    assert curve.chosen.score > curve.start - 0.05
    assert curve.chosen.parameters <= (12 * 32 + 32 + 32 * 8 + 8) / 3


def test_a_trained_model_does_not_get_worse_at_the_same_size() -> None:
    model = trained()
    curve = shrunk(model, settings=HASTY, max_drop=0.04)
    first, after = curve.points[:2]
    assert first.stage == first.steps == 0 and after.stage == 1
    assert first.score == curve.start == accuracy(model)[0]
    assert torch.equal(first.model[0].dense(), model[0].dense())
    assert after.score >= first.score - 0.02 and after.steps in (16, 24, 32)
    assert curve.chosen.score >= first.score - 0.04
    assert "All rates were divided by" in curve.reason and curve.reason in str(curve)


def test_a_model_given_within_the_budget_is_kept_if_training_harms_it() -> None:
    model = trained()
    with pytest.warns(tnmars.ShrinkWarning, match="every stage ended below the score of the model given") as seen:
        curve = shrunk(model, settings=tnmars.Staircase(first=4, rate=1e4), budget=48)
    assert Path(seen[0].filename).name == "shrink_kit.py"  # where shrink is called
    assert curve.chosen_at == 0 and "It is the model given" in curve.reason and "divided by 64" in curve.reason
    assert curve.at(48) is curve.chosen


def test_a_prior_that_is_not_trained_with_is_named() -> None:
    graph = families.lowrank("linear", inputs=(12,), outputs=(8,), rank=4)
    model = nn.Sequential(nn.Identity(), tnmars.compile(graph, batch=64, selector=tnmars.Ard()))
    with pytest.warns(tnmars.ShrinkWarning, match=r"the selector of layer '1' has a prior, .*tnmars\.Stages") as seen:
        shrunk(model, settings=tnmars.Staircase(first=2), budget=40)
    assert len(seen) == 1 and Path(seen[0].filename).name == "shrink_kit.py"


# --- nothing is changed, and the same seed gives the same curve -----------------------------------------------------


def test_the_model_and_all_random_states_are_left_alone() -> None:
    model = student().eval()
    before = copy.deepcopy(model.state_dict())
    generator = torch.Generator().manual_seed(5)
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy(), generator.get_state()
    shrunk(model, train=loader(generator=generator), budget=90)
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert (numpy.random.get_state()[1] == states[2]).all() and torch.equal(generator.get_state(), states[3])
    assert not model.training and all(value.grad is None for value in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_seed_decides() -> None:
    torch.manual_seed(1)
    one = shrunk(budget=90, seed=1)
    torch.manual_seed(2)
    assert_same(one, shrunk(budget=90, seed=1))
    other = shrunk(budget=90, seed=2)
    assert not torch.equal(one.points[1].model[1].dense(), other.points[1].model[1].dense())


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_the_table_the_page_and_the_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, Any]] = []
    curve = shrunk(budget=70, watch=seen.append, progress=True)
    text = str(curve).splitlines()
    assert text[0].split() == ["parameters", "ratio", "ranks", "MACs", "predicted", "score"]
    assert len(text) == 1 + len(curve.points) + 2 and text[-1] == f"chosen: {curve.reason}"
    (marked,) = (line for line in text if line.startswith("*"))
    assert f"{curve.chosen.parameters} " in marked
    assert [entry["parameters"] for entry in seen] == [point.parameters for point in curve.points[1:]]
    curve.report(tmp_path / "curve.html")
    page = (tmp_path / "curve.html").read_text(encoding="utf-8")
    assert page.count("<tr") == 1 + len(curve.points) and "<svg" in page and curve.reason in page
    assert "http" not in page.replace("http-equiv", "")
    shown = capsys.readouterr().err
    assert "shrinking" in shown and "score" in shown


# --- what is refused -------------------------------------------------------------------------------------------------


def nan_loss(output: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(output, target) * torch.nan


class Endless(IterableDataset):
    """Samples without an end and without a length."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from zip(X, Y, strict=True)


def test_data_without_an_end_train_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tnmars.shrinking.batches.MOST", 20)
    assert Reader.of(DataLoader(Endless(), batch_size=64), student()).count() == 20 * 64
    curve = shrunk(train=DataLoader(Endless(), batch_size=64), budget=90, settings=tnmars.Staircase(first=5))
    assert curve.chosen.parameters <= 90


def by_name(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """A batch as the data collators of transformers make it, with an entry that the model does not take."""
    x, y = map(torch.stack, zip(*samples, strict=True))
    return {"labels": y, "input": x, "id": list(range(len(y)))}


def nested(samples: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], Tensor]:
    x, y = map(torch.stack, zip(*samples, strict=True))
    return [x], y


def nested_by_name(samples: list[tuple[Tensor, Tensor]]) -> tuple[dict[str, Any], Tensor]:
    given = by_name(samples)
    return given, given.pop("labels")


@pytest.mark.parametrize("form", [by_name, nested, nested_by_name])
def test_the_form_of_a_batch_makes_no_difference(form: Callable[..., object]) -> None:
    """`nn.Sequential` calls its argument `input`."""
    assert_same(shrunk(train=loader(collate_fn=form), budget=70), shrunk(budget=70))


def test_tensors_inside_a_target_or_an_input_follow_the_model() -> None:
    Pair = namedtuple("Pair", "first second")
    given = {"y": Y[:5], "more": (Y[:5], [Y[:5], 3]), "pair": Pair(X[:5], "a")}
    found = placed(given, torch.device("meta"))
    assert [each.device.type for each in (found["y"], found["more"][0], found["more"][1][0])] == ["meta"] * 3
    assert found["more"][1][1] == 3 and found["pair"].first.is_meta and found["pair"].second == "a"
    assert placed(given, None) is given

    class Fields(dict):  # type: ignore[type-arg]
        """As of transformers or PyTorch Geometric."""

        def __getattr__(self, name: str) -> Any:
            return self[name]

    fields, packed = Fields(y=Y[:5]), pack_sequence([X[0], X[1, :5]], enforce_sorted=False)
    assert placed(fields, torch.device("meta")).y.is_meta and not fields.y.is_meta
    for value in (given, fields, packed, Y, "a"):
        assert placed(value, torch.device("cpu")) is value


class Listed(nn.Module):
    """Takes a list of samples, as detection models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = tnmars.Linear(12, 8, family="lowrank", rank=4, warn=False)

    def forward(self, images: list[Tensor]) -> Tensor:
        assert isinstance(images, list)
        return torch.stack([self.inside(image) for image in images])


class Detector(Listed):
    def forward(self, images: list[Tensor], targets: Any = None) -> Tensor:
        return super().forward(images)


class Mapped(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["x"]


class Flagged(Mapped):
    def forward(self, batch: dict[str, Tensor], is_last: bool = False, **more: Any) -> Tensor:
        return super().forward(batch)


class Masked(nn.Module):
    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return ids


def test_one_argument_that_is_a_list_or_a_mapping_stays_one() -> None:
    packed = pack_sequence([X[0], X[1, :5]], enforce_sorted=False)
    images = [X[0], X[1], X[2]]
    pair = namedtuple("pair", "x mask")(X, Y)
    for given, net in (
        (images, Listed()),
        (images[:2], Detector()),
        ({"x": X}, Mapped()),
        ({"x": X}, Flagged()),
        (pair, Masked()),
        (packed, nn.LSTM(3, 3)),
    ):
        (args, named), target = split((given, Y), 0, net)
        assert len(args) == 1 and args[0] is given and not named and target is Y
        (((taken,), named),) = batches([(given, Y)], model=net)
        assert taken is given and not named


@pytest.mark.parametrize(
    ("given", "model"),
    [
        ([X, Y], nn.Bilinear(2, 2, 2)),
        ((X, Y), Masked()),
        ([X, None], Masked()),
        ([X, torch.ones(12, 12)], Masked()),  # a mask that all samples share
        ([X], Masked()),
        ([X], nn.ReLU()),
        ([X.mT], nn.ReLU()),  # samples along another axis
    ],
)
def test_a_list_of_arguments_is_all_of_them(given: Any, model: nn.Module) -> None:
    for args, named in (split((given, Y), 0, model)[0], *batches([(given, Y)], model=model)):
        assert len(args) == len(given) and all(map(is_, args, given)) and not named


def test_lists_of_one_batch_do_not_decide_about_others() -> None:
    """Wherever a run goes on from: the same batch is read in the same way, though some happen to look different."""
    data = [([torch.ones(at % 3 + 1, 5), torch.ones(3, 5)], torch.ones(2)) for at in range(12)]
    loader: Any = DataLoader(data, batch_size=None, shuffle=True)
    kinds = set()
    for epoch in range(8):
        torch.manual_seed(0)
        stream = Stream(Reader.of(loader, Masked()), seed=3, epoch=epoch)
        kinds |= {len(args) for (args, _), _ in stream.take(12)}
    assert len(kinds) == 1


def test_a_later_batch_of_another_kind_is_taken_as_it_is() -> None:
    train = [([X, Y], Y), (X, Y)]
    first, second = Reader.of(train, Masked())
    assert len(first[0][0]) == 2 and second[0][0][0] is X
    given = list(batches(train, model=Masked()))
    assert len(given[0][0]) == 2 and given[1][0][0] is X


def test_a_list_beside_other_inputs_is_one_of_them() -> None:
    batch = ([X, Y], X, Y)
    model = nn.Bilinear(2, 2, 2)
    for args, _ in (split(batch, 0, model)[0], *batches([batch], model=model)):
        assert len(args) == 2 and args[0] is batch[0] and args[1] is X


@pytest.mark.parametrize("kind", [Listed, Detector])
@pytest.mark.parametrize("size", [8, 31])
def test_the_last_batch_may_have_fewer_samples_than_the_model_has_arguments(kind: type[Listed], size: int) -> None:
    """33 samples by 8 or 31: the last batch has one or two images."""
    data = list(zip(X[:33], Y[:33], strict=True))
    loader: Any = DataLoader(data, batch_size=size, collate_fn=lambda pairs: ([x for x, _ in pairs], len(pairs)))
    seen = []

    def loss(output: Tensor, target: int) -> Tensor:
        seen.append(target)
        assert len(output) == target
        return output.square().mean()

    settings = tnmars.Staircase(first=2 * len(loader))
    tnmars.shrink(kind(), train=loader, loss=loss, evaluate=lambda model: 1.0, max_drop=2.0, settings=settings)
    assert 33 % size in seen


def checkpointed(model: nn.Module) -> nn.Module:
    wrapped: nn.Module = checkpoint_wrapper(model)
    return wrapped


WRAPS = [
    nn.DataParallel,
    AveragedModel,
    torch.compile,
    checkpointed,
    lambda model: torch.compile(nn.DataParallel(model)),
    lambda model: AveragedModel(torch.compile(model)),
]


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_wrapped_model_gets_the_entries_that_the_model_inside_names(wrap: Callable[[nn.Module], Any]) -> None:
    given = {"input": X, "id": Y, "labels": Y}
    assert split(given, 0, wrap(nn.Linear(2, 2)))[0] == ((), {"input": X})


def test_a_traced_model_gets_all_entries() -> None:
    model = torch.jit.trace(nn.Linear(12, 2), X)
    assert split({"input": X, "labels": Y}, 0, model)[0] == ((), {"input": X})


def test_a_mapping_of_which_the_model_takes_nothing_is_refused() -> None:
    class Optional(nn.Module):
        def forward(self, pixels: Tensor | None = None, embeds: Tensor | None = None, labels: Any = None) -> Tensor:
            raise AssertionError("the model would have no input")

    for given in ({"pixel": X, "labels": Y}, ({"pixel": X}, Y)):
        with pytest.raises(TnmarsError, match="has the inputs pixel, but the model takes pixels, embeds, labels"):
            split(given, 3, Optional())
    with pytest.raises(TnmarsError, match=r"batch 0 of train has no inputs, but the model needs input\."):
        split({"labels": Y}, 0, nn.Linear(2, 2))

    class Needy(nn.Module):
        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            raise AssertionError("the model would have no target")

    with pytest.raises(TnmarsError, match=r"needs labels too\.\n  The model does not get 'labels' here: give it a def"):
        split({"x": X, "labels": Y}, 0, Needy())


class Once:
    """Batches that can be read only once, though that does not show."""

    def __init__(self) -> None:
        self.batches = iter(list(loader()))

    def __iter__(self) -> Iterator[Any]:
        return self.batches

    def __len__(self) -> int:
        return 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train": []}, "train has no batch"),
        ({"train": iter([(X, Y)])}, "train is an iterator, which can be read only once"),
        ({"train": X}, "train is a tensor"),
        ({"train": TensorDataset(X, Y)}, "train is a TensorDataset, which yields single samples"),
        ({"train": 3}, "train is of type int, but must be an iterable of batches"),
        ({"train": [3]}, "batch 0 of train is of type int, but must be a tuple of inputs and a target"),
        ({"train": [{"x": X}]}, "batch 0 of train has the keys x, but no 'labels'"),
        ({"train": [{"x": X, "labels": Y}]}, "batch 0 of train has the inputs x, but the model needs input too"),
        ({"loss": lambda output, target: None}, "loss returned None, but must return a scalar tensor.\n  Return the"),
        ({"train": Once()}, "train has batches only in its first pass"),
        ({"loss": nan_loss}, "the loss became NaN in step 1 of stage 1"),
        ({"loss": lambda output, target: output}, r"loss returned a tensor of shape \(64, 8\)"),
        ({"loss": lambda output, target: 0.0}, "loss returned a float"),
        ({"loss": lambda output, target: output.detach().mean()}, "loss returned a tensor that does not depend on the"),
        ({"settings": {"first": 10}}, r"settings is a dict, but must be a tnmars\.Staircase"),
        ({"seed": -1}, "seed is -1, but must be a whole number of at least 0"),
        ({"seed": None}, "seed is None, but must be a whole number of at least 0"),
        ({"evaluate": lambda model: None}, "evaluate returned a NoneType"),
        ({"evaluate": lambda model: 0.5}, r"the standard error of the score is not known(.|\n)* from evaluate"),
        ({"samples": 0}, "samples is 0, but must be a whole number above 0"),
        ({"saliency": "luck"}, "saliency is 'luck'"),
        ({"budget": "100x"}, "the budget of 100x parameters cannot be met"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], words: str) -> None:
    model = student()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TnmarsError, match=words):
        shrunk(model, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
