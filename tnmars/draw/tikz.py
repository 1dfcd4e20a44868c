"""A picture as TikZ: a LaTeX document that compiles by itself, in the light colors of the SVG.

Text is set in the document's own font. Lengths are in TeX's big points, 0.75 to a pixel, as in CSS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unicodedata import category, normalize

from tnmars.arguments import check_arguments
from tnmars.draw.palette import resolved
from tnmars.draw.picture import picture
from tnmars.draw.shapes import Disc, Group, Path, Picture, Pill, Run, Shape, Words
from tnmars.graph import Graph

_POINTS = 0.75
_SIZES = ((13, r"\small"), (16, r"\normalsize"), (99, r"\Large"))
"""LaTeX's font sizes, each with the largest number of pixels that it is used for."""
_BOLD = 600
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "`": r"\textquoteleft{}", "-": "{-}", "'": "{'}", "→": r"$\rightarrow$",
    "…": r"\ldots{}", "×": r"$\times$", "–": "--", "—": "---", "ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}",
    "æ": r"\ae{}", "Æ": r"\AE{}", "œ": r"\oe{}", "Œ": r"\OE{}", "å": r"\aa{}", "Å": r"\AA{}", "ł": r"\l{}",
    "Ł": r"\L{}", "µ": r"$\mu$", "ı": r"\i{}", "?": "{?}", "!": "{!}", ",": "{,}",
}  # fmt: skip
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030b": "H", "\u030c": "v", "\u0327": "c", "\u0328": "k",
}  # fmt: skip
_GREEK_LETTERS = "αβγδεζηθικλμνξπρςστυφχψωΓΔΘΛΞΠΣΥΦΨΩ"
_GREEK_COMMANDS = """
    alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho varsigma sigma tau upsilon varphi
    chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega
"""
_GREEK = dict(zip(_GREEK_LETTERS, _GREEK_COMMANDS.split(), strict=True))
_HEAD = r"""% Written by tnmars: {name}
% Compile with pdflatex, or copy the tikzpicture and the colors into a document that loads tikz.
\documentclass{{article}}
\usepackage[paperwidth={wide}bp,paperheight={high}bp,margin=0bp]{{geometry}}
\usepackage{{tikz}}
\pagestyle{{empty}}
\setlength{{\parindent}}{{0pt}}
\setlength{{\topskip}}{{0pt}}
\setlength{{\maxdepth}}{{0pt}}
% A character that pdflatex lacks is printed as its code; lualatex and xelatex print the character itself.
\providecommand{{\tnmarsglyph}}[2]{{\ifdefined\Umathcode#1\else\texttt{{U+#2}}\fi}}
{colors}
\begin{{document}}\sffamily
\begin{{tikzpicture}}[x=0.75bp, y=-0.75bp, inner sep=0pt, outer sep=0pt]
\useasboundingbox (0,0) rectangle ({right},{bottom});
"""
_TAIL = "\\end{tikzpicture}%\n\\end{document}\n"


def tikz(graph: Graph | Picture) -> str:
    r"""The text of a LaTeX document that holds the picture as a `tikzpicture`.

    Args:
        graph: A graph, or a picture such as `pair` returns.

    Returns:
        A document for pdflatex, lualatex or xelatex. Names are escaped.

    Example:
        >>> from tnmars import families
        >>> text = tikz(families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2))
        >>> text.count(r"\begin{tikzpicture}"), text.count(r"\documentclass")
        (1, 1)
    """
    check_arguments(tikz, locals())
    drawn = graph if isinstance(graph, Picture) else picture(graph)
    lines = list(_shapes(drawn.shapes, (), 1.0))
    used = sorted({word for line in lines for word in _colors(line)})
    colors = "\n".join(rf"\definecolor{{{name}}}{{HTML}}{{{name.removeprefix('tn').upper()}}}" for name in used)
    head = _HEAD.format(
        name=" ".join(drawn.name.split()),
        wide=_number(_POINTS * drawn.wide),
        high=_number(_POINTS * drawn.high),
        right=drawn.wide,
        bottom=drawn.high,
        colors=colors,
    )
    return head + "\n".join(lines) + "\n" + _TAIL


def _shapes(shapes: Sequence[Shape], around: tuple[str, ...], opacity: float) -> Iterator[str]:
    for shape in shapes:
        kind = f"text {shape.kind}" if isinstance(shape, Words) else shape.kind
        style = resolved((*around, kind))
        shown = opacity * float(style.get("opacity", 1))
        if isinstance(shape, Group):
            if shape.tip:
                yield f"% {shape.tip}"
            yield from _shapes(shape.shapes, (*around, kind), shown)
        elif isinstance(shape, Words):
            yield _words(shape, (*around, kind), style, shown)
        elif isinstance(shape, Path):
            yield _path(shape, style, shown)
        elif isinstance(shape, Disc):
            look = _options(f"fill={_color(style['fill'])}", opacity=shown)
            yield rf"\path{look} ({shape.x},{shape.y}) circle[radius={_length(shape.radius)}];"
        elif shape.kind != "page":  # paper is white
            yield _pill(shape, style, shown)


