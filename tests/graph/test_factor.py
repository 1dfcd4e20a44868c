"""Splitting sizes into modes: the paper's shapes, the laws of a split, and a search over all splits as the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import isclose, log, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases

from tnmars import TnmarsError, factor, factor_up
from tnmars.graph.factor import CRITERIA, ORDERS

# --- shapes of the paper ---------------------------------------------------------------------------------------------

EXACT = [
    (784, 4, "mixed", (4, 7, 4, 7)),
    (625, 4, "ascending", (5, 5, 5, 5)),
    (625, 2, "ascending", (25, 25)),
    (10, 2, "descending", (5, 2)),
    (32, 2, "descending", (8, 4)),
    (64, 3, "descending", (4, 4, 4)),
    (288, 5, "ascending", (2, 3, 3, 4, 4)),
    (32, 5, "ascending", (2, 2, 2, 2, 2)),
    (576, 6, "ascending", (2, 2, 3, 3, 4, 4)),
    (64, 6, "ascending", (2, 2, 2, 2, 2, 2)),
    (256, 3, "mixed", (4, 8, 8)),
    (256, 4, "mixed", (4, 4, 4, 4)),
    (256, 6, "mixed", (2, 2, 2, 4, 2, 4)),
    (256, 6, "ascending", (2, 2, 2, 2, 4, 4)),
    (256, 6, "descending", (4, 4, 2, 2, 2, 2)),
]

ROUNDED = [
    (25000, 6, "mixed", (5, 5, 5, 6, 5, 8)),
    (25000, 6, "ascending", (5, 5, 5, 5, 6, 8)),
    (25000, 6, "descending", (8, 6, 5, 5, 5, 5)),
    (17200, 3, "mixed", (24, 25, 30)),
    (17200, 4, "mixed", (10, 12, 10, 15)),
    (17200, 6, "mixed", (4, 5, 5, 6, 5, 6)),
]


@pytest.mark.parametrize(("size", "ways", "order", "modes"), EXACT)
def test_shapes_of_the_paper(size: int, ways: int, order: str, modes: tuple[int, ...]) -> None:
    assert factor(size, ways, order=order) == modes


@pytest.mark.parametrize(("size", "ways", "order", "modes"), ROUNDED)
def test_shapes_of_the_papers_vocabularies(size: int, ways: int, order: str, modes: tuple[int, ...]) -> None:
    assert factor_up(size, ways, order=order) == modes


@pytest.mark.parametrize(("size", "ways", "rounded"), [(25000, 3, 30000), (25000, 4, 30000), (25000, 6, 30000)])
def test_vocabulary_of_imdb_is_rounded_up(size: int, ways: int, rounded: int) -> None:
    assert prod(factor_up(size, ways)) == rounded


@pytest.mark.parametrize("ways", [3, 4, 6])
def test_vocabulary_of_sst_is_rounded_up(ways: int) -> None:
    assert prod(factor_up(17200, ways)) == 18000


# --- against all splits ----------------------------------------------------------------------------------------------


def primes(size: int) -> list[int]:
    found = []
    for divisor in range(2, size + 1):
        while size % divisor == 0:
            found.append(divisor)
            size //= divisor
    return found


def groupings(items: list[int], ways: int) -> Iterator[tuple[int, ...]]:
    """The products of the groups, for every way to put prime factors into `ways` groups of at least one."""

    def deal(at: int, groups: list[int]) -> Iterator[tuple[int, ...]]:
        if at == len(items):
            if len(groups) == ways:
                yield tuple(sorted(groups))
            return
        for group in range(len(groups)):
            yield from deal(at + 1, [old * items[at] if group == n else old for n, old in enumerate(groups)])
        if len(groups) < ways:
            yield from deal(at + 1, [*groups, items[at]])

    padded = items + [1] * (ways - len(items))
    if len(padded) > len(items):
        yield tuple(sorted(padded))
    else:
        yield from deal(0, [])


def unevenness(modes: tuple[int, ...], criterion: str) -> float:
    """Smaller is better: the entropy with its sign turned, or the variance."""
    if criterion == "variance":
        return sum((mode - sum(modes) / len(modes)) ** 2 for mode in modes) / len(modes)
    return sum(mode / sum(modes) * log(mode / sum(modes)) for mode in modes)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("ways", [1, 2, 3, 4, 5])
def test_no_split_is_more_even(ways: int, criterion: str) -> None:
    for size in range(1, 400):
        splits = set(groupings(primes(size), ways))
        found = factor(size, ways, criterion=criterion)
        best = min(unevenness(split, criterion) for split in splits)
        assert found in splits
        assert isclose(unevenness(found, criterion), best, abs_tol=1e-9), (size, found)


@pytest.mark.parametrize("ways", [2, 3, 4])
def test_no_round_up_is_more_even(ways: int) -> None:
    for size in [7, 10, 97, 101, 128, 499, 997, 1009, 1750, 1999]:
        steps = [10**digit for digit in range(len(str(size)))]
        rounded = {step * ((size + step - 1) // step) for step in steps}
        splits = {split for candidate in rounded for split in groupings(primes(candidate), ways)}
        found = factor_up(size, ways)
        assert found in splits
        assert isclose(unevenness(found, "entropy"), min(unevenness(s, "entropy") for s in splits), abs_tol=1e-9)


def test_of_equal_round_ups_the_smallest_is_taken() -> None:
    assert factor_up(95, 1) == (95,)


def test_the_criteria_differ() -> None:
    found = {size: [factor(size, 3, criterion=criterion) for criterion in CRITERIA] for size in range(1, 2000)}
    assert any(entropy != variance for entropy, variance in found.values())


# --- laws ------------------------------------------------------------------------------------------------------------

SIZES = st.integers(1, 100_000)
WAYS = st.integers(1, 8)


@settings(max_examples=cases(2000))
@given(SIZES, WAYS, st.sampled_from(ORDERS), st.sampled_from(CRITERIA))
def test_the_product_is_the_size(size: int, ways: int, order: str, criterion: str) -> None:
    modes = factor(size, ways, order=order, criterion=criterion)
    assert len(modes) == ways
    assert prod(modes) == size


@settings(max_examples=cases(2000))
@given(SIZES, WAYS, st.sampled_from(ORDERS), st.sampled_from(CRITERIA))
def test_the_product_of_a_round_up_is_at_least_the_size(size: int, ways: int, order: str, criterion: str) -> None:
    modes = factor_up(size, ways, order=order, criterion=criterion)
    step = 10 ** (len(str(size)) - 1)
    assert len(modes) == ways
    assert size <= prod(modes) <= size + step - 1


@settings(max_examples=cases(2000))
@given(SIZES, WAYS, st.sampled_from([factor, factor_up]))
def test_orders_arrange_the_same_modes(size: int, ways: int, split: object) -> None:
    ascending, descending, mixed = (split(size, ways, order=order) for order in ORDERS)
    assert list(ascending) == sorted(ascending)
    assert descending == ascending[::-1]
    assert Counter(mixed) == Counter(ascending)
    half = ways // 2
    assert mixed[0 : 2 * half : 2] == ascending[:half]
    assert mixed[1 : 2 * half : 2] + mixed[2 * half :] == ascending[half:]


def test_too_few_primes_leave_ones() -> None:
    assert factor(7, 3, order="mixed") == (1, 1, 7)
    assert factor(1, 2) == (1, 1)
    assert factor(12, 4) == (1, 2, 2, 3)


# --- errors ----------------------------------------------------------------------------------------------------------

SPLIT = "the size must be a whole number from 1 to 2,147,483,647, the number of modes at least 1."
WRONG = [
    ((0, 2), {}, f"cannot split 0 into 2 modes: {SPLIT}"),
    ((8, 0), {}, f"cannot split 8 into 0 modes: {SPLIT}"),
    ((-8, 3), {}, f"cannot split -8 into 3 modes: {SPLIT}"),
    ((8, 2), {"order": "up"}, "order is 'up', but must be one of ascending, descending, mixed."),
    ((8, 2), {"criterion": "mean"}, "criterion is 'mean', but must be one of entropy, variance."),
]


@pytest.mark.parametrize("split", [factor, factor_up])
@pytest.mark.parametrize(("sizes", "choice", "text"), WRONG)
def test_errors(split: object, sizes: tuple[int, int], choice: dict[str, str], text: str) -> None:
    with pytest.raises(TnmarsError) as caught:
        split(*sizes, **choice)
    assert str(caught.value) == text


@pytest.mark.parametrize(("size", "ways"), [(12.0, 2), ("12", 2), (True, 1), (12, 2.0), (None, 2), (12, "2")])
def test_what_is_no_whole_number_is_not_split(size: object, ways: object) -> None:
    for split in (factor, factor_up):
        with pytest.raises(TnmarsError, match="cannot split"):
            split(size, ways)  # type: ignore[arg-type]


def test_a_number_of_numpy_is_split() -> None:
    assert factor(np.int64(12), np.int8(2)) == (3, 4)
    assert all(type(mode) is int for mode in factor(np.int64(12), 2))
