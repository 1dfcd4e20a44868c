"""The top of a page: whether the model still works, then how much smaller and faster it is."""

from __future__ import annotations

from tnmars.errors import plural
from tnmars.graph.counts import Count
from tnmars.reporting.markup import Html, change, duration, number, ratio, tag, text
from tnmars.reporting.metrics import Metric, figure
from tnmars.reporting.sections import conditions
from tnmars.reporting.value import Report, Side
from tnmars.text.numbers import brief


def headline(report: Report) -> Html:
    """The title, one sentence, and a card for each figure. Metrics come first."""
    cards = [
        *map(_metric, report.metrics),
        _parameters(report),
        _against_dense(report),
        _macs(report),
        *([_latency(report)] if report.is_measured else []),
    ]
    title = tag("h1", text(report.title), tag("span", text("before and after"), class_="sub"))
    notes = [tag("p", text(note), class_="note") for note in report.notes]
    return tag("header", title, _sentence(report), tag("div", *cards, class_="cards"), *notes)


def _sentence(report: Report) -> Html:
    """What became of the model. A model that got much worse is not praised for its size."""
    bad = [metric for metric in report.metrics if metric.is_much_worse]
    if bad:
        lost = "; ".join(f"{metric.name} went from {figure(metric.before)} to {figure(metric.after)}" for metric in bad)
        words = (
            f"The model got much worse: {lost}. The figures of size and speed are those of a model that may be useless."
        )
        return tag("p", text(words), class_="lead bad")
    before, after = (_held(count) for count in (report.before, report.after))
    size = f"{change(before, after, 'fewer', 'more')} parameters" if before != after else "as many parameters as before"
    if not report.metrics:
        words = f"{size}. No metric was given, so this page does not say whether the model still works."
        return tag("p", text(f"{words[0].upper()}{words[1:]}"), class_="lead unknown")
    kept = ", ".join(f"{metric.name} {figure(metric.before)} → {figure(metric.after)}" for metric in report.metrics)
    return tag("p", text(f"{kept[0].upper()}{kept[1:]}, with {size}."), class_="lead")


def _metric(metric: Metric) -> Html:
    words = metric.change + (f"; {metric.source}" if metric.source else "")
    kind = "tile bad" if metric.is_much_worse else "tile"
    name = metric.name.replace("_", " ")
    return _card(f"{name[0].upper()}{name[1:]}", figure(metric.before), figure(metric.after), words, kind)


def _card(name: str, before: str, after: str, words: str, kind: str = "tile") -> Html:
    arrow = Html('<span class="arrow" aria-label="to">→</span>')
    figures = tag("p", tag("span", text(before), class_="from"), arrow, tag("b", text(after)), class_="figures")
    return tag("div", tag("p", text(name), class_="name"), figures, tag("p", text(words), class_="words"), class_=kind)


def _held(count: Count) -> int:
    return count.cores + count.other


def _parameters(report: Report) -> Html:
    before, after = _held(report.before), _held(report.after)
    words = f"{change(before, after, 'fewer', 'more')} in the whole model"
    return _card("Parameters", brief(before), brief(after), words)


def _against_dense(report: Report) -> Html:
    before, after = report.before, report.after
    words = f"{number(after.dense)} dense, {number(after.cores)} in cores"
    return _card("Weights against dense", ratio(before.dense, before.cores), ratio(after.dense, after.cores), words)


def _macs(report: Report) -> Html:
    before, after = (sum(side.macs for side in sides) for sides in _sides(report))
    words = f"{change(before, after, 'fewer', 'more')}; {_when(report)}"
    return _card("Multiply-adds", brief(before), brief(after), words)


def _latency(report: Report) -> Html:
    before, after = (sum(side.seconds or 0.0 for side in sides) for sides in _sides(report))
    dense = [layer.dense_seconds for layer in report.layers]
    known = [seconds for seconds in dense if seconds is not None]
    words = f"{change(before, after, 'faster', 'slower')} than before"
    if len(known) == len(dense):
        whole = sum(known)
        words += f". Dense takes {duration(whole)}: now {change(whole, after, 'faster', 'slower')}"
    words += f". {_when(report).capitalize()}, {plural(report.threads, 'thread')}"
    return _card("Measured latency", duration(before), duration(after), words)


def _sides(report: Report) -> tuple[list[Side], list[Side]]:
    return [layer.before for layer in report.layers], [layer.after for layer in report.layers]


def _when(report: Report) -> str:
    """The batch that the figures of all layers are for."""
    found = sorted({conditions(layer) for layer in report.layers})
    batch = found[0] if len(found) == 1 else "each layer's own batch"
    return batch if len(report.layers) == 1 else f"{batch}, sum of the layers"
