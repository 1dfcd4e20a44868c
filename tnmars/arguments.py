"""The types of arguments: a public function compares what it is given with its own signature, before it does anything.

Only types are compared. What a value must be beyond its type, such as a number above 0, is for the function to say; so
are the numbers in a list or a table.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from inspect import Parameter
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ForwardRef, TypeVar, Union, get_args, get_origin

from tnmars.errors import TnmarsError

LONGEST = 60
"""Values with a longer text are described by their type alone."""
LARGE = 10**LONGEST
"""Integers beyond this are described by their length; Python itself refuses to write those of thousands of digits."""
_UNIONS = (Union, UnionType)
_WORDS = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a string",
    bytes: "bytes",
    Path: "a path",
    NoneType: "None",
    Mapping: "a dictionary",
    Sequence: "a sequence",
    Iterable: "something to iterate over",
    Callable: "a function",
}
_ARRAYS = (("numpy", "ndarray"), ("torch", "Tensor"))
_PLAIN = (NoneType, bool, int, float, complex, str, bytes)


def check_arguments(function: Callable[..., object], given: Mapping[str, Any], but: Sequence[str] = ()) -> None:
    """Raises `TnmarsError` if an argument is not of the type that the signature declares.

    Args:
        function: The function or class. What it takes as `*args` or `**options` is not compared.
        given: Its arguments by name: `locals()` in its first line. Other names are ignored.
        but: Arguments that the function checks itself, in better words.

    Example:
        >>> def cut(size: int, *, names: Mapping[str, str] | None = None) -> None:
        ...     check_arguments(cut, locals())
        >>> cut(3, names={"r": 2})
        Traceback (most recent call last):
        tnmars.errors.TnmarsError: names['r'] is 2, but must be a string.
        >>> cut(None)
        Traceback (most recent call last):
        tnmars.errors.TnmarsError: size is None, but must be an integer.
    """
    for name, quick, hint in _declared(function):
        value = given.get(name)
        if name not in but and not (isinstance(value, quick) and (value.__class__ is not bool or bool in quick)):
            _check(name, value, hint)


def own(value: Any, *, arrays: bool = False) -> Any:
    """A value with the numbers and truth values of NumPy as Python's own, also inside of tuples, lists and tables.

    With `arrays`, NumPy's arrays and tensors become lists.

    >>> import numpy
    >>> own((numpy.int64(2), numpy.float32(0.5), numpy.True_, "r")), own({"r": numpy.int64(3)})
    ((2, 0.5, True, 'r'), {'r': 3})
    """
    kind = type(value)
    if arrays and (kind.__module__, kind.__name__) in _ARRAYS:
        value = value.tolist()
        kind = type(value)
    if kind in (tuple, list):
        return kind(own(entry, arrays=arrays) for entry in value)
    if kind is dict:
        return {key: own(entry, arrays=arrays) for key, entry in value.items()}
    if kind in _PLAIN:
        return value
    if kind.__name__ in ("bool", "bool_") and kind.__module__ == "numpy":
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def check_state(state: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """Raises `TnmarsError` if a state lacks an entry of another, or has one of another type.

    >>> check_state({"steps": 3, "rate": 1}, {"steps": 0, "rate": 0.5})
    >>> check_state({}, {"steps": 0})
    Traceback (most recent call last):
    tnmars.errors.TnmarsError: state has no 'steps', so it is not what state_dict() returned. Nothing was changed.
    """
    for name, value in like.items():
        if name not in state:
            raise TnmarsError(f"state has no '{name}', so it is not what state_dict() returned. Nothing was changed.")
        given = type(own(state[name]))
        if value is not None and given is not type(value) and not (given is int and type(value) is float):
            wanted = _wanted([type(value)])
            raise TnmarsError(f"state['{name}'] is {shown(state[name])}, but must be {wanted}. Nothing was changed.")


def own_fields(made: Any) -> None:
    """Makes the numbers of a new frozen dataclass Python's own; for its `__post_init__`."""
    for field in fields(made):
        object.__setattr__(made, field.name, own(getattr(made, field.name)))


def own_seed(seed: Any) -> Any:
    """A seed as Python's own integer, or None. Raises `TnmarsError` if torch could not take it."""
    seed = own(seed)
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise TnmarsError(f"seed is {shown(seed)}, but must be an integer of at most 64 bits.")
    return seed


