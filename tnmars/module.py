"""Plans to `nn.Module`: parameters, bias and the emitted functions, one for each range of batch sizes.

`forward` checks its input against the graph, picks a plan by comparing the batch with a few limits, and runs it. It is
a pure function of input, parameters and buffers. The plans of the nominal batch are made at once; those of other ranges
when they are first needed. Under `torch.compile` and `torch.export` the nominal ones are taken, without a branch.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tnmars import faces, init
from tnmars.choice import Planner
from tnmars.emit import core_names, emit
from tnmars.forms import Form, weight_forms
from tnmars.graph import Graph, Role
from tnmars.plan.layout import Weighing

MODES = ("train", "infer")


@dataclass(frozen=True)
class Code:
    """The functions of one program."""

    fold: Callable[..., tuple[Tensor, ...]]
    run: Callable[..., Tensor]
    cores: tuple[str, ...]
    source: str
    chunk: int = 0

    def __call__(self, inputs: tuple[Tensor, ...], bias: Tensor | None, parts: tuple[Tensor, ...]) -> Tensor:
        """The result for given parts; a large batch is cut into chunks where the form says so."""
        more = parts if bias is None else (bias, *parts)
        if self.chunk and inputs[0].shape[0] > self.chunk and not torch.compiler.is_compiling():
            return torch.cat([self.run(piece, *more) for piece in torch.split(inputs[0], self.chunk)])
        return self.run(*inputs, *more)


@lru_cache(maxsize=4096)
def _functions(source: str) -> tuple[Any, Any]:
    """The two functions of an emitted source. It is ours: no name of a spec file is in it but in comments."""
    name = f"<tnmars {abs(hash(source)):x}>"
    space: dict[str, Any] = {}
    exec(compile(source, name, "exec"), space)  # noqa: S102
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    return space["fold"], space["run"]


def code(form: Form) -> Code:
    """The runnable code of a form."""
    source = emit(form.program, form.frame)
    fold, run = _functions(source)
    return Code(fold, run, core_names(form.program), source, form.chunk)


class Cores(nn.Module):
    """Holds cores by name: `cores.G1`, or `cores.t1.G1`. Any identifier is a name here, also `type` or `forward`."""

    def put(self, name: str, value: nn.Parameter) -> None:
        first, _, rest = name.partition(".")
        if not rest:
            self._parameters[first] = value
            return
        child = self._modules.setdefault(first, Cores())
        assert isinstance(child, Cores)
        child.put(rest, value)

    def get(self, name: str) -> nn.Parameter:
        first, _, rest = name.partition(".")
        if not rest:
            found = self._parameters[first]
            assert found is not None
            return found
        child = self._modules[first]
        assert isinstance(child, Cores)
        return child.get(rest)

    def train(self, mode: bool = True) -> Cores:
        """As in `nn.Module`, which would assign to a core named `training`."""
        self.__dict__["training"] = mode
        for child in self.children():
            child.train(mode)
        return self


class Shell(nn.Module):
    """What compiled and frozen layers have in common: the graph, the sizes torch's layer has, and the face."""

    graph: Graph
    bias: Any
    _anchor: Tensor

    def __init__(self, graph: Graph, device: torch.device | str | None, dtype: torch.dtype | None):
        super().__init__()
        self.graph = graph
        self._sizes: Mapping[str, Any] = faces.public_sizes(graph)
        self.register_buffer("_anchor", torch.zeros((), device=device, dtype=dtype), persistent=False)

    def __getattr__(self, name: str) -> Any:
        sizes = self.__dict__.get("_sizes", {})
        return sizes[name] if name in sizes else super().__getattr__(name)

    @property
    def dtype(self) -> torch.dtype:
        return self._anchor.dtype

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        return faces.forward(self, inputs, named)


