"""Inference with given cores: `freeze` and `cached` compute the same, ship what they may, and keep to themselves."""

from __future__ import annotations

import copy
from dataclasses import replace

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import CONV, EXACT, LINEAR, SKIPPED, TABLE, TENSOR, every_kind, inputs_of
from strategies import cases, graphs
from torch import nn

import tnmars
from tnmars import Graph, ShapeError, TnmarsError, TNModule
from tnmars.graph.counts import count
from tnmars.layer.quick import ordinary
from tnmars.program import choice
from tnmars.ship import freezing
from tnmars.ship import frozen as frozen_room
from tnmars.ship.frozen import FrozenLayer
from tnmars.timing import records, tuning

every_form = pytest.mark.parametrize("form", ["compact", "fast"])


def shipped(model: nn.Module) -> int:
    """How many numbers are saved with a model, biases left out."""
    return sum(value.numel() for name, value in model.state_dict().items() if not name.endswith("bias"))


def change(layer: TNModule) -> None:
    """Other values in every parameter, in place."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(-1.5)


# --- freeze ----------------------------------------------------------------------------------------------------------


@settings(max_examples=cases(1000))
@given(
    graph=graphs(least_terms=0),
    form=st.sampled_from(("compact", "fast")),
    nominal=st.sampled_from((16, 1, 300)),
    batch=st.sampled_from((3, 1, 17, 0, 300)),
    seed=st.integers(0, 2**31),
)
def test_a_frozen_layer_gives_the_same(graph: Graph, form: str, nominal: int, batch: int, seed: int) -> None:
    problem = oracle.problem(graph, batch, seed, image=(3, 2, 2))
    layer = oracle.compiled(graph, nominal, dtype=torch.float64)
    oracle.load(layer, problem)
    frozen = tnmars.freeze(layer, form)
    wanted = problem.answer()
    assert oracle.error(frozen(*problem.inputs), wanted) <= EXACT
    with torch.no_grad():
        assert oracle.error(frozen(*problem.inputs), wanted) <= EXACT
    if form == "compact":
        assert shipped(frozen) <= 2 * count(graph).cores


@every_form
@every_kind
def test_a_frozen_layer_is_for_inference(graph: Graph, form: str) -> None:
    """It has nothing to train, and answers of its own; a gradient reaches its input."""
    layer = tnmars.compile(graph)
    frozen = tnmars.freeze(layer, form)
    assert frozen is not layer
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    given = inputs_of(graph)
    before = frozen(*given)
    assert not before.requires_grad
    change(layer)
    assert torch.equal(frozen(*given), before), "it does not follow the layer that it was made from"
    assert not torch.equal(layer(*given), before)
    wanting = [value.requires_grad_() if value.is_floating_point() else value for value in given]
    if wanting and wanting[0].requires_grad:
        assert torch.autograd.grad(frozen(*wanting).sum(), wanting[0])[0].any()


@every_form
@every_kind
def test_a_frozen_layer_has_the_face_of_its_layer(graph: Graph, form: str) -> None:
    layer = tnmars.compile(graph)
    frozen = tnmars.freeze(layer, form)
    assert frozen.graph == graph
    for name in ("in_features", "out_channels", "kernel_size", "num_embeddings"):
        assert getattr(frozen, name, None) == getattr(layer, name, None)
    assert f"{graph.kind}, {graph.signature}" in repr(frozen)
    for wrong in (torch.ones(2, 3, dtype=torch.float16), torch.full((2, 3), -1)):
        with pytest.raises(ShapeError):
            frozen(wrong)


@every_form
@every_kind
def test_a_frozen_state_goes_round(graph: Graph, form: str) -> None:
    one, two = (tnmars.freeze(tnmars.compile(graph), form) for _ in range(2))
    given = inputs_of(graph)
    assert not torch.equal(one(*given), two(*given))
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(*given), two(*given))


@every_form
@every_kind
def test_a_frozen_layer_changes_its_dtype(graph: Graph, form: str) -> None:
    layer = tnmars.compile(graph, dtype=torch.float64)
    given = oracle.problem(graph, 3).inputs
    wanted = layer(*given)
    frozen = tnmars.freeze(layer, form).float()
    found = frozen(*inputs_of(graph))
    assert found.dtype == torch.float32
    assert oracle.error(found, wanted) <= 1e-5


def test_fast_ships_the_dense_weight_where_that_is_faster() -> None:
    """A wide bond at a large batch: one product with the whole weight."""
    graph = tnmars.families.tt("linear", inputs=(8, 8), outputs=(8, 8), rank=32)
    layer = tnmars.compile(graph, batch=1024)
    fast = tnmars.freeze(layer, "fast")
    assert shipped(fast) == 64 * 64
    narrow = tnmars.families.tt("linear", inputs=(32, 32), outputs=(32, 32), rank=2)
    compact = tnmars.freeze(tnmars.compile(narrow, batch=1024), "compact")
    assert shipped(compact) <= 2 * count(narrow).cores < 32**4


def test_a_table_is_looked_up_as_it_is() -> None:
    """Where the table is shipped whole, repeated tokens cost nothing: they are not sorted out first."""
    layer = tnmars.compile(TABLE, dtype=torch.float64)
    index = torch.randint(50, (40, 50))
    wanted = layer(index)
    for form in ("compact", "fast"):
        assert oracle.error(tnmars.freeze(layer, form)(index), wanted) <= EXACT


@every_form
@pytest.mark.parametrize("batch", [1, 64, 4096])
def test_a_frozen_layer_keeps_its_zero_row(form: str, batch: int) -> None:
    layer = tnmars.compile(SKIPPED, dtype=torch.float64)
    frozen = tnmars.freeze(layer, form, batch=batch)
    for times in (1, 200):
        index = torch.tensor([7, 9]).repeat(times)
        assert not frozen(index)[::2].any()
        assert oracle.error(frozen(index), layer(index)) <= EXACT


@every_form
def test_a_frozen_tensor_at_index_tuples(form: str) -> None:
    layer = tnmars.compile(TENSOR, dtype=torch.float64)
    frozen = tnmars.freeze(layer, form)
    index = torch.stack([torch.randint(size, (7, 2)) for size in (4, 5, 3)], dim=-1)
    assert oracle.error(frozen(index), layer.dense()[index.unbind(-1)]) <= EXACT
    assert oracle.error(frozen(index.int()), layer.dense()[index.unbind(-1)]) <= EXACT
    assert oracle.error(frozen(), layer.dense()) <= EXACT


@every_form
def test_a_model_is_frozen_as_a_whole(form: str) -> None:
    """The model itself stays as it was; what is no compiled layer is copied."""
    model = nn.ModuleDict({"first": tnmars.compile(LINEAR), "rest": nn.Sequential(nn.Dropout(), tnmars.compile(CONV))})
    frozen = tnmars.freeze(model, form)
    assert not any(isinstance(module, TNModule) for module in frozen.modules())
    assert sum(isinstance(module, TNModule) for module in model.modules()) == 2
    assert model.training
    assert not any(module.training for module in frozen.modules())
    x = torch.randn(3, 6)
    assert oracle.error(frozen["first"](x), model["first"](x)) <= 1e-5
    image = torch.randn(2, 3, 5, 5)
    assert oracle.error(frozen["rest"](image), model["rest"].eval()(image)) <= 1e-5


def test_a_layer_used_twice_is_frozen_in_both_places() -> None:
    square = tnmars.families.tt("linear", inputs=(2, 3), outputs=(3, 2), rank=2)
    layer = tnmars.compile(square)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    frozen = tnmars.freeze(model)
    assert not any(isinstance(module, TNModule) for module in frozen.modules())
    x = torch.randn(4, 6)
    assert oracle.error(frozen(x), model(x)) <= 1e-5


def test_a_layer_is_frozen_with_the_model_that_it_was_compiled_with() -> None:
    """The constants of another machine choose another form there too."""
    graph = tnmars.families.tt("linear", inputs=(8, 8), outputs=(8, 8), rank=2)
    machines = (
        replace(tnmars.CostModel(), peak=1e6, call=0.0, batched_call=0.0, small_product=0.0, view_call=0.0),
        replace(tnmars.CostModel(), peak=1e15, call=1.0, batched_call=1.0, copy_call=1.0),
    )
    thrifty, hasty = (tnmars.freeze(tnmars.compile(graph, model=model), "fast") for model in machines)
    assert shipped(hasty) == 64 * 64
    assert shipped(thrifty) < 64 * 64


@pytest.mark.parametrize("count", [50, 62, 70])
def test_a_tensor_that_is_too_large_as_a_whole_is_asked_for_entries(count: int) -> None:
    """Also beyond 2^63 entries: it is frozen and cached by its cores, and asking for all of it fills no memory."""
    layer = tnmars.compile(tnmars.families.tt("tensor", free=(2,) * count, rank=2))
    index = torch.randint(2, (5, count))
    wanted = layer(index)
    for form in ("compact", "fast"):
        assert oracle.error(tnmars.freeze(layer, form)(index), wanted) <= 1e-5
    with tnmars.cached(layer):
        assert oracle.error(layer(index), wanted) <= 1e-5
        for ask in (layer, layer.dense, tnmars.freeze(layer, "fast")):
            with pytest.raises(ShapeError, match=f"the whole weight has {2**count:,} entries, too many for the memory"):
                ask()


def test_a_table_that_is_too_large_as_a_whole_is_frozen_in_parts() -> None:
    """By rows alone the whole table would be the fastest: 10^12 rows of it."""
    graph = tnmars.families.tt("embedding", lookup=(1000,) * 4, outputs=(4,) * 4, rank=2)
    layer = tnmars.compile(graph)
    index = torch.randint(10**12, (7,))
    fast = tnmars.freeze(layer, "fast")
    assert oracle.error(fast(index), layer(index)) <= 1e-5
    assert shipped(fast) <= 2**31
    with pytest.raises(ShapeError, match="too many for the memory; use the layer on its inputs"):
        layer.dense()


def test_a_form_that_is_not_known() -> None:
    with pytest.raises(TnmarsError, match="form is 'small', but must be 'compact' or 'fast'"):
        tnmars.freeze(tnmars.compile(LINEAR), "small")


# --- cached ----------------------------------------------------------------------------------------------------------


@settings(max_examples=cases(500))
@given(graph=graphs(least_terms=0), batch=st.sampled_from((3, 1, 0, 300)), seed=st.integers(0, 2**31))
def test_a_cached_layer_gives_the_same(graph: Graph, batch: int, seed: int) -> None:
    problem = oracle.problem(graph, batch, seed, image=(3, 2, 2))
    layer = oracle.compiled(graph, dtype=torch.float64)
    oracle.load(layer, problem)
    with tnmars.cached(layer) as same:
        assert same is layer
        assert oracle.error(layer(*problem.inputs), problem.answer()) <= EXACT
        assert oracle.error(layer.dense(), oracle.dense(graph, oracle.whole(graph, problem.cores))) <= EXACT


@every_kind
def test_changes_are_seen_outside_and_not_inside(graph: Graph) -> None:
    layer = tnmars.compile(graph).eval()
    given = inputs_of(graph)
    before = layer(*given)
    change(layer)
    after = layer(*given)
    assert not torch.equal(before, after)
    with tnmars.cached(layer):
        inside = layer(*given)
        assert oracle.error(inside, after) <= 1e-5
        change(layer)
        assert torch.equal(layer(*given), inside)
    assert not torch.equal(layer(*given), inside)
    with tnmars.cached(layer):
        assert not torch.equal(layer(*given), inside), "computed again when it is entered again"


def test_a_training_step_inside_is_a_training_step() -> None:
    """Folded parts have no gradients: without this, nothing would be trained, without an error."""
    layer = tnmars.compile(LINEAR)
    x = torch.randn(3, 6)
    with tnmars.cached(layer):
        layer(x).sum().backward()
        with torch.no_grad():
            assert oracle.error(layer(x), layer.eval()(x)) <= 1e-6
    assert all(value.grad is not None for value in layer.parameters())


def test_parts_of_another_form_do_not_load() -> None:
    """Parts of two forms may have the same shapes, and another meaning."""
    layer = tnmars.compile(tnmars.families.tt("linear", inputs=(8, 8), outputs=(8, 8), rank=8))
    forms = choice.choose_frozen(layer.graph, 128, layer.planner.model, float("inf"))
    made = [FrozenLayer(layer, form) for form in forms[:6]]
    sources = {frozen.source for frozen in made}
    assert len(sources) > 1
    for one in made:
        for two in made:
            if one.source == two.source:
                one.load_state_dict(two.state_dict())
            else:
                with pytest.raises(RuntimeError, match="Missing key"):
                    one.load_state_dict(two.state_dict())


def test_what_is_cached_is_not_part_of_the_model() -> None:
    layer = tnmars.compile(LINEAR)
    keys, size = list(layer.state_dict()), len(list(layer.modules()))
    with tnmars.cached(layer):
        layer(torch.ones(2, 6))
        assert list(layer.state_dict()) == keys
        assert len(list(layer.modules())) == size
        assert len(list(layer.parameters())) == len(keys)


def test_an_error_inside_ends_it_too() -> None:
    layer = tnmars.compile(LINEAR)
    x = torch.ones(2, 6)
    with pytest.raises(KeyError), tnmars.cached(layer):
        raise KeyError
    before = layer(x)
    change(layer)
    assert not torch.equal(layer(x), before)


def test_cached_inside_cached() -> None:
    """The inner block changes nothing: what the outer one has computed stays until it ends."""
    layer = tnmars.compile(TENSOR)
    with tnmars.cached(layer):
        before = layer()
        change(layer)
        with tnmars.cached(layer):
            assert torch.equal(layer(), before)
        assert torch.equal(layer(), before)
    assert not torch.equal(layer(), before)


def test_all_layers_of_a_model_are_cached() -> None:
    second = tnmars.families.tt("linear", inputs=(4, 5), outputs=(2, 2), rank=2)
    model = nn.Sequential(tnmars.compile(LINEAR), nn.Tanh(), tnmars.compile(second)).eval()
    x = torch.randn(3, 6)
    with tnmars.cached(model):
        before = model(x)
        for layer in (model[0], model[2]):
            change(layer)
            assert torch.equal(model(x), before)
    assert not torch.equal(model(x), before)


def test_a_copy_made_inside_is_not_cached() -> None:
    """It would be so for good, for no block ends it."""
    layer = tnmars.compile(LINEAR)
    x = torch.randn(3, 6)
    with tnmars.cached(layer):
        again = copy.deepcopy(layer)
        before = again(x)
        change(again)
        assert not torch.equal(again(x), before)
        assert oracle.error(layer(x), before) <= 1e-5


# --- for an example ---------------------------------------------------------------------------------------------------


class Images(nn.Module):
    """Two convolutions, the second on a smaller image than the first, and a layer that is not called."""

    def __init__(self) -> None:
        super().__init__()
        options = {"padding": 1, "stride": 2}
        self.first = tnmars.compile(tnmars.families.tucker2("conv", **SQUARE, ranks=(4, 4), options=options))
        self.second = tnmars.compile(tnmars.families.tucker2("conv", **SQUARE, ranks=(4, 4), options=options))
        self.spare = tnmars.compile(LINEAR)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return scale * self.second(self.first(x).relu())


SQUARE = {"inputs": (8,), "outputs": (8,), "kernel": (3, 3)}


@every_form
@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_layers_are_frozen_for_what_they_get(
    form: str, tune: bool, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes and memory layouts are those of the pass over the example, and the inputs are the layer's own."""
    model = Images().eval()
    asked: list[dict[str, object]] = []
    make = freezing.frozen_layer

    def noted(layer: TNModule, form: str, **options: object) -> object:
        asked.append(options)
        return make(layer, form, **options)

    monkeypatch.setattr(freezing, "frozen_layer", noted)
    x = torch.randn(6, 8, 20, 12).contiguous(memory_format=layout)
    frozen = tnmars.freeze(model, form, example=x, tune=tune)
    sizes = [(options["batch"], options["image"]) for options in asked if "image" in options]
    assert sizes == [(6, 20), (6, 10)], "longest sides, in the order of the calls"
    first = asked[0]["inputs"]
    assert torch.equal(first[0], x)
    assert first[0].stride() == x.stride()
    assert all(isinstance(part, FrozenLayer) for part in (frozen.first, frozen.second, frozen.spare))
    assert oracle.error(frozen(x, scale=2.0), model(x, scale=2.0)) <= 1e-5


