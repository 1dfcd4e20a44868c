"""What calibration data say about each weight of a model: second moments of its inputs, responses and gradients.

For a layer y = W x the data give C = E[x x^T] and G = E[g g^T], g being the gradient at y of a random projection of the
model's outputs (one backward pass per batch, no labels). To second order, a change D of the weight changes the outputs
by E|change|^2 = tr(G D C D^T): one unit for all layers, so that they can trade ranks. Often C is not needed itself but
only W C W^T = E[y y^T], which is as small as the layer's output. Memory does not grow with the amount of data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.decomposing.metric import Metric
from tnmars.errors import Problem, TnmarsError, listing
from tnmars.layer.numbers import squared, wide_dtype
from tnmars.models.data import Batch, call, primary, samples
from tnmars.models.patches import patches
from tnmars.models.torch_layers import DenseLayer

MOST_INPUTS = 4608
"""The full covariance of a layer's inputs is kept up to this width: 512 channels times 9 taps."""
MOST_OUTPUTS = 8192
"""Second moments of a layer's outputs are kept up to this width; beyond, all outputs count the same."""
PROBES = 4
"""Random projections of the outputs per batch: gradients cost as much as that many backward passes."""
FEW = 4
"""With fewer samples than this per unit of width, the metric is uncertain."""


