"""The shim sees what is done to a folder, and does to it what it is asked for."""

from __future__ import annotations

import errno
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter

import pytest

from tests.faults import CHANGES, Fault, missing, run

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

HEAD = """
import os, shutil, sys, threading, subprocess, mmap
os.chdir(sys.argv[1])
def put(name, *pieces, flags=os.O_WRONLY | os.O_CREAT):
    handle = os.open(name, flags, 0o600)
    for piece in pieces:
        os.write(handle, piece)
    return handle
"""


def done(tmp_path, body, **faults):
    return run(HEAD + body, tmp_path, tmp_path, log=True, **faults)


KINDS = {
    "open write": "os.close(put('a', b'12'))",
    "open": "open('a', 'w').close()",
    "open write write write": """
h = put('a', b'1')
os.pwrite(h, b'2', 5)
os.pwritev(h, [b'3', b'4'], 7)
""",
    "open write copy": "a = put('a', b'123', flags=os.O_RDWR | os.O_CREAT); os.copy_file_range(a, a, 2, 0, 8)",
    "open write open copy": "a = put('a', b'1', flags=os.O_RDWR | os.O_CREAT); os.sendfile(put('b'), a, 0, 1)",
    "open truncate truncate": "h = put('a'); os.ftruncate(h, 5); os.truncate('a', 3)",
    "open allocate": "os.posix_fallocate(put('a'), 0, 5)",
    "open fsync fdatasync": "h = put('a'); os.fsync(h); os.fdatasync(h)",
    "open rename rename": "put('a'); os.rename('a', 'b'); os.replace('b', 'c')",
    "open link symlink unlink": "put('a'); os.link('a', 'b'); os.symlink('a', 'c'); os.unlink('b')",
    "open unlink": "put('a'); os.remove(os.path.join(sys.argv[1], '..', os.path.basename(sys.argv[1]), 'a'))",
    "mkdir rmdir": "os.mkdir('a'); os.rmdir('a')",
    "mkdir open unlink rmdir": "os.mkdir('a'); put('a/b'); shutil.rmtree('a')",
    "mkdir fsync": "os.mkdir('a'); os.fsync(os.open('a', os.O_RDONLY))",
    "open chmod chmod utime": "h = put('a'); os.chmod('a', 0o600); os.fchmod(h, 0o600); os.utime('a')",
    "open truncate map": """
h = put('a', flags=os.O_RDWR | os.O_CREAT)
os.ftruncate(h, 5)
mmap.mmap(h, 5)
""",
    "": "os.listdir('.'); open('/dev/null', 'w').write('x'); os.pipe()",
}


@pytest.mark.parametrize("kinds", KINDS)
def test_every_kind_of_change_is_seen(tmp_path, kinds):
    """Whatever name of the C library it goes by, with a relative path, or through an open file."""
    outcome = done(tmp_path, KINDS[kinds])
    assert outcome.returncode == 0, outcome.stderr
    assert [op.kind for op in outcome.log] == kinds.split()
    assert outcome.operations == len(outcome.log)
    assert set(kinds.split()) <= set(CHANGES)
    assert all(op.path.startswith(str(tmp_path)) for op in outcome.log)


def test_the_log_holds_what_was_written_and_where(tmp_path):
    """Data, offsets and what a name stood for are enough to do it again."""
    outcome = done(tmp_path, "h = put('a', b'12', b'345'); os.pwritev(h, [b'x', b'y'], 1); os.rename('a', 'b')")
    opened, one, two, three, named = outcome.log
    assert "created" in opened.flags
    assert [(op.offset, op.data) for op in (one, two, three)] == [(0, b"12"), (2, b"345"), (1, b"xy")]
    assert (named.path, named.other) == (str(tmp_path / "a"), str(tmp_path / "b"))
    assert {op.inode for op in outcome.log} == {(tmp_path / "b").stat().st_ino}
    again = done(tmp_path, "open('b', 'w')")
    assert [op.flags for op in again.log] == [{"cut"}]


@pytest.mark.parametrize(
    ("when", "at", "left"),
    [("before", 2, b""), ("half", 2, b"12"), ("after", 2, b"1234"), ("before", 3, b"1234"), ("after", 3, b"12345678")],
)
def test_a_process_ends_at_an_operation(tmp_path, when, at, left):
    """Before it, after it, or when half of its bytes are written."""
    outcome = done(tmp_path, "put('a', b'1234', b'5678'); os.mkdir('never')", kill_at=at, when=when)
    assert outcome.returncode == -signal.SIGKILL
    assert outcome.killed
    assert (tmp_path / "a").read_bytes() == left
    assert not (tmp_path / "never").exists()