@cache
def _declared(function: Callable[..., object]) -> tuple[tuple[str, tuple[type, ...], Any], ...]:
    """The arguments of a function: their names, classes that fit without a further look, and declared types."""
    made = inspect.unwrap(function)
    several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    single = {name for name, one in inspect.signature(made).parameters.items() if one.kind not in several}
    texts = {name: text for name, text in made.__annotations__.items() if name in single}
    space = sys.modules[made.__module__].__dict__
    found = []
    for name, hint in typing.get_type_hints(type("Declared", (), {"__annotations__": texts}), space).items():
        if hint in (Any, object):
            continue
        parts = get_args(hint) if get_origin(hint) in _UNIONS else (hint,)
        found.append((name, tuple(filter(_is_quick, parts)), hint))
    return tuple(found)


def _is_quick(kind: Any) -> bool:
    """Whether `isinstance` says all about a type."""
    return isinstance(kind, type) and not get_args(kind) and not getattr(kind, "_is_protocol", False)


def _check(where: str, value: object, hint: Any) -> None:
    """Raises `TnmarsError` if a value is not of a type, or one of its entries is not."""
    kinds = get_args(hint) if get_origin(hint) in _UNIONS else (hint,)
    near = [kind for kind in kinds if _is_near(value, kind)]
    if not near:
        raise TnmarsError(f"{where} is {shown(value)}, but must be {_wanted(kinds)}.")
    if len(near) == 1:
        _check_entries(where, value, near[0])


def _check_entries(where: str, value: Any, kind: Any) -> None:
    inner = get_args(kind)
    origin = get_origin(kind)
    if not inner or isinstance(value, type):
        return
    if isinstance(value, Mapping) and len(inner) == 2:
        for key, entry in value.items():
            if not _is_near(key, inner[0]):
                raise TnmarsError(f"{where} has the key {shown(key)}, but keys must be {_wanted(inner[:1])}.")
            if inner[1] not in (int, float):
                _check(f"{where}[{key!r}]", entry, inner[1])
    elif isinstance(value, (list, tuple)) and origin is tuple and inner[-1] is not Ellipsis:
        if len(value) != len(inner):
            raise TnmarsError(f"{where} has {len(value)} entries, but must have {len(inner)}.")
        for at, (entry, part) in enumerate(zip(value, inner, strict=True)):
            _check(f"{where}[{at}]", entry, part)
    elif isinstance(value, (list, tuple)) and _is_class(origin, Iterable) and inner[0] not in (int, float):
        for at, entry in enumerate(value):
            _check(f"{where}[{at}]", entry, inner[0])


def _is_near(value: object, kind: Any) -> bool:
    """Whether a value is of a type, as far as can be seen without a look at its entries."""
    kind = get_origin(kind) or kind
    if kind in (Any, object) or isinstance(kind, (ForwardRef, TypeVar, str)):
        return True
    if kind is bool:
        return type(value).__name__ in ("bool", "bool_")  # also numpy's
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, PathLike)
    if kind is Callable:
        return callable(value)
    if kind is Iterable:
        return isinstance(value, Iterable) or hasattr(value, "__getitem__")
    if not isinstance(kind, type):
        return True
    if getattr(kind, "_is_protocol", False):
        return all(hasattr(value, name) for name in _methods(kind))
    if _is_class(kind, Sequence) or kind in (tuple, list):  # arrays and sets are as good
        return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    return isinstance(value, kind)


def _is_class(kind: Any, base: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, base) and kind not in (str, bytes)


def _wanted(kinds: Iterable[Any]) -> str:
    """The names of some types, joined in words."""
    words = list(dict.fromkeys(map(_word, kinds)))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _word(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if origin in _WORDS:
        return _WORDS[origin]
    if origin in (tuple, list):
        return _WORDS[Sequence]
    if getattr(origin, "_is_protocol", False):
        return f"an object with {' and '.join(_methods(origin))}"
    room, _, rest = origin.__module__.partition(".")
    inner = rest.partition(".")[0]
    path = [room, *([inner] if room == "torch" and inner in ("nn", "optim") else []), origin.__name__]
    return f"a {'.'.join(path)}"


def _methods(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


def shown(value: object) -> str:
    """A value in a message: its text where that is short, else its class."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, int) and abs(value) > LARGE:
        return f"an integer of {value.bit_length():,} bits"
    text = repr(value) if isinstance(value, _PLAIN) else ""
    return text if text and len(text) <= LONGEST else f"of type {type(value).__name__}"
