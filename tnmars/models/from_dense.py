"""One layer of torch to a compiled one: its weight decomposed, everything else as it was."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tnmars import families
from tnmars.arguments import check_arguments, own, own_seed
from tnmars.decomposing.decompose import decompose
from tnmars.decomposing.metric import Metric
from tnmars.decomposing.ranks import Ranks
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.layer.module import TNModule
from tnmars.models.replacing import compiled
from tnmars.models.rules import Candidate, candidates
from tnmars.models.statistics import MOST_INPUTS, Moments
from tnmars.models.torch_layers import TORCH_LAYERS, DenseLayer, describe


def from_dense(
    layer: nn.Module,
    graph: str | Path | Graph | None = None,
    *,
    ranks: Ranks | None = None,
    error: float | None = None,
    energy: float | None = None,
    parameters: int | None = None,
    inputs: Tensor | Iterable[Tensor] | None = None,
    seed: int = 0,
    batch: int | None = None,
    image: int | None = None,
    tune: bool = False,
) -> TNModule:
    """A compiled layer that computes nearly what a layer of torch computes, and is called in the same way.

    Bias, options, device, dtype and training mode are those of the layer, which is left as it is.

    Args:
        layer: A `Linear`, `Conv1d` to `Conv3d`, `ConvTranspose1d` to `3d`, `Embedding` or `EmbeddingBag` of torch.
        graph: The name of a family, a graph of the layer's kind and sizes, or the path of a spec file. By default a
            family that suits the layer. A family derives its modes from the layer.
        ranks: One rank for all bonds, ranks in order or by bond, or `"evbmf"`. Of `ranks`, `error`, `energy` and
            `parameters` give one; a graph or a spec has ranks already.
        error: The relative error of the weight to stay below; with `inputs`, that of the layer's outputs.
        energy: The share of the squared norm to keep.
        parameters: The number of parameters that the cores may have.
        inputs: Calibration inputs of the layer, one tensor or several. The decomposition then minimizes the error of
            the outputs for such inputs, not that of the weight.
        seed: The seed of random starts.
        batch: The batch that plans are made for, as in `tnmars.compile`; by default that of `inputs`.
        image: The side of the images that plans are made for; by default that of `inputs`.
        tune: Whether close plans are timed.

    Returns:
        The compiled layer.

    Raises:
        TnmarsError: The layer cannot be decomposed, or the graph does not have its kind and sizes, or no ranks are
            given for a family.

    Example:
        >>> import torch, tnmars
        >>> layer = torch.nn.Linear(64, 32)
        >>> small = tnmars.from_dense(layer, "lowrank", ranks=8)
        >>> small.graph.bonds["r"].size, small.bias is layer.bias
        (8, False)
    """
    check_arguments(from_dense, locals())
    ranks, error, energy, parameters = own((ranks, error, energy, parameters), arrays=True)
    seed = own_seed(seed)
    dense = describe(layer)
    if not isinstance(dense, DenseLayer):
        why = dense or f"it must be a {', '.join(kind.__name__ for kind in TORCH_LAYERS)} of torch"
        text = f"{type(layer).__name__} cannot be decomposed: {why}."
        fix = "For a model use tnmars.compress_, and for one weight of another module tnmars.parametrize_."
        raise TnmarsError(Problem(text, fix if dense is None and any(True for _ in layer.parameters()) else ""))
    target = families.DEFAULTS[dense.kind][0] if graph is None else graph
    (candidate,) = candidates(target, dense, type(layer).__name__)
    wide = _start(candidate, dense, any(value is not None for value in (ranks, error, energy, parameters)))
    moments = None if inputs is None else moments_of(layer, dense, inputs)
    metric: Metric | None = None if moments is None else moments.metric()
    found = decompose(
        dense.weight.detach(),
        wide,
        ranks=ranks,
        error=error,
        energy=energy,
        parameters=parameters,
        metric=metric,
        seed=seed,
    )
    sizes = {
        "batch": batch or (moments.batch if moments else 128),
        "image": image or (moments.image if moments else 32),
    }
    made = compiled(found.graph, found.cores, dense, **sizes, tune=tune)
    if made.bias is not None:
        made.bias = nn.Parameter(made.bias.detach().clone(), requires_grad=made.bias.requires_grad)
    return made.train(layer.training)


def _start(candidate: Candidate, dense: DenseLayer, has_target: bool) -> Graph:
    if candidate.has_ranks or has_target:
        return candidate.graph
    text = f"no ranks are given for family '{candidate.label}'."
    hint = "Give one of ranks=8, error=0.1, energy=0.9 or parameters=10_000."
    raise TnmarsError(Problem(text, f"{hint} The layer has {prod(dense.shape):,} parameters."))


def moments_of(layer: nn.Module, dense: DenseLayer, inputs: Tensor | Iterable[Tensor]) -> Moments:
    """What calibration inputs say about a layer."""
    moments = Moments(dense, dense.width <= MOST_INPUTS)
    given: Any = [inputs] if isinstance(inputs, Tensor) else inputs
    with torch.no_grad():
        for x in given:
            if not isinstance(x, Tensor) or (x.is_floating_point() and not bool(x.isfinite().all())):
                raise TnmarsError("inputs must be tensors of finite numbers, as the layer takes them.")
            try:
                y = layer(x)
            except (RuntimeError, IndexError) as error:
                text = (
                    f"inputs has a tensor of shape {tuple(x.shape)} and dtype {x.dtype}, which {layer} does not take."
                )
                raise TnmarsError(Problem(text, f"torch says: {str(error).splitlines()[0]}")) from None
            moments.add_input(x, y)
            moments.samples += len(x) if x.dim() else 1
    if not moments.rows:
        raise TnmarsError("inputs has no samples.")
    return moments
