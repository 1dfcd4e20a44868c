"""Everything that reads a file: each command and each public function, by the kind of file that it reads.

A reader is called with the path of a file, in a folder that has `good.*` files of every other kind. It returns the
message of the refusal, or nothing if it has read the file.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import socket
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy
import torch
import yaml
from forging import CODE, Net, adapter_bytes, checkpoint_bytes, graph, model_bytes, pickled, trained
from spec_files import GOOD

import tnmars
from tnmars import cli
from tnmars.errors import TnmarsError
from tnmars.experiments import cifar, texts
from tnmars.experiments.results import collected
from tnmars.plan.cost import machine_model

Reader = Callable[[str], str]


def prepare(folder: Path) -> None:
    """Writes a good file of each kind into a folder, and the module of a user's own."""
    (folder / "good.yaml").write_text(GOOD)
    (folder / "good.safetensors").write_bytes(model_bytes())
    (folder / "good.ckpt").write_bytes(checkpoint_bytes())
    (folder / "adapters.safetensors").write_bytes(adapter_bytes())
    numpy.save(folder / "good.npy", numpy.random.default_rng(0).standard_normal((5, 4), dtype=numpy.float32))
    numpy.save(folder / "many.npy", numpy.random.default_rng(1).standard_normal((40, 4), dtype=numpy.float32))
    (folder / "good.jsonl").write_text('{"epoch": 0, "loss": 1.0}\n{"epoch": 1, "loss": 0.5}\n')
    lines = "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Linear(4, 5))\n"
    (folder / "net.py").write_text(lines)
    (folder / "canary.py").write_text("open('canary', 'w').close()\n")


def command(*words: str) -> Reader:
    """Runs a command in which FILE stands for the path."""

    def run(path: str) -> str:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = cli.run([word.replace("FILE", path) for word in words])
        said = out.getvalue() + err.getvalue()
        if status == 0:
            return ""
        assert status == 2, f"ends with {status}: {said[-500:]}"
        assert "Traceback" not in said and "internal error" not in said, said[-500:]
        return said

    return run


def function(call: Callable[[str], Any]) -> Reader:
    """Calls a function, which may refuse by raising `TnmarsError` and nothing else."""

    def run(path: str) -> str:
        try:
            call(path)
        except TnmarsError as error:
            return str(error)
        return ""

    return run


def _resume(path: str) -> None:
    model, optimizer, schedule = trained()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    try:
        tnmars.load_checkpoint(path, model, optimizer, schedule)
    except TnmarsError:
        assert torch.equal(torch.get_rng_state(), state), "the random state was changed"
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "half is changed"
        raise


def _load_adapters(path: str) -> None:
    model = Net()
    before = list(model.state_dict())
    try:
        tnmars.load_adapters_(model, path)
    except TnmarsError:
        assert list(model.state_dict()) == before, "half is changed"
        raise


def _load(path: str) -> None:
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        tnmars.load_into(model, path)
    except TnmarsError:
        after = model.state_dict()
        assert after.keys() == before.keys(), "half is changed"
        assert all(torch.equal(value, before[name]) for name, value in after.items()), "half is changed"
        raise


def _compress(path: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 5))
    tnmars.plan_compression(model, {"0": path}, budget="1.05x", data=torch.randn(40, 4))


def _search(path: str) -> None:
    tnmars.search_ranks(graph(), lambda graph, ranks: 0.0, budget="2x", trials=1, checkpoint=path)


def _stages(path: str) -> None:
    model = Net()
    model.fc = tnmars.compile(graph())
    tnmars.Stages(model, budget="1.5x", checkpoint=str(Path(path).parent))


def _curve(path: str) -> None:
    found = tnmars.load_curve(Path(path).parent, Net())
    str(found)
    found.chosen.make()


def _cost(path: str) -> None:
    """The cost model of the machine is the file of this name in the cache folder."""
    with _environment(XDG_CACHE_HOME=str(Path(path).parent.parent), TNMARS_COST_MODEL=""):
        machine_model()


def _planned(path: str) -> str:
    with _environment(XDG_CACHE_HOME=str(Path(path).parent.parent), TNMARS_COST_MODEL=""):
        return command("plan", "good.yaml")(path)


class _environment:  # noqa: N801
    """Variables of the environment within a block."""

    def __init__(self, **values: str):
        self.values = values

    def __enter__(self) -> None:
        self.before = {name: os.environ.get(name) for name in self.values}
        os.environ.update(self.values)

    def __exit__(self, *_: object) -> None:
        for name, value in self.before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


