"""The page of results, from the records in docs/results. Words are here; every figure is of a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tnmars.experiments.results import page
from tnmars.experiments.tables import as_table

RESULTS = Path(__file__).parent.parent / "results"

HEAD = """\
<!-- made by `python docs/generate`; do not edit -->
# Results

What the experiments gave here, over all seeds that were run, beside what was wanted and what the paper reports. Every
figure comes from a record, which holds the commit that made it: [toy](results/toy.json), [tucker](results/tucker.json),
[mnist-2fc](results/mnist-2fc.json), [fit](results/fit.json), [demo](results/demo.json), [step](results/step.json). One
thread a run, on a machine with two cores that other work was using; so times are of the processor, and left out where
only the clock was read.
"""

TOY = """\
A linear classifier of low rank, 128 to 32, taught by one of rank 8, 12 or 16; the student starts with rank 32. The
schedule of the paper's notebooks: Adam 1e-2, 300 epochs, batch 128, both learning rate and temperature times 0.99 per
epoch. `dense` is a plain linear layer with the same schedule. The paper chose `alpha` for each rank of the teacher (-4,
-3.5, -3), so the rank is in part put in by hand. All sixty models took 4 min 27 s of the clock with `--jobs 2`.
"""

TUCKER = """\
A tensor of 8^4 with Tucker ranks 4, fitted from ranks 8 by plain gradient descent, 10,000 steps; the log-likelihood is
minus the mean squared error of the pruned network, the tensor's own mean square being some hundreds. The paper does not
say how much its prior weighs. `paper`: prior over the number of entries, at least one slice of each bond kept.
`paper-min-keep-0`: the same, and bonds may become empty, as in the paper's code. `full-prior`: the prior as the formula
reads. `direct`: ranks 4, no gates.

`settled` is the setting that we recommend: cores begin half as large, 1,000 steps go without gates, then gates begin
open (`alpha` 3) under the prior at its full weight, which now has something to compare a slice with. It was chosen on
these seeds: with `alpha` 2 half of the ten lost a slice that was needed (median -0.61), and with 0.4 of the prior six
seeds kept 5.3 to 6 slices a bond (records of these two were not kept). One seed of ten is still cut too far.
"""

MNIST = """\
The 2FC-Net of the paper, 784-625-10, both layers tensor trains of ranks 20, 300 epochs. Compression is that of the
whole net with its biases; accuracy is that of the pruned module on the 10,000 test images. The paper has ten seeds a
row; the other seeds are added by `tnmars reproduce mnist-2fc --seeds 0-9`.
"""

FIT = """\
Ranks of planted tensors, found by `tnmars fit` with one setting for all, the noise not told. [How it works, and what is
called good](fit.md).
"""

DEMO = """\
How often the planted ranks of `make demo` come back: exactly for the tensor train; for the block-term graph, whose
ranks are not unique, with an error of at most 1.5 times the noise and 1.1 times the parameters.
"""


def text() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, words in (("toy", TOY), ("tucker", TUCKER), ("mnist-2fc", MNIST)):
        found = _read(f"{name}.json")
        if found is not None:
            head, _, rest = page(found).partition("\n\n")
            parts += [head + "\n", words, rest + "\n", *_plots(name)]
    parts += [*_step(), *_fit(), *_demo()]
    return "\n".join(parts)


def _read(name: str) -> Any:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


PLOTS = {
    "gates-soft": "The probabilities of the gates that the first seed of `soft` learned; what is above 0.5 is kept.",
    "gates-hard": "The same of `hard`.",
    "pi": "The ablation of pi: `alpha` -1.5, all else as in `soft`. A point is a run.",
}


def _plots(name: str) -> list[str]:
    return [
        f"![{words}](results/{name}-{plot}.svg)\n\n{words}\n"
        for plot, words in PLOTS.items()
        if (RESULTS / f"{name}-{plot}.svg").exists()
    ]


def _step() -> list[str]:
    found = _read("step.json")
    if found is None:
        return []
    chain, ours = found["chain"] * 1e3, max(found["ours"]) * 1e3
    words = (
        f"2FC-Net, ranks 20, batch {found['batch']}, one thread, optimiser included, medians of"
        f" {found['rounds']} turns: {chain:.1f} ms for the chain from left to right with masks on the"
        f" activations, as the reference does it, written as plain torch; {ours:.1f} ms for the compiled layers, which"
        f" contract open slices alone. {found['ratio']:.1f} times faster; {found['wanted']:g} wanted."
        " `python tests/bench/reference.py` prints it.\n"
    )
    return ["## A training step with masks\n", words]


FITTED = {
    "tt": "TT (3,4,2) of 8^4, from (8,10,8)",
    "tucker": "Tucker (3,4,5) of 16^3, from 10",
    "ring": "ring (2,3,2,3) of 8^4, from 6",
    "cp": "CP 5 of 16^3, from 12",
    "block-term": "block-term (2,2,2)+(3,2,2) of 16^3, from (6,6,6)+(6,6,6)",
    "tree": "random tree, 8 cores, ranks 2-5, from 10",
    "completion": "CP 5 of 20^3, 30 % seen, from 12",
}


def _fit() -> list[str]:
    found = _read("fit.json")
    if found is None:
        return []
    rows = [["planted", "noise", "good", "wanted", "largest error / noise", "CPU seconds, median (largest)"]]
    for row in found["summary"]:
        seconds = f"{row['median_cpu_seconds']:.1f} ({row['most_cpu_seconds']:.1f})"
        good = f"{row['good']} of {row['runs']}"
        told = [FITTED[row["case"]], f"{100 * row['noise']:g} %", good, row["wanted"]]
        rows.append([*told, f"{row['worst_error_over_noise']:.3f}", seconds])
    return [
        "## fit\n",
        FIT,
        as_table(rows) + "\n",
        _again(found, "fit_acceptance", "fit"),
    ]


def _demo() -> list[str]:
    found = _read("demo.json")
    if found is None:
        return []
    rows = [["graph", "came back", "wanted", "parameters over planted, largest", "error over noise, largest"]]
    for name in dict.fromkeys(run["case"] for run in found["runs"]):
        own = [run for run in found["runs"] if run["case"] == name]
        size = max(run["parameters"] / run["planted_parameters"] for run in own)
        error = max(run["error"] / run["noise"] for run in own)
        good = f"{sum(run['came_back'] for run in own)} of {len(own)}"
        rows.append([name, good, "9 of 10", f"{size:.3f}", f"{error:.3f}"])
    return [
        "## demo\n",
        DEMO,
        as_table(rows) + "\n",
        _again(found, "demo_seeds", "demo"),
    ]


def _again(found: Any, script: str, name: str) -> str:
    command = f"python tests/scripts/{script}.py --out docs/results/{name}.json"
    return f"Commit: {found['commit']}. Run again with `{command}`.\n"
