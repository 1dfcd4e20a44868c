"""A form as text and as data: every step with its shape, multiply-adds, bytes and estimated time, against dense.

Counts are exact for the sizes given; times are what the cost model says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod

from tnmars.graph import Graph, Role
from tnmars.plan.cost import CostModel
from tnmars.plan.network import Labels
from tnmars.plan.steps import Groups
from tnmars.program.candidates import Form
from tnmars.program.estimate import estimate
from tnmars.program.instructions import Arrange, Conv, Fetch, Instruction, Kernel, Matmul, Receive, Weight
from tnmars.program.measure import Measured, measure, total

ITEM = 4
"""Bytes of a number, for float32."""


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
    """What a form does for a batch."""
    rows = measure(form)
    folded = {instruction.out for instruction in form.program.fold}
    pieces = -(-batch // form.chunk) if form.chunk else 1
    axes = form.program.axes()
    steps = tuple(_row(entry, axes, entry.instruction.out in folded) for entry in rows if _matters(entry))
    run = total([entry for entry in rows if entry.instruction.out not in folded])
    once = total([entry for entry in rows if entry.instruction.out in folded])
    pixels = batch * image ** len(graph.kernel_size)
    dense = prod(graph.dense_shape)
    is_product = bool(graph.rules.layout) and not graph.of_role(Role.LOOKUP)
    return Explained(
        batch=batch,
        form=form.name,
        chunk=form.chunk,
        macs=once.macs + pieces * run.macs,
        dense_macs=pixels * dense if is_product else 0,
        written=ITEM * (once.written + pieces * run.written),
        seconds=estimate(form, model, grad=grad, batch=batch),
        dense_seconds=_dense_seconds(graph, batch, model, grad, image),
        steps=steps,
    )


def _matters(entry: Measured) -> bool:
    return not isinstance(entry.instruction, (Fetch, Receive, Arrange, Kernel)) and entry.effort.written > 0


def _row(entry: Measured, axes: Mapping[str, Groups], folded: bool) -> StepRow:
    effort = entry.effort
    return StepRow(
        _words(entry.instruction, axes), entry.shape, effort.macs, effort.elementwise, ITEM * effort.written, folded
    )


def _words(instruction: Instruction, axes: Mapping[str, Groups]) -> str:
    """A step in the user's own names: what is left, and what is summed."""
    if isinstance(instruction, Weight):
        return "torch's own layer with the dense weight"
    left = " ".join(label.lstrip("@#") for group in instruction.axes for label in group) or "1"
    if isinstance(instruction, Matmul):
        return f"{left}  <- sum over {_names(axes[instruction.left][-1])}"
    if isinstance(instruction, Conv):
        acting = f", taps of axes {list(instruction.spatial)}" if instruction.spatial else ""
        return f"{left}  <- convolve over {_names(axes[instruction.weight][1])}{acting}"
    return f"{left}  <- {type(instruction).__name__.lower()}"


def _names(labels: Labels) -> str:
    return " ".join(label.lstrip("@#") for label in labels) or "nothing"


def _dense_seconds(graph: Graph, batch: int, model: CostModel, grad: bool, image: int) -> float:
    times = 3 if grad else 1
    if not graph.rules.layout:
        return 0.0
    out, inside, *taps = graph.dense_shape
    if graph.kernel_size:
        pixels = batch * image ** len(taps)
        return times * model.conv(pixels * prod(graph.dense_shape), pixels * (out + inside), min(out, inside))
    if graph.of_role(Role.LOOKUP):
        return times * model.gather(batch * inside)
    return times * model.matmul(1, batch, out, inside)


def table(found: Explained) -> str:
    """The explanation as text; steps above the line depend on cores alone."""
    chunk = f" in chunks of {found.chunk}" if found.chunk else ""
    against = f", dense {found.dense_macs:,} and {_time(found.dense_seconds)}" if found.dense_seconds else ""
    head = f"batch {found.batch}: {found.form}{chunk}, {found.macs:,} MACs, {_bytes(found.written)}"
    lines = [f"{head}, {_time(found.seconds)}{against}"]
    width = max((len(row.step) for row in found.steps), default=0)
    shapes = max((len(_shape(row)) for row in found.steps), default=0)
    was_folded = False
    for row in found.steps:
        if was_folded and not row.folded:
            lines.append("  " + "-" * (width + shapes + 36))
        was_folded = row.folded
        work = f"{row.macs:>14,} MACs" if row.macs else f"{row.elementwise:>14,} ops " if row.elementwise else " " * 19
        lines.append(f"  {row.step:<{width}}  {_shape(row):<{shapes}} {work} {_bytes(row.written):>9}")
    if found.largest:
        lines.append(f"  largest intermediate: {_shape(found.largest)}, {_bytes(found.largest.written)}")
    return "\n".join(lines)


def _shape(row: StepRow) -> str:
    return "x".join(map(str, row.shape)) or "1"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
