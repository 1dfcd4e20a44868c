"""Unbiased gradients for hard gates: REINFORCE and ARM, from losses alone.

A relaxed sample has a gradient, but it is that of another objective. Here gates are exactly 0 or 1, drawn with the
probabilities of the selector, and the gradient of the expected loss comes from the losses of a few such draws. So any
loss will do, and any selector whose kept gates are 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments, own
from tnmars.errors import Problem, TnmarsError
from tnmars.layer.distributed import whole
from tnmars.layer.masks import Masks
from tnmars.layer.module import TNModule, layers

Loss = Callable[[], "Tensor | float"]
"""Computes the loss with the gates at hand."""


def gate_gradient_(
    model: nn.Module,
    closure: Loss,
    estimator: str = "arm",
    *,
    samples: int = 1,
    baseline: float | Tensor | None = None,
    generator: torch.Generator | None = None,
) -> float:
    """Adds an unbiased estimate of the gradient of the expected loss to `.grad` of the logits; returns the mean loss.

    All gates of the model are drawn as 0 or 1, independently, with the probabilities of their selectors, and
    `closure` is called with each draw. Afterwards the model samples its gates as before. Gates that are always open,
    and all gates during warm-up, are 1 and get no gradient.

    The cores are trained in the same call: if the loss that `closure` returns has a gradient, `backward` is called on
    it, weighted such that the sum over all draws is the gradient of the mean loss. So `closure` should not call
    `backward` itself, or return a number if it does. The penalty may be part of the loss; its own gradient is exact.

    Args:
        model: A model with layers that have gates. Kept gates must be 1 in `eval()`, as those that are drawn here:
            `GaussianGates` needs `fold=False`. The mode of the model does not matter to the gates.
        closure: A function without arguments that returns the loss, a scalar. It is called `samples` times for
            REINFORCE, and twice as often for ARM. Use the same data in all calls: the losses of different draws are
            compared.
        estimator: `"arm"` (the default): the difference of two losses, with antithetic gates ("ARM: Augment-REINFORCE-
            merge gradient", ICLR 2019). It needs no baseline. `"reinforce"`: losses times the slope of the
            log-probability of the gates.
        samples: The number of draws, at least 1. The variance falls in proportion.
        baseline: For `"reinforce"`, a number or a tensor of one element near the mean loss, which is subtracted from
            it. It reduces the variance a lot, and must not depend on the gates of this call: a running mean of earlier
            losses is right. By default each of several draws has the mean loss of the others, and a single draw has 0.
        generator: The random numbers; torch's own by default. Under several processes pass generators of equal state,
            and average the gradients of the logits.

    Raises:
        TnmarsError: If no layer has gates, kept gates of a layer are not 1, the closure returns no scalar, or an
            argument makes no sense.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=4)
        >>> layer, x = tnmars.compile(graph, selector=tnmars.Mars()), torch.randn(8, 6)
        >>> optimizer = torch.optim.Adam(tnmars.param_groups(layer, lr=1e-2))
        >>> mean = 0.0
        >>> for _ in range(3):
        ...     loss = tnmars.gate_gradient_(
        ...         layer, lambda: layer(x).square().mean(), "reinforce", baseline=mean
        ...     )
        ...     mean = 0.9 * mean + 0.1 * loss
        ...     (tnmars.penalty(layer) / 8).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
    """
    check_arguments(gate_gradient_, locals())
    samples = own(samples)
    level = _check(estimator, samples, baseline)
    gated = _gated(model)
    chances = _chances(gated)
    trial = _Trial(gated, closure, 1.0 / (samples * ESTIMATORS[estimator].calls))
    device = chances.device
    uniforms = [torch.rand(chances.numel(), generator=generator, dtype=torch.float64) for _ in range(samples)]
    try:
        slope = ESTIMATORS[estimator].slope(trial, chances.detach(), [one.to(device) for one in uniforms], level)
    finally:
        trial.release()
    if chances.requires_grad:
        _add(gated, chances, slope)
    return sum(trial.losses) / len(trial.losses)


def _gated(model: nn.Module) -> list[TNModule]:
    """The layers with gates. Raises `TnmarsError` if there are none, or if `eval()` uses gates other than 0 and 1."""
    gated = {name: layer for name, layer in layers(model) if layer.masks is not None}
    if not gated:
        raise TnmarsError(Problem("no layer of the model has gates to train.", "Compile with a selector that has."))
    for name, layer in gated.items():
        selector = _masks(layer).selector
        if not selector.rounds_to_one:
            text = (
                f"layer '{name}': {type(selector).__name__} keeps gates that are not 1, but here gates of 0 and 1 are "
                "drawn: another network would be trained than the one that is kept. Nothing was changed."
            )
            fix = "Use a selector whose kept gates are 1, such as GaussianGates(fold=False)."
            raise TnmarsError(Problem(text, fix))
    return list(gated.values())


def _check(estimator: str, samples: int, baseline: object) -> float | None:
    """The baseline. Raises `TnmarsError` if an argument makes no sense."""
    if estimator not in ESTIMATORS:
        raise TnmarsError(f"estimator is {estimator!r}, but must be one of {', '.join(ESTIMATORS)}.")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise TnmarsError(f"samples is {samples!r}, but must be a whole number, at least 1.")
    if baseline is None:
        return None
    if isinstance(baseline, Tensor) and baseline.numel() == 1:
        baseline = baseline.item()
    if not ESTIMATORS[estimator].has_baseline:
        raise TnmarsError(Problem(f"estimator '{estimator}' has no baseline.", "Leave baseline out."))
    if isinstance(baseline, bool) or not isinstance(baseline, (int, float)) or not isfinite(baseline):
        raise TnmarsError(f"baseline is {baseline!r}, but must be a number.")
    return float(baseline)


def _chances(gated: Sequence[TNModule]) -> Tensor:
    """The probability of every gate to be open, in float64, as a function of the logits; 1 during warm-up."""
    chances = []
    for layer in gated:
        masks = _masks(layer)
        chance = masks.probability([whole(logits).double() for logits in layer.logits()])
        chances.append(torch.where(masks.is_warm, torch.ones_like(chance), chance))
    return torch.cat([chance.to(chances[0].device) for chance in chances])


def _masks(layer: TNModule) -> Masks:
    assert layer.masks is not None
    return layer.masks


class _Trial:
    """Runs the closure with given gates, and collects the losses."""

    def __init__(self, gated: Sequence[TNModule], closure: Loss, weight: float):
        self.gated, self.closure, self.weight = gated, closure, weight
        self.losses: list[float] = []

    def __call__(self, gates: Tensor) -> float:
        """The loss with these gates, one vector for the whole model; its gradient goes to the other parameters."""
        parts = torch.split(gates, [sum(_masks(layer).lengths) for layer in self.gated])
        for layer, part in zip(self.gated, parts, strict=True):
            kinds = [(logits.dtype, logits.device) for logits in layer.logits()]
            split = zip(torch.split(part, _masks(layer).lengths), kinds, strict=True)
            _masks(layer).held = tuple(one.to(device=device, dtype=dtype) for one, (dtype, device) in split)
        loss = self.closure()
        if loss is None:
            raise TnmarsError("the closure returned None, but must return the loss.")
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                raise TnmarsError(f"the closure returns a loss of shape {tuple(loss.shape)}, but must return a scalar.")
            if loss.requires_grad:
                (loss * self.weight).backward()  # type: ignore[no-untyped-call]
            loss = loss.item()
        self.losses.append(float(loss))
        return self.losses[-1]

    def release(self) -> None:
        """Lets the layers sample their gates again."""
        for layer in self.gated:
            _masks(layer).held = None


# --- slopes with respect to the logit of each probability -------------------------------------------------------------


def _arm(trial: _Trial, chances: Tensor, uniforms: Sequence[Tensor], baseline: float | None) -> Tensor:
    """(f(1[u > 1 - p]) - f(1[u < p])) (u - 1/2): both draws have the right probabilities."""
    slopes = []
    for uniform in uniforms:
        first, second = trial((uniform >= 1.0 - chances).double()), trial((uniform < chances).double())
        slopes.append((first - second) * (uniform - 0.5))
    return torch.stack(slopes).mean(0)


def _reinforce(trial: _Trial, chances: Tensor, uniforms: Sequence[Tensor], baseline: float | None) -> Tensor:
    """(f(b) - baseline) (b - p). The baseline of a draw does not depend on the draw, so it changes no expectation."""
    gates = [(uniform < chances).double() for uniform in uniforms]
    losses = [trial(one) for one in gates]
    total, slopes = sum(losses), []
    for one, loss in zip(gates, losses, strict=True):
        others = (total - loss) / (len(losses) - 1) if len(losses) > 1 else 0.0
        slopes.append((loss - (others if baseline is None else baseline)) * (one - chances))
    return torch.stack(slopes).mean(0)


@dataclass(frozen=True)
class _Estimator:
    """A way to estimate the slope of the expected loss, and how often it calls the closure for each draw."""

    slope: Callable[[_Trial, Tensor, Sequence[Tensor], float | None], Tensor]
    calls: int
    has_baseline: bool


ESTIMATORS = {"arm": _Estimator(_arm, 2, has_baseline=False), "reinforce": _Estimator(_reinforce, 1, has_baseline=True)}
"""Every estimator by name."""


def _add(gated: Sequence[TNModule], chances: Tensor, slope: Tensor) -> None:
    """Adds the gradient with respect to the logits, from that with respect to the logit of each probability.

    A gate that is certainly open or closed has no gradient.
    """
    spread = chances.detach() * (1.0 - chances.detach())
    scaled = torch.where(spread > 0.0, slope / spread, torch.zeros_like(slope))
    logits = list(dict.fromkeys(value for layer in gated for value in layer.logits() if value.requires_grad))
    for value, grad in zip(logits, torch.autograd.grad(chances, logits, scaled, allow_unused=True), strict=True):
        if grad is not None:
            value.grad = grad if value.grad is None else value.grad + grad
