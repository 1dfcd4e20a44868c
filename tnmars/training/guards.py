"""What goes wrong with gates, said when it happens: each problem once, with the setting to change.

Everything here reads; nothing is changed. A penalty that outweighs the loss, and a collapse after the first steps, are
seen only if the loss is given.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from math import inf

import torch
from torch import Tensor, nn

from tnmars.errors import layer_called, plural
from tnmars.layer.distributed import is_first_rank
from tnmars.layer.kept import can_decide, is_selecting, kept_slices
from tnmars.layer.masks import diverged, is_finite
from tnmars.layer.module import layers
from tnmars.training.trend import Trend

WINDOW, EARLY = 50, 10
"""Gates and losses are looked at every so many steps; the second number is for the first steps."""
FEWEST = 8
"""The number of losses that a mean takes at least."""
SUDDEN = 3
"""In the first steps the bonds of a layer may not all fall to their least number of slices from this many times it."""
FALLBACK = "tnmars.shrink needs none of these settings."

LARGEST = torch.finfo(torch.float32).max
"""Larger losses count as infinite."""

Value = Tensor | float
Counts = dict[tuple[str, str], tuple[int, int, int]]
"""By layer and bond: how many slices are kept, how many there are, and how many are kept at least."""


Report = tuple[str, str]
"""Its kind, each of which is reported once, and what is said."""


class Guards:
    """Watches the training of the gates of a model.

    `is_trained` if it was trained before the first step seen here, and `is_resumed` if its gates were, too.
    """

    def __init__(self, model: nn.Module, *, is_trained: bool = False, is_resumed: bool = False):
        self.model, self.is_trained = model, is_trained
        self._reported: set[str] = set()
        self._steps = 0
        self._losses: list[Value] = []
        self._penalties: list[Value] = []
        self._first: Counts | None = None
        """What was kept before the first step."""
        self._looks: list[Counts] = []
        """What was kept at the last two looks."""
        self._whole = _Watched()
        self._early = _Watched()
        """The same in shorter windows, for the first steps only: later they would only add noise."""
        self._largest = inf if is_resumed else 0.0
        """The largest mean loss so far, without its sign; infinite if it was not seen."""

    def step(self, loss: Value | None, penalty: Value | None) -> None:
        """Looks at a step. Raises `TnmarsError` if a logit is NaN or infinite, which is looked for now and then."""
        if self._first is None:
            self._first = self._whole.before = self._early.before = _kept(self.model)
            self._looks = [self._first]
        self._steps += 1
        if loss is not None:
            self._losses.append(_apart(loss))
            if penalty is not None:
                self._penalties.append(_apart(penalty))
        is_whole = self._steps % WINDOW == 0
        if is_whole:
            check_logits(self.model)
        if is_whole or (self._steps < WINDOW and self._steps % EARLY == 0):
            for kind, text in self._look(_kept(self.model), is_whole):
                if kind not in self._reported:
                    self._reported.add(kind)
                    if is_first_rank():
                        warnings.warn(text, UserWarning, stacklevel=3)

    def warm(self, loss: Value | None) -> None:
        """Takes the loss of a step without gates."""
        if loss is not None:
            self._losses.append(_apart(loss))
        if len(self._losses) >= WINDOW:
            self.begin()

    def begin(self) -> None:
        """Ends the steps without gates: what is left of their losses."""
        losses, self._losses = _finite(self._losses), []
        if losses:
            self._largest = max(self._largest, abs(sum(losses) / len(losses)))

    def _look(self, kept: Counts, is_whole: bool) -> Iterator[Report]:
        """Looks at the gates, and at the losses once there are enough of them.

        All ranks count slices in the same steps, because those of a sharded model are gathered. Losses are each
        rank's own.
        """
        self._looks = [self._looks[-1], kept]
        losses, penalties = _finite(self._losses), _finite(self._penalties)
        self._losses, self._penalties = list(losses), list(penalties)
        if self._steps <= WINDOW:
            if not self.is_trained:
                yield from self._sudden(kept)
            yield from self._judged(self._early, losses[self._early.taken :], kept)
        if len(losses) >= FEWEST:
            self._largest = max(self._largest, abs(sum(losses) / len(losses)))
            if len(penalties) >= FEWEST:
                yield from self._outweighed(sum(penalties) / len(penalties))
        if is_whole and len(losses) >= FEWEST:
            yield from self._judged(self._whole, losses, kept)
            self._losses, self._penalties = [], []

    def _judged(self, watched: _Watched, losses: Sequence[float], kept: Counts) -> Iterator[Report]:
        """Reports a bond that has come to its minimum since the loss was best, if the loss is worse now."""
        if len(losses) < FEWEST:
            return
        rise = watched.trend.add(losses, watched.before)
        watched.before, watched.taken = self._looks[0], watched.taken + len(losses)
        if rise is None:
            return
        closed = [
            place for place, (count, _, least) in kept.items() if count <= least < rise.state.get(place, (0, 0, 0))[0]
        ]
        if closed:
            (layer, bond), more = closed[0], len(closed) - 1
            count, size, _ = kept[closed[0]]
            others = f", {plural(more, 'other bond')} to the minimum too" if more else ""
            text = (
                f"bond '{bond}' of {layer_called(layer)} is down to {count} of {size} slices{others}, and the loss has "
                f"risen from {rise.before:.3g} to {rise.after:.3g}. To keep more, {self._advice(layer)}. {FALLBACK}"
            )
            yield "collapse", text

    def _sudden(self, kept: Counts) -> Iterator[Report]:
        """Reports a layer that closes in the first steps, when no loss can tell yet what its slices were good for."""
        assert self._first is not None
        for layer in dict.fromkeys(layer for layer, _ in kept):
            own = {bond: entry for (name, bond), entry in kept.items() if name == layer}
            before = {bond: self._first.get((layer, bond), (0, 0, 0))[0] for bond in own}
            fell = any(before[bond] >= SUDDEN * least for bond, (_, _, least) in own.items())
            if fell and all(count <= least for count, _, least in own.values()):
                text = (
                    f"every bond of {layer_called(layer)} is down to its fewest slices after {self._steps} steps, "
                    "sooner than training can tell which ones matter. To keep more, "
                    f"{self._advice(layer)}, or begin without gates: tnmars.MaskSchedule(..., warmup_steps=...). "
                    f"{FALLBACK}"
                )
                yield "sudden", text
                return

    def _outweighed(self, penalty: float) -> Iterator[Report]:
        """Reports a penalty above all losses so far. A loss that has become small by training proves nothing."""
        if penalty > self._largest:
            text = (
                f"the penalty of the gates, {penalty:.3g}, outweighs the loss, which was {self._largest:.3g} at most: "
                "gates will close whatever the data say. Divide it by the number of training samples: "
                f"loss + tnmars.penalty(model) / len(data). {FALLBACK}"
            )
            yield "penalty", text

    def _advice(self, name: str) -> str:
        layer = dict(layers(self.model))[name]
        assert layer.selector is not None
        slower = ", or lower the rate of the gates: tnmars.param_groups(..., mask_lr=...)"
        return layer.selector.keeps_more + (slower if layer.masks is not None else "")


class _Watched:
    """Losses in windows of one length."""

    def __init__(self) -> None:
        self.trend = Trend[Counts]()
        self.before: Counts = {}
        """What was kept at the look before the losses of the coming window began: one that is logged comes late."""
        self.taken = 0
        """How many losses the windows so far had."""


def check_logits(model: nn.Module) -> None:
    """Raises `TnmarsError` if a gate of a model has a logit that is NaN or infinite: nothing can be decided by it."""
    for name, layer in layers(model):
        for bond, logits in zip(layer.graph.bonds, layer.logits(), strict=False):
            if not is_finite(logits):
                raise diverged(f"bond '{bond}' of {layer_called(name)}")


@torch.no_grad()
def _kept(model: nn.Module) -> Counts:
    """What each bond whose selector chooses keeps now."""
    found: Counts = {}
    for name, layer in layers(model):
        if is_selecting(layer) and can_decide(layer):
            least = max(int(getattr(layer.selector, "min_keep", 1)), 1)
            for (bond, edge), slices in zip(layer.graph.bonds.items(), kept_slices(layer), strict=True):
                found[name, bond] = (int(slices.sum()), edge.size, least)
    return found


def _apart(value: Value) -> Value:
    """A value that keeps no graph alive. A tensor stays where it is: reading it would wait for the device."""
    return value.detach().clone() if isinstance(value, Tensor) else float(value)


def _finite(values: Sequence[Value]) -> list[float]:
    """The values that are finite, as numbers; those of tensors are read at once."""
    tensors = [value.reshape(()).float() for value in values if isinstance(value, Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else [])
    numbers = (next(read) if isinstance(value, Tensor) else float(value) for value in values)
    return [number for number in numbers if abs(number) <= LARGEST]
