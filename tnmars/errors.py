"""The exception types, the value that describes one problem, and the one function that formats it.

A check returns problems; whoever builds a value raises them together, so that a user sees every problem at once.
Nothing here knows about graphs, files or torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

Path = tuple["str | int", ...]


@dataclass(frozen=True, order=True)
class Place:
    """A position in a text, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a value: what, how to fix it, and where.

    Args:
        text: What is wrong, as a sentence in the user's own names and numbers.
        hint: What would be right. Empty if `text` says it.
        path: The position inside the value, such as `("cores", "G2", 1)`.
        place: The line and column, if the value was read from a text.

    Example:
        >>> problem = Problem("size 0 is too small.", "Use 1.", path=("bonds", "r"))
        >>> problem.under("terms", "t1").path
        ('terms', 't1', 'bonds', 'r')
    """

    text: str
    hint: str = ""
    path: Path = ()
    place: Place | None = None

    def under(self, *prefix: str | int) -> Problem:
        """The same problem, with the path seen from a value that holds this one at `prefix`."""
        return replace(self, path=(*prefix, *self.path))


def render(problem: Problem, *, source: str = "", label: str = "") -> str:
    """A problem as text: `source:line:column: label: what is wrong`, then the fix, indented.

    >>> print(render(Problem("size 0 is too small.", "Sizes are at least 1.", place=Place(3, 7)), source="tt.yaml"))
    tt.yaml:3:7: size 0 is too small.
      Sizes are at least 1.
    """
    parts = [source] if source else []
    if problem.place is not None:
        parts.append(f"{problem.place.line}:{problem.place.column}")
    head = ":".join(parts)
    head = f"{head}: " if head else ""
    head += f"{label}: " if label else ""
    hint = "".join(f"\n  {line}" for line in problem.hint.splitlines())
    # Half of a surrogate pair alone cannot be printed, so it is written as an escape.
    return f"{head}{problem.text}{hint}".encode("utf-8", "backslashreplace").decode("utf-8")


class TnmarsError(ValueError):
    """Base class of every error that tnmars raises about its input. It is a `ValueError`.

    Args:
        problems: A message, or one or more problems. They are reported together.
        source: The file that the problems are about, put in front of each line.

    Attributes:
        problems: The problems, as a tuple of `Problem`.
        source: The file, or an empty text.

    Example:
        >>> import tnmars
        >>> try:
        ...     tnmars.factor(0, 2)
        ... except tnmars.TnmarsError as error:
        ...     print(len(error.problems))
        1
    """

    def __init__(self, problems: str | Problem | Iterable[Problem], *, source: str = ""):
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        self.source = source
        super().__init__("\n".join(render(problem, source=source) for problem in self.problems))


class GraphError(TnmarsError):
    """A graph, or a part of one, that is not valid. Its `problems` have paths into the graph.

    Example:
        >>> import tnmars
        >>> tnmars.Edge("r", 0)
        Traceback (most recent call last):
        tnmars.errors.GraphError: bond 'r' has size 0.
          A size must be a whole number from 1 to 2,147,483,647.
    """


class SpecError(TnmarsError):
    """A spec file that cannot be read or is not valid. Its `problems` have lines and columns.

    Example:
        >>> import tnmars
        >>> try:
        ...     tnmars.loads("tnmars: 2\\nkind: tensor\\nfamily: cp\\nrank: 2\\nfree: [4, 5]")
        ... except tnmars.SpecError as error:
        ...     print(error)
        <text>:1:9: 'tnmars' is '2', but must be 1.
          This version of tnmars reads format 1: write 1.
    """


class PatternError(TnmarsError):
    """A pattern of the rules that matches no layer of the model, or that is not a pattern.

    Example:
        >>> import torch, tnmars
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8))
        >>> try:
        ...     tnmars.compress_(model, {"fc*": "lowrank"}, budget="2x")
        ... except tnmars.PatternError as error:
        ...     print(error)
        'fc*' matches no layer of the model.
          Layers that could be meant: 0.
        Nothing was changed.
    """


class ShapeError(TnmarsError):
    """A tensor whose shape, dtype or values do not fit the layer it was given to.

    Example:
        >>> import tnmars, torch
        >>> graph = tnmars.network("linear", "W[i,o]", inputs={"i": 4}, outputs={"o": 3})
        >>> try:
        ...     tnmars.compile(graph)(torch.ones(2, 5))
        ... except tnmars.ShapeError as error:
        ...     print(str(error)[:27])
        input has shape (2, 5), but
    """


class CheckpointError(TnmarsError):
    """A model file or checkpoint that is damaged, or was not written by tnmars.

    Example:
        >>> import tempfile, torch, tnmars
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     try:
        ...         tnmars.load_into(torch.nn.Linear(3, 3), file.name)
        ...     except tnmars.CheckpointError:
        ...         print("not a model file")
        not a model file
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that proposes the known name closest to `name`, or an empty text.

    >>> nearest("r3", ["i1", "r2"])
    " Did you mean 'r2'?"
    """
    found = closest(name, known)
    return f" Did you mean '{found}'?" if found else ""


def closest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """The known name most similar to `name`, or an empty text. The search is slow, so long lists are cut.

    >>> closest("core", ["cores", "bonds"]), closest("I", ["i", "o"]), closest("cores" * 100, ["cores"])
    ('cores', 'i', '')
    """
    from difflib import get_close_matches

    if not isinstance(name, str) or len(name) > 20:
        return ""
    texts = {other for other in known if isinstance(other, str)}
    candidates = sorted(other for other in texts if abs(len(other) - len(name)) <= 2)[:100]
    lower = {other.lower(): other for other in candidates if other != name}
    found = next(iter(get_close_matches(name.lower(), lower, n=1, cutoff=cutoff)), "")
    return name if name in candidates else lower.get(found, "")


def likeness(name: str, known: Iterable[str]) -> float:
    """The similarity of `name` to the known name closest to it, from 0 to 1."""
    from difflib import SequenceMatcher

    found = closest(name, known)
    return SequenceMatcher(None, name.lower(), found.lower()).ratio() if found else 0.0


def listing(names: Sequence[str], limit: int = 12) -> str:
    """Names joined by commas, cut after `limit` of them.

    >>> listing(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    if not names:
        return "none"
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def layer_called(name: str) -> str:
    """A layer in words, by its name in a model; the name is empty if the layer is the model.

    >>> layer_called("fc"), layer_called("")
    ("layer 'fc'", 'the model')
    """
    return f"layer '{name}'" if name else "the model"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "core"), plural(1200, "core")
    ('1 core', '1,200 cores')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
