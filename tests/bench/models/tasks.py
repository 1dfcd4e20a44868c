"""What is compressed and how it is judged: one `Task` per network.

A task knows its network, the layers to compress, samples for calibration and matching, and its scores on test data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from bench.models import data, networks, probe
from torch import Tensor, nn

Scores = dict[str, float]
APART = 1_000
"""Samples for matching come from another seed than those for calibration."""


@dataclass(frozen=True, eq=False)
class Task:
    """One network to compress."""

    name: str
    network: Callable[[], nn.Module]
    layers: Callable[[str, nn.Module], bool]
    """Whether a layer with this name is compressed."""
    rules: dict[str, Any]
    """The same for the library: patterns of names to families."""
    calibration: Callable[[int], Iterable[Tensor]]
    """Batches of inputs, by seed. They can be read several times."""
    matching: Callable[[int], Iterable[Tensor]]
    """One epoch of inputs, by seed."""
    scores: Callable[[nn.Module, nn.Module], Scores]
    """Scores of a network, given the dense one too."""
    example: Callable[[int], Tensor]
    """An input of a given batch size, for timing."""
    ratios: tuple[float, ...]
    whole: bool = False
    """Whether ratios refer to all parameters of the network; else they refer to those of the layers."""
    matched: dict[str, Any] = field(default_factory=dict)
    """Options of the prototype's matching."""

    def names(self, network: nn.Module) -> list[str]:
        """The names of the layers that are compressed."""
        return [name for name, layer in network.named_modules() if self.layers(name, layer)]

    def budget(self, network: nn.Module, ratio: float) -> int:
        """The parameters of the whole network that a ratio leaves."""
        total = sum(value.numel() for value in network.parameters())
        if self.whole:
            return int(total / ratio)
        part = sum(network.get_submodule(name).weight.numel() for name in self.names(network))
        return total - part + int(part / ratio)


@torch.no_grad()
def outputs(network: nn.Module, batches: Iterable[Tensor]) -> Tensor:
    """The outputs for all batches, one after the other."""
    network.eval()
    return torch.cat([network(batch) for batch in batches])


# --- ResNet -----------------------------------------------------------------------------------------------------------

CALIBRATION_IMAGES = 512


def _calibration_images(seed: int) -> list[Tensor]:
    images, _ = data.cifar_train()
    chosen = torch.randperm(len(images), generator=data.generator(seed))[:CALIBRATION_IMAGES]
    return list(data.normalised(images[chosen]).split(128))


def _matching_images(seed: int) -> data.Images:
    return data.Images(data.cifar_train()[0], 64, data.generator(APART + seed))


@cache
def _dense_logits(dense: nn.Module) -> Tensor:
    return outputs(dense, map(data.normalised, data.cifar_test()[0].split(250)))


def _image_scores(network: nn.Module, dense: nn.Module) -> Scores:
    images, labels = data.cifar_test()
    wanted = _dense_logits(dense)
    logits = wanted if network is dense else outputs(network, map(data.normalised, images.split(250)))
    return {
        "accuracy": _percentage(logits.argmax(1) == labels),
        "same as dense": _percentage(logits.argmax(1) == wanted.argmax(1)),
    }


def _percentage(right: Tensor) -> float:
    return 100 * float(right.double().mean())


def _resnet(
    depth: int, ratios: tuple[float, ...], families: tuple[str, ...] = ("lowrank", "tucker2"), suffix: str = ""
) -> Task:
    return Task(
        name=f"resnet{depth}{suffix}",
        network=lambda: networks.resnet(depth),
        layers=lambda name, layer: isinstance(layer, nn.Conv2d) and layer.in_channels > 3,
        rules={"layer*.conv*": families},
        calibration=_calibration_images,
        matching=_matching_images,
        scores=_image_scores,
        example=lambda batch: data.normalised(data.cifar_test()[0][:batch]),
        ratios=ratios,
    )


# --- MiniLM -----------------------------------------------------------------------------------------------------------

CALIBRATION_SENTENCES = 256


