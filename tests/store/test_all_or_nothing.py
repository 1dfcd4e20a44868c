"""Loading changes everything or nothing: forged headers, and code of the user's own that fails in the middle."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from kit import LINUX, memory
from strategies import cases
from torch import nn

import tnmars
from tnmars.errors import CheckpointError, TnmarsError
from tnmars.store import container, loading, optimizer, random_states
from tnmars.store.container import Container

GRAPH = tnmars.families.tt("linear", inputs=(3, 2), outputs=(2, 4), rank=4)
JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 3, 0.5, 10**30, float("nan"), float("inf"), "x", "", [], {}, [1], {"a": 1}),
    *({"$tuple": 3}, {"$table": [[[], 1]]}, {"$counter": {}}),
)


def nested(levels: int, kind: type) -> Any:
    value: Any = kind()
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


class Run:
    """A model in training, with everything that a checkpoint restores."""

    def __init__(self) -> None:
        layer = tnmars.compile(GRAPH, selector=tnmars.Mars(spread=1.0), batch=16)
        self.model = nn.Sequential(layer, nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.schedule = tnmars.MaskSchedule(self.model, 20, seed=1)
        self.decay = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)

    def step(self) -> None:
        self.model(torch.randn(3, 6)).sum().backward()
        for part in (self.optimizer, self.schedule, self.decay):
            part.step()

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.model, self.optimizer, self.schedule, self.decay

    def state(self) -> list[Any]:
        """Everything that loading may change, such that equal means unchanged; objects by their identity."""
        held = [id(module) for module in self.model.modules()], [id(value) for value in self.model.parameters()]
        values = {name: value.tolist() for name, value in self.model.state_dict().items()}
        groups = [{**group, "params": list(map(id, group["params"]))} for group in self.optimizer.param_groups]
        moments = {id(key): {name: id(one) for name, one in all_.items()} for key, all_ in self.optimizer.state.items()}
        states = random.getstate(), repr(numpy.random.get_state()), torch.get_rng_state().tolist()
        return [held, values, groups, moments, self.schedule.state_dict(), self.decay.state_dict(), states]


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Container]:
    run = Run()
    run.step()
    path = tmp_path / "a"
    tnmars.save_checkpoint(path, *run.parts, position={"at": 1}, extra=[1, (2, 3)])
    return path, container.read(path)


def forged(path: Path, held: Container, change: Callable[[dict[str, Any]], object]) -> None:
    """Writes a file whose header says something else, with a right digest."""
    header = json.loads(json.dumps(held.header))
    change(header)
    container.write(path, Container(header, held.tensors))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a header; of a list only the first two, and no plans, which have tests of their own."""
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, entry in inner:
        if "plans" not in at:
            yield from places(entry, (*at, key))


def test_no_forged_header_changes_half_of_a_run(written: tuple[Path, Container]) -> None:
    path, held = written
    chance = random.Random(5)
    todo = [(at, junk) for at in places(held.header) for junk in (*JUNK, places)]
    refused, run = 0, Run()
    for at, junk in chance.sample(todo, min(len(todo), cases(4000))):

        def change(header: dict[str, Any], at: tuple[Any, ...] = at, junk: Any = junk) -> None:
            inner: Any = header
            for key in at[:-1]:
                inner = inner[key]
            if junk is places:
                del inner[at[-1]]
            else:
                inner[at[-1]] = junk

        forged(path, held, change)
        before = run.state()
        try:
            tnmars.load_checkpoint(path, *run.parts)
            run = Run()
        except TnmarsError as error:
            refused += 1
            assert str(error).endswith("Nothing was changed.") or isinstance(error, CheckpointError), (at, junk)
            assert run.state() == before, (at, junk)
    assert refused > cases(4000) // 3


FORGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "exp_avg": (
        lambda header: header["optimizer"]["state"]["1.weight"].update(exp_avg=3),
        "the optimizer of the file fails on parameter '1.weight'",
    ),
    "step": (
        lambda header: header["optimizer"]["state"]["1.weight"].pop("step"),
        "fails on parameter '1.weight': KeyError 'step'",
    ),
    "swapped": (
        lambda header: header["optimizer"]["state"]["1.weight"].update(step={"$tuple": []}),
        "fails on parameter '1.weight'",
    ),
    "betas": (
        lambda header: header["optimizer"]["groups"][0]["settings"].update(betas=[]),
        r"the optimizer of the file has betas \[\], but it should be like \(0.9, 0.999\)",
    ),
    "lr": (lambda header: header["optimizer"]["groups"][0]["settings"].update(lr="x"), "has lr 'x', but"),
    "large": (lambda header: header["optimizer"]["groups"][0]["settings"].update(eps=10**30), "has eps 1000"),
    "negative": (lambda header: header["optimizer"]["groups"][0]["settings"].update(lr=-1.0), "Invalid learning rate"),
    "gamma": (lambda header: header["lr_scheduler"]["state"].update(gamma="x"), "the lr_scheduler of the file has gam"),
    "base_lrs": (lambda header: header["lr_scheduler"]["state"].update(base_lrs=[None]), "has base_lrs"),
    "method": (lambda header: header["lr_scheduler"]["state"].update(get_lr=3), "has 'get_lr', which is not part of"),
    "optimizer": (lambda header: header["lr_scheduler"]["state"].update(optimizer=3), "has 'optimizer', which is not"),
}
"""Files that were loaded, and failed at the next step."""


