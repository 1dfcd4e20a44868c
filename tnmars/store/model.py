"""`save` and `load_into`: a model as one safetensors file whose header carries graphs, selectors and plans.

The tensors have the names of the model's state dict, so that any reader of safetensors can use them. `load_into`
changes a model only once everything is known to fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tnmars.arguments import check_arguments
from tnmars.errors import CheckpointError, Problem, TnmarsError, listing, nearest
from tnmars.graph import Graph
from tnmars.graph.kinds import KINDS
from tnmars.graph.options import canonical
from tnmars.layer.cores import check_parameters, computed
from tnmars.layer.distributed import is_first_rank, is_sharded
from tnmars.layer.distributed import whole as whole_tensor
from tnmars.layer.module import Shell, TNModule
from tnmars.models.rebuilt import is_place, place_of
from tnmars.models.torch_layers import DenseLayer, describe
from tnmars.store import layer as record
from tnmars.store.container import Container, read, write
from tnmars.store.loading import Loading, Stored, plain_name, prefix_of

SIZES = ["in_features", "out_features", "in_channels", "out_channels", "kernel_size", "num_embeddings", "embedding_dim"]
"""The sizes that both a layer of torch and the compiled one that replaces it have."""
MODEL = "model."
"""The prefix of a model's tensors in a checkpoint, which holds other tensors too."""


def save(model: nn.Module, path: str | Path) -> None:
    """Writes a model to one safetensors file: every tensor of its state dict, and how compiled layers are built.

    The file holds no code and needs no class of yours to be read; `tnmars.load_into` puts it into a model. A crash
    leaves either the old file or the new one. Under several processes all of them must call it, and rank 0 writes.

    Args:
        model: Any model; compiled layers may be pruned and gated, but not frozen. Tensors that are shared are stored
            once and shared again when loaded.
        path: The file to write. Its folder must exist.

    Raises:
        TnmarsError: If a layer is frozen, torch computes one of its cores, its gates or its bias
            (`torch.nn.utils.parametrize`), the state dict holds something that is not a tensor, or the file cannot be
            written.

    Example:
        >>> import tempfile, tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2)
        >>> layer = tnmars.compile(graph)
        >>> path = Path(tempfile.mkdtemp()) / "layer.safetensors"
        >>> tnmars.save(layer, path)
        >>> other = tnmars.load_into(nn.Linear(6, 5), path)
        >>> torch.equal(other.dense(), layer.dense())
        True
    """
    check_arguments(save, locals())
    header, tensors = contents(model)
    if is_first_rank():
        write(path, Container({"kind": "model", **header}, tensors))


