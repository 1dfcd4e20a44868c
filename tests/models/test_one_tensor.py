"""`tie_`: layers whose weights are slices of one tensor."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path

import oracle
import pytest
import torch
from kit import EXACT
from torch import nn

import tnmars
from tnmars.experiments.resnet import ResNet
from tnmars.models.one_tensor import slice_at

CONVS = ("conv1", "layer*.conv?")
TUCKER = tnmars.families.tucker(
    "tensor", free={"layer": 19, "out": 64, "in": 64, "h": 3, "w": 3}, ranks=[8, 12, 12, 3, 3]
)


def tied(selector: tnmars.Selector | None = None) -> tuple[ResNet, tnmars.TNModule]:
    model = ResNet(3)
    return model, tnmars.tie_(model, CONVS, TUCKER, selector=selector)


def convs(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


def test_the_convolutions_of_a_resnet_are_slices_of_one_tensor() -> None:
    model = ResNet(3)
    shapes = [conv.weight.shape for conv in convs(model)]
    other = sum(value.numel() for name, value in model.named_parameters() if "conv" not in name)
    square = sum(conv.weight.detach().square().sum().item() for conv in convs(model))
    variance = square / sum(conv.weight.numel() for conv in convs(model))
    tensor = tnmars.tie_(model, CONVS, TUCKER)
    assert [conv.weight.shape for conv in convs(model)] == shapes
    assert sum(value.numel() for value in model.parameters()) == tnmars.count(TUCKER).cores + other
    assert len(tnmars.summary(model).layers) == 1
    assert tnmars.summary(model).layers[0].parameters == tnmars.count(TUCKER).cores
    core, *factors = (tensor.cores.get(name).double() for name in TUCKER.cores)
    whole = torch.einsum("abcde,za,ob,ic,hd,we->zoihw", core, *factors)
    for at, conv in enumerate(convs(model)):
        outside, inside, *_ = conv.weight.shape
        assert oracle.error(conv.weight, whole[at, :outside, :inside]) <= 1e-5
    square = sum(conv.weight.detach().square().sum().item() for conv in convs(model))
    assert square / sum(conv.weight.numel() for conv in convs(model)) == pytest.approx(variance, rel=1e-3)


def test_it_is_trained_and_pruned_consistently(tmp_path: Path) -> None:
    model, tensor = tied(tnmars.Mars())
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=1e-2, mask_lr=0.2))
    schedule = tnmars.MaskSchedule(model, total_steps=5)
    x, target = torch.randn(4, 3, 16, 16), torch.arange(4)
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(x), target)
        (loss + 1e-3 * tnmars.penalty(model)).backward()
        assert all(core.grad is not None and bool(core.grad.any()) for core in tensor.cores.parameters())
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    with torch.no_grad():
        for logits in tensor.logits():
            logits.copy_(torch.linspace(-2.0, 3.0, len(logits)))
    model.eval()
    wanted = model(x).detach()
    small = tnmars.prune(model)
    assert oracle.error(small(x), wanted) <= 1e-5
    assert tnmars.summary(small).layers[0].parameters < 0.5 * tnmars.count(TUCKER).cores
    tnmars.prune_(model, optimizer=optimizer)
    assert oracle.error(model(x), wanted) <= 1e-5
    held = {id(value) for group in optimizer.param_groups for value in group["params"]}
    assert held == {id(value) for value in model.parameters()}
    tnmars.save(small, tmp_path / "small.safetensors")
    back = tied(tnmars.Mars())[0].eval()
    assert oracle.error(tnmars.load_into(back, tmp_path / "small.safetensors")(x), wanted) <= 1e-5
    for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(small)), tnmars.freeze(small)):  # noqa: S301
        assert oracle.error(other(x), wanted) <= 1e-5
        assert sum(value.numel() for value in other.parameters()) == sum(value.numel() for value in small.parameters())
    with pytest.raises(tnmars.TnmarsError, match="slices of one tensor cannot be written as source"):
        tnmars.write_source(small, tmp_path / "small.py")
    plain = tnmars.to_dense_(small)
    assert all(type(conv) is nn.Conv2d and isinstance(conv.weight, nn.Parameter) for conv in convs(plain))
    assert oracle.error(plain(x), wanted) <= 1e-5


@pytest.mark.parametrize("family", ["tt", "cp", "tucker", "tr"])
def test_a_slice_and_its_gradients_are_those_of_the_tensor(family: str) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 6), nn.Linear(6, 3)).double()
    tensor = tnmars.tie_(model, ["0", "1", "2"], family, rank=2, selector=tnmars.Mars())
    assert tensor.graph.dense_shape == (3, 6, 6)
    cores = list(tensor.cores.parameters())
    for at in range(3):
        one, two = slice_at(tensor, at), tensor.dense()[at]
        assert oracle.error(one, two) <= EXACT
        for found, right in zip(*(torch.autograd.grad(v.sin().sum(), cores) for v in (one, two)), strict=True):
            assert oracle.error(found, right) <= EXACT
    with tnmars.cached(model.eval()), torch.no_grad():
        assert oracle.error(model[1].weight, tensor.dense()[1, :6, :4]) <= EXACT


TIED = {
    "the core of the layers": "cores: {A: [l, r], B: [o, r], C: [i, r]}\ntied: {B: A}",
    "a core that is tied to another": "cores: {B: [o, r], A: [l, r], C: [i, r]}\ntied: {A: B}",
    "two bonds in one": "cores: {A: [r, l, s], B: [s, o, r], C: [r, i, s]}\ntied: {B: A}",
    "other cores": "cores: {A: [l, r], B: [r, i, s], C: [s, o, t], D: [t]}\ntied: {C: B}",
}


@pytest.mark.parametrize("cores", TIED.values(), ids=TIED)
def test_cores_in_several_places(cores: str) -> None:
    bonds = ", ".join(f"{bond}: 4" for bond in "rst" if bond in cores.replace("cores", "").replace("tied", ""))
    sizes = "{l: 3, o: 3, i: 3}"
    graph = tnmars.loads(f"tnmars: 1\nkind: tensor\nmodes: {{free: {sizes}}}\nbonds: {{{bonds}}}\n{cores}")
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3))).double()
    tensor = tnmars.tie_(model, "*", graph, selector=tnmars.Mars())
    with torch.no_grad():
        for logits in tensor.logits():
            logits.copy_(torch.linspace(3.0, -2.0, len(logits)))
    values = [*tensor.cores.parameters(), *tensor.logits()]
    for at, layer in enumerate(model):
        one, two = layer.weight, tensor.dense()[at]
        assert oracle.error(one, two) <= EXACT
        for found, right in zip(*(torch.autograd.grad(v.sin().sum(), values) for v in (one, two)), strict=True):
            assert oracle.error(found, right) <= EXACT
    whole = tensor.eval().dense()
    small = tnmars.prune(model.eval())
    assert sum(map(torch.numel, small.parameters())) < sum(map(torch.numel, model.parameters()))
    assert oracle.error(torch.stack([layer.weight for layer in small]), whole) <= EXACT


def test_cores_to_begin_with() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    stack = torch.stack([layer.weight.detach() for layer in model])
    found = tnmars.decompose(stack, tnmars.families.tucker("tensor", free=(2, 4, 4), ranks=[2, 4, 4]))
    tnmars.tie_(model, "*", found.graph, cores=found.cores)
    torch.testing.assert_close(torch.stack([layer.weight for layer in model]), stack)


def test_mistakes() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 3), nn.Linear(4, 8))

    small = tnmars.families.cp("tensor", free=(2, 4, 4), rank=2)
    cases = [
        (["0", "7"], "cp", {"rank": 2}, "'7' matches no layer with a weight"),
        (["0", "1"], "cp", {"rank": 2}, "the weight of layer '1' has 3 axes"),
        (["0", "2"], "cp", {}, "no rank is given for family 'cp'"),
        (["0", "2"], small, {"rank": 2}, "rank is for a family, but a graph is given"),
        (["0", "2"], small, {}, r"the weight of layer '2' has shape \(8, 4\), but a slice of the tensor has \(4, 4\)"),
        (["0"], small, {}, r"modes of sizes \(2, 4, 4\), for 1 layer"),
    ]
    for names, graph, more, text in cases:
        made = model()
        with pytest.raises(tnmars.TnmarsError, match=text):
            tnmars.tie_(made, names, graph, **more)
        assert len(list(made.parameters())) == 6
    made = model()
    made[2] = nn.Linear(4, 4)
    made[2].weight = made[0].weight
    with pytest.raises(tnmars.TnmarsError, match="layers '0' and '2' have the same weight"):
        tnmars.tie_(made, ["0", "2"], small)


def test_complex_weights_keep_their_size() -> None:
    model = nn.Sequential(nn.Linear(6, 8, dtype=torch.complex64), nn.Linear(8, 4, dtype=torch.complex64))
    with torch.no_grad():
        for part in model:
            part.weight.copy_(1j * torch.randn(part.weight.shape))
    before = sum(float(part.weight.abs().square().sum()) for part in model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tnmars.tie_(model, "*", "cp", rank=3)
    after = sum(float(part.weight.abs().square().sum()) for part in model)
    assert after == pytest.approx(before, rel=1e-3)
