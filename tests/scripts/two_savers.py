"""Two processes that save to one path at the same time, as a script, while this one reads what is there.

    python tests/scripts/two_savers.py FOLDER SECONDS

Each checkpoint holds the number of its writer in a tensor, in its position and in the optimizer. Prints JSON. torch is
loaded once; the writers are forks of this process.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch
import torch._dynamo  # an optimiser would load it in every process
from torch import nn

import tnmars


def run(number: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimiser whose tensors are all this number."""
    graph = tnmars.families.tt("linear", inputs=(3, 2), outputs=(2, 4), rank=2 + number)
    model = nn.Sequential(tnmars.compile(graph, batch=16), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=number)
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(number)
    return model, optimizer


def save(path: Path, number: int, until: float, told: int) -> None:
    """Saves until the time is up, and tells how often."""
    model, optimizer = run(number)
    saves = 0
    while time.monotonic() < until:
        tnmars.save_checkpoint(path, model, optimizer, position={"by": number, "at": saves})
        saves += 1
    os.write(told, f"{saves}\n".encode())


def start(path: Path, number: int, until: float, told: int) -> int:
    process = os.fork()
    if process:
        return process
    try:
        save(path, number, until, told)
    except BaseException:
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


def read(path: Path, previous: bool = False) -> int:
    """Whose checkpoint is there; all of it must be of one writer."""
    model, optimizer = run(3)
    number: int = tnmars.load_checkpoint(path, model, optimizer, previous=previous).position["by"]
    assert model[0].graph.bonds["r1"].size == 2 + number, "the graph is another writer's"
    assert all(bool((value == number).all()) for value in model.parameters()), "a tensor is another writer's"
    assert [group["lr"] for group in optimizer.param_groups] == [number], "the optimizer is another writer's"
    return number


def main(folder: Path, seconds: float) -> None:
    torch.set_num_threads(1)
    path, until = folder / "run.ckpt", time.monotonic() + seconds
    listen, told = os.pipe()
    processes = [start(path, number, until, told) for number in (1, 2)]
    seen, reads = set(), 0
    while time.monotonic() < until:
        if path.exists():  # from then on there is a whole one at every moment
            seen.add(str(read(path)))
            reads += 1
    for process in processes:
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert status == 0, f"a writer ended with {status}"
    saves = [int(line) for line in os.read(listen, 1000).split()]
    read(path)
    read(path, previous=True)
    print(json.dumps({"saves": saves, "reads": reads, "seen": sorted(seen)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
