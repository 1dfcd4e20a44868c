"""Spec files: what is read is what was written, nothing is turned into something else, every problem is reported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import SPECS
from strategies import cases, graphs

from tnmars.dsl import Builder, network
from tnmars.errors import SpecError
from tnmars.families import FAMILIES
from tnmars.graph import MAIN, Graph, Role, rules
from tnmars.graph.parts import axis_text
from tnmars.spec import document, dump, load, loads, read, save_spec
from tnmars.weight import KEYWORD

BASE = """\
tnmars: 1
name: base
kind: linear
params: {rank: 3}
modes:
  in: {i1: 4, i2: 6}
  out: {o1: 5, o2: 7}
features: {in: 23}
bonds: {r1: rank, s1: 2}
options: {bias: false}
cores:
  G1: [i1, o1, r1, s1]
  G2: [r1, s1, i2, o2]
"""

SUM = """\
tnmars: 1
kind: linear
modes: {in: {i: 4}, out: {o: 5}}
terms:
  t:
    copies: 4
    bonds: {r: 2}
    cores: {A: [i, r], B: [r, o]}
  dense:
    cores: {W: [i, o]}
"""

FAMILY = """\
tnmars: 1
kind: linear
family: tt
in: [4, 5]
out: [2, 3]
rank: 3
"""

CONV = """\
tnmars: 1
kind: conv
modes: {in: {i: 4}, kernel: {k: 9}, out: {o: 5}}
kernel_size: [3, 3]
cores: {A: [i, k, o]}
"""

MAP = """\
tnmars: 1
kind: map
modes: {in: {i1: 2, i2: 3, j: 4}, out: {o: 5}}
inputs: {x: [batch, n, (i1 i2)], y: [batch, j]}
output: [batch, n, o]
cores: {A: [i1, i2, j, o]}
"""


def found(text: str | bytes, **params: int) -> list[tuple[int, int, str]]:
    """Line, column and text of each problem of a spec."""
    problems = read(text if isinstance(text, bytes) else text.encode(), params).problems
    return [(problem.place.line, problem.place.column, problem.text) for problem in problems if problem.place]


def only(text: str | bytes, **params: int) -> tuple[int, int, str]:
    problems = found(text, **params)
    assert len(problems) == 1, problems
    return problems[0]


def hint(text: str) -> str:
    (problem,) = read(text.encode()).problems
    return problem.hint


def changed(old: str, new: str, base: str = BASE) -> str:
    assert base.count(old) >= 1, old
    return base.replace(old, new, 1)


# --- there and back --------------------------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_ORIGINS = st.none() | st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), _JSON, max_size=3)


@settings(max_examples=cases(2000))
@given(graphs(least_terms=0), _ORIGINS)
def test_a_graph_survives_its_text(graph: Graph, origin: Mapping[str, object] | None) -> None:
    graph = replace(graph, origin=origin)
    text = dump(graph)
    back = loads(text)
    assert back == graph
    assert back.name == graph.name
    assert (back.origin or None) == (graph.origin or None)
    assert dump(back) == text
    as_json = json.dumps(document(replace(graph, origin=None)), ensure_ascii=False)
    assert loads(as_json) == graph
    assert loads(as_json).name == graph.name
    # Other readers of YAML, here one of version 1.1, see the same data.
    assert yaml.safe_load(text) == json.loads(json.dumps(document(graph)))


def written(graph: Graph) -> tuple[str, dict[str, int]]:
    """A graph's terms as `network` takes them."""
    terms = []
    for term in graph.terms:
        head = "" if term.name == MAIN and len(graph.terms) == 1 else f"{term.name}: "
        terms.append(head + " ".join(f"{core.name}[{','.join(core.edges)}]" for core in term.cores))
    return " + ".join(terms), {name: bond.size for name, bond in graph.bonds.items()}


def keywords(graph: Graph) -> dict[str, object]:
    """A graph's frame as `network` takes it."""
    features = dict(graph.features)
    weight: dict[str, object] = {
        KEYWORD[role]: {mode.name: mode.size for mode in graph.of_role(role)} for role in KEYWORD if graph.of_role(role)
    }
    return weight | {
        "vocab": features.pop(Role.LOOKUP, None),
        "features": {str(role): size for role, size in features.items()},
        "kernel_size": graph.kernel_size,
        "shared": graph.shared,
        "arguments": {operand.name: " ".join(map(axis_text, operand.axes)) for operand in graph.inputs},
        "result": list(map(axis_text, graph.output)),
        "options": dict(graph.options),
        "name": graph.name,
    }


@settings(max_examples=cases(2000))
@given(graphs())
def test_file_text_and_builder_give_equal_graphs(graph: Graph) -> None:
    from_file = loads(dump(graph))
    text, bonds = written(graph)
    from_text = network(graph.kind, text, bonds=bonds, **keywords(graph))
    assert from_text == from_file
    assert from_text.name == from_file.name
    builder = Builder(
        graph.kind, **{key: value for key, value in keywords(graph).items() if key not in KEYWORD.values()}
    )
    for mode in graph.modes:
        builder.mode(str(mode.role), **{mode.name: mode.size})
    for term in graph.terms:
        builder.term(term.name)
        for bond in term.bonds:
            builder.bond(**{bond.name: bond.size})
        for core in term.cores:
            builder.core(core.name, *core.edges)
    assert builder.build() == from_file


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_example_survives_its_text(path: Path) -> None:
    graph = load(path)
    assert loads(dump(graph)) == graph
    assert dump(loads(dump(graph))) == dump(graph)
    assert loads(dump(graph)).name == graph.name != ""


