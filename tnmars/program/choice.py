"""Forms to plans: which form, in chunks of which size, is taken for which batch, with and without gradients.

The form with the smallest estimated time wins, among those whose memory is acceptable. A large batch may be cut
into chunks, so that intermediates stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import isqrt

from tnmars.graph import Graph, Role
from tnmars.graph.counts import count
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.plan.network import BATCH, layer_network
from tnmars.plan.steps import flat, volume
from tnmars.program.candidates import check_size, layer_forms, lookup_forms, price, weight_forms
from tnmars.program.form import Form, peak
from tnmars.program.program import Program, homes, refold

BATCHES = (1, 16, 128, 1024)
"""Batch sizes that plans are made for; another takes the plan of the nearest, by ratio."""
TOKEN_COUNTS = (64, 4096)
NO_LIMIT = 2**63 - 1
"""No tensor has more rows."""
CHUNK = 64
"""Batches of at least four times this are also planned for a chunk of this size."""
CHUNKS = (4, 8, 16, 32, 64, 128, 256)
"""Rows of a batch that may be computed at a time, so that intermediates stay in the caches."""
HELD = 1 << 24
"""The numbers that a training step in chunks may keep; more if a dense weight and its gradient have more."""
MEMORY = 8
"""A plan may hold this many times the size of input, output, cores and dense weight together."""


@dataclass(frozen=True)
class Bucket:
    """A range of batch sizes that share a plan."""

    batch: int
    """The batch that the plan is made for."""
    limit: int
    """The largest batch that it is for. An integer, because torch.compile traces comparisons with floats twice."""


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
    channels_last: bool = False
    """Whether the images of a convolution come in channels_last."""

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The ranges, the smallest first; between two of them the ratio decides."""
        batches = sorted({*(TOKEN_COUNTS if self.graph.is_lookup else BATCHES), self.nominal})
        limits = [isqrt(batch * after) for batch, after in pairwise(batches)]
        return tuple(Bucket(batch, limit) for batch, limit in zip(batches, [*limits, NO_LIMIT], strict=True))

    def plan(self, mode: str, batch: int) -> Form:
        """The form that is taken for a batch."""
        if self.decide is None:
            return self._forms(mode, batch)[0]
        return self.decide(self.graph, self.candidates(mode, batch), batch, mode, self.image)

    def candidates(self, mode: str, batch: int) -> Sequence[Form]:
        """The forms to choose from, best first by estimate."""
        return within_memory(self.graph, self._forms(mode, batch), batch, self.image)

    def _forms(self, mode: str, batch: int) -> tuple[Form, ...]:
        weighing = Weighing(self.model, mode == "train", channels_last=self.channels_last)
        return choose(self.graph, batch, weighing, self.image, self.optimizer)


@lru_cache(maxsize=1024)
def choose(graph: Graph, batch: int, weighing: Weighing, image: int = 32, optimizer: str = "auto") -> tuple[Form, ...]:
    """The forms of a layer for a batch, best first; those that take too much memory are last.

    Equal graphs under an equal cost model are planned once per process, whichever layer asks. Raises `TnmarsError` if
    the graph is too large.
    """
    check_size(graph)
    return tuple(_ranked(graph, all_forms(graph, batch, weighing, image, optimizer), batch, image))


def _ranked(graph: Graph, forms: Iterable[Form], batch: int, image: int) -> list[Form]:
    room = MEMORY * _proportion(graph, batch, image)
    return sorted(forms, key=lambda form: (peak(form) > room, form.cost))


def within_memory(graph: Graph, forms: Sequence[Form], batch: int, image: int = 32) -> Sequence[Form]:
    """The forms whose memory is acceptable; all of them if none is."""
    room = MEMORY * _proportion(graph, batch, image)
    return [form for form in forms if peak(form) <= room] or forms


def all_forms(graph: Graph, batch: int, weighing: Weighing, image: int = 32, optimizer: str = "auto") -> list[Form]:
    """Every form for a batch, chunked ones too."""
    if graph.is_lookup:
        if batch == 0 and graph.of_role(Role.FREE):
            return list(weight_forms(graph, weighing, optimizer)[:1])
        return lookup_forms(graph, batch, weighing, optimizer)
    forms = layer_forms(graph, batch, weighing, image, optimizer)
    if graph.inputs or graph.kernel_size:
        return forms
    small = layer_forms(graph, CHUNK, weighing, image, optimizer) if batch >= 4 * CHUNK else []
    return forms + _chunked([*forms, *small], weighing, batch, max(HELD, 2 * count(graph).dense))


def _chunked(forms: Sequence[Form], weighing: Weighing, batch: int, room: int) -> list[Form]:
    """The forms with the batch in chunks of every size that makes at least two."""
    chunked: dict[Program, Form] = {}
    for form in forms:
        for size in CHUNKS:
            if form.frame.dense or 2 * size > batch:
                continue
            sizes = tuple((label, size if label == BATCH else length) for label, length in form.program.sizes)
            cut = replace(form, program=replace(form.program, sizes=sizes), chunk=size)
            if weighing.grad:
                cut = replace(cut, keep=_kept_rows(cut, batch, room))
            if cut.program not in chunked:
                chunked[cut.program] = replace(cut, cost=price(cut, weighing, batch))
    return list(chunked.values())


def _kept_rows(form: Form, batch: int, room: int) -> int:
    """The number of rows whose intermediates there is room to keep until the backward pass; 0 for all."""
    sizes = dict(form.program.sizes)
    home = homes(form.program, sizes)
    made = [entry for entry in form.program.run if entry.reads and home[entry.out] == entry.out]
    each = sum(volume(flat(entry.axes), sizes) for entry in made)
    return 0 if form.pieces(batch) * each <= room else max(1, room // each) * form.chunk


@lru_cache(maxsize=256)
def choose_frozen(
    graph: Graph,
    batch: int,
    model: CostModel,
    limit: float,
    image: int = 32,
    optimizer: str = "auto",
    *,
    channels_last: bool = False,
) -> tuple[Form, ...]:
    """Forms for inference with given cores, best first: what depends on cores alone is done once, and shipped.

    Their folded parts hold at most `limit` numbers, or else the cores themselves. Those that take too much memory are
    last. `channels_last` says whether images come so.
    """
    check_size(graph)
    forms: dict[Program, Form] = {}
    for folded in (True, False):
        weighing = Weighing(model, folded=folded, channels_last=channels_last)
        for form in all_forms(graph, batch, weighing, image, optimizer):
            ready = replace(form, program=refold(form.program, limit))
            if ready.program not in forms:
                cost = price(ready, replace(weighing, folded=True), batch)
                forms[ready.program] = replace(ready, cost=cost)
    return tuple(_ranked(graph, forms.values(), batch, image))


def _proportion(graph: Graph, batch: int, image: int) -> int:
    """The number of entries of inputs, output, cores and dense weight together."""
    numbers = count(graph)
    if graph.inputs and graph.terms:
        network = layer_network(graph, graph.terms[:1], batch)
        given = sum(network.volume(network.leaves[at].labels) for at in network.inputs)
        return numbers.cores + numbers.dense + given + network.volume(network.output)
    pixels: int = batch * image ** len(graph.kernel_size)
    inside = graph.in_features if graph.rules.layout else 1
    return numbers.cores + numbers.dense + pixels * (inside + graph.out_features)
