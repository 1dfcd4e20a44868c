"""Programs and the source emitted for them: values that print, a verifier that sees faults, and code that is ours."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import replace

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import EXACT, MODEL, WEIGHINGS, forms_of, run, unpadded
from strategies import cases, graphs

import tnmars
from tnmars.graph import Core, Edge, Graph, Role, Term
from tnmars.plan.layout import Weighing
from tnmars.plan.network import BATCH, layer_network, weight_network
from tnmars.plan.steps import Groups, Load, Product
from tnmars.program import choice
from tnmars.program.base import Instruction
from tnmars.program.candidates import weight_forms
from tnmars.program.emit import WRITE, emit
from tnmars.program.form import Form
from tnmars.program.gating import masked
from tnmars.program.instructions import Arrange, Conv, Kernel, Matmul, Rows, Scale, Times, Total, Weight
from tnmars.program.lower import lower
from tnmars.program.program import Program, verify


@st.composite
def forms(draw: Callable, **limits: object) -> tuple[Graph, Form]:
    """A graph and one of its forms, whichever."""
    graph = unpadded(draw(graphs(**limits)))
    batch, weighing = draw(st.sampled_from((16, 1, 300))), draw(st.sampled_from(WEIGHINGS))
    return graph, draw(st.sampled_from(forms_of(graph, batch, weighing)))


# --- values ----------------------------------------------------------------------------------------------------------


@settings(max_examples=cases(300))
@given(graph=graphs(), weighing=st.sampled_from(WEIGHINGS))
def test_programs_are_values(graph: Graph, weighing: Weighing) -> None:
    """Made twice they are equal, hash and print the same way, and the source is the same to the letter."""
    first, second = (forms_of(unpadded(graph), 16, weighing) for _ in range(2))
    assert first == second
    assert list(map(hash, first)) == list(map(hash, second))
    assert [str(form.program) for form in first] == [str(form.program) for form in second]
    assert [emit(form.program, form.frame) for form in first] == [emit(form.program, form.frame) for form in second]


def test_programs_of_different_graphs_differ() -> None:
    def program(rank: int) -> Program:
        graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(4, 4), rank=rank)
        return choice.choose(graph, 16, Weighing(MODEL))[0].program

    assert program(2) == program(2)
    assert program(2) != program(3)
    assert len({program(2), program(2), program(3)}) == 2


def test_a_program_prints_its_steps() -> None:
    """The text is short and stable, fit for golden files."""
    graph = tnmars.network("linear", "A[i,r] B[r,o]", inputs={"i": 6}, outputs={"o": 5}, bonds=2)
    network = layer_network(graph, graph.terms, 16)
    pushed = Product(Load(2, (BATCH, "i")), Load(0, ("i", "r")), (), (BATCH,), ("i",), ("r",))
    step = Product(pushed, Load(1, ("r", "o")), (), (BATCH,), ("r",), ("o",))
    assert str(lower([network], [step], ((BATCH,), ("o",)))) == PUSHED
    weight = Product(Load(1, ("r", "o")), Load(0, ("i", "r")), (), ("o",), ("r",), ("i",))
    network = weight_network(graph, graph.terms)
    assert str(lower([network], [weight], (("o",), ("i",)), ((5, 6), (5, 6)))) == DENSE


PUSHED = """\
fold:
  v1   [i, r] = fetch A
  v3   [r, o] = fetch B
