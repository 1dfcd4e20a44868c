"""Forms to plans: which form is taken for which batch, with and without gradients. A plan is a value.

The cheapest form by estimated time wins, among those whose memory is in proportion; a large batch may be cut into
chunks, so that intermediates stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt, prod

from tnmars.graph import Graph, Role
from tnmars.graph.counts import count
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.plan.network import BATCH, layer_network
from tnmars.plan.steps import runs
from tnmars.program.candidates import Form, layer_forms, lookup_forms, weight_forms
from tnmars.program.estimate import estimate, patches, refold
from tnmars.program.instructions import Arrange, Program, Receive

BATCHES = (1, 16, 128, 1024)
"""Batch sizes that plans are made for; another takes the plan of the nearest, by ratio."""
TOKEN_COUNTS = (64, 4096)
NO_LIMIT = 2**63 - 1
"""No tensor has more rows."""
CHUNK = 64
"""For batches from four times this on, plans are also made for a chunk of this size."""
CHUNKS = (4, 8, 16, 32, 64, 128, 256)
"""Rows of a batch that may be computed at a time, so that what lies between steps stays in caches."""
HELD = 1 << 24
"""How many numbers a training step in chunks may keep; more where a dense weight and its gradient have more."""
MEMORY = 8
"""A plan may hold this many times the size of input, output, cores and dense weight together."""


@dataclass(frozen=True)
class Bucket:
    """A range of batch sizes that share a plan."""

    batch: int
    """The batch that the plan is made for."""
    limit: int
    """The largest batch that it is for. A whole number: torch.compile traces comparisons with floats twice."""


@dataclass(frozen=True)
class Planner:
    """Makes the plans of a layer, one for each range of batch sizes and each mode: `train` and `infer`."""

    graph: Graph
    model: CostModel
    nominal: int
    image: int = 32
    optimizer: str = "auto"
    decide: Callable[[Graph, Sequence[Form], int, str, int], Form] | None = None
    """Chooses among forms, best first by estimate; by default the first."""

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The ranges, the smallest first; between two of them the ratio decides."""
        batches = sorted({*(TOKEN_COUNTS if _is_lookup(self.graph) else BATCHES), self.nominal})
        limits = [isqrt(batch * after) for batch, after in pairwise(batches)]
        return tuple(Bucket(batch, limit) for batch, limit in zip(batches, [*limits, NO_LIMIT], strict=True))

    def plan(self, mode: str, batch: int) -> Form:
        """The form that is taken for a batch."""
        forms = choose(self.graph, batch, Weighing(self.model, mode == "train"), self.image, self.optimizer)
        if self.decide is None:
            return forms[0]
        return self.decide(self.graph, fitting(self.graph, forms, batch, self.image), batch, mode, self.image)


def choose(graph: Graph, batch: int, weighing: Weighing, image: int = 32, optimizer: str = "auto") -> list[Form]:
    """The forms of a layer for a batch, best first; those that take too much memory are last."""
    return _ranked(graph, candidates(graph, batch, weighing, image, optimizer), batch, image)


def _ranked(graph: Graph, forms: Iterable[Form], batch: int, image: int) -> list[Form]:
    room = MEMORY * _proportion(graph, batch, image)
    return sorted(forms, key=lambda form: (peak(form, batch) > room, form.cost))


def fitting(graph: Graph, forms: Sequence[Form], batch: int, image: int = 32) -> Sequence[Form]:
    """The forms whose memory is in proportion; all of them where none is."""
    room = MEMORY * _proportion(graph, batch, image)
    return [form for form in forms if peak(form, batch) <= room] or forms


def candidates(graph: Graph, batch: int, weighing: Weighing, image: int = 32, optimizer: str = "auto") -> list[Form]:
    """Every form for a batch, chunked ones too."""
    if graph.of_role(Role.LOOKUP):
        return lookup_forms(graph, batch, weighing, optimizer)
    if graph.of_role(Role.FREE):
        return (
            list(weight_forms(graph, weighing, optimizer)[:1])
            if batch == 0
            else lookup_forms(graph, batch, weighing, optimizer)
        )
    forms = layer_forms(graph, batch, weighing, image, optimizer)
    priced = [replace(form, cost=_price(form, weighing, batch)) for form in forms]
    if graph.inputs or graph.kernel_size:
        return priced
    small = layer_forms(graph, CHUNK, weighing, image, optimizer) if batch >= 4 * CHUNK else []
    return priced + _chunked([*forms, *small], weighing, batch, max(HELD, 2 * count(graph).dense))


