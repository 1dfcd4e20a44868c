"""The records of an experiment as one value, as a section of a page, and as plots.

`tnmars reproduce` prints it, docs/results keeps it, and docs/results.md is generated from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tnmars.errors import Problem, TnmarsError
from tnmars.experiments import idx
from tnmars.experiments.catalog import EXPERIMENTS, Experiment
from tnmars.experiments.jobs import network_name, record_name
from tnmars.experiments.speeds import measure, run_folder, with_speeds
from tnmars.experiments.tables import Record, expanded, markdown, records, summary
from tnmars.experiments.targets import HEAD, judged
from tnmars.files import make_folder, write_text
from tnmars.reporting import charts
from tnmars.text import tables

Collected = dict[str, Any]
ENSEMBLE = 5
"""The number of networks in an ensemble, if there are as many."""


def collected(name: str, folder: Path, *, data: str | None = None, epochs: int | None = None) -> Collected:
    """All records of runs with this number of epochs, and their summary. Histories are long and left out."""
    listed = _listed(name, folder, epochs)
    if not listed:
        raise TnmarsError(f"{folder} has no record of {name}.")
    listed = [with_speeds(EXPERIMENTS[name], folder, record) for record in listed]
    value: Collected = {
        "experiment": name,
        "summary": summary(listed),
        "records": [{**record, "result": _short(record["result"])} for record in listed],
    }
    for variant, (count, accuracy) in _ensembles(EXPERIMENTS[name], folder, listed, data).items():
        value["summary"][variant]["ensemble"] = {"mean": accuracy, "deviation": 0.0, "median": accuracy, "of": count}
    return value


def _listed(name: str, folder: Path, epochs: int | None) -> list[Record]:
    """The records of runs with this number of epochs, by variant and seed. Raises `TnmarsError`."""
    known = (*EXPERIMENTS[name].variants, *EXPERIMENTS[name].more)
    listed = [record for record in records(name, folder) if record.get("epochs") == epochs]
    for record in listed:
        if record["variant"] not in known:
            text = f"a {record_name(record['seed'])} is of variant '{record['variant']}', which {name} does not have."
            raise TnmarsError(Problem(f"{folder}: {text}", "Remove it, or move it elsewhere."))
    return sorted(listed, key=lambda record: (known.index(record["variant"]), record["seed"]))


def timed(
    name: str,
    folder: Path,
    *,
    data: str | None = None,
    epochs: int | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> None:
    """Times the small networks of all runs with this number of epochs that were not timed yet."""
    measure(name, folder, _listed(name, folder, epochs), data, say)


def _short(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "history"}


def _ensembles(
    experiment: Experiment, folder: Path, listed: Sequence[Record], data: str | None
) -> dict[str, tuple[int, float]]:
    """For each variant, the number of pruned networks and their accuracy as an ensemble; empty without the data.

    Only networks of the records listed count, and of these the first five seeds.
    """
    accuracies = {}
    for shown in experiment.ensembled:
        variant, _, budget = shown.partition(" ")
        own = [record for record in listed if record["variant"] == variant]
        files = [run_folder(folder, record) / network_name(budget) for record in own]
        files = [file for file in files if file.exists()][:ENSEMBLE]
        if len(files) > 1 and experiment.ensemble is not None and idx.is_there(data):
            accuracies[shown] = len(files), experiment.ensemble(files, variant, data)
    return accuracies


def page(results: Collected) -> str:
    """A section of Markdown: the targets, and all figures next to the paper's."""
    name = results["experiment"]
    lines = [f"## {name}", ""]
    verdicts = judged(name, results["summary"])
    if verdicts:
        lines += [tables.markdown([HEAD, *verdicts]), ""]
    lines += [markdown(results["summary"], EXPERIMENTS[name].paper), ""]
    for variant, entry in results["summary"].items():
        if "ensemble" in entry:
            networks = f"{entry['ensemble']['of']} pruned networks"
            lines += [f"`{variant}`, ensemble: the mean of the probabilities of {networks}.", ""]
    if any(isinstance(record["result"].get("ranks"), list) for record in results["records"]):
        lines += [_collapses(results), ""]
    commits = sorted({commit for entry in results["summary"].values() for commit in entry["commits"]})
    lines.append(f"Commits: {', '.join(commits) or 'unknown'}. Run again with `tnmars reproduce {name}`.")
    return "\n".join(lines)


def _collapses(results: Collected) -> str:
    """How many runs of each variant ended with an empty bond, or with no bond of at least two slices."""
    counts = []
    for variant, entry in results["summary"].items():
        own = [record["result"]["ranks"] for record in expanded(results["records"]) if record["variant"] == variant]
        counts.append(
            f"`{variant}` {sum(max(ranks) <= 1 or min(ranks) == 0 for ranks in own)} of {len(entry['seeds'])}"
        )
    return f"Collapsed runs (an empty bond, or no bond wider than 1): {', '.join(counts)}."


def drawn(results: Collected) -> dict[str, str]:
    """Plots by name: the learned gates of each variant's first seed, and the figures over pi if several were run."""
    result = {}
    more = EXPERIMENTS[results["experiment"]].more
    for record in (record for record in results["records"] if record["variant"] not in more):
        if not record["result"].get("probabilities"):
            continue
        if record["seed"] == results["summary"][record["variant"]]["seeds"][0]:
            label = f"{results['experiment']} {record['variant']}, seed {record['seed']}: probabilities of the gates"
            result[f"gates-{record['variant']}"] = charts.gates_file(record["result"]["probabilities"], label)
    ablation = pi_ablation(results)
    if len(ablation) > 1:
        panels = {
            f"{figure}{unit}": {pi: entry[figure]["all"] for pi, entry in ablation.items()}
            for figure, unit in (("compression", ", times"), ("accuracy", ", %"))
        }
        result["pi"] = charts.points_file(panels, "pi", "compression and accuracy over pi")
    series = against_size(results)
    if len(series) > 1:
        label = f"{results['experiment']}: accuracy against compression, each point a run"
        result["size"] = charts.series_file(series, "compression, times", "accuracy, %", label)
    return result


def against_size(results: Collected) -> dict[str, list[tuple[float, float]]]:
    """For each variant, and for the paper, compression and accuracy of all runs."""
    both = ("compression", "accuracy")
    series = {
        variant: list(zip(*(entry[figure]["all"] for figure in both), strict=True))
        for variant, entry in results["summary"].items()
        if all(figure in entry for figure in both)
    }
    paper = EXPERIMENTS[results["experiment"]].paper
    published = [(entry["compression"], entry["accuracy"]) for entry in paper.values() if set(both) <= set(entry)]
    return {**series, "the paper": published} if series and published else series


def pi_ablation(results: Collected) -> dict[float, Mapping[str, Any]]:
    """The summaries of runs that differ only in pi, by their pi."""
    variants = EXPERIMENTS[results["experiment"]].over_pi
    return {pi: results["summary"][variant] for pi, variant in variants.items() if variant in results["summary"]}


def save(results: Collected, folder: Path) -> list[Path]:
    """Writes the records as `NAME.json` and the plots as `NAME-PLOT.svg`."""
    make_folder(folder)
    name = results["experiment"]
    files = {f"{name}.json": json.dumps(results, indent=1) + "\n"}
    files |= {f"{name}-{plot}.svg": text for plot, text in drawn(results).items()}
    for file, text in files.items():
        write_text(folder / file, text)
    return [folder / file for file in files]
