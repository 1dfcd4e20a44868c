"""Golden files: for each file in `specs/`, what tnmars makes of it, compared to the letter.

`tests/golden/NAME.txt` has the printed graph, its counts, its warnings and its drawing for the terminal; `NAME.yaml`
has the graph written out, `NAME.svg` the picture, `NAME.plan` the plans and programs by the shipped cost model. `make
golden` rewrites them: review the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import unified_diff
from itertools import islice
from pathlib import Path

import pytest
from kit import ROOT, SPECS

from tnmars import Graph, count, draw, dump, load, loads
from tnmars.errors import render
from tnmars.graph.lint import lint
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.program.choice import choose
from tnmars.program.explain import explain, table

GOLDEN = ROOT / "tests" / "golden"
REWRITE = os.environ.get("TNMARS_REWRITE_GOLDEN") == "1"
WIDTH = 80
MAX_DIFF = 60
PLAN_BATCHES = (4, 256)
PLAN_IMAGE = 16


def report(graph: Graph) -> str:
    """The printed graph, its counts, its warnings and its drawing."""
    numbers = count(graph)
    counts = [
        f"parameters  {numbers.cores}, other {numbers.other}",
        f"dense       {numbers.dense}",
        f"compression {numbers.compression:.4f}, with other {numbers.compression_with_other:.4f}",
    ]
    sections = [
        str(graph),
        "\n".join(counts),
        *(render(problem, label="warning") for problem in lint(graph)),
        draw.terminal(graph, width=WIDTH),
    ]
    return "\n\n".join(section.rstrip("\n") for section in sections) + "\n"


def plans(graph: Graph) -> str:
    """The form that is taken for a small and a large batch, for inference and for training, with its program."""
    sections = []
    for train, mode in ((False, "infer"), (True, "train")):
        for batch in PLAN_BATCHES:
            form = choose(graph, batch, Weighing(CostModel(), train), PLAN_IMAGE)[0]
            steps = table(explain(graph, form, batch, CostModel(), grad=train, image=PLAN_IMAGE))
            sections.append(f"{mode}, {steps}\n\n{form.program}")
    return "\n\n".join(sections) + "\n"


FORMS: dict[str, Callable[[Graph], str]] = {".txt": report, ".yaml": dump, ".svg": draw.svg}
PLAN = ".plan"
has_plans = REWRITE or any(GOLDEN.glob(f"*{PLAN}"))
"""Whether plans are held to golden files: from the first `make golden` on, once the planner has come to rest."""


def check(path: Path, found: str, *, rewrite: bool = REWRITE) -> None:
    """Compares a text with a golden file, or writes it there."""
    if rewrite:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(found.encode())
        return
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make golden` and review what it writes.", pytrace=False)
    expected = path.read_bytes().decode()
    if found != expected:
        pytest.fail(_difference(path.name, expected, found), pytrace=False)


def _difference(name: str, expected: str, found: str) -> str:
    lines = unified_diff(expected.splitlines(True), found.splitlines(True), f"golden/{name}", "now", n=1)
    shown = [line if line.endswith("\n") else f"{line}\n(no newline at the end)\n" for line in islice(lines, MAX_DIFF)]
    # Text that differs in line ends alone has no line to show.
    what = "".join(shown) or "They differ in line ends alone.\n"
    more = "…\n" if len(shown) == MAX_DIFF else ""
    return f"{name} is not what it was:\n{what}{more}If this is meant, run `make golden` and review the diff."


@pytest.mark.parametrize("ending", FORMS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_spec_is_as_its_golden_file(spec: Path, ending: str) -> None:
    found = FORMS[ending](load(spec))
    assert found.endswith("\n")
    check(GOLDEN / f"{spec.stem}{ending}", found)


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_plan_is_as_its_golden_file(spec: Path) -> None:
    text = plans(load(spec))
    assert text.count(", batch 4: ") == text.count(", batch 256: ") == 2
    assert text.count("\n  -> ") == 4
    if has_plans:
        check(GOLDEN / f"{spec.stem}{PLAN}", text)


def test_every_golden_file_belongs_to_a_spec() -> None:
    known = {f"{spec.stem}{ending}" for spec in SPECS for ending in (*FORMS, PLAN)}
    stale = [path for path in GOLDEN.iterdir() if path.is_file() and path.name not in known]
    if REWRITE:
        for path in stale:
            path.unlink()
        stale = []
    assert not stale, f"no spec has these golden files, remove them: {', '.join(path.name for path in stale)}"


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_golden_expansion_is_a_spec_of_the_same_graph(spec: Path) -> None:
    text = (GOLDEN / f"{spec.stem}.yaml").read_text(encoding="utf-8")
    assert loads(text) == load(spec)


# --- the comparison itself -------------------------------------------------------------------------------------------


def test_golden_comparison_accepts_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    check(path, "größe\n", rewrite=True)
    check(path, "größe\n", rewrite=False)
    assert path.read_bytes() == "größe\n".encode()


@pytest.mark.parametrize(
    ("now", "shown"),
    [
        ("one\nTWO\n", "-two\n+TWO\n"),
        ("one\n", "-two\n"),
        ("one\ntwo", "+two\n(no newline at the end)\n"),
        ("one\r\ntwo\n", "+one\r\n"),
    ],
)
def test_golden_comparison_shows_what_differs(tmp_path: Path, now: str, shown: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    with pytest.raises(pytest.fail.Exception) as caught:
        check(path, now, rewrite=False)
    assert shown in str(caught.value)
    assert "make golden" in str(caught.value)


def test_golden_comparison_cuts_a_long_difference(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n" * 500)
    with pytest.raises(pytest.fail.Exception) as caught:
        check(path, "b\n" * 500, rewrite=False)
    assert len(str(caught.value).splitlines()) == MAX_DIFF + 3


def test_golden_comparison_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="missing"):
        check(tmp_path / "a.txt", "", rewrite=False)
