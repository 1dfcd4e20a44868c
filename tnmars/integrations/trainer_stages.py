"""The path of `tnmars.shrink` in the Trainer of transformers: its stages, its rates and its cuts, while Trainer trains.

Trainer holds on to one optimizer and one scheduler. So both stay the same objects, and become those of each stage. A
checkpoint of Trainer has a copy of the path; what Trainer loads from it waits until the path has cut the model.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from tnmars.arguments import check_arguments
from tnmars.errors import CheckpointError, Problem, TnmarsError
from tnmars.files import read_json, write_text
from tnmars.interchange.labelled import library
from tnmars.layer.module import layers
from tnmars.models.calibration import as_is
from tnmars.models.data import device_of
from tnmars.shrinking.folder import clear, link, restore_
from tnmars.shrinking.optimizer import WithPrior, optimizer_for
from tnmars.shrinking.rule import ShrinkWarning
from tnmars.shrinking.saliency import Saliency
from tnmars.shrinking.scores import Given, check_samples
from tnmars.shrinking.settings import Staircase, check_settings
from tnmars.shrinking.stage import Stage
from tnmars.shrinking.stages import Stages

PATH = "tnmars_path"
"""The folder of the path, in the folder of Trainer and in each of its checkpoints."""
STAGE = "stage.json"
"""The file of a checkpoint that says how far the stage is."""
LOADED_TOGETHER = ("optimizer.pt", "scheduler.pt")
"""The files of a checkpoint that Trainer loads if both are there."""
WATCHED: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
"""The hook of each model that waits for a checkpoint: that of its last callback."""


class PathOptimizer(WithPrior):
    """The optimizer of all stages. Before the first one it keeps what it should load, because the model is not cut."""

    def __init__(self, model: nn.Module, settings: Staircase):
        first = optimizer_for(model, settings, ())
        super().__init__(first.param_groups, (), 0.0, is_fused=bool(first.defaults["fused"]))
        self.has_stage = False
        self.loaded: dict[str, Any] | None = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.has_stage:
            super().load_state_dict(state_dict)
        else:
            self.loaded = state_dict


class Unhooked:
    """Stands for the path in a pickle of the model."""

    def _keep(self, *_: Any) -> None:
        pass


class Walk:
    """What the callback does: stages of a path, each for its steps, with one optimizer and one scheduler."""

    def __init__(self, model: nn.Module, evaluate: Callable[[nn.Module], Given], options: Mapping[str, Any]):
        self.model, self.evaluate, self.options = model, evaluate, options
        self.start = copy.deepcopy(model)
        self.optimizer = PathOptimizer(model, check_settings(options["settings"]))
        self.schedule = LambdaLR(self.optimizer, lambda _: 1.0)
        self.path: Stages | None = None
        self.stage: Stage | None = None
        self.loaded: dict[str, Tensor] = {}
        """What Trainer loaded from its checkpoint."""
        self._is_kept = False

    def __deepcopy__(self, memo: object) -> Walk:
        """A copy of the model has the hook of the original, which then does nothing."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle of the model has a hook that does nothing."""
        return Unhooked, ()

    # --- the checkpoint ----------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """From now on, what is loaded into the model is kept: its compiled layers may have to be cut first."""
        register: Any = self.model.register_load_state_dict_pre_hook
        self.unwatch()
        if self.path is None:
            WATCHED[self.model] = register(self._keep)

    def unwatch(self) -> None:
        """Ends that, so that copies of the model have no hook."""
        if self.model in WATCHED:
            WATCHED.pop(self.model).remove()

    def _keep(self, module: nn.Module, state: dict[str, Any], *_: Any) -> None:
        """Keeps what is to be loaded. Compiled layers of other sizes stay as they are until the path has cut them."""
        if module is not self.model:
            return
        self.loaded |= state
        inside = tuple(f"{name}." if name else "" for name, _ in layers(module))
        own = {name: value for name, value in module.state_dict().items() if name.startswith(inside)}
        given = {name: value for name, value in state.items() if name.startswith(inside)}
        if any(name not in own or own[name].shape != value.shape for name, value in given.items()):
            self._is_kept = True
            for name in given:
                del state[name]
            state |= own

    def save(self, folder: Path, target: Path) -> None:
        """Writes the path into a checkpoint of Trainer. Files that are there already are linked, not copied."""
        if self.stage is None:
            return
        link(folder, target)
        write_text(target / STAGE, json.dumps({"stage": self.stage.number, "done": self.stage.done}) + "\n")

    # --- stages ------------------------------------------------------------------------------------------------------

    def begin(self, folder: Path | None) -> None:
        """Begins a path, or goes on with the stage in which training ended."""
        if self._is_kept:
            text = "weights of other ranks were loaded into the model after the callback was made."
            raise TnmarsError(Problem(text, "Load them before, or train with resume_from_checkpoint=..."))
        self.loaded = {}
        if self.path is None:
            if folder is not None:
                clear(folder)
            self.path = Stages(self.model, checkpoint=folder, **self.options)
            self._next()
        elif self.path.is_finished:
            raise TnmarsError(Problem("the path has ended: there is nothing to train.", "Make a new callback."))

    def resume(self, folder: Path, source: Path) -> None:
        """Goes on where a checkpoint of Trainer has left the path."""
        if self.path is not None:
            text = "this callback has trained already, so it cannot go on from a checkpoint."
            raise TnmarsError(Problem(text, "Make a new Trainer and a new callback with the model as it was first."))
        done = _done(source)
        given, schedule = self.optimizer.loaded, self.schedule.state_dict()
        if given is None or not all((source.parent / name).is_file() for name in LOADED_TOGETHER):
            text = f"{source.parent}: has no state of the optimizer and the scheduler, so its stage cannot go on."
            raise CheckpointError(Problem(text, "Train with save_only_model=False."))
        if not self.loaded:
            text = "Trainer loaded the checkpoint before it had this callback."
            raise TnmarsError(Problem(text, "Write Trainer(..., callbacks=[stages], optimizers=stages.optimizers)."))
        link(source, folder)
        restore_(self.model, self.start.to(device_of(self.model)))
        self.path = Stages(self.model, checkpoint=folder, **self.options)
        if self.path.is_finished:
            text = f"{source.parent}: its path has ended: there is nothing to train."
            raise TnmarsError(Problem(text, "The model is that of the chosen point; save or evaluate it."))
        stage = self._next()
        shapes = {name: value.shape for name, value in self.model.state_dict().items()}
        other = [name for name, value in self.loaded.items() if shapes.get(name, value.shape) != value.shape]
        if other or stage.number != done["stage"]:
            text = f"{source.parent}: its stage {done['stage']} has other ranks than the path gives now."
            raise CheckpointError(Problem(text, "Give the same model, settings and saliency."))
        if done["done"] >= stage.steps:
            raise _unreadable(source)
        self.model.load_state_dict(self.loaded, strict=False)
        self.optimizer.load_state_dict(given)
        self.schedule.load_state_dict(schedule)
        self.loaded, self._is_kept, stage.done = {}, False, done["done"]

    @property
    def steps_left(self) -> int | None:
        """About how many steps are left to the smallest budget; None without a budget."""
        left = None if self.path is None else self.path.steps_left
        return left if left is None or self.stage is None else left - self.stage.done

    def _next(self) -> Stage:
        """Cuts the model; the optimizer and the scheduler become those of the new stage."""
        assert self.path is not None
        stage = self.stage = next(iter(self.path))
        self._adopt(stage.optimizer)
        stage.optimizer = self.optimizer
        return stage

    def _adopt(self, optimizer: WithPrior) -> None:
        self.optimizer.become_(optimizer)
        self.optimizer.has_stage = True
        groups = self.optimizer.param_groups
        self.schedule.lr_lambdas = [lambda step: self._factor(step)] * len(groups)  # torch saves other callables
        self.schedule.base_lrs = [group["initial_lr"] for group in groups]
        self.schedule.last_epoch = 0
        for group in groups:
            group["lr"] = group["initial_lr"] * self._factor(0)
        self.schedule._last_lr = [group["lr"] for group in groups]

    def _factor(self, step: int) -> float:
        return 1.0 if self.stage is None else self.stage.factor(step)

    def moved(self) -> bool:
        """After a step: whether the path has ended. At the end of a stage the model is scored and cut."""
        assert self.path is not None
        assert self.stage is not None
        self.stage.done += 1
        if self.stage.done < self.stage.steps:
            return False
        with as_is(self.model), torch.no_grad():
            score = self.evaluate(self.model.eval())
        self.stage.report(score)
        if self.path.is_finished:
            self._adopt(optimizer_for(self.model, self.path.settings, ()))  # of the parameters of the chosen point
            return True
        self._next()
        return False


