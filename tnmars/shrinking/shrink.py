"""`shrink`: trains a copy of a model along the path of cuts, and returns the curve of size against score."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tnmars.arguments import check_arguments, own
from tnmars.errors import CheckpointError, Problem, TnmarsError, layer_called, listing
from tnmars.layer.distributed import from_first_rank, has_ranks, is_first_rank, rank
from tnmars.layer.module import layers
from tnmars.models.bar import Advance, bar
from tnmars.models.calibration import as_is
from tnmars.models.data import call, device_of, moved, placed
from tnmars.shrinking.batches import Reader, Stream, own_random_state, plain, reseed
from tnmars.shrinking.curve import Curve, Point, is_same
from tnmars.shrinking.model import share_
from tnmars.shrinking.rule import ShrinkWarning
from tnmars.shrinking.saliency import BATCHES, Saliency, from_gradients, from_norms
from tnmars.shrinking.scores import Given, NotFiniteError, Score, agreed, check_samples, score_of
from tnmars.shrinking.settings import Staircase
from tnmars.shrinking.stage import Stage
from tnmars.shrinking.stages import Stages
from tnmars.text.numbers import dashed, times

OTHER = 1_000_003
"""The distance between the seeds of two ranks."""
EVERY = 20
"""The number of steps between two updates of the bar."""


def shrink(
    model: nn.Module,
    *,
    train: Iterable[Any],
    loss: Callable[[Any, Any], Tensor],
    evaluate: Callable[[nn.Module], Given],
    budget: int | str | Sequence[int | str] | None = None,
    max_drop: float | None = None,
    samples: int | None = None,
    settings: Staircase | None = None,
    saliency: str | Saliency = "norm",
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
    watch: Callable[[Mapping[str, Any]], None] | None = None,
) -> Curve:
    """Trains a model while its ranks choose themselves: the curve of size against score, and the point to take.

    The model is trained in short stages, each with a learning rate that falls to 0. Between two stages all layers are
    put into canonical form, and the slices that matter least for each parameter that they hold are cut. So every stage
    ends with a finished model, smaller than the one before. Nothing needs to be tuned. The model given is not changed.
    Under `torchrun` all processes call it: gradients are averaged over them, rank 0 evaluates and decides each cut, and
    all return the same curve. Give each process its own part of the data, for example by a `DistributedSampler`.

    The model given is the first point of the curve. If the first stage makes it worse, by more than one standard error
    (with `max_drop`, by more than half of that), the stage is repeated at a quarter of all rates, at most three times.
    A warning, `tnmars.ShrinkWarning`, says so if all stages end below it, or if a layer has a selector with a prior,
    such as `tnmars.Ard`, which is not added to the loss here. A loss or a score that is not finite ends the
    path with the points that it has.

    Without `budget` and `max_drop`, the path ends once the score is 5 standard errors below the best, and the smallest
    model within 2 standard errors is chosen. The standard error is computed from what `evaluate` returns:

    - a tensor with the score of each sample: that of the mean;
    - a number from 0 to 1 (a share of right answers), or above 1 up to 100 (in percent), with a number of samples:
      that of a binomial share;
    - anything else: not known. Then give `budget` or `max_drop`.

    Args:
        model: A model with compiled layers without gates, fresh or from `tnmars.compress_`. All its parameters that
            require a gradient are trained; layers with a core that does not are not cut. Modules without such
            parameters that are in evaluation mode, such as a frozen BatchNorm, stay there.
        train: A `DataLoader`, or any iterable of batches that can be read again and again. A batch is a sequence of
            the model's inputs and, last, the target. One list, tuple or mapping in place of the inputs holds all of
            them; a list of samples stays one input. Or a batch is a mapping with the target under `labels`. Of a
            mapping the model gets the entries that its `forward` names.
        loss: Called with the model's output and the target; returns a scalar.
        evaluate: Called with the model in evaluation mode, without gradients. Returns its score on validation data,
            larger is better; or a pair of score and number of samples; or a tensor with the score of each sample. Do
            not use test data here: the choice is made by it.
        budget: What the whole model may cost, or a list of such sizes in one unit, all met in one training: `"10x"`,
            30000 (parameters), `"100 kB"`, `"2x macs"`, `"12 ms"`. Ratios refer to the model with dense weights. The
            path ends at the smallest.
        max_drop: How far the score may fall below the best, in its own unit. The smallest such model is chosen.
        samples: The number of validation samples, if `evaluate` returns a number alone.
        settings: The constants of the path; see `tnmars.Staircase`.
        saliency: What makes a slice matter: `"norm"`, its share of the layer's squared norm; `"gradient"`, the mean
            squared derivative of the loss by a gate on it, from the first batches; or a function, as in
            `tnmars.Stages`.
        seed: The seed of all random numbers. Your random state is not touched.
        checkpoint: A folder in which every finished stage is saved. Call again with the same arguments after an
            interruption: the path continues, and gives the same curve. The model must have the same weights again; they
            are in `start.safetensors` of the folder. A loader with `persistent_workers=True` whose data set draws
            random numbers draws others then.
        progress: Whether a progress bar is shown; by default on a terminal only.
        watch: Called after each stage with `stage`, `parameters`, `ratio`, `ranks`, `score`, `steps` and `seconds`.

    Returns:
        The curve: `curve.chosen.model`, `curve.reason`, `curve.points`; it prints as a table.

    Raises:
        TnmarsError: If the model has no compiled layer, a layer has gates, a budget cannot be reached, there are no
            data, the loss becomes NaN in the first stage, or `evaluate` returns no number. The model is not changed in
            any case.
        CheckpointError: If the checkpoint is of another path, or damaged; or if `evaluate` does not give the last score
            in it again.

    Example:
        >>> import torch, tnmars
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(512, 12)
        >>> y = (x @ torch.randn(12, 2) @ torch.randn(2, 8)).argmax(-1)
        >>> graph = tnmars.families.lowrank("linear", inputs=(12,), outputs=(8,), rank=8)
        >>> def accuracy(model):
        ...     return float((model(x[384:]).argmax(-1) == y[384:]).float().mean()), 128
        >>> curve = tnmars.shrink(
        ...     tnmars.compile(graph),
        ...     train=[(x[:384], y[:384])],
        ...     loss=torch.nn.functional.cross_entropy,
        ...     evaluate=accuracy,
        ...     settings=tnmars.Staircase(first=40),
        ... )
        >>> curve.chosen.ranks
        {'': {'r': 2}}
    """
    check_arguments(shrink, locals(), ("train", "settings", "seed"))
    max_drop, seed = own((max_drop, seed))
    known = check_samples(samples)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise TnmarsError(f"seed is {seed!r}, but must be a whole number of at least 0.")
    work = copy.deepcopy(model)
    share_((*work.parameters(), *work.buffers()))
    with own_random_state(train), torch.enable_grad():
        reseed(seed, "start", 0, train)
        reader = Reader.of(train, model)
        trained = reader.count()
        inputs, _ = next(iter(reader))
        args, named = moved(inputs, device_of(work))
        run = _Run(work, loss, evaluate, known, watch)
        rule = _rule(saliency, reader, loss)
        path = _Path(
            work,
            budget=budget,
            max_drop=max_drop,
            train_samples=trained,
            example=args or named,
            settings=settings,
            saliency=rule,
            checkpoint=checkpoint,
        )
        if path.position is not None and path.position.get("seed", seed) != seed:
            text = f"{checkpoint}: is a path with seed {path.position['seed']}, but seed is {seed}."
            raise CheckpointError(Problem(text, "Give the same seed, or another folder."))
        reseed(seed, "score", path.curve.points[-1].stage if path.position is not None else 0)
        if path.position is not None:
            _check_score(path.curve.chosen if path.is_finished else path.curve.points[-1], run.score(), checkpoint)
        if path.is_finished:
            return path.curve
        _warn_of_priors(work)
        if path.position is None:
            if has_ranks():  # rank 0 writes a checkpoint now: all must have seen that there was none
                torch.distributed.barrier()
            path._begin(run.score(), {"epoch": 0, "batch": 0, "seed": seed})
        left = path.steps_left
        with bar("shrinking", left, progress) as advance:
            run.walk(path, Stream(reader, seed, *plain(path.position)), seed, advance)
        return path.curve


def _rule(given: str | Saliency, reader: Reader, loss: Callable[[Any, Any], Tensor]) -> Saliency:
    """The saliency that is asked for. Raises `TnmarsError`."""
    if callable(given):
        return given
    if given == "norm":
        return from_norms
    if given == "gradient":
        batches = list(islice(reader, BATCHES))
        return from_gradients(batches, loss)
    raise TnmarsError(Problem(f"saliency is {given!r}.", "It must be 'norm', 'gradient' or a function."))


def _check_score(point: Point, now: Score, checkpoint: str | Path | None) -> None:
    """Refuses a checkpoint whose last model has another score now: other data, or another `evaluate`."""
    if not is_same(now.value, point):
        text = (
            f"{checkpoint}: the model of its last stage has a score of {now.value:.5g} now, but had {point.score:.5g}."
        )
        raise CheckpointError(Problem(text, "Give the same evaluate and the same validation data, or another folder."))


def _warn_of_priors(model: nn.Module) -> None:
    """Says which layers have a prior, as those compiled with `Ard` have: `loss` does not see the model."""
    names = [
        layer_called(name)
        for name, layer in layers(model)
        if layer.selector is not None and layer.selector.judges_norms
    ]
    if names and is_first_rank():
        text = (
            f"the selector of {listing(names)} has a prior, which shrink does not add to the loss: it chooses ranks by "
            "its own rule. To train with the prior, follow tnmars.Stages in a loop of your own, and add tnmars.penalty."
        )
        warnings.warn(text, ShrinkWarning, stacklevel=3)


class _Path(Stages):
    """The path of a call of `shrink`, whose first point is always the model given."""

    _frames = 5
    _function = "shrink"


class _Run:
    """The training of all stages of a path."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        evaluate: Callable[[nn.Module], Given],
        samples: int | None,
        watch: Callable[[Mapping[str, Any]], None] | None,
    ):
        self.model, self.loss, self.evaluate, self.samples, self.watch = model, loss, evaluate, samples, watch
        self.device = device_of(model)
        self.still = [module for module in model.modules() if not module.training and _is_still(module, model)]

    def score(self) -> Score:
        """The score of the model now."""
        with as_is(self.model), torch.no_grad():
            given = self.evaluate(self.model.eval())
        return agreed(lambda: score_of(given, self.samples))

    def walk(self, path: Stages, stream: Stream, seed: int, advance: Advance) -> None:
        """Trains stage after stage."""
        done, text = 0, ""
        reseed(seed, "cut", len(path.curve.points) - 1)
        for stage in path:
            reseed(seed + OTHER * rank(), "stage", stage.number - 1)
            score: Score | None = None
            try:
                self.train(stage, stream, done, advance, text)
                reseed(seed, "score", stage.number)
                score = self.score()
            except NotFiniteError as error:
                path._fail(stage, error, _place(stream, seed))
            done += stage.done
            if score is not None:
                stage.report(score, position=_place(stream, seed))
            from_first_rank(torch.zeros(()))  # no rank goes on before rank 0 has written the checkpoint
            point = path.curve.points[-1]
            if point.stage < stage.number:
                text = f"stage {stage.number} made the model worse, and is repeated at a lower rate"
                continue
            ranks = " ".join(dashed(sizes.values()) for sizes in point.ranks.values())
            text = f"{point.parameters:,} parameters ({times(point.ratio)}), ranks {ranks}, score {point.score:.5g}"
            advance(done, f"stage {stage.number}: {text}")
            reseed(seed, "cut", stage.number)  # the coming cut may draw random numbers
            if self.watch is not None:
                names = ("stage", "parameters", "ratio", "ranks", "score", "steps", "seconds")
                self.watch({name: getattr(point, name) for name in names})

    def train(self, stage: Stage, stream: Stream, done: int, advance: Advance, text: str) -> None:
        """One stage, after `done` steps."""
        self.model.train()
        for module in self.still:
            module.training = False
        trained = DistributedDataParallel(self.model) if has_ranks() else self.model  # parameters have changed
        for step, (inputs, target) in enumerate(stream.take(stage.steps)):
            value = self.loss(call(trained, inputs), placed(target, self.device))
            self._check(value, stage, step)
            value.backward()  # type: ignore[no-untyped-call]
            stage.step()
            if step % EVERY == 0:
                now = f"stage {stage.number}, step {step + 1:,} of {stage.steps:,}; last: {text or '-'}"
                advance(done + step + 1, now)

    def _check(self, value: Any, stage: Stage, step: int) -> None:
        if not isinstance(value, Tensor) or value.dim() > 0:
            what = (
                f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            )
            hint = "Take its mean."
            if value is None:
                what = "None"
                hint = "Return the loss. A model does not compute its own here, because it does not get the target."
            raise TnmarsError(Problem(f"loss returned {what}, but must return a scalar tensor.", hint))
        if not value.requires_grad:
            text = "loss returned a tensor that does not depend on the parameters of the model."
            raise TnmarsError(Problem(text, "Compute it from the model's output, without detach() and no_grad()."))
        number = float(value.detach())
        if not isfinite(number):
            what = "infinite" if abs(number) == inf else "NaN"
            problem = Problem(
                f"the loss became {what} in step {step + 1:,} of stage {stage.number}.",
                "The model given is unchanged. Look for NaN in the data, or train more slowly: "
                "settings=tnmars.Staircase(rate=0.03).",
            )
            if has_ranks():  # the loss of the others may be finite, so no rank can go on
                raise TnmarsError(problem)
            raise NotFiniteError(problem)


def _is_still(module: nn.Module, model: nn.Module) -> bool:
    """Whether a module in evaluation mode stays there: nothing in it is trained, and that is not by chance.

    Modules without parameters, such as dropout, are in evaluation mode by chance if the whole model is.
    """
    flags = [value.requires_grad for value in module.parameters()]
    return not any(flags) and (bool(flags) or model.training)


def _place(stream: Stream, seed: int) -> dict[str, int]:
    return {"epoch": stream.epoch, "batch": stream.at, "seed": seed}
