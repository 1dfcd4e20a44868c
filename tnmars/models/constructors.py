"""Compiled layers with the arguments of torch's own: sizes and options, and a family with its rank."""

from __future__ import annotations

from typing import Any

from tnmars import families
from tnmars.arguments import check_arguments, own
from tnmars.compiler import compile
from tnmars.errors import GraphError, Problem
from tnmars.layer.module import TNModule
from tnmars.layer.predicted import warn_if_slower
from tnmars.timing.tuning import measured_ratios

_COMPILED = (
    "selector",
    "open_only",
    "init",
    "batch",
    "image",
    "memory_format",
    "tune",
    "optimizer",
    "model",
    "warn",
    "device",
    "dtype",
)
"""The keywords that `compile` takes; all others go to the family."""

Sizes = int | tuple[int, ...]


def Linear(  # noqa: N802
    in_features: int,
    out_features: int,
    bias: bool = True,
    *,
    family: str | None = None,
    rank: int | None = None,
    **options: Any,
) -> TNModule:
    """A compiled layer in place of `torch.nn.Linear`, with random cores.

    Args:
        in_features: As in torch.
        out_features: As in torch.
        bias: As in torch.
        family: The name of a family (`tnmars.families`), by default one that trains well. Its modes are derived from
            the sizes.
        rank: The size of every bond; or give `ranks`.
        **options: `ways`, the number of modes that inputs and outputs are split into; what the family takes (`ranks`,
            `terms`, ...); and what `tnmars.compile` takes (`selector`, `batch`, `device`, `dtype`, ...).

    Raises:
        GraphError: The family does not fit the sizes, or has no rank.

    Example:
        >>> import tnmars
        >>> layer = tnmars.Linear(784, 625, family="tt", rank=8)
        >>> layer.in_features, layer.out_features, list(layer.graph.bonds)
        (784, 625, ['r1', 'r2'])
    """
    check_arguments(Linear, locals())
    in_features, out_features, bias, rank, options = own((in_features, out_features, bias, rank, options))
    return _made("linear", in_features, out_features, (), {"bias": bias}, family, rank, options)


def _named(function: Any, name: str, text: str, ndim: int) -> Any:
    """A function for so many spatial axes, with its name and its text."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text.format(name=name, kernel=f"({', '.join(['3'] * ndim)}{',' if ndim == 1 else ''})")
    return function


def _each(size: Sizes, ndim: int) -> tuple[int, ...]:
    return (size,) * ndim if isinstance(size, int) else tuple(size)


def _conv(ndim: int, name: str) -> Any:
    def conv(
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        family: str | None = None,
        rank: int | None = None,
        **options: Any,
    ) -> TNModule:
        check_arguments(conv, locals())
        kernel_size, groups, bias, rank, options = own((kernel_size, groups, bias, rank, options))
        kernel = _each(kernel_size, ndim)
        given = {"stride": stride, "padding": padding, "dilation": dilation, "bias": bias, "padding_mode": padding_mode}
        return _made("conv", in_channels, out_channels, kernel, given, family, rank, options, groups)

    return _named(conv, name, _CONV, ndim)


def _conv_transpose(ndim: int, name: str) -> Any:
    def conv_transpose(
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        *,
        family: str | None = None,
        rank: int | None = None,
        **options: Any,
    ) -> TNModule:
        check_arguments(conv_transpose, locals())
        if padding_mode != "zeros":
            raise GraphError(f"padding_mode is {padding_mode!r}, but {name} takes 'zeros' alone, as torch's does.")
        kernel_size, groups, bias, rank, options = own((kernel_size, groups, bias, rank, options))
        given = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
        given["bias"] = bias
        kernel = _each(kernel_size, ndim)
        return _made("conv_transpose", in_channels, out_channels, kernel, given, family, rank, options, groups)

    return _named(conv_transpose, name, _CONV_TRANSPOSE, ndim)


_CONV = """A compiled layer in place of `torch.nn.{name}`, with random cores.

    Args:
        in_channels: As in torch.
        out_channels: As in torch.
        kernel_size: As in torch.
        stride: As in torch.
        padding: As in torch.
        dilation: As in torch.
        groups: As in torch. The inputs and outputs of one group are split into modes.
        bias: As in torch.
        padding_mode: As in torch.
        family: The name of a family (`tnmars.families`), by default one that trains well. Its modes are derived from
            the sizes.
        rank: The size of every bond; or give `ranks`.
        **options: As in `tnmars.Linear`.

    Raises:
        GraphError: The family does not fit the sizes, or has no rank.

    Example:
        >>> import tnmars
        >>> layer = tnmars.{name}(16, 32, 3, padding=1, family="tucker2", rank=4)
        >>> layer.kernel_size
        {kernel}
    """

_CONV_TRANSPOSE = _CONV.replace(
    """        dilation: As in torch.
        groups: As in torch. The inputs and outputs of one group are split into modes.
        bias: As in torch.
        padding_mode: As in torch.
