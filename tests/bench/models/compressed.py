"""The library's calls, in one place: compress, match, freeze. The rest of the benchmark does not import them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from bench.models.tasks import Task
from torch import Tensor, nn

import tnmars

NEEDED = ("plan_compression", "compress_", "match_")


def absent() -> list[str]:
    """The functions that this version of the library does not have."""
    return [name for name in NEEDED if not hasattr(tnmars, name)]


def compressed(task: Task, dense: nn.Module, ratio: float, calibration: Iterable[Tensor]) -> tuple[nn.Module, str]:
    """A compressed copy of a network, and the plan as text."""
    small = copy.deepcopy(dense)
    budget = task.budget(dense, ratio)
    library: Any = tnmars
    plan = library.plan_compression(small, task.rules, budget=budget, data=calibration)
    library.compress_(small, plan)
    return small, str(plan)


def match(small: nn.Module, dense: nn.Module, data: Iterable[Tensor], epochs: int, **options: Any) -> None:
    """Trains a compressed network, in place, to give the dense one's outputs."""
    library: Any = tnmars
    library.match_(small, dense, data, epochs=epochs, **options)


def frozen(small: nn.Module, example: Tensor) -> nn.Module:
    """A compressed network for inference, tuned for an example."""
    return tnmars.freeze(small, "fast", example=example, tune=True)
