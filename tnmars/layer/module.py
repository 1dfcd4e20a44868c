"""Plans to `nn.Module`: parameters, bias and the emitted functions, one for each range of batch sizes.

`forward` checks its input against the graph, picks a plan by the batch size, and runs it. It is a pure function of
input, parameters and buffers. `torch.compile` and `torch.export` take the plans of the nominal batch, without a branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.graph import Graph
from tnmars.layer import init
from tnmars.layer.code import WEIGHT, Chosen, Code, Programs, code
from tnmars.layer.cores import Cores, check_bias, check_parameters, plain_state
from tnmars.layer.forward import forward
from tnmars.layer.kinds import LayerKind, kind_of
from tnmars.layer.lazy_weight import lazy_weight
from tnmars.layer.masks import Masks
from tnmars.layer.memory import empty, empty_cores, whole_weight
from tnmars.layer.numbers import gate_dtype, real_dtype
from tnmars.layer.open_slices import Opening, level_of, nearby
from tnmars.layer.own_code import PASS, give_own_code_, without_own_code
from tnmars.layer.prices import average_price, slice_costs
from tnmars.layer.quick import Gating, Ready, Recent, fitting, ordinary
from tnmars.layer.torch_state import has_gradients, is_eager, is_plain, passed_over
from tnmars.program.choice import Planner
from tnmars.program.expected import Monomial, mac_terms
from tnmars.program.form import Form
from tnmars.select.base import Selector

__all__ = ["Code", "Cores", "Shell", "TNModule", "code", "layers"]


class Shell(nn.Module):
    """What compiled and frozen layers have in common: the graph, the sizes of torch's layer, and the forward pass."""

    graph: Graph
    bias: Any
    _anchor: Tensor

    def __init__(self, graph: Graph, device: torch.device | str | None, dtype: torch.dtype | None):
        super().__init__()
        self.graph = graph
        self._sizes: Mapping[str, Any] = kind_of(graph).sizes(graph)
        give_own_code_(self)
        self.register_buffer("_anchor", torch.zeros((), device=device, dtype=dtype), persistent=False)

    def __getattr__(self, name: str) -> Any:
        sizes = self.__dict__.get("_sizes", {})
        return sizes[name] if name in sizes else super().__getattr__(name)

    @property
    def _kind(self) -> LayerKind:
        return kind_of(self.graph)

    @property
    def device(self) -> torch.device:
        return self._anchor.device

    @property
    def dtype(self) -> torch.dtype:
        return self._anchor.dtype

    def dense(self) -> Tensor:
        """The dense weight in torch's layout; for a tensor or a map, with one axis per mode."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """The dense weight, for code that looks for it. It is made when something computes with it, and read-only."""
        if torch.compiler.is_compiling():
            return self.dense()
        return lazy_weight(self.dense, self.graph.dense_shape, self.dtype, self.device)

    def __getstate__(self) -> dict[str, Any]:
        return without_own_code(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        give_own_code_(self)

    @passed_over
    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The output."""
        return self.__dict__[PASS](self, inputs, named)  # type: ignore[no-any-return]

    def _forward(self, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> Tensor:
        return forward(self, inputs, named)


class TNModule(Shell):
    """A layer whose weight is a tensor network. `tnmars.compile` makes one.

    It is used like torch's own layer of its kind: `torch.nn.Linear`, `Conv1d` to `Conv3d`, `ConvTranspose1d` to
    `3d`, `Embedding` or `EmbeddingBag`, with the same sizes as attributes (`in_features`, `kernel_size`, ...). It can
    be saved, pickled, copied, moved with `to`, and compiled with `torch.compile`.

    Args:
        planner: The graph, and how its contraction is planned.
        rule: How cores are initialized: `"glorot"`, `"kaiming"` or the variance of the weight. By default 1 for a table
            or a tensor, else Glorot.
        selector: The rule that trains the gates of the bonds, such as `tnmars.Mars()`; by default there are no gates.
        open_only: Whether a training step contracts only the slices whose gates are open in its sample.
        plans: Plans to take over, by mode and batch, for example those of another layer; by default they are made.
        device: Where the parameters are, by default torch's default device.
        dtype: The type of the cores and the bias, real or complex, by default torch's default dtype. Gates are real.

    Attributes:
        graph: The graph of the layer.
        cores: The cores by name; parameters `cores.G1`, or `cores.t1.G1` where there are several terms.
        bias: The bias, or None.
        gates: The logits of the gates by bond; None without gates.
        masks: What turns logits into gates; None without gates.

    Shape:
        - linear: input `(*, in_features)`, output `(*, out_features)`.
        - conv: input `(batch, in_channels, *image)` or without the batch, output `(batch, out_channels, *image)`.
        - embedding: an index of any shape, output `(*index.shape, embedding_dim)`; with a mode, one row for each bag.
        - tensor: no input, output the tensor itself; or an index `(*, modes)`, output the entries `(*)`.
        - map: named inputs and an output with the axes that the graph gives them.

    Raises:
        ShapeError: Where an input does not have the shape or dtype of the graph.

    Example:
        >>> import torch, tnmars
        >>> graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(3, 5), rank=2)
        >>> layer = tnmars.compile(graph)
        >>> layer(torch.ones(7, 16)).shape
        torch.Size([7, 15])
        >>> layer.dense().shape
        torch.Size([15, 16])
    """

    gates: Cores | None
    """The logits of the gates by bond; none without a selector."""
    masks: Masks | None
    """What turns the logits into gates."""
    cached: Shell | None
    """A frozen copy that computes instead while `tnmars.cached` is on. It is not part of the model."""
    is_table = False
    is_rebuilt = False
    """Whether the layer only gives its dense weight, to another module; see `tnmars.parametrize_`."""
    has_slices = False
    """Whether it gives slices of it to several modules; see `tnmars.tie_`."""

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
        self.cache_(None)
        graph = planner.graph
        cores = empty_cores(graph, device, dtype)
        gates: dict[str, nn.Parameter] = {}
        if selector is not None and selector.has_gates:
            kind = gate_dtype(dtype)
            for name, bond in graph.bonds.items():
                gates[name] = empty((bond.size,), device, kind, f"the gates of bond '{name}'", "Make it smaller.")
        self.become_(planner, cores, gates, plans)
        self.register_parameter("bias", None)
        if graph.has_bias:
            self.bias = empty((graph.out_features,), device, dtype, "the bias", "Compile with bias=False.")
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
        self._bonds = tuple(self.graph.bonds)  # once, because every pass asks for them
        self._shape = self.graph.dense_shape  # and torch.compile cannot trace a cached property
        self.programs = Programs(planner, gated=bool(gates), plans=plans, place=self)
        self.opening = Opening(planner)
        self._fits, self._recent = fitting(self.graph), Recent()
        self.cores = Cores(cores, self.graph.nodes)
        for name in ("gates", "masks"):
            if name in self._modules:
                delattr(self, name)  # torch would keep a module that is None
            setattr(self, name, None)
        if gates and self.selector is not None:
            sizes = {name: bond.size for name, bond in self.graph.bonds.items()}
            self.gates = Cores(gates)
            costs = slice_costs(self.graph, self.selector.price, self.mac_terms)
            self.masks = Masks(self.selector, sizes, self.device, self.dtype, costs).train(self.training)

    def cache_(self, frozen: Shell | None) -> None:
        """Lets a frozen copy compute instead, or no copy. It is not registered: it is not part of the model."""
        self.__dict__["cached"] = frozen
        self._recent = Recent()

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy or a pickle. A copy is not cached, and makes its own programs for open slices."""
        made = ("opening", "_fits", "_recent")
        state = {key: value for key, value in super().__getstate__().items() if key not in made}
        return plain_state(state) | {"cached": None}

    def __setattr__(self, name: str, value: Any) -> None:
        """As in `nn.Module`, but a bias stays, and keeps its shape."""
        if name == "bias":
            check_bias(self, value)
        super().__setattr__(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.graph = self.planner.graph  # checked when the programs were restored
        self.opening = Opening(self.planner)
        self._fits, self._recent = fitting(self.graph), Recent()

    def _forward(self, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> Tensor:
        """The output. An ordinary input takes the fast path."""
        if len(inputs) == 1 and not named:
            x = inputs[0]
            if type(x) is Tensor and not x.is_nested and is_eager():
                key = (x.shape, torch.is_grad_enabled())
                ready = self._recent.get(key) or self._remember(x, key)
                if ready is not None and x.dtype is ready.dtype and ready.fits(self):
                    output = ready(x) if ready.gating is None or ready.gating.fits(self._modules) else None
                    if output is not None:
                        return output
        return forward(self, inputs, named)

    def _remember(self, x: Tensor, key: tuple[torch.Size, bool]) -> Ready | None:
        """What the fast path takes from now on for inputs of this shape, if there is anything."""
        rows = ordinary(x, self._fits, self.dtype)
        if rows is None or self._weight is None or self.cached is not None or self.open_only:
            return None
        made = self._pick(rows.shape[0], "train" if key[1] else "infer")
        gating = None
        if self.masks is not None and self.gates is not None:
            gating = Gating.of(made, self.masks, self.gates, self._bonds)
        return self._recent.remember(key, Ready.of(made, x, rows, self, gating))

    def reset_parameters(self) -> None:
        """Initializes cores, bias and gates again: the weight with the requested variance, the bias as torch does."""
        if self._anchor.is_meta:
            return
        check_parameters(self, "", but=())
        init.fill_({name: self.cores.get(name) for name in self.graph.cores}, self.graph, self.rule)
        if self.bias is not None:
            bound = self.graph.fan_in**-0.5
            nn.init.uniform_(self.bias, -bound, bound)
        if self.masks is not None:
            with torch.no_grad():
                for logits in self.logits():
                    logits.copy_(self.masks.selector.start(logits.numel()))
            self.masks.reset_()
            self.masks.unit.fill_(average_price(self.graph, self.masks.selector.price, self.mac_terms))

    def mac_terms(self, share: float = 1.0) -> tuple[Monomial, ...]:
        """The multiply-adds for the nominal batch, or to rebuild the weight, as a polynomial in the sizes of the bonds.

        Under the plan for about this share of open slices; by default the layer's own.
        """
        if not self.graph.terms:
            return ()
        if self.is_rebuilt or share > 0.5:
            return mac_terms(self.graph, *self.mac_form())
        near = nearby(self.planner, level_of(max(share, 1e-6)))
        return mac_terms(near.graph, near.plan("infer", self.nominal), self.nominal)

    def mac_form(self) -> tuple[Form, int]:
        """The form and the batch that multiply-adds are counted for."""
        return (self.programs.weight_form, 1) if self.is_rebuilt else (self.plan("infer", self.nominal), self.nominal)

    def _apply(self, fn: Any, recurse: bool = True) -> TNModule:
        """As in `nn.Module`, but gates stay real and at least float32: with fewer digits they would not learn."""
        before = [(value.data, None if value.grad is None else value.grad.data) for value in self._digits()]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._recent = Recent()
        for value, (was, gradient) in zip(self._digits(), before, strict=True):
            if value.dtype not in (torch.float32, torch.float64):
                dtype = torch.promote_types(was.dtype, real_dtype(value.dtype)) if value.is_complex() else was.dtype
                value.data = was.to(value.device, dtype)
                value.grad = None if gradient is None else gradient.to(value.device, dtype)
        return self

    def _digits(self) -> list[Tensor]:
        """The tensors that gates are computed from, also where torch computes the logits."""
        if self.masks is None or self.gates is None:
            return []
        own = [self.masks.noise, self.masks.temperature, self.masks.unit]
        return [*self.gates.parameters(), *self.gates.buffers(), *own]

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
        return self._by_bond(self.masks(self.logits()))

    def _by_bond(self, gates: Sequence[Tensor]) -> dict[str, Tensor]:
        dtype = real_dtype(self.dtype)
        return {name: gate.to(dtype) for name, gate in zip(self._bonds, gates, strict=True)}

    def folded(self, form: Form) -> tuple[Tensor, ...]:
        """The parts of a form that depend on cores and gates alone, as `forward` would compute them now."""
        made = code(form, self.graph if self.masks is not None else None)
        return made.fold(*self._arguments(made, self.gate_values()))

    def _arguments(self, made: Code, gates: Mapping[str, Tensor]) -> list[Tensor]:
        """What the `fold` of some code takes: cores, then gates."""
        get = self.cores.get
        return [*(get(name) for name in made.cores), *(gates[name] for name in made.gates)]

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
        """The plan for a batch in mode `train` or `infer`. It is made when it is first needed, then kept."""
        return self.programs.plan(mode, batch, self)

    @property
    def source(self) -> str:
        """The emitted code for the nominal batch, with gradients."""
        return self._pick(self.nominal, "train").source if self.graph.terms else "# no term is left\n"

    def dense(self) -> Tensor:
        """The dense weight in torch's layout; for a tensor or a map, with one axis per mode.

        Raises:
            ShapeError: Where there is no memory for it.
        """
        if self.cached is not None and (self._kind.is_weight or (self.is_rebuilt and not self._is_trained_now())):
            return self.cached.dense()
        if self._weight is None:
            return self._anchor.expand(self._shape)
        made, given = self._ready(WEIGHT, 0)
        weight = whole_weight(self.graph, self._anchor, made.fold, given)
        skip = dict(self.graph.options).get("padding_idx")
        return weight.index_fill(0, torch.tensor([skip], device=weight.device), 0.0) if skip is not None else weight

    def _is_trained_now(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def compute(self, batch: int, *inputs: Tensor) -> Tensor:
        if self.cached is not None and not self._is_trained_now():
            return self.cached.compute(batch, *inputs)  # type: ignore[no-any-return]
        if self._weight is None:
            return self._kind.zero(self.graph, self.dense(), self.bias, inputs)
        made, given = self._ready("train" if has_gradients(self) else "infer", batch)
        return made.compute(inputs, self.bias, given)

    def _ready(self, mode: str, batch: int) -> tuple[Code, list[Tensor]]:
        """The code for a mode and a batch, and what its `fold` takes: cores, then gates."""
        if self.masks is not None and self.open_only and self.masks.is_drawn and is_plain():
            cores: dict[str, Tensor] = {name: self.cores.get(name) for name in self.graph.nodes}
            gates, is_open = self.masks.sample_open(self.logits())
            return self.opening(mode, batch, cores, self._by_bond(gates), dict(zip(self._bonds, is_open, strict=True)))
        made = self._pick(self.nominal if torch.compiler.is_compiling() else batch, mode)
        return made, self._arguments(made, self.gate_values())

    @property
    def _weight(self) -> Code | None:
        return self.programs.weight

    def _pick(self, batch: int, mode: str) -> Code:
        return self.programs.pick(batch, mode, self)


def layers(model: nn.Module) -> Iterator[tuple[str, TNModule]]:
    """The compiled layers of a model, by name."""
    for name, module in model.named_modules():
        if isinstance(module, TNModule):
            yield name, module
