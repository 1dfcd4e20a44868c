"""Rows of text as tables."""

from __future__ import annotations

import pytest

from tnmars.text.tables import aligned, markdown

ROWS = [["", "before", "after"], ["parameters", "1,200", "7"], ["x", "-", ""]]


def test_columns_are_aligned_left_unless_asked() -> None:
    assert aligned(ROWS) == ["            before  after", "parameters  1,200   7", "x           -"]


def test_the_last_alignment_holds_for_further_columns() -> None:
    assert aligned(ROWS, "<>") == aligned(ROWS, "<>>")
    assert aligned(ROWS, "<>") == ["            before  after", "parameters   1,200      7", "x                -"]


def test_markdown() -> None:
    assert markdown(ROWS).splitlines() == [
        "|  | before | after |",
        "| --- | --- | --- |",
        "| parameters | 1,200 | 7 |",
        "| x | - |  |",
    ]


def test_padded_markdown_has_lines_of_one_width() -> None:
    lines = markdown([*ROWS, ["a|b", "c", "d"]], padded=True).splitlines()
    assert lines[0] == "|            | before | after |"
    assert lines[1] == "|------------|--------|-------|"
    assert lines[-1] == "| a\\|b       | c      | d     |"
    assert len({len(line) for line in lines}) == 1


def test_rows_of_other_lengths_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="shorter"):
        aligned([["a", "b"], ["c"]])
