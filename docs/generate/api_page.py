"""The reference of the Python API, from signatures and docstrings.

Sphinx's autodoc would do it too, but only in built pages. Made here, the pages can be read as they are, a test sees
when they are stale, and the same parser says which public name lacks something.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from types import ModuleType
from typing import Any

from docstrings import SECTIONS, Docstring, parse
from marks import block, page, table

import tnmars

WIDTH = 88
INDENT = "    "
TITLES = {"Args": "Arguments", "Attributes": "Attributes"}


@dataclass(frozen=True)
class Group:
    """A page of the reference: public names that are used together."""

    file: str
    title: str
    intro: str
    names: str


GROUPS = (
    Group(
        "compress",
        "Compressing trained models",
        "From a trained model to a smaller one: plan, compress, fine-tune, convert. [How to](../trained_model.md).",
        "compress_ plan_compression CompressionPlan CompressionWarning from_dense parametrize_ tie_ match_ to_dense_"
        " as_torch_ ensemble suggest Suggestions Suggestion adapter_ merge_adapters_ print_trainable_parameters",
    ),
    Group(
        "declare",
        "Declaring graphs",
        "Read, write, build and inspect graphs. Nothing here loads torch.",
        "load loads dump save_spec network einsum Builder families factor factor_up Graph Term Core Edge Operand Role"
        " count Count lint topology draw spec",
    ),
    Group(
        "compile",
        "Compiling and shipping",
        "Turn a graph into an `nn.Module`, and the module into something to ship.",
        "compile Linear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Embedding LSTM GRU"
        " TNModule CostModel cached freeze export_onnx write_source",
    ),
    Group(
        "shrink",
        "Shrinking while training",
        "Ranks that choose themselves along one training, and a search by a score of your own. [How to](../shrink.md).",
        "shrink Curve Point load_curve Stages Stage Staircase ShrinkWarning search_ranks RankSearch Trial",
    ),
    Group(
        "train",
        "Learning ranks and pruning",
        "Selectors, what they add to a training loop, and how a model is cut. [The method](../masks.md).",
        "Mars GaussianGates Annealed Ard Fixed Selector param_groups penalty sampled expected MaskSchedule gate_"
        " gate_gradient_ keep prune prune_ widen_ ShutSlices",
    ),
    Group(
        "decompose",
        "Decomposing weights",
        "From a dense weight to the cores of any graph, with ranks from a target and errors in a metric from data.",
        "decompose Decomposed Metric canonical Canonical",
    ),
    Group(
        "files",
        "Saving and loading",
        "Files of models and of training runs. [What they hold](../store.md).",
        "save load_into save_checkpoint load_checkpoint save_adapters load_adapters_",
    ),
    Group(
        "interchange",
        "Other libraries",
        "Cores from and to tensorly, tensorly-torch, tt-pytorch, tednet and quimb. [How to](../interchange.md).",
        "interchange",
    ),
    Group(
        "integrations",
        "Hugging Face and Lightning",
        "Compressed models where models live. [How to](../integrations.md).",
        "integrations",
    ),
    Group(
        "inspect",
        "Fitting and reporting",
        "Ranks for a given tensor, and what became of a model.",
        "fit Fitted FitWarning summary report",
    ),
    Group(
        "errors",
        "Errors",
        "Every error that tnmars raises on purpose is a `TnmarsError`, and so a `ValueError`.",
        "TnmarsError GraphError SpecError ShapeError PatternError CheckpointError Problem",
    ),
)
"""Every public name is on exactly one page; a test compares them with `tnmars.__all__`."""

UNFORMATTED = "<!-- fmt: off -->"
"""Tells ruff to leave the examples as their docstrings have them."""
INTRO = """\
Every public name of `tnmars`, from its signature and docstring. `help(tnmars.NAME)` says the same. Everything else in
the package is internal and may change."""


def text() -> str:
    """The overview: each page with its names."""
    parts = []
    for group in GROUPS:
        rows = [(f"[`{name}`](python_{group.file}.md#{_anchor(name)})", _summary(name)) for name in group.names.split()]
        parts += [f"## {group.title}", group.intro, table(("name", "what it is"), rows)]
    toc = "\n".join(("```{toctree}", ":hidden:", "", *(f"python_{group.file}" for group in GROUPS), "```"))
    return page("# Python API", INTRO, toc, *parts)


def pages() -> dict[str, Callable[[], str]]:
    """The page of each group, by file."""
    return {f"reference/python_{group.file}.md": partial(group_text, group) for group in GROUPS}


def group_text(group: Group) -> str:
    """The page of a group."""
    return page(f"# {group.title}", UNFORMATTED, group.intro, *(_entry(name) for name in group.names.split()))


def _anchor(name: str) -> str:
    """The anchor of a name's heading; the second of two that differ in case alone gets a number, as Sphinx does it."""
    names = next(group.names.split() for group in GROUPS if name in group.names.split())
    before = [other.lower() for other in names[: names.index(name)]].count(name.lower())
    return f"tnmars{name}".lower() + (f"-{before}" if before else "")


