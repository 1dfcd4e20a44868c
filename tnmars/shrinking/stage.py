"""One stage of a path, as a training loop sees it: its steps, its optimizer, and the score that ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tnmars.arguments import check_arguments
from tnmars.models.rates import annealed
from tnmars.shrinking.optimizer import optimizer_for
from tnmars.shrinking.scores import NotFiniteError, agreed, check_samples, score_of

if TYPE_CHECKING:
    from tnmars.shrinking.stages import Stages


class Stage:
    """One stage of a path: a number of steps with a new optimizer, then a score.

    `tnmars.Stages` yields it. Train the model for `steps` steps, and report its score.

    Attributes:
        number: The number of the stage, from 0. Where the score of the model given is known, that model is point 0, and
            stages are counted from 1.
        steps: The number of steps to train.
        optimizer: A new AdamW for all parameters of the model that require a gradient. Each tensor has its own rate.

    Example:
        >>> import tnmars
        >>> graph = tnmars.families.lowrank("linear", inputs=(6,), outputs=(5,), rank=3)
        >>> path = tnmars.Stages(tnmars.compile(graph), budget="2x")
        >>> stage = next(iter(path))
        >>> stage.number, stage.steps, stage.factor(25), stage.factor(400)
        (0, 400, 0.52, 0.0)
    """

    def __init__(self, path: Stages, number: int, steps: int):
        self.number, self.steps, self.done = number, steps, 0
        self._path = path
        cores, others = path._shrunk.cores_and_others()
        self.optimizer = optimizer_for(path.model, path.settings, cores, others, path._share, path._samples)
        self.is_reported = False

    def factor(self, step: int) -> float:
        """The factor of all learning rates at a step, from 0; for `torch.optim.lr_scheduler.LambdaLR`, say."""
        check_arguments(Stage.factor, locals())
        return annealed(min(step + 1, self.steps), self.steps, self._path.settings.ramp)

    def step(self) -> None:
        """One step of the optimizer at the rate of the schedule; then gradients are cleared."""
        factor = self.factor(self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1

    @property
    def trained(self) -> int:
        """The number of steps that were trained, by `step` or by the optimizer itself."""
        own = [int(state["step"]) for state in self.optimizer.state.values() if "step" in state]
        return max([self.done, *own])

    def report(self, score: Any, samples: int | None = None, *, position: Mapping[str, int] | None = None) -> None:
        """Ends the stage with the score of the model on validation data.

        Args:
            score: A number, larger is better; a pair of a score and the number of samples; or a tensor with the score
                of each sample. Under several processes all of them report, and that of rank 0 counts.
            samples: The number of samples behind the score, from which its standard error follows.
            position: Plain data of your own, such as the place in the training data. It is in the checkpoint, and after
                a resume in `Stages.position`.

        Raises:
            TnmarsError: If the score is not a number, if it has no standard error though one is needed, or if the stage
                has a score already. A score that is not finite repeats the first stage at a lower rate if `start` was
                given, is an error there otherwise, and ends the path later.
        """
        check_arguments(Stage.report, locals(), but=("samples",))
        self._path._check_open(self)
        try:
            found = agreed(lambda: score_of(score, check_samples(samples), verb="the score is"))
        except NotFiniteError as error:
            self._path._fail(self, error, position)
            return
        self._path._report(self, found, position)
