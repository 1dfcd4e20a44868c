"""Chains of convolutions, written by hand for the convolutions of the table, as a careful user of torch would.

Each takes the cores by name, as the graph of the case calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tnmars.bench.plain import Contender

Cores = Mapping[str, Tensor]


def _tucker2(x: Tensor, cores: Cores, bias: Tensor | None) -> Tensor:
    x = functional.conv2d(x, cores["U1"].t()[:, :, None, None])
    x = functional.conv2d(x, cores["G"].permute(3, 0, 1, 2), padding=1)
    return functional.conv2d(x, cores["U2"][:, :, None, None], bias)


def _cp(x: Tensor, cores: Cores, bias: Tensor | None) -> Tensor:
    x = functional.conv2d(x, cores["A1"].t()[:, :, None, None])
    taps = torch.einsum("hr,wr->rhw", cores["A2"], cores["A3"]).unsqueeze(1)
    x = functional.conv2d(x, taps, padding=1, groups=taps.shape[0])
    return functional.conv2d(x, cores["A4"][:, :, None, None], bias)


def _cp_separable(x: Tensor, cores: Cores, bias: Tensor | None) -> Tensor:
    """One tap after the other, rather than both at once."""
    rank = cores["A1"].shape[1]
    x = functional.conv2d(x, cores["A1"].t()[:, :, None, None])
    x = functional.conv2d(x, cores["A2"].t()[:, None, :, None], padding=(1, 0), groups=rank)
    x = functional.conv2d(x, cores["A3"].t()[:, None, None, :], padding=(0, 1), groups=rank)
    return functional.conv2d(x, cores["A4"][:, :, None, None], bias)


def _tt(x: Tensor, cores: Cores, bias: Tensor | None) -> Tensor:
    x = functional.conv2d(x, cores["G1"].t()[:, :, None, None])
    x = functional.conv2d(x, cores["G2"].permute(2, 0, 1)[:, :, :, None], padding=(1, 0))
    x = functional.conv2d(x, cores["G3"].permute(2, 0, 1)[:, :, None, :], padding=(0, 1))
    return functional.conv2d(x, cores["G4"].t()[:, :, None, None], bias)


def _tt_merged(x: Tensor, cores: Cores, bias: Tensor | None) -> Tensor:
    """Both taps in one kernel."""
    x = functional.conv2d(x, cores["G1"].t()[:, :, None, None])
    x = functional.conv2d(x, torch.einsum("ahb,bwc->cahw", cores["G2"], cores["G3"]), padding=1)
    return functional.conv2d(x, cores["G4"].t()[:, :, None, None], bias)


def _ring(x: Tensor, cores: Cores, bias: Tensor | None) -> Tensor:
    """The bond that closes the ring goes into the batch while the taps are convolved."""
    closing, inside, first = cores["A"].shape
    last, outside, _ = cores["D"].shape
    batch, _, height, width = x.shape
    x = functional.conv2d(x, cores["A"].permute(0, 2, 1).reshape(closing * first, inside, 1, 1))
    x = x.reshape(batch * closing, first, height, width)
    taps = torch.einsum("ahb,bwc->cahw", cores["B"], cores["C"])
    x = functional.conv2d(x, taps, padding=1).reshape(batch, closing * last, height, width)
    return functional.conv2d(x, cores["D"].permute(1, 2, 0).reshape(outside, closing * last, 1, 1), bias)


Chain = Callable[[Tensor, Cores, Tensor | None], Tensor]
_CHAINS: dict[str, dict[str, Chain]] = {
    "tucker2": {"chain of convolutions": _tucker2},
    "cp": {"chain of convolutions": _cp, "chain, separable taps": _cp_separable},
    "tt": {"chain of convolutions": _tt, "chain, merged taps": _tt_merged},
    "ring": {"chain of convolutions": _ring},
}


def chains(family: str, cores: Cores, bias: Tensor | None) -> list[Contender]:
    """The chains of convolutions of one of the families in the table."""
    trained = (*cores.values(), *([] if bias is None else [bias]))
    return [
        Contender(name, "plain", partial(_run, function, cores, bias), trained)
        for name, function in _CHAINS[family].items()
    ]


def _run(function: Chain, cores: Cores, bias: Tensor | None, x: Tensor) -> Tensor:
    return function(x, cores, bias)
