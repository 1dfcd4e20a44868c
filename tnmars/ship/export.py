"""Layers for use without tnmars: ONNX files, programs of `torch.export`, and Python files that need only torch.

Exports use the plan of the nominal batch and accept any batch. A file is written completely or not at all.
"""

from __future__ import annotations

import copy
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import indent
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, ShapesCollection

from tnmars import files
from tnmars.errors import Problem, TnmarsError
from tnmars.layer.kinds import kind_of
from tnmars.layer.module import Code, TNModule, code, layers
from tnmars.pruning.prune_model import prune

NEEDED = ("onnx", "onnxscript")
"""The packages that torch needs to write ONNX."""


def export_program(model: nn.Module, example_inputs: Tensor | tuple[Tensor, ...]) -> ExportedProgram:
    """The model in evaluation mode, as a program of `torch.export` whose inputs have any length on their first axis.

    The example may have a batch of 1. The model itself does not change.
    """
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    # torch takes a length of 1 as a constant, and two inputs that are one tensor as one input
    inputs = tuple(torch.cat([value, value]) if value.dim() and len(value) == 1 else value.clone() for value in inputs)
    lengths: Any = ShapesCollection()  # type: ignore[no-untyped-call]
    for value in inputs:
        if value.dim():
            lengths[value] = {0: Dim.DYNAMIC}
    ready = copy.deepcopy(model).eval()
    with torch.no_grad():
        return respell(torch.export.export(ready, inputs, dynamic_shapes=lengths.dynamic_shapes(ready, inputs)))


def respell(program: ExportedProgram) -> ExportedProgram:
    """The program, with an underscore added to parameter names that are Python keywords.

    torch writes a program as Python code, where `self.cores.class` is a syntax error.
    """
    for entry in program.graph_signature.input_specs:
        old = entry.target
        if old is None or not any(map(iskeyword, old.split("."))):
            continue
        held: dict[str, Any] = program.state_dict if old in program.state_dict else program.constants
        new = ".".join(f"{part}_" if iskeyword(part) else part for part in old.split("."))
        while new in held:
            new += "_"
        entry.target = new
        held[new] = held.pop(old)
    return program


