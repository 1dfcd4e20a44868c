"""The noise of a step: a function of the seed, the step and the layer's place in the model, not of its wrappers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import tnmars
from tnmars.errors import TnmarsError


class Net(nn.Module):
    """Two layers at different depths; the second stands under an attribute that is called like DDP's own."""

    def __init__(self) -> None:
        super().__init__()
        graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(6,), rank=4)
        self.first = tnmars.compile(graph, selector=tnmars.Mars())
        self.module = nn.ModuleDict({"inner": tnmars.compile(graph, selector=tnmars.Mars())})


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model)  # nothing is traced before the first call


def inside(model: Net) -> nn.Module:
    """Only an inner module is wrapped, twice."""
    model.module["inner"] = compiled(checkpoint_wrapper(model.module["inner"]))
    return model


class Sharded(nn.Module):
    """What FSDP's first version does to names. (Itself it needs an accelerator.)"""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._fsdp_wrapped_module = model


WRAPPERS: dict[str, Callable[[Net], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "compile": compiled,
    "fsdp": Sharded,
    "checkpoint": checkpoint_wrapper,
    "parallel": DataParallel,
    "average": AveragedModel,
    "compiled ddp": lambda model: compiled(DistributedDataParallel(model)),
    "ddp of compiled": lambda model: DistributedDataParallel(compiled(model)),
    "inside": inside,
}


def noise(model: nn.Module) -> list[Tensor]:
    return [value.clone() for name, value in model.named_buffers() if name.endswith("masks.noise")]


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_do_not_change_the_noise(name: str, group: None) -> None:
    plain, wrapped = Net(), WRAPPERS[name](Net())
    one = tnmars.MaskSchedule(plain, 10, seed=3)
    other = tnmars.MaskSchedule(wrapped, 10, seed=3)
    for _ in range(2):
        first, second = noise(plain), noise(wrapped)
        assert len(first) == len(second) == 2 and not torch.equal(first[0], first[1])
        assert all(map(torch.equal, first, second))
        one.step()
        other.step()


def test_a_layer_that_is_the_whole_model_may_be_wrapped(group: None) -> None:
    layers = [Net().first for _ in range(2)]
    tnmars.MaskSchedule(layers[0], 10, seed=3)
    tnmars.MaskSchedule(DistributedDataParallel(layers[1]), 10, seed=3)
    assert torch.equal(layers[0].masks.noise, layers[1].masks.noise)


def test_the_noise_of_a_plain_model_stays_as_it_was() -> None:
    """Checkpoints of earlier versions depend on these numbers, also where a user calls a module `module`."""
    model = Net()
    tnmars.MaskSchedule(model, 10, seed=3).step()
    expected = [[2.715551, 0.681109, -0.394582, -0.19948], [-1.349737, 1.375725, 1.712607, -0.317052]]
    assert [[round(value, 6) for value in one.tolist()] for one in noise(model)] == expected


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"every": 0}, "every is 0, but must be at least 1"),
        ({"steps": -5}, "steps is -5, but must be at least 0"),
        ({"warmup_steps": -1}, "warmup_steps is -1, but must be at least 0"),
        ({"decay_steps": 0.0}, "decay_steps is 0.0, but must be a number above 0"),
        ({"decay_steps": float("nan")}, "decay_steps is nan, but must be a number above 0"),
    ],
)
def test_a_state_that_no_schedule_has_is_refused_and_changes_nothing(changed: dict[str, Any], text: str) -> None:
    layer = tnmars.compile(tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=4), selector=tnmars.Mars())
    schedule = tnmars.MaskSchedule(layer, 100, seed=0)
    schedule.step()
    before = schedule.state_dict()
    with pytest.raises(TnmarsError, match=text):
        schedule.load_state_dict({**before, "seed": 7, **changed})
    assert schedule.state_dict() == before
    schedule.load_state_dict({**before, "decay_steps": 5})  # an integer where a float is
    assert schedule.progress == 1 / 5
