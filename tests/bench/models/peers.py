"""What one-line calls of other packages give at equal size: tensorly-torch and Torch-Pruning, on convolutions.

torchao and PEFT do something else, which a note says instead of a figure. A package that is not installed, or a call
that fails, is named with the reason.
"""

from __future__ import annotations

import contextlib
import copy
import io
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from bench.models import baselines
from bench.models.run import MATCHED, Asked, Recorder, add
from bench.models.speed import speed
from bench.models.tasks import Task
from torch import nn

NOTES = (
    (
        "torchao: quantizes weights and keeps their number, so there is no figure at equal parameters. "
        "`quantize_(model, Int8WeightOnlyConfig())` changes Linear layers and leaves convolutions alone. "
        "It combines with compression: `tnmars.as_torch_` gives layers that it accepts."
    ),
    "PEFT: adds adapters to layers that stay as they are, for training; it does not compress.",
)
Peer = Callable[[Task, nn.Module, float], nn.Module]


def _swapped(task: Task, dense: nn.Module, make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    small = copy.deepcopy(dense)
    for name in task.names(dense):
        where, _, leaf = name.rpartition(".")
        setattr(small.get_submodule(where), leaf, make(dense.get_submodule(name)))
    return small.eval()


def _tensorly(family: str, **options: Any) -> Peer:
    """Each layer by tensorly-torch's own decomposition of its weight, all with the same share of their parameters."""

    def build(task: Task, dense: nn.Module, ratio: float) -> nn.Module:
        import_module("tensorly").set_backend("pytorch")
        package = import_module("tltorch")

        # TT ranks are cut to what the weight has room for when it is decomposed, and only then; that takes an SVD
        def sized(layer: nn.Module, share: float) -> Any:
            return package.FactorizedConv.from_conv(
                layer, **_given(family, share, options), decompose_weights=family == "tt"
            )

        def make(layer: nn.Module) -> Any:
            most = layer.weight.numel() / ratio
            share = _share(lambda share: baselines.parameters(sized(layer, share)), most, 1 / ratio)
            return package.FactorizedConv.from_conv(layer, **_given(family, share, options))

        return _swapped(task, dense, make)

    return build


def _given(family: str, share: float, options: dict[str, Any]) -> dict[str, Any]:
    return dict(rank=share, factorization=family, implementation="factorized", **options)


def _share(size: Callable[[float], int], most: float, share: float) -> float:
    """The largest share whose layer has at most so many parameters: what the package makes of a share varies."""
    low, high = share / 4, 0.999  # from 1 on, the package takes a number for a rank
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if size(middle) <= most else (low, middle)
    return low


def _pruned(task: Task, dense: nn.Module, ratio: float) -> nn.Module:
    """Channels inside the blocks: those of the sums are padded by a fixed number in the shortcuts, so they stay."""
    package = import_module("torch_pruning")
    small = copy.deepcopy(dense).to(memory_format=torch.contiguous_format)
    inner = [layer for name, layer in small.named_modules() if name.startswith("layer") and name.endswith("conv1")]
    if not inner:
        raise NotImplementedError("only the blocks of ResNet have channels that can go without others")
    outer = [m for m in small.modules() if isinstance(m, (nn.Conv2d, nn.Linear)) and all(m is not i for i in inner)]
    pruner = package.pruner.BasePruner(
        small,
        task.example(1),
        importance=package.importance.GroupMagnitudeImportance(),
        pruning_ratio=1 - 1 / ratio,
        ignored_layers=outer,
    )
    pruner.step()
    return small.eval()


PEERS: dict[str, Peer] = {
    "tensorly-torch from_conv, tucker": _tensorly("tucker"),
    "tensorly-torch from_conv, tucker-2": _tensorly("tucker", fixed_rank_modes="spatial"),
    "tensorly-torch from_conv, cp": _tensorly("cp"),
    "tensorly-torch from_conv, tt": _tensorly("tt"),
    "Torch-Pruning, magnitude": _pruned,
}


def run_peers(task: Task, asked: Asked) -> Iterator[str | dict[str, Any]]:
    """A record for each peer that works, and a note for each that does not."""
    recorder = Recorder(asked.json)
    dense = task.network()
    add(recorder, task, dense, dense, "dense", 1.0, None, task.scores(dense, dense), 0.0)
    yield recorder.records[-1]
    for ratio in asked.ratios or (2.0,):
        for name, build in PEERS.items():
            torch.manual_seed(asked.seeds[0])
            start = time.process_time()
            try:
                with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                    warnings.simplefilter("ignore")
                    small = build(task, dense, ratio)
                    scores = task.scores(small, dense)
            except Exception as error:  # whatever another package raises is the reason that is reported
                yield f"{name} at {ratio:g}x: no figure, {type(error).__name__}: {error}"
                continue
            spent = time.process_time() - start
            add(recorder, task, dense, small, name, ratio, None, scores, spent)
            yield recorder.records[-1]
            for batch in asked.batches:
                for timing in speed(dense, {name: small}, task.example(batch)):
                    recorder.add(task=task.name, ratio=ratio, **timing)
                    yield recorder.records[-1]
            if asked.epochs:
                samples: Any = task.matching(asked.seeds[0])
                start = time.process_time()
                baselines.match(small, dense, iter(samples), int(asked.share * len(samples)), **task.matched)
                spent = time.process_time() - start
                add(recorder, task, dense, small, name + MATCHED, ratio, None, task.scores(small, dense), spent)
                yield recorder.records[-1]
    yield from NOTES
