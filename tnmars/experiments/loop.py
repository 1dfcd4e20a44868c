"""The one training loop: data in memory, Adam, learning-rate and mask schedules, checkpoints, records.

In go a task (model, loss, how to judge it) and settings; out comes a record. A run that is killed goes on from its last
checkpoint bit for bit. The order of the data depends on seed and epoch alone.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import log
from pathlib import Path
from typing import Any

import torch

from tnmars.errors import Problem, TnmarsError
from tnmars.experiments.progress import Progress
from tnmars.experiments.signals import handled
from tnmars.experiments.task import Task
from tnmars.files import previous, write_text
from tnmars.select import Selector
from tnmars.store.checkpoint import load_checkpoint, save_checkpoint

CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"


class RunStoppedError(Exception):
    """The run was asked to stop, and has left a checkpoint."""


@dataclass(frozen=True)
class Settings:
    """How it is trained. By default as in the notebooks of the paper."""

    epochs: int = 300
    batch: int = 128
    lr: float = 1e-2
    lr_decay: float = 0.99
    """The factor of the learning rate, per epoch."""
    temperature_decay: float = 0.99
    """The factor of the temperature, per epoch, down to the selector's last."""
    warmup_epochs: int = 0
    prior_weight: float = 1.0
    """The factor of the penalty, beside one over the number of data."""
    seed: int = 0
    record_every: int = 1
    """After how many epochs a record is kept."""
    judge_every: int = 1
    """After how many epochs the model is judged, where a record is kept."""
    descends: bool = False
    """Whether plain gradient descent takes the place of Adam."""


@dataclass
class Run:
    """A run in progress, or done."""

    task: Task
    settings: Settings
    folder: Path | None = None
    """Where checkpoint and log are; none for a run that leaves nothing."""
    save_every: float = 60.0
    """Seconds between checkpoints."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What it is a run of, beside its settings; a checkpoint of another run is refused."""
    history: list[dict[str, Any]] = field(default_factory=list)
    _stop: bool = False

    def train(self, progress: Progress | None = None, *, resume: bool = False) -> list[dict[str, Any]]:
        """Trains to the end; the record of each epoch."""
        settings, model = self.settings, self.task.model
        steps = -(-self.task.size // settings.batch)
        groups = self.task.groups(settings.lr)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(groups, fused=True)
        if settings.descends:
            self.optimizer = torch.optim.SGD(groups)
        self.schedule = self.task.schedule(
            decay_steps=_decay_epochs(self.task.selector, settings.temperature_decay) * steps,
            warmup_steps=settings.warmup_epochs * steps,
            every=steps,
            seed=settings.seed,
            optimizer=self.optimizer,
        )
        first, done, total = self._resumed() if resume else self._begun()
        saved = time.monotonic()
        if progress is not None:
            progress.begin(first)
        with handled((signal.SIGINT, signal.SIGTERM), self._ask_to_stop):
            for epoch in range(first, settings.epochs):
                self._set_rate(epoch)
                total = self._epoch(epoch, steps, done, total)
                mean, done, total = total / steps / self.task.members, 0, 0.0
                if epoch + 1 == settings.epochs or (epoch + 1) % settings.record_every == 0:
                    self.history.append(self._told(epoch, mean))
                    self._log()
                    if progress is not None:
                        progress.show(self.history[-1], epoch + 1, settings.epochs)
                if time.monotonic() - saved > self.save_every or epoch + 1 == settings.epochs:
                    self._save(epoch + 1)
                    saved = time.monotonic()
        model.eval()
        return self.history

    def _epoch(self, epoch: int, steps: int, done: int, before: float) -> float:
        """One pass over the data, from a step on; the sum of the losses, with that of the steps before."""
        self.task.model.train()
        random = torch.Generator().manual_seed(self.settings.seed * 100_003 + epoch)
        order = torch.randperm(self.task.size, generator=random)
        factor = self.settings.prior_weight / self.task.size
        total = torch.tensor(before)
        for step in range(done, steps):
            rows = order[step * self.settings.batch : (step + 1) * self.settings.batch]
            loss, prior = self.task.loss(rows)
            torch.autograd.backward(loss + factor * prior)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            total += loss.detach()
            if self._stop:
                self._save(epoch, step + 1, total.item())
                raise RunStoppedError
        return total.item()

    def _set_rate(self, epoch: int) -> None:
        for group in self.optimizer.param_groups:
            base = group.setdefault("initial_lr", group["lr"])
            group["lr"] = base * self.settings.lr_decay**epoch

    def _told(self, epoch: int, loss: float) -> dict[str, Any]:
        """The record of an epoch."""
        self.task.model.eval()
        found: dict[str, Any] = {"epoch": epoch, "loss": loss, **self.task.told()}
        last = epoch + 1 == self.settings.epochs
        if last or (epoch + 1) % self.settings.judge_every == 0:
            with torch.no_grad():
                found |= self.task.judge()
        return found

    def _log(self) -> None:
        if self.folder is not None:
            with (self.folder / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.history[-1]) + "\n")

    def _save(self, epoch: int, step: int = 0, total: float = 0.0) -> None:
        if self.folder is not None:
            position = {"epoch": epoch, "step": step}
            extra = {"history": self.history, "total": total, "run": self._identity()}
            path = self.folder / CHECKPOINT
            save_checkpoint(path, self.task.model, self.optimizer, self.schedule, position=position, extra=extra)

    def _identity(self) -> dict[str, Any]:
        """What two runs must have in common for one to go on from the other's checkpoint, as plain data."""
        found: dict[str, Any] = json.loads(json.dumps({**self.about, **asdict(self.settings)}))
        return found

    def _begun(self) -> tuple[int, int, float]:
        """The start; what an earlier run left in the folder is removed, so that nobody goes on from it by mistake."""
        if self.folder is not None:
            path = self.folder / CHECKPOINT
            for old in (path, previous(path), self.folder / LOG):
                old.unlink(missing_ok=True)
        return 0, 0, 0.0

    def _resumed(self) -> tuple[int, int, float]:
        """The epoch and the step to go on from, and the losses so far; the log is cut to what the checkpoint knows."""
        if self.folder is None or not (self.folder / CHECKPOINT).exists():
            return self._begun()
        path = self.folder / CHECKPOINT
        found = load_checkpoint(path, self.task.model, self.optimizer, self.schedule)
        self._check_identity(path, found.extra.get("run", {}))
        self.history = list(found.extra["history"])
        write_text(self.folder / LOG, "".join(json.dumps(entry) + "\n" for entry in self.history))
        return found.position["epoch"], found.position["step"], found.extra["total"]

    def _check_identity(self, path: Path, theirs: Mapping[str, Any]) -> None:
        ours = self._identity()
        other = [key for key in ours if theirs.get(key) != ours[key]]
        if other:
            told = ", ".join(f"{key} {theirs.get(key)}, here {ours[key]}" for key in other)
            fix = "Run without --resume to begin anew, or with another --out."
            raise TnmarsError(Problem(f"{path} is of another run: {told}.", fix))

    def _ask_to_stop(self) -> None:
        """What Ctrl-C and `kill` do: the run ends after the step at hand, with a checkpoint."""
        self._stop = True


def _decay_epochs(selector: Selector | None, factor: float) -> float:
    """After how many epochs the temperature reaches its last value, falling by a factor per epoch."""
    if selector is None or factor >= 1.0:
        return 1.0
    first, last = selector.temperature_at(0.0), selector.temperature_at(1.0)
    return log(last / first) / log(factor) if last < first else 1.0
