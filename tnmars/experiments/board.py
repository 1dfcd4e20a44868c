"""The bars of several runs on one terminal. Each run writes its progress as lines of JSON, which are read here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from threading import Thread
from typing import Any, TextIO


class Board:
    """A bar for each active run. Without a terminal it shows nothing, because the runs print lines themselves."""

    def __init__(self, stream: TextIO):
        self.is_shown = stream.isatty()
        self._readers: list[Thread] = []
        if self.is_shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.table import Column

            text = TextColumn("{task.fields[text]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
            name = TextColumn("{task.description}", table_column=Column(no_wrap=True))
            self._bars = Progress(
                name, BarColumn(8), TimeRemainingColumn(), text, console=Console(file=stream), expand=True
            )
            self._bars.start()

    def follow(self, title: str, lines: Iterable[str]) -> None:
        """Shows a run by the lines that it writes, until they end."""
        task = self._bars.add_task(title, text="", total=None)

        def read() -> None:
            for line in lines:
                record = _parsed(line)
                if record is not None:
                    self._bars.update(task, completed=record["done"], total=record["total"], text=record["text"])
            self._bars.remove_task(task)

        self._readers.append(Thread(target=read, daemon=True))
        self._readers[-1].start()

    def close(self) -> None:
        for reader in self._readers:
            reader.join(timeout=5.0)
        if self.is_shown:
            self._bars.stop()


def _parsed(line: str) -> dict[str, Any] | None:
    """The progress in a line, or `None` for any other line, such as a warning."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and {"done", "total", "text"} <= record.keys() else None
