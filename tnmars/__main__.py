"""`tnmars` and `python -m tnmars`: the command line. It can be interrupted from the start, before the slow imports."""

from __future__ import annotations

import os

INTERRUPTED = 130


def main() -> None:
    """Runs a command and exits, as `tnmars.cli.main` does. An interrupt while it is loaded has the same status, 130."""
    try:
        import signal

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stop)
    except KeyboardInterrupt:
        _stop()
    from tnmars.cli import main as run

    try:
        run()
    except SystemExit as end:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # all is done: a signal while Python ends changes nothing
        if end.code == INTERRUPTED:
            # if text that Python ran was interrupted, it ends with a status of its own, although that was handled
            import atexit

            atexit._run_exitfuncs()
            os._exit(INTERRUPTED)
        raise


def _stop(*_: object) -> None:
    """Ends the process at once: an exception might be caught, or printed, by whatever is being imported."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
