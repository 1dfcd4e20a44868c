"""Transposed convolutions, against torch's own layers with the dense weight."""

from __future__ import annotations

import copy

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EXACT, UPWARD, WEIGHINGS, Given, forms_of, mask_of, once, run, set_gates
from strategies import cases, graphs, keeps
from torch import nn

import tnmars
from tnmars.graph import Graph
from tnmars.models.patches import patches
from tnmars.models.torch_layers import describe
from tnmars.program.codec import form_from_json, form_to_json

KIND = ("conv_transpose",)


@settings(max_examples=cases(1000), deadline=None)
@given(graph=graphs(KIND), batch=st.sampled_from((3, 16, 1)), seed=st.integers(0, 2**20))
def test_forward_and_gradients_equal_torchs_layer(graph: Graph, batch: int, seed: int) -> None:
    layer = oracle.compiled(graph, batch, dtype=torch.float64)
    task = oracle.problem(graph, batch, seed)
    oracle.load(layer, task)
    answer, gradients = oracle.ask(layer, task)
    wanted = task.answer()
    assert oracle.error(answer, wanted) <= EXACT
    for found, right in zip(gradients, oracle.gradients(wanted, task.leaves), strict=True):
        assert oracle.error(found, right) <= EXACT
    assert oracle.error(layer.dense(), oracle.dense(graph, oracle.whole(graph, task.cores))) <= EXACT


@settings(max_examples=cases(1000), deadline=None)
@given(graph=graphs(KIND, bonded=True), data=st.data(), seed=st.integers(0, 2**20))
def test_masked_equals_pruned(graph: Graph, data: st.DataObject, seed: int) -> None:
    kept = data.draw(keeps(graph))
    masked = oracle.compiled(graph, 3, dtype=torch.float64, selector=Given()).eval()
    task = oracle.problem(graph, 3, seed)
    oracle.load(masked, task, strict=False)
    set_gates(masked, {name: mask_of(kept[name], bond.size) for name, bond in graph.bonds.items()})
    small = tnmars.prune(masked)
    assert small.graph.kind == "conv_transpose"
    assert oracle.error(small(*task.inputs), masked(*task.inputs)) <= EXACT


@settings(max_examples=cases(200), deadline=None)
@given(graph=graphs(KIND), seed=st.integers(0, 2**20))
def test_every_form_equals_torchs_layer(graph: Graph, seed: int) -> None:
    """Not only the one that is taken: on small channels, axis by axis, in groups, and with the dense weight."""
    task = oracle.problem(graph, 2, seed)
    wanted = task.answer()
    for form in once(form for weighing in WEIGHINGS for form in forms_of(graph, 2, weighing)):
        assert oracle.error(run(form, task), wanted) <= EXACT, form.name
        assert form_from_json(form_to_json(form), graph) == form


