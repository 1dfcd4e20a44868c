"""Trains a little under DDP or FSDP2 on two ranks, writes checkpoints, and reads them into a plain model on each rank.

Run by tests/store/test_checkpoint.py under torchrun: `sharded_save.py MODE FOLDER`. Prints `same` for each rank.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tnmars


def network(seed: int) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    graph = tnmars.families.tt("linear", inputs=(3, 4), outputs=(4, 3), rank=5)
    model = nn.Sequential(tnmars.compile(graph, selector=tnmars.Mars(spread=1.0), batch=16), nn.Linear(12, 2))
    return model, torch.optim.Adam(tnmars.param_groups(model, lr=0.05))


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def main(mode: str, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, optimizer = network(0)
    outer: nn.Module = model
    if mode == "fsdp":
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=0.05))
    else:
        outer = DistributedDataParallel(model)
    for step in range(2):
        torch.manual_seed(step)
        x = torch.randn(4, 12)
        (outer(x).square().mean() + tnmars.penalty(model) / 50).backward()
        optimizer.step()
        optimizer.zero_grad()
        tnmars.save_checkpoint(folder / "run.ckpt", model, optimizer, position=step)
        dist.barrier()
    held = {key: whole(value).clone() for key, value in model.state_dict().items()}
    moments = {name: whole(optimizer.state[value]["exp_avg"]) for name, value in model.named_parameters()}
    if mode == "fsdp":
        try:
            tnmars.load_into(model, folder / "run.ckpt")
        except tnmars.TnmarsError as error:
            assert "is sharded over ranks" in str(error)
        else:
            raise AssertionError("a sharded model was loaded into")
    fresh, other = network(1)
    assert tnmars.load_checkpoint(folder / "run.ckpt", fresh, other).position == 1
    assert all(value.equal(held[key]) for key, value in fresh.state_dict().items())
    assert all(other.state[value]["exp_avg"].equal(moments[name]) for name, value in fresh.named_parameters())
    print("same", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
