"""Graph to candidate forms: for a batch size, every program worth considering, with its estimated time.

The dense form is always among them: the weight is made from the cores, then given to torch's own layer. The others push
the input through cores, or through parts made of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.lint import too_large
from tnmars.plan import network as nets
from tnmars.plan.layout import Layout, Weighing
from tnmars.plan.network import BATCH, Network
from tnmars.plan.search import Search
from tnmars.plan.steps import Groups, Step, flat
from tnmars.plan.tree import Pair, Rows, Tree
from tnmars.plan.trees import by_path, candidates, chain
from tnmars.program.form import Form, Frame, estimate, keeps_layout, layer_frame, lookup_frame
from tnmars.program.instructions import Receive, Repeat
from tnmars.program.lower import lower

TOO_DEAR = Problem(
    "the cores cannot be contracted: every order that was tried takes more than 2^900 operations.",
    "Use smaller bonds, fewer cores, or fewer cycles of cores.",
)
PARTITIONS = 8
"""How many of the ways to split the cores into tables are looked at closely."""


def check_size(graph: Graph) -> None:
    """Raises `TnmarsError` for a graph whose plan would take minutes, or whose costs no float holds."""
    problems = tuple(too_large(graph))
    if problems:
        raise TnmarsError(problems)


@lru_cache(maxsize=512)
def weight_forms(graph: Graph, weighing: Weighing, optimizer: str = "auto") -> tuple[Form, ...]:
    """Ways to make the dense weight, in torch's layout or with its two axes swapped. No batch matters here."""
    check_size(graph)
    axes, keep, shape = graph.weight_axes, graph.weight_lengths, graph.dense_shape
    forms = [_weight_form(graph, weighing, optimizer, axes, keep, shape)]
    if len(graph.rules.layout) == 2:
        swapped = _weight_form(graph, weighing, optimizer, axes[::-1], keep[::-1], shape[::-1])
        forms.append(replace(swapped, frame=replace(swapped.frame, is_transposed=True)))
    return tuple(forms)


def _weight_form(
    graph: Graph, weighing: Weighing, optimizer: str, groups: Groups, keep: tuple[int, ...], shape: tuple[int, ...]
) -> Form:
    networks = [
        replace(nets.weight_network(graph, terms), output=flat(groups)).without_ones() for terms in nets.groups(graph)
    ]
    trees = [list(candidates(network, weighing, optimizer).values()) for network in networks]
    best = _cheapest([Layout(network, weighing) for network in networks], trees, weighing)
    if best is None:
        raise TnmarsError(TOO_DEAR)
    steps, cost = best
    program = lower(networks, steps, _solid(groups, networks[0]), (keep, shape))
    return Form("dense", program, Frame(), 0.0 if weighing.folded else cost)


def _cheapest(
    layouts: Sequence[Layout], trees: Sequence[Sequence[Tree]], weighing: Weighing
) -> tuple[list[Step], float] | None:
    """The cheapest step for each network among the given trees, and the total cost.

    None if no tree of a network can be computed step by step.
    """
    steps, cost = [], 0.0
    for layout, options in zip(layouts, trees, strict=True):
        ways = [way for way in map(layout.try_best, options) if way is not None]
        if not ways:
            return None
        way = min(ways, key=weighing.total)
        steps.append(way.step)
        cost += weighing.total(way)
    return steps, cost


def layer_forms(graph: Graph, batch: int, weighing: Weighing, image: int = 32, optimizer: str = "auto") -> list[Form]:
    """The forms of a layer that takes inputs, the cheapest first."""
    frame = layer_frame(graph)
    forms: list[Form] = []
    if graph.has_torch_layer:
        made = weight_forms(graph, weighing, optimizer)
        forms += [_dense_form(form, frame, batch, image, graph.groups) for form in made]
    for stacked in nets.groupings(graph):
        networks = [nets.layer_network(graph, terms, batch, image).without_ones() for terms in stacked]
        forms += _pushed(graph, networks, frame, weighing, optimizer)
    if not forms:
        raise TnmarsError(TOO_DEAR)
    priced = [replace(form, cost=price(form, weighing, batch)) for form in forms]
    return sorted(priced, key=lambda form: form.cost)