def _summary(name: str) -> str:
    return parse(getattr(tnmars, name).__doc__).summary


def _entry(name: str) -> str:
    value = getattr(tnmars, name)
    kind = _module if isinstance(value, ModuleType) else _class if inspect.isclass(value) else _function
    return "\n\n".join(filter(None, (f"## `tnmars.{name}`", *kind(f"tnmars.{name}", value))))


# --- functions -------------------------------------------------------------------------------------------------------


def _function(name: str, value: Any) -> Iterator[str]:
    yield block(signature_text(name, inspect.signature(value)), "py")
    yield from _prose(parse(value.__doc__))


def signature_text(name: str, signature: inspect.Signature) -> str:
    """A call with types and defaults, on one line or with a line for each parameter.

    >>> signature_text("f", inspect.Signature())
    'f()'
    """
    parameters = [entry for entry in signature.parameters.values() if entry.name != "self"]
    result = signature.return_annotation
    end = "" if result is inspect.Signature.empty else f" -> {_type(result)}"
    shown = list(_parameters(parameters))
    line = f"{name}({', '.join(shown)}){end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join((f"{name}(", *(f"{INDENT}{entry}," for entry in shown), f"){end}"))


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    is_starred = False
    for entry in parameters:
        if entry.kind is entry.KEYWORD_ONLY and not is_starred:
            is_starred = True
            yield "*"
        is_starred |= entry.kind is entry.VAR_POSITIONAL
        stars = {entry.VAR_POSITIONAL: "*", entry.VAR_KEYWORD: "**"}.get(entry.kind, "")
        annotation = "" if entry.annotation is entry.empty else f": {_type(entry.annotation)}"
        default = "" if entry.default is entry.empty else f" = {_shown(entry.default)}"
        yield f"{stars}{entry.name}{annotation}{default if annotation else default.replace(' ', '')}"


def _type(annotation: object) -> str:
    return annotation.strip("'\"") if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _shown(default: object) -> str:
    """A default as it is written, but for values that would be printed with their address."""
    text = repr(default)
    return "..." if " at 0x" in text or text.startswith("<") else text


def _prose(found: Docstring, fields: dict[str, str] | None = None) -> Iterator[str]:
    """What a docstring says, section by section; `fields` stand in for attributes that it does not list."""
    yield found.summary
    yield found.body
    listed = {**found.entries("Args"), **found.entries("Attributes")}
    extra = {name: words for name, words in (fields or {}).items() if name not in listed}
    if extra:
        yield "\n\n".join(("**Fields**", _bullets(extra)))
    for section in SECTIONS:
        if section in found.sections:
            yield f"**{TITLES.get(section, section)}**"
            yield _section(found, section)


def _section(found: Docstring, section: str) -> str:
    text = found.sections[section]
    if section == "Example":
        return block(text, "pycon") if text.lstrip().startswith(">>>") else text
    entries = found.entries(section)
    is_list = bool(entries) and section not in ("Returns", "Yields", "Note")
    return _bullets(entries) if is_list else text


def _bullets(entries: dict[str, str]) -> str:
    return "\n".join(f"* `{name}`: {words}" if words else f"* `{name}`" for name, words in entries.items())


# --- classes ---------------------------------------------------------------------------------------------------------


def _class(name: str, value: type) -> Iterator[str]:
    bases = [base.__name__ for base in value.__mro__[1:-1] if base.__name__ not in ("ABC", "BaseException")]
    if is_called(value):
        called = inspect.signature(value).replace(return_annotation=inspect.Signature.empty)
        yield block(signature_text(name, called), "py")
    if issubclass(value, (Exception, enum.Enum)):
        yield f"Base classes: {', '.join(f'`{base}`' for base in bases)}."
    yield from _prose(parse(value.__doc__), fields(value) if dataclasses.is_dataclass(value) else None)
    if issubclass(value, enum.Enum):
        yield "\n".join(f"* `{member.name}` = `{member.value!r}`" for member in value)
    yield from _members(name.rpartition(".")[2], value)


