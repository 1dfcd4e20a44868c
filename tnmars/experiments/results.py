"""An experiment's records as one value, as a section of a page and as plots.

It is what `tnmars reproduce` shows, what is kept in docs/results, and what docs/results.md is made of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tnmars.errors import TnmarsError
from tnmars.experiments import idx, mnist, plots
from tnmars.experiments.catalog import EXPERIMENTS
from tnmars.experiments.tables import as_table, markdown, records, summary
from tnmars.experiments.targets import HEAD, judged
from tnmars.files import make_folder, write_text

Found = dict[str, Any]


def collected(name: str, folder: Path, *, data: str | None = None, epochs: int | None = None) -> Found:
    """All records of runs of one length with their summary; histories are left out, for they are long."""
    known = (*EXPERIMENTS[name].variants, *EXPERIMENTS[name].more)
    found = [record for record in records(name, folder) if record.get("epochs") == epochs]
    found.sort(key=lambda record: known.index(record["variant"]))
    if not found:
        raise TnmarsError(f"there is no record of {name} in {folder}.")
    value: Found = {
        "experiment": name,
        "summary": summary(found),
        "records": [{**record, "result": _short(record["result"])} for record in found],
    }
    for variant, (count, accuracy) in _ensembles(EXPERIMENTS[name].ensembled, folder, data).items():
        value["summary"][variant]["ensemble"] = {"mean": accuracy, "deviation": 0.0, "median": accuracy, "of": count}
    return value


def _short(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "history"}


def _ensembles(variants: Sequence[str], folder: Path, data: str | None) -> dict[str, tuple[int, float]]:
    """For each variant, how many pruned networks there are, and the accuracy of all together; none without the data."""
    found = {}
    for variant in variants:
        members = sorted(path.parent for path in folder.glob(f"{variant}-*/small.safetensors"))
        members = [member for member in members if list(member.glob("record-*.json"))]
        if len(members) > 1 and idx.is_there(data):
            found[variant] = len(members), mnist.ensemble(members, variant, data)
    return found


def page(found: Found) -> str:
    """A section of Markdown: what was wanted, and all figures beside the paper's."""
    name = found["experiment"]
    lines = [f"## {name}", ""]
    wanted = judged(name, found["summary"])
    if wanted:
        lines += [as_table([HEAD, *wanted]), ""]
    lines += [markdown(found["summary"], EXPERIMENTS[name].paper), ""]
    for variant, entry in found["summary"].items():
        if "ensemble" in entry:
            told = f"`{variant}`, ensemble: the mean of the probabilities of {entry['ensemble']['of']} pruned networks."
            lines += [told, ""]
    if any(isinstance(record["result"].get("ranks"), list) for record in found["records"]):
        lines += [_collapses(found), ""]
    commits = sorted({commit for entry in found["summary"].values() for commit in entry["commits"]})
    lines.append(f"Commits: {', '.join(commits) or 'unknown'}. Run again with `tnmars reproduce {name}`.")
    return "\n".join(lines)


def _collapses(found: Found) -> str:
    """How many runs of each variant ended with an empty bond, or without one of two slices or more."""
    told = []
    for variant, entry in found["summary"].items():
        own = [record["result"]["ranks"] for record in found["records"] if record["variant"] == variant]
        told.append(f"`{variant}` {sum(max(ranks) <= 1 or min(ranks) == 0 for ranks in own)} of {len(entry['seeds'])}")
    return f"Collapsed, with an empty bond or none wider than 1: {', '.join(told)}."


def drawn(found: Found) -> dict[str, str]:
    """Plots by name: the learned gates of a variant's first seed, and the figures over pi where several were run."""
    result = {}
    more = EXPERIMENTS[found["experiment"]].more
    for record in (record for record in found["records"] if record["variant"] not in more):
        if record["seed"] == found["summary"][record["variant"]]["seeds"][0] and record["result"].get("probabilities"):
            label = f"{found['experiment']} {record['variant']}, seed {record['seed']}: probabilities of the gates"
            result[f"gates-{record['variant']}"] = plots.bars(record["result"]["probabilities"], label)
    ablation = pi_ablation(found)
    if len(ablation) > 1:
        panels = {
            f"{figure}{unit}": {pi: entry[figure]["all"] for pi, entry in ablation.items()}
            for figure, unit in (("compression", ", times"), ("accuracy", ", %"))
        }
        result["pi"] = plots.over(panels, "pi", "compression and accuracy over pi")
    return result


def pi_ablation(found: Found) -> dict[float, Mapping[str, Any]]:
    """The summaries of runs that differ in pi alone."""
    variants = EXPERIMENTS[found["experiment"]].over_pi
    return {pi: found["summary"][variant] for pi, variant in variants.items() if variant in found["summary"]}


def save(found: Found, folder: Path) -> list[Path]:
    """Writes the records as `NAME.json` and the plots as `NAME-PLOT.svg`."""
    make_folder(folder)
    name = found["experiment"]
    files = {f"{name}.json": json.dumps(found, indent=1) + "\n"}
    files |= {f"{name}-{plot}.svg": text for plot, text in drawn(found).items()}
    for file, text in files.items():
        write_text(folder / file, text)
    return [folder / file for file in files]
