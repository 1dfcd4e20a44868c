"""The cases that are timed: a graph, the torch layer that it stands for, an input, and the ratios to reach.

A case is a value; nothing is built until it is asked for. Ratios are times relative to the torch layer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tnmars import families
from tnmars.dsl import network
from tnmars.graph import Graph
from tnmars.graph.factor import factor, factor_up

MODES = ("compact", "fast", "train")


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    family: str
    """What a peer calls the decomposition: peers pick their layer by it."""
    graph: Graph
    dense: Callable[[], nn.Module]
    """Makes the torch layer that is the unit of time."""
    make_input: Callable[[], Tensor]
    batch: int
    """The size to plan for: rows, images, or distinct tokens."""
    targets: tuple[float, float, float | None]
    """The ratios to reach: compact inference, fast inference, training step if it has one."""
    image: int = 32
    plain_margin: float | None = None
    """For a training step, the ratio to reach relative to the fastest plain form, such as a chain of convolutions."""

    def target(self, mode: str) -> float | None:
        return self.targets[MODES.index(mode)]


def _tt784(rows: int, ranks: tuple[int, ...]) -> tuple[Graph, Callable[[], nn.Module], Callable[[], Tensor], int]:
    graph = families.tt("linear", inputs=(7, 4, 7, 4), outputs=(5, 5, 5, 5), ranks=ranks)
    return graph, partial(nn.Linear, 784, 625), partial(torch.randn, rows, 784), rows


def _tt4096(rows: int, rank: int) -> tuple[Graph, Callable[[], nn.Module], Callable[[], Tensor], int]:
    graph = families.tt("linear", inputs=(8,) * 4, outputs=(8,) * 4, rank=rank)
    return graph, partial(nn.Linear, 4096, 4096), partial(torch.randn, rows, 4096), rows


def ring_graph() -> Graph:
    """A ring of five cores for inputs and five for outputs."""
    modes = [*(f"i{at}" for at in range(1, 6)), *(f"o{at}" for at in range(1, 6))]
    cores = " ".join(f"G{at}[r{at - 1 or 10},{mode},r{at}]" for at, mode in enumerate(modes, 1))
    return network("linear", cores, inputs=dict.fromkeys(modes[:5], 4), outputs=dict.fromkeys(modes[5:], 4), bonds=10)


def _linear_cases() -> Iterator[Case]:
    yield Case("TT 784 r20 (128)", "tt", *_tt784(128, (20, 20, 20)), (1.25, 1.05, 1.6))
    yield Case("TT 784 r4-3-4 (128)", "tt", *_tt784(128, (4, 3, 4)), (0.50, 0.50, 0.50))
    yield Case("TT 784 r4-3-4 (1)", "tt", *_tt784(1, (4, 3, 4)), (1.2, 1.05, 1.7))
    yield Case("TT 4096 r16 (32)", "tt", *_tt4096(32, 16), (0.36, 0.36, None))
    yield Case("TT 4096 r16 (1024)", "tt", *_tt4096(1024, 16), (0.75, 0.75, None))
    yield Case("TT 4096 r64 (32)", "tt", *_tt4096(32, 64), (1.6, 1.05, 2.59))
    square = partial(nn.Linear, 1024, 1024)
    rows = partial(torch.randn, 128, 1024)
    yield Case("ring 1024 r10 (128)", "ring", ring_graph(), square, rows, 128, (0.60, 0.60, None))
    btd = families.btd("linear", inputs=(8, 16, 8), outputs=(8, 16, 8), rank=8, terms=4)
    yield Case("BTD 1024 4x8^6 (128)", "btd", btd, square, rows, 128, (2.0, 1.05, 2.1))


def _conv_cases() -> Iterator[Case]:
    sizes: dict[str, Any] = {"inputs": (128,), "outputs": (128,), "kernel": (3, 3)}
    options = {"padding": 1}
    dense = partial(nn.Conv2d, 128, 128, 3, padding=1)
    rest = (dense, partial(torch.randn, 8, 128, 56, 56), 8)
    more: dict[str, Any] = {"image": 56, "plain_margin": 1.05}
    tucker2 = families.tucker2("conv", rank=32, options=options, **sizes)
    yield Case("Tucker-2 conv r32 (8)", "tucker2", tucker2, *rest, (0.155, 0.155, None), **more)
    cp = families.cp("conv", rank=64, options=options, **sizes)
    yield Case("CP conv r64 (8)", "cp", cp, *rest, (0.20, 0.20, None), **more)
    tt = families.tt_naive("conv", rank=32, order=("in", "kernel", "out"), options=options, **sizes)
    yield Case("TT conv r32 (8)", "tt", tt, *rest, (0.155, 0.155, None), **more)
    ring = network(
        "conv",
        "A[r4,i1,r1] B[r1,k1,r2] C[r2,k2,r3] D[r3,o1,r4]",
        inputs={"i1": 128},
        outputs={"o1": 128},
        kernel={"k1": 3, "k2": 3},
        bonds=8,
        options=options,
    )
    yield Case("ring conv r8 (8)", "ring", ring, *rest, (0.30, 0.30, 0.31), image=56)


def zipf_tokens(rows: int = 64, length: int = 200, vocab: int = 25_000) -> Tensor:
    """Token numbers as text has them: few are frequent, most are rare. The same ones on every call."""
    drawn = np.random.default_rng(0).zipf(1.3, size=rows * length) % vocab
    return torch.from_numpy(drawn.astype(np.int64)).reshape(rows, length)


def _embedding_cases() -> Iterator[Case]:
    distinct = len(torch.unique(zipf_tokens()))
    for count, targets in ((3, (7.0, 1.05, None)), (6, (4.2, 1.05, None))):
        rows, columns = factor_up(25_000, count, order="mixed"), factor(256, count, order="mixed")
        graph = families.tt("embedding", lookup=rows, outputs=columns, rank=16, vocab=25_000)
        dense = partial(nn.Embedding, 25_000, 256)
        yield Case(f"TT-embedding d={count} r16 (64x200)", "tt", graph, dense, zipf_tokens, distinct, targets)


def cases(names: str = "") -> list[Case]:
    """Every case, or those whose names contain one of some comma-separated texts."""
    found = [*_linear_cases(), *_conv_cases(), *_embedding_cases()]
    wanted = [text.strip().lower() for text in names.split(",") if text.strip()]
    return [case for case in found if not wanted or any(text in case.name.lower() for text in wanted)]
