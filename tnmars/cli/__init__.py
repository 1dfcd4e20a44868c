"""Command line: one file per group of commands, without logic of its own.

Bad input gives exit status 2 and a message that says what to do, never a traceback. With `--json` the message is JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from tnmars import __version__
from tnmars.cli import bench, compress, experiments, fits, graphs, models, plans, reports, suggest
from tnmars.errors import Problem, TnmarsError


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Run 'tnmars COMMAND --help' for the options of a command and an example. Start with 'tnmars demo'.",
)
@click.version_option(__version__, prog_name="tnmars")
def cli() -> None:
    """A compiler from tensor-network graphs to PyTorch modules, with automatic rank selection."""


for _command in (graphs.check, graphs.expand, graphs.show, graphs.schema, plans.plan, plans.calibrate, bench.bench):
    cli.add_command(_command)
for _command in (fits.fit, models.prune, models.diff, experiments.reproduce, experiments.demo, reports.report):
    cli.add_command(_command)
cli.add_command(plans.compile_, "compile")
cli.add_command(compress.compress)
cli.add_command(suggest.suggest)

NO_MEMORY = ("allocate memory", "out of memory", "Storage size calculation overflowed")
"""What torch says where there is not enough memory."""
BUG = "This is a bug in tnmars, not in your input. Please report it with the output of TNMARS_DEBUG=1."


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs a command and exits.

    0 for success, 2 for bad input, 1 for a bug in tnmars, 3 if the output cannot be written, 130 if interrupted by
    Ctrl-C or SIGTERM.
    """
    _open_streams()
    status = run(arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = status or 3
            _drop(stream)
    sys.exit(status)


def _open_streams() -> None:
    """Lets streams that were closed by the shell lead nowhere, so that no file of ours takes their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def run(arguments: list[str] | None = None) -> int:
    """The exit status of a command."""
    given = sys.argv[1:] if arguments is None else arguments
    with _interruptible() as asked:
        try:
            status = cli.main(arguments, prog_name="tnmars", standalone_mode=False)
            return status if isinstance(status, int) else 0
        except click.exceptions.Exit as end:
            return end.exit_code
        except BaseException as error:
            with suppress(OSError):  # there may be nobody to tell
                if asked or isinstance(error, (click.Abort, KeyboardInterrupt)):
                    click.echo("interrupted", err=True)
                    return 130
                return _ended(error, given)
            return 3


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Within the block SIGTERM interrupts as Ctrl-C does. Returns a list that is filled once either has come.

    An import that is interrupted may end in an error of another kind, which says nothing to the user.
    """
    asked: list[int] = []

    def stop(number: int, _: Any) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(error: BaseException, arguments: Sequence[str]) -> int:
    """Says why a command has failed, and returns its exit status."""
    as_json = "--json" in arguments
    if isinstance(error, click.ClickException) and not as_json:
        error.show()
        return error.exit_code
    if isinstance(error, click.ClickException):
        _say([Problem(error.format_message())], as_json)
        return error.exit_code
    if isinstance(error, TnmarsError):
        _say(error.problems, as_json, str(error))
        return 2
    if isinstance(error, BrokenPipeError):
        _drop(sys.stdout)  # the reader has gone
        return 0
    if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
        hint = "Use smaller sizes, such as a smaller --batch."
        _say([Problem("there is not enough memory for this.", hint)], as_json)
        return 2
    if isinstance(error, OSError) and error.filename is None and error.errno is not None:
        _drop(sys.stdout)
        _say([Problem(f"the output cannot be written: {os.strerror(error.errno)}.")], False)
        return 3
    if not isinstance(error, Exception) or os.environ.get("TNMARS_DEBUG"):
        raise error
    _say([Problem(f"internal error: {type(error).__name__}: {error}", BUG)], as_json)
    return 1


def _say(problems: Sequence[Problem], as_json: bool, text: str = "") -> None:
    """Prints problems: as text for a reader, or as `check --json` prints them."""
    if as_json:
        listed = graphs.problems_as_json([(problem, "error") for problem in problems])
        click.echo(json.dumps([{"file": None, "ok": False, "problems": listed}], indent=1))
        return
    click.echo(text or "\n".join(str(TnmarsError(problem)) for problem in problems), err=True)


def _drop(stream: Any) -> None:
    """Lets a stream that cannot be written to lead nowhere, so that nothing is said about it when Python ends."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
