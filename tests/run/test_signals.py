"""Signals end a step, save once and end the run as it was asked for; the user's own handlers are kept."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from .small import Training, kinds, names, the_run, trained

ENDING = ["SIGTERM", "SIGINT", "SIGUSR1"]


@pytest.fixture(autouse=True)
def handlers():
    """Whatever a test does, the process has its handlers back, and has had them where the test says so."""
    before = {name: signal.getsignal(getattr(signal, name)) for name in ENDING}
    yield before
    for name, handler in before.items():
        signal.signal(getattr(signal, name), handler)


def send(name):
    signal.raise_signal(getattr(signal, name))


@pytest.mark.parametrize("name", ENDING)
def test_saves_once_at_the_end_of_the_step_and_exits(tmp_path, handlers, name):
    """The step is ended, its end is saved, and the exit code says: come again."""
    training, kept = Training(), []

    def train():
        with the_run(tmp_path, training, every=None) as run:
            kept.append(run)
            for step in run.steps(run.resume(), 9):
                if step == 3:
                    send(name)
                training.step(step)

    with pytest.raises(SystemExit) as caught:
        train()
    run = kept[0]
    assert caught.value.code == 75
    assert training.taken == [0, 1, 2, 3]
    assert names(tmp_path) == ["step_000000004.pt"]
    assert run.last.verified
    assert run.stopped == name
    assert not run.finished
    assert {each: signal.getsignal(getattr(signal, each)) for each in ENDING} == handlers
    again, _ = trained(tmp_path, 9, every=None)
    assert again.taken == [4, 5, 6, 7, 8]
    assert trained(tmp_path / "whole", 9, every=None)[0].digest() == again.digest()


def test_ends_the_loop_instead_where_that_is_asked_for(tmp_path):
    """on_signal="return": the code behind the loop runs, and run.stopped says why."""
    training, run = trained(
        tmp_path, 9, lambda run, _, step: send("SIGTERM") if step == 3 else None, on_signal="return", every=None
    )
    assert training.taken == [0, 1, 2, 3]
    assert run.stopped == "SIGTERM"
    assert "ended by SIGTERM" in str(run)
    again, run = trained(tmp_path, 9, every=None)
    assert again.taken == [4, 5, 6, 7, 8]
    assert run.stopped == ""


def test_the_exit_code_is_the_users(tmp_path):
    """Some schedulers want another one."""
    with pytest.raises(SystemExit) as caught:
        trained(tmp_path, 9, lambda *_: send("SIGTERM"), exit_code=3)
    assert caught.value.code == 3


def test_nothing_new_is_not_saved_again(tmp_path):
    """A signal in the step whose end the policy saves anyway makes one file; in the last step the run is finished."""
    with pytest.raises(SystemExit):
        trained(tmp_path, 6, lambda run, _, step: send("SIGTERM") if step == 5 else None, every=3)
    assert names(tmp_path) == ["step_000000003.pt", "step_000000006.pt"]
    training, run = trained(tmp_path, 6)
    assert training.taken == []
    assert run.finished


def test_several_signals_save_once(tmp_path):
    """A scheduler that sends two kinds gets one save."""
    with pytest.raises(SystemExit):
        trained(tmp_path, 9, lambda *_: (send("SIGUSR1"), send("SIGTERM"), send("SIGTERM")), every=None)
    assert names(tmp_path) == ["step_000000001.pt"]


def test_a_second_interrupt_is_one_at_once(tmp_path):
    """Ctrl-C twice: the step is not waited for, and nothing more is written."""
    seen = []

    def body(run, training, step):
        if step == 2:
            seen.append(run)
            send("SIGINT")
            seen.append("first")
            send("SIGINT")
            seen.append("second")

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, 9, body, every=1)
    run, *seen = seen
    assert seen == ["first"]
    assert names(tmp_path) == ["step_000000001.pt", "step_000000002.pt"]
    assert kinds(run)[-1] == "left"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_of_the_user_are_called_after_the_save(tmp_path):
    """A handler that requeues the job finds the state saved, and may end the process by itself."""
    seen = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append((number, names(tmp_path))))

    def body(run, training, step):
        if step == 3:
            send("SIGUSR1")
            send("SIGUSR1")

    trained(tmp_path, 9, body, on_signal="return", every=None)
    assert seen == [(signal.SIGUSR1, ["step_000000004.pt"])]

    def requeue(number, frame):
        raise SystemExit(99)

    signal.signal(signal.SIGUSR1, requeue)
    with pytest.raises(SystemExit) as caught:
        trained(tmp_path, 9, lambda *_: send("SIGUSR1"), every=None)
    assert caught.value.code == 99
    assert names(tmp_path)[-1] == "step_000000005.pt"
    assert signal.getsignal(signal.SIGUSR1) is requeue


def test_a_handler_that_the_loop_sets_stays(tmp_path):
    """What the user's code installs within the loop is his, and is not taken back."""

    def own(number, frame):
        pass

    def body(run, training, step):
        signal.signal(signal.SIGUSR1, own)

    trained(tmp_path, 3, body)
    assert signal.getsignal(signal.SIGUSR1) is own


def test_what_the_user_ignores_stays_ignored(tmp_path):
    """A process that was started with nohup, or that ignores Ctrl-C, still does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    training, run = trained(tmp_path, 4, lambda *_: send("SIGINT"))
    assert training.taken == [0, 1, 2, 3]
    assert run.finished
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_handlers_are_there_while_the_loop_runs_and_not_longer(tmp_path, handlers):
    """Before the first step, after the last and after break they are the user's."""
    training = Training()
    run = the_run(tmp_path, training, on_exception="leave")
    steps = run.steps(run.resume(), 5)
    assert signal.getsignal(signal.SIGTERM) is handlers["SIGTERM"]
    next(steps)
    assert signal.getsignal(signal.SIGTERM) is not handlers["SIGTERM"]
    steps.close()
    assert signal.getsignal(signal.SIGTERM) is handlers["SIGTERM"]


def test_a_thread_is_told_that_it_hears_no_signals(tmp_path):
    """Signals reach the main thread alone: the run says so, and trains."""
    found = []

    def work():
        with pytest.warns(UserWarning, match="does not run in the main thread"):
            found.append(trained(tmp_path, 4)[0].taken)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [[0, 1, 2, 3]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_worker_dies_of_sigterm_and_outlives_what_a_terminal_sends(tmp_path):
    """Its parent ends a worker of a loader by SIGTERM; SIGINT and SIGUSR1 of a whole group leave it to end the step."""
    ends = {}

    def body(run, training, step):
        for name in ENDING:
            child = os.fork()
            if not child:
                send(name)
                os._exit(7)
            status = os.waitpid(child, 0)[1]
            ends[name] = os.waitstatus_to_exitcode(status)
        run.stop()

    trained(tmp_path, 9, body)
    assert ends == {"SIGTERM": -signal.SIGTERM, "SIGINT": 7, "SIGUSR1": 7}
