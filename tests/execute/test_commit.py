"""Putting files in place: whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unmoor.errors import MachineError, SaveError
from unmoor.execute import commit
from unmoor.execute.commit import publish


def save(path, data, *, needed=0, durability="system", check=lambda hidden: None):
    with publish(path, needed=needed, durability=durability, check=check) as hidden:
        Path(hidden).write_bytes(data)


def files(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "run.pt"
    path.write_bytes(b"old")
    return path


def test_a_new_file_appears_whole(tmp_path):
    """The file is there after the block, with nothing beside it."""
    save(tmp_path / "run.pt", b"new")
    assert files(tmp_path) == ["run.pt"]
    assert (tmp_path / "run.pt").read_bytes() == b"new"


def test_the_old_file_stays_until_the_end(old):
    """Inside the block the path still holds the old file; the hidden one tells what it is and who makes it."""
    with publish(old, needed=0, durability="system", check=lambda hidden: None) as hidden:
        assert old.read_bytes() == b"old"
        name = Path(hidden).name
        assert re.fullmatch(rf"\.run\.pt\.unmoor-{os.getpid()}-[0-9a-f]+\.tmp", name)
        assert Path(hidden).parent == old.parent
        Path(hidden).write_bytes(b"new")
    assert old.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1), MemoryError()])
def test_a_failure_leaves_the_old_file_alone(old, error):
    """When the block fails, interrupts included, the old checkpoint is intact and nothing is left over."""

    def failing():
        with publish(old, needed=0, durability="disk", check=lambda hidden: None) as hidden:
            Path(hidden).write_bytes(b"half")
            raise error

    with pytest.raises(type(error)):
        failing()
    assert files(old.parent) == ["run.pt"]
    assert old.read_bytes() == b"old"


def test_a_file_that_does_not_pass_the_check_is_not_published(old):
    """The hidden file is held against the promise before it takes the place of the old one."""
    checked = []

    def check(hidden):
        checked.append(Path(hidden).read_bytes())
        raise SaveError("what was written differs")

    with pytest.raises(SaveError, match="what was written differs"):
        save(old, b"new", check=check)
    assert checked == [b"new"]
    assert files(old.parent) == ["run.pt"]
    assert old.read_bytes() == b"old"


def test_data_reaches_the_disk_before_its_name(old, monkeypatch):
    """Durable: check, then the file's data, then the rename, then the folder."""
    events = []
    sync, replace = os.fsync, os.replace

    def fsync(handle):
        events.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def rename(source, target):
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    save(old, b"new", durability="disk", check=lambda hidden: events.append("check"))
    assert events == ["check", "file", "rename", "folder"]
    events.clear()
    save(old, b"newer")
    assert events == ["rename"]


def test_a_link_stays_a_link(tmp_path):
    """Saving to a symbolic link replaces the file that it leads to, beside which the hidden file is made."""
    store = tmp_path / "store"
    store.mkdir()
    (store / "step_1.pt").write_bytes(b"old")
    link = tmp_path / "latest.pt"
    link.symlink_to("store/step_1.pt")
    with publish(link, needed=0, durability="disk", check=lambda hidden: None) as hidden:
        assert Path(hidden).parent == store.resolve()
        Path(hidden).write_bytes(b"new")
    assert link.is_symlink()
    assert (store / "step_1.pt").read_bytes() == b"new"


def test_a_link_to_nothing_makes_its_target(tmp_path):
    """A symbolic link whose target does not exist yet is written through too."""
    link = tmp_path / "latest.pt"
    link.symlink_to("step_1.pt")
    save(link, b"new")
    assert files(tmp_path) == ["latest.pt", "step_1.pt"]


@pytest.mark.skipif(os.name == "nt", reason="modes are those of POSIX")
def test_modes_are_kept(tmp_path):
    """A new file gets the mode that the umask allows; a file that is replaced keeps its own."""
    path = tmp_path / "run.pt"
    before = os.umask(0o027)
    try:
        save(path, b"1")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        save(path, b"2")
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(before)


def test_long_names_fit(tmp_path):
    """The hidden name stays within what file systems allow, also for names of many-byte letters."""
    path = tmp_path / ("ä" * 126 + ".pt")
    save(path, b"new")
    assert files(tmp_path) == [path.name]


def test_a_full_disk_is_found_before_the_first_byte(old):
    """The space needed is held against the space free; the error says both, and what to do."""
    with pytest.raises(SaveError) as caught:
        save(old, b"new", needed=1 << 60)
    error = caught.value
    assert error.errno == errno.ENOSPC
    assert error.path == str(old)
    assert error.headline == f"{old} was not saved: the disk is full"
    assert re.match(r"needed 1\.0 EiB, free [\d.]+ \w+ in ", error.details[0])
    assert error.details[1] == "the checkpoint that was there before is untouched"
    assert error.remedy
    assert isinstance(error, OSError)
    assert isinstance(error, MachineError)
    assert files(old.parent) == ["run.pt"]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "your disk quota is used up"),
        (errno.EFBIG, "larger than allowed"),
        (errno.EACCES, "may not write in"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "the disk reports an error"),
        (errno.ETIMEDOUT, "does not answer"),
        (errno.EPROTO, os.strerror(errno.EPROTO)),
    ],
)
def test_what_the_system_refuses_is_said_in_words(old, code, says):
    """Every refusal of the system is a SaveError with its errno, the path and the cause."""
    with (
        pytest.raises(SaveError, match=says) as caught,
        publish(old, needed=0, durability="system", check=lambda hidden: None),
    ):
        raise OSError(code, os.strerror(code))
    assert caught.value.errno == code
    assert str(old) in str(caught.value)
    assert files(old.parent) == ["run.pt"]


