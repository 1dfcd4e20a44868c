"""Torch's recurrent layers with weights from graphs: of a family with its rank, or of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from tnmars import families
from tnmars.arguments import check_arguments, own
from tnmars.errors import TnmarsError
from tnmars.graph import Graph
from tnmars.graph.factor import factor
from tnmars.layer.init import check_place
from tnmars.models.parametrize import parametrize_
from tnmars.weight import completed

Rule = Graph | str | Path | Callable[[int, int, int], Graph]
"""A graph, the path of a spec file, or a function that makes the graph from inputs, gates and the size of a gate."""
Recurrent = TypeVar("Recurrent", nn.LSTM, nn.GRU)
_COMPILED = ("selector", "open_only", "init")
"""The keywords that `parametrize_` takes; all others go to the family."""
_WEIGHTS = {"input": "weight_ih", "recurrent": "weight_hh"}


def LSTM(  # noqa: N802
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0.0,
    bidirectional: bool = False,
    proj_size: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    *,
    input: Rule | bool = True,
    recurrent: Rule | bool = True,
    family: str | None = None,
    rank: int | None = None,
    **options: Any,
) -> nn.LSTM:
    """A `torch.nn.LSTM` whose input and recurrent weights are rebuilt from the cores of graphs, with random cores.

    It is called, saved, pruned and shrunk like any model with compiled layers. Torch's own kernel computes with the
    dense weights, which are rebuilt once per call: so it is smaller than torch's layer, not faster. The projections of
    `proj_size` stay dense.

    The four gates are the first output mode of a weight: its rows are `(gates, hidden)` in torch's order. The graph of
    a family has the modes `(4, hidden)`, with `hidden` split as in `tnmars.Linear`. Where a family needs as many inputs
    as outputs, the inputs get a mode of size 1 beside the gates.

    Args:
        input_size: As in torch.
        hidden_size: As in torch.
        num_layers: As in torch.
        bias: As in torch.
        batch_first: As in torch.
        dropout: As in torch.
        bidirectional: As in torch.
        proj_size: As in torch.
        device: As in torch.
        dtype: As in torch.
        input: The input weights of all layers and directions: True for the family; False for dense ones; or a graph of
            kind `linear`, the path of a spec file, or a function of inputs, gates and hidden size that returns a graph.
        recurrent: The recurrent weights, likewise.
        family: The name of a family (`tnmars.families`), by default one that trains well.
        rank: The size of every bond; or give `ranks`.
        **options: `ways`, the number of modes that inputs and outputs are split into, the gates included; what the
            family takes (`ranks`, `terms`, ...); and `selector`, `open_only` and `init` as in `tnmars.compile`. By
            default weights have the variance of torch's.

    Raises:
        GraphError: The family does not fit the sizes, or has no rank.
        ShapeError: A graph does not have the shape of a weight.
        TnmarsError: Neither weight has a graph, or an argument is of no use.

    Example:
        >>> import torch, tnmars
        >>> lstm = tnmars.LSTM(28, 128, batch_first=True, family="tt", rank=4)
        >>> output, (hidden, cell) = lstm(torch.randn(2, 5, 28))
        >>> output.shape, sum(value.numel() for value in lstm.parameters())
        (torch.Size([2, 5, 128]), 4064)
    """
    check_arguments(LSTM, locals())
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, input, recurrent = own(
        (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, input, recurrent)
    )
    _check(input_size, hidden_size, num_layers, dropout, proj_size)
    _check_place(device, dtype, "LSTM")
    sizes = input_size, hidden_size, num_layers
    kept: dict[str, Any] = {"proj_size": proj_size, "device": device, "dtype": dtype}
    layer = nn.LSTM(*sizes, bias, batch_first, dropout, bidirectional, **kept)
    return _rebuilt_(layer, 4, {"input": input, "recurrent": recurrent}, family, rank, options)


def GRU(  # noqa: N802
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0.0,
    bidirectional: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    *,
    input: Rule | bool = True,
    recurrent: Rule | bool = True,
    family: str | None = None,
    rank: int | None = None,
    **options: Any,
) -> nn.GRU:
    """A `torch.nn.GRU` whose input and recurrent weights are rebuilt from the cores of graphs, with random cores.

    As `tnmars.LSTM`, with three gates.

    Args:
        input_size: As in torch.
        hidden_size: As in torch.
        num_layers: As in torch.
        bias: As in torch.
        batch_first: As in torch.
        dropout: As in torch.
        bidirectional: As in torch.
        device: As in torch.
        dtype: As in torch.
        input: The input weights, as in `tnmars.LSTM`.
        recurrent: The recurrent weights, as in `tnmars.LSTM`.
        family: The name of a family (`tnmars.families`), by default one that trains well.
        rank: The size of every bond; or give `ranks`.
        **options: As in `tnmars.LSTM`.

    Raises:
        GraphError: The family does not fit the sizes, or has no rank.
        ShapeError: A graph does not have the shape of a weight.
        TnmarsError: Neither weight has a graph, or an argument is of no use.

    Example:
        >>> import tnmars
        >>> own = tnmars.families.tt("linear", inputs=(4, 7), outputs=(3 * 8, 8), rank=5)
        >>> gru = tnmars.GRU(28, 64, input=own, recurrent=False)
        >>> gru.weight_ih_l0.shape
        torch.Size([192, 28])
    """
    check_arguments(GRU, locals())
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, input, recurrent = own(
        (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, input, recurrent)
    )
    _check(input_size, hidden_size, num_layers, dropout)
    _check_place(device, dtype, "GRU")
    sizes = input_size, hidden_size, num_layers
    layer = nn.GRU(*sizes, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype)
    return _rebuilt_(layer, 3, {"input": input, "recurrent": recurrent}, family, rank, options)


def _check_place(device: torch.device | str | None, dtype: torch.dtype | None, name: str) -> None:
    """Raises `TnmarsError` for a device or a type that torch's own layer cannot have."""
    check_place(device, dtype)
    if dtype is not None and dtype.is_complex:
        raise TnmarsError(
            f"dtype is {dtype}, but torch's {name} has no complex form; it must be a floating-point type."
        )