def test_operations_of_children_and_threads_are_in_one_row(tmp_path):
    """A number is one operation's, whoever does it; who it was is known."""
    body = """
code = "import os\\nfor i in range(20): os.close(os.open(f'child{i}', os.O_CREAT | os.O_WRONLY))"
child = subprocess.Popen([sys.executable, '-c', code])
threads = [threading.Thread(target=put, args=(f'thread{i}', b'1')) for i in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
child.wait()
if os.fork() == 0:
    put('forked')
    os._exit(0)
os.wait()
"""
    outcome = done(tmp_path, body)
    assert [op.number for op in outcome.log] == list(range(1, 62))
    assert len({op.process for op in outcome.log}) == 3
    assert len({op.thread for op in outcome.log}) == 22


@pytest.mark.parametrize(("whom", "alive"), [("self", "main"), ("main", "child"), ("all", "")])
def test_who_ends_is_chosen(tmp_path, whom, alive):
    """The process that does the operation, the one that was started, or both."""
    body = """
code = "import os, time\\nos.mkdir('a')\\ntime.sleep(0.2)\\nopen('alive', 'w').write('child')"
child = subprocess.Popen([sys.executable, '-c', code])
if child.wait():
    open('alive', 'w').write('main')
"""
    outcome = done(tmp_path, body, kill_at=1, when="after", whom=whom)
    deadline = 100
    while alive and not ((tmp_path / "alive").exists() and (tmp_path / "alive").read_text()) and deadline:
        signal.sigtimedwait([], 0.1)
        deadline -= 1
    assert ((tmp_path / "alive").read_text() if alive else "") == alive
    assert outcome.returncode == (0 if alive == "main" else -signal.SIGKILL)


@pytest.mark.parametrize(
    ("fail", "says"),
    [
        (("write", 2, errno.ENOSPC), "1 ENOSPC 3 4"),
        (("write", 0, errno.EIO), "EIO EIO EIO EIO"),
        (Fault("write", errno.EDQUOT, first=2, times=2), "1 EDQUOT EDQUOT 4"),
        (Fault("write", errno.ENOSPC, times=0, after_bytes=25), "1 2 5 ENOSPC"),
        (Fault("change", errno.ENODEV, first=3, times=0), "1 ENODEV ENODEV ENODEV"),
        (Fault("any", errno.EIO, times=0, match="other"), "1 2 3 4"),
        ([("write", 1, errno.EIO), ("write", 4, errno.ENOSPC)], "EIO 2 3 ENOSPC"),
    ],
)
def test_operations_fail_as_asked(tmp_path, fail, says):
    """The n-th of a kind, all, some in a row, those after so many bytes; the error is the one that was asked for."""
    body = """
import errno
handle = os.open('a', os.O_WRONLY | os.O_CREAT)
for i in range(1, 5):
    try:
        done = os.write(handle, b'0123456789')
        print(i if done == 10 else done, end=' ')
    except OSError as error:
        print(errno.errorcode[error.errno], end=' ')
"""
    outcome = done(tmp_path, body, fail=fail)
    assert outcome.stdout.strip() == says, outcome.stderr


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("open", "put('b')"),
        ("open_read", "open('a').close()"),
        ("read", "os.read(os.open('a', os.O_RDONLY), 3)"),
        ("read", "os.pread(os.open('a', os.O_RDONLY), 3, 0)"),
        ("fsync", "os.fsync(os.open('.', os.O_RDONLY))"),
        ("rename", "os.replace('a', 'b')"),
        ("unlink", "os.unlink('a')"),
        ("mkdir", "os.mkdir('b')"),
        ("chmod", "os.chmod('a', 0o600)"),
        ("list", "os.listdir('.')"),
        ("list", "list(os.scandir('.'))"),
        ("stat", "os.stat('a')"),
        ("lock", "import fcntl; fcntl.flock(os.open('a', os.O_RDONLY), fcntl.LOCK_EX)"),
        ("close", "os.close(os.open('a', os.O_RDONLY))"),
        ("statvfs", "os.statvfs('.')"),
        ("truncate", "os.truncate('a', 0)"),
    ],
)
def test_every_kind_can_fail(tmp_path, kind, body):
    """Also those that only look."""
    (tmp_path / "a").write_bytes(b"123")
    code = f"try:\n {body}\nexcept OSError as error: print(error.errno)"
    assert done(tmp_path, code, fail=(kind, 0, errno.ESTALE)).stdout.split() == [str(errno.ESTALE)]
    assert done(tmp_path, code).stdout == ""


