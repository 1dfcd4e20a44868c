"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc

import click
from marks import block, code, codes, page, table

from tnmars.cli import cli

INTRO = """\
Every command with its arguments and options. `tnmars COMMAND --help` prints the same."""

AROUND = """\
Exit status 0 means success, 2 bad input, 1 a bug in tnmars, 130 an interrupt. Set `TNMARS_DEBUG=1` in the environment
to see the traceback of a bug. Every command takes `--json`. These options come before a command:"""

DEFAULT = re.compile(r" ?\[default: (.*?)\]")
"""A default that is described in words, inside the help text."""
EXAMPLE = "Example: "


def text() -> str:
    """The page."""
    names = sorted(cli.commands)
    rows = [(code(f"tnmars {name}"), short(cli.commands[name])) for name in names]
    parts = (INTRO, table(("command", "what it does"), rows), AROUND, _table(_around()))
    return page("# Command reference", *parts, *(_command(name, cli.commands[name]) for name in names))


def short(command: click.Command) -> str:
    """The first sentence of a command's help."""
    return re.split(r"(?<=\.)\s", cleandoc(command.help or ""))[0].replace("\n", " ")


def example(command: click.Command) -> str:
    """The call that a command's help ends with, or nothing."""
    return (command.epilog or "").removeprefix(EXAMPLE)


def _command(name: str, command: click.Command) -> str:
    arguments = [entry for entry in command.params if isinstance(entry, click.Argument)]
    usage = " ".join(("tnmars", name, "[OPTIONS]", *map(_usage, arguments)))
    parts = [f"## tnmars {name}", block(usage), _prose(command.help or "")]
    if arguments:
        parts.append(table(("argument", "value"), map(_argument, arguments)))
    parts.append(_table(_options(command)))
    if example(command):
        parts.append(block(example(command), "sh"))
    return "\n\n".join(parts)


def _prose(text: str) -> str:
    """The paragraphs of a help text, each on one line; names of arguments and options as code."""
    paragraphs = [part.replace("\n", " ") for part in cleandoc(text).split("\n\n")]
    return "\n\n".join(map(_marked, paragraphs))


def _marked(text: str) -> str:
    """Text with options, variables and names of Python as code, so that no dash or underscore is lost."""
    return re.sub(r"(?<![\w'])(--?[a-z][\w-]*|tnmars\.\w+|\$\w+)", r"`\1`", text)


def _usage(argument: click.Argument) -> str:
    shown = (argument.name or "").upper() + ("..." if argument.nargs == -1 else "")
    return shown if argument.required else f"[{shown}]"


def _argument(argument: click.Argument) -> tuple[str, str]:
    value = _value(argument)
    if argument.nargs == -1:
        value += ", one or more"
    return code((argument.name or "").upper()), value if argument.required else f"{value}, optional"


def _options(command: click.Command) -> Iterator[click.Option]:
    return (entry for entry in command.params if isinstance(entry, click.Option))


def _around() -> Iterator[click.Option]:
    """The options of `tnmars` itself."""
    yield from _options(cli)
    option = cli.get_help_option(click.Context(cli, **cli.context_settings))
    assert option, "every command has a help option"
    yield option


def _table(options: Iterator[click.Option]) -> str:
    return table(("option", "value", "default", "what it does"), map(_row, options))


def _row(option: click.Option) -> tuple[str, str, str, str]:
    value = "none" if option.is_flag else code(option.metavar) if option.metavar else _value(option)
    if option.multiple:
        value += ", repeatable"
    help_text = _marked(DEFAULT.sub("", option.help or ""))
    return codes((*option.opts, *option.secondary_opts)), value, _default(option), help_text


def _value(parameter: click.Parameter) -> str:
    """What may be given, in words."""
    kind = parameter.type
    if isinstance(kind, click.Choice):
        return codes(kind.choices)
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        return _span(kind)
    if isinstance(kind, click.Path):
        return "a file" if kind.file_okay else "a folder"
    return NUMBERS.get(kind.name, kind.name)


NUMBERS = {"integer": "a whole number", "float": "a number"}


def _span(kind: click.IntRange | click.FloatRange) -> str:
    """A number with its limits, such as `a number from 0 to 1`."""
    words = "a whole number" if isinstance(kind, click.IntRange) else "a number"
    if kind.min is not None:
        closed = "at least" if kind.max is None else "from"
        words += f" {'above' if kind.min_open else closed} {kind.min:,}"
    if kind.max is not None:
        words += f" {'below' if kind.max_open else 'to'} {kind.max:,}"
    return words


def _default(option: click.Option) -> str:
    written = DEFAULT.search(option.help or "")
    if written:
        return _marked(written[1])
    if option.required:
        return "*required*"
    if option.secondary_opts:
        return code((option.opts if option.default else option.secondary_opts)[0])
    if option.is_flag:
        return "off"
    return code(str(option.default)) if isinstance(option.default, (str, int, float)) else "none"
