"""What the cost model predicts for a layer at its nominal batch, relative to torch's own layer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import prod

from tnmars.graph.counts import count
from tnmars.layer.code import MODES
from tnmars.layer.module import TNModule
from tnmars.program.against_dense import Comparison, against_dense
from tnmars.text.numbers import duration

SLOWER = 1.05
"""A layer is called slower if it is predicted to take more than this times the time of torch's own."""
SMALL = 4096
"""A weight with fewer entries is never called slow: whoever factorizes it has other reasons."""


def predicted(layer: TNModule) -> dict[str, Comparison]:
    """The estimated times for the nominal batch by mode, `train` and `infer`; none where torch has no such layer.

    In training, the input is taken to need no gradient: the layer is then slowest relative to torch's own.
    """
    if layer.is_rebuilt or not layer.graph.terms:
        return {}
    planner, batch = layer.planner, layer.nominal
    found = {}
    for mode in MODES:
        form = layer.plan(mode, batch)
        comparison = against_dense(layer.graph, form, batch, planner.model, grad=mode == "train", image=planner.image)
        if comparison is not None:
            found[mode] = comparison
    return found


def warn_if_slower(layer: TNModule, level: int, measured: Mapping[str, float]) -> None:
    """Warns of a layer that is slower than torch's own, at the place so many calls up.

    What was measured, the time relative to torch's own by mode, counts in place of what is predicted.

    Not of a table: to copy a row of a plain one takes next to nothing, so that all others are slower.
    """
    graph = layer.graph
    if not graph.is_lookup and prod(graph.dense_shape) >= SMALL:
        text = _slower_text(layer, measured)
        if text:
            warnings.warn(text, UserWarning, stacklevel=level)


def _slower_text(layer: TNModule, measured: Mapping[str, float]) -> str:
    """The warning about a layer; empty if it is not slower."""
    graph = layer.graph
    ratios = {mode: (comparison.ratio, _seconds(comparison)) for mode, comparison in predicted(layer).items()}
    ratios |= {mode: (ratio, "measured") for mode, ratio in measured.items()}
    slow = {mode: entry for mode, entry in ratios.items() if entry[0] > SLOWER}
    if not slow:
        return ""
    names = {"infer": "inference", "train": "training"}
    figures = [f"{names[mode]} {ratio:.2f} times ({how})" for mode, (ratio, how) in sorted(slow.items())]
    fixes = ["lower the ranks", "give the batch that you use (batch=...)"]
    if "infer" in slow:
        fixes.append("ship it with tnmars.freeze(model, 'fast'), which may take the dense weight")
    saved = "It saves memory, not time. " if count(graph).cores < count(graph).dense else ""
    is_predicted = not measured.keys() >= slow.keys()
    what = "predicted to be slower" if is_predicted else "slower"
    return (
        f"the layer {graph.kind} {graph.signature} is {what} than torch's own at batch "
        f"{layer.nominal}: {'; '.join(figures)}. {saved}To change that, {', or '.join(fixes)}. "
        f"compile(..., warn=False) turns this warning off{'; tune=True measures instead of estimating' * is_predicted}."
    )


def _seconds(comparison: Comparison) -> str:
    return f"{duration(comparison.seconds)} against {duration(comparison.dense_seconds)}"
