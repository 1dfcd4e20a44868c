"""The worked examples in `specs/`: all load, none warns unless it says so, and together they cover the format."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import yaml
from kit import SPECS, every_spec
from oracle import spec

from tnmars import Graph, dump, load, loads
from tnmars.cli import run
from tnmars.families import FAMILIES
from tnmars.graph import Role
from tnmars.graph.kinds import KINDS, MODE_ROLES
from tnmars.graph.lint import lint

LARGE = {"tt_linear": 784 * 625, "tt_linear_family": 784 * 625, "tt_embedding": 25_000 * 256}
"""Examples from the paper, which may be larger than the rest."""
WARNED = {
    "odd_unconnected": [
        "the cores make 2 parts that nothing joins: (A), (B).",
        "core 'A' touches no bond.",
        "core 'B' touches no bond.",
    ],
    "odd_trace": ["bond 'r' has size 2, but can use at most 1."],
}


def keys(path: Path) -> dict[str, object]:
    """The file as any other YAML reader has it."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


GRAPHS = {path.stem: load(path) for path in SPECS}
KEYS = {path.stem: keys(path) for path in SPECS}


def bonds(graph: Graph) -> list[tuple[int, int]]:
    """Size and number of ends of every bond."""
    return [(bond.size, len(term.ends()[bond.name])) for term in graph.terms for bond in term.bonds]


# --- each file -------------------------------------------------------------------------------------------------------


@every_spec
def test_dumps_and_loads_again(path: Path) -> None:
    graph = load(path)
    again = loads(dump(graph))
    assert again == graph
    assert again.name == graph.name
    assert dump(again) == dump(graph)


@every_spec
def test_is_named_after_its_file(path: Path) -> None:
    assert path.stem.replace("_", "-") == load(path).name


@every_spec
def test_begins_with_a_comment_of_few_lines(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = lines[: lines.index("tnmars: 1")]
    assert 1 <= len(comment) <= 3
    assert all(line.startswith("# ") and len(line) <= 120 for line in comment)
    assert " ".join(comment).endswith(".")


@every_spec
def test_warns_of_nothing_but_what_it_shows(path: Path) -> None:
    assert [problem.text for problem in lint(load(path))] == WARNED.get(path.stem, [])


@every_spec
def test_dense_weight_is_small(path: Path) -> None:
    dense = prod(load(path).dense_shape)
    assert dense == LARGE[path.stem] if path.stem in LARGE else dense <= 1_000_000


PARAMS = [
    pytest.param(path, name, value, id=f"{path.stem}-{name}")
    for path in SPECS
    for name, value in KEYS[path.stem].get("params", {}).items()
]


@pytest.mark.parametrize(("path", "name", "value"), PARAMS)
def test_parameters_may_be_set(path: Path, name: str, value: int) -> None:
    graph, smaller = load(path), load(path, **{name: value - 1})
    assert smaller != graph
    assert smaller.modes == graph.modes
    assert len(smaller.terms) < len(graph.terms) or max(bonds(smaller)) <= max(bonds(graph))
    assert load(path, **{name: value}) == graph


# --- all together ----------------------------------------------------------------------------------------------------


def test_there_are_many() -> None:
    assert len(SPECS) >= 25


def test_the_command_line_finds_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", *map(str, SPECS)]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == len(SPECS)
    assert "error" not in printed.err
    assert printed.err.count("warning") == sum(map(len, WARNED.values()))


def test_strict_takes_the_expected_warnings_for_errors(capsys: pytest.CaptureFixture[str]) -> None:
    calm = [str(path) for path in SPECS if path.stem not in WARNED]
    assert run(["check", "--strict", *calm]) == 0
    assert run(["check", "--strict", *map(str, SPECS)]) == 2
    assert capsys.readouterr().err.count("error") == sum(map(len, WARNED.values()))


def test_exceptions_belong_to_a_file() -> None:
    assert {*LARGE, *WARNED} <= set(GRAPHS)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_file(family: str) -> None:
    assert any(entry.get("family") == family for entry in KEYS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_file_in_full_and_one_in_short(kind: str) -> None:
    found = [entry for entry in KEYS.values() if entry["kind"] == kind]
    assert any("family" in entry for entry in found)
    assert any("modes" in entry for entry in found)


@pytest.mark.parametrize("role", MODE_ROLES)
def test_every_role_has_a_file(role: Role) -> None:
    assert any(graph.of_role(role) for graph in GRAPHS.values())


OF_ROWS = {"max_norm", "norm_type", "scale_grad_by_freq", "include_last_offset"}
"""Options that act on looked-up rows, outside of any plan: `tests/layer/test_table_options.py` has them."""


@pytest.mark.parametrize(
    "option", sorted({option.name for kind in KINDS.values() for option in kind.options} - OF_ROWS)
)
def test_every_option_has_a_file(option: str) -> None:
    assert any(option in dict(graph.options) for graph in GRAPHS.values())


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_convolutions_of_every_number_of_axes(axes: int) -> None:
    assert any(len(graph.kernel_size) == axes for graph in GRAPHS.values())


FEATURES = {
    "a bond with four ends": lambda graph: any(ends == 4 for _, ends in bonds(graph)),
    "a bond with five ends": lambda graph: any(ends == 5 for _, ends in bonds(graph)),
    "a bond of size 1": lambda graph: any(size == 1 for size, _ in bonds(graph)),
    "one core": lambda graph: len(graph.cores) == 1,
    "several terms that are equal": lambda graph: len({term.cores for term in graph.terms}) < len(graph.terms),
    "terms of different shape": lambda graph: len({term.cores for term in graph.terms}) > 1,
    "shared modes": lambda graph: bool(graph.shared),
    "padded inputs": lambda graph: Role.IN in graph.padding,
    "padded outputs": lambda graph: Role.OUT in graph.padding,
    "padded rows": lambda graph: Role.LOOKUP in graph.padding,
    "a kernel mode with several axes": lambda graph: any(len(group) > 1 for group in graph.tap_groups),
    "a kernel without modes": lambda graph: graph.kernel_size and not graph.of_role(Role.KERNEL),
    "a map of three inputs": lambda graph: len(graph.inputs) == 3,
    "a map without output modes": lambda graph: bool(graph.inputs) and not graph.of_role(Role.OUT),
    "no bias": lambda graph: graph.rules.has_bias and not graph.has_bias,
}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_has_a_file(feature: str) -> None:
    assert any(FEATURES[feature](graph) for graph in GRAPHS.values())


def test_copies_are_written_out() -> None:
    assert "copies" in KEYS["copies_linear"]["terms"]["block"]
    assert [term.name for term in GRAPHS["copies_linear"].terms] == ["bulk", "block1", "block2", "block3"]
    assert len(load(spec("copies_linear"), blocks=7).terms) == 8


def test_odd_names_stay_names() -> None:
    graph = GRAPHS["odd_names"]
    assert [mode.name for mode in graph.modes] == ["on", "null", "off", "true"]
    assert list(graph.bonds) == ["no", "yes"]
    assert list(graph.cores) == ["class", "values", "y"]


def test_the_same_train_in_full_and_in_short() -> None:
    assert GRAPHS["tt_linear"] == GRAPHS["tt_linear_family"]
