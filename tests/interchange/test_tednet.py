"""Layers of tednet: outputs and numbers there and back."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch
from torch import nn

import tnmars
from tnmars.interchange import from_tednet, to_tednet

tednet = pytest.importorskip("tednet", reason="tednet is not installed")


CASES = {
    "TTLinear": ("tensor_train", ([4, 5, 2], [3, 2, 6], [2, 3])),
    "TRLinear": ("tensor_ring", ([4, 5], [3, 2, 6], [2, 3, 4, 2, 3])),
    "CPLinear": ("cp", ([4, 5], [3, 6], 3)),
    "TK2Linear": ("tucker2", ([4, 5, 6], 7, [3, 2])),
    "BTTLinear": ("bt_tucker", ([4, 5, 2], [3, 2, 6], [2, 3, 4], 2)),
    "TTConv2D": ("tensor_train", ([2, 3], [3, 2], [4, 3], (3, 2), 2, 1)),
    "TRConv2D": ("tensor_ring", ([2, 3], [3, 2], [2, 3, 4, 3, 2], (3, 2), 1, 1)),
    "CPConv2D": ("cp", (4, 5, 3, (3, 2), 2, 0)),
    "TK2Conv2D": ("tucker2", (4, 5, [3, 2], (3, 2), 1, 1)),
    "BTTConv2D": ("bt_tucker", ([2, 3], [3, 2], [2, 3, 2, 2], 2, (3, 2), 1, 0)),
}


def made(name: str) -> nn.Module:
    module, given = CASES[name]
    with redirect_stdout(StringIO()):
        layer = getattr(pytest.importorskip(f"tednet.tnn.{module}"), name)(*given)
    for value in layer.parameters():
        nn.init.normal_(value)
    return layer.double()


def inputs(layer: nn.Module, name: str) -> torch.Tensor:
    features = int(layer.in_size)
    return torch.randn(*((5, features) if "Linear" in name else (5, features, 7, 8)), dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name: str) -> None:
    theirs = made(name)
    ours = from_tednet(theirs)
    x = inputs(theirs, name)
    expected = theirs(x).detach()
    scale = float(expected.abs().max())
    torch.testing.assert_close(ours(x), expected, rtol=0, atol=1e-12 * scale)
    back = to_tednet(ours)
    assert type(back) is type(theirs)
    torch.testing.assert_close(back(x), expected, rtol=0, atol=1e-12 * scale)
    for key, value in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[key], value), key


def test_a_rank_of_one_is_stacked_too() -> None:
    with redirect_stdout(StringIO()):
        theirs = pytest.importorskip("tednet.tnn.cp").CPLinear([4, 5], [3, 6], 1).double()
    x = inputs(theirs, "CPLinear")
    torch.testing.assert_close(from_tednet(theirs)(x), theirs(x))
    torch.testing.assert_close(to_tednet(from_tednet(theirs))(x), theirs(x))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(tnmars.TnmarsError, match="Linear is not known"):
        from_tednet(nn.Linear(3, 4))
    with pytest.raises(tnmars.TnmarsError, match="tednet has nothing for linear"):
        to_tednet(tnmars.Linear(64, 64, family="complete", rank=2))
    with pytest.raises(tnmars.TnmarsError, match="tednet has nothing for conv"):
        to_tednet(tnmars.Conv2d(4, 4, 3, dilation=2, family="cp", rank=2))
