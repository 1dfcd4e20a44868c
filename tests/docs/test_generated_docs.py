"""The pages and the picture that are made from the code: they are as the code is now, and leave nothing out."""

from __future__ import annotations

import doctest
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
from kit import ROOT
from test_layering import MODULES, ROOMS, TORCH_LINE
from test_layering import imports as imports_of

import tnmars
from tnmars.cli import cli
from tnmars.families import FAMILIES
from tnmars.graph.kinds import KINDS
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.program.choice import choose
from tnmars.select import Mars
from tnmars.spec import load, loads, schema
from tnmars.spec.keys import SETTINGS

sys.path.insert(0, str(ROOT / "docs" / "generate"))

import api_page
import architecture_page
import cli_page
import docstrings
import files_page
import pages
import picture
import rooms
import shapes
import spec_page


@pytest.mark.parametrize("name", pages.PAGES)
def test_the_page_is_as_the_code_is_now(name: str) -> None:
    assert name not in pages.stale(), "run: .venv/bin/python docs/generate"


def test_a_page_that_differs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the test: a page of another text, and one that is not there."""
    monkeypatch.setattr(pages, "PAGES", {"index.md": lambda: "other", "reference/gone.md": lambda: "new"})
    assert pages.stale() == {"index.md": "other", "reference/gone.md": "new"}


# --- the spec --------------------------------------------------------------------------------------------------------


def properties(value: object) -> Iterator[tuple[str, Any]]:
    """Every key that some table of the schema has, with what the schema says of it."""
    if isinstance(value, dict):
        if value.get("additionalProperties") is False:
            yield from value["properties"].items()
        for entry in value.values():
            yield from properties(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from properties(entry)


def first_cells(text: str) -> set[str]:
    """What stands in the first cells of the tables of a page, but for the marks of code."""
    return {name for cell in re.findall(r"^\| (.*?) \|", text, re.M) for name in re.findall(r"`(.*?)`", cell)}


def test_every_key_of_the_schema_is_in_the_reference() -> None:
    keys = {key for key, _ in properties(schema())}
    assert len(keys) > 30
    assert keys - first_cells(spec_page.text()) == set()


def test_every_key_of_the_schema_has_a_description() -> None:
    definitions = schema()["$defs"]
    for key, value in properties(schema()):
        found = definitions[value["$ref"].removeprefix("#/$defs/")] if "$ref" in value else value
        assert found["description"], key


def test_every_kind_and_family_is_in_the_reference() -> None:
    text = spec_page.text()
    assert KINDS.keys() - first_cells(text) == set()
    assert re.findall(r"^### `(\w+)`$", text, re.M) == list(FAMILIES)


def test_options_have_the_defaults_of_their_kind() -> None:
    text = spec_page.text()
    for kind in KINDS.values():
        section = text.partition(f"### Options of `{kind.name}`")[2].partition("#")[0]
        shown = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*?) \| .*? \|$", section, re.M))
        expected = {option.name: str(option.default).lower() for option in kind.options}
        assert shown == expected


def test_examples_of_families_are_specs_of_those_families() -> None:
    found = re.findall(r"```yaml\n(.*?)```", spec_page.text(), re.S)
    assert [re.findall(r"family: (\w+)", text) for text in found] == [[name] for name in FAMILIES]
    assert all(loads(text).terms for text in found)


def test_the_default_order_is_that_of_the_function() -> None:
    default = inspect.signature(FAMILIES["tt_naive"]).parameters["order"].default
    assert SETTINGS["order"][2] == ", ".join(default)


def test_shapes_in_words() -> None:
    assert doctest.testmod(shapes) == (0, 1)
    fields = {entry.key: entry.shape for entry in spec_page.record("map", "terms").fields}
    assert shapes.words(fields["inputs"]) == "table: input → list of axes"
    assert shapes.words(fields["terms"]) == "table: term → table with `copies`, `bonds`, `cores`, `tied`, `conj`"
    assert shapes.words(SETTINGS["ranks"][0]) == "table: bond → size; or list of sizes; or list of lists of sizes"


def test_the_program_in_the_architecture_is_the_one_that_is_printed() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    form = choose(load(ROOT / "specs" / "lowrank_linear.yaml"), 32, Weighing(CostModel()))[0]
    assert f"```text\n{form.program}\n```" in text


# --- the commands ----------------------------------------------------------------------------------------------------


def options(command: click.Command) -> list[click.Option]:
    return [entry for entry in command.params if isinstance(entry, click.Option)]


def section(name: str) -> str:
    """What the reference says of a command."""
    parts = re.split(r"^## tnmars (.*)\n", cli_page.text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[name]


@pytest.mark.parametrize("name", cli.commands)
def test_every_option_of_a_command_is_in_the_reference(name: str) -> None:
    command, text = cli.commands[name], section(name)
    assert first_cells(text) >= {flag for entry in options(command) for flag in (*entry.opts, *entry.secondary_opts)}
    assert first_cells(text) >= {str(e.name).upper() for e in command.params if isinstance(e, click.Argument)}
    assert "--json" in first_cells(text), "the page says that every command takes it"


@pytest.mark.parametrize("name", cli.commands)
def test_every_command_and_option_has_a_help_text(name: str) -> None:
    command = cli.commands[name]
    assert cli_page.short(command).endswith(".")
    assert [entry.opts for entry in options(command) if not entry.help] == []


@pytest.mark.parametrize("name", cli.commands)
def test_the_example_of_a_command_is_a_call_of_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program, called, *arguments = shlex.split(cli_page.example(cli.commands[name]).partition(" > ")[0])
    assert (program, called) == ("tnmars", name)
    assert cli.commands[name].make_context(name, arguments)
    assert [word for word in arguments if word.startswith("specs/") and not Path(word).exists()] == []


def test_defaults_are_shown() -> None:
    assert "| `--batch` | text | `1,32,1024` |" in section("plan")
    assert "| `--measure`, `--no-measure` | none | `--measure` |" in section("report")
    assert "| *required* | The file to write. |" in section("prune")
    mars = Mars()
    assert f"| `--pi` | a number | {mars.pi:g} |" in section("fit")
    assert f"| `--alpha` | a number | {mars.alpha:g} |" in section("fit")


# --- the Python API --------------------------------------------------------------------------------------------------

PUBLIC = [name for name in tnmars.__all__ if name != "__version__"]
INCOMPLETE: set[str] = set()
"""Public names whose docstrings still lack something. The list must shrink to nothing; a complete name in it fails."""


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_arguments_and_an_example(name: str) -> None:
    missing = api_page.lacks(name)
    if name in INCOMPLETE:
        assert missing, f"tnmars.{name} is complete: remove it from INCOMPLETE"
    else:
        assert missing == [], f"tnmars.{name} lacks {', '.join(missing)}"


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(name: str) -> None:
    if name in INCOMPLETE:
        pytest.skip("incomplete")
    value = getattr(tnmars, name)
    module = value if inspect.ismodule(value) else sys.modules[value.__module__]
    example = docstrings.parse(value.__doc__).sections.get("Example", "")
    test = doctest.DocTestParser().get_doctest(example, dict(vars(module)), name, None, 0)
    printed: list[str] = []
    failed, tried = doctest.DocTestRunner(verbose=False).run(test, out=printed.append)
    assert (failed, tried > 0) == (0, ">>>" in example), "".join(printed)


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    listed = [name for group in api_page.GROUPS for name in group.names.split()]
    assert sorted(listed) == sorted(PUBLIC)
    for group in api_page.GROUPS:
        text = api_page.group_text(group)
        assert re.findall(r"^## `tnmars\.(\w+)`$", text, re.M) == group.names.split()


def test_the_reference_shows_signatures_arguments_and_fields() -> None:
    train = next(group for group in api_page.GROUPS if group.file == "train")
    text = api_page.group_text(train)
    assert "    pi: float = 0.01,\n" in text
    assert re.search(r"^\* `pi`: .*prior probability", text, re.M)
    assert "sample_in_eval" in re.findall(r"^\* `(\w+)`: ", text, re.M)  # inherited from Selector


def test_what_a_docstring_lacks_is_seen() -> None:
    """A test of the test."""

    def documented(size: int, *, ways: int = 2) -> int:
        """A number.

        Args:
            size: How large it is,
                and why.
            old: An argument that is gone.
        """
        return size * ways

    parsed = docstrings.parse(documented.__doc__)
    assert parsed.entries("Args") == {"size": "How large it is, and why.", "old": "An argument that is gone."}
    assert list(api_page._lacks(documented, parsed)) == [
        "a line for the argument 'ways'",
        "the argument 'old', which is documented",
        "an example",
    ]


def test_parts_of_docstrings() -> None:
    assert doctest.testmod(docstrings).failed == 0
    assert doctest.testmod(api_page).failed == 0
    found = docstrings.parse("One\nline.\n\nMore.\n\nShape:\n    input: `[b, in]`.\n\nRaises:\n    GraphError: If x.\n")
    assert (found.summary, found.body) == ("One line.", "More.")
    assert found.entries("Shape") == {"input": "`[b, in]`."}
    assert found.entries("Raises") == {"GraphError": "If x."}


# --- the rooms -------------------------------------------------------------------------------------------------------


def test_the_imports_are_those_that_the_layers_are_held_against() -> None:
    known = rooms.modules()
    assert known == MODULES
    for name, path in known.items():
        assert rooms.imports(path, known) == {other for other in imports_of(path, MODULES) if other in known}, name


def test_the_order_of_rooms_is_that_of_the_layers() -> None:
    assert list(rooms.ORDER) == [line for line in ROOMS if line not in (TORCH_LINE, "__main__")]
    assert [entry.name for entry in rooms.in_order()] == list(rooms.ORDER)


def test_a_room_without_a_line_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "ORDER", tuple(name for name in rooms.ORDER if name != "plan"))
    with pytest.raises(LookupError, match=r"'plan' is new: add it to ORDER in rooms\.py"):
        rooms.in_order()


def test_every_file_is_on_the_map() -> None:
    text = files_page.text()
    for name in MODULES:
        path = MODULES[name]
        if path.name != "__init__.py" and name != "__main__" and path.stem != "__main__":
            inside = name.partition(".")[2].replace(".", "/") or name
            assert f"| `{inside}.py` | " in text, name
    assert "|  |" not in text, "a file has no docstring"


def test_the_table_of_rooms_has_every_room_with_its_imports() -> None:
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \| .* \| (.*?) \|$", architecture_page.text(), re.M)
    assert {name: set(re.findall(r"\w+", used)) - {"nothing"} for name, used in rows} == rooms.uses()


# --- the picture -----------------------------------------------------------------------------------------------------


def test_every_room_is_drawn_once() -> None:
    drawn = [entry.name for group in rooms.groups() for entry in group.rooms]
    assert sorted(drawn) == sorted({rooms.room_of(module) for module in MODULES})
    assert {group.name for group in rooms.groups()} == {name for row in picture.ROWS for col in row for name in col}


def test_what_is_drawn_above_the_line_may_not_import_torch() -> None:
    line = ROOMS.index(TORCH_LINE)
    for group in rooms.groups():
        above = picture.row_of(group.name) < picture.TORCH_ROW
        assert [entry.name for entry in group.rooms if (ROOMS.index(entry.name) < line) != above] == []


def test_boxes_do_not_overlap_and_hold_their_text() -> None:
    boxes = picture.boxes()
    for (name, one), (other, two) in combinations(boxes.items(), 2):
        apart = one.right < two.x or two.right < one.x or one.bottom < two.y or two.bottom < one.y
        assert apart, f"{name} and {other}"
    for group in rooms.groups():
        if boxes[group.name].width == picture.WIDTH_OF_BOX:
            assert [line for _, line in picture.lines(group) if len(line) > picture.LETTERS] == []


def test_arrows_cross_no_box() -> None:
    for start, end, _ in picture.PATH:
        (x, y), (to_x, to_y) = picture.ends(start, end)
        for name, box in picture.boxes().items():
            beside = max(x, to_x) <= box.x or min(x, to_x) >= box.right
            apart = max(y, to_y) <= box.y or min(y, to_y) >= box.bottom
            assert beside or apart, f"the arrow from {start} to {end} crosses {name}"


def test_the_picture_is_whole() -> None:
    root = ElementTree.fromstring(picture.text())
    shown = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {group.title for group in rooms.groups()} <= set(shown)
    words = {word for text in shown for word in (text or "").split()}
    for entry in rooms.rooms().values():
        assert {entry.label, *entry.files} <= words


def test_an_import_from_a_row_below_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "ROWS", tuple(reversed(picture.ROWS)))
    with pytest.raises(LookupError, match=r"which stands in a row below it: move it in picture\.py"):
        picture.text()
