"""The path of `tnmars.shrink` under the Trainer of transformers: the same as a loop by hand, and it can be resumed."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tnmars

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed, which the Trainer needs")

SETTINGS = tnmars.Staircase(first=12, factor=0.6)


class Net(nn.Module):
    """A network whose first layer is a sum of two terms; the path removes one of them."""

    def __init__(self) -> None:
        super().__init__()
        block = tnmars.families.btd("linear", inputs=(3, 4), outputs=(2, 4), terms=2, rank=2)
        self.first = tnmars.compile(block)
        self.second = tnmars.compile(tnmars.families.lowrank("linear", inputs=(8,), outputs=(5,), rank=4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.second(torch.tanh(self.first(x)))
        return {"loss": F.mse_loss(logits, labels), "logits": logits}


class Samples(torch.utils.data.Dataset):
    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        self.x = torch.randn(40, 12, generator=draw)
        self.labels = torch.tanh(self.x @ torch.randn(12, 2, generator=draw)) @ torch.randn(2, 5, generator=draw)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[at], "labels": self.labels[at]}


DATA = Samples()


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Stop(transformers.TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= state.global_step >= self.step


@torch.no_grad()
def score(model: nn.Module) -> float:
    assert not model.training
    return -float(model(DATA.x, DATA.labels)["loss"])


def made(model: nn.Module, folder: Path, stop: int = 10**6, own: bool = True, **options: Any) -> tuple[Any, Any]:
    """A Trainer, and its callback."""
    path = {"budget": "2x", "settings": SETTINGS, "train_samples": 40, **options.pop("path", {})}
    stages = tnmars.integrations.trainer_stages(model, evaluate=score, **path)
    given = dict(max_steps=2000, per_device_train_batch_size=10, report_to=[], save_strategy="no", use_cpu=True)
    arguments = transformers.TrainingArguments(
        str(folder), disable_tqdm=True, max_grad_norm=0.0, logging_strategy="no", **{**given, **options}
    )
    more = {"optimizers": stages.optimizers} if own else {}
    return InOrder(model, arguments, train_dataset=DATA, callbacks=[stages, Stop(stop)], **more), stages


def trained(trainer: Any, resume: str | None = None) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pin_memory.*")
        trainer.train(resume_from_checkpoint=resume)


def figures(path: tnmars.Stages) -> list[tuple[Any, ...]]:
    return [(point.stage, point.ranks, point.score, point.steps) for point in path.curve.points]


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("options", [{}, {"start": -9.0}, {"budget": None, "max_drop": 0.05}])
def test_the_path_is_that_of_a_loop_by_hand(options: dict[str, Any], tmp_path: Path) -> None:
    model = Net()
    other = copy.deepcopy(model)
    trainer, stages = made(model, tmp_path, path=options)
    trained(trainer)
    path = tnmars.Stages(other, **{"budget": "2x", "settings": SETTINGS, "train_samples": 40, **options})
    at = 0
    for stage in path:
        other.train()
        for _ in range(stage.steps):
            part = slice(at % 40, at % 40 + 10)
            other(DATA.x[part], DATA.labels[part])["loss"].backward()
            stage.step()
            at += 10
        stage.report(score(other.eval()))
    assert stages.path.is_finished
    assert len(path.curve.points) >= 4
    assert figures(stages.path) == figures(path)
    assert same(model, other)
    assert trainer.state.global_step == path.curve.points[-1].steps == at // 10


def test_a_first_stage_that_harms_is_repeated_at_lower_rates(tmp_path: Path) -> None:
    trainer, stages = made(Net(), tmp_path, path={"start": 0.0})
    with pytest.warns(tnmars.ShrinkWarning, match="below"):
        trained(trainer)
    assert "divided by 64" in stages.path.curve.reason


@pytest.mark.parametrize("stage", [0, 1, 2, 3, 4])
def test_training_goes_on_from_a_checkpoint_in_a_stage(stage: int, tmp_path: Path) -> None:
    """In the first stage, at the start of the second, and later, where a term and slices of the model are gone."""
    start = Net()
    whole = copy.deepcopy(start)
    goal = {"budget": None, "max_drop": 0.05}
    trainer, stages = made(whole, tmp_path / "whole", path=goal)
    trained(trainer)
    points = stages.path.curve.points
    assert [len(point.make.on_path().first.graph.terms) for point in points] == [2, 2, 2, 1, 2]
    step = (points[stage - 1].steps if stage else 5) + (0, 0, 3, 4, 5)[stage]
    options = dict(save_strategy="steps", save_steps=step, path=goal)
    half, _ = made(copy.deepcopy(start), tmp_path / "half", stop=step + 2, **options)
    with pytest.warns(tnmars.ShrinkWarning, match=f"training ended after step .* of stage {stage}"):
        trained(half)
    again = copy.deepcopy(start)
    torch.manual_seed(99)
    trainer, resumed = made(again, tmp_path / "half", **options)
    trained(trainer, str(tmp_path / "half" / f"checkpoint-{step}"))
    assert figures(resumed.path) == figures(stages.path)
    assert same(again, whole)


def test_training_that_ended_early_goes_on_in_its_stage(tmp_path: Path) -> None:
    """A second call of `train`, without a checkpoint."""
    model = Net()
    other = copy.deepcopy(model)
    trainer, stages = made(model, tmp_path)
    trained(trainer)
    trainer, again = made(other, tmp_path, stop=28)
    with pytest.warns(tnmars.ShrinkWarning, match="training ended after step 4 of 19 of stage 1"):
        trained(trainer)
    trainer.remove_callback(Stop)
    trained(trainer)
    assert figures(again.path) == figures(stages.path)
    with pytest.raises(tnmars.TnmarsError, match="the path has ended: there is nothing to train"):
        trained(trainer)


def test_the_last_checkpoint_is_the_chosen_model(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    start = Net()
    model = copy.deepcopy(start)
    trainer, stages = made(model, tmp_path, save_strategy="steps", save_steps=1000)
    trained(trainer)
    last = tmp_path / f"checkpoint-{trainer.state.global_step}"
    held = load_file(last / "model.safetensors")
    assert all(torch.equal(value, held[name]) for name, value in model.state_dict().items())
    curve = tnmars.load_curve(last / "tnmars_path", copy.deepcopy(start))
    assert curve.chosen.ranks == stages.path.curve.chosen.ranks
    trainer, _ = made(copy.deepcopy(start), tmp_path, save_strategy="steps", save_steps=1000)
    with pytest.raises(tnmars.TnmarsError, match="its path has ended: there is nothing to train"):
        trained(trainer, str(last))


def test_a_model_of_transformers_with_the_evaluation_of_trainer(tmp_path: Path) -> None:
    small = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=2)
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=8, **small)
    model = transformers.BertForSequenceClassification(config)
    ids = torch.randint(0, 50, (32, 6))
    data = [{"input_ids": one, "labels": one[0] % 2} for one in ids]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tnmars.CompressionWarning)  # few data are enough here
        tnmars.compress_(model.eval(), budget="2x", data=[{"input_ids": ids}])
    stages = tnmars.integrations.trainer_stages(
        model,
        evaluate=lambda _: (trainer.evaluate()["eval_accuracy"], 32),
        budget="2.5x",
        settings=tnmars.Staircase(first=4),
    )
    given = dict(max_steps=500, per_device_train_batch_size=16, report_to=[], save_strategy="no", use_cpu=True)
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(str(tmp_path / "training"), disable_tqdm=True, **given),
        train_dataset=data,
        eval_dataset=data,
        compute_metrics=lambda given: {"accuracy": float((given[0].argmax(-1) == given[1]).mean())},
        callbacks=[stages],
        optimizers=stages.optimizers,
    )
    trained(trainer)
    assert stages.path.is_finished
    assert stages.path.curve.chosen.ratio >= 2.5
    tnmars.integrations.save_pretrained(model.eval(), tmp_path / "small")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "small").eval()
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_mistakes(tmp_path: Path) -> None:
    model = Net()
    before = copy.deepcopy(model)
    trainer, _ = made(model, tmp_path, own=False)
    with pytest.raises(tnmars.TnmarsError, match=r"optimizer of its own(.|\n)*optimizers=stages.optimizers"):
        trained(trainer)
    trainer, stages = made(model, tmp_path)
    other = InOrder(Net(), trainer.args, train_dataset=DATA, callbacks=[stages], optimizers=stages.optimizers)
    with pytest.raises(tnmars.TnmarsError, match="Trainer has another model than the callback"):
        trained(other)
    trainer, _ = made(model, tmp_path)
    trainer.args.load_best_model_at_end = True
    with pytest.raises(tnmars.TnmarsError, match="load_best_model_at_end would replace"):
        trained(trainer)
    trainer, _ = made(model, tmp_path)
    trainer.args._n_gpu = 2
    with pytest.raises(tnmars.TnmarsError, match="wrapped for several devices"):
        trained(trainer)
    made(model, tmp_path)  # a Trainer that never trains
    trainer, _ = made(model, tmp_path)
    model.load_state_dict(before.state_dict())  # of the same sizes: nothing special
    small = copy.deepcopy(model)
    tnmars.prune_(small, ranks={"second": 2})
    model.load_state_dict(small.state_dict())  # what a checkpoint would give
    with pytest.raises(tnmars.TnmarsError, match="weights of other ranks were loaded"):
        trained(trainer)
    trainer, _ = made(model, tmp_path, path={"budget": "100x"})
    with pytest.raises(tnmars.TnmarsError, match="budget"):
        trained(trainer)
    assert same(model, before)
    with pytest.raises(tnmars.TnmarsError, match="evaluate is 3, but must be a function"):
        tnmars.integrations.trainer_stages(model, evaluate=3)


def test_too_few_steps_are_reported_before_training(tmp_path: Path) -> None:
    trainer, _ = made(Net(), tmp_path, max_steps=10)
    with pytest.warns(tnmars.ShrinkWarning) as caught:
        trained(trainer)
    assert "but training ends after 10: set max_steps" in str(caught[0].message)
    assert "training ended after step 10 of 24 of stage 0" in str(caught[1].message)


def test_a_callback_that_trainer_gets_later_goes_on_too(tmp_path: Path) -> None:
    """Unless another callback of the model was there when the checkpoint was loaded."""
    start = Net()
    options = dict(save_strategy="steps", save_steps=30)
    trainer, whole = made(copy.deepcopy(start), tmp_path, **options)
    trained(trainer)
    checkpoint = str(tmp_path / "checkpoint-30")

    def added(*before: Any) -> tuple[Any, Any]:
        model = copy.deepcopy(start)
        given = dict(budget="2x", settings=SETTINGS, train_samples=40)
        others = [tnmars.integrations.trainer_stages(model, evaluate=score, **given) for _ in before]
        stages = tnmars.integrations.trainer_stages(model, evaluate=score, **given)
        made_ = InOrder(model, trainer.args, train_dataset=DATA, callbacks=list(others), optimizers=stages.optimizers)
        for other in others:
            made_.remove_callback(other)
        made_.add_callback(stages)
        return made_, stages

    later, stages = added()
    trained(later, checkpoint)
    assert figures(stages.path) == figures(whole.path)
    assert same(later.model, trainer.model)
    later, _ = added("another")
    with pytest.raises(tnmars.TnmarsError, match=r"before it had this callback(.|\n)*callbacks=\[stages\]"):
        trained(later, checkpoint)


def pickled(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))  # noqa: S301


@pytest.mark.parametrize("way", [copy.deepcopy, pickled])
def test_a_copy_of_the_model_is_loaded_as_any_other(way: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(Net().first)
    small = copy.deepcopy(model)
    tnmars.prune_(small, ranks={"0": 1})
    tnmars.integrations.trainer_stages(model, evaluate=score)
    other = way(model)
    with pytest.raises(RuntimeError, match="size mismatch"):
        other.load_state_dict(small.state_dict())
    model.load_state_dict(small.state_dict())  # kept for the path, as before
    assert same(model, other)


def test_files_of_others_stay(tmp_path: Path) -> None:
    own = tmp_path / "tnmars_path" / "notes.txt"
    own.parent.mkdir()
    own.write_text("mine")
    (own.parent / "stage-099.safetensors").write_text("of an earlier path")
    trainer, _ = made(Net(), tmp_path, save_strategy="steps", save_steps=1000)
    trained(trainer)
    assert own.read_text() == "mine"
    saved = {path.name for path in (tmp_path / f"checkpoint-{trainer.state.global_step}" / "tnmars_path").iterdir()}
    assert {"curve.json", "start.safetensors", "stage.json", "stage-000.safetensors"} <= saved
    assert not {"notes.txt", "stage-099.safetensors"} & saved


def test_steps_that_are_enough_are_not_reported(tmp_path: Path) -> None:
    """Of a checkpoint in a stage, the steps that are done count."""
    start = Net()
    options = dict(save_strategy="steps", save_steps=20)
    trainer, _ = made(copy.deepcopy(start), tmp_path, **options)
    trained(trainer)
    total = trainer.state.global_step
    trainer, stages = made(copy.deepcopy(start), tmp_path, max_steps=total, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tnmars.ShrinkWarning)
        trained(trainer, str(tmp_path / "checkpoint-20"))
    assert stages.path.is_finished


def test_a_model_without_gradients_is_refused() -> None:
    for model in (nn.Identity(), Net().requires_grad_(False)):
        with pytest.raises(tnmars.TnmarsError, match="no parameter of the model requires a gradient"):
            tnmars.integrations.trainer_stages(model, evaluate=score)


@pytest.mark.parametrize(
    "text",
    [
        '{"stage": 1e400, "done": 6}',
        '{"stage": 1, "done": 2.5}',
        '{"stage": 1, "done": -1}',
        '{"stage": 1, "done": 19}',
        '{"stage": true, "done": 6}',
        '{"stage": 1}',
        "[1, 6]",
        "",
    ],
)
def test_a_place_in_a_stage_that_cannot_be_is_refused(text: str, tmp_path: Path) -> None:
    start = Net()
    options = dict(save_strategy="steps", save_steps=30)
    trainer, _ = made(copy.deepcopy(start), tmp_path, stop=31, **options)
    with pytest.warns(tnmars.ShrinkWarning, match="step 7 of 19 of stage 1"):
        trained(trainer)
    folder = tmp_path / "checkpoint-30"
    (folder / "tnmars_path" / "stage.json").write_text(text)
    trainer, _ = made(copy.deepcopy(start), tmp_path, **options)
    with pytest.raises(tnmars.CheckpointError, match=r"stage.json: cannot be read"):
        trained(trainer, str(folder))


def test_checkpoints_that_cannot_go_on(tmp_path: Path) -> None:
    start = Net()
    options = dict(save_strategy="steps", save_steps=30)
    trainer, _ = made(copy.deepcopy(start), tmp_path, stop=31, **options)
    with pytest.warns(tnmars.ShrinkWarning):
        trained(trainer)
    folder = tmp_path / "checkpoint-30"
    trainer, _ = made(Net(), tmp_path, **options)
    with pytest.raises(tnmars.CheckpointError, match="it began with other weights"):
        trained(trainer, str(folder))
    for name in ("optimizer", "scheduler"):
        (folder / f"{name}.pt").rename(folder / f"{name}.away")
        trainer, _ = made(copy.deepcopy(start), tmp_path, **options)
        with pytest.raises(tnmars.CheckpointError, match=r"no state of the optimizer(.|\n)*save_only_model=False"):
            trained(trainer, str(folder))
        (folder / f"{name}.away").rename(folder / f"{name}.pt")
    (folder / "tnmars_path" / "stage.json").unlink()
    trainer, _ = made(copy.deepcopy(start), tmp_path, **options)
    with pytest.raises(tnmars.CheckpointError, match=r"stage.json: cannot be read"):
        trained(trainer, str(folder))
