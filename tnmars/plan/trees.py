"""Contraction trees worth looking at: from opt_einsum's paths, and from a search of our own by estimated time.

A tree nests the positions of the leaves. In every tree the way from an input to the root is a spine, and what joins it
are parts made of cores alone; so the search finds the best parts first, then the best order to push the input through.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tnmars.errors import TnmarsError
from tnmars.plan.hyper import cotengra_path
from tnmars.plan.layout import Tree, Weighing, leaves_of
from tnmars.plan.network import Network

OPTIMIZERS = ("auto", "dp", "optimal", "branch-all", "branch-2", "branch-1", "greedy", "random-greedy", "cotengra")
"""Where paths come from: opt_einsum's searches by its names, or cotengra."""
MAX_SUBSETS = 400
"""Up to how many connected sets of cores the search by time looks at."""

TRIALS = 6000
"""About how many ways to go on are tried for each number of cores that the input was pushed through."""

Members = frozenset[int]


def candidates(network: Network, weighing: Weighing, optimizer: str = "auto") -> dict[str, Tree]:
    """Trees by the name of their form: `push`, `dense`, `parts`, `blocks`, `taps` and `path`; equal ones once."""
    cores = list(network.cores)
    found: dict[str, Tree] = {}
    if not network.inputs:
        found["path"] = by_path(network, cores, optimizer)
        search = Search(network, weighing)
        if search.is_small:
            found["parts"] = search.best(frozenset(cores))
    elif len(cores) == 0:
        found["path"] = by_path(network, list(network.inputs), optimizer)
    else:
        found["dense"] = _join(by_path(network, cores, optimizer), network, list(network.inputs), optimizer)
        found["path"] = by_path(network, list(range(len(network.leaves))), optimizer)
        search = Search(network, weighing)
        if search.is_small and len(network.inputs) == 1:
            found["push"] = search.spine(search.singles)
            found["parts"] = search.spine(search.subsets)
            found["blocks"] = Search(network, _coarse(weighing)).spine(search.subsets)
            if search.tapped:
                found["taps"] = search.spine(search.tapped)
            found["dense"] = (search.best(frozenset(cores)), network.inputs[0])
    unique: dict[Tree, str] = {}
    for name, tree in found.items():
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
        return (core_tree, inputs[0])
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
        current = [tree for at, tree in enumerate(current) if at not in positions]
        current.append(_chain(taken))
    return _chain(current)


def _chain(trees: Sequence[Tree]) -> Tree:
    """Several trees joined from left to right."""
    joined = trees[0]
    for tree in trees[1:]:
        joined = (joined, tree)
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
            return RandomGreedy(max_repeats=32)(list(labels), output, sizes)  # type: ignore[no-any-return]
        finally:
            random.setstate(state)
    if optimizer == "cotengra":
        return cotengra_path(labels, output, sizes)
    if optimizer not in OPTIMIZERS:
        raise TnmarsError(f"optimizer '{optimizer}' is not known; optimizers: {', '.join(OPTIMIZERS)}.")
    function = paths.get_path_fn(optimizer)
    return function(list(labels), output, sizes, None)  # type: ignore[no-any-return]


