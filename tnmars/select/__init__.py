"""Gates and selectors: one file per rank selector on one small interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from tnmars.errors import TnmarsError, listing, nearest
from tnmars.select.annealed import Annealed
from tnmars.select.ard import Ard
from tnmars.select.base import Selector
from tnmars.select.fixed import Fixed
from tnmars.select.gaussian import GaussianGates
from tnmars.select.mars import Mars

__all__ = ["SELECTORS", "Annealed", "Ard", "Fixed", "GaussianGates", "Mars", "Selector", "from_settings"]

SELECTORS: dict[str, type[Selector]] = {kind.name: kind for kind in (Mars, GaussianGates, Annealed, Fixed, Ard)}
"""Every selector by its name in saved files and on the command line. A new one is listed here."""


def from_settings(settings: Mapping[str, object]) -> Selector:
    """The selector with these settings: the inverse of `Selector.settings`. Raises `TnmarsError` for unknown ones.

    >>> from_settings(Mars(pi=0.1).settings()) == Mars(pi=0.1)
    True
    """
    given = dict(settings)
    name = str(given.pop("name", ""))
    if name not in SELECTORS:
        raise TnmarsError(f"selector '{name}' is unknown, but must be one of {', '.join(SELECTORS)}.")
    kind = SELECTORS[name]
    given = {**kind.in_older_files, **given}
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            text = f"selector '{name}' has no setting '{key}'. Settings: {listing(sorted(known))}."
            raise TnmarsError(text + nearest(key, known))
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})
