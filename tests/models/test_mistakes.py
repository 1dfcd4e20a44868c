"""Deliberate mistakes: the message in full, and a model that is left as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from compress_kit import cnn, images, mlp, numbers, untouched
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tnmars
from tnmars.errors import PatternError, TnmarsError

pytestmark = pytest.mark.filterwarnings("ignore::tnmars.CompressionWarning")
X = torch.randn(320, 20, generator=torch.Generator().manual_seed(0))
BAD = X.clone()
BAD[200, 3] = float("nan")
MODEL = mlp(20, 30, 5)


def said_by_torch(model: nn.Module, x: torch.Tensor) -> str:
    """The text of torch's own error, which differs between its versions."""
    with pytest.raises(RuntimeError) as raised:
        model(x)
    return str(raised.value)


class Argmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(1)


CASES: dict[str, tuple[nn.Module, dict[str, object], type[TnmarsError], str]] = {
    "no data": (
        MODEL,
        {"budget": "2x"},
        TnmarsError,
        (
            "data is missing: calibration data say which errors matter.\n"
            "  Give some hundred model inputs, data=loader; labels are not needed. Nothing was changed."
        ),
    ),
    "no budget": (
        MODEL,
        {"data": X},
        TnmarsError,
        (
            "give a budget, or evaluate and max_drop together.\n"
            "  budget='4x', or evaluate=accuracy, max_drop=0.5. Nothing was changed."
        ),
    ),
    "a budget and a drop": (
        MODEL,
        {"data": X, "budget": "2x", "evaluate": lambda model: 1.0, "max_drop": 1.0},
        TnmarsError,
        (
            "give a budget, or evaluate and max_drop together.\n"
            "  budget='4x', or evaluate=accuracy, max_drop=0.5. Nothing was changed."
        ),
    ),
    "data that are used up": (
        MODEL,
        {"data": iter([]), "budget": "2x"},
        TnmarsError,
        "data has no batch.\n  An iterator that was used before is empty: give a list or a DataLoader.",
    ),
    "single samples": (
        MODEL,
        {"data": TensorDataset(X), "budget": "2x"},
        TnmarsError,
        (
            "data is a TensorDataset, which yields single samples.\n"
            "  Give batches: torch.utils.data.DataLoader(data, batch_size=64)."
        ),
    ),
    "wrong shapes": (
        MODEL,
        {"data": torch.randn(300, 19), "budget": "2x"},
        TnmarsError,
        (
            "the model cannot be called with batch 0 of the data, of shape (64, 19): "
            f"{said_by_torch(MODEL, torch.randn(64, 19))}.\n"
            "  Say how to make inputs of a batch: inputs=lambda batch: ... Nothing was changed."
        ),
    ),
    "an unreachable budget": (
        MODEL,
        {"data": X, "budget": "9x"},
        TnmarsError,
        (
            "the budget 9x parameters cannot be met: with all ranks at 1 the model has 120 parameters. "
            "Nothing was changed.\n"
            "  It has 785 parameters now, 35 parameters of them outside of what may be decomposed."
        ),
    ),
    "an unreachable number of MACs": (
        mlp(64, 96, 10),
        {"data": torch.randn(640, 64), "budget": "1000 macs"},
        TnmarsError,
        (
            "the budget 1,000 macs cannot be met: with all ranks at 1 the model has 10,240 macs. Nothing was changed.\n"
            "  It has 454,656 macs now, 0 macs of them outside of what may be decomposed."
        ),
    ),
    "a pattern without a match": (
        MODEL,
        {"data": X, "budget": "2x", "rules": {"fc*": "tt"}},
        PatternError,
        "'fc*' matches no layer of the model.\n  Layers that could be meant: 0, 2.\nNothing was changed.",
    ),
    "a pattern that matches what cannot be decomposed": (
        nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(16, 2)),
        {"data": torch.zeros(99, 4, dtype=torch.int64), "budget": "2x", "rules": {"0": "tt"}},
        PatternError,
        (
            "'0' matches only layers that cannot be decomposed: '0': it has the option sparse, and gradients of "
            "cores, which all rows share, are dense.\nNothing was changed."
        ),
    ),
    "a model without layers": (
        nn.Sequential(nn.ReLU(), nn.LayerNorm(20)),
        {"data": X, "budget": "2x"},
        TnmarsError,
        (
            "the model has no layer that can be decomposed.\n"
            "  Linear, convolutions and transposed ones, Embedding, EmbeddingBag, recurrent and attention layers can."
        ),
    ),
    "a model with refused layers only": (
        nn.Sequential(nn.Embedding(9, 4, sparse=True)),
        {"data": torch.zeros(99, 4, dtype=torch.int64), "budget": "2x"},
        TnmarsError,
        (
            "the model has no layer that can be decomposed.\n"
            "  Linear, convolutions and transposed ones, Embedding, EmbeddingBag, recurrent and attention layers can. "
            "'0': it has the option sparse, and gradients of cores, which all rows share, are dense."
        ),
    ),
    "NaN in the data": (MODEL, {"data": BAD, "budget": "2x"}, TnmarsError, "batch 3 of the data has NaN in input 1."),
    "too few samples": (
        MODEL,
        {"data": X[:9], "budget": "2x"},
        TnmarsError,
        (
            "data has too few samples to hold any out for comparison.\n"
            "  Give at least ten samples; some hundred are better. Nothing was changed."
        ),
    ),
    "a single layer": (
        mlp(20, 30)[0],
        {"data": X, "budget": "2x"},
        TnmarsError,
        (
            "the model is a single layer, which cannot be replaced in itself.\n"
            "  Use tnmars.from_dense(layer, ...), which returns the new layer."
        ),
    ),
    "an unknown family": (
        MODEL,
        {"data": X, "budget": "2x", "rules": {"*": "lowrnk"}},
        TnmarsError,
        f"family 'lowrnk' is not known.\n  Families: {', '.join(tnmars.families.FAMILIES)}. Did you mean 'lowrank'?",
    ),
    "a graph of other sizes": (
        MODEL,
        {
            "data": X,
            "budget": "2x",
            "rules": {"0": tnmars.families.lowrank("linear", inputs=(30,), outputs=(20,), rank=2)},
        },
        TnmarsError,
        (
            "the graph for '0' is linear 30 -> 20, a weight of shape (20, 30), "
            "but the layer is linear with a weight of shape (30, 20)."
        ),
    ),
    "an output without numbers": (
        nn.Sequential(
            nn.Linear(20, 3),
            nn.Flatten(),
            Argmax(),
        ),
        {"data": X, "budget": "2x"},
        TnmarsError,
        (
            "the model returns a Tensor without a floating-point tensor.\n"
            "  Its output must be a tensor, or hold tensors in a tuple, list or mapping."
        ),
    ),
}


