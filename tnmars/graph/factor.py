"""Ways to split a size into modes: the heuristics that tensor-train layers use, as pure functions on integers.

>>> factor(256, 6, order="mixed"), factor_up(25000, 6, order="mixed")
((2, 2, 2, 4, 2, 4), (5, 5, 5, 6, 5, 8))
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from typing import Any

from tnmars.errors import TnmarsError
from tnmars.graph.parts import MAX_SIZE, as_int, is_int

ORDERS = ("ascending", "descending", "mixed")
CRITERIA = ("entropy", "variance")


def factor(size: int, ways: int, *, order: str = "ascending", criterion: str = "entropy") -> tuple[int, ...]:
    """Modes with product `size` that are as equal as its prime factors allow.

    Args:
        size: The size to split, from 1 to 2^31 - 1.
        ways: The number of modes, at least 1. If `size` has fewer prime factors, the first modes are 1.
        order: `"ascending"` (the default), `"descending"`, or `"mixed"`, which interleaves the smaller half with the
            larger half, so that the cores of a tensor train have similar sizes.
        criterion: What "equal" means: `"entropy"` (the default) takes the modes with the largest entropy over their
            sum, `"variance"` those with the smallest variance.

    Returns:
        The modes, as a tuple of `ways` sizes.

    Raises:
        TnmarsError: If an argument is not valid.

    Example:
        >>> factor(288, 5), factor(32, 2, order="descending"), factor(7, 3)
        ((2, 3, 3, 4, 4), (8, 4), (1, 1, 7))
    """
    size, ways = _checked(size, ways, order, criterion)
    primes = sorted(_primes(size))
    if len(primes) < ways:
        best = tuple([1] * (ways - len(primes)) + primes)
    else:
        best = max(_splits(size, ways, 2), key=lambda modes: _evenness(modes, criterion))
    return _arrange(best, order)


def factor_up(size: int, ways: int, *, order: str = "ascending", criterion: str = "entropy") -> tuple[int, ...]:
    """Modes whose product is at least `size`: the most equal ones of its round-ups to multiples of 1, 10, 100 etc.

    Use it for a vocabulary, whose size often has large prime factors; what the modes hold beyond `size` is padding.

    Args:
        size: The size to cover, from 1 to 2^31 - 1.
        ways: The number of modes, at least 1.
        order: How the modes are arranged, as for `factor`.
        criterion: What "equal" means, as for `factor`.

    Returns:
        The modes, as a tuple of `ways` sizes.

    Raises:
        TnmarsError: If an argument is not valid.

    Example:
        >>> factor_up(17200, 4, order="mixed")  # their product is 18,000
        (10, 12, 10, 15)
    """
    size, ways = _checked(size, ways, order, criterion)
    steps = [10**digit for digit in range(len(str(size)))]
    sizes = [-(-size // step) * step for step in steps]
    best = max(sizes, key=lambda candidate: _evenness(factor(candidate, ways, criterion=criterion), criterion))
    return factor(best, ways, order=order, criterion=criterion)


def _checked(size: Any, ways: Any, order: str, criterion: str) -> tuple[int, int]:
    """The size and the number of modes as Python's own numbers, once all settings are checked."""
    size, ways = as_int(size), as_int(ways)
    if not is_int(size, 1, MAX_SIZE) or not is_int(ways, 1):
        raise TnmarsError(
            f"cannot split {size!r} into {ways!r} modes: the size must be a whole number from 1 to {MAX_SIZE:,}, "
            "the number of modes at least 1."
        )
    if not isinstance(order, str) or order not in ORDERS:
        raise TnmarsError(f"order is {order!r}, but must be one of {', '.join(ORDERS)}.")
    if not isinstance(criterion, str) or criterion not in CRITERIA:
        raise TnmarsError(f"criterion is {criterion!r}, but must be one of {', '.join(CRITERIA)}.")
    return size, ways


def _primes(size: int) -> Iterator[int]:
    divisor = 2
    while divisor * divisor <= size:
        while size % divisor == 0:
            yield divisor
            size //= divisor
        divisor += 1
    if size > 1:
        yield size


def _splits(size: int, ways: int, least: int) -> Iterator[tuple[int, ...]]:
    """Every ascending way to write `size` as a product of `ways` factors of at least `least`."""
    if ways == 1:
        if size >= least:
            yield (size,)
        return
    first = least
    while first**ways <= size:
        if size % first == 0:
            for rest in _splits(size // first, ways - 1, first):
                yield (first, *rest)
        first += 1


def _evenness(modes: tuple[int, ...], criterion: str) -> float:
    """Larger is more even. Rounded, so that equal splits of different sizes tie on every machine."""
    if criterion == "variance":
        mean = sum(modes) / len(modes)
        return -round(sum((mode - mean) ** 2 for mode in modes) / len(modes), 9)
    total = sum(modes)
    return round(-sum(mode / total * log(mode / total) for mode in modes), 12)


def _arrange(modes: tuple[int, ...], order: str) -> tuple[int, ...]:
    ascending = sorted(modes)
    if order == "descending":
        return tuple(reversed(ascending))
    if order == "ascending":
        return tuple(ascending)
    half = len(ascending) // 2
    low, high = ascending[:half], ascending[half:]
    woven = [mode for pair in zip(low, high, strict=False) for mode in pair]
    return tuple(woven + high[len(low) :])
