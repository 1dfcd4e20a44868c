"""Seeds, threads and hypothesis profiles. `TNMARS_THOROUGH=1` runs every stated case, the default about 5 % of them."""

from __future__ import annotations

import os
import random
import sys

import pytest
from hypothesis import HealthCheck, settings

# Tensors in tests are tiny: threads only make them slower, and sums different from run to run.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TNMARS_COST_MODEL"] = "shipped"
# `from strategies import ...` also where pytest's import mode does not add this directory.
sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120

_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", derandomize=True, **_COMMON)
settings.register_profile("thorough", **_COMMON)
settings.load_profile("thorough" if os.environ.get("TNMARS_THOROUGH") == "1" else "quick")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random state, of each library that is loaded."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
