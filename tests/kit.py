"""What several test files share: the worked examples, small graphs of every kind, given gates, and forms of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import oracle
import pytest
import torch
from strategies import THOROUGH
from torch import Tensor

import tnmars
from tnmars.graph import Graph, Role
from tnmars.graph.counts import count
from tnmars.layer.module import code
from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.program.candidates import layer_forms, lookup_forms
from tnmars.program.form import Form

ROOT = Path(__file__).parent.parent
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
"""The files of all worked examples; `oracle.spec(name)` is one of them."""
BONDED = [path.stem for path in SPECS if tnmars.load(path).bonds]
SOME_SPECS = SPECS if THOROUGH else SPECS[::6]
"""All of them when thorough: for tests that take a second each."""
every_spec = pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)

EXACT = 1e-10
"""How far two computations of the same numbers in float64 may be apart (see `oracle.error`)."""


# --- small graphs ----------------------------------------------------------------------------------------------------


LINEAR = tnmars.families.tt("linear", inputs=(2, 3), outputs=(4, 5), rank=2)
PADDED = tnmars.families.tt("linear", inputs=(2, 3), outputs=(4, 5), rank=2, features={"in": 5, "out": 17})
CONV = tnmars.network(
    "conv", "A[i,r] K[r,h,w,s] B[s,o]", inputs={"i": 3}, outputs={"o": 4}, kernel={"h": 3, "w": 2}, bonds=2
)
UPWARD = tnmars.network(
    "conv_transpose",
    "A[i,r] K[r,h,w,s] B[s,o]",
    inputs={"i": 3},
    outputs={"o": 4},
    kernel={"h": 3, "w": 2},
    bonds=2,
    options={"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 0)},
)
PATCH = tnmars.network(
    "conv", "A[p,r] B[r,o]", patch={"p": 12}, outputs={"o": 4}, bonds=2, kernel_size=(2, 2), options={"stride": 2}
)
TABLE = tnmars.families.tt("embedding", lookup=(4, 5, 3), outputs=(2, 3, 2), rank=3, vocab=50)
SKIPPED = replace(TABLE, options=(("padding_idx", 7),))
TENSOR = tnmars.families.tt("tensor", free=(4, 5, 3), rank=2)
MAP = tnmars.network(
    "map",
    "A[i,r] B[j,r,o]",
    inputs={"i": 3, "j": 2},
    outputs={"o": 4},
    bonds=2,
    arguments={"x": "b n i", "y": "b m j"},
    result="b n m o",
)
BLOCKS = tnmars.families.lowrank("linear", groups=(2, 2), inputs=(3,), outputs=(5,), rank=2)
GROUPED = tnmars.families.lowrank("conv", groups=(2,), inputs=(3,), outputs=(4,), kernel=(3, 2), rank=2)
DEPTHWISE = tnmars.families.lowrank("conv", groups=(6,), kernel=(3, 3), rank=2, options={"padding": 1})
SCALED = tnmars.network("map", "A[j]", groups={"j": 3}, arguments={"x": "i j"}, result="i j")
EVERY = {"linear": LINEAR, "conv": CONV, "patch": PATCH, "embedding": TABLE, "tensor": TENSOR, "map": MAP}
EVERY |= {"conv_transpose": UPWARD, "blocks": BLOCKS, "grouped": GROUPED, "depthwise": DEPTHWISE, "scaled": SCALED}
every_kind = pytest.mark.parametrize("graph", EVERY.values(), ids=EVERY)


def square(cores: int = 3) -> Graph:
    """A tensor train of equal modes and bonds."""
    return tnmars.families.tt("linear", inputs=(4,) * cores, outputs=(4,) * cores, rank=4)


def inputs_of(graph: Graph, batch: int = 3, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Inputs that fit."""
    given = oracle.problem(graph, batch).inputs
    return tuple(value.detach().to(dtype) if value.is_floating_point() else value for value in given)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normally distributed numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def second_moment(size: int, samples: int, seed: int = 0) -> Tensor:
    """The second moment of correlated vectors; it is singular if there are few samples."""
    drawn = normal(samples, size, seed=seed) @ normal(size, size, seed=seed + 1)
    return drawn.T @ drawn / samples


# --- given gates -----------------------------------------------------------------------------------------------------


class Given(tnmars.Fixed):
    """A selector whose gates are its logits: what a mask does, without what it is drawn from."""

    has_gates = True

    def sample(self, logits, noise, temperature):
        return logits

    def keep(self, logits):
        return logits > 0.5


def set_gates(layer: tnmars.TNModule, values: dict[str, Tensor]) -> None:
    """Gives every bond's logits a value."""
    with torch.no_grad():
        for name, logits in zip(layer.graph.bonds, layer.logits(), strict=True):
            logits.copy_(values[name])


def mask_of(kept: tuple[int, ...], size: int) -> Tensor:
    """One where an index is kept, zero elsewhere."""
    return torch.tensor([float(index in kept) for index in range(size)], dtype=torch.float64)


def lowrank(selector: tnmars.Selector | None = None, **keywords: object) -> tnmars.TNModule:
    """Two cores with a bond of size 4 between them, in float64."""
    graph = tnmars.network("linear", "A[i,r] B[r,o]", inputs=dict(i=6), outputs=dict(o=5), bonds=4)
    return oracle.compiled(graph, batch=7, selector=selector, dtype=torch.float64, **keywords)


# --- forms of a graph ------------------------------------------------------------------------------------------------


MODEL = CostModel()
WEIGHINGS = (Weighing(MODEL), Weighing(MODEL, grad=True), Weighing(MODEL, folded=True))
OPTIMIZERS = ("auto", "dp", "greedy", "random-greedy", "optimal")


def unpadded(graph: Graph) -> Graph:
    """The graph without the row that stays zero: a form gives rows as they are."""
    return replace(graph, options=tuple(option for option in graph.options if option[0] != "padding_idx"))


def is_lookup(graph: Graph) -> bool:
    return bool(graph.of_role(Role.LOOKUP) or graph.of_role(Role.FREE))


def forms_of(graph: Graph, batch: int, weighing: Weighing, optimizer: str = "auto") -> list[Form]:
    """The forms of a layer or of rows of it; the whole weight is apart."""
    if is_lookup(graph):
        return lookup_forms(graph, batch, weighing, optimizer)
    return layer_forms(graph, batch, weighing, 8, optimizer)


def once(forms: Iterable[Form]) -> list[Form]:
    """Forms without those that run the same code."""
    return list({(form.program.instructions, form.frame, form.chunk): form for form in forms}.values())


def run(form: Form, problem: oracle.Problem) -> Tensor:
    """What the emitted code of a form gives."""
    made = code(form)
    parts = made.fold(*(problem.cores[name] for name in made.cores))
    return made(problem.inputs, problem.bias, parts)


def limits(graph: Graph) -> tuple[float, ...]:
    """How many numbers folded parts may hold: none, the cores', twice those, half of the dense weight's."""
    numbers = count(graph)
    return (0, numbers.cores, 2 * numbers.cores, numbers.dense / 2)


# --- the process -----------------------------------------------------------------------------------------------------


LINUX = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts what a process reads")


def memory(what: str) -> int:
    """A number of bytes that Linux counts for this process, such as its peak: `VmHWM`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(what)).split()[1])
