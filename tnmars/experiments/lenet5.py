"""MNIST with LeNet-5: MARS, `shrink` and the methods that the paper compares with.

`dense` and networks with fixed ranks are trained as in a stage of `tnmars.Stages`. MARS follows the paper's rule: Adam,
one rate for cores and gates, gates from the start, pruned at the end. `evbmf` is Kim et al. (2016): EVBMF gives the
ranks of the trained dense network, which is decomposed and fine-tuned. `musco` is Gusak et al. (2019): ranks fall part
of the way to those of EVBMF, and the network is fine-tuned, again and again. What chooses anything does so on the last
5,000 training images.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.decomposing.evbmf import evbmf_rank
from tnmars.experiments import mnist as digits
from tnmars.experiments.idx import Mnist, mnist
from tnmars.experiments.jobs import network_name
from tnmars.experiments.lenet import BATCH, CONV, IMAGE, WIDE, lenet, normalized
from tnmars.experiments.loop import RunOptions, Settings, trained
from tnmars.experiments.mnist import Digits, probabilities
from tnmars.experiments.paths import points, ratios, shrunk
from tnmars.experiments.problems import compression, held_out, vectors
from tnmars.experiments.task import live_ranks
from tnmars.layer.module import TNModule, layers
from tnmars.models.from_dense import from_dense
from tnmars.pruning.prune_model import prune
from tnmars.select import Mars, Selector
from tnmars.ship.freezing import freeze
from tnmars.store.model import load_into, save
from tnmars.timing.clock import Action, in_turns, inference

EPOCHS = {"dense": 20, "fixed": 40, "gated": 75, "tuned": 4}
"""The number of epochs of each kind of training; `tuned` are those of a step of MUSCO."""
RATE, DECAY, COOLING = 1e-2, 0.98, 0.97
"""The learning rate of MARS, and the factors of rate and temperature per epoch. The paper does not give them for this
network. The rate is that of its notebooks for another one; the factors are the better of two pairs that were compared
there for a quarter of their 300 epochs: the rate falls less than the temperature, so that gates can still settle."""
FIXED = {
    "trn-10": ("trn", (10, 10, 10)),
    "trn-15": ("trn", (15, 15, 15)),
    "trn-20": ("trn", (20, 20, 20)),
    "ring-20x": ("ring", (14, 13, 8)),
    "ring-40x": ("ring", (10, 9, 5)),
}
"""Families and ranks."""
CONTROLS = ("ring-20x", "ring-40x")
"""The start ranks of `shrink-ring` times one factor, as close to its budgets as whole ranks allow (20.5x and 40.1x).
They train on the same images as `shrink-ring`."""
GATED: dict[str, tuple[str, Selector]] = {
    "mars-tucker": ("tucker", Mars(pi=1e-2, alpha=0.0)),
    "mars-ring": ("ring", Mars(pi=1e-2, alpha=0.0)),
}
PATHS = {"shrink-tucker": ("tucker", ("10x", "20x")), "shrink-ring": ("ring", ("20x", "40x"))}
"""Families and budgets."""
VARIANTS = ("dense", "evbmf", "musco", *FIXED, *GATED, *PATHS)
PAPER: dict[str, dict[str, Any]] = {
    "dense": {"compression": 1.0, "accuracy": 99.2, "speed": 1.0},
    "evbmf": {"compression": 2.0, "accuracy": 99.1, "speed": 0.58},
    "trn-10": {"compression": 39.0, "accuracy": 98.6, "speed": 0.48},
    "trn-15": {"compression": 18.0, "accuracy": 99.2, "speed": 0.97},
    "trn-20": {"compression": 11.0, "accuracy": 99.3, "speed": 0.73},
    "mars-tucker": {"compression": 10.0, "accuracy": 99.0, "speed": 1.19, "ensemble": 99.5},
}
WEAKENED, MOST_STEPS, TOLERATED = 0.7, 6, 0.1
"""MUSCO: the share of the way to the ranks of EVBMF in a step, the number of steps, and how many points the validation
accuracy may be below the best."""
ROUNDS, TIMED, CALL = 5, 30.0, 1000
"""Of the speed: rounds, seconds for each network at most, and images per call."""


def run(variant: str, seeds: Sequence[int], folder: Path, options: RunOptions) -> list[dict[str, Any]]:
    """Trains a network for each seed. The small one is in the folder."""
    data = _read(options.data)
    return [_Seeded(variant, seed, folder, options, data).result() for seed in seeds]


def _read(given: str | None) -> Mnist:
    data = mnist(given)
    return replace(data, train_x=normalized(data.train_x), test_x=normalized(data.test_x))


def network(variant: str) -> nn.Sequential:
    """The network that a variant begins with."""
    if variant in GATED:
        family, selector = GATED[variant]
        return lenet(family, selector=selector)
    if variant in PATHS:
        return lenet(PATHS[variant][0])
    return lenet(*FIXED[variant]) if variant in FIXED else lenet()


@dataclass(frozen=True)
class _Seeded:
    """The run of one seed."""

    variant: str
    seed: int
    folder: Path
    options: RunOptions
    data: Mnist

    def result(self) -> dict[str, Any]:
        torch.manual_seed(1000 + self.seed)
        model = network(self.variant)
        if self.variant in PATHS:
            return self._path(model)
        if self.variant in GATED:
            return self._gated(model)
        if self.variant in ("evbmf", "musco"):
            return self._decomposed(model)
        data = self._kept() if self.variant in CONTROLS else self.data
        history = self._train(model, "", data, epochs=self._epochs("fixed" if self.variant in FIXED else "dense"))
        return {**self._judged(model), "training_images": len(data.train_y), "history": history}

    def _epochs(self, kind: str) -> int:
        return self.options.epochs or EPOCHS[kind]

    def _train(self, model: nn.Module, name: str, data: Mnist, epochs: int) -> list[dict[str, Any]]:
        """One annealed training, in a folder of its own if it has a name."""
        settings = Settings(epochs=epochs, batch=BATCH, anneals=True, judge_every=5, seed=self.seed)
        return trained(Digits(model, data), settings, self.folder / name, self.options, {"variant": self.variant})

    def _gated(self, model: nn.Module) -> dict[str, Any]:
        epochs = self._epochs("gated")
        settings = Settings(
            epochs=epochs,
            batch=BATCH,
            lr=RATE,
            lr_decay=DECAY ** (EPOCHS["gated"] / epochs),
            temperature_decay=COOLING ** (EPOCHS["gated"] / epochs),
            judge_every=5,
            seed=self.seed,
        )
        history = trained(Digits(model, self.data), settings, self.folder, self.options, {"variant": self.variant})
        found = {"ranks": live_ranks(model), "probabilities": probabilities(model), "history": history}
        return {**self._judged(prune(model)), "training_images": len(self.data.train_y), **found}

    def _path(self, model: nn.Module) -> dict[str, Any]:
        budgets = ratios(PATHS[self.variant][1])
        curve = shrunk(model, self._learnable(), self.seed, self.folder, self.options, budget=list(budgets.values()))
        images = {"training_images": len(self._kept().train_y)}
        return {"points": points(curve, budgets, lambda small, words: {**self._judged(small, words), **images})}

    def _decomposed(self, model: nn.Sequential) -> dict[str, Any]:
        """The trained network, decomposed once by EVBMF, or step by step."""
        data, learnable = self._kept(), self._learnable()
        images = {"training_images": len(data.train_y)}
        self._train(model, "dense", data, self._epochs("dense"))
        if self.variant == "evbmf":
            model = decomposed(model, {CONV: "evbmf", WIDE: "evbmf"})
            self._train(model, "tuned", data, MOST_STEPS * self._epochs("tuned"))  # as many as MUSCO has in all
            return {**self._judged(model), **images, "ranks": live_ranks(model)}
        steps: list[dict[str, Any]] = []
        models: list[nn.Module] = []
        for number in range(1, MOST_STEPS + 1):
            model = decomposed(model, weakened(model))
            self._train(model, f"step-{number}", data, self._epochs("tuned"))
            models.append(copy.deepcopy(model))
            validation = 100 * learnable.evaluate(model)[0]
            steps.append({"compression": compression(model), "validation": validation, "ranks": live_ranks(model)})
        least = max(step["validation"] for step in steps) - TOLERATED
        at = max(place for place, step in enumerate(steps) if step["validation"] >= least)
        return {**self._judged(models[at]), **images, "ranks": steps[at]["ranks"], "steps": steps}

    def _kept(self) -> Mnist:
        """The data without the images for validation."""
        kept = len(self.data.train_y) - held_out(len(self.data.train_y))
        return replace(self.data, train_x=self.data.train_x[:kept], train_y=self.data.train_y[:kept])

    def _learnable(self) -> Any:
        data = self.data
        return vectors(data.train_x, data.train_y, data.test_x, data.test_y, held_out(len(data.train_y)), BATCH)

    def _judged(self, small: nn.Module, words: str = "") -> dict[str, Any]:
        """The figures of a finished network, which is written to the folder. It is timed later; see `speeds`."""
        small.eval()
        save(small, self.folder / network_name(words))
        accuracy = digits.accuracy(digits.logits(small, self.data.test_x), self.data.test_y)
        return {"accuracy": accuracy, "compression": compression(small)}


def timed(file: Path, variant: str, data: str | None = None) -> tuple[float, float]:
    """The CPU seconds that a dense network and the frozen one in a file take for the test images, measured in turns."""
    small, images = load_into(network(variant), file).eval(), _read(data).test_x
    frozen = freeze(small, "fast", example=images[:CALL], tune=True) if any(layers(small)) else small
    parts = torch.split(images, CALL)

    def action(model: nn.Module) -> Action:
        return inference(lambda *given: torch.cat([model(part) for part in given]), parts)

    with torch.random.fork_rng():
        dense = lenet().eval()
    before, now = in_turns([action(dense), action(frozen)], rounds=ROUNDS, budget=TIMED, turn=0.0)
    return before, now


# --- decompositions of the trained network ---------------------------------------------------------------------------


def decomposed(model: nn.Sequential, ranks: Mapping[str, Any]) -> nn.Sequential:
    """A copy whose second convolution is Tucker-2 and whose first linear layer has two factors, with these ranks."""
    made = copy.deepcopy(model)
    for name, family in ((CONV, "tucker2"), (WIDE, "lowrank")):
        dense = _torch_layer(model.get_submodule(name))
        setattr(made, name, from_dense(dense, family, ranks=ranks[name], batch=BATCH, image=IMAGE))
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def weakened(model: nn.Sequential) -> dict[str, tuple[int, ...]]:
    """Ranks part of the way from the present ones to those of EVBMF, at least one smaller each.

    EVBMF looks at the layer in the bases of its factors, as MUSCO does: at the core of a Tucker-2, whose unfoldings
    have full rank, and not at the weight, which has no noise beyond its rank.
    """
    conv = _torch_layer(model.get_submodule(CONV)).weight.detach()
    wide = _torch_layer(model.get_submodule(WIDE)).weight.detach()
    graphs = {name: layer.graph for name, layer in layers(model)}
    inside, outside = (
        [bond.size for bond in graphs[CONV].bonds.values()] if CONV in graphs else [conv.shape[1], conv.shape[0]]
    )
    (rank,) = [bond.size for bond in graphs[WIDE].bonds.values()] if WIDE in graphs else [min(wide.shape)]
    taps = conv[0, 0].numel()
    return {
        CONV: (
            _between(conv.transpose(0, 1).flatten(1), inside, outside * taps),
            _between(conv.flatten(1), outside, inside * taps),
        ),
        WIDE: (_between(wide, rank, max(wide.shape)),),
    }


def _between(matrix: Tensor, rank: int, columns: int) -> int:
    squares = torch.linalg.svdvals(matrix.double()).square()[:rank]
    least = evbmf_rank(squares, rank, columns)
    return max(1, min(rank - 1, ceil(rank - WEAKENED * (rank - least))))


def _torch_layer(layer: nn.Module) -> Any:
    """The layer as torch's own, with a dense weight."""
    if not isinstance(layer, TNModule):
        return layer
    weight = layer.dense().detach()
    dense: nn.Linear | nn.Conv2d = nn.Linear(800, 500) if weight.dim() == 2 else nn.Conv2d(20, 50, 5)
    assert layer.bias is not None and dense.bias is not None
    with torch.no_grad():
        dense.weight.copy_(weight)
        dense.bias.copy_(layer.bias)
    return dense


def ensemble(files: Sequence[Path], variant: str, data: str | None = None) -> float:
    """The accuracy of the mean of several networks' probabilities."""
    images = _read(data)
    total = torch.zeros(len(images.test_y), 10)
    for file in files:
        total += digits.logits(load_into(network(variant), file).eval(), images.test_x).softmax(-1)
    return digits.accuracy(total, images.test_y)
