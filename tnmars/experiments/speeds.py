"""How fast the small networks of finished runs are. They are timed after all runs, one at a time, from their files.

So a record does not depend on a clock, and no run of ours disturbs the clock. The times are in a file of their own in
the folder of a run; they count as long as the network in the folder is the one that was timed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tnmars.experiments.catalog import EXPERIMENTS, Experiment
from tnmars.experiments.jobs import network_name
from tnmars.experiments.tables import Record
from tnmars.experiments.worker import versions
from tnmars.files import write_text
from tnmars.timing.clock import threads

SPEEDS = "speeds.json"


def measure(
    name: str,
    folder: Path,
    listed: Iterable[Record],
    data: str | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> None:
    """Times the networks of some records of an experiment that were not timed yet, with one thread."""
    timer = EXPERIMENTS[name].timed
    if timer is None:
        return
    for record in listed:
        own = run_folder(folder, record)
        known = _read(own)
        for file in _files(record):
            path = own / file
            if not path.exists() or _is_of(known.get(file, {}), path):
                continue
            say(f"timing {name} {record['variant']} {record['seed']}: {file}")
            with threads(1):
                dense, small = timer(path, record["variant"], data)
            known[file] = {"dense_seconds": dense, "seconds": small, "network": _digest(path), "versions": versions()}
            write_text(own / SPEEDS, json.dumps(known, indent=1) + "\n")


def with_speeds(experiment: Experiment, folder: Path, record: Record) -> Record:
    """A record with the speed of its networks relative to a dense one, where they were timed."""
    if experiment.timed is None:
        return record
    own, result = run_folder(folder, record), record["result"]
    known = _read(own)

    def more(budget: str) -> dict[str, float]:
        file = network_name(budget)
        entry = known.get(file, {})
        return {"speed": entry["dense_seconds"] / entry["seconds"]} if _is_of(entry, own / file) else {}

    if "points" not in result:
        return {**record, "result": {**result, **more("")}}
    points = [{**point, **more(point.get("budget", ""))} for point in result["points"]]
    return {**record, "result": {**result, "points": points}}


def run_folder(folder: Path, record: Record) -> Path:
    """The folder of the run that made a record, for experiments whose seeds are trained one by one."""
    return folder / f"{record['variant']}-{record['seed']}"


def _files(record: Record) -> Iterator[str]:
    for point in record["result"].get("points", [{}]):
        yield network_name(point.get("budget", ""))


def _read(folder: Path) -> dict[str, Any]:
    try:
        known = json.loads((folder / SPEEDS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _is_of(entry: Mapping[str, Any], path: Path) -> bool:
    """Whether an entry is of the network that is in a file now."""
    return path.exists() and entry.get("network") == _digest(path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
