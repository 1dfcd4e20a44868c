"""The section on how a model was compressed: what became of each weight, and what that was expected to change."""

from __future__ import annotations

from tnmars.models.plan import CompressionPlan, WeightPlan
from tnmars.reporting.markup import Html, Row, number, ratio, row, table, tag, text
from tnmars.text.numbers import brief, dashed

HEADS = ("Weight", "family", "ranks", "parameters", "fewer", "MACs", "ms", "change")


def plan_section(plan: CompressionPlan | None) -> Html:
    """The section, or nothing without a plan."""
    if plan is None:
        return Html("")
    shown = table(HEADS, [*map(_line, plan.weights), _sum(plan)], "Compression plan")
    words = (
        f"Budget: {plan.budget}, for the whole model. Times are predicted. The last column is the expected squared "
        "change of the model's outputs, relative to their squared norm, without fine-tuning."
    )
    if plan.measured is not None:
        words += f" On data that were held out, the outputs changed by {plan.measured:.2%}."
    if plan.statistics:
        words += " Normalization statistics were re-estimated on the calibration data."
    parts = [tag("h2", text("Compression plan")), shown, tag("p", text(words), class_="hint")]
    if plan.rules:
        rules = ", ".join(f"{pattern} = {target}" for pattern, target in plan.rules.items())
        parts.append(tag("p", text(f"Rules, the first match wins: {rules}."), class_="hint"))
    return tag("section", *parts, id="plan", class_="card")


def _line(entry: WeightPlan) -> Row:
    if entry.graph is None:
        size = number(entry.before.parameters) if entry.before.parameters else ""
        return row([text(entry.name), text("dense"), text(entry.reason), text(size), *[text("")] * 4])
    cells = (
        entry.name,
        entry.family,
        dashed(entry.ranks.values()),
        f"{number(entry.before.parameters)} → {number(entry.after.parameters)}",
        ratio(entry.before.parameters, entry.after.parameters),
        f"{brief(entry.before.macs)} → {brief(entry.after.macs)}"
        if entry.before.macs != entry.after.macs
        else "unchanged",
        f"{entry.before.ms:.3g} → {entry.after.ms:.3g}" if entry.before.ms else "unchanged",
        f"{entry.loss:.2%}",
    )
    return row([*map(text, cells)])


def _sum(plan: CompressionPlan) -> Row:
    cells = (
        "whole model",
        "",
        "",
        f"{number(round(plan.parameters.before))} → {number(round(plan.parameters.after))}",
        ratio(round(plan.parameters.before), round(plan.parameters.after)),
        f"{brief(round(plan.macs.before))} → {brief(round(plan.macs.after))}",
        f"{plan.ms.before:.3g} → {plan.ms.after:.3g}",
        f"{plan.expected:.2%}",
    )
    return row([*map(text, cells)], class_="total")
