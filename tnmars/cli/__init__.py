"""Command line: one file per group of commands, without logic of its own.

Bad input gives exit status 2 and a message that says what to do, never a traceback.
"""

from __future__ import annotations

import os
import sys

import click

from tnmars import __version__
from tnmars.cli import bench, compress, experiments, fits, graphs, models, plans, reports
from tnmars.errors import TnmarsError


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


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits: 0 for success, 2 for bad input, 1 for a bug in tnmars, 130 if interrupted."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """The exit status of a command."""
    try:
        status = cli.main(arguments, prog_name="tnmars", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except TnmarsError as error:
        click.echo(str(error), err=True)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: drop the rest
        return 0
    except Exception as error:
        if os.environ.get("TNMARS_DEBUG"):
            raise
        click.echo(
            f"internal error: {type(error).__name__}: {error}\n"
            "  This is a bug in tnmars, not in your input. Please report it with the output of TNMARS_DEBUG=1.",
            err=True,
        )
        return 1
