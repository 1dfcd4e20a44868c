"""One training script for one process, DDP and FSDP2: trains with gates, cuts, wraps again and continues training.

Run by tests/layer/test_distributed.py: each rank writes what it saw as JSON. `python scale_out.py plain FOLDER`, or
torchrun.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tnmars

DATA, BATCH, STEPS, MORE = 64, 16, 24, 8
WHOLE = StateDictOptions(full_state_dict=True)


def network() -> nn.Sequential:
    """Two compiled layers, one of them a sum of terms, and a dense one."""
    torch.manual_seed(0)
    selector = tnmars.Mars(pi=0.1, alpha=0.5, temperature=(0.5, 0.1), spread=1.0)
    first = tnmars.families.tt("linear", inputs=(3, 4), outputs=(4, 3), rank=5)
    second = tnmars.families.btd("linear", inputs=(3, 4), outputs=(2, 3), rank=3, terms=2)
    made = [tnmars.compile(graph, selector=selector, batch=BATCH) for graph in (first, second)]
    return nn.Sequential(made[0], nn.ReLU(), made[1], nn.Linear(6, 2))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(tnmars.param_groups(model, lr=1e-2))


def wrapped(model: nn.Module, mode: str) -> nn.Module:
    if mode == "ddp":
        return DistributedDataParallel(model)
    if mode == "fsdp":
        for layer in model:
            if list(layer.parameters()):
                fully_shard(layer)
        fully_shard(model)
    return model


def train(
    model: nn.Module, inner: nn.Module, optimizer: torch.optim.Optimizer, schedule: tnmars.MaskSchedule, steps: int
) -> list[float]:
    """Steps on this rank's share of each batch; the losses of the whole batches."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    random = torch.Generator().manual_seed(1 + schedule.steps)
    losses = []
    for _ in range(steps):
        x = torch.randn(BATCH, 12, generator=random)
        y = x[:, :2] * x[:, 2:4]
        mine = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
        loss = (model(x[mine]) - y[mine]).square().mean()
        (loss + tnmars.penalty(inner) / DATA).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        seen = loss.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(seen)
        losses.append(seen.item() / ranks)
    return losses


def gathered(inner: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The whole model and optimiser on every rank, not sharded: a cut needs them so."""
    fresh = network()
    fresh.load_state_dict(get_model_state_dict(inner, options=WHOLE) | dict(_buffers(inner)))
    again = optimizer_of(fresh)
    whole = get_optimizer_state_dict(inner, optimizer, options=WHOLE)
    set_optimizer_state_dict(fresh, again, whole, options=WHOLE)
    return fresh, again


def _buffers(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, value) for name, value in model.named_buffers() if name in model.state_dict()]


def main(mode: str, folder: str) -> None:
    torch.set_num_threads(1)
    if mode != "plain":
        dist.init_process_group("gloo")
    inner = network()
    model = wrapped(inner, mode)
    optimizer = optimizer_of(inner)
    schedule = tnmars.MaskSchedule(inner, STEPS, warmup_steps=4, seed=3, optimizer=optimizer)
    losses = train(model, inner, optimizer, schedule, STEPS)
    if mode == "ddp" and dist.get_rank() == 1:  # should ranks differ, rank 0 decides
        with torch.no_grad():
            inner[0].logits()[0].neg_()
    kept = tnmars.keep(inner)
    if mode == "fsdp":
        inner, optimizer = gathered(inner, optimizer)
    tnmars.prune_(inner, optimizer, kept)
    state = get_optimizer_state_dict(inner, optimizer, options=WHOLE)
    model = wrapped(inner, mode)
    if mode == "fsdp":  # its parameters are others: the state goes to them by name
        optimizer = optimizer_of(inner)
        set_optimizer_state_dict(inner, optimizer, state, options=WHOLE)
    schedule = tnmars.MaskSchedule(inner, MORE, seed=4)
    losses += train(model, inner, optimizer, schedule, MORE)
    graphs = [tnmars.dump(layer.graph) for layer in inner if isinstance(layer, tnmars.TNModule)]
    rank = dist.get_rank() if dist.is_initialized() else 0
    result = {"rank": rank, "losses": losses, "keep": kept, "graphs": graphs}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    if dist.is_initialized():
        dist.barrier()
        os._exit(0)  # taking the process group down has hung here, after all work was done


if __name__ == "__main__":
    main(*sys.argv[1:])
