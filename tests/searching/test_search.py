"""`search_ranks` as a whole: the best ranks, budgets, failed trials, searches that go on, and what is refused."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from math import exp, inf, log, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tnmars
from tnmars import CheckpointError, Graph, TnmarsError, families
from tnmars.plan.cost import CostModel
from tnmars.program.form import measure, total
from tnmars.searching.costs import cost_of
from tnmars.searching.proposals import GENERATION

CHAIN = families.tt("tensor", free=(4, 5, 6, 7), rank=5)
Scores = Callable[[Graph, dict[str, int]], float]


def useful(graph: Graph, ranks: dict[str, int]) -> float:
    """Each bond is worth something of its own, and less with each further slice."""
    return sum(value * (1 - exp(-size / value)) for value, size in zip((3, 1, 2), ranks.values(), strict=True))


def entries(r1: int, r2: int, r3: int) -> int:
    """The entries of the cores of CHAIN, by hand."""
    return 4 * r1 + 5 * r1 * r2 + 6 * r2 * r3 + 7 * r3


def refused(*args: Any, **options: Any) -> str:
    """The text of the error that a search raises before anything is scored."""

    def score(graph: Graph, ranks: dict[str, int]) -> float:
        raise AssertionError("nothing may be scored")

    with pytest.raises(TnmarsError) as caught:
        tnmars.search_ranks(*(args or (CHAIN, score)), **{"budget": "10x", **options})
    return str(caught.value)


# --- the best ranks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["random", "cross-entropy"])
@pytest.mark.parametrize("budget", [60, 100, "6x"])
def test_with_enough_trials_the_best_of_all_ranks_is_found(method: str, budget: int | str) -> None:
    limit = 4 * 5 * 6 * 7 / 6 if budget == "6x" else budget
    within = [sizes for sizes in itertools.product(range(1, 6), repeat=3) if entries(*sizes) <= limit]
    best = max(within, key=lambda sizes: useful(CHAIN, dict(zip("abc", sizes, strict=True))))
    search = tnmars.search_ranks(CHAIN, useful, budget=budget, method=method)
    assert tuple(search.best.ranks.values()) == best
    assert search.best.score == max(trial.score for trial in search.trials) == useful(CHAIN, search.best.ranks)
    assert search.is_exhausted and search.limit == limit and search.unit == "parameters"


def test_what_is_scored_is_a_graph_with_these_ranks() -> None:
    seen: list[tuple[Graph, dict[str, int]]] = []

    def score(graph: Graph, ranks: dict[str, int]) -> float:
        seen.append((graph, dict(ranks)))
        assert {name: bond.size for name, bond in graph.bonds.items()} == ranks
        layer = tnmars.compile(graph)
        assert sum(value.numel() for value in layer.parameters()) == entries(**ranks) <= 100
        ranks.clear()  # the table is the function's own
        return -float(len(seen))

    search = tnmars.search_ranks(CHAIN, score, budget=100, trials=10)
    assert [trial.ranks for trial in search.trials] == [ranks for _, ranks in seen]
    assert [trial.graph for trial in search.trials] == [graph for graph, _ in seen]
    assert len({tuple(ranks.values()) for _, ranks in seen}) == 10
    assert [trial.number for trial in search.trials] == list(range(10)) and search.best is search.trials[0]
    assert all(trial.cost == trial.parameters == entries(**trial.ranks) for trial in search.trials)
    assert not search.is_exhausted


def test_several_graphs_share_the_budget() -> None:
    wide = families.lowrank("linear", inputs=(30,), outputs=(20,), rank=9)
    narrow = families.lowrank("linear", inputs=(8,), outputs=(6,), rank=6)

    def score(graphs: dict[str, Graph], ranks: dict[str, dict[str, int]]) -> float:
        assert {name: graph.bonds["r"].size for name, graph in graphs.items()} == {
            name: own["r"] for name, own in ranks.items()
        }
        return 2.5 * ranks["wide"]["r"] + ranks["narrow"]["r"]

    search = tnmars.search_ranks({"wide": wide, "narrow": narrow}, score, budget="3x")
    limit = (600 + 48) / 3  # 50 entries for a slice of one, 14 for a slice of the other
    every = {(one, other) for one in range(1, 10) for other in range(1, 7) if 50 * one + 14 * other <= limit}
    most = {(one, other) for one, other in every if not {(one + 1, other), (one, other + 1)} & every}
    seen = {(trial.ranks["wide"]["r"], trial.ranks["narrow"]["r"]) for trial in search.trials}
    assert seen == most == {(2, 6), (3, 4), (4, 1)}
    assert search.best.ranks == {"wide": {"r": 3}, "narrow": {"r": 4}} and search.best.parameters == 206
    assert search.best.graph["wide"].bonds["r"].size == 3
    assert "3 4" in str(search)


def test_budgets_in_bytes_and_macs() -> None:
    in_bytes = tnmars.search_ranks(CHAIN, useful, budget="400 B", trials=15)
    in_numbers = tnmars.search_ranks(CHAIN, useful, budget=100, trials=15)
    assert [t.ranks for t in in_bytes.trials] == [t.ranks for t in in_numbers.trials]
    assert in_bytes.best.cost == 4 * in_numbers.best.cost


def test_macs_are_planned_for_the_numbers_of_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which differ here: another plan is the fastest for float64."""
    graph = families.tt("linear", inputs=(8, 8, 8), outputs=(8, 8, 8), rank=4)
    counted = []
    for dtype in (torch.float32, torch.float64):
        monkeypatch.setattr(torch, "get_default_dtype", lambda dtype=dtype: dtype)
        counted.append(cost_of({"": graph}, "macs", 128, 1)((4, 4)))
        plan = tnmars.compile(graph, batch=128, dtype=dtype, model=CostModel(), warn=False).planner.plan("infer", 128)
        assert counted[-1] == total(measure(plan, batch=128)).macs
    assert counted[0] != counted[1]


