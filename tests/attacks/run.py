"""Runs every attack on every reader, under an audit hook, and prints what happened as lines of JSON.

    python tests/attacks/run.py FOLDER

An audit hook cannot be removed, so this is a process of its own. Each reader first reads a good file, so that what is
loaded late is loaded. Then nothing that a file says may run code, import a module, open a socket, start a process or
write, and each file must be refused within the limits, which are guards against bombs and not measurements.
"""

from __future__ import annotations

import codecs
import json
import os
import resource
import shutil
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import model_files
import readers
import spec_files
import table_files
import tensor_files
from forging import Attack

LARGE = 100_000
"""A file with more bytes is read by the first reader of its kind alone, unless the run is thorough."""
THOROUGH = os.environ.get("TNMARS_THOROUGH") == "1"
ADDRESSES = 6 * 2**30
"""The addresses that this process may use: a bomb ends here and not in the swap."""
FORBIDDEN = (
    *("exec", "socket", "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn"),
    *("ctypes", "pickle.find_class", "marshal", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link"),
    *("os.symlink", "os.chmod", "os.truncate", "os.utime", "shutil", "tempfile", "urllib", "http", "ftplib", "smtplib"),
)
"""Audit events, or what comes before the first dot of them, that no file may cause."""
OUTPUTS = ("out", ".out")
"""How the names of the files begin that commands are told to write."""
OURS = ("tnmars", "torch", "numpy")
"""Packages whose own modules may be loaded late."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """An audit hook that notes what must not happen while it is armed."""

    def __init__(self) -> None:
        self.armed, self.may_write = False, False
        self.seen: list[str] = []
        self.known: frozenset[str] = frozenset()
        sys.addaudithook(self)

    def arm(self, may_write: bool) -> None:
        """Begins; `may_write` if the file may be read, and a command then writes what it was asked for."""
        self.seen, self.may_write = [], may_write
        self.known = frozenset(sys.modules)
        self.armed = True

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event == "open":
            name, mode, flags = given
            if self.may_write and str(name).startswith(OUTPUTS):
                return
            if any(letter in (mode or "") for letter in "wax+") or (isinstance(flags, int) and flags & WRITING):
                self.seen.append(f"opens {name!r} to write")
        elif event == "import":
            self._note_import(given[0])
        elif self.may_write and any(str(one).startswith(OUTPUTS) for one in given[:2]):
            return
        elif (event in FORBIDDEN or event.partition(".")[0] in FORBIDDEN) and not self._is_import(event, given):
            self.seen.append(f"{event} {str(given)[:200]}")

    def _is_import(self, event: str, given: tuple[Any, ...]) -> bool:
        """Whether the interpreter itself runs or unmarshals the code of a module that it imports, which is noted."""
        frame = sys._getframe(2)
        is_import = event in ("exec", "marshal.loads") and "importlib" in frame.f_code.co_filename
        if is_import and event == "exec" and frame.f_back is not None and "module" in frame.f_back.f_locals:
            self._note_import(frame.f_back.f_locals["module"].__name__)  # importlib.import_module has no event
        return is_import

    def _note_import(self, name: str) -> None:
        if name not in self.known and name.partition(".")[0] not in OURS:
            self.seen.append(f"imports {name}")


def status(what: str) -> int:
    """A number of bytes that Linux counts for this process; elsewhere the peak since its start."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return 1024 * int(next(line for line in lines if line.startswith(what)).split()[1])


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts and not path.name.startswith(OUTPUTS)
    }


def attempt(guard: Guard, reader: readers.Reader, path: str, folder: Path, is_fine: bool) -> dict[str, Any]:
    """What one reader does with one file."""
    before = contents(folder)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    memory, began, failed, message = status("VmRSS"), time.process_time(), "", ""
    guard.arm(may_write=is_fine)
    try:
        message = reader(path)
    except BaseException as error:
        failed = f"{type(error).__name__} {error}: {traceback.format_exc()[-1500:]}"
    guard.armed = False
    seconds, grown = time.process_time() - began, (status("VmHWM") - memory) / 2**20
    changes = [] if contents(folder) == before else ["files were changed"]
    for left in Path().glob("out*"):
        left.unlink()
    return {
        "message": message[:3000],
        "letters": len(message),
        "failed": failed,
        "seen": [*guard.seen[:5], *changes],
        "seconds": round(seconds, 3),
        "megabytes": round(grown, 1),
    }


def attacks() -> list[Attack]:
    return [found for part in (spec_files, model_files, tensor_files, table_files) for found in part.attacks()]


def warm_up() -> None:
    """Every reader reads a good file of its kind where there is one, and one that does not exist."""
    codecs.lookup("cp437")  # of the names in zip files
    good = {"spec": "good.yaml", "model": "good.safetensors", "checkpoint": "good.ckpt", "npy": "many.npy"}
    good["adapters"] = "adapters.safetensors"
    for kind, listed in readers.READERS.items():
        for name, reader in listed.items():
            reader("nothing/there/x.safetensors" if kind == "safetensors" else "nothing/there/x.json")
            if kind in good and name not in ("fit", "bench", "fit --observed", "fit --held-out"):
                assert reader(good[kind]) == "", f"{name} refuses a good {kind}: {reader(good[kind])}"
    assert readers.READERS["history"]["report"]("good.jsonl") == ""
    for path in Path().glob("out*"):
        path.unlink()


def main(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    readers.prepare(folder)
    os.chdir(folder)
    os.environ["TNMARS_COST_MODEL"] = "shipped"
    warm_up()
    guard = Guard()
    only = sys.argv[2:]
    for name, reader in readers.TRUSTING.items():
        found = attempt(guard, reader, "good.yaml", folder, is_fine=False)
        print(json.dumps({"attack": name, "kind": "control", "reader": name, "fine": False, "says": "", **found}))
        Path("canary").unlink(missing_ok=True)
    for attack in attacks():
        if only and attack.name not in only:
            continue
        path = Path(readers.PLACES[attack.kind])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(attack.data)
        listed = readers.READERS[attack.kind]
        first = 1 if len(attack.data) > LARGE and not THOROUGH else None
        for name, reader in list(listed.items())[:first]:
            fine = name in attack.fine
            found = attempt(guard, reader, str(path), folder, fine)
            about = {"attack": attack.name, "kind": attack.kind, "reader": name, "fine": fine, "says": attack.says}
            print(json.dumps({**about, **found}), flush=True)
        path.unlink()
        if path.parent != Path():
            shutil.rmtree(path.parent)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
