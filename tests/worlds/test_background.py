"""Saves in the background: what is written is the state at the call, and no failure goes unsaid."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict

import unmoor
from unmoor.errors import SaveError, UsageError
from unmoor.wiring import pending as registry
from unmoor.wiring import saving_behind

from .launch import launch
from .layouts import LAYOUTS, build
from .whole import differences


class Gate:
    """A progress that holds the thread which writes until it is opened."""

    def __init__(self, fails=None):
        self.event, self.fails, self.began = threading.Event(), fails, threading.Event()

    def __call__(self, _):
        self.began.set()
        assert self.event.wait(60)
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def run():
    made = build(LAYOUTS["plain"], 0, seed=0)
    made.train()
    return made


@pytest.fixture(autouse=True)
def told():
    """No test leaves a save behind that has not ended, or a failure that nobody was told."""
    yield
    if registry._last:
        registry._last[-1]._result.exception(60)
        registry._last[-1].untold()


def state(run):
    return get_state_dict(run.model, run.optimizer)


def test_the_file_holds_the_state_at_the_call(run, tmp_path):
    """Training goes on while the thread writes; the file has the state as it was at the call."""
    gate, path = Gate(), tmp_path / "run.pt"
    unmoor.save(tmp_path / "now.pt", **run.roles, step=run.step)
    pending = unmoor.save(path, **run.roles, step=run.step, background=True, progress=gate)
    assert gate.began.wait(60)
    assert not pending.done()
    assert str(pending) == f"saving {path} in the background"
    run.train()
    gate.event.set()
    receipt = pending.wait()
    assert pending.done()
    assert str(pending) == str(receipt)
    assert receipt.nbytes == path.stat().st_size
    other, twin = build(LAYOUTS["plain"], 0, seed=3), build(LAYOUTS["plain"], 0, seed=4)
    assert unmoor.restore(path, **other.roles).extra == unmoor.restore(tmp_path / "now.pt", **twin.roles).extra
    assert not list(differences(state(other), state(twin)))
    assert list(differences(state(other), state(run)))


def test_the_older_file_stays_until_the_new_one_is_whole(run, tmp_path):
    """While the thread writes, and after it failed, the path holds what it held before."""
    path, gate = tmp_path / "run.pt", Gate(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    unmoor.save(path, step=1)
    pending = unmoor.save(path, **run.roles, step=2, background=True, progress=gate)
    assert unmoor.load(path)["step"] == 1
    gate.event.set()
    with pytest.raises(SaveError, match="the disk is full"):
        pending.wait()
    assert unmoor.load(path)["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]
    assert str(pending).startswith("the save in the background failed: ")


@pytest.mark.parametrize("call", ["save", "save in the background", "restore"])
def test_the_next_call_waits(run, tmp_path, call):
    """It begins when the save in the background has ended."""
    gate, path = Gate(), tmp_path / "run.pt"
    pending = unmoor.save(path, **run.roles, background=True, progress=gate)
    assert gate.began.wait(60)
    threading.Timer(0.05, gate.event.set).start()
    if call == "restore":
        unmoor.restore(path, **run.roles)
    else:
        unmoor.save(tmp_path / "next.pt", **run.roles, background=call != "save")
    assert pending.done()


@pytest.mark.parametrize("call", ["save", "save in the background", "restore"])
def test_a_failure_surfaces_at_the_next_call_once(run, tmp_path, call):
    """The next call raises it, saying that it was not begun itself; the one after goes on."""
    failing = Gate(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    failing.event.set()
    unmoor.save(tmp_path / "ok.pt", **run.roles, step=1)
    unmoor.save(tmp_path / "lost.pt", **run.roles, background=True, progress=failing)

    def again():
        if call == "restore":
            unmoor.restore(tmp_path / "ok.pt", **run.roles)
        else:
            unmoor.save(tmp_path / "next.pt", **run.roles, background=call != "save")

    with pytest.raises(SaveError, match=r"lost\.pt was not saved: the disk is full") as caught:
        again()
    assert f"the {call[:4] if call != 'restore' else call} of" in caught.value.details[-1]
    assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "next.pt").exists()
    again()


def test_a_failure_that_wait_told_does_not_come_again(run, tmp_path):
    """Who asked has been told."""
    failing = Gate(ValueError("no"))
    failing.event.set()
    pending = unmoor.save(tmp_path / "lost.pt", **run.roles, background=True, progress=failing)
    with pytest.raises(ValueError, match="no"):
        pending.wait()
    unmoor.save(tmp_path / "next.pt", **run.roles)


def test_an_error_of_any_class_is_one_of_the_save(run, tmp_path):
    """The call that comes after raises a SaveError for an error that is no class of unmoor's."""
    failing = Gate(ValueError("no"))
    failing.event.set()
    unmoor.save(tmp_path / "lost.pt", **run.roles, background=True, progress=failing)
    with pytest.raises(SaveError, match="ValueError: no"):
        unmoor.save(tmp_path / "next.pt", **run.roles)