def test_save_spec_writes_what_dump_gives(tmp_path: Path) -> None:
    graph = loads(BASE)
    save_spec(graph, tmp_path / "saved.yaml")
    assert (tmp_path / "saved.yaml").read_text() == dump(graph)
    assert load(tmp_path / "saved.yaml") == graph
    assert list(tmp_path.iterdir()) == [tmp_path / "saved.yaml"]


def test_a_dump_has_numbers_for_parameters_and_nothing_that_does_not_apply() -> None:
    assert dump(loads(BASE)) == (
        "tnmars: 1\nname: base\nkind: linear\nmodes:\n  in: {i1: 4, i2: 6}\n  out: {o1: 5, o2: 7}\nfeatures: {in: 23}\n"
        "options: {bias: false}\nbonds: {r1: 3, s1: 2}\ncores:\n  G1: [i1, o1, r1, s1]\n  G2: [r1, s1, i2, o2]\n"
    )


def test_name_comments_and_origin_are_no_part_of_equality_but_kind_features_and_options_are() -> None:
    graph = loads(BASE)
    assert loads(changed("name: base", "name: other  # comment") + "origin: {from: there}\n") == graph
    assert loads(changed("features: {in: 23}\n", "")) != graph
    assert loads(changed("options: {bias: false}\n", "")) != graph
    assert loads(changed("features: {in: 23}\n", "")) == loads(changed("in: 23", "in: 24"))


# --- nothing is turned into something else ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word", ["on", "no", "yes", "off", "y", "n", "On", "NO", "nan", "inf", "e5", "_1", "None", "x10"]
)
def test_a_word_that_yaml_1_1_reads_as_a_value_is_a_name(word: str) -> None:
    text = BASE.replace("s1", word)
    graph = loads(text)
    assert word in graph.bonds
    assert graph == loads(text.replace(f" {word}", f' "{word}"'))


@pytest.mark.parametrize("word", ["true", "False", "NULL", "null", "Null"])
def test_a_word_that_every_yaml_reads_as_a_value_must_be_quoted_where_it_is_a_value(word: str) -> None:
    text = changed("[r1, s1, i2, o2]", f"[r1, {word}, i2, o2]")
    assert only(text) == (13, 12, f"entry 2 of 'G2' is '{word}', but must be a name.")
    assert hint(text) == f'YAML reads this word as a value: put it in quotes, "{word}".'
    quoted = BASE.replace("s1", f'"{word}"')
    assert word in loads(quoted).bonds


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ("010", "Write 10; '010' means different numbers to different programs."),
        ("1_000", "Write 1000; '1_000' means different numbers to different programs."),
        ("+7", "Write 7; '+7' means different numbers to different programs."),
        ("1e3", "Write 1000."),
        ("7.0", "Write 7."),
        ("'7'", "Remove the quotes: 7."),
        ('"7"', "Remove the quotes: 7."),
        ("12:30", None),
        ("0x10", None),
        ("0o7", None),
        ("7.5", None),
        ("-7", None),
        ("0", None),
        ("2147483648", None),
        ("1" + "0" * 30, None),
        ("9" * 5000, None),
        (".inf", None),
        ("true", None),
        ("~", None),
        ("", None),
        ("[7]", None),
        ("{a: 7}", None),
        ("r-1", None),
    ],
)
def test_what_is_not_a_plain_whole_number_is_no_size(written: str, fix: str | None) -> None:
    text = changed("s1: 2", f"s1: {written}")
    line, column, message = only(text)
    assert (line, column) == (9, 23) or (written == "" and line == 9)
    assert message.startswith("'s1' is ")
    assert message.endswith(", but must be a size.")
    assert hint(text) == (fix or "Write a whole number from 1 to 2,147,483,647, or the name of a parameter.")


def test_a_word_at_a_size_is_a_parameter_or_nothing() -> None:
    assert only(changed("s1: 2", "s1: on")) == (9, 23, "'s1' is 'on', but must be a number or the name of a parameter.")
    assert hint(changed("s1: 2", "s1: rnk")) == "Parameters: rank. Did you mean 'rank'?"
    assert loads(changed("{rank: 3}", "{on: 3}").replace("r1: rank", "r1: on")).bonds["r1"].size == 3


@pytest.mark.parametrize(("word", "value"), [("true", True), ("false", False), ("True", True), ("FALSE", False)])
def test_a_flag_is_true_or_false(word: str, value: bool) -> None:
    assert loads(changed("bias: false", f"bias: {word}")).has_bias is value


@pytest.mark.parametrize("word", ["no", "off", "0", "1", "'true'", "null", "[]", "n"])
def test_no_other_word_is_a_flag(word: str) -> None:
    assert only(changed("bias: false", f"bias: {word}"))[2].endswith("but must be true or false.")


@pytest.mark.parametrize(
    ("word", "fix"),
    [("no", "false"), ("Off", "false"), ("0", "false"), ("'true'", "true"), ("yes", "true"), ("1", "true")],
)
def test_the_flag_that_was_meant_is_said(word: str, fix: str) -> None:
    assert hint(changed("bias: false", f"bias: {word}")) == f"Write {fix}."


@pytest.mark.parametrize("option", ["stride: n", "padding: n", "padding: [n, n]", "dilation: [1, n]", "bias: n"])
def test_an_option_takes_no_parameter(option: str) -> None:
    text = CONV.replace("kernel_size", f"params: {{n: 2}}\noptions: {{{option}}}\nkernel_size")
    hints = {problem.hint for problem in read(text.encode()).problems}
    assert hints == {"Parameters stand for sizes only: write the value itself."}


