"""Putting folders in place: whole or not at all, at every point at which a process can be killed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from unmoor.errors import NotACheckpoint, SaveError
from unmoor.execute import folder_commit
from unmoor.execute.folder_commit import discard, left_behind, publish_folder, sees, stage


def own(name):
    return name.startswith("data")


def files(folder):
    return sorted(entry.name for entry in Path(folder).iterdir())


def filled(path, text):
    staging = stage(str(path), own=own)
    for number in range(3):
        (Path(staging.beside(str(path))) / f"data{number}").write_text(text)
    return staging


def save(path, text):
    publish_folder(filled(path, text), str(path))


def held(path):
    """What a whole folder holds; several texts or a missing file would show a mixture."""
    assert files(path) == ["data0", "data1", "data2"]
    return {entry.read_text() for entry in Path(path).iterdir()}


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "run"
    save(path, "old")
    return path


@pytest.fixture(params=["exchange", "two renames"])
def way(request, monkeypatch):
    """Both ways in which an older folder is replaced."""
    if request.param != "exchange":
        monkeypatch.setattr(folder_commit, "_exchange", lambda one, other: False)
    return request.param


def test_a_new_folder_appears_whole(tmp_path):
    """It is there with all its files and nothing of how it was made."""
    save(tmp_path / "run", "new")
    assert held(tmp_path / "run") == {"new"}
    assert files(tmp_path) == ["run"]


def test_an_older_folder_is_replaced(old, way):
    """Nothing of it stays, in it or beside it."""
    staging = filled(old, "new")
    assert held(old) == {"old"}
    publish_folder(staging, str(old))
    assert held(old) == {"new"}
    assert files(old.parent) == ["run"]


def test_an_empty_folder_is_replaced(tmp_path, way):
    """One that was made for the checkpoint beforehand."""
    (tmp_path / "run").mkdir()
    save(tmp_path / "run", "new")
    assert held(tmp_path / "run") == {"new"}


def test_linux_exchanges_in_one_step(old, monkeypatch):
    """Where the system can swap two names, no rename is called on what was there."""
    if not sys.platform.startswith("linux"):
        assert folder_commit._swapper() is None or sys.platform == "darwin"
        return
    monkeypatch.setattr(os, "rename", lambda *names: pytest.fail(f"renamed {names}"))
    save(old, "new")
    assert held(old) == {"new"}


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_that_cannot_exchange_gets_two_renames(old, monkeypatch, code):
    """What the system says decides, not its name."""

    def refuse(one, other):
        import ctypes

        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(folder_commit, "_swapper", lambda: refuse)
    save(old, "new")
    assert held(old) == {"new"}
    assert files(old.parent) == ["run"]


def test_a_system_without_the_call_gets_two_renames(old, monkeypatch):
    """Neither renameat2 nor renamex_np."""
    monkeypatch.setattr(folder_commit, "_swapper", lambda: None)
    save(old, "new")
    assert held(old) == {"new"}


def test_another_refusal_of_the_exchange_is_an_error(old, monkeypatch):
    """It is not tried again in a way that is less safe."""

    def refuse(one, other):
        import ctypes

        ctypes.set_errno(errno.EACCES)
        return -1

    monkeypatch.setattr(folder_commit, "_swapper", lambda: refuse)
    with pytest.raises(PermissionError):
        save(old, "new")
    assert held(old) == {"old"}
    assert files(old.parent) == ["run"]


def test_a_second_rename_that_fails_puts_the_older_folder_back(old, monkeypatch):
    """What was put aside is in its place again, and the new one is removed."""
    monkeypatch.setattr(folder_commit, "_exchange", lambda one, other: False)
    rename, calls = os.rename, []

    def second_fails(source, target):
        calls.append(source)
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(OSError, match="error"):
        save(old, "new")
    assert held(old) == {"old"}
    assert files(old.parent) == ["run"]


def test_a_file_is_never_replaced(tmp_path):
    """A folder does not take the place of a file."""
    (tmp_path / "run").write_text("mine")
    with pytest.raises(SaveError, match="a file is there") as caught:
        save(tmp_path / "run", "new")
    assert caught.value.errno == errno.ENOTDIR
    assert files(tmp_path) == ["run"]


def test_a_folder_with_anything_else_in_it_is_never_replaced(old):
    """All of it would be gone: the error names what is not ours."""
    (old / "notes.txt").write_text("mine")
    with pytest.raises(SaveError, match="holds more than a checkpoint") as caught:
        save(old, "new")
    assert caught.value.details == ("it holds notes.txt",)
    assert (old / "notes.txt").read_text() == "mine"
    assert files(old.parent) == ["run"]


def test_a_link_stays_a_link(tmp_path, way):
    """Saving to a symbolic link replaces the folder that it leads to, beside which the hidden one is made."""
    save(tmp_path / "step_1", "old")
    (tmp_path / "latest").symlink_to("step_1")
    save(tmp_path / "latest", "new")
    assert (tmp_path / "latest").is_symlink()
    assert held(tmp_path / "step_1") == {"new"}
    assert files(tmp_path) == ["latest", "step_1"]


@pytest.mark.skipif(os.name == "nt", reason="needs modes")
def test_the_mode_of_an_older_folder_is_kept(old, way):
    """Who could read the older one can read the new one."""
    old.chmod(0o750)
    save(old, "new")
    assert stat.S_IMODE(old.stat().st_mode) == 0o750


def test_others_see_the_folder_by_its_token(tmp_path, monkeypatch):
    """Another process sees the very folder, not one that only has its name."""
    monkeypatch.setattr(folder_commit, "_PATIENCE", 0.0)
    staging = stage(str(tmp_path / "run"), own=own)
    assert sees(staging, str(tmp_path / "run"))
    (tmp_path / "elsewhere").mkdir()
    assert not sees(staging, str(tmp_path / "elsewhere" / "run"))
    shutil.copytree(tmp_path / staging.name, tmp_path / "elsewhere" / staging.name)
    (tmp_path / "elsewhere" / staging.name / ".unmoor-token").write_text("another")
    assert not sees(staging, str(tmp_path / "elsewhere" / "run"))


def test_a_failed_save_is_cleared_away_and_a_published_one_is_not(old):
    """Discarding is safe at any time."""
    staging = filled(old, "new")
    discard(staging, str(old))
    assert files(old.parent) == ["run"]
    staging = filled(old, "new")
    publish_folder(staging, str(old))
    discard(staging, str(old))
    assert held(old) == {"new"}


def test_an_older_folder_goes_only_after_the_new_one_is_durable(old, way, monkeypatch):
    """If the disk does not confirm the new name, the older folder is still there, under a hidden name."""
    sync = folder_commit.sync_folder

    def confirm(folder, path):
        if Path(folder) == old.parent:
            raise SaveError("not confirmed")
        sync(folder, path)

    monkeypatch.setattr(folder_commit, "sync_folder", confirm)
    with pytest.raises(SaveError, match="not confirmed"):
        save(old, "new")
    assert held(old) == {"new"}
    hidden = next(name for name in files(old.parent) if name.endswith((".tmp", ".old")))
    assert held(old.parent / hidden) == {"old"}


KILLED = """
import os, shutil, sys
sys.path[:0] = sys.argv[4].split(os.pathsep)
from tests.execute.test_folder_commit import save
from unmoor.execute import folder_commit

