"""Questions about a spec file that is valid: what it leaves out, and which of two things it means."""

from __future__ import annotations

from math import isqrt

from tnmars.errors import Problem
from tnmars.graph import Role
from tnmars.spec.reader import Spec


def doubts(spec: Spec) -> list[Problem]:
    """What `tnmars check` asks about a file, besides what it warns of for any graph."""
    graph = spec.graph
    if graph is None or ("kernel_size",) in spec.places:
        return []
    kernel = graph.of_role(Role.KERNEL)
    if len(kernel) != 1 or kernel[0].size < 4 or isqrt(kernel[0].size) ** 2 != kernel[0].size:
        return []
    name, size = kernel[0].name, kernel[0].size
    side = isqrt(size)
    text = f"kernel mode '{name}' has size {size}: is a kernel of {size} or of {side}x{side} meant?"
    hint = f"It is read as {size} taps along one axis. Write kernel_size: [{size}], or kernel_size: [{side}, {side}]."
    return [spec.locate(Problem(text, hint, path=("modes", str(Role.KERNEL), name)))]