def _check(input_size: int, hidden_size: int, num_layers: int, dropout: float, proj_size: int = 0) -> None:
    """Raises `TnmarsError` for a number that torch would refuse in other words."""
    sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
    for name, size in sizes.items():
        if size < 1:
            raise TnmarsError(f"{name} is {size}, but must be at least 1.")
    if not 0 <= dropout <= 1:
        raise TnmarsError(f"dropout is {dropout}, but must be a probability from 0 to 1.")
    if not 0 <= proj_size < hidden_size:
        raise TnmarsError(f"proj_size is {proj_size}, but must be at least 0 and below hidden_size, {hidden_size}.")


def _rebuilt_(
    layer: Recurrent,
    gates: int,
    rules: dict[str, Rule | bool],
    family: str | None,
    rank: int | None,
    options: dict[str, Any],
) -> Recurrent:
    """The layer, with its weights rebuilt from graphs."""
    given: dict[str, Any] = {key: value for key, value in options.items() if key not in _COMPILED}
    compiled = {key: value for key, value in options.items() if key in _COMPILED}
    if rank is not None:
        given["rank"] = rank
    unused = [*given, *(["family"] if family is not None else [])]
    if all(rule is False for rule in rules.values()):
        fix = f"Leave one of them out, or use torch.nn.{type(layer).__name__}."
        raise TnmarsError(f"input and recurrent are both False, so no weight has a graph.\n  {fix}")
    if unused and True not in rules.values():
        text = f"{unused[0]} is for the graphs of a family, but input and recurrent are graphs of your own or dense."
        raise TnmarsError(f"{text}\n  Leave it out.")
    name = families.FROM_SCRATCH["linear"] if family is None else family
    compiled.setdefault("init", 1.0 / (3.0 * layer.hidden_size))

    def graph_of(rule: Rule | bool, inside: int) -> Graph | str | Path:
        if isinstance(rule, bool):
            return _family(name, inside, gates, layer.hidden_size, **given)
        return rule(inside, gates, layer.hidden_size) if callable(rule) else rule

    graphs = {parameter: graph_of(rule, inside) for parameter, inside, rule in _weights(layer, rules)}
    for parameter, graph in graphs.items():
        parametrize_(layer, parameter, graph, **compiled)
    return layer


def _weights(layer: nn.LSTM | nn.GRU, rules: dict[str, Rule | bool]) -> Iterator[tuple[str, int, Rule | bool]]:
    """The name, the inputs and the rule of each weight that gets a graph."""
    for number in range(layer.num_layers):
        for direction in ("", "_reverse") if layer.bidirectional else ("",):
            for part, rule in rules.items():
                if rule is not False:
                    name = f"{_WEIGHTS[part]}_l{number}{direction}"
                    yield name, getattr(layer, name).shape[1], rule


def _family(name: str, inside: int, gates: int, hidden: int, *, ways: int | None = None, **given: Any) -> Graph:
    """The graph of a family for one weight, with the gates as a mode of their own.

    >>> print(_family("tt", 28, 4, 128, rank=2))
    linear (unnamed): 28 -> 512
      in     i1=1 i2=4 i3=7
      out    o1=4 o2=8 o3=16
      bonds  r1=2 r2=2
      cores  G1[i1, o1, r1] G2[r1, i2, o2, r2] G3[r2, i3, o3]
    """
    family = families.known(name)
    if ways is not None and ways < 1:
        raise TnmarsError(f"ways is {ways}, but must be at least 1: the number of modes, the gates included.")
    count = families.SPLIT.get(name, 1) if ways is None else ways
    given = completed(families.GIVEN.get(name, {}), given) if ways is None else given
    if count == 1:
        return family("linear", inputs=(inside,), outputs=(gates, hidden), **given)
    inputs, outputs = (1, *factor(inside, count - 1)), (gates, *factor(hidden, count - 1))
    return family("linear", inputs=inputs, outputs=outputs, **given)
