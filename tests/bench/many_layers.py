"""`python tests/bench/many_layers.py`: how long it takes to compile the 72 linear layers of BERT-base.

Twelve blocks of four attention layers (768 to 768), one up (768 to 3,072) and one down. Nothing is read from the cache
of earlier tuning. CPU seconds on one thread, else wall-clock seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ["TNMARS_TUNED"] = "off"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from bench.counting import write_json

from tnmars import families
from tnmars.compiler import compile
from tnmars.graph import Graph
from tnmars.program.candidates import weight_forms
from tnmars.program.choice import choose
from tnmars.program.form import measure, total
from tnmars.timing import records
from tnmars.timing.clock import threads

BLOCKS = 12
BATCH = 512
SHAPES = (*[(768, 768)] * 4, (768, 3072), (3072, 768))
MODES = {768: (8, 8, 12), 3072: (12, 16, 16)}
TARGETS = {"planned": 0.3, "tuned": 8.0}


def graph(family: str, inside: int, outside: int) -> Graph:
    """One layer: of low rank, or a tensor train."""
    if family == "low rank 128":
        return families.lowrank("linear", inputs=(inside,), outputs=(outside,), rank=128)
    return families.tt("linear", inputs=MODES[inside], outputs=MODES[outside], rank=64)


def seconds(family: str, *, tune: bool, blocks: int = BLOCKS, device: str | None = None) -> float:
    """The time to compile all layers, planned or tuned from scratch. On the meta device no weights are drawn."""
    for cache in (choose, weight_forms):
        cache.cache_clear()
    records.forget()
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(blocks):
        for inside, outside in SHAPES:
            compile(graph(family, inside, outside), batch=BATCH, tune=tune, device=device)
    return clock() - start


def mac_ratio(family: str) -> float:
    """The multiply-adds of the layers of a block, as they are planned, relative to the dense ones."""
    ours = dense = 0
    for inside, outside in SHAPES:
        layer = compile(graph(family, inside, outside), batch=BATCH, device="meta")
        ours += total(measure(layer.plan("infer", BATCH), batch=BATCH)).macs
        dense += BATCH * inside * outside
    return ours / dense


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python tests/bench/many_layers.py", description="Times the compiler.")
    parser.add_argument("--threads", default="1", help="numbers of threads, for example 1,2")
    parser.add_argument("--quick", action="store_true", help="a smoke run: one block of twelve")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    asked = parser.parse_args(given)
    missed, blocks = 0, 1 if asked.quick else BLOCKS
    kept = []
    for count in map(int, asked.threads.split(",")):
        with threads(count):
            seconds("low rank 128", tune=False, blocks=1)  # imports of the planner
            for family in ("low rank 128", "TT r64"):
                share = mac_ratio(family)
                empty = seconds(family, tune=False, blocks=blocks, device="meta")
                for name, tune in (("planned", False), ("tuned", True)):
                    took = seconds(family, tune=tune, blocks=blocks)
                    verdict = "met" if took <= TARGETS[name] else "MISSED"
                    missed += verdict == "MISSED"
                    more = f" ({empty:.2f} s without drawing weights)" if not tune else ""
                    layers = blocks * len(SHAPES)
                    text = f"{count} thread(s), {layers} layers, {family} (MACs / dense {share:.3f})"
                    print(f"{text}, {name}: {took:.2f} s{more}, {verdict}", flush=True)
                    row = {"case": family, "threads": count, "what": name, "layers": layers, "seconds": took}
                    kept.append({**row, "seconds_on_meta": empty, "macs": share, "verdict": verdict})
                    write_json(asked.json, rows=kept)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
