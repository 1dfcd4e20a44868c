"""Graphs with cycles in characters: the layout's positions on a grid of characters, slanted lines in braille dots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from tnmars.draw.canvas import BOND, CORE, PLAIN, Canvas
from tnmars.draw.layout import Layout, Line
from tnmars.draw.stress import Point
from tnmars.draw.view import DOT, Token, View

Cell = tuple[int, int]

_MOST_CORES, _MOST_LINES, _MOST_ROWS = 40, 60, 60
_MARGIN = 60
"""Room for what sticks out, cut off in the end."""
_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_ALONG = (0.5, 0.42, 0.58, 0.35, 0.65, 0.28, 0.72, 0.22, 0.78)


def plane(view: View, placed: Layout, part: Sequence[str], width: int) -> Canvas | None:
    """A part with its cores where the layout has them, at the smallest legible scale; None if there is none."""
    inside = set(part)
    lines = [line for line in placed.lines if line.end in inside]
    if len(part) > _MOST_CORES or len(lines) > _MOST_LINES:
        return None
    dots = dict.fromkeys(line.bond for line in lines if line.start is None)
    points = {f"core {name}": placed.cores[name] for name in part}
    points |= {f"dot {name}": placed.dots[name] for name in dots}
    number = {name: at for at, name in enumerate(view.web.cores)}
    tokens = {f"core {name}": [view.token(number[name]), *_modes(view, number[name])] for name in part}
    tokens |= {f"dot {name}": [(DOT, CORE), (view.tag(name), BOND)] for name in dots}
    left, top = (min(point[k] for point in points.values()) for k in (0, 1))
    wide = max(point[0] for point in points.values()) - left
    pairs = [placed.ends(line) for line in lines if not line.bend]
    square = all(a[0] == b[0] or a[1] == b[1] for a, b in pairs)
    for unit in range(8, width, 2):
        rows = 4 if square else max(4, round(unit * 0.36))
        if wide * unit > width:
            break
        cells = {key: (round((y - top) * rows), round((x - left) * unit)) for key, (x, y) in points.items()}
        attempt = _Attempt(view, cells, tokens, unit)
        if attempt.draw(lines):
            drawing = attempt.found.cropped()
            if drawing.width <= width and drawing.height <= _MOST_ROWS:
                return drawing
    return None


def _modes(view: View, vertex: int) -> list[Token]:
    """The modes of a core in brackets behind its name."""
    found: list[Token] = []
    for at, tag in enumerate(view.tags(vertex)):
        found += [("(" if at == 0 else " ", PLAIN), tag]
    return [*found, (")", PLAIN)] if found else []


@dataclass
class _Attempt:
    """One drawing at one scale, and the cells that its lines and texts have taken."""

    view: View
    cells: Mapping[str, Cell]
    tokens: Mapping[str, list[Token]]
    unit: int
    found: Canvas = field(default_factory=Canvas)
    texts: dict[Cell, str] = field(default_factory=dict)
    braille: dict[Cell, int] = field(default_factory=dict)
    paths: dict[str, set[Cell]] = field(default_factory=dict)

    def draw(self, lines: Sequence[Line]) -> bool:
        """Draws everything; False if something would hide something else."""
        self.cells = {key: (row + _MARGIN, column + 2 * _MARGIN) for key, (row, column) in self.cells.items()}
        for key, (row, column) in self.cells.items():
            text = "".join(part for part, _ in self.tokens[key])
            start = column - len(self.tokens[key][0][0]) // 2
            if not self._take(key, row, start, text):
                return False
        curves = [self._curve(line) for line in lines]
        for line, curve in zip(lines, curves, strict=True):
            if not self._trace(line, curve):
                return False
        for line, curve in zip(lines, curves, strict=True):
            if line.start is not None and not self._label(line, curve):
                return False
        for cell, bits in self.braille.items():
            if cell not in self.texts:
                self.found.put(*cell, chr(0x2800 + bits), BOND)
        for key, (row, column) in self.cells.items():
            at = column - len(self.tokens[key][0][0]) // 2
            for text, style in self.tokens[key]:
                at = self.found.put(row, at, text, style)
        return True

    def _take(self, key: str, row: int, start: int, text: str) -> bool:
        """Reserves the cells of a text, and one on either side."""
        cells = [(row, column) for column in range(start - 1, start + len(text) + 1)]
        if any(cell in self.texts for cell in cells):
            return False
        self.texts.update(dict.fromkeys(cells, key))
        return True

    def _curve(self, line: Line) -> list[Point]:
        """Points along a line, close enough for every dot, as row and column."""
        (r0, c0), (r1, c1) = self._ends(line)
        steps = max(abs(r1 - r0) * 4, abs(c1 - c0) * 2, 1) * (2 if line.bend else 1)
        length = max(1.0, sqrt((2 * (r1 - r0)) ** 2 + (c1 - c0) ** 2))
        # Characters are twice as high as wide: normals are computed in square units.
        unit = 2 * self.unit * line.bend
        off_r, off_c = (c1 - c0) / length * unit / 2, -(2 * (r1 - r0)) / length * unit
        found = []
        for step in range(steps + 1):
            t = step / steps
            found.append((r0 + (r1 - r0) * t + off_r * 2 * t * (1 - t), c0 + (c1 - c0) * t + off_c * 2 * t * (1 - t)))
        return found

    def _ends(self, line: Line) -> tuple[Cell, Cell]:
        start = f"dot {line.bond}" if line.start is None else f"core {line.start}"
        return self.cells[start], self.cells[f"core {line.end}"]

    def _trace(self, line: Line, curve: Sequence[Point]) -> bool:
        """Draws a line below all texts; False if it would run through a text that it does not end at."""
        (r0, c0), (r1, c1) = self._ends(line)
        own = {f"dot {line.bond}" if line.start is None else f"core {line.start}", f"core {line.end}"}
        cells = {(int(row + 0.5), int(column + 0.5)) for row, column in curve}
        if any(self.texts.get(cell, line.end) not in own and cell in self.texts for cell in cells):
            return False
        self.paths.setdefault(line.bond, set()).update(cells)
        thin = self.view.sizes[line.bond] == 1
        if not line.bend and (r0 == r1 or c0 == c1):
            mark = ("╌" if thin else "─") if r0 == r1 else ("╎" if thin else "│")
            for cell in cells:
                other = self.found.cells.get(cell, (mark, ""))[0]
                self.found.put(*cell, mark if other == mark else "┼", BOND)
            return True
        for at, (row, column) in enumerate(curve):
            if thin and at % 4 > 1:
                continue
            cell = int(row + 0.5), int(column + 0.5)
            dot_row, dot_column = int((row + 0.5 - cell[0]) * 4), int((column + 0.5 - cell[1]) * 2)
            self.braille[cell] = self.braille.get(cell, 0) | _BRAILLE[min(dot_row, 3)][min(dot_column, 1)]
        return True

    def _label(self, line: Line, curve: Sequence[Point]) -> bool:
        """Writes a bond's text on its line where it hides least of the others; False if there is no room."""
        text = self.view.tag(line.bond)
        best: tuple[int, Cell] | None = None
        for at in _ALONG:
            row, column = curve[round(at * (len(curve) - 1))]
            cell = int(row + 0.5), int(column + 0.5) - len(text) // 2
            cells = {(cell[0], cell[1] + step) for step in range(-1, len(text) + 1)}
            if any(spot in self.texts for spot in cells):
                continue
            hidden = sum(bool(cells & path) for bond, path in self.paths.items() if bond != line.bond)
            if best is None or hidden < best[0]:
                best = hidden, cell
        if best is None or best[0] > 1:
            return False
        self._take(line.bond, *best[1], text)
        self.found.put(*best[1], text, BOND)
        return True
