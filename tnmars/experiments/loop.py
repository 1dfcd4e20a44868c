"""The one training loop: data in memory, Adam, learning-rate and mask schedules, checkpoints, records.

A task (model, loss, judgment) and settings go in; a record of each epoch comes out. A run that was killed resumes from
its last checkpoint, bit for bit. The order of the samples depends only on seed and epoch. A run of several trainings,
one after the other, gives each a folder of its own: a finished one is then read from its last checkpoint.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import log
from pathlib import Path
from typing import Any

import torch

from tnmars.errors import Problem, TnmarsError
from tnmars.experiments.annealing import optimizer, set_rates_
from tnmars.experiments.progress import Progress
from tnmars.experiments.signals import handled
from tnmars.experiments.task import Task
from tnmars.files import make_folder, previous, write_text
from tnmars.select import Selector
from tnmars.shrinking.settings import Staircase
from tnmars.store.checkpoint import load_checkpoint, save_checkpoint
from tnmars.store.model import load_into, save

CHECKPOINT, LOG, BEST = "checkpoint.safetensors", "log.jsonl", "best.safetensors"
NEWER = ("anneals", "keep_best", "is_smooth")
"""Settings that the checkpoints of the first runs do not have."""
STAIRCASE = Staircase()
"""The constants of annealed runs."""


class RunStoppedError(Exception):
    """The run was asked to stop and has written a checkpoint."""


@dataclass(frozen=True)
class Settings:
    """How a task is trained; the defaults are those of the paper's notebooks."""

    epochs: int = 300
    batch: int = 128
    lr: float = 1e-2
    lr_decay: float = 0.99
    """The factor of the learning rate per epoch."""
    temperature_decay: float = 0.99
    """The factor of the temperature per epoch, down to the selector's final temperature."""
    is_smooth: bool = False
    """Whether the temperature falls in every step; otherwise it is held for an epoch, as in the paper."""
    warmup_epochs: int = 0
    prior_weight: float = 1.0
    """The factor of the penalty, which is also divided by the number of samples."""
    seed: int = 0
    record_every: int = 1
    """The number of epochs between records."""
    judge_every: int = 1
    """The number of epochs between judgments; a model is judged only when a record is made."""
    descends: bool = False
    """Whether plain gradient descent is used instead of Adam."""
    anneals: bool = False
    """Whether rates are relative to the size of each tensor and annealed over the run, as in a stage of
    `tnmars.Stages`. Then `lr` and `lr_decay` are not used."""
    keep_best: str = ""
    """A figure of the judgment: the run ends with the model for which it was largest, not with the last one."""


@dataclass(frozen=True)
class RunOptions:
    """What a user may choose for a run of any experiment."""

    data: str | None = None
    """The folder of the data sets, or `None` for the default one."""
    epochs: int | None = None
    """The number of epochs, or `None` for the experiment's own."""
    resume: bool = False
    """Whether to resume from a checkpoint, if there is one."""
    save_every: float = 60.0
    """Seconds between checkpoints."""
    progress: Progress | None = None


