"""Layers of other packages for the cases that they can express, filled with the same cores.

tensorly-torch with its cached opt_einsum expressions, in each of its implementations, and tednet. A package that is not
installed is left out, with a note.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from bench.cases import Case
from torch import Tensor, nn

from tnmars.bench.plain import Contender
from tnmars.graph import Graph, Role

PACKAGES = {"tltorch": "tensorly-torch", "tednet": "tednet"}
Cores = Mapping[str, Tensor]


def absent() -> list[str]:
    """The packages that are not installed."""
    return [name for module, name in PACKAGES.items() if find_spec(module) is None]


def peers(case: Case, cores: Cores, bias: Tensor | None) -> list[Contender]:
    """Every layer of another package that computes a case."""
    found = []
    for module, builders in (("tltorch", _TENSORLY), ("tednet", _TEDNET)):
        build = builders.get((case.graph.kind, case.family))
        if build is not None and find_spec(module) is not None:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # tednet prints on construction
                warnings.simplefilter("ignore")
                found += list(build(case, cores, bias))
    return found


def _fill(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value.detach().reshape(parameter.shape))


def _contender(layer: nn.Module, package: str, how: str, bias: Tensor | None, is_same: bool = True) -> Contender:
    held = getattr(layer, "bias", None)
    if bias is not None and held is not None:
        _fill(held, bias)
    name = f"{package} {how}".strip()
    return Contender(name, package, layer, tuple(layer.parameters()), is_same)


def _ranks(graph: Graph) -> tuple[int, ...]:
    return tuple(bond.size for bond in graph.terms[0].bonds)


def _modes(graph: Graph, role: Role) -> tuple[int, ...]:
    return tuple(mode.size for mode in graph.of_role(role))


# --- tensorly-torch ---------------------------------------------------------------------------------------------------


def _tensorly() -> Any:
    """The package, set up to keep the expressions that it finds."""
    import_module("tensorly").set_backend("pytorch")
    import_module("tensorly.plugins").use_opt_einsum()
    return import_module("tltorch")


def _tl_linear(case: Case, cores: Cores, bias: Tensor | None) -> Iterator[Contender]:
    package = _tensorly()
    graph = case.graph
    for how in ("factorized", "reconstructed"):
        layer = package.FactorizedLinear(
            _modes(graph, Role.IN),
            _modes(graph, Role.OUT),
            factorization="blocktt",
            rank=(1, *_ranks(graph), 1),
            implementation=how,
        )
        for factor, core in zip(layer.weight.factors, cores.values(), strict=True):
            left, out, inside, right = factor.shape
            _fill(factor, core.reshape(left, inside, out, right).transpose(1, 2))
        yield _contender(layer, "tensorly-torch", how, bias)


def _tl_conv(
    case: Case, bias: Tensor | None, kind: str, rank: object, ways: Sequence[str], fill: Callable[[Any], None]
) -> Iterator[Contender]:
    package = _tensorly()
    for how in ways:
        layer = package.FactorizedConv(
            case.graph.in_features,
            case.graph.out_features,
            case.graph.kernel_size,
            padding=1,
            bias=True,
            factorization=kind,
            rank=rank,
            implementation=how,
        )
        fill(layer.weight)
        yield _contender(layer, "tensorly-torch", how, bias)


def _tl_tucker2(case: Case, cores: Cores, bias: Tensor | None) -> Iterator[Contender]:
    def fill(weight: Any) -> None:
        _fill(weight.core, cores["G"].permute(3, 0, 1, 2))
        for factor, value in zip(weight.factors, (cores["U2"], cores["U1"], torch.eye(3), torch.eye(3)), strict=True):
            _fill(factor, value)

    ranks = (*_ranks(case.graph)[::-1], *case.graph.kernel_size)
    return _tl_conv(case, bias, "tucker", ranks, ("factorized", "reconstructed"), fill)


def _tl_cp(case: Case, cores: Cores, bias: Tensor | None) -> Iterator[Contender]:
    def fill(weight: Any) -> None:
        _fill(weight.weights, torch.ones(weight.weights.shape))
        for factor, name in zip(weight.factors, ("A4", "A1", "A2", "A3"), strict=True):
            _fill(factor, cores[name])

    return _tl_conv(case, bias, "cp", _ranks(case.graph)[0], ("factorized", "mobilenet", "reconstructed"), fill)


def _tl_tt(case: Case, cores: Cores, bias: Tensor | None) -> Iterator[Contender]:
    def fill(weight: Any) -> None:
        for factor, core in zip(weight.factors, cores.values(), strict=True):
            _fill(factor, core)

    ranks = (1, *_ranks(case.graph), 1)
    return _tl_conv(case, bias, "tt", ranks, ("factorized", "reconstructed"), fill)


def _tl_embedding(case: Case, cores: Cores, bias: Tensor | None) -> Iterator[Contender]:
    graph = case.graph
    rows = _modes(graph, Role.LOOKUP)
    layer = _tensorly().FactorizedEmbedding(
        torch.Size(rows).numel(),
        graph.out_features,
        auto_tensorize=False,
        tensorized_num_embeddings=rows,
        tensorized_embedding_dim=_modes(graph, Role.OUT),
        factorization="blocktt",
        rank=(1, *_ranks(graph), 1),
    )
    for factor, core in zip(layer.weight.factors, cores.values(), strict=True):
        _fill(factor, core)
    yield _contender(layer, "tensorly-torch", "", None)


# --- tednet -----------------------------------------------------------------------------------------------------------


def _ted(module: str, layer: str, *arguments: object, **options: object) -> Any:
    return getattr(import_module(f"tednet.tnn.{module}"), layer)(*arguments, **options)


def _ted_tt(case: Case, cores: Cores, bias: Tensor | None) -> Iterator[Contender]:
    graph = case.graph
    layer = _ted("tensor_train", "TTLinear", _modes(graph, Role.IN), _modes(graph, Role.OUT), _ranks(graph))
    for at, core in enumerate(cores.values()):
        _fill(getattr(layer, f"node{at}"), core if at == 0 else core.movedim(0, 2))
    yield _contender(layer, "tednet", "", bias)


def _ted_ring(case: Case, cores: Cores, bias: Tensor | None) -> Iterator[Contender]:
    graph = case.graph
    layer = _ted("tensor_ring", "TRLinear", _modes(graph, Role.IN), _modes(graph, Role.OUT), _ranks(graph))
    for at, core in enumerate(cores.values()):
        _fill(getattr(layer, f"node{at}"), core)
    yield _contender(layer, "tednet", "", bias)


def _ted_ring_conv(case: Case, cores: Cores, bias: Tensor | None) -> Iterator[Contender]:
    """The taps are on one core here: the product of ours."""
    rank = _ranks(case.graph)[0]
    layer = _ted("tensor_ring", "TRConv2D", [128], [128], [rank] * 3, 3, padding=1)
    _fill(layer.in_node0, cores["A"])
    _fill(layer.out_node0, cores["D"])
    _fill(layer.kernel.weight, torch.einsum("ahb,bwc->cahw", cores["B"], cores["C"]))
    yield _contender(layer, "tednet", "", bias)


def _ted_tucker2(case: Case, cores: Cores, bias: Tensor | None) -> Iterator[Contender]:
    layer = _ted("tucker2", "TK2Conv2D", 128, 128, _ranks(case.graph), 3, padding=1)
    _fill(layer.node0, cores["U1"])
    _fill(layer.node1, cores["U2"].t())
    _fill(layer.kernel.weight, cores["G"].permute(3, 0, 1, 2))
    yield _contender(layer, "tednet", "", bias)


def _ted_cp(case: Case, cores: Cores, bias: Tensor | None) -> Iterator[Contender]:
    layer = _ted("cp", "CPConv2D", 128, 128, _ranks(case.graph)[0], 3, padding=1)
    for name, core in (("in", "A1"), ("k0", "A2"), ("k1", "A3"), ("out", "A4")):
        for at, column in enumerate(cores[core].unbind(1)):
            _fill(getattr(layer, f"node_{name}_block{at}"), column)
    yield _contender(layer, "tednet", "", bias)


def _ted_btd(case: Case, cores: Cores, bias: Tensor | None) -> Iterator[Contender]:
    """Its factors hold an input and an output mode each: a block-term layer of the same sizes, but another graph."""
    graph = case.graph
    ins, outs = _modes(graph, Role.IN), _modes(graph, Role.OUT)
    layer = _ted("bt_tucker", "BTTLinear", ins, outs, [8] * len(ins), len(graph.terms))
    yield _contender(layer, "tednet", "(paired factors)", bias, is_same=False)


Builder = Callable[[Case, Cores, Tensor | None], Iterator[Contender]]
_TENSORLY: dict[tuple[str, str], Builder] = {
    ("linear", "tt"): _tl_linear,
    ("conv", "tucker2"): _tl_tucker2,
    ("conv", "cp"): _tl_cp,
    ("conv", "tt"): _tl_tt,
    ("embedding", "tt"): _tl_embedding,
}
_TEDNET: dict[tuple[str, str], Builder] = {
    ("linear", "tt"): _ted_tt,
    ("linear", "ring"): _ted_ring,
    ("linear", "btd"): _ted_btd,
    ("conv", "tucker2"): _ted_tucker2,
    ("conv", "cp"): _ted_cp,
    ("conv", "ring"): _ted_ring_conv,
}
