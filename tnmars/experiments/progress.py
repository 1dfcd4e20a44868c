"""Progress of a long run: a bar on a terminal, plain lines elsewhere, or lines of JSON for another process.

What is shown is a record: a dict of figures such as a loss, ranks and an expected size. Training loops, `tnmars fit`
and `tnmars demo` show their records here.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, TextIO

from tnmars.fitting import Point
from tnmars.text.numbers import dashed, times, waiting_time

OFTEN = 1.0
"""Seconds between lines of JSON, which another process turns into a bar."""


class Progress:
    """Shows records as they come, at most one every few seconds."""

    def __init__(self, title: str, stream: TextIO | None = None, *, every: float = 10.0, as_json: bool = False):
        self.title = title
        self.stream = stream or sys.stderr
        self.every = OFTEN if as_json else every
        self.as_json = as_json
        self._start = time.monotonic()
        self._shown = self._start
        self._first = 0
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        if self.stream.isatty() and not as_json:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            self._bar = Bar(*columns, TimeRemainingColumn(), console=Console(file=self.stream))
            self._bar.start()

    def begin(self, done: int) -> None:
        """Starts the clock for the time left, with `done` epochs already done."""
        self._first, self._start = done, time.monotonic()

    def show(self, record: Mapping[str, Any], done: int, total: int | None = None, *, unit: str = "epoch") -> None:
        """Shows a record after `done` units; without a total the time left is unknown."""
        text = described(record)
        if self._bar is not None:
            self._bar.update(self._task(unit, total), completed=done, text=text)
            return
        now = time.monotonic()
        if now - self._shown < self.every and done != total:
            return
        self._shown = now
        if self.as_json:
            print(json.dumps({"done": done, "total": total, "text": text}), file=self.stream, flush=True)
            return
        where = f"{unit} {done:,}" if total is None else f"{unit} {done:,} of {total:,}"
        parts = [where, *([text] if text else [])]
        if total is not None and done < total:
            left = (now - self._start) / max(done - self._first, 1) * (total - done)
            parts.append(f"{waiting_time(left)} left")
        print(f"{self.title}: {', '.join(parts)}", file=self.stream, flush=True)

    def _task(self, unit: str, total: int | None) -> Any:
        """The bar of a unit; it replaces the bar of another unit."""
        if unit not in self._tasks:
            for task in self._tasks.values():
                self._bar.remove_task(task)
            self._tasks = {unit: self._bar.add_task(self.title, total=total, text="")}
        return self._tasks[unit]

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def fit_callbacks(progress: Progress) -> tuple[Callable[[Point], None], Callable[[dict[str, Any], int, int], None]]:
    """The arguments `watch` and `shown` of `tnmars.fit` that show its progress."""
    numbers = count(1)

    def watch(point: Point) -> None:
        record = {"error": point.error, "parameters": point.parameters, "ranks": {"": list(point.ranks.values())}}
        progress.show(record, next(numbers), unit="network")

    def shown(record: dict[str, Any], done: int, total: int) -> None:
        shared = {key: record[key] for key in ("ranks", "expected_parameters")}
        progress.show({"error": record["loss"], **shared}, done, total, unit="step")

    return watch, shown


def described(record: Mapping[str, Any]) -> str:
    """A record on one line.

    >>> described({"loss": 0.5, "temperature": 0.1, "ranks": {"0": [3, 4]}, "expected_compression": 140.2})
    'loss 0.5, temperature 0.1, ranks 3-4, compression 140x'
    >>> described({"error": 0.0096, "parameters": 1067, "ranks": {"": [2, 3]}})
    'error 0.0096, 1,067 parameters, ranks 2-3'
    """
    parts = [f"{key} {record[key]:.3g}" for key in ("loss", "error") if key in record]
    if "temperature" in record:
        parts.append(f"temperature {record['temperature']:.2g}")
    if "parameters" in record:
        parts.append(f"{record['parameters']:,} parameters")
    ranks = " ".join(dashed(sizes) for sizes in record.get("ranks", {}).values() if sizes)
    parts += [f"ranks {ranks}"] if ranks else []
    if "expected_compression" in record:
        parts.append(f"compression {times(record['expected_compression'])}")
    elif "expected_parameters" in record:
        parts.append(f"expected parameters {record['expected_parameters']:,.0f}")
    known = {"epoch", "loss", "error", "temperature", "ranks", "expected_parameters", "expected_compression"}
    parts += [f"{key} {value:.4g}" for key, value in record.items() if key not in known and isinstance(value, float)]
    return ", ".join(parts)
