"""CIFAR-10 is read from its records, and the network for it has six layers, dense or not."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

from tnmars.errors import TnmarsError
from tnmars.experiments import cifar
from tnmars.layer.module import layers

NAMES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def test_records_are_read(tmp_path: Path) -> None:
    with pytest.raises(TnmarsError, match="does not exist"):
        cifar.cifar(tmp_path)
    (tmp_path / "cifar10").mkdir()
    records = np.random.default_rng(0).integers(0, 256, (6, 2, 3073), np.uint8)
    records[:, :, 0] %= 10
    for name, own in zip(NAMES, records, strict=True):
        (tmp_path / "cifar10" / f"{name}.bin.xz").write_bytes(lzma.compress(own.tobytes()))
    data = cifar.cifar(tmp_path)
    assert data.train_y.tolist() == records[:5, :, 0].flatten().tolist()
    assert data.train_x.shape == (10, 3, 32, 32)
    assert data.test_x[1, 2, 0, 3] == records[5, 1, 1 + 2 * 1024 + 3]
    (tmp_path / "cifar10" / "test_batch.bin.xz").write_bytes(lzma.compress(b"123"))
    with pytest.raises(TnmarsError, match="3 bytes"):
        cifar.cifar(tmp_path)


def test_images_are_mirrored_at_random() -> None:
    images = torch.randint(256, (64, 3, 32, 32)).byte()
    ((found, labels),) = cifar.Flipped(images, torch.arange(64), 64)
    plain = cifar.normalized(images)[labels]
    same = (found == plain).flatten(1).all(1)
    mirrored = (found == plain.flip(3)).flatten(1).all(1)
    assert bool((same | mirrored).all())
    assert 10 < int(same.sum()) < 54


def test_the_network_is_dense_or_has_ranks() -> None:
    x = torch.randn(2, 3, 32, 32)
    dense, small = cifar.network(), cifar.network(0.25)
    assert dense(x).shape == small(x).shape == (2, 10)
    assert not list(layers(dense))
    ranks = [[bond.size for bond in layer.graph.bonds.values()] for _, layer in layers(small)]
    assert ranks == [[8, 16], [16, 16], [16, 32], [32, 32], [2]]
