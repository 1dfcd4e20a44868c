"""A form as text and as data: every step with its shape, multiply-adds, bytes and estimated time, against dense.

Counts are exact for the sizes given; times are what the cost model says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tnmars.graph import Graph
from tnmars.plan import prices
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.program.against_dense import against_dense
from tnmars.program.backward import kept_bytes
from tnmars.program.base import Work
from tnmars.program.choice import choose
from tnmars.program.dense_call import dense_at
from tnmars.program.form import Form, Measured, estimate, measure, total
from tnmars.text.numbers import byte_count, duration
from tnmars.text.tables import aligned


@dataclass(frozen=True)
class StepRow:
    """One step of a form."""

    step: str
    shape: tuple[int, ...]
    macs: int
    elementwise: int
    written: int
    """Bytes."""
    folded: bool


@dataclass(frozen=True)
class Explained:
    """A form for a batch: what it does, and what the dense layer would."""

    batch: int
    form: str
    chunk: int
    macs: int
    dense_macs: int
    written: int
    seconds: float
    dense_seconds: float
    steps: tuple[StepRow, ...]
    time_ratio: float | None = None
    """The time relative to that of torch's own layer, calls and parameters included; in training, without a gradient
    for the input. None if torch has no such layer."""
    is_planned: bool = False
    """Whether a training step has a planned backward pass, rather than autograd's."""
    kept: int = 0
    """Bytes of the buffers that it keeps between steps, for all layers with this plan together."""

    @property
    def largest(self) -> StepRow | None:
        """The step with the largest result but for the last, whose result is the output."""
        return max(self.steps[:-1], key=lambda row: row.written, default=None)

    def to_json(self) -> dict[str, object]:
        largest = self.largest
        shown = {"shape": largest.shape, "written": largest.written} if largest else None
        return {**asdict(self), "largest": shown}


def explain(
    graph: Graph, form: Form, batch: int, model: CostModel, *, grad: bool = False, image: int = 32
) -> Explained:
    """What a form does for a batch, with numbers as the cost model has them."""
    item = model.bytes
    folded = {instruction.out for instruction in form.program.fold}
    rows = [entry for entry in measure(form) if entry.instruction.is_shown and entry.work.written > 0]
    taken = frozenset(edge.name for edge in (*graph.modes, *(bond for term in graph.terms for bond in term.bonds)))
    steps = tuple(_row(entry, item, entry.instruction.out in folded, taken) for entry in rows)
    work = total(measure(form, batch=batch))
    dense_work, dense_seconds = _dense(graph, batch, model, grad, image)
    comparison = against_dense(graph, form, batch, model, grad=grad, image=image)
    return Explained(
        batch=batch,
        form=form.name,
        chunk=form.chunk,
        macs=work.macs,
        dense_macs=dense_work.macs,
        written=item * work.written,
        seconds=estimate(form, model, grad=grad, batch=batch),
        dense_seconds=dense_seconds,
        steps=steps,
        time_ratio=comparison.ratio if comparison else None,
        is_planned=form.is_planned,
        kept=kept_bytes(form, item),
    )


def _row(entry: Measured, item: int, folded: bool, taken: frozenset[str]) -> StepRow:
    work = entry.work
    words = entry.instruction.words(entry.read, taken)
    return StepRow(words, entry.shape, work.macs, work.elementwise, item * work.written, folded)


def _dense(graph: Graph, batch: int, model: CostModel, grad: bool, image: int) -> tuple[Work, float]:
    """The work and the time of torch's own layer; nothing if torch has none."""
    if not graph.has_torch_layer:
        return Work(), 0.0
    if graph.is_lookup:
        return Work(), prices.gather(model, batch * graph.out_features, grad=grad)
    call, site = dense_at(graph, batch, image)
    return call.work(site), call.seconds(site, model, grad)


def table(explained: Explained) -> str:
    """The explanation as text; steps above the line depend on cores alone."""
    chunk = f" in chunks of {explained.chunk}" if explained.chunk else ""
    against = (
        f", dense {explained.dense_macs:,} and {duration(explained.dense_seconds)}" if explained.dense_seconds else ""
    )
    head = f"batch {explained.batch}: {explained.form}{chunk}, {explained.macs:,} MACs, {byte_count(explained.written)}"
    lines = [f"{head}, {duration(explained.seconds)}{against}"]
    width = max((len(row.step) for row in explained.steps), default=0)
    shapes = max((len(_shape(row)) for row in explained.steps), default=0)
    was_folded = False
    for row in explained.steps:
        if was_folded and not row.folded:
            lines.append("  " + "-" * (width + shapes + 36))
        was_folded = row.folded
        work = f"{row.macs:>14,} MACs" if row.macs else f"{row.elementwise:>14,} ops " if row.elementwise else " " * 19
        lines.append(f"  {row.step:<{width}}  {_shape(row):<{shapes}} {work} {byte_count(row.written):>9}")
    if explained.largest:
        lines.append(f"  largest intermediate: {_shape(explained.largest)}, {byte_count(explained.largest.written)}")
    if explained.is_planned:
        kept = f", {byte_count(explained.kept)} of buffers kept between steps" if explained.kept else ""
        lines.append(f"  planned backward pass{kept}")
    if explained.time_ratio is not None:
        lines.append(f"  time / dense: {explained.time_ratio:.2f}")
    return "\n".join(lines)


def time_ratios(graph: Graph, batch: int, model: CostModel, *, image: int, optimizer: str) -> dict[str, float]:
    """The estimated times of the chosen plans relative to torch's own layer, by mode; none if torch has no such layer.

    In training, the input gets no gradient.
    """
    found = {}
    for name, grad in (("inference", False), ("training", True)):
        form = choose(graph, batch, Weighing(model, grad), image, optimizer)[0]
        comparison = against_dense(graph, form, batch, model, grad=grad, image=image)
        if comparison is not None:
            found[name] = comparison.ratio
    return found


def ratio_table(ratios: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Such ratios by batch, as a text with a column for each mode; nothing if there are none."""
    if not all(ratios.values()):
        return []
    modes = list(next(iter(ratios.values())))
    rows = [[f"batch {batch}", *(f"{found[mode]:.2f}" for mode in modes)] for batch, found in ratios.items()]
    return ["\n".join(aligned([["time / dense", *modes], *rows], "<>"))]


def _shape(row: StepRow) -> str:
    return "x".join(map(str, row.shape)) or "1"
