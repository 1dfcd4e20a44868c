"""What stands beside the times: multiply-adds counted by torch, verdicts, and files that keep the figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from tnmars.experiments.worker import versions
from tnmars.files import write_text
from tnmars.timing.machine import processor


def _product_with_vector(matrix: torch.Size, vector: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * matrix.numel()


def _gradients(slope: torch.Size, x: torch.Size, weight: torch.Size, *rest: Any, **_: Any) -> int:
    """Operations of a convolution's backward pass: each gradient takes as many as the forward pass."""
    is_transposed, needs = rest[4], rest[7]
    places = prod(x if is_transposed else slope)
    return 2 * places * prod(weight[1:]) * (needs[0] + needs[1])


MORE = {torch.ops.aten.mv: _product_with_vector, torch.ops.aten.convolution_backward: _gradients}
"""What torch's counter leaves out, and gradients of convolutions, of which it ignores the groups."""


def macs(action: Callable[[], object]) -> int:
    """The multiply-adds of the products and convolutions in an action, those of its backward pass included.

    A planned training step counts as the plain program, which takes its place while torch counts.
    """
    with FlopCounterMode(display=False, custom_mapping=MORE) as counted:
        action()
    return counted.get_total_flops() // 2


def share(ours: int | None, theirs: int | None) -> float | None:
    """Multiply-adds relative to others; None if those have none, as a table."""
    return ours / theirs if ours is not None and theirs else None


def shown(ratio: float | None) -> str:
    """A ratio of multiply-adds as text."""
    return "-" if ratio is None else f"{ratio:.3f}"


def verdict(ratio: float, target: float | None, noise: float = 0.0) -> str:
    """Whether a target is met: `met`, `noise` if it is missed by less than the noise, else `MISSED`; empty without one.

    >>> verdict(1.0, 1.1), verdict(1.15, 1.1, 0.05), verdict(1.2, 1.1, 0.05), verdict(9.0, None)
    ('met', 'noise', 'MISSED', '')
    """
    if target is None:
        return ""
    if ratio <= target:
        return "met"
    return "noise" if ratio <= target * (1 + noise) else "MISSED"


def write_json(path: Path | None, **figures: Any) -> None:
    """Writes figures to a file, if one is given, with the versions and the processor that they belong to."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"versions": versions(), "processor": processor(), **figures}, indent=1) + "\n")
