"""What is written is the state at the call, whoever writes; what goes wrong is the error that it is everywhere."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest
import torch

import unmoor
from unmoor.errors import SaveError
from unmoor.live import staging
from unmoor.wiring import pending as registry
from unmoor.wiring import saving_behind, writing_apart
from unmoor.wiring.writing import MANIFEST, Draft

from .conftest import Run, read, same


class Gate:
    """A progress that lets nothing go on before it is opened."""

    def __init__(self, then=lambda: None):
        self.began, self.opened, self.then, self.total = threading.Event(), threading.Event(), then, 0

    def __call__(self, nbytes):
        self.began.set()
        assert self.opened.wait(60)
        self.then()
        self.total += nbytes


def fails(error):
    """A progress that raises."""

    def progress(_):
        raise error

    return progress


def records(path):
    """Name -> CRC-32 of all records but the manifest, which tells when it was written."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        found = {info.filename.partition("/")[2]: info.CRC for info in archive.infolist()}
    return {name: crc for name, crc in found.items() if name != MANIFEST}


def test_holds_one_step_only_whatever_is_trained_while_it_is_written(way, run, tmp_path):
    """Steps are taken until the save has ended; the file has all numbers of the step at the call."""
    before, gate, path = run.numbers(), Gate(), tmp_path / "run.pt"
    pending = unmoor.save(path, **run.roles, background=True, progress=gate)
    assert gate.began.wait(60)
    run.train(3)
    gate.opened.set()
    while not pending.done():
        run.train()
    assert pending.wait().nbytes == path.stat().st_size
    assert same(read(path), before)
    assert not same(read(path), run.numbers())