path, way, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
count = 0

def counted(call):
    def made(*arguments, **keywords):
        global count
        count += 1
        if count == last:
            os._exit(9)
        result = call(*arguments, **keywords)
        return result
    return made

for module, name in ((os, "mkdir"), (os, "unlink"), (os, "chmod"), (os, "fsync"), (os, "rename"), (shutil, "rmtree")):
    setattr(module, name, counted(getattr(module, name)))
if way == "two renames":
    folder_commit._exchange = lambda one, other: False
else:
    folder_commit._exchange = counted(folder_commit._exchange)
save(path, "new")
os._exit(0)
"""

STEPS = {"exchange": 12, "two renames": 13}
"""More than there are: the last one is not killed any more."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the exchange in one step is tried on Linux")
@pytest.mark.parametrize(("way", "step"), [(way, step) for way, steps in STEPS.items() for step in range(1, steps + 1)])
def test_killed_at_any_point_a_whole_folder_is_left(old, way, step):
    """At each step the path holds the old folder or the new one; between two renames the old one is beside it.

    The next save finishes what was cut off, and takes its own place.
    """
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(old), way, str(step), os.pathsep.join(map(str, sys.path))], check=False
    )
    assert done.returncode == (0 if step == STEPS[way] else 9)
    if old.exists():
        assert held(old) in ([{"new"}] if done.returncode == 0 else [{"old"}, {"new"}])
        assert not left_behind(str(old))
    else:
        assert way == "two renames"
        assert held(left_behind(str(old))) == {"old"}
    save(old, "newest")
    assert held(old) == {"newest"}


def test_what_was_cut_off_is_told_and_taken_back(old):
    """A path whose folder was put aside and never replaced: describing tells of it, the next save takes it back."""
    import unmoor

    aside = old.parent / f".run.unmoor-{os.getpid()}-0123abcd.old"
    old.rename(aside)
    with pytest.raises(NotACheckpoint, match="a save was killed") as caught:
        unmoor.describe(old)
    assert str(aside) in caught.value.details[0]
    staging = stage(str(old), own=own)
    assert held(old) == {"old"}
    discard(staging, str(old))


def test_a_long_name_is_put_aside_under_a_name_that_fits(tmp_path, monkeypatch):
    """Names are at most 255 bytes; what is put aside is found again by what of it is left."""
    monkeypatch.setattr(folder_commit, "_exchange", lambda one, other: False)
    path = tmp_path / ("n" * 240)
    save(path, "old")
    rename = os.rename

    def cut_off(source, target):
        rename(source, target)
        raise KeyboardInterrupt

    staging = filled(path, "new")
    monkeypatch.setattr(os, "rename", cut_off)
    with pytest.raises(KeyboardInterrupt):
        publish_folder(staging, str(path))
    assert held(left_behind(str(path))) == {"old"}
    monkeypatch.setattr(os, "rename", rename)
    save(path, "newest")
    assert held(path) == {"newest"}