@dataclass(eq=False)
class Moments:
    """Sums over the data for one weight; `metric` turns them into averages."""

    layer: DenseLayer
    keeps_inputs: bool
    """Whether the full covariance of the inputs is needed."""
    rows: int = 0
    """How often the weight was applied: samples times positions."""
    samples: int = 0
    bags: int = 0
    """How many bags of rows were summed or averaged, if the layer does that."""
    batch: int = 0
    """The largest number of rows of an input, which plans are made for."""
    image: int = 1
    """The longest side of an input image."""
    responses: Tensor | None = None
    outputs: Tensor | None = None
    inputs: Tensor | None = None
    channels: Tensor | None = None
    skipped: Tensor | None = None
    """Which rows of the last output are the padding row of a table."""
    reason: str = ""
    """Why the sums cannot be used; empty if they can."""
    power: float = 0.0
    """The sum of squared gradients, where their second moments are too large to keep."""
    strengths: Tensor | None = None
    """With groups, the sum of squared inputs of each."""

    @property
    def is_wide(self) -> bool:
        """Whether the outputs are too many for their second moments, as those of a language model's last layer."""
        return self.layer.kind == "linear" and self.layer.outside > MOST_OUTPUTS

    @property
    def has_gradients(self) -> bool:
        """Whether the model's outputs depend on the weight."""
        return self.power > 0.0 or (self.outputs is not None and bool(self.outputs.any()))

    def add_input(self, x: Tensor, y: Tensor) -> None:
        """Adds the input and the output of one call."""
        add = {
            "linear": self._add_linear,
            "conv": self._add_conv,
            "conv_transpose": self._add_conv,
            "embedding": self._add_indices,
        }
        add[self.layer.kind](x.detach(), y.detach())

    def _add_linear(self, x: Tensor, y: Tensor) -> None:
        flat = x.reshape(-1, x.shape[-1])
        self.batch = max(self.batch, len(flat))
        if self.is_wide:
            self.rows += len(flat)
        else:
            self._add_responses(y.reshape(-1, y.shape[-1]))
        if self.keeps_inputs or self.is_wide:
            self.inputs = _added(self.inputs, flat)

    def _add_conv(self, x: Tensor, y: Tensor) -> None:
        ndim = len(self.layer.kernel)
        x, y = (value if value.dim() == ndim + 2 else value.unsqueeze(0) for value in (x, y))
        self.batch, self.image = max(self.batch, len(x)), max(self.image, *x.shape[2:])
        groups, flat = self.layer.groups, x.movedim(1, -1).reshape(-1, x.shape[1])
        if not self.layer.is_transposed:  # which has each input under each tap once, whatever the stride
            flat = flat * _thinned(x, y)
        self._add_responses(y.movedim(1, -1).reshape(-1, y.shape[1]))
        self.channels = _added(self.channels, flat.reshape(-1, x.shape[1] // groups))
        if groups > 1:
            power = flat.double().square().sum(0).reshape(groups, -1).sum(1)
            self.strengths = power if self.strengths is None else self.strengths + power
        if self.keeps_inputs:
            for one in torch.split(
                x, max(1, 2**24 // max(1, prod(y.shape[2:]) * x.shape[1] * prod(self.layer.kernel)))
            ):
                self.inputs = _added(self.inputs, patches(one, self.layer))

    def _add_indices(self, index: Tensor, y: Tensor) -> None:
        self.batch = max(self.batch, index.numel())
        flat = index.reshape(-1)
        skip = self.layer.options.get("padding_idx")
        self.skipped = None if skip is None or "mode" in self.layer.options else flat == skip
        flat = flat if skip is None else flat[flat != skip]
        counts = torch.bincount(flat, minlength=self.layer.inside).double()
        self.inputs = counts if self.inputs is None else self.inputs + counts
        self.rows += flat.numel()
        self.bags += len(y) if "mode" in self.layer.options else 0

    def _add_responses(self, y: Tensor) -> None:
        if self.layer.bias is not None:
            y = y - self.layer.bias.detach()
        self.rows += len(y)
        self.responses = _added(self.responses, y)

    def add_gradient(self, g: Tensor, skipped: Tensor | None = None) -> None:
        """Adds the gradient at the output of one call, except of the rows that are skipped."""
        if self.is_wide:
            self.power += float(g.detach().double().square().sum())
            return
        ndim = len(self.layer.kernel)
        flat = g.detach().movedim(-ndim - 1, -1).reshape(-1, self.layer.outside)  # the batch may be missing
        if skipped is not None:
            flat = flat[~skipped]  # the padding row gets no gradient
        self.outputs = _added(self.outputs, flat)

    def metric(self) -> Metric:
        """The averages over the data."""
        assert self.rows and self.samples
        if self.layer.groups > 1:
            return self._grouped_metric()
        inputs = None if self.inputs is None else self.inputs / self.rows
        if self.bags and inputs is not None:  # errors of the rows of a bag add up, or are averaged
            power = {"sum": 1, "mean": -1, "max": 0}[self.layer.options["mode"]]
            inputs = inputs * (self.rows / self.bags) ** power
        if self.is_wide and inputs is not None:  # all outputs have the same gradients, independent of each other
            share = self.power / (PROBES * self.samples * self.layer.outside)
            return Metric(inputs=inputs * (share or 1.0), samples=self.rows)
        return Metric(
            inputs=inputs,
            outputs=self.outputs / (PROBES * self.samples) if self.has_gradients and self.outputs is not None else None,
            responses=None if self.responses is None else self.responses / self.rows,
            channels=None if self.channels is None else self.channels / self.rows,
            samples=self.rows,
        )

    def _grouped_metric(self) -> Metric:
        """The averages over the data and the groups; a group counts as much as its inputs and gradients are strong.

        The inputs of one group are taken to be like those of another but for their strength, and an error in one group
        as independent of one in another.
        """
        groups, outside = self.layer.groups, self.layer.outside
        assert self.strengths is not None
        share = self.strengths.cpu() * groups / float(self.strengths.sum() or 1.0)
        group = torch.arange(outside) // (outside // groups)
        within = (group[:, None] == group) * share[group]
        outputs = torch.eye(outside, dtype=torch.float64)
        if self.has_gradients and self.outputs is not None:
            outputs = self.outputs.cpu() / (PROBES * self.samples)
        count = self.rows * groups
        return Metric(
            inputs=None if self.inputs is None else self.inputs / count,
            outputs=outputs * within,
            channels=None if self.channels is None else self.channels / count,
            samples=self.rows,
        )

    def joined(self, other: Moments) -> Moments:
        """The sums over both, for one weight in two places."""
        assert self.layer.kind == other.layer.kind
        sums: dict[str, Any] = {"power": self.power + other.power}
        for name in ("responses", "outputs", "inputs", "channels", "strengths"):
            first, second = getattr(self, name), getattr(other, name)
            sums[name] = second if first is None else first if second is None else first + second
        rows, batch, image = self.rows + other.rows, max(self.batch, other.batch), max(self.image, other.image)
        return replace(self, rows=rows, bags=self.bags + other.bags, batch=batch, image=image, **sums)

    @property
    def is_few(self) -> bool:
        """Whether there are too few samples for the width of the layer."""
        return self.rows < FEW * (self.layer.inside if self.is_wide else self.layer.outside)


def of_table_and_layer(table: Moments, layer: Moments) -> Metric:
    """The metric of a matrix that is both a table of rows and the weight of a linear layer with as many outputs.

    An error of row v loses `c_v d' G d` as a row of the table and, if all outputs count the same, `g d' C d` as an
    output of the layer. The sum is taken as a product: weights of the rows times one matrix.
    """
    rows, outer = table.metric(), layer.metric()
    assert rows.inputs is not None
    own = torch.zeros(table.layer.outside, table.layer.outside, dtype=torch.float64)
    first = own if rows.outputs is None else rows.outputs * rows.inputs.sum()
    inputs = own if outer.inputs is None else outer.inputs
    gradients = 1.0 if outer.outputs is None else float(outer.outputs.trace()) / table.layer.inside
    second = inputs * gradients * table.layer.inside
    shares = [float(matrix.trace()) for matrix in (first, second)]
    total = sum(shares) or 1.0
    counts = (shares[0] * rows.inputs / rows.inputs.sum() + shares[1] / len(rows.inputs)) / total
    return Metric(inputs=counts, outputs=first + second if any(shares) else None, samples=rows.samples)


def _added(total: Tensor | None, rows: Tensor) -> Tensor:
    """The sum of outer products of rows with themselves, added to a total in float64."""
    if rows.is_complex():
        text = f"calibration data give a layer numbers of type {rows.dtype}, but a metric is for real ones."
        hint = "Decompose complex layers without data: tnmars.from_dense(layer, 'tt', error=0.1). Nothing was changed."
        raise TnmarsError(Problem(text, hint))
    wide = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
    more = (wide.T @ wide).double()
    return more if total is None else total + more


def _thinned(x: Tensor, y: Tensor) -> float:
    """The factor that makes a sum over input positions one over output positions, of which a stride leaves fewer."""
    return float((prod(y.shape[2:]) / max(1, prod(x.shape[2:]))) ** 0.5)


@dataclass(eq=False)
class WeightGradients:
    """Sums for a weight that no layer of ours applies, such as a recurrent one: from its gradient alone.

    With independent random projections the gradient of a batch has the covariance of the single samples' gradients,
    summed. It is taken as a Kronecker product of one matrix for the inputs and one for the outputs.
    """

    weight: nn.Parameter
    samples: int = 0
    batches: int = 0
    inputs: Tensor | None = None
    outputs: Tensor | None = None

    def add(self, gradient: Tensor) -> None:
        flat = gradient.detach().flatten(1)
        self.outputs = _added(self.outputs, flat.T)
        self.inputs = _added(self.inputs, flat)
        self.batches += 1

    def metric(self) -> Metric:
        if self.inputs is None or self.outputs is None or not bool(self.outputs.any()):
            return Metric()
        rows = self.batches * min(self.weight.flatten(1).shape)
        return Metric(
            inputs=self.inputs / self.inputs.trace(), outputs=self.outputs / (PROBES * self.samples), samples=rows
        )


@dataclass(eq=False)
class Collected:
    """What the data say about a model: moments of layers and of single weights, by name."""

    layers: Mapping[str, Moments]
    weights: Mapping[str, WeightGradients] = field(default_factory=dict)
    samples: int = 0
    power: float = 0.0
    """The mean over samples of the squared norm of the model's outputs."""


def collect(
    model: nn.Module,
    data: Iterable[Batch],
    layers: Mapping[str, Moments],
    weights: Mapping[str, WeightGradients] | None = None,
    *,
    seed: int = 0,
    watch: Callable[[int], None] | None = None,
) -> Collected:
    """Runs a model on batches and adds up the moments. The model, its gradients and the random state are left as is."""
    found = Collected(layers, weights or {})
    kept = {id(entry.weight) for entry in found.weights.values()}
    with quiet(model, kept), torch.random.fork_rng(devices=[]), torch.enable_grad():
        noise = torch.Generator().manual_seed(seed)  # its own, because models and data may draw numbers too
        for at, batch in enumerate(data):
            with watched(model, layers):
                outputs = primary(_called(model, batch, at))
                _check(outputs, at)
                for left in reversed(range(PROBES)):
                    loss: Tensor = sum((value * _normal(value, noise)).sum() for value in outputs)  # type: ignore[assignment]
                    if loss.requires_grad:
                        loss.backward(retain_graph=left > 0)  # type: ignore[no-untyped-call]
                    for single in found.weights.values():
                        if single.weight.grad is not None:
                            single.add(single.weight.grad)
                            single.weight.grad = None
            count = samples(batch)
            found.samples += count
            found.power += sum(float(squared(value.detach().to(wide_dtype(value.dtype))).sum()) for value in outputs)
            for moments in layers.values():
                moments.samples += count
            for single in found.weights.values():
                single.samples += count
            if watch is not None:
                watch(at)
    found.power /= max(1, found.samples)
    return found


def _normal(like: Tensor, noise: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=noise, dtype=like.dtype).to(like.device)


def _called(model: nn.Module, batch: Batch, at: int) -> Any:
    try:
        return call(model, batch)
    except TnmarsError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        args, named = batch
        shapes = [str(tuple(value.shape)) for value in (*args, *named.values()) if isinstance(value, Tensor)]
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        text = f"the model cannot be called with batch {at} of the data, of shape {listing(shapes)}: {first}."
        hint = "Say how to make inputs of a batch: inputs=lambda batch: ... Nothing was changed."
        raise TnmarsError(Problem(text, hint)) from error


def _check(outputs: list[Tensor], at: int) -> None:
    if not all(bool(value.isfinite().all()) for value in outputs):
        text = f"the model's outputs for batch {at} of the data are not finite."
        raise TnmarsError(Problem(text, "Check the weights and the calibration data. Nothing was changed."))


@contextmanager
def quiet(model: nn.Module, kept: set[int]) -> Iterator[None]:
    """The model in evaluation mode, with gradients for nothing but the `kept` parameters; restored afterwards."""
    training = {module: module.training for module in model.modules()}
    states = [(value, value.requires_grad, value.grad) for value in model.parameters()]
    try:
        model.eval()
        for value, _, _ in states:
            value.grad = None
            value.requires_grad_(id(value) in kept)
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
        for value, flag, gradient in states:
            value.requires_grad_(flag)
            value.grad = gradient


@contextmanager
def watched(model: nn.Module, layers: Mapping[str, Moments]) -> Iterator[None]:
    """Layers that add their inputs, outputs and gradients to moments, while the block runs."""
    handles = []

    def hook(moments: Moments) -> Callable[..., Tensor]:
        def seen(module: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> Tensor:
            moments.add_input(given[0] if given else named["input"], output)
            if named.get("per_sample_weights") is not None or len(given) > 2:
                moments.reason = "it is called with per_sample_weights"
            if not output.requires_grad:  # the first layers: gradients begin here
                output = output.detach().requires_grad_().clone()  # a copy, which may be changed in place
            if output.requires_grad:  # not where the model itself turns gradients off
                output.register_hook(partial(moments.add_gradient, skipped=moments.skipped))  # type: ignore[no-untyped-call]
            return output

        return seen

    try:
        for name, moments in layers.items():
            handles.append(model.get_submodule(name).register_forward_hook(hook(moments), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
