"""Compressed models of Hugging Face transformers: saved with their graphs in config.json, loaded without remote code.

A registered quantizer puts compiled layers into the empty model before transformers loads its tensors. Nothing in a
folder is executed: graphs are read as spec files are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments
from tnmars.errors import CheckpointError, Problem, TnmarsError, listing
from tnmars.interchange.labelled import library
from tnmars.layer.module import TNModule
from tnmars.store import layer as record
from tnmars.store.model import contents

EXTRA = "transformers"
METHOD = "tnmars"
"""The name of the quantization method in config.json."""


def save_pretrained(model: Any, folder: str | Path, **options: Any) -> None:
    """Saves a compressed model of transformers, with the graphs of its layers in config.json.

    `from_pretrained` of any class of transformers loads it again, once `tnmars.integrations.register()` was called.
    From then on the model's own `save_pretrained` does the same, for example in a `Trainer`: it writes the graphs that
    the layers have at that time, and none once `to_dense_` has replaced all of them.

    Args:
        model: A `PreTrainedModel` with compiled layers, pruned or with gates.
        folder: The folder to write.
        **options: Options of the model's own `save_pretrained`.

    Raises:
        TnmarsError: The model is not one of transformers, has no compiled layer, or has parameters that are rebuilt.

    Example:
        >>> import tnmars
        >>> tnmars.integrations.save_pretrained(model, "small")  # doctest: +SKIP
        >>> tnmars.integrations.register()  # doctest: +SKIP
        >>> again = AutoModel.from_pretrained("small")  # doctest: +SKIP
    """
    check_arguments(save_pretrained, locals())
    transformers = library("transformers", EXTRA)
    if not isinstance(model, transformers.PreTrainedModel):
        raise TnmarsError(Problem(f"{type(model).__name__} is not a model of transformers.", "Use tnmars.save."))
    if not any(map(_is_layer, model.modules())):
        raise TnmarsError(Problem("the model has no compiled layer.", "Compress it first, or save it as it is."))
    _remember(model)
    model.save_pretrained(folder, **options)


def _remember(model: Any) -> None:
    """Puts the graphs that the layers of a model have now into its config; takes them out if there are none."""
    held: nn.Module = model
    header = contents(held)[0]["layers"]
    if not header:
        model.hf_quantizer = None
        model.config.__dict__.pop("quantization_config", None)
        model.__dict__.pop("_tied_weights_keys", None)  # those of the class again
        model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)
        return
    rebuilt = [entry["names"][0] for entry in header if entry["rebuilt"]]
    if rebuilt:
        text = f"{listing(rebuilt)}: parameters that are rebuilt from cores cannot be saved this way."
        raise TnmarsError(Problem(text, "Use tnmars.save, or tnmars.to_dense_ first."))
    config, quantizer = register()
    tied = _tied(held)
    model.config.quantization_config = config(layers=header, tied=tied)
    model.hf_quantizer = quantizer(model.config.quantization_config, pre_quantized=True)
    _tie_names(model, tied)


def _tied(model: nn.Module) -> dict[str, str]:
    """For each name of a parameter of a compiled layer that another name has already, that name."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    inside = tuple(f"{name}." for name, module in model.named_modules(remove_duplicate=False) if _is_layer(module))
    for name, value in model.named_parameters(remove_duplicate=False):
        if name.startswith(inside) and first.setdefault(id(value), name) != name:
            found[name] = first[id(value)]
    return found


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, TNModule)


def _tie_names(model: Any, tied: Mapping[str, str]) -> None:
    """Tells transformers which parameters are one, in place of those that are no longer there."""
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    kept = {target: source for target, source in model.all_tied_weights_keys.items() if {target, source} <= known}
    model.all_tied_weights_keys = {**kept, **tied}
    model._tied_weights_keys = dict(model.all_tied_weights_keys)  # of this object; the class has its own


@cache
def register() -> tuple[Any, Any]:
    """Lets transformers load compressed models: registers the quantization method `tnmars`, once.

    Call it before `from_pretrained`.

    Returns:
        The classes of the configuration and of the quantizer.

    Raises:
        TnmarsError: transformers is not installed.

    Example:
        >>> import tnmars
        >>> tnmars.integrations.register()  # doctest: +SKIP
        >>> model = AutoModel.from_pretrained("folder")  # doctest: +SKIP
    """
    library("transformers", EXTRA)
    auto = library("transformers.quantizers.auto", EXTRA)
    base: Any = library("transformers.quantizers.base", EXTRA).HfQuantizer
    mixin: Any = library("transformers.utils.quantization_config", EXTRA).QuantizationConfigMixin

    class TnmarsConfig(mixin):  # type: ignore[misc]
        """The compiled layers of a model, as plain data."""

        def __init__(self, layers: Any = (), tied: Any = None, quant_method: str = METHOD, **_: Any):
            self.quant_method = METHOD
            self.layers = list(layers)
            self.tied = dict(tied or {})

    class TnmarsQuantizer(base):  # type: ignore[misc]
        """Puts compiled layers into an empty model, before its tensors are loaded."""

        def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
            put_layers_(model, self.quantization_config.layers)
            _tie_names(model, self.quantization_config.tied)
            return model

        def get_state_dict_and_metadata(self, model: Any, *_: Any, **__: Any) -> tuple[Any, dict[str, Any]]:
            _remember(model)  # save_pretrained calls it before it writes the config
            return None, {}

        def is_serializable(self, *_: Any, **__: Any) -> bool:
            return True

        @property
        def is_trainable(self) -> bool:
            return True

        @property
        def is_qat_trainable(self) -> bool:
            return True

        @property
        def is_compileable(self) -> bool:
            return True

    auto.register_quantization_config(METHOD)(TnmarsConfig)
    auto.register_quantizer(METHOD)(TnmarsQuantizer)
    return TnmarsConfig, TnmarsQuantizer


def put_layers_(model: nn.Module, described: Any) -> None:
    """Replaces modules of a model by the compiled layers that a config describes, with uninitialized weights.

    Raises `CheckpointError` if the description is not one, or a layer is not in the model.
    """
    built: dict[str, TNModule] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    entries: list[Any] = described if isinstance(described, list) else [None]
    for entry in entries:
        names = entry.get("names") if isinstance(entry, dict) and not entry.get("rebuilt") else None
        if not isinstance(names, list) or not names:
            raise CheckpointError("config.json does not say which layers are compiled; it was not written by tnmars.")
        missing = [name for name in names if name not in modules or not name]
        if missing:
            raise CheckpointError(f"config.json has layer '{missing[0]}', which is not in {type(model).__name__}.")
        made = record.from_json(entry, _expected(entry))
        built |= dict.fromkeys(names, made)
    for name, layer in built.items():
        model.set_submodule(name, layer.train(model.training))


def _expected(entry: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors with the shapes that a described layer has, without memory."""
    graph = record.graph_of(entry)
    shapes: dict[str, tuple[int, ...]] = {f"cores.{name}": shape for name, shape in graph.cores.items()}
    shapes |= {f"gates.{name}": (bond.size,) for name, bond in graph.bonds.items()}
    if graph.has_bias:
        shapes["bias"] = (graph.out_features,)
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
