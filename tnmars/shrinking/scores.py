"""What `evaluate` returns, as a score with its standard error; and how far below the best a score may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from operator import index
from typing import Any

import numpy
import torch
from torch import Tensor

from tnmars.errors import Problem, TnmarsError
from tnmars.layer.distributed import from_first_rank, has_ranks
from tnmars.models.data import as_float
from tnmars.shrinking.settings import Staircase

Given = float | tuple[float, int] | Tensor
"""A score, a score with the number of its samples, or the scores of all samples."""

FIX = "A score is a number, larger is better; a pair (score, samples); or a tensor with the score of each sample."


@dataclass(frozen=True)
class Score:
    """A score; larger is better."""

    value: float
    error: float | None = None
    """Its standard error, if it is known."""


class NotFiniteError(TnmarsError):
    """A loss or a score that is not a finite number."""


def score_of(given: Any, samples: int | None = None, *, verb: str = "evaluate returned") -> Score:
    """What `evaluate` returned, or what was reported, as a score. `verb` begins the text of errors.

    The standard error of a tensor or an array with the score of each sample is that of their mean. If all are 0 or 1,
    they are wrong and right answers. A number is a share of right answers if it is from 0 to 1, and a percentage if it
    is above 1 and at most 100. The standard error of a share is that of a binomial one, with one right and one wrong
    answer added to the samples, so that it is not 0 for a perfect score. Of any other number, and without a number of
    samples, it is not known.

    Raises `TnmarsError` if it is not a number, and `NotFiniteError` if it is not finite.

    >>> score_of((0.5, 100)), score_of(50.0, 100).error, score_of(-2.5, 100).error
    (Score(value=0.5, error=0.05), 5.0, None)
    """
    if isinstance(given, Score):
        return given
    if isinstance(given, numpy.ndarray):
        given = torch.as_tensor(given)
    if isinstance(given, Tensor) and given.dim() == 1 and given.numel() > 1:
        values = given.detach().double()
        mean = _number(float(values.mean()), given, verb)
        is_share = bool(((values == 0.0) | (values == 1.0)).all())
        return Score(mean, _binomial(mean, len(values)) if is_share else float(values.std() / sqrt(len(values))))
    if isinstance(given, (tuple, list)) and len(given) == 2:
        given, samples = given[0], _count(given[1])
    value = _number(given, given, verb)
    return Score(value, None if samples is None else _binomial(value, samples))


def agreed(parse: Callable[[], Score]) -> Score:
    """Rank 0's score, on every rank. Raises `NotFiniteError` on all of them if it is not finite."""
    if not has_ranks():
        return parse()
    try:
        found = parse()
    except NotFiniteError:  # all ranks must know
        found = Score(nan)
    figures = torch.tensor([found.value, nan if found.error is None else found.error], dtype=torch.float64)
    value, error = map(float, from_first_rank(figures))
    return Score(score_of(value).value, None if error != error else error)


def _number(value: Any, given: Any, verb: str) -> float:
    try:
        number = as_float(value)
    except TypeError:
        what = f"a {type(given).__name__}"
        raise TnmarsError(Problem(f"{verb} {what}, which is not a score.", FIX)) from None
    if not isfinite(number):
        raise NotFiniteError(Problem(f"{verb} {number}, which is not a finite number.", FIX))
    return number


def _count(samples: Any, name: str = "the number of samples") -> int:
    try:
        number = 0 if isinstance(samples, bool) else index(samples)
    except TypeError:
        number = 0
    if number < 1:
        raise TnmarsError(f"{name} is {samples!r}, but must be a whole number above 0.")
    return number


def _binomial(value: float, samples: int) -> float | None:
    if not 0.0 <= value <= 100.0:
        return None
    scale = 1.0 if value <= 1.0 else 100.0
    share = (value / scale * samples + 1.0) / (samples + 2.0)
    return round(scale * sqrt(share * (1.0 - share) / samples), 12)


@dataclass(frozen=True)
class Tolerance:
    """How far below the best score a point may be to be accepted, and how far to end the path."""

    accept: float
    stop: float
    words: str
    """The first of these in words."""


def tolerance(scores: Sequence[Score], max_drop: float | None, settings: Staircase) -> Tolerance | None:
    """What is allowed below the best of some scores; None if its standard error is needed and not known."""
    best = max(scores, key=lambda score: score.value)
    if max_drop is not None:
        widest = max_drop * (settings.stop / settings.accept if settings.accept else 1.0)
        return Tolerance(max_drop, widest, f"at most {max_drop:g} below")
    if best.error is None:
        return None
    accept = settings.accept * best.error
    words = f"within {settings.accept:g} standard errors ({accept:.2g}) of"
    return Tolerance(accept, settings.stop * best.error, words)


def unknown_error(function: str) -> TnmarsError:
    """The error of a score without a standard error, where one is needed by `shrink` or `Stages`."""
    text = "the standard error of the score is not known, so nothing says which drop of it matters."
    how = {
        "shrink": "return (score, samples) from evaluate, with a score from 0 to 1 or in percent; or",
        "Stages": "report a score from 0 to 1 or in percent with its samples, stage.report(score, samples=...); or",
    }[function]
    verb = {"shrink": "", "Stages": "report "}[function]
    return TnmarsError(
        Problem(text, f"Give max_drop=... or budget=...; or {how} {verb}a tensor with the score of each sample.")
    )


def check_samples(samples: int | None, name: str = "samples") -> int | None:
    """A number of samples as given by a user. Raises `TnmarsError`."""
    return None if samples is None else _count(samples, name)
