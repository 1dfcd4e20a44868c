"""Trees in characters: the root on the left and branches to the right, or one line per vertex if that is too wide."""

from __future__ import annotations

from tnmars.draw.canvas import BOND, Canvas
from tnmars.draw.view import View

_DEEPEST = 200


def branches(view: View, root: int, width: int) -> Canvas | None:
    """A tree that grows to the right, or downwards if that is too wide; None if both are."""
    for sideways in (True, False):
        found = Canvas()
        if _branch(found, view, (0, 0), root, None, None if sideways else 0) is not None and found.width <= width:
            return found
    return None


def _branch(
    found: Canvas,
    view: View,
    place: tuple[int, int],
    vertex: int,
    parent: int | None,
    indent: int | None,
    depth: int = 0,
) -> int | None:
    """Draws a vertex with all of its branches, and returns the row after it; None if the tree is too deep.

    With an `indent`, its branches stand below, starting at that column; without, to its right.
    """
    if depth > _DEEPEST:
        return None
    row, column = place
    end = found.put(row, column, *view.token(vertex))
    tags = view.tags(vertex)
    below = [other for other in view.web.near[vertex] if other != parent]
    stem = end + 2 if indent is None else indent
    after, count = row + 1, len(tags) + len(below)
    for index in range(count):
        first, last = index == 0 and indent is None, index == count - 1
        line = row if first else after
        if first:
            found.put(line, stem - 1, "─", BOND)
        at = found.put(line, stem, ("──" if last else "┬─") if first else ("└─" if last else "├─"), BOND) + 1
        done: int | None = line + 1
        if index < len(tags):
            found.put(line, at, *tags[index])
        else:
            other = below[index - len(tags)]
            text = view.between(vertex, other)
            at = found.put(line, at, f"{text} {view.stroke(vertex, other) * 2} ", BOND) if text else at
            further = None if indent is None else indent + 3
            done = _branch(found, view, (line, at), other, vertex, further, depth + 1)
        if done is None:
            return None
        for between in range(line + 1, done if not last else 0):
            found.put(between, stem, "│", BOND)
        after = done
    return after
