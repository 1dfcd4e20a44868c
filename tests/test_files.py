"""Files that are written completely or not at all: their rights, and what is left of an interrupted write."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tnmars.errors import TnmarsError
from tnmars.files import write_bytes, write_text, write_together


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


def test_a_path_with_a_nul_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TnmarsError, match="cannot be written: embedded null byte"):
        write_text(f"{tmp_path}/a\0b", "x")
