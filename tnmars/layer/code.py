"""Forms to functions: emitted source made callable, and the functions of a layer for every range of batch sizes.

The plans of the nominal batch are made at once; those of other ranges when they are first needed. Plans are values and
may be given, so that a resumed run takes the ones it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from tnmars.graph import Graph
from tnmars.layer.chunks import in_chunks
from tnmars.layer.emitted import functions
from tnmars.layer.planned import Planned, planned_of
from tnmars.layer.torch_state import is_traced, is_traced_whole
from tnmars.plan.layout import Weighing
from tnmars.program.candidates import weight_forms
from tnmars.program.choice import Planner
from tnmars.program.codec import plan_from_json, plan_to_json
from tnmars.program.emit import emit
from tnmars.program.form import Form
from tnmars.program.framing import arguments
from tnmars.program.gating import masked
from tnmars.program.program import staged, standing

MODES = ("train", "infer")
WEIGHT = "weight"
"""The mode of the program that makes the dense weight."""

Chosen = tuple[str, int]
"""A mode and the batch that a plan is made for."""


class Place(Protocol):
    """Where the numbers of a layer are, and of which type: what a planner that times its candidates needs to know."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True)
class Code:
    """The functions of one program."""

    fold: Callable[..., tuple[Tensor, ...]]
    run: Callable[..., Tensor]
    cores: tuple[str, ...]
    source: str
    chunk: int = 0
    gates: tuple[str, ...] = ()
    """The bonds whose gates `fold` takes after the cores."""
    keep: int = 0
    """With chunks, the number of rows whose intermediates a training step keeps; 0 for all."""
    ready: Callable[..., tuple[Tensor, ...]] | None = None
    """What is done once for all chunks of a batch, from the folded parts to those that `run` takes."""
    layout: torch.memory_format | None = None
    """Of images in this memory layout `run` may make an output in another one, which is then copied back into it."""
    planned: Planned | None = None
    """The training step with its own backward pass, if there is one."""

    def compute(self, inputs: tuple[Tensor, ...], bias: Tensor | None, given: Sequence[Tensor]) -> Tensor:
        """The result for given cores and gates."""
        if self.planned is not None and not self.chunk:
            output = self.planned((*inputs, *given) if bias is None else (*inputs, bias, *given))
            if output is not None:
                return output
        return self(inputs, bias, self.fold(*given))

    def __call__(self, inputs: tuple[Tensor, ...], bias: Tensor | None, parts: tuple[Tensor, ...]) -> Tensor:
        """The result for given parts; a large batch is cut into chunks where the form says so."""
        if self.ready is not None:
            parts = self.ready(*parts)
        more = parts if bias is None else (bias, *parts)
        if self.planned is not None and self.chunk:
            output = self.planned((*inputs, *more))
            if output is not None:
                return output
        if self.chunk and inputs[0].shape[0] > self.chunk and not is_traced_whole():
            return in_chunks(self.run, self.chunk, inputs[0], more, self.keep)
        output = self.run(*inputs, *more)
        if self.layout is not None and lies_in(inputs[0], self.layout):
            return output.contiguous(memory_format=self.layout)
        return output


def lies_in(image: Tensor, layout: torch.memory_format) -> bool:
    """Whether images lie in channels_last, and not in torch's usual order too, as those with one channel do.

    Under vmap torch does not tell.
    """
    if image.is_contiguous() or (is_traced(image) and not torch.compiler.is_compiling()):
        return False
    return image.is_contiguous(memory_format=layout)


LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}
"""The memory layout with channels innermost, by the number of spatial axes."""


@lru_cache(maxsize=2048)
def code(form: Form, gated: Graph | None = None) -> Code:
    """The runnable code of a form; with the gates of the graph's bonds, where one is given."""
    program = form.program if gated is None else masked(form.program, gated)
    source = emit(program, form.frame)
    fold, run = _passes(source)
    layout = None if form.frame.dense else LAYOUTS.get(form.frame.spatial)  # torch's own layer gives what it gives
    made = Code(fold, run, program.cores, source, form.chunk, program.gates, form.keep, layout=layout)
    if not form.chunk or not standing(program):
        return made
    later = emit(staged(program), form.frame)
    ready, run = _passes(later)
    return replace(made, run=run, ready=ready, source=f"{source}\n\n# for chunks of a batch\n{later}")


