"""Options of a layer: what is wrong with a value, and how it is stored so that equal settings are equal values.

The values are torch's: `stride=[2, 2]` is stored as 2, `padding='valid'` as 0, and torch's default is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, isfinite

from tnmars.arguments import own
from tnmars.errors import Problem, listing, nearest, plural
from tnmars.graph.kinds import BAGS, BORDERS, Kind, Option
from tnmars.graph.parts import MAX_STRIDE, as_int, is_int

OptionValue = int | float | str | tuple[int, ...]


def plain(value: object) -> object:
    """A value with NumPy's numbers, also in a list, as Python's own."""
    value = own(value)
    return type(value)(map(as_int, value)) if isinstance(value, (list, tuple)) else as_int(value)


def _axes_problem(option: Option, value: object, spatial: int, least: int) -> str:
    if is_int(value, least, MAX_STRIDE):
        return ""
    if isinstance(value, (list, tuple)) and all(is_int(entry, least, MAX_STRIDE) for entry in value):
        if len(value) == spatial:
            return ""
        return f"option '{option.name}' has {plural(len(value), 'number')} for a kernel of {spatial} spatial axes."
    span = f"from {least} to {MAX_STRIDE:,}"
    return f"option '{option.name}' is {value!r}, but must be a whole number {span}, or a list of them."


def _is_number(value: object, above: float = -inf) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value > above


def value_problem(option: Option, value: object, spatial: int) -> Problem | None:
    """The problem of an option's value for a layer with `spatial` spatial axes, or None."""
    if value is None and option.default is None:
        return None
    text = ""
    if option.takes == "flag" and not isinstance(value, bool):
        text = f"option '{option.name}' is {value!r}, but must be true or false."
    elif option.takes == "index" and not is_int(value):
        text = f"option '{option.name}' is {value!r}, but must be a row number."
    elif option.takes == "bag" and value not in BAGS:
        text = f"option '{option.name}' is {value!r}, but must be one of {', '.join(BAGS)}."
    elif option.takes == "norm" and not _is_number(value, above=0.0):
        text = f"option '{option.name}' is {value!r}, but must be a number above 0."
    elif option.takes == "order" and not (_is_number(value) and value >= 1):  # type: ignore[operator]
        text = f"option '{option.name}' is {value!r}, but must be a number of at least 1."
    elif option.takes == "border" and value not in BORDERS:
        text = f"option '{option.name}' is {value!r}, but must be one of {', '.join(BORDERS)}."
    elif option.takes == "axes":
        text = _axes_problem(option, value, spatial, least=1)
    elif option.takes == "margins" or (option.takes == "padding" and value not in ("same", "valid")):
        text = _axes_problem(option, value, spatial, least=0)
    return Problem(text, f"It takes: {option.meaning}.") if text else None


def problems(kind: Kind, given: Mapping[str, object], spatial: int, rows: int) -> Iterator[Problem]:
    """Every problem of the options of a layer with this number of spatial axes and rows."""
    known = {option.name: option for option in kind.options}
    for key, value in given.items():
        if key not in known:
            yield Problem(
                f"option '{key}' is not one that kind '{kind.name}' takes.",
                f"It takes: {listing(list(known))}.{nearest(key, known)}",
                path=(key,),
            )
            continue
        problem = value_problem(known[key], value, spatial)
        if problem is not None:
            yield problem.under(key)
        elif known[key].takes == "index" and isinstance(value, int) and not -rows <= value < rows:
            yield Problem(
                f"option '{key}' is {value}, but the table has {rows:,} rows.",
                f"It must be from {-rows} to {rows - 1}.",
                path=(key,),
            )
    if "mode" in known:
        yield from _bags(given)
    if "output_padding" in known:
        yield from _output_padding(given, spatial)
    if given.get("padding") == "same" and given.get("stride", 1) not in (1, [1] * spatial, (1,) * spatial):
        yield Problem(
            "padding 'same' requires a stride of 1.",
            "torch refuses it too: give the padding in numbers.",
            path=("padding",),
        )


def _bags(given: Mapping[str, object]) -> Iterator[Problem]:
    """Options of a table that go with some modes only, as in torch."""
    if given.get("include_last_offset") and given.get("mode") is None:
        yield Problem("option 'include_last_offset' is for bags.", "Give a mode too.", path=("include_last_offset",))
    if given.get("scale_grad_by_freq") and given.get("mode") == "max":
        yield Problem(
            "option 'scale_grad_by_freq' does not go with mode 'max'.",
            "torch refuses it too: leave it out.",
            path=("scale_grad_by_freq",),
        )


def _output_padding(given: Mapping[str, object], spatial: int) -> Iterator[Problem]:
    """Torch's rule: an entry that no tap of an input reaches must be less than a stride or a dilation away."""
    sizes = []
    for name, default in (("output_padding", 0), ("stride", 1), ("dilation", 1)):
        value = given.get(name, default)
        sizes.append([value] * spatial if is_int(value, 0) else value)
    if any(not isinstance(value, (list, tuple)) or len(value) != spatial for value in sizes):
        return  # reported as such
    for axis, (extra, stride, dilation) in enumerate(zip(*sizes, strict=True)):
        if all(map(is_int, (extra, stride, dilation))) and extra >= max(stride, dilation):
            yield Problem(
                f"option 'output_padding' is {extra} on spatial axis {axis + 1}, but must be less than the stride "
                f"{stride} or the dilation {dilation}.",
                "torch refuses it too: pad the output instead.",
                path=("output_padding",),
            )


def canonical(kind: Kind, given: Mapping[str, object], rows: int) -> tuple[tuple[str, OptionValue], ...]:
    """The options that differ from torch's defaults, in the order of the kind's table, each as short as possible."""
    kept: list[tuple[str, OptionValue]] = []
    for option in kind.options:
        if option.name not in given:
            continue
        value = given[option.name]
        if isinstance(value, (list, tuple)):
            value = value[0] if value and len(set(value)) == 1 else tuple(value)
        if option.takes == "padding" and value == "valid":
            value = 0
        if option.takes == "index" and isinstance(value, int) and value < 0:
            value += rows
        if option.takes in ("norm", "order") and isinstance(value, int):
            value = float(value)
        if value != option.default and isinstance(value, (int, float, str, tuple)):
            kept.append((option.name, value))
    return tuple(kept)