""",
    """        output_padding: As in torch.
        groups: As in torch. The inputs and outputs of one group are split into modes.
        bias: As in torch.
        dilation: As in torch.
        padding_mode: As in torch, whose only value is "zeros".
""",
)

Conv1d = _conv(1, "Conv1d")
Conv2d = _conv(2, "Conv2d")
Conv3d = _conv(3, "Conv3d")
ConvTranspose1d = _conv_transpose(1, "ConvTranspose1d")
ConvTranspose2d = _conv_transpose(2, "ConvTranspose2d")
ConvTranspose3d = _conv_transpose(3, "ConvTranspose3d")


def Embedding(  # noqa: N802
    num_embeddings: int,
    embedding_dim: int,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    family: str | None = None,
    rank: int | None = None,
    **options: Any,
) -> TNModule:
    """A compiled layer in place of `torch.nn.Embedding`, with random cores.

    Args:
        num_embeddings: As in torch. It is rounded up to a number that splits evenly; the rest is padding.
        embedding_dim: As in torch.
        padding_idx: As in torch.
        max_norm: As in torch, except that the table stays as it is: rows are shortened where they are looked up.
        norm_type: As in torch, at least 1.
        scale_grad_by_freq: As in torch.
        sparse: Must be False: gradients of cores are dense.
        family: The name of a family (`tnmars.families`), by default one that trains well. Its modes are derived from
            the sizes.
        rank: The size of every bond; or give `ranks`.
        **options: As in `tnmars.Linear`. With `mode="sum"`, `"mean"` or `"max"` the layer is called as
            `torch.nn.EmbeddingBag`, and takes `include_last_offset`.

    Raises:
        GraphError: The family does not fit the sizes, or has no rank.

    Example:
        >>> import tnmars
        >>> layer = tnmars.Embedding(10_000, 128, family="tt", rank=8)
        >>> layer.num_embeddings, layer.embedding_dim
        (10000, 128)
    """
    check_arguments(Embedding, locals())
    if sparse:
        text = "sparse is True, but gradients of cores, which all rows share, are dense."
        raise GraphError(Problem(text, "Leave it out; cores are small, and any optimizer takes them."))
    num_embeddings, embedding_dim, rank, options = own((num_embeddings, embedding_dim, rank, options))
    given: dict[str, Any] = {} if padding_idx is None else {"padding_idx": padding_idx}
    given |= own({"max_norm": max_norm, "norm_type": norm_type, "scale_grad_by_freq": scale_grad_by_freq})
    given |= {key: options.pop(key) for key in ("mode", "include_last_offset") if key in options}
    return _made("embedding", num_embeddings, embedding_dim, (), given, family, rank, options)


def _made(
    kind: str,
    inside: int,
    outside: int,
    kernel: tuple[int, ...],
    own: dict[str, Any],
    family: str | None,
    rank: int | None,
    options: dict[str, Any],
    groups: int = 1,
) -> TNModule:
    given = {key: value for key, value in options.items() if key not in _COMPILED}
    if rank is not None:
        given["rank"] = rank
    name = families.FROM_SCRATCH[kind] if family is None else family
    graph = families.of_layer(name, kind, inside, outside, kernel=kernel, groups=groups, options=own, **given)
    settings = {key: value for key, value in options.items() if key in _COMPILED}
    layer = compile(graph, **{**settings, "warn": False})
    if settings.get("warn", True):
        warn_if_slower(layer, 4, measured_ratios(layer))
    return layer
