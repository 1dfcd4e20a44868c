"""Batches of model inputs: what a user's data mean for a model, and which tensors of an output are its answer."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tnmars.errors import TnmarsError
from tnmars.models.data import batches, call, device_of, moved, primary, samples

X, Y, Z = torch.randn(4, 3), torch.randn(4, 5), torch.randn(4)


class One(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x if mask is None else x * mask


class Two(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.cat([left, right], 1)


class Named(nn.Module):
    def forward(self, **named: Tensor) -> Tensor:
        return named["x"]


def only(data: Iterable[Any], **keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The one batch of some data."""
    (batch,) = batches(data, **keywords)
    return batch


@pytest.mark.parametrize(
    ("batch", "model", "expected"),
    [
        (X, None, (X,)),
        ((X, Y), None, (X,)),
        ([X, Y], One(), (X,)),
        ((X, Y), Two(), (X, Y)),
        ((X, Y, Z), Two(), (X, Y)),
        (((X, Y), Z), One(), (X, Y)),
        (((X, Y), Z), Two(), (X, Y)),
        ((X, Y), nn.Sequential(), (X,)),
        (namedtuple("Pair", "image label")(X, Y), One(), (X,)),
    ],
)
def test_positional_inputs(batch: Any, model: nn.Module | None, expected: tuple[Tensor, ...]) -> None:
    args, named = only([batch], model=model)
    assert len(args) == len(expected)
    assert all(found is wanted for found, wanted in zip(args, expected, strict=True))
    assert named == {}


@pytest.mark.parametrize(
    ("batch", "model", "keys"),
    [
        ({"x": X, "labels": Y}, None, ["x", "labels"]),
        ({"x": X, "labels": Y}, One(), ["x"]),
        (UserDict({"x": X, "mask": X, "labels": Y}), One(), ["x", "mask"]),
        ({"x": X, "labels": Y}, Named(), ["x", "labels"]),
        (({"x": X}, Y), One(), ["x"]),
    ],
)
def test_keyword_inputs(batch: Any, model: nn.Module | None, keys: list[str]) -> None:
    args, named = only([batch], model=model)
    assert args == ()
    assert list(named) == keys
    assert named["x"] is X


def test_the_users_own_function_decides() -> None:
    assert only([(X, Y, Z)], inputs=lambda batch: batch[1])[0] == (Y,)
    assert only([(X, Y, Z)], inputs=lambda batch: {"mask": batch[2]}, model=One())[1] == {"mask": Z}
    assert len(only([(X, Y, Z)], inputs=lambda batch: batch[:2], model=One())[0]) == 2


def test_loaders_tensors_and_lists() -> None:
    x = torch.arange(300.0).reshape(150, 2)
    found = [args[0] for args, _ in batches(x)]
    assert [len(part) for part in found] == [64, 64, 22]
    assert torch.equal(torch.cat(found), x)
    loader = DataLoader(TensorDataset(x, x[:, 0]), batch_size=50)
    assert torch.equal(torch.cat([args[0] for args, _ in batches(loader)]), x)
    assert [samples(batch) for batch in batches(loader)] == [50, 50, 50]


@pytest.mark.parametrize(
    ("data", "model", "text"),
    [
        ([], None, "data has no batch"),
        (iter([]), None, "An iterator that was used before is empty"),
        (TensorDataset(X), None, r"data is a TensorDataset, which yields single samples"),
        (7, None, "data is of type int, but must be an iterable"),
        ("text", None, "data is of type str"),
        ({"x": X}, None, "data is of type dict"),
        (["text"], None, "batch 0 of the data is of type str"),
        ([X, 3], None, "batch 1 of the data is of type int"),
        ([(X,)], Two(), "batch 0 of the data has 1 elements, but the model takes 2 inputs"),
        ([{"y": X}], One(), "has the keys y, none of which the model takes"),
        ([X, X / 0 * 0], None, "batch 1 of the data has NaN in input 1"),
        ([{"x": X * torch.nan}], None, "batch 0 of the data has NaN in x"),
    ],
)
def test_what_is_not_data_is_refused(data: Any, model: nn.Module | None, text: str) -> None:
    with pytest.raises(TnmarsError, match=text):
        list(batches(data, model=model))


def test_a_function_that_returns_something_else_is_refused() -> None:
    with pytest.raises(TnmarsError, match="inputs returned a NoneType for batch 0"):
        list(batches([X], inputs=lambda batch: None))


def test_infinite_numbers_are_allowed() -> None:
    mask = torch.full((2, 2), -torch.inf)
    assert only([mask])[0][0] is mask


def test_call_moves_tensors_to_the_model() -> None:
    model = nn.Linear(3, 2, device="meta")
    assert call(model, ((X,), {})).device.type == "meta"
    assert call(One(), ((X,), {"mask": X})).equal(X * X)
    assert device_of(One()) is None
    assert device_of(model) == torch.device("meta")
    assert moved(((X, "text"), {"flag": True}), torch.device("meta"))[0][1] == "text"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (X, [X]),
        ((X, Y), [X, Y]),
        ([X, (Y, Z)], [X, Y, Z]),
        ((X, torch.arange(3), None), [X]),
        ({"a": X, "b": Y}, [X, Y]),
        ({"loss": Z, "logits": X}, [X]),
        (SimpleNamespace(loss=Z, logits=X, hidden_states=(Y, Y)), [X]),
        (SimpleNamespace(last_hidden_state=X, pooler_output=Y), [X]),
        (SimpleNamespace(logits=None, last_hidden_state=Y), [Y]),
        (SimpleNamespace(first=X, second=[Y]), [X, Y]),
    ],
)
def test_the_answer_of_an_output(output: Any, expected: list[Tensor]) -> None:
    found = primary(output)
    assert len(found) == len(expected)
    assert all(one is other for one, other in zip(found, expected, strict=True))


def test_an_output_without_an_answer_is_refused() -> None:
    with pytest.raises(TnmarsError, match="returns a Tensor without a floating-point tensor"):
        primary(torch.arange(3))
    with pytest.raises(TnmarsError, match="returns a NoneType"):
        primary(None)
    assert samples(((), {})) == 1
