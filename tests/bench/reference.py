"""A training step of the paper's 2FC-Net with masks: our layers against the reference's way, written as plain torch.

The reference pushes the input through the cores from left to right, at full rank, and multiplies the activations with
the mask of a bond after each core. `python tests/bench/reference.py` prints the times of one interleaved run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tnmars.experiments.mnist import RANK, network
from tnmars.experiments.worker import versions
from tnmars.files import write_text
from tnmars.timing.clock import Action, in_turns, threads
from tnmars.training.objective import param_groups, penalty
from tnmars.training.schedule import MaskSchedule

BATCH, COUNT = 128, 60_000
PI, ALPHA, TEMPERATURE = 0.1, -1.5, 0.1
ROUNDS, WARM_STEPS = 100, 200
WANTED = 6.0
"""How many times faster than the chain a step should be."""


class Chain(nn.Module):
    """A tensor train as the reference runs it: cores `[r, n, m, s]`, one mask after each but the last."""

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int], rank: int):
        super().__init__()
        ranks = [1, *[rank] * (len(inputs) - 1), 1]
        count = len(inputs)
        deviation = (2 / (torch.tensor(inputs).prod() + torch.tensor(outputs).prod())) ** (1 / (2 * count))
        deviation = deviation * torch.tensor(ranks).prod() ** (-1 / (2 * count))
        shapes = zip(ranks, inputs, outputs, ranks[1:], strict=False)
        self.cores = nn.ParameterList([deviation * torch.randn(shape) for shape in shapes])
        self.logits = nn.ParameterList([ALPHA + 1e-2 * torch.randn(rank) for _ in range(count - 1)])
        self.bias = nn.Parameter(1e-3 * torch.randn(int(torch.tensor(outputs).prod())))

    def forward(self, x: Tensor) -> Tensor:
        held = x.reshape(len(x), 1, 1, -1)  # rows, outputs so far, rank, inputs to come
        for at, core in enumerate(self.cores):
            before, inside, _, after = core.shape
            parts = held.reshape(*held.shape[:2], before, inside, -1)
            held = torch.einsum("bmrnk,rnos->bmosk", parts, core)
            held = held.reshape(len(x), -1, after, held.shape[-1])
            if at < len(self.logits):
                held = held * self._mask(self.logits[at]).reshape(-1, 1)
        return held.reshape(len(x), -1) + self.bias

    @staticmethod
    def _mask(logits: Tensor) -> Tensor:
        """A relaxed sample of hard concrete gates, drawn again at each call."""
        relaxed = torch.sigmoid((logits + torch.logit(torch.rand_like(logits))) / TEMPERATURE)
        return (relaxed * 1.2 - 0.1).clamp(0.0, 1.0)

    def prior(self) -> Tensor:
        """What the loss is charged with: masks by their probabilities, cores by their squares."""
        odds = torch.tensor((1 - PI) / PI).log()
        masks = sum((torch.sigmoid(logits).sum() for logits in self.logits), torch.zeros(()))
        return odds * masks + 0.005 * sum((core.square().sum() for core in self.cores), torch.zeros(()))


def chain_step(x: Tensor, y: Tensor) -> Action:
    """A step of the reference's way."""
    first, second = Chain((7, 4, 7, 4), (5, 5, 5, 5), RANK), Chain((25, 25), (5, 2), RANK)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-2, fused=True)

    def action() -> None:
        scores = second(torch.relu(first(x)))
        torch.autograd.backward(cross_entropy(scores, y) + (first.prior() + second.prior()) / COUNT)
        optimizer.step()
        optimizer.zero_grad()

    return action


def our_step(x: Tensor, y: Tensor) -> Action:
    """A step of the compiled network, as `tnmars reproduce mnist-2fc` takes it."""
    model = network("soft")
    optimizer = torch.optim.Adam(param_groups(model, lr=1e-2), fused=True)
    schedule = MaskSchedule(model, 10**9, seed=0)

    def action() -> None:
        torch.autograd.backward(cross_entropy(model(x), y) + penalty(model) / COUNT)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    return action


def main(given: list[str] | None = None) -> int:
    """Prints the times of a step, and their ratio; the status tells whether it is what is wanted."""
    parser = argparse.ArgumentParser("python tests/bench/reference.py")
    parser.add_argument("--json", type=Path, help="write the times to this file, in seconds")
    asked = parser.parse_args(given)
    torch.manual_seed(0)
    x, y = torch.rand(BATCH, 784), torch.randint(0, 10, (BATCH,))
    with threads(1):
        ours, again = our_step(x, y), our_step(x, y)
        for _ in range(WARM_STEPS):
            ours()
            again()
        # medians, because what a step costs depends on the gates that are drawn
        actions = [chain_step(x, y), ours, again]
        chain, first, second = in_turns(actions, rounds=ROUNDS, budget=inf, turn=0.0, result=median)
    ratio = chain / max(first, second)
    print(f"2FC-Net, ranks {RANK}, batch {BATCH}, one thread, a step of training with masks, optimiser included:")
    print(f"  left-to-right chain, masks on the activations (plain torch): {chain * 1e3:.1f} ms")
    print(f"  tnmars, open slices alone: {first * 1e3:.1f} ms, and again {second * 1e3:.1f} ms")
    print(f"  {ratio:.1f}x faster ({WANTED:g}x wanted: {'met' if ratio >= WANTED else 'MISSED'})")
    if asked.json:
        found = {"chain": chain, "ours": [first, second], "ratio": ratio, "wanted": WANTED}
        about = {"batch": BATCH, "rounds": ROUNDS, "versions": versions()}
        write_text(asked.json, json.dumps(found | about, indent=1) + "\n")
    return 0 if ratio >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
