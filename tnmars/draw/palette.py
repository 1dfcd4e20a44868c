"""The style of a picture as one table: colors for light and for dark pages, fonts and strokes.

`rules` writes it as a style sheet, `resolved` looks up what it says for one shape, for writers without CSS. Every
rule is written out under `.tnmars`, without CSS variables: programs other than browsers read the file too, and several
pictures may stand in one page. The colors of the roles differ for color-blind readers (Okabe and Ito 2008).
"""

from __future__ import annotations

from collections.abc import Sequence

from tnmars.draw.labels import CORE_FONT, LABEL_FONT
from tnmars.graph.kinds import Role

_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"

ROLE_COLORS = {
    Role.GROUP: ("#8c6d00", "#e0c341"),
    Role.IN: ("#0b6bb0", "#5db4f0"),
    Role.LOOKUP: ("#8a4fa3", "#cf9ae6"),
    Role.PATCH: ("#0b7f8f", "#4fc7d6"),
    Role.KERNEL: ("#0a8560", "#3fcf9f"),
    Role.OUT: ("#c04a00", "#ff9a57"),
    Role.FREE: ("#5f4bb6", "#b3a4ff"),
}
"""For each role its color on a light and on a dark page."""

_COLORS = (
    (".page", "fill", "#ffffff", "#12161d"),
    (".bond", "stroke", "#5b6675", "#8b97a8"),
    (".was", "stroke", "#c9d2dc", "#39434f"),
    (".gone .bond", "stroke", "#c04a00", "#ff9a57"),
    (".dot", "fill", "#2b3442", "#d5dce6"),
    (".core", "fill", "#e6eefb", "#24354f"),
    (".core", "stroke", "#2f5fa8", "#7fb0f5"),
    (".name,.title,.when", "fill", "#14213a", "#eef3fb"),
    (".label,.kind,.legend,.caption", "fill", "#4a5565", "#a9b4c4"),
    (".label", "stroke", "#ffffff", "#12161d"),
    (".size,.caption .when", "fill", "#14213a", "#eef3fb"),
    (".term,.plus", "fill", "#4a5565", "#a9b4c4"),
    (".leg.shared", "stroke", "#4b5563", "#b6bfcc"),
    *((f".leg.{role}", "stroke", *pair) for role, pair in ROLE_COLORS.items()),
    *((f".label.{role},.label.{role} .size", "fill", *pair) for role, pair in ROLE_COLORS.items()),
    (".gone .label,.gone .label .size", "fill", "#c04a00", "#ff9a57"),
)

_RULES = (
    ("text", f"font-family:{_FONT};text-anchor:middle"),
    (".title,.caption,.legend", "text-anchor:start"),
    (".core", "stroke-width:1.6"),
    (".bond,.was,.leg", "fill:none;stroke-linecap:round"),
    (".leg.shared", "stroke-dasharray:1 6"),
    (".gone .bond", "stroke-dasharray:2 6"),
    (".gone .was", "opacity:0.55"),
    (".gone-term", "opacity:0.35"),
    (".name", f"font-size:{CORE_FONT}px;font-weight:600"),
    (".label", f"font-size:{LABEL_FONT}px;stroke-width:3px;stroke-linejoin:round;paint-order:stroke"),
    (".size", "font-weight:600"),
    (".title", "font-size:15px;font-weight:700"),
    (".kind", "font-size:13px;font-weight:400"),
    (".caption", "font-size:13px"),
    (".when", "font-weight:600"),
    (".term", "font-size:13px;font-weight:600"),
    (".plus", "font-size:24px"),
    (".legend", "font-size:12px"),
)


def style() -> str:
    """The style element: fonts, strokes and the colors of both themes."""
    return f"<style>\n{rules()}\n</style>"


def rules(dark_on: str = "(prefers-color-scheme:dark)") -> str:
    """The style sheet. `dark_on` is the media query under which the dark colors apply."""
    light = [_rule(names, f"{what}:{day}") for names, what, day, _ in _COLORS]
    dark = [_rule(names, f"{what}:{night}") for names, what, _, night in _COLORS]
    plain = [_rule(names, text) for names, text in _RULES]
    return "\n".join([*plain, *light, f"@media {dark_on}{{", *dark, "}"])


def _rule(names: str, text: str) -> str:
    return ",".join(f".tnmars {name}" for name in names.split(",")) + "{" + text + "}"


def resolved(path: Sequence[str]) -> dict[str, str]:
    """What the style sheet says, on a light page, for a shape inside groups.

    Args:
        path: The classes of each element from the outermost group to the shape. For text, `text` is one of them.

    Example:
        >>> resolved(["gone", "bond"])["stroke"], resolved(["text label in"])["font-size"]
        ('#c04a00', '12px')
    """
    style: dict[str, str] = {}
    for names, text in [*_RULES, *((names, f"{what}:{day}") for names, what, day, _ in _COLORS)]:
        if any(_matches(name.split(), path) for name in names.split(",")):
            style |= dict(entry.split(":", 1) for entry in text.split(";"))
    return style


def _matches(selector: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a CSS selector of classes matches the last element of a path."""
    *outer, last = (set(part.strip(".").split(".")) for part in selector)
    *around, inner = (set(kinds.split()) for kinds in path)
    if not last <= inner:
        return False
    ancestors = iter(around)
    return all(any(part <= kinds for kinds in ancestors) for part in outer)
