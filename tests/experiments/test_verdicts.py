"""The five lines at the top of the page of results follow from the records."""

from __future__ import annotations

from typing import Any

from tnmars.experiments.verdicts import five_lines


def row(seeds: int = 5, **figures: float) -> dict[str, Any]:
    return {"seeds": list(range(seeds)), **{key: {"mean": value} for key, value in figures.items()}}


def test_five_lines_say_what_reproduces_and_what_is_better() -> None:
    summaries: dict[str, Any] = {
        "mnist-2fc": {
            "soft": row(compression=142.0, accuracy=98.1, ensemble=98.8),
            "hard": row(compression=180.0, accuracy=97.8),
            "shrink": row(compression=231.0, accuracy=98.1),
            "shrink-to 141x": row(compression=142.0, accuracy=98.4),
        },
        "tt-rnn": {
            "gru": row(accuracy=98.0, compression=1.0),
            "tt-gru": row(accuracy=97.5, compression=22.0),
        },
        "imdb": {"mars-tt-6": row(3, compression=600.0, accuracy=91.0)},
    }
    lines = five_lines(summaries, {"imdb": "short reviews", "resnet110": "not run"})
    assert len(lines) == 5
    assert lines[0] == "Reproduces: 9 of 17 targets are met; all of tt-rnn."
    assert lines[1] == "Does not: mnist-2fc: hard, mean compression is 180 (missed by 10)."
    assert "`shrink-to 141x` (compression 142, accuracy 98.4) than `soft` (compression 141, accuracy 98.2)" in lines[2]
    assert "`shrink` (compression 231, accuracy 98.1) than `hard` (compression 205, accuracy 97.9)" in lines[2]
    assert "imdb" not in lines[2], "a reduced form is not compared"
    assert lines[3] == "Not decided, because runs or seeds are missing: 7 targets, of mnist-2fc; imdb."
    assert lines[4] == "In a reduced form, not comparable with the paper's figures: imdb (short reviews)."


def test_what_has_few_seeds_or_is_of_another_problem_is_not_better() -> None:
    few = {"mnist-2fc": {"hard": row(2, compression=300.0, accuracy=99.0)}}
    other = {"toy": {"shrink-16": row(10, rank=8.0, accuracy=99.0)}}
    assert "Better than the paper's own method: nothing." in five_lines(few, {})
    (line,) = [line for line in five_lines(other, {}) if line.startswith("Better")]
    assert "`mars-16`" in line and "`mars-8`" not in line
    assert five_lines({}, {})[1] == "Does not: nothing."
