"""A disk that loses power: which folders a row of operations may leave behind, if it is cut off anywhere.

What the disk promises is what POSIX does, and no more. Data of a file is safe once the file is synced; until then each
sector of each write is on the disk or not, in any order, and where a file grew and its data did not come, there are
zeros. A name is safe once its folder is synced; until then each change of names is on the disk or not, whole, so that a
rename leaves the old names or the new ones. A file that is synced in a folder that is not may have no name.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from tests.faults import Operation

__all__ = ["Disk", "State", "laid", "materialise", "states"]

SECTOR = 512
ROOT = 0

State = Mapping[str, bytes | None]
"""What a folder holds: path in it -> content of a file, None for a folder."""

Change = Mapping[tuple[int, str], int | None]
"""A change of names: (folder, name) -> the file or folder that is there from now on, None for nothing."""


@dataclass
class _File:
    """Content that is safe, and the writes since: (offset, data), or a size to which the file was cut or grown."""

    safe: bytes = b""
    since: list[tuple[int, bytes] | int] = field(default_factory=list)


class Disk:
    """What of the operations so far is safe, and what is not yet. Files and folders have numbers, as inodes are."""

    def __init__(self, folder: Path) -> None:
        """Begin with a folder as it is, all of it safe."""
        self.root = os.path.realpath(folder)
        self.files: dict[int, _File] = {}
        self.names: dict[tuple[int, str], int] = {}
        self.safe: dict[tuple[int, str], int] = {}
        self.since: list[Change] = []
        self.inodes = {os.stat(folder).st_ino: ROOT}
        self.done = 0
        self._last = ROOT
        self._take(folder, ROOT)
        self.safe = dict(self.names)

    def _take(self, folder: Path, number: int) -> None:
        for entry in os.scandir(folder):
            made = self._new(entry.inode())
            self.names[number, entry.name] = made
            if entry.is_dir(follow_symlinks=False):
                self._take(Path(entry.path), made)
            else:
                self.files[made] = _File(Path(entry.path).read_bytes())

    def _new(self, inode: int) -> int:
        self._last += 1
        self.inodes[inode] = self._last
        return self._last

    def do(self, operation: Operation) -> None:
        """One more operation, as it was done; what failed changed nothing."""
        self.done += 1
        if operation.result < 0:
            return
        act = getattr(self, f"_do_{operation.kind}", None)
        if act is None:
            raise ValueError(f"the model knows no {operation}")
        act(operation)

    def _number(self, operation: Operation) -> int | None:
        return self.inodes.get(operation.inode)

    def _spot(self, path: str) -> tuple[int, str]:
        """The folder that a path is in, and its name there."""
        *folders, name = os.path.relpath(path, self.root).split(os.sep)
        number = ROOT
        for each in folders:
            number = self.names[number, each]
        return number, name

    def _change(self, change: Change) -> None:
        self.since.append(change)
        _apply(self.names, change)

    def _do_open(self, operation: Operation) -> None:
        if "created" in operation.flags:
            number = self._new(operation.inode)
            self.files[number] = _File()
            self._change({self._spot(operation.path): number})
        elif "cut" in operation.flags:
            self._data(operation, 0)

    def _do_write(self, operation: Operation) -> None:
        self._data(operation, (operation.offset, operation.data))

    _do_copy = _do_write
    _do_clone = _do_write

    def _do_truncate(self, operation: Operation) -> None:
        self._data(operation, operation.length)

    def _data(self, operation: Operation, what: tuple[int, bytes] | int) -> None:
        self.files[self.inodes[operation.inode]].since.append(what)

    def _do_fsync(self, operation: Operation) -> None:
        number = self.inodes[operation.inode]
        if number in self.files:
            file = self.files[number]
            file.safe, file.since = _written(file.safe, file.since), []
            return
        mine = [change for change in self.since if any(folder == number for folder, _ in change)]
        for change in mine:
            _apply(self.safe, change)
        self.since = [change for change in self.since if change not in mine]

    _do_fdatasync = _do_fsync

    def _do_sync_range(self, operation: Operation) -> None:
        """It promises nothing: not even the file's length."""

    _do_chmod = _do_utime = _do_mark = _do_sync_range

    def _do_mkdir(self, operation: Operation) -> None:
        self._change({self._spot(operation.path): self._new(operation.inode)})

    def _do_unlink(self, operation: Operation) -> None:
        self._change({self._spot(operation.path): None})

    _do_rmdir = _do_unlink

    def _do_rename(self, operation: Operation) -> None:
        one, two = self._spot(operation.path), self._spot(operation.other)
        self._change({one: self.names[two] if "exchanged" in operation.flags else None, two: self.names[one]})

    def _do_link(self, operation: Operation) -> None:
        self._change({self._spot(operation.other): self.names[self._spot(operation.path)]})


