"""The report: its value against counts and plans, its page as one file, and the page in a browser."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from math import prod
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from kit import inputs_of
from oracle import spec
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tnmars
from tnmars import cli
from tnmars.draw.look import Look
from tnmars.draw.traces import looks
from tnmars.experiments import worker
from tnmars.reporting import Report, collect, page
from tnmars.reporting.bonds import threshold
from tnmars.reporting.charts import Line, chart, gates
from tnmars.reporting.history import is_drawable, read_history

Printed = pytest.CaptureFixture[str]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
EVIL = "<script>alert(1)</script>"
TT = tnmars.families.tt("linear", inputs=(4, 3, 2), outputs=(2, 3, 4), rank=5)
BTD = tnmars.families.btd("linear", inputs=(4, 3), outputs=(2, 3), rank=3, terms=2)


def gated(graph: tnmars.Graph, keep: dict[str, int], **settings: object) -> tnmars.TNModule:
    """A layer whose gates keep the first so many slices of each bond, and none of what is not named."""
    layer = tnmars.compile(graph, selector=tnmars.Mars(**settings), batch=16)
    with torch.no_grad():
        for name, logits in zip(graph.bonds, layer.logits(), strict=True):
            logits.copy_(torch.where(torch.arange(logits.numel()) < keep.get(name, 0), 2.0, -2.0))
    return layer


@pytest.fixture(scope="module")
def model() -> nn.ModuleDict:
    torch.manual_seed(0)
    named = tnmars.loads(tnmars.dump(TT).replace("kind:", f'name: "{EVIL}"\nkind:', 1))
    first = gated(named, {"r1": 3, "r2": 1})
    second = gated(BTD, {name: 2 for name in BTD.bonds if name.startswith("t1.")}, min_keep=0)
    return nn.ModuleDict({"fc1": first, "fc2": second, "norm": nn.BatchNorm1d(24), "head": nn.Linear(6, 2)})


@pytest.fixture(scope="module")
def history(model: nn.ModuleDict) -> list[dict[str, object]]:
    ranks = {name: [bond.size for bond in model[name].graph.bonds.values()] for name in ("fc1", "fc2")}
    return [
        {"epoch": at, "loss": 3.0 / (at + 1), "accuracy": 90.0 + at, "temperature": 0.1, "ranks": ranks, "lr": 1e-3**at}
        for at in range(4)
    ]


@pytest.fixture(scope="module")
def found(model: nn.ModuleDict, history: list[dict[str, object]]) -> Report:
    return collect(model, tnmars.prune(model), history=history, measure=False)


# --- the value -------------------------------------------------------------------------------------------------------


def counted_macs(layer: tnmars.TNModule, batch: int) -> int:
    """The multiply-adds of a layer in evaluation, as torch counts them while it runs."""
    layer = copy.deepcopy(layer).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(*inputs_of(layer.graph, batch))
    return counter.get_total_flops() // 2


def test_counts_are_those_of_the_models(model: nn.ModuleDict, found: Report) -> None:
    small = tnmars.prune(model)
    for side, given in (("before", model), ("after", small)):
        summary = tnmars.summary(given)
        assert getattr(found, side) == summary.count
        for layer in found.layers:
            held = given[layer.name]
            numbers = getattr(layer, side)
            assert numbers.count == tnmars.count(held.graph)
            bias = 0 if held.bias is None else held.bias.numel()
            assert numbers.bytes == 4 * (sum(core.numel() for core in held.cores.parameters()) + bias)
            assert numbers.explained.macs == counted_macs(held, 16)
            assert numbers.seconds is None
    assert [layer.batch for layer in found.layers] == [16, 16]
    assert [layer.dense_macs for layer in found.layers] == [16 * 24 * 24, 16 * 12 * 6]
    assert [layer.dense_bytes for layer in found.layers] == [4 * (24 * 24 + 24), 4 * (12 * 6 + 6)]


@pytest.mark.parametrize("batch", [1, 3, 40])
def test_counts_are_for_the_batch_that_is_asked_for(batch: int) -> None:
    """Also where the plan was made for another one."""
    layer = tnmars.compile(tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2), batch=16)
    (seen,) = collect(layer, layer, batch=batch, measure=False).layers
    explained = seen.after.explained
    assert explained
    assert explained.steps[-1].shape == (batch, 5)
    assert explained.macs in (batch * 2 * (6 + 5), 6 * 5 * 2 + batch * 6 * 5)
    assert seen.dense_macs == batch * 30


def test_bonds_have_their_sizes_and_gates(model: nn.ModuleDict, found: Report) -> None:
    r1, r2 = found.layers[0].bonds
    assert (r1.shown, r1.ends, r1.before, r1.kept, r1.after, r1.fate) == ("r1", ("G1", "G2"), 5, 3, 3, "cut")
    assert (r2.before, r2.kept, r2.after, r2.fate) == (5, 1, None, "gone")
    assert r1.probabilities == pytest.approx(torch.sigmoid(model["fc1"].gates.get("r1")).tolist())
    assert r1.is_kept == (True, True, True, False, False)
    assert r1.useful == tnmars.summary(model).layers[0].bonds[0].useful
    fates = {bond.shown: bond.fate for bond in found.layers[1].bonds}
    assert {fate for name, fate in fates.items() if name.startswith("t1.")} == {"cut", "merged"}
    assert {bond.merged_into for bond in found.layers[1].bonds} == {"", "G"}
    assert {fate for name, fate in fates.items() if name.startswith("t2.")} == {"gone"}
    assert found.layers[0].threshold == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (tnmars.Mars(threshold=-2.0, min_keep=3), torch.sigmoid(torch.tensor(-2.0)).item()),
        (tnmars.GaussianGates(deviation=0.7), 0.5),
        (tnmars.Fixed(), None),
        (None, None),
    ],
)
def test_the_threshold_is_found_by_asking_the_selector(selector: object, expected: float | None) -> None:
    assert threshold(selector) == pytest.approx(expected)


def test_a_rule_that_no_one_number_decides_has_no_threshold() -> None:
    class Odd(tnmars.Mars):
        def keep(self, logits: torch.Tensor) -> torch.Tensor:
            return logits.abs() < 1.0

    assert threshold(Odd()) is None


def test_a_report_of_files_is_that_of_the_models(model: nn.ModuleDict, found: Report, tmp_path: Path) -> None:
    tnmars.save(model, tmp_path / "a")
    tnmars.save(tnmars.prune(model), tmp_path / "b")
    read = collect(tmp_path / "a", str(tmp_path / "b"), measure=False)
    assert read.as_json()["layers"] == found.as_json()["layers"]
    assert (read.before, read.after) == (found.before, found.after)
    assert read.history == ()


def test_a_checkpoint_brings_its_history(
    model: nn.ModuleDict, history: list[dict[str, object]], tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tnmars.save_checkpoint(tmp_path / "run", model, optimizer, extra={"history": history})
    assert list(collect(tmp_path / "run", tnmars.prune(model), measure=False).history) == history


def test_nothing_is_changed(model: nn.ModuleDict) -> None:
    small = tnmars.prune(model)
    states = [{key: value.clone() for key, value in given.state_dict().items()} for given in (model, small)]
    state = torch.get_rng_state()
    model.train()
    small.eval()
    collect(model, small, batch=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert model["fc1"].training
    assert not small["fc1"].training
    for given, before in zip((model, small), states, strict=True):
        assert all(torch.equal(value, before[key]) for key, value in given.state_dict().items())


@pytest.mark.parametrize(
    "name", ["tt_linear", "cp_conv", "tt_embedding", "tucker_tensor", "bag_embedding", "bilinear_pooling"]
)
def test_every_kind_is_measured(name: str) -> None:
    layer = tnmars.compile(spec(name), selector=tnmars.Mars(spread=1.0), batch=4, image=8)
    seen = collect(layer, tnmars.prune(layer))
    (only,) = seen.layers
    assert only.before.seconds > 0.0
    assert only.after.seconds > 0.0
    assert (only.dense_seconds is None) == (only.after.graph.kind == "map")
    assert "Measured in this process" in page(seen)


def test_models_with_nothing_in_common(model: nn.ModuleDict) -> None:
    with pytest.raises(tnmars.TnmarsError) as error:
        collect(model, nn.Linear(2, 2))
    assert str(error.value) == (
        "the two models have no compiled layer of the same name, so there is nothing to compare.\n"
        "  Before: fc1, fc2. After: none."
    )
    with pytest.raises(tnmars.TnmarsError) as error:
        collect(model, tnmars.compile(TT))
    assert "Before: fc1, fc2. After: the model itself." in str(error.value)
    with pytest.raises(tnmars.TnmarsError, match="a dict is not a model"):
        collect({}, model)  # type: ignore[arg-type]
    with pytest.raises(tnmars.TnmarsError, match="batch is 0"):
        collect(model, model, batch=0)
    with pytest.raises(tnmars.TnmarsError, match="the history is not a list of tables"):
        collect(model, model, history=[3], measure=False)  # type: ignore[list-item]


def test_layers_of_one_model_alone_are_reported(model: nn.ModuleDict) -> None:
    small = nn.ModuleDict({"fc1": tnmars.prune(model)["fc1"]})
    assert collect(model, small, measure=False).notes == ("compiled only before, and so not shown: fc2",)


# --- traces of what is gone ------------------------------------------------------------------------------------------


def test_bonds_that_are_gone_are_put_back_for_the_drawing() -> None:
    small = tnmars.prune(gated(TT, {"r1": 3, "r2": 1})).graph
    (_, first), (shown, look) = looks(TT, small)
    assert first == Look(5)
    assert look.gone == {("main", "r2")}
    assert {name: bond.size for name, bond in shown.bonds.items()} == {"r1": 3, "r2": 1}
    assert look.was == {("main", "r1"): 5, ("main", "r2"): 5}


def test_merged_cores_are_found_again() -> None:
    a, b, c = (tnmars.Core(*given) for given in (("A", ("i", "r")), ("B", ("r", "s")), ("C", ("s", "t", "o"))))
    d = tnmars.Core("D", ("t", "p"))
    modes = [tnmars.Edge("i", 4, "in"), tnmars.Edge("o", 4, "out"), tnmars.Edge("p", 4, "out")]
    bonds = [tnmars.Edge(name, 4) for name in "rst"]
    before = tnmars.Graph("linear", tuple(modes), (tnmars.Term("main", tuple(bonds), (a, b, c, d)),))
    merged = tnmars.Core("A", ("i", "s")), tnmars.Core("C", ("s", "o")), tnmars.Core("D", ("p",))
    after = before.with_terms([tnmars.Term("main", (tnmars.Edge("s", 2),), merged)])
    _, (shown, look) = looks(before, after)
    assert look.gone == {("main", "t")}  # r lies within A now
    assert shown.terms[0].ends()["t"] == ("C", "D")


def test_graphs_that_do_not_belong_together_are_drawn_as_they_are() -> None:
    _, (shown, look) = looks(TT, BTD)
    assert shown == BTD
    assert look.gone == frozenset()


def test_width_grows_with_rank() -> None:
    widths = [Look(64).width(size) for size in (1, 2, 16, 64)]
    assert widths == sorted(set(widths))
    assert widths[-1] == 12.0
    assert Look(1).width(1) == Look(500).width(1)


# --- the page --------------------------------------------------------------------------------------------------------


class Balance(HTMLParser):
    """Sees that every element is closed, and gathers tags and attributes."""

    VOID = ("meta", "br", "wbr")

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


LOADS = ("src", "srcset", "href", "xlink:href", "action", "formaction", "data", "poster", "background", "ping")
"""Attributes that name something outside."""


def test_the_page_is_whole_and_loads_nothing(found: Report) -> None:
    text = page(found)
    read = Balance(text)
    assert read.open == []
    links = [attributes[name] for _, attributes in read.seen for name in LOADS if name in attributes]
    assert links
    ids = [attributes["id"] for _, attributes in read.seen if "id" in attributes]
    assert {str(link).removeprefix("#") for link in links} <= set(ids)
    assert all(link and link.startswith("#") for link in links)
    assert not re.search(r"\b(url|src|image-set)\(", text)
    assert "@import" not in text
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert [tag for tag, _ in read.seen if tag in ("link", "img", "iframe", "object", "embed")] == []
    assert len(ids) == len(set(ids))


def test_names_are_escaped(found: Report, model: nn.ModuleDict) -> None:
    text = page(found)
    assert EVIL not in text
    assert "&lt;script&gt;" in text
    odd = nn.ModuleDict({"a<b": model["fc1"]})
    strange = collect(odd, tnmars.prune(odd), title=EVIL, history=[{EVIL: 1.0}, {EVIL: 2.0}], measure=False)
    assert EVIL not in page(strange)
    assert "a<b" not in page(strange)
    assert Balance(page(strange)).open == []


def test_everything_is_on_the_page(found: Report) -> None:
    text = page(found)
    for layer in found.layers:
        for bond in layer.bonds:
            assert text.count(f'data-key="{bond.key}"') >= 4
        assert f"{layer.before.count.cores:,} parameters" in text
    for part in ("Training", "Ranks over training", "Contraction order", "Weights alone", "Latency was not measured"):
        assert part in text
    assert dict(found.versions)["torch"] == str(torch.__version__)
    assert 'href="#layer-1"' in text


def test_without_history_there_is_no_section_of_training(model: nn.ModuleDict) -> None:
    text = page(collect(model, tnmars.prune(model), measure=False))
    assert 'id="training"' not in text
    assert "Ranks over training" not in text


@pytest.mark.parametrize("name", ["odd_one_core", "odd_four_ends", "odd_names", "peps_tensor", "odd_unconnected"])
def test_odd_graphs_have_a_page(name: str) -> None:
    layer = tnmars.compile(spec(name), selector=tnmars.Mars(spread=2.0), batch=4)
    small = tnmars.prune(layer) if layer.masks is not None else layer
    assert Balance(page(collect(layer, small, measure=False))).open == []


def test_a_layer_of_which_nothing_is_left() -> None:
    layer = gated(TT, {}, min_keep=0)
    text = page(collect(layer, tnmars.prune(layer)))
    assert "No term is left" in text
    assert 'class="gone-term" data-term="main"' in text


def test_a_layer_without_gates_has_none_to_show() -> None:
    layer = tnmars.compile(TT, batch=16)
    assert "The layer had no gates before" in page(collect(layer, layer, measure=False))


def test_warm_up_is_reported() -> None:
    layer = gated(TT, {"r1": 2, "r2": 2})
    tnmars.MaskSchedule(layer, total_steps=10, warmup_steps=5)
    seen = collect(layer, layer, measure=False)
    assert seen.layers[0].bonds[0].kept == 5
    assert "Warm-up was still on" in page(seen)


def gates_text(before: tnmars.TNModule, after: tnmars.TNModule) -> str:
    """What a page says of bonds and gates, without markup."""
    text = page(collect(before, after, measure=False))
    return re.sub(r"<[^>]+>", " ", text[text.index("Bonds and gates") : text.index("Size and speed")])


def test_a_cut_by_gates_alone_is_reported_as_that() -> None:
    layer = gated(TT, {"r1": 3, "r2": 4})
    told = gates_text(layer, tnmars.prune(layer))
    assert "Blue slices are kept by the gates." in told
    for other in ("further", "More slices", "not by gates", "not cut"):
        assert other not in told


def test_slices_left_out_besides_the_gates_are_reported() -> None:
    layer = gated(TT, {"r1": 3, "r2": 4})
    after = tnmars.compile(tnmars.families.tt("linear", inputs=(4, 3, 2), outputs=(2, 3, 4), ranks=(2, 4)))
    told = gates_text(layer, after)
    assert "Slices removed after the gates: r1 (3 to 2)." in told
    assert told.count("cut further than by gates") == 1
    assert [bond.beside for bond in collect(layer, after, measure=False).layers[0].bonds] == ["fewer", ""]


def test_a_layer_that_was_not_cut_as_its_gates_say_is_reported() -> None:
    layer = gated(TT, {"r1": 3, "r2": 5})
    told = gates_text(layer, layer)
    assert "More slices left than the gates keep: r1 (3 to 5)." in told
    assert told.count("as it was, not cut") == 1


def test_a_bond_that_is_gone_though_its_gates_keep_several_is_reported() -> None:
    layer = gated(TT, {"r1": 3, "r2": 4})
    told = gates_text(layer, tnmars.prune(gated(TT, {"r1": 3, "r2": 1})))
    assert "Removed for a reason other than its gates: r2 (4 to –)." in told
    assert "removed, not by gates" in told


def test_bonds_that_gates_drop_or_that_are_merged_need_no_words(found: Report) -> None:
    """Of the block term the second was shut, and cores of the first were merged."""
    for layer in found.layers:
        assert {bond.beside for bond in layer.bonds} == {""}
    btd = found.layers[1].bonds
    assert any(bond.is_in_shut_term for bond in btd)
    assert not all(bond.is_in_shut_term for bond in btd)


def test_a_bond_that_grew_is_reported() -> None:
    small, large = (tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=rank) for rank in (2, 4))
    (seen,) = collect(tnmars.compile(small), tnmars.compile(large), measure=False).layers
    assert [bond.fate for bond in seen.bonds] == ["grown"]
    assert "as it was" not in gates_text(tnmars.compile(small), tnmars.compile(large))


def test_many_slices_are_few_elements() -> None:
    chances = tuple(at / 2000 for at in range(2000))
    drawn = gates(chances, [c > 0.5 for c in chances], "r", 0.5)
    assert drawn.count("<rect") == 0
    assert drawn.count("<path") == 4


@pytest.mark.parametrize("limit", [0.0, 0.02, 0.5, 0.832, 0.97, 1.0])
def test_the_threshold_is_reported_within_the_drawing_and_upon_no_other_number(limit: float) -> None:
    drawn = gates((0.1, 0.9, 0.4), (False, True, False), "r", limit)
    told = re.findall(r'<text class="tick end[^"]*" x="([^"]+)" y="([^"]+)">([^<]+)</text>', drawn)
    beside = [entry for entry in told if entry[0] == told[0][0]]  # not the number of the last slice, below
    assert f"{limit:.2f}" in [label for *_, label in beside]
    assert all(float(x) - 0.65 * 11 * len(label) >= 0 for x, _, label in beside)  # digits are 0.64 of their size wide
    heights = sorted(float(y) for _, y, _ in beside)
    assert all(lower - upper >= 11 for upper, lower in pairwise(heights))


def test_lines_of_one_value_lie_apart() -> None:
    same = ((0.0, 5.0), (1.0, 5.0))
    drawn = chart([Line("a", same), Line("b", same), Line("c", same)], "x", steps=True)
    heights = [float(y) for y in re.findall(r'<circle cx="[^"]+" cy="([^"]+)"', drawn)]
    assert len(set(heights)) == 3
    assert max(heights) - min(heights) <= 10


def test_the_overview_adds_up(found: Report) -> None:
    text = page(found)
    lines = re.search(r'<section id="overview".*?</section>', text, re.S)
    assert lines
    before, after = (sum(getattr(layer, side).count.cores for layer in found.layers) for side in ("before", "after"))
    last = lines[0][lines[0].index("all of them") :]
    shown = re.findall(r'<span class="whole">([^<]+)</span>', last)
    assert shown[:2] == [f"{before:,}", f"{after:,}"]
    assert lines[0].count("<svg") == len(found.layers)


def test_what_grew_is_not_reported_as_if_it_had_shrunk() -> None:
    small = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=2)
    large = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=4)
    text = page(collect(tnmars.compile(small), tnmars.compile(large), measure=False))
    assert "1.81× more in the whole model" in text  # 27 and 49
    assert "fewer" not in text


def test_drawings_are_at_one_scale() -> None:
    layer = gated(tnmars.families.tt("linear", inputs=(2,) * 6, outputs=(2,) * 6, rank=4), {"r1": 2, "r3": 4})
    text = page(collect(layer, tnmars.prune(layer), measure=False))
    shares = [float(share) for share in re.findall(r"--share: ([0-9.]+)", text)]
    widths = [int(wide) for wide in re.findall(r'<svg [^>]*width="([0-9]+)"', text)]
    assert len(shares) == len(widths) == 2
    assert min(widths) < max(widths)
    assert shares == [pytest.approx(wide / max(widths), abs=1e-4) for wide in widths]


def test_charts_hold_odd_values() -> None:
    for points in ([(0.0, 1.0)], [(0.0, 0.0), (1.0, 0.0)], [(0.0, 1e-9), (1.0, 1e9)], [(5.0, -3.0), (6.0, -3.0)]):
        drawn = chart([Line("x", tuple(points))], "x")
        numbers = [float(text) for text in re.findall(r' c?[xy]="([^"]+)"', drawn)]
        assert all(-20 <= value <= 420 for value in numbers)
        assert Balance(drawn).open == []


@pytest.mark.parametrize("from_zero", [False, True])
@pytest.mark.parametrize("values", [(1e-100, 1e100), (-1e100, 1e100), (1e-100, 1e-100), (0.0, 1e-100), (-3.0, -3.0)])
def test_charts_hold_all_that_is_let_into_them(values: tuple[float, float], from_zero: bool) -> None:
    assert all(map(is_drawable, values))
    for points in (tuple(enumerate(values)), ((values[0], 1.0), (values[1], 2.0))):
        drawn = chart([Line("x", tuple((float(x), y) for x, y in points))], "x", from_zero=from_zero)
        numbers = [float(text) for text in re.findall(r' c?[xy]="([^"]+)"', drawn)]
        assert all(-20 <= value <= 420 for value in numbers)


def test_ticks_of_small_values_differ() -> None:
    drawn = chart([Line("x", ((0.0, 1e-15), (1.0, 3e-15)))], "x")
    labels = re.findall(r'<text class="tick end" x="45"[^>]*>([^<]+)<', drawn)
    assert len(set(labels)) == len(labels) >= 3


def test_values_beyond_a_chart_are_left_out_and_reported(model: nn.ModuleDict) -> None:
    small = tnmars.prune(model)
    losses = [1.0, 1e308, 5e-324, 10**400, float("nan"), 0.5, -(10**400)]
    ranks = {"fc1": [10**400, 5]}
    told = [{"epoch": at, "loss": loss, "odd": 10**400, "ranks": ranks} for at, loss in enumerate(losses)]
    text = page(collect(model, small, history=told, measure=False))
    assert "5 values not drawn: not finite, above 1e+100, or nearer to 0 than 1e-100." in text
    assert re.search(r"<figcaption><b>odd</b></figcaption><p class=\"hint\">7 values not drawn", text)
    assert "1e+308" not in text
    fine = page(
        collect(model, small, history=[{"epoch": 10**400, "loss": 1.0}, {"epoch": 1, "loss": 2}], measure=False)
    )
    assert 'id="training"' in fine
    assert "not drawn" not in fine


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command(model: nn.ModuleDict, history: list[dict[str, object]], tmp_path: Path, capfd: Printed) -> None:
    tnmars.save(model, tmp_path / "a")
    tnmars.save(tnmars.prune(model), tmp_path / "b")
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in history))
    command = ["report", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "r.html"), "--no-measure"]
    assert cli.run([*command, "--history", str(tmp_path / "log.jsonl"), "--batch", "3"]) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("accuracy: 93 -> 93\nfc1: 305 -> ")
    assert printed.endswith(f"wrote {tmp_path / 'r.html'}\n")
    assert "batch 3" in (tmp_path / "r.html").read_text()
    assert cli.run([*command, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert [layer["bonds"]["r1"]["after"] for layer in told["layers"] if layer["name"] == "fc1"] == [3]


def test_the_command_refuses(model: nn.ModuleDict, tmp_path: Path, capfd: Printed) -> None:
    tnmars.save(model, tmp_path / "a")
    same = str(tmp_path / "a")
    assert cli.run(["report", same, same, "-o", same]) == 2
    log = tmp_path / "log.jsonl"
    log.write_text('{"epoch": 0, "loss": 1.0}\n')
    assert cli.run(["report", same, same, "--history", str(log), "-o", f"{tmp_path}/../{tmp_path.name}/log.jsonl"]) == 2
    assert "is an input and would be overwritten" in capfd.readouterr().err
    assert log.read_text() == '{"epoch": 0, "loss": 1.0}\n'
    assert cli.run(["report", same, str(tmp_path / "none"), "-o", str(tmp_path / "r")]) == 2
    assert "cannot be read: No such file or directory." in capfd.readouterr().err
    (tmp_path / "log").write_text("{")
    assert cli.run(["report", same, same, "-o", str(tmp_path / "r"), "--history", str(tmp_path / "log")]) == 2
    assert "is not JSON" in capfd.readouterr().err
    assert not (tmp_path / "r").exists()


ENTRIES = [{"epoch": 0, "loss": 2.0}, {"epoch": 1, "loss": 1.0}]


@pytest.mark.parametrize(
    "text",
    [
        "".join(json.dumps(entry) + "\n" for entry in ENTRIES),
        json.dumps(ENTRIES),
        json.dumps({"history": ENTRIES}),
        json.dumps({"experiment": "mnist-2fc", "seed": 0, "result": {"ranks": {}, "history": ENTRIES}}),
    ],
)
def test_a_history_is_read_in_every_form(text: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    assert list(read_history(tmp_path / "log")) == ENTRIES


def test_a_log_of_one_line_is_a_history(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(json.dumps(ENTRIES[0]))
    assert list(read_history(tmp_path / "log")) == ENTRIES[:1]


def test_the_record_of_a_run_brings_its_history(tmp_path: Path) -> None:
    """As `tnmars reproduce` writes it, so that a change there is noticed here."""
    command = ["tucker", "paper", "0", "--out", str(tmp_path), "--epochs", "2"]
    assert worker.main(command) == 0
    (record,) = tmp_path.glob("record*.json")
    told = read_history(record)
    assert told
    assert list(told) == json.loads(record.read_text())["result"]["history"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it is empty"),
        ("[]", "it is empty"),
        ('{"history": []}', "it is empty"),
        ('[{"epoch": 0}, {"epoch": 1, "note": "x"}]', "no entry has a number or ranks"),
        ('{"experiment": "toy", "result": {"seed": 3}}', "it is a table of experiment, result"),
    ],
)
def test_a_file_without_a_history_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(tnmars.TnmarsError) as error:
        read_history(tmp_path / "log")
    assert str(error.value).startswith(f"{tmp_path / 'log'}: there is no history in it: {told}.\n")
    assert "a line of JSON for each epoch" in str(error.value)


def test_report_stays_a_function() -> None:
    import tnmars.reporting

    assert callable(tnmars.report)


# --- in a browser ----------------------------------------------------------------------------------------------------

PROBE = """
<script>
const told = {};
try {
  const layer = document.getElementById("layer-0");
  const lit = () => [...layer.querySelectorAll(".lit")].map(part =>
    part.dataset.core || part.tagName.toLowerCase() + ":" + part.dataset.key).sort();
  const bond = layer.querySelector(".after g[data-ends][data-key='main.r1']");
  told.ends = bond.dataset.ends;
  bond.querySelector(".hit").dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
  told.pointed = lit();
  document.body.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
  told.left = lit();
  const row = layer.querySelector("tr[data-key='main.r2']");
  row.focus();
  told.active = document.activeElement === row && row.tabIndex === 0 && bond.tabIndex === 0;
  row.dispatchEvent(new FocusEvent("focusin", {bubbles: true}));  // a window without focus sends none
  told.focused = lit();
  row.dispatchEvent(new FocusEvent("focusout", {bubbles: true}));
  told.blurred = lit();
  told.other = document.querySelectorAll("#layer-1 .lit").length;
  told.wide = document.documentElement.scrollWidth <= innerWidth;
  told.drawn = [...document.querySelectorAll("svg")].every(part => part.getBoundingClientRect().width > 50);
  told.clipped = [...document.querySelectorAll("svg.bars text, svg.chart text")].filter(part => {
    const box = part.getBBox(), frame = part.ownerSVGElement.viewBox.baseVal;
    return box.x < 0 || box.y < 0 || box.x + box.width > frame.width || box.y + box.height > frame.height;
  }).map(part => part.textContent);
  const code = document.getElementById("spec-0");
  told.spec = code.textContent;
  document.querySelector("[data-copy]").click();
  told.loaded = performance.getEntriesByType("resource").length;
} catch (error) { told.error = String(error); }
document.title = JSON.stringify(told);
</script>
"""


def browse(path: Path, folder: Path, *more: str) -> tuple[str, str]:
    """The page once its scripts have run, and what the browser wrote on its console.

    A browser that is there but does not start is a failure: without it nothing is tested here.
    """
    assert BROWSER
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", "--virtual-time-budget=3000"]
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0", *QUIET, *more]
    command = [BROWSER, *flags, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert "</html>" in done.stdout, f"{BROWSER} shows nothing: {done.stderr[-500:]}"
    return done.stdout, done.stderr


QUIET = [
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
]
"""What the browser would ask for of its own accord."""
OWN = {"accounts.google.com", "clients2.google.com", "update.googleapis.com", "www.google.com"}
"""The hosts that it asks all the same."""
NOBODY = "not an origin"
"""In its log, who has asked for what no page has asked for."""


def asked(path: Path, folder: Path) -> list[str]:
    """What a page asks the network for, by the browser's own log."""
    log = folder / "net.json"
    browse(path, folder / "profile", f"--log-net-log={log}")
    events = [event["params"] for event in json.loads(log.read_text())["events"] if "url" in event.get("params", {})]
    assert events, "the browser asks for its own updates at least, so an empty log is none"
    by_pages = [event["url"] for event in events if event.get("initiator", NOBODY) != NOBODY]
    elsewhere = [event["url"] for event in events if urlsplit(event["url"]).hostname not in OWN]
    return sorted({url for url in (*by_pages, *elsewhere) if not url.startswith(("file:", "data:"))})


