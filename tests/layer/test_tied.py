"""Bonds that are twice on a core, and cores in several places: against one einsum that knows neither plans nor cuts."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EXACT, Given, mask_of, set_gates
from strategies import cases, keeps, powers, tangled

import tnmars
from tnmars.graph import Graph
from tnmars.program.codec import plan_from_json, plan_to_json


@settings(max_examples=cases(1000), deadline=None)
@given(graph=tangled() | powers(), batch=st.sampled_from((16, 3, 1)), seed=st.integers(0, 2**20))
def test_forward_and_gradients_equal_one_einsum(graph: Graph, batch: int, seed: int) -> None:
    layer = oracle.compiled(graph, batch, dtype=torch.float64)
    task = oracle.problem(graph, batch, seed)
    oracle.load(layer, task)
    answer, gradients = oracle.ask(layer, task)
    wanted = task.answer()
    assert oracle.error(answer, wanted) <= EXACT
    for found, right in zip(gradients, oracle.gradients(wanted, task.leaves), strict=True):
        assert oracle.error(found, right) <= EXACT
    assert oracle.error(layer.dense(), oracle.dense(graph, oracle.whole(graph, task.cores))) <= EXACT
    assert sum(value.numel() for value in layer.cores.parameters()) == tnmars.count(graph).cores
    assert plan_from_json(plan_to_json(layer.programs.plans), graph) == layer.programs.plans


@settings(max_examples=cases(1000), deadline=None)
@given(graph=tangled(), data=st.data(), seed=st.integers(0, 2**20))
def test_every_gate_counts_once_for_every_bond(graph: Graph, data: st.DataObject, seed: int) -> None:
    layer = oracle.compiled(graph, 3, dtype=torch.float64, selector=Given())
    task = oracle.problem(graph, 3, seed)
    oracle.load(layer, task, strict=False)
    values = {name: torch.rand(bond.size, dtype=torch.float64) for name, bond in graph.bonds.items()}
    set_gates(layer, values)
    masks = {name: value.numpy() for name, value in values.items()}
    cores = {name: value.detach().numpy() for name, value in task.cores.items()}
    wanted = oracle.dense(graph, torch.tensor(oracle.tensor(graph, cores, masks)))
    assert oracle.error(layer.dense(), wanted) <= EXACT
    bias = None if layer.bias is None else layer.bias.detach()
    assert oracle.error(layer(*task.inputs), oracle.layer(graph, wanted, bias, *task.inputs)) <= EXACT


@settings(max_examples=cases(1000), deadline=None)
@given(graph=tangled() | powers(), data=st.data(), seed=st.integers(0, 2**20))
def test_masked_equals_pruned(graph: Graph, data: st.DataObject, seed: int) -> None:
    if not graph.bonds:
        return
    kept = data.draw(keeps(graph, least=data.draw(st.integers(0, 1))))
    masked = oracle.compiled(graph, 3, dtype=torch.float64, selector=Given()).eval()
    task = oracle.problem(graph, 3, seed)
    oracle.load(masked, task, strict=False)
    set_gates(masked, {name: mask_of(kept[name], bond.size) for name, bond in graph.bonds.items()})
    small = tnmars.prune(masked)
    assert oracle.error(small(*task.inputs), masked(*task.inputs)) <= EXACT
    assert oracle.error(tnmars.freeze(small)(*task.inputs), masked(*task.inputs)) <= EXACT
    gated = tnmars.prune(masked, keep_gates=True)
    assert oracle.error(gated(*task.inputs), masked(*task.inputs)) <= EXACT
    assert tnmars.loads(tnmars.dump(small.graph)) == small.graph


# --- examples --------------------------------------------------------------------------------------------------------

RING = tnmars.network(
    "linear",
    "A[r1,i1,o1,r2] B=A[r2,i2,o2,r3] C=A[r3,i3,o3,r1]",
    inputs={"i1": 2, "i2": 2, "i3": 2},
    outputs={"o1": 3, "o2": 3, "o3": 3},
    bonds=4,
)
TRAIN = tnmars.network(
    "linear",
    "L[i1,r1] G[r1,i2,o1,r2] H=G[r2,i3,o2,r3] R[r3,o3]",
    inputs={"i1": 2, "i2": 2, "i3": 2},
    outputs={"o1": 3, "o2": 3, "o3": 3},
    bonds=3,
)
TRACE = tnmars.network("linear", "A[r,i,s,r] B[s,o]", inputs={"i": 6}, outputs={"o": 5}, bonds={"r": 3, "s": 4})
SUM = tnmars.network(
    "linear", "a: A[i,r] B[r,o] + b: C=a.A[i,s] D[s,o] + c: E[i,t] F[t,o]", inputs={"i": 6}, outputs={"o": 5}, bonds=3
)
EXAMPLES = {"ring": RING, "train": TRAIN, "trace": TRACE, "sum": SUM}
each_example = pytest.mark.parametrize("graph", EXAMPLES.values(), ids=EXAMPLES)


def inputs_of(graph: Graph, batch: int = 5) -> torch.Tensor:
    return torch.randn(batch, graph.in_features, dtype=torch.float64)


def test_one_parameter_and_one_gate_for_all_places() -> None:
    layer = tnmars.compile(RING, selector=tnmars.Mars())
    assert [name for name, _ in layer.named_parameters()] == ["bias", "cores.A", "gates.r1"]
    assert tnmars.count(RING).cores == 4 * 2 * 3 * 4
    assert tnmars.expected(tnmars.compile(RING)).item() == 96
    assert tnmars.summary(layer).layers[0].parameters == 96
    assert tnmars.keep(layer).keys() == {""}
    assert list(tnmars.keep(layer)[""]) == ["r1"]


@each_example
def test_training_steps_then_a_cut(graph: Graph) -> None:
    """Gates with values between 0 and 1 in evaluation, which the cut multiplies into the cores."""
    layer = tnmars.compile(graph, dtype=torch.float64, selector=tnmars.GaussianGates(), open_only=True)
    optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2, mask_lr=0.5))
    schedule = tnmars.MaskSchedule(layer, total_steps=6)
    x = inputs_of(graph)
    for _ in range(6):
        (layer(x).square().mean() + 0.1 * tnmars.penalty(layer)).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    with torch.no_grad():
        for logits in layer.logits():
            logits.copy_(torch.linspace(0.2, 0.9, len(logits), dtype=torch.float64))
    layer.eval()
    wanted = layer(x)
    assert any(bool(((value > 0) & (value < 1)).any()) for value in layer.gate_values().values())
    small = tnmars.prune(layer)
    assert oracle.error(small(x), wanted) <= EXACT
    tnmars.prune_(layer, optimizer=optimizer)
    assert oracle.error(layer(x), wanted) <= EXACT
    held = {id(value) for group in optimizer.param_groups for value in group["params"]}
    assert held == {id(value) for value in layer.parameters()}
    for core in layer.cores.parameters():
        assert optimizer.state[core]["exp_avg"].shape == core.shape


@each_example
def test_open_slices_alone_give_the_same(graph: Graph) -> None:
    both = [
        tnmars.compile(graph, dtype=torch.float64, selector=tnmars.Mars(), open_only=flag) for flag in (True, False)
    ]
    both[0].load_state_dict(both[1].state_dict())
    x = inputs_of(graph)
    with torch.no_grad():
        for layer in both:
            for logits in layer.logits():
                logits.copy_(torch.tensor([9.0, -9.0, 9.0, 9.0][: len(logits)]))
    answers = [layer(x) for layer in both]
    assert oracle.error(*answers) <= EXACT
    first, second = (
        torch.autograd.grad(y.sum(), list(layer.cores.parameters())) for y, layer in zip(answers, both, strict=True)
    )
    assert all(oracle.error(one, two) <= EXACT for one, two in zip(first, second, strict=True))


@each_example
def test_saved_shipped_exported_and_compiled(graph: Graph, tmp_path: Path) -> None:
    layer = tnmars.compile(graph, dtype=torch.float64, selector=tnmars.Mars()).eval()
    x = inputs_of(graph)
    wanted = layer(x).detach()
    tnmars.save(layer, tmp_path / "layer.safetensors")
    back = tnmars.load_into(torch.nn.Linear(graph.in_features, graph.out_features), tmp_path / "layer.safetensors")
    assert back.graph == graph
    assert oracle.error(back.eval()(x), wanted) <= EXACT
    small = tnmars.prune(layer)
    assert oracle.error(pickle.loads(pickle.dumps(small))(x), wanted) <= EXACT  # noqa: S301
    assert oracle.error(copy.deepcopy(small)(x), wanted) <= EXACT
    for form in ("compact", "fast"):
        frozen = tnmars.freeze(small, form)
        assert oracle.error(frozen(x), wanted) <= EXACT
        assert oracle.error(pickle.loads(pickle.dumps(frozen))(x), wanted) <= EXACT  # noqa: S301
    assert oracle.error(torch.export.export(small, (x,)).module()(x), wanted) <= EXACT
    tnmars.write_source(small, tmp_path / "own.py")
    space: dict[str, object] = {}
    exec((tmp_path / "own.py").read_text(encoding="utf-8"), space)  # noqa: S102
    own = space["Layer"](dtype=torch.float64)
    own.load_state_dict(small.state_dict())
    assert oracle.error(own(x), wanted) <= EXACT
    assert oracle.error(own.weight, small.dense()) <= EXACT


def test_torch_compile() -> None:
    layer = tnmars.compile(RING, dtype=torch.float64)
    x = inputs_of(RING)
    fast = torch.compile(layer, backend="aot_eager", fullgraph=True)
    answers = [fast(x), layer(x)]
    assert oracle.error(*answers) <= EXACT
    gradients = [torch.autograd.grad(answer.square().sum(), layer.cores.get("A"))[0] for answer in answers]
    assert oracle.error(*gradients) <= EXACT


@pytest.mark.parametrize("graph", [TRAIN, RING, TRACE], ids=["train", "ring", "trace"])
def test_wider_bonds_change_nothing_and_can_train(graph: Graph) -> None:
    layer = tnmars.compile(graph, dtype=torch.float64)
    x = inputs_of(graph)
    before = layer(x)
    tnmars.widen_(layer, 6)
    assert all(bond.size == 6 for bond in layer.graph.bonds.values())
    assert oracle.error(layer(x), before) <= EXACT
    layer(x).square().sum().backward()
    for core in layer.cores.parameters():
        assert core.grad.abs().sum() > 0
    small = tnmars.prune(layer, keep={"": {name: range(bond.size) for name, bond in graph.bonds.items()}})
    assert oracle.error(small(x), before) <= EXACT
    assert sum(map(torch.numel, small.cores.parameters())) < sum(map(torch.numel, layer.cores.parameters()))


def test_a_bond_between_an_axis_and_itself_cannot_be_widened() -> None:
    graph = tnmars.network("tensor", "A[i,r] B=A[j,r]", free={"i": 4, "j": 4}, bonds=2)
    layer = tnmars.compile(graph)
    with pytest.raises(tnmars.TnmarsError, match="bond 'r' joins an axis of a core to itself"):
        tnmars.widen_(layer, 3)
    assert torch.equal(layer.dense(), layer.dense().T)


def test_a_term_with_the_numbers_of_another_may_go() -> None:
    """The first core that was tied to one of a removed term holds its numbers then."""
    graph = tnmars.network(
        "linear", "a: A[i,r] B[r,s] C[s,o] + b: D=a.A[i,r] E[r,o]", inputs={"i": 6}, outputs={"o": 5}, bonds=2
    )
    layer = tnmars.compile(graph, dtype=torch.float64)
    held = layer.cores.get("a.A").detach().clone()
    small = tnmars.prune(layer, keep={"": {"a.s": ()}})
    assert str(small.graph.terms[0]) == "D[i, r] E[r, o]"
    assert torch.equal(small.cores.get("D"), held)
    assert list(small.graph.bonds) == ["r"]
    assert tnmars.prune(layer, keep={"": {"a.r": ()}}).graph.terms == ()


@pytest.mark.parametrize("graph", [RING, TRACE], ids=["ring", "trace"])
def test_what_needs_a_tensor_for_each_core_says_so(graph: Graph) -> None:
    has = "tied cores" if graph is RING else "a trace"
    weight = torch.randn(graph.dense_shape)
    for call in (
        lambda: tnmars.decompose(weight, graph),
        lambda: tnmars.prune(tnmars.compile(graph), ranks=2),
        lambda: tnmars.fit(graph, weight),
    ):
        with pytest.raises(tnmars.TnmarsError, match=f"the graph has {has}, and .* needs a tensor of its own"):
            call()


# --- one input in several places, and numbers ------------------------------------------------------------------------


def test_the_power_state_cell_equals_the_outer_product() -> None:
    layer = tnmars.compile(oracle.spec("power_state_cell"), dtype=torch.float64)
    state = torch.randn(7, 24, dtype=torch.float64, requires_grad=True)
    outer = torch.einsum("bi,bj,bk->bijk", state, state, state).reshape(7, -1)
    wanted = outer @ layer.dense().reshape(24**3, 24)
    assert oracle.error(layer(state), wanted) <= EXACT
    assert oracle.error(layer(state=state), wanted) <= EXACT
    one, two = (torch.autograd.grad(y.sin().sum(), state, retain_graph=True)[0] for y in (layer(state), wanted))
    assert oracle.error(one, two) <= EXACT
    assert oracle.error(tnmars.freeze(layer)(state), wanted) <= EXACT
    with pytest.raises(tnmars.ShapeError, match="the layer takes inputs state, each once"):
        layer(state, state)


def test_an_output_of_causal_attention_does_not_see_what_comes_later() -> None:
    layer = tnmars.compile(oracle.spec("causal_attention"), dtype=torch.float64)
    length, at = 6, 3
    given = [torch.randn(2, length, 24, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.ones(length, length, dtype=torch.float64).tril()
    gradients = torch.autograd.grad(layer(*given, mask)[:, at].sum(), given)
    for value in gradients:
        assert torch.equal(value[:, at + 1 :], torch.zeros_like(value[:, at + 1 :]))
    for value in gradients[1:]:
        assert bool((value[:, : at + 1] != 0).any(-1).all())
    assert bool(torch.autograd.grad(layer(*given, mask.fill_(1.0))[:, at].sum(), given)[1][:, at + 1 :].any())


def test_a_number_for_each_sample_and_one_number() -> None:
    layer = tnmars.compile(tnmars.einsum("bi,i->b", i=4), dtype=torch.float64)
    x = torch.randn(5, 4, dtype=torch.float64)
    assert oracle.error(layer(x), x @ layer.cores.get("W1")) <= EXACT
    graph = tnmars.einsum("i,ir,rr->", None, (4, 3), (3, 3))
    assert tnmars.loads(tnmars.dump(graph)) == graph
    assert str(graph).splitlines()[0] == "map (unnamed): x -> a number, weight 4"
    one = tnmars.compile(graph, dtype=torch.float64)
    wanted = torch.einsum("i,ir,rr->", x[0], one.cores.get("W1"), one.cores.get("W2"))
    assert one(x[0]).shape == ()
    assert oracle.error(one(x[0]), wanted) <= EXACT
    assert oracle.error(tnmars.freeze(one)(x[0]), wanted) <= EXACT
    assert oracle.error(torch.export.export(one, (x[0],)).module()(x[0]), wanted) <= EXACT
    with pytest.raises(tnmars.GraphError, match="has no core: every operand is an input"):
        tnmars.einsum("bi,bi->b")
