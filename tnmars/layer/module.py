"""Plans to `nn.Module`: parameters, bias and the emitted functions, one for each range of batch sizes.

`forward` checks its input against the graph, picks a plan by comparing the batch with a few limits, and runs it. It is
a pure function of input, parameters and buffers. Under `torch.compile` and `torch.export` the plans of the nominal
batch are taken, without a branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.errors import ShapeError
from tnmars.graph import Graph, Role
from tnmars.layer import forward as faces
from tnmars.layer import init
from tnmars.layer.code import WEIGHT, Chosen, Code, Programs, code
from tnmars.layer.masks import Masks
from tnmars.layer.open_slices import Opening, level_of, nearby
from tnmars.layer.scaling import is_plain, scaled, scalings
from tnmars.program.choice import Planner
from tnmars.program.expected import Monomial, evaluate, mac_terms, parameter_terms
from tnmars.program.form import Form
from tnmars.select.base import Selector

__all__ = ["Code", "Cores", "Shell", "TNModule", "code", "layers"]


LARGE = 2**31
"""From how many entries on it is asked first whether there is room for a whole weight."""


class Cores(nn.Module):
    """Holds cores by name: `cores.G1`, or `cores.t1.G1`. Any identifier is a name here, also `type` or `forward`."""

    def __init__(self, values: Mapping[str, nn.Parameter] | None = None):
        super().__init__()
        for name, value in (values or {}).items():
            self.put(name, value)

    def put(self, name: str, value: nn.Parameter) -> None:
        first, _, rest = name.partition(".")
        if not rest:
            self._parameters[first] = value
            return
        child = self._modules.setdefault(first, Cores())
        assert isinstance(child, Cores)
        child.put(rest, value)

    def get(self, name: str) -> nn.Parameter:
        quick = self._parameters.get(name)
        if quick is not None:
            return quick
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
    def device(self) -> torch.device:
        return self._anchor.device

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
        selector: Selector | None = None,
        open_only: bool = False,
        plans: Mapping[Chosen, Form] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(planner.graph, device, dtype)
        self.rule = rule
        self.selector = selector
        self.open_only = open_only
        self.__dict__["cached"] = None
        graph = planner.graph
        cores = {name: _empty(shape, device, dtype) for name, shape in graph.cores.items()}
        kind = torch.float64 if dtype == torch.float64 else torch.float32
        gates = {name: _empty((bond.size,), device, kind) for name, bond in graph.bonds.items()}
        self.become_(planner, cores, gates if selector is not None and selector.has_gates else {}, plans)
        self.register_parameter("bias", _empty((graph.out_features,), device, dtype) if graph.has_bias else None)
        self.reset_parameters()

    def become_(
        self,
        planner: Planner,
        cores: Mapping[str, nn.Parameter],
        gates: Mapping[str, nn.Parameter],
        plans: Mapping[Chosen, Form] | None = None,
    ) -> None:
        """Takes another graph with the same modes, with these cores and the logits of these gates (none: no masks)."""
        self.graph = planner.graph
        self._bonds, self._scalings = tuple(self.graph.bonds), scalings(self.graph)  # not anew at every call
        self.programs = Programs(planner, gated=bool(gates), plans=plans, place=self)
        self.opening = Opening(planner)
        self.cores = Cores(cores)
        for name in ("gates", "masks"):
            self._modules.pop(name, None)
            self.__dict__[name] = None
        if gates and self.selector is not None:
            sizes = {name: bond.size for name, bond in self.graph.bonds.items()}
            self.gates = Cores(gates)
            costs = self._slice_costs()
            self.masks = Masks(self.selector, sizes, self.device, self.dtype, costs).train(self.training)

    gates: Cores | None
    """The logits of the gates by bond; none without a selector."""
    masks: Masks | None
    """What makes gates of them."""
    is_table = False
    cached: Shell | None
    """A frozen copy that computes instead while `tnmars.cached` is on; it is not part of the model."""

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy or a pickle. A copy is not cached, and makes its own programs for open slices."""
        return {key: value for key, value in self.__dict__.items() if key != "opening"} | {"cached": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.graph = self.planner.graph  # checked when the programs were restored
        self.opening = Opening(self.planner)

    def reset_parameters(self) -> None:
        """Draws cores and bias anew: the weight with the variance asked for, the bias as torch's layers do."""
        if self._anchor.is_meta:
            return
        init.fill_({name: self.cores.get(name) for name in self.graph.cores}, self.graph, self.rule)
        if self.bias is not None:
            bound = (self.graph.in_features * prod(self.graph.kernel_size)) ** -0.5
            nn.init.uniform_(self.bias, -bound, bound)
        if self.masks is not None:
            with torch.no_grad():
                for logits in self.logits():
                    logits.copy_(self.masks.selector.start(logits.numel()))
            self.masks.reset_()
            self.masks.unit.fill_(self._average_price())

    def _average_price(self) -> float:
        """What a slice costs in the mean, where slices are priced by what they hold."""
        assert self.masks is not None
        what = self.masks.selector.price
        if what not in ("parameters", "macs"):
            return 1.0
        sizes = {name: bond.size for name, bond in self.graph.bonds.items()}
        terms = parameter_terms(self.graph) if what == "parameters" else self.mac_terms()
        return float(evaluate(terms, sizes)) / sum(sizes.values())

    def _slice_costs(self) -> list[float]:
        """What one slice of each bond costs while all others are there: 1, or the parameters or MACs that it holds."""
        what = "uniform" if self.selector is None else self.selector.price
        if what == "uniform":
            return [1.0] * len(self.graph.bonds)
        terms = self.mac_terms() if what == "macs" else parameter_terms(self.graph)
        sizes = {name: bond.size for name, bond in self.graph.bonds.items()}
        full = float(evaluate(terms, sizes))
        return [full - float(evaluate(terms, {**sizes, name: size - 1})) for name, size in sizes.items()]

    def mac_terms(self, share: float = 1.0) -> tuple[Monomial, ...]:
        """The multiply-adds for the nominal batch, as a polynomial in the sizes of the bonds.

        Under the plan for about this share of open slices; by default the layer's own.
        """
        if not self.graph.terms:
            return ()
        if share > 0.5:
            return mac_terms(self.graph, self.plan("infer", self.nominal), self.nominal)
        near = nearby(self.planner, level_of(max(share, 1e-6)))
        return mac_terms(near.graph, near.plan("infer", self.nominal), self.nominal)

    def _apply(self, fn: Any, recurse: bool = True) -> TNModule:
        """As in `nn.Module`; but gates stay in float32 at least, for half the digits would not let them learn."""
        before = [value.data for value in self._digits()]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for value, was in zip(self._digits(), before, strict=True):
            if value.dtype in (torch.float16, torch.bfloat16):
                value.data = was.to(value.device)
        return self

    def _digits(self) -> list[Tensor]:
        """What a gate is made of."""
        return [] if self.masks is None else [*self.logits(), self.masks.noise, self.masks.temperature]

    def logits(self) -> list[nn.Parameter]:
        """The learned numbers of the gates, one vector for each bond in the graph's order; none without gates."""
        if self.gates is None:
            return []
        get = self.gates.get
        return [get(name) for name in self._bonds]

    def gate_values(self) -> dict[str, Tensor]:
        """The gates of every bond, as `forward` would use them now."""
        if self.masks is None:
            return {}
        found = (gate.to(self.dtype) for gate in self.masks(self.logits()))
        return dict(zip(self._bonds, found, strict=True))

    def scaled_cores(self) -> dict[str, Tensor]:
        """The cores with the gates multiplied in, by which the layer could do without gates; as `forward` would now."""
        cores: dict[str, Tensor] = {name: self.cores.get(name) for name in self.graph.cores}
        return cores if self.masks is None else scaled(self._scalings, self.gate_values(), cores)

    def extra_repr(self) -> str:
        count = sum(parameter.numel() for parameter in self.cores.parameters())
        return f"{self.graph.kind}, {self.graph.signature}, {count:,} parameters in {len(self.graph.cores)} cores"

    @property
    def planner(self) -> Planner:
        return self.programs.planner

    @property
    def nominal(self) -> int:
        """The batch that `torch.compile` and `torch.export` plan for."""
        return self.planner.nominal

    def plan(self, mode: str, batch: int) -> Form:
        """The plan for a batch, `train` or `infer`. Made when it is first asked for, then kept."""
        return self.programs.plan(mode, batch, self)

    @property
    def source(self) -> str:
        """The emitted code for the nominal batch, with gradients."""
        return self._pick(self.nominal, "train").source if self.graph.terms else "# no term is left\n"

    def dense(self) -> Tensor:
        """The whole weight in torch's layout; for a tensor or a map, with one axis per mode."""
        if self.cached is not None and self.graph.of_role(Role.FREE):
            return self.cached.dense()  # type: ignore[no-any-return]
        if self._weight is None:
            return self._anchor.expand(self.graph.dense_shape)
        self._check_room()
        made, given = self._ready(WEIGHT, 0)
        weight = made.fold(*given)[0]
        skip = dict(self.graph.options).get("padding_idx")
        return weight.index_fill(0, torch.tensor([skip], device=weight.device), 0.0) if skip is not None else weight

    def _check_room(self) -> None:
        """Refuses a weight that there is no memory for, before what it is made of fills the memory."""
        shape = self.graph.dense_shape
        if prod(shape) < LARGE:
            return
        try:
            self._anchor.new_empty(shape)
        except RuntimeError:
            kind = "ask for entries at index tuples" if self.graph.of_role(Role.FREE) else "use the layer on its inputs"
            raise ShapeError(
                f"the whole weight has {prod(shape):,} entries, too many for the memory; {kind}."
            ) from None

    def compute(self, batch: int, *inputs: Tensor) -> Tensor:
        if self.cached is not None and not (self.training and torch.is_grad_enabled()):
            return self.cached.compute(batch, *inputs)  # type: ignore[no-any-return]
        if self._weight is None:
            return faces.without_terms(self, self.bias, inputs)
        made, given = self._ready("train" if torch.is_grad_enabled() else "infer", batch)
        return made(inputs, self.bias, made.fold(*given))

    def _ready(self, mode: str, batch: int) -> tuple[Code, list[Tensor]]:
        """The code for a mode and a batch, and what its `fold` takes: cores, then gates."""
        if self.masks is None:
            made = self.programs.pick(self.nominal if torch.compiler.is_compiling() else batch, mode, self)
            get = self.cores.get
            return made, [get(name) for name in made.cores]
        size = self.nominal if torch.compiler.is_compiling() else batch
        if self.open_only and self.masks.is_drawn and is_plain():
            held: dict[str, Tensor] = {name: self.cores.get(name) for name in self.graph.cores}
            is_open = dict(zip(self._bonds, self.masks.open_slices(self.logits()), strict=True))
            return self.opening(mode, batch, held, self.gate_values(), is_open)
        made = self.programs.pick(size, mode, self)
        get, gates = self.cores.get, self.gate_values()
        return made, [*(get(name) for name in made.cores), *(gates[name] for name in made.gates)]

    @property
    def _weight(self) -> Code | None:
        return self.programs.weight

    def _pick(self, batch: int, mode: str) -> Code:
        return self.programs.pick(batch, mode, self)


def _empty(
    shape: tuple[int, ...], device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))


def layers(model: nn.Module) -> Iterator[tuple[str, TNModule]]:
    """The compiled layers of a model, by name."""
    for name, module in model.named_modules():
        if isinstance(module, TNModule):
            yield name, module
