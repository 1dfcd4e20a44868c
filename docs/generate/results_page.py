"""The page of results, from the records in docs/results. The text is here; every figure comes from a record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shrink_section import section

from tnmars.experiments.results import page
from tnmars.experiments.targets import judged
from tnmars.experiments.verdicts import five_lines
from tnmars.text.tables import markdown as as_table

RESULTS = Path(__file__).parent.parent / "results"

HEAD = """\
<!-- made by `python docs/generate`; do not edit -->
# Results

The results of the experiments over all seeds that were run, next to their targets and to the figures in the
paper. Every figure comes from a record that names the commit that made it: {records}. Each run used one thread on a
machine with two cores that was also doing other work. So times are CPU time, and are left out where only wall-clock
time was recorded. `tnmars reproduce --all` runs what is missing.
"""

TOY = """\
A linear classifier of low rank, 128 to 32, learns from a teacher of rank 8, 12 or 16; the student starts with
rank 32. The schedule is that of the paper's notebooks: Adam 1e-2, 300 epochs, batch 128, learning rate and
temperature both multiplied by 0.99 per epoch. `dense` is a plain linear layer with the same schedule. The paper
chose `alpha` for each rank of the teacher (-4, -3.5, -3), so the rank is partly set by hand. `shrink` and `search`
(`tnmars.search_ranks` at ten budgets) choose the rank on the last 1,000 training samples: the smallest within two
standard errors of the best. `ard` is a prior on whole slices, as in LR-BTNN, with the same schedule as `mars`.
"""

TUCKER = """\
A tensor of 8^4 with Tucker ranks 4, fitted from ranks 8 by plain gradient descent in 10,000 steps. The
log-likelihood is minus the mean squared error of the pruned network; the mean square of the tensor itself is
several hundred. The paper does not say how much weight its prior has. `paper`: prior divided by the number of
entries, at least one slice of each bond kept. `paper-min-keep-0`: the same, but bonds may become empty, as in
the paper's code. `full-prior`: the prior as in the formula. `direct`: ranks 4, no gates.

`settled` is the setting that we recommend: cores start half as large, the first 1,000 steps run without gates,
then gates start open (`alpha` 3) under the prior at its full weight; by then the slices differ in how much they
matter. It was chosen on these seeds: with `alpha` 2, half of the ten lost a slice that was needed (median
-0.61), and with 0.4 of the prior, six seeds kept 5.3 to 6 slices per bond (the records of these two were not
kept). One seed of ten is still pruned too far. `ard` is a prior on whole slices, with Adam. `search` is
`tnmars.search_ranks` within a budget of 10x, which is given: the planted ranks take 10.7x.
"""

MNIST = """\
The 2FC-Net of the paper, 784-625-10, both layers tensor trains of ranks 20, 300 epochs. Compression counts the
whole network with its biases; accuracy is that of the pruned module on the 10,000 test images. The paper has
ten seeds per row; `tnmars reproduce mnist-2fc --seeds 0-9` adds the missing ones. `ard` is a prior on whole slices
instead of gates, trained with the same schedule; the paper's figures beside it are those of LR-BTNN. `shrink` chooses
on the last 5,000 training images, and trains on the others.
"""

LENET = """\
LeNet-5 (20-50-500-10, no padding) on MNIST. Compression counts the whole network with its biases. Speed is that of the
frozen network on the 10,000 test images against the dense one: one thread, measured in turns, CPU time, after all runs
(`tnmars reproduce lenet5 --speed`). `mars-tucker` follows the paper's rule: Tucker-2 and low rank from ranks 20, 20,
100, pi 1e-2, `alpha` 0, and its initial values. The paper has no schedule for this network; ours is that of its
notebooks for the 2FC-Net in a quarter of the epochs, 75, and was not tuned. `mars-ring`
has the same gates on rings. `trn` are rings of equal ranks whose counts give the paper's compressions. `ring-20x` and
`ring-40x` are the controls of `shrink-ring`: its start ranks times one factor, as close to its budgets as whole ranks
allow, trained for 40 epochs on the same images. `evbmf` and `musco` decompose the trained dense network: once by EVBMF
(Kim et al.), or step by step (Gusak et al.); both have 24 epochs of fine-tuning. What chooses anything does so on 5,000
training images; the table says how many the others are.
"""

SST = """\
A table of 17,200 words, 256 wide, and a bidirectional LSTM of two layers with 128 states. Compression is that of the
table alone. Adam 1e-3 with a factor of 0.9 per epoch, batch 64, 16 epochs (tt-pytorch: a constant rate, batch 256, 100
epochs). Gates are open and fixed for the first 3 epochs; then they have a rate of 1e-2. `mars` has 30 epochs, and no
factor. In trials gates of 1e-3 hardly moved, and with gates of 1e-2 all bonds closed at first; in one of 60 epochs they
had opened again by epoch 16. More was not tuned. Trains start with tt-pytorch's variance. The epoch is chosen on the
official development set; for `shrink`, the point of the path within the budget.
"""

IMDB = """\
As `sst`, with 25,000 words and batch 128. Reduced: reviews are cut to their first 100 words (the paper: 1,000), 6
epochs (`mars`: 9, one of them before the gates move), and a fifth of the training reviews is for validation.
"""

RESNET = """\
`counts` are the compressions of ResNet-110 at rank 20, BatchNorm and projections included. Reduced: instead of
ResNet-110 trained from scratch, ResNet-56 with published weights (`pretrained`), whose equal convolutions of stages 2
and 3 are decomposed at rank 20 and trained for four epochs. Compression counts the whole network; layers compression
the decomposed layers, which have 4.5x at rank 20. The published weights were trained on all training images, those for
validation included; the test images are new to them. `ard` is a prior on whole slices, as in LR-BTNN. `resnet20` and
`resnet20-proper` (TT convolutions of rank 20) are ResNet-20 from scratch, for 32 epochs. The paper's figures are of
ResNet-110.
"""

COMPLETION = """\
A CP tensor of rank 5, 20^3, of which 30 % are seen with 1 % of noise; models start with rank 12. As planted: rank 5,
and an error of at most twice the noise on unseen entries. `ard` is the most likely point of a Bayesian CP model, which
does not know the noise.
"""

REGRESSION = """\
A number from an image of 32 x 32, by coefficients of rank 3; 1,500 samples, noise a tenth of the signal; models start
with rank 8. The error is that of the coefficients. As planted: rank 3, and an error of at most 0.1.
"""

GREEDY = """\
Tensors of 7^5 without noise: a tensor train of ranks 2, 3, 6, 5, and a ring of ranks 2, 3, 4, 5, 5. Bonds grow from 1
until the error is below 0.0001, also those of the train, which singular values would solve at once. In `topology` a
tensor train is hidden, and the complete graph grows.
"""

TT_RNN = """\
MNIST read row by row by a GRU with 128 states, 5 epochs. Compression is that of the input weights.
"""

SECTIONS = {
    "toy": TOY,
    "tucker": TUCKER,
    "mnist-2fc": MNIST,
    "lenet5": LENET,
    "sst": SST,
    "imdb": IMDB,
    "resnet110": RESNET,
    "completion": COMPLETION,
    "regression": REGRESSION,
    "greedy": GREEDY,
    "tt-rnn": TT_RNN,
}
"""What is said about each experiment; it has a section if it has records."""
REDUCED = {"imdb": "reviews of 100 words", "resnet110": "ResNet-56 and ResNet-20 instead of ResNet-110"}
"""Experiments that run in a reduced form, which the paper's figures are not of."""

