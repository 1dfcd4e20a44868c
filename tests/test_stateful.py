"""A layer's life in any order: trained, pruned, saved, loaded, copied, warmed up, converted."""

from __future__ import annotations

import copy
import tempfile
import warnings
from pathlib import Path

import oracle
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracle import compiled, error, problem
from strategies import cases, graphs

import tnmars
from tnmars.graph import Graph

SELECTORS = (
    tnmars.Mars(pi=0.1, alpha=0.5, spread=1.0, temperature=(0.5, 0.1)),
    tnmars.Mars(pi=0.1, alpha=-0.5, spread=1.0, temperature=(0.5, 0.1), min_keep=0, price="parameters"),
    tnmars.GaussianGates(start_at=0.2),
)


class Life(RuleBasedStateMachine):
    """One layer with gates and its optimiser."""

    @initialize(
        graph=graphs(bonded=True, terms=2),
        seed=st.integers(0, 2**20),
        open_only=st.booleans(),
        selector=st.sampled_from(SELECTORS),
    )
    def start(self, graph: Graph, seed: int, open_only: bool, selector: tnmars.Selector) -> None:
        torch.manual_seed(seed)
        self.layer = compiled(graph, batch=3, selector=selector, dtype=torch.float64, open_only=open_only)
        self.task = problem(graph, 3, seed)
        oracle.load(self.layer, self.task, strict=False)
        self._restart()

    def _restart(self, warmup: int = 0) -> None:
        groups = tnmars.param_groups(self.layer, lr=1e-2) or [{"params": []}]  # a layer without terms may have none
        self.optimizer = torch.optim.Adam(groups)
        self.schedule = tnmars.MaskSchedule(self.layer, 50, warmup_steps=warmup, seed=1, optimizer=self.optimizer)

    def _inputs(self) -> list[torch.Tensor]:
        dtype = self.layer.dtype
        return [value.detach().to(dtype) if value.is_floating_point() else value for value in self.task.inputs]

    @precondition(lambda self: any(True for _ in self.layer.parameters()))
    @rule()
    def train(self) -> None:
        answer = self.layer.train()(*self._inputs())
        (answer.square().mean() + tnmars.penalty(self.layer) / 100).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()

    @precondition(lambda self: self.layer.masks is not None)
    @rule(simplify=st.booleans(), gates=st.booleans())
    def prune(self, simplify: bool, gates: bool) -> None:
        before = self.layer.eval()(*self._inputs())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that warm-up is on
            self.layer = tnmars.prune(self.layer, simplify=simplify, keep_gates=gates)
        room = 1e-10 if self.layer.dtype == torch.float64 else 1e-4
        assert error(self.layer.eval()(*self._inputs()), before) <= room
        self._restart()

    @precondition(lambda self: self.layer.masks is not None)
    @rule(gates=st.booleans())
    def prune_in_place(self, gates: bool) -> None:
        before = self.layer.eval()(*self._inputs())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that warm-up is on
            tnmars.prune_(self.layer, self.optimizer, keep_gates=gates)
        room = 1e-10 if self.layer.dtype == torch.float64 else 1e-4
        assert error(self.layer(*self._inputs()), before) <= room
        self.schedule = tnmars.MaskSchedule(self.layer, 50, seed=2)

    @rule()
    def save_and_load(self) -> None:
        before = self.layer.eval()(*self._inputs())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "layer.safetensors"
            tnmars.save(self.layer, path)
            self.layer = tnmars.load_into(torch.nn.Identity(), path)
        assert torch.equal(self.layer.eval()(*self._inputs()), before)
        self._restart()

    @rule()
    def checkpoint(self) -> None:
        """The optimizer is not replaced: it goes on, in the same layer and in one that was something else."""
        before = self.layer.eval()(*self._inputs())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.safetensors"
            tnmars.save_checkpoint(path, self.layer, self.optimizer, self.schedule)
            tnmars.load_checkpoint(path, self.layer, self.optimizer, self.schedule)
        assert torch.equal(self.layer.eval()(*self._inputs()), before)

    @rule()
    def copy(self) -> None:
        before = self.layer
        self.layer = copy.deepcopy(before)
        assert torch.equal(self.layer(*self._inputs()), before(*self._inputs()))
        self._restart()

    @rule(steps=st.integers(0, 3))
    def warm_up(self, steps: int) -> None:
        self._restart(steps)

    @rule(dtype=st.sampled_from([torch.float32, torch.float64]))
    def convert(self, dtype: torch.dtype) -> None:
        self.layer = self.layer.to(dtype)
        self._restart()

    @rule()
    def readdress(self) -> None:
        """Through a spec file: what is written is what is there."""
        assert tnmars.loads(tnmars.dump(self.layer.graph)) == self.layer.graph

    @invariant()
    def sizes_agree(self) -> None:
        graph = self.layer.graph
        held = {name: tuple(self.layer.cores.get(name).shape) for name in graph.cores}
        assert held == graph.cores
        assert sum(core.numel() for core in self.layer.cores.parameters()) == tnmars.count(graph).cores
        if self.layer.masks is not None:
            assert [logits.numel() for logits in self.layer.logits()] == [bond.size for bond in graph.bonds.values()]

    @invariant()
    def the_optimizer_has_what_there_is(self) -> None:
        held = {id(value) for group in self.optimizer.param_groups for value in group["params"]}
        assert held == {id(value) for value in self.layer.parameters()}
        for value, state in self.optimizer.state.items():
            assert all(entry.shape == value.shape for key, entry in state.items() if key != "step")

    @invariant()
    def forward_is_the_oracles(self) -> None:
        layer, graph = self.layer, self.layer.graph
        cores = {name: layer.cores.get(name).detach().double().numpy() for name in graph.cores}
        gates = {name: gate.detach().double().numpy() for name, gate in layer.gate_values().items()}
        whole = torch.tensor(oracle.tensor(graph, cores, gates))
        bias = None if layer.bias is None else layer.bias.detach().double()
        inputs = [value.detach().double() if value.is_floating_point() else value for value in self._inputs()]
        wanted = oracle.layer(graph, oracle.dense(graph, whole), bias, *inputs)
        room = 1e-10 if layer.dtype == torch.float64 else 1e-4
        assert error(layer(*self._inputs()), wanted) <= room


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=cases(500), stateful_step_count=50, deadline=None)
TestLife.pytestmark = [pytest.mark.long]
