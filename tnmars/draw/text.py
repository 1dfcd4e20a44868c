"""Text for pictures: what a graph is called, short forms and estimated widths."""

from __future__ import annotations

import re
from unicodedata import east_asian_width

from tnmars.graph import Graph

ELLIPSIS = "…"
_NARROW, _SLIM, _WIDE = frozenset("ijlI.,:;'|! "), frozenset('frt()[]{}-/\\"_'), frozenset("mwMW%@…→=")


def shorten(text: str, limit: int) -> str:
    """The text, without its middle if it has more than `limit` characters.

    >>> shorten("encoder_projection", 9)
    'enco…tion'
    """
    if len(text) <= limit:
        return text
    head = limit // 2
    return text[:head] + ELLIPSIS + text[len(text) - (limit - head - 1) :]


def text_width(text: str, size: int) -> int:
    """About how many pixels wide a text is in a sans-serif font, an overestimate rather than an underestimate."""
    found = 0.0
    for char in text:
        if char in _NARROW:
            found += 0.36
        elif char in _SLIM:
            found += 0.46
        elif char in _WIDE or char.isupper():
            found += 0.96 if char in _WIDE else 0.72
        else:
            found += 1.05 if east_asian_width(char) in "WF" or ord(char) > 0xFFFF else 0.63
    return int(found * size) + 1


def signature(graph: Graph) -> str:
    """The kind of layer, and its inputs and outputs.

    >>> from tnmars import families
    >>> signature(families.lowrank("linear", inputs=(1024,), outputs=(512,), rank=4))
    'linear 1,024 → 512'
    """
    text = re.sub(r"\d{4,}", lambda digits: f"{int(digits[0]):,}", graph.signature)
    return f"{graph.kind} {text}".replace("->", "→")
