"""Reports: what became of a model, as one HTML page that opens from disk and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from tnmars.arguments import check_arguments, own
from tnmars.files import write_text
from tnmars.models.plan import CompressionPlan
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
    metrics: Mapping[str, Sequence[float]] | None = None,
    batch: int | None = None,
    measure: bool = True,
    plan: CompressionPlan | None = None,
) -> Report:
    """What an HTML page, written to `path`, says about a model before and after pruning or compression.

    The page shows graphs, gates, sizes, speed and training. It is one file that loads nothing. The models are not
    changed.

    Args:
        before: The model before, as a module or as a file of `tnmars.save` or `tnmars.save_checkpoint`. It may be
            dense: a layer of torch's that is compiled after counts as a graph of one core.
        after: The model after, given in the same way. Layers are matched by name.
        path: The file to write.
        title: The title of the page. By default the name of the layer, or the number of layers.
        history: A table for each epoch of training: `epoch`, `loss`, `ranks` (`{layer: sizes of its bonds}`) and any
            other figures, which are drawn as charts. By default what a checkpoint `before` holds.
        metrics: What the model is for, before and after, for example `{"accuracy": (0.981, 0.979)}`. A name with
            `loss`, `error` or the like is better when lower. Give this whenever you can: without it the page says that
            nothing is known about quality. By default the accuracy of `history`, if it has one: the best and the last.
        batch: The batch that counts and times are for. By default the nominal batch of each layer.
        measure: Whether to time every layer, which takes about a second each.
        plan: What `tnmars.compress_` returned, shown as a table.

    Returns:
        The figures of the page as a value; `as_json()` gives them as plain data.

    Raises:
        TnmarsError: The models have no compiled layer of the same name, a file cannot be read or written, or `batch`,
            `history` or `metrics` is invalid.

    Example:
        >>> import tempfile, tnmars
        >>> graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(3, 3), rank=4)
        >>> model = tnmars.compile(graph, selector=tnmars.Mars())
        >>> file = tempfile.mkdtemp() + "/report.html"
        >>> accuracy = {"accuracy": (0.98, 0.97)}
        >>> result = tnmars.report(
        ...     model, tnmars.prune(model), file, metrics=accuracy, measure=False
        ... )
        >>> result.metrics[0].change
        '0.01 lower'
    """
    check_arguments(report, locals())
    metrics, batch = own((metrics, batch))
    result = collect(
        before, after, title=title, history=history, metrics=metrics, batch=batch, measure=measure, plan=plan
    )
    write_text(path, page(result))
    return result
