"""A user's data to batches of model inputs, and a model's outputs to tensors. Nothing here knows about compiled layers.

`data` is any iterable of model inputs: a `DataLoader`, a list of batches, or one tensor that holds all samples. What a
batch means for a model is decided here, in one place, so that every function that takes `data` agrees.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import Dataset, IterableDataset

from tnmars.errors import Problem, TnmarsError
from tnmars.layer.wrapped import innermost

Batch = tuple[tuple[Any, ...], dict[str, Any]]
"""What a model is called with: positional and keyword arguments."""
Inputs = Callable[[Any], Any]
"""From what `data` yields to a model's inputs: a tensor, a tuple of positional or a mapping of keyword arguments."""

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
ANY = (
    inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
    inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
)
"""Parameters of a model that does not tell its own."""

ROWS = 64
"""A tensor that holds all samples is cut into batches of this many rows."""
ANSWERS = ("logits", "last_hidden_state")
"""The fields that hold the answer of a model whose output is an object or a mapping, best first."""


def batches(
    data: Iterable[Any], inputs: Inputs | None = None, *, model: nn.Module | None = None, rows: int = ROWS
) -> Iterator[Batch]:
    """The arguments of a model for each batch of some data.

    Args:
        data: A `DataLoader`, any other iterable of batches, or one tensor with all samples, which is cut into batches
            of `rows`. A batch is a tensor, a mapping of keyword arguments, or a sequence. Of a sequence such as
            `(images, labels)` the first element is taken, or as many as the model has positional arguments without a
            default. If the first element is itself a list, a tuple or a mapping, it may hold all arguments; see
            `holds_arguments`, which decides by the first batch.
        inputs: Called with each batch instead: returns a tensor, a tuple of positional arguments or a mapping of
            keyword arguments, all of which the model gets.
        model: The model that is to be called. Of a mapping, it gets the keys that its `forward` names.
        rows: The batch size for one tensor with all samples.

    Yields:
        Positional and keyword arguments, for `call`.

    Raises:
        TnmarsError: If there is no batch, a batch is not one of these, or an input has NaN.

    Example:
        >>> pairs = [(torch.ones(2, 3), torch.zeros(2))]
        >>> [(len(args), named) for args, named in batches(pairs)]
        [(1, {})]
    """
    at, is_nested = -1, False
    for at, given in enumerate(checked(data, rows)):
        if at == 0 and inputs is None:
            is_nested = holds_arguments(given, model)
        batch = _given(inputs(given), at) if inputs is not None else _taken(given, at, model, is_nested)
        _check_numbers(batch, at)
        yield batch
    if at < 0:
        text = "data has no batch."
        raise TnmarsError(Problem(text, "An iterator that was used before is empty: give a list or a DataLoader."))


def checked(data: Any, rows: int = ROWS, name: str = "data") -> Iterable[Any]:
    """What is to be iterated over: `data`, or a tensor in batches. Raises `TnmarsError` for what holds no batches.

    `name` is what the user's argument is called.
    """
    if isinstance(data, Tensor) and data.dim():
        return [data[at : at + rows] for at in range(0, len(data), rows)]
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        text = f"{name} is a {type(data).__name__}, which yields single samples."
        raise TnmarsError(Problem(text, f"Give batches: torch.utils.data.DataLoader({name}, batch_size=64)."))
    if isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Iterable):
        text = f"{name} is of type {type(data).__name__}, but must be an iterable of batches."
        raise TnmarsError(Problem(text, "Give a DataLoader, a list of batches, or one tensor with all samples."))
    found: Iterable[Any] = data
    return found


def _given(value: Any, at: int) -> Batch:
    """What the user's own function returned, all of it."""
    batch = _arguments(value)
    if batch is None:
        raise TnmarsError(
            f"inputs returned a {type(value).__name__} for batch {at}, but must return a tensor, a tuple or a mapping."
        )
    return batch


def example_batch(example: Any) -> Batch:
    """The arguments of a model in an example of them: a tensor, a tuple of positional or a mapping of keyword ones.

    >>> example_batch((torch.ones(2), torch.ones(3)))
    ((tensor([1., 1.]), tensor([1., 1., 1.])), {})
    """
    batch = _arguments(example)
    if batch is None:
        text = f"example is of type {type(example).__name__}, but must be a tensor, a tuple or a mapping."
        raise TnmarsError(Problem(text, "Give what the model is called with, such as a batch of images."))
    return batch


def _arguments(value: Any) -> Batch | None:
    """Positional and keyword arguments, from all of a value; None if it is of another type."""
    if isinstance(value, Tensor):
        return (value,), {}
    if isinstance(value, Mapping):
        return (), dict(value)
    if isinstance(value, (tuple, list)):
        return tuple(value), {}
    return None