def _path(path: Path, style: dict[str, str], opacity: float) -> str:
    width = path.width if path.width is not None else float(style.get("stroke-width", "1"))
    dash = path.dash or tuple(map(int, style.get("stroke-dasharray", "").split()))
    look = [f"draw={_color(style['stroke'])}", f"line width={_length(width)}", "line cap=round"]
    look += [f"dash pattern=on {_length(dash[0])} off {_length(dash[1])}"] if dash else []
    line = ""
    for (x0, y0), control, (x1, y1) in path.curves:
        if control is None:
            line += f" ({x0},{y0}) -- ({x1},{y1})"
            continue
        # A quadratic curve as a cubic one: its control points lie two thirds of the way to the other's.
        first, second = (
            tuple(end + 2 * (at - end) / 3 for end, at in zip(ends, control, strict=True))
            for ends in ((x0, y0), (x1, y1))
        )
        middle = " and ".join(f"({_number(x)},{_number(y)})" for x, y in (first, second))
        line += f" ({x0},{y0}) .. controls {middle} .. ({x1},{y1})"
    return rf"\path{_options(*look, opacity=opacity)}{line};"


def _pill(pill: Pill, style: dict[str, str], opacity: float) -> str:
    look = [f"fill={_color(style['fill'])}", f"draw={_color(style['stroke'])}"]
    look += [f"line width={_length(float(style['stroke-width']))}", f"rounded corners={_length(pill.radius)}"]
    corner = f"({pill.x + pill.wide},{pill.y + pill.high})"
    return rf"\path{_options(*look, opacity=opacity)} ({pill.x},{pill.y}) rectangle {corner};"


def _words(words: Words, path: tuple[str, ...], style: dict[str, str], opacity: float) -> str:
    anchor = "base west" if style["text-anchor"] == "start" else "base"
    look = [f"anchor={anchor}"]
    if "stroke" in style:  # keeps the lines behind a label off it
        look += [f"fill={_color(style['stroke'])}", "inner sep=0.8bp"]
    text = "".join(_run(run, style | (resolved((*path, run.kind)) if run.kind else {})) for run in words.runs)
    return rf"\node{_options(*look, opacity=opacity)} at ({words.x},{words.y}) {{{text}}};"


def _run(run: Run, style: dict[str, str]) -> str:
    size = float(style["font-size"].removesuffix("px"))
    font = next(name for limit, name in _SIZES if size <= limit)
    bold = r"\bfseries" if int(style.get("font-weight", 400)) >= _BOLD else r"\mdseries"
    gap = rf"\hspace*{{{_length(run.gap)}}}" if run.gap else ""
    return rf"{gap}{{{font}{bold}\color{{{_color(style['fill'])}}}{escape(run.text)}}}"


def _options(*look: str, opacity: float) -> str:
    return f"[{', '.join([*look, *([f'opacity={_number(opacity)}'] if opacity < 1 else [])])}]"


def _color(value: str) -> str:
    """The name of a color in the document."""
    return f"tn{value.removeprefix('#')}"


def _colors(line: str) -> Iterator[str]:
    """The names of colors in a line that is not a comment."""
    if line.startswith("%"):
        return
    for piece in line.replace("{", " ").replace("=", " ").replace("}", " ").replace(",", " ").replace("]", " ").split():
        if len(piece) == 8 and piece.startswith("tn") and all(char in "0123456789abcdef" for char in piece[2:]):
            yield piece


def _length(pixels: float) -> str:
    return f"{_number(_POINTS * pixels)}bp"


def _number(value: float) -> str:
    return f"{round(value, 2):g}" if abs(value) < 1e5 else f"{round(value, 2)}"


def escape(text: str) -> str:
    r"""Text for LaTeX: special characters, accents and Greek letters as commands, others by their code.

    >>> print(escape("a_1 & größe λ 層"))
    a\_1 \& gr\"{o}\ss{}e $\lambda$ \tnmarsglyph{層}{5C64}
    """
    return "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    if char in _SPECIAL:
        return _SPECIAL[char]
    if char in _GREEK:
        return rf"$\{_GREEK[char]}$"
    if ord(char) < 128:
        return char if char.isprintable() else " "
    base, *accents = list(normalize("NFD", char))
    if len(accents) == 1 and accents[0] in _ACCENTS and base.isascii():
        return rf"\{_ACCENTS[accents[0]]}{{{base}}}"
    if category(char).startswith(("C", "M", "Z")):
        return rf"\tnmarsglyph{{}}{{{ord(char):04X}}}"
    return rf"\tnmarsglyph{{{char}}}{{{ord(char):04X}}}"
