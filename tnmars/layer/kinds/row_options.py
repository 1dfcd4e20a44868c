"""Options of torch's tables that act on looked-up rows: `max_norm` with `norm_type`, and `scale_grad_by_freq`.

Torch renormalizes the rows of its table in place. A row here is made of cores that other rows have too, so that it is
renormalized where it is looked up: outputs are the same, the cores stay as they are, and gradients go through the norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tnmars.graph import Graph
from tnmars.layer.numbers import real_dtype
from tnmars.layer.torch_state import is_compiling, is_tracing

TINY = 1e-7
"""What torch adds to a norm before it divides by it."""


def limited(graph: Graph, rows: Tensor) -> Tensor:
    """The rows, those that are longer than the option `max_norm` shortened to it."""
    options = dict(graph.options)
    most = options.get("max_norm")
    if most is None:
        return rows
    norm = torch.linalg.vector_norm(rows, ord=float(options.get("norm_type", 2.0)), dim=-1, keepdim=True)  # type: ignore[arg-type]
    return rows * torch.where(norm > most, most / (norm + TINY), torch.ones_like(norm))


def weighed(graph: Graph, rows: Tensor, tokens: Tensor, every: Tensor) -> Tensor:
    """The rows of some tokens, whose gradients are divided by how often each is among all tokens of the batch."""
    if not dict(graph.options).get("scale_grad_by_freq"):
        return rows
    if torch.onnx.is_in_onnx_export():
        return rows  # nothing is trained there, and ONNX cannot count
    if not rows.requires_grad and (is_compiling() or not is_tracing()):
        return rows  # but torch.jit.trace records the same with gradients and without
    dtype = real_dtype(rows.dtype)
    ones = torch.ones(every.shape[0], dtype=dtype, device=rows.device)
    counts = torch.zeros(graph.vocab, dtype=dtype, device=rows.device).index_add(0, every.long(), ones)
    fixed = rows.detach()
    often = counts[tokens.long()].clamp_min(1.0).unsqueeze(-1)
    return fixed + (rows - fixed) / often  # the value is the same, bit for bit


def source(graph: Graph) -> str:
    """The line that limits `rows`, in the text of a `forward` method; empty if nothing does."""
    options = dict(graph.options)
    if "max_norm" not in options:
        return ""
    most, order = options["max_norm"], options.get("norm_type", 2.0)
    norm = f"torch.linalg.vector_norm(rows, ord={order!r}, dim=-1, keepdim=True)"
    return f"    norm = {norm}\n    rows = rows * torch.where(norm > {most!r}, {most!r} / (norm + {TINY!r}), 1.0)\n"
