"""Several models of one shape trained as one, for experiments with many seeds: tensors are stacked, work is batched.

The members share only the order of the data. Their losses add up, so each has its own gradient, and Adam works entry by
entry.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from tnmars.layer.masks import Masks
from tnmars.layer.module import layers
from tnmars.training.objective import penalty
from tnmars.training.schedule import MaskSchedule


class _Charged(nn.Module):
    """A model that returns its penalty together with its output."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.model(x), penalty(self.model)


class Crew(nn.Module):
    """The stacked tensors of some models, and their outputs for stacked inputs."""

    template: _Charged
    """One of the models, whose code all share; its own tensors are not used."""

    def __init__(self, members: Sequence[nn.Module]):
        super().__init__()
        charged = [_Charged(member) for member in members]
        parameters, buffers = stack_module_state(list(charged))
        self.__dict__["template"] = copy.deepcopy(charged[0])
        self.count = len(members)
        self._keys = {name: name.replace(".", "__") for name in (*parameters, *buffers)}
        for name, value in parameters.items():
            self.register_parameter(self._keys[name], nn.Parameter(value.detach()))
        for name, value in buffers.items():
            self.register_buffer(self._keys[name], value)
        self._parameter_names, self._buffer_names = tuple(parameters), tuple(buffers)

    def train(self, mode: bool = True) -> Crew:
        self.template.train(mode)
        return super().train(mode)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The stacked outputs and penalties."""
        held = dict(self.named_parameters()), dict(self.named_buffers())
        parameters: dict[str, Tensor] = {name: held[0][self._keys[name]] for name in self._parameter_names}
        buffers = {name: held[1][self._keys[name]] for name in self._buffer_names}

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
            output: tuple[Tensor, Tensor] = functional_call(self.template, (parameters, buffers), (x,))
            return output

        result: tuple[Tensor, Tensor] = vmap(one)(parameters, buffers, x)
        return result

    def members(self) -> list[nn.Module]:
        """The separate models."""
        members = []
        state = self.state_dict()
        for at in range(self.count):
            member = copy.deepcopy(self.template)
            own = {name: state[key][at] for name, key in self._keys.items() if key in state}
            member.load_state_dict(own, strict=False)
            members.append(member.model.train(self.training))
        return members

    def masks(self) -> list[tuple[str, Masks]]:
        """The masks of the template, by the prefix of their buffers."""
        return [
            (f"model.{name}." if name else "model.", layer.masks)
            for name, layer in layers(self.template.model)
            if layer.masks is not None
        ]

    def buffer(self, name: str) -> Tensor:
        """The stacked values of a buffer."""
        stacked: Tensor = getattr(self, self._keys[name])
        return stacked


class CrewSchedule(MaskSchedule):
    """The schedule of a crew: all members draw noise at once, and each gets its own."""

    def _set(self) -> None:
        crew: Any = self.model
        for prefix, masks in crew.masks():
            random = torch.Generator().manual_seed(self._key(prefix))
            noise = masks.selector.noise(crew.count * int(masks.drawn), random).reshape(crew.count, -1)
            temperature = masks.selector.temperature_at(self.progress)
            masks.redraw_(noise[0], temperature, is_warm=self.is_warm)
            crew.buffer(f"{prefix}masks.noise").copy_(noise if not self.is_warm else masks.noise.expand_as(noise))
            crew.buffer(f"{prefix}masks.temperature").fill_(temperature)
            crew.buffer(f"{prefix}masks.is_warm").fill_(self.is_warm)
