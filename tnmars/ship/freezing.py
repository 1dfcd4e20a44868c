"""Models for inference with fixed cores: `freeze` for good, `cached` within a block. Nothing is cached implicitly."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError
from tnmars.layer.module import Shell, TNModule, layers
from tnmars.models.data import Batch, call, device_of, example_batch
from tnmars.models.parametrize import restore_
from tnmars.models.rebuilt import found, rebuilt_in
from tnmars.program.form import has_weight
from tnmars.pruning.prune_model import prune
from tnmars.ship.frozen import FrozenLayer, FrozenTensor, frozen_layer
from tnmars.timing.clock import in_turns, inference

ROUNDS = 9
BUDGET = 2.0
"""The seconds for which a frozen model is timed against one with dense weights."""


def freeze(
    model: nn.Module,
    form: str = "compact",
    *,
    batch: int | None = None,
    image: int | None = None,
    example: Any = None,
    tune: bool = False,
) -> nn.Module:
    """A copy of a model, or of a single layer, whose compiled layers are frozen for inference.

    What depends on the cores alone is computed now, and stored in buffers instead of the cores. The copy is in
    evaluation mode and does not train; the model stays as it is. Layers with gates are pruned first.

    For the fastest model, use `freeze(model, "fast", example=inputs, tune=True)`. Then candidates are timed on what
    each layer gets in the model, and the dense weight is one of them. It is taken unless another is clearly faster, so
    no linear or convolutional layer becomes slower than torch's own, up to a microsecond per call.

    Args:
        model: A model with compiled layers, or a compiled layer.
        form: `"compact"` stores at most twice the numbers of the cores: choose it to ship a small file. `"fast"` may
            store the dense weight: choose it for speed. Parameters of `tnmars.parametrize_` are plain ones again in a
            fast model, and still rebuilt in a compact one.
        batch: The batch size to be fast at, by default the nominal one of each layer. Any batch is accepted.
        image: The image side to be fast at, by default the nominal one of each layer.
        example: Inputs of the model to be fast at, instead of `batch` and `image`: a tensor, a tuple or list of
            positional or a mapping of keyword arguments. A copy of the model runs, and each layer is frozen for the
            sizes and the memory layout (such as `channels_last`) of what it gets.
        tune: Whether to time close candidates on this machine and take the fastest.

    Returns:
        The frozen copy: a model with the same module names, or a frozen layer.

    Raises:
        TnmarsError: If the form is not known, an example is given together with `batch` or `image`, or it is of a
            wrong type.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(3, 5), rank=2)
        >>> layer = tnmars.compile(graph)
        >>> x = torch.ones(2, 16)
        >>> frozen = tnmars.freeze(layer, "fast", example=x)
        >>> bool(torch.allclose(frozen(x), layer(x), atol=1e-6)), list(frozen.parameters())
        (True, [])
    """
    check_arguments(freeze, locals())
    if example is not None and (batch is not None or image is not None):
        given = "batch" if batch is not None else "image"
        raise TnmarsError(Problem(f"both example and {given} are given.", "An example has all sizes: give it alone."))
    is_gated = any(layer.masks is not None for _, layer in layers(model))
    copied = prune(model) if is_gated else copy.deepcopy(model)
    _freeze_rebuilt_(copied, form)
    if example is not None:
        return _frozen_for(copied.eval(), example, form, tune)
    return _replaced(copied, lambda layer: frozen_layer(layer, form, batch=batch, image=image, tune=tune))


def _replaced(model: nn.Module, frozen: Callable[[TNModule], nn.Module]) -> nn.Module:
    """The model, with its compiled layers replaced in all places that they have."""
    made: dict[TNModule, nn.Module] = {}
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if isinstance(layer, TNModule) and not layer.is_rebuilt:
            if layer not in made:
                made[layer] = frozen(layer)
            if not name:
                return made[layer].eval()
            model.set_submodule(name, made[layer])
    return model.eval()


# --- for an example ---------------------------------------------------------------------------------------------------


def _frozen_for(model: nn.Module, example: Any, form: str, tune: bool) -> nn.Module:
    """The model, frozen for what its layers get in a pass over an example.

    Passes run on copies, because a model may change its state in them.
    """
    batch = example_batch(example)
    with torch.random.fork_rng(devices=[]):
        made = _frozen_in_turn(copy.deepcopy(model), batch, form, tune)
        original = copy.deepcopy(model) if form == "fast" and tune else None
        mixed = _replaced(model, lambda layer: made.get(_name(model, layer)) or frozen_layer(layer, form))
        if original is None:
            return mixed
        # what a layer returns in another memory layout can cost the next operations more than the layer has gained
        dense = _replaced(original, lambda layer: _dense(layer, made.get(_name(original, layer))))
        actions = [inference(partial(call, copy.deepcopy(each), batch), ()) for each in (mixed, dense)]
        ours, theirs = in_turns(actions, rounds=ROUNDS, budget=BUDGET, least=2, device=device_of(mixed))
    return mixed if ours <= theirs else dense


def _name(model: nn.Module, layer: TNModule) -> str:
    return next(name for name, other in layers(model) if other is layer)


def _dense(layer: TNModule, made: Shell | None) -> Shell:
    """The layer frozen with its dense weight; as it was made for the example if it has no such form."""
    dense = frozen_layer(layer, "fast", is_dense=True)
    is_other = isinstance(dense, FrozenLayer) and not has_weight(layer.graph, dense.form)
    return made if is_other and made is not None else dense


def _frozen_in_turn(model: nn.Module, batch: Batch, form: str, tune: bool) -> dict[str, Shell]:
    """Frozen layers by name, each made when it is first called in a pass, for the inputs that those before it give."""
    made: dict[str, Shell] = {}

    def watch(name: str, layer: TNModule) -> None:
        def compute(rows: int, *inputs: Tensor) -> Tensor:
            if name not in made:
                del layer.__dict__["compute"]  # it may be copied now
                image = max(inputs[0].shape[2:], default=None) if inputs else None
                made[name] = frozen_layer(layer, form, batch=rows, image=image, tune=tune, inputs=inputs)
                layer.__dict__["compute"] = compute
            return made[name].compute(rows, *inputs)  # type: ignore[no-any-return]

        layer.__dict__["compute"] = compute  # a hook would see inputs that are not prepared yet
        layer._fits = None  # the fast path does not call `compute`
        layer.is_table = form == "fast"  # a frozen table gets every token, not each different one

    for name, layer in layers(model):
        if not layer.is_rebuilt:
            watch(name, layer)
    inference(partial(call, model, batch), ())()
    return made


# --- parameters that are rebuilt, and caches --------------------------------------------------------------------------


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
    check_arguments(cached, locals())
    plain = [layer for _, layer in layers(model) if layer.graph.terms and layer.cached is None]
    try:
        for layer in plain:
            layer.cache_(FrozenTensor(layer) if layer.is_rebuilt else frozen_layer(layer, "fast"))
        yield model
    finally:
        for layer in plain:
            layer.cache_(None)
