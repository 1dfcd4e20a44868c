"""Ranks that are learned under Lightning: the same steps as a loop by hand, then a pruned model."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tnmars
from tnmars.training.guards import Guards

lightning = pytest.importorskip("lightning", reason="lightning is not installed")


def module(net: nn.Module, lr: float = 0.05) -> object:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: list[torch.Tensor], at: int) -> torch.Tensor:
            return F.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=lr)

    return Module()


def fitted(
    net: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]], callback: object, lr: float = 0.05, **more: object
) -> None:
    options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    options.update(more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback], **options)
        trainer.fit(module(net, lr), torch.utils.data.DataLoader(data, batch_size=None))


def test_the_steps_are_those_of_a_loop_by_hand() -> None:
    graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(4, 4), rank=4)
    net = nn.Sequential(tnmars.compile(graph, selector=tnmars.Mars(pi=1e-3)))
    other = copy.deepcopy(net)
    x = torch.randn(5, 8, 16)
    data = [(batch, batch.flip(-1)) for batch in x]
    fitted(net, data, tnmars.integrations.lightning_callback(examples=40, prune=False, seed=5))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
    schedule = tnmars.MaskSchedule(module(other), 10, seed=5)  # noise depends on names
    for _ in range(2):
        for given, target in data:
            optimizer.zero_grad()
            (F.mse_loss(other(given), target) + tnmars.penalty(other) / 40).backward()
            optimizer.step()
            schedule.step()
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_guards_see_the_loss_and_the_penalty_of_each_step(
    accumulated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, float]] = []
    monkeypatch.setattr(Guards, "step", lambda self, loss, penalty: seen.append((float(loss), float(penalty))))
    graph = tnmars.families.lowrank("linear", inputs=(16,), outputs=(16,), rank=4)
    net = nn.Sequential(tnmars.compile(graph, selector=tnmars.Fixed()))
    x = torch.randn(4, 8, 16)
    with torch.no_grad():  # the learning rate is 0: the loss of a batch is the same in every step
        losses = [float(F.mse_loss(net(batch), batch.flip(-1))) for batch in x]
    callback = tnmars.integrations.lightning_callback(examples=40, prune=False)
    fitted(net, [(batch, batch.flip(-1)) for batch in x], callback, lr=0.0, accumulate_grad_batches=accumulated)
    groups = [losses[at : at + accumulated] for at in range(0, 4, accumulated)]
    share = float(tnmars.penalty(net)) / 40
    expected = [(sum(group) / accumulated, share) for group in 2 * groups]
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected))


def test_a_model_is_pruned_when_training_ends() -> None:
    graph = tnmars.families.lowrank("linear", inputs=(16,), outputs=(16,), rank=8)
    net = nn.Sequential(tnmars.compile(graph, selector=tnmars.Mars(pi=1e-3)))
    fitted(net, [(x, x) for x in torch.randn(5, 8, 16)], tnmars.integrations.lightning_callback(examples=40))
    assert net[0].masks is None
    assert net(torch.randn(3, 16)).shape == (3, 16)


def test_training_goes_on_from_a_checkpoint_with_the_same_gates(tmp_path: Path) -> None:
    graph = tnmars.families.tt("linear", inputs=(4, 4), outputs=(4, 4), rank=4)
    net = nn.Sequential(tnmars.compile(graph, selector=tnmars.Mars(pi=1e-3)))
    start = copy.deepcopy(net)
    loader = torch.utils.data.DataLoader([(x, x.flip(-1)) for x in torch.randn(5, 8, 16)], batch_size=None)
    options = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")

    def run(net: nn.Module, epochs: int, total: int, path: str | None = None) -> object:
        callback = tnmars.integrations.lightning_callback(examples=40, warmup_steps=1, prune=False)

        class Stop(lightning.Callback):
            def on_train_epoch_end(self, trainer: object, pl_module: object) -> None:
                trainer.should_stop = trainer.current_epoch + 1 >= epochs

        given = dict(enable_checkpointing=False, callbacks=[callback, Stop()], **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(max_epochs=total, **given)
            trainer.fit(module(net), loader, ckpt_path=path)
        return trainer

    torch.manual_seed(0)
    run(net, 4, 4)
    torch.manual_seed(0)
    half = copy.deepcopy(start)
    run(half, 2, 4).save_checkpoint(tmp_path / "half.ckpt")
    torch.manual_seed(99)
    again = copy.deepcopy(start)
    run(again, 4, 4, str(tmp_path / "half.ckpt"))
    for (name, one), two in zip(net.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6, msg=name)
