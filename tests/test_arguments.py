"""Every public function with an argument of a wrong type: it says so in its own words, and changes nothing.

`CALLS` has a good call of each public function, of each class that users make, and of the methods that they call. Every
argument of it is then replaced by values of other types, one at a time. A call may succeed, because some functions take
more than they declare; what it raises must be a `TnmarsError`, or a `TypeError` that names the argument. A value of a
class that nobody knows must be refused wherever the signature does not say that anything goes.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from strategies import THOROUGH
from torch import Tensor, nn

import tnmars
from tnmars import families

GRAPH = families.lowrank("linear", inputs=(6,), outputs=(4,), rank=3)
TERM = GRAPH.terms[0]
FOLDER = Path(tempfile.mkdtemp())
MADE = {
    *("Canonical", "Decomposed", "Fitted", "Count", "CompressionPlan", "RankSearch", "Trial", "Curve", "Point"),
    *("Stage", "Suggestion", "Suggestions", "TNModule", "draw.Layout", "draw.Picture", "spec.Spec"),
}
"""Classes that functions make, not users."""
MESSAGES = {
    *("CheckpointError", "GraphError", "PatternError", "ShapeError", "SpecError", "TnmarsError", "Problem"),
    *("FitWarning", "CompressionWarning", "ShrinkWarning", "Selector", "Role"),
}
"""What is raised or warned of, a base class without arguments, and an enumeration."""


class Odd:
    """A value of a class that no function knows."""


class Module(nn.Module):
    """A model with a compiled and a dense layer."""

    def __init__(self, **settings: Any):
        super().__init__()
        self.fc = tnmars.compile(GRAPH, batch=2, **settings)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.fc(x))


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


def gated() -> nn.Module:
    return Module(selector=tnmars.Mars())


def batches() -> list[Tensor]:
    return [torch.randn(16, 6) for _ in range(4)]


def pairs() -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(4, 6), torch.zeros(4, 3)) for _ in range(2)]


def cores() -> dict[str, Tensor]:
    return {name: torch.randn(shape) for name, shape in GRAPH.cores.items()}


@cache
def _adapters() -> Path:
    path = FOLDER / "adapters.safetensors"
    tnmars.save_adapters(tnmars.adapter_(dense(), rank=2), path)
    return path


def stored(what: str) -> Path:
    """A file that a function made, to read."""
    path = FOLDER / what
    if what == "model":
        tnmars.save(Module(), path)
    elif what == "checkpoint":
        model = Module()
        tnmars.save_checkpoint(path, model, torch.optim.Adam(model.parameters()))
    elif what == "spec.yaml":
        tnmars.save_spec(GRAPH, path)
    elif what == "curve" and not path.exists():  # a second path would have to begin with the same weights
        _shrunk(checkpoint=path)
    return path


def _shrunk(**more: Any) -> tnmars.Curve:
    return tnmars.shrink(
        Module(), train=pairs(), loss=nn.functional.mse_loss, evaluate=lambda model: 0.5, max_drop=1.0, samples=8,
        settings=tnmars.Staircase(first=1, ramp=1), progress=False, **more,
    )  # fmt: skip


WEIGHT = {"inputs": (4, 6), "outputs": (2, 6)}
SETTINGS = ("Annealed", "Ard", "CostModel", "Fixed", "GaussianGates", "Mars", "Staircase")
LIBRARIES = {
    **{f"interchange.{way}_{name}": name for way in ("from", "to") for name in ("quimb", "tednet", "tensorly")},
    **{f"interchange.{way}_tensorly_torch": "tltorch" for way in ("from", "to")},
    **{
        f"integrations.{name}": "transformers"
        for name in ("register", "save_pretrained", "trainer_callback", "trainer_stages")
    },
    "integrations.lightning_callback": "lightning",
    "export_onnx": "onnxscript",
}
"""The library that a function needs. Without it only wrong arguments can be tried."""
CONV = {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "stride": 1, "padding": 1, "dilation": 1, "bias": True}
CONV |= {"groups": 2, "padding_mode": "zeros"}
MORE = {"family": "cp", "rank": 2}


def good_calls() -> dict[str, Callable[[], dict[str, Any]]]:
    """For each public name its arguments, made afresh for every call."""
    calls: dict[str, Callable[[], dict[str, Any]]] = {
        "compile": lambda: dict(
            graph=GRAPH, selector=None, open_only=False, bias=True, init="glorot", batch=2, image=8, tune=False,
            optimizer="auto", model=tnmars.CostModel(), device="cpu", dtype=torch.float32,
            memory_format=torch.contiguous_format, warn=False,
        ),
        "canonical": lambda: dict(graph=GRAPH, cores=cores()),
        "decompose": lambda: dict(
            weight=torch.randn(4, 6), graph=GRAPH, ranks=2, error=None, energy=None, parameters=None,
            metric=tnmars.Metric(inputs=torch.eye(6)), seed=0, starts=1, steps=2, watch=None,
        ),
        "Metric": lambda: dict(inputs=torch.eye(6), outputs=None, responses=None, channels=None, samples=8),
        "Builder": lambda: dict(kind="linear"),
        "network": lambda: dict(
            kind="linear", text="A[i,r] B[r,o]", bonds=2, inputs={"i": 4}, outputs={"o": 3}, features={"in": 3},
            options={"bias": False}, name="net", shared=[],
        ),
        "fit": lambda: dict(
            graph=families.tt("tensor", free=(3, 3), rank=2), given=torch.randn(3, 3), observed=None, held_out=None,
            selector=None, ranks=1, error=None, energy=None, parameters=None, seed=0, steps=3, dtype=torch.float64,
            watch=None, shown=None,
        ),
        "Core": lambda: dict(name="A", edges=("i", "r"), tied="B", conj=False),
        "Edge": lambda: dict(name="r", size=2, role=tnmars.Role.BOND),
        "Graph": lambda: dict(
            kind="linear", modes=GRAPH.modes, terms=GRAPH.terms, shared=(), features=(), kernel_size=(), inputs=(),
            output=(), options=(("bias", False),), name="", origin=None,
        ),
        "Operand": lambda: dict(name="x", axes=(("b",), ("i",)), same="y"),
        "Term": lambda: dict(name="main", bonds=TERM.bonds, cores=TERM.cores),
        "count": lambda: dict(graph=GRAPH),
        "factor": lambda: dict(size=12, ways=2, order="ascending", criterion="entropy"),
        "factor_up": lambda: dict(size=13, ways=2, order="ascending", criterion="entropy"),
        "einsum": lambda: dict(equation="bi,ir,ro->bo", kind=None, name="net", i=8, r=2, o=6),
        "adapter_": lambda: dict(model=dense(), rules=None, rank=2, scale=1.0, selector=None),
        "merge_adapters_": lambda: dict(model=tnmars.adapter_(dense(), rank=2)),
        "print_trainable_parameters": lambda: dict(model=dense()),
        "as_torch_": lambda: dict(model=Module()),
        "to_dense_": lambda: dict(model=Module(), names=["fc"]),
        "compress_": lambda: dict(model=dense(), plan=None, rules={"*": "lowrank"}, budget="1.2x", data=batches()),
        "plan_compression": lambda: dict(
            model=dense(), rules={"*": "lowrank"}, budget="1.2x", data=batches(), inputs=None, evaluate=None,
            max_drop=None, tune=False, seed=0, cost_model=None, progress=False, watch=None,
        ),
        "Linear": lambda: dict(in_features=6, out_features=4, bias=True, **MORE, batch=2),
        "Conv1d": lambda: dict(**CONV, **MORE, batch=2),
        "Conv2d": lambda: dict(**CONV, **MORE, batch=2),
        "Conv3d": lambda: dict(**CONV, **MORE, batch=2, image=4),
        "ConvTranspose1d": lambda: dict(**CONV, output_padding=0, **MORE, batch=2),
        "ConvTranspose2d": lambda: dict(**CONV, output_padding=0, **MORE, batch=2),
        "ConvTranspose3d": lambda: dict(**CONV, output_padding=0, **MORE, batch=2, image=4),
        "Embedding": lambda: dict(
            num_embeddings=8, embedding_dim=4, padding_idx=0, max_norm=None, norm_type=2.0, scale_grad_by_freq=False,
            sparse=False, **MORE, batch=2,
        ),
        "LSTM": lambda: dict(**_recurrent(), proj_size=2),
        "GRU": _recurrent,
        "ensemble": lambda: dict(models=[Module(), Module()], average="outputs", dim=-1),
        "from_dense": lambda: dict(
            layer=nn.Linear(6, 4), graph="lowrank", ranks=2, error=None, energy=None, parameters=None,
            inputs=torch.randn(8, 6), seed=0, batch=2, image=8, tune=False,
        ),
        "gate_": lambda: dict(model=Module(), selector=tnmars.Mars(), names="fc"),
        "suggest": lambda: dict(
            layer=nn.Linear(6, 4), parameters=22, kind=None, inputs=torch.randn(8, 6), families=["lowrank"], batch=2,
            image=8, seed=0, cost_model=tnmars.CostModel(), watch=None,
        ),
        "match_": lambda: dict(
            small=Module(), dense=nn.Sequential(nn.Linear(6, 3)), data=batches(), inputs=None, epochs=None, steps=1,
            lr=1e-3, hidden=(), loss="mse", held_out=0.3, batch=4, seed=0, progress=False, watch=None,
        ),
        "parametrize_": lambda: dict(
            module=nn.Linear(6, 4), name="weight", graph=GRAPH, selector=None, open_only=False, cores=None, init=None,
            ranks=2, error=None, energy=None, parameters=None, metric=None, seed=0,
        ),
        "tie_": lambda: dict(
            model=dense(), layers="*", graph="cp", rank=2, selector=None, cores=None, init=0.5,
        ),
        "keep": lambda: dict(model=gated()),
        "prune": lambda: dict(
            model=gated(), keep={"fc": {"r": (0, 2)}}, ranks=None, energy=None, simplify=True, keep_gates=False, step=3,
            round_to=None,
        ),
        "prune_": lambda: dict(
            model=gated(), optimizer=None, keep={"fc": {"r": (0, 2)}}, ranks=None, energy=None, keep_gates=False,
            step=3, round_to=None,
        ),
        "ShutSlices": lambda: dict(model=gated(), patience=3, optimizer=None, every=1),
        "widen_": lambda: dict(model=Module(), ranks=4, optimizer=None, start="random", scale=0.1, seed=0),
        "report": lambda: dict(
            before=Module(), after=Module(), path=FOLDER / "report.html", title="title", history=[{"loss": 1.0}],
            metrics={"accuracy": [0.5, 0.6]}, batch=2, measure=False, plan=None,
        ),
        "summary": lambda: dict(model=Module()),
        "search_ranks": lambda: dict(
            graph=GRAPH, score=lambda graph, ranks: 1.0, budget="2x", trials=2, method="random", seed=0, start=None,
            batch=2, image=8, checkpoint=None, progress=False, watch=None,
        ),
        **{name: _settings(name) for name in SETTINGS},
        "export_onnx": lambda: dict(model=Module(), path=FOLDER / "net.onnx", example_inputs=torch.randn(2, 6)),
        "cached": lambda: dict(model=Module()),
        "freeze": lambda: dict(model=Module(), form="compact", batch=2, image=8, example=None, tune=False),
        "write_source": lambda: dict(model=Module(), path=FOLDER / "source.py"),
        "load_curve": lambda: dict(folder=stored("curve"), model=Module()),
        "shrink": lambda: dict(
            model=Module(), train=pairs(), loss=nn.functional.mse_loss, evaluate=lambda model: 0.5, budget=None,
            max_drop=1.0, samples=8, settings=tnmars.Staircase(first=1, ramp=1), saliency="norm", seed=0,
            checkpoint=None, progress=False, watch=None,
        ),
        "Stages": lambda: dict(
            model=Module(), budget="1.2x", max_drop=None, train_samples=8, example=torch.randn(2, 6), settings=None,
            saliency=None, checkpoint=None, start=None,
        ),
        "dump": lambda: dict(graph=GRAPH),
        "load": lambda: dict(path=stored("spec.yaml")),
        "loads": lambda: dict(text=tnmars.dump(GRAPH), source="text"),
        "save_spec": lambda: dict(graph=GRAPH, path=FOLDER / "saved.yaml"),
        "load_checkpoint": lambda: _checkpoint(stored("checkpoint"), previous=False),
        "save_checkpoint": lambda: _checkpoint(FOLDER / "new", position=1, extra=None),
        "load_into": lambda: dict(model=Module(), path=stored("model")),
        "save": lambda: dict(model=Module(), path=FOLDER / "saved"),
        "load_adapters_": lambda: dict(model=dense(), path=_adapters()),
        "save_adapters": lambda: dict(model=tnmars.adapter_(dense(), rank=2), path=FOLDER / "adapters"),
        "gate_gradient_": lambda: _gradient(gated()),
        "expected": lambda: dict(model=gated(), what="parameters"),
        "param_groups": lambda: dict(model=gated(), lr=1e-3, mask_lr=1e-2, weight_decay=0.0),
        "penalty": lambda: dict(model=gated()),
        "sampled": lambda: dict(model=gated()),
        "MaskSchedule": lambda: dict(
            model=gated(), total_steps=10, decay_steps=5.0, warmup_steps=0, every=1, seed=0, optimizer=None
        ),
    }  # fmt: skip
    train = families.tt("linear", inputs=(2, 3), outputs=(2, 2), rank=2)
    for name in ("core_list", "quimb", "tednet", "tensorly", "tensorly_torch"):
        calls[f"interchange.to_{name}"] = lambda: dict(layer=tnmars.compile(train, batch=2))
    calls["interchange.to_tensorly"] = lambda: dict(layer=tnmars.compile(train, batch=2), form="TTMatrix")
    calls["interchange.from_core_list"] = lambda: dict(
        cores=[torch.randn(1, 4, 3, 2), torch.randn(2, 5, 6, 1)], kind="linear", bias=torch.zeros(18)
    )
    calls["interchange.from_quimb"] = lambda: dict(
        network=_foreign("to_quimb", train), inputs=("i1", "i2"), outputs=None
    )
    calls["interchange.from_tednet"] = lambda: dict(layer=_foreign("to_tednet", train))
    calls["interchange.from_tensorly"] = lambda: dict(value=_foreign("to_tensorly", train), kind=None, outputs=1)
    calls["interchange.from_tensorly_torch"] = lambda: dict(layer=_foreign("to_tensorly_torch", train))
    for name in ("lightning_callback", "trainer_callback"):
        calls[f"integrations.{name}"] = lambda: dict(examples=10, warmup_steps=1, prune=True, seed=0)
    calls["integrations.trainer_stages"] = lambda: dict(
        model=Module(), evaluate=lambda model: 0.5, budget=None, max_drop=1.0, train_samples=8, example=None,
        settings=tnmars.Staircase(first=1, ramp=1), saliency=None, start=None,
    )  # fmt: skip
    calls["integrations.register"] = dict
    calls["integrations.save_pretrained"] = lambda: dict(model=_pretrained(), folder=FOLDER / "pretrained")
    for name in ("dot", "html", "layout", "pair", "pdf", "picture", "png", "svg", "terminal", "tikz"):
        calls[f"draw.{name}"] = _drawing(name)
    for name in ("lowrank", "tt", "tt_naive", "tr", "tucker", "tucker2", "cp", "btd", "ht", "peps", "complete", "btt"):
        calls[f"families.{name}"] = _family(name)
    calls["families.of_layer"] = lambda: dict(
        family="tt", kind="conv", inside=4, outside=4, kernel=(3, 3), ways=2, groups=2, rank=2
    )
    calls["families.settings"] = lambda: dict(family="tt")
    calls["families.known"] = lambda: dict(family="tt")
    for name in ("lint", "has_bounds", "too_large"):
        calls[f"lint.{name}"] = lambda: dict(graph=GRAPH)
    calls["lint.useful_size"] = lambda: dict(graph=GRAPH, term=TERM, bond="r")
    for name in ("dump", "load", "loads", "save_spec"):
        calls[f"spec.{name}"] = calls[name]
    calls["spec.document"] = lambda: dict(graph=GRAPH)
    calls["spec.read"] = lambda: dict(data=tnmars.dump(GRAPH).encode(), params=None)
    calls["spec.read_file"] = lambda: dict(path=stored("spec.yaml"), params=None)
    calls["spec.schema"] = calls["spec.schema_text"] = dict
    for name in ("view", "cycles", "narrow_cuts"):
        calls[f"topology.{name}"] = lambda: dict(graph=GRAPH, term=TERM)
    for name in ("parts", "is_tree"):
        calls[f"topology.{name}"] = lambda: dict(term=TERM)
    calls["topology.common"] = lambda: dict(term=TERM, bond="r")
    calls["topology.cut"] = lambda: dict(graph=GRAPH, term=TERM, bond="r")
    calls["topology.isomorphic"] = lambda: dict(a=GRAPH, b=GRAPH)
    return calls


def _settings(name: str) -> Callable[[], dict[str, Any]]:
    """The settings of a class at their defaults."""
    made = getattr(tnmars, name)()
    return lambda: {field.name: getattr(made, field.name) for field in fields(made)}


def _recurrent() -> dict[str, Any]:
    return dict(input_size=6, hidden_size=4, num_layers=1, bias=True, batch_first=False, dropout=0.0,
                bidirectional=False, device="cpu", dtype=torch.float32, input=True, recurrent=False, family="lowrank",
                rank=2)  # fmt: skip


def _foreign(convert: str, graph: tnmars.Graph) -> Any:
    """A layer as an object of another library; where that is not installed, the layer itself."""
    layer = tnmars.compile(graph, batch=2)
    is_there = importlib.util.find_spec(LIBRARIES[f"interchange.{convert}"]) is not None
    return getattr(tnmars.interchange, convert)(layer) if is_there else layer


def _pretrained() -> Any:
    """A small model of transformers with a compiled layer; where that is not installed, any model."""
    if importlib.util.find_spec("transformers") is None:
        return dense()
    from transformers import BertConfig, BertModel

    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
    model = BertModel(BertConfig(**sizes))
    model.pooler.dense = tnmars.Linear(8, 8, family="lowrank", rank=2)
    return model


def _drawing(name: str) -> Callable[[], dict[str, Any]]:
    more = {"layout": {"term": TERM}, "png": {"scale": 1.0}, "terminal": {"width": 60, "colour": False}}
    if name == "pair":
        return lambda: dict(before=GRAPH, after=GRAPH)
    return lambda: dict(graph=GRAPH, **more.get(name, {}))


def _family(name: str) -> Callable[[], dict[str, Any]]:
    more: dict[str, dict[str, Any]] = {
        "tt_naive": {"order": ("in", "out")},
        "btd": {"terms": 2},
        "ht": {"tree": None},
        "peps": {"grid": (2, 2), "inputs": (2, 3, 2, 2), "outputs": (2, 2, 2, 2)},
    }
    one = {"inputs": (6,), "outputs": (4,)} if name == "lowrank" else WEIGHT
    return lambda: {"kind": "linear", "rank": 2, "ranks": None, **one, **more.get(name, {})}


def _checkpoint(path: Path, **more: Any) -> dict[str, Any]:
    model = Module()
    return dict(path=path, model=model, optimizer=torch.optim.Adam(model.parameters()), schedule=None,
                lr_scheduler=None, **more)  # fmt: skip


def _gradient(model: nn.Module) -> dict[str, Any]:
    x = torch.randn(2, 6)
    return dict(model=model, closure=lambda: model(x).square().mean(), estimator="arm", samples=1, baseline=None,
                generator=None)  # fmt: skip


@cache
def _curve() -> tnmars.Curve:
    return _shrunk()


@cache
def _fitted() -> tnmars.Fitted:
    return tnmars.fit(families.tt("tensor", free=(3, 3), rank=2), torch.randn(3, 3), ranks=1, steps=3)


def _stage() -> Any:
    path = tnmars.Stages(Module(), budget="1.2x", train_samples=8, example=torch.randn(2, 6))
    return next(iter(path))


def _suggestions() -> Any:
    return tnmars.suggest(nn.Linear(6, 4), parameters=22, families=["lowrank"], batch=2)


def method_calls() -> dict[str, Callable[[], dict[str, Any]]]:
    """For each method that users call with arguments, its arguments, the object itself first."""
    return {
        "Builder.bond": lambda: dict(self=tnmars.Builder("tensor"), r=2),
        "Builder.core": lambda: dict(self=tnmars.Builder("tensor"), name="A", tied="", conj=False),
        "Builder.mode": lambda: dict(self=tnmars.Builder("tensor"), role="free", a=2),
        "Builder.term": lambda: dict(self=tnmars.Builder("tensor"), name="t"),
        "Curve.at": lambda: dict(self=_curve(), budget=10**6),
        "Curve.report": lambda: dict(self=_curve(), path=FOLDER / "curve.html"),
        "Curve.row": lambda: dict(self=_curve(), point=_curve().points[-1]),
        "Curve.save": lambda: dict(self=_curve(), folder=FOLDER / "saved_curve"),
        "Fitted.save": lambda: dict(self=_fitted(), stem=FOLDER / "fitted"),
        "Mars.closed": lambda: dict(pi=0.1, alpha=-1.0, spread=1.0),
        "MaskSchedule.load_state_dict": _schedule_state,
        "MaskSchedule.step": lambda: dict(self=tnmars.MaskSchedule(gated(), 5), loss=1.0, penalty=0.5),
        "Point.cost": lambda: dict(self=_curve().points[-1], unit="macs"),
        "Problem.under": lambda: dict(self=tnmars.Problem("It is wrong.")),
        "ShutSlices.load_state_dict": lambda: dict(
            self=tnmars.ShutSlices(gated(), 3), state=tnmars.ShutSlices(gated(), 3).state_dict()
        ),
        "Stage.factor": lambda: dict(self=_stage(), step=1),
        "Stage.report": lambda: dict(self=_stage(), score=0.5, samples=8, position={"at": 1}),
        "Suggestions.build": lambda: dict(self=_suggestions(), family="lowrank"),
    }


def _schedule_state() -> dict[str, Any]:
    schedule = tnmars.MaskSchedule(gated(), 5)
    return dict(self=schedule, state=schedule.state_dict())


EXTENDED = ("Graph", "CostModel", "Metric", "TNModule", "draw.Layout", "spec.Spec")
"""Classes whose methods with arguments are called by the package itself, as are those of every selector."""
CALLS = good_calls()


def public() -> Iterator[tuple[str, Any]]:
    """Every public function and class: of the package, and of its public modules."""
    for name in tnmars.__all__:
        value = getattr(tnmars, name)
        if isinstance(value, types.ModuleType):
            for key in getattr(value, "__all__", None) or vars(value):
                inner = getattr(value, key)
                if not key.startswith("_") and callable(inner) and inner.__module__.startswith(value.__name__):
                    yield f"{name}.{key}", inner
        elif callable(value):
            yield name, value


def methods() -> Iterator[tuple[str, Any]]:
    """The methods of public classes that users call with arguments."""
    for name, made in public():
        if not inspect.isclass(made) or name in EXTENDED or "Selector" in name:
            continue
        for key, method in vars(made).items():
            inner = method.__func__ if isinstance(method, classmethod) else method
            is_ours = inspect.isfunction(inner) and not key.startswith("_")
            is_extended = issubclass(made, tnmars.Selector) and key != "closed"
            if is_ours and not is_extended and len(inspect.signature(inner).parameters) > 1:
                yield f"{name}.{key}", getattr(made, key)


PUBLIC = dict(public())
METHODS = method_calls()


def test_every_public_name_has_a_good_call() -> None:
    assert CALLS.keys() | MADE | MESSAGES == PUBLIC.keys() - METHODS.keys() | METHODS.keys()
    assert METHODS.keys() == dict(methods()).keys()
    assert not CALLS.keys() & (MADE | MESSAGES)


PUBLIC |= dict(methods())
CALLS |= METHODS


@pytest.mark.parametrize("name", CALLS)
def test_good_calls_are_good_and_have_every_argument(name: str) -> None:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    given = CALLS[name]()
    call(PUBLIC[name], given)
    declared = inspect.signature(PUBLIC[name]).parameters.values()
    expected = {one.name for one in declared if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
    assert expected <= given.keys()


def call(function: Callable[..., object], given: Mapping[str, Any]) -> object:
    """A call by name, but of what can be given by position only."""
    declared = inspect.signature(function).parameters
    by_position = [name for name, one in declared.items() if one.kind is one.POSITIONAL_ONLY]
    first = [given[name] for name in by_position]
    rest = {name: value for name, value in given.items() if name not in by_position}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = function(*first, **rest)
        if inspect.isgenerator(made) or hasattr(made, "__next__"):
            made = list(made)
        if hasattr(made, "__enter__") and not isinstance(made, (Tensor, nn.Module)):
            with made:
                pass
    return made


WRONG: dict[str, Callable[[], Any]] = {
    "odd": Odd,
    "none": lambda: None,
    "text": lambda: "no such thing",
    "table": lambda: {"fc": None, 3: Odd()},
    "integer": lambda: 3,
    "list": lambda: [1, "a", None],
    "truth": lambda: True,
    "number": lambda: 2.5,
    "bytes": lambda: b"\x00bytes",
    "empty": lambda: (),
    "set": lambda: {1.5},
    "class": lambda: Odd,
    "tensor": lambda: torch.zeros(2),
    "module": lambda: nn.Linear(2, 2),
    "graph": lambda: GRAPH,
    "negative": lambda: -1,
    "complex": lambda: 1j,
    "nested": lambda: {"fc": {"r": None}},
}
"""Values of many types, each wrong for most arguments."""
FUNCTIONS = {"watch", "inputs", "loss", "score", "evaluate", "saliency", "closure", "shown", "input", "recurrent"}
FITTING = {
    "class": FUNCTIONS,
    "module": FUNCTIONS | {"small", "dense", "layer"},
    "tensor": {"inputs", "data", "held_out"},
}
"""Arguments for which a value is of the right type. If it is of no use, the user's own function or model says so."""


