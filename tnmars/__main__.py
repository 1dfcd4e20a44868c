"""`tnmars` and `python -m tnmars`: the command line. It can be interrupted from the start, before the slow imports."""

from __future__ import annotations

import os


def main() -> None:
    """Runs a command and exits, as `tnmars.cli.main` does. An interrupt while it is loaded has the same status, 130."""
    try:
        import signal

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stop)
    except KeyboardInterrupt:
        _stop()
    from tnmars.cli import main as run

    run()


def _stop(*_: object) -> None:
    """Ends the process at once: an exception might be caught, or printed, by whatever is being imported."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    main()
