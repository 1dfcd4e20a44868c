"""What `tnmars compress` reads: a model from a function of the user's, its weights, and its calibration inputs.

No pickle is read and no text is evaluated. Whatever is wrong with what the user named is a `TnmarsError`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import Problem, TnmarsError, listing, nearest, plural
from tnmars.models.calibration import answers
from tnmars.models.data import Batch, batches

WRAPPERS = ("module.", "_orig_mod.", "model.")
"""What wrappers of torch and common training code put in front of the names of a model's tensors."""
SHOWN = 4
"""How many wrong names of tensors a message lists."""


# --- the model -------------------------------------------------------------------------------------------------------


def built(text: str, arguments: Mapping[str, Any], folder: Path) -> nn.Module:
    """The model that a function returns, given as `module:function`; modules in `folder` come first.

    Raises `TnmarsError` if there is no such function, or if it does not return a model.
    """
    module_name, colon, name = text.partition(":")
    if not colon or not module_name or not name:
        hint = "For example net:build, for the function build in net.py of the current folder."
        raise TnmarsError(Problem(f"MODEL is '{text}', but must have the form MODULE:FUNCTION.", hint))
    if module_name.endswith(".py") or "/" in module_name:
        better = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise TnmarsError(Problem(f"'{module_name}' is a path, but must be a module.", f"Write {better}:{name}."))
    module = _imported(module_name, folder)
    known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    function = getattr(module, name, None)
    if function is None:
        hint = f"It has: {listing(known)}.{nearest(name, known)}"
        raise TnmarsError(Problem(f"module '{module_name}' has no function '{name}'.", hint))
    if isinstance(function, nn.Module) or not callable(function):
        kind = "a model" if isinstance(function, nn.Module) else f"a {type(function).__name__}"
        raise TnmarsError(f"'{name}' of module '{module_name}' is {kind}, but must be a function that returns a model.")
    with _blaming(f"the function '{text}' failed"):
        model = function(**arguments)
    if not isinstance(model, nn.Module):
        raise TnmarsError(f"'{text}' returns a {type(model).__name__}, but must return an nn.Module.")
    return model


def _imported(name: str, folder: Path) -> Any:
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        with _blaming(f"module '{name}' cannot be imported"):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            hint = "Run the command in the folder that has it, or install it."
            text = f"there is no module '{error.name}' in {folder}, and none is installed."
            raise TnmarsError(Problem(text, hint)) from None
        text = f"module '{name}' cannot be imported: it needs '{error.name}', which is not installed."
        raise TnmarsError(text) from None
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Turns whatever the user's code raises into a `TnmarsError` with its place. Missing modules are raised as is."""
    try:
        yield
    except (ModuleNotFoundError, TnmarsError, KeyboardInterrupt):
        raise
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}: " if "importlib" not in last.filename else ""
        raise TnmarsError(Problem(f"{what}.", f"{where}{type(error).__name__}: {error}")) from None


def argument(text: str) -> tuple[str, Any]:
    """A name and a value from `name=value`: a number, `true`, `false`, `null`, a list or a table of JSON, or a text.

    >>> argument("depth=20"), argument("kind=wide"), argument("sizes=[1, 2]")
    (('depth', 20), ('kind', 'wide'), ('sizes', [1, 2]))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise TnmarsError(f"'{text}' must be NAME=VALUE, for example depth=20.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


# --- its weights -----------------------------------------------------------------------------------------------------


def load_weights_(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copies tensors into a model, all of whose tensors must be there, with the same shapes. Raises `TnmarsError`.

    Of tensors that the model ties, one is enough, because safetensors files hold such tensors once.
    """
    own = model.state_dict()
    tied = {(value.data_ptr(), value.shape) for key, value in own.items() if key in tensors}
    missing = [key for key, value in own.items() if key not in tensors and (value.data_ptr(), value.shape) not in tied]
    strange = [key for key in tensors if key not in own]
    problems = []
    if missing:
        problems.append(Problem(f"{source}: lacks {plural(len(missing), 'tensor')} of the model: {_few(missing)}."))
    if strange:
        hint = _prefix_hint(strange, own)
        text = f"{source}: has {plural(len(strange), 'tensor')} that the model does not have: {_few(strange)}."
        problems.append(Problem(text, hint))
    for key, value in tensors.items():
        if key in own and own[key].shape != value.shape:
            shapes = f"{tuple(value.shape)}, but {tuple(own[key].shape)} in the model"
            problems.append(Problem(f"{source}: '{key}' has shape {shapes}."))
        elif value.is_floating_point() and not bool(value.isfinite().all()):
            problems.append(Problem(f"{source}: '{key}' has entries that are not finite."))
    if problems:
        raise TnmarsError(problems)
    model.load_state_dict(dict(tensors), strict=False)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _prefix_hint(strange: list[str], own: Mapping[str, Tensor]) -> str:
    for prefix in WRAPPERS:
        if all(key.startswith(prefix) and key.removeprefix(prefix) in own for key in strange):
            return f"All of them begin with '{prefix}': save the model without its wrapper, or remove the prefix."
    return ""


# --- its inputs ------------------------------------------------------------------------------------------------------


def batched(model: nn.Module, tensors: Mapping[str, Tensor], rows: int, source: str) -> list[Any]:
    """Batches of model inputs: slices of one tensor, or tables of keyword arguments where there are several.

    Floating-point numbers get the model's dtype. Raises `TnmarsError` if the inputs do not fit the model.
    """
    dtype = next((value.dtype for value in model.parameters() if value.is_floating_point()), torch.float32)
    given = {key: value.to(dtype) if value.is_floating_point() else value for key, value in tensors.items()}
    lengths = {key: len(value) if value.dim() else 0 for key, value in given.items()}
    if min(lengths.values()) < 1:
        key = min(lengths, key=lambda name: lengths[name])
        raise TnmarsError(f"{source}:{f' {key!r}' if key else ''} has no samples: its shape is {_shape(given[key])}.")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {length:,}" for key, length in lengths.items())
        text = f"{source}: the tensors differ in their first axis, which must be the samples: {listed}."
        raise TnmarsError(text)
    if len(given) > 1:
        _check_names(model, list(given), source)
    count = next(iter(lengths.values()))
    parts = [{key: value[at : at + rows] for key, value in given.items()} for at in range(0, count, rows)]
    found: list[Any] = parts if len(given) > 1 else [next(iter(part.values())) for part in parts]
    for batch in batches(found, model=model):  # refuses NaN
        _try(model, batch, given, source)
        break
    return found


def _check_names(model: nn.Module, names: list[str], source: str) -> None:
    parameters = inspect.signature(model.forward).parameters.values()
    if any(entry.kind is entry.VAR_KEYWORD for entry in parameters):
        return
    known = [entry.name for entry in parameters]
    for name in names:
        if name not in known:
            hint = f"It takes: {listing(known)}.{nearest(name, known)}"
            raise TnmarsError(Problem(f"{source}: '{name}' is not an argument of the model.", hint))


def _try(model: nn.Module, batch: Batch, given: Mapping[str, Tensor], source: str) -> None:
    """Runs the model once, so that inputs of the wrong shape are reported as such."""
    try:
        answers(model, [batch])
    except TnmarsError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{key} {_shape(value)}".strip() for key, value in given.items())
        text = f"{source}: the model cannot be called with a batch of these inputs, of shape {shapes}."
        raise TnmarsError(Problem(text, f"{type(error).__name__}: {error}")) from None


def _shape(value: Tensor) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    return f"({', '.join(map(str, value.shape))}) {kind}"