def test_is_the_file_that_a_save_in_the_foreground_writes(way, tmp_path):
    """Every record is the same: shared storages once, of a storage what tensors reach, and tensors of every layout."""
    base = torch.arange(4096.0)
    tree = {
        "whole": base[:64],
        "same memory": base[32:96].view(8, 8).t(),
        "sparse": torch.eye(3).to_sparse(),
        "conjugate": torch.ones(3, dtype=torch.complex64).conj(),
        "empty": torch.empty(0, 3),
        "large": torch.arange(1 << 17),
        "float8": torch.ones(3).to(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "numbers of numpy": {np.int64(3): torch.ones(2), np.float32(0.5): np.ones(2)},
        (1, "key"): [1, 2.5, None, b"", {"deep": torch.ones(1)}],
    }
    (tmp_path / "a").mkdir()
    unmoor.save(tmp_path / "run.pt", tree)
    receipt = unmoor.save(tmp_path / "a" / "run.pt", tree, background=True).wait()
    assert records(tmp_path / "a" / "run.pt") == records(tmp_path / "run.pt")
    assert receipt.counts == unmoor.save(tmp_path / "run.pt", tree).counts
    assert torch.load(tmp_path / "a" / "run.pt")["large"].shape == (1 << 17,)


def test_tells_progress_of_every_byte(way, run, tmp_path):
    """The numbers come to what a save in the foreground tells."""
    there, here = [], []
    unmoor.save(tmp_path / "a.pt", **run.roles, rng=False, progress=here.append)
    unmoor.save(tmp_path / "b.pt", **run.roles, rng=False, progress=there.append, background=True).wait()
    assert abs(sum(here) - sum(there)) < 100  # the time in the manifest


def full():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (full(), SaveError, "the disk is full"),
        (OSError("odd"), SaveError, "was not saved"),
        (ValueError("no"), ValueError, "no"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
        (unmoor.UsageError("wrong"), unmoor.UsageError, "wrong"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_raises_what_progress_raises(way, run, tmp_path, error, kind, text):
    """The older file is intact, nothing is left beside it."""
    path = tmp_path / "run.pt"
    unmoor.save(path, step=1)
    with pytest.raises(kind, match=text):
        unmoor.save(path, **run.roles, background=True, progress=fails(error)).wait()
    assert unmoor.load(path)["step"] == 1
    assert os.listdir(tmp_path) == ["run.pt"]


def test_tells_that_the_folder_has_gone(way, run, tmp_path):
    """It was there at the call, and is not when the file is to be put in its place."""
    folder, gate = tmp_path / "folder", Gate(then=lambda: shutil.rmtree(tmp_path / "folder", ignore_errors=True))
    folder.mkdir()
    gate.opened.set()
    with pytest.raises(SaveError, match=r"run\.pt was not saved") as caught:
        unmoor.save(folder / "run.pt", **run.roles, background=True, progress=gate).wait()
    assert caught.value.errno == errno.ENOENT


def test_tells_that_there_is_no_such_folder(way, run, tmp_path):
    """The system's error has the words that it has in the foreground."""
    with pytest.raises(SaveError) as here:
        unmoor.save(tmp_path / "none" / "run.pt", **run.roles)
    with pytest.raises(SaveError) as there:
        unmoor.save(tmp_path / "none" / "run.pt", **run.roles, background=True).wait()
    told = [(e.value.headline, e.value.remedy, e.value.errno, e.value.path) for e in (here, there)]
    assert told[0] == told[1]


@pytest.mark.parametrize("what", ["run.pt", "run.safetensors", "snapshot.pt"])
def test_a_relative_path_begins_where_the_call_was_made(way, run, tmp_path, monkeypatch, what):
    """The run may go elsewhere before the file is begun."""
    end, gone = registry.Pending.end, threading.Event()
    monkeypatch.setattr(registry.Pending, "end", lambda *args: gone.wait(60) and end(*args))
    monkeypatch.chdir(tmp_path)
    given = (unmoor.snapshot(model=run.model),) if what.startswith("snapshot") else ()
    pending = unmoor.save(what, *given, **({} if given else {"model": run.model}), background=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    gone.set()
    assert pending.wait().path == pending.path == str(tmp_path / what)
    assert sorted(os.listdir(tmp_path)) == sorted(["other", what])
    assert not os.listdir(tmp_path / "other")


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN], ids=["told how children end", "not told"])
def ending(request):
    """How a process that was killed is said to have ended: a run that ignores SIGCHLD is not told."""
    before = signal.signal(signal.SIGCHLD, request.param)
    yield "was ended by signal 9" if request.param == signal.SIG_DFL else "ended with code 0"
    signal.signal(signal.SIGCHLD, before)


def test_a_process_that_is_killed_is_an_error_of_the_save(process, run, tmp_path, ending):
    """What it left is cleared away, it is no zombie, and the older file is intact."""
    path, gate = tmp_path / "run.pt", Gate()
    unmoor.save(path, step=1)
    pending = unmoor.save(path, **run.roles, background=True, progress=gate)
    assert gate.began.wait(60)
    os.kill(process.started[-1].pid, signal.SIGKILL)
    gate.opened.set()
    with pytest.raises(SaveError, match=f"the process that wrote it {ending}"):
        pending.wait()
    assert unmoor.load(path)["step"] == 1
    assert os.listdir(tmp_path) == ["run.pt"]
    assert process.started[-1].returncode is not None


def test_signals_that_are_for_the_run_do_not_end_the_process(process, run, tmp_path):
    """A terminal and a scheduler send them to every process of a run."""
    gate = Gate()
    pending = unmoor.save(tmp_path / "run.pt", **run.roles, background=True, progress=gate)
    assert gate.began.wait(60)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(process.started[-1].pid, number)
    gate.opened.set()
    pending.wait()
    assert same(read(tmp_path / "run.pt"), run.numbers())


def _refusing(truncate):
    """An ftruncate that makes no file of the name "memfd:..." larger."""

    def refusing(handle, nbytes):
        if "memfd:" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        truncate(handle, nbytes)

    return refusing


@pytest.mark.parametrize(
    "why", ["no process", "not the first message", "another first", "frozen", "no file in memory", "no room in it"]
)
def test_a_thread_writes_where_no_process_can(process, run, tmp_path, monkeypatch, why):
    """The save is the same."""
    if why == "no process":
        monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: fails(OSError(errno.EAGAIN, "no"))(0))
    elif why == "not the first message":
        monkeypatch.setattr(writing_apart, "_START", "raise SystemExit(3)")
    elif why == "another first":
        monkeypatch.setattr(writing_apart, "_START", f"import os; os.write(1, b'preloaded'); {writing_apart._START}")
    elif why == "no room in it":
        monkeypatch.setattr(staging.os, "ftruncate", _refusing(os.ftruncate))
    elif why == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    else:
        monkeypatch.delattr(os, "memfd_create")
    gate = Gate()
    pending = unmoor.save(tmp_path / "run.pt", **run.roles, background=True, progress=gate)
    before = run.numbers()
    assert gate.began.wait(60)
    run.train()
    gate.opened.set()
    pending.wait()
    assert same(read(tmp_path / "run.pt"), before)


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_a_thread_writes_where_the_copies_lie_in_a_standard_file(process, handle):
    """A daemon has closed its own; in the process the number is that of a pipe."""
    assert writing_apart._started(handle) is None


def test_what_is_named_as_a_module_of_python_is_no_hindrance(process, run, tmp_path, monkeypatch):
    """The run has imported that before its path had the other."""
    (tmp_path / "secrets.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    unmoor.save(tmp_path / "run.pt", **run.roles, background=True).wait()
    assert process.started[-1].returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["run.pt", "secrets.py"]


def test_the_process_starts_without_torch():
    """Else it would take seconds to start, and hundreds of megabytes."""
    code = "import sys, unmoor.wiring.writing_child; print([n for n in ('torch', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


SCRIPT = """
import os, signal, sys, threading, torch, unmoor
from unmoor.wiring import saving_behind, writing_apart
saving_behind._FEW = -1
saving_behind.step_back = lambda: None
start, began = writing_apart._started, threading.Event()

def started(*args):
    process = start(*args)
    print(process.pid, flush=True)
    return process

def forever(_):
    began.set()
    threading.Event().wait()

writing_apart._started = started
path = sys.argv[1] + "/run.pt"
"""
ENDS = 'unmoor.save(path, w=torch.ones(300), background=True)\nprint("over", flush=True)\n'
KILLED = (
    "unmoor.save(path, w=torch.ones(300), background=True, progress=forever)\nbegan.wait()\nos.kill(os.getpid(), 9)\n"
)
FORKS = """
unmoor.save(path, model=(model := torch.nn.Linear(3, 3)), background=True, progress=lambda _: go.wait(60))
go = threading.Event()
if os.fork() == 0:
    unmoor.save(path + "2", model=model, background=True).wait()
    os._exit(0)
print(os.wait()[1], flush=True)
go.set()
"""


def script(body, folder):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + body, str(folder)], capture_output=True, text=True, check=False
    )


