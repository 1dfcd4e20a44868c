"""The results of all experiments in five lines: what reproduces, what does not, and what is better than the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tnmars.experiments.catalog import EXPERIMENTS
from tnmars.experiments.targets import judged

Summary = Mapping[str, Mapping[str, Any]]
LARGER = {"compression": True, "accuracy": True, "log_likelihood": True, "rank": False}
"""Figures that methods are compared by, and whether larger is better."""
MARS = ("mars", "soft", "hard", "paper")
"""What the names of variants begin with that are the paper's own method."""
LEAST = 3
"""The number of seeds below which a row is not called better."""


def five_lines(summaries: Mapping[str, Summary], reduced: Mapping[str, str]) -> list[str]:
    """Five sentences from the summaries of experiments; `reduced` says how some differ from the paper's."""
    rows = [(name, row) for name, summary in summaries.items() for row in judged(name, summary)]
    met = [name for name, row in rows if row[4] == "met"]
    missed = [f"{name}: {row[0]} is {row[2]} ({row[4]})" for name, row in rows if row[4].startswith("missed")]
    unknown = [name for name, row in rows if row[4] != "met" and not row[4].startswith("missed")]
    whole = [name for name in summaries if met.count(name) == sum(own == name for own, _ in rows) > 0]
    better = [words for name, summary in summaries.items() if name not in reduced for words in _better(name, summary)]
    small = [f"{name} ({words})" for name, words in reduced.items() if name in summaries]
    return [
        f"Reproduces: {len(met)} of {len(rows)} targets are met" + (f"; all of {_listed(whole)}." if whole else "."),
        f"Does not: {_listed(missed)}.",
        f"Better than the paper's own method: {_listed(better)}.",
        f"Not decided, because runs or seeds are missing: {len(unknown)} targets"
        + (f", of {_listed(list(dict.fromkeys(unknown)))}." if unknown else "."),
        f"In a reduced form, not comparable with the paper's figures: {_listed(small)}.",
    ]


def _better(name: str, summary: Summary) -> Iterator[str]:
    """For each row of the paper's own method, our best row that is better, if there is one."""
    for theirs, published in EXPERIMENTS[name].paper.items():
        if not theirs.startswith(MARS):
            continue
        ours = [variant for variant, entry in summary.items() if is_better(entry, published, _size(theirs), variant)]
        if ours:
            best = max(ours, key=lambda variant: _worth(summary[variant]))
            figures = _figures(summary[best], published)
            yield f"{name} `{best}` ({_words(figures)}) than `{theirs}` ({_words(_known(published))})"


def is_better(entry: Mapping[str, Any], published: Mapping[str, Any], size: str = "", variant: str = "") -> bool:
    """Whether our figures are nowhere worse than the published ones, and somewhere better.

    >>> entry = {"seeds": [0, 1, 2], "compression": {"mean": 210.0}, "accuracy": {"mean": 98.0}}
    >>> is_better(entry, {"compression": 205.0, "accuracy": 97.9})
    True
    >>> is_better(entry, {"compression": 205.0, "accuracy": 98.2})
    False
    """
    ours, theirs = _figures(entry, published), _known(published)
    if len(entry["seeds"]) < LEAST or ours.keys() != theirs.keys() or not ours or _size(variant) != size:
        return False
    gains = [(ours[key] - value) * (1 if LARGER[key] else -1) for key, value in theirs.items()]
    return min(gains) >= 0 < max(gains)


def _size(variant: str) -> str:
    """The end of a variant that says which problem it is of, such as the rank of the toy's teacher."""
    way, _, size = variant.partition("-")
    return size if way in ("mars", "dense", "shrink", "ard", "search") and size.isdigit() else ""


def _known(published: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(published[key]) for key in LARGER if key in published}


def _figures(entry: Mapping[str, Any], published: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(entry[key]["mean"]) for key in LARGER if key in published and key in entry}


def _worth(entry: Mapping[str, Any]) -> tuple[float, float]:
    return tuple(entry.get(key, {"mean": 0.0})["mean"] for key in ("accuracy", "log_likelihood"))


def _words(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in figures.items())


def _listed(each: Sequence[str]) -> str:
    return "; ".join(each) if each else "nothing"