def _taken(value: Any, at: int, model: nn.Module | None, is_nested: bool) -> Batch:
    """The arguments in a batch of the data. `is_nested` says whether its first element holds all of them."""
    if isinstance(value, Tensor):
        return (value,), {}
    if isinstance(value, Mapping):
        return (), _named(value, at, model)
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not value:
        text = f"batch {at} of the data is of type {type(value).__name__}, but must be a tensor, a tuple or a mapping."
        raise TnmarsError(Problem(text, "Say how to make inputs of it: inputs=lambda batch: ..."))
    if is_nested and may_hold_arguments(value[0]):
        return ((), _named(value[0], at, model)) if isinstance(value[0], Mapping) else (tuple(value[0]), {})
    count = 1 if model is None else max(1, _required(model))
    if len(value) < count:
        text = f"batch {at} of the data has {len(value)} elements, but the model takes {count} inputs."
        raise TnmarsError(Problem(text, "Say how to make inputs of it: inputs=lambda batch: ..."))
    return tuple(value[:count]), {}


def _named(value: Mapping[str, Any], at: int, model: nn.Module | None) -> dict[str, Any]:
    """The entries of a mapping that the model names; all of them where it takes any, or is not known."""
    kept = dict(value) if model is None else taken_by_name(value, model)
    if value and not kept:
        text = f"batch {at} of the data has the keys {', '.join(map(str, value))}, none of which the model takes."
        raise TnmarsError(Problem(text, f"It takes: {', '.join(names_of(model))}. Or give inputs=lambda batch: ..."))
    return kept


def may_hold_arguments(value: Any) -> bool:
    """Whether a value may hold several arguments: a list, a tuple without names, or a mapping."""
    return type(value) in (tuple, list) or isinstance(value, Mapping)


def holds_arguments(batch: Any, model: nn.Module | None) -> bool:
    """Whether the first element of a batch, a list, a tuple or a mapping, holds all arguments of a model.

    Otherwise it is one argument. That is so for a mapping without a key that `forward` names, if it needs one argument;
    for a list with more elements than arguments; and, if the model needs but one, for a list of samples, such as images
    of different sizes: none of its tensors is as long as the target.

    >>> images, targets = [torch.ones(3, 8, 8), torch.ones(3, 9, 9)], torch.ones(2)
    >>> holds_arguments((images, targets), nn.Bilinear(2, 2, 2)), holds_arguments((images, targets), nn.Linear(2, 2))
    (True, False)
    """
    if not isinstance(batch, Sequence) or isinstance(batch, (str, bytes)) or not batch:
        return False
    value, *others = batch
    if model is None or not may_hold_arguments(value):
        return may_hold_arguments(value)
    parameters = _parameters(model)
    kinds = [entry.kind for entry in parameters.values()]
    required = _required(model)
    most = inf if inspect.Parameter.VAR_POSITIONAL in kinds else sum(kind in POSITIONAL for kind in kinds)
    if isinstance(value, Mapping):
        is_named = any(key in parameters for key in value if isinstance(key, str))
        return is_named or (required != 1 and (most != 1 or inspect.Parameter.VAR_KEYWORD in kinds))
    if required > 1:
        return len(others) < required and len(value) <= most
    return len(value) <= most and (most == inf or _are_batched(value, others))


def _are_batched(values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether values are batches of arguments, rather than the samples of one batch."""
    lengths = [len(entry) if entry.dim() else 0 for entry in values if isinstance(entry, Tensor)]
    targets = _length(others[-1]) if others else 0
    if targets == 0:  # nothing tells how many samples there are
        return len({*lengths, 0}) == 2
    return targets in lengths or (len(values) == len(lengths) == 1 != targets)


def _length(target: Any) -> int:
    """The number of samples that a target is for; 0 if it does not tell."""
    if isinstance(target, Tensor):
        return len(target) if target.dim() else 0
    return len(target) if isinstance(target, (tuple, list)) else 0


def _parameters(model: nn.Module | None) -> Mapping[str, inspect.Parameter]:
    """The parameters of a model's `forward`; of a wrapped model, those of the model inside."""
    if model is None:
        return {}
    try:
        return inspect.signature(innermost(model).forward).parameters
    except ValueError:  # a traced model does not tell
        return {entry.name: entry for entry in ANY}


def names_of(model: nn.Module | None) -> list[str]:
    """The names of the arguments that a model's `forward` takes."""
    return list(_parameters(model))


def taken_by_name(value: Mapping[Any, Any], model: nn.Module) -> dict[str, Any]:
    """The entries of a mapping that a model's `forward` names; all with a text for a key where it takes any.

    >>> taken_by_name({"input": 1, "id": 2}, nn.Linear(2, 2))
    {'input': 1}
    """
    parameters = _parameters(model)
    takes_any = any(entry.kind is entry.VAR_KEYWORD for entry in parameters.values())
    return {key: entry for key, entry in value.items() if isinstance(key, str) and (takes_any or key in parameters)}


def lacking(named: Mapping[str, Any], model: nn.Module) -> list[str]:
    """The arguments that a model's `forward` cannot do without, and that are not among these.

    >>> lacking({}, nn.Linear(2, 2))
    ['input']
    """
    return [name for name in _needed(model, BY_NAME) if name not in named]


def _required(model: nn.Module) -> int:
    """The number of positional arguments without a default of a model's `forward`."""
    return len(_needed(model, POSITIONAL))


def _needed(model: nn.Module, kinds: Collection[Any]) -> list[str]:
    """The arguments without a default of a model's `forward`, of some kinds."""
    known = _parameters(model).items()
    return [name for name, entry in known if entry.kind in kinds and entry.default is entry.empty]


def _check_numbers(batch: Batch, at: int) -> None:
    """Refuses NaN. Infinite numbers are allowed, because attention masks have them."""
    args, named = batch
    for name, value in (*((f"input {place + 1}", value) for place, value in enumerate(args)), *named.items()):
        if isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any()):
            raise TnmarsError(f"batch {at} of the data has NaN in {name}.")