@pytest.mark.parametrize("text", ["tnmars: 1\n\tkind: linear\n", "a:\n\tb: 1\n", "a:\n  b: 1\n \tc: 1\n"])
def test_a_tab_is_said_to_be_one(text: str) -> None:
    assert hint(text) == "Use spaces to indent, not tabs."


def test_cores_beside_terms_belong_under_one() -> None:
    assert only(SUM + "cores: {A: [i, o]}\n")[:2] == (11, 1)
    assert hint(SUM + "bonds: {A: 3}\n") == "With 'terms', each term has its own: put it under a term."


@pytest.mark.parametrize("name", ["7", "1e3", "true", "~", "''", '"\\e[31m"', '"a\\nb"', "x" * 201, "[a]", "null"])
def test_a_name_for_people_is_one_line_of_printable_text(name: str) -> None:
    line, column, message = only(changed("name: base", f"name: {name}"))
    assert (line, column) == (2, 7)
    assert message.endswith("but must be a line of text.")
    assert message.isprintable()


@pytest.mark.parametrize("name", ["on", "12:30", "0x10", "'7'", "größe 模型 😀", "a: b".join("''"), "x" * 200])
def test_any_other_line_is_a_name(name: str) -> None:
    graph = loads(changed("name: base", f"name: {name}"))
    assert graph.name == name.strip("'")
    assert loads(dump(graph)).name == graph.name


def test_an_origin_keeps_its_data() -> None:
    text = (
        BASE
        + "origin: {a: 1, b: 1.5, c: [true, null, 'no', on, 010, '7'], d: {1: x, 'on': y}, seed: "
        + f"{2**64 - 1}}}\n"
    )
    origin = loads(text).origin
    assert origin == {
        "a": 1,
        "b": 1.5,
        "c": [True, None, "no", "on", "010", "7"],
        "d": {"1": "x", "on": "y"},
        "seed": 18446744073709551615,
    }
    assert loads(dump(loads(text))).origin == origin


# --- parameters ------------------------------------------------------------------------------------------------------


def test_a_parameter_is_a_size_and_may_be_set_from_outside() -> None:
    assert loads(BASE).bonds["r1"].size == 3
    assert loads(BASE, rank=8).bonds["r1"].size == 8
    assert loads(BASE, rank=8).bonds["s1"].size == 2


def test_a_parameter_may_stand_for_any_size() -> None:
    text = (
        changed("{rank: 3}", "{rank: 3, four: 4, real: 22}").replace("i1: 4", "i1: four").replace("in: 23", "in: real")
    )
    assert loads(text, real=21).in_features == 21
    assert loads(
        SUM.replace("kind: linear", "kind: linear\nparams: {n: 4}").replace("copies: 4", "copies: n"), n=2
    ) == loads(SUM.replace("copies: 4", "copies: 2"))
    assert loads(FAMILY.replace("rank: 3", "rank: n\nparams: {n: 3}")) == loads(FAMILY)


def test_an_unknown_parameter_from_outside_is_an_error() -> None:
    line, column, message = only(BASE, rnk=8)
    assert (line, column, message) == (4, 1, "'rnk' was set from outside, but the file has no such parameter.")
    assert only(FAMILY, rank=8)[2] == "'rank' was set from outside, but the file has no such parameter."


@pytest.mark.parametrize("value", [0, -1, 2**31, 2.0, "8", True, None])
def test_a_bad_value_from_outside_is_an_error(value: object) -> None:
    line, column, message = only(BASE, rank=value)  # type: ignore[arg-type]
    assert (line, column) == (4, 1)
    assert message.startswith("parameter 'rank', set from outside, has size ")


def test_an_unused_parameter_is_an_error() -> None:
    assert only(changed("{rank: 3}", "{rank: 3, x: 4}")) == (4, 19, "parameter 'x' is declared, but no size uses it.")


def test_a_parameter_is_a_number_of_its_own() -> None:
    assert only(changed("{rank: 3}", "{rank: x}"))[:2] == (4, 16)
    assert only(changed("{rank: 3}", "{rank: 0}"))[:2] == (4, 16)
    assert only(changed("{rank: 3}", "{1rank: 3}"))[2] == "parameter name '1rank' is not an identifier."


# --- terms and copies ------------------------------------------------------------------------------------------------


def test_copies_are_terms_of_their_own() -> None:
    graph = loads(SUM)
    assert [term.name for term in graph.terms] == ["t1", "t2", "t3", "t4", "dense"]
    assert list(graph.bonds) == ["t1.r", "t2.r", "t3.r", "t4.r"]
    assert graph.terms[0].cores == graph.terms[3].cores
    assert [term.name for term in loads(SUM.replace("copies: 4", "copies: 1")).terms] == ["t1", "dense"]


def test_a_copy_may_not_have_the_name_of_another_term() -> None:
    text = SUM.replace("dense:", "t3:")
    assert only(text)[2] == "two terms are named 't3'."
    assert only(SUM.replace("dense:", "t1:"))[2] == "two terms are named 't1'."


def test_too_many_copies_are_refused() -> None:
    line, column, message = only(SUM.replace("copies: 4", "copies: 2000000000"))
    assert (line, column) == (6, 5)
    assert message == "the graph would have 6,000,000,000 bonds and cores, but must have at most 10,000."


def test_a_mistake_in_a_term_with_copies_is_reported_once() -> None:
    problem = (8, 34, "core 'B' lists edge 'x', which is not declared.")
    assert only(SUM.replace("B: [r, o]", "B: [r, o, x]")) == problem


