"""The one training loop: data in memory, Adam, learning-rate and mask schedules, checkpoints, records.

In go a task (model, loss, how to judge it) and settings; out comes a record. A run that is killed goes on from its last
checkpoint bit for bit. The order of the data depends on seed and epoch alone.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tnmars.checkpoint import load_checkpoint, save_checkpoint
from tnmars.experiments.progress import Progress
from tnmars.files import write_text
from tnmars.module import layers
from tnmars.objective import expected, param_groups, penalty
from tnmars.schedule import MaskSchedule


class RunStoppedError(Exception):
    """The run was asked to stop, and has left a checkpoint."""


class Task(Protocol):
    """What is trained."""

    model: nn.Module
    size: int
    """How many data there are."""

    def loss(self, rows: Tensor) -> Tensor:
        """The mean loss over some of the data, by their numbers."""

    def judge(self) -> dict[str, float]:
        """Figures of the model in `eval()`, where gates are what pruning keeps."""


@dataclass(frozen=True)
class Settings:
    """How it is trained. By default as in the notebooks of the paper."""

    epochs: int = 300
    batch: int = 128
    lr: float = 1e-2
    lr_decay: float = 0.99
    """The factor of the learning rate, per epoch."""
    mask_lr: float | None = None
    temperature_decay: float = 0.99
    """The factor of the temperature, per epoch, down to the selector's last."""
    warmup_epochs: int = 0
    prior_weight: float = 1.0
    """The factor of the penalty, beside one over the number of data."""
    seed: int = 0
    judge_every: int = 1
    """After how many epochs the model is judged."""
    save_every: float = 60.0
    """Seconds between checkpoints."""


@dataclass
class Run:
    """A run in progress, or done."""

    task: Task
    settings: Settings
    folder: Path | None = None
    """Where checkpoint and log are; none for a run that leaves nothing."""
    history: list[dict[str, Any]] = field(default_factory=list)
    _stop: bool = False

    def train(self, progress: Progress | None = None, *, resume: bool = False) -> list[dict[str, Any]]:
        """Trains to the end; the record of each epoch."""
        settings, model = self.settings, self.task.model
        steps = -(-self.task.size // settings.batch)
        self.optimizer = torch.optim.Adam(param_groups(model, settings.lr, mask_lr=settings.mask_lr), fused=True)
        self.schedule = MaskSchedule(
            model,
            decay_steps=_decay_epochs(model, settings.temperature_decay) * steps,
            warmup_steps=settings.warmup_epochs * steps,
            every=steps,
            seed=settings.seed,
        )
        first, done = self._resumed() if resume else (0, 0)
        saved = time.monotonic()
        with self._signals():
            for epoch in range(first, settings.epochs):
                self._set_rate(epoch)
                total = self._epoch(epoch, steps, done)
                done = 0
                self.history.append(self._told(epoch, total / steps))
                self._log()
                if progress is not None:
                    progress.show(self.history[-1], epoch + 1, settings.epochs)
                if time.monotonic() - saved > settings.save_every:
                    self._save(epoch + 1, 0)
                    saved = time.monotonic()
        model.eval()
        return self.history

    def _epoch(self, epoch: int, steps: int, done: int) -> float:
        """One pass over the data, from a step on; the sum of the losses."""
        model = self.task.model.train()
        random = torch.Generator().manual_seed(self.settings.seed * 100_003 + epoch)
        order = torch.randperm(self.task.size, generator=random)
        factor = self.settings.prior_weight / self.task.size
        total = torch.zeros(())
        for step in range(done, steps):
            rows = order[step * self.settings.batch : (step + 1) * self.settings.batch]
            loss = self.task.loss(rows)
            torch.autograd.backward(loss + factor * penalty(model))
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            total += loss.detach()
            if self._stop:
                self._save(epoch, step + 1)
                raise RunStoppedError
        return total.item()

    def _set_rate(self, epoch: int) -> None:
        for group in self.optimizer.param_groups:
            base = group.setdefault("initial_lr", group["lr"])
            group["lr"] = base * self.settings.lr_decay**epoch

    def _told(self, epoch: int, loss: float) -> dict[str, Any]:
        """The record of an epoch."""
        model = self.task.model.eval()
        found: dict[str, Any] = {"epoch": epoch, "loss": loss, "ranks": live_ranks(model)}
        masks = [layer.masks for _, layer in layers(model) if layer.masks is not None]
        if masks:
            found["temperature"] = masks[0].temperature.item()
            with torch.no_grad():
                found["expected_parameters"] = expected(model).item()
        last = epoch + 1 == self.settings.epochs
        if last or (epoch + 1) % self.settings.judge_every == 0:
            with torch.no_grad():
                found |= self.task.judge()
        return found

    def _log(self) -> None:
        if self.folder is not None:
            with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.history[-1]) + "\n")

    def _save(self, epoch: int, step: int) -> None:
        if self.folder is not None:
            position = {"epoch": epoch, "step": step}
            save_checkpoint(
                self.folder / "checkpoint.safetensors",
                self.task.model,
                self.optimizer,
                self.schedule,
                position=position,
                extra={"history": self.history},
            )

    def _resumed(self) -> tuple[int, int]:
        """The epoch and the step to go on from; the log is cut to what the checkpoint knows."""
        if self.folder is None or not (self.folder / "checkpoint.safetensors").exists():
            return 0, 0
        path = self.folder / "checkpoint.safetensors"
        found = load_checkpoint(path, self.task.model, self.optimizer, self.schedule)
        self.history = list(found.extra["history"])
        write_text(self.folder / "log.jsonl", "".join(json.dumps(entry) + "\n" for entry in self.history))
        return found.position["epoch"], found.position["step"]

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Within the block, Ctrl-C and `kill` end the run after the step at hand, with a checkpoint."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._stop = True

        wanted = (signal.SIGINT, signal.SIGTERM)
        try:
            before: list[Callable[..., Any] | int | None] = [signal.signal(number, stop) for number in wanted]
        except ValueError:  # not the main thread
            yield
            return
        try:
            yield
        finally:
            for number, handler in zip(wanted, before, strict=True):
                signal.signal(number, handler)


def _decay_epochs(model: nn.Module, factor: float) -> float:
    """After how many epochs the temperature reaches its last value, falling by a factor per epoch."""
    for _, layer in layers(model):
        if layer.masks is not None:
            selector = layer.masks.selector
            first, last = selector.temperature_at(0.0), selector.temperature_at(1.0)
            if last < first and factor < 1.0:
                return log(last / first) / log(factor)
    return 1.0


def live_ranks(model: nn.Module) -> dict[str, list[int]]:
    """For each compiled layer, how many slices of each bond are kept now."""
    found = {}
    for name, layer in layers(model):
        if layer.masks is None:
            found[name] = [bond.size for bond in layer.graph.bonds.values()]
        else:
            with torch.no_grad():
                found[name] = [int(layer.masks.selector.keep(logits).sum()) for logits in layer.logits()]
    return found
