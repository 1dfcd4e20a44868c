"""Several models as one: the average of what they say. It is an ordinary `nn.Module`, saved and summarized as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError
from tnmars.models.data import primary

AVERAGES = ("probabilities", "outputs")


class Ensemble(nn.Module):
    """Models that are called with the same inputs, and whose answers are averaged. `tnmars.ensemble` makes one."""

    def __init__(self, models: Sequence[nn.Module], average: str, dim: int):
        super().__init__()
        self.members = nn.ModuleList(models)
        self.average = average
        self.dim = dim

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        total: Tensor | None = None
        for at, model in enumerate(self.members):
            answer = self._answer(model(*inputs, **named), at)
            if total is None:
                total = answer
            else:  # one by one, so that two answers are held at most
                total = total + answer if self.average == "outputs" else torch.logaddexp(total, answer)
        assert total is not None
        count = len(self.members)
        return total / count if self.average == "outputs" else total - log(count)

    def _answer(self, output: Any, at: int) -> Tensor:
        """What one model says; its logarithm where probabilities are averaged."""
        found = primary(output)
        if len(found) != 1:
            text = f"model {at} of the ensemble returns {len(found)} tensors, of which none is called 'logits'."
            raise TnmarsError(Problem(text, "Put models into an ensemble whose answer is one tensor."))
        return found[0] if self.average == "outputs" else found[0].log_softmax(self.dim)

    def extra_repr(self) -> str:
        numbers = sum(value.numel() for value in self.parameters())
        return f"average of the {self.average} of {len(self.members)} models, {numbers:,} parameters"


def ensemble(models: Sequence[nn.Module], average: str = "probabilities", *, dim: int = -1) -> Ensemble:
    """One module that averages what several models say about the same input.

    With `average="probabilities"` the models' outputs are logits. The softmax of each is averaged, and **the
    logarithm of the average is returned**: it takes the place of a model's logits in `argmax`, in
    `torch.nn.functional.cross_entropy` and in `softmax`, which gives the averaged probabilities.

    The models are held as `members.0`, `members.1`, ..., not copied; parameters that they share are counted and saved
    once. `tnmars.summary` reports the size, `tnmars.save` writes one file, and `tnmars.load_into` puts it into an
    ensemble of fresh models. Training, pruning and export work as for any model.

    Args:
        models: Models that take the same inputs and return a tensor, or an object or mapping with `logits`.
        average: What is averaged: `"probabilities"`, or `"outputs"` for models that return numbers of another meaning.
        dim: The axis of the classes: -1, or 1 for images of logits.

    Returns:
        The module. It returns a tensor.

    Raises:
        TnmarsError: If there is no model, one is not an `nn.Module`, or `average` is not known.

    Example:
        >>> import torch, tnmars
        >>> both = tnmars.ensemble([nn.Linear(4, 3), nn.Linear(4, 3)])
        >>> bool(torch.allclose(both(torch.ones(2, 4)).exp().sum(-1), torch.ones(2)))
        True
    """
    if average not in AVERAGES:
        raise TnmarsError(f"average is {average!r}, but must be 'probabilities' or 'outputs'.")
    given: list[object] = list(models) if isinstance(models, Iterable) else []
    for at, model in enumerate(given):
        if not isinstance(model, nn.Module):
            raise TnmarsError(f"model {at} of the ensemble is of type {type(model).__name__}, not an nn.Module.")
    if not given:
        raise TnmarsError(Problem("an ensemble needs at least one model.", "Give a list: tnmars.ensemble([a, b])."))
    check_arguments(ensemble, {"dim": dim, "average": average, "models": given})
    return Ensemble(list(models), average, dim)
