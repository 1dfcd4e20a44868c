"""Files that are written completely or not at all: their rights, and what is left of an interrupted write."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tnmars import files
from tnmars.errors import TnmarsError
from tnmars.files import make_folder, write_bytes, write_text, write_together


@pytest.fixture(params=[0o022, 0o077, 0o002, 0o000])
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_file_has_the_rights_of_any_new_file(mask: int, tmp_path: Path) -> None:
    write_text(tmp_path / "ours", "x")
    (tmp_path / "plain").write_text("x", encoding="utf-8")
    ours, plain = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "plain"))
    assert ours == plain == 0o666 & ~mask


def test_the_umask_of_the_process_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It belongs to all threads: a file that another one makes meanwhile would get other rights."""

    def refuse(mask: int) -> int:
        raise AssertionError("the umask of the whole process was changed")

    monkeypatch.setattr(os, "umask", refuse)
    write_text(tmp_path / "file", "x")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "x"


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("interrupted")

    write_text(tmp_path / "file", "before")
    with pytest.raises(RuntimeError, match="interrupted"):
        write_bytes(tmp_path / "file", pieces())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text(encoding="utf-8") == "before"


def test_many_threads_write_the_same_file(tmp_path: Path) -> None:
    texts = [str(at) * 10_000 for at in range(8)]
    threads = [threading.Thread(target=write_text, args=(tmp_path / "file", text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_text(encoding="utf-8") in texts
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TnmarsError, match=r"cannot be written: No such file or directory\.$"):
        write_text(tmp_path / "no" / "file", "x")


# --- links and rights ------------------------------------------------------------------------------------------------


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    for name in ("there", "not there"):
        (tmp_path / name).symlink_to(Path("far") / name)
    write_text(tmp_path / "far" / "there", "before")
    for name in ("there", "not there"):
        write_bytes(tmp_path / name, [b"after"], keep_previous=True)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "far" / name).read_text(encoding="utf-8") == "after"
    write_together({str(tmp_path / "there"): lambda path: write_text(path, "last")})
    assert (tmp_path / "there").is_symlink()
    assert (tmp_path / "far" / "there").read_text(encoding="utf-8") == "last"
    assert (tmp_path / "there.previous").read_text(encoding="utf-8") == "before"
    assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["not there", "there"]


@pytest.mark.parametrize("rights", [0o600, 0o640, 0o664, 0o444])
def test_a_file_that_is_replaced_keeps_its_rights(rights: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for write in (
        lambda: write_text(path, "x"),
        lambda: write_together({str(path): lambda temporary: write_text(temporary, "x")}),
    ):
        path.touch()
        path.chmod(rights)
        write()
        assert stat.S_IMODE(path.stat().st_mode) == rights


def test_what_a_secret_file_will_hold_is_never_readable(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o600)

    def pieces() -> Iterator[bytes]:
        yield b"secret"
        (part,) = tmp_path.glob("*.part")
        assert stat.S_IMODE(part.stat().st_mode) == 0o600

    write_bytes(path, pieces())


def test_files_that_belong_together_are_all_written_or_none(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "before")
    (tmp_path / "taken").mkdir()
    names = ("a", "new", "taken")  # the last one cannot be replaced, which is seen only in the end
    with pytest.raises(TnmarsError, match=r"Nothing was written\.$"):
        write_together({str(tmp_path / name): lambda path: write_text(path, "after") for name in names})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "taken"]
    assert (tmp_path / "a").read_text(encoding="utf-8") == "before"


def test_files_that_belong_together_are_put_back_after_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between two renames."""
    for name in ("a", "b"):
        write_text(tmp_path / name, "before")
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        if target.name == "b" and self.read_text(encoding="utf-8") == "after":
            raise KeyboardInterrupt
        return replace(self, target)

    writers = {str(tmp_path / name): lambda path: path.write_text("after") for name in ("new", "a", "b")}
    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_together(writers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert [(tmp_path / name).read_text(encoding="utf-8") for name in "ab"] == ["before"] * 2


def test_the_error_names_the_file_that_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    writers = {str(tmp_path / name): lambda path: write_text(path, "x") for name in ("taken", "last")}
    with pytest.raises(TnmarsError) as caught:
        write_together(writers)
    assert str(caught.value).startswith(f"{tmp_path / 'taken'}: cannot be written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_two_names_of_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for other in (f"{tmp_path}/./a", str(tmp_path / "link")):
        with pytest.raises(TnmarsError, match=r"a and .*: are the same file\. Nothing was written\.$"):
            write_together({name: lambda path: write_text(path, "x") for name in (str(tmp_path / "a"), other)})
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_files_that_belong_together_are_never_readable_by_more(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o600)

    def write(temporary: Path) -> None:
        write_text(temporary, "secret")
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600

    write_together({str(path): write})
    assert path.read_text(encoding="utf-8") == "secret"


def test_the_bit_that_runs_a_program_as_its_owner_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o4755)
    write_text(path, "x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give a file away")
def test_root_does_not_take_a_file_from_its_owner(tmp_path: Path) -> None:
    for name in ("alone", "together"):
        (tmp_path / name).touch()
        os.chown(tmp_path / name, 1234, 4321)
        (tmp_path / name).chmod(0o600)
    write_text(tmp_path / "alone", "x")
    write_together({str(tmp_path / "together"): lambda path: write_text(path, "x")})
    for name in ("alone", "together"):
        found = (tmp_path / name).stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode), found.st_size) == (1234, 4321, 0o600, 1)


def test_a_file_that_cannot_be_given_away_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refuse)
    (tmp_path / "file").touch(0o600)
    if os.geteuid() == 0:
        os.chown(tmp_path / "file", 1234, 4321)
    write_text(tmp_path / "file", "x")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "x"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_link_for_the_previous_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "file.previous").symlink_to("old")
    write_text(tmp_path / "file", "before")
    write_bytes(tmp_path / "file", [b"after"], keep_previous=True)
    assert (tmp_path / "file.previous").is_symlink()
    assert (tmp_path / "old").read_text(encoding="utf-8") == "before"


@pytest.mark.parametrize("name", ["a" * 255, "\u00e9" * 127])
def test_a_name_may_be_as_long_as_the_system_allows(name: str, tmp_path: Path) -> None:
    for _ in range(2):
        write_text(tmp_path / name, "x")
        write_together({str(tmp_path / name): lambda path: write_text(path, "y")})
    left = tmp_path / f".{name[:100]}{name[100:200] if name.isascii() else ''}.0.part"
    left.touch()
    os.utime(left, (0, 0))
    files.clear_abandoned(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


# --- what cannot be written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_pipe_is_not_replaced_by_a_file(is_linked: bool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / ("link" if is_linked else "pipe")
    if is_linked:
        path.symlink_to("pipe")
    for write in (
        lambda: write_text(path, "x"),
        lambda: write_together({str(path): lambda temporary: write_text(temporary, "x")}),
    ):
        with pytest.raises(TnmarsError, match="cannot be written: it is a device or a pipe, not a file"):
            write()
    assert (tmp_path / "pipe").is_fifo()


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """One of our own: a mistake here, run as root, must not replace a device of the machine."""
    try:
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make a device")
    (tmp_path / "link").symlink_to("device")
    with pytest.raises(TnmarsError, match="it is a device or a pipe"):
        write_text(tmp_path / "link", "x")
    assert (tmp_path / "device").is_char_device()


@pytest.mark.parametrize("name", ["loop", "a" * 5000, "a\0b"])
def test_a_path_that_cannot_be_used_is_reported(name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    path = f"{tmp_path}/{name}"
    for write in (
        lambda: write_text(path, "x"),
        lambda: write_together({path: lambda temporary: write_text(temporary, "x")}),
        lambda: files.resolved(path),
    ):
        with pytest.raises(TnmarsError, match="is not a usable path: "):
            write()
    with pytest.raises(TnmarsError, match="the folder cannot be created: "):
        make_folder(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["loop"]
    assert (tmp_path / "loop").is_symlink()