@pytest.mark.parametrize("case", FORGED)
def test_what_would_fail_at_the_next_step_is_refused(case: str, written: tuple[Path, Container]) -> None:
    path, held = written
    change, text = FORGED[case]
    forged(path, held, change)
    run = Run()
    before = run.state()
    with pytest.raises(TnmarsError, match=text) as caught:
        tnmars.load_checkpoint(path, *run.parts)
    assert str(caught.value).endswith("Nothing was changed.")
    assert run.state() == before
    run.step()


def test_a_state_of_another_shape_is_refused(written: tuple[Path, Container]) -> None:
    path, held = written
    name = "optimizer.state.1.weight.exp_avg"
    container.write(path, Container(held.header, {**held.tensors, name: torch.zeros(2, 7)}))
    run = Run()
    with pytest.raises(TnmarsError, match=r"'exp_avg' of '1.weight' has shape \(2, 7\), but the parameter \(2, 8\)"):
        tnmars.load_checkpoint(path, *run.parts)


OPTIMIZERS: tuple[tuple[type[torch.optim.Optimizer], dict[str, Any]], ...] = (
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.Adam, {"fused": True}),
    (torch.optim.AdamW, {"foreach": True, "betas": [0.5, 0.6]}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
    *((kind, {}) for kind in (torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam)),
    *((kind, {}) for kind in (torch.optim.RAdam, torch.optim.Rprop, torch.optim.ASGD, torch.optim.Adafactor)),
)


@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS)
def test_every_optimizer_of_torch_resumes(
    kind: type[torch.optim.Optimizer], settings: dict[str, Any], tmp_path: Path
) -> None:
    def after(run: Run) -> list[float]:
        torch.manual_seed(1)
        run.optimizer.zero_grad()
        run.step()
        return [float(value.detach().sum()) for value in run.model.parameters()]

    first, second = Run(), Run()
    for run in (first, second):
        run.optimizer = kind(run.model.parameters(), **settings)
        run.decay = torch.optim.lr_scheduler.StepLR(run.optimizer, 3)
    first.step()
    if settings == {"lr": 0.1}:
        first.optimizer.param_groups[0]["momentum"] = 0.9  # there are no buffers yet, and SGD makes them
    tnmars.save_checkpoint(tmp_path / "a", *first.parts)
    tnmars.load_checkpoint(tmp_path / "a", *second.parts)
    assert after(first) == after(second)


