"""Callbacks that learn ranks in the training loops of others: the Trainer of transformers, and Lightning.

Both do the same: the gradient of the penalty is added before each step of the optimizer, the schedule of the gates
moves after it, and the model is pruned in place when training ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError
from tnmars.interchange.labelled import library
from tnmars.layer.module import layers
from tnmars.pruning.prune_model import prune_
from tnmars.training.objective import penalty
from tnmars.training.schedule import MaskSchedule


@dataclass(eq=False)
class Gating:
    """What a callback does: a schedule, a penalty and a cut."""

    examples: int
    warmup_steps: int
    prune: bool
    seed: int | None
    schedule: MaskSchedule | None = None

    def begin(self, model: nn.Module, total_steps: int) -> None:
        if not any(layer.selector is not None for _, layer in layers(model)):
            hint = "Compile layers with selector=tnmars.Mars(), or leave the callback out."
            raise TnmarsError(Problem("no layer of the model has a selector: there is nothing to learn.", hint))
        if total_steps < 1:
            raise TnmarsError("the number of training steps is not known; set max_steps.")
        self.schedule = MaskSchedule(model, total_steps, warmup_steps=self.warmup_steps, seed=self.seed)

    def add_gradient(self, model: nn.Module) -> None:
        """Adds the gradient of the penalty to those of the loss."""
        nats = penalty(model)
        if nats.requires_grad:
            torch.autograd.backward(nats / self.examples)

    def moved(self) -> None:
        if self.schedule is not None:
            self.schedule.step()

    def end(self, model: nn.Module) -> None:
        if self.prune:
            prune_(model)


def _gating(examples: int, warmup_steps: int, prune: bool, seed: int | None) -> Gating:
    if not isinstance(examples, int) or isinstance(examples, bool) or examples < 1:
        raise TnmarsError(f"examples is {examples!r}, but must be the number of training examples, at least 1.")
    return Gating(examples, warmup_steps, prune, seed)


def trainer_callback(*, examples: int, warmup_steps: int = 0, prune: bool = True, seed: int | None = None) -> Any:
    """A callback for the `Trainer` of transformers that learns the ranks of layers with a selector.

    Gradients of the penalty are added after gradients are clipped. The optimizer sees them as if the penalty were a
    part of the loss; the loss that is logged is without it.

    Args:
        examples: The number of training examples, which the penalty is divided by.
        warmup_steps: The number of steps without gates, as in `tnmars.MaskSchedule`.
        prune: Whether the model is pruned in place when training ends.
        seed: The seed of the noise of the gates; drawn from the random state of torch by default.

    Returns:
        A `TrainerCallback`, for `Trainer(callbacks=[...])`.

    Raises:
        TnmarsError: transformers is not installed, or `examples` is not a number of examples.

    Example:
        >>> import tnmars
        >>> callback = tnmars.integrations.trainer_callback(examples=5000)  # doctest: +SKIP
        >>> Trainer(model, arguments, callbacks=[callback]).train()  # doctest: +SKIP
    """
    check_arguments(trainer_callback, locals())
    gating = _gating(examples, warmup_steps, prune, seed)
    base: Any = library("transformers", "transformers").TrainerCallback

    class RankCallback(base):  # type: ignore[misc]
        """Learns ranks."""

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            gating.begin(model, int(state.max_steps))

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            gating.add_gradient(model)

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            gating.moved()

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            gating.end(model)

    return RankCallback()


def lightning_callback(*, examples: int, warmup_steps: int = 0, prune: bool = True, seed: int | None = None) -> Any:
    """A callback for Lightning that learns the ranks of layers with a selector.

    Args:
        examples: The number of training examples, which the penalty is divided by.
        warmup_steps: The number of steps without gates, as in `tnmars.MaskSchedule`.
        prune: Whether the model is pruned in place when training ends.
        seed: The seed of the noise of the gates; drawn from the random state of torch by default.

    Returns:
        A `Callback`, for `lightning.Trainer(callbacks=[...])`. It is for automatic optimization with one optimizer.

    Raises:
        TnmarsError: Lightning is not installed, or `examples` is not a number of examples.

    Example:
        >>> import tnmars
        >>> callback = tnmars.integrations.lightning_callback(examples=5000)  # doctest: +SKIP
        >>> lightning.Trainer(callbacks=[callback]).fit(module, loader)  # doctest: +SKIP
    """
    check_arguments(lightning_callback, locals())
    gating = _gating(examples, warmup_steps, prune, seed)
    base: Any = library("lightning", "lightning").Callback

    class RankCallback(base):  # type: ignore[misc]
        """Learns ranks."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            gating.begin(pl_module, int(trainer.estimated_stepping_batches))

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            gating.add_gradient(pl_module)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            # gradients of several batches may be one step
            if gating.schedule is not None and trainer.global_step > gating.schedule.steps:
                gating.moved()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            gating.end(pl_module)

    return RankCallback()
