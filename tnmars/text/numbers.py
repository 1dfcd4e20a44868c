"""Numbers as short text: counts, bytes, times and ratios.

The text is ASCII where a terminal shows it; `typographic` turns it into what a printed page shows. An unknown number
(`None`) is a dash.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, isinf

UNKNOWN = "-"
MOST_BITS = 64
"""Integers with more bits are printed as a power of two."""
SCIENTIFIC = 1e9
"""Ratios at least this large are printed in scientific notation."""


def number(value: int | None) -> str:
    """An integer with thousands separators; a very large one as a power of two.

    >>> number(23100), number(2**80), number(None)
    ('23,100', 'about 2^80', '-')
    """
    if value is None:
        return UNKNOWN
    bits = value.bit_length()
    return f"{value:,}" if bits < MOST_BITS else f"about 2^{bits - 1}"


def brief(value: int | None) -> str:
    """An integer in a few digits.

    >>> brief(23100), brief(73_080_000), brief(999_999_999), brief(2**80)
    ('23,100', '73.1 M', '1.0 G', 'about 2^80')
    """
    if value is None or not 10**6 <= value < 10**12:
        return number(value)
    return f"{value / 1e6:.1f} M" if value < 999_950_000 else f"{value / 1e9:,.1f} G"


def byte_count(value: int | None) -> str:
    """A number of bytes, in units of 1000.

    >>> byte_count(400), byte_count(93_400), byte_count(999_999), byte_count(4_000_000_000)
    ('400 B', '93.4 kB', '1.0 MB', '4.0 GB')
    """
    if value is None:
        return UNKNOWN
    if value < 1000:
        return f"{value} B"
    amount = value / 1000
    for unit in ("kB", "MB", "GB"):
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"


def duration(seconds: float | None) -> str:
    """A time in three digits.

    >>> duration(3.21e-5), duration(2.8249e-4), duration(0.0214), duration(0.9996), duration(3), duration(None)
    ('32.1 us', '282 us', '21.4 ms', '1.00 s', '3.00 s', '-')
    """
    if seconds is None:
        return UNKNOWN
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds)} s"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def waiting_time(seconds: float) -> str:
    """A waiting time in full seconds, or in minutes if it is above an hour.

    >>> waiting_time(42.7), waiting_time(185), waiting_time(19_200)
    ('42 s', '3 min 05 s', '5 h 20 min')
    """
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def times(value: float) -> str:
    """A factor.

    >>> times(4.5), times(1234.5), times(2**90), times(float("inf"))
    ('4.50x', '1,234x', '1.24e+27x', 'over 1e+308x')
    """
    if isinf(value):
        return "over 1e+308x"
    return f"{value:.2f}x" if value < 99.995 else f"{value:,.0f}x" if value < SCIENTIFIC else f"{value:.2e}x"


def ratio(before: float | None, after: float | None) -> str:
    """How many times smaller the second number is.

    >>> ratio(12, 4), ratio(4, 12), ratio(None, 1), ratio(0, 0), ratio(3, 0), ratio(10**400, 1)
    ('3.00x', '0.33x', '-', '-', 'infinite', 'over 1e+308x')
    """
    if before is None or after is None or (not before and not after):
        return UNKNOWN
    if not after:
        return "infinite"
    try:
        return times(before / after)
    except OverflowError:
        return times(inf)


def change(before: float, after: float, less: str, more: str) -> str:
    """How the second number compares with the first: `less` if it is smaller.

    >>> change(12, 4, "fewer", "more"), change(4, 12, "faster", "slower"), change(7, 7, "fewer", "more")
    ('3.00x fewer', '3.00x slower', 'as before')
    """
    if before == after:
        return "as before"
    return f"{ratio(before, after)} {less}" if after < before else f"{ratio(after, before)} {more}"


def dashed(sizes: Iterable[int]) -> str:
    """Ranks or other sizes in a row.

    >>> dashed([3, 4, 2]), dashed([])
    ('3-4-2', '')
    """
    return "-".join(map(str, sizes))


PRINTED = {UNKNOWN: "–", "infinite": "∞"}


def typographic(text: str) -> str:
    """The text of one number as a printed page shows it.

    >>> typographic("3.00x"), typographic("32.1 us"), typographic("-"), typographic("4 kB")
    ('3.00×', '32.1 µs', '–', '4 kB')
    """
    if text in PRINTED:
        return PRINTED[text]
    if text.endswith("x"):
        return f"{text[:-1]}×"
    return f"{text[:-2]}µs" if text.endswith(" us") else text