@pytest.mark.parametrize(
    "example", [torch.ones(2, 8, 9, 9), (torch.ones(2, 8, 9, 9),), {"x": torch.ones(2, 8, 9, 9), "scale": 3.0}]
)
def test_an_example_is_what_the_model_is_called_with(example: object) -> None:
    model = Images().eval()
    frozen = tnmars.freeze(model, "fast", example=example)
    x = torch.randn(2, 8, 9, 9)
    assert oracle.error(frozen(x), model(x)) <= 1e-5


def test_a_single_layer_is_frozen_for_an_example() -> None:
    layer = tnmars.compile(LINEAR)
    x = torch.randn(5, 3, layer.in_features)
    frozen = tnmars.freeze(layer, "fast", example=x, tune=True)
    assert isinstance(frozen, FrozenLayer)
    assert oracle.error(frozen(x), layer(x)) <= 1e-5


def test_a_model_that_is_faster_with_dense_weights_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer by layer another form may win, and the model as a whole still lose."""
    monkeypatch.setattr(freezing, "in_turns", lambda *given, **more: [2.0, 1.0])
    x = torch.randn(2, 8, 9, 9)
    model = Images().eval()
    frozen = tnmars.freeze(model, "fast", example=x, tune=True)
    assert frozen.first.form.frame.dense
    assert frozen.second.form.frame.dense
    assert oracle.error(frozen(x), model(x)) <= 1e-5
    monkeypatch.setattr(freezing, "in_turns", lambda *given, **more: [1.0, 1.0])
    records.forget()
    monkeypatch.setattr(tuning, "CLEARLY", 1e9)
    monkeypatch.setattr(tuning, "_times", lambda race, forms, *rest: [float(bool(form.frame.dense)) for form in forms])
    assert not tnmars.freeze(model, "fast", example=x, tune=True).first.form.frame.dense


class Stateful(nn.Module):
    """Counts its passes, draws random numbers, and chooses dtypes."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = tnmars.compile(LINEAR)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        with torch.autocast("cpu"):
            return self.layer(x + 0 * torch.rand_like(x)) + self.seen