def trained(
    task: Task, settings: Settings, folder: Path, options: RunOptions, about: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Trains a task in a folder, and returns the record of each epoch. `about` says what it is a run of."""
    make_folder(folder)
    return Run(task, settings, folder, options.save_every, about).train(options.progress, resume=options.resume)


@dataclass
class Run:
    """A run, in progress or finished."""

    task: Task
    settings: Settings
    folder: Path | None = None
    """Where checkpoint and log are written; `None` to write neither."""
    save_every: float = 60.0
    """Seconds between checkpoints."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What it is a run of, in addition to its settings. A checkpoint of another run is refused."""
    history: list[dict[str, Any]] = field(default_factory=list)
    _stop: bool = False
    _saved: float = 0.0

    def train(self, progress: Progress | None = None, *, resume: bool = False) -> list[dict[str, Any]]:
        """Trains to the end, and returns the record of each epoch."""
        settings, model = self.settings, self.task.model
        steps = -(-self.task.size // settings.batch)
        self.optimizer = self._optimizer()
        self.schedule = self.task.schedule(
            decay_steps=_decay_epochs(self.task.selector, settings.temperature_decay) * steps,
            warmup_steps=settings.warmup_epochs * steps,
            every=1 if settings.is_smooth else steps,
            seed=settings.seed,
            optimizer=self.optimizer,
        )
        first, done, total = self._resumed() if resume else self._begun()
        self._saved = time.monotonic()
        if progress is not None:
            progress.begin(first)
        with handled((signal.SIGINT, signal.SIGTERM), self._ask_to_stop):
            for epoch in range(first, settings.epochs):
                total = self._epoch(epoch, steps, done, total)
                mean, done, total = total / steps / self.task.members, 0, 0.0
                if epoch + 1 == settings.epochs or (epoch + 1) % settings.record_every == 0:
                    self.history.append(self._record(epoch, mean))
                    self._log()
                    if progress is not None:
                        progress.show(self.history[-1], epoch + 1, settings.epochs)
                if self._is_due() or epoch + 1 == settings.epochs:
                    self._save(epoch + 1)
        if settings.keep_best:
            assert self.folder is not None
            self.task.model = load_into(model, self.folder / BEST)
        self.task.model.eval()
        return self.history

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.settings.anneals:
            return optimizer(self.task.model, STAIRCASE, self.task.size)
        groups = self.task.groups(self.settings.lr)
        return torch.optim.SGD(groups) if self.settings.descends else torch.optim.Adam(groups, fused=True)

    def _epoch(self, epoch: int, steps: int, done: int, before: float) -> float:
        """One pass over the data, starting at step `done`. Returns the sum of the losses, `before` included."""
        self.task.model.train()
        random = torch.Generator().manual_seed(self.settings.seed * 100_003 + epoch)
        order = self.task.order(random, self.settings.batch)
        factor = self.settings.prior_weight / self.task.size
        total = torch.tensor(before)
        for step in range(done, steps):
            self._set_rate(epoch, step, steps)
            rows = order[step * self.settings.batch : (step + 1) * self.settings.batch]
            loss, prior = self.task.loss(rows)
            torch.autograd.backward(loss + factor * prior)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            total += loss.detach()
            if self._stop or (step + 1 < steps and self._is_due()):
                self._save(epoch, step + 1, total.item())
            if self._stop:
                raise RunStoppedError
        return total.item()

    def _is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self.folder is not None and time.monotonic() - self._saved > self.save_every

    def _set_rate(self, epoch: int, step: int, steps: int) -> None:
        if self.settings.anneals:
            set_rates_(self.optimizer, epoch * steps + step, self.settings.epochs * steps, STAIRCASE)
            return
        for group in self.optimizer.param_groups:
            base = group.setdefault("initial_lr", group["lr"])
            group["lr"] = base * self.settings.lr_decay**epoch

    def _record(self, epoch: int, loss: float) -> dict[str, Any]:
        """The record of an epoch."""
        self.task.model.eval()
        record: dict[str, Any] = {"epoch": epoch, "loss": loss, **self.task.record()}
        last = epoch + 1 == self.settings.epochs
        if last or (epoch + 1) % self.settings.judge_every == 0:
            with torch.no_grad():
                record |= self.task.judge()
            self._keep(record)
        return record

    def _keep(self, record: Mapping[str, Any]) -> None:
        """Writes the model if it is the best so far. After a resume the same models are written again."""
        key = self.settings.keep_best
        if key and self.folder is not None:
            before = [one[key] for one in self.history if key in one]
            if not before or record[key] > max(before):
                save(self.task.model, self.folder / BEST)

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
            self._saved = time.monotonic()

    def _identity(self) -> dict[str, Any]:
        """What two runs must have in common if one is to resume from the other's checkpoint, as plain data."""
        identity: dict[str, Any] = json.loads(json.dumps({**self.about, **asdict(self.settings)}))
        return identity

    def _begun(self) -> tuple[int, int, float]:
        """The start. Files of an earlier run are removed, so that nobody resumes from them by mistake."""
        if self.folder is not None:
            path = self.folder / CHECKPOINT
            for old in (path, previous(path), self.folder / LOG, self.folder / BEST):
                old.unlink(missing_ok=True)
        return 0, 0, 0.0

    def _resumed(self) -> tuple[int, int, float]:
        """The epoch and step to resume from, and the sum of the losses so far. The log is cut to the checkpoint."""
        if self.folder is None or not (self.folder / CHECKPOINT).exists():
            return self._begun()
        path = self.folder / CHECKPOINT
        saved = load_checkpoint(path, self.task.model, self.optimizer, self.schedule)
        self._check_identity(path, saved.extra.get("run", {}))
        self.history = list(saved.extra["history"])
        write_text(self.folder / LOG, "".join(json.dumps(entry) + "\n" for entry in self.history))
        return saved.position["epoch"], saved.position["step"], saved.extra["total"]

    def _check_identity(self, path: Path, theirs: Mapping[str, Any]) -> None:
        ours = self._identity()
        defaults = {each.name: each.default for each in fields(Settings) if each.name in NEWER}
        theirs = {**defaults, **theirs}  # a checkpoint may be older than these settings
        different = [key for key in ours if theirs.get(key) != ours[key]]
        if different:
            listed = "; ".join(f"{key} is {theirs.get(key)}, but must be {ours[key]}" for key in different)
            fix = "Run without --resume to start over, or with another --out."
            raise TnmarsError(Problem(f"{path} belongs to another run: {listed}.", fix))

    def _ask_to_stop(self) -> None:
        """The effect of Ctrl-C and `kill`: the run writes a checkpoint after the current step and stops."""
        self._stop = True


def _decay_epochs(selector: Selector | None, factor: float) -> float:
    """The number of epochs until the temperature reaches its final value, if it falls by `factor` per epoch."""
    if selector is None or factor >= 1.0:
        return 1.0
    first, last = selector.temperature_at(0.0), selector.temperature_at(1.0)
    return log(last / first) / log(factor) if last < first else 1.0
