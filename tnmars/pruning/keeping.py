"""What a cut keeps: the slices that selectors choose, those given, or the heaviest; then rounded, if asked for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments, own
from tnmars.errors import Problem, TnmarsError, listing, nearest
from tnmars.graph.rewrite import Keep
from tnmars.layer.distributed import from_first_rank
from tnmars.layer.kept import is_selecting, kept_slices
from tnmars.layer.module import TNModule, layers
from tnmars.pruning.by_rank import Forms, Ranks, by_rank, compiled_layers
from tnmars.training.guards import check_logits


def keep(model: nn.Module) -> dict[str, dict[str, tuple[int, ...]]]:
    """The slices that the selectors of a model keep, by layer and bond; what `prune` would cut to.

    Args:
        model: A model with compiled layers. Layers whose selector does not choose among slices are left out.

    Returns:
        For the name of each other layer, the kept indices of each bond. During warm-up all are kept. Under several
        processes rank 0 decides, and all of them must call it.

    Raises:
        TnmarsError: If the logits of a bond are NaN or infinite, or cores where their norms decide.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=3)
        >>> layer = tnmars.compile(graph, selector=tnmars.Mars())
        >>> with torch.no_grad():
        ...     _ = layer.logits()[0].copy_(torch.tensor([2.0, -1.0, 0.5]))
        >>> tnmars.keep(layer)
        {'': {'r': (0, 2)}}
    """
    check_arguments(keep, locals())
    check_logits(model)
    return {name: layer_keep(layer) for name, layer in layers(model) if is_selecting(layer)}


def layer_keep(layer: TNModule) -> dict[str, tuple[int, ...]]:
    """The slices of each bond that the selector of a layer keeps; all during warm-up."""
    return decided(layer, torch.cat(kept_slices(layer)))


def decided(layer: TNModule, kept: Tensor) -> dict[str, tuple[int, ...]]:
    """What rank 0 keeps, from a vector over the slices of all bonds."""
    shared = from_first_rank(kept.to(torch.uint8)).cpu()
    parts = torch.split(shared, [bond.size for bond in layer.graph.bonds.values()])
    indices = (tuple(int(index) for index in part.nonzero().reshape(-1)) for part in parts)
    return dict(zip(layer.graph.bonds, indices, strict=True))


def to_keep(
    model: nn.Module, keep: Mapping[str, Keep] | None, ranks: Ranks | None, energy: float | None
) -> tuple[dict[str, Keep], Forms]:
    """The layers to cut with what to keep of them, and the canonical forms of those that are cut by rank."""
    given = [name for name, value in (("keep", keep), ("ranks", ranks), ("energy", energy)) if value is not None]
    if len(given) > 1:
        raise TnmarsError(f"{' and '.join(given)} are given. Nothing was changed.\n  Give one of them.")
    if ranks is None and energy is None:
        return _chosen(model, keep), {}
    return by_rank(model, ranks, energy)


def _chosen(model: nn.Module, given: Mapping[str, Keep] | None) -> dict[str, Keep]:
    """The layers to cut, and what to keep of them."""
    if given is None:
        selecting = {name: layer for name, layer in layers(model) if is_selecting(layer)}
        if not selecting:
            fix = "Compile with one that does, such as Mars() or Ard(), or give keep, ranks or energy."
            raise TnmarsError(Problem("no selector of the model chooses slices. Nothing was changed.", fix))
        if all(layer.masks is not None and bool(layer.masks.is_warm) for layer in selecting.values()):
            text = "the model is in warm-up, so every slice is kept: the gates have not been trained."
            warnings.warn(text, UserWarning, stacklevel=3)
        check_logits(model)
        return {name: layer_keep(layer) for name, layer in selecting.items()}
    known = compiled_layers(model)
    for name in given:
        if name not in known:
            hint = f"Layers: {listing(list(known))}.{nearest(name, known)}"
            raise TnmarsError(f"keep names '{name}', which is not a compiled layer. Nothing was changed.\n  {hint}")
    return {name: own(slices, arrays=True) for name, slices in given.items()}
