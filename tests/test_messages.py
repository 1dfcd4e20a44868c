"""The text of every error, in full.

Beside each file in golden/invalid stands what `tnmars check` says about it; what only Python can provoke is called here
and written down in golden/invalid/python.txt. `TNMARS_REWRITE_GOLDEN=1 pytest -k golden` rewrites them all.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tnmars
from tnmars import Builder, network
from tnmars.cli import run
from tnmars.errors import Problem, TnmarsError
from tnmars.families import FAMILIES
from tnmars.graph import Core, Edge, Graph, Operand, Role, Term, topology
from tnmars.graph.factor import factor
from tnmars.graph.rewrite import prune, widen
from tnmars.spec import loads, read

INVALID = Path(__file__).parent / "golden" / "invalid"
PYTHON = INVALID / "python.txt"
REWRITE = os.environ.get("TNMARS_REWRITE_GOLDEN") == "1"

FILES = sorted(INVALID.glob("*.yaml"))
TT = "tnmars: 1\nkind: linear\nparams: {rank: 2}\nmodes: {in: {i: 4}, out: {o: 5}}\nbonds: {r: rank}\n"
TT += "cores: {A: [i, r], B: [r, o]}\n"


def _linear(text: str = "A[i,r] B[r,o]", bonds: object = 2, **weight: object) -> Graph:
    return network("linear", text, **{"inputs": {"i": 4}, "outputs": {"o": 5}, "bonds": bonds, **weight})  # type: ignore[arg-type]


def _map(**weight: object) -> Graph:
    given = {"inputs": {"i": 4}, "outputs": {"o": 5}, "arguments": {"x": "b i"}, "result": "b o", **weight}
    return network("map", "A[i,o]", **given)  # type: ignore[arg-type]


def _conv(**weight: object) -> Graph:
    given = {"inputs": {"i": 4}, "outputs": {"o": 5}, "kernel": {"k": 9}, "kernel_size": (3, 3), **weight}
    return network("conv", "A[i,o,k]", **given)  # type: ignore[arg-type]


def _embedding(**weight: object) -> Graph:
    return network("embedding", "A[v,o]", **{"lookup": {"v": 4}, "outputs": {"o": 5}, **weight})  # type: ignore[arg-type]


def _graph(*cores: Core, **fields: object) -> Graph:
    modes = (Edge("i", 4, Role.IN), Edge("o", 5, Role.OUT))
    given = {
        "kind": "linear",
        "modes": modes,
        "terms": (Term("main", (), cores or (Core("W", ("i", "o")),)),),
        **fields,
    }
    return Graph(**given)  # type: ignore[arg-type]


def _wide() -> str:
    names = ", ".join(f"n{at}" for at in range(2000))
    sizes = ", ".join(f"n{at}: 1" for at in range(2000))
    terms = f"{{t: {{copies: 60, cores: {{A: [{names}]}}}}}}"
    return f"tnmars: 1\nkind: tensor\nmodes: {{free: {{{sizes}}}}}\nterms: {terms}\n"


CALLS: dict[str, Callable[[], object]] = {
    # spec: what a file of a few lines cannot show
    "file_too_large": lambda: loads("#" * 16_000_001),
    "file_too_many_nodes": lambda: loads("a: [" + "x, " * 150_000 + "]"),
    "file_too_many_axes": lambda: loads(_wide()),
    "file_not_there": lambda: tnmars.load("no/such.yaml"),
    "file_with_a_bad_name": lambda: tnmars.load("a\0b"),
    "param_unknown": lambda: loads(TT, rnk=3),
    "param_bad": lambda: loads(TT, rank=0),
    # parts
    "edge_name": lambda: Edge("1r", 4),
    "edge_long_name": lambda: Edge("r" * 101, 4),
    "edge_size": lambda: Edge("r", 0),
    "edge_size_text": lambda: Edge("r", "4"),  # type: ignore[arg-type]
    "core_edges": lambda: Core("A", "ir"),  # type: ignore[arg-type]
    "core_name": lambda: Core("A-1", ()),
    "core_conj": lambda: Core("A", (), conj="yes"),  # type: ignore[arg-type]
    "term_names": lambda: Term("t", (Edge("r", 1), Edge("r", 2)), (Core("A", ()), Core("A", ()))),
    "term_with_mode": lambda: Term("t", (Edge("i", 1, Role.IN),), ()),
    "operand_name": lambda: Operand("x y", ()),
    "operand_axis": lambda: Operand("x", ((),)),
    "operand_axes": lambda: Operand("x", ("ij",)),  # type: ignore[arg-type]
    "graph_shared": lambda: _graph(shared="i"),
    "graph_name": lambda: _graph(name=None),
    "graph_origin": lambda: _graph(origin={"when": object()}),
    "graph_features_role": lambda: _graph(features=(("bogus", 1),)),
    "graph_parts": lambda: _graph(modes=("i",)),
    "graph_kernel_list": lambda: _graph(kernel_size=3),
    "graph_table": lambda: _graph(options=3),
    # rules
    "graph_kind": lambda: _graph(kind="linaer"),
    "graph_too_large": lambda: _graph(terms=(Term("t", (), tuple(Core(f"A{at}", ()) for at in range(10_001))),)),
    "graph_role": lambda: _graph(Core("W", ("i", "o", "k")), modes=(*_graph().modes, Edge("k", 3, Role.KERNEL))),
    "graph_terms": lambda: _graph(terms=_graph().terms * 2),
    "graph_kernel": lambda: _graph(kernel_size=(3,)),
    "graph_kernel_size": lambda: _conv(kernel_size=(9, 0)),
    "graph_features": lambda: _graph(features=((Role.LOOKUP, 3),)),
    "graph_features_of_a_tensor": lambda: network("tensor", "A[a]", free={"a": 2}, features={"in": 2}),
    "graph_features_size": lambda: _graph(features=((Role.IN, 0),)),
    "graph_operands": lambda: _graph(inputs=(Operand("x", (("i",),)),), output=(("o",),)),
    "map_without_operands": lambda: _map(arguments={}, result=()),
    "map_two_inputs": lambda: Graph(
        "map",
        (Edge("i", 4, Role.IN),),
        (Term("main", (), (Core("W", ("i",)),)),),
        inputs=(Operand("x", (("b",), ("i",))), Operand("x", (("b",),))),
        output=(("b",),),
    ),
    "map_axis": lambda: _map_with_axis("1b"),
    "option_unknown": lambda: _linear(options={"stride": 2}),
    "option_flag": lambda: _linear(options={"bias": 1}),
    "option_numbers": lambda: _conv(options={"stride": "2"}),
    "option_entries": lambda: _conv(options={"padding": [1]}),
    "option_index": lambda: network(
        "embedding", "A[v,o]", lookup={"v": 4}, outputs={"o": 5}, options={"padding_idx": "1"}
    ),
    "option_bag": lambda: _embedding(options={"mode": "min"}),
    "option_last_offset": lambda: _embedding(options={"include_last_offset": True}),
    "option_by_count": lambda: _embedding(options={"mode": "max", "scale_grad_by_freq": True}),
    "option_norm": lambda: _embedding(options={"max_norm": 0, "norm_type": 0.5}),
    "option_output_padding": lambda: network(
        "conv_transpose",
        "A[i,o,k]",
        inputs={"i": 4},
        outputs={"o": 5},
        kernel={"k": 3},
        options={"stride": 2, "output_padding": 2},
    ),
    # dsl
    "text_end": lambda: _linear("A[i,r] B[r,o"),
    "text_letter": lambda: _linear("A[i,r] B[r;o]"),
    "text_core": lambda: _linear("A[i,r] B[r,o] +"),
    "text_bracket": lambda: _linear("A[i,r] B r o"),
    "text_rest": lambda: _linear("A[i,r] B[r,o] ]"),
    "text_line": lambda: _linear("A[i,r]\n  B[r o\n"),
    "text_twice": lambda: _linear("A[i,r] B[r,o,o]"),
    "text_tied": lambda: _linear("A[i,r] B=A.[r,o]"),
    "core_tied": lambda: Core("A", (), "t.1"),
    "ties_in_a_circle": lambda: _linear("A=B[i,r] B=A[o,r]"),
    "text_no_bonds": lambda: _linear(bonds=None),
    "text_bond_missing": lambda: _linear(bonds={"r1": 2}),
    "text_bond_extra": lambda: _linear(bonds={"r": 2, "s": 3}),
    "text_none": lambda: _linear(None),  # type: ignore[arg-type]
    "text_commas": lambda: _linear("A[i o,]"),
    "text_comma_at_the_end": lambda: _linear("A[i,o,]"),
    "text_bonds_missing": lambda: _linear("A[i,r,s] B[r,s,o]", bonds={"t": 0}),
    "builder_role": lambda: Builder("linear").mode("inn", i=4),
    "builder_mode_twice": lambda: Builder("linear").mode("in", i=4).mode("in", i=5),
    "builder_mode_and_keyword": lambda: Builder("linear", inputs={"i": 4}).mode("in", j=5),
    # weight
    "weight_sizes": lambda: _linear(inputs=4),
    "weight_keyword": lambda: _linear(input={"i": 4}),
    "weight_keywords": lambda: _linear(input={"i": 4}, foo=3),
    "weight_forms": lambda: _linear(features=3, options=["bias"], kernel_size=3, shared="i", arguments=3, result=3),
    "weight_vocab_twice": lambda: _embedding(vocab=3, features={"lookup": 3}),
    "weight_modes": lambda: _linear(inputs={"1": 4, "i": 0}, outputs=3.5),
    "weight_features": lambda: _linear(features={"inn": 4}),
    "option_border": lambda: _conv(options={"padding_mode": "mirror"}),
    "weight_groups": lambda: tnmars.families.of_layer("tt", "conv", 6, 8, kernel=(3,), groups=4, rank=2),
    "weight_same": lambda: _map(same={"y": "x"}),
    "weight_axis": lambda: _map(arguments={"x": "b (i"}),
    # rewrites and factors
    "keep_unknown": lambda: prune(_linear(), {"s": [0]}),
    "keep_text": lambda: prune(_linear(), {"r": ["0"]}),  # type: ignore[list-item]
    "keep_order": lambda: prune(_linear(), {"r": [1, 0]}),
    "widen_unknown": lambda: widen(_linear(), {"s": 3}),
    "keep_united": lambda: prune(_linear("A[i,r] B=A[o,s] C[r,s]", outputs={"o": 4}), {"s": [0]}),
    "widen_smaller": lambda: widen(_linear(), {"r": 1}),
    "cut_unknown": lambda: topology.cut(_linear(), _linear().terms[0], "s"),
    "factor_size": lambda: factor(0, 3),
    "factor_order": lambda: factor(8, 3, order="up"),
    "factor_criterion": lambda: factor(8, 3, criterion="mean"),
    # families
    "family_rank_missing": lambda: FAMILIES["cp"]("linear", inputs=(4,), outputs=(5,)),
    "family_terms": lambda: FAMILIES["btd"]("linear", inputs=(4,), outputs=(5,), rank=2, terms=0),
    "family_tree": lambda: FAMILIES["ht"]("tensor", free=(4, 5), rank=2, tree="12"),
    "family_tree_flag": lambda: FAMILIES["ht"]("tensor", free=(4, 5), rank=2, tree=[True, 2]),
    "family_grid_number": lambda: FAMILIES["peps"]("tensor", free=(4, 5), rank=2, grid=2),
    "family_order_unknown": lambda: FAMILIES["tt_naive"]("tensor", free=(4, 5), rank=2, order=("free", "inn")),
    "family_ranks_decimal": lambda: FAMILIES["cp"]("linear", inputs=(4,), outputs=(5,), ranks=3.5),
    "family_ranks_names": lambda: FAMILIES["tt"]("tensor", free=(4, 5, 6), ranks={"r1": 2, "s": 3}),
    "family_ranks": lambda: FAMILIES["cp"]("linear", inputs=(4,), outputs=(5,), ranks=3),
    "family_too_large": lambda: FAMILIES["complete"]("tensor", free=(1,) * 200, rank=1),
}


def _map_with_axis(name: str) -> Graph:
    term = Term("main", (), (Core("W", ("i",)),))
    return Graph("map", (Edge("i", 4, Role.IN),), (term,), inputs=(Operand("x", ((name,), ("i",))),), output=((name,),))


def _sections(text: str) -> dict[str, str]:
    parts = re.split(r"(?m)^== (\w+)\n", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _said(call: Callable[[], object]) -> str:
    with pytest.raises(TnmarsError) as raised:
        call()
    return f"{type(raised.value).__name__}: {raised.value}\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"golden-{path.stem}")
def test_what_check_says(path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(INVALID)
    assert run(["check", path.name]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    if REWRITE:
        path.with_suffix(".txt").write_text(printed.err, encoding="utf-8")
    assert printed.err == path.with_suffix(".txt").read_text(encoding="utf-8")


def test_what_python_says_golden_all() -> None:
    if REWRITE:
        PYTHON.write_text("".join(f"== {name}\n{_said(call)}" for name, call in CALLS.items()), encoding="utf-8")
    assert list(_sections(PYTHON.read_text(encoding="utf-8"))) == list(CALLS)


@pytest.mark.parametrize("name", CALLS, ids=lambda name: f"golden-{name}")
def test_what_python_says(name: str) -> None:
    assert _said(CALLS[name]) == _sections(PYTHON.read_text(encoding="utf-8"))[name]


def test_every_file_has_its_text_and_every_text_its_file() -> None:
    assert {path.stem for path in INVALID.glob("*.txt")} == {path.stem for path in FILES} | {"python"}


# --- every text is provoked ------------------------------------------------------------------------------------------

PACKAGE = Path(tnmars.__file__).parent
MODULES = (
    *(
        f"graph/{name}"
        for name in ("parts", "options", "fields", "rules", "layer_rules", "graph", "rewrite", "factor", "topology")
    ),
    *("graph/assemble", "graph/ties", "weight", "families", "dsl"),
    *("spec/nodes", "spec/shape", "spec/scalars", "spec/grammar", "spec/reader"),
)
UNREACHABLE = {
    "not valid YAML: ": "of errors without a mark, which the text was searched for before",
}


def literals(tree: ast.Module) -> Iterator[list[str]]:
    """The constant fragments of every text in a module that is a sentence, but for its docstrings."""
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and isinstance(node.body[0], ast.Expr)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    stated = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in documented | inside | stated:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = [node.value]
        else:
            continue
        text = "".join(map(str, parts))
        if re.search(r"\w .*[.?]$", text, re.DOTALL):
            yield [part for part in text.split("\0") if part.strip()]


def _texts() -> list[object]:
    found = []
    for module in MODULES:
        for parts in literals(ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))):
            longest = max(parts, key=len)
            found.append(pytest.param(longest, id=f"{module}-{longest[:40]}"))
    return found


@pytest.fixture(scope="module")
def everything_said() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in INVALID.glob("*.txt"))


@pytest.mark.parametrize("text", _texts())
def test_every_text_in_the_code_is_provoked(text: str, everything_said: str) -> None:
    lines = text.strip("\n").split("\n")
    assert text in UNREACHABLE or all(line.strip() in everything_said for line in lines), (
        f"no golden file shows: {text!r}"
    )


def test_the_search_for_texts_finds_them() -> None:
    """A test of the test: it sees plain, formatted and joined texts, and no docstrings."""
    tree = ast.parse(
        '"""A doc."""\ndef f(x):\n    """Another doc."""\n    return g("it is wrong.", f"bond {x} is " "bad.")\n'
    )
    assert list(literals(tree)) == [["it is wrong."], ["bond ", " is bad."]]


# --- how they are written --------------------------------------------------------------------------------------------


def _problems() -> list[Problem]:
    found = [problem for path in FILES for problem in read(path.read_bytes()).problems]
    for call in CALLS.values():
        with pytest.raises(TnmarsError) as raised:
            call()
        found += raised.value.problems
    return found


def test_every_problem_is_a_sentence_with_a_fix() -> None:
    for problem in _problems():
        assert problem.text.endswith("."), problem
        assert not problem.text.endswith(".."), problem
        assert "\n" not in problem.text, problem
        assert "None" not in problem.text, problem
        says_what_is_right = "must be" in problem.text or "cannot be read" in problem.text
        assert says_what_is_right or problem.hint.strip(), problem