def test_macs_are_those_of_the_compiled_layer() -> None:
    graph = families.tt("linear", inputs=(16, 16), outputs=(16, 16), rank=16)
    search = tnmars.search_ranks(graph, lambda graph, ranks: ranks["r1"], budget="4x macs", batch=512, trials=3)
    assert search.limit == 512 * 256 * 256 / 4 and search.unit == "macs" and search.is_exhausted
    (best,) = search.trials
    costs = []
    for rank in (best.ranks["r1"], best.ranks["r1"] + 1):
        layer = tnmars.compile(families.tt("linear", inputs=(16, 16), outputs=(16, 16), rank=rank), batch=512)
        costs.append(total(measure(layer.planner.plan("infer", 512), batch=512)).macs)
    assert costs[0] == best.cost <= search.limit < costs[1]
    assert str(search).splitlines()[0].split() == ["trial", "ranks", "parameters", "ratio", "MACs", "score"]


def test_a_generous_budget_has_one_candidate() -> None:
    search = tnmars.search_ranks(CHAIN, useful, budget=10_000)
    assert [trial.ranks for trial in search.trials] == [{"r1": 5, "r2": 5, "r3": 5}] and search.is_exhausted


def test_the_tightest_budget_has_one_candidate() -> None:
    search = tnmars.search_ranks(CHAIN, useful, budget=entries(1, 1, 1))
    assert [trial.ranks for trial in search.trials] == [{"r1": 1, "r2": 1, "r3": 1}]


def planted(seed: int) -> tuple[Graph, Scores]:
    """A graph with seven bonds, and a score that falls with the distance from planted ranks."""
    graph = families.tt("linear", inputs=(4,) * 8, outputs=(4,) * 8, rank=20)
    ranks = np.random.default_rng(seed).choice([2, 4, 6, 9, 13], size=7)

    def score(graph: Graph, given: dict[str, int]) -> float:
        return -sum(log(size / best) ** 2 for size, best in zip(given.values(), ranks, strict=True))

    return graph, score


def test_cross_entropy_beats_random_search_at_as_many_trials() -> None:
    scores: dict[str, list[float]] = {"random": [], "cross-entropy": []}
    for seed in range(8):
        graph, score = planted(seed)
        for method, found in scores.items():
            search = tnmars.search_ranks(graph, score, budget=6000, trials=100, method=method, seed=seed)
            found.append(search.best.score)
    assert np.mean(scores["cross-entropy"]) > 0.5 * np.mean(scores["random"])  # both are below 0
    assert all(one > other for one, other in zip(scores["cross-entropy"], scores["random"], strict=True))


