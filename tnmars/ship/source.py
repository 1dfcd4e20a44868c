"""Compiled layers as a Python file that needs only torch: one layer, or all layers of a model.

A model's own class stays the user's. The file holds the classes of its compiled layers and a function that puts them
into a fresh instance, after which the model has the keys of the state dict that was saved. No name of a model or a
graph becomes code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from torch import nn

from tnmars import files
from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError
from tnmars.layer.kinds import kind_of
from tnmars.layer.module import Code, Shell, TNModule, code


def write_source(model: nn.Module, path: str | Path) -> None:
    """Writes a compiled layer, or all compiled layers of a model, as a Python file that needs only torch.

    For a layer, the file has a class `Layer` with the same `state_dict` keys.

    For a model, it has one class for each different compiled layer, and a function `replace_(model)` that puts them
    into a fresh instance of the model's own class, with dense layers or whatever stands in their places. Layers with
    several names and tied parameters are shared again. The model then takes the `state_dict` of the one given, and
    computes the same, where tnmars is not installed:

        torch.save(model.state_dict(), "model.pt")     # with tnmars
        tnmars.write_source(model, "layers.py")

        import layers                                  # without
        model = layers.replace_(Net())
        model.load_state_dict(torch.load("model.pt"))

    Args:
        model: A compiled layer, or a model with compiled layers; none of them with gates: prune these first.
        path: The file to write.

    Raises:
        TnmarsError: If there is no compiled layer, one has gates, no terms or is frozen, or the file cannot be
            written.

    Example:
        >>> import pathlib, tempfile, tnmars
        >>> graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(3, 5), rank=2)
        >>> model = nn.Sequential(tnmars.compile(graph), nn.ReLU())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "layers.py"
        ...     tnmars.write_source(model, path)
        ...     "def replace_(model)" in path.read_text()
        True
    """
    check_arguments(write_source, locals())
    if isinstance(model, TNModule):
        problems = _problems("the layer", model)
        if problems:
            raise TnmarsError(problems)
        files.write_text(path, source(model))
        return
    if isinstance(model, Shell):
        raise TnmarsError(f"{type(model).__name__} is not a compiled layer, and has no source to write.")
    files.write_text(path, model_source(model))


def _problems(called: str, layer: Shell) -> list[Problem]:
    """Why a layer has no source."""
    if not isinstance(layer, TNModule):
        hint = "Write the source of the model that it was made from."
        return [Problem(f"{called} is frozen, and has no source to write.", hint)]
    if layer.masks is not None:
        text = f"{called} has gates, which its source would not have: write_source(tnmars.prune(layer), ...)."
        return [Problem(text)]
    if not layer.graph.terms:
        return [Problem(f"{called} has no term left, and so no source to write: it is its bias alone.")]
    return []


# --- one layer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """The source of a layer in parts: what stands before its class, and the class. Equal layers have equal texts."""

    functions: str
    layer: str

    def numbered(self, at: int) -> Text:
        """The same with a number added to every name at the top level of the file."""
        functions = re.sub(r"^def (fold|run|whole)\(", rf"def \g<1>{at}(", self.functions, flags=re.MULTILINE)
        # the name of a core stands in quotes
        layer = re.sub(r"(?<!['\w.])(fold|run|whole)(?=\()", rf"\g<1>{at}", self.layer)
        layer = re.sub(r"(?<!['\w.])CORES(?!['\w])", f"CORES{at}", layer)
        functions = functions.replace("CORES = {", f"CORES{at} = {{", 1)
        return Text(functions, layer.replace("class Layer(", f"class Layer{at}(", 1))


def _text(layer: TNModule) -> Text:
    graph, weight = layer.graph, layer._weight
    kind = kind_of(graph)
    assert weight is not None
    if layer.is_rebuilt:
        if layer.graph.kind == "tensor" and layer.has_slices:
            fix = "Store the layers densely first: tnmars.freeze(model, 'fast'), or tnmars.to_dense_(model)."
            raise TnmarsError(Problem("layers that are slices of one tensor cannot be written as source.", fix))
        return Text(_cores(layer, weight, [_whole(weight)]), _taking(_WEIGHT, layer, weight))
    made = code(layer.plan("train", layer.nominal))
    emitted = _functions(made)
    forward = indent(kind.source(graph, _held(layer, weight)), "    ")
    if "whole(" in forward:
        emitted.append(_whole(weight))
    functions = _cores(layer, made, emitted)
    written = _LAYER.format(
        bias=f"nn.Parameter(torch.empty({graph.out_features}, **where))" if graph.has_bias else "None",
        forward=forward,
    )
    return Text(functions, _taking(written, layer, made))


def _held(layer: TNModule, made: Code) -> tuple[str, ...]:
    """The names of the parameters that some code takes, in order; that of a core in several places several times."""
    return tuple(layer.graph.nodes[name] for name in made.cores)


def _taking(text: str, layer: TNModule, made: Code) -> str:
    """The text of a layer that takes its cores in order, where a core in several places is taken several times."""
    held = _held(layer, made)
    return text if len(set(held)) == len(held) else text.replace("for name in CORES]", f"for name in {held}]")


def _cores(layer: TNModule, made: Code, functions: Sequence[str]) -> str:
    """The table of the cores that some code takes, and functions."""
    held = dict.fromkeys(_held(layer, made))
    shapes = "".join(f'    "{name}": {layer.graph.cores[name]},\n' for name in held)
    return _CORES.format(shapes=shapes, functions="\n\n\n".join(functions))


def _whole(weight: Code) -> str:
    """The text of `whole`, which gives the dense weight."""
    return _functions(weight)[0].replace("def fold(", "def whole(", 1)


def _functions(made: Code) -> list[str]:
    """The text of `fold` and of `run`. Neither has an empty line."""
    _, fold, run = made.source.strip().split("\n\n\n")[:3]
    return [fold, run]


def _title(layer: TNModule) -> str:
    return f"{layer.graph.kind} {layer.graph.name or '(unnamed)'}: {layer.graph.signature}"


def source(layer: TNModule) -> str:
    """The text of a Python file with a class `Layer` that computes what the layer does."""
    text = _text(layer)
    parts = [text.functions, *([_CHECK] if kind_of(layer.graph).is_indexed else []), _HOLDER, text.layer]
    return _HEAD.format(title=_title(layer), batch=layer.nominal) + "\n\n\n".join(parts)


# --- all layers of a model -------------------------------------------------------------------------------------------


def model_source(model: nn.Module) -> str:
    """The text of a Python file with the classes of a model's compiled layers, and with `replace_`."""
    names: dict[Shell, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Shell):
            names.setdefault(module, []).append(name)
    if not names:
        raise TnmarsError(f"{type(model).__name__} has no compiled layer, and so no source to write.")
    problems = [problem for layer, known in names.items() for problem in _problems(f"layer '{known[0]}'", layer)]
    if problems:
        raise TnmarsError(problems)
    numbers: dict[Text, int] = {}
    blocks: list[str] = []
    entries = []
    for layer, known in names.items():
        assert isinstance(layer, TNModule)
        text = _text(layer)
        if text not in numbers:
            at = numbers[text] = len(numbers) + 1
            numbered = text.numbered(at)
            blocks += [f"# {_title(layer)}, planned for a batch of about {layer.nominal}\n{numbered.functions}"]
            blocks += [numbered.layer.rstrip()]
        entries.append(f"    ({known!r}, Layer{numbers[text]}, {layer.dtype}),\n")
    is_indexed = any(kind_of(layer.graph).is_indexed for layer in names)
    is_rebuilt = any(isinstance(layer, TNModule) and layer.is_rebuilt for layer in names)
    if is_rebuilt:
        blocks.append(_REBUILD)
    ties = "".join(f"    {group!r},\n" for group in _ties(model, names))
    replaced = _REPLACE.format(entries="".join(entries), ties=ties)
    head = _MODEL_HEAD.replace("from torch import nn\n", _PARAMETRIZE) if is_rebuilt else _MODEL_HEAD
    return head + "\n\n\n".join([_HOLDER, *([_CHECK] if is_indexed else []), *blocks, replaced])


