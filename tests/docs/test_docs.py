"""Every snippet of the README and the docs runs: Python blocks as they are, console blocks against what they show.

A page with the comment `<!-- one session -->` is run from top to bottom, its blocks sharing names and a folder; there,
`<!-- file: NAME -->` above a block says that the reader saves it under that name. Between
`<!-- worked example: NAME -->` and `<!-- end of example -->` the blocks change a copy of the package, and the last one
is run with it. Console blocks show output as a terminal of 88 columns would: `folded` breaks longer lines at a space
and indents the rest.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from math import isclose
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from kit import ROOT

from tnmars.cli import cli

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REWRITE = os.environ.get("TNMARS_REWRITE_GOLDEN") == "1"
WIDTH = 88
"""How many columns a block of code may have."""
SESSION = "<!-- one session -->"
SESSIONS = [page for page in PAGES if SESSION in page.read_text(encoding="utf-8")]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    file: str
    """Where the reader saves it; empty where it is not a file."""
    change: str
    """The file of the package that it changes; empty where it changes none."""
    before: int
    """How many lines of the page come before its first."""


BLOCK = re.compile(
    r"(?:^<!-- file: (?P<file>\S+) -->\n|^<!-- change: (?P<change>\S+) -->\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```",
    re.M | re.S,
)
EXAMPLE = re.compile(r"^<!-- worked example: (\w+) -->\n(.*?)^<!-- end of example -->\n", re.M | re.S)


def read(page: Path) -> list[Block]:
    """The blocks of a page, without those of worked examples."""
    return parsed(EXAMPLE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8")))


def parsed(whole: str) -> list[Block]:
    return [
        Block(
            found["language"],
            found["text"],
            found["file"] or "",
            found["change"] or "",
            whole.count("\n", 0, found.start("text")),
        )
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

    Every command is one of tnmars, as no other is run; one that fails shows its error. With TNMARS_REWRITE_GOLDEN=1
    the page is rewritten with what is printed now; review the diff.
    """
    assert text.startswith("$ "), f"a console block begins with a command: {text[:40]!r}"
    printed = ""
    for command, shown in re.findall(r"^\$(.*)\n((?:(?!\$).*\n)*)", text, re.M):
        name, *given = shlex.split(command)
        assert name == "tnmars", f"not run, so not checked: ${command}"
        result = CliRunner().invoke(cli, given)
        got = "".join(folded(line.rstrip()) + "\n" for line in result.output.splitlines())
        if not REWRITE and not same_output(got.rstrip("\n"), shown.rstrip("\n")):
            assert got.rstrip("\n") == shown.rstrip("\n"), command
        assert result.exit_code == 0 or "error" in shown, f"ends with {result.exit_code}: ${command}"
        blank = "\n" * (len(shown) - len(shown.rstrip("\n")) - 1)  # an empty line before the next command
        printed += f"${command}\n{got.rstrip(chr(10))}\n{blank}"
    if REWRITE and printed != text:
        for page in PAGES:
            before = page.read_text(encoding="utf-8")
            page.write_text(before.replace(f"```console\n{text}```", f"```console\n{printed}```"), encoding="utf-8")


MEASURED = re.compile(r"\b\d+\.\d+(?:e-?\d+)?\b")
"""A number with a decimal point: it was computed, and its last digit may depend on the processor."""


def same_output(got: str, shown: str) -> bool:
    """Whether two outputs are the same, up to 1 % of the last digits of computed numbers.

    >>> same_output("4-4-4  0.00925", "4-4-4  0.00924"), same_output("4-4-4  0.00955", "4-4-4  0.00924")
    (True, False)
    >>> same_output("208 of 10", "209 of 10"), same_output("0.5 and 2", "0.5")
    (False, False)
    """
    if MEASURED.sub("#", got) != MEASURED.sub("#", shown):
        return False
    pairs = zip(MEASURED.findall(got), MEASURED.findall(shown), strict=True)
    return all(isclose(float(one), float(other), rel_tol=0.01) for one, other in pairs)


