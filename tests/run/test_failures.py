"""What goes wrong around a run: steps that raise, disks that refuse, saves that are slow or do not hold."""

from __future__ import annotations

import errno
import os
import threading

import pytest
import torch

import unmoor
from unmoor import api
from unmoor.wiring import run_clock, run_loop, run_saver

from .small import Training, damage, kinds, names, the_run, trained


class Broke(Exception):
    """Raised within a step."""


def breaks(folder, at, **policy):
    """A run that an exception leaves within a step, after half of that was done."""
    training = Training()
    run = the_run(folder, training, **policy)
    try:
        for step in run.steps(run.resume(), 9):
            training.step(step)
            if step == at:
                raise Broke
    except Broke:
        pass
    run.close()
    return training, run


def test_an_exception_within_a_step_is_no_end_of_a_step(tmp_path):
    """The state there is saved under a name that resume never takes by itself; asked for, it is what it was."""
    with pytest.warns(UserWarning, match=r"step_000000005\.interrupted\.pt, which resume\(\) does not take"):
        training, run = breaks(tmp_path, 5)
    assert names(tmp_path) == ["step_000000002.pt", "step_000000004.pt", "step_000000005.interrupted.pt"]
    assert kinds(run)[-1] == "interrupted"
    assert run.last.name == "step_000000004.pt"
    again = Training()
    with the_run(tmp_path, again) as run:
        assert run.resume() == 4
        assert unmoor.latest(tmp_path).name == "step_000000004.pt"
    other = Training(seed=4)
    with the_run(tmp_path / "new", other) as run:
        assert run.resume(from_=tmp_path / "step_000000005.interrupted.pt") == 5
    assert other.digest() == training.digest()


def test_it_goes_once_the_run_is_past_it(tmp_path):
    """What was saved within a step is of no use once that step is safe; of several the newest stays."""
    for at in (4, 5):
        with pytest.warns(UserWarning, match="interrupted"):
            breaks(tmp_path, at, every=4)
    assert names(tmp_path) == ["step_000000004.pt", "step_000000005.interrupted.pt"]
    whole, _ = trained(tmp_path / "whole", 9)
    training, _ = trained(tmp_path, 9, every=4)
    assert training.digest() == whole.digest()
    assert names(tmp_path)[:-1] == ["step_000000004.pt", "step_000000008.pt", "step_000000009.pt"]


def test_nothing_is_saved_of_it_where_that_is_asked_for(tmp_path):
    """on_exception="leave"."""
    _, run = breaks(tmp_path, 5, on_exception="leave")
    assert names(tmp_path) == ["step_000000002.pt", "step_000000004.pt"]
    assert kinds(run)[-1] == "left"


def test_the_exception_is_the_one_that_is_seen(tmp_path, monkeypatch):
    """A save of the broken step that fails too hides nothing."""

    def body(run, training, step):
        if step == 3:
            monkeypatch.setattr(api, "save", refusing(MemoryError("no memory")))
            raise Broke

    with pytest.raises(Broke), pytest.warns(UserWarning, match="the state within step 3 was not saved: no memory"):
        trained(tmp_path, 9, body)


def test_break_is_told(tmp_path):
    """A loop that is left by break cannot know if the step was done: the caller says so, or calls stop()."""
    training = Training()
    run = the_run(tmp_path, training, every=None, on_exception="leave")
    for step in run.steps(run.resume(), 9):
        training.step(step)
        if step == 3:
            break
    with pytest.raises(unmoor.UsageError, match=r"run\.save\(step=4\) if it was"):
        run.save()
    assert run.save(step=4).step == 4
    run.close()
    assert trained(tmp_path, 9)[0].taken == [4, 5, 6, 7, 8]


def refusing(error):
    """A save that fails."""

    def save(*_, **__):
        raise error

    return save


FULL = unmoor.SaveError("run was not saved: the disk is full", errno=errno.ENOSPC)


@pytest.mark.parametrize("error", [FULL, OSError(errno.EIO, "Input/output error")], ids=["full", "EIO"])
def test_a_save_that_fails_does_not_end_the_run(tmp_path, monkeypatch, error):
    """The user is warned, the run goes on, the next save that is due is made, and nothing was deleted."""
    real, failing = api.save, {4, 6}

    def save(path, *args, run, **how):
        if run["step"] in failing:
            raise error
        return real(path, *args, run=run, **how)

    monkeypatch.setattr(api, "save", save)
    with pytest.warns(UserWarning, match="the last checkpoint is step_000000002.pt; the run goes on") as told:
        training, run = trained(tmp_path, 9, lambda run, _, step: run.log(loss=step), keep_last=1)
    assert len(told) == 2
    assert training.taken == list(range(9))
    assert kinds(run).count("failed") == 2
    assert names(tmp_path) == ["step_000000009.pt"]
    failing.clear()
    assert run.last.metrics == {"loss": 8}


