"""`suggest`: every family for one layer at one size, the best first, without training.

A family that is a tree follows from singular values, any other from alternating least squares with the largest common
rank that fits. The table of families is walked; no name of a family is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import torch
from torch import Tensor, nn

from tnmars import families
from tnmars.arguments import check_arguments, own, own_seed
from tnmars.decomposing.decompose import Decomposed, decompose
from tnmars.decomposing.metric import Metric
from tnmars.decomposing.sweep import is_forest
from tnmars.decomposing.tensors import with_sizes
from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.counts import count
from tnmars.graph.parts import is_int
from tnmars.layer.module import TNModule
from tnmars.layer.numbers import dtype_name, squared, wide
from tnmars.models.curves import widest
from tnmars.models.from_dense import moments_of
from tnmars.models.replacing import compiled
from tnmars.models.torch_layers import TORCH_LAYERS, DenseLayer, describe, is_transposed
from tnmars.plan.cost import CostModel, machine_model
from tnmars.plan.layout import Weighing
from tnmars.program.choice import choose, choose_frozen
from tnmars.program.explain import explain
from tnmars.text.numbers import dashed
from tnmars.text.tables import aligned

ROUNDS, WEIGHED, STARTS = 30, 8, 1
"""Rounds of least squares over the cores of a graph that is not a tree, the same in a metric, and random starts."""


@dataclass(frozen=True, eq=False)
class Suggestion:
    """One way to decompose a layer within the given size.

    Attributes:
        family: The family, or several with one and the same graph, joined by commas.
        graph: The graph with its ranks.
        cores: The cores, in float64.
        error: The relative error of the outputs for the given inputs; without inputs, that of the weight.
        ms: The predicted milliseconds of a call of the frozen layer.

    Example:
        >>> import torch, tnmars
        >>> _ = torch.manual_seed(0)
        >>> found = tnmars.suggest(torch.nn.Linear(64, 64), 1024, families=["lowrank"])
        >>> found.entries[0].family, found.entries[0].error < 0.9
        ('lowrank', True)
    """

    family: str
    graph: Graph
    cores: Mapping[str, Tensor] = field(repr=False)
    error: float
    ms: float

    @property
    def parameters(self) -> int:
        """The number of entries of all cores."""
        return sum(core.numel() for core in self.cores.values())

    @property
    def ranks(self) -> dict[str, int]:
        """The sizes of the bonds."""
        return {name: bond.size for name, bond in self.graph.bonds.items()}

    def as_json(self) -> dict[str, Any]:
        """The same without the cores, as plain data."""
        shown = {"family": self.family, "ranks": self.ranks, "parameters": self.parameters}
        return {**shown, "error": self.error, "ms": self.ms}


@dataclass(frozen=True, eq=False)
class Suggestions:
    """What `suggest` returns. `print` shows a table, the best first.

    Attributes:
        entries: The suggestions, the smallest error first.
        layer: The layer that they are for.
        parameters: How many parameters the cores were allowed to have.
        dense_ms: The predicted milliseconds of a call of the dense layer.
        is_measured: Whether errors are those of the outputs for given inputs, and not of the weight.
        refused: For each family that is left out, why.

    Example:
        >>> import torch, tnmars
        >>> _ = torch.manual_seed(0)
        >>> found = tnmars.suggest(torch.nn.Linear(64, 64), 1024, families=["lowrank"])
        >>> found.best.ranks, found.best.parameters
        ({'r': 8}, 1024)
    """

    entries: tuple[Suggestion, ...]
    layer: nn.Module
    parameters: int
    dense_ms: float
    is_measured: bool
    refused: Mapping[str, str]

    @property
    def best(self) -> Suggestion:
        """The suggestion with the smallest error."""
        return self.entries[0]

    def build(self, family: str | None = None) -> TNModule:
        """The compiled layer of a suggestion, by default of the best one, with the bias of the given layer."""
        chosen = [entry for entry in self.entries if family is None or family in entry.family.split(", ")]
        if not chosen:
            known = [entry.family for entry in self.entries]
            raise TnmarsError(Problem(f"'{family}' is not among the suggestions.", f"There are: {'; '.join(known)}."))
        dense = describe(self.layer)
        assert isinstance(dense, DenseLayer)
        made = compiled(chosen[0].graph, chosen[0].cores, dense)
        if made.bias is not None:
            made.bias = nn.Parameter(made.bias.detach().clone(), requires_grad=made.bias.requires_grad)
        return made.train(self.layer.training)

    def as_json(self) -> dict[str, Any]:
        """The same without cores, as plain data."""
        return {
            "parameters": self.parameters,
            "dense_ms": self.dense_ms,
            "error_of": "outputs" if self.is_measured else "weight",
            "suggestions": [entry.as_json() for entry in self.entries],
            "refused": dict(self.refused),
        }

    def __str__(self) -> str:
        rows = [("family", "ranks", "parameters", "error", "ms")]
        for entry in self.entries:
            ranks = dashed(entry.ranks.values()) or "none"
            rows.append((entry.family, ranks, f"{entry.parameters:,}", f"{entry.error:.2%}", f"{entry.ms:.3g}"))
        dense = describe(self.layer)
        assert isinstance(dense, DenseLayer)
        rows.append(("dense", "", f"{prod(dense.shape):,}", "0.00%", f"{self.dense_ms:.3g}"))
        lines = aligned(rows, "<<>>>")
        of = (
            "of the outputs for the given inputs" if self.is_measured else "of the weight; give inputs for the outputs'"
        )
        lines.append(f"at most {self.parameters:,} parameters; errors are {of}")
        lines += [f"{family}: {why}" for family, why in self.refused.items()]
        return "\n".join(lines)


def suggest(
    layer: nn.Module | Tensor,
    parameters: int,
    *,
    kind: str | None = None,
    inputs: Tensor | Iterable[Tensor] | None = None,
    families: Sequence[str] | None = None,
    batch: int | None = None,
    image: int | None = None,
    seed: int = 0,
    cost_model: CostModel | None = None,
    watch: Callable[[str], None] | None = None,
) -> Suggestions:
    """All families for one layer at one size, the best first. Nothing is trained, and the layer is not changed.

    Families that are trees follow from singular values. Any other is solved by alternating least squares, with bonds
    of one size as far as the parameters go; on large weights that takes minutes.

    Args:
        layer: A layer of torch, as for `from_dense`; or its weight, in torch's layout.
        parameters: How many parameters the cores may have.
        kind: What a weight belongs to: `"linear"`, `"conv"`, `"conv_transpose"` or `"embedding"`. By default a weight
            of two axes is linear, one of more axes a convolution.
        inputs: Calibration inputs of the layer, one tensor or several. Errors are then those of the outputs.
        families: The families to compare, by default all.
        batch: The batch that times are predicted for; by default that of `inputs`, or 128.
        image: The side of the images that times are predicted for; by default that of `inputs`, or 32.
        seed: The seed of random starts.
        cost_model: What times are predicted by; by default the calibrated model of this machine.
        watch: Called with the name of each family before it is tried.

    Returns:
        The suggestions. Families whose graph is the same for this layer share a line.

    Raises:
        TnmarsError: The layer cannot be decomposed, a family is not known, or none fits.

    Example:
        >>> import torch, tnmars
        >>> layer = torch.nn.Conv2d(8, 8, 3)
        >>> found = tnmars.suggest(layer, 200, families=["lowrank", "tucker2"])
        >>> sorted(entry.family for entry in found.entries)
        ['lowrank', 'tucker2']
    """
    check_arguments(suggest, locals())
    parameters = own(parameters)
    seed = own_seed(seed)
    module = layer if isinstance(layer, nn.Module) else _layer(layer, kind)
    dense = describe(module)
    if not isinstance(dense, DenseLayer):
        why = dense or f"it must be a {', '.join(known.__name__ for known in TORCH_LAYERS)} of torch"
        raise TnmarsError(f"{type(module).__name__} cannot be decomposed: {why}.")
    if is_transposed(module):  # as torch's own layer
        bias, module = dense.bias, _layer(dense.weight.detach().contiguous(), dense.kind)
        module.register_parameter("bias", bias if isinstance(bias, nn.Parameter) else None)
        dense = describe(module)
        assert isinstance(dense, DenseLayer)
    if not is_int(parameters, 1):
        raise TnmarsError(f"parameters is {parameters!r}, but must be a whole number of at least 1.")
    if parameters > prod(dense.shape):
        text = f"parameters is {parameters:,}, but the dense weight has {prod(dense.shape):,}: it is exact and smaller."
        raise TnmarsError(Problem(text, "Give a smaller number."))
    given = None if inputs is None else [inputs] if isinstance(inputs, Tensor) else list(inputs)
    moments = None if given is None else moments_of(module, dense, given)
    task = _Task(module, dense, parameters, given, None if moments is None else moments.metric(), seed)
    rows, side = batch or (moments.batch if moments else 128), image or (moments.image if moments else 32)
    model = (cost_model or machine_model()).for_numbers(dtype_name(dense.weight.dtype))
    graphs, refused = _graphs(dense, families)
    entries: list[Suggestion] = []
    for names, graph in graphs:
        label = ", ".join(names)
        if watch is not None:
            watch(label)
        try:
            found = task.solved(graph)
        except TnmarsError as error:
            refused[label] = error.problems[0].text
            continue
        ms = 1e3 * choose_frozen(found.graph, batch=rows, model=model, limit=inf, image=side)[0].cost
        entries.append(Suggestion(label, found.graph, found.cores, task.error(found), ms))
    if not entries:
        reasons = [Problem(f"{family}: {why}") for family, why in refused.items()]
        raise TnmarsError([Problem(f"no family fits {parameters:,} parameters."), *reasons])
    entries.sort(key=lambda entry: (entry.error, entry.ms))
    form = choose(entries[0].graph, rows, Weighing(model), side)[0]
    dense_ms = 1e3 * explain(entries[0].graph, form, rows, model, image=side).dense_seconds
    return Suggestions(tuple(entries), module, parameters, dense_ms, given is not None, refused)


def _layer(weight: object, kind: str | None) -> nn.Module:
    """A layer of torch with a weight, without a bias."""
    if not isinstance(weight, Tensor) or not (weight.is_floating_point() or weight.is_complex()):
        raise TnmarsError("the weight must be a tensor of floating-point or complex numbers, or a layer of torch.")
    known = kind or ("linear" if weight.dim() == 2 else "conv")
    axes = {"linear": (2, 2), "embedding": (2, 2), "conv": (3, 5), "conv_transpose": (3, 5)}
    if known not in axes or not axes[known][0] <= weight.dim() <= axes[known][1]:
        text = f"a weight of {weight.dim()} axes cannot be that of kind {known!r}."
        raise TnmarsError(Problem(text, "Kinds: linear and embedding (2 axes), conv and conv_transpose (3 to 5 axes)."))
    if known == "conv":
        outside, inside, *kernel = weight.shape
        made: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[weight.dim() - 3]
        layer = made(inside, outside, tuple(kernel), bias=False, device="meta")
    elif known == "conv_transpose":
        inside, outside, *kernel = weight.shape
        made = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[weight.dim() - 3]
        layer = made(inside, outside, tuple(kernel), bias=False, device="meta")
    elif known == "linear":
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    else:
        layer = nn.Embedding(weight.shape[0], weight.shape[1], device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    found: nn.Module = layer
    return found


def _graphs(dense: DenseLayer, chosen: Sequence[str] | None) -> tuple[list[tuple[list[str], Graph]], dict[str, str]]:
    """The graph of each family for a layer, families with the same graph together; and why others have none."""
    names = list(families.FAMILIES) if chosen is None else list(chosen)
    for name in names:
        families.known(name)
    found: dict[object, tuple[list[str], Graph]] = {}
    refused: dict[str, str] = {}
    for name in names:
        own: dict[str, Any] = {"kernel": dense.kernel, "groups": dense.groups, "options": dense.options}
        try:
            graph = families.of_layer(
                name, dense.kind, dense.inside, dense.outside, rank=1, **families.GIVEN.get(name, {}), **own
            )
        except TnmarsError as error:
            refused[name] = error.problems[0].text
            continue
        if not graph.bonds:
            refused[name] = "it has no bond here, and so one size only."
            continue
        found.setdefault(_shape(graph), ([], graph))[0].append(name)
    return list(found.values()), refused


def _shape(graph: Graph) -> object:
    """What two graphs have in common that differ in names and in the order of cores at most."""
    modes = {mode.name for mode in graph.modes}
    terms = []
    for term in graph.terms:
        cores = {core.name: tuple(sorted(set(core.edges) & modes)) for core in term.cores}
        joins = [tuple(sorted(cores[end] for end in ends)) for edge, ends in term.ends().items() if edge not in modes]
        terms.append((tuple(sorted(cores.values())), tuple(sorted(joins))))
    return graph.modes, graph.shared, tuple(sorted(terms))


@dataclass(frozen=True, eq=False)
class _Task:
    """A layer to decompose, and how."""

    module: nn.Module
    dense: DenseLayer
    parameters: int
    inputs: Sequence[Tensor] | None
    metric: Metric | None
    seed: int

    def solved(self, graph: Graph) -> Decomposed:
        """The closest cores of a graph that have at most the given number of parameters. Raises `TnmarsError`."""
        least = count(graph).cores
        if least > self.parameters:
            raise TnmarsError(f"needs at least {least:,} parameters here.")
        weight = self.dense.weight.detach()
        rounds = ROUNDS if self.metric is None else WEIGHED
        common = self._filled(widest(graph, self.parameters + 1))
        found = decompose(weight, common, metric=self.metric, seed=self.seed, steps=rounds, starts=STARTS)
        if not is_forest(graph):
            return found
        chosen = decompose(weight, graph, parameters=self.parameters, metric=self.metric, seed=self.seed)
        return min(found, chosen, key=self.error)

    def _filled(self, graph: Graph) -> Graph:
        """The graph with single bonds wider by 1, while the parameters last."""
        for name in graph.bonds:
            sizes = {key: bond.size for key, bond in graph.bonds.items()}
            wider = with_sizes(graph, {**sizes, name: sizes[name] + 1})
            if count(wider).cores <= self.parameters:
                graph = wider
        return graph

    def error(self, found: Decomposed) -> float:
        """The relative error of the outputs, measured on the inputs; without inputs that of the weight."""
        if self.inputs is None:
            return found.error
        weight = self.dense.weight.detach()
        made = compiled(found.graph, found.cores, self.dense).dense().detach()
        lost, whole = 0.0, 0.0
        with torch.no_grad():
            for x in self.inputs:
                lost += float(squared(wide(self._outputs(weight - made, x))).sum())
                whole += float(squared(wide(self._outputs(weight, x))).sum())
        return (lost / whole) ** 0.5 if whole else 0.0

    def _outputs(self, weight: Tensor, x: Tensor) -> Tensor:
        """What the layer would return with this weight and without a bias."""
        bias = self.dense.bias
        given = {"weight": weight, **({} if bias is None else {"bias": torch.zeros_like(bias)})}
        found: Tensor = torch.func.functional_call(self.module, given, (x,))
        return found
