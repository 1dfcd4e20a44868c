"""Graph to candidate forms: for a batch size, every program worth considering, with its estimated time.

A form is a program and the frame around it. The dense form is always among them: the weight is made from the cores,
then given to torch's own layer. The others push the input through cores, or through parts made of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tnmars.graph import Graph, Role
from tnmars.plan import network as nets
from tnmars.plan.layout import Layout, Rows, Tree, Weighing
from tnmars.plan.network import BATCH, Network
from tnmars.plan.search import Search
from tnmars.plan.steps import Groups, Step
from tnmars.plan.trees import by_path, candidates
from tnmars.program.emit import Frame
from tnmars.program.instructions import Program, lower

PARTITIONS = 8
"""Of the ways to make so many tables of the cores, how many are looked at closely."""


@dataclass(frozen=True)
class Form:
    """One way to compute a layer."""

    name: str
    program: Program
    frame: Frame
    cost: float
    """Estimated seconds, for the batch and the weighing it was made for."""
    chunk: int = 0
    """Rows of the batch that are computed at a time; 0 for all."""
    keep: int = 0
    """With chunks, for how many rows a training step keeps what lies between steps; 0 for all. Others make it again."""

    @property
    def shipped(self) -> int:
        """How many numbers the folded parts have."""
        axes = self.program.axes()
        sizes = dict(self.program.sizes)
        return sum(prod(sizes[label] for group in axes[part] for label in group) for part in self.program.parts)


def layer_frame(graph: Graph) -> Frame:
    """What is around the contraction of a layer."""
    options = dict(graph.options)
    spatial = len(graph.kernel_size)
    padding = options.get("padding", 0)
    pads = {role: room - real for role, (room, real) in graph.padding.items()}
    return Frame(
        inputs=tuple(operand.name for operand in graph.inputs) or ("x",),
        pad=pads.get(Role.IN, 0) or pads.get(Role.PATCH, 0),
        cut=graph.out_features if pads.get(Role.OUT) else 0,
        has_bias=graph.has_bias,
        spatial=spatial,
        stride=_each(options.get("stride", 1), spatial),
        dilation=_each(options.get("dilation", 1), spatial),
        padding="same" if padding == "same" else _each(padding, spatial),
        unfold=graph.kernel_size if graph.of_role(Role.PATCH) else (),
        subsample=bool(spatial) and not graph.of_role(Role.PATCH) and not graph.of_role(Role.KERNEL),
    )


def lookup_frame(graph: Graph) -> Frame:
    """What is around the rows of a table: digits of a row number, or a column of the index for each mode."""
    rows = [*graph.of_role(Role.LOOKUP), *graph.of_role(Role.FREE)]
    strides = tuple(
        (mode.name, prod(after.size for after in rows[at + 1 :]), mode.size) for at, mode in enumerate(rows)
    )
    cut = graph.out_features if Role.OUT in graph.padding else 0
    return Frame(inputs=(), cut=cut, strides=strides, columns=not graph.of_role(Role.LOOKUP))


def _each(value: object, count: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple) else (int(str(value)),) * count


@lru_cache(maxsize=512)
def weight_forms(graph: Graph, weighing: Weighing, optimizer: str = "auto") -> tuple[Form, ...]:
    """Ways to make the dense weight, in torch's layout or with its two axes swapped. No batch matters here."""
    roles = graph.rules.layout
    groups = _weight_axes(graph)
    shape = graph.dense_shape
    keep = _kept_lengths(graph, groups)
    found = [_weight_form(graph, weighing, optimizer, groups, keep, shape)]
    if len(roles) == 2 and len(groups) == 2:
        swapped = _weight_form(graph, weighing, optimizer, groups[::-1], keep[::-1], shape[::-1])
        found.append(replace(swapped, frame=replace(swapped.frame, is_transposed=True)))
    return tuple(found)


