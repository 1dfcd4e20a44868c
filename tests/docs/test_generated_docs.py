"""The pages and the picture that are made from the code: they are as the code is now, and leave nothing out."""

from __future__ import annotations

import doctest
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
from kit import ROOT
from test_layering import MODULES, ROOMS, TORCH_LINE, room
from test_layering import imports as imports_of

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

import cli_page
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
        wanted = {option.name: str(option.default).lower() for option in kind.options}
        assert shown == wanted


def test_examples_of_families_are_specs_of_those_families() -> None:
    found = re.findall(r"```yaml\n(\{.*\})\n```", spec_page.text())
    assert [re.findall(r"family: (\w+)", text) for text in found] == [[name] for name in FAMILIES]
    assert all(loads(text).terms for text in found)


def test_the_default_order_is_that_of_the_function() -> None:
    default = inspect.signature(FAMILIES["tt_naive"]).parameters["order"].default
    assert SETTINGS["order"][2] == ", ".join(default)


def test_shapes_in_words() -> None:
    assert doctest.testmod(shapes) == (0, 1)
    fields = {entry.key: entry.shape for entry in spec_page.record("map", "terms").fields}
    assert shapes.words(fields["inputs"]) == "table: input → list of axes"
    assert shapes.words(fields["terms"]) == "table: term → table with `copies`, `bonds`, `cores`"
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
    assert "| *must be given* | The file to write. |" in section("prune")
    mars = Mars()
    assert f"| `--pi` | a number | {mars.pi:g} |" in section("fit")
    assert f"| `--alpha` | a number | {mars.alpha:g} |" in section("fit")


# --- the picture -----------------------------------------------------------------------------------------------------


def test_the_imports_are_those_that_the_layers_are_held_against() -> None:
    known = rooms.modules()
    assert known == MODULES
    for name, path in known.items():
        assert rooms.imports(path, known) == {other for other in imports_of(path, MODULES) if other in known}, name


def test_every_room_has_a_place_and_every_module_a_room() -> None:
    assert {room.name for room in rooms.rooms()} == picture.PLACES.keys()
    assert {rooms.room_of(module) for module in MODULES} == picture.PLACES.keys()
    listed = [name for room in rooms.rooms() for name in room.modules]
    assert [name for name in listed if not (rooms.PACKAGE / name).is_dir() and name not in MODULES] == []


def test_what_is_drawn_above_the_line_may_not_import_torch() -> None:
    line = ROOMS.index(TORCH_LINE)
    for module in MODULES:
        above = picture.PLACES[rooms.room_of(module)][1] < picture.TORCH_ROW
        assert not above or ROOMS.index(room(module)) < line, module


def test_arrows_and_what_follows_from_them_are_the_imports() -> None:
    """Nothing is lost where an arrow is left out: each import is a way of one arrow or more."""
    after: dict[str, set[str]] = {room.name: set() for room in rooms.rooms()}
    for start, end in rooms.arrows():
        after[end].add(start)

    def reached(room: str) -> set[str]:
        return after[room].union(*map(reached, after[room]))

    uses = rooms.uses()
    assert all(uses[room] <= reached(room) for room in uses)
    assert all(start in uses[end] for start, end in rooms.arrows())
    assert ("graph", "plan") in rooms.arrows()
    assert ("ground", "plan") not in rooms.arrows()


def test_the_picture_is_whole() -> None:
    root = ElementTree.fromstring(picture.text())
    shown = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {room.title for room in rooms.rooms()} <= set(shown)
    words = {word for text in shown for word in (text or "").split()}
    assert {name for room in rooms.rooms() for name in room.modules} <= words


def test_an_arrow_that_would_lead_up_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(picture.PLACES, "graph", (1, 9))
    with pytest.raises(LookupError, match=r"imports from 'graph', which stands below it: move it in picture\.py"):
        picture.text()
