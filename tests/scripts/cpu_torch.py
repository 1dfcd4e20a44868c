"""Installs a version of torch for the CPU into the environment whose Python runs this.

    python tests/scripts/cpu_torch.py VERSION [CONSTRAINTS]

VERSION may be `newest`. A CPU build is taken where pip finds one, as `constraints.txt` does. Otherwise the build for
GPUs is installed without the gigabytes of GPU libraries that it needs: empty ones of the same names stand in for them,
all of whose functions say that there is no device. That is enough for tests, and for nothing else.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

GPU = re.compile(r"(nvidia|cuda|triton)")
FOREIGN = re.compile(r"lib(cu|nv|nccl)")
NO_DEVICE = 100
"""`cudaErrorNoDevice`: torch then counts no devices, and says nothing."""
STUB = """.text
{labels}
    mov ${status}, %eax
    ret
.section .note.GNU-stack,"",@progbits
"""


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def pip(*words: str) -> bool:
    return subprocess.run([sys.executable, "-m", "pip", *words, "--quiet"], check=False).returncode == 0


def install(version: str, constraints: str | None) -> None:
    """Installs torch, and what it needs on a CPU."""
    if version != "newest" and pip("install", f"torch=={version}+cpu", *_limited(constraints)):
        return
    wanted = "torch" if version == "newest" else f"torch=={version}"
    assert pip("install", "--no-deps", "--upgrade", wanted), f"{wanted} cannot be installed"
    about = distribution("torch")
    folder = Path(str(about.locate_file("torch"))) / "lib"
    stand_in(folder)
    metadata = Path(str(about.locate_file(f"torch-{about.version}.dist-info"))) / "METADATA"
    lines = metadata.read_text(encoding="utf-8").splitlines(keepends=True)
    needs = [line.removeprefix("Requires-Dist: ").strip() for line in lines if line.startswith("Requires-Dist: ")]
    kept = [line for line in lines if not GPU.match(line.removeprefix("Requires-Dist: "))]
    metadata.write_text("".join(kept), encoding="utf-8")  # else the next install would fetch them
    plain = [need for need in needs if not GPU.match(need) and "extra ==" not in need]
    assert pip("install", *plain, *_limited(constraints)), "what torch needs cannot be installed"


def _limited(constraints: str | None) -> list[str]:
    return ["-c", constraints] if constraints else []


def stand_in(folder: Path) -> None:
    """Makes an empty library for each that the libraries of a folder need and that is not there."""
    for path in folder.glob("*.so*"):
        if FOREIGN.match(path.name):  # made for the version that was installed before
            path.unlink()
    own = {path.name for path in folder.glob("*.so*")}
    needed: set[str] = set()
    versions: dict[str, set[str]] = defaultdict(set)
    symbols: dict[str, set[str]] = defaultdict(set)
    for path in folder.glob("*.so*"):
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", str(path)))) - own
        library = ""
        for line in output("readelf", "-VW", str(path)).splitlines():
            if found := re.search(r"File: (\S+)", line):
                library = found[1]
            elif found := re.search(r"Name: (\S+)\s+Flags", line):
                versions[library].add(found[1])
        for line in output("nm", "-D", "--undefined-only", str(path)).splitlines():
            name, _, version = line.split()[-1].partition("@")
            symbols[version].add(name)
    loose = {name for name in symbols.pop("", ()) if re.match(r"(cu|nv|nccl|__cuda|__nv)", name)}
    for at, library in enumerate(sorted(filter(FOREIGN.match, needed))):
        listed = {version: symbols[version] for version in versions[library]}
        _make(folder / library, listed, loose if at == 0 else set())


def _make(path: Path, listed: dict[str, set[str]], loose: set[str]) -> None:
    names = sorted(loose.union(*listed.values()))
    with TemporaryDirectory() as folder:
        source, script = Path(folder, "a.s"), Path(folder, "a.map")
        labels = "\n".join(f".globl {name}\n.type {name}, @function\n{name}:" for name in names)
        source.write_text(STUB.format(labels=labels, status=NO_DEVICE))
        rows = [f"{version} {{ global: {' '.join(f'{name};' for name in own)} }};" for version, own in listed.items()]
        script.write_text("\n".join(rows))
        options = [f"-Wl,--version-script={script}"] if listed else []
        output("gcc", "-shared", f"-Wl,-soname,{path.name}", *options, "-o", str(path), str(source))


if __name__ == "__main__":
    install(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    print(output(sys.executable, "-c", "import torch; print('torch', torch.__version__, torch.ones(2).sum())"), end="")
