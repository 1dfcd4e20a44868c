"""A progress bar for work on a whole model: on a terminal, or nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, str], None]
"""Shows how much is done, and a few words."""


@contextmanager
def bar(title: str, total: int | None, is_shown: bool | None = None) -> Iterator[Advance]:
    """A function that shows progress, on standard error. By default there is a bar only if that is a terminal.

    >>> with bar("working", 3, is_shown=False) as advance:
    ...     advance(1, "loss 0.5")
    """
    if not (sys.stderr.isatty() if is_shown is None else is_shown):
        yield lambda done, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as shown:
        task = shown.add_task(title, total=total, text="")
        yield lambda done, text: shown.update(task, completed=done, text=text)