def _ties(model: nn.Module, names: Mapping[Shell, list[str]]) -> list[list[str]]:
    """Groups of keys of the state dict that are one parameter, where a compiled layer has one of them."""
    groups: dict[int, list[str]] = {}
    again = tuple(f"{name}." for known in names.values() for name in known[1:])
    for key, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, nn.Parameter) and not key.startswith(again):
            groups.setdefault(id(value), []).append(key)
    prefixes = tuple(f"{known[0]}." for known in names.values())
    return [keys for keys in groups.values() if len(keys) > 1 and any(key.startswith(prefixes) for key in keys)]


_IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn

"""

_PARAMETRIZE = "from torch import nn\nfrom torch.nn.utils import parametrize\n"

_HEAD = (
    """\
# {title}
# Written by tnmars. It needs only torch. Its steps are planned for a batch of about {batch}; any batch is accepted.
#
#     layer = Layer()
#     layer.load_state_dict(state)

"""
    + _IMPORTS
)

_MODEL_HEAD = (
    """\
# The compressed layers of a model. Written by tnmars. It needs only torch, and the class of the model.
#
#     model = replace_(Net())
#     model.load_state_dict(state)

"""
    + _IMPORTS
    + "\n"
)

_CORES = """\
# The names and shapes of the cores, in the order in which `fold` takes them.
CORES = {{
{shapes}}}


