"""MobileNetV2 and EfficientNet-lite0 as their papers have them, with random weights: every layer at full rank.

The quick form has a quarter of the channels, the thorough one all of them.
"""

from __future__ import annotations

import pytest
import torch
from strategies import THOROUGH
from torch import Tensor, nn

import tnmars

WIDTH, IMAGE = (1.0, 64) if THOROUGH else (0.25, 32)

MOBILE = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3))
MOBILE += ((6, 320, 1, 1, 3),)
"""Sandler et al. 2018, table 2: expansion, channels, repeats and stride of the first; and the kernel."""
LITE = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5))
LITE += ((6, 320, 1, 1, 3),)
"""EfficientNet-B0 (Tan and Le 2019, table 1) without squeeze and excitation, as lite0 has it."""


def scaled(channels: int) -> int:
    """The channels under the width, as a multiple of 8."""
    return max(8, int(channels * WIDTH + 4) // 8 * 8)


def conv(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    own = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [own, nn.BatchNorm2d(outside)]


class Inverted(nn.Module):
    """An inverted residual block."""

    def __init__(self, inside: int, outside: int, ratio: int, stride: int, kernel: int):
        super().__init__()
        wide = inside * ratio
        first = [*conv(inside, wide, 1), nn.ReLU6()] if ratio > 1 else []
        middle = [*conv(wide, wide, kernel, stride, groups=wide), nn.ReLU6()]
        self.layers = nn.Sequential(*first, *middle, *conv(wide, outside, 1))
        self.is_residual = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.is_residual else self.layers(x)


def network(blocks: tuple[tuple[int, int, int, int, int], ...], classes: int) -> nn.Sequential:
    torch.manual_seed(0)
    inside = scaled(32)
    layers: list[nn.Module] = [*conv(3, inside, 3, 2), nn.ReLU6()]
    for ratio, channels, repeats, stride, kernel in blocks:
        for at in range(repeats):
            layers.append(Inverted(inside, scaled(channels), ratio, stride if at == 0 else 1, kernel))
            inside = scaled(channels)
    layers += [*conv(inside, scaled(1280), 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    made = nn.Sequential(*layers, nn.Linear(scaled(1280), classes))
    for module in made.modules():  # the scale of trained networks: signals neither vanish nor grow
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in")
    return made.eval()


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]


@pytest.mark.long
@pytest.mark.parametrize(("blocks", "count"), [(MOBILE, 53), (LITE, 50)], ids=["mobilenet_v2", "efficientnet_lite0"])
def test_every_layer_at_full_rank_gives_the_same_outputs(blocks: tuple, count: int) -> None:
    model = network(blocks, classes=1000 if THOROUGH else 10)
    if THOROUGH:
        assert sum(value.numel() for value in model.parameters()) == {53: 3_504_872, 50: 4_652_008}[count]
    x = torch.randn(2, 3, IMAGE, IMAGE)
    wanted = model(x)
    found = layers_of(model)
    assert len(found) == count
    assert sum(getattr(layer, "groups", 1) > 1 for _, layer in found) == sum(block[2] for block in blocks)
    for name, layer in found:
        model.set_submodule(name, tnmars.from_dense(layer, "lowrank", error=1e-7, batch=2, image=8))
    assert not layers_of(model)
    error = float((model(x) - wanted).abs().max() / wanted.abs().max())
    assert error <= 1e-4
