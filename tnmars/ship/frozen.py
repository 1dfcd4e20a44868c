"""One layer with fixed cores: what depends on the cores alone is computed once, and shipped in buffers.

A compact layer ships at most twice the bytes of its cores, a fast one may ship the dense weight. Whole models are
frozen in `tnmars.ship.freezing`.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import TnmarsError
from tnmars.graph.counts import count
from tnmars.layer.code import LAYOUTS, lies_in
from tnmars.layer.cores import bias_of
from tnmars.layer.forward import forward
from tnmars.layer.kinds import kind_of
from tnmars.layer.memory import is_short, no_output
from tnmars.layer.module import Shell, TNModule, code
from tnmars.layer.quick import fitting, ordinary, shaped
from tnmars.program.against_dense import against_dense
from tnmars.program.choice import choose_frozen
from tnmars.program.codec import form_from_json, form_to_json
from tnmars.program.form import Form, has_weight
from tnmars.timing.tuning import fastest_frozen

COMPACT = 2
"""A compact layer ships at most this many times the numbers of its cores."""
SURELY = 0.75
"""A fast layer that is not timed ships another form than the dense weight if it is estimated to take at most this share
of its time: estimates of inference are off by up to a third."""
MADE = ("_code", "_fits", "_is_whole")
"""What a pickle does not hold, because it follows from graph and form."""
FAST = 2**31
"""A fast layer ships at most this many numbers: more would fill the memory."""


class FrozenLayer(Shell):
    """A layer whose cores are folded: buffers and code for inference."""

    def __init__(self, layer: TNModule, form: Form):
        super().__init__(layer.graph, layer.device, layer.dtype)
        self.form = form
        self._prepare()
        bias = bias_of(layer)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        with torch.no_grad():
            parts = layer.folded(form)
        # another form has other parts, which may have the same shapes: their names tell them apart
        digest = sha256(self._code.source.encode()).hexdigest()[:8]
        first = {id(part): at for at, part in reversed(list(enumerate(parts)))}  # a core in several places, once
        self._names = [f"part{first[id(part)]}_{digest}" for part in parts]
        for name, part in dict(zip(self._names, parts, strict=True)).items():
            whole = part.detach().resolve_conj()
            self.register_buffer(name, whole.clone(memory_format=torch.contiguous_format))

    def _prepare(self) -> None:
        """What follows from graph and form, and is not stored."""
        self._code = code(self.form)
        self._fits = fitting(self.graph)
        self._is_whole = not self._code.chunk and self._code.layout is None

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: the form as plain data, but no code."""
        state = {key: value for key, value in super().__getstate__().items() if key not in MADE}
        return state | {"form": form_to_json(self.form)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Graph and form are checked, and the code is emitted again: no file can write code."""
        graph = replace(state["graph"])
        form = form_from_json(state["form"], graph)
        super().__setstate__({**state, "graph": graph, "form": form})
        self._prepare()

    def _forward(self, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> Tensor:
        """The output. An ordinary input takes the fast path."""
        buffers: dict[str, Any] = self._buffers  # attributes of a module are looked up slowly
        rows = ordinary(inputs[0], self._fits, buffers["_anchor"].dtype) if len(inputs) == 1 and not named else None
        if rows is None:
            return forward(self, inputs, named)
        try:
            bias, parts = buffers["bias"], [buffers[name] for name in self._names]
        except KeyError:  # torch has parametrized one of them, or it is a parameter now
            return forward(self, inputs, named)
        try:
            if self._is_whole:
                output = self._code.run(rows, *parts) if bias is None else self._code.run(rows, bias, *parts)
            else:
                output = self._code((rows,), bias, tuple(parts))
        except RuntimeError as error:
            if not is_short(error):
                raise
            raise no_output(error, inputs) from error
        return output if rows is inputs[0] else shaped(output, inputs[0])

    @property
    def is_table(self) -> bool:
        return len(set(self._names)) == 1

    @property
    def source(self) -> str:
        return self._code.source

    def dense(self) -> Tensor:
        """The dense weight, from what the layer gives for unit inputs: its cores are gone."""
        probe = self._kind.probe
        if probe is None:
            fix = "ask the layer that it was made from"
            raise TnmarsError(f"a frozen layer of kind {self.graph.kind} has no cores to make its weight from; {fix}.")
        none = None if self.bias is None else torch.zeros_like(self.bias)
        return probe(self.graph, lambda x: self._code((x,), none, self._parts()), self.device, self.dtype)

    def _parts(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, name) for name in self._names)

    def compute(self, batch: int, *inputs: Tensor) -> Tensor:
        return self._code(inputs, self.bias, self._parts())

    def extra_repr(self) -> str:
        return f"{self.graph.kind}, {self.graph.signature}, {_shipped(self):,} numbers, {self.form.name}"


class FrozenTensor(Shell):
    """A tensor stored as its entries, without cores."""

    is_table = True

    def __init__(self, layer: TNModule):
        super().__init__(layer.graph, layer.device, layer.dtype)
        # not by `register_buffer`, because every layer has a property of that name
        self._buffers["weight"] = layer.dense().detach().resolve_conj().clone(memory_format=torch.contiguous_format)

    def dense(self) -> Tensor:
        weight = self._buffers["weight"]
        assert weight is not None
        return weight

    def compute(self, batch: int, *inputs: Tensor) -> Tensor:
        return self.dense()[inputs[0].unbind(-1)]

    def extra_repr(self) -> str:
        return f"{self.graph.kind}, {self.graph.signature}, {_shipped(self):,} numbers, dense"


def _shipped(layer: nn.Module) -> int:
    """The number of entries that are saved with a layer."""
    return sum(value.numel() for value in layer.state_dict().values())


def frozen_layer(
    layer: TNModule,
    form: str = "compact",
    *,
    batch: int | None = None,
    image: int | None = None,
    tune: bool = False,
    inputs: tuple[Tensor, ...] | None = None,
    is_dense: bool = False,
) -> Shell:
    """One layer, frozen for a batch and an image size, by default its nominal ones.

    With `tune`, candidates are timed on inputs of its emitted code, by default random ones. With `is_dense` the dense
    weight is taken if there is a form that has it. A compact tensor, or one
    that is too large to store densely, keeps its cores, and a layer without terms its bias: these are copies that do
    not train.
    """
    if form not in ("compact", "fast"):
        raise TnmarsError(f"form is '{form}', but must be 'compact' or 'fast'.")
    numbers = count(layer.graph)
    shipped = max(numbers.cores, COMPACT * numbers.cores - numbers.other)  # the bias is shipped too
    limit = shipped if form == "compact" else max(COMPACT * numbers.cores, FAST)
    is_weight = kind_of(layer.graph).is_weight
    if not layer.graph.terms or (is_weight and (form == "compact" or numbers.dense > limit)):
        return copy.deepcopy(layer).requires_grad_(False)
    if is_weight:
        return FrozenTensor(layer)
    planner = layer.planner
    sizes = {"batch": batch or planner.nominal, "image": image or planner.image}
    is_last = planner.channels_last if inputs is None else _comes_last(inputs)
    ranked = choose_frozen(
        layer.graph, model=planner.model, limit=limit, optimizer=planner.optimizer, channels_last=is_last, **sizes
    )
    dense = next((each for each in ranked if has_weight(layer.graph, each)), None)
    if is_dense and dense is not None:
        return FrozenLayer(layer, dense)
    if not tune:
        is_sure = form == "compact" or dense is None or _is_surely_faster(layer, ranked[0], dense, **sizes)
        return FrozenLayer(layer, ranked[0] if is_sure or dense is None else dense)
    device, dtype = layer.device, layer.dtype
    best = fastest_frozen(
        layer.graph, ranked, **sizes, device=device, dtype=dtype, channels_last=is_last, inputs=inputs
    )
    return FrozenLayer(layer, best)


def _comes_last(inputs: tuple[Tensor, ...]) -> bool:
    """Whether images come with channels innermost."""
    layout = LAYOUTS.get(inputs[0].dim() - 2)
    return layout is not None and lies_in(inputs[0], layout)


def _is_surely_faster(layer: TNModule, form: Form, dense: Form, batch: int, image: int) -> bool:
    """Whether a form is predicted to be so much faster than the dense weight that it surely is."""
    if form is dense:
        return True
    model = layer.planner.model
    ours, theirs = (against_dense(layer.graph, each, batch, model, image=image, folded=True) for each in (form, dense))
    return ours is None or theirs is None or ours.seconds <= SURELY * theirs.seconds
