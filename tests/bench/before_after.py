"""Two versions of tnmars against each other: every row of docs/benchmarks.md, timed in turns in one run.

`python tests/bench/before_after.py PATH_OF_THE_OTHER_CHECKOUT [ROWS]`, where ROWS are parts of the names of cases,
separated by commas. Each version runs in a process of its own, with the same spec, the same cores and the same input;
they take turns, and the shortest time of each counts. The other version runs twice: the difference between the two is
the noise. One thread, CPU time. Plans are chosen by the cost model, not by tuning, whose own noise would be compared
otherwise. `same code` says whether both versions run the same emitted source.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROUNDS = 12
TURN = 0.05
"""Seconds that a turn lasts at least: short actions are repeated within it."""
ROOT = Path(__file__).parents[2]


def serve() -> None:
    """A process that builds layers and times them as it is told to, one line of JSON at a time."""
    import torch

    import tnmars

    torch.set_num_threads(1)
    actions: list[Any] = []
    for line in sys.stdin:
        asked = json.loads(line)
        if "spec" in asked:
            digests: list[str] = []
            actions = _actions(asked, torch, tnmars, digests)
            answer: object = digests
        else:
            answer = _turn(actions[asked["turn"]])
        print(json.dumps(answer), flush=True)


def _turn(action: Any) -> float:
    shortest, start = float("inf"), time.process_time()
    while time.process_time() - start < TURN:
        before = time.process_time()
        action()
        shortest = min(shortest, time.process_time() - before)
    return shortest


def _actions(asked: dict[str, Any], torch: Any, tnmars: Any, digests: list[str]) -> list[Any]:
    """Compact and fast inference, and a training step, of one layer."""
    torch.manual_seed(0)
    graph = tnmars.loads(asked["spec"])
    layer = tnmars.compile(graph, batch=asked["batch"], image=asked["image"], tune=False)
    with torch.no_grad():
        for value in layer.parameters():
            value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    if asked["tokens"]:
        x = torch.tensor(asked["tokens"])
    else:
        x = torch.randn(asked["shape"], generator=torch.Generator().manual_seed(2))
    frozen = [tnmars.freeze(layer, form, batch=asked["batch"], tune=False) for form in ("compact", "fast")]

    def inference(small: Any) -> Any:
        def action() -> None:
            with torch.no_grad():
                small(x)

        return action

    slope = torch.ones_like(layer(x))

    def train() -> None:
        for value in layer.parameters():
            value.grad = None
        torch.autograd.backward(layer(x), slope)

    digests.extend(hashlib.sha256(text.encode()).hexdigest() for text in (*(f.source for f in frozen), layer.source))
    return [*map(inference, frozen), train]


class Version:
    """One version in its own process."""

    def __init__(self, path: Path):
        environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", "TNMARS_COST_MODEL": "shipped"}
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=path
        )

    def ask(self, **asked: object) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a version has ended; see its error above")
        return json.loads(line)


def main(other: Path, rows: str = "") -> int:
    sys.path.insert(0, str(Path(__file__).parent))
    from cases import MODES, cases

    import tnmars

    before, again, after = Version(other), Version(other), Version(ROOT)
    print(f"{'case':<32} {'mode':<8} {'before ms':>10} {'after ms':>10} {'after/before':>13} {'noise':>6}", flush=True)
    ratios = []
    for case in cases(rows):
        x = case.make_input()
        is_table = not x.is_floating_point()
        asked = {
            "spec": tnmars.dump(case.graph),
            "batch": case.batch,
            "image": case.image,
            "tokens": x.tolist() if is_table else [],
            "shape": list(x.shape),
        }
        sources = [version.ask(**asked) for version in (before, again, after)]
        for at, mode in enumerate(MODES):
            best = [float("inf")] * 3
            for _ in range(ROUNDS):
                for place, version in enumerate((before, after, again)):
                    best[place] = min(best[place], version.ask(turn=at))
            noise = abs(best[2] / best[0] - 1)
            old = min(best[0], best[2])
            ratios.append(best[1] / old)
            shown = f"{1e3 * old:>10.3f} {1e3 * best[1]:>10.3f} {best[1] / old:>13.3f} {noise:>6.1%}"
            is_same = "same code" if sources[0][at] == sources[2][at] else "other code"
            print(f"{case.name:<32} {mode:<8} {shown}  {is_same}", flush=True)
    ratios.sort()
    print(f"median {ratios[len(ratios) // 2]:.3f}, worst {ratios[-1]:.3f}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    elif len(sys.argv) in (2, 3):
        sys.exit(main(Path(sys.argv[1]).resolve(), *sys.argv[2:]))
    else:
        sys.exit(__doc__)