def test_a_sum_of_no_terms_is_a_graph() -> None:
    graph = loads("tnmars: 1\nkind: linear\nmodes: {in: {i: 4}, out: {o: 5}}\nterms: {}\n")
    assert graph.terms == ()
    assert loads(dump(graph)) == graph


def test_one_named_term_keeps_its_name() -> None:
    text = "tnmars: 1\nkind: linear\nmodes: {in: {i: 4}, out: {o: 5}}\nterms: {only: {cores: {W: [i, o]}}}\n"
    assert loads(dump(loads(text))).terms[0].name == "only"
    assert loads(text.replace("only", "main")) == loads(
        text.replace("terms: {only: {cores: {W: [i, o]}}}", "cores: {W: [i, o]}")
    )


# --- padding, kernels, maps ------------------------------------------------------------------------------------------


def test_features_and_vocab_are_real_sizes_below_the_product() -> None:
    assert loads(BASE).in_features == 23
    assert loads(BASE).out_features == 35
    text = "tnmars: 1\nkind: embedding\nmodes: {lookup: {v: 5, w: 5}, out: {o: 4}}\nvocab: 23\ncores: {A: [v, w, o]}\n"
    assert loads(text).vocab == 23
    assert loads(text).dense_shape == (23, 4)
    assert only(text.replace("vocab: 23", "vocab: 26")) == (4, 1, "vocab is 26, but the modes hold only 25.")
    assert only(changed("in: 23", "in: 25")) == (8, 12, "features 'in' is 25, but the modes hold only 24.")


def test_one_kernel_mode_may_hold_several_axes() -> None:
    graph = loads(CONV)
    assert graph.kernel_size == (3, 3)
    assert graph.dense_shape == (5, 4, 3, 3)
    assert only(CONV.replace("[3, 3]", "[3, 4]"))[:2] == (4, 1)
    assert only(CONV.replace("[3, 3]", "[3, 3, 3, 3]"))[2] == "'kernel_size' has 4 entries, but must have 1 to 3."
    assert loads(CONV.replace("kernel_size: [3, 3]\n", "")).kernel_size == (9,)


def test_patch_modes_need_the_kernel_size() -> None:
    text = "tnmars: 1\nkind: conv\nmodes: {patch: {p: 27}, out: {o: 5}}\nkernel_size: [3, 3]\ncores: {A: [p, o]}\n"
    assert loads(text).in_features == 3
    assert (
        only(text.replace("kernel_size: [3, 3]\n", ""))[2]
        == "patch modes need kernel_size, to tell channels from taps."
    )


def test_a_shared_mode_sits_on_several_cores() -> None:
    text = changed("[i1, o1, r1, s1]", "[i1, o1, r1, s1, i2]")
    assert only(text)[:2] == (6, 15)
    assert loads(text + "shared: [i2]\n").shared == ("i2",)
    assert only(BASE + "shared: [i2]\n") == (14, 10, "shared lists mode 'i2', but no term has it on two cores.")


def test_a_map_names_its_inputs_and_flattens_modes() -> None:
    graph = loads(MAP)
    assert [operand.name for operand in graph.inputs] == ["x", "y"]
    assert graph.inputs[0].axes == (("batch",), ("n",), ("i1", "i2"))
    assert graph.output == (("batch",), ("n",), ("o",))
    assert loads(MAP.replace("(i1 i2)", '" ( i1   i2 )"')) == graph
    assert loads(MAP.replace("(i1 i2)", "i1, i2")) != graph
    assert loads(dump(graph)) == graph


@pytest.mark.parametrize("axis", ["(i1)", "()", "(i1 i2", "i1 i2", "7", "true", "(i1 (i2))", "[i1, i2]", "''"])
def test_what_is_no_axis_is_refused(axis: str) -> None:
    line, column, message = only(MAP.replace("(i1 i2)", axis))
    assert (line, column) == (4, 24)
    assert message.endswith("but must be an axis.")


# --- families --------------------------------------------------------------------------------------------------------

