"""A plain loop under Accelerate with the stages of `tnmars.shrink`: as in the docs, and the same as without it."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path

import pytest
import torch
from kit import ROOT
from torch import nn

import tnmars

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")


def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    found = [text for text in re.findall(r"^```text\n(.*?)^```", page, re.M | re.S) if "Accelerator" in text]
    assert len(found) == 1
    names: dict[str, object] = {}
    exec(compile(found[0], "integrations.md", "exec"), names)  # noqa: S102
    path = names["path"]
    assert path.is_finished
    assert path.curve.chosen.ranks == {"": {"r": 2}}


@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_path_is_that_of_a_plain_loop(accumulated: int) -> None:
    """Also where the gradients of two batches are one step."""
    data = [(x, x.flip(-1)[:, :6]) for x in torch.randn(4, 10, 8)]
    model = nn.Sequential(tnmars.Linear(8, 8, family="lowrank", rank=6), tnmars.Linear(8, 6, family="lowrank", rank=5))
    other = copy.deepcopy(model)

    def score(net: nn.Module) -> float:
        with torch.no_grad():
            return -sum(float((net(x) - y).square().mean()) for x, y in data)

    def made(net: nn.Module) -> tnmars.Stages:
        return tnmars.Stages(net, budget="2x", settings=tnmars.Staircase(first=8, factor=0.6))

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    batches = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=None))
    path = made(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for stage in path:
            net, optimizer = accelerator.prepare(model, stage.optimizer)
            schedule = torch.optim.lr_scheduler.LambdaLR(stage.optimizer, stage.factor)
            done = 0
            while done < stage.steps:
                for x, y in batches:
                    with accelerator.accumulate(net):
                        accelerator.backward((net(x) - y).square().mean())
                        optimizer.step()
                        optimizer.zero_grad()
                    if accelerator.sync_gradients and done < stage.steps:
                        schedule.step()
                        done += 1
                    if done == stage.steps:
                        break
            stage.report(score(model))
    plain = made(other)
    for stage in plain:
        at = 0
        for _ in range(stage.steps):
            for _ in range(accumulated):
                x, y = data[at % 4]
                ((other(x) - y).square().mean() / accumulated).backward()
                at += 1
            stage.step()
        stage.report(score(other))
    assert len(path.curve.points) >= 3
    assert [point.ranks for point in path.curve.points] == [point.ranks for point in plain.curve.points]
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
