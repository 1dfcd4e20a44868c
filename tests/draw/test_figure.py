"""PDF and PNG files: they open, have the size of the picture, and show what the SVG shows."""

from __future__ import annotations

import builtins
import io
import subprocess
import sys
from pathlib import Path

import pytest
from kit import SOME_SPECS
from PIL import Image
from pypdf import PdfReader

from tnmars import draw, families, load
from tnmars.errors import TnmarsError
from tnmars.graph import Graph
from tnmars.graph.rewrite import drop_ones, prune

ROOT = Path(__file__).parent.parent.parent
TT = families.tt("linear", inputs=(4, 3, 2), outputs=(2, 3, 4), rank=5, name="fc1")


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")


def dark(image: Image.Image) -> int:
    """How many pixels are not nearly white."""
    return sum(count for count, color in image.getcolors(maxcolors=1 << 24) or [] if min(color) < 200)


@pytest.mark.parametrize("path", SOME_SPECS, ids=lambda path: path.stem)
def test_every_spec_as_pdf_and_png(path: Path) -> None:
    graph = load(path)
    drawn = draw.picture(graph)
    image = opened(draw.png(graph, scale=1.0))
    assert image.size == (drawn.wide, drawn.high)
    assert image.getpixel((1, 1)) == (255, 255, 255)
    assert dark(image) > 300
    (page,) = PdfReader(io.BytesIO(draw.pdf(graph))).pages
    assert [float(side) for side in page.mediabox] == pytest.approx(
        [0, 0, 0.75 * drawn.wide, 0.75 * drawn.high], abs=0.01
    )
    text = page.extract_text()
    for term in graph.terms:
        for core in term.cores:
            assert core.name in text
        for bond in term.bonds:
            assert f"{bond.size:,}" in text


def test_a_png_has_more_pixels_at_a_larger_scale() -> None:
    drawn = draw.picture(TT)
    assert opened(draw.png(TT)).size == (3 * drawn.wide, 3 * drawn.high)


def test_a_pdf_embeds_its_fonts_and_is_the_same_every_time() -> None:
    content = draw.pdf(TT)
    assert content == draw.pdf(TT)
    assert b"/Type3" not in content and b"/FontFile2" in content


def thickness(graph: Graph | draw.Picture, color: tuple[int, int, int]) -> float:
    """The longest run of one color down a column of a picture, in pixels of the SVG."""
    image = opened(draw.png(graph, scale=4.0))
    longest = 0
    for x in range(0, image.width, 5):
        run = 0
        for y in range(image.height):
            run = run + 1 if image.getpixel((x, y)) == color else 0
            longest = max(longest, run)
    return longest / 4


BOND, WAS = (0x5B, 0x66, 0x75), (0xC9, 0xD2, 0xDC)


def test_lines_are_as_wide_as_ranks_and_a_pruned_graph_keeps_the_scale() -> None:
    before, after = load(ROOT / "specs/tt_linear.yaml"), load(ROOT / "specs/pruned_linear.yaml")
    assert thickness(before, BOND) == pytest.approx(12.0, abs=0.5)
    assert thickness(after, BOND) == pytest.approx(1.6 + 3 * 10.4 / 19, abs=0.5)  # rank 4, where 20 is 12 pixels wide


def test_two_graphs_show_what_was_cut() -> None:
    small = prune(TT, {"r1": [0], "r2": [0, 1]}).graph
    assert thickness(draw.pair(TT, TT), WAS) == 0
    assert thickness(draw.pair(TT, small), WAS) > 1


def test_a_removed_bond_is_drawn_in_its_own_color() -> None:
    small = drop_ones(prune(TT, {"r1": [0], "r2": [0, 1]}).graph).graph
    orange = (0xC0, 0x4A, 0x00)
    # Legs of the role `out` have the same color; a tensor has none.
    tensor = families.tt("tensor", free=(4, 3, 2), rank=5)
    cut = drop_ones(prune(tensor, {"r1": [0]}).graph).graph
    assert thickness(draw.pair(tensor, tensor), orange) == 0
    assert thickness(draw.pair(tensor, cut), orange) >= 1
    assert "bond r1, rank 5 to 1, removed: G1, G2" in draw.svg(draw.pair(TT, small))


@pytest.mark.parametrize("name", ["$x$ \\alpha", "größe λ 層", "<&>"])
def test_names_are_not_read_as_formulas(name: str) -> None:
    graph = Graph("linear", TT.modes, TT.terms, name=name)
    (page,) = PdfReader(io.BytesIO(draw.pdf(graph))).pages
    assert name.split()[0] in page.extract_text()


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: object, **more: object) -> object:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(TnmarsError) as caught:
        draw.pdf(TT)
    assert str(caught.value) == (
        "writing .pdf files needs matplotlib, which is not installed.\n"
        "  Install it with: pip install 'tnmars[viz]'. SVG, TikZ and DOT files need no library."
    )
    assert draw.svg(TT).startswith("<svg") and "tikzpicture" in draw.tikz(TT)


def test_matplotlib_is_loaded_only_for_pdf_and_png() -> None:
    code = (
        "import sys; from tnmars import draw, families\n"
        "graph = families.tt('tensor', free=(4, 3), rank=2)\n"
        "draw.svg(graph), draw.tikz(graph)\n"
        "print('matplotlib' in sys.modules)\n"
        "draw.png(graph)\n"
        "print('matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True", "False"]
