"""A search of our own for contraction trees: the cheapest by estimated time, over connected sets of cores.

A set of leaves is a number with a bit for each, and so is a set of labels. The work is bounded: if a graph has many
connected sets of cores, only the small ones are examined, and fewer continuations of each are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf, prod

from tnmars.plan.layout import Weighing
from tnmars.plan.network import TOKENS, Network, spatial
from tnmars.plan.tree import Pair, Rows, Tree, bits, inside_out, members_of

MAX_SUBSETS = 400
"""If there are at most this many connected sets of cores, all are searched."""
MAX_PARTS = 200
"""If there are more, at most this many small ones are searched."""
TRIALS = 60_000
"""The approximate number of continuations tried while an input is pushed through the cores."""
BEAM = (8, 200)
"""The smallest and the largest number of partial orders of equal length that are followed."""
MOST_TRIALS = 100_000
"""The number of continuations above which, in graphs with hundreds of cores, only the first of each order are tried."""

Members = int
"""A set of leaves, as bits."""
Mask = int
"""A set of labels, as bits."""


class Search:
    """The search over one network."""

    def __init__(self, network: Network, weighing: Weighing):
        self.network = network
        self.weighing = weighing
        self.model = weighing.model
        self.cores = bits(network.cores)
        self._sizes = list({**network.size, **network.lengths(bits(network.inputs))}.values())
        self._place = {label: at for at, label in enumerate(network.size)}
        self._leaves = [self._mask(leaf.labels) for leaf in network.leaves]
        self._final = self._mask((*network.output, *network.rows))
        self._taps = self._mask(dict(network.taps))
        self._spatial = self._mask(map(spatial, range(len(network.kernel))))
        self._rows = self._mask(network.rows)
        self._holders = self._having(self._leaves)
        pairs = (label for label, leaves in enumerate(self._holders) if leaves.bit_count() == 2)
        self._bonds = bits(pairs) & ~self._final
        """Labels that any contraction of their two leaves sums."""
        self._volumes: dict[Mask, int] = {}
        self._masks: dict[Members, Mask] = {}
        self._best: dict[Members, tuple[float, Tree]] = {}
        self._prices: dict[tuple[int, int, int, int], float] = {}
        self.subsets, self.is_small = self._connected()
        self._known = set(self.subsets)

    def _mask(self, labels: Iterable[str]) -> Mask:
        return bits(self._place[label] for label in labels)

    def _having(self, masks: Iterable[Mask]) -> list[int]:
        """For each label, which of some masks have it, as bits."""
        having = [0] * len(self._sizes)
        for at, mask in enumerate(masks):
            for label in members_of(mask):
                having[label] |= 1 << at
        return having

    def _connected(self) -> tuple[list[Members], bool]:
        """The connected sets of cores, small ones first, and whether these are all of them."""
        near = dict.fromkeys(members_of(self.cores), 0)
        for at in near:
            for label in members_of(self._leaves[at]):
                near[at] |= self._holders[label]
            near[at] = near[at] & self.cores | (1 << at if self._leaves[at] else 0)
        layers = [{1 << at: near[at] & ~(1 << at) for at in near}]
        while layers[-1]:
            layer: dict[Members, Members] = {}
            for members, reach in layers[-1].items():
                for at in members_of(reach):
                    more = members | 1 << at
                    layer[more] = (reach | near[at]) & ~more
                if sum(map(len, layers)) + len(layer) > MAX_SUBSETS:
                    return _up_to(MAX_PARTS, layers), False
            layers.append(layer)
        sets = [members for layer in layers for members in sorted(layer)]
        return (sets if self.cores in sets else [*sets, self.cores]), True

    def best(self, members: Members) -> Tree:
        """The cheapest tree over a set of cores."""
        return self.cheapest(members)[1]

    def cheapest(self, members: Members) -> tuple[float, Tree]:
        """The same with what it costs."""
        found = self._best.get(members)
        if found is None:
            found = self._best[members] = self._split(members)
        return found

    def _split(self, members: Members) -> tuple[float, Tree]:
        first = members & -members
        if first == members:
            return 0.0, first.bit_length() - 1
        splits = [part for part in self.subsets if part & first and part & members == part and part != members]
        options = [
            (part, rest) for part in splits if (rest := members ^ part) in self._known and self._is_joined(part, rest)
        ]
        options = options or [(part, members ^ part) for part in splits]  # unconnected parts
        best: tuple[float, Tree] | None = None
        for part, rest in options:
            one, two = self.cheapest(part), self.cheapest(rest)
            total = one[0] + two[0] + self._price(self._left(part), self._left(rest), members)
            if best is None or total < best[0]:
                best = (total, Pair(one[1], two[1]))
        assert best is not None
        return best

    def _left(self, members: Members) -> Mask:
        """The labels of the contraction of some leaves: those that another leaf or the output needs."""
        found = self._masks.get(members)
        if found is None:
            inside = 0
            for at in members_of(members):
                inside |= self._leaves[at]
            lost = (label for label in members_of(inside & ~self._final) if not self._holders[label] & ~members)
            found = self._masks[members] = inside & ~bits(lost)
        return found

    def _is_joined(self, one: Members, two: Members) -> bool:
        return bool(self._left(one) & self._left(two))

    def _volume(self, mask: Mask) -> int:
        found = self._volumes.get(mask)
        if found is None:
            found = 1
            for label in members_of(mask):
                found *= self._sizes[label]
            self._volumes[mask] = found
        return found

    def _summed(self, shared: Mask, members: Members) -> Mask:
        """Which of the labels that two operands share are summed, once these leaves are contracted."""
        found = shared & self._bonds
        for label in members_of(shared & ~found & ~self._final):
            if not self._holders[label] & ~members:
                found |= 1 << label
        return found

    def _places(self, members: Members) -> int:
        """The number of output positions of a convolution of these leaves; 1 if no taps are summed."""
        return prod(self.network.lengths(members).values()) if self._spatial else 1

    def _price(self, a: Mask, b: Mask, members: Members, rows: int = 1, places: int = 1) -> float:
        """The estimated time of one contraction to some leaves, wherever its operands lie.

        It is done `rows` times over; `places` are output positions, which the first operand has in addition to its
        labels.
        """
        shared = a & b
        depth = self._summed(shared, members)
        # the first operand may have hundreds of labels: its volume is computed once, and the others are made from it
        rest = self._volume(a) // self._volume(shared)
        if not depth:
            return self._product(0, rest * self._volume(b) * rows * places, 1, 1)
        batch, high = self._volume(shared ^ depth) * rows, rest * places
        return self._product(self._volume(depth), batch, high, self._volume(b ^ shared))

    def _product(self, depth: int, batch: int, high: int, wide: int) -> float:
        """The time of products of these extents; without a depth, of an elementwise step."""
        key = (depth, batch, high, wide) if high <= wide else (depth, batch, wide, high)
        found = self._prices.get(key)
        if found is None:
            grad = self.weighing.grad
            try:
                if not depth:
                    found = self.model.elementwise(batch, batch) * (3 if grad else 1)
                else:  # the longer one last, which is the faster way
                    found = self.model.product(batch, key[2], key[3], depth, grad=grad)
            except OverflowError:  # hundreds of open bonds
                found = inf
            self._prices[key] = found
        return found

    def price(self, tree: Tree) -> float:
        """About the time of a tree, its images with all of their taps; infinite if no float holds it."""
        total = 0.0
        masks: list[Mask] = []
        for part in inside_out(tree, ()):
            if isinstance(part, Pair):
                two, one = masks.pop(), masks.pop()
                total += self._price(one, two, part.members)
                masks.append((one | two) & ~self._summed(one & two, part.members))
            elif not isinstance(part, Rows):
                masks.append(self._left(1 << part))
        return total

    @property
    def singles(self) -> list[Members]:
        return [1 << at for at in self.network.cores]

    @property
    def tapped(self) -> list[Members]:
        """The cores with taps as one part, which makes one convolution of theirs; the others single. Or nothing."""
        taps = bits(at for at in self.network.cores if self._leaves[at] & self._taps)
        if taps.bit_count() < 2 or taps not in self._known:
            return []
        return [taps, *(part for part in self.singles if not part & taps)]

    def spine(self, parts: Sequence[Members], limit: float = inf) -> Tree | None:
        """The cheapest order to push the only input through some of these parts, which are cores or made of several.

        None if every order that is tried takes longer than `limit`.
        """
        start = self.network.inputs[0]
        count = self.cores.bit_count()
        beam = max(BEAM[0], min(BEAM[1], TRIALS // (len(parts) * count)))
        width = max(BEAM[0], MOST_TRIALS // (beam * count))
        known = [(part, self._left(part), part.bit_count()) for part in parts]
        having = self._having(labels for _, labels, _ in known)
        shares = self._shares(parts)
        # the tree so far and the part that joins it: most of what is reached is never continued, so never joined;
        # then the labels that are left, and the parts that may still join, as bits
        layers: list[dict[Members, tuple[float, Tree, Tree | None, Mask, int]]] = [{} for _ in range(count + 1)]
        layers[0] = {0: (0.0, start, None, self._left(1 << start), (1 << len(known)) - 1)}
        for reached in layers[:-1]:
            states = sorted(reached.items(), key=lambda entry: entry[1][0])[:beam]
            for done, (cost, before, joining, mask, free) in states:
                tree = before if joining is None else Pair(before, joining)
                size = done.bit_count()
                near = 0
                for label in members_of(mask):
                    near |= having[label]
                for at in islice(members_of(near & free or free), width):
                    part, labels, more = known[at]
                    members = done | part
                    image, after = mask & ~(self._taps & ~labels) & ~self._spatial, members | 1 << start
                    total = cost + self._price(image, labels, after, places=self._places(after))
                    inner, made = self.cheapest(part)
                    total += 0.0 if self.weighing.folded else inner
                    layer = layers[size + more]
                    if total < limit and (members not in layer or total < layer[members][0]):
                        left = (mask | labels) & ~self._summed(mask & labels, after)
                        layer[members] = (total, tree, made, left, free & ~shares[at])
        if self.cores not in layers[count]:
            return None
        _, before, joining, _, _ = layers[count][self.cores]
        return before if joining is None else Pair(before, joining)

    @staticmethod
    def _shares(parts: Sequence[Members]) -> list[int]:
        """For each part, the parts that have a core of it, itself too, as bits."""
        with_core: dict[int, int] = {}
        for at, part in enumerate(parts):
            for core in members_of(part):
                with_core[core] = with_core.get(core, 0) | 1 << at
        shares = []
        for part in parts:
            own = 0
            for core in members_of(part):
                own |= with_core[core]
            shares.append(own)
        return shares

    def row_price(self, parts: Sequence[Members]) -> float:
        """About the time to make tables of some parts, to take rows of each, and to contract these one by one."""
        tokens = self.network.size[TOKENS]
        total, done, have = 0.0, 0, 0
        for part in parts:
            labels = self._left(part) & ~self._rows
            total += 0.0 if self.weighing.folded else self.cheapest(part)[0]
            total += self.model.gather(tokens * self._volume(labels))
            if done:
                total += self._price(have, labels, done | part, tokens)
            have = (have | labels) & ~self._summed(have & labels, done | part)
            done |= part
        return total


def _up_to(count: int, layers: Sequence[dict[Members, Members]]) -> list[Members]:
    """Sets of cores, small ones first: all single cores, and every size that keeps the number within `count`."""
    found = sorted(layers[0])
    for layer in layers[1:]:
        if len(found) + len(layer) > count:
            break
        found += sorted(layer)
    return found