@pytest.mark.parametrize("at", ["apply", "load_", "set_"])
def test_an_interrupted_load_is_complete(
    at: str, written: tuple[Path, Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle: what is loaded is what an undisturbed call loads."""
    path, _ = written
    quiet, run = Run(), Run()
    tnmars.load_checkpoint(path, *quiet.parts)
    place: Any = {"apply": loading.Loading, "load_": optimizer, "set_": random_states.RandomStates}[at]
    original = getattr(place, at)

    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return original(*args)

    monkeypatch.setattr(place, at, interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            tnmars.load_checkpoint(path, *run.parts)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    for mine, other in zip(run.model.state_dict().values(), quiet.model.state_dict().values(), strict=True):
        assert mine.equal(other)
    assert run.optimizer.state_dict().__repr__() == quiet.optimizer.state_dict().__repr__()
    assert run.schedule.state_dict() == quiet.schedule.state_dict()
    assert torch.get_rng_state().equal(container.read(path).tensors["random.torch"])


def test_the_message_about_a_random_state_is_short(written: tuple[Path, Container]) -> None:
    path, held = written
    forged(path, held, lambda header: header["random"]["python"]["$tuple"][1]["$tuple"].append("x"))
    with pytest.raises(CheckpointError) as caught:
        tnmars.load_checkpoint(path, *Run().parts)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("levels", [90, 130, 380, 900])
def test_a_deep_header_is_refused(levels: int, kind: type, written: tuple[Path, Container]) -> None:
    path, held = written
    run = Run()
    before = run.state()
    for change in (
        lambda header: header["layers"][0].update(origin={"a": nested(levels, kind)}),
        lambda header: header["layers"][0].update(batch=nested(levels, kind)),
        lambda header: header.update(position=nested(levels, kind)),
    ):
        forged(path, held, change)
        try:
            tnmars.load_checkpoint(path, *run.parts)
            assert levels == 90
            run = Run()
            before = run.state()
        except CheckpointError:
            assert run.state() == before


def test_what_is_too_deep_is_not_written(tmp_path: Path) -> None:
    run = Run()
    with pytest.raises(TnmarsError, match="position is nested over 100 levels deep"):
        tnmars.save_checkpoint(tmp_path / "a", *run.parts, position=nested(200, list))
    tnmars.save_checkpoint(tmp_path / "a", *run.parts, position=nested(98, list))
    assert tnmars.load_checkpoint(tmp_path / "a", *run.parts).position == nested(98, list)


@LINUX
def test_a_claim_of_memory_is_refused_before_it_is_taken(tmp_path: Path) -> None:
    graph = tnmars.network("linear", "W[i,o]", inputs={"i": 4}, outputs={"o": 3})
    tnmars.save(tnmars.compile(graph), tmp_path / "a")
    large = tnmars.dump(tnmars.network("linear", "W[i,o]", inputs={"i": 6000}, outputs={"o": 6000}))
    forged(tmp_path / "a", container.read(tmp_path / "a"), lambda header: header["layers"][0].update(spec=large))
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    with pytest.raises(CheckpointError, match=r"'cores.W' has shape \(6000, 6000\) by its graph, but .* \(4, 3\)"):
        tnmars.load_into(nn.Identity(), tmp_path / "a")
    assert memory("VmHWM") - before < 30 * 2**20


def test_a_file_that_is_not_ours_is_not_read_at_all(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(CheckpointError, match="is not a file that tnmars wrote"):
        tnmars.load_into(nn.Identity(), tmp_path / "a")


# --- code of the user's own ------------------------------------------------------------------------------------------


class Stubborn(nn.Linear):
    """A module whose own code fails while a state dict is loaded, after others have been."""

    def _load_from_state_dict(self, *_: Any) -> None:
        raise RuntimeError("not me")


def test_a_module_that_fails_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    def net(last: type[nn.Linear]) -> nn.Sequential:
        return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 8), nn.GRU(8, 3), last(2, 2))

    first = net(nn.Linear)
    first[1] = tnmars.compile(GRAPH)
    tnmars.save(first, tmp_path / "a")
    for layer in (nn.Linear(6, 8), tnmars.compile(GRAPH, selector=tnmars.Mars())):
        model = net(Stubborn)
        model[1] = layer
        held = list(model.modules())
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(RuntimeError, match="not me"):
            tnmars.load_into(model, tmp_path / "a")
        assert [id(module) for module in model.modules()] == list(map(id, held))
        assert model.state_dict().keys() == before.keys()
        assert all(value.equal(before[name]) for name, value in model.state_dict().items())
        assert model[1] is layer and model[1](torch.ones(2, 6)).shape == (2, 8)


def test_a_scheduler_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    class Strict(torch.optim.lr_scheduler.StepLR):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            if state_dict["last_epoch"] == 1:
                raise RuntimeError("too old")

    run = Run()
    run.decay = Strict(run.optimizer, 3)
    run.step()
    tnmars.save_checkpoint(tmp_path / "a", *run.parts)
    fresh = Run()
    fresh.decay = Strict(fresh.optimizer, 5)
    before = fresh.state()
    with pytest.raises(
        CheckpointError, match="the lr_scheduler does not take its state: RuntimeError too old"
    ) as caught:
        tnmars.load_checkpoint(tmp_path / "a", *fresh.parts)
    assert str(caught.value).endswith("Nothing was changed.")
    assert fresh.state() == before


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(1).expand(2), "has entries that share memory"),
        (torch.eye(2).to_sparse(), "has layout torch.sparse_coo"),
    ],
)
def test_a_tensor_that_cannot_be_written_to(value: torch.Tensor, text: str, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("x", torch.zeros(value.shape))
    tnmars.save(model, tmp_path / "a")
    model.x = value
    model.weight.data.fill_(7.0)
    with pytest.raises(TnmarsError, match=f"tensor 'x' of the model {text}"):
        tnmars.load_into(model, tmp_path / "a")
    assert (model.weight == 7.0).all()


def test_a_lazy_module_is_reported(tmp_path: Path) -> None:
    tnmars.save(nn.Linear(2, 2), tmp_path / "a")
    with pytest.raises(TnmarsError, match="tensor 'weight' of the model has no shape yet"):
        tnmars.load_into(nn.LazyLinear(2), tmp_path / "a")


# --- numpy's generators ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
@pytest.mark.parametrize("other", ["MT19937", "PCG64"])
def test_every_bit_generator_of_numpy_resumes(name: str, other: str, tmp_path: Path) -> None:
    before = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(getattr(numpy.random, name)(3))
        numpy.random.standard_normal()
        run = Run()
        tnmars.save_checkpoint(tmp_path / "a", *run.parts)
        expected = numpy.random.standard_normal(5).tolist()
        numpy.random.set_bit_generator(getattr(numpy.random, other)(4))
        tnmars.load_checkpoint(tmp_path / "a", *run.parts)
        assert numpy.random.standard_normal(5).tolist() == expected
    finally:
        numpy.random.set_bit_generator(before)
