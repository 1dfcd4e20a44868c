"""Every snippet of the README and the docs runs: Python blocks as they are, console blocks against what they show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from tnmars.cli import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def blocks(language: str) -> list[object]:
    found = []
    for page in PAGES:
        texts = [match[2] for match in BLOCK.finditer(page.read_text(encoding="utf-8")) if match[1] == language]
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
    for command, shown in re.findall(r"^\$ tnmars (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
        result = CliRunner().invoke(cli, shlex.split(command))
        got = "\n".join(line.rstrip() for line in result.output.splitlines())
        assert got == shown.rstrip("\n"), command


def test_there_are_blocks_to_run() -> None:
    assert len(blocks("python")) >= 3
    assert len(blocks("console")) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
