"""Paths from cotengra: the same in every process, and good for any network."""

from __future__ import annotations

import os
import subprocess
import sys

import oracle
import pytest
from hypothesis import given, settings
from strategies import cases, graphs

import tnmars
from tnmars import Graph, TnmarsError
from tnmars.plan import hyper
from tnmars.plan.hyper import cotengra_path

NETWORK = """
from tnmars.plan.hyper import cotengra_path
count = 24
labels = [frozenset([at, (at + 1) % count, 100 + at % 5, 200 + at]) for at in range(count)]
sizes = {label: 2 + label % 3 for operand in labels for label in operand}
print(cotengra_path(labels, frozenset(range(200, 200 + count)), sizes))
"""


def test_a_path_is_the_same_in_every_process() -> None:
    pytest.importorskip("cotengra")
    found = {
        subprocess.run(
            [sys.executable, "-c", NETWORK],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(found) == 1
    assert found.pop().count("(") == 24


@settings(max_examples=cases(300))
@given(graph=graphs())
def test_a_layer_by_cotengra_is_right(graph: Graph) -> None:
    pytest.importorskip("cotengra")
    problem = oracle.problem(graph, 3)
    layer = oracle.compiled(graph, optimizer="cotengra").double()
    oracle.load(layer, problem)
    answer, slopes = oracle.ask(layer, problem)
    wanted = problem.answer()
    assert oracle.error(answer, wanted) <= 1e-10
    for found, truth in zip(slopes, oracle.gradients(wanted, problem.leaves), strict=True):
        assert oracle.error(found, truth) <= 1e-10


@pytest.mark.parametrize("count", [1, 2, 3])
def test_paths_of_few_operands(count: int) -> None:
    pytest.importorskip("cotengra")
    path = cotengra_path([frozenset([0])] * count, frozenset(), {0: 2})
    assert len(path) == count - 1


def test_cotengra_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hyper, "find_spec", lambda name: None)
    graph = tnmars.families.tt("linear", inputs=(2, 3), outputs=(3, 2), rank=5)
    with pytest.raises(TnmarsError) as caught:
        tnmars.compile(graph, optimizer="cotengra")
    assert str(caught.value) == (
        "optimizer 'cotengra' needs cotengra, which is not installed.\n"
        "  Install it with: pip install 'tnmars[plan]'; or leave the optimizer out."
    )
