"""`save_adapters` and `load_adapters_`: the adapters of a model as one small file, put beside the layers of another.

The file has the graphs and tensors of the adapters alone. The frozen weights stay where they came from.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tnmars.arguments import check_arguments
from tnmars.errors import CheckpointError, Problem, TnmarsError, listing, nearest
from tnmars.layer.cores import check_parameters
from tnmars.layer.distributed import is_first_rank
from tnmars.layer.distributed import whole as whole_tensor
from tnmars.layer.module import TNModule
from tnmars.models.adapters import Adapted, put_adapters_
from tnmars.models.torch_layers import DenseLayer, describe
from tnmars.store import layer as record
from tnmars.store.container import Container, read, write

KIND = "adapters"
"""What the header of a file says that it is."""


def save_adapters(model: nn.Module, path: str | Path) -> None:
    """Writes the adapters of a model to one safetensors file, without the frozen weights.

    `tnmars.load_adapters_` puts them into the original model. `tnmars.save` writes the whole model instead.

    Args:
        model: A model that `tnmars.adapter_` changed; adapters may be pruned and have gates.
        path: The file to write. Its folder must exist.

    Raises:
        TnmarsError: The model has no adapter, an adapter is no longer compiled, or the file cannot be written.

    Example:
        >>> import tempfile, torch, tnmars
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8))
        >>> path = Path(tempfile.mkdtemp()) / "adapters.safetensors"
        >>> tnmars.save_adapters(tnmars.adapter_(model, rank=2), path)
        >>> tnmars.load_adapters_(torch.nn.Sequential(torch.nn.Linear(8, 8)), path)[0].scale
        1.0
    """
    check_arguments(save_adapters, locals())
    places: dict[Adapted, list[str]] = {}
    for name, part in model.named_modules(remove_duplicate=False):
        if isinstance(part, Adapted):
            places.setdefault(part, []).append(name)
    if not places:
        raise TnmarsError("the model has no adapter: adapter_ puts them in. Nothing was saved.")
    entries, tensors = [], {}
    for adapted, names in places.items():
        delta, base = adapted.delta, adapted.base
        if not isinstance(delta, TNModule) or isinstance(base, Adapted):
            what = "holds another adapter" if isinstance(base, Adapted) else f"is a {type(delta).__name__} now"
            text = f"the adapter of layer '{names[0]}' {what}, which cannot be saved. Nothing was saved."
            raise TnmarsError(Problem(text, "Merge the adapters (tnmars.merge_adapters_), or use tnmars.save."))
        check_parameters(delta, names[0], "Nothing was saved.", but=())
        entries.append({"names": names, "scale": adapted.scale, **record.to_json(delta)})
        for key, value in delta.state_dict(keep_vars=True).items():
            tensors[f"{names[0]}.{key}"] = whole_tensor(value)
    if is_first_rank():
        write(path, Container({"kind": KIND, "adapters": entries}, tensors))


def load_adapters_(model: nn.Module, path: str | Path) -> nn.Module:
    """The model given, frozen, with the adapters of a file of `save_adapters` beside its layers.

    Adapters that the model has already in these places are replaced.

    Args:
        model: The original model, or another with layers of the same names, kinds and sizes.
        path: The file.

    Returns:
        The model given.

    Raises:
        CheckpointError: The file is damaged, cannot be read, or was not written by `save_adapters`.
        TnmarsError: With everything that does not fit. Nothing was changed then.

    Example:
        >>> import tnmars
        >>> model = tnmars.load_adapters_(model, "adapters.safetensors")  # doctest: +SKIP
    """
    check_arguments(load_adapters_, locals())
    held = read(path)
    entries: Any = held.header.get("adapters") if held.header.get("kind") == KIND else None
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise CheckpointError("it has no adapters; it was not written by save_adapters.", source=str(path))
    modules = dict(model.named_modules(remove_duplicate=False))
    made: dict[str, Adapted] = {}
    problems: list[Problem] = []
    for entry in entries:
        absent = [name for name in entry["names"] if name not in modules or not name]
        if absent:
            hint = f"Modules: {listing([name for name in modules if name])}.{nearest(absent[0], modules)}"
            problems.append(Problem(f"layer '{absent[0]}' is not in the model.", hint))
            continue
        first = entry["names"][0]
        base = modules[first].base if isinstance(modules[first], Adapted) else modules[first]
        assert isinstance(base, nn.Module)
        tensors = held.under(f"{first}.")
        device = next((value.device for value in base.parameters()), None)
        try:
            delta = record.from_json(entry, tensors, device)
        except CheckpointError as error:
            raise CheckpointError(error.problems, source=str(path)) from None
        dense = describe(base)
        if not isinstance(dense, DenseLayer) or not dense.fits(delta.graph):
            have = f"{dense.kind} of shape {dense.shape}" if isinstance(dense, DenseLayer) else type(base).__name__
            wanted = f"{delta.graph.kind} of shape {delta.graph.dense_shape}"
            problems.append(Problem(f"layer '{first}' is {have}, but its adapter is for {wanted}."))
            continue
        if delta.state_dict().keys() != tensors.keys():
            raise CheckpointError(f"the tensors of the adapter of '{first}' are not those it has.", source=str(path))
        with torch.no_grad():
            delta.load_state_dict(tensors)
        adapted = Adapted(base, delta.train(base.training), float(entry["scale"])).train(base.training)
        made |= dict.fromkeys(entry["names"], adapted)
    if problems:
        raise TnmarsError([*problems, Problem("Nothing was changed.")], source=str(path))
    return put_adapters_(model, made)


def _is_entry(entry: object) -> bool:
    """Whether an entry has names and a scale, as `save_adapters` writes them; its graph is checked where it is read."""
    if not isinstance(entry, dict) or entry.get("rebuilt") is not False:
        return False
    names, scale = entry.get("names"), entry.get("scale")
    is_named = isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)
    return is_named and isinstance(scale, (int, float)) and isfinite(scale)
