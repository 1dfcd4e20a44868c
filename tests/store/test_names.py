"""What can be trained can be saved and read: many terms, and names that torch or the file format use themselves."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import tnmars
from tnmars.errors import GraphError, TnmarsError
from tnmars.spec.nodes import MAX_BYTES

COPIES = """
tnmars: 1
kind: linear
modes: {in: {i: 4, j: 2}, out: {o: 3}}
terms:
  t:
    copies: 900
    bonds: {r: 1, s: 1}
    cores: {A: [i, r], B: [r, j, s], C: [s, o]}
"""
NAMES = ("_modules", "_parameters", "_buffers", "__metadata__", "__class__", "training", "state_dict")


def test_many_copies_are_saved_written_and_read(tmp_path: Path) -> None:
    graph = tnmars.loads(COPIES)
    tnmars.save_spec(graph, tmp_path / "a.yaml")
    assert tnmars.load(tmp_path / "a.yaml") == graph
    layer = tnmars.compile(graph, batch=4)
    tnmars.save(layer, tmp_path / "a")
    back = tnmars.load_into(nn.Identity(), tmp_path / "a")
    x = torch.randn(2, 8)
    assert back.graph == graph and torch.equal(back(x), layer(x))


def test_many_copies_with_long_names_too(tmp_path: Path) -> None:
    long = {name: name * 56 for name in "ABr"}
    inside = f"{{copies: 3000, bonds: {{{long['r']}: 2}}, cores: {{{long['A']}: [i, {long['r']}], "
    text = "tnmars: 1\nkind: linear\nmodes: {in: {i: 3}, out: {o: 2}}\nterms:\n  t: "
    graph = tnmars.loads(f"{text}{inside}{long['B']}: [{long['r']}, o]}}}}\n")
    tnmars.save_spec(graph, tmp_path / "a.yaml")
    assert (tmp_path / "a.yaml").stat().st_size > 1_000_000
    assert tnmars.load(tmp_path / "a.yaml") == graph
    layer = tnmars.compile(graph, batch=4)
    tnmars.save(layer, tmp_path / "a")
    assert tnmars.load_into(nn.Identity(), tmp_path / "a").graph == graph


def test_the_longest_spec_is_read() -> None:
    """As many terms, parts and axes as the rules allow, all with names of the greatest length."""
    modes = [f"m{at:_>99}" for at in range(22)]
    sizes = ", ".join(f"{name}: 1" for name in modes)
    cores = f"{{{'C' * 100}: [{', '.join(modes[:11])}], {'D' * 100}: [{', '.join(modes[11:])}]}}"
    text = f"tnmars: 1\nkind: tensor\nmodes: {{free: {{{sizes}}}}}\nterms:\n  {'t' * 96}: "
    graph = tnmars.loads(f"{text}{{copies: 4545, cores: {cores}}}\n")
    written = tnmars.dump(graph)
    assert 10_000_000 < len(written) < MAX_BYTES
    assert tnmars.loads(written) == graph


@pytest.mark.parametrize("what", ["core", "bond", "mode", "term"])
@pytest.mark.parametrize("name", NAMES)
def test_names_that_torch_uses_itself(name: str, what: str, tmp_path: Path) -> None:
    used = {"core": "A", "bond": "r", "mode": "i", "term": "t", what: name}
    inside = f"bonds: {{{used['bond']}: 2}}, cores: {{{used['core']}: [{used['mode']}, {used['bond']}], "
    inside += f"B: [{used['bond']}, o]}}"
    text = f"tnmars: 1\nkind: linear\nmodes: {{in: {{{used['mode']}: 4}}, out: {{o: 3}}}}\n"
    graph = tnmars.loads(f"{text}terms: {{{used['term']}: {{{inside}}}, t2: {{{inside}}}}}\n")
    assert tnmars.loads(tnmars.dump(graph)) == graph
    layer = tnmars.compile(graph, selector=tnmars.Mars(spread=1.0), batch=4)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    tnmars.save(layer, tmp_path / "a")
    tnmars.save_checkpoint(tmp_path / "b", layer, optimizer)
    fresh = tnmars.compile(graph, selector=tnmars.Mars(spread=1.0), batch=4)
    tnmars.load_checkpoint(tmp_path / "b", fresh, torch.optim.Adam(fresh.parameters()))
    x = torch.randn(2, 4)
    expected = layer.eval()(x)
    for other in (tnmars.load_into(nn.Identity(), tmp_path / "a"), fresh, copy.deepcopy(layer)):
        assert torch.equal(other.eval()(x), expected)
    assert torch.allclose(tnmars.prune(layer)(x), expected, atol=1e-5)
    assert torch.allclose(tnmars.freeze(layer)(x), expected, atol=1e-5)


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_half_of_a_surrogate_pair_is_refused_at_once(text: str) -> None:
    graph = tnmars.families.lowrank("linear", inputs=(4,), outputs=(3,), rank=2)
    for origin in ({"note": text}, {"note": {text: 1}}, {"note": [text]}):
        with pytest.raises(GraphError, match="origin must be plain data"):
            graph.with_origin(origin)
    with pytest.raises(GraphError, match="the graph's name must be one line of text"):
        tnmars.Graph(graph.kind, graph.modes, graph.terms, name=text)


def test_a_module_may_have_any_name(tmp_path: Path) -> None:
    model = nn.Module()
    graph = tnmars.families.lowrank("linear", inputs=(4,), outputs=(3,), rank=2)
    for name in ("__metadata__", "größe"):
        model.add_module(name, tnmars.compile(graph))
    tnmars.save(model, tmp_path / "a")
    fresh = copy.deepcopy(model)
    for value in fresh.parameters():
        value.data.zero_()
    tnmars.load_into(fresh, tmp_path / "a")
    assert all(value.equal(fresh.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("inner", [nn.Linear(2, 2), tnmars.compile(tnmars.loads(COPIES.replace("900", "2")))])
def test_a_module_with_half_of_a_surrogate_pair_as_its_name(inner: nn.Module, tmp_path: Path) -> None:
    model = nn.Module()
    model.add_module("a\ud800", inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for save in (
        lambda: tnmars.save(model, tmp_path / "a"),
        lambda: tnmars.save_checkpoint(tmp_path / "a", model, optimizer),
    ):
        with pytest.raises(TnmarsError, match=r"^the name 'a\\ud800.*' holds half of a surrogate pair"):
            save()
    assert not list(tmp_path.iterdir())


def test_a_message_can_always_be_printed() -> None:
    with pytest.raises(GraphError) as caught:
        tnmars.network("linear", "A[i,b] \ud800[b,o]", inputs={"i": 4}, outputs={"o": 3}, bonds=2)
    assert "got '\\ud800'" in str(caught.value).encode().decode()


def test_an_integer_that_no_file_holds(tmp_path: Path) -> None:
    layer = tnmars.compile(tnmars.loads(COPIES.replace("900", "2")))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    tnmars.save_checkpoint(tmp_path / "a", layer, optimizer, extra={"n": 2**9999})
    assert tnmars.load_checkpoint(tmp_path / "a", layer, optimizer).extra == {"n": 2**9999}
    with pytest.raises(TnmarsError, match=r"^extra\.n is an integer of 16,610 bits, but a file holds up to 10,000\."):
        tnmars.save_checkpoint(tmp_path / "a", layer, optimizer, extra={"n": 10**5000})