def folded(line: str) -> str:
    """A line of output as the docs show it, where it is wider than a block may be.

    A row of a plan has its figures on a line of their own, a rule is cut, and other lines are broken at a space.

    >>> print(folded("  " + "word " * 20))
      word word word word word word word word word word word word word word word word word
          word word word
    >>> print(folded("  a b  <- sum over c" + 60 * " " + "8x16         128 MACs   64 B"))
      a b  <- sum over c
          8x16         128 MACs   64 B
    """
    if len(line) <= WIDTH:
        return line
    if not line.strip(" -"):
        return line[:WIDTH]
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    row = re.fullmatch(r"(.*<-.*?)  +(\d+x[\dx]+ .*)", line) or re.fullmatch(
        r"(  torch's own.*?)  +(\d+x[\dx]+ .*)", line
    )
    return f"{row[1]}\n{indent}{row[2]}" if row else textwrap.fill(line, WIDTH, subsequent_indent=indent)


def too_wide(text: str) -> list[str]:
    """The lines of a page's blocks that are wider than a block may be."""
    shown = re.findall(r"^```.*?\n(.*?)^```", text, re.M | re.S)
    return [line for block in shown for line in block.splitlines() if len(line) > WIDTH]


WIDE_PAGES: set[str] = set()
"""Pages whose blocks are still too wide. The list must shrink to nothing; a page that no longer belongs here fails."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_are_not_too_wide(page: Path) -> None:
    found = too_wide(page.read_text(encoding="utf-8"))
    if page.name in WIDE_PAGES:
        assert found, f"{page.name} is fine now: remove it from WIDE_PAGES"
    else:
        assert found == []


def test_a_block_that_is_too_wide_is_seen() -> None:
    """A test of the test."""
    wide, fits = "x" * 89, "x" * 88
    assert too_wide(f"{wide}\n\n```python\n{fits}\n{wide}\n```\n\n{wide}\n\n```\n{wide}\n```\n") == [wide, wide]


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


@pytest.mark.long
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_a_session_runs_from_top_to_bottom(page: Path) -> None:
    names: dict[str, object] = {}
    for block in read(page):
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            check_console(block.text)
        elif block.language == "python":
            lines = "\n" * block.before + block.text  # so that errors have the line of the page
            exec(compile(lines, page.name, "exec"), names)  # noqa: S102


EXAMPLES = {found[1]: found[2] for page in PAGES for found in EXAMPLE.finditer(page.read_text(encoding="utf-8"))}
FILES = {"selector": 2, "instruction": 2, "kind": 5}
"""How many files of the package each worked example may touch."""


def changed(text: str, diff: str) -> str:
    """A text after a block of lines that begin with a space, `-` or `+`; what it replaces must occur exactly once.

    >>> changed("a\\nb\\nc\\n", " b\\n+x\\n")
    'a\\nb\\nx\\nc\\n'
    """
    old = "\n".join(line[1:] for line in diff.splitlines() if line[0] in " -")
    new = "\n".join(line[1:] for line in diff.splitlines() if line[0] in " +")
    assert text.count(old) == 1, f"occurs {text.count(old)} times: {old}"
    return text.replace(old, new)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worked_example_runs(name: str, tmp_path: Path) -> None:
    """In a copy of the package with the files and lines that the page shows."""
    shutil.copytree(ROOT / "tnmars", tmp_path / "tnmars", ignore=shutil.ignore_patterns("__pycache__"))
    found = parsed(EXAMPLES[name])
    touched = {block.file or block.change for block in found} - {""}
    assert 1 <= len(touched) <= FILES[name]
    script = "import tnmars, pathlib\nassert pathlib.Path(tnmars.__file__).parent.parent == pathlib.Path.cwd()\n"
    for block in found:
        path = tmp_path / (block.file or block.change)
        if block.file:
            path.write_text(block.text, encoding="utf-8")
        elif block.change:
            path.write_text(changed(path.read_text(encoding="utf-8"), block.text), encoding="utf-8")
        else:
            script += block.text
    (tmp_path / "example.py").write_text(script, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "example.py"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_there_are_blocks_to_run() -> None:
    assert len(blocks("python")) >= 3
    assert len(blocks("console")) >= 3
    assert SESSIONS
    assert any(block.file for page in SESSIONS for block in read(page))
    assert EXAMPLES.keys() == FILES.keys()


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
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", prose)
    assert [target for target in targets if not (page.parent / target).exists()] == []
