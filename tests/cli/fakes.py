"""A front door that answers with given values, and streams of a given kind."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

import unmoor
from unmoor.values.catalog import Catalog


def answer(monkeypatch: pytest.MonkeyPatch, outcome: Catalog | BaseException) -> None:
    """Let `api.describe` return or raise `outcome`."""

    def describe(path: str) -> Catalog:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    fake = SimpleNamespace(describe=describe)
    monkeypatch.setitem(__import__("sys").modules, "unmoor.api", fake)
    monkeypatch.setattr(unmoor, "api", fake, raising=False)


class Stream(io.TextIOWrapper):
    """A text stream of some encoding that is or is not a terminal."""

    def __init__(self, *, encoding: str = "utf-8", terminal: bool = False, errors: str = "strict") -> None:
        self.raw_bytes = io.BytesIO()
        self.terminal = terminal
        super().__init__(self.raw_bytes, encoding=encoding, errors=errors)

    def isatty(self) -> bool:
        return self.terminal

    @property
    def text(self) -> str:
        """What was written."""
        self.flush()
        return self.raw_bytes.getvalue().decode(self.encoding)


class ClosedPipe(Stream):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")
