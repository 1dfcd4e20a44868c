"""`gate_`: gates on layers that have none. Cores stay the same parameters, and what is pruned is what computes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tnmars


def model() -> nn.Sequential:
    first, second = tnmars.Linear(16, 16, family="tt", rank=3), tnmars.Linear(16, 4, family="lowrank", rank=3)
    return nn.Sequential(first, nn.ReLU(), second, nn.Linear(4, 4)).double()


def test_cores_stay_and_outputs_too() -> None:
    net = model().eval()
    kept = dict(net.named_parameters())
    x = torch.randn(5, 16, dtype=torch.float64)
    before = net(x)
    assert tnmars.gate_(net, tnmars.Mars()) is net
    after = dict(net.named_parameters())
    assert all(after[name] is value for name, value in kept.items())
    assert after.keys() - kept.keys() == {"0.gates.r1", "0.gates.r2", "2.gates.r"}
    assert not net[0].training
    torch.testing.assert_close(net(x), before)  # gates begin open


def test_a_shut_gate_is_pruned() -> None:
    net = tnmars.gate_(model(), tnmars.Mars(), "2").eval()
    assert net[0].masks is None
    with torch.no_grad():
        net[2].gates.get("r").copy_(torch.tensor([5.0, -5.0, 5.0]))
    x = torch.randn(5, 16, dtype=torch.float64)
    small = tnmars.prune(net)
    assert small[2].graph.bonds["r"].size == 2
    torch.testing.assert_close(small(x), net(x), rtol=1e-10, atol=1e-10)


def test_layers_that_share_cores_keep_their_ranks() -> None:
    net = model()
    net.append(copy.deepcopy(net[0]))
    for name in net[0].graph.cores:
        net[4].cores.put(name, net[0].cores.get(name))
    tnmars.gate_(net, tnmars.Mars())
    assert net[0].masks is None
    assert net[4].masks is None
    assert net[2].masks is not None


def test_mistakes() -> None:
    with pytest.raises(tnmars.TnmarsError, match="must be a selector with gates"):
        tnmars.gate_(model(), tnmars.Ard())
    with pytest.raises(tnmars.TnmarsError, match="'fc' matches no layer that can have gates"):
        tnmars.gate_(model(), tnmars.Mars(), "fc")
    with pytest.raises(tnmars.TnmarsError, match="matches no layer that can have gates"):
        tnmars.gate_(nn.Sequential(nn.Linear(3, 3)), tnmars.Mars())