def is_called(value: type) -> bool:
    """Whether a class has a constructor of its own that users call."""
    if value.__name__ in MADE_ELSEWHERE or issubclass(value, (enum.Enum, Exception)):
        return False
    return any("__init__" in vars(base) and base.__module__.startswith("tnmars") for base in value.__mro__)


MADE_ELSEWHERE = {"TNModule", "Fitted", "Curve", "Point", "Stage"}
"""Classes that functions of the library make; their constructors are internal, as are those of errors."""


@cache
def fields(value: type) -> dict[str, str]:
    """What stands below each field of a dataclass in its source, bases first."""
    found: dict[str, str] = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith("tnmars"):
            found |= _commented(base)
    return {entry.name: found.get(entry.name, "") for entry in dataclasses.fields(value)}


def _commented(value: type) -> dict[str, str]:
    """The strings below annotated names in the body of a class."""
    source = ast.parse(inspect.getsource(sys.modules[value.__module__]))
    body = next(
        node.body for node in ast.walk(source) if isinstance(node, ast.ClassDef) and node.name == value.__name__
    )
    found = {}
    for node, after in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if is_text and isinstance(after.value.value, str):
                found[node.target.id] = " ".join(after.value.value.split())
    return found


def _members(name: str, value: type) -> Iterator[str]:
    """The methods and properties that a class defines and documents itself."""
    properties = {}
    for key, member in vars(value).items():
        inner = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if key.startswith("_") or not getattr(inner, "__doc__", None) or not inspect.isfunction(inner):
            continue
        if inner is member or isinstance(member, (classmethod, staticmethod)):
            heading = f"### `{name}.{key}`"
            yield "\n\n".join(filter(None, (heading, *_function(f"{name}.{key}", getattr(value, key)))))
        else:
            properties[key] = parse(inner.__doc__).summary
    if properties:
        yield f"**Properties of `{name}`**"
        yield _bullets(properties)


# --- modules ---------------------------------------------------------------------------------------------------------


def members(module: ModuleType) -> dict[str, Any]:
    """The functions and classes that a public module offers, in the order of its list or its source."""
    listed = getattr(module, "__all__", None)
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    names = listed or [name for name in own if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names}
    return {name: value for name, value in found.items() if inspect.isfunction(value) or inspect.isclass(value)}


def _module(name: str, value: ModuleType) -> Iterator[str]:
    yield from _prose(parse(value.__doc__))
    for key, member in members(value).items():
        if hasattr(tnmars, key) and getattr(tnmars, key) is member:
            yield f"### `{name}.{key}`\n\nThe same as [`tnmars.{key}`](#{_anchor(key)})."
            continue
        kind = _class if inspect.isclass(member) else _function
        yield "\n\n".join(filter(None, (f"### `{name}.{key}`", *kind(f"{name}.{key}", member))))


# --- what is missing -------------------------------------------------------------------------------------------------


def lacks(name: str) -> list[str]:
    """What the docstring of a public name lacks, in words; nothing where it is complete."""
    value = getattr(tnmars, name)
    return list(_lacks(value, parse(value.__doc__)))


def _lacks(value: Any, found: Docstring) -> Iterator[str]:
    if not re.search(r"[.:…]$", found.summary):
        yield "a first sentence"
    takes = [] if isinstance(value, ModuleType) or (inspect.isclass(value) and not is_called(value)) else _takes(value)
    args, attributes = found.entries("Args"), found.entries("Attributes")
    for entry in takes:
        if not args.get(entry) and not attributes.get(entry):
            yield f"a line for the argument '{entry}'"
    for entry in args:
        if entry not in takes and not (inspect.isclass(value) and not is_called(value)):
            yield f"the argument '{entry}', which is documented"
    example = found.sections.get("Example", "")
    if ">>>" not in example:
        yield "an example"
    if any(len(line) > WIDTH for line in example.splitlines()):
        yield f"an example of at most {WIDTH} columns"


def _takes(value: Any) -> list[str]:
    return [entry for entry in inspect.signature(value).parameters if entry != "self"]
