"""Compression without the library: layers as pairs of torch layers of lower rank, for the rows to compare with.

A layer's weight is a matrix W, out x (in * taps); rank k replaces it by G^-1/2 U U^T G^1/2 W, where U are the top
eigenvectors of G^1/2 Y G^1/2. Y = W C W^T is the second moment of the layer's outputs without bias, so C itself is
never stored. Y = W W^T and G = 1 give the plain SVD. An embedding's W is the transpose of its table.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FLOOR = 1e-6
"""Eigenvalues of G are at least this fraction of the largest."""
PROJECTIONS = 4
"""Random projections of the outputs for each batch; with one, ResNet-20 at 3x varies by 8 points between seeds."""
Ranks = dict[str, int | None]
"""The rank of each layer; None keeps it dense."""


@dataclass(eq=False)
class Moments:
    """What a layer saw: sums over samples, which are positions of an image or tokens of a sentence."""

    responses: Tensor
    """Sum of y y^T, y without bias."""
    gradients: Tensor
    """Sum of g g^T, g the gradient of a random projection of the network's outputs."""
    samples: int = 0

    @classmethod
    def of(cls, outputs: int) -> Moments:
        return cls(*torch.zeros(2, outputs, outputs, dtype=torch.float64))


def matrix(layer: nn.Module) -> Tensor:
    """The weight as out x (in * taps), float64."""
    weight = layer.weight.detach().double()
    return weight.T if isinstance(layer, nn.Embedding) else weight.flatten(1)


def moments(network: nn.Module, names: Sequence[str], batches: Iterable[Tensor], seed: int = 0) -> dict[str, Moments]:
    """Second moments of outputs and of their gradients, for the named layers. No labels are needed."""
    layers = {name: network.get_submodule(name) for name in names}
    found = {name: Moments.of(len(matrix(layer))) for name, layer in layers.items()}
    hooks = [layer.register_forward_hook(_watch(found[name])) for name, layer in layers.items()]
    source = torch.Generator().manual_seed(seed)
    for batch in batches:
        outputs = network(batch)
        for number in range(PROJECTIONS):
            direction = torch.randn(outputs.shape, generator=source)
            outputs.backward(direction, retain_graph=number + 1 < PROJECTIONS)
        network.zero_grad()
    for hook in hooks:
        hook.remove()
    return found


def _watch(moment: Moments) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        def rows(value: Tensor) -> Tensor:
            value = value.detach()
            if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
                value = value.transpose(0, 1).flatten(1).T
            return value.flatten(0, -2)

        y = rows(outputs)
        if getattr(layer, "bias", None) is not None:
            y = y - layer.bias.detach()
        moment.responses += (y.T @ y).double()
        moment.samples += len(y)

        def back(gradient: Tensor) -> None:
            g = rows(gradient)
            moment.gradients += (g.T @ g).double()

        outputs.register_hook(back)

    return hook


def shrunk(value: Tensor, samples: int, width: int, other: Tensor) -> Tensor:
    """A second moment mixed with another of the same trace, the more the fewer samples there are per unit of width."""
    share = width / (width + samples)
    return (1 - share) * value + share * (value.trace() / other.trace()) * other


# --- one layer --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A layer's components, largest first: what a cut loses, and the factors of what it leaves."""

    left: Tensor
    """G^-1/2 U"""
    right: Tensor
    """U^T G^1/2, to be multiplied by W"""
    losses: Tensor
    """The eigenvalues: what each component adds to the loss when it is cut."""


def spectrum(layer: nn.Module, responses: Tensor, gradients: Tensor | None = None) -> Spectrum:
    if gradients is None:
        root = inverse = torch.eye(len(responses), dtype=torch.float64)
    else:
        values, vectors = torch.linalg.eigh(gradients)
        values = values.clamp_min(FLOOR * float(values.max())).sqrt()
        root, inverse = (vectors * values) @ vectors.T, (vectors / values) @ vectors.T
    values, vectors = torch.linalg.eigh(root @ responses @ root)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    return Spectrum(inverse @ vectors, vectors.T @ root, values)


def break_even(layer: nn.Module) -> int:
    """The largest rank at which a pair has fewer parameters than the layer."""
    rows, columns = matrix(layer).shape
    return min((rows * columns - 1) // (rows + columns), rows, columns)


def pair(layer: nn.Module, spectrum: Spectrum, rank: int) -> nn.Sequential:
    """Two layers in place of one, with factors of equal norms."""
    left, right = spectrum.left[:, :rank], spectrum.right[:rank] @ matrix(layer)
    one, two = torch.linalg.qr(left), torch.linalg.qr(right.T)
    u, values, v = torch.linalg.svd(one.R @ two.R.T)
    left, right = one.Q @ (u * values.sqrt()), (values.sqrt()[:, None] * v) @ two.Q.T
    first, last = _empty_pair(layer, rank)
    with torch.no_grad():
        first.weight.copy_((right.T if isinstance(layer, nn.Embedding) else right).reshape(first.weight.shape))
        last.weight.copy_(left.reshape(last.weight.shape))
        if getattr(layer, "bias", None) is not None:
            last.bias.copy_(layer.bias)
    return nn.Sequential(first, last)


def _empty_pair(layer: nn.Module, rank: int) -> tuple[nn.Module, nn.Module]:
    has_bias = getattr(layer, "bias", None) is not None
    if isinstance(layer, nn.Embedding):
        return nn.Embedding(layer.num_embeddings, rank), nn.Linear(rank, layer.embedding_dim, bias=False)
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features, bias=has_bias)
    kind = type(layer)
    options = dict(stride=layer.stride, padding=layer.padding, dilation=layer.dilation, bias=False)
    return kind(layer.in_channels, rank, layer.kernel_size, **options), kind(rank, layer.out_channels, 1, bias=has_bias)