class Search:
    """The cheapest trees by estimated time, over connected sets of cores."""

    def __init__(self, network: Network, weighing: Weighing):
        self.network = network
        self.weighing = weighing
        self.cores = network.cores
        self._labels = {at: frozenset(network.leaves[at].labels) for at in range(len(network.leaves))}
        self._best: dict[Members, tuple[float, Tree]] = {}
        self.subsets = self._connected()
        self._known = set(self.subsets)
        self._taps = frozenset(dict(network.taps))

    @property
    def is_small(self) -> bool:
        return len(self.subsets) <= MAX_SUBSETS

    def _connected(self) -> list[Members]:
        """The connected sets of cores, small ones first, until there are too many; and always the whole."""
        found: set[Members] = {frozenset([at]) for at in self.cores}
        layer = set(found)
        while layer and len(found) <= MAX_SUBSETS:
            layer = {
                members | {at}
                for members in layer
                for at in self.cores
                if at not in members and any(self._labels[at] & self._labels[other] for other in members)
            } - found
            found |= layer
        found.add(frozenset(self.cores))
        return sorted(found, key=lambda members: (len(members), sorted(members)))

    def best(self, members: Members) -> Tree:
        """The cheapest tree over a set of cores."""
        return self._cheapest(members)[1]

    def _cheapest(self, members: Members) -> tuple[float, Tree]:
        if members in self._best:
            return self._best[members]
        if len(members) == 1:
            found: tuple[float, Tree] = (0.0, next(iter(members)))
        else:
            first = min(members)
            splits = [part for part in self.subsets if first in part and part < members]
            options = [
                (part, rest)
                for part in splits
                if (rest := members - part) in self._known and self._is_joined(part, rest)
            ]
            options = options or [(part, members - part) for part in splits]  # unconnected parts
            priced = []
            for part, rest in options:
                one, two = self._cheapest(part), self._cheapest(rest)
                priced.append((one[0] + two[0] + self._price(part, rest), (one[1], two[1])))
            found = min(priced, key=lambda entry: entry[0])
        self._best[members] = found
        return found

    def _is_joined(self, one: Members, two: Members) -> bool:
        return bool(self.network.kept(one) & self.network.kept(two))

    def _has_input(self, members: Members) -> bool:
        return any(at in members for at in self.network.inputs)

    def _price(self, one: Members, two: Members) -> float:
        """The estimated time of one contraction, wherever its operands lie."""
        a, b, kept = self.network.kept(one), self.network.kept(two), self.network.kept(one | two)
        shared = a & b
        if self._has_input(one):
            a -= self._taps - b  # an image has its taps only in thought
        size = self.network.volume
        batch, depth = size(shared & kept), size(shared - kept)
        model = self.weighing.model
        grad = self.weighing.grad
        if not shared - kept:
            return model.elementwise(size(a | b), size(a | b)) * (3 if grad else 1)
        rows, columns = sorted((size(a - shared), size(b - shared)))  # the longer one last, which is the faster way
        return model.product(batch, rows, columns, depth, grad=grad)

    @property
    def singles(self) -> list[Members]:
        return [frozenset([at]) for at in self.cores]

    @property
    def tapped(self) -> list[Members]:
        """The cores with taps as one part, which makes one convolution of theirs; the others single. Or nothing."""
        taps = frozenset(at for at in self.cores if self._labels[at] & self._taps)
        if len(taps) < 2 or taps not in self._known:
            return []
        return [taps, *(part for part in self.singles if not part & taps)]

    def spine(self, parts: Sequence[Members]) -> Tree:
        """The cheapest order to push the only input through some of these parts, which are cores or made of several."""
        start = self.network.inputs[0]
        whole = frozenset(self.cores)
        beam = min(200, max(20, TRIALS // len(parts)))
        reached: dict[Members, tuple[float, Tree]] = {frozenset(): (0.0, start)}
        layers: list[dict[Members, tuple[float, Tree]]] = [{} for _ in range(len(whole) + 1)]
        layers[0] = reached
        for layer in layers:
            ranked = sorted(layer.items(), key=lambda entry: entry[1][0])[:beam]
            for done, (cost, tree) in ranked:
                open_parts = [part for part in parts if not part & done]
                joined = [part for part in open_parts if self._is_joined(done | {start}, part)] or open_parts
                for part in joined:
                    total = cost + self._price(done | {start}, part)
                    inner, made = self._cheapest(part)
                    total += 0.0 if self.weighing.folded else inner
                    after = layers[len(done) + len(part)]
                    members = done | part
                    if members not in after or total < after[members][0]:
                        after[members] = (total, (tree, made))
        return layers[len(whole)][whole][1]
