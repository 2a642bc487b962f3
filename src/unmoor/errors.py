"""The error tree, sorted by whose fault it is.

Every error carries its facts as fields; the sentence is made from them and names the place, both sides and the remedy.
Bottom of the import star: imports nothing of this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "AmbiguousError",
    "ArgumentConflict",
    "CorruptFile",
    "DeviceError",
    "DeviceMismatch",
    "FileError",
    "FitError",
    "HostileFile",
    "KindError",
    "MachineError",
    "MismatchError",
    "NotACheckpoint",
    "RankError",
    "RanksDiffer",
    "ReadError",
    "RestoreError",
    "SaveError",
    "TrustError",
    "UnmoorError",
    "UnsupportedFile",
    "UsageError",
]


class UnmoorError(Exception):
    """Root of all errors of this package. What does not print is an escape in its text, and as it is in its fields.

    `headline` is the first line: what failed and where. `details` are the lines below it, one fact each. `remedy` is
    what to do. `path` is the file concerned, "" where there is none. `ranks` are the ranks at fault where several ran
    together, in the numbers of torch.distributed.get_rank().
    """

    ranks: tuple[int, ...] = ()

    def __init__(self, headline: str, *, details: Sequence[str] = (), remedy: str = "", path: str = "") -> None:
        self.headline = headline
        self.details = tuple(details)
        self.remedy = remedy
        self.path = path
        super().__init__(str(self))

    def add_details(self, *lines: str) -> None:
        """Give an error that is on its way more lines."""
        self.details = (*self.details, *lines)
        self.args = (str(self),)

    def __str__(self) -> str:
        lines = [_plain(self.headline), *(f"  {_plain(line)}" for line in self.details)]
        return "\n".join([*lines, *map(_plain, self.remedy.split("\n"))] if self.remedy else lines)


def _plain(line: str) -> str:
    """A line with what does not print as escapes: names of a file may hold what a terminal obeys."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() or c == "\xa0" else c.encode("unicode_escape").decode("ascii") for c in line)


class UsageError(UnmoorError):
    """You called it wrong: no file was read and nothing was changed."""


class ArgumentConflict(UsageError, TypeError):
    """Two arguments contradict each other, or one is of a kind that cannot be used."""


class RanksDiffer(UsageError):
    """Ranks that should have made one call together were told different things: verbs, paths, objects, versions."""


class TrustError(UsageError):
    """The file needs code that the caller did not trust, or that no caller may trust."""


class FileError(UnmoorError):
    """The file is at fault."""


class NotACheckpoint(FileError):
    """The path holds something else: text, a web page, a pointer, nothing, a socket."""


class CorruptFile(FileError):
    """The file is of a known format and is damaged: cut short, a wrong checksum, records that contradict each other.

    `done` are the ids of the live slots that had been written to, wholly or in part, when the damage was met.
    """

    done: frozenset[str] = frozenset()


class HostileFile(FileError):
    """The file asks for more memory, time or depth than any real checkpoint needs, or is built to deceive."""


class UnsupportedFile(FileError):
    """The file is sound and holds something this version cannot read."""


class FitError(UnmoorError):
    """File and live run do not fit together; nothing was changed."""


class KindError(FitError):
    """A part is of another kind than the role it was meant for.

    `wanted` is that role, "" where several were meant.
    """

    wanted: str = ""


class MismatchError(FitError):
    """Names, shapes, dtypes or classes differ between the file and the live objects."""


class AmbiguousError(FitError):
    """The file allows several readings that would restore different things."""


class DeviceError(FitError):
    """A device is absent here, or the devices of file and live objects cannot be brought together."""


class DeviceMismatch(FitError, RuntimeError):
    """Tensors that meet in one operation live on different devices. A RuntimeError too, as PyTorch's own is.

    `mismatch` is what met as a value (`place`, `met`, `home`, `lines`, `fix`); None in an error out of a pickle.
    """

    mismatch: Any = None


class MachineError(UnmoorError):
    """The machine failed: disk, memory, permissions."""


class RankError(MachineError):
    """Ranks that should meet cannot: one did not come, has died, or failed where no other class says how."""


class _Refused(MachineError, OSError):
    """What the system refused, with its errno where it gave one."""

    def __init__(
        self,
        headline: str,
        *,
        details: Sequence[str] = (),
        remedy: str = "",
        path: str = "",
        errno: int | None = None,
    ) -> None:
        MachineError.__init__(self, headline, details=details, remedy=remedy, path=path)
        self.errno = errno


class SaveError(_Refused):
    """A save did not finish. The checkpoint that was there before is still there."""


class ReadError(_Refused):
    """The system would not read a file: its disk, its server or its permissions are at fault, not what is in it.

    `done` are as those of CorruptFile.
    """

    done: frozenset[str] = frozenset()


class RestoreError(MachineError):
    """A restore stopped after live objects had begun to change; `details` say which.

    `done` are the ids of the live slots that had been written to, wholly or in part. `errno` is the system's, None
    where it did not refuse anything.
    """

    done: frozenset[str] = frozenset()
    errno: int | None = None
