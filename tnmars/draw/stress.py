"""Positions for a graph of no particular shape: stress majorization on graph distances, in plain Python.

Ideally, every pair of vertices is as far apart as there are steps between them (Gansner, Koren and North 2004). Nothing
is random, and sums are taken in a fixed order, so that the same graph gives the same picture everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import atan2, cos, pi, sin, sqrt

from tnmars.draw.web import Near, distances

Point = tuple[float, float]
Pairs = Sequence[tuple[int, int]]

MOST_VERTICES = 150
"""Beyond this many vertices a circle is drawn: the time grows with their square."""


def circle(count: int) -> list[Point]:
    """Points around a circle, neighbors at unit distance, clockwise; the first on top, or one of two that are."""
    radius = 0.5 / sin(pi / count) if count > 1 else 0.0
    start = -pi / 2 - (pi / count if count % 2 == 0 else 0.0)
    angles = [start + 2 * pi * at / count for at in range(count)]
    return [(round(radius * cos(angle), 9), round(radius * sin(angle), 9)) for angle in angles]


def spread(near: Near) -> list[Point]:
    """Positions for the vertices of one connected graph, about one unit between neighbors.

    Of the results from several starts, the one with the fewest crossings and vertices on lines is taken. A ring with
    chords, listed in its order, stays a ring if that crosses no more lines; other graphs become one if everything else
    is much worse.
    """
    count = len(near)
    pairs = [(v, other) for v in range(count) for other in near[v] if v < other]
    dense = len(pairs) > 0.8 * count * (count - 1) / 2
    if count > MOST_VERTICES or dense:
        return circle(count)
    steps = []
    for vertex in range(count):
        away = distances(near, vertex)
        steps.append([float(away[other]) for other in range(count)])
    starts = [_scaled(steps), circle(count)]
    starts += [_scattered(count, seed) for seed in range(1, min(9, 2500 // (count * count)))]
    results = [_majorised(steps, start) for start in starts]
    costs = [round(_flaws(points, pairs) + 0.05 * _stress(points, steps), 4) for points in results]
    ring, is_ring = circle(count), all((at + 1) % count in near[at] for at in range(count))
    if _flaws(ring, pairs) + (0 if is_ring else 2) <= min(costs):
        return ring
    best = results[costs.index(min(costs))]
    placed = _aligned(best, pairs)
    placed = _snapped(placed, near) or placed
    closest = min(_length(placed[one], placed[other]) for one in range(count) for other in range(one))
    if closest < 0.25:
        return circle(count)
    grow = max(1.0, 0.7 / closest)
    return [(round(x * grow, 6), round(y * grow, 6)) for x, y in placed]


def _length(one: Point, other: Point) -> float:
    dx, dy = one[0] - other[0], one[1] - other[1]
    return sqrt(dx * dx + dy * dy)


def _scaled(steps: Sequence[Sequence[float]]) -> list[Point]:
    """Classical scaling: the two main axes of the doubly centered squared distances, by power iteration."""
    count = len(steps)
    square = [[-0.5 * step * step for step in row] for row in steps]
    means = [_total(row) / count for row in square]
    mean = _total(means) / count
    gram = [[square[i][j] - means[i] - means[j] + mean for j in range(count)] for i in range(count)]
    axes: list[list[float]] = []
    for turn in range(2):
        axis = [1.0 + ((at * (7 + 4 * turn)) % 11) / 11 for at in range(count)]
        scale = 0.0
        for _ in range(60):
            for done in axes:
                part = _dot(axis, done) / max(_dot(done, done), 1e-12)
                axis = [a - part * d for a, d in zip(axis, done, strict=True)]
            axis = [_dot(row, axis) for row in gram]
            scale = sqrt(_dot(axis, axis))
            if scale < 1e-9:
                break
            axis = [a / scale for a in axis]
        axes.append([a * sqrt(scale) for a in axis])
    # A little of the circle separates vertices that the two axes do not.
    return [(round(x + 0.1 * a, 6), round(y + 0.1 * b, 6)) for x, y, (a, b) in zip(*axes, circle(count), strict=True)]


def _total(values: Sequence[float]) -> float:
    # Not sum(): its rounding differs between versions of Python.
    found = 0.0
    for value in values:
        found += value
    return found


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return _total([a * b for a, b in zip(one, other, strict=True)])


def _scattered(count: int, seed: int) -> list[Point]:
    """Points spread over a square, the same for the same seed."""
    found, state = [], seed
    for _ in range(2 * count):
        state = (state * 1103515245 + 12345) % 2**31
        found.append(state / 2**31 * sqrt(count))
    return list(zip(found[::2], found[1::2], strict=True))


def _snapped(points: Sequence[Point], near: Near) -> list[Point] | None:
    """The points moved so that every line is level or upright and one unit long; None if that is impossible."""
    found = {0: (0.0, 0.0)}
    queue = [0]
    for at in queue:
        for other in near[at]:
            dx, dy = points[other][0] - points[at][0], points[other][1] - points[at][1]
            step = (1.0 if dx > 0 else -1.0, 0.0) if abs(dx) > abs(dy) else (0.0, 1.0 if dy > 0 else -1.0)
            place = found[at][0] + step[0], found[at][1] + step[1]
            if found.setdefault(other, place) != place:
                return None
            if other not in queue:
                queue.append(other)
    return [found[at] for at in range(len(near))] if len(set(found.values())) == len(near) else None


def _majorised(steps: Sequence[Sequence[float]], start: Sequence[Point]) -> list[Point]:
    """Positions of less and less stress: each vertex in turn goes where the others, on average, want it."""
    count = len(start)
    points = list(start)
    for _ in range(max(40, min(200, 200_000 // (count * count)))):
        moved = 0.0
        for at in range(count):
            x, y = points[at]
            sum_x = sum_y = weights = 0.0
            for other in range(count):
                if other == at:
                    continue
                step = steps[at][other]
                weight = 1 / (step * step)
                other_x, other_y = points[other]
                dx, dy = x - other_x, y - other_y
                pull = step / max(sqrt(dx * dx + dy * dy), 1e-6)
                sum_x += weight * (other_x + dx * pull)
                sum_y += weight * (other_y + dy * pull)
                weights += weight
            new = (sum_x / weights, sum_y / weights)
            moved = max(moved, _length(new, (x, y)))
            points[at] = new
        if moved < 1e-5:
            break
    return points


def _stress(points: Sequence[Point], steps: Sequence[Sequence[float]]) -> float:
    found = 0.0
    for one in range(len(points)):
        for other in range(one):
            error = _length(points[one], points[other]) / steps[one][other] - 1
            found += error * error
    return found


def _flaws(points: Sequence[Point], pairs: Pairs) -> float:
    """Crossings of lines, and six for each vertex that lies on a line of others; 0 for graphs too large to count."""
    if len(pairs) > 200:
        return 0.0
    found = 0
    for at, (a, b) in enumerate(pairs):
        for c, d in pairs[:at]:
            if len({a, b, c, d}) == 4:
                found += cross(points[a], points[b], points[c], points[d])
        found += 6 * sum(from_line(p, points[a], points[b]) < 0.25 for v, p in enumerate(points) if v not in (a, b))
    return float(found)


def cross(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether the lines a-b and c-d cross."""

    def side(p: Point, q: Point, r: Point) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def from_line(point: Point, a: Point, b: Point) -> float:
    """How far a point is from the line a-b."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    along = ((point[0] - a[0]) * dx + (point[1] - a[1]) * dy) / max(dx * dx + dy * dy, 1e-12)
    along = min(1.0, max(0.0, along))
    return _length(point, (a[0] + along * dx, a[1] + along * dy))


def _aligned(points: Sequence[Point], pairs: Pairs) -> list[Point]:
    """The points turned so that lines are level or upright if possible, wider than high, the first on the left.

    The angles of the lines, times four, agree where a quarter turn makes no difference.
    """
    middle = _total([x for x, _ in points]) / len(points), _total([y for _, y in points]) / len(points)
    centered = [(x - middle[0], y - middle[1]) for x, y in points]
    angles = [atan2(centered[b][1] - centered[a][1], centered[b][0] - centered[a][0]) for a, b in pairs]
    level, upright = _total([cos(4 * angle) for angle in angles]), _total([sin(4 * angle) for angle in angles])
    if sqrt(level * level + upright * upright) > 0.3 * len(pairs):
        turn = -atan2(upright, level) / 4
    else:
        xx, yy = _total([x * x for x, _ in centered]), _total([y * y for _, y in centered])
        xy = _total([x * y for x, y in centered])
        turn = -atan2(2 * xy, xx - yy) / 2
    turned = [(x * cos(turn) - y * sin(turn), x * sin(turn) + y * cos(turn)) for x, y in centered]
    wide, high = (max(p[k] for p in turned) - min(p[k] for p in turned) for k in (0, 1))
    if high > wide + 1e-6:
        turned = [(y, -x) for x, y in turned]
    flip_x = -1 if turned[0][0] > 1e-6 else 1
    flip_y = -1 if turned[0][1] > 1e-6 else 1
    return [(round(x * flip_x, 6), round(y * flip_y, 6)) for x, y in turned]