def _apply(names: dict[tuple[int, str], int], change: Change) -> None:
    for spot, number in change.items():
        if number is None:
            names.pop(spot, None)
        else:
            names[spot] = number


def _written(safe: bytes, since: Iterable[tuple[int, bytes] | int]) -> bytes:
    made = bytearray(safe)
    for what in since:
        if isinstance(what, int):
            made = made[:what] + bytes(max(0, what - len(made)))
        else:
            offset, data = what
            made += bytes(max(0, offset - len(made)))
            made[offset : offset + len(data)] = data
    return bytes(made)


Dice = random.Random | None


def _torn(file: _File, dice: random.Random) -> bytes:
    """Any sectors of what was written; sizes are as they were after any of the writes."""
    upto = dice.randint(0, len(file.since))
    whole = _written(file.safe, file.since[:upto])
    late = _written(whole, [what for what in file.since[upto:] if not isinstance(what, int)])
    made = bytearray(_written(file.safe, [len(whole)]))
    chance = dice.choice((0.1, 0.5, 0.9))
    for start in range(0, len(whole), SECTOR):
        if dice.random() < chance:
            made[start : start + SECTOR] = late[start : min(start + SECTOR, len(whole))]
    return bytes(made)


def _zeros(file: _File) -> bytes:
    """It has grown, and none of its data came."""
    return _written(file.safe, [len(_written(file.safe, file.since))])


def _all(file: _File) -> bytes:
    return _written(file.safe, file.since)


def _none(file: _File) -> bytes:
    return file.safe


def states(disk: Disk, *, seeds: int) -> Iterator[State]:
    """What there may be after the power is back: the worst cases by rule, and `seeds` random ones."""
    changes = disk.since
    subsets: list[Sequence[Change]] = [changes[:upto] for upto in range(len(changes) + 1)]
    subsets += [[*changes[:at], *changes[at + 1 :]] for at in range(len(changes))]
    subsets += [[change] for change in changes]
    for subset in subsets:
        for data in (_none, _zeros, _all):
            yield _state(disk, subset, data)
    for seed in range(seeds):
        dice = random.Random(f"{disk.done} {seed}")
        subset = [change for change in changes if dice.random() < 0.7]
        yield _state(disk, subset, lambda file, dice=dice: _torn(file, dice))


def _state(disk: Disk, changes: Iterable[Change], data: object) -> State:
    names = dict(disk.safe)
    for change in changes:
        _apply(names, change)
    content = {number: data(file) if file.since else file.safe for number, file in disk.files.items()}
    found: dict[str, bytes | None] = {}
    _walk(names, content, ROOT, "", found)
    return found


def _walk(
    names: Mapping[tuple[int, str], int], content: Mapping[int, bytes], folder: int, path: str, found: dict
) -> None:
    for (parent, name), number in sorted(names.items()):
        if parent == folder:
            place = os.path.join(path, name)
            found[place] = content.get(number)
            if number not in content:
                _walk(names, content, number, place, found)


def laid(state: State) -> str:
    """Tells one state from others."""
    made = sha256()
    for path, content in sorted(state.items()):
        made.update(repr((path, None if content is None else sha256(content).hexdigest())).encode())
    return made.hexdigest()


def materialise(state: State, folder: Path) -> None:
    """Make a folder that holds it."""
    folder.mkdir()
    for path, content in sorted(state.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