@dataclass
class Outcome:
    error: BaseException | None
    changed: bool


def tried(name: str, argument: str, wrong: str) -> Outcome:
    given = CALLS[name]()
    models = [value for value in given.values() if isinstance(value, nn.Module)]
    before = [state(model) for model in models]
    given[argument] = WRONG[wrong]()
    try:
        call(PUBLIC[name], given)
    except Exception as error:
        return Outcome(error, any(state(model) != was for model, was in zip(models, before, strict=True)))
    return Outcome(None, False)


def state(model: nn.Module) -> list[object]:
    """What a model is: its modules and the entries of its tensors."""
    tensors = [(name, value.tolist()) for name, value in model.state_dict().items()]
    return [*((name, type(module)) for name, module in model.named_modules()), *tensors]


def complaint(name: str, argument: str, wrong: str) -> str:
    """What is wrong with the way a function takes a wrong value, if anything."""
    found = tried(name, argument, wrong)
    if found.error is None:
        return "takes a value of an unknown class" if wrong == "odd" and not takes_anything(name, argument) else ""
    said = f"{type(found.error).__name__}: {found.error}"
    if not isinstance(found.error, (tnmars.TnmarsError, TypeError)):
        return said
    is_ours = isinstance(found.error, tnmars.TnmarsError)
    if not is_ours and not is_named(argument, str(found.error)) and not takes_anything(name, argument):
        return said
    return f"changes the model, then {said}" if found.changed else ""


