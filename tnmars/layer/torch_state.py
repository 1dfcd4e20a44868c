"""What torch is doing at the moment: tracing, transforming, or running as it is; and the classes that it makes.

This is the only file of the package that uses private names of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn.utils import parametrize

functorch = torch._C._functorch
Given = ParamSpec("Given")
Made = TypeVar("Made")
frames = torch._C._dynamo.eval_frame
# names of their own, because every pass of a layer looks them up
is_compiling = torch.compiler.is_compiling
is_tracing = torch._C._is_tracing
is_autocasting = torch._C._is_any_autocast_enabled


def is_traced_whole() -> bool:
    """Whether torch records what runs, to run it later on other values: compile, export and `torch.jit.trace`."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()


def has_gradients(module: nn.Module) -> bool:
    """Whether gradients may be computed; under `torch.jit.trace`, which may run either way, if a parameter has one."""
    if not torch.compiler.is_compiling() and torch._C._is_tracing():
        return any(value.requires_grad for value in module.parameters())
    return torch.is_grad_enabled()


def is_plain() -> bool:
    """Whether torch runs as it is: not traced, not transformed by `torch.func`, without forward-mode derivatives."""
    return not (is_traced_whole() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0)


def is_undisturbed() -> bool:
    """Whether torch runs as it is, and no mode such as `FakeTensorMode` looks at or changes what it does."""
    return is_plain() and torch._C._len_torch_dispatch_stack() == 0


def is_eager() -> bool:
    """Whether torch runs operations one by one, in the dtypes that they are given: no tracing, no autocast."""
    return not (is_compiling() or is_tracing() or is_autocasting())


def sees_saved() -> bool:
    """Whether hooks look at what autograd saves, as those of `torch.utils.checkpoint` do."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def keeps_graph() -> bool:
    """In a backward pass, whether there may be another one over the same graph."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def passed_over(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """The function itself. `torch.compile` does not begin with it, but with what it calls; inside of something that is
    compiled it makes no difference."""
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    frames.set_code_exec_strategy(function.__code__, strategy)
    return function


def is_exported() -> bool:
    """Whether `torch.export` traces. In torch 2.10, `torch.compiler.is_exporting()` is true under compile as well."""
    return torch.compiler._is_exporting_flag


def is_traced(value: Tensor) -> bool:
    """Whether shapes must not depend on values: in a trace and under vmap, also around a gradient."""
    if is_traced_whole():
        return True
    while functorch.is_functorch_wrapped_tensor(value):
        if functorch.is_batchedtensor(value):
            return True
        value = functorch.get_unwrapped(value)
    return False


def is_batched(value: Tensor) -> bool:
    """Whether a value is vmapped over, also by `torch.autograd.grad(..., is_grads_batched=True)`."""
    return functorch.is_batchedtensor(value) or functorch.is_legacy_batchedtensor(value)


def unwrapped(value: Tensor) -> Tensor:
    """The tensor inside all wrappers of `torch.func`, whose entries can be read."""
    while functorch.is_functorch_wrapped_tensor(value):
        value = functorch.get_unwrapped(value)
    return value


def is_readable(value: Tensor) -> bool:
    """Whether the entries of a tensor can be read: not on the meta device, and not under `FakeTensorMode`."""
    if torch._C._len_torch_dispatch_stack() and active_fake_mode() is not None:
        return False
    return not (value.is_meta or isinstance(value, FakeTensor))


def assert_in_graph(condition: Tensor, message: str) -> None:
    """An assertion that a compiled graph makes when it runs."""
    torch._assert_async(condition, message)


def add_all_(sums: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Adds values to sums in place, in one call."""
    torch._foreach_add_(list(sums), list(values))


def copy_all_(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copies values into tensors in place, in one call."""
    if places:
        torch._foreach_copy_(list(places), list(values))


def all_norms(values: Sequence[Tensor]) -> list[Tensor]:
    """The Euclidean norms of values, each a scalar, in one call."""
    return list(torch._foreach_norm(list(values)))


def all_times(values: Sequence[Tensor], factor: Tensor) -> tuple[Tensor, ...]:
    """Values times one number, in one call."""
    return tuple(torch._foreach_mul(list(values), factor))


def own_class_(module: nn.Module, base: type[nn.Module]) -> None:
    """Gives a parametrized module a class of its own, made from `base`, with a property for each of its parameters.

    Torch's own copies share the class of their original. What is then done to one module would be done to all.
    """
    module.__class__ = base
    names = list(getattr(module, "parametrizations", ()))
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