def test_a_start_is_the_first_trial() -> None:
    start = {"r1": 1, "r2": 2, "r3": 1}
    search = tnmars.search_ranks(CHAIN, useful, budget=100, trials=5, start=start)
    assert search.trials[0].ranks == start and search.trials[0].parameters == entries(**start) < 60
    assert all(trial.ranks != start for trial in search.trials[1:])
    nested = tnmars.search_ranks({"a": CHAIN}, lambda graphs, ranks: 0.0, budget=100, trials=1, start={"a": start})
    assert nested.trials[0].ranks == {"a": start}


# --- the same seed gives the same search -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["random", "cross-entropy"])
def test_a_search_is_a_function_of_its_seed(method: str) -> None:
    def ranks(seed: int) -> list[dict[str, int]]:
        graph, score = planted(0)
        search = tnmars.search_ranks(graph, score, budget=4000, trials=30, method=method, seed=seed)
        return [trial.ranks for trial in search.trials]

    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert ranks(1) == ranks(1) != ranks(2)
    assert random.getstate() == states[0] and np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_both_methods_begin_the_same_way() -> None:
    graph, score = planted(0)
    one, other = (
        tnmars.search_ranks(graph, score, budget=4000, trials=GENERATION + 5, method=method)
        for method in ("random", "cross-entropy")
    )
    same = [first.ranks == second.ranks for first, second in zip(one.trials, other.trials, strict=True)]
    assert all(same[:GENERATION]) and not any(same[GENERATION:])


@pytest.mark.parametrize("method", ["random", "cross-entropy"])
def test_a_search_that_was_killed_goes_on(method: str, tmp_path: Path) -> None:
    graph, score = planted(1)
    options: dict[str, Any] = {"budget": 4000, "method": method, "seed": 3}
    whole = tnmars.search_ranks(graph, score, trials=25, **options)
    calls = 0

    def killed(graph: Graph, ranks: dict[str, int]) -> float:
        nonlocal calls
        calls += 1
        if calls == 14:
            raise KeyboardInterrupt
        return nan if calls == 3 else score(graph, ranks)

    def failing(graph: Graph, ranks: dict[str, int]) -> float:
        return nan if ranks == whole.trials[2].ranks else score(graph, ranks)

    whole = tnmars.search_ranks(graph, failing, trials=25, **options)
    file = tmp_path / "deep" / "search.json"
    with pytest.raises(KeyboardInterrupt):
        tnmars.search_ranks(graph, killed, trials=20, checkpoint=file, **options)
    assert len(json.loads(file.read_text())["trials"]) == 13
    seen: list[dict[str, int]] = []

    def noting(graph: Graph, ranks: dict[str, int]) -> float:
        seen.append(dict(ranks))
        return failing(graph, ranks)

    again = tnmars.search_ranks(graph, noting, trials=25, checkpoint=str(file), **options)  # more than before
    assert seen == [trial.ranks for trial in whole.trials[13:]]
    assert [trial.ranks for trial in again.trials] == [trial.ranks for trial in whole.trials]
    assert str([trial.score for trial in again.trials]) == str([trial.score for trial in whole.trials])
    assert [trial.graph for trial in again.trials] == [trial.graph for trial in whole.trials]
    before = file.read_bytes()
    less = tnmars.search_ranks(graph, noting, trials=4, checkpoint=file, **options)  # fewer: nothing is lost
    assert len(less.trials) == 4 and file.read_bytes() == before and len(seen) == 12


# --- failed trials, and what is shown --------------------------------------------------------------------------------


