"""The experiments by name."""

from __future__ import annotations

from typing import Any, Protocol

from tnmars.experiments import mnist


class Experiment(Protocol):
    """What a file of an experiment has."""

    VARIANTS: tuple[str, ...]

    @property
    def run(self) -> Any:
        """Runs one variant with one seed."""


EXPERIMENTS: dict[str, Any] = {"mnist-2fc": mnist}