def price(form: Form, weighing: Weighing, batch: int) -> float:
    """The estimated time of a form for a batch, with copies of images whose memory layout it does not keep."""
    seconds = estimate(form, weighing.model, grad=weighing.grad, folded=weighing.folded, batch=batch)
    if not weighing.channels_last or form.frame.spatial < 2 or keeps_layout(form):
        return seconds
    sites = form.sites()
    ends = [next(pair for pair in sites if isinstance(pair[0], Receive)), sites[-1]]
    shapes = [entry.extents(site.after) for entry, site in ends]
    copies = [weighing.model.copy(prod(shape), shape[1], True) for shape in shapes]
    return seconds + (2 if weighing.grad else 1) * sum(copies)


def _pushed(graph: Graph, networks: list[Network], frame: Frame, weighing: Weighing, optimizer: str) -> Iterator[Form]:
    """The forms that push the input through the cores, or through parts made of them."""
    axes = _solid(nets.output_axes(graph), networks[0])
    per_network = _trees(networks, weighing, optimizer)
    layouts = [Layout(network, weighing) for network in networks]
    grouped = [Layout(network, weighing, is_grouped=True) for network in networks] if networks[0].taps else []
    for name in dict.fromkeys(name for trees in per_network for name in trees):
        if name == "dense" and graph.has_torch_layer:
            continue
        trees = [[own.get(name, next(iter(own.values())))] for own in per_network]
        best = _cheapest(layouts, trees, weighing)
        if best is None:
            continue
        yield Form(name, lower(networks, best[0], axes), frame, best[1])
        other = _cheapest(grouped, trees, weighing) if grouped else None
        if other is not None:
            program = lower(networks, other[0], axes)
            if any(isinstance(entry, Repeat) for entry in program.fold):
                yield Form(f"{name}_groups", program, frame, other[1])


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


def _dense_form(form: Form, frame: Frame, batch: int, image: int, groups: int) -> Form:
    """The dense weight, given to torch's own layer."""
    data = {BATCH: batch, **{nets.spatial(axis): image for axis in range(frame.spatial)}}
    program = replace(form.program, sizes=(*form.program.sizes, *data.items()), dynamic=frozenset(data))
    own = frame.as_dense(groups=groups, is_transposed=form.frame.is_transposed)
    return replace(form, program=program, frame=own)


def lookup_forms(graph: Graph, tokens: int, weighing: Weighing, optimizer: str = "auto") -> list[Form]:
    """The forms that give the weight at some rows, the cheapest first."""
    frame = lookup_frame(graph)
    networks = [nets.lookup_network(graph, terms, tokens).without_ones() for terms in nets.groups(graph)]
    axes = _solid(nets.output_axes(graph), networks[0])
    layouts = [Layout(network, weighing) for network in networks]
    forms = []
    for count in (1, 2, 3, 0):
        trees = [list(_row_trees(network, weighing, count, optimizer)) for network in networks]
        best = _cheapest(layouts, trees, weighing)
        if best is not None:
            forms.append(Form(f"tables{count or ''}", lower(networks, best[0], axes), frame, best[1]))
    if not forms:
        raise TnmarsError(TOO_DEAR)
    return sorted(forms, key=lambda form: form.cost)


def _solid(axes: Groups, network: Network) -> Groups:
    """Axes without the labels that the network has dropped."""
    return tuple(tuple(label for label in axis if label in network.output) for axis in axes)


def _row_trees(network: Network, weighing: Weighing, count: int, optimizer: str) -> Iterator[Tree]:
    """Trees that make `count` tables of the cores, take rows of each and contract these; 0 takes each core as one."""
    search = Search(network, weighing)
    if count == 0:
        yield chain([Rows(at) for at in network.cores])
        return
    if count == 1:
        yield Rows(search.best(search.cores) if search.is_small else by_path(network, network.cores, optimizer))
        return
    if not search.is_small or len(network.cores) < count:
        return
    ranked = sorted(_partitions(search.cores, search.subsets, count), key=search.row_price)
    for parts in ranked[:PARTITIONS]:
        rows: list[Tree] = [Rows(search.best(part)) for part in parts]
        yield chain(rows)
        if count == 3:
            yield Pair(rows[0], Pair(rows[1], rows[2]))
            yield Pair(Pair(rows[0], rows[2]), rows[1])


def _partitions(cores: int, subsets: list[int], count: int) -> Iterator[tuple[int, ...]]:
    """The ways to split some cores into `count` of the given subsets; sets are bits."""
    if count == 1:
        if cores in subsets:
            yield (cores,)
        return
    for part in subsets:
        if part & cores & -cores and part & cores == part != cores:
            for rest in _partitions(cores ^ part, subsets, count - 1):
                yield (part, *rest)