_SHORTHAND = {
    "lowrank": "rank: 3",
    "tt": "ranks: [3]",
    "tt_naive": "rank: 3\norder: [out, in]",
    "tr": "rank: 3",
    "tucker": "ranks: {r1: 2, r2: 3, r3: 2, r4: 3}",
    "tucker2": "rank: 2",
    "cp": "rank: 3",
    "btd": "rank: 2\nterms: 3",
    "ht": "rank: 2\ntree: [2, 1]",
    "peps": "rank: 3\ngrid: [1, 2]",
    "complete": "rank: 3",
    "btt": "rank: 3",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shorthand_is_what_the_function_gives(family: str) -> None:
    rows = _SHORTHAND[family]
    text = f"tnmars: 1\nkind: linear\nname: short\nfamily: {family}\nin: [4, 5]\nout: [2, 3]\n"
    text += f"features: {{in: 19}}\n{rows}\n"
    settings = yaml.safe_load(rows)
    graph = FAMILIES[family]("linear", inputs=(4, 5), outputs=(2, 3), features={"in": 19}, **settings)
    assert loads(text) == graph
    assert loads(text).name == "short"
    assert loads(dump(loads(text))) == graph
    named = text.replace("in: [4, 5]", "in: {i1: 4, i2: 5}").replace("out: [2, 3]", "out: {o1: 2, o2: 3}")
    assert loads(named) == graph
    assert "a" in dump(loads(named.replace("i1: 4", "a: 4")))


def test_a_shorthand_takes_everything_that_a_kind_has() -> None:
    conv = "tnmars: 1\nkind: conv\nfamily: tt\npatch: [9, 3]\nout: [4, 4]\nkernel_size: [3, 3]\nrank: 2\n"
    conv += "options: {stride: 2}\n"
    assert loads(conv).in_features == 3
    assert dict(loads(conv).options) == {"stride": 2}
    embedding = (
        "tnmars: 1\nkind: embedding\nfamily: tt\nlookup: [5, 5]\nout: [2, 2]\nvocab: 24\nrank: 2\norigin: {a: 1}\n"
    )
    assert loads(embedding).vocab == 24
    assert loads(embedding).origin == {"a": 1}
    head = "tnmars: 1\nkind: map\nfamily: cp\nin: {i: 4, j: 5}\nout: {o: 3}\nrank: 2\noutput: [b, o]\n"
    assert [operand.name for operand in loads(head + "inputs: {x: [b, i], y: [b, j]}\n").inputs] == ["x", "y"]
    assert loads(head + "inputs: {x: [b, (i j)]}\n").inputs[0].axes == (("b",), ("i", "j"))


def test_a_sum_in_a_shorthand_may_have_its_own_ranks_in_every_term() -> None:
    text = "tnmars: 1\nkind: tensor\nfamily: btd\nfree: [4, 5]\nranks: [[1, 2], [3, 4], [5, 6]]\n"
    assert [bond.size for bond in loads(text).bonds.values()] == [1, 2, 3, 4, 5, 6]


# --- form ------------------------------------------------------------------------------------------------------------


def test_duplicate_keys_are_refused_at_the_second() -> None:
    assert only(changed("  G2:", "  G1:")) == (
        13,
        3,
        "key 'G1' is given twice; the first is on line 12.",
    )
    assert only(BASE + "name: again\n")[:2] == (14, 1)
    assert only(changed("  G2:", '  "G1":'))[:2] == (13, 3)


def test_anchors_aliases_merge_keys_and_tags_are_refused() -> None:
    assert only(changed("[i1,", "&a [i1,")) == (12, 7, "anchor '&a' is refused.")
    assert only(changed("[i1, o1, r1, s1]", "*a")) == (12, 7, "alias '*a' is refused.")
    assert only(changed("  G2:", "  <<:")) == (13, 3, "merge key '<<' is refused.")
    assert only(changed("[i1,", "!!seq [i1,")) == (12, 7, "tag '!!seq' is refused.")
    assert only(changed("tnmars: 1", "tnmars: !!int 1")) == (1, 9, "tag '!!int' is refused.")
    assert only(changed("[i1,", "!x [i1,"))[2] == "tag '!x' is refused."
    assert (1, 4, "tag '!!python/object/apply:os.system' is refused.") in found(
        "a: !!python/object/apply:os.system [ls]\n"
    )


def test_a_quoted_merge_sign_is_a_bad_name_only() -> None:
    assert only(changed("  G2:", "  '<<':"))[2] == "core name '<<' is not an identifier."


def test_a_second_document_is_refused() -> None:
    assert only(f"{BASE}---\n{BASE}") == (14, 1, "the file holds a second document.")
    assert loads(f"%YAML 1.2\n---\n{BASE}...\n") == loads(BASE)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", (1, 1), "the file is empty."),
        ("# nothing\n\n", (1, 1), "the file is empty."),
        ("---\n...\n", (2, 1), "the file is not a table of keys."),
        ("tnmars", (1, 1), "the file is not a table of keys."),
        ("- tnmars: 1\n", (1, 1), "the file is not a table of keys."),
        ("\n  [1, 2]", (2, 3), "the file is not a table of keys."),
        ("a: [1, 2", (1, 9), "not valid YAML: while parsing a flow sequence, did not find expected ',' or ']'."),
        ("a: 'x", (1, 6), "not valid YAML: while scanning a quoted scalar, found unexpected end of stream."),
        ("a: b: c", (1, 5), "not valid YAML: mapping values are not allowed in this context."),
        ("a: 'x' y", (1, 8), "not valid YAML: while parsing a block mapping, did not find expected key."),
        ("a: " + "[" * 40, (1, 35), "the file is nested over 32 levels deep."),
        ("a: [" + "x, " * 150_000 + "]", (1, 449_996), "the file has over 150,000 nodes, which no spec needs."),
        ("#" * 16_000_001, (1, 1), "the file has over 16,000,000 bytes, which no spec needs."),
        ("%A 1\n" * 11 + "---\na: 1\n", (11, 1), "over 10 lines start with '%'."),
        ("a: b\x00", (1, 5), "character U+0000 is not printable."),
        ("a: b\n\x1b[31m", (2, 1), "character U+001B is not printable."),
        ("é: 模\r\nb: \x07", (2, 4), "character U+0007 is not printable."),
    ],
)  # fmt: skip
def test_a_text_without_a_tree_has_one_problem(text: str, place: tuple[int, int], message: str) -> None:
    assert only(text) == (*place, message)


def test_the_limits_are_the_largest_that_is_read() -> None:
    filler = "#" * (16_000_000 - len(BASE) - 1)
    assert loads(f"{BASE}{filler}\n") == loads(BASE)
    deep = BASE + "origin: {a: " + "[" * 30 + "]" * 30 + "}\n"
    assert loads(deep).origin is not None
    assert only(BASE + "origin: {a: " + "[" * 31 + "]" * 31 + "}\n")[2] == "the file is nested over 32 levels deep."


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_bytes_that_are_no_text_are_pointed_at(mark: bytes) -> None:
    assert only(mark + b"a: 1\r\nb: \xff") == (2, 4, "byte 0xff is not UTF-8 text.")
    assert only(mark + "é: ".encode() + b"\xc3(") == (1, 4, "byte 0xc3 is not UTF-8 text.")
    assert only("a: 1".encode("utf-16")) == (1, 1, "byte 0xff is not UTF-8 text.")


