"""Tuning: candidates timed on this machine."""

from __future__ import annotations

import torch
from kit import square

import tnmars


def test_tuning_in_the_middle_of_a_pass_leaves_the_user_alone() -> None:
    layer = tnmars.compile(square(), batch=8, tune=True)
    state = torch.get_rng_state()
    layer(torch.ones(300, 64))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.func.vmap(layer)(torch.ones(2, 2000, 64)).shape == (2, 2000, 64)
