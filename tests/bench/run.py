"""Runs the cases: every contender in turn, inference and training steps, and the memory of a training step.

A `Case` becomes a `Row` of timings; the row knows whether its targets are met.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from bench.cases import Case
from bench.chains import chains
from bench.counting import macs, share
from bench.memory import peak_memory
from bench.peers import peers
from torch import Tensor

from tnmars.bench.plain import Contender, push, rebuild
from tnmars.compiler import compile
from tnmars.layer.module import TNModule
from tnmars.ship.freezing import freeze
from tnmars.timing.clock import Action, in_turns, inference, threads, training_step

AGAIN = "again"


@dataclass(frozen=True)
class Timing:
    """How long one contender took, and the memory of its training step where that was asked for."""

    name: str
    origin: str
    seconds: float
    is_same: bool = True
    memory: int | None = None
    macs: int | None = None
    """The multiply-adds, of the dense layer and ours."""


@dataclass(frozen=True)
class Row:
    """The timings of a case. The dense layer is first; ours are called `compact`, `fast` and `train`."""

    case: Case
    threads: int
    inference: tuple[Timing, ...]
    training: tuple[Timing, ...]
    forms: tuple[tuple[str, str], ...]
    """Which form each of ours took."""

    def timings(self, mode: str) -> tuple[Timing, ...]:
        return self.training if mode == "train" else self.inference

    def of(self, mode: str, name: str) -> Timing:
        return next(timing for timing in self.timings(mode) if timing.name == name)

    def ratio(self, mode: str) -> float:
        """Our time relative to the dense layer's."""
        return self.of(mode, mode).seconds / self.timings(mode)[0].seconds

    def macs(self, mode: str) -> float | None:
        """Our multiply-adds relative to the dense layer's; None if that has none."""
        return share(self.of(mode, mode).macs, self.timings(mode)[0].macs)

    def target(self, mode: str) -> float | None:
        """The ratio to reach, if there is one; that of some training steps depends on the fastest plain form."""
        rival = self.rival(mode, packaged=False)
        if mode == "train" and self.case.plain_margin is not None and rival is not None:
            return self.case.plain_margin * rival.seconds / self.timings(mode)[0].seconds
        return self.case.target(mode)

    def noise(self, mode: str) -> float:
        """By how much two timings of one program differed."""
        one, two = self.of(mode, "train" if mode == "train" else "compact").seconds, self.of(mode, AGAIN).seconds
        return max(one, two) / min(one, two) - 1

    def rival(self, mode: str, *, packaged: bool) -> Timing | None:
        """The fastest peer, or the fastest of plain torch."""
        others = [
            timing
            for timing in self.timings(mode)
            if timing.origin not in ("ours", "dense") and timing.is_same and packaged == (timing.origin != "plain")
        ]
        return min(others, key=lambda timing: timing.seconds, default=None)

    def speed_up(self, mode: str, *, packaged: bool = True) -> float | None:
        """How many times faster we are than the fastest peer."""
        rival = self.rival(mode, packaged=packaged)
        return rival.seconds / self.of(mode, mode).seconds if rival else None

    def least_memory(self, *, packaged: bool) -> int | None:
        """The least memory that a training step of another takes."""
        found = [
            timing.memory
            for timing in self.training
            if timing.memory is not None
            and timing.is_same
            and timing.origin not in ("ours", "dense")
            and packaged == (timing.origin != "plain")
        ]
        return min(found, default=None)


def others(case: Case, layer: TNModule) -> list[Contender]:
    """Plain torch and peers, with the cores of a layer."""
    cores = {name: layer.cores.get(name) for name in case.graph.cores}
    rebuilt = rebuild(case.graph, cores, layer.bias)
    pushed = push(case.graph, cores, layer.bias, case.batch)
    plain = [pushed] if pushed else chains(case.family, cores, layer.bias)
    return [*([rebuilt] if rebuilt else []), *plain, *peers(case, cores, layer.bias)]


def _inference(case: Case, x: Tensor, layer: TNModule, tune: bool) -> Iterator[tuple[Contender, str]]:
    dense = case.dense()
    yield Contender("dense", "dense", dense, tuple(dense.parameters())), ""
    for form in ("compact", "fast"):
        frozen = freeze(layer, form, batch=case.batch, image=case.image, tune=tune)
        chosen: str = frozen.form.name  # type: ignore[union-attr,assignment]
        yield Contender(form, "ours", frozen, ()), chosen
        if form == "compact":
            yield Contender(AGAIN, "ours", frozen, ()), chosen


def run_case(
    case: Case,
    count: int = 1,
    *,
    rounds: int = 15,
    budget: float = 6.0,
    tune: bool = True,
    memory: bool = True,
    input_grad: bool = False,
) -> Row:
    """The row of a case, with so many threads. `input_grad`: training steps give the input a gradient too, as inner
    layers of a network do."""
    torch.manual_seed(0)
    with threads(count):
        x = case.make_input()
        layer = compile(case.graph, batch=case.batch, image=case.image, tune=tune)
        ours = list(_inference(case, x, layer, tune))
        more = others(case, layer)
        inferring = [contender for contender, _ in ours] + more
        passes = _timed(inferring, [inference(c.run, [x]) for c in inferring], rounds, budget)
        trained = Contender("train", "ours", layer, tuple(layer.parameters()))
        again = Contender(AGAIN, "ours", layer, trained.parameters)
        training = [inferring[0], trained, again, *more]
        given = x.clone().requires_grad_() if input_grad and x.is_floating_point() else x
        steps = [training_step(c.run, [given], (*c.parameters, given)) for c in training]
        timed = _timed(training, steps, rounds, budget)
        if memory:
            timed = _with_memory(timed, training, steps)
    chosen = {contender.name: form for contender, form in ours if form and contender.name != AGAIN}
    plan = layer.plan("train", case.batch)
    words = [plan.name, f"in chunks of {plan.chunk}" if plan.chunk else "", "planned" if plan.is_planned else ""]
    forms = {**chosen, "train": " ".join(word for word in words if word)}
    return Row(case, count, tuple(passes), tuple(timed), tuple(forms.items()))


def _timed(contenders: list[Contender], actions: list[Action], rounds: int, budget: float) -> list[Timing]:
    times = in_turns(actions, rounds=rounds, budget=budget, least=3)
    return [
        Timing(c.name, c.origin, took, c.is_same, macs=macs(action) if c.origin in ("ours", "dense") else None)
        for c, action, took in zip(contenders, actions, times, strict=True)
    ]


def _with_memory(timed: list[Timing], contenders: list[Contender], steps: list[Action]) -> list[Timing]:
    found = []
    for timing, contender, step in zip(timed, contenders, steps, strict=True):
        memory = None if timing.name == AGAIN else peak_memory(step, contender.parameters)
        found.append(replace(timing, memory=memory))
    return found