def test_places_that_cannot_hold_a_file_are_named(tmp_path):
    """A folder that is missing, a path that is a folder, a path through a file: each is said."""
    (tmp_path / "file").write_bytes(b"")
    for path, says in (
        (tmp_path / "missing" / "run.pt", "missing does not exist"),
        (tmp_path, "it is a folder"),
        (tmp_path / "file" / "run.pt", "file is not a folder"),
    ):
        with pytest.raises(SaveError, match=says):
            save(path, b"new")
    assert files(tmp_path) == ["file"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_is_not_replaced(tmp_path):
    """What is no regular file stays what it is."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SaveError, match="it is no regular file"):
        save(tmp_path / "pipe", b"new")
    assert files(tmp_path) == ["pipe"]


def test_folders_that_cannot_be_opened_are_no_error(old, monkeypatch):
    """Where the platform cannot sync a folder, the save goes through."""
    real = os.open

    def opening(path, *rest, **how):
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "folders cannot be opened", path)
        return real(path, *rest, **how)

    monkeypatch.setattr(commit.os, "open", opening)
    save(old, b"new", durability="disk")
    assert old.read_bytes() == b"new"


def test_a_name_that_the_disk_does_not_confirm_is_told(old, monkeypatch):
    """An error while the folder is synced says that the new file is in place and not yet safe."""
    sync = os.fsync

    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(SaveError, match="complete and in place"):
        save(old, b"new", durability="disk")
    assert old.read_bytes() == b"new"
    assert files(old.parent) == ["run.pt"]


WRITER = """
import os, signal, sys
from unmoor.execute import archive
from unmoor.execute.archive import Record, torch_trailer, write_archive
from unmoor.execute.commit import publish

path, point, fill = sys.argv[1], sys.argv[2], sys.argv[3].encode()

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Blob:
    def direct(self, offset, nbytes):
        if point == "writing" and offset:
            die()
        return memoryview(fill * nbytes)
    fetch = None

for name in ("fsync", "replace"):
    real = getattr(os, name)
    def hooked(*args, real=real, name=name):
        if point == f"before {name}":
            die()
        real(*args)
        if point == f"after {name}":
            die()
    setattr(os, name, hooked)

def check(hidden):
    if point == "check":
        die()

with publish(path, needed=0, durability="disk", check=check) as hidden:
    if point == "opened":
        die()
    records = [Record(f"data/{i}", 3_000_000, Blob()) for i in range(3)]
    write_archive(hidden, records, name="run", finish=torch_trailer, threads=2, buffer_bytes=1 << 20, progress=None)
print("published")
"""


def child(*arguments, **how):
    code = [sys.executable, "-c", WRITER, *map(str, arguments)]
    return subprocess.run(code, capture_output=True, text=True, check=False, **how)


@pytest.mark.skipif(os.name == "nt", reason="needs kill -9")
@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("opened", "old"),
        ("writing", "old"),
        ("check", "old"),
        ("before fsync", "old"),
        ("after fsync", "old"),
        ("before replace", "old"),
        ("after replace", "new"),
    ],
)
def test_killed_at_any_point_a_complete_checkpoint_is_left(tmp_path, point, left):
    """Atomic: at every kill point the newest complete checkpoint is the old one or the new one."""
    path = tmp_path / "run.pt"
    assert child(path, "never", "o").stdout == "published\n"
    assert child(path, point, "n").returncode == -signal.SIGKILL
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None
        assert set(zipped.read("run/data/2")) == {ord(left[0])}
    beside = [name for name in files(tmp_path) if name != "run.pt"]
    assert all(name.startswith(".run.pt.unmoor-") for name in beside)


@pytest.mark.skipif(os.name == "nt", reason="needs resource limits")
def test_a_file_that_outgrows_its_limit_leaves_the_old_one(tmp_path):
    """A write that the system stops half-way is a SaveError, the old file is intact and the hidden one gone."""
    path = tmp_path / "run.pt"
    assert child(path, "never", "o").stdout == "published\n"
    before = path.read_bytes()

    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, 4_000_000))

    done = child(path, "never", "n", preexec_fn=limit)
    assert "SaveError" in done.stderr
    assert "larger than allowed" in done.stderr
    assert path.read_bytes() == before
    assert files(tmp_path) == ["run.pt"]


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 5 MiB, where this user may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("may not mount a file system here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts a tmpfs")
def test_a_disk_that_fills_up_leaves_the_old_file(tiny_disk):
    """A disk that is full half-way is a SaveError, the old file is intact and the hidden one gone."""
    path = tiny_disk / "run.pt"
    path.write_bytes(b"old")
    done = child(path, "never", "n")
    assert "SaveError" in done.stderr
    assert "the disk is full" in done.stderr
    assert path.read_bytes() == b"old"
    assert files(tiny_disk) == ["run.pt"]


def test_writers_of_one_path_do_not_mix(tmp_path):
    """Many writers at once: the path ends with one complete file of one of them, nothing is left over."""
    path = tmp_path / "run.pt"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: save(path, bytes([i]) * 100_000), range(40)))
    data = path.read_bytes()
    assert len(data) == 100_000
    assert len(set(data)) == 1
    assert files(tmp_path) == ["run.pt"]