run:
  v0   [@@b, i] = receive x
  v2   [@@b, r] = matmul v0 v1
  v4   [@@b, o] = matmul v2 v3
  -> v4"""
DENSE = """\
fold:
  v0   [r, o] = fetch B
  v1   [o, r] = arrange v0
  v2   [i, r] = fetch A
  v3   [r, i] = arrange v2
  v4   [o, i] = matmul v1 v3
  w    [o, i] = weight v4
  -> w"""


@settings(max_examples=cases(300))
@given(found=forms())
def test_a_program_prints_every_instruction_once(found: tuple[Graph, Form]) -> None:
    program = found[1].program
    lines = str(program).splitlines()
    assert len(lines) == len(program.instructions) + bool(program.fold) + bool(program.run) + 1
    made = [line.split()[0] for line in lines if " = " in line]
    assert made == [instruction.out for instruction in program.instructions]
    assert lines[-1].split() == ["->", program.result]


# --- the verifier ----------------------------------------------------------------------------------------------------


@settings(max_examples=cases(1000))
@given(graph=graphs(), weighing=st.sampled_from(WEIGHINGS), batch=st.sampled_from((1, 16, 300)))
def test_every_program_is_verified(graph: Graph, weighing: Weighing, batch: int) -> None:
    for form in (*forms_of(graph, batch, weighing), *weight_forms(graph, weighing)):
        verify(form.program)
        names = [name for term in graph.terms for name in (graph.qualified(term, core.name) for core in term.cores)]
        assert sorted(form.program.cores) == sorted(names)


def faults(program: Program) -> Iterator[tuple[str, Program]]:
    """The program with one thing changed: an axis or a label of a value that is read, or what an instruction says."""
    read = {name for instruction in program.instructions for name in instruction.reads}
    for at, instruction in enumerate(program.instructions):
        if instruction.out in read and instruction.reads:
            for axes in other_axes(instruction.axes):
                yield f"axes of {instruction}", changed(program, at, replace(instruction, axes=axes))
        for other in others(instruction, program):
            yield f"{instruction} as {other}", changed(program, at, other)
    for at in range(len(program.instructions) - 1):
        one, two = program.instructions[at : at + 2]
        if one.out in two.reads:
            swapped = changed(changed(program, at, two), at + 1, one)
            yield f"{one.out} after {two.out}", swapped


def changed(program: Program, at: int, instruction: Instruction) -> Program:
    both = [*program.instructions]
    both[at] = instruction
    fold = len(program.fold)
    return replace(program, fold=tuple(both[:fold]), run=tuple(both[fold:]))


def other_axes(axes: Groups) -> Iterator[Groups]:
    """Axes in another order, labels on another axis, in another order, missing, twice or renamed."""
    yield from ((*axes[:at], axes[at + 1], axes[at], *axes[at + 2 :]) for at in range(len(axes) - 1))
    for at, group in enumerate(axes):
        if len(group) > 1:
            yield (*axes[:at], group[::-1], *axes[at + 1 :])
        if group:
            yield (*axes[:at], group[1:], *axes[at + 1 :])
            yield (*axes[:at], (*group, group[0]), *axes[at + 1 :])
            yield (*axes[:at], (*group[:-1], "another"), *axes[at + 1 :])
            if at:
                yield (*axes[: at - 1], (*axes[at - 1], group[0]), group[1:], *axes[at + 1 :])


def others(instruction: Instruction, program: Program) -> Iterator[Instruction]:
    """An instruction with another operand or setting."""
    if isinstance(instruction, (Matmul, Times)):
        yield replace(instruction, left="nothing")
        yield replace(instruction, right=instruction.out)
    if isinstance(instruction, Matmul):
        yield replace(instruction, left=instruction.right, right=instruction.left)
    if isinstance(instruction, Arrange):
        yield replace(instruction, source="nothing")
    if isinstance(instruction, Total):
        yield replace(instruction, dims=instruction.dims[1:])
        yield replace(instruction, dims=tuple(at + 1 for at in instruction.dims))
    if isinstance(instruction, Rows):
        yield replace(instruction, labels=instruction.labels[::-1])
        yield replace(instruction, labels=instruction.labels[1:])
        yield replace(instruction, axes=instruction.axes[1:])
    if isinstance(instruction, Kernel):
        yield replace(instruction, taps=tuple(taps + 1 for taps in instruction.taps))
    if isinstance(instruction, Conv):
        yield replace(instruction, groups=instruction.groups + 1)
        yield replace(instruction, source=instruction.weight, weight=instruction.source)
    if isinstance(instruction, Weight):
        yield replace(instruction, shape=(*instruction.shape, 2))
        yield replace(instruction, keep=tuple(keep + 1 for keep in instruction.keep))
    first = program.instructions[0].out
    if instruction.out != first:
        yield replace(instruction, out=first)


def is_verified(program: Program) -> bool:
    try:
        verify(program)
    except AssertionError:
        return False
    return True


def check_faults(graph: Graph, form: Form, seed: int = 0) -> None:
    """A program with a fault is refused, or else computes the same."""
    problem = oracle.problem(graph, 3, seed)
    wanted = problem.answer().detach()
    for what, program in faults(form.program):
        if program != form.program and is_verified(program):
            with torch.no_grad():
                answer = run(replace(form, program=program), problem)
            assert oracle.error(answer, wanted) <= EXACT, f"{what} in\n{form.program}"


@settings(max_examples=cases(400))
@given(found=forms(max_cores=3, terms=2), seed=st.integers(0, 2**31))
def test_a_fault_is_seen_or_changes_nothing(found: tuple[Graph, Form], seed: int) -> None:
    check_faults(*found, seed)


@pytest.mark.parametrize("at", range(7))
def test_a_fault_of_a_known_graph_is_seen_or_changes_nothing(at: int) -> None:
    graph = list(some_graphs())[at]
    for weighing in WEIGHINGS:
        for form in forms_of(graph, 16, weighing):
            check_faults(graph, form)


def test_results_and_inputs_are_verified() -> None:
    graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(4, 4), rank=2)
    program = next(form for form in forms_of(graph, 1, Weighing(MODEL)) if form.program.run).program
    assert is_verified(program)
    assert not is_verified(replace(program, result="nothing"))
    assert not is_verified(replace(program, fold=(*program.fold, *program.run), run=()))
    assert not is_verified(replace(program, fold=program.fold[1:]))
    assert not is_verified(replace(program, run=(*program.run, program.run[-1])))


def test_faults_of_every_instruction_are_tried() -> None:
    """The programs of some graphs have every sort of instruction, gates among them, and a fault of each is seen."""
    seen: set[type] = set()
    for graph in some_graphs():
        for weighing in WEIGHINGS:
            for form in (*forms_of(graph, 16, weighing), *weight_forms(graph, weighing)):
                program = masked(form.program, graph)
                verify(program)
                for at, instruction in enumerate(program.instructions):
                    axes = (*instruction.axes[1:], (*instruction.axes[0], "another"))
                    assert not is_verified(changed(program, at, replace(instruction, axes=axes))), instruction
                    seen.add(type(instruction))
    assert seen == WRITE.keys()


@pytest.mark.parametrize("count", [1, 2])
def test_a_gate_on_another_axis_is_seen(count: int) -> None:
    """A gate has the label of its bond on its core, and of each stacked core its own."""
    cores = (Core("A", ("i", "r")), Core("B", ("r", "o")))
    terms = tuple(Term(f"t{at}", (Edge("r", 2),), cores) for at in range(count))
    graph = Graph("linear", (Edge("i", 6, Role.IN), Edge("o", 5, Role.OUT)), terms)
    program = masked(weight_forms(graph, Weighing(MODEL))[0].program, graph)
    (at, scale), *rest = [entry for entry in enumerate(program.fold) if isinstance(entry[1], Scale)]
    assert not rest
    ((label, names),) = scale.gates
    assert is_verified(program)
    for gates in (((f"another.{label}", names),), ((label, names), (label, names)), ((label, (*names, "t.r")),)):
        assert not is_verified(changed(program, at, replace(scale, gates=gates))), gates
    assert not is_verified(changed(program, at, replace(scale, axes=scale.axes[::-1])))


def some_graphs() -> Iterator[Graph]:
    yield tnmars.families.cp("conv", inputs=(4,), outputs=(4,), kernel=(3, 3), rank=3)
    yield tnmars.families.cp("conv_transpose", inputs=(4,), outputs=(3,), kernel=(3, 2), rank=3, options={"stride": 2})
    yield tnmars.families.tt("embedding", lookup=(4, 4), outputs=(4, 4), rank=2)
    yield tnmars.families.btd("linear", inputs=(4, 4), outputs=(4, 4), rank=2, terms=2)
    yield tnmars.network(
        "conv", "A[i,r] K[r,k,s] B[s,o]", inputs={"i": 4}, outputs={"o": 3}, kernel={"k": 3}, bonds={"r": 2, "s": 2}
    )
    yield tnmars.load(oracle.spec("odd_two_terms"))
    core = (Core("A", ("i", "o")),)
    modes = (Edge("i", 4, Role.IN), Edge("o", 3, Role.OUT))
    yield Graph("linear", modes, (Term("t1", (), core), Term("t2", (), core)))


# --- the source ------------------------------------------------------------------------------------------------------

HOSTILE = ("torch", "F", "x0", "bias", "w0", "v0", "fold", "run", "index", "row", "import_os", "__import__", "exec")


def words(source: str) -> set[str]:
    """Every word of a source outside its comments, those inside strings too."""
    found: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.STRING):
            found.add(token.string.strip("'\""))
    return found


OURS = {
    *("import", "as", "def", "return", "del"),
    *("torch", "nn", "functional", "F", "fold", "run", "bias", "index", "row", "y", "None"),
    *(
        "stack",
        "mm",
        "addmm",
        "bmm",
        "matmul",
        "linear",
        "index_select",
        "pad",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "cat",
        "split",
    ),
    *(
        "reshape",
        "permute",
        "t",
        "shape",
        "sum",
        "unfold",
        "expand",
        "unsqueeze",
        "stride",
        "padding",
        "output_padding",
        "flatten",
        "dilation",
        "groups",
        "same",
        "mode",
        "reflect",
        "replicate",
        "circular",
    ),
}


def is_ours(word: str) -> bool:
    """Whether a word is torch's, Python's, or a variable such as `x0`, `w1`, `v2`, `av3`, `s1`, `w` or `v4_2`."""
    letters = word.replace("_", "").rstrip("0123456789")
    return word in OURS or letters in {"x", "w", "s", "v"} or (len(letters) <= 2 and letters.endswith("v"))


@settings(max_examples=cases(500))
@given(found=forms())
def test_the_source_is_plain_and_ours(found: tuple[Graph, Form]) -> None:
    """It compiles; it has no word but torch's and its own, no einsum, and nothing that branches, loops or calls out."""
    source = emit(found[1].program, found[1].frame)
    tree = ast.parse(source)
    assert {word for word in words(source) if not is_ours(word)} == set()
    assert "einsum" not in source
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [function.name for function in functions] == ["fold", "run"]
    allowed = (ast.Assign, ast.Return, ast.Delete)
    assert all(isinstance(line, allowed) for function in functions for line in function.body)