@pytest.mark.usefixtures("process")
def test_an_interpreter_that_exits_waits_for_the_process(tmp_path):
    """A script that ends right after the call, and guards nothing by its name, has a whole file."""
    done = script(ENDS, tmp_path)
    assert done.stderr == ""
    assert torch.equal(unmoor.load(tmp_path / "run.pt")["w"], torch.ones(300))


@pytest.mark.usefixtures("process")
def test_the_process_ends_with_a_run_that_is_killed(tmp_path):
    """It does not publish what a run that has begun anew may have gone past."""
    done = script(KILLED, tmp_path)
    assert done.returncode == -signal.SIGKILL
    pid, pause = int(done.stdout), threading.Event()
    assert any(_is_gone(pid) or pause.wait(0.05) for _ in range(1000))
    assert not (tmp_path / "run.pt").exists()


def test_keys_that_cannot_be_handed_over_are_told_beforehand():
    """The thread writes then."""
    draft = Draft("run.pt", b"", (), {}, {("a", torch.Size((1,))): ((1,), "float32")})
    assert writing_apart._order(draft, writing_apart.Shared(None, ()), {}, told=False) is None


def _is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.usefixtures("process")
def test_a_forked_process_saves_by_itself(tmp_path):
    """It has neither its parent's save to wait for nor its parent's memory to write into."""
    done = script(FORKS, tmp_path)
    assert done.stderr == ""
    assert "0" in done.stdout.splitlines()
    assert unmoor.describe(tmp_path / "run.pt").parts
    assert unmoor.describe(tmp_path / "run.pt2").parts


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_of_a_loader_are_no_hindrance(process, run, tmp_path):
    """They are forked while the process writes, and hold its pipes open."""
    gate = Gate()
    pending = unmoor.save(tmp_path / "run.pt", **run.roles, background=True, progress=gate)
    assert gate.began.wait(60)
    loader = torch.utils.data.DataLoader(torch.arange(8), num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    next(batches)
    gate.opened.set()
    pending.wait()
    assert len(list(batches)) == 7
    assert same(read(tmp_path / "run.pt"), run.numbers())


def test_skips_while_an_earlier_save_is_written(run, tmp_path):
    """Nothing is written; the handle and the receipt say so; once the earlier one has ended it is a save again."""
    gate = Gate()
    first = unmoor.save(tmp_path / "a.pt", **run.roles, background="skip", progress=gate)
    assert gate.began.wait(60)
    second = unmoor.save(tmp_path / "b.pt", **run.roles, background="skip")
    assert (first.skipped, second.skipped, second.done()) == (False, True, True)
    receipt = second.wait()
    told = f"{tmp_path / 'b.pt'} was not saved: {tmp_path / 'a.pt'} was still being saved in the background (skipped)"
    assert str(second) == str(receipt) == told
    assert (receipt.nbytes, dict(receipt.counts)) == (0, {})
    assert receipt.to_json()["notes"] == [["skipped", f"{tmp_path / 'a.pt'} was still being saved in the background"]]
    gate.opened.set()
    first.wait()
    assert not (tmp_path / "b.pt").exists()
    third = unmoor.save(tmp_path / "b.pt", **run.roles, background="skip")
    assert not third.skipped
    assert third.wait().nbytes == (tmp_path / "b.pt").stat().st_size


def test_skips_without_looking_at_the_run(run, tmp_path, monkeypatch):
    """A save that is skipped costs no copy."""
    gate = Gate()
    first = unmoor.save(tmp_path / "a.pt", **run.roles, background=True, progress=gate)
    monkeypatch.setattr(saving_behind, "save_behind", fails(AssertionError("copied")))
    assert unmoor.save(tmp_path / "b.pt", **Run(1).roles, background="skip").skipped
    gate.opened.set()
    first.wait()


def test_an_earlier_failure_is_told_before_anything_is_skipped(run, tmp_path):
    """It has ended, so there is nothing to skip for."""
    unmoor.save(tmp_path / "a.pt", **run.roles, background=True, progress=fails(full()))._result.exception(60)
    with pytest.raises(SaveError, match="the disk is full"):
        unmoor.save(tmp_path / "b.pt", **run.roles, background="skip")