def _chunked(forms: Sequence[Form], weighing: Weighing, batch: int, room: int) -> list[Form]:
    """The forms with the batch in chunks of every size that makes at least two."""
    found: dict[object, Form] = {}
    for form in forms:
        for size in CHUNKS:
            if form.frame.dense or 2 * size > batch:
                continue
            sizes = tuple((label, size if label == BATCH else length) for label, length in form.program.sizes)
            cut = replace(form, program=replace(form.program, sizes=sizes), chunk=size)
            if weighing.grad:
                cut = replace(cut, keep=_kept_rows(cut, batch, room))
            found.setdefault(cut.program, replace(cut, cost=_price(cut, weighing, batch)))
    return list(found.values())


def _kept_rows(form: Form, batch: int, room: int) -> int:
    """For how many rows there is room to keep what lies between steps until the backward pass; 0 for all."""
    sizes = dict(form.program.sizes)
    home = _homes(form.program, sizes)
    made = [entry for entry in form.program.run if entry.reads and home[entry.out] == entry.out]
    each = sum(prod(sizes[label] for group in entry.axes for label in group) for entry in made)
    return 0 if -(-batch // form.chunk) * each <= room else max(1, room // each) * form.chunk


def _price(form: Form, weighing: Weighing, batch: int) -> float:
    return estimate(form, weighing.model, grad=weighing.grad, folded=weighing.folded, batch=batch)


def frozen(
    graph: Graph, batch: int, model: CostModel, limit: float, image: int = 32, optimizer: str = "auto"
) -> list[Form]:
    """Forms for inference with given cores, best first: what depends on cores alone is done once, and shipped.

    Their folded parts hold at most `limit` numbers, or else the cores themselves. Those that take too much memory are
    last.
    """
    found: dict[Program, Form] = {}
    for folded in (True, False):
        for form in candidates(graph, batch, Weighing(model, folded=folded), image, optimizer):
            program = refold(form.program, limit)
            ready = replace(form, program=program)
            found.setdefault(program, replace(ready, cost=estimate(ready, model, folded=True, batch=batch)))
    return _ranked(graph, found.values(), batch, image)


def peak(form: Form, batch: int) -> int:
    """The most numbers that a program holds at once, but for its inputs and cores, for the sizes it was made for."""
    sizes = dict(form.program.sizes)
    if form.chunk:
        sizes[BATCH] = min(sizes.get(BATCH, 1), form.chunk)
    steps = form.program.instructions
    home = _homes(form.program, sizes)
    last = {home[name]: at for at, instruction in enumerate(steps) for name in instruction.reads}
    last[home[form.program.result]] = len(steps)
    live: dict[str, int] = {}
    most = patches(form)
    inputs = {entry.out for entry in steps if isinstance(entry, Receive)}
    seen = max((at for at, entry in enumerate(steps) if inputs & set(entry.reads)), default=-1)
    for at, instruction in enumerate(steps):
        if instruction.reads and home[instruction.out] == instruction.out:
            live[instruction.out] = prod(sizes[label] for group in instruction.axes for label in group)
        most = max(most, sum(live.values()) + (patches(form) if at <= seen else 0))
        live = {name: size for name, size in live.items() if last.get(name, 0) > at}
    return most


def _homes(program: Program, sizes: Mapping[str, int]) -> dict[str, str]:
    """For each value, the one whose memory it lies in: its own, or where it is a view, that of another."""
    home: dict[str, str] = {}
    axes = program.axes()
    for instruction in program.instructions:
        home[instruction.out] = instruction.out
        if isinstance(instruction, Arrange):
            order = tuple(label for group in axes[instruction.source] for label in group)
            if runs(order, [group for group in instruction.axes if group], sizes):
                home[instruction.out] = home[instruction.source]
    return home


def _proportion(graph: Graph, batch: int, image: int) -> int:
    """How many numbers inputs, output, cores and dense weight have together."""
    numbers = count(graph)
    if graph.inputs and graph.terms:
        network = layer_network(graph, graph.terms[:1], batch)
        given = sum(network.volume(network.leaves[at].labels) for at in network.inputs)
        return numbers.cores + numbers.dense + given + network.volume(network.output)
    pixels: int = batch * image ** len(graph.kernel_size)
    inside = graph.in_features if graph.rules.layout else 1
    return numbers.cores + numbers.dense + pixels * (inside + graph.out_features)


def _is_lookup(graph: Graph) -> bool:
    return bool(graph.of_role(Role.LOOKUP) or graph.of_role(Role.FREE))