def test_metrics_of_a_save_that_failed_go_into_the_next(tmp_path, monkeypatch):
    """What was logged is lost with no save; what is logged later goes before it."""
    real = api.save

    def save(path, *args, run, **how):
        if run["step"] == 2:
            raise FULL
        return real(path, *args, run=run, **how)

    monkeypatch.setattr(api, "save", save)
    with pytest.warns(UserWarning, match="disk is full"):
        _, run = trained(
            tmp_path, 4, lambda run, _, step: run.log(**({"loss": 1, "acc": 1} if step < 2 else {"acc": 2}))
        )
    assert run.last.metrics == {"loss": 1, "acc": 2}
    record = torch.load(run.last.path, weights_only=True)["run"]
    assert record["logged_at"] == {"loss": 2, "acc": 4}


def test_the_last_save_must_succeed(tmp_path, monkeypatch):
    """At the end nothing comes that could make up for it: the error is raised, and the older checkpoint is there."""

    def body(run, training, step):
        if step == 4:
            monkeypatch.setattr(api, "save", refusing(FULL))

    with pytest.raises(unmoor.SaveError, match="disk is full"):
        trained(tmp_path, 5, body)
    assert names(tmp_path) == ["step_000000002.pt", "step_000000004.pt"]
    monkeypatch.undo()
    training, run = trained(tmp_path, 5)
    assert training.taken == [4]
    assert run.finished


def test_what_can_never_be_saved_is_told_before_the_first_step(tmp_path):
    """A value that would need code is the caller's mistake: it is not found out after fifteen minutes."""
    run = unmoor.Run(tmp_path, model=torch.nn.Linear(2, 2), helper=object())
    start = run.resume()
    with pytest.raises(unmoor.UsageError, match="helper"):
        run.steps(start, 5)
    assert names(tmp_path) == []


def test_what_became_impossible_to_save_ends_the_run(tmp_path):
    """It is no failure of the disk, and no later save would succeed."""
    config = {}
    run = unmoor.Run(tmp_path, model=torch.nn.Linear(2, 2), config=config, every=1, background=False)
    steps = run.steps(run.resume(), 5)
    next(steps)
    config["helper"] = object()
    with pytest.raises(unmoor.UsageError, match="helper"):
        next(steps)
    run.close()


def test_closing_a_run_leaves_its_loop(tmp_path):
    """A generator that someone still holds, as a traceback does, keeps neither the folder nor the signals."""
    import signal

    before = signal.getsignal(signal.SIGTERM)
    run = the_run(tmp_path, Training(), on_exception="leave")
    steps, others = run.steps(run.resume(), 5), run.steps(0, 5)
    assert [next(steps), next(steps)] == [0, 1]
    with pytest.raises(unmoor.UsageError, match="a loop over"):
        next(others)
    with pytest.raises(unmoor.UsageError, match="a loop over"):
        run.resume()
    steps.close()
    run.close()
    run = the_run(tmp_path, Training())
    steps = run.steps(run.resume(), 5)
    next(steps)
    assert signal.getsignal(signal.SIGTERM) is not before
    with pytest.warns(UserWarning, match="interrupted"):
        run.close()
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list(steps)


def test_a_save_that_fails_behind_the_run_is_told(tmp_path, monkeypatch):
    """A failure in the background is a warning at the end of a later step."""
    from unmoor.wiring import saving_behind

    real = saving_behind.write_draft
    calls = []

    def write(draft, **how):
        calls.append(draft.path)
        if len(calls) == 1:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return real(draft, **how)

    monkeypatch.setattr(saving_behind, "write_draft", write)
    with pytest.warns(UserWarning, match="the run goes on"):
        training, _ = trained(tmp_path, 9, background="wait")
    assert training.taken == list(range(9))
    assert len(calls) == 4
    assert names(tmp_path) == [f"step_{step:09d}.pt" for step in (6, 8, 9)]


