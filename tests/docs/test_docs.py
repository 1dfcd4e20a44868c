"""Every snippet of the README and the docs runs: Python blocks as they are, console blocks against what they show.

A page with the comment `<!-- one session -->` is run from top to bottom, its blocks sharing names and a folder; there,
`<!-- file: NAME -->` above a block says that the reader saves it under that name.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from kit import ROOT

from tnmars.cli import cli

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SESSION = "<!-- one session -->"
SESSIONS = [page for page in PAGES if SESSION in page.read_text(encoding="utf-8")]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    file: str
    """Where the reader saves it; empty where it is not a file."""
    before: int
    """How many lines of the page come before its first."""


BLOCK = re.compile(r"(?:^<!-- file: (?P<file>\S+) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.M | re.S)


def read(page: Path) -> list[Block]:
    whole = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["text"], found["file"] or "", whole.count("\n", 0, found.start("text")))
        for found in BLOCK.finditer(whole)
    ]


def blocks(language: str) -> list[object]:
    """The blocks of pages that are not one session, each a case of its own."""
    found = []
    for page in PAGES:
        texts = [block.text for block in read(page) if block.language == language and page not in SESSIONS]
        found += [pytest.param(text, id=f"{page.name}-{at}") for at, text in enumerate(texts, 1)]
    return found


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder that looks like the repository, so that what a snippet writes is not left there."""
    for name in ("specs", "tests", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("text", blocks("python"))
def test_python_blocks_run(text: str) -> None:
    exec(compile(text, "<docs>", "exec"), {})  # noqa: S102


@pytest.mark.parametrize("text", blocks("console"))
def test_console_blocks_show_what_is_printed(text: str) -> None:
    check_console(text)


def check_console(text: str) -> None:
    """Runs the commands of a block, and compares what they print with what it shows.

    Every command is one of tnmars, as no other is run; one that fails shows its error.
    """
    assert text.startswith("$ "), f"a console block begins with a command: {text[:40]!r}"
    for command, shown in re.findall(r"^\$(.*)\n((?:(?!\$).*\n)*)", text, re.M):
        name, *given = shlex.split(command)
        assert name == "tnmars", f"not run, so not checked: ${command}"
        result = CliRunner().invoke(cli, given)
        got = "\n".join(line.rstrip() for line in result.output.splitlines())
        assert got == shown.rstrip("\n"), command
        assert result.exit_code == 0 or "error" in shown, f"ends with {result.exit_code}: ${command}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$ ls\nspecs\n", "not run"),
        ("specs/tt_linear.yaml: ok\n", "begins with a command"),
        ("$ tnmars fail\nsomething was found\n", "something was found"),
        ("$ tnmars fail\nnothing was found\n", "ends with 3"),
    ],
)
def test_a_console_block_that_is_not_checked_is_a_failure(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of the test."""

    @click.command()
    def fail() -> None:
        click.echo("nothing was found")
        raise SystemExit(3)

    monkeypatch.setitem(cli.commands, "fail", fail)
    with pytest.raises(AssertionError, match=expected):
        check_console(text)


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_a_session_runs_from_top_to_bottom(page: Path) -> None:
    names: dict[str, object] = {}
    for block in read(page):
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            check_console(block.text)
        elif block.language == "python":
            lines = "\n" * block.before + block.text  # so that what goes wrong is told with the page's line
            exec(compile(lines, page.name, "exec"), names)  # noqa: S102


def test_there_are_blocks_to_run() -> None:
    assert len(blocks("python")) >= 3
    assert len(blocks("console")) >= 3
    assert SESSIONS
    assert all(sum(bool(block.file) for block in read(page)) for page in SESSIONS)


def test_built_pages_load_nothing_from_the_network(tmp_path: Path) -> None:
    """A page with formulas, built with the settings of the docs."""
    build = pytest.importorskip("sphinx.cmd.build")
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    source, built = tmp_path / "source", tmp_path / "built"
    source.mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", source)
    formulas = "# Page\n\nWith $\\phi_k$.\n\n$$\n\\Big[\\sum_k \\phi_k\\Big]\n$$\n"
    (source / "index.md").write_text(formulas, encoding="utf-8")
    assert build.main(["-W", "-q", str(source), str(built)]) == 0
    text = (built / "index.html").read_text(encoding="utf-8")
    assert text.count("<math") == 2
    assert "phi_k" not in text  # drawn, and not written out beside it
    loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"([^\"]*)\"", text)
    assert loaded
    assert [url for url in loaded if re.match(r"(\w+:)?//", url)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
