"""The most memory that a process and its descendants take together. Prints it once the standard input is closed.

A process takes its proportional share of pages (Pss), so a page that several processes share counts once. Linux only.
Run as `python peak_memory.py PID`; the process itself that looks is not counted.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path

SECONDS = 0.25
"""The time between two looks, at least. A child that lives shorter may not be seen."""
REST = 30
"""The time between two looks relative to that of a look, at least: large processes take long to look at."""
PROC = Path("/proc")
SHARE = PROC / "self" / "smaps_rollup"
"""Linux has it since 4.14."""


def parents() -> dict[int, int]:
    """The parent of every process that there is."""
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):  # it has ended
                continue
    return found


def taken(process: int) -> int:
    """The bytes that a process takes now."""
    try:
        lines = (PROC / str(process) / "smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


def family(root: int, but: int = 0) -> dict[int, int]:
    """The bytes of a process and of each of its descendants, but of one."""
    above = parents()
    members = {root}
    while more := {child for child, parent in above.items() if parent in members} - members:
        members |= more
    return {member: taken(member) for member in members - {but}}


def main() -> None:
    root, most, largest, count = int(sys.argv[1]), 0, 0, 0
    while True:
        start = time.perf_counter()
        now = family(root, os.getpid())
        took = time.perf_counter() - start
        largest = max(largest, *now.values())
        if sum(now.values()) > most:
            most, count = sum(now.values()), sum(map(bool, now.values()))
        if select.select([sys.stdin], [], [], max(SECONDS, REST * took))[0]:
            break
    print(json.dumps({"together": most, "largest": largest, "processes": count}), flush=True)


if __name__ == "__main__":
    main()
