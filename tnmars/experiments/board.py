"""The bars of several runs on one terminal: each run tells its progress as lines of JSON, which are read here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from threading import Thread
from typing import Any, TextIO


class Board:
    """A bar for each run under way; nothing where there is no terminal, for there the runs print lines themselves."""

    def __init__(self, stream: TextIO):
        self.is_shown = stream.isatty()
        self._readers: list[Thread] = []
        if self.is_shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.table import Column

            told = TextColumn("{task.fields[told]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
            name = TextColumn("{task.description}", table_column=Column(no_wrap=True))
            self._bars = Progress(
                name, BarColumn(8), TimeRemainingColumn(), told, console=Console(file=stream), expand=True
            )
            self._bars.start()

    def follow(self, title: str, lines: Iterable[str]) -> None:
        """Shows a run, whose lines come as it goes, until they end."""
        task = self._bars.add_task(title, told="", total=None)

        def read() -> None:
            for line in lines:
                told = _parsed(line)
                if told is not None:
                    self._bars.update(task, completed=told["done"], total=told["total"], told=told["told"])
            self._bars.remove_task(task)

        self._readers.append(Thread(target=read, daemon=True))
        self._readers[-1].start()

    def close(self) -> None:
        for reader in self._readers:
            reader.join(timeout=5.0)
        if self.is_shown:
            self._bars.stop()


def _parsed(line: str) -> dict[str, Any] | None:
    """What a line tells; none for a line that is something else, such as a warning."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"done", "total", "told"} <= found.keys() else None
