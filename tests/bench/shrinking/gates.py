"""MARS with the training of `tnmars.shrink`, which separates the selection from the training; and its ensembles.

Cores have the relative rates of a stage, gates the paper's rate, both annealed over one run. Then the network is
pruned, and trained for one stage more. An ensemble averages over masks that are sampled at the last temperature, before
pruning.
"""

from __future__ import annotations

import time

import torch
from bench.shrinking.rows import Asked, Measured, measured, record
from bench.shrinking.tasks import Task
from bench.shrinking.training import stages
from torch import Tensor, nn

import tnmars
from tnmars.graph import counts
from tnmars.layer.module import layers
from tnmars.shrinking.batches import Reader
from tnmars.shrinking.scores import score_of

SELECTORS = {"hard": tnmars.Mars(pi=1e-2, alpha=-1.75), "soft": tnmars.Mars(pi=1e-1, alpha=-1.5)}
"""The paper's, for MNIST."""
STEPS, LAST = 18_000, 2_200
"""The steps with gates, and of the stage after pruning; for tests, `--steps` has both."""
SAMPLES = (10, 50)
"""The numbers of masks in ensembles."""


def mars(asked: Asked, given: Task) -> None:
    """Trained with gates, pruned, and trained for one stage more."""
    for words in SELECTORS:
        trained, spent = _trained(asked, given, words)
        clock = time.process_time()
        small = tnmars.prune(trained, simplify=False).eval()
        before, tested = measured(given, small, _lengths(asked)[0]), given.test(small)
        asked.say(f"{words}: {before.ratio:.1f}x, ranks {before.ranks}, validation {before.score:.4f} after pruning")
        last = _lengths(asked)[1]
        for done in stages(small, given, [last], asked.seed, asked.staircase):
            point = measured(given, small, before.steps + done)
        spent += time.process_time() - clock
        earlier = {"validation_before": before.score, "test_before": tested}
        record(asked, given, words, point, small, spent, points=1, stages=[before.steps, last], **earlier)


def ensemble(asked: Asked, given: Task) -> None:
    """The mean softmax over sampled masks, beside the pruned network alone."""
    for words in SELECTORS:
        trained, spent = _trained(asked, given, words)
        steps = _lengths(asked)[0]
        small = tnmars.prune(trained, simplify=False).eval()
        record(asked, given, f"{words}, 1 mask", measured(given, small, steps), small, spent, points=1, stages=[steps])
        for masks in SAMPLES:
            sampled = Sampled(trained, masks, asked.seed)
            point = _whole(given, trained, sampled, steps)
            record(asked, given, f"{words}, {masks} masks", point, sampled, spent, points=1, stages=[steps])


class Sampled(nn.Module):
    """The logarithm of the mean softmax of a network with gates, over masks that are sampled at its temperature."""

    def __init__(self, model: nn.Module, masks: int, seed: int):
        super().__init__()
        self.model, self.masks, self.seed = model, masks, seed

    @torch.no_grad()
    def forward(self, *inputs: Tensor) -> Tensor:
        random = torch.Generator().manual_seed(self.seed)
        self.model.train()  # gates are sampled while training; the network has no dropout and no BatchNorm
        total = torch.zeros(())
        for _ in range(self.masks):
            for _, layer in layers(self.model):
                assert layer.masks is not None
                noise = layer.masks.selector.noise(int(layer.masks.drawn), random)
                layer.masks.redraw_(noise, float(layer.masks.temperature), is_warm=False)
            total = total + self.model(*inputs).softmax(-1)
        self.model.eval()
        return (total / self.masks).log()


def _lengths(asked: Asked) -> tuple[int, int]:
    first, last = asked.steps or (STEPS, LAST)
    return first, last


def _whole(given: Task, model: nn.Module, sampled: Sampled, steps: int) -> Measured:
    """An ensemble needs all slices; its size is that of the network before pruning, without gates."""
    graphs = [layer.graph for _, layer in layers(model)]
    total = counts.total(graphs)
    ranks = {str(at): {name: bond.size for name, bond in graph.bonds.items()} for at, graph in enumerate(graphs)}
    score = score_of(given.evaluate(sampled)).value
    return Measured(total.cores + total.other, total.compression_with_other, ranks, score, None, steps)


_TRAINED: dict[object, tuple[nn.Module, float]] = {}


def _trained(asked: Asked, given: Task, words: str) -> tuple[nn.Module, float]:
    """A network trained with gates, and the CPU seconds that it took. The rows of a process share it."""
    steps = _lengths(asked)[0]
    key = asked.name, asked.seed, words, steps, tuple(asked.settings.items())
    if key not in _TRAINED:
        if given.gated is None:
            raise SystemExit(f"{asked.name} has no network with gates")
        torch.manual_seed(1000 + asked.seed)
        clock = time.process_time()
        model = given.gated(SELECTORS[words])
        schedule = tnmars.MaskSchedule(model, total_steps=steps, seed=asked.seed)
        samples = Reader.of(given.train, model).count()

        def after() -> None:
            schedule.step()
            if schedule.steps % 1000 == 0:
                asked.say(f"{words}: {schedule.steps} steps, {tnmars.expected(model).item():.0f} core entries expected")

        for _ in stages(
            model,
            given,
            [steps],
            asked.seed,
            asked.staircase,
            extra=lambda: tnmars.penalty(model) / samples,
            after=after,
        ):
            _TRAINED[key] = model, time.process_time() - clock
    return _TRAINED[key]
