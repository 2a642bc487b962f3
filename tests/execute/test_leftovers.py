"""What a process that was killed left behind is removed; what a living one makes never is, wherever it lives."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from unmoor.execute import leftovers
from unmoor.execute.leftovers import LOCK, NEW, OLD, claim, hidden_name, kept, release, sweep

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc whether a process is there")


def files(folder):
    return sorted(entry.name for entry in Path(folder).iterdir())


@contextmanager
def of_another(process=None):
    """Names made within are those of a process that is gone, or of `process`."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    real = os.getpid
    os.getpid = lambda: process or pid
    try:
        yield
    finally:
        os.getpid = real


@contextmanager
def on_another_machine(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(leftovers, "_boot", lambda: "0123abcd")
        yield


def left_file(folder, name="run.pt", *, locked=True):
    path = Path(hidden_name(str(folder / name), NEW, locked=locked))
    path.write_bytes(b"half")
    return path


def left_folder(folder, name="run", end=NEW, *, lock=True):
    path = Path(hidden_name(str(folder / name), end))
    path.mkdir()
    (path / "data").write_bytes(b"half")
    if lock:
        path.with_name(path.name.removesuffix(end) + LOCK).touch()
    return path


def test_a_file_of_a_process_that_is_gone_is_removed(tmp_path):
    """Of the target that is asked for; the others wait for saves of their own, or for a look at the whole folder."""
    with of_another():
        mine, other = left_file(tmp_path), left_file(tmp_path, "other.pt")
    assert sweep(str(tmp_path), "run.pt") == (mine.name,)
    assert files(tmp_path) == [other.name]
    assert sweep(str(tmp_path)) == (other.name,)
    assert files(tmp_path) == []


def test_what_a_living_process_makes_stays(tmp_path):
    """This process's own, with and without its lock, and that of another one that is there."""
    path, handle = claim(str(tmp_path / "run.pt"))
    bare = left_file(tmp_path)
    with of_another(os.getppid()):
        parents = left_file(tmp_path)
    assert sweep(str(tmp_path)) == ()
    assert files(tmp_path) == sorted([Path(path).name, bare.name, parents.name])
    release(path, handle)
    assert files(tmp_path) == sorted([bare.name, parents.name])


def test_a_number_that_another_process_has_now_is_not_the_old_one(tmp_path, monkeypatch):
    """Numbers of processes come again: when a process began tells it from the one that made the file."""
    with monkeypatch.context() as patch:
        patch.setattr(leftovers, "_start", lambda pid: "abcd")
        left_file(tmp_path)
    assert len(sweep(str(tmp_path))) == 1


def test_one_that_has_ended_and_is_not_yet_asked_about_is_gone(tmp_path):
    """A zombie writes no more."""
    pid = os.fork()
    if pid == 0:
        left_file(tmp_path)
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert len(sweep(str(tmp_path))) == 1
    os.waitpid(pid, 0)


REACH = {
    ("ext4", "rw"): True,
    ("tmpfs", "rw"): True,
    ("nfs4", "rw,vers=4.2,local_lock=none"): True,
    ("nfs", "rw,vers=3,nolock,local_lock=all"): False,
    ("nfs", "rw,vers=3,local_lock=flock"): False,
    ("lustre", "rw,flock"): False,
    ("fuse.sshfs", "rw"): False,
    ("", ""): False,
}


@pytest.mark.parametrize("mount", REACH)
def test_a_file_of_another_machine_goes_only_where_locks_reach(tmp_path, monkeypatch, mount):
    """A lock that only this machine sees tells nothing of another."""
    monkeypatch.setattr(leftovers, "_mount", lambda folder: mount)
    with on_another_machine(monkeypatch):
        path, handle = claim(str(tmp_path / "run.pt"))
    assert sweep(str(tmp_path)) == ()
    os.close(handle)
    assert bool(sweep(str(tmp_path))) == REACH[mount]
    assert os.path.exists(path) != REACH[mount]


def test_a_file_that_could_not_be_locked_there_stays(tmp_path, monkeypatch):
    """Its name says so: that it can be locked here means nothing."""
    with on_another_machine(monkeypatch), monkeypatch.context() as patch:
        patch.setattr(leftovers, "_lock", lambda handle: None)
        path, handle = claim(str(tmp_path / "run.pt"))
    assert files(tmp_path) == [Path(path).name]
    os.close(handle)
    assert sweep(str(tmp_path)) == ()
    assert files(tmp_path) == [Path(path).name]


def test_without_locks_this_machine_still_knows_its_own(tmp_path, monkeypatch):
    """By their processes."""
    monkeypatch.setattr(leftovers, "_lock", lambda handle: None)
    path, handle = claim(str(tmp_path / "run.pt"))
    with of_another():
        gone = left_file(tmp_path, locked=False)
    assert sweep(str(tmp_path)) == (gone.name,)
    release(path, handle)


def test_a_file_that_is_swept_in_the_moment_before_its_lock_is_made_again(tmp_path, monkeypatch):
    """Whoever sweeps holds the lock while it removes: its maker then sees a file without a name, and makes another."""
    lock, met = leftovers._lock, []

    def swept_first(handle):
        if not met:
            met.extend(files(tmp_path))
            (tmp_path / met[0]).unlink()
        return lock(handle)

    monkeypatch.setattr(leftovers, "_lock", swept_first)
    path, handle = claim(str(tmp_path / "run.pt"))
    assert files(tmp_path) == [Path(path).name] != met
    assert os.fstat(handle).st_nlink == 1
    os.close(handle)


def test_a_forked_process_does_not_keep_the_lock(tmp_path, monkeypatch):
    """Workers that a run forked may outlive it: what it was writing is left over then."""
    with on_another_machine(monkeypatch):
        path, handle = claim(str(tmp_path / "run.pt"))
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        theirs.send(b"here")
        theirs.recv(1)
        os._exit(0)
    theirs.close()
    assert ours.recv(4) == b"here"
    os.close(handle)
    assert sweep(str(tmp_path)) == (Path(path).name,)
    ours.close()
    os.waitpid(pid, 0)


def test_a_folder_goes_with_its_lock(tmp_path):
    """That of a process that is gone; a living one's stays, and its lock."""
    with of_another():
        left_folder(tmp_path)
    mine = left_folder(tmp_path)
    sweep(str(tmp_path), "run")
    assert files(tmp_path) == sorted([mine.name, mine.stem + LOCK])


@pytest.mark.parametrize("lock", [True, False])
def test_an_older_folder_that_was_put_aside_comes_back_where_it_is_missing(tmp_path, lock):
    """Where the new one is in place, it goes."""
    with of_another():
        left_folder(tmp_path, end=OLD, lock=lock)
    sweep(str(tmp_path), "run")
    assert files(tmp_path) == ["run"]
    with of_another():
        left_folder(tmp_path, end=OLD, lock=lock)
    sweep(str(tmp_path), "run")
    assert files(tmp_path) == ["run"]
    assert files(tmp_path / "run") == ["data"]


def test_a_folder_of_another_machine_goes_by_its_lock(tmp_path, monkeypatch):
    """While that is held, the folder stays; without one, only where no other machine writes."""
    with on_another_machine(monkeypatch):
        lock, handle = claim(str(tmp_path / "run"), LOCK)
        os.mkdir(lock.removesuffix(LOCK) + NEW)
    assert kept(lock)
    assert sweep(str(tmp_path)) == ()
    os.close(handle)
    assert not kept(lock)
    with monkeypatch.context() as patch:
        patch.setattr(leftovers, "_mount", lambda folder: ("lustre", "rw"))
        assert sweep(str(tmp_path)) == ()
    assert sweep(str(tmp_path)) == (Path(lock).name,)
    assert files(tmp_path) == []


def test_what_only_looks_alike_stays(tmp_path):
    """Other programs' files, those of an unmoor that wrote names without a machine, links, and names of other kinds."""
    with of_another():
        link = Path(hidden_name(str(tmp_path / "run.pt")))
    target = tmp_path / "precious"
    target.write_text("mine")
    link.symlink_to(target)
    names = [".run.pt.unmoor-12-0123abcd.tmp", "run.pt", ".run.pt.tmp", ".hidden"]
    for name in names:
        (tmp_path / name).write_text("mine")
    assert not kept(str(tmp_path / names[0]))
    assert sweep(str(tmp_path)) == ()
    assert files(tmp_path) == sorted([*names, "precious", link.name])


def test_nothing_that_goes_wrong_stops_a_save(tmp_path, monkeypatch):
    """Sweeping is a favour: a folder that is not there, a file that may not be removed."""
    assert sweep(str(tmp_path / "nowhere")) == ()
    with of_another():
        path = left_file(tmp_path)

    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(os, "unlink", refuse)
    assert sweep(str(tmp_path)) == ()
    assert path.exists()


def test_names_that_are_cut_are_found_again(tmp_path):
    """A long name is in the hidden one as far as it fits; a folder of that kind is not put back to half a name."""
    name = "n" * 240
    with of_another():
        left_file(tmp_path, name)
        left_folder(tmp_path, name, OLD)
    assert all(len(found) <= 255 for found in files(tmp_path))
    assert len(sweep(str(tmp_path))) == 1
    assert not (tmp_path / name).exists()
    sweep(str(tmp_path), name)
    assert files(tmp_path) == [name]


def test_the_file_system_of_a_folder_is_known(tmp_path):
    """The one whose place is the longest beginning of the path."""
    assert leftovers._mount("/proc")[0] == "proc"
    assert leftovers._mount(str(tmp_path))[0] not in ("", "proc")
