"""Inference with given cores: what depends on cores alone is computed once.

Nothing is cached behind the user's back: `cached` does it for a while, `freeze` for good. A compact layer ships at most
twice the bytes of its cores, a fast one may ship the dense weight.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import TnmarsError
from tnmars.graph.counts import count
from tnmars.layer.kinds import kind_of
from tnmars.layer.module import Shell, TNModule, code, layers
from tnmars.program.choice import choose_frozen
from tnmars.program.codec import form_from_json, form_to_json
from tnmars.program.form import Form
from tnmars.pruning.prune_model import prune
from tnmars.timing.tuning import fastest_frozen

COMPACT = 2
"""How many times the numbers of its cores a compact layer may ship."""
FAST = 2**31
"""How many numbers a fast layer may ship: beyond, what is made of the cores would fill the memory."""


class FrozenLayer(Shell):
    """A layer whose cores are folded: buffers and code for inference."""

    def __init__(self, layer: TNModule, form: Form):
        super().__init__(layer.graph, layer.device, layer.dtype)
        self.form = form
        self._code = code(form)
        bias = layer.bias
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        with torch.no_grad():
            parts = layer.folded(form)
        # another form has other parts, which may have the same shapes: their names tell them apart
        digest = sha256(self._code.source.encode()).hexdigest()[:8]
        self._names = [f"part{at}_{digest}" for at in range(len(parts))]
        for name, part in zip(self._names, parts, strict=True):
            self.register_buffer(name, part.detach().clone(memory_format=torch.contiguous_format))

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: the form as plain data, but no code."""
        return {key: value for key, value in self.__dict__.items() if key != "_code"} | {
            "form": form_to_json(self.form)
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Graph and form are checked, and the code is emitted again: no file can write code."""
        graph = replace(state["graph"])
        form = form_from_json(state["form"], graph)
        super().__setstate__({**state, "graph": graph, "form": form, "_code": code(form)})  # type: ignore[no-untyped-call]

    @property
    def is_table(self) -> bool:
        return len(self._names) == 1

    @property
    def source(self) -> str:
        return self._code.source

    def dense(self) -> Tensor:
        raise TnmarsError("a frozen layer has no cores to make its weight from; ask the layer that it was made from.")

    def compute(self, batch: int, *inputs: Tensor) -> Tensor:
        return self._code(inputs, self.bias, tuple(getattr(self, name) for name in self._names))

    def extra_repr(self) -> str:
        return f"{self.graph.kind}, {self.graph.signature}, {_shipped(self):,} numbers, {self.form.name}"


class FrozenTensor(Shell):
    """A tensor that is there as a whole."""

    is_table = True

    def __init__(self, layer: TNModule):
        super().__init__(layer.graph, layer.device, layer.dtype)
        self.register_buffer("weight", layer.dense().detach().clone(memory_format=torch.contiguous_format))

    def dense(self) -> Tensor:
        weight: Tensor = self.weight
        return weight

    def compute(self, batch: int, *inputs: Tensor) -> Tensor:
        return self.dense()[inputs[0].unbind(-1)]

    def extra_repr(self) -> str:
        return f"{self.graph.kind}, {self.graph.signature}, {_shipped(self):,} numbers, whole"


def _shipped(layer: nn.Module) -> int:
    """How many numbers are saved with a layer."""
    return sum(value.numel() for value in layer.state_dict().values())


def frozen_layer(
    layer: TNModule, form: str = "compact", *, batch: int | None = None, image: int | None = None, tune: bool = False
) -> Shell:
    """One layer, frozen for a batch and an image size, by default its nominal ones.

    A compact tensor, or one too large to be there as a whole, keeps its cores, and a layer without terms its bias:
    these are copies that do not train.
    """
    if form not in ("compact", "fast"):
        raise TnmarsError(f"form '{form}' is not known; forms: compact, fast.")
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
    ranked = choose_frozen(layer.graph, model=planner.model, limit=limit, optimizer=planner.optimizer, **sizes)
    if not tune:
        return FrozenLayer(layer, ranked[0])
    return FrozenLayer(layer, fastest_frozen(layer.graph, ranked, **sizes, device=layer.device, dtype=layer.dtype))


def freeze(
    model: nn.Module, form: str = "compact", *, batch: int | None = None, image: int | None = None, tune: bool = False
) -> nn.Module:
    """A copy of a model, or of a single layer, whose compiled layers are frozen for inference.

    `batch` and `image` are the sizes to be fast at, by default the nominal ones; `tune` times close candidates. Layers
    with gates are pruned first.
    """
    is_gated = any(layer.masks is not None for _, layer in layers(model))
    copied = prune(model) if is_gated else copy.deepcopy(model)
    if isinstance(copied, TNModule):
        return frozen_layer(copied, form, batch=batch, image=image, tune=tune).eval()
    made: dict[TNModule, Shell] = {}
    for name, layer in list(copied.named_modules(remove_duplicate=False)):
        if isinstance(layer, TNModule):
            if layer not in made:
                made[layer] = frozen_layer(layer, form, batch=batch, image=image, tune=tune)
            copied.set_submodule(name, made[layer])
    return copied.eval()


@contextmanager
def cached(model: nn.Module) -> Iterator[nn.Module]:
    """Within the block, the layers of a model do once what depends on cores alone. Changes of cores are not seen.

    It is for inference: a pass in training mode with gradients on is computed as always, or nothing would be trained.

    A block within another changes nothing for layers that are cached already.
    """
    found = [layer for _, layer in layers(model) if layer.graph.terms and layer.cached is None]
    try:
        for layer in found:
            layer.cache_(frozen_layer(layer, "fast"))
        yield model
    finally:
        for layer in found:
            layer.cache_(None)
