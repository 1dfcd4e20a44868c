"""Two versions of tnmars load the files in tests/data and compute the same bits, on this machine.

`python tests/scripts/written_before.py PATH_OF_THE_OTHER_CHECKOUT`. Each version runs in a process of its own, on one
thread: it loads the model and the checkpoint, computes in both modes, trains on, and prints digests.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


def digests() -> dict[str, str]:
    """What this version holds and computes after loading, as digests of the bytes."""
    import torch

    import tnmars

    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("write", DATA / "write.py")
    assert spec and spec.loader
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    torch.manual_seed(99)
    net = tnmars.load_into(writer.model(), DATA / "model.safetensors")
    values = {f"model.{name}": value for name, value in net.state_dict().items()}
    for mode in ("train", "eval"):
        net.train(mode == "train")
        with torch.no_grad():
            values |= {f"{mode}.{name}": value for name, value in writer.outputs(net).items()}
    other = writer.model()
    optimizer, schedule = writer.parts(other)
    tnmars.load_checkpoint(DATA / "checkpoint.safetensors", other, optimizer, schedule)
    for _ in range(2):
        writer.step(other, optimizer, schedule)
    values |= {f"after.{name}": value for name, value in other.state_dict().items()}
    found = {}
    for name, value in values.items():
        found[name] = hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()
    found["spec"] = hashlib.sha256(tnmars.dump(tnmars.load(DATA / "pruned.yaml")).encode()).hexdigest()
    return found


def main(other: Path) -> int:
    answers = []
    for path in (other, ROOT):
        environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", "TNMARS_COST_MODEL": "shipped"}
        command = [sys.executable, __file__, "--digests"]
        answers.append(json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout))
    before, after = answers
    different = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    print(f"{len(after) - len(different)} of {len(after)} values have the same bits")
    print("\n".join(f"  differs: {name}" for name in different))
    return 1 if different else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--digests"]:
        print(json.dumps(digests()))
    elif len(sys.argv) == 2:
        sys.exit(main(Path(sys.argv[1]).resolve()))
    else:
        sys.exit(__doc__)
