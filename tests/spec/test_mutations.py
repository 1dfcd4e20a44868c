"""Whatever a file holds, `tnmars check` ends soon, with 0 or 2, and says where the problem is.

The limits are the system's: a child process that goes beyond them is stopped.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

import oracle
import pytest
import torch
from check_server import limit
from kit import EXACT, ROOT
from mutator import BOMBS, mutations, sources
from strategies import cases

import tnmars
from tnmars import spec
from tnmars.errors import TnmarsError
from tnmars.graph import Graph
from tnmars.graph.counts import count
from tnmars.graph.lint import too_large
from tnmars.layer.forward import dense_layer, example_inputs

SECONDS = 1
MEGABYTES = 200
BATCH = 50
TRIES = 3
"""How often a bomb may be tried: on a busy machine the same work takes more CPU time. A real bomb fails every time."""


@dataclass
class Outcome:
    """How the check of one file ended."""

    status: int
    output: str
    seconds: float


SERVER = ROOT / "tests" / "scripts" / "check_server.py"


@cache
def _server() -> subprocess.Popen[str]:
    """A small process that forks for each file, warmed up with the sources of all mutations."""
    warm = Path(tempfile.mkdtemp())
    for at, text in enumerate(sources()):
        (warm / f"{at}.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, str(SERVER), str(warm), str(MEGABYTES), str(SECONDS)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def check(data: bytes, directory: Path) -> Outcome:
    """Runs `tnmars check` on a text in a process that the system stops beyond the limits."""
    path, log = directory / "spec.yaml", directory / "output"
    path.write_bytes(data)
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(f"{path}\t{log}\n")
    server.stdin.flush()
    status, seconds = server.stdout.readline().split()
    return Outcome(int(status), log.read_text(encoding="utf-8", errors="replace"), float(seconds))


def complaint(outcome: Outcome) -> str:
    """What is wrong with the way a check ended, if anything."""
    if outcome.status not in (0, 2):
        return f"ended with {outcome.status} after {outcome.seconds:.2f} s"
    if "Traceback" in outcome.output or "internal error" in outcome.output:
        return "shows its insides"
    if outcome.status == 2 and not re.search(r"^spec\.yaml:\d+:\d+: .*error", outcome.output, re.MULTILINE):
        return "does not say where the problem is"
    if outcome.seconds > SECONDS:
        return f"took {outcome.seconds:.2f} s"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", outcome.output):
        return "prints control characters"
    return ""


@pytest.mark.parametrize("batch", range(0, cases(5000), BATCH))
def test_a_mutated_file_is_read_or_refused_with_a_place(batch: int, tmp_path: Path) -> None:
    wrong = {}
    for name, data in mutations(batch, batch + BATCH):
        outcome = check(data, tmp_path)
        if complaint(outcome):
            wrong[name] = (complaint(outcome), data[:2000], outcome.output[-1000:])
    assert wrong == {}


READ = 400
LARGE = 2**22
"""Graphs with more entries, or outputs with more, are compiled without memory: what is compared is the shape."""
WIDE = 8
"""Convolutions that reach further than images of this side, or pad more, are compiled only."""


@pytest.mark.parametrize("batch", range(0, cases(20_000), READ))
def test_a_mutated_file_that_is_read_computes_what_it_says(batch: int) -> None:
    """Every graph of an accepted file is compiled, once each: many files say the same.

    Of the first 4,000 files 584 are accepted, with 94 different graphs. 74 of them run and are compared with their
    dense weight. Of 15 large ones only the shape of the output is compared, on the meta device; 5 convolutions that
    reach beyond the image are compiled only.
    """
    for name, data in mutations(batch, batch + READ, seed=2):
        found = spec.read(data)
        assert (found.graph is None) == bool(found.problems), name
        if found.graph is None:
            assert all(problem.text and problem.place for problem in found.problems), name
        else:
            assert wrong(found.graph) == "", (name, data[:2000])


@cache
def wrong(graph: Graph) -> str:
    """What is wrong with the layer of a graph, if anything."""
    if any(too_large(graph)):
        with pytest.raises(TnmarsError):
            tnmars.compile(graph)
        return ""
    is_large = prod(graph.dense_shape) > LARGE or count(graph).cores > LARGE
    reaches = [*oracle.image_for(graph, (WIDE,) * graph.window.ndim), *_padding(graph)] if graph.kernel_size else [0]
    is_wide = max(reaches) > WIDE
    layer = oracle.compiled(graph, 4, dtype=torch.float64, device="meta" if is_large or is_wide else "cpu")
    if is_wide:
        return ""
    if is_large:
        return _wrong_shape(layer)
    task = oracle.problem(graph, 3)
    oracle.load(layer, task)
    whole = oracle.tensor(graph, {key: value.detach().numpy() for key, value in task.cores.items()}, optimize=True)
    weight = oracle.dense(graph, torch.tensor(whole))
    distance = max(
        oracle.error(layer(*task.inputs), oracle.layer(graph, weight, task.bias, *task.inputs)),
        oracle.error(layer.dense(), weight),
    )
    return "" if distance <= EXACT else f"differs by {distance}"


def _padding(graph: Graph) -> list[int]:
    given = dict(graph.options).get("padding", 0)
    return [] if given == "same" else [*given] if isinstance(given, tuple) else [int(given)]


def _wrong_shape(layer: tnmars.TNModule) -> str:
    """A layer without numbers gives an output of the shape that torch's own layer gives."""
    with torch.device("meta"):
        inputs = example_inputs(layer.graph, 2, 8, torch.float64)
    dense = dense_layer(layer.graph)
    weight = torch.empty(layer.graph.dense_shape, device="meta", dtype=torch.float64)
    wanted = None if dense is None else dense(weight, layer.bias, *inputs).shape
    found = layer(*inputs).shape
    return "" if wanted in (None, found) else f"gives {found}, not {wanted}"


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_read_or_refused_with_a_place(name: str, tmp_path: Path) -> None:
    data = BOMBS[name]
    for _ in range(TRIES):
        outcome = check(data.encode() if isinstance(data, str) else data, tmp_path)
        if not complaint(outcome):
            break
    assert complaint(outcome) == "", outcome.output[-1000:]


def test_the_limits_can_be_reached() -> None:
    """A test of the test: without limits of ours, a slow or greedy file would be caught."""
    slow, greedy = "while True: pass", "held = bytearray(400 * 2**20)"
    for body in (slow, greedy):
        child = os.fork()
        if child == 0:
            try:
                limit(MEGABYTES, SECONDS)
                exec(body)  # noqa: S102
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


@pytest.mark.parametrize("at", range(20))
def test_a_mutated_file_in_a_process_of_its_own(at: int, tmp_path: Path) -> None:
    ((_, data),) = mutations(at, at + 1, seed=1)
    (tmp_path / "spec.yaml").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-m", "tnmars", "check", "spec.yaml"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    output = (done.stdout + done.stderr).decode("utf-8", "replace")
    assert complaint(Outcome(done.returncode, output, 0)) == "", output


def test_mutations_are_the_same_for_the_same_seed() -> None:
    assert list(mutations(0, 30)) == list(mutations(0, 30))
    assert list(mutations(0, 30)) != list(mutations(0, 30, seed=1))