LAYERS = [
    nn.ConvTranspose1d(6, 4, 3, stride=2, padding=1, output_padding=1),
    nn.ConvTranspose2d(6, 4, (3, 2), stride=(2, 3), dilation=(2, 1), groups=2, bias=False),
    nn.ConvTranspose3d(4, 6, 2, stride=(1, 2, 2), padding=(0, 1, 0), output_padding=(0, 1, 1)),
    nn.ConvTranspose2d(6, 6, 4, stride=2, padding=1, groups=6),
    nn.ConvTranspose2d(5, 3, 1, stride=2, output_padding=1),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("family", ["lowrank", "tucker2", "tt"])
def test_from_torch_and_back(layer: nn.Module, family: str) -> None:
    layer = copy.deepcopy(layer).double()
    made = tnmars.from_dense(layer, family, error=1e-9, batch=2, image=5)
    x = torch.randn(2, layer.in_channels, *(5, 4, 3)[: len(layer.kernel_size)], dtype=torch.float64)
    wanted = layer(x)
    assert oracle.error(made(x), wanted) < 1e-7
    assert oracle.error(made(x[0]), wanted[0]) < 1e-7
    assert (made.in_channels, made.out_channels, made.groups) == (layer.in_channels, layer.out_channels, layer.groups)
    assert oracle.error(tnmars.as_torch_(nn.Sequential(copy.deepcopy(made))).model(x), wanted) < 1e-7
    back = tnmars.to_dense_(made)
    assert type(back) is type(layer) and str(back) == str(layer)
    assert oracle.error(back(x), wanted) < 1e-7


def test_a_chain_has_a_small_transposed_convolution() -> None:
    layer = tnmars.ConvTranspose2d(8, 6, 4, stride=2, padding=1, family="tucker2", rank=2)
    x = torch.randn(2, 8, 5, 5)
    wanted = layer(x)
    done = tnmars.as_torch_(nn.Sequential(layer))
    assert str(done) == "0: Conv2d(8, 2, 1x1), ConvTranspose2d(2, 2, 4x4), Conv2d(2, 6, 1x1)"
    torch.testing.assert_close(done.model(x), wanted)


def test_the_window_acts_on_small_channels() -> None:
    layer = tnmars.ConvTranspose2d(64, 64, 4, stride=2, padding=1, family="tucker2", rank=4, batch=16, image=16)
    call = next(line for line in layer.source.splitlines() if "F.conv_transpose2d" in line)
    assert "stride=(2, 2), padding=(1, 1)" in call and "[b, 4, s0, s1]" in call
    wide = tnmars.ConvTranspose2d(4, 4, 3, family="lowrank", rank=9)
    assert "return F.conv_transpose2d(x0, " in wide.source, "the dense weight is smaller than the cores"


@pytest.mark.parametrize(("groups", "extra"), [(1, 0), (1, 1), (2, 1)])
def test_calibration_sees_the_outputs(groups: int, extra: int) -> None:
    """The second moments of the inputs of each output position are those that the outputs have."""
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(4, 6, (3, 2), 2, (1, 0), extra, groups, False, (1, 2)).double()
    x = torch.randn(3, 4, 4, 3, dtype=torch.float64)
    dense = describe(layer)
    rows = patches(x, dense).reshape(-1, groups, dense.width)
    weight = layer.weight.detach().reshape(groups, 4 // groups, 6 // groups, -1).transpose(1, 2).flatten(2)
    found = torch.einsum("ngw,gow->ngo", rows, weight).flatten(1)
    wanted = layer(x).movedim(1, -1).reshape(-1, 6)
    assert oracle.error(found, wanted) <= EXACT


def test_calibration_gives_the_best_error_of_the_outputs() -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose1d(3, 8, 3, stride=2, padding=1, bias=False).double()
    x = torch.randn(400, 3, 5, dtype=torch.float64) @ torch.randn(5, 5, dtype=torch.float64)
    made = tnmars.from_dense(layer, "lowrank", ranks=3, inputs=x)
    values = torch.linalg.svdvals(layer(x).detach().transpose(1, 2).reshape(-1, 8)).square()
    best = float(values[3:].sum() / values.sum()) ** 0.5
    assert oracle.error(made(x), layer(x)) == pytest.approx(best, rel=0.02)


def test_a_compiled_model_of_torchs_layers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(16, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 16, 3)).eval()
    x = torch.randn(40, 16, 6, 6)
    count = sum(value.numel() for value in model.parameters())
    tnmars.compress_(model, budget=count // 2, data=x)
    assert sum(value.numel() for value in model.parameters()) <= count // 2
    assert isinstance(model[0], tnmars.TNModule) and model(x).shape == (40, 16, 14, 14)


def test_output_size() -> None:
    layer = tnmars.compile(UPWARD)
    x = torch.randn(2, 3, 5, 4)
    assert torch.equal(layer(x, output_size=(10, 11)), layer(x))
    with pytest.raises(tnmars.ShapeError, match=r"output_size is \(9, 11\), but the output has \(10, 11\)"):
        layer(x, output_size=(9, 11))


def test_wrong_settings() -> None:
    with pytest.raises(tnmars.GraphError, match=r"'output_padding' is 2 on spatial axis 1, but must be less than"):
        tnmars.ConvTranspose1d(4, 4, 3, stride=2, output_padding=2, rank=2)
    with pytest.raises(tnmars.GraphError, match="option 'padding' is 'same', but must be a whole number"):
        tnmars.compile(UPWARD, padding="same")
    with pytest.raises(tnmars.GraphError, match="padding_mode is 'reflect', but ConvTranspose1d takes 'zeros' alone"):
        tnmars.ConvTranspose1d(4, 4, 3, padding_mode="reflect", rank=2)
    with pytest.raises(tnmars.GraphError, match="option 'padding_mode' is not one that kind 'conv_transpose' takes"):
        tnmars.compile(UPWARD, padding_mode="reflect")
    layer = tnmars.ConvTranspose1d(4, 4, 1, padding=2, family="cp", rank=2)
    with pytest.raises(tnmars.ShapeError, match="padding cuts off 4 entries of its output, which leaves none"):
        layer(torch.randn(1, 4, 4))
    assert layer(torch.randn(1, 4, 5)).shape == (1, 4, 1)


class Generator(nn.Module):
    """The generator of DCGAN for images of 32 x 32."""

    def __init__(self, width: int = 8):
        super().__init__()
        layers: list[nn.Module] = []
        for inside, outside, stride, padding in ((16, 4, 1, 0), (4, 2, 2, 1), (2, 1, 2, 1)):
            conv = nn.ConvTranspose2d(inside * width, outside * width, 4, stride, padding, bias=False)
            layers += [conv, nn.BatchNorm2d(outside * width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("family", ["lowrank", "tucker2", "tt"])
def test_a_generator_at_full_rank(family: str) -> None:
    """Radford et al. 2016, figure 1: every layer through from_dense, with nothing left out."""
    torch.manual_seed(0)
    model = Generator().eval()
    x = torch.randn(2, 128, 1, 1)
    wanted = model(x)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.ConvTranspose2d):
            model.set_submodule(name, tnmars.from_dense(layer, family, error=1e-6, batch=2, image=8))
    assert sum(isinstance(layer, tnmars.TNModule) for layer in model.modules()) == 4
    assert wanted.shape == (2, 3, 32, 32)
    assert oracle.error(model(x), wanted) <= 1e-4