FIT = """\
Ranks of planted tensors, found by `tnmars fit` with the same settings for all, without knowing the noise. [How
it works, and what counts as good](fit.md).
"""

DEMO = """\
How often `make demo` recovers the planted ranks: exactly for the tensor train; for the block-term graph, whose
ranks are not unique, with an error of at most 1.5 times the noise and at most 1.1 times the parameters.
"""


def text() -> str:
    """The whole page."""
    known = {name: found for name in SECTIONS if (found := _read(f"{name}.json")) is not None}
    others = [name for name in ("fit", "shrink", "demo", "step") if (RESULTS / f"{name}.json").exists()]
    records = ", ".join(f"[{name}](results/{name}.json)" for name in (*known, *others))
    parts = [HEAD.format(records=records), *_verdicts(known)]
    for name, found in known.items():
        head, _, rest = page(found).partition("\n\n")
        parts += [head + "\n", SECTIONS[name], rest + "\n", *_plots(name)]
    parts += [*section(), *_step(), *_fit(), *_demo()]
    return "\n".join(parts)


def _verdicts(known: Mapping[str, Any]) -> list[str]:
    """What reproduces, what does not and what is better, in five lines; then the targets of all experiments."""
    rows = [["experiment", "targets met", "missed", "not run, or with too few seeds"]]
    for name, found in known.items():
        judgments = judged(name, found["summary"])
        met = [row[0] for row in judgments if row[4] == "met"]
        missed = [f"{row[0]} ({row[2]}; {row[1]})" for row in judgments if row[4].startswith("missed")]
        rows.append([name, str(len(met)), "; ".join(missed), str(len(judgments) - len(met) - len(missed))])
    summaries = {name: found["summary"] for name, found in known.items()}
    lines = "\n".join(f"- {line}" for line in five_lines(summaries, REDUCED))
    return ["## What reproduces\n", lines + "\n", as_table(rows) + "\n"] if known else []


def _read(name: str) -> Any:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


PLOTS = {
    "gates-soft": "The gate probabilities that the first seed of `soft` learned; slices above 0.5 are kept.",
    "gates-hard": "The same for `hard`.",
    "size": "Accuracy against compression of all methods. Each point is a run, or a row of the paper.",
    "pi": "The ablation of pi: `alpha` -1.5, everything else as in `soft`. Each point is a run.",
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
        f"2FC-Net, ranks 20, batch {found['batch']}, one thread, optimizer included, medians of"
        f" {found['rounds']} rounds: {chain:.1f} ms for the chain from left to right with masks on the"
        f" activations, as in the reference code but in plain torch; {ours:.1f} ms for the compiled layers, which"
        f" contract only the open slices. This is {found['ratio']:.1f} times faster; the target was"
        f" {found['wanted']:g}."
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
    rows = [["planted", "noise", "good", "target", "largest error / noise", "CPU seconds, median (largest)"]]
    for row in found["summary"]:
        seconds = f"{row['median_cpu_seconds']:.1f} ({row['most_cpu_seconds']:.1f})"
        good = f"{row['good']} of {row['runs']}"
        case = [FITTED[row["case"]], f"{100 * row['noise']:g} %", good, row["wanted"]]
        rows.append([*case, f"{row['worst_error_over_noise']:.3f}", seconds])
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
    rows = [["graph", "recovered", "target", "largest parameters / planted", "largest error / noise"]]
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
