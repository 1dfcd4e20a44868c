"""Values that follow a rewrite of their graph: logits of gates, and the optimizer's state for cores and gates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tnmars.decomposing.rewritten import part_after
from tnmars.errors import TnmarsError
from tnmars.graph import Graph
from tnmars.graph.rewrite import Piece, Rewrite
from tnmars.pruning.folding import unfolded


@dataclass(frozen=True)
class Followed:
    """What some rewrites do to one core."""

    name: str | None
    """Its name afterwards; None if it was removed, or merged with another, and so has no part of its own left."""
    pieces: tuple[Piece, ...] = ()
    is_merged: bool = False

    @property
    def cut(self) -> tuple[object, ...]:
        """How the core is cut, as a value to compare with another layer's."""
        return tuple((piece.sources[0].taken, len(piece.edges)) for piece in self.pieces)

    def changes(self, shape: Sequence[int]) -> bool:
        """Whether some entries of a core of this shape are removed, or its shape changes."""
        for piece in self.pieces:
            taken = zip(shape, piece.sources[0].taken, strict=True)
            is_all = all(indices is None or len(indices) == size for size, indices in taken)
            if not is_all or len(piece.edges) != len(shape):
                return True
        return False

    def after(self, value: Tensor) -> Tensor:
        """What is left of a value of the core's shape, as a new tensor."""
        for piece in self.pieces:
            value = part_after(piece, value)
        return value.clone()


def followed(steps: Sequence[Rewrite], graph: Graph) -> dict[str, Followed]:
    """What becomes of each core of a graph under some rewrites, one after the other."""
    into = [{source.name: piece for piece in reversed(step.pieces) for source in piece.sources} for step in steps]
    return {name: _followed(into, name) for name in graph.cores}


def _followed(steps: Sequence[Mapping[str, Piece]], name: str) -> Followed:
    """What becomes of one core; for each rewrite the piece that a core goes into."""
    pieces: list[Piece] = []
    for into in steps:
        piece = into.get(name)
        if piece is None:
            return Followed(None)
        if not piece.is_part:
            return Followed(None, is_merged=True)
        pieces.append(piece)
        name = piece.name
    return Followed(name, tuple(pieces))


def vectors_after(rewrite: Rewrite, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Vectors over bonds, such as logits, after a rewrite."""
    was = dict(rewrite.bonds)
    return {now: vectors[was[now]][list(indices)].contiguous() for now, indices in rewrite.taken if was[now] in vectors}


POWERS = {
    "exp_avg": 1,
    "exp_avg_sq": 2,
    "max_exp_avg_sq": 2,
    "exp_inf": 1,
    "momentum_buffer": 1,
    "sum": 2,
}
"""What SGD, Adagrad and the variants of Adam keep: 1 for averages of gradients, 2 for those of their squares."""


@dataclass(frozen=True)
class Change:
    """What became of a parameter.

    If a slice of it was multiplied by a gate g, then its gradients are from now on 1/g of what they were. What was
    noted about earlier ones is divided by g too, and squares by g squared.
    """

    new: nn.Parameter | None
    """The parameter that replaces it, if any."""
    after: Callable[[Tensor], Tensor]
    """What is left of a value of its shape."""
    factor: Tensor | None = None
    """What it was multiplied by, broadcast over its axes."""

    def gradient(self, value: Tensor) -> Tensor:
        """The gradient of the new parameter, from that of the old one."""
        return self.after(unfolded(value, self.factor, 1))

    def state(self, key: str, value: Tensor) -> Tensor:
        """What an optimizer notes for the new parameter, from its note for the old one."""
        return self.after(value if self.factor is None else unfolded(value, self.factor, POWERS[key]))


def check_state(
    optimizer: torch.optim.Optimizer, changed: Collection[nn.Parameter], scaled: Collection[nn.Parameter] = ()
) -> None:
    """Raises `TnmarsError` if an optimizer keeps something for a parameter that cannot follow a cut entry by entry.

    For parameters that are `scaled`, also if it is not known how that follows.
    """
    for parameter in changed:
        for key, value in optimizer.state.get(parameter, {}).items():
            if torch.is_tensor(value):
                fits = value.dim() == 0 or value.shape == parameter.shape
            else:
                fits = value is None or isinstance(value, (bool, int, float))
            if not fits:
                raise TnmarsError(
                    f"{type(optimizer).__name__} keeps '{key}', which does not have its parameter's shape and cannot "
                    "follow a cut. Nothing was changed.\n  Make a new optimizer after the cut: prune_(model)."
                )
            if parameter in scaled and torch.is_tensor(value) and value.dim() and key not in POWERS:
                raise TnmarsError(
                    f"{type(optimizer).__name__} keeps '{key}', and it is not known how that changes when gates are "
                    "multiplied into a core. Nothing was changed.\n  Make a new optimizer after the cut, prune_(model)"
                    ", or use a selector whose kept gates are 1, such as GaussianGates(fold=False)."
                )


def replace_in_(optimizer: torch.optim.Optimizer, changes: Mapping[nn.Parameter, Change]) -> None:
    """Replaces parameters in an optimizer's groups by new ones, with what is left of their state."""
    for group in optimizer.param_groups:
        kept: list[nn.Parameter] = []
        for old in group["params"]:
            if old not in changes:
                kept.append(old)
                continue
            change = changes[old]
            new = change.new
            state = optimizer.state.pop(old, None)
            if new is None:
                continue
            if all(new is not other for other in kept):
                kept.append(new)
            if state is not None:
                optimizer.state[new] = {
                    key: change.state(key, value) if torch.is_tensor(value) and value.shape == old.shape else value
                    for key, value in state.items()
                }
        group["params"] = kept
