"""`python tests/bench/models resnet20 --ratios 1.5,2,3 --seeds 0,1,2 --match 1`: compresses trained networks.

Scores on full test sets for the dense network, plain SVD, C-uniform, a prototype in plain torch and the library. It is
not part of the package or of the tests: it needs `pip install '.[bench]'`, `$TNMARS_DATA`, and
`python tests/bench/models download` for MiniLM and CREPE.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from bench.models import compressed, networks, peers, report
from bench.models.run import OURS, ROWS, Asked, run_task
from bench.models.tasks import TASKS

DOWNLOAD = "download"


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python tests/bench/models", description="Compresses trained networks.")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"{', '.join(TASKS)} (default: all), or {DOWNLOAD}")
    parser.add_argument("--peers", action="store_true", help="one-line calls of other packages instead")
    parser.add_argument("--ratios", default="", help="for example 1.5,2,3 (default: those of the task)")
    parser.add_argument("--seeds", default="0,1,2", help="seeds that choose calibration samples")
    parser.add_argument("--match", type=int, default=0, metavar="EPOCHS", help="epochs of label-free matching")
    parser.add_argument("--share", type=float, default=1.0, help="how much of an epoch the prototype's matching gets")
    parser.add_argument("--rows", default=",".join(ROWS), help="what to compare, separated by commas")
    parser.add_argument("--speed", default="", metavar="BATCHES", help="batch sizes to time, for example 1,64")
    parser.add_argument("--json", type=Path, help="append records to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    return parser.parse_args(given)


def _numbers(text: str, kind: type) -> tuple:
    return tuple(kind(part) for part in text.split(",") if part)


def main(given: list[str] | None = None) -> int:
    """Runs what is asked for, prints tables, and writes records."""
    asked = _arguments(given)
    if asked.tasks == [DOWNLOAD]:
        networks.download()
        return 0
    unknown = [name for name in asked.tasks if name not in TASKS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; tasks: {', '.join(TASKS)}, or {DOWNLOAD}")
        return 2
    rows = tuple(row.strip() for row in asked.rows.split(","))
    if OURS in rows and compressed.absent():
        print(f"this version of tnmars has no {', '.join(compressed.absent())}: its rows are left out", file=sys.stderr)
    torch.set_num_threads(1)
    what = Asked(
        rows=rows,
        ratios=_numbers(asked.ratios, float),
        seeds=_numbers(asked.seeds, int),
        epochs=asked.match,
        share=asked.share,
        batches=_numbers(asked.speed, int),
        json=asked.json,
    )
    texts = []
    for name in asked.tasks or TASKS:
        try:
            found = list(peers.run_peers(TASKS[name], what)) if asked.peers else run_task(TASKS[name], what)
        except networks.NotFoundError as error:
            texts.append(f"{name}: left out, {error}")
        else:
            records = [record for record in found if not isinstance(record, str)]
            notes = [f"- {note}" for note in found if isinstance(note, str)]
            texts.append("\n".join([f"### {name}", "", report.tables(records), "", *notes]))
        print(texts[-1], "\n", flush=True)
    if asked.markdown:
        asked.markdown.parent.mkdir(parents=True, exist_ok=True)
        asked.markdown.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
