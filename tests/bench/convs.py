"""`python tests/bench/convs.py`: convolutions in both memory formats against dense ones and chains written by hand.

Every row is one interleaved run: torch's own convolution in both formats, chains of convolutions written by hand, and
the compiled layer, tuned for the format. Times are relative to the faster dense format; multiply-adds are counted by
torch on the same actions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from bench.chains import chains
from bench.counting import macs, shown, verdict, write_json
from torch import Tensor, nn

from tnmars import families
from tnmars.compiler import compile
from tnmars.dsl import network
from tnmars.graph import Graph
from tnmars.text.tables import markdown
from tnmars.timing.clock import Action, in_turns, inference, threads, training_step

FORMATS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
SIZES = ((64, 32, 32, 16), (128, 56, 8, 32), (256, 14, 32, 64))
"""Channels, side of the image, images and rank of Tucker-2; the other families have ranks of about equal size."""


TARGETS = (
    ("Tucker-2 r16 64 ch", "inference", "channels_last", 0.20),
    ("Tucker-2 r16 64 ch", "training", "channels_last", 0.25),
    ("ring r8 128 ch", "training", "", 0.31),
)
"""Ratios to reach relative to the faster dense format: part of a name, mode, format or any, and the ratio."""
CHAIN = 1.05
"""The ratio to reach relative to the fastest chain written by hand, in training, for all families but rings."""


@dataclass(frozen=True)
class Case:
    """One convolution."""

    name: str
    family: str
    graph: Graph
    channels: int
    image: int
    batch: int


@dataclass(frozen=True)
class Row:
    """One convolution in one format and mode: times and multiply-adds relative to the faster dense format."""

    name: str
    format: str
    mode: str
    form: str
    ratio: float
    by_hand: float
    """The time relative to the fastest chain written by hand, in the same format."""
    macs: float
    again: float
    """How much two timings of the compiled layer differ."""
    is_kept: bool
    """Whether the output has the format of the input."""
    threads: int = 1

    @property
    def verdicts(self) -> str:
        """Whether the targets of the row are met: relative to dense, and relative to the fastest chain."""
        target = next((found for name, *where, found in TARGETS if self._is(name, *where)), None)
        chained = CHAIN if self.mode == "training" and not self.name.startswith("ring") else None
        texts = [
            f"{said} {limit:g}{of}"
            for value, limit, of in ((self.ratio, target, ""), (self.by_hand, chained, " of the chain"))
            if (said := verdict(value, limit, self.again - 1))
        ]
        return ", ".join([*texts, *([] if self.is_kept else ["the format is LOST"])])

    def _is(self, name: str, mode: str, format: str) -> bool:
        return name in self.name and mode == self.mode and format in ("", self.format)


def ring(channels: int, rank: int) -> Graph:
    """A ring of four cores: inputs, two taps, outputs."""
    modes = {"inputs": {"i1": channels}, "outputs": {"o1": channels}, "kernel": {"k1": 3, "k2": 3}}
    text = "A[r4,i1,r1] B[r1,k1,r2] C[r2,k2,r3] D[r3,o1,r4]"
    return network("conv", text, **modes, bonds=rank, options={"padding": 1})  # type: ignore[arg-type]


def cases(names: str = "") -> list[Case]:
    """Every convolution, or those whose names contain a text."""
    return [case for case in _cases() if names.lower() in case.name.lower()]


def _cases() -> Iterator[Case]:
    for channels, image, batch, rank in SIZES:
        sizes = {"inputs": (channels,), "outputs": (channels,), "kernel": (3, 3), "options": {"padding": 1}}
        where = (channels, image, batch)
        text = f"{channels} ch {image}x{image} ({batch})"
        yield Case(f"Tucker-2 r{rank} {text}", "tucker2", families.tucker2("conv", rank=rank, **sizes), *where)
        yield Case(f"CP r{2 * rank} {text}", "cp", families.cp("conv", rank=2 * rank, **sizes), *where)
        order = ("in", "kernel", "out")
        yield Case(f"TT r{rank} {text}", "tt", families.tt_naive("conv", rank=rank, order=order, **sizes), *where)
        yield Case(f"ring r8 {text}", "ring", ring(channels, 8), *where)


def measure(case: Case, layout: str, mode: str, *, rounds: int, budget: float, tune: bool) -> Row:
    """The row of a case."""
    torch.manual_seed(0)
    plain = torch.randn(case.batch, case.channels, case.image, case.image)
    x = plain.contiguous(memory_format=FORMATS[layout])
    layer = compile(case.graph, batch=case.batch, image=case.image, tune=tune, memory_format=FORMATS[layout])
    by_hand = chains(case.family, {name: layer.cores.get(name) for name in case.graph.cores}, layer.bias)
    dense = nn.Conv2d(case.channels, case.channels, 3, padding=1)
    last = nn.Conv2d(case.channels, case.channels, 3, padding=1).to(memory_format=torch.channels_last)
    ours = _action(mode, layer, x, list(layer.parameters()))
    actions = [
        _action(mode, dense, plain, list(dense.parameters())),
        _action(mode, last, plain.contiguous(memory_format=torch.channels_last), list(last.parameters())),
        ours,
        ours,
        *(_action(mode, each.run, x, list(each.parameters)) for each in by_hand),
    ]
    times = in_turns(actions, rounds=rounds, budget=budget, least=2)
    unit, one, two = min(times[:2]), times[2], times[3]
    work = [macs(action) for action in (actions[2], actions[0])]
    form = layer.plan("train" if mode == "training" else "infer", case.batch).name
    with torch.no_grad():
        is_kept = layer(x).is_contiguous(memory_format=FORMATS[layout])
    best = min(one, two)
    ratios = (best / unit, best / min(times[4:]), work[0] / work[1], max(one, two) / best)
    return Row(case.name, layout, mode, form, *ratios, is_kept, torch.get_num_threads())


def _action(mode: str, run: Callable[..., Tensor], x: Tensor, trained: list[Tensor]) -> Action:
    return training_step(run, [x], trained) if mode == "training" else inference(run, [x])


HEADER = ["convolution", "format", "mode", "form", "time / dense", "MACs / dense", "time / chain", "noise", "target"]


def table(rows: list[Row]) -> list[list[str]]:
    """The rows as cells."""
    found = [HEADER]
    for row in rows:
        figures = [f"{row.ratio:.3f}", shown(row.macs), f"{row.by_hand:.2f}", f"{row.again - 1:.0%}"]
        found.append([row.name, row.format, row.mode, row.form, *figures, row.verdicts])
    return found


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python tests/bench/convs.py", description="Times convolutions in both formats.")
    parser.add_argument("--rows", default="", help="only convolutions whose names contain this")
    parser.add_argument("--threads", default="1", help="numbers of threads, for example 1,2")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds for each contender of a row, at most")
    parser.add_argument("--no-tune", action="store_true", help="take the plans of the cost model")
    parser.add_argument("--quick", action="store_true", help="a smoke run, whose figures mean little")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    asked = parser.parse_args(given)
    rounds, budget, tune = (2, 0.1, False) if asked.quick else (asked.rounds, asked.budget, not asked.no_tune)
    kept = []
    for count in map(int, asked.threads.split(",")):
        with threads(count):
            run = partial(measure, rounds=rounds, budget=budget, tune=tune)
            modes = ("inference", "training")
            rows = [run(case, layout, mode) for case in cases(asked.rows) for layout in FORMATS for mode in modes]
        print(f"{count} thread(s), torch {torch.__version__}; dense is the faster of its two formats")
        print(markdown(table(rows), padded=True), flush=True)
        kept += [{**asdict(row), "verdicts": row.verdicts} for row in rows]
        write_json(asked.json, rows=kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
