"""One call of `tnmars.shrink` in one process or in two: each rank writes what it got as JSON.

Run by tests/shrinking/test_ranks.py: `python shrink_ranks.py FOLDER`, or torchrun. A rank has its part of each batch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import tnmars


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    is_shared = dist.is_torchelastic_launched()
    if is_shared:
        dist.init_process_group("gloo")
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if is_shared else (0, 1)
    data = torch.Generator().manual_seed(0)
    x = torch.randn(640, 12, generator=data)
    y = (x @ torch.randn(12, 2, generator=data) @ torch.randn(2, 8, generator=data)).argmax(-1)
    batches = [(x[at : at + 64][rank::ranks], y[at : at + 64][rank::ranks]) for at in range(0, 512, 64)]
    torch.manual_seed(10 + rank)  # ranks start with different weights, and end with those of rank 0
    model = tnmars.compile(tnmars.families.lowrank("linear", inputs=(12,), outputs=(8,), rank=8), batch=64)

    def accuracy(model: torch.nn.Module) -> tuple[float, int]:
        part = x[512:] if rank == 0 else x[512:514]  # the score is that of rank 0
        return float((model(part).argmax(-1) == y[512 : 512 + len(part)]).double().mean()), 128

    curve = tnmars.shrink(
        model,
        train=batches,
        loss=cross_entropy,
        evaluate=accuracy,
        settings=tnmars.Staircase(first=40),
        checkpoint=folder / f"run-{ranks}",
    )
    found = {
        "rank": rank,
        "points": [(point.ranks, point.score, point.steps) for point in curve.points],
        "reason": curve.reason,
        "weights": [point.model.dense().flatten().tolist() for point in curve.points],
    }
    (folder / f"{ranks}-{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    if is_shared:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
