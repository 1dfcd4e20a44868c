"""Settings of the documentation: Markdown pages that need no network, neither to build nor to read.

docutils' own converter turns formulas into MathML, which browsers draw without help; MathJax would need the network.
"""

import re

from docutils.nodes import SkipNode, math, math_block
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

project = "tnmars"
author = "The tnmars authors"
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_show_copyright = False
html_math_renderer = "mathml"
exclude_patterns = ["results"]


def formula(tex: str, *, as_block: bool) -> str:
    """MathML. The converter knows `\\Bigl` and `\\Bigr`, but not `\\Big`, which has the same size."""
    closing = re.sub(r"\\(bigg?|Bigg?)(?=\s*(\)|\]|\\\}))", r"\\\1r", tex)
    known = re.sub(r"\\(bigg?|Bigg?)(?![A-Za-z])", r"\\\1l", closing)
    return tex2mathml(known, as_block=as_block)


def inline(writer: HTML5Translator, node: math) -> None:
    writer.body.append(formula(node.astext(), as_block=False))
    raise SkipNode  # otherwise the text of the formula would follow


def block(writer: HTML5Translator, node: math_block) -> None:
    writer.body.append(f'<div class="math">{formula(node.astext(), as_block=True)}</div>')
    raise SkipNode


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