def export_onnx(model: nn.Module, path: str | Path, example_inputs: Tensor | tuple[Tensor, ...]) -> None:
    """Writes the model in evaluation mode as an ONNX file that accepts any batch.

    Layers with gates are pruned first, because that is what they compute in evaluation mode. The model itself does not
    change.

    Args:
        model: A model with compiled layers, or a compiled layer.
        path: The file to write. Large weights go to a second file beside it.
        example_inputs: A tensor, or one tensor for each input, with the shapes and dtypes of real inputs. The first
            axis of every input is the batch, and may have any length in the file.

    Raises:
        TnmarsError: If the packages for ONNX are missing (`pip install 'tnmars[export]'`), or the file cannot be
            written.

    Example:
        >>> import tempfile, torch, tnmars
        >>> graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(3, 5), rank=2)
        >>> layer = tnmars.compile(graph)
        >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
        ...     tnmars.export_onnx(layer, f"{folder}/layer.onnx", torch.ones(1, 16))
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        hint = "Install what is missing with: pip install 'tnmars[export]'"
        raise TnmarsError(Problem(f"ONNX export needs {' and '.join(missing)}, which cannot be imported.", hint))
    target = Path(path)
    try:
        # in a folder of its own, because large weights are a second file that the first one names
        with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            made = torch.onnx.export(export_program(_cut(model), example_inputs), dynamo=True, verbose=False)
            assert made is not None
            made.save(Path(folder) / target.name)
            for part in sorted(Path(folder).iterdir(), key=lambda part: part.name == target.name):
                part.replace(target.parent / part.name)
    except OSError as error:
        raise TnmarsError(f"{target}: cannot be written: {error.strerror or error}.") from None


def _cut(model: nn.Module) -> nn.Module:
    return prune(model) if any(layer.masks is not None for _, layer in layers(model)) else model


def write_source(layer: nn.Module, path: str | Path) -> None:
    """Writes a layer as a Python file with a class `Layer` that needs only torch and has the same `state_dict` keys.

    Args:
        layer: A compiled layer without gates; prune one with gates first.
        path: The file to write.

    Raises:
        TnmarsError: If it is not a compiled layer, has gates or no terms, or the file cannot be written.

    Example:
        >>> import pathlib, tempfile, tnmars
        >>> graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(3, 5), rank=2)
        >>> layer = tnmars.compile(graph)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "layer.py"
        ...     tnmars.write_source(layer, path)
        ...     "class Layer(nn.Module)" in path.read_text()
        True
    """
    if not isinstance(layer, TNModule):
        raise TnmarsError(f"{type(layer).__name__} is not a compiled layer, and has no source to write.")
    if layer.masks is not None:
        raise TnmarsError(
            "the layer has gates, which its source would not have: write_source(tnmars.prune(layer), ...)."
        )
    if not layer.graph.terms:
        raise TnmarsError("the layer has no term left, and so no source to write: it is its bias alone.")
    files.write_text(path, source(layer))


def source(layer: TNModule) -> str:
    """The text of a Python file with a class `Layer` that computes what the layer does."""
    graph, weight = layer.graph, layer._weight
    kind = kind_of(graph)
    assert weight is not None
    made = code(layer.plan("train", layer.nominal))
    emitted = _functions(made)
    if kind.is_weight:
        emitted.append(_functions(weight)[0].replace("def fold(", "def whole(", 1))
    if kind.is_indexed:
        emitted.append(_CHECK)
    return _FILE.format(
        title=f"{graph.kind} {graph.name or '(unnamed)'}: {graph.signature}",
        batch=layer.nominal,
        shapes="".join(f'    "{name}": {graph.cores[name]},\n' for name in made.cores),
        functions="\n\n\n".join(emitted),
        bias=f"nn.Parameter(torch.empty({graph.out_features}, **where))" if graph.has_bias else "None",
        forward=indent(kind.source(graph, weight.cores), "    "),
    )


def _functions(made: Code) -> list[str]:
    """The text of `fold` and of `run`. Neither has an empty line."""
    _, fold, run = made.source.strip().split("\n\n\n")
    return [fold, run]


_FILE = '''\
# {title}
# Written by tnmars. It needs only torch. Its steps are planned for a batch of about {batch}; any batch is accepted.
#
#     layer = Layer()
#     layer.load_state_dict(state)

import torch
import torch.nn.functional as F
from torch import nn

# The names and shapes of the cores, in the order in which `fold` takes them.
CORES = {{
{shapes}}}


{functions}


class Cores(nn.Module):
    """Parameters by name. Any name is allowed, also one that torch uses itself."""

    def __init__(self, shapes, **where):
        super().__init__()
        for name, shape in shapes.items():
            *groups, last = name.split(".")
            place = self
            for group in groups:
                place = place._modules.setdefault(group, Cores({{}}))
            place._parameters[last] = nn.Parameter(torch.empty(shape, **where))

    def train(self, mode=True):
        return self


class Layer(nn.Module):
    """Takes `device` and `dtype`. Its parameters are not set: load a `state_dict` of the layer."""

    def __init__(self, **where):
        super().__init__()
        self.cores = Cores(CORES, **where)
        self.bias = {bias}

    def parts(self):
        """What depends on the cores alone."""
        cores = dict(self.cores.named_parameters())
        return fold(*[cores[name] for name in CORES])

{forward}'''

_CHECK = '''\
def check(index, sizes):
    """Rows that are not there would be read from elsewhere. Compiled code does not look at values."""
    if not torch.compiler.is_compiling() and ((index < 0) | (index >= index.new_tensor(sizes))).any():
        raise IndexError(f"an index is negative, or not below {sizes}.")'''
