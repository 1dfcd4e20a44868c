"""Which weights of a model are decomposed, and how: ordered patterns on names, the first match wins.

A pattern is a glob on the full name, or `re:` and a regular expression that matches all of it. It maps to a family, a
graph, a spec file, several of these (the best is taken), or None, which keeps the layer dense.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any

from tnmars import families, spec
from tnmars.errors import PatternError, Problem, TnmarsError, listing, nearest
from tnmars.graph import Graph
from tnmars.models.torch_layers import DenseLayer

Target = str | Path | Graph
Rules = Mapping[str, Target | Iterable[Target] | None]
DEFAULT = "default"
"""The word for what suits a layer of its kind, as without rules."""
ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class Candidate:
    """A way to decompose a weight: a graph of its kind and sizes, and what the user called it."""

    label: str
    graph: Graph
    has_ranks: bool
    """Whether the sizes of the bonds are the user's, as in a spec; those of a family are open."""


def matched(
    rules: Rules | None, names: Mapping[str, Iterable[str]], refused: Mapping[str, str]
) -> dict[str, tuple[str, Any]]:
    """For each layer its first matching pattern and what that maps to; a layer without a match is left out.

    `names` has all names of each layer by its first one. Raises `PatternError` for a pattern that matches nothing.
    """
    known = list(names)
    if rules is None:
        return dict.fromkeys(known, ("", ...))
    given: object = rules
    if not isinstance(given, Mapping):
        text = f"rules is {given!r}, but must be a mapping from patterns to families."
        raise PatternError(Problem(text, "Write {'*': 'lowrank'}, or {'fc*': 'lowrank', 'head': None}."))
    problems: list[Problem] = []
    found: dict[str, tuple[str, Any]] = {}
    for pattern in rules:
        is_match = _matcher(pattern)
        hits = [name for name, every in names.items() if any(map(is_match, (name, *every)))]
        if not hits and not (rules[pattern] is None and any(map(is_match, refused))):
            problems.append(_unmatched(pattern, known, {n: why for n, why in refused.items() if is_match(n)}))
        for name in hits:
            found.setdefault(name, (pattern, rules[pattern]))
    if problems:
        raise PatternError([*problems, Problem("Nothing was changed.")])
    return found


def _matcher(pattern: object) -> Any:
    if not isinstance(pattern, str):
        raise PatternError(f"a pattern of the rules is {pattern!r}, but must be a text such as 'fc*' or 're:fc[12]'.")
    if not pattern.startswith("re:"):
        return lambda name: fnmatchcase(name, pattern)
    try:
        expression = re.compile(pattern[3:])
    except re.error as error:
        raise PatternError(f"pattern '{pattern}' is not a regular expression: {error}. Nothing was changed.") from None
    return lambda name: expression.fullmatch(name) is not None


def _unmatched(pattern: str, known: list[str], refused: Mapping[str, str]) -> Problem:
    if refused:
        name, why = next(iter(refused.items()))
        return Problem(f"'{pattern}' matches only layers that cannot be decomposed: '{name}': {why}.")
    bare = re.sub(r"[^A-Za-z0-9_.]", "", pattern.removeprefix("re:"))
    near = [name for name in known if bare and (bare in name or name.rpartition(".")[2] in bare)]
    guess = "" if near else nearest(pattern, known)
    hint = f"Layers that could be meant: {listing(near[:8] or known)}.{guess}"
    return Problem(f"'{pattern}' matches no layer of the model.", hint)


def candidates(target: object, layer: DenseLayer, name: str) -> list[Candidate]:
    """The ways to decompose a weight that a rule asks for; `...` means the defaults of its kind."""
    if target is ... or target == DEFAULT:
        target = families.DEFAULTS[layer.kind]
        if prod(layer.kernel) == 1:
            target = target[:1]  # without taps all defaults of a kind are the same
    several = [target] if isinstance(target, (str, Path, Graph)) else target
    if not isinstance(several, Iterable):
        text = f"the rule for '{name}' is {target!r}, but must be a family, a graph, a spec file or None."
        raise TnmarsError(Problem(text, f"Families: {', '.join(families.FAMILIES)}."))
    return [_candidate(each, layer, name) for each in several]


def _candidate(target: object, layer: DenseLayer, name: str) -> Candidate:
    if isinstance(target, Path) or (isinstance(target, str) and target.endswith(ENDINGS)):
        target, label = spec.load(target), str(target)
    elif isinstance(target, Graph):
        label = target.name or "graph"
    elif isinstance(target, str):
        own: dict[str, Any] = {"kernel": layer.kernel, "groups": layer.groups, "options": layer.options}
        graph = families.of_layer(target, layer.kind, layer.inside, layer.outside, rank=1, **own)
        return Candidate(target, graph, False)
    else:
        text = f"the rule for '{name}' has {target!r}, but must have a family, a graph, a spec file or None."
        raise TnmarsError(Problem(text, f"Families: {', '.join(families.FAMILIES)}."))
    assert isinstance(target, Graph)
    if not layer.fits(target):
        text = f"the graph for '{name}' is {target.kind} {target.signature}, a weight of shape {target.dense_shape}, "
        groups = f" in {layer.groups} groups" if layer.groups > 1 else ""
        raise TnmarsError(text + f"but the layer is {layer.kind} with a weight of shape {layer.shape}{groups}.")
    return Candidate(label, replace(target, options=tuple(layer.options.items())), True)
