"""Masks on bonds: each acts exactly once; gates, penalty and a training step are the paper's formulas."""

from __future__ import annotations

import math
import warnings
from collections import Counter as CountedCalls
from itertools import pairwise
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import BONDED, Given, inputs_of, lowrank, mask_of, set_gates
from oracle import compiled, error, spec
from strategies import cases, graphs, keeps
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tnmars
import tnmars.graph.rewrite
import tnmars.program.form
import tnmars.select.distributions
from tnmars import GaussianGates, Mars
from tnmars.graph import Graph
from tnmars.program.gating import homes, masked
from tnmars.program.instructions import Scale
from tnmars.program.program import Program, verify
from tnmars.select import from_settings

DATA = 1000
"""How many data a description length is computed for."""


# --- a mask acts once ------------------------------------------------------------------------------------------------


def masked_program(layer: tnmars.TNModule) -> Program:
    """The program of the nominal batch with its gates."""
    program = masked(layer.plan("train", layer.nominal).program, layer.graph)
    verify(program)
    return program


def fetched(layer: tnmars.TNModule, scale: Scale) -> tuple[str, ...]:
    """The cores that an instruction scales; no other instruction scales them."""
    return next(entry.cores for entry in masked_program(layer).fold if entry.out == scale.source)


class Counter(TorchDispatchMode):
    """Notes the operations that are run, and how many numbers each gives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        name = function.overloadpacket._qualified_op_name.partition("::")[2]
        self.calls.append((name, found.numel() if isinstance(found, torch.Tensor) else 0))
        return found


@pytest.mark.parametrize("name", BONDED)
def test_gates_cost_one_vector_operation_and_one_product_for_each_core(name: str) -> None:
    counts = []
    for selector in (None, Mars()):
        layer = compiled(spec(name), batch=2, selector=selector)
        inputs = inputs_of(layer.graph, 2)
        with Counter() as counter:
            layer(*inputs)
        counts.append(CountedCalls(counter.calls))
    more = counts[1] - counts[0]
    gates = sum(bond.size for bond in layer.graph.bonds.values())
    assert [size for (kind, size), times in more.items() if kind == "sigmoid" for _ in range(times)] == [gates]
    entries, smaller = scaled_sizes(layer)
    products = CountedCalls({size: times for (kind, size), times in more.items() if kind == "mul"})
    for size, times in products.items():
        vector = 5 * (size == gates) + (size == 1)  # of all gates at once, and of the temperature
        assert times <= entries[size] + smaller[size] + vector, size
    scales = [entry for entry in masked_program(layer).fold if isinstance(entry, Scale)]
    assert len({core for entry in scales for core in fetched(layer, entry)}) == len(homes(layer.graph))


def scaled_sizes(layer: tnmars.TNModule) -> tuple[CountedCalls, CountedCalls]:
    """The sizes of what is scaled, equal cores of several terms as one; and of products of gates with each other."""
    program = masked_program(layer)
    sizes = dict(program.sizes)
    entries, smaller = CountedCalls(), CountedCalls()
    for scale in program.fold:
        if isinstance(scale, Scale):
            entries[prod(sizes[label] for axis in scale.axes for label in axis)] += 1
            size = len(scale.gates[0][1]) * sizes.get(scale.gates[0][0], 1)
            for label, _ in scale.gates[1:]:
                size *= sizes.get(label, 1)
                smaller[size] += 1
    return entries, smaller


def test_gradients_of_gradients() -> None:
    warnings.simplefilter("ignore")  # that the schedule is not stepped
    layer = lowrank(Mars(temperature=(0.7, 0.7), spread=0.3))
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    values = [parameter.detach().clone().requires_grad_() for parameter in layer.parameters()]
    names = [name for name, _ in layer.named_parameters()]

    def run(*given_: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(names, given_[1:], strict=True)), (given_[0],))

    assert torch.autograd.gradcheck(run, (x, *values))
    assert torch.autograd.gradgradcheck(run, (x, *values))


# --- the formulas of the paper ---------------------------------------------------------------------------------------


def by_hand(logits: np.ndarray, uniform: np.ndarray, temperature: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        relaxed = 1 / (1 + np.exp(-(logits + np.log(uniform) - np.log1p(-uniform)) / temperature))
    return np.clip(relaxed * 1.2 - 0.1, 0, 1)


@pytest.mark.parametrize("temperature", [0.1, 0.01, 2 / 3])
def test_samples_are_hard_concrete(temperature: float) -> None:
    random = np.random.default_rng(0)
    logits, uniform = random.normal(0, 2, 1000), random.uniform(0.001, 0.999, 1000)
    noise = tnmars.select.distributions.logistic_noise(torch.tensor(uniform))
    found = tnmars.select.distributions.hard_concrete(torch.tensor(logits), noise, torch.tensor(temperature))
    np.testing.assert_allclose(found.numpy(), by_hand(logits, uniform, temperature), atol=1e-6)


def test_noise_of_any_uniform_number_is_finite() -> None:
    for dtype in (torch.float32, torch.float64):
        assert tnmars.select.distributions.logistic_noise(torch.tensor([0.0, 1.0, 0.5], dtype=dtype)).isfinite().all()


def test_the_penalty_is_the_papers() -> None:
    layer = lowrank(Mars(pi=0.03, sigma=5.0, spread=1.0))
    phi = 1 / (1 + np.exp(-layer.logits()[0].detach().numpy()))
    masks = -np.sum(phi * math.log(0.03) + (1 - phi) * math.log(0.97))
    cores = sum(float((core.detach() ** 2).sum()) for core in layer.cores.parameters())
    assert tnmars.penalty(layer).item() == pytest.approx(masks + 0.5 / 25 * cores, abs=1e-6)


def test_a_training_step_is_the_one_by_hand() -> None:
    """Loss, gradients and one step of Adam against numpy, for given uniforms."""
    torch.manual_seed(0)
    layer = lowrank(Mars(pi=0.02, alpha=0.3, spread=0.5, temperature=(0.5, 0.5)), bias=False)
    uniform = np.array([0.3, 0.6, 0.45, 0.5])
    layer.masks.redraw_(tnmars.select.distributions.logistic_noise(torch.tensor(uniform)), 0.5, is_warm=False)
    x, y = torch.randn(7, 6, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    first, second = (layer.cores.get(name).detach().numpy().copy() for name in ("A", "B"))
    logits = layer.logits()[0].detach().numpy().copy()

    relaxed = 1 / (1 + np.exp(-(logits + np.log(uniform / (1 - uniform))) / 0.5))
    gate = np.clip(relaxed * 1.2 - 0.1, 0, 1)
    out = x.numpy() @ first @ np.diag(gate) @ second
    off = 2 * (out - y.numpy()) / out.size
    phi = 1 / (1 + np.exp(-logits))
    prior = -np.sum(phi * math.log(0.02) + (1 - phi) * math.log(0.98)) + 0.005 * (np.sum(first**2) + np.sum(second**2))
    d_first = x.numpy().T @ off @ second.T @ np.diag(gate) + 0.01 * first / 50
    d_second = np.diag(gate) @ first.T @ x.numpy().T @ off + 0.01 * second / 50
    d_gate = np.diag(first.T @ x.numpy().T @ off @ second.T)
    inside = (gate > 0) & (gate < 1)
    d_logits = d_gate * inside * 1.2 * relaxed * (1 - relaxed) / 0.5 + phi * (1 - phi) * math.log(0.98 / 0.02) / 50

    optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2))
    loss = (layer(x) - y).square().mean() + tnmars.penalty(layer) / 50
    loss.backward()
    assert loss.item() == pytest.approx(np.mean((out - y.numpy()) ** 2) + prior / 50, abs=1e-6)
    np.testing.assert_allclose(layer.logits()[0].grad.numpy(), d_logits, atol=1e-6)
    optimizer.step()
    wanted = (first, d_first), (second, d_second), (logits, d_logits)
    for found, (value, slope) in zip(
        [layer.cores.get("A"), layer.cores.get("B"), *layer.logits()], wanted, strict=True
    ):
        np.testing.assert_allclose(found.detach().numpy(), value - 1e-2 * slope / (np.abs(slope) + 1e-8), atol=1e-6)


def test_straight_through_rounds_forward_and_keeps_the_gradient() -> None:
    logits = torch.tensor([0.2, -0.1], requires_grad=True)
    noise, temperature = torch.zeros(2), torch.tensor(0.5)
    hard = Mars(straight_through=True).sample(logits, noise, temperature)
    (slope,) = torch.autograd.grad(hard.sum(), logits)
    (wanted,) = torch.autograd.grad(Mars().sample(logits, noise, temperature).sum(), logits)
    assert hard.tolist() == [1.0, 0.0]
    assert torch.equal(slope, wanted) and slope.abs().min() > 0


# --- selectors -------------------------------------------------------------------------------------------------------


def test_gaussian_gates_leave_one_open() -> None:
    layer = lowrank(GaussianGates())
    tnmars.MaskSchedule(layer, 20)
    set_gates(layer, {"r": torch.full((4,), -100.0)})
    assert layer.gate_values()["r"].tolist() == [1, 0, 0, 0]
    assert layer.eval().gate_values()["r"].tolist() == [1, 0, 0, 0]
    assert layer.masks.probability(layer.logits()).tolist() == [1, 0, 0, 0]
    assert tnmars.keep(layer) == {"": {"r": (0,)}}


@pytest.mark.parametrize(
    ("settings_", "text"),
    [
        (dict(pi=0), "pi is 0, but must be strictly between 0 and 1."),
        (dict(temperature=(0.01, 0.1)), "temperature is (0.01, 0.1), but must be above 0 and must not rise."),
        (dict(price="gold"), "price is 'gold', but must be one of uniform, parameters, macs, bic."),
        (dict(price="bic"), "price 'bic' needs the number of data, for example Mars(price='bic', samples=60000)."),
        (dict(min_keep=-1), "min_keep is -1, but must be a whole number, at least 0."),
        (dict(min_keep=2.5), "min_keep is 2.5, but must be a whole number, at least 0."),
        (dict(alpha=math.nan), "alpha is nan, but must be a number."),
        (dict(pi="a"), "pi is 'a', but must be a number."),
        (dict(spread=-1), "spread is -1, but must be a number, at least 0."),
        (
            dict(temperature=(1, 2, 3)),
            "temperature is (1, 2, 3), but must be a number, or two numbers: the first and the last.",
        ),
        (dict(sigma=0), "sigma is 0, but must be a number above 0."),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings_: dict[str, object], text: str) -> None:
    with pytest.raises(tnmars.TnmarsError) as caught:
        Mars(**settings_)
    assert text in str(caught.value)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(tnmars.TnmarsError, match=r"no setting 'alfa'.*Did you mean 'alpha'"):
        from_settings({"name": "mars", "alfa": 1})
    with pytest.raises(tnmars.TnmarsError, match="selector 'venus' is unknown, but must be one of mars"):
        from_settings({"name": "venus"})


# --- prices ----------------------------------------------------------------------------------------------------------


@given(graphs(bonded=True, terms=2), st.data())
@settings(max_examples=cases(400), deadline=None)
def test_expected_counts_are_exact_for_hard_gates(graph: Graph, data: st.DataObject) -> None:
    """With gates of 0 or 1 the expectation is the count of the pruned graph."""

    class Hard(Given):
        def probability(self, logits):
            return logits

    kept = data.draw(keeps(graph))
    layer = compiled(graph, batch=4, selector=Hard())
    set_gates(layer, {name: mask_of(kept[name], bond.size) for name, bond in graph.bonds.items()})
    pruned = tnmars.graph.rewrite.prune(graph, kept).graph
    assert tnmars.expected(layer).item() == tnmars.count(pruned).cores
    full = {name: torch.ones(bond.size) for name, bond in graph.bonds.items()}
    set_gates(layer, full)
    form = layer.plan("infer", 4)
    measured = tnmars.program.form.total(tnmars.program.form.measure(form)).macs
    assert tnmars.expected(layer, "macs").item() == pytest.approx(measured, rel=1e-6)  # float32 has 24 bits


@pytest.mark.parametrize("price", ["uniform", "parameters", "macs", "bic"])
def test_a_live_slice_costs_the_same_when_shut_ones_are_dropped(price: str) -> None:
    layer = lowrank(Mars(price=price, samples=DATA, sigma=1e6))
    set_gates(layer, {"r": torch.tensor([3.0, -60.0, 2.0, -60.0])})
    slopes = []
    for _ in range(2):
        layer.zero_grad()
        tnmars.penalty(layer).backward()
        slopes.append(layer.logits()[0].grad[[0, -1 if layer.graph.bonds["r"].size == 2 else 2]])
        if layer.graph.bonds["r"].size == 4:
            tnmars.prune_(layer, keep_gates=True)
    assert error(slopes[1], slopes[0]) <= 1e-6


@pytest.mark.parametrize("price", ["uniform", "parameters", "macs", "bic"])
def test_prices(price: str) -> None:
    graph = tnmars.network(
        "linear", "A[i,r] B[r,j,s] C[s,o]", inputs=dict(i=2, j=3), outputs=dict(o=5), bonds=dict(r=4, s=6)
    )
    layer = compiled(graph, selector=Mars(price=price, samples=DATA, sigma=1e6), dtype=torch.float64)
    a, b = (part.sigmoid().sum().item() for part in layer.logits())
    parameters = 2 * a + 3 * a * b + 5 * b
    charge = math.log(0.99 / 0.01)
    wanted = {
        "uniform": charge * (a + b) - 10 * math.log(0.99),
        "parameters": charge * parameters * 10 / (2 * 4 + 3 * 4 * 6 + 5 * 6) - 10 * math.log(0.99),
        "bic": 0.5 * math.log(DATA) * parameters,
    }
    macs = tnmars.expected(layer, "macs").item()
    full = tnmars.program.form.total(tnmars.program.form.measure(layer.plan("infer", layer.nominal))).macs
    wanted["macs"] = charge * macs * 10 / full - 10 * math.log(0.99)
    found = tnmars.penalty(layer)
    assert found.item() == pytest.approx(wanted[price], rel=1e-6)
    found.backward()
    assert all(float(value.grad.min()) > 0 for value in layer.logits()), "a more open gate costs more"


# --- schedule --------------------------------------------------------------------------------------------------------


def test_the_temperature_is_the_references() -> None:
    """0.1 times 0.99 per epoch, with a floor of 0.01."""
    warnings.simplefilter("ignore")  # that no gate moves
    layer = lowrank(Mars())
    schedule = tnmars.MaskSchedule(layer, decay_steps=3 * math.log(0.1) / math.log(0.99), every=3)
    for step in range(900):
        wanted = max(0.1 * 0.99 ** (step // 3), 0.01)
        assert layer.masks.temperature.item() == pytest.approx(wanted, rel=1e-9), step
        schedule.step()


def test_warm_up_has_no_gates_and_moves_no_logit() -> None:
    layer = lowrank(Mars(alpha=-3.0))
    plain = lowrank()
    plain.load_state_dict(layer.state_dict(), strict=False)
    optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2))
    schedule = tnmars.MaskSchedule(layer, 10, warmup_steps=2, optimizer=optimizer)
    before = layer.logits()[0].detach().clone()
    x = torch.randn(7, 6, dtype=torch.float64)
    assert error(layer(x), plain(x)) <= 1e-12
    assert error(layer.eval()(x), plain(x)) <= 1e-12
    layer.train()
    for _ in range(2):
        squares = sum(float(core.detach().square().sum()) for core in layer.cores.parameters())
        assert tnmars.penalty(layer).item() == pytest.approx(0.005 * squares)
        (layer(x).square().mean() + tnmars.penalty(layer)).backward()
        assert layer.logits()[0].grad is not None, "no parameter is unused, or DDP would complain"
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    assert torch.equal(layer.logits()[0], before)
    assert not schedule.is_warm
    (layer(x).square().mean() + tnmars.penalty(layer)).backward()
    optimizer.step()
    assert not torch.equal(layer.logits()[0], before)


@pytest.mark.parametrize("warmup", [0, 50, 500])
def test_gates_start_afresh_after_warm_up(warmup: int) -> None:
    """Adam has counted warm-up steps with gradients of zero: its first steps would be several times too long."""
    torch.manual_seed(0)
    layer = lowrank(Mars())
    optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2))
    schedule = tnmars.MaskSchedule(layer, 10_000, warmup_steps=warmup, optimizer=optimizer)
    before = layer.logits()[0].detach().clone()
    for _ in range(warmup + 20):
        tnmars.penalty(layer).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    assert error(layer.logits()[0], before - 0.2) <= 0.01


def test_warm_up_without_the_optimizer_is_reported() -> None:
    schedule = tnmars.MaskSchedule(lowrank(Mars()), 10, warmup_steps=1)
    with pytest.warns(UserWarning, match="warm-up has ended"):
        schedule.step()


def test_the_noise_of_a_layer_does_not_depend_on_others() -> None:
    model = nn.Sequential(lowrank(Mars()), lowrank(Mars()))
    tnmars.MaskSchedule(model, 10, seed=3)
    noise = model[1].masks.noise.clone()
    assert not torch.equal(noise, model[0].masks.noise)
    tnmars.prune_(model, keep={"0": {"r": (0,)}})
    tnmars.MaskSchedule(model, 10, seed=3)
    assert torch.equal(model[1].masks.noise, noise)


def test_the_cores_are_the_same_with_and_without_gates() -> None:
    layers = []
    for selector in (None, Mars()):
        torch.manual_seed(4)
        layers.append(lowrank(selector))
    assert all(torch.equal(layers[0].state_dict()[key], layers[1].state_dict()[key]) for key in layers[0].state_dict())


def test_gates_keep_their_digits_in_half_precision() -> None:
    layer = lowrank(Mars(alpha=-4.0)).float()
    before = layer.logits()[0].detach().clone()
    layer = layer.to(torch.bfloat16)
    assert layer.logits()[0].dtype == torch.float32 and torch.equal(layer.logits()[0].detach(), before)
    assert layer.masks.noise.dtype == torch.float32
    x = torch.randn(7, 6, dtype=torch.bfloat16)
    for way in (layer.train(), layer.eval()):
        assert way(x).dtype == torch.bfloat16
    layer.train()(x).sum().backward()
    assert layer.logits()[0].grad.dtype == torch.float32


def test_a_layer_from_the_meta_device_is_whole() -> None:
    graph = tnmars.network("linear", "A[i,r] B[r,o]", inputs=dict(i=6), outputs=dict(o=5), bonds=4)
    layer = tnmars.compile(graph, selector=Mars(), device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    tnmars.MaskSchedule(layer, 10)
    assert layer.masks.places.tolist() == [0, 1, 2, 3] and int(layer.masks.drawn) == 4
    assert layer(torch.randn(2, 6)).isfinite().all()


def test_noise_depends_on_seed_and_step_alone() -> None:
    one, two = lowrank(Mars()), lowrank(Mars())
    first, second = tnmars.MaskSchedule(one, 10, seed=3), tnmars.MaskSchedule(two, 10, seed=3)
    seen = []
    for _ in range(5):
        assert torch.equal(one.masks.noise, two.masks.noise)
        seen.append(one.masks.noise.clone())
        torch.rand(1)
        first.step()
        second.step()
    assert all(not torch.equal(a, b) for a, b in pairwise(seen))
    third = tnmars.MaskSchedule(two, 10, seed=9)
    third.load_state_dict(first.state_dict())
    assert torch.equal(one.masks.noise, two.masks.noise) and third.steps == 5


def test_forward_draws_nothing() -> None:
    layer = lowrank(Mars())
    state = torch.get_rng_state()
    x = torch.randn(7, 6, dtype=torch.float64)
    after = torch.get_rng_state()
    assert torch.equal(layer(x), layer(x))
    assert torch.equal(torch.get_rng_state(), after) and not torch.equal(state, after)


def test_logits_have_no_weight_decay() -> None:
    model = nn.Sequential(lowrank(Mars()), nn.Linear(5, 2))
    groups = tnmars.param_groups(model, lr=0.1, mask_lr=0.3, weight_decay=0.5)
    assert [(group["lr"], group["weight_decay"], len(group["params"])) for group in groups] == [
        (0.1, 0.5, 5),
        (0.3, 0.0, 1),
    ]
    assert tnmars.param_groups(model, lr=0.1, mask_lr=0.0)[1]["lr"] == 0.0
    own = torch.optim.AdamW(tnmars.param_groups(model, lr=0.1), weight_decay=0.3)
    assert [group["weight_decay"] for group in own.param_groups] == [0.3, 0.0]


def test_a_forgotten_schedule_is_reported_once() -> None:
    layer = lowrank(Mars())
    x = torch.randn(7, 6, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2500):
            layer(x)
    assert [str(entry.message).partition(":")[0] for entry in told] == [
        "1,000 training passes with the same sample of the gates"
    ]


def test_gates_that_do_not_move_are_reported_once() -> None:
    layer = lowrank(Mars())
    schedule = tnmars.MaskSchedule(layer, 1000)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(300):
            schedule.step()
    assert [str(entry.message).partition(".")[0] for entry in told] == ["no gate has moved in 100 steps"]


def test_trained_gates_are_not_warned_about() -> None:
    layer = lowrank(Mars())
    schedule = tnmars.MaskSchedule(layer, 1000)
    optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2))
    x = torch.randn(7, 6, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(250):
            (layer(x).square().mean() + tnmars.penalty(layer) / 10).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        (dict(), "needs a length"),
        (dict(total_steps=10, warmup_steps=10), "warmup_steps is 10, but must be less than total_steps, 10."),
        (dict(total_steps=-5), "must be less than total_steps, -5."),
        (dict(decay_steps=0), "decay_steps is 0"),
        (dict(decay_steps=math.nan), "decay_steps is nan"),
        (dict(total_steps=5, every=0), "every is 0, but must be at least 1."),
    ],
)
def test_schedules_that_make_no_sense_are_refused(given_: dict[str, object], text: str) -> None:
    with pytest.raises(tnmars.TnmarsError, match=text):
        tnmars.MaskSchedule(lowrank(Mars()), **given_)


def test_words_that_make_no_sense_are_refused() -> None:
    with pytest.raises(tnmars.TnmarsError, match=r"what is 'params', but must be 'parameters' or 'macs'\."):
        tnmars.expected(lowrank(Mars()), "params")
    with pytest.raises(tnmars.TnmarsError, match="selector is 'mars'"):
        lowrank("mars")
    empty = tnmars.prune(lowrank(Mars(alpha=-9.0, min_keep=0)))
    assert tnmars.expected(empty, "macs").item() == 0


# --- fits ------------------------------------------------------------------------------------------------------------


def test_masked_layers_compile_export_and_copy() -> None:
    import copy

    layer = lowrank(Mars()).float()
    x = torch.randn(7, 6)
    wanted = layer(x)
    assert error(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), wanted) <= 1e-6
    assert error(copy.deepcopy(layer)(x), wanted) == 0
    state = {name: torch.stack([value, value]) for name, value in layer.named_parameters()}
    many = torch.func.vmap(lambda parameters: torch.func.functional_call(layer, parameters, (x,)))(state)
    assert error(many[1], wanted) <= 1e-6
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(layer, (x,), dynamic_shapes=(({0: batch},),)).module()
    assert error(exported(x), wanted) <= 1e-6 and exported(torch.randn(11, 6)).shape == (11, 5)
    frozen = tnmars.freeze(layer)
    assert error(frozen(x), layer.eval()(x)) <= 1e-6
    with tnmars.cached(layer):
        assert error(layer(x), frozen(x)) <= 1e-6
    with torch.autocast("cpu", torch.bfloat16):
        layer.train()
        loss = layer(x).float().square().mean()
    loss.backward()
    assert layer.logits()[0].dtype == torch.float32 and layer.logits()[0].grad.dtype == torch.float32