def test_refuses_to_wait(run, tmp_path):
    """background="refuse" is an error while another save is not finished."""
    gate = Gate()
    pending = unmoor.save(tmp_path / "run.pt", **run.roles, background=True, progress=gate)
    with pytest.raises(UsageError, match=r"run\.pt is still being saved"):
        unmoor.save(tmp_path / "next.pt", **run.roles, background="refuse")
    gate.event.set()
    pending.wait()
    unmoor.save(tmp_path / "next.pt", **run.roles, background="refuse").wait()
    with pytest.raises(UsageError, match="background='later' is none of"):
        unmoor.save(tmp_path / "next.pt", **run.roles, background="later")


def test_refuses_at_once_what_no_save_takes(run, tmp_path):
    """What needs no writing to be known is raised by the call itself."""
    with pytest.raises(UsageError, match="cannot be saved"):
        unmoor.save(tmp_path / "run.pt", **run.roles, odd=object, background=True)


def test_a_snapshot_is_not_copied_again(run, tmp_path, monkeypatch):
    """A snapshot is written from where it is; only the live run is copied."""
    kept = unmoor.snapshot(**run.roles)
    monkeypatch.setattr(saving_behind, "take", lambda _: pytest.fail("copied again"))
    unmoor.save(tmp_path / "run.pt", kept, background=True).wait()
    assert unmoor.load(tmp_path / "run.pt")["scheduler"] == run.scheduler.state_dict()


EXIT = """
import sys, torch, unmoor
def full(_):
    raise OSError(28, "No space left on device")
unmoor.save(sys.argv[1] + "/run.pt", w=torch.ones(3), background=True, progress=full)
"""


def test_a_failure_that_nobody_asked_for_is_told_at_exit(tmp_path):
    """The interpreter waits for the thread, then tells it, whatever warnings are filtered."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXIT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert f"Exception in thread background save of {tmp_path}/run.pt" in done.stderr
    assert "the disk is full" in done.stderr
    assert not list(tmp_path.iterdir())


WELL = """
import sys, torch, unmoor
unmoor.save(sys.argv[1] + "/run.pt", w=torch.ones(300), background=True)
"""


def test_the_interpreter_does_not_leave_a_save_half_done(tmp_path):
    """A script that ends right after the call has a whole file."""
    done = subprocess.run([sys.executable, "-c", WELL, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert torch.equal(unmoor.load(tmp_path / "run.pt")["w"], torch.ones(300))


@pytest.fixture(scope="module", params=["FSDP2 x2", "DDP x2"])
def world(request, tmp_path_factory):
    """Where two ranks saved in the background, and what each of them found; sharded through DCP's engine, and not."""
    root = tmp_path_factory.mktemp("background")
    return root, launch("tests.worlds.ranks.background", 2, root, request.param)


def test_ranks_train_while_they_write(world):
    """On both ranks: the handle before and after, and the state at the call in the file, of one step only."""
    root, ranks = world
    for rank in ranks:
        assert rank["while"] == (False, f"saving {root / 'run'} in the background", False)
        assert "is still being saved" in rank["refused"]
        told = f"{root / 'other'} was not saved: {root / 'run'} was still being saved in the background (skipped)"
        assert rank["skipped"] == (True, told)
        assert rank["skipped for one"] == (True, "own.pt was still being saved in the background (skipped)")
        assert rank["receipt"][0] == "Receipt"
        assert rank["receipt"][1] == ranks[0]["receipt"][1]
    other, whole = build(LAYOUTS["plain"], 0, seed=3), torch.load(root / "whole.pt", weights_only=False)
    assert unmoor.restore(root / "run", **other.roles).extra["step"] == 1
    model, optimizer = state(other)
    assert not list(differences(optimizer, whole["before"]["optimizer"]))
    assert not list(differences({k: model[k] for k in whole["before"]["model"]}, whole["before"]["model"]))
    assert list(differences(whole["before"]["optimizer"], whole["after"]["optimizer"]))


def test_ranks_are_told_of_a_failed_write_at_the_next_call(world):
    """All of them, whichever failed; what was there before is whole, nothing is left beside it, and a restore waits."""
    root, ranks = world
    for rank in ranks:
        assert rank["next"].startswith("SaveError: ")
        assert "the disk is full" in rank["next"]
        assert f"the save of {root / 'next'} was not begun" in rank["next"]
        assert rank["failed"].startswith("the save in the background failed: ")
        assert rank["restored"] == (1, True)
        assert rank["left"] == ["again", "next", "run", "whole.pt"]
