"""Second moments from data, against sums over single samples and explicit Jacobians; the model is left alone."""

from __future__ import annotations

import itertools
from math import prod

import pytest
import torch
from compress_kit import cnn, images, untouched
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from tnmars.errors import TnmarsError
from tnmars.models import statistics
from tnmars.models.patches import patches
from tnmars.models.statistics import Moments, WeightGradients, collect, of_table_and_layer
from tnmars.models.torch_layers import DenseLayer, describe

F64 = torch.float64


def dense(module: nn.Module) -> DenseLayer:
    found = describe(module)
    assert isinstance(found, DenseLayer)
    return found


def batch(x: Tensor) -> tuple[tuple[Tensor], dict[str, Tensor]]:
    return (x,), {}


def gathered(model: nn.Module, data: list[Tensor], *names: str, keeps: bool = True) -> dict[str, Moments]:
    """The moments of layers of a model."""
    layers = {name: Moments(dense(model.get_submodule(name)), keeps) for name in names}
    collect(model, map(batch, data), layers)
    return layers


def second(rows: Tensor) -> Tensor:
    """The mean of outer products, one after the other."""
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=F64)
    for row in rows.double():
        total += torch.outer(row, row)
    return total / len(rows)


# --- patches ---------------------------------------------------------------------------------------------------------

CONVOLUTIONS = [
    nn.Conv1d(2, 3, 3),
    nn.Conv1d(2, 3, 4, stride=2, dilation=2, padding=3),
    nn.Conv1d(2, 3, 4, padding="same", dilation=3),
    nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 3)),
    nn.Conv2d(2, 3, (2, 4), padding="same"),
    nn.Conv2d(2, 3, 2, padding="valid"),
    nn.Conv3d(2, 3, (1, 2, 3), stride=(2, 1, 2), padding=(0, 1, 1), dilation=(1, 2, 1)),
    nn.Conv3d(2, 3, 2, padding="same"),
]
CONVOLUTIONS = [layer.double() for layer in CONVOLUTIONS]
every_convolution = pytest.mark.parametrize("layer", CONVOLUTIONS, ids=range(len(CONVOLUTIONS)))