def test_failed_trials_are_kept_and_never_chosen() -> None:
    def score(graph: Graph, ranks: dict[str, int]) -> float:
        return {1: inf, 2: nan, 3: -inf}.get(ranks["r2"], -float(ranks["r2"]))

    records: list[dict[str, Any]] = []
    search = tnmars.search_ranks(CHAIN, score, budget=100, watch=records.append)
    failed = [trial for trial in search.trials if trial.is_failed]
    assert failed and all(trial.ranks["r2"] <= 3 for trial in failed)
    assert search.best.ranks["r2"] == 4 and search.best.score == -4.0
    assert str(search).count("failed") == min(len(failed), 20 - len(search.trials) + len(failed)) + (
        len(search.trials) > 20
    )
    assert [record["trial"] for record in records] == list(range(len(search.trials)))
    assert records[-1].keys() == {"trial", "ranks", "cost", "score", "seconds", "best"} and records[-1]["best"] == -4.0


def test_all_trials_fail() -> None:
    with pytest.raises(TnmarsError) as caught:
        tnmars.search_ranks(CHAIN, lambda graph, ranks: torch.tensor(nan), budget=100, trials=9)
    assert str(caught.value) == (
        "all 9 trials failed: score returned no finite number.\n"
        "  The first trial, with ranks 4-2-2, has the score nan. Look for NaN in your data."
    )
    with pytest.raises(TnmarsError, match="the only trial failed: score returned no finite number"):
        tnmars.search_ranks(CHAIN, lambda graph, ranks: inf, budget=100, trials=1)


def test_a_long_search_prints_its_best_trials() -> None:
    graph, score = planted(0)
    text = str(tnmars.search_ranks(graph, score, budget=4000, trials=27)).splitlines()
    assert text[0].split() == ["trial", "ranks", "parameters", "ratio", "score"]
    assert text[1].startswith("*") and len(text) == 22 and text[-1] == "and 7 more trials"
    scores = [float(line.split()[-1]) for line in text[1:-1]]
    assert scores == sorted(scores, reverse=True)


def test_a_search_can_train_what_it_scores() -> None:
    """The use that it is for: a few steps of training decide between the ranks of two layers."""
    torch.manual_seed(0)
    x = torch.randn(200, 12)
    y = x @ torch.randn(12, 1) @ torch.randn(1, 9)
    graphs = {
        "first": families.lowrank("linear", inputs=(12,), outputs=(10,), rank=4),
        "second": families.lowrank("linear", inputs=(10,), outputs=(9,), rank=4),
    }

    def score(graphs: dict[str, Graph], ranks: dict[str, dict[str, int]]) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(*(tnmars.compile(graph) for graph in graphs.values()))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(30):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        return -(model(x) - y).square().mean()

    search = tnmars.search_ranks(graphs, score, budget=100)
    assert 1 < len(search.trials) < 10 and search.best.parameters <= 100
    assert isinstance(search.best.score, float)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_budget_that_cannot_be_met_is_refused_before_anything_is_scored() -> None:
    assert refused(budget=20) == (
        "the budget of 20 parameters cannot be met: with all ranks 1 the weights have 22 parameters, 38.2x. "
        "Nothing was scored.\n  Ask for less."
    )
    assert refused(budget="50x bytes").startswith("the budget of 50x bytes cannot be met: with all ranks 1 the weights")
    layer = families.tt("linear", inputs=(4, 4), outputs=(4, 4), rank=4)
    assert refused(layer, print, budget="1 macs") == (
        "the budget of 1 macs cannot be met: with all ranks 1 the weights have 16,384 macs, 2x, as planned for speed. "
        "Nothing was scored.\n  Ask for less."
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"budget": "3 ms"},
            (
                "the budget of 3 ms is a time, but ranks are searched by parameters, bytes or macs.\n"
                "  Give a size such as '4x', 250000, '1.5 MB' or '2x macs'. Nothing was scored."
            ),
        ),
        (
            {"budget": "2x macs"},
            (
                "the budget of 2x macs has no meaning: dense, the weight has no macs. Nothing was scored.\n"
                "  Give a ratio of parameters: '2x'."
            ),
        ),
        ({"trials": 0}, "trials is 0, but must be a whole number of at least 1."),
        ({"trials": True}, "trials is True, but must be a whole number of at least 1."),
        ({"seed": -1}, "seed is -1, but must be a whole number of at least 0."),
        ({"batch": 2.5}, "batch is 2.5, but must be a whole number of at least 1."),
        ({"method": "grid"}, "method is 'grid'.\n  It must be 'random' or 'cross-entropy'."),
        (
            {"start": 3},
            (
                "start is 3, but must be a table of ranks.\n"
                "  Give the rank of every bond, {'r1': 4, ...}, such as the best.ranks of another search."
            ),
        ),
        (
            {"start": {"r1": 9, "r2": 1, "s3": 1}},
            (
                "the rank of bond 'r1' in start is 9, but must be from 1 to 5.\n"
                "start names bond 's3', which the graph does not have.\n"
                "  Bonds: r1, r2, r3. Did you mean 'r3'?\n"
                "start has no rank for bond 'r3'.\n"
                "  Give the rank of every bond, {'r1': 4, ...}, such as the best.ranks of another search."
            ),
        ),
        (
            {"start": {"r1": 5, "r2": 5, "r3": 5}},
            ("the ranks of start cost 330 parameters, but the budget of 10x parameters allows 84 parameters."),
        ),
    ],
)
def test_wrong_arguments(options: dict[str, Any], text: str) -> None:
    assert refused(**options) == text


