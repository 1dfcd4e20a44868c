"""Contraction trees worth looking at: from opt_einsum's paths, and from a search of our own by estimated time.

A tree nests the positions of the leaves. In every tree the way from an input to the root is a spine, and what joins it
are parts made of cores alone; so the search finds the best parts first, then the best order to push the input through.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from tnmars.errors import TnmarsError
from tnmars.plan.hyper import cotengra_path
from tnmars.plan.layout import Weighing
from tnmars.plan.network import Network
from tnmars.plan.search import MAX_PARTS, Search
from tnmars.plan.tree import Pair, Tree, leaves_of

OPTIMIZERS = ("auto", "dp", "optimal", "branch-all", "branch-2", "branch-1", "greedy", "random-greedy", "cotengra")
"""Where paths come from: opt_einsum's searches by its names, or cotengra."""
HOPELESS = 100
"""In graphs with hundreds of cores, orders that take this many times as long as opt_einsum's path are not followed."""


def candidates(network: Network, weighing: Weighing, optimizer: str = "auto") -> dict[str, Tree]:
    """Trees by the name of their form: `push`, `dense`, `parts`, `blocks`, `taps` and `path`; equal ones once."""
    cores = list(network.cores)
    trees: dict[str, Tree] = {}
    if not network.inputs:
        trees["path"] = by_path(network, cores, optimizer)
        search = Search(network, weighing)
        if search.is_small:
            trees["parts"] = search.best(search.cores)
    elif len(cores) == 0:
        trees["path"] = by_path(network, list(network.inputs), optimizer)
    else:
        trees["dense"] = _join(by_path(network, cores, optimizer), network, list(network.inputs), optimizer)
        trees["path"] = by_path(network, list(range(len(network.leaves))), optimizer)
        search = Search(network, weighing)
        if len(network.inputs) == 1:
            is_long = len(cores) > MAX_PARTS
            limit = HOPELESS * search.price(trees["path"]) if is_long else inf
            spines = {"push": search.spine(search.singles, limit)}
            if not is_long or len(search.subsets) > len(cores):  # else all parts are single cores
                spines["parts"] = search.spine(search.subsets, limit)
                spines["blocks"] = Search(network, _coarse(weighing)).spine(search.subsets, limit)
            if search.tapped:
                spines["taps"] = search.spine(search.tapped, limit)
            trees |= {name: tree for name, tree in spines.items() if tree is not None}
            if search.is_small:
                trees["dense"] = Pair(search.best(search.cores), network.inputs[0])
    unique: dict[Tree, str] = {}
    for name, tree in trees.items():
        unique.setdefault(tree, name)
    return {name: tree for tree, name in unique.items()}


def _coarse(weighing: Weighing) -> Weighing:
    """A weighing that dislikes small and skinny products even more: its parts are larger, and sometimes better."""
    model = weighing.model
    coarse = replace(
        model,
        half_columns=4 * model.half_columns,
        half_depth=3 * model.half_depth,
        call=3 * model.call,
        grad_call=3 * model.grad_call,
        rate=model.rate / 3,
    )
    return replace(weighing, model=coarse)


def _join(core_tree: Tree, network: Network, inputs: Sequence[int], optimizer: str) -> Tree:
    """The weight, once made, contracted with the inputs."""
    if len(inputs) == 1:
        return Pair(core_tree, inputs[0])
    members = leaves_of(core_tree)
    labels = [network.kept(members), *(frozenset(network.leaves[at].labels) for at in inputs)]
    return _tree([core_tree, *inputs], labels, network, optimizer)


def by_path(network: Network, leaves: Sequence[int], optimizer: str = "auto") -> Tree:
    """The tree of opt_einsum's path over some leaves."""
    return _tree(list(leaves), [frozenset(network.leaves[at].labels) for at in leaves], network, optimizer)


def _tree(operands: list[Tree], labels: list[frozenset[str]], network: Network, optimizer: str) -> Tree:
    if len(operands) == 1:
        return operands[0]
    members = frozenset().union(*map(leaves_of, operands))
    output = network.kept(members)
    # numbers in order, because sets of text have another order in each process, and searches break ties by it
    number = {label: at for at, label in enumerate(network.size)}
    numbered = [frozenset(sorted(number[label] for label in operand)) for operand in labels]
    kept = frozenset(sorted(number[label] for label in output))
    path = _path(numbered, kept, {number[label]: size for label, size in network.size.items()}, optimizer)
    current = list(operands)
    for positions in path:
        taken = [current[at] for at in positions]
        for at in sorted(positions, reverse=True):
            del current[at]
        current.append(chain(taken))
    return chain(current)


def chain(trees: Sequence[Tree]) -> Tree:
    """Several trees joined from left to right."""
    joined = trees[0]
    for tree in trees[1:]:
        joined = Pair(joined, tree)
    return joined


def _path(
    labels: list[frozenset[int]], output: frozenset[int], sizes: dict[int, int], optimizer: str
) -> Iterable[tuple[int, ...]]:
    """A contraction path. Only this is taken from opt_einsum; equations are derived from the graph."""
    from opt_einsum import paths

    if optimizer == "auto":
        optimizer = "dp" if len(labels) <= 10 else "random-greedy" if len(labels) <= 40 else "greedy"
    if optimizer == "dp":
        return paths.DynamicProgramming()(list(labels), output, sizes)  # type: ignore[no-any-return]
    if optimizer == "random-greedy":
        from opt_einsum.path_random import RandomGreedy

        state = random.getstate()  # it seeds Python's own random numbers, which are the user's
        try:
            return RandomGreedy(max_repeats=32)(list(labels), output, sizes, None)  # type: ignore[no-any-return]
        finally:
            random.setstate(state)
    if optimizer == "cotengra":
        return cotengra_path(labels, output, sizes)
    if optimizer not in OPTIMIZERS:
        raise TnmarsError(f"optimizer '{optimizer}' is not known; optimizers: {', '.join(OPTIMIZERS)}.")
    function = paths.get_path_fn(optimizer)
    return function(list(labels), output, sizes, None)  # type: ignore[no-any-return]
