"""Callbacks that learn ranks in the training loops of others: the Trainer of transformers, and Lightning.

Both do the same: the gradient of the penalty is added before each step of the optimizer, the schedule of the gates
moves after it, and the model is pruned in place when training ends.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments, own
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
    state: dict[str, Any] | None = None
    """The state of the schedule in the checkpoint that training goes on from."""
    losses: list[Tensor | float] = field(default_factory=list)
    """The losses that the trainer has given since the last step; the guards of the schedule look at their mean."""
    penalty: Tensor | None = None
    """What the penalty of the coming step adds to it."""

    def begin(self, model: nn.Module, total_steps: int, optimizer: Any = None, done: int = 0) -> None:
        """Makes the schedule, which begins after `done` steps, or where the checkpoint has left it."""
        if not any(layer.selector is not None for _, layer in layers(model)):
            hint = "Compile layers with selector=tnmars.Mars(), or leave the callback out."
            raise TnmarsError(Problem("no layer of the model has a selector: there is nothing to learn.", hint))
        if total_steps < 1:
            raise TnmarsError("the number of training steps is not known; set max_steps.")
        own = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        self.schedule = MaskSchedule(model, total_steps, warmup_steps=self.warmup_steps, seed=self.seed, optimizer=own)
        known = {} if self.state is None else {"seed": self.state["seed"]}
        self.schedule.load_state_dict({**self.schedule.state_dict(), **known, "steps": done})
        self.state = None

    def add_gradient(self, model: nn.Module) -> None:
        """Adds the gradient of the penalty to those of the loss."""
        share = penalty(model) / self.examples
        if share.requires_grad:
            torch.autograd.backward(share)
        self.penalty = share.detach()

    def moved(self) -> None:
        """Goes on to the next step."""
        if self.schedule is not None:
            self.schedule.step(sum(self.losses) / len(self.losses) if self.losses else None, self.penalty)
        self.losses, self.penalty = [], None

    def saved(self) -> dict[str, Any]:
        """What a checkpoint needs to go on with the same noise."""
        return {} if self.schedule is None else self.schedule.state_dict()

    def load(self, state: object) -> None:
        """Takes the state that a checkpoint has; one without a seed is as good as none."""
        if isinstance(state, dict) and type(state.get("seed")) is int:
            self.state = state

    def end(self, model: nn.Module) -> None:
        if self.prune:
            prune_(model)


def _gating(examples: int, warmup_steps: int, prune: bool, seed: int | None) -> Gating:
    examples, warmup_steps, prune, seed = own((examples, warmup_steps, prune, seed))
    if not isinstance(examples, int) or isinstance(examples, bool) or examples < 1:
        raise TnmarsError(f"examples is {examples!r}, but must be the number of training examples, at least 1.")
    return Gating(examples, warmup_steps, prune, seed)


def trainer_callback(*, examples: int, warmup_steps: int = 0, prune: bool = True, seed: int | None = None) -> Any:
    """A callback for the `Trainer` of transformers that learns the ranks of layers with a selector.

    Gradients of the penalty are added after gradients are clipped. The optimizer sees them as if the penalty were a
    part of the loss; the loss that is logged is without it. Training that goes on from a checkpoint
    (`resume_from_checkpoint`) has the gates, noise and temperature that it would have had: the seed is in the file
    `tnmars_schedule.json` of each checkpoint.

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

        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
        ) -> None:
            path = _record(args, state)
            if state.global_step and path.is_file():
                with suppress(ValueError):  # then the noise differs, but the step does not
                    gating.load(json.loads(path.read_text(encoding="utf-8")))
            gating.begin(model, int(state.max_steps), optimizer, int(state.global_step))

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            path = _record(args, state)
            if state.is_world_process_zero and path.parent.is_dir():
                path.write_text(json.dumps(gating.saved()), encoding="utf-8")

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            gating.add_gradient(model)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in (logs or {}):
                gating.losses = [logs["loss"]]  # the mean since the last time

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            gating.moved()

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            gating.end(model)

    return RankCallback()


def _record(args: Any, state: Any) -> Path:
    """The file of a checkpoint that has the state of the schedule."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / "tnmars_schedule.json"


def lightning_callback(*, examples: int, warmup_steps: int = 0, prune: bool = True, seed: int | None = None) -> Any:
    """A callback for Lightning that learns the ranks of layers with a selector.

    Its state is a part of Lightning's checkpoints: training that goes on from one (`ckpt_path`) has the gates, noise
    and temperature that it would have had.

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
            optimizer = trainer.optimizers[0] if trainer.optimizers else None
            gating.begin(pl_module, int(trainer.estimated_stepping_batches), optimizer, int(trainer.global_step))

        def state_dict(self) -> dict[str, Any]:
            return gating.saved()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            gating.load(state_dict)

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            gating.add_gradient(pl_module)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any = None, *_: Any) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if isinstance(loss, Tensor):  # its share of a step, to which the gradients of several batches may add up
                gating.losses.append(loss.detach() * trainer.accumulate_grad_batches)
            if gating.schedule is not None and trainer.global_step > gating.schedule.steps:
                gating.moved()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            gating.end(pl_module)

    return RankCallback()