def test_wrong_graphs_and_scores() -> None:
    hint = "\n  tnmars.load reads a spec file, and a compiled layer has its graph: layer.graph."
    assert refused("tt.yaml", print) == (
        "graph is a str, but must be a tnmars.Graph, or a table of graphs by name." + hint
    )
    assert refused({"a": CHAIN, "b": 3}, print) == (
        "graph is a table with other entries, but must be a tnmars.Graph, or a table of graphs by name." + hint
    )
    assert refused(CHAIN, 3) == (
        "score is a int, but must be a function of a graph and its ranks.\n  It returns a number, larger is better."
    )
    single = tnmars.network("linear", "W[i,o]", inputs={"i": 4}, outputs={"o": 3})
    assert refused(single, print) == "the graph has no bond, so there are no ranks to search."
    assert refused({}, print) == "the graphs have no bond, so there are no ranks to search."
    for wrong, name in (
        (None, "NoneType"),
        ("0.5", "str"),
        ((0.5, 100), "tuple"),
        (torch.ones(2), "Tensor"),
        (True, "bool"),
    ):
        with pytest.raises(TnmarsError) as caught:
            tnmars.search_ranks(CHAIN, lambda graph, ranks, wrong=wrong: wrong, budget=100)
        assert str(caught.value) == (
            f"score returned a {name}, but must return a number; larger is better.\n"
            "  Return a float, or a tensor with one entry."
        )


def test_a_file_of_another_search_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "search.json"
    tnmars.search_ranks(CHAIN, useful, budget=100, trials=3, checkpoint=file)
    again = "\n  Give another file, or remove this one to start again."

    def text(graph: Graph = CHAIN, **options: Any) -> str:
        return refused(graph, print, **{"budget": 100, "trials": 3, "checkpoint": file, **options})

    assert text(seed=1) == f"{file}: is another search: its seed is 0, but now 1.{again}"
    assert text(budget=99) == (
        f"{file}: is another search: its budget is '100 parameters', but now '99 parameters'.{again}"
    )
    assert text(method="random").startswith(f"{file}: is another search: its method is 'cross-entropy'")
    assert text(start={"r1": 1, "r2": 1, "r3": 1}) == (
        f"{file}: is another search: its start is None, but now [1, 1, 1].{again}"
    )
    assert (
        text(families.tt("tensor", free=(4, 5, 6, 7), rank=4)) == f"{file}: is another search, of other graphs.{again}"
    )
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({**whole, "tnmars.search": 9}))
    assert text() == f"{file}: has version 9, but this tnmars reads version 1."
    whole["trials"][1]["ranks"] = [1, 9, 1]
    file.write_text(json.dumps(whole))
    assert text() == f"{file}: is not a file of tnmars.search_ranks: ValueError trial 1 has ranks [1, 9, 1].{again}"
    file.write_text("{")
    with pytest.raises(CheckpointError, match=r"is not a file of tnmars\.search_ranks: JSONDecodeError"):
        tnmars.search_ranks(CHAIN, print, budget=100, checkpoint=file)
    with pytest.raises(CheckpointError, match=r"is not a file of tnmars\.search_ranks: IsADirectoryError"):
        tnmars.search_ranks(CHAIN, print, budget=100, checkpoint=tmp_path)