def is_named(argument: str, text: str) -> bool:
    """Whether a message is about an argument: it begins with its name, or has it in quotes or after `argument`."""
    name = re.escape(argument)
    return re.search(rf"^{name}\b|['\"`]{name}['\"`]|\barguments?:? {name}\b", text) is not None


def takes_anything(name: str, argument: str) -> bool:
    """Whether anything goes, so that an error may be that of the user's own model, which gets the value."""
    declared = inspect.signature(PUBLIC[name]).parameters
    several = next((one for one in declared.values() if one.kind is one.VAR_KEYWORD), None)
    one = declared.get(argument, several)
    return one is not None and str(one.annotation) in ("object", "Any", "HasState | None", "'Any'", "'object'")


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_type_is_refused_in_words(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some text is a path
    values = list(WRONG) if THOROUGH else list(WRONG)[:4]
    wrong = {}
    for argument in CALLS[name]():
        for value in (value for value in values if argument not in {"self"} | FITTING.get(value, set())):
            said = complaint(name, argument, value)
            if said:
                wrong[argument, value] = said
    assert wrong == {}


def test_an_internal_error_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the test: functions that do not look at their argument, change it first, or take whatever comes."""

    def careless(model: nn.Module) -> list[str]:
        return [name for name, _ in model.named_modules()]

    def hasty(model: nn.Module, name: str) -> str:
        model.out.weight.data.zero_()
        raise tnmars.TnmarsError(f"name is {name!r}.")

    def blind(name: str) -> str:
        return f"{name}"

    good = {"careless": lambda: {"model": Module()}, "hasty": lambda: {"model": Module(), "name": "a"}}
    for function in (careless, hasty, blind):
        monkeypatch.setitem(PUBLIC, function.__name__, function)
        monkeypatch.setitem(CALLS, function.__name__, good.get(function.__name__, lambda: {"name": "a"}))
    assert complaint("careless", "model", "none").startswith("AttributeError")
    assert complaint("hasty", "name", "none").startswith("changes the model")
    assert complaint("blind", "name", "odd") == "takes a value of an unknown class"
    assert complaint("blind", "name", "none") == ""


def test_a_bare_error_of_python_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the test: an error that only happens to hold the letters of the name, and one of a named keyword."""

    def short(a: object, **sizes: int) -> int:
        return len(a) + sum(sizes.values())

    def spread(**sizes: int) -> int:
        return sum(len(size) for size in sizes.values())

    monkeypatch.setitem(PUBLIC, "short", short)
    monkeypatch.setitem(PUBLIC, "spread", spread)
    monkeypatch.setitem(CALLS, "short", lambda: {"a": "text", "b": 1})
    monkeypatch.setitem(CALLS, "spread", lambda: {"inputs": (2,)})
    assert complaint("short", "b", "none").startswith("TypeError: unsupported operand")
    assert complaint("spread", "inputs", "integer").startswith("TypeError: object of type 'int'")
    assert not is_named("a", "object of type 'int' has a name") and not is_named("in", "inputs is 3")
    assert is_named("a", "f() got an unexpected keyword argument 'a'") and is_named("inputs", "inputs is 3")


def as_numpy(value: Any) -> Any:
    """A number as one of numpy's, also inside of a tuple, a list or a table. Any other value stays as it is."""
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return np.int64(value)
    if isinstance(value, float):
        return np.float32(value) if float(np.float32(value)) == value else np.float64(value)
    if type(value) in (list, tuple):
        return type(value)(map(as_numpy, value))
    return {key: as_numpy(entry) for key, entry in value.items()} if type(value) is dict else value


@pytest.mark.parametrize("name", CALLS)
def test_numbers_of_numpy_are_as_good(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    wrong = {}
    for argument in CALLS[name]():
        given = CALLS[name]()
        other = as_numpy(given[argument])
        if other is given[argument] or repr(other) == repr(given[argument]):
            continue
        try:
            call(PUBLIC[name], given | {argument: other})
        except Exception as error:
            wrong[argument] = f"{type(error).__name__}: {error}"
    assert wrong == {}


LONG = 10**5000
ZERO = torch.tensor(3)  # without axes
TABLE = np.ones((2, 2), int)
ODD_VALUES: dict[str, tuple[Callable[[], object], str]] = {
    "a selector": (lambda: tnmars.compile(GRAPH, selector="mars"), "such as tnmars.Mars"),
    "an integer without text": (lambda: tnmars.compile(GRAPH, selector=LONG), "selector is an integer of 16,610 bits"),
    "a batch": (lambda: tnmars.compile(GRAPH, batch=LONG), "batch is an integer of 16,610 bits"),
    "a size": (lambda: families.tt("linear", inputs=(LONG,), outputs=(4,), rank=2), "mode 'i1' has size an integer of"),
    "a rule": (lambda: tnmars.compile(GRAPH, init=True), "init is True, but .* one of glorot, kaiming"),
    "a type": (lambda: tnmars.compile(GRAPH, dtype=int), "dtype is the class int, but must be one of torch.float16"),
    "a device": (lambda: tnmars.compile(GRAPH, device=99), "device is 99, but must be a device of torch"),
    "modes": (lambda: families.tt("linear", inputs=ZERO, outputs=(4,), rank=2), "inputs is tensor"),
    "ranks": (lambda: families.tt("linear", **WEIGHT, ranks=ZERO), "ranks is tensor"),
    "parts": (lambda: tnmars.Graph("linear", ZERO, ZERO), "modes is tensor"),
    "a kernel": (lambda: tnmars.Graph("linear", GRAPH.modes, GRAPH.terms, kernel_size=ZERO), "kernel_size is tensor"),
    "shared modes": (
        lambda: tnmars.network("linear", "A[i,r] B[r,o]", bonds=2, inputs={"i": 4}, outputs={"o": 3}, shared=ZERO),
        "shared is tensor",
    ),
    "an order of roles": (lambda: families.tt_naive("linear", **WEIGHT, rank=2, order=TABLE), "order is array"),
    "an order": (lambda: tnmars.factor(12, 2, order=TABLE), "order is array"),
    "sizes": (lambda: tnmars.decompose(torch.randn(4, 6), GRAPH, ranks=TABLE), "ranks has 2 sizes"),
    "a seed": (lambda: tnmars.decompose(torch.randn(4, 6), GRAPH, ranks=2, seed=2**70), "seed is .* at most 64 bits"),
    "the seed of a schedule": (
        lambda: tnmars.MaskSchedule(gated(), total_steps=2, seed=2**70),
        "seed is .* at most 64 bits",
    ),
    "an example": (
        lambda: tnmars.Stages(Module(), train_samples=8, example=[[1]], settings=tnmars.Staircase()),
        "input is of type list",
    ),
    "a mask of slices": (
        lambda: tnmars.prune(gated(), {"fc": {"r": torch.tensor([True, False, True])}}),
        "keep of bond 'r' is .*, but must be a list of whole numbers",
    ),
    "float8": (
        lambda: tnmars.from_dense(nn.Linear(6, 4).to(torch.float8_e4m3fn), GRAPH, ranks=2),
        "dtype is torch.float8_e4m3fn, but must be one of",
    ),
}
"""Calls with a value that is odd in another way than its type, each with a part of what is said."""


@pytest.mark.parametrize("name", ODD_VALUES)
def test_odd_values_are_refused_in_words(name: str) -> None:
    ask, words = ODD_VALUES[name]
    with pytest.raises(tnmars.TnmarsError, match=words):
        ask()


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b"], ids=["NUL", "surrogate"])
def test_paths_that_no_file_system_takes(path: str) -> None:
    model, page = Module(), FOLDER / "none.html"
    optimizer = torch.optim.Adam(model.parameters())
    for ask in (
        lambda: tnmars.load_into(model, path),
        lambda: tnmars.save(model, path),
        lambda: tnmars.load_checkpoint(path, model, optimizer),
        lambda: tnmars.save_checkpoint(path, model, optimizer),
        lambda: tnmars.report(model, model, path),
        lambda: tnmars.report(path, model, page),
        lambda: tnmars.report(model, path, page),
    ):
        with pytest.raises(tnmars.TnmarsError, match=r"a.*b"):
            ask()
    assert not page.exists()


def test_generators_arrays_and_types_that_torch_takes() -> None:
    assert families.btt("linear", inputs=iter((4, 5)), outputs=iter((3, 2)), rank=1) == families.btt(
        "linear", inputs=(4, 5), outputs=(3, 2), rank=1
    )
    layer = families.of_layer("cp", "conv", 4, 4, kernel=(size for size in (3, 3)), rank=2)
    assert layer == families.of_layer("cp", "conv", 4, 4, kernel=(3, 3), rank=2)
    assert tnmars.compile(GRAPH, dtype=float).dtype == torch.float64
    for kept in ([0, 2], np.array([0, 2]), torch.tensor([0, 2])):
        assert tnmars.prune(gated(), {"fc": {"r": kept}}).fc.graph.bonds["r"].size == 2


def test_float8_weights_are_decomposed_as_the_numbers_that_they_are() -> None:
    weight = torch.randn(4, 6).to(torch.float8_e4m3fn)
    found = tnmars.decompose(weight, GRAPH, ranks=3)
    expected = tnmars.decompose(weight.float(), GRAPH, ranks=3)
    assert found.error == expected.error
    assert all(torch.equal(found.cores[name], expected.cores[name]) for name in GRAPH.cores)
    assert len(tnmars.suggest(weight, 20).entries) == len(tnmars.suggest(weight.float(), 20).entries) > 0
