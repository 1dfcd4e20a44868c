"""The masks of one layer: gates of all its bonds from one vector operation, and the buffers that they depend on.

The noise, the temperature and whether warm-up is on are buffers: they are saved, and a schedule sets them. During
warm-up the noise is infinite: every gate is 1, and every logit's gradient is zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import Problem, TnmarsError
from tnmars.layer.numbers import gate_dtype
from tnmars.layer.torch_state import assert_in_graph, copy_all_, is_exported, is_readable, is_traced_whole, unwrapped
from tnmars.select.base import Selector

DIVERGED = "are NaN or infinite: training has diverged."
NEAR = ("cpu",)
"""Devices whose entries can be read in every pass."""
UNSCHEDULED = 1000
"""After this many training passes without a step of a schedule, the user has probably forgotten it."""


class Masks(nn.Module):
    """What turns the logits of a layer's bonds into gates."""

    noise: Tensor
    temperature: Tensor
    is_warm: Tensor
    places: Tensor
    """The position of each gate among those that the layer began with. Noise is drawn for all of these, so that the
    remaining gates get the same noise whether or not others have been dropped."""
    drawn: Tensor
    """How many gates the layer began with."""
    unit: Tensor
    """The price of an average slice at the beginning, where slices are priced by what they hold."""
    shut_for: Tensor
    """The number of steps that each gate has been shut, where a schedule counts them."""
    held: tuple[Tensor, ...] | None = None
    """Gates that are used instead of a sample while an estimator tries them; see `tnmars.gate_gradient_`."""
    sampled: tuple[Tensor, ...] | None = None
    """The sample of the gates, if it was drawn together with those of other layers; see `tnmars.sampled`."""

    _checked: list[tuple[Tensor, int]] | None = None
    """The logits on an accelerator that were last found to be finite, each with the number of its changes."""

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
        kind = gate_dtype(dtype)
        self.register_buffer("noise", torch.zeros(count, device=device, dtype=kind))
        self.register_buffer("temperature", torch.ones((), device=device, dtype=kind))
        self.register_buffer("is_warm", torch.zeros((), device=device, dtype=torch.bool))
        self.register_buffer("places", torch.zeros(count, device=device, dtype=torch.long))
        self.register_buffer("drawn", torch.zeros((), device=device, dtype=torch.long))
        self.register_buffer("shut_for", torch.zeros(count, device=device, dtype=torch.long))
        self.register_buffer("unit", torch.ones((), device=device, dtype=torch.float64))

    def __getstate__(self) -> dict[str, Any]:
        """Without gates that were given for one pass, and what was checked: a copy samples and checks its own."""
        return {key: value for key, value in self.__dict__.items() if key not in ("held", "sampled", "_checked")}

    @torch.no_grad()
    def reset_(self) -> None:
        """Sets every buffer to its initial value, with noise from torch's own random state."""
        count = sum(self.sizes.values())
        self.places.copy_(torch.arange(count))
        self.drawn.fill_(count)
        self.shut_for.zero_()
        passes = self._passes
        self.redraw_(self.selector.noise(count), self.selector.temperature_at(0.0), is_warm=False)
        self._passes = passes

    def keep(self, logits: Sequence[Tensor]) -> list[Tensor]:
        """Which slices of each bond are kept, in the order of `sizes`; all during warm-up."""
        return [kept | self.is_warm for kept in self.selector.keep_all(logits, self.costs)]

    def rounded(self, logits: Sequence[Tensor]) -> list[Tensor]:
        """The gates of each bond that kept slices have in `eval()`; 1 during warm-up."""
        return [torch.where(self.is_warm, torch.ones_like(one), self.selector.rounded(one)) for one in logits]

    def redraw_(self, noise: Tensor, temperature: float, *, is_warm: bool) -> None:
        """Sets the noise of the next sample, from that of all gates that the layer began with."""
        redraw_all_([(self, noise, temperature)], is_warm=is_warm)

    def _count_draw(self) -> None:
        if self._passes is not None:
            self._passes = 0 if self._passes == 0 else None  # the first call sets it up; later ones are steps

    def _own_noise(self, noise: Tensor, is_warm: bool) -> Tensor:
        """The noise of these gates, from that of all gates that the layer began with."""
        places: Tensor = self._buffers["places"]  # type: ignore[assignment]
        own = noise.to(places.device).index_select(0, places)
        if is_warm:
            own.fill_(inf)
        elif self.selector.opens_first:
            own[self._firsts()] = inf
        return own

    @property
    def is_drawn(self) -> bool:
        """Whether gates are sampled now, rather than rounded as `prune` does."""
        return self.training or self.selector.sample_in_eval

    @property
    def draws_itself(self) -> bool:
        """Whether the coming pass samples gates, rather than taking those that it was given."""
        return self.is_drawn and self.held is None and self.sampled is None

    def forward(self, logits: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The gates of each bond, in the order of `sizes`: sampled while training, else as `prune` leaves them.

        Gates that are `held` come first, in either mode; then, while training, those that are `sampled` already.
        """
        if self.held is not None:
            return self.held
        if self.sampled is not None and self.is_drawn:
            return self.sampled
        if not self.training:
            self._check_logits(logits)
        if not self.is_drawn:
            pairs = zip(self.keep(logits), self.rounded(logits), strict=True)
            return tuple(torch.where(kept, value, torch.zeros_like(value)) for kept, value in pairs)
        if not is_traced_whole():
            self.watch()
        return torch.split(self.selector.sample(_joined(logits), self.noise, self.temperature), self.lengths)

    def _check_logits(self, logits: Sequence[Tensor]) -> None:
        """Raises `TnmarsError` if a logit is not finite. What is traced checks when it runs, but for an exported model.

        On an accelerator, whose entries take a while to arrive, logits are looked at again only after a change.
        """
        if is_traced_whole():
            if not is_exported():
                assert_in_graph(torch.isfinite(_joined(logits)).all(), f"the logits of a bond {DIVERGED}")
            return
        logits = [unwrapped(value) for value in logits]
        if not all(map(is_readable, logits)):
            return
        is_near = all(value.device.type in NEAR for value in logits)
        now = [] if is_near or any(value.is_inference() for value in logits) else _changes(logits)
        if now and self._checked is not None and all(map(_is_same, now, self._checked)):
            return
        for bond, value in zip(self.sizes, logits, strict=True):
            if not is_finite(value):
                raise diverged(f"bond '{bond}'")
        self._checked = now or None

    @torch.no_grad()
    def count_shut_(self, logits: Sequence[Tensor]) -> None:
        """Notes which gates this step's sample shuts."""
        is_open = self.selector.is_open(_joined(logits), self.noise, self.temperature)
        self.shut_for.copy_(torch.where(is_open, torch.zeros_like(self.shut_for), self.shut_for + 1))

    def sample_open(self, logits: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], list[list[bool]]]:
        """The gates of each bond as `forward` draws them, and which of them are open or have a gradient."""
        if self.held is not None:
            return self.held, [(gates != 0.0).tolist() for gates in self.held]
        if not self.training:
            self._check_logits(logits)
        self.watch()
        gates, is_open = self.selector.sample_open(_joined(logits), self.noise, self.temperature)
        flags = torch.split(is_open, self.lengths)
        return torch.split(gates, self.lengths), [each.tolist() for each in flags]

    def take_(self, other: Masks, taken: Tensor) -> None:
        """Copies the state of other masks, for those of their gates that these masks have."""
        for name in ("noise", "places", "shut_for"):
            getattr(self, name).copy_(getattr(other, name)[taken])
        for name in ("temperature", "is_warm", "drawn", "unit"):
            getattr(self, name).copy_(getattr(other, name))

    def probability(self, logits: Sequence[Tensor]) -> Tensor:
        """The probability that each gate is open, all bonds in one vector."""
        probability = self.selector.probability(_joined(logits))
        return probability.index_fill(0, self._firsts(), 1.0) if self.selector.opens_first else probability

    def watch(self) -> None:
        """Warns once if training continues and no schedule is ever stepped."""
        if self._passes is None or not torch.is_grad_enabled():
            return
        self._passes += 1
        if self._passes == UNSCHEDULED:
            self._passes = None
            warnings.warn(
                f"{UNSCHEDULED:,} training passes with the same sample of the gates: call step() of a "
                "tnmars.MaskSchedule after each step of the optimizer.",
                UserWarning,
                stacklevel=2,
            )

    def _firsts(self) -> Tensor:
        sizes = torch.tensor([0, *self.sizes.values()][:-1], device=self.noise.device)
        return torch.cumsum(sizes, 0)

    def extra_repr(self) -> str:
        return f"{self.selector}"


