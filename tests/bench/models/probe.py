"""A linear probe of sentence vectors: is a sentence positive or negative?"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

PENALTIES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)


def polarity(
    vectors: Mapping[str, Tensor], labels: Mapping[str, Tensor], trained_on: Mapping[str, Tensor] | None = None
) -> float:
    """The percentage of test sentences with the right polarity.

    Labels 0 and 1 are negative, 3 and 4 positive, and 2 is left out. A logistic regression is trained on the vectors
    of the training sentences, with the penalty that is best on the dev sentences.

    Args:
        vectors: By split: train, dev, test.
        labels: By split.
        trained_on: Other vectors to train on and to choose the penalty with, such as those of the dense network.
    """
    known = trained_on or vectors
    centre, scale = known["train"].double().mean(0), known["train"].double().std(0)

    def part(given: Mapping[str, Tensor], split: str) -> tuple[Tensor, Tensor]:
        clear = labels[split] != 2
        return (given[split].double()[clear] - centre) / scale, (labels[split][clear] > 2).double()

    fitted = [_fit(*part(known, "train"), penalty) for penalty in PENALTIES]
    best = max(fitted, key=lambda weight: _right(weight, *part(known, "dev")))
    return _right(best, *part(vectors, "test"))


def _right(weight: Tensor, x: Tensor, y: Tensor) -> float:
    return 100 * float(((_scores(weight, x) > 0) == (y > 0.5)).double().mean())


def _scores(weight: Tensor, x: Tensor) -> Tensor:
    return x @ weight[:-1] + weight[-1]


def _fit(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    """The weights, the last of them the bias, that minimize cross-entropy and an L2 penalty on all but the bias."""
    weight = torch.zeros(x.shape[1] + 1, dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(_scores(weight, x), y) + penalty * weight[:-1].square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach()
