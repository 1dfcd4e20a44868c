"""Numbers as text: every unit, and the values just below a change of unit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tnmars.text.numbers import brief, byte_count, change, duration, number, ratio, times, typographic, waiting_time


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (10**9, "1.0 GB"),
        (999_960_000_000, "1.0 TB"),
        (1234 * 10**12, "1,234.0 TB"),
        (None, "-"),
    ],
)
def test_bytes(value: int | None, text: str) -> None:
    assert byte_count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 us"),
        (9.994e-6, "9.99 us"),
        (9.996e-6, "10.0 us"),
        (99.96e-6, "100 us"),
        (999.4e-6, "999 us"),
        (999.6e-6, "1.00 ms"),
        (0.01553, "15.5 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1234.5, "1,234 s"),
        (None, "-"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(1e-9, 1e6))
def test_a_duration_is_within_half_a_unit_of_its_last_digit(seconds: float) -> None:
    written, unit = duration(seconds).split()
    digits = written.replace(",", "")
    factor = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    last = 10.0 ** -len(digits.partition(".")[2])
    assert abs(float(digits) * factor - seconds) <= 0.5000001 * last * factor
    assert unit == "s" or float(digits) < 1000


@given(st.integers(0, 10**16))
def test_bytes_are_within_half_a_unit_of_the_last_digit(value: int) -> None:
    written, unit = byte_count(value).split()
    factor = 1000 ** ["B", "kB", "MB", "GB", "TB"].index(unit)
    assert abs(float(written.replace(",", "")) * factor - value) <= (0 if unit == "B" else 0.0500001 * factor)
    assert unit == "TB" or float(written) < 1000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999_999, "999,999"),
        (10**6, "1.0 M"),
        (999_949_999, "999.9 M"),
        (999_950_000, "1.0 G"),
        (10**11, "100.0 G"),
        (10**12, "1,000,000,000,000"),
        (None, "-"),
    ],
)
def test_brief_numbers(value: int | None, text: str) -> None:
    assert brief(value) == text


def test_integers() -> None:
    assert (number(-1200), number(2**63), number(2**64 - 1)) == ("-1,200", "about 2^63", "about 2^63")
    assert number(2**63 - 1) == "9,223,372,036,854,775,807"


def test_factors() -> None:
    assert [times(value) for value in (0.0, 99.99, 99.996, 1e9, 12345.6)] == [
        "0.00x",
        "99.99x",
        "100x",
        "1.00e+09x",
        "12,346x",
    ]
    assert ratio(0, 5) == "0.00x"
    assert change(0, 5, "fewer", "more") == "infinite more"
    assert waiting_time(59.9) == "59 s"
    assert waiting_time(3599) == "59 min 59 s" and waiting_time(3600) == "1 h 00 min"


@given(st.floats(0, 1e300, allow_subnormal=False))
def test_typographic_text_of_a_number_has_no_letter_of_ascii_art(value: float) -> None:
    assert not re.search(r"x$| us$|^-$", typographic(times(value)) + typographic(duration(value)))


def test_only_the_sign_of_a_number_is_changed() -> None:
    assert typographic("1,234") == "1,234"
    assert typographic("max us") == "max µs"
    assert typographic(ratio(1, 0)) == "∞"
