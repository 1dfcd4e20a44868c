"""The benchmark's contenders compute what the compiled layer does, and its figures come out right. No times here."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from bench import cold_tuning, convs, counting, many_layers, masks, report, small_layers, sweep, telling
from bench.__main__ import main
from bench.cases import MODES, Case, cases
from bench.memory import peak_memory
from bench.run import Row, Timing, others, run_case
from kit import SPECS

import tnmars
from tnmars.bench import single
from tnmars.bench.einsums import pairwise
from tnmars.bench.plain import push, rebuild
from tnmars.layer.forward import example_inputs
from tnmars.plan.cost import CostModel
from tnmars.timing.clock import training_step

CASES = {case.name: case for case in cases()}


def distance(one: torch.Tensor, two: torch.Tensor) -> float:
    assert one.shape == two.shape
    return float((one - two).norm() / two.norm().clamp_min(1e-3))


def test_the_table_has_fourteen_rows() -> None:
    assert len(CASES) == 14
    assert [case.name for case in cases("ring, cp")] == ["ring 1024 r10 (128)", "CP conv r64 (8)", "ring conv r8 (8)"]
    assert cases("nothing") == []


@pytest.mark.parametrize("name", CASES)
def test_every_contender_of_a_case_computes_the_layer(name: str) -> None:
    case = CASES[name]
    layer = tnmars.compile(case.graph, batch=case.batch, image=case.image)
    x = case.make_input()[:2]
    found = others(case, layer)
    assert sum(contender.origin == "plain" for contender in found) >= 2
    with torch.no_grad():
        wanted = layer(x)
        assert case.dense()(x).shape == wanted.shape
        for contender in found:
            if contender.is_same:
                assert distance(contender.run(x), wanted) < 1e-4, contender.name


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_plain_torch_computes_any_graph(path: Path) -> None:
    graph = tnmars.load(path)
    layer = tnmars.compile(graph, batch=4, image=12, dtype=torch.float64)
    inputs = example_inputs(graph, 4, 12, torch.float64)
    cores = {name: layer.cores.get(name) for name in graph.cores}
    contenders = [push(graph, cores, layer.bias, 4), None if graph.kind == "map" else rebuild(graph, cores, layer.bias)]
    compared = [contender for contender in contenders if contender is not None]
    assert compared
    with torch.no_grad():
        for contender in compared:
            assert distance(contender.run(*inputs), layer(*inputs)) < 1e-9, contender.name


def test_pairwise_follows_a_path_with_a_bond_of_four_ends() -> None:
    values = [torch.randn(size, 3, dtype=torch.float64) for size in (4, 5, 6, 7)]
    labels = [(name, "r") for name in "abcd"]
    run = pairwise(labels, {"a": 4, "b": 5, "c": 6, "d": 7, "r": 3}, ("d", "b", "a", "c"))
    assert distance(run(values), torch.einsum("ar,br,cr,dr->dbac", *values)) < 1e-12


def test_memory_is_counted_from_allocations() -> None:
    kept = []
    assert 4_000_000 <= peak_memory(lambda: kept.append(torch.empty(1_000_000)), []) < 4_100_000
    weight = torch.randn(500, 500, requires_grad=True)
    step = training_step(lambda x: x @ weight, [torch.randn(10, 500)], [weight])
    assert 1_000_000 <= peak_memory(step, [weight]) < 1_300_000
    assert peak_memory(step, [weight]) == peak_memory(step, [weight])
    assert weight.grad is None


def row(ours: float, again: float, peer: float, plain: float) -> Row:
    case = replace(CASES["ring conv r8 (8)"], targets=(0.5, 0.5, 0.5))
    rivals = (
        Timing("p", "tednet", peer, True, 80),
        Timing("other", "tednet", 0.01, False),
        Timing("q", "plain", plain),
    )
    timings = {
        mode: (Timing("dense", "dense", 1.0), Timing(mode, "ours", ours, True, 60), Timing("again", "ours", again))
        for mode in ("compact", "train")
    }
    inference = (*timings["compact"], Timing("fast", "ours", ours), *rivals)
    return Row(case, 1, inference, (*timings["train"], *rivals), (("train", "push"),))


@pytest.mark.parametrize(
    ("ours", "again", "verdict"), [(0.5, 0.5, "met"), (0.52, 0.525, "MISSED"), (0.52, 0.6, "noise")]
)
def test_a_target_is_met_or_missed_or_lost_in_noise(ours: float, again: float, verdict: str) -> None:
    one = row(ours, again, 1.0, 1.0)
    assert [report.mark(one, [one], mode) for mode in MODES] == [verdict] * 3


def test_a_faster_rival_is_named_and_another_graph_is_none() -> None:
    slow = row(0.4, 0.41, 0.3, 0.395)
    assert report.lost_to(slow, [slow], "train") == ["p"]
    assert slow.speed_up("train") == pytest.approx(0.75)
    assert report.memory_verdict(slow) == "0.75"
    text = "\n".join(report.summary([slow]))
    assert "slower beyond noise: ring conv r8 (8): p" in text
    assert "0.75x the fastest peer in the median of 1 rows (MISSED, wanted 2x)" in text
    assert json.loads(json.dumps(report.as_json([slow])))[0]["train"]["slower_than"] == ["p"]


def test_a_case_runs_from_end_to_end() -> None:
    found = run_case(CASES["TT 784 r4-3-4 (1)"], rounds=1, tune=False)
    assert all(found.ratio(mode) > 0 for mode in MODES)
    assert {name for name, _ in found.forms} == set(MODES)
    assert found.of("train", "train").memory
    assert isinstance(found.case, Case)


def test_a_sweep_point_has_error_and_regret() -> None:
    sweep_name, at, graph, batch = next(iter(sweep.points()))
    point = sweep.measure(sweep_name, at, graph, batch, "train", CostModel(), rounds=1)
    assert point.error >= 0
    assert point.regret >= 1
    assert "median error" in sweep.summary([point])[0]
    assert len(sweep.table([point])) == 2


@pytest.mark.parametrize("stem", ["tt_linear", "tucker2_conv", "tt_embedding", "tucker_tensor", "bilinear_pooling"])
def test_one_graph_of_each_kind_is_timed(stem: str) -> None:
    result = single.bench_file(tnmars.load(SPECS[0].with_name(f"{stem}.yaml")), batch=2, image=8, rounds=1)
    assert {"compiled", "compact", "fast"} <= {name for name, _ in result.inference}
    assert len(single.table(result)[0]) == 5


def test_the_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "bench.json"
    assert main(["--quick", "--rows", "r4-3-4 (1)", "--no-sweep", "--json", str(target)]) == 0
    assert json.loads(target.read_text())["rows"][0]["case"] == "TT 784 r4-3-4 (1)"
    assert "speed" in capsys.readouterr().out
    assert main(["--rows", "nonsense", "--no-sweep"]) == 2


def test_convolutions_are_timed_in_both_formats() -> None:
    case = replace(convs.cases("CP r32 64")[0], batch=1, image=8)
    rows = [convs.measure(case, name, "training", rounds=1, budget=0.1, tune=False) for name in convs.FORMATS]
    assert all(row.is_kept and row.ratio > 0 and row.by_hand > 0 for row in rows)
    assert rows[0].macs == rows[1].macs < 1
    assert [len(cells) for cells in convs.table(rows)] == [len(convs.HEADER)] * 3


def test_a_fresh_process_tunes_and_times_all_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(convs.cases("ring r8 64")[0], batch=1, image=6)
    monkeypatch.setattr(convs, "cases", lambda name: [small])
    for mode in ("infer", "train"):
        found = cold_tuning.child("any", mode, 1)
        assert found.ratio >= 1
        assert found.macs > 0
        assert found.chosen


def test_multiply_adds_of_both_passes_are_counted_with_groups() -> None:
    """Each gradient takes as many as the forward pass."""
    x, weight = torch.randn(2, 6, 5, 7), torch.randn(9, 2, 3, 3, requires_grad=True)
    forward = 2 * 9 * 5 * 7 * 2 * 9
    run = partial(torch.nn.functional.conv2d, weight=weight, padding=1, groups=3)
    assert counting.macs(lambda: run(x)) == forward
    assert counting.macs(training_step(run, [x], [weight])) == 2 * forward
    inner = x.clone().requires_grad_()
    assert counting.macs(training_step(run, [inner], [weight, inner])) == 3 * forward
    up = torch.randn(6, 3, 2, 2, requires_grad=True)
    run = partial(torch.nn.functional.conv_transpose2d, weight=up, stride=2, groups=2)
    assert counting.macs(training_step(run, [x], [up])) == 2 * (2 * 6 * 5 * 7 * 3 * 4)
    row, matrix = torch.randn(5), torch.randn(4, 5)
    assert counting.macs(lambda: matrix @ row) == 20


def test_each_row_of_a_case_has_its_multiply_adds() -> None:
    found = run_case(CASES["Tucker-2 conv r32 (8)"], rounds=1, budget=0.1, tune=False, memory=False)
    outer, inner = 2 * 128 * 32, 9 * 32 * 32
    assert found.macs("compact") == pytest.approx((outer + inner) / (9 * 128 * 128))
    assert found.macs("train") == pytest.approx((3 * (outer + inner) - 128 * 32) / (2 * 9 * 128 * 128))
    assert found.target("train") == 1.05 * min(t.seconds for t in found.training if t.origin == "plain") / (
        found.training[0].seconds
    )
    assert "(0.118)" in report.table([found])[1][1]


def test_targets_of_masks_are_those_of_whole_steps() -> None:
    small = masks.MaskRow(CASES["TT 784 r4-3-4 (1)"], 1, 1.0, 1.0, 9.0, 1.0, 1.0, 9.0, 1.0, 0.5)
    rows = [
        masks.MaskRow(CASES["TT 784 r20 (128)"], 1, 1.0, 1.0, 1.5, 1.0, 1.0, step, 1.0, 0.5)
        for step in (1.0, 1.07, 1.3)
    ]
    text = "\n".join(masks.summary([small, *rows]))
    assert "3 layers with a batch of at least 32" in text
    assert "median over layers: 1.070 (target 1.08: met)" in text
    assert "worst: 1.300, TT 784 r20 (128) (target 1.2: MISSED)" in text
    assert json.loads(json.dumps(masks.as_json(rows)))[0]["step_ratio"] == 1.0


def test_what_masks_add_to_24_layers_is_printed() -> None:
    rows = [small_layers.Row("24 x a: whole step", 1.04, 1.0, small_layers.ADDED), small_layers.Row("other", 2.0, 1.0)]
    assert small_layers.summary(rows) == ["Masks add 4.0% to the 24 x a, whole step (target: under 10%, met)."]


def test_convolutions_are_compared_with_their_estimates_too() -> None:
    name, graph = next(iter(telling.CONVOLUTIONS.items()))
    found = telling.points(graph, name, 1, 1, 0.01, image=8)
    assert [point.mode for point in found] == ["infer", "train"]
    assert all(point.predicted > 0 and point.measured > 0 and point.macs < 1 for point in found)
    assert len(telling.CONVOLUTIONS) * len(telling.PLACES) * 2 == 20


def test_layers_of_a_model_are_compiled() -> None:
    assert many_layers.mac_ratio("low rank 128") == pytest.approx(
        (4 * 2 * 768 + 2 * (768 + 3072)) * 128 / (4 * 768**2 + 2 * 768 * 3072)
    )
    assert many_layers.seconds("TT r64", tune=False, blocks=1, device="meta") > 0
    assert len(many_layers.SHAPES) * many_layers.BLOCKS == 72