def test_a_mark_at_the_start_and_other_line_ends_make_no_difference() -> None:
    data = b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode()
    assert read(data).graph == loads(BASE)
    wrong = changed("G2: [r1", "G2: [r9").replace("\n", "\r\n").encode()
    assert (13, 8, "core 'G2' lists edge 'r9', which is not declared.") in found(b"\xef\xbb\xbf" + wrong)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(SpecError, match=r"<text>:1:7: byte 0xed is not UTF-8 text"):
        loads("name: \ud800")


def test_what_a_message_quotes_is_printable_and_short() -> None:
    for text in ('"\\e[31m\\0": 1\n', f"? {'x' * 5000}\n: 1\n", f'kind: "\\e{"a" * 500}"\n', f"a: &{'a' * 5000} 1\n"):
        for problem in read((BASE + text).encode()).problems:
            assert problem.text.isprintable()
            assert len(problem.text) < 200


# --- all at once, and no more than that ------------------------------------------------------------------------------

TEN = """\
tnmars: 2
name: 7
kind: linear
params: {rank: 3, spare: 4}
modes:
  in: {i1: 0, i2: 6}
  out: {o1: 5, o2: 7, o3: 2}
bonds: {r1: rank, s1: 2, t: x}
colour: blue
options: {bias: maybe, stride: 2}
cores:
  G1: [i1, o1, r1, r1, q]
  G2: [r1, s1, i2, o2, t]
  G3: [t, *a]
"""


def test_every_problem_of_a_file_is_reported_at_once_in_order() -> None:
    text = TEN.replace("*a", "i2")
    assert found(text) == [
        (1, 9, "'tnmars' is '2', but must be 1."),
        (2, 7, "'name' is '7', but must be a line of text."),
        (4, 19, "parameter 'spare' is declared, but no size uses it."),
        (6, 12, "'i1' is '0', but must be a size."),
        (6, 15, "mode 'i2' is on 2 cores: G2, G3; a mode belongs to one core."),
        (7, 23, "mode 'o3' is declared, but no core lists it."),
        (8, 19, "bond 's1' touches only core 'G2'; a bond joins at least two cores."),
        (8, 29, "'t' is 'x', but must be a number or the name of a parameter."),
        (9, 1, "key 'colour' is not known in a spec of kind 'linear'."),
        (10, 17, "'bias' is 'maybe', but must be true or false."),
        (10, 24, "key 'stride' is not known in options."),
        (12, 24, "core 'G1' lists edge 'q', which is not declared."),
    ]


def test_what_follows_from_an_unreadable_part_is_left_out_and_the_rest_is_not() -> None:
    """An alias on a core may stand for any edge, so that missing ends are not reported; undeclared edges are."""
    texts = [text for _, _, text in found(TEN)]
    assert "alias '*a' is refused." in texts
    assert "core 'G1' lists edge 'q', which is not declared." in texts
    assert not any("touches only" in text or "no core lists it" in text for text in texts)


def test_the_error_holds_every_problem_with_its_place() -> None:
    with pytest.raises(SpecError) as raised:
        loads(changed("G2: [r1", "G2: [r9").replace("tnmars: 1", "tnmars: 3"), source="tt.yaml")
    assert str(raised.value).startswith("tt.yaml:1:9: 'tnmars' is '3', but must be 1.\n  This version of")
    assert "\ntt.yaml:13:8: core 'G2' lists edge 'r9', which is not declared.\n  Declared" in str(raised.value)


def test_more_problems_than_anyone_reads_are_counted() -> None:
    text = BASE + "".join(f"key{at}: 1\n" for at in range(250))
    problems = found(text)
    assert len(problems) == 101
    assert problems[-1] == (114, 1, "and 150 more problems after this line.")


HEAD = "tnmars: 1\nkind: linear\n"
MODES = "modes: {in: {i: 4}, out: {o: 5}}\n"

