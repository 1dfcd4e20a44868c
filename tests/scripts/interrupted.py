"""A small training run that is killed again and again, as a script: what it ends with is a digest of everything.

    python tests/scripts/interrupted.py FOLDER KILLS SEED CALLS

It kills at random times, and before every call that a save makes of the system (so many of them; 0 for all); prints
JSON. torch is loaded once;
each life of the run is a fork of this process, ended by SIGKILL.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy
import torch
import torch._dynamo  # an optimiser would load it in every life
import torch.nn.functional as F
from torch import nn

import tnmars
from tnmars.files import write_text
from tnmars.program.codec import plan_to_json
from tnmars.store import optimizer as optimizers

STEPS = 12
SAVE = 4
"""The number of the save that is killed before each of its calls: there is a file already, and one before it."""
CALLS = ("open", "write", "seek", "flush", "fsync", "chmod", "utime", "link", "replace", "rename", "unlink", "close")
"""Calls that change files, as Python names them."""
MODULES = ("posix", "io", "_io")


def layer(inputs: tuple[int, ...], outputs: tuple[int, ...]) -> tnmars.TNModule:
    graph = tnmars.families.tt("linear", inputs=inputs, outputs=outputs, rank=4)
    return tnmars.compile(graph, selector=tnmars.Mars(spread=1.0), batch=16)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer, *states: object) -> str:
    """Of weights, logits, buffers, plans, graphs, optimiser and generators."""
    data, tensors = optimizers.to_json(optimizer, model)
    found = hashlib.sha256()
    for name, value in sorted({**model.state_dict(), **tensors, "torch": torch.get_rng_state()}.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().contiguous().numpy().tobytes())
    plans = {
        name: [plan_to_json(module.programs.plans), tnmars.dump(module.graph), module.selector.settings()]
        for name, module in model.named_modules()
        if isinstance(module, tnmars.TNModule)
    }
    plain = [data, plans, repr(random.getstate()), repr(numpy.random.get_state()), states]
    found.update(json.dumps(plain, sort_keys=True, default=str).encode())
    return found.hexdigest()


def run(folder: Path) -> None:
    """Trains from where it was left off to the end, with a checkpoint after every step."""
    random.seed(3)
    numpy.random.seed(4)
    torch.manual_seed(5)
    model = nn.Sequential(layer((3, 2), (2, 4)), nn.ReLU(), nn.Dropout(0.2), layer((4, 2), (2, 2)), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(tnmars.param_groups(model, lr=0.05, mask_lr=0.2))
    schedule = tnmars.MaskSchedule(model, STEPS, warmup_steps=3)
    decay = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 8])
    path, first = folder / "run.ckpt", 0
    losses: list[float] = []
    if path.exists():
        resumed = tnmars.load_checkpoint(path, model, optimizer, schedule, decay)
        first, losses = resumed.position["step"], resumed.extra
    for step in range(first, STEPS):
        x = torch.from_numpy(numpy.random.standard_normal((random.choice([1, 8]) + 1, 6))).float()
        loss = F.mse_loss(model(x), x[:, :4]) + tnmars.penalty(model) / 100
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        decay.step()
        losses.append(loss.item())
        if step == 5:
            tnmars.prune_(model, optimizer, keep_gates=True, step=step)
        if step == 9:
            tnmars.prune_(model, optimizer, {"0": tnmars.keep(model)["0"]}, step=step)
        tnmars.save_checkpoint(path, model, optimizer, schedule, decay, {"step": step + 1}, losses)
    result = digest(model, optimizer, schedule.state_dict(), decay.state_dict(), losses)
    write_text(folder / "done.json", json.dumps({"digest": result, "losses": losses}))


def live(folder: Path, before: Callable[[], None] = lambda: None) -> int:
    """Starts a life of the run; returns its process."""
    process = os.fork()
    if process:
        return process
    try:
        before()
        run(folder)
    except BaseException:
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


def ended(process: int) -> bool:
    """Whether the run came to its end; else it was killed. Anything else is an error."""
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status in (0, -signal.SIGKILL), f"a resumed run failed with {status}"
    return status == 0


def whole_run(folder: Path) -> float:
    """Runs without interruption; how long it took."""
    start = time.perf_counter()
    assert ended(live(folder))
    return time.perf_counter() - start


def kill_at_random(folder: Path, kills: int, seed: int, lasts: float) -> dict[str, object]:
    """Kills the run at so many random moments; where it comes to its end before, it starts over."""
    chance = random.Random(seed)
    results, done, in_save, runs = [], 0, 0, 0
    while done < kills or not results:
        here = folder / f"run{runs}"
        runs += 1
        here.mkdir()
        while True:
            process = live(here)
            if done < kills:
                time.sleep(chance.uniform(0.0, lasts))
                os.kill(process, signal.SIGKILL)
            if ended(process):
                break
            done += 1
            in_save += bool(list(here.glob(".*.part")))
            for left in here.glob(".*.part"):
                left.unlink()
        results.append(json.loads((here / "done.json").read_text())["digest"])
    return {"kills": done, "in_save": in_save, "runs": runs, "digests": results}


def kill_at_calls(folder: Path, most: int) -> dict[str, object]:
    """Kills the run before each call that an early save makes of the system; then it goes on to the end.

    With `most`, only before so many of them, spread over all.
    """
    (folder / "counted").mkdir()
    listed = folder / "calls.json"
    assert ended(live(folder / "counted", partial(watch, listed=listed)))
    calls = json.loads(listed.read_text())
    chosen = range(len(calls)) if not most else sorted({at * len(calls) // most for at in range(most)})
    results = []
    for at in chosen:
        here = folder / f"call{at}"
        here.mkdir()
        assert not ended(live(here, partial(watch, deadly=at))), f"call {at}, {calls[at]}, was not made"
        assert ended(live(here))
        results.append(json.loads((here / "done.json").read_text())["digest"])
    return {"calls": calls, "kills": len(results), "digests": results}


def watch(listed: Path | None = None, deadly: int | None = None) -> None:
    """Watches the calls of the system that the save with number `SAVE` makes, from Python's own functions in C.

    Lists their names in a file once the save ends, or lets this process die before one of them.
    """
    saves, names = [0], []

    def hook(frame: object, event: str, given: object) -> None:
        if event in ("call", "return") and frame.f_code is tnmars.save_checkpoint.__code__:
            saves[0] += event == "call"
            if event == "return" and saves[0] == SAVE and listed is not None:
                sys.setprofile(None)
                write_text(listed, json.dumps(names))
        elif event == "c_call" and saves[0] == SAVE and is_of_the_system(given):
            if len(names) == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            names.append(given.__name__)

    sys.setprofile(hook)


def is_of_the_system(function: object) -> bool:
    """Whether a function in C may change something outside of this process."""
    owner = getattr(function, "__self__", None)
    return function.__name__ in CALLS and (isinstance(owner, io.IOBase) or getattr(owner, "__name__", "") in MODULES)


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    (folder / "whole").mkdir()
    lasts = whole_run(folder / "whole")
    expected = json.loads((folder / "whole" / "done.json").read_text())["digest"]
    at_random = kill_at_random(folder, int(sys.argv[2]), int(sys.argv[3]), lasts)
    print(json.dumps({"expected": expected, "random": at_random, "calls": kill_at_calls(folder, int(sys.argv[4]))}))


if __name__ == "__main__":
    main()