def _passes(source: str) -> tuple[Any, Any]:
    made = functions(source)
    return made["fold"], made["run"]


def runnable(form: Form, gated: Graph | None = None) -> Code:
    """The code of a form for a layer to run, with its planned training step if it has one."""
    made = code(form, gated)
    return replace(made, planned=planned_of(form, gated, _plain(form, made))) if form.is_planned else made


def _plain(form: Form, made: Code) -> Callable[..., Tensor]:
    """The plain program as a function of the arguments of the planned step."""
    count = len(arguments(form.frame))

    def whole(*given: Tensor) -> Tensor:
        return made.run(*given[:count], *made.fold(*given[count:]))

    def chunked(rows: Tensor, *more: Tensor) -> Tensor:
        return torch.cat([made.run(piece, *more) for piece in torch.split(rows, form.chunk)])

    return chunked if form.chunk else whole


class Programs:
    """The code of a layer for every mode and batch, with gates if asked for."""

    def __init__(
        self,
        planner: Planner,
        *,
        gated: bool = False,
        plans: Mapping[Chosen, Form] | None = None,
        place: Place | None = None,
    ):
        self.planner = planner
        self.gated = planner.graph if gated else None
        self._buckets = planner.buckets
        self.plans: dict[Chosen, Form] = dict(plans or {})
        self._codes: dict[Chosen, Code] = {}
        self.weight: Code | None = None
        """The code that makes the dense weight; None if no term is left."""
        if planner.graph.terms:
            weighing = Weighing(planner.model)
            self.weight_form = weight_forms(planner.graph, weighing, planner.optimizer)[0]
            self.weight = code(self.weight_form, self.gated)
            for mode in MODES:
                self.pick(planner.nominal, mode, place)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the planner and the plans as plain data, but no code."""
        return _restored, (self.planner, self.gated is not None, plan_to_json(self.plans))

    def __deepcopy__(self, memo: object) -> Programs:
        """A copy with plans of its own; plans and code are values, and shared."""
        copied = object.__new__(Programs)
        copied.__dict__ |= {**self.__dict__, "plans": dict(self.plans), "_codes": dict(self._codes)}
        return copied

    def bucket(self, batch: int) -> int:
        """The batch whose plan another takes."""
        for entry in self._buckets:
            if batch <= entry.limit:
                return entry.batch
        return self._buckets[-1].batch

    def plan(self, mode: str, batch: int, place: Place | None = None) -> Form:
        """The plan for a batch, `train` or `infer`. Made when it is first asked for, then kept."""
        key = (mode, self.bucket(batch))
        if key not in self.plans:
            planner = self.planner
            if planner.decide is not None and place is not None:
                where = {"device": place.device, "dtype": place.dtype, "channels_last": planner.channels_last}
                decide = partial(planner.decide, **where)
                planner = replace(planner, decide=decide)
            self.plans[key] = planner.plan(*key)
        return self.plans[key]

    def pick(self, batch: int, mode: str, place: Place | None = None) -> Code:
        """The code for a batch, or for the dense weight."""
        if mode == WEIGHT:
            assert self.weight is not None
            return self.weight
        key = (mode, self.bucket(batch))
        found = self._codes.get(key)
        if found is None:
            found = self._codes[key] = runnable(self.plan(*key, place), self.gated)
        return found


def _restored(planner: Planner, gated: bool, plans: object) -> Programs:
    """The programs of a pickle. Graph and plans are checked, and the code is emitted again: no file can write code."""
    checked = replace(planner, graph=replace(planner.graph))
    return Programs(checked, gated=gated, plans=plan_from_json(plans, checked.graph))