def naive_patches(x: Tensor, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Tensor:
    """Entry by entry: for each sample and output position the inputs of all channels and taps, 0 outside."""
    with torch.no_grad():
        positions = layer(x).shape[2:]
    before = []
    for axis, size in enumerate(layer.kernel_size):
        if layer.padding == "same":
            before.append(layer.dilation[axis] * (size - 1) // 2)
        else:
            before.append(0 if layer.padding == "valid" else layer.padding[axis])
    rows = []
    for sample, *at in itertools.product(range(len(x)), *map(range, positions)):
        row = []
        for channel, *tap in itertools.product(range(x.shape[1]), *map(range, layer.kernel_size)):
            place = [
                at[axis] * layer.stride[axis] + tap[axis] * layer.dilation[axis] - before[axis]
                for axis in range(len(tap))
            ]
            inside = all(0 <= place[axis] < x.shape[2 + axis] for axis in range(len(place)))
            row.append(float(x[(sample, channel, *place)]) if inside else 0.0)
        rows.append(row)
    return torch.tensor(rows, dtype=x.dtype)


@every_convolution
def test_patches_are_what_each_output_position_sees(layer: nn.Conv2d) -> None:
    x = torch.randn(2, 2, *(7, 6, 5)[: len(layer.kernel_size)], dtype=F64)
    found = patches(x, dense(layer))
    assert torch.equal(found, naive_patches(x, layer))
    made = found @ layer.weight.flatten(1).T + layer.bias
    expected = layer(x).movedim(1, -1).reshape(-1, 3)
    assert torch.allclose(made, expected, atol=1e-12)


def test_patches_agree_with_unfold() -> None:
    layer = nn.Conv2d(3, 4, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1))
    x = torch.randn(3, 3, 8, 9)
    expected = nn.functional.unfold(x, (3, 2), (2, 1), (2, 1), (1, 2)).movedim(1, -1).reshape(-1, 18)
    assert torch.equal(patches(x, dense(layer)), expected)


# --- C and responses -------------------------------------------------------------------------------------------------


def test_moments_of_a_linear_layer() -> None:
    layer = nn.Linear(5, 4).double()
    data = [torch.randn(7, 3, 5, dtype=F64), torch.randn(2, 3, 5, dtype=F64)]
    metric = gathered(nn.Sequential(layer), data, "0")["0"].metric()
    rows = torch.cat([x.reshape(-1, 5) for x in data])
    assert torch.allclose(metric.inputs, second(rows), atol=1e-12)
    assert torch.allclose(metric.responses, second(rows @ layer.weight.T), atol=1e-12)
    assert metric.samples == 27


@every_convolution
def test_moments_of_a_convolution(layer: nn.Conv2d) -> None:
    x = torch.randn(3, 2, *(7, 6, 5)[: len(layer.kernel_size)], dtype=F64)
    metric = gathered(nn.Sequential(layer), [x[:2], x[2:]], "0")["0"].metric()
    rows = naive_patches(x, layer)
    assert torch.allclose(metric.inputs, second(rows), atol=1e-12)
    assert torch.allclose(metric.responses, second(rows @ layer.weight.flatten(1).T), atol=1e-12)
    pixels = x.movedim(1, -1).reshape(-1, 2)
    assert torch.allclose(metric.channels, second(pixels), atol=1e-12)
    assert metric.samples == len(rows)


def test_an_image_without_a_batch_counts_as_one() -> None:
    layer = nn.Conv2d(2, 3, 3).double()
    x = torch.randn(2, 5, 6, dtype=F64)
    found, expected = Moments(dense(layer), True), Moments(dense(layer), True)
    found.add_input(x, layer(x))
    expected.add_input(x[None], layer(x[None]))
    assert torch.equal(found.inputs, expected.inputs)
    assert (found.rows, found.batch, found.image) == (expected.rows, expected.batch, expected.image) == (12, 1, 6)


def test_many_patches_are_added_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is cut so that patches take bounded memory."""
    layer = nn.Conv2d(64, 2, 3, padding=1)
    sizes = []
    own = patches
    monkeypatch.setattr(statistics, "patches", lambda x, dense: sizes.append(len(x)) or own(x, dense))
    x = torch.randn(16, 64, 48, 48)
    moments = Moments(dense(layer), True)
    moments.add_input(x, torch.zeros(16, 2, 48, 48))
    assert sum(sizes) == 16
    assert max(sizes) * 64 * 9 * 48 * 48 <= 2**24
    assert moments.inputs.trace() == pytest.approx(float(own(x, dense(layer)).square().sum()), rel=1e-4)


def test_half_precision_is_added_up_in_single() -> None:
    """Sums of squares above 65,504 overflow a half."""
    x = torch.full((64, 2), 100.0, dtype=torch.float16)
    moments = Moments(dense(nn.Linear(2, 2, bias=False)), True)
    moments.add_input(x, x)
    assert moments.inputs.tolist() == [[640_000.0] * 2] * 2


def test_counts_of_an_embedding_leave_out_padding() -> None:
    table = nn.Embedding(6, 3, padding_idx=2)
    metric = gathered(nn.Sequential(table), [torch.tensor([[0, 0, 2], [5, 2, 0]])], "0")["0"].metric()
    assert metric.inputs.tolist() == [0.75, 0.0, 0.0, 0.0, 0.0, 0.25]


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_errors_of_a_bag_add_up_or_are_averaged(mode: str) -> None:
    """With independent errors of the rows, the expected squared change of a bag has this metric."""
    bag = nn.EmbeddingBag(40, 3, mode=mode).double()
    index = torch.stack([torch.randperm(40)[:5] for _ in range(30)])
    model = nn.Sequential(bag)
    metric = gathered(model, [index], "0")["0"].metric()
    changes = []
    weight = bag.weight.detach().clone()
    for _ in range(400):
        error = torch.randn(40, 3, dtype=F64)
        with torch.no_grad():
            before = bag(index)
            bag.weight.add_(error)
            changes.append(float((bag(index) - before).square().sum() / 30))
            bag.weight.copy_(weight)
    expected = float(metric.inputs.sum() * metric.outputs.trace())
    assert expected == pytest.approx(sum(changes) / 400, rel=0.15)


def test_wide_outputs_share_one_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the last layer of a language model: no second moment of the outputs is kept."""
    monkeypatch.setattr(statistics, "MOST_OUTPUTS", 8)
    model = nn.Sequential(nn.Linear(4, 30)).double()
    x = torch.randn(500, 4, dtype=F64)
    moments = gathered(model, [x], "0", keeps=False)["0"]
    assert moments.is_wide
    metric = moments.metric()
    assert metric.outputs is None
    assert metric.responses is None
    assert torch.allclose(metric.inputs, second(x), rtol=0.05)  # the outputs' gradients are those of a unit Gaussian


# --- G ---------------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """A model whose Jacobian differs from sample to sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))) ** 2


def output_metric(model: nn.Module, x: Tensor, name: str) -> Tensor:
    """E[J'J] at the output of a layer, from Jacobians with respect to its bias, sample by sample."""
    values = {key: value.detach() for key, value in model.named_parameters()}
    total = 0.0
    for row in x:
        jacobian = jacrev(lambda bias, row=row: functional_call(model, {**values, f"{name}.bias": bias}, (row,)))
        matrix = jacobian(values[f"{name}.bias"])
        total = total + matrix.T @ matrix
    return total / len(x)


@pytest.mark.parametrize("name", ["first", "second"])
def test_gradients_have_the_second_moment_of_the_jacobian(name: str) -> None:
    model = Residual().double()
    x = torch.randn(40, 4, dtype=F64)
    metric = gathered(model, [x] * 60, name)[name].metric()
    expected = output_metric(model, x, name)
    assert (metric.outputs - expected).norm() < 0.1 * expected.norm()
    # that is the error of 60 x 4 projections: with a hundredth of them it is larger
    few = gathered(model, [x], name)[name].metric()
    assert (few.outputs - expected).norm() < 0.9 * expected.norm()


def test_gradients_of_a_convolution_are_summed_over_positions() -> None:
    """The last layer's Jacobian is the identity at each of the 9 positions."""
    model = nn.Sequential(nn.Conv2d(2, 3, 2)).double()
    metric = gathered(model, [torch.randn(64, 2, 4, 4, dtype=F64)] * 10, "0")["0"].metric()
    assert torch.allclose(metric.outputs, 9 * torch.eye(3, dtype=F64), atol=0.5)


def test_a_weight_that_no_layer_applies_has_the_moments_of_its_gradient() -> None:
    """For one sample the gradient of a projection v is (J'v) x': both factors are known."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False)).double()
    x = torch.randn(1, 4, dtype=F64)
    single = WeightGradients(model[0].weight)
    collect(model, [batch(x)] * 200, {}, {"w": single})
    metric = single.metric()
    assert torch.allclose(metric.inputs, torch.outer(x[0], x[0]) / x.square().sum(), atol=1e-12)
    assert torch.allclose(metric.outputs, torch.eye(3, dtype=F64) * x.square().sum(), rtol=0.2, atol=0.3)
    assert metric.samples == 200 * 4 * 3


def test_a_weight_without_gradients_has_an_empty_metric() -> None:
    assert WeightGradients(nn.Linear(2, 2).weight).metric().is_empty


# --- how a model may be written --------------------------------------------------------------------------------------


def test_a_layer_that_is_called_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    model = Twice().double()
    x = torch.randn(50, 3, dtype=F64)
    moments = gathered(model, [x] * 40, "layer")["layer"]
    weight = model.layer.weight.detach()
    with torch.no_grad():
        seen = torch.cat([x, model.layer(x)])
    assert torch.allclose(moments.metric().inputs, second(seen), atol=1e-12)
    expected = torch.eye(3, dtype=F64) + weight.T @ weight
    assert torch.allclose(moments.metric().outputs, expected, atol=0.2)
    assert moments.rows == 2 * moments.samples


@pytest.mark.parametrize("inplace", [False, True])
def test_activations_in_place_change_nothing(inplace: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(inplace), nn.Linear(6, 5), nn.ReLU(inplace), nn.Linear(5, 2)
    ).double()
    x = torch.randn(20, 4, dtype=F64)
    found = gathered(model, [x], "0", "2", "4")
    hidden = x
    for at, name in enumerate(("0", "2", "4")):
        moments = found[name].metric()
        assert torch.allclose(moments.inputs, second(hidden), atol=1e-12), at
        y = nn.functional.linear(hidden, model[int(name)].weight.detach())
        assert torch.allclose(moments.responses, second(y), atol=1e-12), at
        hidden = (y + model[int(name)].bias.detach()).relu()
    with torch.random.fork_rng():  # the same projections, without in-place changes
        plain = nn.Sequential(*(nn.ReLU() if isinstance(layer, nn.ReLU) else layer for layer in model))
        expected = gathered(plain, [x], "0", "2", "4")
    assert all(torch.equal(found[name].outputs, expected[name].outputs) for name in found)


def test_layers_may_be_called_by_keyword_and_without_gradients() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                hidden = self.frozen(input=x)
            return self.head(input=hidden)

    found = gathered(Odd(), [torch.randn(9, 3)], "frozen", "head")
    assert not found["frozen"].has_gradients
    assert found["head"].has_gradients
    assert found["frozen"].rows == 9


def test_the_gradient_does_not_depend_on_what_is_frozen() -> None:
    model = cnn()
    data = [images(16)]
    expected = gathered(model, data, "0", "3", "8")
    for value in model.parameters():
        value.requires_grad_(False)
    found = gathered(model, data, "0", "3", "8")
    assert all(torch.equal(found[name].outputs, expected[name].outputs) for name in found)


# --- what is left as it was ------------------------------------------------------------------------------------------


def prepared() -> nn.Module:
    """A model in training mode but for one layer, partly frozen, with gradients."""
    model = cnn().train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    model(images(4)).sum().backward()
    return model


def test_the_model_is_left_as_it_was() -> None:
    model = prepared()
    data = [images(8)]
    with untouched(model):
        found = gathered(model, data, "0", "3", "8")
    assert found["0"].has_gradients


def test_the_model_is_left_as_it_was_after_an_error() -> None:
    model = prepared()
    data = [images(8), torch.randn(8, 4, 8, 8)]
    with untouched(model), pytest.raises(TnmarsError, match="batch 1 of the data, of shape"):
        gathered(model, data, "0", "3", "8")


def test_outputs_that_are_not_finite_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with torch.no_grad():
        model[0].bias.fill_(float("inf"))
    with untouched(model), pytest.raises(TnmarsError, match="outputs for batch 0 of the data are not finite"):
        gathered(model, [torch.ones(2, 3)], "0")


def test_projections_follow_from_the_seed() -> None:
    model = Residual()
    x = torch.randn(10, 4)

    def outputs(seed: int) -> Tensor:
        moments = Moments(dense(model.first), False)
        collect(model, [batch(x)], {"first": moments}, seed=seed)
        return moments.outputs

    assert torch.equal(outputs(1), outputs(1))
    assert not torch.equal(outputs(1), outputs(2))


# --- two places ------------------------------------------------------------------------------------------------------


def test_moments_of_two_places_are_those_of_all_their_calls() -> None:
    layer = nn.Linear(3, 2)
    one, other, both = (Moments(dense(layer), True) for _ in range(3))
    for moments, rows in ((one, 4), (other, 6)):
        x = torch.randn(rows, 3)
        for each in (moments, both):
            each.add_input(x, layer(x))
            each.add_gradient(torch.ones(rows, 2))
    for moments in (one, other, both):
        moments.samples = 10
    joined = one.joined(other)
    assert (joined.rows, joined.batch, joined.samples) == (10, 6, 10)
    for name in ("inputs", "outputs", "responses"):
        assert torch.allclose(getattr(joined.metric(), name), getattr(both.metric(), name))


def test_a_matrix_that_is_a_table_and_a_layer_loses_what_both_lose() -> None:
    """In sum over all errors of the rows that are alike, the loss is that of the two places together."""
    table, layer = nn.Embedding(20, 3).double(), nn.Linear(3, 20, bias=False).double()
    rows, outer = Moments(dense(table), True), Moments(dense(layer), True)
    index = torch.randint(20, (50,))
    rows.add_input(index, table(index))
    rows.add_gradient(torch.randn(50, 3, dtype=F64))
    x = torch.randn(40, 3, dtype=F64)
    outer.add_input(x, layer(x))
    outer.add_gradient(torch.randn(40, 20, dtype=F64))
    rows.samples = outer.samples = 50
    one, two, both = rows.metric(), outer.metric(), of_table_and_layer(rows, outer)

    def loss(error: Tensor) -> float:
        first = float((one.inputs * torch.einsum("va,ab,vb->v", error, one.outputs, error)).sum())
        return first + float(two.outputs.diagonal().mean() * torch.einsum("va,ab,vb->", error, two.inputs, error))

    errors = [torch.randn(20, 3, dtype=F64) for _ in range(2000)]
    found = [float((both.inputs * torch.einsum("va,ab,vb->v", e, both.outputs, e)).sum()) for e in errors]
    assert sum(found) == pytest.approx(sum(map(loss, errors)), rel=0.05)


def test_few_samples_are_seen() -> None:
    moments = Moments(dense(nn.Linear(3, 5)), False)
    moments.rows = 19
    assert moments.is_few
    moments.rows = 20
    assert not moments.is_few


def test_the_number_of_outputs_of_a_convolution_does_not_matter_for_sums() -> None:
    layer = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    x = torch.randn(4, 2, 9, 9)
    moments = Moments(dense(layer), False)
    y = layer(x)
    moments.add_input(x, y)
    assert moments.inputs is None
    assert moments.rows == 4 * prod(y.shape[2:])