@pytest.mark.parametrize("call", [tnmars.plan_compression, tnmars.compress_])
@pytest.mark.parametrize("name", CASES)
def test_what_is_said(name: str, call: Callable[..., object]) -> None:
    model, given, kind, text = CASES[name]
    model = copy.deepcopy(model).train()
    options = dict(given)
    if isinstance(options.get("data"), type(iter([]))):
        options["data"] = iter([])
    rules = options.pop("rules", None)
    with untouched(model), pytest.raises(kind) as raised:
        call(model, rules, **options)
    assert str(raised.value) == text


def test_a_plan_for_another_model() -> None:
    one, other = mlp(20, 30, 5), mlp(20, 30, 5)
    plan = tnmars.plan_compression(one, budget="1.5x", data=X)
    with untouched(other), pytest.raises(TnmarsError) as raised:
        tnmars.compress_(other, plan)
    assert str(raised.value) == (
        "layer '0' is not the one that the plan was made for.\n"
        "  Make a plan for this model: plan_compression. Nothing was changed."
    )
    done = tnmars.compress_(one, plan)
    with untouched(one), pytest.raises(TnmarsError, match="layer '0' is not the one that the plan was made for"):
        tnmars.compress_(one, done)


def test_weights_that_changed_since_the_plan() -> None:
    model = mlp(20, 30, 5)
    plan = tnmars.plan_compression(model, budget="1.5x", data=X)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(X).square().mean().backward()
    optimizer.step()
    with untouched(model), pytest.raises(TnmarsError) as raised:
        tnmars.compress_(model, plan)
    assert str(raised.value) == (
        "the weight of '0' has changed since the plan was made.\n"
        "  Make a new plan: plan_compression. Nothing was changed."
    )


def test_loading_the_same_weights_is_no_change() -> None:
    model = mlp(20, 30, 5)
    plan = tnmars.plan_compression(model, budget="1.5x", data=X)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    tnmars.compress_(model, plan)
    assert numbers(model) == plan.parameters.after


def test_a_plan_with_a_budget() -> None:
    model = mlp(20, 30, 5)
    plan = tnmars.plan_compression(model, budget="1.5x", data=X)
    with untouched(model), pytest.raises(TnmarsError) as raised:
        tnmars.compress_(model, plan, budget="2x", data=X, seed=3)
    assert str(raised.value) == (
        "budget, data, seed: a plan has these already.\n  Give compress_ a plan alone, or rules with a budget and data."
    )


def test_an_error_of_the_model_in_the_middle_of_the_data_changes_nothing() -> None:
    model = cnn().train()
    data = [images(16), images(16), torch.randn(16, 5, 8, 8)]
    with untouched(model), pytest.raises(TnmarsError, match="batch 2 of the data, of shape"):
        tnmars.compress_(model, budget="2x", data=data)


class Breaks(nn.Module):
    """Works while gradients are needed, not when it is only evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(20, 30, 5)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            raise KeyError("a bug of the model")
        return self.body(x)


def test_errors_of_the_users_own_code_come_through() -> None:
    model = Breaks().train()
    with untouched(model), pytest.raises(KeyError, match="a bug of the model"):
        tnmars.compress_(model, budget="2x", data=X)


def test_an_interrupted_progress_changes_nothing() -> None:
    model = cnn().train()
    x = images(64)

    def stop(what: str, step: int, steps: int) -> None:
        if what.startswith("cores"):
            raise KeyboardInterrupt

    with untouched(model), pytest.raises(KeyboardInterrupt):
        tnmars.compress_(model, budget="2x", data=x, watch=stop)