@pytest.mark.parametrize("tune", [False, True])
def test_passes_over_an_example_leave_no_trace(tune: bool) -> None:
    model = Stateful().eval()
    x = torch.randn(4, model.layer.in_features)
    state = torch.get_rng_state()
    frozen = tnmars.freeze(model, "fast", example=x, tune=tune)
    assert torch.equal(torch.get_rng_state(), state)
    assert (float(model.seen), float(frozen.seen)) == (0.0, 0.0)
    assert oracle.error(frozen(x), model(x)) <= 1e-2


@every_form
def test_layers_that_are_copied_are_frozen_for_an_example(form: str) -> None:
    """A layer without terms, and a tensor that keeps its cores."""
    graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2)
    empty = nn.Sequential(tnmars.compile(graph))
    tnmars.prune_(empty, keep={"0": {"r": ()}})
    x = torch.randn(3, 6)
    assert torch.equal(tnmars.freeze(empty, form, example=x, tune=True)(x), empty(x))
    entries = tnmars.compile(tnmars.families.tt("tensor", free=(4, 5, 6), rank=2))
    index = torch.zeros(7, 3, dtype=torch.int64)
    assert oracle.error(tnmars.freeze(entries, form, example=index)(index), entries(index)) <= 1e-5


def test_a_table_is_timed_with_all_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the whole table is in the race, as torch's own layer would have it."""
    raced: list[tuple[int, list[int]]] = []

    def times(race: tuning.Race, forms: list, *rest: object) -> list[float]:
        raced.append((race.inputs[0].numel(), [len(form.program.parts) for form in forms]))
        return [float(len(form.program.parts)) for form in forms]

    monkeypatch.setattr(tuning, "_times", times)
    monkeypatch.setattr(tuning, "HOPELESS", (1e9, 1e9))
    layer = tnmars.Embedding(1000, 64, family="tt", rank=8)
    index = torch.randint(0, 50, (64, 64))
    frozen = tnmars.freeze(layer, "fast", example=index, tune=True)
    assert {tokens for tokens, _ in raced} == {4096}
    assert any(1 in parts for _, parts in raced)
    assert frozen.is_table
    assert oracle.error(frozen(index), layer(index)) <= 1e-5


