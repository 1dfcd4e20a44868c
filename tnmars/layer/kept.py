"""Which slices the selector of a layer keeps now: by its gates, or by the norms of the slices where it has none."""

from __future__ import annotations

import torch
from torch import Tensor

from tnmars.errors import Problem, TnmarsError
from tnmars.layer.distributed import whole
from tnmars.layer.masks import diverged, is_finite
from tnmars.layer.module import TNModule
from tnmars.layer.numbers import squared


def is_selecting(layer: TNModule) -> bool:
    """Whether the selector of a layer decides which slices to keep."""
    if layer.masks is not None:
        return True
    return layer.selector is not None and layer.selector.judges_norms and bool(layer.graph.bonds)


@torch.no_grad()
def kept_slices(layer: TNModule) -> list[Tensor]:
    """Which slices of each bond are kept, as vectors of booleans in the graph's order, computed on this rank alone.

    Raises `TnmarsError` if that depends on logits or norms that are not finite.
    """
    if layer.masks is not None:
        logits = [whole(each) for each in layer.logits()]
        for bond, each in zip(layer.graph.bonds, logits, strict=True):
            if not is_finite(each):
                raise diverged(f"bond '{bond}'")
        return layer.masks.keep(logits)
    assert layer.selector is not None
    kept = []
    for bond, norms in _norms(layer).items():
        if not bool(norms.isfinite().all()):
            text = f"cores with bond '{bond}' have entries that are not finite: training has diverged."
            raise TnmarsError(Problem(text, "Go back to a checkpoint, and lower the learning rates."))
        kept.append(layer.selector.keep_norms(norms))
    return kept


@torch.no_grad()
def can_decide(layer: TNModule) -> bool:
    """Whether the selector of a layer can tell what to keep: the logits or norms that decide must be finite."""
    if not is_selecting(layer):
        return False
    deciding = _norms(layer).values() if layer.masks is None else map(whole, layer.logits())
    return all(map(is_finite, deciding))


def _norms(layer: TNModule) -> dict[str, Tensor]:
    """For each bond, the squared norms of its slices as if its cores were balanced."""
    return {bond: balanced([part.double() for part in parts]) for bond, parts in slice_norms(layer).items()}


def slice_norms(layer: TNModule) -> dict[str, list[Tensor]]:
    """For each bond, the squared norms of its slices in each core that carries it; differentiable in the cores."""
    norms: dict[str, list[Tensor]] = {bond: [] for bond in layer.graph.bonds}
    for name in layer.graph.cores:
        core = whole(layer.cores.get(name))
        squares = squared(core.to(torch.promote_types(core.dtype, torch.float32)))
        for axis, bond in enumerate(layer.graph.bonds_of(name)):
            if bond:
                norms[bond].append(squares.movedim(axis, 0).flatten(1).sum(1) if core.dim() > 1 else squares)
    return norms


def slice_entries(layer: TNModule) -> dict[str, int]:
    """For each bond, the number of entries of one slice, in all cores that carry it."""
    entries = dict.fromkeys(layer.graph.bonds, 0)
    for name in layer.graph.cores:
        core = layer.cores.get(name)
        for bond, size in zip(layer.graph.bonds_of(name), core.shape, strict=True):
            if bond:
                entries[bond] += core.numel() // size
    return entries


def balanced(parts: list[Tensor]) -> Tensor:
    """The sum of the squared norms of slices over some cores, if the slices were scaled to equal norms in all of them.

    Scaling that leaves the product of the norms as it is does not change what a layer computes.

    >>> balanced([torch.tensor([100.0, 4.0]), torch.tensor([1.0, 9.0])]).tolist()
    [20.0, 12.0]
    """
    logs = torch.stack([part.log() for part in parts])
    return len(parts) * logs.mean(0).exp()
