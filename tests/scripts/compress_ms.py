"""Whether compressed models take the time that was planned, on this machine and one thread.

    OMP_NUM_THREADS=1 python tests/scripts/compress_ms.py [--tune] [budget]

Calibrates the cost model first, as `tnmars calibrate` does. For a small CNN, an MLP and a transformer block it prints
the time of the dense model, the planned and the measured time of the compressed model, frozen to be fast, and measured
over planned; then the same for times relative to the dense model, which a busy machine disturbs less. The exit status
is 1 if a measured time is more than 15 % away from the plan.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable
from tempfile import mkdtemp

import torch
from torch import Tensor, nn

import tnmars
from tnmars.timing.calibrate import calibrate, save_model

MOST = 0.15


class Block(nn.Module):
    """A transformer block with its own projections."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for inside, outside, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)):
        layers += [nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "cnn": (cnn, lambda: torch.randn(64, 3, 32, 32)),
    "mlp": (mlp, lambda: torch.randn(64, 784)),
    "transformer": (lambda: Block(256), lambda: torch.randn(8, 64, 256)),
}


def milliseconds(*models: tuple[nn.Module, Tensor]) -> list[float]:
    """The shortest CPU time of a pass of each model, measured in turns."""
    best = [float("inf")] * len(models)
    with torch.no_grad():
        for _ in range(40):
            for at, (model, x) in enumerate(models):
                model(x)
                for _ in range(3):
                    start = time.process_time()
                    model(x)
                    best[at] = min(best[at], 1e3 * (time.process_time() - start))
    return best


def main(*arguments: str) -> int:
    torch.set_num_threads(1)
    tune = "--tune" in arguments
    budget = next((value for value in arguments if not value.startswith("-")), "1.5x ms")
    os.environ["XDG_CACHE_HOME"] = mkdtemp()
    os.environ.pop("TNMARS_COST_MODEL", None)
    save_model(calibrate())
    status = 0
    print(
        f"{'model':12} {'dense':>8} {'planned':>8} {'measured':>8}  measured / planned  the same of the share of dense"
    )
    for name, (make, inputs) in MODELS.items():
        torch.manual_seed(0)
        model, x = make().eval(), inputs()
        small = copy.deepcopy(model)
        plan = tnmars.compress_(small, budget=budget, data=[x] * 5, tune=tune, progress=False)
        before, after = milliseconds((model, x), (tnmars.freeze(small, "fast", tune=tune), x))
        ratio = after / plan.ms.after
        share = after / before * plan.ms.ratio
        print(f"{name:12} {before:8.2f} {plan.ms.after:8.2f} {after:8.2f}  {ratio:<18.2f}  {share:.2f}", flush=True)
        status |= abs(ratio - 1) > MOST
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
