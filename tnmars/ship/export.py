"""Models for use without tnmars: ONNX files and programs of `torch.export`.

Exports use the plan of the nominal batch and accept any batch. A file is written completely or not at all.
"""

from __future__ import annotations

import copy
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, ShapesCollection

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError
from tnmars.layer.module import layers
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
        TnmarsError: If the packages for ONNX are missing (`pip install 'tnmars[export]'`), the model is complex, or the
            file cannot be written.

    Example:
        >>> import tempfile, torch, tnmars
        >>> graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(3, 5), rank=2)
        >>> layer = tnmars.compile(graph)
        >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
        ...     tnmars.export_onnx(layer, f"{folder}/layer.onnx", torch.ones(1, 16))
    """
    check_arguments(export_onnx, locals())
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        hint = "Install what is missing with: pip install 'tnmars[export]'"
        raise TnmarsError(Problem(f"ONNX export needs {' and '.join(missing)}, which cannot be imported.", hint))
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    if any(value.is_complex() for value in (*model.parameters(), *model.buffers(), *inputs)):
        hint = "Ship the model with torch.export, tnmars.save or tnmars.write_source."
        raise TnmarsError(Problem("the model has complex numbers, which ONNX's operators do not take.", hint))
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