{functions}"""

_HOLDER = '''\
class Cores(nn.Module):
    """Parameters by name. Any name is allowed, also one that torch uses itself."""

    def __init__(self, shapes, **where):
        super().__init__()
        for name, shape in shapes.items():
            *groups, last = name.split(".")
            place = self
            for group in groups:
                place = place._modules.setdefault(group, Cores({}))
            place._parameters[last] = nn.Parameter(torch.empty(shape, **where))

    def train(self, mode=True):
        return self'''

_LAYER = '''\
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

_WEIGHT = '''\
class Layer(nn.Module):
    """A weight that its module uses itself, rebuilt from cores."""

    def __init__(self, **where):
        super().__init__()
        self.cores = Cores(CORES, **where)

    def forward(self):
        cores = dict(self.cores.named_parameters())
        return whole(*[cores[name] for name in CORES])[0]'''

_REBUILD = '''\
class Rebuilt(nn.Module):
    """Gives a parameter from its layer; the parameter itself is gone."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self):
        return self.layer()

    def right_inverse(self, value):
        return ()


def rebuild_(module, name, layer):
    """Lets a module take a parameter from a layer. Recurrent layers ask for all weights at once."""
    with torch.no_grad():
        for value in layer.parameters():
            nn.init.zeros_(value)
    parametrize.register_parametrization(module, name, Rebuilt(layer), unsafe=True)
    if isinstance(module, nn.RNNBase):
        module.__dict__.pop("_flat_weights", None)
        names = module._flat_weights_names
        rebuilt = property(lambda self: [getattr(self, name) for name in names], lambda self, value: None)
        type(module)._flat_weights = rebuilt'''

_CHECK = '''\
def check(index, sizes):
    """Rows that are not there would be read from elsewhere. Compiled code does not look at values."""
    if not torch.compiler.is_compiling() and ((index < 0) | (index >= index.new_tensor(sizes))).any():
        raise IndexError(f"an index is negative, or not below {sizes}.")'''

_REPLACE = '''\
# The names of each layer in the model, its class and its dtype.
LAYERS = [
{entries}]
# Keys of the state dict that are one parameter.
TIES = [
{ties}]


INNER = "parametrizations."


def replace_(model):
    """The model given, with these layers in the places of its own. Then load a `state_dict` of the compressed model."""
    modules = dict(model.named_modules(remove_duplicate=False))
    owners = [name.partition(INNER)[0].rstrip(".") for names, _, _ in LAYERS for name in names]
    missing = [name for name in owners if name not in modules]
    if missing:
        raise ValueError(f"the model has no module called {{', '.join(missing)}}; nothing was changed.")
    for names, kind, dtype in LAYERS:
        old = modules[names[0].partition(INNER)[0].rstrip(".")]
        held = next(iter((*old.parameters(), *old.buffers())), None)
        layer = kind(dtype=dtype, device=None if held is None else held.device).train(old.training)
        for name in names:
            owner, inner, rest = name.partition(INNER)
            if inner:
                rebuild_(modules[owner.rstrip(".")], rest.split(".")[0], layer)
                continue
            parent, _, last = name.rpartition(".")
            model.get_submodule(parent)._modules[last] = layer
    for first, *others in TIES:
        module, last = place(model, first)
        for other in others:
            twin, name = place(model, other)
            twin._parameters[name] = module._parameters[last]
    return model


def place(model, key):
    """The module that holds a parameter, and the parameter's name there. A core may be called `forward`."""
    *path, last = key.split(".")
    for part in path:
        model = model._modules[part]
    return model, last
'''
