"""Contraction paths from cotengra, if it is installed and requested. The same network gives the same path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from tnmars.errors import Problem, TnmarsError

REPEATS = 32
SUBTREE = 6
ROUNDS = 8
"""The number of greedy paths to choose from; the number of steps in a part that is reordered, and how often."""


def cotengra_path(
    labels: Sequence[frozenset[int]], output: frozenset[int], sizes: Mapping[int, int]
) -> tuple[tuple[int, ...], ...]:
    """A path over operands with these labels, as opt_einsum writes one.

    cotengra's own default search runs in several processes, for a time, from a random start; this one does not, so
    that a plan is the same wherever it is made. Raises `TnmarsError` if cotengra is not installed.
    """
    if find_spec("cotengra") is None:
        hint = "Install it with: pip install 'tnmars[plan]'; or leave the optimizer out."
        raise TnmarsError(Problem("optimizer 'cotengra' needs cotengra, which is not installed.", hint))
    import cotengra

    if len(labels) < 2:
        return ()
    inputs = [tuple(sorted(operand)) for operand in labels]
    kept = tuple(sorted(output))
    greedy = cotengra.RandomGreedyOptimizer(max_repeats=REPEATS, seed=0, accel=False, parallel=False)
    tree = greedy.search(inputs, kept, dict(sizes))
    better = tree.subtree_reconfigure(subtree_size=SUBTREE, maxiter=ROUNDS, seed=0)
    return tuple(tuple(step) for step in better.get_path())