def _joined(logits: Sequence[Tensor]) -> Tensor:
    return torch.cat(tuple(logits)) if len(logits) > 1 else logits[0]


@torch.no_grad()
def redraw_all_(drawn: Sequence[tuple[Masks, Tensor, float]], *, is_warm: bool) -> None:
    """Sets noise and temperature of the next sample of several layers, from the noise that each is given."""
    places: list[Tensor] = []
    values: list[Tensor] = []
    flags = torch.tensor(is_warm)
    heat: dict[float, Tensor] = {}
    for masks, noise, temperature in drawn:
        masks._count_draw()
        if temperature not in heat:
            heat[temperature] = torch.tensor(temperature, dtype=torch.float64)
        buffers = masks._buffers  # attributes of a module are looked up slowly
        places += [buffers["noise"], buffers["temperature"], buffers["is_warm"]]  # type: ignore[list-item]
        values += [masks._own_noise(noise, is_warm), heat[temperature], flags]
    copy_all_(places, values)


def _changes(logits: Sequence[Tensor]) -> list[tuple[Tensor, int]]:
    """Tensors, each with the number of its changes."""
    return [(value, value._version) for value in logits]


def _is_same(first: tuple[Tensor, int], second: tuple[Tensor, int]) -> bool:
    return first[0] is second[0] and first[1] == second[1]


def is_finite(logits: Tensor) -> bool:
    """Whether no logit is NaN or infinite: nothing can be decided by those."""
    return bool(torch.isfinite(logits.detach()).all())


def diverged(place: str) -> TnmarsError:
    """The error that logits are not finite."""
    return TnmarsError(
        Problem(f"the logits of {place} {DIVERGED}", "Go back to a checkpoint, and lower the learning rates.")
    )
