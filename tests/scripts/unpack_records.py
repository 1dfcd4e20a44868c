"""Writes kept records as records of single runs, so that `tnmars reproduce --all` goes on from them.

    python tests/scripts/unpack_records.py docs/results build/reproduce
    tnmars reproduce --all --save docs/results

A record that is already there stays. The small networks of those runs are not kept, so an ensemble needs new runs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tnmars.experiments.catalog import EXPERIMENTS
from tnmars.experiments.jobs import planned, record_name
from tnmars.files import make_folder, read_json, write_text


def unpack(results: Path, root: Path) -> int:
    """The number of records that were written."""
    written = 0
    for name, experiment in EXPERIMENTS.items():
        kept = results / f"{name}.json"
        for record in read_json(kept)["records"] if kept.exists() else []:
            variant, seed, folder = record["variant"], record["seed"], root / name
            (job,) = planned(name, [variant], [seed], folder, together=experiment.together)
            path = job.folder / record_name(seed)
            if not path.exists():
                make_folder(job.folder)
                write_text(path, json.dumps(record, indent=1) + "\n")
                written += 1
    return written


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("root", type=Path)
    asked = parser.parse_args()
    print(f"{unpack(asked.results, asked.root)} records written")


if __name__ == "__main__":
    main()
