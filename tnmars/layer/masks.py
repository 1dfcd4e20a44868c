"""The masks of one layer: gates of all its bonds from one vector operation, and the buffers that they depend on.

The noise, the temperature and whether warm-up is on are buffers: they are saved, and a schedule sets them. While
warm-up is on the noise is infinite, so that every gate is 1 and no logit has a gradient but zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import inf

import torch
from torch import Tensor, nn

from tnmars.select.base import Selector

UNSCHEDULED = 1000
"""After how many training passes without a step of a schedule a user has probably forgotten it."""


class Masks(nn.Module):
    """What turns the logits of a layer's bonds into gates."""

    noise: Tensor
    temperature: Tensor
    is_warm: Tensor
    places: Tensor
    """Where each gate stood among those that the layer began with: noise is drawn for all of these, so that the gates
    that are left get the same whether others have been dropped or not."""
    drawn: Tensor
    """How many gates the layer began with."""
    unit: Tensor
    """What an average slice of the layer cost at the beginning, where slices are priced by what they hold."""
    shut_for: Tensor
    """For how many steps each gate has been shut, where a schedule counts them."""

    def __init__(
        self,
        selector: Selector,
        sizes: Mapping[str, int],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        costs: Sequence[float] = (),
    ):
        super().__init__()
        self.selector = selector
        self.sizes = dict(sizes)
        self.costs = tuple(costs) or (1.0,) * len(self.sizes)
        self.lengths = list(self.sizes.values())
        self._passes: int | None = 0
        count = sum(self.sizes.values())
        kind = dtype if dtype == torch.float64 else torch.float32
        self.register_buffer("noise", torch.zeros(count, device=device, dtype=kind))
        self.register_buffer("temperature", torch.ones((), device=device, dtype=kind))
        self.register_buffer("is_warm", torch.zeros((), device=device, dtype=torch.bool))
        self.register_buffer("places", torch.zeros(count, device=device, dtype=torch.long))
        self.register_buffer("drawn", torch.zeros((), device=device, dtype=torch.long))
        self.register_buffer("shut_for", torch.zeros(count, device=device, dtype=torch.long))
        self.register_buffer("unit", torch.ones((), device=device, dtype=torch.float64))

    @torch.no_grad()
    def reset_(self) -> None:
        """Sets every buffer as it is at the beginning, with noise from torch's own random state."""
        count = sum(self.sizes.values())
        self.places.copy_(torch.arange(count))
        self.drawn.fill_(count)
        self.shut_for.zero_()
        self._draw(self.selector.noise(count), self.selector.temperature_at(0.0), is_warm=False)

    def keep(self, logits: Sequence[Tensor]) -> list[Tensor]:
        """Which slices of each bond are kept, in the order of `sizes`; all during warm-up."""
        return [kept | self.is_warm for kept in self.selector.keep_all(logits, self.costs)]

    @torch.no_grad()
    def redraw_(self, noise: Tensor, temperature: float, *, is_warm: bool) -> None:
        """Sets the noise of the next sample, from that of all gates that the layer began with."""
        if self._passes is not None:
            self._passes = 0 if self._passes == 0 else None  # the first sets it up; from then on someone steps it
        self._draw(noise, temperature, is_warm=is_warm)

    def _draw(self, noise: Tensor, temperature: float, *, is_warm: bool) -> None:
        self.noise.copy_(noise.to(self.places.device)[self.places])
        if is_warm:
            self.noise.fill_(inf)
        elif self.selector.opens_first:
            self.noise[self._firsts()] = inf
        self.temperature.fill_(temperature)
        self.is_warm.fill_(is_warm)

    @property
    def is_drawn(self) -> bool:
        """Whether gates are drawn now, rather than cut as `prune` would."""
        return self.training or self.selector.sample_in_eval

    def forward(self, logits: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The gates of each bond, in the order of `sizes`: drawn while training, else what pruning would keep."""
        if not self.is_drawn:
            return tuple(kept.to(one.dtype) for kept, one in zip(self.keep(logits), logits, strict=True))
        if not torch.compiler.is_compiling():
            self.watch()
        flat = torch.cat(tuple(logits)) if len(logits) > 1 else logits[0]
        return torch.split(self.selector.sample(flat, self.noise, self.temperature), self.lengths)

    @torch.no_grad()
    def count_shut_(self, logits: Sequence[Tensor]) -> None:
        """Notes which gates this step's sample shuts."""
        is_open = self.selector.is_open(torch.cat(tuple(logits)), self.noise, self.temperature)
        self.shut_for.copy_(torch.where(is_open, torch.zeros_like(self.shut_for), self.shut_for + 1))

    @torch.no_grad()
    def open_slices(self, logits: Sequence[Tensor]) -> list[list[bool]]:
        """For each bond, which gates of this step's sample are open, or have a gradient."""
        is_open = self.selector.is_open(torch.cat(tuple(logits)), self.noise, self.temperature).tolist()
        found, first = [], 0
        for size in self.sizes.values():
            found.append(is_open[first : first + size])
            first += size
        return found

    def take_(self, other: Masks, taken: Tensor) -> None:
        """Takes over the state of other masks, of whose gates it has those taken."""
        for name in ("noise", "places", "shut_for"):
            getattr(self, name).copy_(getattr(other, name)[taken])
        for name in ("temperature", "is_warm", "drawn", "unit"):
            getattr(self, name).copy_(getattr(other, name))

    def probability(self, logits: Sequence[Tensor]) -> Tensor:
        """How probable it is that each gate is open, all bonds in one vector."""
        found = self.selector.probability(torch.cat(tuple(logits)))
        if self.selector.opens_first:
            found = found.index_fill(0, self._firsts(), 1.0)
        return found

    def watch(self) -> None:
        """Warns once if training goes on and no schedule is ever stepped."""
        if self._passes is None or not torch.is_grad_enabled():
            return
        self._passes += 1
        if self._passes == UNSCHEDULED:
            self._passes = None
            warnings.warn(
                f"{UNSCHEDULED:,} training passes with the same sample of the gates: call step() of a "
                "tnmars.MaskSchedule after each step of the optimiser.",
                UserWarning,
                stacklevel=2,
            )

    def _firsts(self) -> Tensor:
        sizes = torch.tensor([0, *self.sizes.values()][:-1], device=self.noise.device)
        return torch.cumsum(sizes, 0)

    def extra_repr(self) -> str:
        return f"{self.selector}"
