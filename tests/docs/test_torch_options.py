"""docs/torch_options.md: what it says is not supported raises an error that names it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from kit import ROOT
from torch import nn
from torch.nn.utils import parametrizations

import tnmars
from tnmars.graph.kinds import KINDS

PAGE = (ROOT / "docs" / "torch_options.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What is not supported")[2].partition("## What differs")[0]
ROWS = [
    (layer, option)
    for layers, option in re.findall(r"^\| (`.*?`|any) \| `([\w ]+)` \| ", TABLE, re.MULTILINE)
    for layer in re.findall(r"\w+", layers)
]


def convolution(name: str, ndim: int, **options: object) -> Callable[[], object]:
    def call() -> object:
        size = options.get("output_size")
        given = {key: value for key, value in options.items() if key != "output_size"}
        layer = getattr(tnmars, name)(4, 4, 3, **given, family="cp", rank=2)
        return layer(torch.randn(1, 4, *[5] * ndim), output_size=[size] * ndim) if size else layer

    return call


def table(**options: object) -> Callable[[], object]:
    return lambda: tnmars.Embedding(9, 4, family="cp", rank=2, **options)


def adapted(layer: nn.Module) -> Callable[[], object]:
    return lambda: tnmars.adapter_(nn.Sequential(layer), rank=2)


def dense(layer: nn.Module) -> Callable[[], object]:
    return lambda: tnmars.from_dense(layer, "lowrank", ranks=2)


CASES: dict[tuple[str, str], list[Callable[[], object]]] = {
    ("Embedding", "sparse"): [table(sparse=True), dense(nn.Embedding(9, 4, sparse=True))],
    ("EmbeddingBag", "sparse"): [table(sparse=True, mode="sum"), dense(nn.EmbeddingBag(9, 4, sparse=True))],
    ("Embedding", "norm_type"): [table(max_norm=1.0, norm_type=0.5)],
    ("EmbeddingBag", "norm_type"): [table(max_norm=1.0, norm_type=0.5, mode="sum")],
    ("Embedding", "max_norm"): [adapted(nn.Embedding(9, 4, max_norm=1.0))],
    ("EmbeddingBag", "max_norm"): [adapted(nn.EmbeddingBag(9, 4, max_norm=1.0))],
    ("EmbeddingBag", "mode"): [
        adapted(nn.EmbeddingBag(9, 4, mode="max")),
        table(mode="max", dtype=torch.complex64),
        dense(nn.EmbeddingBag(9, 4, mode="max", dtype=torch.complex64)),
    ],
    ("EmbeddingBag", "scale_grad_by_freq"): [table(mode="max", scale_grad_by_freq=True)],
    ("Bilinear", "Bilinear"): [dense(nn.Bilinear(3, 3, 3))],
    ("any", "parametrized"): [
        dense(parametrizations.weight_norm(nn.Linear(4, 4))),
        dense(parametrizations.spectral_norm(nn.Conv2d(4, 4, 3))),
    ],
    ("any", "not initialized"): [dense(nn.LazyLinear(4)), dense(nn.LazyConvTranspose2d(4, 3))],
}
for _ndim in (1, 2, 3):
    _up = f"ConvTranspose{_ndim}d"
    CASES[_up, "output_size"] = [convolution(_up, _ndim, output_size=6)]
    CASES[_up, "padding_mode"] = [convolution(_up, _ndim, padding_mode="reflect")]
    CASES[f"Conv{_ndim}d", "padding"] = [convolution(f"Conv{_ndim}d", _ndim, padding="same", stride=2)]


def test_the_table_and_the_cases_are_the_same() -> None:
    assert len(ROWS) > 15
    assert sorted(ROWS) == sorted(CASES)


@pytest.mark.parametrize(("layer", "option"), CASES)
def test_using_one_raises_an_error_that_names_it(layer: str, option: str) -> None:
    for call in CASES[layer, option]:
        with pytest.raises(tnmars.TnmarsError) as raised:
            call()
        assert option in str(raised.value)


def test_every_option_of_a_kind_is_on_the_page() -> None:
    for kind in KINDS.values():
        for option in kind.options if kind.layout else ():
            assert f"`{option.name}`" in PAGE, option.name
