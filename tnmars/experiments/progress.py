"""Progress of a long run: a bar where there is a terminal, plain lines where there is none."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, TextIO


class Progress:
    """Shows loss, temperature, live ranks, expected size and time left."""

    def __init__(self, title: str, stream: TextIO | None = None, *, every: float = 10.0, as_json: bool = False):
        self.title = title
        self.stream = stream or sys.stderr
        self.every = 1.0 if as_json else every
        self.as_json = as_json
        self._start = time.monotonic()
        self._shown = -self.every
        self._first = 0
        self._bar: Any = None
        if self.stream.isatty() and not as_json:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
            self._bar = Bar(*columns, TimeRemainingColumn(), console=Console(file=self.stream))
            self._task = self._bar.add_task(title, told="")
            self._bar.start()

    def begin(self, done: int) -> None:
        """From here on time is counted, with so many epochs done before."""
        self._first, self._start = done, time.monotonic()

    def show(self, record: dict[str, Any], done: int, total: int) -> None:
        """Shows the record of an epoch."""
        told = described(record)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, told=told)
            return
        passed = time.monotonic() - self._start
        if passed - self._shown < self.every and done < total:
            return
        self._shown = passed
        if self.as_json:
            print(json.dumps({"done": done, "total": total, "told": told}), file=self.stream, flush=True)
            return
        left = passed / max(done - self._first, 1) * (total - done)
        print(f"{self.title} {done}/{total} {told} {_span(left)} left", file=self.stream, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def described(record: dict[str, Any]) -> str:
    """A record on one line.

    >>> described({"loss": 0.5, "temperature": 0.1, "ranks": {"0": [3, 4]}, "expected_compression": 140.2})
    'loss 0.5 temperature 0.1 ranks 3-4 compression 140x'
    """
    parts = [f"loss {record['loss']:.3g}"]
    if "temperature" in record:
        parts.append(f"temperature {record['temperature']:.2g}")
    ranks = " ".join("-".join(map(str, sizes)) for sizes in record.get("ranks", {}).values() if sizes)
    parts += [f"ranks {ranks}"] if ranks else []
    if "expected_compression" in record:
        parts.append(f"compression {record['expected_compression']:.3g}x")
    known = {"epoch", "loss", "temperature", "ranks", "expected_parameters", "expected_compression"}
    parts += [f"{key} {value:.4g}" for key, value in record.items() if key not in known and isinstance(value, float)]
    return " ".join(parts)


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
