"""Options of torch's tables: `max_norm`, `norm_type`, `scale_grad_by_freq`, bags by `max`, `include_last_offset`."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import oracle
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EXACT, TABLE
from strategies import cases, graphs
from torch import Tensor, nn

import tnmars
from tnmars import Graph, ShapeError, TNModule
from tnmars.ship.export import export_program

MODES = (None, "sum", "mean", "max")


def with_options(graph: Graph, **more: object) -> Graph:
    return replace(graph, options=(*graph.options, *((key, value) for key, value in more.items() if value is not None)))


def shortened(table: Tensor, most: float | None, order: float) -> Tensor:
    """What torch's renormalization makes of a table, by its formula, row by row."""
    if most is None:
        return table
    rows = []
    for row in table.unbind(0):
        norm = row.abs().max() if order == float("inf") else row.abs().pow(order).sum().pow(1 / order)
        rows.append(row * (most / (norm + 1e-7)) if float(norm.detach()) > most else row)
    return torch.stack(rows)


@settings(max_examples=cases(1000), deadline=None)
@given(
    graph=graphs(["embedding"]),
    mode=st.sampled_from(MODES),
    most=st.sampled_from((None, 0.5, 2.0)),
    order=st.sampled_from((2.0, 1.0, 3.5)),
    by_count=st.booleans(),
    shape=st.sampled_from(((3, 4), (1, 1), (40, 9))),
    seed=st.integers(0, 2**20),
)
def test_outputs_and_gradients_are_those_of_torch(
    graph: Graph, mode: str | None, most: float | None, order: float, by_count: bool, shape: tuple[int, int], seed: int
) -> None:
    by_count = by_count and mode != "max"
    more = {
        "mode": mode,
        "max_norm": most,
        "norm_type": order if most else None,
        "scale_grad_by_freq": by_count or None,
    }
    graph = with_options(graph, **more)
    layer = oracle.compiled(graph, 12, dtype=torch.float64)
    task = oracle.problem(graph, 3, seed)
    oracle.load(layer, task)
    index = torch.randint(graph.vocab, shape, generator=torch.Generator().manual_seed(seed))
    skip = dict(graph.options).get("padding_idx")
    table = shortened(oracle.dense(replace(graph, options=()), oracle.whole(graph, task.cores)), most, order)
    if mode is None:
        wanted = F.embedding(index, table, padding_idx=skip, scale_grad_by_freq=by_count)
        wanted = wanted if skip is None else wanted.masked_fill(index.eq(skip).unsqueeze(-1), 0.0)
    elif by_count:  # torch's own kernel for bags divides by the count of another row, so bags are made by hand
        rows = F.embedding(index, table, padding_idx=skip, scale_grad_by_freq=True)
        kept = torch.ones_like(index, dtype=torch.bool) if skip is None else index.ne(skip)
        wanted = rows.masked_fill(~kept.unsqueeze(-1), 0.0).sum(1)
        wanted = wanted / kept.sum(1, keepdim=True).clamp_min(1) if mode == "mean" else wanted
    else:
        wanted = F.embedding_bag(index, table, mode=mode, padding_idx=skip)
    answer = layer(index)
    assert oracle.error(answer, wanted) <= EXACT
    ours = oracle.gradients(answer, list(layer.cores.parameters()))
    theirs = oracle.gradients(wanted, [task.cores[name] for name in layer.graph.cores])
    names = {id(layer.cores.get(name)): at for at, name in enumerate(layer.graph.cores)}
    for value, found in zip(layer.cores.parameters(), ours, strict=True):
        assert oracle.error(found, theirs[names[id(value)]]) <= EXACT


@pytest.mark.parametrize("mode", MODES)
def test_torchs_own_layer_renormalizes_to_the_same_rows(mode: str | None) -> None:
    """Torch does it in place; a second lookup finds rows that are short already."""
    own = nn.Embedding(50, 12, max_norm=1.5) if mode is None else nn.EmbeddingBag(50, 12, max_norm=1.5, mode=mode)
    layer = tnmars.from_dense(own.double(), "lowrank", ranks=12)
    assert (layer.max_norm, layer.norm_type, layer.sparse) == (1.5, 2.0, False)
    index = torch.randint(50, (7, 4))
    found = layer(index)
    assert oracle.error(found, own(index)) <= 1e-6
    assert oracle.error(layer(index), own(index)) <= 1e-6
    back = tnmars.to_dense_(layer)
    assert type(back) is type(own) and str(back) == str(own)
    assert oracle.error(back(index), found) <= 1e-6


LAYERS = [
    nn.Embedding(50, 12, padding_idx=3, scale_grad_by_freq=True),
    nn.Embedding(50, 12, max_norm=2.0, norm_type=1.0),
    nn.EmbeddingBag(50, 12, mode="max", padding_idx=3),
    nn.EmbeddingBag(50, 12, mode="sum", include_last_offset=True, scale_grad_by_freq=True),
    nn.EmbeddingBag(50, 12, mode="max", max_norm=1.0),
]


