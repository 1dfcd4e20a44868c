"""TikZ: a document that compiles, with every name escaped. Golden files hold the text for each spec."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tnmars import draw, families, load
from tnmars.draw.tikz import escape
from tnmars.graph import Graph
from tnmars.graph.rewrite import drop_ones, prune

ROOT = Path(__file__).parent.parent.parent
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
TT = families.tt("linear", inputs=(4, 3, 2), outputs=(2, 3, 4), rank=5, name="fc1")
HOSTILE = r'50% of {A}_1 & "\input{x}" $y^2$ #~ größe λ 層 <b> |`'


def test_special_characters() -> None:
    assert escape(r"50%_{a}&\x") == r"50\%\_\{a\}\&\textbackslash{}x"
    assert escape("é ç ß") == r"\'{e} \c{c} \ss{}"
    assert escape("λ→") == r"$\lambda$$\rightarrow$"
    assert escape("層\u200b\n") == "\\tnmarsglyph{層}{5C64}\\tnmarsglyph{}{200B} "
    assert escape("--") == "{-}{-}"  # not a dash


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_spec_has_balanced_braces_and_defined_colors(path: Path) -> None:
    text = draw.tikz(load(path))
    code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    plain = re.sub(r"\\[{}]", "", code)
    assert plain.count("{") == plain.count("}")
    defined = set(re.findall(r"\\definecolor\{(\w+)\}", code))
    used = set(re.findall(r"(?:fill|draw)=(\w+)|\\color\{(\w+)\}", code))
    assert {one or other for one, other in used} == defined
    assert code.count(r"\path") + code.count(r"\node") > 3


def test_the_pictures_of_svg_and_tikz_are_the_same() -> None:
    """The same coordinates, widths and texts, read back from both files."""
    svg, tikz = draw.svg(TT), draw.tikz(TT)
    lines = re.findall(r'stroke-width="([\d.]+)" d="M(\d+) (\d+)L(\d+) (\d+)"', svg)
    assert len(lines) == 10  # two bonds, six legs, two samples in the legend
    for width, *points in lines:
        place = "({},{}) -- ({},{});".format(*points)
        (line,) = (line for line in tikz.splitlines() if line.endswith(place))
        (shown,) = re.findall(r"line width=([\d.]+)bp", line)
        assert float(shown) == pytest.approx(0.75 * float(width), abs=0.01)


needs_latex = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")


def compiled(text: str, folder: Path) -> str:
    """The log of pdflatex."""
    (folder / "a.tex").write_text(text, encoding="utf-8")
    run = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"],
        cwd=folder, capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-2000:]
    return run.stdout


@needs_latex
def test_it_compiles_to_one_page_of_the_right_size(tmp_path: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    graph = Graph("linear", TT.modes, TT.terms, name=HOSTILE)
    small = drop_ones(prune(graph, {"r1": [0], "r2": [0, 1]}).graph).graph
    drawn = draw.pair(graph, small)
    log = compiled(draw.tikz(drawn), tmp_path)
    assert "Overfull" not in log
    (page,) = pypdf.PdfReader(tmp_path / "a.pdf").pages
    assert [float(side) for side in page.mediabox[2:]] == pytest.approx([0.75 * drawn.wide, 0.75 * drawn.high], abs=0.1)
    text = page.extract_text()
    assert "50% of" in text and "U+5C64" in text and "305 parameters" in text