def _calibration_sentences(seed: int) -> list[Tensor]:
    rows, _ = data.tokens("train")
    chosen = torch.randperm(len(rows), generator=data.generator(seed))[:CALIBRATION_SENTENCES].tolist()
    return [ids for _, ids in data.same_length([rows[place] for place in chosen], 32)]


def _matching_sentences(seed: int) -> data.Sentences:
    return data.Sentences(data.tokens("train")[0], 32, data.generator(APART + seed))


def vectors(network: nn.Module, split: str) -> Tensor:
    """The sentence vectors of a split, in the order of its sentences."""
    rows, _ = data.tokens(split)
    batches = data.same_length(rows, 64)
    found = outputs(network, [ids for _, ids in batches])
    places = torch.tensor([place for part, _ in batches for place in part])
    return found[places.argsort()]


@cache
def _dense_vectors(dense: nn.Module) -> dict[str, Tensor]:
    return {split: vectors(dense, split) for split in ("train", "dev", "test")}


def _sentence_scores(network: nn.Module, dense: nn.Module) -> Scores:
    wanted = _dense_vectors(dense)
    found = wanted if network is dense else {split: vectors(network, split) for split in wanted}
    labels = {split: data.tokens(split)[1] for split in wanted}
    return {
        "cosine": float(F.cosine_similarity(found["test"], wanted["test"]).mean()),
        "probe": probe.polarity(found, labels),
        "dense probe": probe.polarity(found, labels, trained_on=wanted),
    }


def _minilm(name: str, layers: Callable[[str, nn.Module], bool], rules: dict[str, Any], ratio: float) -> Task:
    return Task(
        name=name,
        network=networks.minilm,
        layers=layers,
        rules=rules,
        calibration=_calibration_sentences,
        matching=_matching_sentences,
        scores=_sentence_scores,
        example=lambda batch: torch.arange(1_000, 1_000 + 24 * batch).reshape(batch, 24),
        ratios=(ratio, 4.0) if ratio != 4 else (ratio,),
    )


# --- CREPE ------------------------------------------------------------------------------------------------------------

CALIBRATION_FRAMES, MATCHING_FRAMES, TEST_FRAMES = 512, 4_096, 1_000
TEST_SEED = 987_654


def _calibration_frames(seed: int) -> list[Tensor]:
    return list(data.tones(CALIBRATION_FRAMES, seed)[0].split(32))


def _matching_frames(seed: int) -> data.Frames:
    return data.Frames(data.tones(MATCHING_FRAMES, APART + seed)[0], 16, data.generator(seed))


@cache
def _dense_pitches(dense: nn.Module) -> Tensor:
    return outputs(dense, data.tones(TEST_FRAMES, TEST_SEED)[0].split(50))


def _frame_scores(network: nn.Module, dense: nn.Module) -> Scores:
    frames, pitch = data.tones(TEST_FRAMES, TEST_SEED)
    wanted = _dense_pitches(dense)
    logits = wanted if network is dense else outputs(network, frames.split(50))
    return {
        "within 50 cents": data.within(logits, pitch),
        "within 50 cents of dense": _percentage((data.pitches(logits) - data.pitches(wanted)).abs() <= 50),
    }


TASKS = {
    task.name: task
    for task in (
        _resnet(20, (1.5, 2.0, 3.0)),
        _resnet(20, (2.0, 3.0), ("cp",), "-cp"),
        _resnet(56, (2.0,)),
        _minilm("minilm", lambda name, layer: isinstance(layer, nn.Linear), {"layers.*": "lowrank", "*": None}, 2.0),
        _minilm("minilm-words", lambda name, layer: name == "words", {"words": "lowrank", "*": None}, 4.0),
        Task(
            name="crepe",
            network=networks.crepe,
            layers=lambda name, layer: isinstance(layer, (nn.Conv1d, nn.Linear)),
            rules={"*": "lowrank"},
            calibration=_calibration_frames,
            matching=_matching_frames,
            scores=_frame_scores,
            example=lambda batch: data.tones(batch, TEST_SEED)[0],
            ratios=(4.0,),
            whole=True,
            matched={"rate": 0.03, "relative": True},
        ),
    )
}