def _weight_axes(graph: Graph) -> Groups:
    if not graph.rules.layout:
        return tuple((mode.name,) for mode in graph.modes)
    axes = [nets.flat_modes(graph, role, *([Role.PATCH] if role is Role.IN else [])) for role in graph.rules.layout]
    return tuple(axes)


def _kept_lengths(graph: Graph, groups: Groups) -> tuple[int, ...]:
    sizes = {mode.name: mode for mode in graph.modes}
    found = []
    for group in groups:
        role = sizes[group[0]].role if group else None
        room = prod(sizes[name].size for name in group)
        found.append(graph.padding[role][1] if role in graph.padding else room)
    return tuple(found)


def _weight_form(
    graph: Graph, weighing: Weighing, optimizer: str, groups: Groups, keep: tuple[int, ...], shape: tuple[int, ...]
) -> Form:
    order = tuple(label for group in groups for label in group)
    networks = [replace(nets.weight_network(graph, terms), output=order).without_ones() for terms in nets.groups(graph)]
    steps, cost = _best(networks, weighing, lambda network: candidates(network, weighing, optimizer).values())
    program = lower(networks, steps, _solid(groups, networks[0]), (keep, shape))
    return Form("dense", program, Frame(), 0.0 if weighing.folded else cost)


def _best(networks: list[Network], weighing: Weighing, trees: Callable[[Network], object]) -> tuple[list[Step], float]:
    steps, cost = [], 0.0
    for network in networks:
        layout = Layout(network, weighing)
        ways = [layout.best(tree) for tree in trees(network)]  # type: ignore[attr-defined]
        way = min(ways, key=weighing.total)
        steps.append(way.step)
        cost += weighing.total(way)
    return steps, cost


def layer_forms(graph: Graph, batch: int, weighing: Weighing, image: int = 32, optimizer: str = "auto") -> list[Form]:
    """The forms of a layer that takes inputs, the cheapest first."""
    frame = layer_frame(graph)
    found = []
    if graph.rules.layout:
        found += [
            _dense_layer(graph, form, frame, batch, weighing, image)
            for form in weight_forms(graph, weighing, optimizer)
        ]
    for stacked in nets.groupings(graph):
        networks = [nets.layer_network(graph, terms, batch, image).without_ones() for terms in stacked]
        found += _pushed(graph, networks, frame, weighing, optimizer)
    return sorted(found, key=lambda form: form.cost)


def _pushed(graph: Graph, networks: list[Network], frame: Frame, weighing: Weighing, optimizer: str) -> Iterator[Form]:
    """The forms that push the input through the cores, or through parts made of them."""
    axes = _solid(_output_axes(graph, networks[0]), networks[0])
    per_network = _trees(networks, weighing, optimizer)
    layouts = [Layout(network, weighing) for network in networks]
    for name in dict.fromkeys(name for trees in per_network for name in trees):
        if name == "dense" and graph.rules.layout:
            continue
        steps, cost = [], 0.0
        for layout, trees in zip(layouts, per_network, strict=True):
            way = layout.try_best(trees.get(name, next(iter(trees.values()))))
            if way is None:
                break
            steps.append(way.step)
            cost += weighing.total(way)
        else:
            yield Form(name, lower(networks, steps, axes), frame, cost)


def _trees(networks: list[Network], weighing: Weighing, optimizer: str) -> list[dict[str, Tree]]:
    """The candidates of each network; those that differ in names alone have the same."""
    found: dict[object, dict[str, Tree]] = {}
    result = []
    for network in networks:
        places: dict[str, int] = {}
        shape = tuple(tuple(places.setdefault(label, len(places)) for label in leaf.labels) for leaf in network.leaves)
        key = (shape, tuple(network.size[label] for label in places))
        if key not in found:
            found[key] = candidates(network, weighing, optimizer)
        result.append(found[key])
    return result


def _output_axes(graph: Graph, network: Network) -> Groups:
    if graph.inputs:
        named = {label.lstrip("#"): label for label in network.output}
        return tuple(tuple(named[name] for name in axis if name in named) for axis in graph.output)
    outs = nets.flat_modes(graph, Role.OUT)
    return ((BATCH,), outs, *((nets.spatial(axis),) for axis in range(len(graph.kernel_size))))


