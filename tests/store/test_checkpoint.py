"""Training checkpoints: a run continues bit for bit after any kill, and any damage is seen and has a way out."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from interrupted import digest
from kit import ROOT
from strategies import THOROUGH, cases
from torch import nn

import tnmars
from tnmars.errors import CheckpointError, TnmarsError
from tnmars.files import ABANDONED, clear_abandoned
from tnmars.store.container import damage

SCRIPT = ROOT / "tests" / "scripts" / "interrupted.py"
GRAPH = tnmars.families.tt("linear", inputs=(3, 2), outputs=(2, 4), rank=4)
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "amsgrad": lambda groups: torch.optim.Adam(groups, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, weight_decay=0.1),
    "sgd": torch.optim.SGD,
    "momentum": lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
    "tensor rate": lambda groups: torch.optim.Adam([{**group, "lr": torch.tensor(group["lr"])} for group in groups]),
}


def make(rank: int = 4) -> nn.Sequential:
    graph = tnmars.families.tt("linear", inputs=(3, 2), outputs=(2, 4), rank=rank)
    return nn.Sequential(tnmars.compile(graph, selector=tnmars.Mars(spread=1.0), batch=16), nn.Linear(8, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        x = torch.randn(5, 6)
        loss = F.mse_loss(model(x), x[:, :2]) + tnmars.penalty(model) / 50
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def ready(kind: str = "adam", **more: int) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = make(**more)
    return model, OPTIMIZERS[kind](tnmars.param_groups(model, lr=0.05))


# --- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("is_cut", [False, True])
def test_images_in_channels_last_go_on_bit_for_bit(is_fused: bool, is_cut: bool, tmp_path: Path) -> None:
    """A fused optimizer pairs entries by their order in memory, which files do not keep."""

    def begin() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        graph = tnmars.families.tucker2("conv", inputs=(4,), outputs=(6,), kernel=(3, 3), rank=3)
        layer = tnmars.compile(graph, selector=tnmars.Mars(spread=1.0), batch=2, image=8)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), layer).to(memory_format=torch.channels_last)
        return model, torch.optim.Adam(tnmars.param_groups(model, lr=0.05), fused=is_fused)

    def train(model: nn.Sequential, optimizer: torch.optim.Optimizer, seeds: range) -> None:
        for seed in seeds:
            x = torch.randn(2, 2, 10, 10, generator=torch.Generator().manual_seed(seed))
            model(x.to(memory_format=torch.channels_last)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    model, optimizer = begin()
    train(model, optimizer, range(3))
    if is_cut:
        tnmars.prune_(model, keep={"1": {"r1": [0, 2]}}, optimizer=optimizer)
    tnmars.save_checkpoint(tmp_path / "run", model, optimizer)
    train(model, optimizer, range(3, 6))
    again, other = begin()
    tnmars.load_checkpoint(tmp_path / "run", again, other)
    train(again, other, range(3, 6))
    for (name, ours), theirs in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("cut", ["none", "gates", "all"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_run_goes_on_bit_for_bit(kind: str, cut: str, tmp_path: Path) -> None:
    model, optimizer = ready(kind)
    train(model, optimizer, 3)
    if cut != "none":
        tnmars.prune_(model, optimizer, keep_gates=cut == "gates")
    train(model, optimizer, 2)
    tnmars.save_checkpoint(tmp_path / "a", model, optimizer, position={"epoch": 1, "order": (2, 1)})
    expected = train(model, optimizer, 3)
    torch.manual_seed(99)
    fresh, other = ready(kind, rank=3)
    resumed = tnmars.load_checkpoint(tmp_path / "a", fresh, other)
    assert resumed.model is fresh
    assert resumed.position == {"epoch": 1, "order": (2, 1)}
    assert resumed.extra is None
    held = [value for group in other.param_groups for value in group["params"]]
    assert {id(value) for value in held} == {id(value) for value in fresh.parameters()}
    assert train(fresh, other, 3) == expected
    assert digest(fresh, other) == digest(model, optimizer)


def test_groups_and_state_are_matched_by_name(tmp_path: Path) -> None:
    """A fresh optimiser may hold its parameters in another order and in other groups."""
    model, optimizer = ready()
    train(model, optimizer, 2)
    optimizer.param_groups[0]["lr"] = 0.011
    tnmars.save_checkpoint(tmp_path / "a", model, optimizer)
    fresh = make()
    other = torch.optim.Adam([{"params": [value]} for value in reversed(list(fresh.parameters()))], lr=1.0)
    tnmars.load_checkpoint(tmp_path / "a", fresh, other)
    assert digest(fresh, other) == digest(model, optimizer)
    assert [group["lr"] for group in other.param_groups] == [0.011, 0.05]


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 20),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
        lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3),
                torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
            ],
            [3],
        ),
    ],
    ids=["steps", "cosine", "cycle", "lambda", "sequence"],
)
def test_schedulers_of_the_learning_rate(scheduler, tmp_path: Path) -> None:
    model, optimizer = ready()
    decay = scheduler(optimizer)
    for _ in range(3):
        train(model, optimizer, 1)
        decay.step()
    tnmars.save_checkpoint(tmp_path / "a", model, optimizer, lr_scheduler=decay)
    fresh, other = ready()
    again = scheduler(other)
    tnmars.load_checkpoint(tmp_path / "a", fresh, other, lr_scheduler=again)
    for _ in range(4):
        assert [group["lr"] for group in other.param_groups] == [group["lr"] for group in optimizer.param_groups]
        assert train(fresh, other, 0) == train(model, optimizer, 0)
        optimizer.step()
        other.step()
        decay.step()
        again.step()
    assert again.state_dict().keys() == decay.state_dict().keys()


def test_another_scheduler_is_reported(tmp_path: Path) -> None:
    model, optimizer = ready()
    tnmars.save_checkpoint(tmp_path / "a", model, optimizer, lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3))
    other = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with pytest.raises(TnmarsError, match="the lr_scheduler is ExponentialLR, but StepLR in the file"):
        tnmars.load_checkpoint(tmp_path / "a", model, optimizer, lr_scheduler=other)


def test_the_noise_of_a_step_is_that_of_the_file(tmp_path: Path) -> None:
    """Also right after a cut, where the schedule by itself would draw for other gates."""
    model, optimizer = ready()
    schedule = tnmars.MaskSchedule(model, 20, warmup_steps=1, optimizer=optimizer)
    for _ in range(4):
        train(model, optimizer, 1)
        schedule.step()
    tnmars.prune_(model, optimizer, keep_gates=True)
    tnmars.save_checkpoint(tmp_path / "a", model, optimizer, schedule)
    fresh, other = ready()
    again = tnmars.MaskSchedule(fresh, 7)
    tnmars.load_checkpoint(tmp_path / "a", fresh, other, again)
    assert again.state_dict() == schedule.state_dict()
    for _ in range(3):
        assert fresh[0].masks.noise.equal(model[0].masks.noise)
        assert fresh[0].masks.temperature.equal(model[0].masks.temperature)
        schedule.step()
        again.step()


def test_random_states_come_back(tmp_path: Path) -> None:
    model, optimizer = ready()
    random.gauss(0, 1)  # which holds a second number back
    numpy.random.standard_normal()
    tnmars.save_checkpoint(tmp_path / "a", model, optimizer)

    def draw() -> list[float]:
        return [random.gauss(0, 1), random.random(), numpy.random.standard_normal(), torch.rand(()).item()]

    expected = draw()
    draw()
    tnmars.load_checkpoint(tmp_path / "a", model, optimizer)
    assert draw() == expected


def test_a_model_that_is_one_layer(tmp_path: Path) -> None:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars(spread=1.0))
    optimizer = torch.optim.Adam(layer.parameters())
    schedule = tnmars.MaskSchedule(layer, 10)
    tnmars.save_checkpoint(tmp_path / "a", layer, optimizer, schedule)
    for fresh in (tnmars.compile(GRAPH), nn.Linear(6, 8)):
        other = torch.optim.Adam(fresh.parameters())
        again = tnmars.MaskSchedule(fresh, 10)
        resumed = tnmars.load_checkpoint(tmp_path / "a", fresh, other, again)
        assert (resumed.model is fresh) == isinstance(fresh, tnmars.TNModule)
        assert again.model is resumed.model
        assert digest(resumed.model, other) == digest(layer, optimizer)


def test_the_model_alone_is_read_by_load_into(tmp_path: Path) -> None:
    model, optimizer = ready()
    train(model, optimizer, 1)
    tnmars.save_checkpoint(tmp_path / "a", model, optimizer)
    fresh = tnmars.load_into(make(2), tmp_path / "a")
    assert all(value.equal(fresh.state_dict()[key]) for key, value in model.state_dict().items())
    tnmars.save(model, tmp_path / "b")
    with pytest.raises(
        CheckpointError, match=r"is a saved model, not a training checkpoint\.\n  tnmars\.load_into reads"
    ):
        tnmars.load_checkpoint(tmp_path / "b", model, optimizer)


# --- what does not fit -----------------------------------------------------------------------------------------------


def test_everything_that_does_not_fit_is_reported_and_nothing_is_changed(tmp_path: Path) -> None:
    model, optimizer = ready()
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    tnmars.save_checkpoint(tmp_path / "a", model, optimizer, lr_scheduler=decay)
    fresh = make(2)
    other = torch.optim.SGD([*fresh[0].parameters(), fresh[1].weight, nn.Parameter(torch.zeros(3))], lr=0.5)
    before = [value.clone() for value in fresh.parameters()]
    state = torch.get_rng_state()
    with pytest.raises(TnmarsError) as caught:
        tnmars.load_checkpoint(tmp_path / "a", fresh, other, tnmars.MaskSchedule(fresh, 3, seed=1))
    source = tmp_path / "a"
    assert str(caught.value).splitlines() == [
        f"{source}: the optimizer is SGD, but Adam in the file.",
        f"{source}: the optimizer holds a parameter that the model does not have.",
        f"{source}: the optimizer of the file trains 1.bias, but this one does not.",
        f"{source}: the call has schedule, which is not in the file.",
        "  Give schedule=... exactly if it was given to save.",
        f"{source}: the file has lr_scheduler, which was not given.",
        "  Give lr_scheduler=... exactly if it was given to save.",
        f"{source}: Nothing was changed.",
    ]
    assert all(one.equal(other) for one, other in zip(before, fresh.parameters(), strict=True))
    assert torch.get_rng_state().equal(state)
    assert other.param_groups[0]["lr"] == 0.5


def test_what_cannot_be_saved_is_reported(tmp_path: Path) -> None:
    model, optimizer = ready()
    with pytest.raises(TnmarsError, match=r"position\.at\[1\] is of type set, which cannot be saved"):
        tnmars.save_checkpoint(tmp_path / "a", model, optimizer, position={"at": [0, {1}]})
    tnmars.prune_(model)  # and not the optimizer
    with pytest.raises(TnmarsError, match=r"the optimizer holds a parameter of shape .* that the model does not have"):
        tnmars.save_checkpoint(tmp_path / "a", model, optimizer)
    assert list(tmp_path.iterdir()) == []


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not THOROUGH, reason="it starts six interpreters with torch")
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_several_processes_write_one_whole_checkpoint(mode: str, tmp_path: Path) -> None:
    script = SCRIPT.with_name("sharded_save.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*launch, str(script), mode, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("same") == 2  # the two processes may write on one line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.ckpt", "run.ckpt.previous"]


# --- kill -9 ---------------------------------------------------------------------------------------------------------


CALLS = 0 if THOROUGH else 5
"""The number of calls of the system before which a save is killed; 0 for all that it makes."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the script prints, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("killed")), str(cases(200)), "7", str(CALLS)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_kills_at_random_moments_change_nothing(killed: dict) -> None:
    found = killed["random"]
    assert found["kills"] == cases(200)
    assert set(found["digests"]) == {killed["expected"]}
    assert not THOROUGH or found["in_save"] > 0


