"""What one pass of a model over a batch costs, and how it uses single layers: rows, images, multiply-adds and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils.flop_counter import FlopCounterMode

from tnmars.layer.module import TNModule
from tnmars.models.data import Batch, call, device_of
from tnmars.models.statistics import quiet
from tnmars.timing.clock import in_turns

ROUNDS = 15
"""How often a pass is timed."""
TABLES = (nn.Embedding, nn.EmbeddingBag)


@dataclass
class Use:
    """What a pass does with a layer."""

    rows: int = 1
    """The most rows of an input."""
    image: int = 1
    """The longest side of an input image."""
    calls: int = 0
    macs: int = 0
    """Of all calls."""
    numbers: int = 0
    """The numbers that all calls read and write, without the weight."""
    ms: float | None = None
    """The milliseconds of all calls, if they were measured."""


@dataclass(frozen=True)
class Pass:
    """What a pass costs."""

    macs: int
    ms: float | None
    """Milliseconds, if they were measured."""
    uses: Mapping[str, Use]


def one_pass(model: nn.Module, batch: Batch, names: Iterable[str], *, is_timed: bool = False) -> Pass:
    """What a pass of a model in evaluation mode costs, and the layers of these names in it.

    The model and the random state are left as they are.
    """
    uses = {name: Use() for name in names}
    fast, fused = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    with quiet(model, set()), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.backends.mha.set_fastpath_enabled(False)  # it calls no layers, and torch does not count its operations
        try:
            torch._C._set_mkldnn_enabled(False)  # torch counts nothing in its fused recurrent layers
            with FlopCounterMode(display=False) as counter, _noted(model, uses, counter.get_total_flops):
                call(model, batch)
        finally:
            torch._C._set_mkldnn_enabled(fused)
            torch.backends.mha.set_fastpath_enabled(fast)
        ms = _time(model, batch, uses) if is_timed else None
    return Pass(int(counter.get_total_flops()) // 2, ms, uses)


def _time(model: nn.Module, batch: Batch, uses: Mapping[str, Use]) -> float:
    """Milliseconds of a pass; those of each layer are noted."""
    call(model, batch)
    for _ in range(ROUNDS):
        spent = dict.fromkeys(uses, 0.0)
        with _clocked(model, spent):
            call(model, batch)
        for name, use in uses.items():
            use.ms = min(inf if use.ms is None else use.ms, 1e3 * spent[name])
    (found,) = in_turns([lambda: call(model, batch)], rounds=ROUNDS, budget=2.0, device=device_of(model))
    return 1e3 * found


def _extent(module: nn.Module, x: Tensor | None) -> tuple[int, int]:
    """The rows of an input of a layer, and the longest side of an image."""
    if x is None or (isinstance(module, TNModule) and module.graph.inputs):
        return (module.nominal if isinstance(module, TNModule) else 1), 1
    kernel = module.graph.kernel_size if isinstance(module, TNModule) else getattr(module, "kernel_size", ())
    if isinstance(module, _ConvNd) or (isinstance(module, TNModule) and kernel):
        return (len(x) if x.dim() == len(kernel) + 2 else 1), max(x.shape[-len(kernel) :])
    is_table = isinstance(module, TABLES) or (isinstance(module, TNModule) and module.graph.kind == "embedding")
    return x.numel() // (1 if is_table else max(x.shape[-1], 1)), 1


@contextmanager
def _noted(model: nn.Module, uses: Mapping[str, Use], flops: Callable[[], int]) -> Iterator[None]:
    """While the block runs, calls of layers, the shapes of their inputs and their multiply-adds are noted."""

    def before(use: Use) -> Callable[..., None]:
        def seen(module: nn.Module, given: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> None:
            x = next((value for value in (*given, *named.values()) if isinstance(value, Tensor)), None)
            use.calls += 1
            use.numbers += 0 if x is None else x.numel()
            use.macs -= flops() // 2
            rows, image = _extent(module, x)
            use.rows, use.image = max(use.rows, rows), max(use.image, image)

        return seen

    def after(use: Use) -> Callable[..., None]:
        def seen(_: nn.Module, given: object, output: Tensor) -> None:
            use.macs += flops() // 2
            use.numbers += output.numel()

        return seen

    with _hooked(model, {name: (before(use), after(use)) for name, use in uses.items()}):
        yield


@contextmanager
def _clocked(model: nn.Module, spent: dict[str, float]) -> Iterator[None]:
    """While the block runs, the seconds that layers take are added up."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def add(name: str, sign: int) -> Callable[..., None]:
        def seen(*_: object) -> None:
            spent[name] += sign * clock()

        return seen

    with _hooked(model, {name: (add(name, -1), add(name, 1)) for name in spent}):
        yield


@contextmanager
def _hooked(model: nn.Module, hooks: Mapping[str, tuple[Callable[..., None], Callable[..., None]]]) -> Iterator[None]:
    """While the block runs, functions are called before and after layers."""
    handles = []
    try:
        for name, (before, after) in hooks.items():
            module = model.get_submodule(name)
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(module.register_forward_hook(after))
        yield
    finally:
        for handle in handles:
            handle.remove()