def test_a_parametrized_or_trained_bias_of_a_frozen_layer_is_used() -> None:
    x = torch.randn(3, LINEAR.in_features)
    frozen = tnmars.freeze(tnmars.compile(LINEAR), "fast")
    wanted = frozen(x) + 1
    trained = nn.Parameter(frozen.bias + 1)
    del frozen.bias
    frozen.bias = trained
    torch.testing.assert_close(frozen(x), wanted)


def test_wrong_examples_are_refused() -> None:
    model = Images()
    with pytest.raises(TnmarsError) as caught:
        tnmars.freeze(model, example="images")
    assert str(caught.value) == (
        "example is of type str, but must be a tensor, a tuple or a mapping.\n"
        "  Give what the model is called with, such as a batch of images."
    )
    with pytest.raises(TnmarsError) as caught:
        tnmars.freeze(model, example=torch.ones(1, 8, 9, 9), image=9)
    assert str(caught.value) == "both example and image are given.\n  An example has all sizes: give it alone."


# --- the fast path through `forward` ---------------------------------------------------------------------------------


@settings(max_examples=cases(500))
@given(
    graph=graphs(kinds=("linear", "conv", "conv_transpose"), least_terms=1),
    form=st.sampled_from(("compact", "fast")),
    batch=st.sampled_from((3, 1, 0, 300)),
    seed=st.integers(0, 2**31),
)
def test_the_fast_path_gives_the_same_bits(graph: Graph, form: str, batch: int, seed: int) -> None:
    problem = oracle.problem(graph, batch, seed, image=(3, 2, 2))
    layer = oracle.compiled(graph, dtype=torch.float64)
    oracle.load(layer, problem)
    frozen = tnmars.freeze(layer, form)
    assert isinstance(frozen, FrozenLayer)
    found = frozen(*problem.inputs)
    frozen._fits = None
    assert torch.equal(found, frozen(*problem.inputs))


