"""TT-GRU on sequential MNIST (Yang et al., 2017): images are read row by row, and the input weights are a tensor train.

The input weights of a GRU with 128 states, 28 to 384, are (2, 2, 7) x (8, 8, 6) with rank 4: 22x fewer numbers.
`shrink` begins with rank 8. All train as in a stage of `tnmars.Stages`, for 5 epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tnmars import families
from tnmars.experiments.idx import Mnist, mnist
from tnmars.experiments.loop import RunOptions, Settings, trained
from tnmars.experiments.mnist import Digits, accuracy, logits
from tnmars.experiments.paths import points, shrunk
from tnmars.experiments.problems import held_out, vectors
from tnmars.graph.counts import count
from tnmars.layer.module import layers
from tnmars.models.parametrize import parametrize_

HIDDEN, BATCH, EPOCHS = 128, 128, 5
INPUTS, OUTPUTS = (2, 2, 7), (8, 8, 6)
RANKS = {"tt-gru": 4, "shrink": 8}
RATIO = 40
"""The compression of the input weights that `shrink` goes to."""
VARIANTS = ("gru", *RANKS)


class Rows(nn.Module):
    """A GRU over the rows of an image; its last state is classified."""

    def __init__(self, rank: int | None = None):
        super().__init__()
        self.gru = nn.GRU(28, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, 10)
        if rank is not None:
            graph = families.tt("linear", inputs=INPUTS, outputs=OUTPUTS, rank=rank, options={"bias": False})
            parametrize_(self.gru, "weight_ih_l0", graph, init="glorot")

    def forward(self, pixels: Tensor) -> Tensor:
        """From rows of pixels to logits."""
        _, last = self.gru(pixels.reshape(-1, 28, 28))
        found: Tensor = self.head(last[0])
        return found


def input_compression(model: nn.Module) -> float:
    """How many times fewer numbers the input weights have."""
    return next((count(layer.graph).compression for _, layer in layers(model)), 1.0)


def run(variant: str, seeds: Sequence[int], folder: Path, options: RunOptions) -> list[dict[str, Any]]:
    """Trains a network for each seed."""
    images = mnist(options.data)
    return [_run(variant, seed, folder, options, images) for seed in seeds]


def _run(variant: str, seed: int, folder: Path, options: RunOptions, images: Mnist) -> dict[str, Any]:
    torch.manual_seed(1000 + seed)
    model = Rows(RANKS.get(variant))

    def judged(small: nn.Module, words: str = "") -> dict[str, Any]:
        scores = logits(small.eval(), images.test_x)
        return {"accuracy": accuracy(scores, images.test_y), "compression": input_compression(small)}

    if variant == "shrink":
        data = images.train_x, images.train_y, images.test_x, images.test_y
        (layer,) = [layer for _, layer in layers(model)]
        other = sum(value.numel() for value in model.parameters()) - count(layer.graph).cores
        budget = other + count(layer.graph).dense // RATIO
        learnable = vectors(*data, held_out(len(images.train_y)), BATCH)
        curve = shrunk(model, learnable, seed, folder, options, budget=[budget])
        return {"points": points(curve, {f"{RATIO}x inputs": budget}, judged)}
    settings = Settings(epochs=options.epochs or EPOCHS, batch=BATCH, anneals=True, judge_every=5, seed=seed)
    history = trained(Digits(model, images), settings, folder, options, {"variant": variant})
    return {**judged(model), "history": history}
