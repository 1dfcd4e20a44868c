"""Seeds, threads and hypothesis profiles. `TNMARS_THOROUGH=1` runs every stated case, the default about 5 % of them."""

from __future__ import annotations

import importlib
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# Tensors in tests are tiny: threads only make them slower, and sums different from run to run.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TNMARS_COST_MODEL"] = "shipped"
os.environ["TNMARS_TUNED"] = "off"  # no test depends on what was timed before, nor writes to the user's cache
# Test files of two rooms may have one name, so pytest imports them by path; what they share is imported by name.
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "scripts")]
pytest.register_assert_rewrite("kit", "mutator", "oracle", "strategies")

_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", derandomize=True, **_COMMON)
settings.register_profile("thorough", **_COMMON)
settings.load_profile("thorough" if os.environ.get("TNMARS_THOROUGH") == "1" else "quick")


if os.environ.get("TNMARS_FOREIGN") == "1":  # `make foreign`, where every library is installed: nothing skips
    pytest.importorskip = lambda name, **_: importlib.import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, else the last one may keep one worker busy after the others are done."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random state, of each library that is loaded."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


MEMORY = pytest.StashKey[dict[str, tuple[float, float]]]()
"""The gigabytes that each worker took at most, and its largest child."""


def _memory() -> tuple[float, float]:
    """Gigabytes of this process and of its largest child, at most. A child counts at least as its parent did then."""
    unit = 1e9 if sys.platform == "darwin" else 1e9 / 1024
    own, child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    status = Path("/proc/self/status")
    if status.exists():  # without what the parent had when it started this process
        own = int(re.findall(r"VmHWM:\s+(\d+)", status.read_text())[0])
    return own / unit, child / unit


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells the process that started it."""
    if resource and hasattr(session.config, "workeroutput"):
        session.config.workeroutput["memory"] = _memory()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended; one that crashed has sent nothing."""
    if memory := getattr(node, "workeroutput", {}).get("memory"):
        node.config.stash.setdefault(MEMORY, {})[node.gateway.id] = tuple(memory)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints the memory of all processes of the run together, as if each took its most at the same time."""
    if not resource:
        return
    workers = config.stash.get(MEMORY, {})
    own, child = _memory()
    taken = {"main": (own, 0.0 if workers else child), **workers}  # the children of the first process are the workers
    each = ", ".join(f"{name} {one:.2f} + {more:.2f} in a child" for name, (one, more) in taken.items())
    total = sum(one + more for one, more in taken.values())
    terminalreporter.write_line(f"peak memory: at most {total:.2f} GB together ({each})")
