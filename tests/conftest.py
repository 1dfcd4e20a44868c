"""Seeds, threads and hypothesis profiles. `TNMARS_THOROUGH=1` runs every stated case, the default about 5 % of them."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Tensors in tests are tiny: threads only make them slower, and sums different from run to run.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TNMARS_COST_MODEL"] = "shipped"
os.environ["TNMARS_TUNED"] = "off"  # no test depends on what was timed before, nor writes to the user's cache
# Test files of two rooms may have one name, so pytest imports them by path; what they share is imported by name.
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "scripts")]
import peak_memory  # noqa: E402

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


WATCH = pytest.StashKey[subprocess.Popen[str]]()
"""The process that adds up the memory of this one, of its workers and of their children."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Watches the memory of the whole run, from the process that starts the workers."""
    if peak_memory.SHARE.exists() and not hasattr(session.config, "workerinput"):
        command = [sys.executable, "-IS", peak_memory.__file__, str(os.getpid())]
        pipe = subprocess.PIPE
        session.config.stash[WATCH] = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints the most memory that all processes of the run took at one time."""
    watch = config.stash.get(WATCH, None)
    if watch is None:
        return
    said, _ = watch.communicate(timeout=30)
    if not said:
        return
    peak = json.loads(said)
    together, largest = (peak[name] / 1e9 for name in ("together", "largest"))
    processes = f"{peak['processes']} processes" if peak["processes"] > 1 else "one process"
    terminalreporter.write_line(f"peak memory: {together:.2f} GB in {processes}; the largest took {largest:.2f} GB")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the watch of a run that printed no summary."""
    watch = config.stash.get(WATCH, None)
    if watch is not None and watch.poll() is None:
        watch.kill()
        watch.wait()