@pytest.fixture
def slow(monkeypatch):
    """Saves behind the run do not end before they are let."""
    from unmoor.wiring import saving_behind

    real, gate = saving_behind.write_draft, threading.Event()

    def write(draft, **how):
        gate.wait(60)
        return real(draft, **how)

    monkeypatch.setattr(saving_behind, "write_draft", write)
    yield gate
    gate.set()


def test_a_save_that_is_due_while_one_is_written_is_left_out_where_that_is_asked_for(tmp_path, slow):
    """background="skip": the run is never held up; its end is saved all the same."""

    def body(run, training, step):
        if step == 8:
            slow.set()

    training, run = trained(tmp_path, 9, body, background="skip", keep_last=None)
    assert kinds(run).count("skipped") == 3
    assert names(tmp_path) == ["step_000000002.pt", "step_000000009.pt"]
    assert trained(tmp_path, 9)[0].digest() == training.digest()


def test_a_save_that_is_due_while_one_is_written_waits_else(tmp_path, slow):
    """background="wait": every save that is due is made, in order."""
    threading.Timer(0.2, slow.set).start()
    _, run = trained(tmp_path, 9, background="wait", keep_last=None)
    assert "skipped" not in kinds(run)
    assert names(tmp_path) == [f"step_{step:09d}.pt" for step in (2, 4, 6, 8, 9)]
    assert [event.step for event in run.events if event.kind == "verified"] == [2, 4, 6, 8, 9]


def test_what_is_written_behind_the_run_is_the_end_of_its_step(tmp_path, slow):
    """C85: the run goes on while it is written, and nothing of that gets in: a checkpoint is of one step."""
    training, seen = Training(), {}
    run = the_run(tmp_path, training, every=3, background="skip", keep_last=None)
    for step in run.steps(run.resume(), 6):
        seen[step] = training.digest()
        if step == 5:
            slow.set()
        training.step(step)
    run.close()
    other = Training(seed=2)
    with the_run(tmp_path / "other", other) as run:
        run.resume(from_=tmp_path / "step_000000003.pt")
    assert other.digest() == seen[3]


def test_one_that_does_not_hold_deletes_nothing(tmp_path, monkeypatch):
    """A checkpoint that is damaged before it is read back is told; older ones stay until a good one is there."""
    real, rotten = run_saver.verify_path, {4, 6}

    def verify(path, **how):
        if int(os.path.basename(path)[5:14]) in rotten:
            damage(path)
        return real(path, **how)

    monkeypatch.setattr(run_saver, "verify_path", verify)
    present = []
    with pytest.warns(UserWarning, match="was written and does not hold") as told:
        trained(tmp_path, 9, lambda *_: present.append(names(tmp_path)), keep_last=1)
    assert len(told) == 2
    assert present[-2] == [f"step_{step:09d}.pt" for step in (2, 4, 6)]
    assert names(tmp_path) == ["step_000000009.pt"]


def test_saves_by_a_clock_that_cannot_be_set(tmp_path, monkeypatch):
    """Every two seconds of a clock that only goes forward, whatever the clock on the wall does."""
    clock, wall = [100.0], iter([5e9, 4e9, 3e9, 2e9, 1e9])
    monkeypatch.setattr(run_loop, "now", lambda: clock[0])
    monkeypatch.setattr(run_saver, "now", lambda: clock[0])
    monkeypatch.setattr(run_loop, "wall", lambda: next(wall))

    def body(run, training, step):
        clock[0] += 0.9

    trained(tmp_path, 8, body, every="2s", keep_last=None)
    assert names(tmp_path) == [f"step_{step:09d}.pt" for step in (3, 6, 8)]
    assert trained(tmp_path, 8)[0].taken == []
    assert [row.step for row in unmoor.runs(tmp_path).rows] == [8, 6, 3]
    assert run_clock.now() <= run_clock.now()


def test_nothing_is_overwritten_whatever_order_saves_come_in(tmp_path):
    """Saves by hand at one step, in the loop and out of it, each have a name."""

    def body(run, training, step):
        if step == 2:
            assert run.save() is None
            run.save()

    trained(tmp_path, 4, body, every=None, keep_last=None)
    assert names(tmp_path) == ["step_000000003.pt", "step_000000004.pt"]
    with the_run(tmp_path, Training(), keep_last=None) as run:
        run.resume()
        assert run.save().name == "step_000000004-3.pt"
        assert run.save().name == "step_000000004-4.pt"
        with pytest.raises(unmoor.UsageError, match="no number of steps"):
            run.save(step=-1)
