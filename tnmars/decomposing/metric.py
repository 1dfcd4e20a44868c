"""What errors of a weight matter: second moments of what it is multiplied with, and of gradients at its outputs.

`Metric` is what a user gives, over flat axes in torch's order. `weighting` turns it into matrices over the modes of a
graph: shrunk towards a multiple of the identity, padded, and floored. It knows nothing of decompositions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tnmars.arguments import check_arguments
from tnmars.decomposing.factors import Factor, Weighting
from tnmars.decomposing.layout import Flat, outputs, outputs_first, padded, source
from tnmars.errors import Problem, ShapeError, TnmarsError
from tnmars.graph import Graph
from tnmars.graph.kinds import Role

PARTS = ("inputs", "outputs", "responses", "channels")
FLOOR = 1e-6
"""Eigenvalues of G are at least this share of the largest."""
UNEVEN = 1e-3
"""A matrix whose entries differ from the transposed by more than this share of the largest is not symmetric."""


@dataclass(frozen=True, eq=False)
class Metric:
    """What errors of a weight matter. The loss of an error `dW` is `1/2 tr(G dW C dW')`.

    Every part is optional; without `outputs` G is the identity. Matrices are symmetric and positive semi-definite; they
    may be singular. They are stored in float64.

    Args:
        inputs: C, the mean of `x x'` over samples of what the weight is multiplied with. A vector means a diagonal,
            such as the counts of the tokens of an embedding.
        outputs: G, the mean of `g g'` over gradients at the outputs.
        responses: The mean of `y y'` of the outputs `y = W x` without the bias, where C would be too large to keep.
            It is enough where one side of a bond has no input mode.
        channels: For a convolution, the mean of `x x'` over input channels alone, where C would be too large to keep.
        samples: How many samples the means are from. They are then shrunk towards a multiple of the identity, more
            so with few samples (oracle approximating shrinkage, Chen et al. 2010; for a diagonal the rule for counts
            of Hausser and Strimmer, 2009). Without it they are taken as exact.

    Shape:
        inputs: `[n, n]` or `[n]`, where n is the flat source axis of the dense weight in torch's order: input features,
            input channels times taps (channel slowest), or rows of a table.
        outputs, responses: `[out, out]`.
        channels: `[in, in]`.

    Raises:
        ShapeError: A matrix is not square.
        TnmarsError: Entries are not finite, a matrix is not symmetric, a diagonal is negative, or `samples` is not a
            positive number.

    Example:
        >>> import torch, tnmars
        >>> x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
        >>> metric = tnmars.Metric(inputs=x.T @ x / 500, samples=500)
        >>> graph = tnmars.families.lowrank("linear", inputs=(8,), outputs=(6,), rank=2)
        >>> result = tnmars.decompose(torch.eye(6, 8), graph, metric=metric)
        >>> result.metric_error is not None
        True
    """

    inputs: Tensor | None = None
    outputs: Tensor | None = None
    responses: Tensor | None = None
    channels: Tensor | None = None
    samples: int | None = None
    _made: dict[tuple[str, Flat], Factor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_arguments(Metric, vars(self))
        if self.samples is not None and not (self.samples >= 1):
            raise TnmarsError(f"samples of the metric is {self.samples!r}, but must be a number of at least 1.")
        for name in PARTS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _valid(name, value))

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, name) is None for name in PARTS)

    def factor(self, name: str, axis: Flat) -> Factor:
        """A part over the modes of an axis: shrunk, padded, and floored if it is G. It is computed once."""
        if (name, axis) not in self._made:
            matrix = _spread(shrunk(getattr(self, name), self.samples), axis)
            self._made[name, axis] = Factor(axis.modes, floored(matrix, FLOOR) if name == "outputs" else matrix)
        return self._made[name, axis]


def _valid(name: str, value: object) -> Tensor:
    given = torch.as_tensor(value).detach()
    if given.is_complex():
        raise TnmarsError(f"{name} of the metric has type {given.dtype}, but must have real numbers.")
    matrix = given.to("cpu", torch.float64)
    is_vector = matrix.dim() == 1 and name == "inputs"
    if not is_vector and (matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]):
        text = f"{name} of the metric has shape {tuple(matrix.shape)}, but must be a square matrix."
        raise ShapeError(Problem(text, "A vector means a diagonal." if name == "inputs" else ""))
    if not bool(torch.isfinite(matrix).all()):
        text = f"{name} of the metric has entries that are NaN or infinite."
        raise TnmarsError(Problem(text, "Look for NaN in the calibration data."))
    diagonal = matrix if is_vector else matrix.diagonal()
    if bool((diagonal < 0).any()):
        raise TnmarsError(f"{name} of the metric has negative numbers on its diagonal, but must be a second moment.")
    if is_vector:
        return matrix
    if float((matrix - matrix.T).abs().max()) > UNEVEN * float(matrix.abs().max()):
        raise TnmarsError(f"{name} of the metric is not symmetric, but must be a second moment.")
    return 0.5 * (matrix + matrix.T)


def shrinkage(matrix: Tensor, samples: int | None) -> float:
    """The share of a multiple of the identity that replaces a second moment from a number of samples.

    >>> shrinkage(torch.diag(torch.tensor([4.0, 1.0])), 10), shrinkage(torch.eye(3), 10), shrinkage(torch.eye(3), None)
    (0.5555555555555556, 1.0, 0.0)
    """
    if samples is None:
        return 0.0
    size, is_vector = matrix.shape[0], matrix.dim() == 1
    trace = float(matrix.sum() if is_vector else matrix.diagonal().sum())
    square = float(matrix.square().sum())
    spread = square - trace * trace / size
    if trace <= 0.0 or spread <= 1e-12 * square:
        return 1.0
    if is_vector:
        share = (trace * trace - square) / (max(samples - 1, 1) * spread)
    else:
        share = ((1.0 - 2.0 / size) * square + trace * trace) / ((samples + 1.0 - 2.0 / size) * spread)
    return min(max(share, 0.0), 1.0)


def shrunk(matrix: Tensor, samples: int | None) -> Tensor:
    """The matrix, or the diagonal, moved towards a multiple of the identity."""
    share = shrinkage(matrix, samples)
    if share == 0.0:
        return matrix
    if matrix.dim() == 1:
        return (1.0 - share) * matrix + share * matrix.mean()
    result = (1.0 - share) * matrix
    result.diagonal().add_(share * matrix.diagonal().mean())
    return result


def floored(matrix: Tensor, least: float) -> Tensor:
    """The matrix with eigenvalues of at least this share of the largest."""
    values, vectors = torch.linalg.eigh(matrix)
    lowest = least * float(values[-1])
    if float(values[0]) >= lowest:
        return matrix
    result: Tensor = (vectors * values.clamp(min=lowest)) @ vectors.T
    return result


def weighting(graph: Graph, weight: Tensor, metric: Metric | None) -> Weighting | None:
    """The metric over the modes of a graph; `None` without one.

    Raises `ShapeError` if a part of the metric does not have the size of its axis.
    """
    if metric is None or metric.is_empty:
        return None
    _check(graph, metric)
    inside, outside = source(graph), outputs(graph)
    factors = []
    if metric.inputs is not None:
        factors.append(metric.factor("inputs", inside))
    elif metric.channels is not None:
        factors.append(_channels(graph, shrunk(metric.channels, metric.samples)))
    if metric.outputs is not None:
        factors.append(metric.factor("outputs", outside))
    responses = None
    if metric.responses is not None and metric.inputs is None:
        responses = Factor(outside.modes, _spread(_responses(outputs_first(graph, weight), outside, metric), outside))
    scale = 1.0
    if metric.inputs is None and metric.channels is None and metric.responses is not None:
        scale = _level(weight, metric.responses)
    return Weighting(tuple(factors), scale, responses)


def _check(graph: Graph, metric: Metric) -> None:
    inside, outside = source(graph), outputs(graph)
    lengths = {"inputs": inside, "outputs": outside, "responses": outside}
    for name, axis in lengths.items():
        value: Tensor | None = getattr(metric, name)
        if value is None:
            continue
        if not axis.modes:
            what = "input" if name == "inputs" else "output"
            text = f"the metric has {name}, but a graph of kind '{graph.kind}' has no {what} modes here."
            raise TnmarsError(Problem(text, "A metric is for layers with inputs and outputs."))
        if value.shape[0] != axis.length:
            text = f"{name} of the metric has size {value.shape[0]:,}, but must have {axis.length:,}."
            raise ShapeError(Problem(text, f"The dense weight has shape {graph.dense_shape}: {graph.signature}."))
    if metric.channels is not None:
        if not graph.rules.is_spatial:
            text = f"the metric has channels, but the graph is of kind '{graph.kind}'."
            raise TnmarsError(Problem(text, "Channels are for convolutions; give inputs."))
        channels = graph.in_features // graph.groups
        if metric.channels.shape[0] != channels:
            text = f"channels of the metric has size {metric.channels.shape[0]:,}, but must have {channels:,}."
            raise ShapeError(Problem(text, f"The dense weight has shape {graph.dense_shape}: {graph.signature}."))


def _spread(matrix: Tensor, axis: Flat) -> Tensor:
    """A matrix, or a diagonal, over the modes of an axis: padding has weight 0."""
    if axis.real == axis.held:
        return matrix
    held = torch.Size(axis.held).numel()
    if matrix.dim() == 1:
        return padded(matrix.reshape(axis.real), axis.real, axis.held).reshape(held)
    twice = padded(matrix.reshape(axis.real * 2), axis.real * 2, axis.held * 2)
    return twice.reshape(held, held)


def _channels(graph: Graph, matrix: Tensor) -> Factor:
    """The factor of the input channels; with patch modes the taps are on the same axis, independent of each other."""
    if graph.of_role(Role.IN):
        names = tuple(mode.name for mode in graph.of_role(Role.IN))
        held = torch.Size(mode.size for mode in graph.of_role(Role.IN)).numel()
        return Factor(names, padded(matrix, (len(matrix),) * 2, (held, held)))
    axis, taps = source(graph), torch.Size(graph.kernel_size).numel()
    return Factor(axis.modes, _spread(torch.kron(matrix, torch.eye(taps, dtype=torch.float64)), axis))


def _level(weight: Tensor, responses: Tensor) -> float:
    """The mean square of an input, if inputs were independent and identically distributed."""
    norm = float(weight.double().square().sum())
    return float(responses.diagonal().sum()) / norm if norm > 0.0 else 1.0


def _responses(weight: Tensor, axis: Flat, metric: Metric) -> Tensor:
    """Responses shrunk towards those of independent inputs, which are a multiple of `W W'`."""
    assert metric.responses is not None
    share = shrinkage(metric.responses, metric.samples)
    if share == 0.0:
        return metric.responses
    flat = weight.double().reshape(axis.length, -1)
    return (1.0 - share) * metric.responses + share * _level(weight, metric.responses) * (flat @ flat.T)