def _dense_layer(graph: Graph, form: Form, frame: Frame, batch: int, weighing: Weighing, image: int) -> Form:
    spatial = len(graph.kernel_size)
    out, inside, *taps = graph.dense_shape
    model = weighing.model
    if spatial:
        pixels = batch * image**spatial
        cost = model.conv(pixels * out * inside * prod(taps), pixels * (out + inside), min(out, inside))
        cost *= 3 if weighing.grad else 1
    else:
        cost = model.product(1, batch, out, inside, grad=weighing.grad)
    function = f"F.conv{spatial}d" if spatial else "F.linear"
    dense = replace(
        frame, dense=function, unfold=(), subsample=False, pad=0, cut=0, is_transposed=form.frame.is_transposed
    )
    data = {BATCH: batch, **{nets.spatial(axis): image for axis in range(spatial)}}
    program = replace(form.program, sizes=(*form.program.sizes, *data.items()), dynamic=frozenset(data))
    return Form("dense", program, dense, form.cost + cost)


def lookup_forms(graph: Graph, tokens: int, weighing: Weighing, optimizer: str = "auto") -> list[Form]:
    """The forms that give the weight at some rows, the cheapest first."""
    frame = lookup_frame(graph)
    networks = [nets.lookup_network(graph, terms, tokens).without_ones() for terms in nets.groups(graph)]
    axes = ((nets.TOKENS,), nets.flat_modes(graph, Role.OUT)) if graph.of_role(Role.OUT) else ((nets.TOKENS,),)
    layouts = [Layout(network, weighing) for network in networks]
    found = []
    for count in (1, 2, 3, 0):
        steps, cost = [], 0.0
        for network, layout in zip(networks, layouts, strict=True):
            ways = [layout.best(tree) for tree in _row_trees(network, weighing, count, optimizer)]
            if not ways:
                break
            way = min(ways, key=weighing.total)
            steps.append(way.step)
            cost += weighing.total(way)
        if len(steps) == len(networks):
            found.append(Form(f"tables{count or ''}", lower(networks, steps, _solid(axes, networks[0])), frame, cost))
    return sorted(found, key=lambda form: form.cost)


def _solid(axes: Groups, network: Network) -> Groups:
    """Axes without the labels that the network has dropped."""
    return tuple(tuple(label for label in axis if label in network.output) for axis in axes)


def _row_trees(network: Network, weighing: Weighing, count: int, optimizer: str) -> Iterator[Tree]:
    """Trees that make `count` tables of the cores, take rows of each and contract these; 0 takes each core as one."""
    search = Search(network, weighing)
    if count == 0:
        yield _chain([Rows(at) for at in network.cores])
        return
    if count == 1:
        yield Rows(search.best(search.cores) if search.is_small else by_path(network, network.cores, optimizer))
        return
    if not search.is_small or len(network.cores) < count:
        return
    ranked = sorted(_partitions(search.cores, search.subsets, count), key=search.row_price)
    for parts in ranked[:PARTITIONS]:
        rows: list[Tree] = [Rows(search.best(part)) for part in parts]
        yield _chain(rows)
        if count == 3:
            yield (rows[0], (rows[1], rows[2]))
            yield ((rows[0], rows[2]), rows[1])


def _partitions(cores: int, subsets: list[int], count: int) -> Iterator[tuple[int, ...]]:
    """The ways to split some cores into so many of the given subsets; sets are bits."""
    if count == 1:
        if cores in subsets:
            yield (cores,)
        return
    for part in subsets:
        if part & cores & -cores and part & cores == part != cores:
            for rest in _partitions(cores ^ part, subsets, count - 1):
                yield (part, *rest)


def _chain(trees: list[Tree]) -> Tree:
    joined = trees[0]
    for tree in trees[1:]:
        joined = (joined, tree)
    return joined