def test_kills_before_each_call_of_a_save_change_nothing(killed: dict) -> None:
    found = killed["calls"]
    assert {"write", "fsync", "link", "replace"} <= set(found["calls"])
    assert found["kills"] == (CALLS or len(found["calls"]))
    assert set(found["digests"]) == {killed["expected"]}


@pytest.mark.skipif(not THOROUGH, reason="it takes a minute")
def test_two_processes_save_to_one_path(tmp_path: Path) -> None:
    """Whoever comes last: every reader sees one whole checkpoint of either, and so does who comes after."""
    script = SCRIPT.with_name("two_savers.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "60"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert min(found["saves"]) > 100 and found["reads"] > 100
    assert found["seen"] == ["1", "2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.ckpt", "run.ckpt.previous"]


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after a step, with the one before it."""
    path = tmp_path_factory.mktemp("two") / "run.ckpt"
    torch.manual_seed(0)
    model, optimizer = ready()
    for step in (1, 2):
        train(model, optimizer, 1)
        tnmars.save_checkpoint(path, model, optimizer, position=step)
    return path


def test_any_damage_is_seen_and_the_previous_one_offered(two: Path) -> None:
    whole = two.read_bytes()
    chance = random.Random(11)
    model, optimizer = ready()
    for case in range(cases(1000)):
        data = bytearray(whole)
        if case % 3:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            del data[chance.randrange(len(data)) :]
        two.write_bytes(data)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        with pytest.raises(CheckpointError) as caught:
            tnmars.load_checkpoint(two, model, optimizer)
        text, hint = str(caught.value).splitlines()
        assert text.startswith(f"{two}: is ")
        assert "damaged" in text
        assert hint == (
            f"  The previous checkpoint is intact: {two}.previous. "
            f"To continue from it: load_checkpoint({str(two)!r}, ..., previous=True)."
        )
        assert all(value.equal(before[key]) for key, value in model.state_dict().items())
        assert tnmars.load_checkpoint(two, model, optimizer, previous=True).position == 1
    two.write_bytes(whole)
    assert tnmars.load_checkpoint(two, model, optimizer).position == 2


def test_every_byte_is_covered(two: Path) -> None:
    whole = two.read_bytes()
    assert damage(whole) == ""
    step = 1 if THOROUGH else 37
    for at in range(0, len(whole), step):
        data = bytearray(whole)
        data[at] ^= 1 << (at % 8)
        assert damage(bytes(data))
    for size in range(0, len(whole), step):
        assert damage(whole[:size])
    assert damage(whole + b"\0")


def test_a_damaged_file_never_takes_the_previous_ones_place(two: Path) -> None:
    whole, before = two.read_bytes(), two.with_name("run.ckpt.previous").read_bytes()
    two.write_bytes(whole[:-1])
    model, optimizer = ready()
    tnmars.load_checkpoint(two, model, optimizer, previous=True)
    tnmars.save_checkpoint(two, model, optimizer, position=3)
    assert two.with_name("run.ckpt.previous").read_bytes() == before
    assert tnmars.load_checkpoint(two, model, optimizer).position == 3
    two.write_bytes(whole)


def test_where_there_is_no_other_file_that_is_said(two: Path, tmp_path: Path) -> None:
    model, optimizer = ready()
    path = tmp_path / "a"
    path.write_bytes(two.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"\n  There is no other: .*a\.previous does not exist\.$"):
        tnmars.load_checkpoint(path, model, optimizer)
    (tmp_path / "a.previous").write_bytes(b"x" * 1000)
    with pytest.raises(CheckpointError, match=r"\n  There is no other: .*a\.previous is damaged too\.$"):
        tnmars.load_checkpoint(path, model, optimizer)
    path.write_bytes(two.read_bytes())
    with pytest.raises(CheckpointError, match=r"\n  The last checkpoint is intact: .*a\. To continue"):
        tnmars.load_checkpoint(path, model, optimizer, previous=True)


def test_only_two_files_are_left(two: Path) -> None:
    assert sorted(path.name for path in two.parent.iterdir()) == ["run.ckpt", "run.ckpt.previous"]


def test_what_killed_writers_left_is_removed_later(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in (".a[1].x.part", ".a[1].y.part", ".b.z.part"))
    for path in (old, new, other):
        path.write_bytes(b"half")
    late = time.time() - ABANDONED - 10
    os.utime(old, (late, late))
    os.utime(other, (late, late))
    clear_abandoned(tmp_path / "a[1]")
    assert sorted(tmp_path.iterdir()) == [new, other]
