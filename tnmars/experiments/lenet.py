"""LeNet-5 as Caffe has it, 20-50-500-10 without padding, dense or with tensor networks. Inputs are rows of pixels."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from tnmars import families
from tnmars.compiler import compile_quietly as compile
from tnmars.dsl import network
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.select import Selector

MEAN, STD = 0.1307, 0.3081
"""Of all pixels of MNIST's training images."""
BATCH = 128
IMAGE = 12
"""The side of the second convolution's input."""
START = {"tucker": (20, 100), "ring": (20, 20, 12), "trn": (20, 20, 20)}
"""The ranks of the layers that are networks: conv2 and fc1 for `tucker` (as in the paper), conv2, fc1 and fc2 for
`ring` and `trn`."""
CONV, WIDE = "4", "8"
"""The names of conv2 and fc1 in the network."""


def normalized(pixels: Tensor) -> Tensor:
    """Pixels in [0, 1] as the network expects them."""
    return (pixels - MEAN) / STD


def ring(
    kind: str,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    rank: int,
    kernel: tuple[int, ...] = (),
    *,
    is_split: bool = False,
) -> Graph:
    """A ring with one core for each mode: inputs, taps, outputs. Unless `is_split`, all taps are on one core.

    >>> print(ring("conv", (4, 5), (6,), 2, kernel=(3, 3)).terms[0])
    G1[r4, i1, r1] G2[r1, i2, r2] G3[r2, k1, k2, r3] G4[r3, o1, r4]
    """
    sites = [f"i{at}" for at in range(1, len(inputs) + 1)]
    taps = [f"k{at}" for at in range(1, len(kernel) + 1)]
    sites += taps if is_split else [", ".join(taps)] if kernel else []
    sites += [f"o{at}" for at in range(1, len(outputs) + 1)]
    count = len(sites)
    cores = [f"G{at}[r{at - 1 or count}, {site}, r{at}]" for at, site in enumerate(sites, 1)]
    bonds = {f"r{at}": rank for at in range(1, count + 1)}
    if kernel:
        return network(kind, " ".join(cores), bonds=bonds, inputs=inputs, outputs=outputs, kernel=kernel)
    return network(kind, " ".join(cores), bonds=bonds, inputs=inputs, outputs=outputs)


def lenet(family: str = "dense", ranks: tuple[int, ...] = (), selector: Selector | None = None) -> nn.Sequential:
    """The network: `dense`, `tucker`, `ring` or `trn`, by default with the ranks of `START`.

    `trn` has rings of more and smaller cores. The sum of their sizes, 99, gives the compressions that the paper has for
    tensor-ring nets of ranks 10, 15 and 20; what shapes they had is not stated.

    >>> sum(value.numel() for value in lenet().parameters())
    431080
    """
    front = [nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU()]
    conv, fc1, fc2 = _dense() if family == "dense" else LAYERS[family](selector, *(ranks or START[family]))
    middle = [conv, nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
    made = nn.Sequential(*front, *middle, fc1, nn.ReLU(), fc2)
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


Three = tuple[nn.Module, nn.Module, nn.Module]


def _dense() -> Three:
    return nn.Conv2d(20, 50, 5), nn.Linear(800, 500), nn.Linear(500, 10)


def _tucker(selector: Selector | None, conv: int, fc: int) -> Three:
    graph = families.tucker2("conv", inputs=(20,), outputs=(50,), kernel=(5, 5), rank=conv)
    wide = families.lowrank("linear", inputs=(800,), outputs=(500,), rank=fc)
    made = _compiled(graph, selector), _compiled(wide, selector)
    if selector is not None:
        for layer, inside in zip(made, (20 * 25, 800), strict=True):
            plain_(layer, inside)
    return *made, nn.Linear(500, 10)


@torch.no_grad()
def plain_(layer: TNModule, inside: int) -> None:
    """Fills each factor as torch fills a layer of its own, as in the paper: uniform, up to 1 / sqrt(fan_in).

    The masks and the other factors are not thought of, so the whole weight is smaller than by any usual rule. `inside`
    is the number of inputs of the layer, for the bias.
    """
    for name, shape in layer.graph.cores.items():
        summed = {"G": shape[:3], "U2": shape[1:]}.get(name, shape[:1])
        layer.cores.get(name).uniform_(-(prod(summed) ** -0.5), prod(summed) ** -0.5)
    assert layer.bias is not None
    layer.bias.uniform_(-(inside**-0.5), inside**-0.5)


def _rings(selector: Selector | None, conv: int, fc1: int, fc2: int) -> Three:
    return (
        _compiled(ring("conv", (4, 5), (5, 10), conv, (5, 5)), selector),
        _compiled(ring("linear", (5, 10, 4, 4), (5, 10, 10), fc1), selector),
        _compiled(ring("linear", (5, 10, 10), (10,), fc2), selector, init=None),
    )


def _trn(selector: Selector | None, conv: int, fc1: int, fc2: int) -> Three:
    return (
        _compiled(ring("conv", (4, 5), (2, 5, 5), conv, (5, 5), is_split=True), selector),
        _compiled(ring("linear", (5, 10, 4, 4), (4, 5, 5, 5), fc1), selector),
        _compiled(ring("linear", (4, 5, 5, 5), (2, 5), fc2), selector, init=None),
    )


LAYERS: dict[str, Callable[..., Three]] = {"tucker": _tucker, "ring": _rings, "trn": _trn}


def _compiled(graph: Graph, selector: Selector | None, init: str | None = "kaiming") -> TNModule:
    return compile(graph, selector=selector, open_only=selector is not None, batch=BATCH, image=IMAGE, init=init)