def _done(source: Path) -> dict[str, int]:
    """How far a checkpoint is: the number of its stage, and the steps that were done. Raises `CheckpointError`."""
    try:
        found = read_json(source / STAGE)
        done = {name: found[name] for name in ("stage", "done")}
    except (OSError, ValueError, LookupError, TypeError):
        raise _unreadable(source) from None
    if not all(type(value) is int and value >= 0 for value in done.values()):
        raise _unreadable(source)
    return done


def _unreadable(source: Path) -> CheckpointError:
    text = f"{source / STAGE}: cannot be read, so the path cannot go on."
    fix = "Continue from a checkpoint in output_dir that was written with this callback, or train from the start."
    return CheckpointError(Problem(text, fix))


def _check(args: Any, model: Any, optimizer: Any, walk: Walk) -> None:
    """Raises `TnmarsError` for what a Trainer does that the path cannot follow. Nothing was trained then."""
    if model is not walk.model:
        raise TnmarsError(Problem("Trainer has another model than the callback.", "Give both the same one."))
    if getattr(optimizer, "optimizer", optimizer) is not walk.optimizer:
        text = "Trainer has an optimizer of its own, but each stage of the path needs a new one."
        raise TnmarsError(Problem(text, "Write Trainer(..., callbacks=[stages], optimizers=stages.optimizers)."))
    if args.world_size > 1 or args.n_gpu > 1 or args.deepspeed:
        text = "the model is wrapped for several devices, and a wrapped model cannot be cut."
        raise TnmarsError(Problem(text, "Train in one process on one device, or use tnmars.shrink under torchrun."))
    if args.load_best_model_at_end:
        text = "load_best_model_at_end would replace the point that the path chooses."
        raise TnmarsError(Problem(text, "Set load_best_model_at_end=False."))