@pytest.mark.parametrize("own", LAYERS, ids=str)
def test_a_layer_goes_everywhere(own: nn.Module, tmp_path: Path) -> None:
    """Decomposed, frozen, saved, traced, exported, and written as source: the outputs stay."""
    own = copy.deepcopy(own)
    index = torch.randint(50, (7, 4))
    index[0] = 3
    layer = tnmars.from_dense(own, "lowrank", ranks=12).eval()
    given = (index.reshape(-1), torch.tensor([0, 4, 4, 28])) if isinstance(own, nn.EmbeddingBag) else (index,)
    with torch.no_grad():
        for inputs in (given, (index,)):
            wanted = own(*inputs)
            assert oracle.error(layer(*inputs), wanted) <= 1e-5
            assert oracle.error(tnmars.freeze(layer)(*inputs), wanted) <= 1e-5
            traced = torch.compile(layer, fullgraph=True, backend="eager")
            assert oracle.error(traced(*inputs), wanted) <= 1e-5
        program = export_program(layer, (index,))
        assert oracle.error(program.module()(index), own(index)) <= 1e-5
        tnmars.save(layer, tmp_path / "layer.safetensors")
        again = tnmars.load_into(copy.deepcopy(own), tmp_path / "layer.safetensors").eval()
        assert again.graph == layer.graph and torch.equal(again(index), layer(index))
        tnmars.write_source(layer, tmp_path / "table.py")
        scope: dict[str, object] = {"__name__": "table", "__file__": str(tmp_path / "table.py")}
        exec(compile((tmp_path / "table.py").read_text(), "table.py", "exec"), scope)  # noqa: S102
    assert tnmars.loads(tnmars.dump(layer.graph)) == layer.graph


def test_gradients_under_tracing() -> None:
    graph = with_options(TABLE, mode="max", padding_idx=7)
    layer = tnmars.compile(graph, dtype=torch.float64)
    index = torch.randint(50, (6, 5))
    index[0] = 7
    for inputs in ((index,), (index.reshape(-1), torch.tensor([0, 0, 4, 9, 30]))):
        found, wanted = torch.compile(layer, backend="aot_eager")(*inputs), layer(*inputs)
        assert oracle.error(found, wanted) <= EXACT
        cores = list(layer.cores.parameters())
        for ours, theirs in zip(oracle.gradients(found, cores), oracle.gradients(wanted, cores), strict=True):
            assert oracle.error(ours, theirs) <= EXACT


def table(**options: object) -> TNModule:
    return tnmars.Embedding(50, 12, family="tt", rank=2, **options)


def test_mistakes() -> None:
    with pytest.raises(
        tnmars.GraphError, match="sparse is True, but gradients of cores, which all rows share, are dense"
    ):
        table(sparse=True)
    with pytest.raises(tnmars.GraphError, match=r"'max_norm' is -1\.0, but must be a number above 0"):
        table(max_norm=-1.0)
    with pytest.raises(tnmars.GraphError, match=r"'norm_type' is 0\.5, but must be a number of at least 1"):
        table(max_norm=1.0, norm_type=0.5)
    with pytest.raises(tnmars.GraphError, match="'scale_grad_by_freq' does not go with mode 'max'"):
        table(mode="max", scale_grad_by_freq=True)
    with pytest.raises(tnmars.GraphError, match="'include_last_offset' is for bags"):
        table(include_last_offset=True)
    with pytest.raises(tnmars.GraphError, match="'mode' is 'min', but must be one of sum, mean, max"):
        table(mode="min")
    with pytest.raises(ShapeError, match="per_sample_weights are for mode 'sum', but the layer has mode 'max'"):
        table(mode="max")(torch.zeros(2, 3, dtype=torch.int64), None, torch.ones(2, 3))
    with pytest.raises(ShapeError, match="offsets end with 2, but include_last_offset says that they end with 3"):
        table(mode="sum", include_last_offset=True)(torch.zeros(3, dtype=torch.int64), torch.tensor([0, 2]))
    with pytest.raises(tnmars.TnmarsError, match="layer '0' has the option max_norm, with which the sum of two tables"):
        tnmars.adapter_(nn.Sequential(nn.Embedding(9, 4, max_norm=1.0)), rank=2)
    with pytest.raises(tnmars.SpecError, match="'max_norm' is 'long', but must be a number above 0"):
        tnmars.loads(tnmars.dump(with_options(TABLE, max_norm=1.0)).replace("max_norm: 1.0", "max_norm: long"))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("is_trained", [True, False])
def test_the_older_export_to_onnx_does_not_count(is_trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It records a trace, and has no operator that counts tokens. Gradients mean nothing there, as in torch."""
    layer = tnmars.compile(with_options(TABLE, scale_grad_by_freq=True)).eval().requires_grad_(is_trained)
    tokens = torch.tensor([[1, 2], [2, 2]])
    assert "index_add" in str(torch.jit.trace(layer, (tokens,)).graph)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    assert "index_add" not in str(torch.jit.trace(layer, (tokens,)).graph)
