"""The gates of a bond as bars, those slices apart that they keep, with the threshold: the figure of the paper."""

from __future__ import annotations

from tnmars.reporting.markup import Html
from tnmars.reporting.value import Bond

HIGH = 90
WIDE = 280
TOP, LEFT, RIGHT, BOTTOM = 8, 34, 4, 16
LABEL = 11
"""How far apart two numbers beside the axis are at least."""
WIDEST = 24
"""How wide a bar is at most, with the gap beside it."""
MANY = 256
"""With more slices the bars of one sort are one path, and tell nothing when pointed at."""


def bars(bond: Bond, threshold: float | None) -> Html:
    """The drawing, for a bond that has gates."""
    count = len(bond.probabilities)
    step = min((WIDE - LEFT - RIGHT) / count, WIDEST)
    gap = min(2.0, 0.2 * step)
    parts = [_frame(count, LEFT + count * step, threshold)]
    if count > MANY:
        parts += [_together(bond, step, gap, kept) for kept in (False, True)]
    else:
        parts += [_bar(bond, at, step, gap) for at in range(count)]
    if threshold is not None:
        parts.append(_threshold(threshold))
    told = f"bond {bond.name}: the gates keep {bond.kept} of {count} slices"
    return Html(
        f'<svg class="bars" viewBox="0 0 {WIDE} {HIGH + TOP + BOTTOM}" role="img" aria-label="{told}">'
        f"{''.join(parts)}</svg>"
    )


def _y(probability: float) -> float:
    return round(TOP + HIGH * (1 - min(max(probability, 0.0), 1.0)), 1)


def _box(bond: Bond, at: int, step: float, gap: float) -> tuple[float, float, float, float]:
    """Left, top, width and height of a bar; the least that can be seen for a gate that is shut."""
    top = min(_y(bond.probabilities[at]), TOP + HIGH - 1.0)
    return round(LEFT + at * step + gap / 2, 2), top, round(step - gap, 2), round(TOP + HIGH - top, 1)


def _bar(bond: Bond, at: int, step: float, gap: float) -> str:
    x, y, wide, high = _box(bond, at, step, gap)
    kept = bond.is_kept[at]
    tip = f"slice {at}: {bond.probabilities[at]:.3g}, {'kept by its gate' if kept else 'cut'}"
    return (
        f'<rect class="{"on" if kept else "off"}" x="{x}" y="{y}" width="{wide}" height="{high}" '
        f'rx="{min(1.5, round(wide / 3, 2))}"><title>{tip}</title></rect>'
    )


def _together(bond: Bond, step: float, gap: float, kept: bool) -> str:
    boxes = [_box(bond, at, step, gap) for at, found in enumerate(bond.is_kept) if found is kept]
    path = "".join(f"M{x} {y}h{wide}v{high}h{-wide}z" for x, y, wide, high in boxes)
    return f'<path class="{"on" if kept else "off"}" d="{path}"/>' if path else ""


def _frame(count: int, right: float, threshold: float | None) -> str:
    """The axes: probability from 0 to 1, but for where the threshold is told, and the first and the last slice."""
    found = f'<path class="grid" d="M{LEFT} {_y(1)}H{WIDE - RIGHT}M{LEFT} {_y(0)}H{WIDE - RIGHT}"/>'
    for value in (0, 1):
        if threshold is not None and abs(_y(value) - _y(threshold)) < LABEL:
            continue
        found += f'<text class="tick end" x="{LEFT - 5}" y="{_y(value) + 4}">{value}</text>'
    found += f'<text class="tick" x="{LEFT}" y="{TOP + HIGH + 13}">slice 0</text>'
    if count > 2:
        found += f'<text class="tick end" x="{round(right, 1)}" y="{TOP + HIGH + 13}">{count - 1}</text>'
    return found


def _threshold(value: float) -> str:
    y = _y(value)
    return (
        f'<path class="threshold" d="M{LEFT} {y}H{WIDE - RIGHT}"/>'
        f'<text class="tick end threshold-label" x="{LEFT - 5}" y="{y + 4}">{value:.2f}</text>'
    )
