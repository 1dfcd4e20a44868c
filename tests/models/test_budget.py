"""Budgets as users write them, and how layers share one: against all combinations."""

from __future__ import annotations

import itertools
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases

from tnmars.errors import TnmarsError
from tnmars.models.budget import Budget, allocate


@pytest.mark.parametrize(
    ("text", "amount", "unit", "is_ratio"),
    [
        ("4x", 4.0, "parameters", True),
        ("1.5 X", 1.5, "parameters", True),
        (300_000, 300_000.0, "parameters", False),
        ("250,000", 250_000.0, "parameters", False),
        ("250_000 params", 250_000.0, "parameters", False),
        ("2.5M", 2.5e6, "parameters", False),
        ("1.5 MB", 1.5e6, "bytes", False),
        ("64 KiB", 65_536.0, "bytes", False),
        ("8x bytes", 8.0, "bytes", True),
        ("2x macs", 2.0, "macs", True),
        ("30M MACs", 3e7, "macs", False),
        ("12 ms", 12.0, "ms", False),
        (".5ms", 0.5, "ms", False),
        ("3x ms", 3.0, "ms", True),
        ("1e6", 1e6, "parameters", False),
    ],
)
def test_what_users_write(text: object, amount: float, unit: str, is_ratio: bool) -> None:
    found = Budget.parse(text)
    assert (found.amount, found.unit, found.is_ratio) == (amount, unit, is_ratio)
    assert Budget.parse(found) is found


@pytest.mark.parametrize("text", ["4", "12,345 parameters", "7x macs", "1.5 MB", "2.25 ms", "1.3x ms"])
def test_a_budget_reads_its_own_text(text: str) -> None:
    budget = Budget.parse(text)
    assert Budget.parse(str(budget)) == budget


@pytest.mark.parametrize(
    "wrong", ["x", "", "1x", "0.5x", "0", "-3", 0, -1, True, 1.5, None, "4 xx", "nan", "1e999", "4x4"]
)
def test_what_is_no_budget(wrong: object) -> None:
    with pytest.raises(TnmarsError) as raised:
        Budget.parse(wrong)
    assert str(raised.value) == (
        f"budget is {wrong!r}, but must be a size, or a ratio above 1 that ends with 'x'.\n"
        "  Write '4x' (parameters), 250000, '1.5 MB', '2x macs', '30M macs' or '12 ms', for the whole model."
    )


def test_a_limit_is_absolute_or_a_share_of_what_there_is() -> None:
    assert Budget.parse("4x").limit(100.0) == 25.0
    assert Budget.parse(30).limit(100.0) == 30.0


# --- one budget for all layers ---------------------------------------------------------------------------------------


def best(curves: list[list[tuple[float, float]]], limit: float) -> float:
    """The least loss within a limit, by trying everything."""
    found = inf
    for points in itertools.product(*curves):
        if sum(cost for cost, _ in points) <= limit:
            found = min(found, sum(loss for _, loss in points))
    return found


def spectrum(random: np.random.Generator, ranks: int) -> list[tuple[float, float]]:
    """The curve of a layer with planted singular values, by rank; the last point is dense."""
    values = (
        np.sort(random.exponential(size=ranks))[::-1]
        * random.uniform(0.2, 5)
        * random.uniform(0.3, 1) ** np.arange(ranks)
    )
    price = int(random.integers(20, 300))
    points = [(float(price * rank), float((values[rank:] ** 2).sum())) for rank in range(1, ranks + 1)]
    return [*points, (float(price * ranks * 0.7), 0.0)]


@pytest.mark.parametrize("seed", range(cases(200)))
def test_planted_spectra_lose_at_most_2_percent_more_than_the_optimum(seed: int) -> None:
    """Three layers with eight ranks each."""
    random = np.random.default_rng(seed)
    curves = [spectrum(random, 8) for _ in range(3)]
    least, most = (sum(choose(cost for cost, _ in curve) for curve in curves) for choose in (min, max))
    for share in (0.05, 0.2, 0.4, 0.7):
        limit = least + share * (most - least)
        places = allocate(curves, limit)
        assert sum(curve[at][0] for curve, at in zip(curves, places, strict=True)) <= limit
        lost = sum(curve[at][1] for curve, at in zip(curves, places, strict=True))
        assert lost <= 1.02 * best(curves, limit) + 1e-12


points = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=6)


@settings(max_examples=cases(500))
@given(st.lists(points, min_size=1, max_size=4), st.integers(0, 170))
def test_any_curves_are_shared_in_the_best_way(curves: list[list[tuple[float, float]]], limit: int) -> None:
    """Also curves with points that cost more and lose more."""
    expected = best(curves, limit)
    if expected == inf:
        with pytest.raises(ValueError, match="even the cheapest"):
            allocate(curves, limit)
        return
    chosen = [curve[at] for curve, at in zip(curves, allocate(curves, limit), strict=True)]
    assert sum(cost for cost, _ in chosen) <= limit
    assert sum(loss for _, loss in chosen) == expected


def test_many_layers_with_many_points_stay_close_to_the_bound_of_convex_curves() -> None:
    """80 layers with 300 ranks: too many sets of choices to compare all. Convex curves have a simple optimum: take the
    best gain per cost until the limit, which no choice of whole slices beats."""
    random = np.random.default_rng(0)
    curves, gains = [], []
    for _ in range(80):
        values = np.sort(random.exponential(size=300))[::-1] * random.uniform(0.1, 10)
        price = float(random.integers(50, 2000))
        curves.append([(price * rank, float(values[rank:].sum())) for rank in range(301)])
        gains += [(value / price, price) for value in values]
    limit = 0.4 * sum(curve[-1][0] for curve in curves)
    places = allocate(curves, limit)
    spent = sum(curve[at][0] for curve, at in zip(curves, places, strict=True))
    assert limit - 2000 <= spent <= limit  # to within one slice
    bound, room = sum(curve[0][1] for curve in curves), limit
    for gain, price in sorted(gains, reverse=True):
        bound -= gain * min(price, room)
        room -= min(price, room)
    assert sum(curve[at][1] for curve, at in zip(curves, places, strict=True)) <= 1.02 * bound


def test_nothing_to_share() -> None:
    assert allocate([], 0.0) == []
