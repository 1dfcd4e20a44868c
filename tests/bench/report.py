"""Rows of the benchmark to text and to JSON: which targets are met, which are missed, and who was faster."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from bench.cases import MODES
from bench.counting import shown, verdict
from bench.peers import absent
from bench.run import Row

WANTED_SPEED_UP = 2.0
"""In inference: in training the arithmetic sets the limit."""


def margin(row: Row, rows: Sequence[Row], mode: str) -> float:
    """How large a difference may be to be called noise: that of the row, or the median of the run if it is larger."""
    return max(row.noise(mode), median(other.noise(mode) for other in rows))


def mark(row: Row, rows: Sequence[Row], mode: str) -> str:
    """Whether a target is met: `met`, `noise` if it is missed by less than the noise, else `MISSED`; empty without."""
    return verdict(row.ratio(mode), row.target(mode), margin(row, rows, mode))


def lost_to(row: Row, rows: Sequence[Row], mode: str) -> list[str]:
    """Who was faster than we are, beyond noise."""
    ours = row.of(mode, mode).seconds * 1 / (1 + margin(row, rows, mode))
    rivals = [row.rival(mode, packaged=True), row.rival(mode, packaged=False)]
    return [rival.name for rival in rivals if rival is not None and rival.seconds < ours]


def memory_verdict(row: Row) -> str:
    """Our memory of a training step over the best peer's; of plain torch where there is no peer."""
    ours = row.of("train", "train").memory
    best = row.least_memory(packaged=True) or row.least_memory(packaged=False)
    return "-" if ours is None or best is None else f"{ours / best:.2f}"


def speed_ups(rows: Sequence[Row], mode: str) -> list[float]:
    """How many times faster than the fastest peer, for the rows that have one."""
    return [found for row in rows if (found := row.speed_up(mode)) is not None]


def _cell(row: Row, rows: Sequence[Row], mode: str) -> str:
    target = row.target(mode)
    said = "" if target is None else f" / {target:.3g} {mark(row, rows, mode)}"
    return f"{row.ratio(mode):.3f} ({shown(row.macs(mode))}){said}"


def _best(row: Row, mode: str) -> str:
    texts = []
    for packaged in (True, False):
        rival = row.rival(mode, packaged=packaged)
        texts.append(f"{rival.seconds / row.timings(mode)[0].seconds:.3f} {rival.name}" if rival else "none")
    return "; ".join(texts)


HEADER = [
    "case",
    "compact: time (MACs) / target",
    "fast: time (MACs) / target",
    "train: time (MACs) / target",
    "best peer; plain (forward)",
    "best peer; plain (train)",
    "noise",
    "memory",
]


def table(rows: Sequence[Row]) -> list[list[str]]:
    """The table of a run, cell by cell: time, multiply-adds and target, all relative to the dense layer."""
    found = [HEADER]
    for row in rows:
        noise = f"{row.noise('compact'):.0%}, {row.noise('train'):.0%}"
        cells = [_cell(row, rows, mode) for mode in MODES]
        found.append([row.case.name, *cells, _best(row, "compact"), _best(row, "train"), noise, memory_verdict(row)])
    return found


def summary(rows: Sequence[Row]) -> list[str]:
    """What the rows add up to, in sentences."""
    lines = [f"{rows[0].threads} thread(s); torch {torch.__version__}; times are relative to torch's dense layer."]
    lines += [f"not installed, left out: {name}" for name in absent()]
    for mode in MODES:
        marks = [mark(row, rows, mode) for row in rows]
        found = speed_ups(rows, mode)
        fastest = f"{median(found):.2f}x the fastest peer in the median of {len(found)} rows" if found else "no peers"
        enough = (
            ""
            if not found or mode == "train" or median(found) >= WANTED_SPEED_UP
            else f" (MISSED, wanted {WANTED_SPEED_UP:g}x)"
        )
        lines.append(
            f"{mode}: {marks.count('met')} met, {marks.count('noise')} within noise, "
            f"{marks.count('MISSED')} missed; speed {fastest}{enough}"
        )
        for row in rows:
            lost = lost_to(row, rows, mode)
            if lost:
                lines.append(f"  slower beyond noise: {row.case.name}: {', '.join(lost)}")
    return lines


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as plain data: every time in seconds."""
    found = []
    for row in rows:
        modes = {
            mode: {
                "ratio": row.ratio(mode),
                "macs": row.macs(mode),
                "target": row.target(mode),
                "mark": mark(row, rows, mode),
                "noise": row.noise(mode),
                "speed_up_over_best_peer": row.speed_up(mode),
                "speed_up_over_plain_torch": row.speed_up(mode, packaged=False),
                "slower_than": lost_to(row, rows, mode),
            }
            for mode in MODES
        }
        timings = {
            part: [
                {
                    "name": t.name,
                    "origin": t.origin,
                    "seconds": t.seconds,
                    "same_graph": t.is_same,
                    "memory": t.memory,
                    "macs": t.macs,
                }
                for t in listed
            ]
            for part, listed in (("inference", row.inference), ("training", row.training))
        }
        found.append({"case": row.case.name, "threads": row.threads, "forms": dict(row.forms), **modes, **timings})
    return found
