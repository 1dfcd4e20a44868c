"""Scores and their standard errors, against simulated answers; and what is not a score."""

from __future__ import annotations

from math import sqrt

import numpy
import pytest
import torch

import tnmars
from tnmars import TnmarsError
from tnmars.shrinking.scores import Score, score_of, tolerance


@pytest.mark.parametrize("share", [0.3, 0.9, 0.98])
def test_the_standard_error_of_a_share_is_the_spread_of_repeated_samples(share: float) -> None:
    random = torch.Generator().manual_seed(0)
    scores = (torch.rand(4000, 1000, generator=random) < share).double().mean(1)
    found = score_of((share, 1000)).error
    assert found is not None
    assert found == pytest.approx(float(scores.std()), rel=0.05)
    percent = score_of(100 * share, 1000).error
    assert percent == pytest.approx(100 * found)


def test_a_perfect_score_has_an_error() -> None:
    found = score_of((1.0, 500)).error
    assert found is not None and 0 < found < 3 / 500


def test_right_and_wrong_answers_one_by_one_are_a_share() -> None:
    answers = torch.tensor([1.0] * 97 + [0.0] * 3)
    assert score_of(answers) == score_of((0.97, 100))
    assert score_of(torch.ones(1000)).error == score_of((1.0, 1000)).error != 0


def test_the_scores_of_samples_give_their_mean_and_its_error() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(0), requires_grad=True)
    found = score_of(values)
    assert found.value == pytest.approx(values.mean().item())
    assert found.error == pytest.approx(values.std().item() / 20)


@pytest.mark.parametrize("given", [0.5, torch.tensor(0.5), torch.tensor([0.5]), 1])
def test_a_number_alone_has_no_error(given: object) -> None:
    assert score_of(given).error is None
    assert score_of(given, 100).error is not None


@pytest.mark.parametrize("given", [-3.0, 250.0, (-0.1, 50)])
def test_a_number_that_is_no_share_has_no_error(given: object) -> None:
    assert score_of(given, 100).error is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "evaluate returned a NoneType"),
        ("good", "evaluate returned a str"),
        ("0.5", "evaluate returned a str"),
        (torch.ones(2, 2), "evaluate returned a Tensor"),
        (float("nan"), "evaluate returned nan"),
        (torch.tensor([1.0, torch.inf]), "evaluate returned inf"),
        ((0.5, 0), "the number of samples is 0"),
        ((0.5, 1.5), r"the number of samples is 1\.5"),
        ((0.5, 10, 3), "evaluate returned a tuple"),
    ],
)
def test_what_is_no_score_is_refused(given: object, words: str) -> None:
    with pytest.raises(TnmarsError, match=words):
        score_of(given)


def test_numbers_of_numpy_are_numbers() -> None:
    assert score_of((numpy.float64(0.9), numpy.int64(100))) == score_of((0.9, 100))
    right = numpy.arange(50) % 3 == 0
    assert score_of(right) == score_of(torch.from_numpy(right))
    assert score_of(numpy.array(0.5), 100) == score_of(0.5, 100)


def test_a_drop_that_is_allowed_replaces_standard_errors() -> None:
    settings = tnmars.Staircase()
    scores = [Score(0.9, 0.01), Score(0.95, 0.02)]
    found = tolerance(scores, None, settings)
    assert found is not None and (found.accept, found.stop) == (0.04, 0.1)
    found = tolerance(scores, 0.2, settings)
    assert found is not None and (found.accept, found.stop) == (0.2, 0.5)
    assert tolerance([Score(0.9)], None, settings) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rate": 0}, "rate is 0, but must be a number above 0"),
        ({"factor": 1}, "factor is 1, but must be a number above 0 and below 1"),
        ({"first": 0.5}, r"first is 0\.5, but must be a whole number of at least 1"),
        ({"decay": -1}, "decay is -1, but must be a number of at least 0"),
        ({"accept": 6.0}, "stop is 5, but must not be below accept, 6"),
        ({"other_rate": "fast"}, "other_rate is 'fast'"),
        ({"stop": float("nan")}, "stop is nan"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], words: str) -> None:
    with pytest.raises(TnmarsError, match=words):
        tnmars.Staircase(**settings)


def test_the_error_of_shares_is_near_the_textbook_formula() -> None:
    assert score_of((0.98, 5000)).error == pytest.approx(sqrt(0.98 * 0.02 / 5000), rel=0.01)
