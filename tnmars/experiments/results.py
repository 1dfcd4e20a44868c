"""An experiment's records as one value, and as a page: what is kept in docs/results, and what docs/results.md shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tnmars.errors import TnmarsError
from tnmars.experiments import mnist
from tnmars.experiments.catalog import EXPERIMENTS
from tnmars.experiments.tables import markdown, records, summary


def collected(name: str, folder: Path, *, data: str | None = None) -> dict[str, Any]:
    """All records of an experiment with their summary; histories are left out, for they are long."""
    found = records(folder)
    if not found:
        raise TnmarsError(f"there is no record of {name} in {folder}.")
    value: dict[str, Any] = {
        "experiment": name,
        "summary": summary(found),
        "records": [{**record, "result": _short(record["result"])} for record in found],
    }
    if name == "mnist-2fc":
        value["ensembles"] = _ensembles(folder, data)
    return value


def _short(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "history"}


def _ensembles(folder: Path, data: str | None) -> dict[str, float]:
    """The accuracy of all pruned networks of a variant together."""
    found = {}
    for variant in ("soft", "hard"):
        members = sorted(path.parent for path in folder.glob(f"{variant}-*/small.safetensors"))
        if len(members) > 1:
            found[f"{variant}, {len(members)} networks"] = mnist.ensemble(members, variant, data)
    return found


def page(found: dict[str, Any]) -> str:
    """A section of Markdown."""
    name = found["experiment"]
    lines = [markdown(name, found["summary"], EXPERIMENTS[name].paper)]
    if found.get("ensembles"):
        told = "; ".join(f"{who}: {value:.2f} %" for who, value in found["ensembles"].items())
        lines += ["", f"Ensembles (mean of the probabilities of the pruned networks): {told}."]
    commits = sorted({commit for entry in found["summary"].values() for commit in entry["commits"]})
    lines += ["", f"Commits: {', '.join(commits) or 'unknown'}. Run again with `tnmars reproduce {name}`."]
    return "\n".join(lines)
