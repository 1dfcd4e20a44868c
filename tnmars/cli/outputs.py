"""What a command may write: never over what it reads, and never over a file that tnmars did not write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click

from tnmars.files import resolved

PAGE = b'<meta name="generator" content="tnmars">\n'
"""What every page of ours has before its title."""
HEAD = 2000
"""The bytes of a page in which its title starts."""


def check_output(
    output: str, read: Iterable[str | None], is_ours: Callable[[Path], bool], what: str, flag: str = "--output"
) -> None:
    """Refuses to write over an input, or over a file that is not `what`. An empty file is nobody's."""
    path = resolved(output)
    if path in {resolved(given) for given in read if given and given != "-"}:
        raise click.BadParameter(f"'{output}' is an input and would be overwritten.", param_hint=flag)
    if path.is_file() and path.stat().st_size and not is_ours(path):
        text = f"'{output}' exists and is not {what}; remove it, or choose another file."
        raise click.BadParameter(text, param_hint=flag)


def check_folder(output: str, flag: str = "--output") -> None:
    """Refuses a file in a folder that does not exist."""
    if not resolved(output).parent.is_dir():
        raise click.BadParameter(f"the folder of '{output}' does not exist.", param_hint=flag)


def _is_page(path: Path) -> bool:
    """Whether the head of a file is that of a page of ours; a page of the user's may quote one."""
    try:
        with path.open("rb") as stream:
            head, _, rest = stream.read(HEAD).partition(b"<title>")
    except OSError:
        return False
    return bool(rest) and head.startswith(b"<!doctype html>") and head.endswith(PAGE)


def check_page(output: str, *read: str | None, flag: str = "--output") -> None:
    """Refuses to write a page over an input, or over a file that is not a page of ours."""
    check_output(output, read, _is_page, "a page that tnmars wrote", flag)


def check_model(output: str, *read: str | None, flag: str = "--output") -> None:
    """Refuses to write a model over an input, or over a file that is not a model of ours."""
    from tnmars.spec.model_file import is_model_file

    check_output(output, read, is_model_file, "a model that tnmars saved", flag)