TOGETHER = {
    "below a mistyped key": (
        HEAD + MODES + "bonds: {r: 2}\ncore: {A: [i, r], B: [r, o, zz], C: 5}\n",
        [
            (5, 1, "key 'core' is not known in a spec of kind 'linear'."),
            (5, 29, "core 'B' lists edge 'zz', which is not declared."),
            (5, 37, "'C' is '5', but must be a list."),
        ],
    ),
    "below mistyped kind and params": (
        "tnmars: 1\nknd: linear\nparms: {a: 3, b: 4}\n" + MODES + "bonds: {r: a}\ncores: {A: [i, o]}\n",
        [
            (2, 1, "key 'knd' is not known in a spec of kind 'linear'."),
            (3, 1, "key 'parms' is not known in a spec of kind 'linear'."),
            (3, 15, "parameter 'b' is declared, but no size uses it."),
            (5, 9, "bond 'r' is declared, but no core lists it."),
        ],
    ),
    "a mistyped key whose value is of another form": (
        HEAD + MODES + "core: 3\n",
        [(4, 1, "key 'core' is not known in a spec of kind 'linear'.")],
    ),
    "two slips for one key": (
        HEAD + MODES + "core: {A: [i, o]}\ncors: {B: [x]}\n",
        [
            (4, 1, "key 'core' is not known in a spec of kind 'linear'."),
            (5, 1, "key 'cors' is not known in a spec of kind 'linear'."),
        ],
    ),
    "a mistyped family": (
        HEAD + "famly: tt\nin: [4, 4]\nout: [2, 2]\nranks: [3, 3]\n",
        [
            (3, 1, "key 'famly' is not known in a spec of kind 'linear' with 'family: tt'."),
            (6, 1, "ranks has 2 numbers for 1 bond."),
        ],
    ),
    "beside an unreadable mode": (
        HEAD + "modes: {in: {i-1: 4}, out: {o: 5}}\nbonds: {r: 2}\ncores: {A: [i1, r], B: [r, o, zz]}\n",
        [
            (3, 14, "mode name 'i-1' is not an identifier."),
            (5, 31, "core 'B' lists edge 'zz', which is not declared."),
        ],
    ),
    "a family and its frame": (
        HEAD + "family: tt\nin: [4, 4]\nout: [2, 2]\nranks: [3, 3]\nfeatures: {in: 100}\n",
        [
            (6, 1, "ranks has 2 numbers for 1 bond."),
            (7, 12, "features 'in' is 100, but the modes hold only 16."),
        ],
    ),
    "the frame of a family with an unreadable setting": (
        HEAD + "family: tt\nin: [4, 4]\nout: [2, 2]\nranks: no\nfeatures: {in: 100}\n",
        [
            (6, 8, "'ranks' is 'no', which does not fit here."),
            (7, 12, "features 'in' is 100, but the modes hold only 16."),
        ],
    ),
    "modes that could not be read": (
        HEAD + "family: tt\nin: [4, no]\nout: [2, 2]\nrank: 2\nfeatures: {in: 100}\n",
        [(4, 9, "entry 2 of 'in' is 'no', but must be a number or the name of a parameter.")],
    ),
    "a bond and a core named modes": (
        HEAD + MODES + "bonds: {modes: 2}\ncores:\n  modes: [i, modes, q]\n  B: [o]\n",
        [
            (4, 9, "bond 'modes' touches only core 'modes'; a bond joins at least two cores."),
            (6, 21, "core 'modes' lists edge 'q', which is not declared."),
        ],
    ),
    "a term without a mode": (
        HEAD + MODES + "terms:\n  a: {cores: {A: [i, o]}}\n  b: {cores: {A: [i], B: [i]}}\n",
        [
            (6, 7, "mode 'i' is on 2 cores of term 'b': A, B; a mode belongs to one core."),
            (6, 7, "mode 'o' is declared, but no core of term 'b' lists it."),
        ],
    ),
    "a mode that no term has": (
        HEAD + MODES + "terms:\n  a: {cores: {A: [i]}}\n  b: {cores: {A: [i]}}\n",
        [(3, 27, "mode 'o' is declared, but no core lists it.")],
    ),
    "a guessed tree": (
        HEAD + "family: ht\nin: [4, 4, 4]\nout: [2, 2, 2]\nrank: 3\ntree: [[1, true], 3]\n",
        [(7, 12, "entry 2 of 'tree' is 'true', but must be a whole number.")],
    ),
    "a guessed grid": (
        HEAD + "family: peps\nin: [4, 4, 4]\nout: [2, 2, 2]\nrank: 3\ngrid: [x, 1]\n",
        [(7, 8, "entry 1 of 'grid' is 'x', but must be a number or the name of a parameter.")],
    ),
    "a guessed number of terms": (
        HEAD + "family: btd\nin: [4, 4]\nout: [2, 2]\nranks: [[1, 1, 1, 1], [2, 2, 2, 2]]\nterms: 2.5\n",
        [(7, 8, "'terms' is '2.5', but must be a size.")],
    ),
    "a mode with the name of a bond": (
        HEAD + "family: tt\nin: {r1: 4, i2: 4}\nout: [2, 2]\nrank: 3\n",
        [(4, 6, "mode 'r1' has the name of a bond that this family makes.")],
    ),
}


@pytest.mark.parametrize(("text", "problems"), TOGETHER.values(), ids=TOGETHER)
def test_all_that_is_wrong_and_nothing_else(text: str, problems: list[tuple[int, int, str]]) -> None:
    assert found(text) == problems


