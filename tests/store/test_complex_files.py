"""Files of complex layers, models, checkpoints and optimizers: every bit comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit import LINEAR, every_kind
from safetensors import safe_open
from torch import Tensor, nn

import tnmars
from tnmars.graph import Graph
from tnmars.store import container
from tnmars.store.container import Container
from tnmars.store.prune_file import prune_file

DTYPES = pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=["c64", "c128"])


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two states have the same names, types and bits."""
    if one.keys() != other.keys():
        return False
    pairs = [(value, other[key]) for key, value in one.items()]
    return all(a.dtype is b.dtype and a.shape == b.shape and bits(a) == bits(b) for a, b in pairs)


def bits(value: Tensor) -> bytes:
    return value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@DTYPES
@every_kind
def test_a_layer_comes_back_bit_for_bit(graph: Graph, dtype: torch.dtype, tmp_path: Path) -> None:
    selector = tnmars.Mars() if graph.bonds else None
    layer = tnmars.compile(graph, dtype=dtype, selector=selector, warn=False)
    tnmars.save(layer, tmp_path / "layer.safetensors")
    back = tnmars.load_into(tnmars.compile(graph, warn=False), tmp_path / "layer.safetensors")
    assert back.dtype is dtype
    assert same(back.state_dict(), layer.state_dict())


@DTYPES
def test_a_run_goes_on_from_a_checkpoint(dtype: torch.dtype, tmp_path: Path) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        layer = tnmars.compile(LINEAR, dtype=dtype, selector=tnmars.Mars(), warn=False)
        model = nn.Sequential(layer, nn.Linear(20, 3, dtype=dtype))
        return model, torch.optim.Adam(tnmars.param_groups(model, lr=1e-2))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        x = torch.randn(4, 6, dtype=dtype, generator=torch.Generator().manual_seed(3))
        (model(x).abs().square().mean() + tnmars.penalty(model)).backward()
        optimizer.step()

    model, optimizer = made()
    step(model, optimizer)
    tnmars.save_checkpoint(tmp_path / "run", model, optimizer)
    other, resumed = made()
    tnmars.load_checkpoint(tmp_path / "run", other, resumed)
    assert same(other.state_dict(), model.state_dict())
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        kept = {key: value for key, value in optimizer.state[one].items() if isinstance(value, Tensor)}
        assert same(resumed.state[two], kept)
    step(model, optimizer)
    step(other, resumed)
    assert same(other.state_dict(), model.state_dict())


def test_other_readers_find_pairs_of_real_numbers(tmp_path: Path) -> None:
    layer = tnmars.compile(LINEAR, dtype=torch.complex128, warn=False)
    tnmars.save(layer, tmp_path / "layer.safetensors")
    with safe_open(tmp_path / "layer.safetensors", framework="pt") as held:
        for key, value in layer.state_dict().items():
            assert torch.equal(held.get_tensor(key), torch.view_as_real(value))


def test_tensors_of_all_sizes_lie_where_they_can_be_read(tmp_path: Path) -> None:
    held = {
        "a": torch.randn(3, dtype=torch.float64),
        "b": torch.randn(3, dtype=torch.complex128).conj(),
        "c": torch.randn(5),
        "d": torch.randn(2, 3, dtype=torch.complex64).t(),
        "e": torch.tensor(1.0 - 2.0j),
        "f": torch.zeros(0, dtype=torch.complex64),
        "g": torch.randn(3).to(torch.float16),
    }
    container.write(tmp_path / "file", Container({}, held))
    assert same(dict(container.read(tmp_path / "file").tensors), held)


def test_a_real_file_is_written_as_before(tmp_path: Path) -> None:
    tnmars.save(tnmars.compile(LINEAR, warn=False), tmp_path / "layer.safetensors")
    assert b'"complex' not in (tmp_path / "layer.safetensors").read_bytes().replace(b'\\"', b'"')


def test_pruning_a_file_prunes_complex_cores(tmp_path: Path) -> None:
    layer = tnmars.compile(LINEAR, dtype=torch.complex128, selector=tnmars.Mars(), warn=False)
    with torch.no_grad():
        for logits in layer.logits():
            logits.copy_(torch.tensor([5.0, -5.0]))
    layer.eval()
    tnmars.save(layer, tmp_path / "full.safetensors")
    prune_file(tmp_path / "full.safetensors", tmp_path / "small.safetensors")
    small = tnmars.load_into(tnmars.compile(LINEAR, warn=False), tmp_path / "small.safetensors")
    assert sum(value.numel() for value in small.cores.parameters()) < tnmars.count(LINEAR).cores
    torch.testing.assert_close(small.dense(), layer.dense(), rtol=1e-12, atol=1e-12)
