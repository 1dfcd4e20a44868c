"""Builds the wheel, installs it in an empty environment, and runs `tnmars demo` there, away from the repository.

    python tests/scripts/wheel.py [REQUIREMENT ...]

Requirements are passed on to pip, such as `torch==2.8.0`; without one, the versions of constraints.txt are installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, where: Path) -> str:
    """What a command prints, without the variables that would lead it back to the repository."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [*map(str, command)], cwd=where, env=clean, check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def main(requirements: list[str]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT, where=folder)
        (wheel,) = folder.glob("tnmars-*.whl")
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        given = requirements or ["-c", str(ROOT / "constraints.txt")]
        run(python, "-m", "pip", "install", "--quiet", wheel, *given, where=folder)
        place = run(python, "-c", "import tnmars; print(tnmars.__file__)", where=folder).strip()
        assert Path(place).is_relative_to(folder), f"tnmars was imported from {place}"
        print(run(folder / "venv" / "bin" / "tnmars", "demo", "--out", "demo", where=folder))
        made = sorted(path.name for path in (folder / "demo").iterdir())
        assert {"network.html", "tensor-train.html", "tensor-train.yaml"} <= set(made), made
        print(f"{wheel.name}: the demo ran in an empty environment and wrote {', '.join(made)}")


if __name__ == "__main__":
    main(sys.argv[1:])
