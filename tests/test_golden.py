"""Golden files: for each file in `specs/`, what tnmars makes of it, compared to the letter.

`tests/golden/NAME.txt` has the printed graph, its counts, its warnings and its drawing for the terminal; `NAME.yaml`
has the graph written out, `NAME.svg` and `NAME.tex` the picture, `NAME.plan` the plans and programs by the shipped cost
model. The estimated times of all plans are in one table, `times.txt`, so that a constant of the cost model changes one
file as long as the choice stays the same. `make golden` rewrites them: review the diff.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
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
from tnmars.program.explain import Explained, explain, table
from tnmars.program.program import Program

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


def explained(graph: Graph) -> Iterator[tuple[str, Explained, Program]]:
    """The plan that is taken for a small and a large batch, for inference and for training, with its program."""
    for train, mode in ((False, "infer"), (True, "train")):
        for batch in PLAN_BATCHES:
            form = choose(graph, batch, Weighing(CostModel(), train), PLAN_IMAGE)[0]
            yield mode, explain(graph, form, batch, CostModel(), grad=train, image=PLAN_IMAGE), form.program


def without_time(plan: Explained) -> str:
    """The table of a plan, whose first line is written without the estimated times."""
    chunk = f" in chunks of {plan.chunk}" if plan.chunk else ""
    against = f", dense {plan.dense_macs:,} MACs" if plan.dense_macs else ""
    head = f"batch {plan.batch}: {plan.form}{chunk}, {plan.macs:,} MACs, {plan.written:,} bytes{against}"
    return "\n".join([head, *table(plan).splitlines()[1:]])


FORMS: dict[str, Callable[[Graph], str]] = {".txt": report, ".yaml": dump, ".svg": draw.svg, ".tex": draw.tikz}
PLAN = ".plan"


# --- estimated times -------------------------------------------------------------------------------------------------

TIMES = GOLDEN / "times.txt"
TIMES_HEAD = "# Estimated microseconds / those of the dense layer, by the shipped cost model. Columns: " + ", ".join(
    f"{mode} {batch}" for mode in ("infer", "train") for batch in PLAN_BATCHES
)


def time_row(name: str, plans: Iterable[Explained]) -> str:
    columns = (f"{plan.seconds * 1e6:,.1f} / {plan.dense_seconds * 1e6:,.1f}" for plan in plans)
    return " ".join([f"{name:<24}", *(f"{column:>22}" for column in columns)])


def rows(text: str) -> dict[str, str]:
    """The rows of the table, by the name that each begins with."""
    return {line.split()[0]: line for line in text.splitlines() if not line.startswith("#")}


def write_rows(found: dict[str, str], path: Path) -> None:
    path.write_text("\n".join([TIMES_HEAD, *(found[name] for name in sorted(found))]) + "\n", encoding="utf-8")


def check_row(name: str, row: str, path: Path = TIMES, *, rewrite: bool = REWRITE) -> None:
    """Compares a row with the one of the table, or writes it there."""
    before = rows(path.read_text(encoding="utf-8")) if path.exists() else {}
    if rewrite:
        after = {**before, name: row}
        write_rows(after, path)
    elif before.get(name) != row:
        pytest.fail(_difference(path.name, f"{before.get(name, '')}\n", f"{row}\n"), pytrace=False)


# --- comparison ------------------------------------------------------------------------------------------------------


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
    found = list(explained(load(spec)))
    text = "\n\n".join(f"{mode}, {without_time(plan)}\n\n{program}" for mode, plan, program in found) + "\n"
    assert text.count(", batch 4: ") == text.count(", batch 256: ") == 2
    assert text.count("\n  -> ") == 4
    check(GOLDEN / f"{spec.stem}{PLAN}", text)
    check_row(spec.stem, time_row(spec.stem, [plan for _, plan, _ in found]))


def test_every_golden_file_belongs_to_a_spec() -> None:
    known = {f"{spec.stem}{ending}" for spec in SPECS for ending in (*FORMS, PLAN)} | {TIMES.name}
    stale = [path for path in GOLDEN.iterdir() if path.is_file() and path.name not in known]
    if REWRITE:
        for path in stale:
            path.unlink()
        stale = []
    assert known == {path.name for path in GOLDEN.iterdir() if path.is_file()} | {path.name for path in stale}
    assert not stale, f"no spec has these golden files, remove them: {', '.join(path.name for path in stale)}"


def test_every_row_of_times_belongs_to_a_spec() -> None:
    found, known = rows(TIMES.read_text(encoding="utf-8")), [spec.stem for spec in SPECS]
    if REWRITE:
        found = {name: row for name, row in found.items() if name in known}
        write_rows(found, TIMES)
    assert list(found) == known


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_plans_hold_no_time(spec: Path) -> None:
    """A constant of the cost model changes the table of times alone."""
    assert not re.search(r"\d (us|ms)\b", (GOLDEN / f"{spec.stem}{PLAN}").read_text(encoding="utf-8"))


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


def test_golden_comparison_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    for name in ("b", "a"):
        check_row(name, f"{name} 1 / 2", path, rewrite=True)
    assert path.read_text(encoding="utf-8") == f"{TIMES_HEAD}\na 1 / 2\nb 1 / 2\n"
    check_row("a", "a 1 / 2", path, rewrite=False)
    for name, row in (("a", "a 1 / 3"), ("c", "c 1 / 2")):
        with pytest.raises(pytest.fail.Exception, match=re.escape(f"+{row}")):
            check_row(name, row, path, rewrite=False)