def console(log: str) -> list[str]:
    """What the page itself has complained about."""
    return [line for line in log.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
@pytest.mark.parametrize("wide", [1400, 500])
def test_pointing_at_a_bond_lights_it_up(found: Report, tmp_path: Path, wide: int) -> None:
    text = page(found)
    policy = re.search(r"script-src '([^']+)'", text)
    assert policy
    copy = text.replace(policy[0], "script-src 'unsafe-inline'").replace("</body>", f"{PROBE}</body>")
    (tmp_path / "copy.html").write_text(copy)
    dom, log = browse(tmp_path / "copy.html", tmp_path / "profile", f"--window-size={wide},900")
    title = re.search(r"<title>(.*?)</title>", dom, re.S)
    assert title
    told = json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert "error" not in told
    assert told["ends"] == "G1 G2"
    # before and after: the line, its label, both cores; then the bars, the row, the line and name in the chart of ranks
    line = ["g:main.r1"] * 5
    assert told["pointed"] == sorted(["G1", "G1", "G2", "G2", *line, "figure:main.r1", "tr:main.r1", "span:main.r1"])
    assert told["left"] == told["blurred"] == []
    assert {"G2", "G3", "tr:main.r2", "figure:main.r2"} <= set(told["focused"])
    assert told["active"]
    assert told["other"] == 0
    assert told["wide"]
    assert told["drawn"]
    assert told["clipped"] == []
    assert told["spec"] == found.layers[0].spec
    assert told["loaded"] == 0
    assert console(log) == []


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
def test_the_page_itself_is_quiet_and_asks_for_nothing(found: Report, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page(found))
    dom, log = browse(tmp_path / "report.html", tmp_path / "profile")
    assert console(log) == []
    assert "alert(1)" in dom
    assert EVIL not in dom
    assert asked(tmp_path / "report.html", tmp_path) == []


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
def test_requests_are_seen(found: Report, tmp_path: Path) -> None:
    """A test of the test: a page without the policy that asks for a font, also of a host that the browser asks."""
    wanted = [
        "https://accounts.google.com/icon.png",
        "https://example.com/x.png",
        "https://fonts.googleapis.com/css?family=Roboto",
    ]
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page(found))
    images = "".join(f'<img src="{url}">' for url in wanted[:2])
    font = f'<link rel="stylesheet" href="{wanted[2]}">'
    (tmp_path / "bad.html").write_text(text.replace("</head>", f"{font}</head>").replace("</body>", f"{images}</body>"))
    assert asked(tmp_path / "bad.html", tmp_path) == wanted


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
def test_the_console_is_seen(found: Report, tmp_path: Path) -> None:
    """A test of the test: an error, and a request against the policy, would be noticed."""
    wrong = "<script>alert(1)</script><img src='https://example.com/x.png'>"
    (tmp_path / "bad.html").write_text(page(found).replace("</body>", f"{wrong}</body>"))
    _, log = browse(tmp_path / "bad.html", tmp_path / "profile")
    assert len(console(log)) >= 2


def test_sizes_of_shapes_are_those_of_the_steps(found: Report) -> None:
    for layer in found.layers:
        explained = layer.after.explained
        assert explained
        assert all(step.written == 4 * prod(step.shape) for step in explained.steps)
