"""Writes the files in this folder, with the version of tnmars that is on the path. Commit f0d35d7 wrote them, once.

`python tests/data/write.py`. A later version must read them: tests/store/test_written_before.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import tnmars

HERE = Path(__file__).parent


def model() -> nn.Module:
    """A network with a plan in chunks, a convolution with a stride, gates on both, and a table."""
    mars = tnmars.Mars(pi=1e-2, alpha=-1.75)
    image = tnmars.families.tucker2("conv", inputs=(4,), outputs=(16,), kernel=(3, 3), ranks=(3, 6))
    wide = tnmars.families.tt("linear", inputs=(8, 8, 8, 8), outputs=(8, 8, 8, 8), rank=2)
    table = tnmars.families.tt("embedding", lookup=(5, 5), outputs=(2, 2), rank=3)
    return nn.ModuleDict(
        {
            "image": tnmars.compile(image, selector=mars, stride=2, padding=1, image=16, batch=8),
            "wide": tnmars.compile(wide, selector=mars, batch=1024),
            "table": tnmars.compile(table),
            "head": nn.Linear(4, 3),
        }
    )


def outputs(net: nn.ModuleDict, generator: int = 1) -> dict[str, Tensor]:
    torch.manual_seed(generator)
    return {
        "image": net["image"](torch.randn(8, 4, 16, 16)),
        "wide": net["wide"](torch.randn(1024, 4096))[::64, ::64].contiguous(),
        "table": net["head"](net["table"](torch.arange(25))),
    }


def step(net: nn.ModuleDict, optimizer: torch.optim.Optimizer, schedule: tnmars.MaskSchedule) -> None:
    loss = sum(value.square().mean() for value in outputs(net).values()) + tnmars.penalty(net) / 1000
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()


def parts(net: nn.ModuleDict) -> tuple[torch.optim.Optimizer, tnmars.MaskSchedule]:
    optimizer = torch.optim.Adam(tnmars.param_groups(net, lr=1e-2))
    return optimizer, tnmars.MaskSchedule(net, total_steps=10, seed=3)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = model()
    optimizer, schedule = parts(net)
    for _ in range(3):
        step(net, optimizer, schedule)
    tnmars.save(net, HERE / "model.safetensors")
    tnmars.save_checkpoint(HERE / "checkpoint.safetensors", net, optimizer, schedule, position=[3, 0])
    with torch.no_grad():
        expected = {f"train.{name}": value for name, value in outputs(net).items()}
        net.eval()
        expected |= {f"eval.{name}": value for name, value in outputs(net).items()}
        net.train()
    for _ in range(2):
        step(net, optimizer, schedule)
    expected |= {f"after.{name}": value for name, value in net.state_dict().items()}
    save_file({name: value.detach().clone() for name, value in expected.items()}, HERE / "expected.safetensors")
    small = tnmars.prune(net, keep={"wide": {"r1": (0,), "r2": (0, 1), "r3": (1,)}})
    tnmars.save_spec(small["wide"].graph, HERE / "pruned.yaml")


if __name__ == "__main__":
    sys.exit(main())
