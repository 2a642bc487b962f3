"""The progress bar: on a terminal, for work that is not quick, with what is done, how fast and what is left."""

from __future__ import annotations

import io

import pytest

from unmoor.cli import progress


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def __init__(self, *, terminal: bool = True) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def clock(monkeypatch):
    """Time in the progress module is this clock's."""
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return made


def shown(monkeypatch, clock, *, seconds: float, terminal: bool = True, total: int | None = 4 << 30) -> str:
    """What stands on stderr when 2 GiB were done in three pieces, `seconds` and a second apart, and the bar closed."""
    stream = Terminal(terminal=terminal)
    monkeypatch.setattr("sys.stderr", stream)
    with progress.bar("verifying run.pt", total) as advance:
        advance(1 << 29)
        clock.now += seconds
        advance(1 << 29)
        clock.now += 1
        advance(1 << 30)
    return stream.getvalue()


def test_quick_work_shows_none(monkeypatch, clock):
    """Work that is over within a second leaves stderr alone."""
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with progress.bar("verifying run.pt", 1 << 30) as advance:
        clock.now += 0.9
        advance(1 << 30)
    assert stream.getvalue() == ""


def test_long_work_shows_title_bytes_rate_and_what_is_left(monkeypatch, clock):
    """After a second there is the title, what is done of how much, the rate and the time left."""
    text = shown(monkeypatch, clock, seconds=2.0)
    assert "verifying run.pt" in text
    assert "2.0/4.0 GiB" in text
    assert "682.7 MiB/s" in text
    assert "0:00:02" in text
    assert "left" in text


def test_a_pipe_shows_none(monkeypatch, clock):
    """Where stderr is no terminal nothing is drawn, however long it takes."""
    assert shown(monkeypatch, clock, seconds=60.0, terminal=False) == ""


def test_a_dumb_terminal_shows_none(monkeypatch, clock):
    """A terminal that cannot move its cursor gets no bar."""
    monkeypatch.setenv("TERM", "dumb")
    assert shown(monkeypatch, clock, seconds=60.0) == ""


def test_work_of_unknown_size_shows_what_is_done(monkeypatch, clock):
    """Without a total the bytes done are shown."""
    assert "2.0/? GiB" in shown(monkeypatch, clock, seconds=2.0, total=None)