@settings(max_examples=cases(200))
@given(graph=graphs(), start=st.integers(0, len(HOSTILE) - 1), seed=st.integers(0, 2**31))
def test_names_that_look_like_ours_do_no_harm(graph: Graph, start: int, seed: int) -> None:
    """Cores named after the emitted code's own variables, and after what it must not call."""
    plain = unpadded(graph)
    terms = tuple(
        replace(
            term,
            cores=tuple(replace(core, name=HOSTILE[(start + at) % len(HOSTILE)]) for at, core in enumerate(term.cores)),
        )
        for term in plain.terms
    )
    renamed = replace(plain, terms=terms)
    problem = oracle.problem(renamed, 3, seed)
    wanted = problem.answer()
    for ours, theirs in zip(forms_of(plain, 16, WEIGHINGS[0]), forms_of(renamed, 16, WEIGHINGS[0]), strict=True):
        lines = [emit(form.program, form.frame).splitlines() for form in (ours, theirs)]
        assert [line.partition("#")[0] for line in lines[0]] == [line.partition("#")[0] for line in lines[1]]
        assert oracle.error(run(theirs, problem), wanted) <= EXACT


@pytest.mark.parametrize("spec", ["tt_linear", "tucker2_conv", "tt_embedding", "block_term_attention", "cp_conv"])
def test_the_source_of_a_layer_is_the_code_that_runs(spec: str) -> None:
    """Run by itself, with torch alone, it gives what the layer gives."""
    layer = tnmars.compile(oracle.spec(spec), dtype=torch.float64)
    problem = oracle.problem(layer.graph, layer.nominal)
    oracle.load(layer, problem)
    space: dict[str, Callable] = {}
    exec(layer.source, space)  # noqa: S102
    form = layer.plan("train", layer.nominal)
    cores = dict(layer.named_parameters())
    parts = space["fold"](*(cores[f"cores.{name}"] for name in form.program.cores))
    bias = () if layer.bias is None else (layer.bias,)
    assert oracle.error(space["run"](*problem.inputs, *bias, *parts), layer(*problem.inputs)) <= EXACT
    assert all("#" in line or "del" in line for line in body_of(layer.source, "run")), "shapes are in the comments"


def body_of(source: str, function: str) -> list[str]:
    """The lines of a function that make a value by torch."""
    lines = source.split(f"def {function}(")[1].splitlines()[1:]
    return [line for line in lines if " = torch." in line or " = F.conv" in line]
