"""Inference with fixed cores: what depends on the cores alone is computed once.

Nothing is cached implicitly: `cached` does it within a block, `freeze` for good. A compact layer ships at most twice
the bytes of its cores, a fast one may ship the dense weight.
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
from tnmars.models.parametrize import restore_
from tnmars.models.rebuilt import found, rebuilt_in
from tnmars.program.choice import choose_frozen
from tnmars.program.codec import form_from_json, form_to_json
from tnmars.program.form import Form
from tnmars.pruning.prune_model import prune
from tnmars.timing.tuning import fastest_frozen

COMPACT = 2
"""A compact layer ships at most this many times the numbers of its cores."""
FAST = 2**31
"""A fast layer ships at most this many numbers: more would fill the memory."""


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
        self._buffers["weight"] = layer.dense().detach().clone(memory_format=torch.contiguous_format)

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
    layer: TNModule, form: str = "compact", *, batch: int | None = None, image: int | None = None, tune: bool = False
) -> Shell:
    """One layer, frozen for a batch and an image size, by default its nominal ones.

    A compact tensor, or one that is too large to store densely, keeps its cores, and a layer without terms its bias:
    these are copies that do not train.
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
    ranked = choose_frozen(layer.graph, model=planner.model, limit=limit, optimizer=planner.optimizer, **sizes)
    if not tune:
        return FrozenLayer(layer, ranked[0])
    return FrozenLayer(layer, fastest_frozen(layer.graph, ranked, **sizes, device=layer.device, dtype=layer.dtype))


def freeze(
    model: nn.Module, form: str = "compact", *, batch: int | None = None, image: int | None = None, tune: bool = False
) -> nn.Module:
    """A copy of a model, or of a single layer, whose compiled layers are frozen for inference.

    What depends on the cores alone is computed now, and stored in buffers instead of the cores. The copy is in
    evaluation mode and does not train; the model stays as it is. Layers with gates are pruned first.

    Args:
        model: A model with compiled layers, or a compiled layer.
        form: `"compact"` stores at most twice the numbers of the cores: choose it to ship a small file. `"fast"` may
            store the dense weight: choose it for speed. Parameters of `tnmars.parametrize_` are plain ones again in a
            fast model, and still rebuilt in a compact one.
        batch: The batch size to be fast at, by default the nominal one of each layer. Any batch is accepted.
        image: The image side to be fast at, by default the nominal one of each layer.
        tune: Whether to time close candidates on this machine and take the fastest.

    Returns:
        The frozen copy: a model with the same module names, or a frozen layer.

    Raises:
        TnmarsError: If the form is not known.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(3, 5), rank=2)
        >>> layer = tnmars.compile(graph)
        >>> frozen = tnmars.freeze(layer, "fast", batch=1)
        >>> x = torch.ones(2, 16)
        >>> bool(torch.allclose(frozen(x), layer(x), atol=1e-6)), list(frozen.parameters())
        (True, [])
    """
    is_gated = any(layer.masks is not None for _, layer in layers(model))
    copied = prune(model) if is_gated else copy.deepcopy(model)
    if isinstance(copied, TNModule):
        return frozen_layer(copied, form, batch=batch, image=image, tune=tune).eval()
    _freeze_rebuilt_(copied, form)
    made: dict[TNModule, Shell] = {}
    for name, layer in list(copied.named_modules(remove_duplicate=False)):
        if isinstance(layer, TNModule) and not layer.is_rebuilt:
            if layer not in made:
                made[layer] = frozen_layer(layer, form, batch=batch, image=image, tune=tune)
            copied.set_submodule(name, made[layer])
    return copied.eval()


def _freeze_rebuilt_(model: nn.Module, form: str) -> None:
    """Parameters that are rebuilt: compact ones keep cores that do not train, fast ones are stored densely again."""
    for path, _, name, layer in list(rebuilt_in(model)):
        layer.requires_grad_(False)
        if form == "fast" and found(model.get_submodule(path), name) is not None:  # not yet, by one that it is tied to
            restore_(model, f"{path}.{name}" if path else name)


@contextmanager
def cached(model: nn.Module) -> Iterator[nn.Module]:
    """The model, whose layers compute what depends on the cores alone only once within a `with` block.

    It is for inference with fixed cores: changes of the cores are not seen within the block. A pass in training mode
    with gradients enabled is computed as always. A block within another changes nothing for layers that are already
    cached. Use `freeze` to do the same for good.

    Args:
        model: A model with compiled layers, or a compiled layer.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(3, 5), rank=2)
        >>> layer = tnmars.compile(graph).eval()
        >>> with tnmars.cached(layer), torch.no_grad():
        ...     y = layer(torch.ones(2, 16))
        >>> y.shape
        torch.Size([2, 15])
    """
    plain = [layer for _, layer in layers(model) if layer.graph.terms and layer.cached is None]
    try:
        for layer in plain:
            layer.cache_(FrozenTensor(layer) if layer.is_rebuilt else frozen_layer(layer, "fast"))
        yield model
    finally:
        for layer in plain:
            layer.cache_(None)