def call(model: nn.Module, batch: Batch) -> Any:
    """What a model returns for a batch of `batches`, whose tensors are moved to the model's device first.

    >>> call(nn.Identity(), ((torch.ones(2),), {}))
    tensor([1., 1.])
    """
    args, named = moved(batch, device_of(model))
    return model(*args, **named)


def moved(batch: Batch, device: torch.device | None) -> Batch:
    """A batch with its tensors on a device; as it is where there is none."""
    args, named = batch
    return tuple(placed(value, device) for value in args), {key: placed(value, device) for key, value in named.items()}


def placed(value: Any, device: torch.device | None) -> Any:
    """A value with its tensors on a device, those in tuples, lists and mappings too; the same object if none moves."""
    if device is None:
        return value
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, PackedSequence):
        return value.to(device)  # type: ignore[arg-type]  # as its own documentation has it
    if isinstance(value, Mapping):
        moving = {key: placed(each, device) for key, each in value.items()}
        if all(each is value[key] for key, each in moving.items()):
            return value
        if not isinstance(value, MutableMapping):
            return moving
        found = copy.copy(value)
        for key, each in moving.items():
            found[key] = each
        return found
    is_named = isinstance(value, tuple) and hasattr(value, "_fields")
    if not is_named and type(value) not in (tuple, list):
        return value
    parts = [placed(each, device) for each in value]
    if all(one is other for one, other in zip(parts, value, strict=True)):
        return value
    return type(value)(*parts) if is_named else type(value)(parts)


def device_of(model: nn.Module) -> torch.device | None:
    """The device of a model's first parameter or buffer; None if it has neither."""
    for values in (model.parameters(), model.buffers()):
        for value in values:
            return value.device
    return None


def samples(batch: Batch) -> int:
    """The number of samples in a batch: the length of the first axis of its first tensor, or 1.

    >>> samples(((torch.ones(5, 2),), {}))
    5
    """
    args, named = batch
    for value in (*args, *named.values()):
        if isinstance(value, Tensor) and value.dim():
            return value.shape[0]
    return 1


def primary(output: Any) -> list[Tensor]:
    """The tensors of a model's output that hold its answer, always as a list.

    A tensor is the answer itself. Of an object or a mapping it is the field `logits`, or else `last_hidden_state`; of
    any other mapping, tuple, list or dataclass, all floating-point tensors in it, in order.

    Raises:
        TnmarsError: If there is no floating-point tensor.

    Example:
        >>> [value.shape for value in primary({"loss": torch.ones(()), "logits": torch.ones(2, 3)})]
        [torch.Size([2, 3])]
        >>> len(primary((torch.ones(2), (torch.ones(1), torch.ones(1)))))
        3
    """
    found = list(_answers(output))
    if not found:
        text = f"the model returns a {type(output).__name__} without a floating-point tensor."
        raise TnmarsError(Problem(text, "Its output must be a tensor, or hold tensors in a tuple, list or mapping."))
    return found


def as_float(given: Any) -> float:
    """What a user's own function returned as its score: a number, or a tensor with one entry.

    Raises:
        TypeError: If it is neither. Text and truth values are not numbers here.

    Example:
        >>> as_float(torch.tensor([0.5])), as_float(2)
        (0.5, 2.0)
    """
    try:
        if isinstance(given, (str, bytes, bool)):
            raise TypeError
        return float(given.detach() if isinstance(given, Tensor) else given)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"a {type(given).__name__} is not a number") from None


def _answers(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point() or output.is_complex():
            yield output
        return
    fields = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    for name in ANSWERS:
        value = fields.get(name)
        if value is not None:
            yield from _answers(value)
            return
    inner = output if isinstance(output, (tuple, list)) else fields.values()
    for value in inner:
        if isinstance(value, (Tensor, Mapping, tuple, list)):
            yield from _answers(value)
