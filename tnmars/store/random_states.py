"""The random states of Python, numpy and torch's CPU generator: as data, and back once they are known to be right."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from tnmars.errors import CheckpointError
from tnmars.spec.nodes import shorten
from tnmars.store.plain import decode, encode

GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
"""Numpy's bit generators by name. The first one is numpy's default for its global state."""


def to_json() -> dict[str, Any]:
    """The states of Python and numpy; torch's is a tensor, `torch.get_rng_state()`."""
    return {
        "python": encode(random.getstate(), "random"),
        "numpy": encode(_listed(numpy.random.get_state(legacy=False)), "numpy.random"),
    }


def _listed(value: Any) -> Any:
    """A state of numpy with its arrays as lists."""
    if isinstance(value, Mapping):
        return {key: _listed(entry) for key, entry in value.items()}
    return value.tolist() if isinstance(value, numpy.ndarray) else value


@dataclass(frozen=True)
class RandomStates:
    """States that the generators are known to take."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: Tensor

    def set_(self) -> None:
        """Makes these the states of the process."""
        random.setstate(self.python)
        kind = self.numpy["bit_generator"]
        if numpy.random.get_state(legacy=False)["bit_generator"] != kind:
            numpy.random.set_bit_generator(getattr(numpy.random, kind)())  # type: ignore[attr-defined]
        numpy.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)


def from_json(states: object, generator: Tensor | None) -> RandomStates:
    """The states in a file, each tried on a generator of its own. Raises `CheckpointError`; changes nothing."""
    try:
        assert isinstance(states, dict) and generator is not None, "a state is missing"
        python = decode(states["python"])
        random.Random().setstate(python)
        state = _arrays(decode(states["numpy"]))
        assert state["bit_generator"] in GENERATORS, "numpy has no such bit generator"
        numpy.random.RandomState(getattr(numpy.random, state["bit_generator"])()).set_state(state)
        own = generator.clone()  # torch casts it: a view at an odd address would crash the process
        torch.Generator().set_state(own)
        return RandomStates(python, state, own)
    except (AssertionError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        reason = f"{type(error).__name__} {shorten(str(error))}"
        text = f"the random states of the file are not ones that tnmars writes: {reason}."
        raise CheckpointError(text) from None


def _arrays(state: dict[str, Any]) -> dict[str, Any]:
    """A state as numpy gives it: lists are arrays, of 32 bits for the Mersenne twister and of 64 for all others."""
    bits = numpy.uint32 if state["bit_generator"] == GENERATORS[0] else numpy.uint64
    inner = {key: _array(value, bits) for key, value in state["state"].items()}
    return {**{key: _array(value, bits) for key, value in state.items()}, "state": inner}


def _array(value: Any, bits: type) -> Any:
    return numpy.array(value, dtype=bits) if isinstance(value, list) else value
