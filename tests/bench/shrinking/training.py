"""The training of the controls: annealed stages with the rates of `tnmars.shrink`, but without cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

import tnmars
from tnmars.experiments.annealing import optimizer, set_rates_
from tnmars.shrinking.batches import Reader, Stream, reseed

if TYPE_CHECKING:
    from bench.shrinking.tasks import Task


def stages(
    model: nn.Module,
    given: Task,
    lengths: Sequence[int],
    seed: int,
    settings: tnmars.Staircase,
    *,
    extra: Callable[[], Tensor] | None = None,
    after: Callable[[], None] | None = None,
) -> Iterator[int]:
    """Trains a model in annealed stages; yields the steps so far after each, the model in evaluation mode.

    `extra` is added to the loss of each step, and `after` is called after it.
    """
    reader, done = Reader.of(given.train, model), 0
    stream, samples = Stream(reader, seed), reader.count()
    for number, length in enumerate(lengths):
        reseed(seed, "stage", number)
        model.train()
        adam = optimizer(model, settings, samples)
        for step, ((inputs, _), target) in enumerate(stream.take(length)):
            set_rates_(adam, step, length, settings)
            loss = given.loss(model(*inputs), target)
            (loss if extra is None else loss + extra()).backward()
            adam.step()
            adam.zero_grad()
            if after is not None:
                after()
        done += length
        model.eval()
        yield done