# --- whole networks ---------------------------------------------------------------------------------------------------


def parameters(network: nn.Module) -> int:
    return sum(value.numel() for value in network.parameters())


def uniform(network: nn.Module, names: Sequence[str], ratio: float) -> Ranks:
    """The same ratio for each layer."""
    found: Ranks = {}
    for name in names:
        rows, columns = matrix(network.get_submodule(name)).shape
        found[name] = max(1, int(rows * columns / ratio / (rows + columns)))
    return found


def shared(network: nn.Module, spectra: Mapping[str, Spectrum], budget: int) -> Ranks:
    """Ranks under one budget of parameters for all layers together, which trade components in one unit of loss.

    Each layer offers its ranks and "stay dense" as points of cost and loss; steps along the lower convex hulls are
    taken in order of loss saved per parameter, as long as the budget lasts.
    """
    ranks: Ranks = dict.fromkeys(spectra, 1)
    steps, spent = [], 0
    for name, spectrum in spectra.items():
        layer = network.get_submodule(name)
        rows, columns = matrix(layer).shape
        losses = spectrum.losses.flip(0).cumsum(0).flip(0).tolist()  # losses[k]: of what rank k leaves out
        points = [(k * (rows + columns), losses[k], k) for k in range(1, min(break_even(layer) + 1, len(losses)))]
        hull = _hull([*points, (rows * columns, 0.0, None)])
        spent += hull[0][0]
        for before, after in itertools.pairwise(hull):
            cost = after[0] - before[0]
            steps.append(((before[1] - after[1]) / cost, cost, name, before[2], after[2]))
    for _, cost, name, before, after in sorted(steps, key=lambda step: step[0], reverse=True):
        if spent + cost <= budget and ranks[name] == before:
            ranks[name] = after
            spent += cost
    return ranks


Point = tuple[int, float, int | None]


def _hull(points: Sequence[Point]) -> list[Point]:
    """The lower convex hull of points in order of cost."""
    found: list[Point] = []
    for point in points:
        while len(found) > 1:
            (c0, l0, _), (c1, l1, _) = found[-2:]
            if (l0 - l1) * (point[0] - c1) > (l1 - point[1]) * (c1 - c0):
                break
            found.pop()
        found.append(point)
    return found


def replaced(network: nn.Module, spectra: Mapping[str, Spectrum], ranks: Ranks) -> nn.Module:
    """A copy of the network with pairs in place of the layers that have a rank."""
    small = copy.deepcopy(network)
    for name, rank in ranks.items():
        if rank is not None:
            where, _, leaf = name.rpartition(".")
            layer = network.get_submodule(name)
            setattr(small.get_submodule(where), leaf, pair(layer, spectra[name], rank))
    return small


def plain_svd(network: nn.Module, names: Sequence[str], ratio: float) -> nn.Module:
    """Each layer by the SVD of its weight, all with one ratio: what peers do."""
    layers = {name: network.get_submodule(name) for name in names}
    spectra = {name: spectrum(layer, matrix(layer) @ matrix(layer).T) for name, layer in layers.items()}
    return replaced(network, spectra, uniform(network, names, ratio))


def c_uniform(network: nn.Module, found: Mapping[str, Moments], ratio: float) -> nn.Module:
    """Each layer by what its outputs need, all with one ratio."""
    spectra = {name: spectrum(network.get_submodule(name), moment.responses) for name, moment in found.items()}
    return replaced(network, spectra, uniform(network, list(found), ratio))


def c_and_g(
    network: nn.Module, found: Mapping[str, Moments], ratio: float, *, shrink: bool = False
) -> tuple[nn.Module, Ranks]:
    """Layers by what the network's outputs need, under one budget: the prototype that the library has to match."""
    spectra = {}
    for name, moment in found.items():
        layer = network.get_submodule(name)
        responses, gradients = moment.responses / moment.samples, moment.gradients
        if shrink:
            weight = matrix(layer)
            responses = shrunk(responses, moment.samples, weight.shape[1], weight @ weight.T)
            gradients = shrunk(gradients, moment.samples, len(gradients), torch.eye(len(gradients)).double())
        spectra[name] = spectrum(layer, responses, gradients)
    layers = [network.get_submodule(name) for name in found]
    ranks = shared(network, spectra, int(sum(layer.weight.numel() for layer in layers) / ratio))
    return replaced(network, spectra, ranks), ranks


# --- matching ---------------------------------------------------------------------------------------------------------


def match(
    small: nn.Module,
    dense: nn.Module,
    data: Iterable[Tensor],
    steps: int,
    *,
    rate: float = 1e-3,
    relative: bool = False,
    train: bool = False,
    ramp: int = 20,
) -> list[float]:
    """Trains a compressed network to give the dense one's outputs; the losses. No labels, Adam, cosine to 0.

    `relative`: the rate of each tensor is `rate` times its root mean square. `train`: BatchNorm uses the batch.
    """
    tensors = [value for value in small.parameters() if value.requires_grad]
    rates = [
        rate if not relative else rate * (float(value.detach().square().mean().sqrt()) if value.ndim > 1 else 0.1)
        for value in tensors
    ]
    optimizer = torch.optim.Adam([{"params": [v], "lr": r} for v, r in zip(tensors, rates, strict=True)], fused=True)
    losses: list[float] = []
    small.train(train)
    for step, batch in enumerate(data):
        if step == steps:
            break
        with torch.no_grad():
            wanted = dense(batch)
        factor = min(1.0, (step + 1) / ramp) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group, base in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = base * factor
        loss = F.mse_loss(small(batch), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    small.eval()
    return losses