SINGLE = [
    ("tnmars: 1\n", "", (1, 1)),
    ("tnmars: 1", "tnmars: 2", (1, 9)),
    ("tnmars:", "tnmar:", (1, 1)),
    ("kind: linear", "kind: linaer", (3, 7)),
    ("kind: linear", "kind: foo", (3, 7)),
    ("kind: linear", "kind: [linear]", (3, 7)),
    ("kind: linear\n", "", (1, 1)),
    ("kind:", "knd:", (3, 1)),
    ("params:", "parms:", (4, 1)),
    ("params: {rank: 3}", "params: 3", (4, 9)),
    ("params: {rank: 3}", "params: {rnk: 3}", (9, 13)),
    ("params: {rank: 3}\n", "", (8, 13)),
    ("{rank: 3}", "{rank: 3, rank: 4}", (4, 19)),
    ("modes:", "mods:", (5, 1)),
    ("  in:", "  inn:", (6, 3)),
    ("  in:", "  lookup:", (6, 3)),
    ("in: {i1: 4, i2: 6}", "in: 24", (6, 7)),
    ("in: {i1: 4, i2: 6}", "in: [4, 6]", (6, 7)),
    ("i1: 4", "i1: four", (6, 12)),
    ("i1: 4", "1i: 4", (6, 8)),
    ("i1: 4", "i1: [4]", (6, 12)),
    ("i1: 4, ", "i1: 4, i1: 5, ", (6, 15)),
    ("i1: 4", "i1: 4, i3: 2", (6, 15)),
    ("features: {in: 23}", "features: 23", (8, 11)),
    ("features: {in: 23}", "features: {inn: 23}", (8, 12)),
    ("features: {in: 23}", "vocab: 23", (8, 1)),
    ("bonds:", "bond:", (9, 1)),
    ("bonds:", "edges:", (9, 1)),
    ("bonds: {r1: rank, s1: 2}", "bonds: [r1, s1]", (9, 8)),
    ("s1: 2", "s1: 2, t: 3", (9, 26)),
    ("s1: 2", "s1: -2", (9, 23)),
    ("bias: false", "bais: false", (10, 11)),
    ("options: {bias: false}", "options: true", (10, 10)),
    ("cores:", "core:", (11, 1)),
    ("G1: [i1, o1, r1, s1]", "G1: [i1, o1, r1]", (9, 19)),
    ("G1: [i1, o1, r1, s1]", "G1: [i1, o1, r1, s1, i1]", (12, 24)),
    ("G1: [i1, o1, r1, s1]", "G1: [i1, o1, r1, 3]", (12, 20)),
    ("G1: [i1, o1, r1, s1]", "G1: [i1, o1, r1, s1, i2]", (6, 15)),
    ("G1: [i1, o1, r1, s1]", "G1: i1 o1 r1", (12, 7)),
    ("  G2:", "  G1:", (13, 3)),
    ("  G2:", "  2:", (13, 3)),
    ("  G2:", "  <<:", (13, 3)),
    ("  G2:", "  ? [a]\n  :", (13, 5)),
    ("[r1, s1, i2, o2]", "[*r, s1, i2, o2]", (13, 8)),
    ("G1: [i1, o1, r1, s1]", "G1: [i1, o1, r1, s2]", (12, 20)),
    ("G1: [i1, o1, r1, s1]", "G1: [i_1, o1, r1, s1]", (12, 8)),
    ("{r1: rank, s1: 2}", "{r1: rank}", (12, 20)),
]


@pytest.mark.parametrize(("old", "new", "place"), SINGLE)
def test_one_mistake_gives_one_problem(old: str, new: str, place: tuple[int, int]) -> None:
    assert only(changed(old, new))[:2] == place


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("family: tt", "family: ttt", (3, 9)),
        ("family: tt", "family: foo", (3, 9)),
        ("rank: 3\n", "", (3, 1)),
        ("rank: 3", "rnk: 3", (6, 1)),
        ("rank: 3", "ranks: [3, 4]", (6, 1)),
        ("rank: 3", "rank: 0", (6, 7)),
        ("rank: 3", "rank: 3\ngrid: [2]", (7, 1)),
        ("rank: 3", "rank: 3\nranks: [3]", (7, 1)),
        ("rank: 3", "rank: 3\nranks: 4", (7, 8)),
        ("rank: 3", "ranks: {r2: 3}", (6, 1)),
        ("in: [4, 5]", "in: [4]", (5, 1)),
        ("in: [4, 5]", "in: 20", (4, 5)),
        ("in: [4, 5]", "lookup: [4, 5]", (4, 1)),
        ("in: [4, 5]\n", "", (3, 1)),
        ("in: [4, 5]", "in: {a: 4, a: 5}", (4, 12)),
        ("family: tt", "family: peps", (1, 1)),
        ("family: tt", "family: btd", (3, 1)),
        ("family: tt", "family: tt\ncores: {}", (4, 1)),
        ("family: tt", "family: tt\nmodes: {}", (4, 1)),
    ],
)
def test_one_mistake_in_a_shorthand_gives_one_problem(old: str, new: str, place: tuple[int, int]) -> None:
    assert only(changed(old, new, FAMILY))[:2] == place


def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml: cannot be read: No such file or directory\."):
        load(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match=r"cannot be read: Is a directory\."):
        load(tmp_path)
    with pytest.raises(SpecError, match=r"cannot be read: embedded null byte\."):
        load("a\0b")


def test_problems_of_a_graph_point_into_the_file() -> None:
    spec = read(SUM.encode())
    assert spec.graph is not None
    assert spec.copied["t3"] == "t"
    assert spec.places[("terms", "t", "cores", "B", 1)].line == 8


# --- the rules run once ----------------------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the rules were asked about so far."""
    asked: list[object] = []
    check = rules.problems

    def noted(fields: object) -> list[object]:
        asked.append(fields)
        return check(fields)

    monkeypatch.setattr(rules, "problems", noted)
    return asked


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_rules_run_once_per_load(path: Path, runs: list[object]) -> None:
    load(path)
    assert len(runs) == 1


@pytest.mark.parametrize("text", [BASE, SUM, FAMILY], ids=["cores", "terms", "family"])
def test_the_rules_run_once_with_an_origin(text: str, runs: list[object]) -> None:
    assert loads(text + "origin: {step: 3}\n").origin == {"step": 3}
    assert len(runs) == 1


def test_copies_are_tied_to_the_core_of_the_first() -> None:
    text = """
tnmars: 1
kind: linear
modes: {in: {i: 4}, out: {o: 4}}
terms:
  t:
    copies: 3
    bonds: {r: 2}
    cores: {A: [i, r], B: [r, o]}
    tied: {A: t1.A}
"""
    graph = loads(text)
    assert {node: core for node, core in graph.nodes.items() if node != core} == {"t2.A": "t1.A", "t3.A": "t1.A"}
    assert list(graph.cores) == ["t1.A", "t1.B", "t2.B", "t3.B"]
