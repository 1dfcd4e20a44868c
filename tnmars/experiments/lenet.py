"""LeNet-5 as Caffe has it, 20-50-500-10 without padding, dense or with tensor networks. Inputs are rows of pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tnmars import families
from tnmars.compiler import compile
from tnmars.dsl import network
from tnmars.graph import Graph

MEAN, STD = 0.1307, 0.3081
"""Of all pixels of MNIST's training images."""
BATCH = 128
IMAGE = 12
"""The side of the second convolution's input."""
START = {"tucker": (20, 100), "ring": (20, 20, 12)}
"""The ranks of the layers that are networks: conv2 and fc1 for `tucker` (as in the paper), conv2, fc1 and fc2 for
`ring`."""


def normalized(pixels: Tensor) -> Tensor:
    """Pixels in [0, 1] as the network expects them."""
    return (pixels - MEAN) / STD


def ring(
    kind: str, inputs: tuple[int, ...], outputs: tuple[int, ...], rank: int, kernel: tuple[int, ...] = ()
) -> Graph:
    """A ring with one core for each mode: inputs, all taps on one core, outputs.

    >>> print(ring("conv", (4, 5), (6,), 2, kernel=(3, 3)).terms[0])
    G1[r4, i1, r1] G2[r1, i2, r2] G3[r2, k1, k2, r3] G4[r3, o1, r4]
    """
    sites = [f"i{at}" for at in range(1, len(inputs) + 1)]
    sites += [", ".join(f"k{at}" for at in range(1, len(kernel) + 1))] if kernel else []
    sites += [f"o{at}" for at in range(1, len(outputs) + 1)]
    count = len(sites)
    cores = [f"G{at}[r{at - 1 or count}, {site}, r{at}]" for at, site in enumerate(sites, 1)]
    bonds = {f"r{at}": rank for at in range(1, count + 1)}
    if kernel:
        return network(kind, " ".join(cores), bonds=bonds, inputs=inputs, outputs=outputs, kernel=kernel)
    return network(kind, " ".join(cores), bonds=bonds, inputs=inputs, outputs=outputs)


def lenet(family: str = "dense", ranks: tuple[int, ...] = ()) -> nn.Sequential:
    """The network: `dense`, `tucker` or `ring`, by default with the ranks of `START`.

    >>> sum(value.numel() for value in lenet().parameters())
    431080
    """
    ranks = ranks or START.get(family, ())
    first = nn.Conv2d(1, 20, 5)
    conv, fc1, fc2 = _dense() if family == "dense" else _tucker(*ranks) if family == "tucker" else _rings(*ranks)
    front = [nn.Unflatten(1, (1, 28, 28)), first, nn.MaxPool2d(2), nn.ReLU(), conv, nn.MaxPool2d(2), nn.ReLU()]
    made = nn.Sequential(*front, nn.Flatten(), fc1, nn.ReLU(), fc2)
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _dense() -> tuple[nn.Module, nn.Module, nn.Module]:
    return nn.Conv2d(20, 50, 5), nn.Linear(800, 500), nn.Linear(500, 10)


def _tucker(conv: int, fc: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    graph = families.tucker2("conv", inputs=(20,), outputs=(50,), kernel=(5, 5), rank=conv)
    wide = families.lowrank("linear", inputs=(800,), outputs=(500,), rank=fc)
    return (
        compile(graph, batch=BATCH, image=IMAGE, init="kaiming"),
        compile(wide, batch=BATCH, init="kaiming"),
        nn.Linear(500, 10),
    )


def _rings(conv: int, fc1: int, fc2: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    return (
        compile(ring("conv", (4, 5), (5, 10), conv, (5, 5)), batch=BATCH, image=IMAGE, init="kaiming"),
        compile(ring("linear", (5, 10, 4, 4), (5, 10, 10), fc1), batch=BATCH, init="kaiming"),
        compile(ring("linear", (5, 10, 10), (10,), fc2), batch=BATCH),
    )