def contents(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file says about the compiled layers of a model, and its tensors; shared tensors are the same object."""
    layers: dict[TNModule, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, TNModule):
            check_parameters(module, name, "Nothing was saved.", but=())
            if str(module.dtype) not in record.FLOATS:
                text = f"layer '{name}' has dtype {module.dtype}, which cannot be saved. Nothing was saved."
                raise TnmarsError(Problem(text, f"Types that can be saved: {', '.join(record.FLOATS)}."))
            layers.setdefault(module, []).append(name)
        elif isinstance(module, Shell):
            text = f"layer '{name}' is frozen, and a frozen layer cannot be saved."
            raise TnmarsError(Problem(text, "Save the model that it was made from, and freeze after loading."))
    found = [{"names": names, **record.to_json(layer)} for layer, names in layers.items()]
    tensors = _tensors(model)
    for name in (*(name for names in layers.values() for name in names), *tensors):
        if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
            text = f"the name {name!a} holds half of a surrogate pair, which a file cannot hold."
            raise TnmarsError(Problem(text, "Rename that part of the model."))
    return {"layers": found}, tensors


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    whole: dict[int, Tensor] = {}
    found = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            text = f"'{name}' of the model's state is of type {type(value).__name__}, which cannot be saved."
            raise TnmarsError(Problem(text, "A state of tensors can: register a buffer, or leave out get_extra_state."))
        gathered = whole_tensor(value)
        found[name] = whole.setdefault(id(value), gathered)
    return found


def stored(held: Container) -> Stored:
    """The model in a file of `save` or of `save_checkpoint`."""
    layers = held.header.get("layers")
    if not isinstance(layers, list) or not all(isinstance(entry, dict) and _are_names(entry) for entry in layers):
        raise CheckpointError(f"{held.source}: does not say which layers are compiled; it was not written by tnmars.")
    names = [name for entry in layers for name in entry["names"]]
    if len(set(names)) < len(names):
        raise CheckpointError(f"{held.source}: describes a layer twice; it was not written by tnmars.")
    tensors = held.under(MODEL) if held.header.get("kind") == "checkpoint" else dict(held.tensors)
    return Stored(layers, tensors, held.source)


def _are_names(entry: Mapping[str, Any]) -> bool:
    """Whether an entry has names of a layer, as `save` writes them."""
    names = entry.get("names")
    if not names or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return False
    return not entry.get("rebuilt") or all(map(is_place, names))


def load_into(model: nn.Module, path: str | Path) -> nn.Module:
    """The model given, with the layers and the tensors of a file of `save` or `save_checkpoint`.

    Each layer that is compiled in the file replaces the module of the same name: a layer of the same kind, sizes and
    options, torch's own or a compiled one, or `torch.nn.Identity()`, which keeps a place free. A layer that is compiled
    already stays the same object. Replaced layers have the file's dtypes, on the devices of what they
    replace. A parameter that `tnmars.parametrize_` rebuilt in the file is rebuilt from cores in the model too. All
    other tensors are copied into the model's own.

    Args:
        model: A model with the module names of the file, for example a fresh instance of the class that was saved,
            with dense or compiled layers.
        path: The file.

    Returns:
        The model given. If the model is a single layer that was not compiled, the compiled layer in its place.

    Raises:
        CheckpointError: If the file is damaged, cannot be read, or was not written by tnmars.
        TnmarsError: With everything that does not fit. Nothing was changed then.

    Example:
        >>> import tempfile, tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2)
        >>> path = Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> tnmars.save(nn.Sequential(tnmars.compile(graph), nn.ReLU()), path)
        >>> model = tnmars.load_into(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), path)
        >>> model[0].graph.bonds["r"].size
        2
    """
    check_arguments(load_into, locals())
    return prepare(model, stored(read(path)), str(path)).apply()


def prepare(model: nn.Module, held: Stored, source: str) -> Loading:
    """A model and what it is to become, checked to fit. Raises `TnmarsError`; changes nothing."""
    problems: list[Problem] = []
    damage: list[Problem] = []
    made: dict[str, TNModule] = {}
    for entry in held.layers:
        try:
            problems += _replace(model, held, entry, made)
        except CheckpointError as error:
            damage += (Problem(f"layer '{entry['names'][0]}': {one.text}", one.hint) for one in error.problems)
    if damage:
        raise CheckpointError([*damage, *problems, Problem("Nothing was changed.")], source=source)
    if not problems:
        problems = list(_differences(model, held, made))
    if problems:
        raise TnmarsError([*problems, Problem("Nothing was changed.")], source=source)
    return Loading(model, held, made)


def _replace(model: nn.Module, held: Stored, entry: Mapping[str, Any], made: dict[str, TNModule]) -> Iterator[Problem]:
    """Builds the layer of an entry, for all its names; yields what prevents it. Raises `CheckpointError`."""
    modules = dict(model.named_modules(remove_duplicate=False))
    olds: dict[str, nn.Module] = {}
    for name in entry["names"]:
        # a parameter that is still a plain one belongs to the module before its name
        place = place_of(name)[0] if entry.get("rebuilt") and name not in modules else name
        if place in modules:
            olds[name] = modules[place]
        else:
            hint = f"Modules: {_known(modules)}.{nearest(place, modules)}"
            yield Problem(f"layer '{place}' is not in the model.", hint)
    if not olds:
        return
    first = next(iter(olds.values()))
    layer = record.from_json(entry, held.of(entry), _device(first))
    layer.train(first.training)
    for name, old in olds.items():
        made[name] = layer
        if name not in modules:
            yield from _unfit(old, name, layer)
            continue
        if isinstance(old, Shell) and not isinstance(old, TNModule):
            yield Problem(f"layer '{name}' of the model is frozen.", "Load into the model before it is frozen.")
        for what, call in computed(old).items() if isinstance(old, TNModule) else ():
            text = f"{what} of layer '{name}' of the model is not a parameter, because torch computes it."
            yield Problem(text, f"Make it a parameter first: {call}.")
        yield from _other_kind(old, name, layer)
        for size in SIZES:
            have, want = getattr(old, size, None), getattr(layer, size, None)
            if have is not None and want is not None and have != want:
                yield Problem(f"layer '{name}' has {size} {have}, but {want} in the file.")


def _other_kind(old: nn.Module, name: str, layer: TNModule) -> Iterator[Problem]:
    """What prevents that a layer of the file replaces a module: another kind of layer, other options, or no layer."""
    if isinstance(old, nn.Identity) or type(old) is nn.Module:
        return
    found = old.graph if isinstance(old, TNModule) else describe(old)
    if not isinstance(found, (Graph, DenseLayer)):
        if not isinstance(old, Shell):
            why = found or "no layer of torch that a compiled one can stand for"
            text = f"layer '{name}' of the model is of type {type(old).__name__}: {why}."
            yield Problem(text, "Put the compiled layer, or torch.nn.Identity(), in its place first.")
        return
    have, want = found.kind, layer.graph.kind
    if have != want:
        yield Problem(f"layer '{name}' is of kind '{have}', but of kind '{want}' in the file.")
    elif isinstance(found, Graph) and not layer.graph.rules.layout and found.dense_shape != layer.graph.dense_shape:
        shapes = f"has modes of sizes {found.dense_shape}, but {layer.graph.dense_shape}"
        yield Problem(f"layer '{name}' {shapes} in the file.")
    else:
        yield from _other_options(old, found, name, layer)


def _other_options(old: nn.Module, found: Graph | DenseLayer, name: str, layer: TNModule) -> Iterator[Problem]:
    """Options, bias included, with which a layer of the model computes something else than the one in the file."""
    have, want = _options(found), _options(layer.graph)
    if isinstance(old, (nn.Embedding, nn.EmbeddingBag)):
        have["padding_idx"] = old.padding_idx
        if isinstance(old, nn.Embedding) and "padding_idx" not in want:
            del have["padding_idx"]  # a row that is trained is no padding for a compiled layer
    for option in dict.fromkeys([*have, *want]):
        had, wanted = have.get(option), want.get(option)
        if had == wanted:
            continue
        if option == "bias":
            yield Problem(
                f"layer '{name}' has {'a' if had else 'no'} bias, but {'one' if wanted else 'none'} in the file."
            )
        else:
            shown, held = getattr(old, option, had), getattr(layer, option, wanted)
            yield Problem(f"layer '{name}' has {option} {shown!r}, but {held!r} in the file.")


def _options(found: Graph | DenseLayer) -> dict[str, object]:
    """The options of a layer that differ from torch's defaults; its groups and its bias always."""
    if isinstance(found, Graph):
        return {**dict(found.options), "groups": found.groups, "bias": found.has_bias}
    options = dict(canonical(KINDS[found.kind], found.options, found.inside))
    return {**options, "groups": found.groups, "bias": found.bias is not None}


