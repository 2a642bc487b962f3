"""A file that is replaced, removed, cut, lengthened, written over or touched between any two reads of it.

What comes of it is what the file was when it was opened, or an error that says that it was not left alone: never a part
of each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import unmoor
from unmoor.filing import VectorReader

from .verbs import LIVE, digests, made, run

LONG_AGO = 1_000_000_000_000_000_000
ALL = os.environ.get("UNMOOR_DISKS") == "all"
TIMES = 5
"""Reads before which a file is changed, from the first to the last."""


def _restored(path: Path, **how: Any) -> dict[str, str]:
    live = run(LIVE)
    objects = {"model": live["model"]} if path.suffix == ".safetensors" else live
    before = digests(live)
    try:
        unmoor.restore(path, **objects, **how)
    except unmoor.UnmoorError as error:
        changed = {name for name, digest in digests(live).items() if digest != before[name]}
        told = set(getattr(error, "done", ()))
        if changed != told:
            pytest.fail(f"changed {changed}, told {told}: {error}")
        raise
    return digests(live)


def _loaded(path: Path) -> list[Any]:
    found: list[Any] = []
    left = [unmoor.load(path)]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
            found.append(list(value))
        elif isinstance(value, list | tuple):
            left += value
        else:
            found.append(value.tolist() if isinstance(value, torch.Tensor) else repr(value))
    return found


def _verified(path: Path) -> str:
    found = unmoor.verify(path)
    if not found.ok:
        raise unmoor.CorruptFile("; ".join(str(fault.message) for fault in found.faults))
    return f"{found.records} {found.nbytes}"


def _converted(path: Path) -> list[Any]:
    target = path.parent / "target"
    target.mkdir(exist_ok=True)
    form = ".safetensors" if path.suffix == ".safetensors" else ".pt"
    try:
        unmoor.convert(path, target / f"made{form}")
    finally:
        assert [p.name for p in target.iterdir()] in ([f"made{form}"], []), "left behind"
    return _loaded(target / f"made{form}")


def _compared(path: Path) -> str:
    made_of = unmoor.diff(path, path.parent / f"copy{path.suffix}")
    return f"{made_of.identical} {len(made_of.changed)} {made_of.damaged}"


VERBS: dict[str, Callable[[Path], Any]] = {
    "describe": lambda path: [(entry.path, entry.shape, entry.dtype) for entry in unmoor.describe(path).tensors],
    "restore": _restored,
    "restore, verified first": lambda path: _restored(path, verify="first"),
    "restore, not verified": lambda path: _restored(path, verify="none"),
    "load": _loaded,
    "verify": _verified,
    "convert": _converted,
    "diff": _compared,
}
FILES = {"zip": "run.pt", "stream": "old.pt", "safetensors": "old.safetensors", "folder": "old"}


def _replaced(path: Path, other: bytes) -> None:
    beside = path.with_name("beside")
    beside.write_bytes(other)
    beside.replace(path)


def _over(path: Path, other: bytes) -> None:
    with path.open("r+b") as file:
        file.write(other)


def _appended(path: Path, other: bytes) -> None:
    with path.open("ab") as file:
        file.write(other[:5000])


CHANGES: dict[str, Callable[[Path, bytes], None]] = {
    "replaced": _replaced,
    "removed": lambda path, _: path.unlink(),
    "cut": lambda path, _: os.truncate(path, path.stat().st_size // 2),
    "lengthened": _appended,
    "written over": _over,
    "touched": lambda path, _: os.utime(path),
}
KEPT = ("replaced", "removed")
"""What leaves the file that was opened as it was."""


def _laid(folder: Path, name: str) -> tuple[Path, Path]:
    """A checkpoint and a copy of it; the path that is read, and that of the file that is changed. Both are old."""
    made(folder, name)
    path = folder / name
    data = next(path.glob("*.distcp")) if path.is_dir() else path
    copy = folder / f"copy{path.suffix}"
    if path.is_dir():
        made(folder, "other.pt")
        if not copy.exists():
            unmoor.convert(path, copy)
    else:
        copy.write_bytes(path.read_bytes())
    for each in (path, copy, data):
        os.utime(each, ns=(LONG_AGO, LONG_AGO))
    return path, data


def _other(folder: Path, name: str) -> bytes:
    """The bytes of another run's file of the same form."""
    made(folder, "other.pt")
    place = folder / "others" / name
    if name == "run.pt":
        return (folder / "other.pt").read_bytes()
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        how = {"old.pt": {"format": "legacy"}, "old.safetensors": {"only": "model"}, "old": {"format": "dcp"}}[name]
        unmoor.convert(folder / "other.pt", place, **how)
    return next(place.glob("*.distcp")).read_bytes() if place.is_dir() else place.read_bytes()


def _points(number: int, turn: int) -> list[int]:
    """Before which reads of so many a file is changed; two of them in the short form, others for each change."""
    points = [1 + i * (number - 1) // (TIMES - 1) for i in range(TIMES)]
    return sorted(set(points if ALL else (points[turn % TIMES], points[(turn + 2) % TIMES])))


class Reads:
    """Counts the reads of one file, and does something before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.seen, self.at, self.then = 0, 0, lambda: None
        real = VectorReader.some_into

        def some_into(reader: VectorReader, offset: int, target: memoryview) -> int:
            if reader.path == str(path):
                self.seen += 1
                if self.seen == self.at:
                    self.then()
            return real(reader, offset, target)

        monkeypatch.setattr(VectorReader, "some_into", some_into)

    def until(self, at: int, then: Callable[[], None]) -> None:
        """Do `then` before the at-th read from now on."""
        self.seen, self.at, self.then = 0, at, then


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("verb", VERBS)
def test_a_file_that_is_not_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, form: str) -> None:
    """Whenever it is changed, however: the old values, or an error that says so; no error where it was replaced."""
    name, carry = FILES[form], VERBS[verb]
    other = _other(tmp_path, name)
    path, data = _laid(tmp_path, name)
    reads = Reads(monkeypatch, data)
    wanted = carry(path)
    number, wrong = reads.seen, []
    for turn, (change, do) in enumerate(CHANGES.items()):
        for at in _points(number, turn):
            _laid(tmp_path, name)
            reads.until(at, lambda do=do: do(data, other))
            try:
                found = carry(path)
            except unmoor.CorruptFile as error:
                said = "while it was read" in str(error) or "while the checkpoint was read" in str(error)
                if change in KEPT or not said:
                    wrong.append(f"{change} before read {at} of {number}: {error}")
            else:
                if found != wanted:
                    wrong.append(f"{change} before read {at} of {number}: other values, and no error")
    assert not wrong, "\n".join(wrong)