def takes(layer: FrozenLayer | TNModule, x: torch.Tensor) -> bool:
    """Whether a layer takes the fast path for an input."""
    return ordinary(x, layer._fits, layer.dtype) is not None


@pytest.mark.parametrize("graph", [LINEAR, CONV])
def test_only_ordinary_inputs_take_the_fast_path(graph: Graph) -> None:
    frozen = tnmars.freeze(tnmars.compile(graph), "fast")
    assert isinstance(frozen, FrozenLayer)
    (x,) = inputs_of(graph)
    assert takes(frozen, x)
    assert not takes(frozen, nn.Parameter(x)), "a subclass may do anything"
    assert not takes(frozen, x.double())
    assert takes(frozen, x[0]) == (graph is LINEAR), "an image without a batch is prepared"
    assert not takes(frozen, x[:, :-1])
    with torch.autocast("cpu"):
        assert not takes(frozen, x)
        assert frozen(x).dtype == torch.bfloat16
    assert takes(frozen, x), "and after the block again"


def test_an_image_that_is_too_small_takes_no_fast_path() -> None:
    graph = tnmars.families.tucker2("conv", **SQUARE, ranks=(4, 4), options={"dilation": 2, "padding": 1})
    frozen = tnmars.freeze(tnmars.compile(graph), "fast")
    assert isinstance(frozen, FrozenLayer)
    assert takes(frozen, torch.ones(1, 8, 3, 3))
    assert frozen(torch.ones(1, 8, 3, 3)).shape == (1, 8, 1, 1)
    with pytest.raises(ShapeError, match="length 2 along spatial axis 2"):
        frozen(torch.ones(1, 8, 3, 2))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_forms_are_priced_for_the_layout_of_the_images(
    layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the layer was compiled for it, or the example lies so."""
    graph = tnmars.families.tucker2("conv", **SQUARE, ranks=(3, 3))
    asked: list[bool] = []
    make = frozen_room.choose_frozen

    def noted(*given: object, channels_last: bool, **options: object) -> object:
        asked.append(channels_last)
        return make(*given, channels_last=channels_last, **options)

    monkeypatch.setattr(frozen_room, "choose_frozen", noted)
    tnmars.freeze(tnmars.compile(graph, memory_format=layout, warn=False), "fast")
    x = torch.randn(2, 8, 9, 9).contiguous(memory_format=layout)
    tnmars.freeze(tnmars.compile(graph, warn=False), "fast", example=x)
    assert asked == [layout is torch.channels_last] * 2
