"""Saves that have begun: each is waited for, each failure is told once, and none that could not begin is waited for."""

from __future__ import annotations

import threading

import pytest

import unmoor
from unmoor.errors import SaveError, UsageError
from unmoor.wiring import pending as registry


@pytest.fixture(autouse=True)
def _nothing_before():
    registry.finish_earlier("wait", "the test")


def fails(word):
    """A save that fails."""

    def work():
        raise ValueError(word)

    return work


def test_failures_of_saves_that_threads_began_at_once_are_told_one_by_one():
    """None is forgotten for another that was begun after it."""
    for word in ("first", "second"):
        registry.run_behind(word, fails(word))
    for word in ("first", "second"):
        with pytest.raises(SaveError, match=f"ValueError: {word}"):
            registry.finish_earlier("wait", "the next")
    assert registry.finish_earlier("wait", "the next") == ""


def test_all_that_nobody_was_told_is_told_at_exit(monkeypatch):
    """Each as an error of a thread."""
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append((args.thread.name, str(args.exc_value))))
    for word in ("first", "second"):
        registry.run_behind(word, fails(word))._result.exception(60)
    registry._tell_at_exit()
    assert told == [("background save of first", "first"), ("background save of second", "second")]


def test_a_save_that_no_thread_can_begin_is_an_error_of_the_call(run, tmp_path, monkeypatch):
    """As when the interpreter is about to exit; nothing waits for it."""

    def no(_):
        raise RuntimeError("can't start new thread")

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", no)
    with pytest.raises(SaveError, match="can't start new thread"):
        unmoor.save(tmp_path / "run.pt", **run.roles, background=True)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert not (tmp_path / "run.pt").exists()
    unmoor.save(tmp_path / "run.pt", **run.roles, background="refuse").wait()


def test_a_forked_process_is_told_that_it_cannot_wait(monkeypatch):
    """The thread that it would wait for is its parent's."""
    pending = registry.Pending("run.pt")
    monkeypatch.setattr(registry.os, "getpid", lambda: -1)
    with pytest.raises(UsageError, match="saved by the process from which this one was forked"):
        pending.wait()