def test_reads_and_writes_are_cut_short(tmp_path):
    """The rest is for the program to ask for, or to write, again."""
    body = """
handle = os.open('a', os.O_RDWR | os.O_CREAT)
print(os.write(handle, b'0123456789'), os.pwrite(handle, b'0123456789', 0), os.pwritev(handle, [b'01', b'2345'], 0))
print(len(os.pread(handle, 10, 0)), os.preadv(handle, [bytearray(1), bytearray(9)], 0))
"""
    assert done(tmp_path, body, short_write=3).stdout == "3 3 3\n3 3\n"
    assert done(tmp_path, body, short_read=2).stdout == "10 10 6\n2 2\n"


TRACED = """
import sys, torch, unmoor
from pathlib import Path
folder = Path(sys.argv[1])
tree = {"model": {"w": torch.ones(300_000), "b": torch.ones(3)}}
for _ in range(2):
    unmoor.save(folder / "run.pt", tree)
    unmoor.save(folder / "model.safetensors", tree["model"])
    torch.save(tree, folder / "torch.pt")
    torch.save(tree, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    unmoor.convert(folder / "run.pt", folder / "folder")
unmoor.relocate(folder / "run.pt", to="cuda:0")
unmoor.relocate(folder / "legacy.pt", to="cuda:0")
"""

NAMES = {
    "open": "openat open creat",
    "write": "write pwrite64 writev pwritev pwritev2",
    "truncate": "ftruncate truncate",
    "allocate": "fallocate",
    "fsync": "fsync",
    "fdatasync": "fdatasync",
    "sync_range": "sync_file_range",
    "rename": "rename renameat renameat2",
    "link": "link linkat",
    "symlink": "symlink symlinkat",
    "unlink": "unlink unlinkat",
    "mkdir": "mkdir mkdirat",
    "rmdir": "rmdir",
    "copy": "copy_file_range sendfile",
    "chmod": "chmod fchmod fchmodat",
    "utime": "utimensat",
    "map": "mmap",
}


def test_no_system_call_that_changes_the_folder_is_missed(tmp_path):
    """Python, C++ streams and ctypes: strace sees what the shim does, kind by kind, and nothing more."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")
    folder, trace = tmp_path / "folder", tmp_path / "trace"
    folder.mkdir()
    calls = [name for names in NAMES.values() for name in names.split()]
    command = ["strace", "-f", "--seccomp-bpf", "-y", "-s", "0", "-e", f"trace={','.join(calls)}", "-o", str(trace)]
    outcome = run(TRACED, folder, folder, log=True, command=[*command, sys.executable, "-c", TRACED])
    assert outcome.returncode == 0, outcome.stderr
    seen = Counter(op.kind for op in outcome.log if op.result >= 0 and op.kind != "clone")
    assert Counter(_kinds(trace.read_text(), str(folder))) == seen
    assert {"open", "write", "truncate", "fsync", "rename", "unlink", "mkdir"} <= set(seen)


def _kinds(trace, folder):
    """The kind of each system call of a trace that changed something in a folder, or might have."""
    kind_of = {name: kind for kind, names in NAMES.items() for name in names.split()}
    for line in _whole(trace.splitlines()):
        call = re.match(r"\d+\s+(\w+)\((.*)\)\s+= (-?\w+)", line)
        if call is None or call[3].startswith("-") or folder not in call[2]:
            continue
        name, arguments = call[1], call[2]
        kind = kind_of[name]
        if kind == "open" and not re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC)", arguments):
            continue
        if kind == "map" and not ("PROT_WRITE" in arguments and "MAP_SHARED" in arguments):
            continue
        yield "rmdir" if kind == "unlink" and "AT_REMOVEDIR" in arguments else kind


def _whole(lines):
    """Calls that other threads interrupted, put together."""
    begun = {}
    for line in lines:
        number = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[number] = line.removesuffix("<unfinished ...>")
        elif " resumed>" in line and number in begun:
            yield begun.pop(number) + line.split(" resumed>", 1)[1]
        else:
            yield line
