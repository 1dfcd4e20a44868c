"""Reports: what became of a model, as one HTML page that opens from disk and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from tnmars.files import write_text
from tnmars.reporting.collect import collect
from tnmars.reporting.page import page
from tnmars.reporting.value import Report

__all__ = ["Report", "collect", "page", "report"]


def report(
    before: nn.Module | str | Path,
    after: nn.Module | str | Path,
    path: str | Path,
    *,
    title: str | None = None,
    history: Sequence[Mapping[str, Any]] | None = None,
    batch: int | None = None,
    measure: bool = True,
) -> Report:
    """Writes a page about a model and what pruning made of it, and returns what it shows as a value.

    Models are given as modules, or as files of `tnmars.save` and `tnmars.save_checkpoint`. `history` has a table for
    each epoch: `epoch`, `loss`, `ranks` ({layer: sizes of its bonds}), and any other figures. Counts and times are for
    `batch`, by default the nominal batch of each layer; `measure=False` takes no times. Raises `TnmarsError` where the
    models have no compiled layer of the same name.
    """
    found = collect(before, after, title=title, history=history, batch=batch, measure=measure)
    write_text(path, page(found))
    return found