def trainer_stages(
    model: nn.Module,
    *,
    evaluate: Callable[[nn.Module], Given],
    budget: int | str | Sequence[int | str] | None = None,
    max_drop: float | None = None,
    train_samples: int | None = None,
    example: Any = None,
    settings: Staircase | None = None,
    saliency: Saliency | None = None,
    start: Any = None,
) -> Any:
    """A callback for the `Trainer` of transformers that follows the path of `tnmars.shrink`.

    Trainer trains each stage for its steps, at the rates of the stage; `learning_rate`, `weight_decay` and
    `lr_scheduler_type` of its arguments have no effect. At the end of a stage the model is scored and cut in place.
    Training ends when the path does, and the model is that of the chosen point then. `max_steps` must be large enough:
    if training ends before the path, a `tnmars.ShrinkWarning` is issued, and the model is that of the last step.

    Training goes on from a checkpoint (`resume_from_checkpoint`) in the middle of a stage, as if it had not ended.
    Give a new Trainer and a new callback the model that the path began with. Each checkpoint has its points in the
    folder `tnmars_path`. It must be in `output_dir`.

    Args:
        model: The model that Trainer gets, as in `tnmars.Stages`.
        evaluate: Returns the score of the model on validation data, as in `tnmars.shrink`. It may call
            `trainer.evaluate()`.
        budget: As in `tnmars.shrink`.
        max_drop: As in `tnmars.shrink`.
        train_samples: The number of training samples, for the prior of the cores; without it there is none.
        example: As in `tnmars.Stages`.
        settings: The constants of the path.
        saliency: As in `tnmars.Stages`.
        start: The score of the model as it is given, if it is known, as in `tnmars.Stages`.

    Returns:
        A `TrainerCallback`, for `Trainer(callbacks=[stages], optimizers=stages.optimizers)`. `stages.path` is the
        `tnmars.Stages` once training has begun, and `stages.path.curve` has all points.

    Raises:
        TnmarsError: transformers is not installed, or no parameter of the model requires a gradient. When training
            begins: what `tnmars.Stages` raises; or Trainer has another optimizer or model, uses several devices or
            `load_best_model_at_end`.

    Example:
        >>> import tnmars
        >>> follow = tnmars.integrations.trainer_stages
        >>> stages = follow(model, evaluate=accuracy, budget="10x")  # doctest: +SKIP
        >>> options = {"callbacks": [stages], "optimizers": stages.optimizers}  # doctest: +SKIP
        >>> trainer = Trainer(model, arguments, **options)  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
        >>> print(stages.path.curve)  # doctest: +SKIP
    """
    check_arguments(trainer_stages, locals(), ("train_samples", "settings"))
    train_samples = check_samples(train_samples, "train_samples")
    if not any(value.requires_grad for value in model.parameters()):
        text = "no parameter of the model requires a gradient: there is nothing to train."
        raise TnmarsError(Problem(text, "Give a model with compiled layers, or call model.requires_grad_()."))
    base: Any = library("transformers", "transformers").TrainerCallback
    options = {
        "budget": budget,
        "max_drop": max_drop,
        "train_samples": train_samples,
        "example": example,
        "settings": settings,
        "saliency": saliency,
        "start": start,
    }
    walk = Walk(model, evaluate, options)
    if model not in WATCHED:
        walk.watch()

    class StagesCallback(base):  # type: ignore[misc]
        """Follows a path."""

        optimizers = (walk.optimizer, walk.schedule)

        @property
        def path(self) -> Stages | None:
            return walk.path

        def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            walk.watch()

        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
        ) -> None:
            walk.unwatch()
            _check(args, model, optimizer, walk)
            folder = Path(args.output_dir) / PATH
            if state.global_step:
                walk.resume(folder, _checkpoint(args, state))
            else:
                walk.begin(None if args.save_strategy == "no" else folder)
            left, steps = walk.steps_left, state.max_steps - state.global_step
            if left is not None and left > steps:
                text = f"the path takes about {left:,} steps, but training ends after {steps:,}: set max_steps."
                warnings.warn(text, ShrinkWarning, stacklevel=2)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if walk.moved():
                control.should_training_stop = True
                control.should_save |= args.save_strategy == "steps"

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            target = _checkpoint(args, state)
            if args.save_strategy != "no" and target.parent.is_dir():
                walk.save(Path(args.output_dir) / PATH, target)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if walk.path is not None and walk.stage is not None and not walk.path.is_finished:
                stage = walk.stage
                text = f"training ended after step {stage.done:,} of {stage.steps:,} of stage {stage.number}."
                fix = "The model is not that of a point: set max_steps higher, and go on from a checkpoint."
                warnings.warn(f"{text} {fix}", ShrinkWarning, stacklevel=2)

    return StagesCallback()


def _checkpoint(args: Any, state: Any) -> Path:
    """The folder of the path in the checkpoint of the last step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / PATH
