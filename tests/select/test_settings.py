"""Settings of selectors: every field of every selector refuses what it cannot mean, and says what it must be."""

from __future__ import annotations

from dataclasses import fields
from math import inf, nan

import pytest
import torch

import tnmars
from tnmars.select import SELECTORS

NOTHING: list[object] = [[], {}, (), object(), torch.ones(2)]
NUMBER = [*NOTHING, "many", "0.5", None, nan, inf, -inf, True, 1j]
COUNT = [*NUMBER, 2.5, -1]
PAIR = [*NOTHING, "ab", None, (0.1,), (0.1, 0.01, 0.001), ("a", "b"), (None, 1.0), (nan, 0.1), (1.0, nan), (inf, 0.1)]
FLAG = [*NOTHING, "yes", None, 1, 0.0]
PRICE = [*NOTHING, "gold", None, 3]

WRONG: dict[str, dict[str, list[object]]] = {
    "mars": {
        "pi": [*NUMBER, 0, 1, -0.5, 2],
        "alpha": NUMBER,
        "temperature": [*PAIR, "hot", True, nan, 0, -1.0, (0.01, 0.1), (0.1, 0.0), (0.1, -1)],
        "sigma": [*NUMBER, 0, -1],
        "spread": [*NUMBER, -0.1],
        "price": [*PRICE, "bic"],
        "samples": COUNT,
        "threshold": NUMBER,
        "min_keep": COUNT,
        "straight_through": FLAG,
        "sample_in_eval": FLAG,
    },
    "gaussian": {
        "strength": [*NUMBER, -1],
        "start_at": NUMBER,
        "deviation": [*NUMBER, 0, -1],
        "sigma": [*NUMBER, 0, -1],
        "price": [*PRICE, "bic"],
        "sample_in_eval": FLAG,
        "samples": COUNT,
        "fold": FLAG,
    },
    "annealed": {
        "samples": [*COUNT, 0, 1],
        "variance": [*PAIR, 0.1, (0.1, 0.2), (0.1, 0.0), (0.1, -1)],
        "temperature": [*NUMBER, 0, -1],
        "limits": [*PAIR, 2.0, (1.0, 2.0), (-2.0, -1.0), (4.0, -2.0), (0.0, 1.0)],
        "min_keep": COUNT,
        "price": [*PRICE, "uniform"],
        "sample_in_eval": FLAG,
    },
    "ard": {
        "shape": [*NUMBER, -1],
        "rate": [*NUMBER, 0, -1],
        "threshold": [*NUMBER, -0.1, 1, 2.0],
        "min_keep": COUNT,
    },
    "fixed": {"sigma": [value for value in NUMBER if value is not None] + [0, -1]},
}


def test_every_field_is_listed() -> None:
    known = {name: {field.name for field in fields(kind)} for name, kind in SELECTORS.items()}
    assert known == {name: set(table) for name, table in WRONG.items()}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, table in WRONG.items() for field in table])
def test_wrong_values_are_refused(name: str, field: str) -> None:
    for value in WRONG[name][field]:
        with pytest.raises(tnmars.TnmarsError) as caught:
            SELECTORS[name](**{field: value})
        text = str(caught.value)
        assert text.startswith(field) and text.endswith(".") and (" must be " in text or " needs " in text), text


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (dict(name="annealed", variance=0.1), "variance is 0.1, but must be two numbers: the first and the last."),
        (dict(name="annealed", samples="many"), "samples is 'many', but must be a whole number, at least 2."),
        (dict(name="fixed", sigma="x"), "sigma is 'x', but must be a number above 0, or None."),
        (dict(name="mars", straight_through="no"), "straight_through is 'no', but must be True or False."),
        (
            dict(name="gaussian", price="bic", samples=1),
            "price 'bic' needs the number of data, for example GaussianGates(price='bic', samples=60000).",
        ),
        (dict(name="gaussian", price=[]), "price is [], but must be one of uniform, parameters, macs, bic."),
    ],
)
def test_what_is_said(selector: dict[str, object], text: str) -> None:
    name = str(selector.pop("name"))
    with pytest.raises(tnmars.TnmarsError) as caught:
        SELECTORS[name](**selector)
    assert str(caught.value) == text