def _unfit(module: nn.Module, name: str, layer: TNModule) -> Iterator[Problem]:
    """What prevents that a plain parameter of a module is rebuilt by a layer of the file."""
    path, key = place_of(name)
    value, shape = module._parameters.get(key), layer.graph.dense_shape
    if value is None:
        known = listing(list(module._parameters))
        yield Problem(f"layer '{path}' has no parameter '{key}', which the file has.", f"Parameters: {known}.")
    elif tuple(value.shape) != shape:
        yield Problem(f"parameter '{prefix_of(path)}{key}' has shape {tuple(value.shape)}, but {shape} in the file.")


def _known(modules: Mapping[str, nn.Module]) -> str:
    return listing([name for name in modules if name])


def _device(module: nn.Module) -> torch.device | None:
    """The device of a module's first tensor."""
    for value in (*module.parameters(), *module.buffers()):
        return value.device
    return None


def _differences(model: nn.Module, held: Stored, made: Mapping[str, TNModule]) -> Iterator[Problem]:
    """Tensors that are missing, unexpected, of another shape, or tied in the model but not in the file."""
    expected: dict[str, Any] = dict(model.state_dict(keep_vars=True))
    for name, layer in made.items():
        prefix = prefix_of(name)
        expected = {key: value for key, value in expected.items() if not key.startswith(prefix)}
        if layer.is_rebuilt:
            expected.pop(plain_name(name), None)
        expected |= {f"{prefix}{key}": value for key, value in layer.state_dict(keep_vars=True).items()}
    known = [key for key in expected if key not in held.tensors]
    for key in known:
        yield Problem(f"tensor '{key}' of the model is missing in the file.")
    for key in held.tensors:
        if key not in expected:
            yield Problem(f"tensor '{key}' of the file is not in the model.{nearest(key, known)}")
    first: dict[int, str] = {}
    for key, value in expected.items():
        if key not in held.tensors:
            continue
        stored = held.tensors[key]
        if not isinstance(value, Tensor):
            yield Problem(f"'{key}' of the model's state is not a tensor, but it is one in the file.")
        elif is_sharded(value):
            yield Problem(f"tensor '{key}' of the model is sharded over ranks.", "Load before the model is sharded.")
        elif value.is_meta:
            fix = "Give it memory first: model.to_empty(device='cpu')."
            yield Problem(f"tensor '{key}' of the model is on the meta device.", fix)
        elif is_lazy(value):
            yield Problem(f"tensor '{key}' of the model has no shape yet.", "Run the model once before you load.")
        elif reason := _unwritable(value):
            yield Problem(f"tensor '{key}' of the model {reason}, so nothing can be copied into it.")
        elif stored.shape != value.shape:
            yield Problem(
                f"tensor '{key}' has shape {tuple(value.shape)} in the model, but {tuple(stored.shape)} in the file."
            )
        else:
            other = first.setdefault(id(value), key)
            if not _same(held.tensors[other], stored):
                yield Problem(f"tensors '{other}' and '{key}' are one in the model, but differ in the file.")


def _unwritable(value: Tensor) -> str:
    """Why a tensor cannot be written to, or nothing."""
    if value.layout is not torch.strided:
        return f"has layout {value.layout}"
    if value.is_inference():
        return "was made in inference mode"
    return "has entries that share memory" if torch._debug_has_internal_overlap(value) == 1 else ""


def _same(first: Tensor, second: Tensor) -> bool:
    return first is second or (first.dtype == second.dtype and first.equal(second))
