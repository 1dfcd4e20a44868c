"""Traps that a reader of the compiler found: what must not be slow, wrong or a raw error without a word."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import tnmars
from tnmars import families
from tnmars.graph import Graph
from tnmars.program import choice
from tnmars.program.form import peak


def square(cores: int = 3) -> Graph:
    return families.tt("linear", inputs=(4,) * cores, outputs=(4,) * cores, rank=4)


def test_patches_of_an_image_have_a_price_and_a_size() -> None:
    graph = tnmars.network(
        "conv",
        "A[p,r] B[r,o]",
        patch=dict(p=16 * 49),
        outputs=dict(o=16),
        bonds=4,
        kernel_size=(7, 7),
        options=dict(padding=3),
    )
    layer = tnmars.compile(graph, batch=8, image=56)
    assert layer.plan("infer", 8).name == "dense", "taking 49 times the image costs more than the convolution"
    forms = choice.choose(graph, 8, choice.Weighing(layer.planner.model), 56)
    unfolded = [form for form in forms if form.frame.unfold]
    assert unfolded and all(peak(form) >= form.patches() == 8 * 16 * 49 * 56 * 56 for form in unfolded)


def test_a_large_batch_without_any_gradient() -> None:
    layer = tnmars.compile(square(5), batch=8192).requires_grad_(False).eval()
    x = torch.randn(8192, 1024)
    wanted = torch.nn.functional.linear(x, layer.dense(), layer.bias)
    assert torch.allclose(layer(x), wanted, atol=1e-4)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, x)))
    assert torch.allclose(found.tangent, wanted - layer.bias, atol=1e-4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_index_out_of_range_is_no_other_entry_when_compiled(backend: str) -> None:
    layer = tnmars.compile(families.tt("tensor", free=(4, 5, 6), rank=2))
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    assert torch.allclose(compiled(torch.tensor([[0, 1, 0]])), layer(torch.tensor([[0, 1, 0]])))
    with pytest.raises(RuntimeError, match="index out of range"):
        compiled(torch.tensor([[0, 6, 0]]))


def test_an_index_out_of_range_is_no_other_entry_under_vmap() -> None:
    layer = tnmars.compile(families.tt("tensor", free=(4, 5, 6), rank=2))
    with pytest.raises(tnmars.ShapeError, match="index has 'n2' 6"):
        torch.func.vmap(layer)(torch.tensor([[[0, 6, 0]]]))


def test_tuning_in_the_middle_of_a_pass_leaves_the_user_alone() -> None:
    layer = tnmars.compile(square(), batch=8, tune=True)
    state = torch.get_rng_state()
    layer(torch.ones(300, 64))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.func.vmap(layer)(torch.ones(2, 2000, 64)).shape == (2, 2000, 64)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (dict(batch=-3), "batch is -3; it is a whole number from 1 on."),
        (dict(batch=2.5), "batch is 2.5; it is a whole number from 1 on."),
        (dict(image=0), "image is 0; it is a whole number from 1 on."),
        (dict(init=-1.0), "init is -1.0; give a variance from 0 on"),
        (dict(init=True), "init is True; give a variance from 0 on"),
        (dict(dtype=torch.int64), "cores hold floating-point numbers"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(tnmars.TnmarsError) as caught:
        tnmars.compile(square(), **given)
    assert text in str(caught.value)


def test_what_is_no_tensor_is_told() -> None:
    with pytest.raises(tnmars.ShapeError, match="input is of type list"):
        tnmars.compile(square())([1.0])


def test_an_image_smaller_than_the_kernel_is_told() -> None:
    graph = tnmars.network("conv", "A[p,r] B[r,o]", patch=dict(p=27), outputs=dict(o=4), bonds=2, kernel_size=(3, 3))
    with pytest.raises(tnmars.ShapeError, match="length 2 along spatial axis 1, but the kernel reaches over 3"):
        tnmars.compile(graph)(torch.randn(1, 3, 2, 2))