PLACES = {
    "spec": "x.yaml",
    "model": "x.safetensors",
    "adapters": "x.safetensors",
    "checkpoint": "x.ckpt",
    "npy": "x.npy",
    "safetensors": "x.safetensors",
    "history": "x.jsonl",
    "curve": "curve/curve.json",
    "search": "x.json",
    "cost": "tnmars/cost_model.json",
    "record": "runs/record-0.json",
    "data": "cifar10/data_batch_1.bin.xz",
}
"""Where a file of each kind lies."""

_FIT = ("fit", "good.yaml", "good.npy", "-o", "out", "-q", "--ranks", "1")
_PRESS = ("compress", "net:build", "--budget", "1.05x", "-o", "out.safetensors", "-q")
READERS: Mapping[str, Mapping[str, Reader]] = {
    "spec": {
        "check": command("check", "FILE"),
        "check --json": command("check", "FILE", "--json"),
        "expand": command("expand", "FILE"),
        "show": command("show", "FILE", "-o", "out.svg"),
        "plan": command("plan", "FILE"),
        "compile": command("compile", "FILE"),
        "diff": command("diff", "FILE", "good.yaml"),
        "diff the other way": command("diff", "good.yaml", "FILE"),
        "bench": command("bench", "FILE"),
        "fit": command("fit", "FILE", "good.npy", "-o", "out", "-q"),
        "compress": command(*_PRESS, "--data", "many.npy", "--rule", "*=FILE"),
        "load": function(tnmars.load),
        "compile()": function(tnmars.compile),
        "plan_compression": function(_compress),
    },
    "model": {
        "show": command("show", "FILE"),
        "plan": command("plan", "FILE", "--batch", "1"),
        "diff": command("diff", "FILE", "good.safetensors"),
        "diff the other way": command("diff", "good.safetensors", "FILE"),
        "prune": command("prune", "FILE", "-o", "out.safetensors"),
        "report before": command("report", "FILE", "good.safetensors", "-o", "out.html", "--no-measure"),
        "report after": command("report", "good.safetensors", "FILE", "-o", "out.html", "--no-measure"),
        "load_into": function(_load),
    },
    "adapters": {"load_adapters_": function(_load_adapters)},
    "checkpoint": {"load_checkpoint": function(_resume)},
    "npy": {
        "fit": command("fit", "good.yaml", "FILE", "-o", "out", "-q"),
        "fit --observed": command(*_FIT, "--observed", "FILE"),
        "fit --held-out": command(*_FIT, "--held-out", "FILE"),
        "compress --data": command(*_PRESS, "--data", "FILE"),
        "suggest": command("suggest", "FILE", "--parameters", "60", "-q"),
        "suggest --inputs": command("suggest", "good.npy", "--parameters", "15", "-q", "--inputs", "FILE"),
    },
    "safetensors": {
        "fit": command("fit", "good.yaml", "FILE", "-o", "out", "-q"),
        "fit --observed": command(*_FIT, "--observed", "FILE"),
        "compress --data": command(*_PRESS, "--data", "FILE"),
        "compress --weights": command(*_PRESS, "--data", "many.npy", "--weights", "FILE"),
    },
    "history": {
        "report": command(
            *("report", "good.safetensors", "good.safetensors", "-o", "out.html", "--no-measure", "--history", "FILE")
        ),
    },
    "curve": {"load_curve": function(_curve), "Stages": function(_stages)},
    "search": {"search_ranks": function(_search)},
    "cost": {"machine_model": function(_cost), "plan": _planned},
    "record": {"collected": function(lambda path: collected("toy", Path(path).parent))},
    "data": {
        "cifar": function(lambda path: cifar.cifar(Path(path).parent.parent)),
        "texts": function(lambda path: texts.read(Path(path))),
    },
}
"""By kind of file and by name."""


def _trusting(call: Callable[[], Any]) -> Reader:
    def run(_: str) -> str:
        call()
        return ""

    return run


TRUSTING: Mapping[str, Reader] = {
    "pickle": _trusting(lambda: pickle.loads(pickled())),  # noqa: S301
    "yaml": _trusting(lambda: yaml.unsafe_load("!!python/object/apply:os.system ['true']")),
    "eval": _trusting(lambda: eval(CODE.replace("touch canary", "true"))),  # noqa: S307
    "import": _trusting(lambda: importlib.import_module("nturl2path")),  # of the standard library, used by nobody
    "socket": _trusting(lambda: socket.socket().close()),
    "write": _trusting(lambda: Path("canary").write_text("")),
    "rename": _trusting(lambda: Path("many.npy").rename("many.npy")),
}
"""Readers that do what no reader of ours may do: the guard must see each."""
