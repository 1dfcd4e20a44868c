"""Contraction tree to steps: chooses how each pairwise contraction is computed and in what order its result lies.

For every node of the tree the cheapest ways to have it in each of a few memory orders are kept, so that a copy is made
where it is cheapest, or not at all. The search knows costs and labels only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import permutations

from tnmars.plan import prices
from tnmars.plan.cost import CostModel
from tnmars.plan.network import BATCH, TOKENS, Labels, Network, spatial
from tnmars.plan.steps import Convolve, Gather, Groups, Load, Multiply, Product, Spread, Step, Sum, volume
from tnmars.plan.tree import Pair, Rows, Tree, bits, inside_out, members

Places = tuple[int, ...]
"""The lengths of the spatial axes at some point of a plan; empty if no taps are summed."""

Option = tuple[Labels, float, Callable[[], Step]]
"""The memory order of a result, what it costs, and the step that makes it."""

KEEP = 5
"""How many memory orders of an intermediate are kept."""
MANY = 64
"""An intermediate with more labels than this fits in no memory if each is at least 2 long: one order will do."""
SHUFFLES = 4
"""How many orders of the rows or columns of one operand are tried."""
SMALL = 1 << 16
"""Tensors with at most this many entries are reordered freely to suit the next step."""
RUN = 16
"""The smallest batch that may lie innermost."""


@dataclass(frozen=True)
class Way:
    """A way to have a tensor: its step, its total cost, and the part of the cost that depends on cores alone."""

    step: Step
    cost: float
    fixed: float
    """The part of `cost` that depends on cores alone, which inference can do once."""


@dataclass(frozen=True)
class Weighing:
    """How ways are compared: the machine, and whether gradients are needed and whether work on cores alone is free."""

    model: CostModel
    grad: bool = False
    folded: bool = False
    channels_last: bool = False
    """Whether images come in channels_last, and must leave so."""

    def total(self, way: Way) -> float:
        return way.cost - way.fixed if self.folded else way.cost


class Layout:
    """The search over one network."""

    def __init__(self, network: Network, weighing: Weighing, *, is_grouped: bool = False):
        self.network = network
        self.is_grouped = is_grouped
        """Whether bonds that only the image has become groups where taps are summed, rather than part of the batch."""
        self.sizes: Mapping[str, int] = {**network.size, **network.lengths(bits(network.inputs))}
        self.weighing = weighing
        self.model, self.grad = weighing.model, weighing.grad
        self._volumes: dict[Labels, int] = {}
        self._arranged: dict[tuple[Labels, tuple[Labels, ...], Places], float] = {}
        self._ways: dict[Tree, list[Way]] = {}
        self._left: dict[Tree, frozenset[str]] = {}
        self._cores = bits(network.cores)
        self.taps = dict(network.taps)
        self.spatial = tuple(spatial(axis) for axis in range(len(network.kernel)))
        self._sizes: dict[Places, Mapping[str, int]] = {(): self.sizes}
        self.inner = BATCH if BATCH in network.size and not self.spatial and network.size[BATCH] >= RUN else ""
        """The label of a batch that should lie innermost, so that every permuting copy moves complete rows of it."""

    def best(self, tree: Tree) -> Way:
        """The cheapest way to compute a tree with its result in the order of the output."""
        found = self._find(tree, self.network.output)[0]
        copy = self._copy(found.step.order, self.network.output, self._places(tree))
        return Way(found.step, found.cost + copy, found.fixed + (copy if self._is_fixed(tree) else 0.0))

    def _is_fixed(self, tree: Tree) -> bool:
        """Whether a tree depends on cores alone."""
        return not members(tree) & ~self._cores and (isinstance(tree, int) or not tree.has_rows)

    def try_best(self, tree: Tree) -> Way | None:
        """The same, or None if the tree cannot be computed step by step, as when two cores share a kernel mode.

        Also None if it holds hundreds of open bonds at once, so that no float holds its time.
        """
        try:
            return self.best(tree) if self.ways(tree) else None
        except OverflowError:
            return None

    def ways(self, tree: Tree) -> list[Way]:
        """The cheapest ways to have the result of a tree, one for each memory order."""
        for part in inside_out(tree, self._ways):
            self._ways[part] = self._find(part)
        return self._ways[tree]

    def _find(self, tree: Tree, wanted: Labels | None = None) -> list[Way]:
        """The ways that are kept: the cheapest, with the copy into the order `wanted` if one is given."""
        if isinstance(tree, int):
            return [self._load(tree)]
        if isinstance(tree, Rows):
            return [self._gather(way) for way in self.ways(tree.part)]
        kept = self._kept(tree) | ({TOKENS} if self.network.rows else set())
        is_fixed = self._is_fixed(tree)
        places = (self._places(tree.left), self._places(tree.right), self._places(tree))
        cheapest: dict[Labels, tuple[float, float, float, Callable[[], Step]]] = {}
        for one in self.ways(tree.left):
            for two in self.ways(tree.right):
                spent, fixed = one.cost + two.cost, one.fixed + two.fixed
                for order, cost, make in self._merge(one.step, two.step, kept, places):
                    total = spent + cost
                    done = total if is_fixed else fixed
                    rank = total - done if self.weighing.folded else total
                    if wanted is not None and not (is_fixed and self.weighing.folded):
                        rank += self._copy(order, wanted, places[2])
                    if order not in cheapest or (rank, total) < cheapest[order][:2]:
                        cheapest[order] = (rank, total, done, make)
        ranked = sorted(cheapest, key=lambda order: cheapest[order][:2])
        chosen = ranked[: KEEP if len(kept) <= MANY else 1]
        if self.inner and not any(order[-1:] == (self.inner,) for order in chosen):
            chosen += [order for order in ranked[len(chosen) :] if order[-1:] == (self.inner,)][:1]
        return [Way(make(), total, done) for _, total, done, make in map(cheapest.__getitem__, chosen)]

    def _kept(self, tree: Tree) -> frozenset[str]:
        """The labels of the result of a tree. They follow from those of its two parts, which are few."""
        for part in inside_out(tree, self._left):
            if isinstance(part, Pair):
                inside = self._left[part.left] | self._left[part.right]
                self._left[part] = self.network.still_kept(inside, part.members)
            elif isinstance(part, Rows):
                self._left[part] = self._left[part.part]
            else:
                self._left[part] = self.network.kept(frozenset([part]))
        return self._left[tree]

    def _places(self, tree: Tree) -> Places:
        """The lengths of the spatial axes of the result of a tree."""
        if not self.spatial:
            return ()
        lengths = self.network.lengths(members(tree))
        places = tuple(lengths[label] for label in self.spatial)
        if places not in self._sizes:
            self._sizes[places] = {**self.sizes, **lengths}
        return places

    def _load(self, at: int) -> Way:
        leaf = self.network.leaves[at]
        kept = self.network.kept(frozenset([at]))
        order = leaf.labels if leaf.is_core else tuple(label for label in leaf.labels if label not in self.taps)
        step: Step = Load(at, order)
        alone = tuple(label for label in order if label not in kept)
        cost = 0.0
        if leaf.is_core and len(leaf.names) > 1:
            cost += prices.stack(self.model, self._volume(order), grad=self.grad)
        if alone:
            step = Sum(step, alone)
            cost += prices.total(self.model, self._volume(order), self._volume(step.order), grad=self.grad)
        return Way(step, cost, cost if leaf.is_core else 0.0)

    def _gather(self, way: Way) -> Way:
        order = way.step.order
        rows = tuple(label for label in self.network.rows if label in order)
        if not rows:
            return way
        rest = tuple(label for label in order if label not in rows)
        fixed = way.cost + self._arrange(order, (rows, rest))
        step = Gather(way.step, rows, TOKENS)
        return Way(step, fixed + prices.gather(self.model, self._volume(step.order), grad=self.grad), fixed)

    def _volume(self, labels: Labels) -> int:
        if labels not in self._volumes:
            self._volumes[labels] = volume(labels, self.sizes)
        return self._volumes[labels]

    def _copy(self, order: Labels, wanted: Labels, places: Places = ()) -> float:
        return self._arrange(order, (wanted,), places)

    def _arrange(self, order: Labels, groups: tuple[Labels, ...], places: Places = ()) -> float:
        """What moves in memory when a tensor is used with these axes."""
        key = (order, groups, places)
        if key not in self._arranged:
            self._arranged[key] = prices.arrange(self.model, order, groups, self._sizes[places], grad=self.grad)
        return self._arranged[key]

    def _merge(
        self, one: Step, two: Step, kept: frozenset[str], places: tuple[Places, Places, Places]
    ) -> Iterator[Option]:
        """Ways to contract two tensors, and what each costs by itself. `places` are of both, and of the result."""
        if self.spatial and self.spatial[0] in one.order:
            yield from self._convolutions(two, one, kept, places[0], places[2])
            return
        if self.spatial and self.spatial[0] in two.order:
            yield from self._convolutions(one, two, kept, places[1], places[2])
            return
        shared = tuple(label for label in one.order if label in two.order)
        depth = tuple(label for label in shared if label not in kept)
        batch = tuple(label for label in shared if label in kept)
        rows = tuple(label for label in one.order if label not in shared)
        columns = tuple(label for label in two.order if label not in shared)
        if not depth:
            yield self._elementwise(one, two, ())
            yield self._elementwise(two, one, ())
            if not batch or not rows or not columns:
                return
        if batch and not columns:
            yield self._elementwise(one, two, depth)
        if batch and not rows:
            yield self._elementwise(two, one, depth)
        yield from self._products(one, two, batch, depth, rows, columns)

    def _elementwise(self, one: Step, two: Step, depth: Labels) -> Option:
        extra = tuple(label for label in two.order if label not in one.order)
        full = self._volume((*one.order, *extra))
        order = tuple(label for label in (*one.order, *extra) if label not in depth)
        read = self._volume(one.order) + self._volume(two.order)
        cost = prices.elementwise(self.model, full, read, grad=self.grad)
        if depth:
            cost += prices.total(self.model, full, self._volume(order), grad=self.grad)
        return order, cost, lambda: Multiply(one, two, depth)

    def _products(
        self, one: Step, two: Step, batch: Labels, depth: Labels, rows: Labels, columns: Labels
    ) -> Iterator[Option]:
        by_two = tuple(label for label in two.order if label in depth)
        batch_by_two = tuple(label for label in two.order if label in batch)
        count, high, deep, wide = map(self._volume, (batch, rows, depth, columns))
        base = prices.product(self.model, count, high, wide, deep, grad=self.grad)
        turned = prices.product(self.model, count, wide, high, deep, grad=self.grad)
        for inner in dict.fromkeys((depth, by_two)):
            for outer in dict.fromkeys((batch, batch_by_two)):
                lead = (outer,) if batch else ()
                left = self._ranked(one, rows, partial(_with_rows, lead, inner))
                right = self._ranked(two, columns, partial(_with_columns, lead, inner))
                for left_cost, left_order in left:
                    for right_cost, right_order in right:
                        cost = left_cost + right_cost
                        groups = (outer, left_order, inner, right_order)
                        yield (*outer, *left_order, *right_order), base + cost, partial(Product, one, two, *groups)
                        groups = (outer, right_order, inner, left_order)
                        yield (*outer, *right_order, *left_order), turned + cost, partial(Product, two, one, *groups)
            if not batch and depth:
                yield from self._spread(two, one, inner, columns)
                yield from self._spread(one, two, inner, rows)

    def _ranked(
        self, step: Step, labels: Labels, groups: Callable[[Labels], tuple[Labels, ...]]
    ) -> list[tuple[float, Labels]]:
        """Orders to have some labels of a tensor in, with what that costs: its own, and others where it is small."""
        orders = [labels]
        if len(labels) > 1 and self._volume(step.order) <= SMALL:
            orders = list(dict.fromkeys(self._shuffles(labels)))
        elif len(labels) > 1 and self.inner in labels:
            orders = list(dict.fromkeys((labels, (*(label for label in labels if label != self.inner), self.inner))))
        priced = [(self._arrange(step.order, groups(order)), order) for order in orders]
        return sorted(priced, key=lambda entry: entry[0])[:SHUFFLES]

    def _shuffles(self, labels: Labels) -> Iterator[Labels]:
        """All orders of a few labels; of many, those in the order of the output, other labels first or last."""
        if len(labels) <= 3:
            yield from permutations(labels)
            return
        yield labels
        final = tuple(label for label in self.network.output if label in labels)
        inner = tuple(label for label in labels if label not in final)
        yield (*final, *inner)
        yield (*inner, *final)

    def _spread(self, one: Step, two: Step, depth: Labels, rows: Labels) -> Iterator[Option]:
        """The matrix `one` times a batch of matrices that lie inside `two`."""
        first = two.order.index(depth[0])
        last = first + len(depth)
        if two.order[first:last] != depth:
            return
        lead, columns = two.order[:first], two.order[last:]
        count, wide = self._volume(lead), self._volume(columns)
        if count == 1 or wide == 1:
            return
        high, deep = self._volume(rows), self._volume(depth)
        base = prices.spread_product(self.model, count, high, wide, deep, grad=self.grad)
        for copy, order in self._ranked(one, rows, lambda order: (order, depth)):
            yield (*lead, *order, *columns), base + copy, partial(Spread, one, two, lead, order, depth, columns)

    def _convolutions(
        self, part: Step, image: Step, kept: frozenset[str], before: Places, after: Places
    ) -> Iterator[Option]:
        """Ways to convolve an image with a part: its channels in front of the spatial axes, as the order has them."""
        taps = tuple(label for label in self.taps if label in part.order)
        shared = [label for label in image.order if label in part.order]
        if any(tap in kept for tap in taps):
            return
        depth = tuple(label for label in shared if label not in kept)
        batch = tuple(label for label in shared if label in kept)
        columns = tuple(label for label in part.order if label not in (*shared, *taps))
        channels = tuple(label for label in image.order if label not in self.spatial)
        others = tuple(label for label in channels if label not in shared)
        axes = tuple(sorted(axis for tap in taps for axis in self.taps[tap]))
        own = tuple(label for label in others if label not in self.network.dynamic)
        repeated = own if self.is_grouped and taps else ()
        batch, others = (*repeated, *batch), tuple(label for label in others if label not in repeated)
        leads = {others: ()} if taps or not depth else {others[:at]: others[at:] for at in range(1, len(others) + 1)}
        for lead, rest in leads.items():
            if batch and rest:
                continue
            wanted = (*lead, *batch, *depth, *rest, *self.spatial)
            copy = self._copy(image.order, wanted, before)
            rows = batch[len(repeated) :]
            kernel = partial(_upward if self.network.is_transposed and taps else _downward, rows, depth, taps)
            for turned, wide in self._ranked(part, columns, kernel):
                groups = (lead, batch, depth, wide, rest, self.spatial, self.spatial)
                step = Convolve(part, image, *groups, taps, axes, repeated)
                yield step.order, copy + turned + self._convolution_cost(step, before, after), partial(_same, step)

    def _convolution_cost(self, step: Convolve, before: Places, after: Places) -> float:
        if not step.axes and self._volume(step.batch) == 1:
            pixels = volume((*step.rest, *self.spatial), self._sizes[after])
            images, rows, depth = map(self._volume, (step.lead, step.columns, step.depth))
            return prices.pointwise(self.model, images, rows, pixels, depth, grad=self.grad)
        out, source = volume(step.order, self._sizes[after]), volume(step.right.order, self._sizes[before])
        inside = self._volume((*step.depth, *step.taps))
        channels = min(self._volume(step.depth), self._volume(step.columns))
        weight = self._volume((*step.repeated, *step.left.order))
        repeating = prices.stack(self.model, weight, grad=self.grad) if step.repeated else 0.0
        is_grouped = self._volume(step.batch) > 1
        if self.network.is_transposed and step.axes:
            inside = self._volume((*step.columns, *step.taps))
            return repeating + prices.transposed(
                self.model, out, source, weight, inside, channels, grad=self.grad, is_grouped=is_grouped
            )
        return repeating + prices.convolution(
            self.model, out, source, weight, inside, channels, grad=self.grad, is_grouped=is_grouped
        )


def _with_rows(lead: Groups, inner: Labels, order: Labels) -> Groups:
    return (*lead, order, inner)


def _with_columns(lead: Groups, inner: Labels, order: Labels) -> Groups:
    return (*lead, inner, order)


def _downward(groups: Labels, depth: Labels, taps: Labels, order: Labels) -> Groups:
    """The axes of a kernel of a convolution: outputs, then inputs and taps."""
    return ((*groups, *order), (*depth, *taps))


def _upward(groups: Labels, depth: Labels, taps: Labels, order: Labels) -> Groups:
    """The axes of a kernel of a transposed convolution: inputs, then outputs and taps."""
    return ((*groups, *depth), (*order, *taps))


def _same(step: Step) -> Step:
    return step
