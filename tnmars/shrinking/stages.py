"""The path as an iterator: a stage to train, a score to report, a cut; then the next stage.

Every stage has a new optimizer, because a canonical form makes the state of the old one meaningless. What a stage is
trained on, and how, is up to the caller.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tnmars.arguments import check_arguments
from tnmars.errors import CheckpointError, Problem, TnmarsError
from tnmars.layer.distributed import is_first_rank
from tnmars.models.data import example_batch
from tnmars.shrinking.curve import Curve, Point, is_same
from tnmars.shrinking.folder import held, restore_, stored, write_model, write_start
from tnmars.shrinking.model import Shrunk
from tnmars.shrinking.resume import Record, State, fingerprint, measured_ms, resumed, write
from tnmars.shrinking.rule import Goals, ShrinkWarning, curve_for, lost_words
from tnmars.shrinking.saliency import Saliency, from_norms, name_of
from tnmars.shrinking.scores import NotFiniteError, Score, agreed, check_samples, score_of, unknown_error
from tnmars.shrinking.settings import Staircase, check_settings
from tnmars.shrinking.stage import Stage

LOWER = 4
"""What all rates are divided by when the first stage ends below the model given."""
LEAST = LOWER**-3
"""The smallest share of the rates: the first stage is repeated at most three times."""


class Stages:
    """The path of `tnmars.shrink` for a training loop of your own: an iterator over stages.

    The model is cut in place between stages; its compiled layers stay the same objects with new, smaller parameters.
    Each stage ends with `stage.report(score)`. Then `curve` has all points so far. In the last stages the points that
    are taken (the chosen one, or one for each budget) are trained once more. When the iterator has ended, the model is
    that of the chosen point, and `path.curve.chosen.model` is a copy of it without bonds of size 1.

    Args:
        model: A model with compiled layers that have no gates, fresh or trained. It is changed. Under DDP, give the
            model inside, and wrap it again in each stage. Layers with a core that does not require a gradient are not
            cut.
        budget: As in `tnmars.shrink`.
        max_drop: As in `tnmars.shrink`.
        train_samples: The number of training samples, for the prior of the cores; without it there is none.
        example: The arguments of the model for one batch: a tensor, a tuple or a mapping. With it, multiply-adds and
            times are those of one pass of the whole model over it. Without it, they are those of the compiled layers
            alone, for the batch that each was compiled for.
        settings: The constants of the path.
        saliency: A function that says how much each slice matters, from the model in canonical form and the weights of
            all slices, by layer and bond; it returns a vector for each bond. By default the share of the layer's
            squared norm that runs through the slice.
        checkpoint: A folder in which every finished stage is saved. If it has a path already, that is continued: the
            model, which must have the weights that the path began with, becomes that of its last stage. These weights
            are in `start.safetensors` of the folder.
        start: The score of the model as it is given, if it is known, in any form that `Stage.report` takes. The model
            is then the first point of the curve. If the first stage ends more than one standard error below it (with
            `max_drop`, more than half of that), the model is put back and the stage is repeated at a quarter of all
            rates, at most three times.

    Attributes:
        model: The model.
        position: The `position` of the last report, also after a resume; None at the start.

    Raises:
        TnmarsError: If the model has no compiled layer, a layer has gates or shares its cores, a budget cannot be
            reached, or a setting is wrong. Nothing was changed then.
        CheckpointError: If the folder has another path, or is damaged.

    Example:
        >>> import torch, tnmars
        >>> _ = torch.manual_seed(0)
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=5)
        >>> model, x = tnmars.compile(graph), torch.randn(64, 6)
        >>> y = x @ torch.randn(6, 1) @ torch.randn(1, 5)
        >>> path = tnmars.Stages(model, max_drop=0.1, settings=tnmars.Staircase(first=40))
        >>> for stage in path:
        ...     for _ in range(stage.steps):
        ...         (model(x) - y).square().mean().backward()
        ...         stage.step()
        ...     stage.report(-(model(x) - y).square().mean())
        >>> path.curve.chosen.ranks
        {'': {'r': 1}}
    """

    _function = "Stages"
    """What a checkpoint says it was written by."""
    _frames = 3
    """How far away the user's own code is when a stage ends."""

    def __init__(
        self,
        model: nn.Module,
        *,
        budget: int | str | Sequence[int | str] | None = None,
        max_drop: float | None = None,
        train_samples: int | None = None,
        example: Any = None,
        settings: Staircase | None = None,
        saliency: Saliency | None = None,
        checkpoint: str | Path | None = None,
        start: Any = None,
    ):
        check_arguments(Stages.__init__, locals(), ("train_samples", "settings"))
        self.model, self.settings = model, check_settings(settings)
        self.position: Mapping[str, int] | None = None
        self._goals = Goals.of(budget, max_drop, self.settings)
        batch = None if example is None else example_batch(example)
        rest_ms = None if checkpoint is None else measured_ms(checkpoint)
        self._shrunk = Shrunk(model, batch, self._goals, saliency or from_norms, rest_ms)
        self._samples, self._checkpoint = check_samples(train_samples, "train_samples"), checkpoint
        self._points: list[Point] = []
        self._start: Point | None = None
        self._before: dict[str, Tensor] | None = None
        self._steps, self._clock, self._share = 0, time.perf_counter(), 1.0
        self._is_finished, self._is_cut, self._ended = False, True, ""
        self._model_at: int | None = None
        """The place of the point whose model the model is; None while it is trained."""
        self._untaken: tuple[int, ...] | None = None
        """The places of the points that are still to be trained once more; None before the end of the path."""
        self._stage: Stage | None = None
        if checkpoint is not None:
            self._template = copy.deepcopy(model)
            self._record = Record(
                function=self._function,
                settings=self.settings,
                goals=self._goals.words,
                ranks=self._shrunk.ranks(),
                weights=fingerprint(model),
                saliency=name_of(saliency or from_norms),
                train_samples=self._samples,
            )
            found = resumed(checkpoint, self._record, self._template)
            if found is not None:
                self._continue(*found, checkpoint)
        if start is not None:
            self._check_start(agreed(lambda: score_of(start)))

    def _check_start(self, score: Score) -> None:
        """Begins with the score of the model given; a path that continues must have begun with the same."""
        if not self._points:
            self._begin(score)
        elif self._start is None or not is_same(score.value, self._start):
            known = "none" if self._start is None else f"{self._start.score:.5g}"
            text = f"{self._checkpoint}: is another path: the score of its start is {known}, but now {score.value:.5g}."
            raise CheckpointError(Problem(text, "Give the same start, or another folder."))

    def _begin(self, score: Score, position: Mapping[str, int] | None = None) -> None:
        """Makes the model as it is given the first point of the curve."""
        if self._goals.needs_error and score.error is None:
            raise unknown_error(self._function)
        self._start = self._point(0, score)
        self._points.append(self._start)
        self._before = copy.deepcopy(self.model.state_dict())
        self._save(position)

    def _continue(self, curve: Curve, state: State, checkpoint: str | Path) -> None:
        """Goes on from the last finished stage of a checkpoint."""
        self.position, self._share, self._steps = state.position, state.share, state.steps
        self._points, self._is_finished = list(curve.points), curve.is_finished
        self._clock = time.perf_counter() - curve.points[-1].seconds
        self._shrunk.load_(checkpoint, curve.points[-1].stage)
        self._model_at = len(self._points) - 1
        self._start = None if curve.start is None else self._points[0]
        self._untaken = None if state.untaken is None else tuple(state.untaken)
        if self._is_finished:
            self._restore_(curve.chosen_at)
        if self._is_first:
            self._before = copy.deepcopy(self.model.state_dict())
        else:
            self._is_cut = False

    @property
    def curve(self) -> Curve:
        """The curve of all points so far. Raises `TnmarsError` if no stage has a score yet."""
        if not self._points:
            raise TnmarsError("no stage has a score yet: call stage.report(score) at the end of each.")
        return curve_for(
            self._points,
            self._start,
            self._goals,
            self._shrunk.dense,
            self._is_finished,
            lower=round(1 / self._share),
            ended=self._ended,
            uncut=self._shrunk.uncut_words(),
        )

    @property
    def is_finished(self) -> bool:
        """Whether the path has come to its end."""
        return self._is_finished

    @property
    def steps_left(self) -> int | None:
        """About how many steps are left to the smallest budget; None without a budget."""
        if self._is_finished:
            return 0 if self._goals.budgets else None
        if self._untaken is not None:
            return sum(self._shrunk.last_steps(self.settings, self._points[at].parameters) for at in self._untaken)
        return self._shrunk.steps_left(self.settings, is_first=self._is_first)

    @property
    def _is_first(self) -> bool:
        """Whether no stage is finished."""
        return len(self._points) == (self._start is not None)

    def __iter__(self) -> Iterator[Stage]:
        while not self._is_finished:
            stage = self._stage = self._next()
            yield stage
            if not stage.is_reported:
                raise TnmarsError(
                    f"stage {stage.number} has no score.\n  Call stage.report(score) at the end of each stage."
                )

    def _next(self) -> Stage:
        """A new stage. The model is cut for it first, unless it is at its start, or was cut for a stage left early."""
        if not self._is_cut:
            if self._untaken:
                self._restore_(self._untaken[0])
                self._shrunk.gauge_()
            else:
                self._shrunk.cut_()
            self._is_cut = True
        number = self._points[-1].stage + 1 if self._points else 0
        self._model_at = None
        return Stage(
            self, number, self._shrunk.steps(self.settings, is_first=self._is_first, is_last=bool(self._untaken))
        )

    def _restore_(self, at: int) -> None:
        """Makes the model that of a point, unless it is that already."""
        if at != self._model_at:
            restore_(self.model, self._points[at].make.on_path())
            self._model_at = at

    def _taken(self) -> tuple[int, ...]:
        """The places of the points that are trained once more at the end, that of the smallest last."""
        if not self.settings.finish:
            return ()
        curve = self.curve
        places = set(curve.budgets.values()) or {curve.chosen_at}
        trained = [at for at in places if self._points[at] is not self._start]
        return tuple(sorted(trained, key=lambda at: (-self._points[at].parameters, at)))

    def _end_(self) -> None:
        """Ends the path: the model becomes the chosen one."""
        self._is_finished = True
        self._restore_(self.curve.chosen_at)

    def _check_open(self, stage: Stage) -> None:
        if stage.is_reported:
            raise TnmarsError(f"stage {stage.number} has a score already.")
        if stage is not self._stage:
            text = f"stage {stage.number} was left before it had a score, and the path went on with a new stage."
            raise TnmarsError(Problem(text, "Report the score of the stage that the loop yielded last."))

    def _fail(self, stage: Stage, error: NotFiniteError, position: Mapping[str, int] | None) -> None:
        """Repeats a first stage that diverged, or ends the path with what it has. Raises the error if that is nothing.

        Nothing is saved of the end: a path that is continued trains this stage again.
        """
        if not self._is_first:
            self._ended = error.problems[0].text
            self._end_()
        elif self._start is not None and stage.trained and self._share > LEAST:
            self._steps += stage.trained
            self._repeat(position)
        else:
            raise error
        stage.is_reported = True

    def _report(self, stage: Stage, score: Score, position: Mapping[str, int] | None) -> None:
        if self._goals.needs_error and score.error is None:
            if not self._points:
                raise unknown_error(self._function)
            score = Score(score.value, max(self._points, key=lambda point: point.score).error)
        stage.is_reported = True
        self._steps += stage.trained
        if self._is_first and self._start is not None:
            is_lost = score.value < self._start.score - self._goals.margin(self._start)
            if is_lost and self._share > LEAST:
                self._repeat(position)
                return
        self._points.append(self._point(stage.number, score))
        self._model_at, self._before, self._is_cut = len(self._points) - 1, None, False
        if self._untaken:
            self._untaken = self._untaken[1:]
        elif self._goals.is_reached(self._points, self._shrunk.dense) or self._shrunk.is_smallest():
            self._untaken = self._taken()
        if self._untaken == ():
            self._end_()
        self._save(position)
        words = lost_words(self._points, self._start, self._goals) if self._is_finished else None
        if words is not None and is_first_rank():
            warnings.warn(words, ShrinkWarning, stacklevel=self._frames)

    def _repeat(self, position: Mapping[str, int] | None) -> None:
        """Puts the model given back; the coming stage has a quarter of the rates."""
        assert self._before is not None
        self.model.load_state_dict(self._before)
        self._share /= LOWER
        self._save(position)

    def _save(self, position: Mapping[str, int] | None) -> None:
        self.position = position
        if self._checkpoint is not None:
            if len(self._points) == 1:
                write_start(self._checkpoint, self._template)
            state = State(position, self._share, self._steps, self._shrunk.prices.rest.ms, self._untaken)
            write(self._checkpoint, self._record, self.curve, state)

    def _point(self, number: int, score: Score) -> Point:
        """The model as it is now as a point of the curve."""
        if self._checkpoint is None:
            make = held(self.model)
        else:
            write_model(self._checkpoint, number, self.model)
            make = stored(self._checkpoint, number, self._template)
        cost = self._shrunk.cost()
        return Point(
            stage=number,
            parameters=cost.parameters,
            bytes=round(self._shrunk.prices.of(cost, "bytes")),
            macs=cost.macs,
            ms=cost.ms,
            ratio=self._shrunk.dense["parameters"] / max(cost.parameters, 1),
            ranks=self._shrunk.ranks(),
            score=score.value,
            error=score.error,
            steps=self._steps,
            seconds=time.perf_counter() - self._clock,
            make=make,
        )
