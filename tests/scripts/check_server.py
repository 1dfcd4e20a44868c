"""Runs `tnmars check` on files, each in a forked child that the system stops beyond the limits.

It is a small process, so that a child pays for its file alone and not for what other tests have left in memory.

Reads `FILE LOG` lines, writes `STATUS SECONDS` lines. The seconds, in the limit too, are those of a fast machine; see
`machine.slowness`. Run by tests/spec/test_mutations.py.
"""

from __future__ import annotations

import io
import os
import resource
import sys
from contextlib import redirect_stderr, redirect_stdout
from math import ceil
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import slowness

from tnmars.cli import run


def limit(megabytes: int, seconds: int) -> None:
    """Lets this process have so much more memory and processor time, and no more."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    room = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def _end_with_check(path: Path, log: str, megabytes: int, seconds: int) -> None:
    """The child's part; never returns."""
    status = 99
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        limit(megabytes, seconds)
        os.chdir(path.parent)
        status = run(["check", path.name])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def main(warm: str, megabytes: int, seconds: int) -> None:
    factor = slowness()
    for name in sorted(Path(warm).glob("*.yaml")):  # loads what is loaded late
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            run(["check", str(name)])
            run(["check", str(name), "--set", "nothing=1"])
    for line in sys.stdin:
        path, log = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            _end_with_check(Path(path), log, megabytes, ceil(seconds * factor))
        _, status, used = os.wait4(child, 0)
        line = f"{os.waitstatus_to_exitcode(status)} {(used.ru_utime + used.ru_stime) / factor}\n"
        os.write(1, line.encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
