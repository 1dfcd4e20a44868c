"""Fine-tuning without labels: a smaller model is trained to give the outputs of the model that it was made from.

The best state by held-out distance is kept. A model never comes out worse on held-out data than it went in, and after
any error it is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from tnmars.arguments import check_arguments, own, own_seed
from tnmars.errors import Problem, TnmarsError, listing, nearest
from tnmars.layer.numbers import squared, wide
from tnmars.models.bar import bar
from tnmars.models.data import Batch, Inputs, batches, call, primary
from tnmars.models.held_out import MEMORY, Parts, nbytes, split
from tnmars.models.rates import annealed, relative_rate

RELATIVE = 0.03
"""The highest rate of a tensor, relative to the root mean square of its entries."""
RAMP = 20
"""The rate grows over this many steps, or over a fifth of a shorter run."""
CHECKS = 10
"""How often the held-out distance is measured during a run, the end included."""
LOWER = 4
"""What the rates are divided by when a check in the first half finds a model that is worse than at the start."""

Loss = Callable[[Tensor, Tensor], Tensor]
Targets = list[Tensor]


@dataclass(frozen=True)
class Matched:
    """What `match_` did. It prints as one line.

    Attributes:
        before: The held-out distance at the start.
        after: The held-out distance of the model as it is now. It is never above `before`.
        steps: The number of steps that were trained.
        best: The step whose state was kept; 0 if no step was better than the start, which was restored then.
        share: The share of the default rates that was left at the end: 1, or 1/4, 1/16, ... if they were too high.
    """

    before: float
    after: float
    steps: int
    best: int
    share: float = 1.0

    @property
    def is_better(self) -> bool:
        """Whether the model was changed."""
        return self.best > 0

    def __str__(self) -> str:
        lower = "" if self.share == 1 else f", rates lowered to 1/{round(1 / self.share)}"
        if not self.is_better:
            steps = f"{self.steps:,} steps{lower}"
            return f"no state of {steps} was better on held-out data ({self.before:.4g}): nothing changed"
        return f"held-out distance {self.before:.4g} -> {self.after:.4g} (step {self.best:,} of {self.steps:,}{lower})"


def match_(
    small: nn.Module,
    dense: nn.Module,
    data: Iterable[Any],
    *,
    inputs: Inputs | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    lr: float | None = None,
    hidden: Sequence[str] = (),
    loss: str | Loss = "mse",
    held_out: float | Iterable[Any] = 0.1,
    batch: int = 64,
    seed: int = 0,
    progress: bool | None = None,
    watch: Callable[[Mapping[str, float]], None] | None = None,
) -> Matched:
    """Trains a model, in place, to give the outputs of another one on unlabeled data, such as the one it came from.

    Adam with a rate that grows over 20 steps and then falls to 0 along a cosine. Both models run in evaluation mode:
    batch statistics stay, and nothing is dropped out. The held-out distance is measured ten times, and the best state
    is kept. If none is better than the start, the start is restored. Training flags are as before afterwards, and
    gradients are cleared.

    Args:
        small: The model to train: all its parameters that require a gradient.
        dense: The model to match, for example `copy.deepcopy(model)` from before `model` was compressed. It may be on
            another device.
        data: A `DataLoader`, any iterable of batches, or one tensor with all samples. A batch is a tensor, a mapping
            of keyword arguments, or a sequence such as `(images, labels)`, of which the model gets as many elements as
            its `forward` has arguments without a default, and labels are not used.
        inputs: Called with each batch instead: returns a tensor, or a tuple or mapping of all arguments.
        epochs: How often the data are read, by default once.
        steps: The number of batches to train on instead.
        lr: The highest learning rate, the same for all parameters. By default each tensor has its own: 0.03 times the
            root mean square of its entries, and 0.003 for vectors. That suits layers of any width. If a check in the
            first half of the run finds the model worse than at the start, the best state is restored and these rates
            are divided by 4.
        hidden: Names of modules of both models whose outputs are matched too, such as `"layer2"`.
        loss: `"mse"`: the squared error of the output and of each hidden state, each relative to its mean square in
            the dense model. Or a function of a tensor of the small model and one of the dense model, which is used for
            outputs and hidden states.
        held_out: The share of the data that is held out, or held-out data. A loader of torch is split by samples,
            anything else by batches. Held-out data take at most 256 MB.
        batch: The batch size, if `data` is one tensor with all samples.
        seed: The seed of the split and of the order of batches. Your random state is not touched.
        progress: Whether a progress bar is shown; by default on a terminal only.
        watch: Called after each check with `step`, `loss` and `held_out`.

    Returns:
        The held-out distance before and after, the number of steps, and the step that was kept; it prints as a line.

    Raises:
        TnmarsError: If arguments do not fit together, there are no data, an output has NaN, or the loss becomes NaN.
            The model is as it was then.

    Example:
        >>> import copy, torch, tnmars
        >>> _ = torch.manual_seed(0)
        >>> graph = tnmars.families.lowrank("linear", inputs=(8,), outputs=(6,), rank=4)
        >>> dense, small = nn.Linear(8, 6), tnmars.compile(graph)
        >>> done = tnmars.match_(small, dense, torch.randn(512, 8), epochs=4, lr=0.02)
        >>> done.after < 0.7 * done.before
        True
    """
    check_arguments(match_, locals())
    steps, lr = own((steps, lr))
    seed = own_seed(seed)
    _check(small, dense, epochs, steps, lr, loss)
    read = partial(batches, inputs=inputs, model=small, rows=batch)
    with ExitStack() as stack, torch.enable_grad():
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.default_generator.manual_seed(seed)  # not those of other devices, which are not restored
        parts = split(data, held_out, rows=batch, steps=steps, seed=seed)
        total = steps if steps is not None else (epochs or 1) * _known_length(parts)
        stack.enter_context(_evaluating(small, dense))
        student, teacher = (stack.enter_context(_listening(model, hidden)) for model in (small, dense))
        run = _Run(small, student, teacher, None if isinstance(loss, str) else loss, _held(teacher, read(parts.held)))
        with run.restoring():
            before = run.distance()
            advance = stack.enter_context(bar("matching", total, progress))
            return run.train(_stream(parts, read), total, lr, before, advance, watch)


def _check(
    small: nn.Module, dense: nn.Module, epochs: int | None, steps: int | None, lr: float | None, loss: object
) -> None:
    """Raises `TnmarsError` for arguments that do not fit together."""
    if epochs is not None and steps is not None:
        raise TnmarsError("epochs and steps are both given; give one of them.")
    for name, value in (("epochs", epochs), ("steps", steps)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise TnmarsError(f"{name} is {value!r}, but must be a whole number of at least 1.")
    if lr is not None and not lr > 0:
        raise TnmarsError(f"lr is {lr}, but must be above 0.")
    if loss != "mse" and not callable(loss):
        raise TnmarsError(f"loss is {loss!r}, but must be 'mse' or a function of two tensors.")
    trained = {id(value) for value in small.parameters() if value.requires_grad}
    if not trained:
        raise TnmarsError("no parameter of the model to train requires a gradient.")
    if any(id(value) in trained for value in dense.parameters()):
        text = "the two models share parameters that would be trained, so the model to match would change too."
        raise TnmarsError(Problem(text, "Keep a copy before compressing: dense = copy.deepcopy(model)."))


def _known_length(parts: Parts) -> int:
    if parts.length is None:
        raise TnmarsError(Problem("data has no length.", "Say how long to train: match_(..., steps=1000)."))
    if parts.is_once:
        text = "data is an iterator, which can be read only once."
        raise TnmarsError(Problem(text, "Give a list or a DataLoader, or steps= and held-out data."))
    return parts.length


def _stream(parts: Parts, read: Callable[[Iterable[Any]], Iterator[Batch]]) -> Iterator[Batch]:
    """Batches to train on, pass after pass."""
    yield from read(parts.training)
    while not parts.is_once:
        yield from read(parts.training)


# --- models while they are matched -----------------------------------------------------------------------------------


@contextmanager
def _evaluating(*models: nn.Module) -> Iterator[None]:
    """Models in evaluation mode, with their training flags restored afterwards."""
    flags = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
            for module in model.modules():
                if isinstance(module, nn.RNNBase) and not module.dropout:
                    module.training = True  # cuDNN has gradients only then; without dropout it computes the same
        yield
    finally:
        for module, flag in flags:
            module.training = flag


Answers = Callable[[Batch], Targets]
"""The tensors of a model that are compared: its outputs, then the hidden states."""


@contextmanager
def _listening(model: nn.Module, hidden: Sequence[str]) -> Iterator[Answers]:
    """A model with its hidden states; the hooks that take these are removed at the end."""
    known = dict(model.named_modules(remove_duplicate=False))
    for name in hidden:
        if name not in known:
            hint = f"Modules: {listing([each for each in known if each])}.{nearest(name, known)}"
            raise TnmarsError(Problem(f"hidden state '{name}' is not a module of {type(model).__name__}.", hint))
    states: dict[str, Targets] = {}

    def take(name: str, module: nn.Module, given: Any, output: Any) -> None:
        states.setdefault(name, []).extend(primary(output))

    def answers(batch: Batch) -> Targets:
        states.clear()
        found = primary(call(model, batch))
        for name in hidden:
            if name not in states:
                raise TnmarsError(f"module '{name}' was not called, so it has no hidden state to match.")
            found = [*found, *states[name]]
        states.clear()
        return found

    handles = []
    try:
        handles = [known[name].register_forward_hook(partial(take, name)) for name in hidden]
        yield answers
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _held(dense: Answers, given: Iterator[Batch]) -> list[tuple[Batch, Targets]]:
    """Held-out batches with the answers of the dense model, as many as there is memory for."""
    held: list[tuple[Batch, Targets]] = []
    size = 0
    for batch in given:
        targets = dense(batch)
        if not all(bool(target.isfinite().all()) for target in targets):
            raise TnmarsError("the model to match gives numbers that are not finite on the held-out data.")
        size += nbytes(batch) + nbytes(targets)
        if held and size > MEMORY:
            break
        held.append((batch, [target.detach() for target in targets]))
    return held


# --- the distance ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def _scales(held: Sequence[tuple[Batch, Targets]]) -> list[float]:
    """The mean square of each output and hidden state of the dense model."""
    sums = [[0.0, 0] for _ in held[0][1]]
    for _, targets in held:
        for entry, target in zip(sums, targets, strict=True):
            entry[0] += float(squared(wide(target)).sum())
            entry[1] += target.numel()
    return [total / max(count, 1) or 1.0 for total, count in sums]


class _Run:
    """One run of training against held-out data."""

    def __init__(
        self,
        model: nn.Module,
        small: Answers,
        dense: Answers,
        measure: Loss | None,
        held: Sequence[tuple[Batch, Targets]],
    ):
        """`measure` is the user's loss, or None for the squared error relative to each state's mean square."""
        self.model, self.small, self.dense, self.measure, self.held = model, small, dense, measure, held
        self.scales = _scales(held)
        self.parameters = [value for value in model.parameters() if value.requires_grad]
        self.start = self._state()

    def _state(self) -> list[Tensor]:
        return [value.detach().clone() for value in (*self.parameters, *self.model.buffers())]

    @torch.no_grad()
    def _put(self, state: Sequence[Tensor]) -> None:
        for value, saved in zip((*self.parameters, *self.model.buffers()), state, strict=True):
            value.copy_(saved)

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Puts the start back if anything goes wrong, and clears the gradients in any case."""
        try:
            yield
        except BaseException:
            self._put(self.start)
            raise
        finally:
            for value in self.parameters:
                value.grad = None

    def loss(self, batch: Batch, targets: Targets) -> Tensor:
        """The distance of the small model's answers from targets, summed over outputs and hidden states."""
        found = self.small(batch)
        if len(found) != len(targets):
            text = f"the models return {len(found)} and {len(targets)} tensors, which cannot be compared."
            raise TnmarsError(Problem(text, "Give models with the same outputs."))
        terms = []
        for one, other, scale in zip(found, targets, self.scales, strict=True):
            if one.shape != other.shape:
                shapes = f"{tuple(one.shape)} and {tuple(other.shape)}"
                raise TnmarsError(f"the models give tensors of shapes {shapes}, which cannot be compared.")
            aim = other.to(one.device, one.dtype)
            terms.append(self.measure(one, aim) if self.measure else squared(one - aim).mean() / scale)
        return torch.stack(terms).sum()

    @torch.no_grad()
    def distance(self) -> float:
        """The loss on held-out data, each batch weighted by the numbers in its answers."""
        total, weight = 0.0, 0
        for batch, targets in self.held:
            count = targets[0].numel()
            total += float(self.loss(batch, targets)) * count
            weight += count
        return total / max(weight, 1)

    def train(
        self,
        stream: Iterator[Batch],
        total: int,
        lr: float | None,
        before: float,
        advance: Callable[[int, str], None],
        watch: Callable[[Mapping[str, float]], None] | None,
    ) -> Matched:
        """Trains, and leaves the best state in the model."""
        if not isfinite(before):
            raise TnmarsError(f"the distance is {before} before any training: the model to train gives no numbers.")
        highest = [lr or relative_rate(value, RELATIVE) for value in self.parameters]
        optimizer, share = self._optimizer(), 1.0
        best, best_step, best_state, step = before, 0, self.start, 0
        checks = {max(1, round(total * at / CHECKS)) for at in range(1, CHECKS + 1)}
        following = next(stream, None)
        while following is not None and step < total:
            step += 1
            for group, rate in zip(optimizer.param_groups, highest, strict=True):
                group["lr"] = share * rate * annealed(step, total, RAMP)
            loss = self._step(optimizer, following)
            may_lower = lr is None and 2 * step <= total
            if not isfinite(loss) and not may_lower:
                raise self._not_finite(loss, step, total)
            following = next(stream, None) if step < total else None
            if step not in checks and following is not None and isfinite(loss):
                advance(step, f"loss {loss:.3g}, best held out {best:.3g}")
                continue
            found = self.distance() if isfinite(loss) else inf
            if found < best:
                best, best_step, best_state = found, step, self._state()
            elif may_lower and not found <= before:
                self._put(best_state)
                optimizer, share = self._optimizer(), share / LOWER
            if watch is not None:
                watch({"step": step, "loss": loss, "held_out": found})
            advance(step, f"loss {loss:.3g}, held out {found:.3g} (start {before:.3g})")
        self._put(best_state)
        return Matched(before, best, step, best_step, share)

    def _optimizer(self) -> torch.optim.Adam:
        return torch.optim.Adam([{"params": [value]} for value in self.parameters])

    def _step(self, optimizer: torch.optim.Adam, batch: Batch) -> float:
        """One step of the optimizer, unless the loss is not finite; returns the loss before it."""
        with torch.no_grad():
            targets = self.dense(batch)
        optimizer.zero_grad()
        loss = self.loss(batch, targets)
        value = float(loss.detach())
        if isfinite(value):
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return value

    def _not_finite(self, value: float, step: int, total: int) -> TnmarsError:
        text = f"the loss became {'infinite' if abs(value) == inf else 'NaN'} at step {step:,} of {total:,}."
        is_half = any(value.dtype == torch.float16 for value in self.parameters)
        fix = "Train in float32: model.float()." if is_half else "Try a lower rate, such as lr=1e-4."
        return TnmarsError(Problem(text, f"The model is as it was. {fix}"))