class TNModule(Shell):
    """A layer whose weight is a tensor network."""

    def __init__(
        self,
        planner: Planner,
        *,
        rule: str | float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        graph = planner.graph
        super().__init__(graph, device, dtype)
        self.planner = planner
        self.rule = rule
        self._buckets = planner.buckets
        self._plans: dict[tuple[str, int], Form] = {}
        self._codes: dict[tuple[str, int], Code] = {}
        self._weight: Code | None = None
        if graph.terms:
            self._weight = code(weight_forms(graph, Weighing(planner.model), planner.optimizer)[0])
            for mode in MODES:
                self.plan(mode, self.nominal)
        self.__dict__["cached"] = None
        self.cores = Cores()
        for name, shape in graph.cores.items():
            self.cores.put(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        bias = torch.empty(graph.out_features, device=device, dtype=dtype) if graph.has_bias else None
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))
        self.reset_parameters()

    is_table = False
    cached: Shell | None
    """A frozen copy that computes instead while `tnmars.cached` is on; it is not part of the model."""

    def __getstate__(self) -> dict[str, Any]:
        """What a copy takes over: it is not within the block that caches this layer."""
        return {**self.__dict__, "cached": None}

    def reset_parameters(self) -> None:
        """Draws cores and bias anew: the weight with the variance asked for, the bias as torch's layers do."""
        if self._anchor.is_meta:
            return
        init.fill_({name: self.cores.get(name) for name in self.graph.cores}, self.graph, self.rule)
        if self.bias is not None:
            bound = (self.graph.in_features * prod(self.graph.kernel_size)) ** -0.5
            nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        count = sum(parameter.numel() for parameter in self.cores.parameters())
        return f"{self.graph.kind}, {self.graph.signature}, {count:,} parameters in {len(self.graph.cores)} cores"

    @property
    def nominal(self) -> int:
        """The batch that `torch.compile` and `torch.export` plan for."""
        return self.planner.nominal

    def plan(self, mode: str, batch: int) -> Form:
        """The plan for a batch, `train` or `infer`. Made when it is first asked for, then kept."""
        bucket = next(entry.batch for entry in self._buckets if batch <= entry.limit)
        if (mode, bucket) not in self._plans:
            form = self.planner.plan(mode, bucket)
            self._plans[mode, bucket] = form
            self._codes[mode, bucket] = code(form)
        return self._plans[mode, bucket]

    @property
    def source(self) -> str:
        """The emitted code for the nominal batch, with gradients."""
        return self._pick(self.nominal, "train").source if self._weight is not None else "# no term is left\n"

    def dense(self) -> Tensor:
        """The whole weight in torch's layout; for a tensor or a map, with one axis per mode."""
        if self.cached is not None and self.graph.of_role(Role.FREE):
            return self.cached.dense()  # type: ignore[no-any-return]
        if self._weight is None:
            return self._anchor.expand(self.graph.dense_shape)
        weight = self._weight.fold(*self._tensors(self._weight))[0]
        skip = dict(self.graph.options).get("padding_idx")
        return weight.index_fill(0, torch.tensor([skip], device=weight.device), 0.0) if skip is not None else weight

    def compute(self, batch: int, *inputs: Tensor) -> Tensor:
        if self.cached is not None:
            return self.cached.compute(batch, *inputs)  # type: ignore[no-any-return]
        if self._weight is None:
            return faces.without_terms(self, self.bias, inputs)
        mode = "train" if torch.is_grad_enabled() else "infer"
        made = self._pick(self.nominal if torch.compiler.is_compiling() else batch, mode)
        return made(inputs, self.bias, made.fold(*self._tensors(made)))

    def _tensors(self, made: Code) -> list[Tensor]:
        return [self.cores.get(name) for name in made.cores]

    def _pick(self, batch: int, mode: str) -> Code:
        for bucket in self._buckets:
            if batch <= bucket.limit:
                break
        found = self._codes.get((mode, bucket.batch))
        if found is None:
            self.plan(mode, bucket.batch)
            found = self._codes[mode, bucket.batch]
        return found


def layers(model: nn.Module) -> Iterator[tuple[str, TNModule]]:
    """The compiled layers of a model, by name."""
    for name, module in model.named_modules():
        if isinstance(module, TNModule):
            yield name, module
