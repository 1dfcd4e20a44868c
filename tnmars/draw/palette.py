"""The colours of a drawing, for light and for dark pages, as one style sheet.

Every rule is written out under `.tnmars`, without CSS variables: programs other than browsers read the file too, and
several drawings may stand in one page. The colours of the roles differ for colour-blind readers (Okabe and Ito 2008).
"""

from __future__ import annotations

from tnmars.draw.labels import CORE_FONT, LABEL_FONT
from tnmars.graph.kinds import Role

_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"

ROLE_COLOURS = {
    Role.IN: ("#0b6bb0", "#5db4f0"),
    Role.LOOKUP: ("#8a4fa3", "#cf9ae6"),
    Role.PATCH: ("#0b7f8f", "#4fc7d6"),
    Role.KERNEL: ("#0a8560", "#3fcf9f"),
    Role.OUT: ("#c04a00", "#ff9a57"),
    Role.FREE: ("#5f4bb6", "#b3a4ff"),
}
"""For each role its colour on a light and on a dark page."""

_COLOURS = (
    (".page", "fill", "#ffffff", "#12161d"),
    (".bond", "stroke", "#5b6675", "#8b97a8"),
    (".dot", "fill", "#2b3442", "#d5dce6"),
    (".core", "fill", "#e6eefb", "#24354f"),
    (".core", "stroke", "#2f5fa8", "#7fb0f5"),
    (".name,.title", "fill", "#14213a", "#eef3fb"),
    (".label,.kind,.legend", "fill", "#4a5565", "#a9b4c4"),
    (".label", "stroke", "#ffffff", "#12161d"),
    (".size", "fill", "#14213a", "#eef3fb"),
    (".term,.plus", "fill", "#4a5565", "#a9b4c4"),
    (".leg.shared", "stroke", "#4b5563", "#b6bfcc"),
    *((f".leg.{role}", "stroke", *pair) for role, pair in ROLE_COLOURS.items()),
    *((f".label.{role},.label.{role} .size", "fill", *pair) for role, pair in ROLE_COLOURS.items()),
)

_RULES = (
    ("text", f"font-family:{_FONT};text-anchor:middle"),
    (".title,.kind,.legend", "text-anchor:start"),
    (".core", "stroke-width:1.6"),
    (".bond,.leg", "fill:none;stroke-linecap:round"),
    (".leg.shared", "stroke-dasharray:1 6"),
    (".name", f"font-size:{CORE_FONT}px;font-weight:600"),
    (".label", f"font-size:{LABEL_FONT}px;stroke-width:3px;stroke-linejoin:round;paint-order:stroke"),
    (".size", "font-weight:600"),
    (".title", "font-size:15px;font-weight:700"),
    (".kind", "font-size:13px"),
    (".term", "font-size:13px;font-weight:600"),
    (".plus", "font-size:24px"),
    (".legend", "font-size:12px"),
)


def style() -> str:
    """The style element: fonts, strokes and the colours of both themes."""
    return f"<style>\n{rules()}\n</style>"


def rules(dark_on: str = "(prefers-color-scheme:dark)") -> str:
    """The style sheet, with the media on which the colours are those of a dark page."""
    light = [_rule(names, f"{what}:{day}") for names, what, day, _ in _COLOURS]
    dark = [_rule(names, f"{what}:{night}") for names, what, _, night in _COLOURS]
    plain = [_rule(names, text) for names, text in _RULES]
    return "\n".join([*plain, *light, f"@media {dark_on}{{", *dark, "}"])


def _rule(names: str, text: str) -> str:
    return ",".join(f".tnmars {name}" for name in names.split(",")) + "{" + text + "}"
