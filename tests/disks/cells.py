"""Which refusal of the system meets which call of which verb, and what must be true afterwards.

A cell is one verb and one fault. `cells` makes them from how often a verb makes each kind of call; `trouble` says what
is wrong with what came of one, "" for nothing. `figures` counts all of it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import unmoor
from tests.faults import Fault
from tests.faults.zygote import Run, Zygote

from .verbs import READS, VERBS, WRITES, contents, laid, made, template

REFUSALS: Mapping[str, tuple[int, ...]] = {
    "open": (
        errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.EIO, errno.ESTALE,
        errno.EINTR,
    ),
    "write": (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ESTALE, errno.EINTR),
    "truncate": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR),
    "fsync": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR),
    "rename": (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ESTALE, errno.EINTR, errno.EDQUOT),
    "mkdir": (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT, errno.EIO),
    "close": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR),
    "copy": (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR),
    "unlink": (errno.EIO, errno.EACCES, errno.EROFS),
    "chmod": (errno.EPERM, errno.EROFS),
    "sync_range": (errno.EIO,),
    "read": (errno.EIO, errno.ESTALE, errno.EINTR, errno.ENOMEM, errno.ETIMEDOUT),
    "open_read": (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOMEM, errno.EINTR),
    "lock": (errno.ENOLCK, errno.EINTR),
    "list": (errno.EIO, errno.EACCES, errno.ENOMEM, errno.ESTALE),
    "stat": (errno.EIO, errno.ESTALE),
}  # fmt: skip
"""Kind of call -> what a disk, a server or a limit refuses it with."""

GONE = (errno.ENODEV, errno.ESTALE, errno.EIO, errno.ENOTCONN)
"""What every call is refused with once a mount has vanished."""
_COUNTING = Fault("any", errno.EIO, match="/no such path/")
_FEW, _MANY = 2, 40
_NOT_RETRIED = ("rename", "mkdir", "copy", "close", "list", "lock")
"""Interrupted calls that Python does not make again."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One verb, and the fault that it meets."""

    verb: str
    fault: Fault

    def __str__(self) -> str:
        fault = self.fault
        which = f"{fault.kind} {fault.first}{'' if fault.times else ' and all after'}"
        return f"{self.verb}: {which} -> {errno.errorcode[fault.error]}"

    @property
    def retried(self) -> bool:
        """Whether Python makes the call again by itself: such a fault is none."""
        return self.fault.error == errno.EINTR and self.fault.kind not in _NOT_RETRIED


def counted(zygote: Zygote, verb: str, folder: Path) -> Mapping[str, int]:
    """How often a verb makes each kind of call where nothing is refused."""
    made(folder, *VERBS[verb].needs)
    run = zygote.run("tests.disks.verbs:carry", folder, verb, str(folder), fail=_COUNTING)
    if run.error or run.value["told"]:
        raise AssertionError(f"{verb} fails on a good disk: {run.error or run.value['told']['text']}")
    return run.counts


def written(zygote: Zygote, verb: str, folder: Path) -> int:
    """How many bytes a verb writes."""
    made(folder, *VERBS[verb].needs)
    run = zygote.run("tests.disks.verbs:carry", folder, verb, str(folder), log=True, log_data=False)
    return sum(one.result for one in run.log if one.kind in ("write", "copy", "clone") and one.result > 0)


def cells(verb: str, counts: Mapping[str, int], *, few: bool) -> Iterator[Cell]:
    """Each call refused once, in turn with everything; the first of a kind with each; and mounts that vanish.

    `few` takes of each kind the first and the last call, each verb beginning elsewhere in the row of refusals.
    """
    turn = count(7 * list(VERBS).index(verb))
    for kind, codes in REFUSALS.items():
        number = counts.get(kind, 0)
        if not number:
            continue
        for n in _spread(number, _FEW if few else number):
            yield Cell(verb, Fault(kind, codes[next(turn) % len(codes)], first=n))
        if not few:
            yield from (Cell(verb, Fault(kind, code)) for code in codes)
    total = sum(counts.values())
    for n in _spread(total, _FEW if few else _MANY):
        yield Cell(verb, Fault("any", GONE[next(turn) % len(GONE)], first=1 + n // 2 if few else n, times=0))


def _spread(number: int, most: int) -> list[int]:
    if number <= most:
        return list(range(1, number + 1))
    return sorted({1 + round(i * (number - 1) / (most - 1)) for i in range(most)})


def tried(zygote: Zygote, cell: Cell, folder: Path) -> str:
    """What is wrong with what came of a cell, in words; "" for nothing."""
    verb = VERBS[cell.verb]
    laid(folder, *verb.needs)
    before = contents(folder)
    run = zygote.run("tests.disks.verbs:carry", folder, cell.verb, str(folder), fail=cell.fault)
    return trouble(cell, run, folder, before)


def trouble(cell: Cell, run: Run, folder: Path, before: Mapping[str, str]) -> str:
    """What is wrong with how a run ended."""
    if run.error or run.code or run.value is None:
        return f"the fork ended with {run.code}: {run.error}"
    told, after = run.value["told"], contents(folder)
    wrong = [*_error(cell, told, folder), *_live(cell, run.value), *_left(cell, told, before, after)]
    return "; ".join([*wrong, *(_writes if cell.verb in WRITES else _reads)(cell, run.value, folder, before, after)])


def _error(cell: Cell, told: Mapping[str, Any] | None, folder: Path) -> Iterator[str]:
    """The error is ours, names the place and what to do, and keeps the errno."""
    if told is None:
        return
    if cell.retried:
        yield f"an interrupted call was not made again: {told['text']}"
    if cell.fault.kind == "stat" and "FileError" in told["kinds"]:
        return  # os.path has it that what it cannot ask for is not there
    if "MachineError" not in told["kinds"]:
        yield f"{told['kinds'][0]} is no MachineError: {told['text']}"
    elif told["errno"] != cell.fault.error:
        yield f"errno {told['errno']}: {told['text']}"
    if str(folder) not in told["text"]:
        yield f"no place: {told['text']}"
    if not told["remedy"]:
        yield f"no remedy: {told['text']}"


def _live(cell: Cell, value: Mapping[str, Any]) -> Iterator[str]:
    """Nothing live changed that the error does not name; nothing is named that did not change."""
    told, changed = value["told"], set(value["changed"])
    if not cell.verb.startswith("restore"):
        if changed:
            yield f"live tensors changed: {sorted(changed)}"
        return
    if told is None:
        return
    if changed != set(told["done"]):
        yield f"changed {sorted(changed)}, told {told['done']}: {told['text']}"
    for label, _, name in (name.partition("/") for name in changed):
        if name not in told["text"] and f"{label} (all)" not in told["text"]:
            yield f"{label}/{name} changed and is not told of: {told['text']}"


def _left(
    cell: Cell, told: Mapping[str, Any] | None, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[str]:
    """No hidden file is left, unless it could not be removed, or may be all that a power failure leaves."""
    left = sorted(set(after) - set(before) - {VERBS[cell.verb].target})
    left = [name for name in left if not name.startswith(f"{VERBS[cell.verb].target}/") or ".unmoor-" in name]
    unremovable = cell.fault.kind in ("unlink", "rmdir", "list", "open_read", "stat", "any")
    unsafe = told is not None and "did not confirm its name" in told["text"]
    if left and not ((unremovable or unsafe) and all(".unmoor-" in name for name in left)):
        yield f"left behind: {left}"


def _writes(
    cell: Cell, value: Mapping[str, Any], folder: Path, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[str]:
    """The target is the old one, byte for byte, where the verb failed; else a new one that holds."""
    target = VERBS[cell.verb].target
    others = [name for name in before if not _of(name, target) and before[name] != after.get(name)]
    if others:
        yield f"other files changed: {others}"
    told, same = value["told"], _of_target(before, target) == _of_target(after, target)
    if cell.verb == "relocate":
        same = unmoor.describe(folder / target).devices() == unmoor.describe(template() / target).devices()
    in_place = told is not None and "in place" in told["text"]
    if told is not None and not in_place:
        if not same:
            yield f"the old {target} is no longer what it was: {told['text']}"
        return
    if same and cell.verb != "page":
        yield f"{target} was not written, and no error says so"
    elif not target.endswith(".html") and not unmoor.verify(folder / target).ok:
        yield f"the new {target} does not hold"


def _reads(
    cell: Cell, value: Mapping[str, Any], folder: Path, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[str]:
    if before != after:
        yield "files changed"
    refused = cell.fault.kind == "read" and not cell.fault.times
    if cell.verb.startswith("verify") and refused and value["told"] is None and not value["faults"]:
        yield "verify says that all is well"


def _of(name: str, target: str) -> bool:
    return name == target or name.startswith(f"{target}/")


def _of_target(files: Mapping[str, str], target: str) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if _of(name, target)}


def figures(zygote: Zygote, *, few: bool) -> dict[str, tuple[int, int]]:
    """Kind of verb ("writes", "reads") -> faults tried, and how many of them were met as they should."""
    found = {}
    for kind, verbs in (("writes", WRITES), ("reads", READS)):
        wrong = total = 0
        for verb in verbs:
            with TemporaryDirectory(prefix="disks-") as folder:
                for cell in cells(verb, counted(zygote, verb, Path(folder)), few=few):
                    total, wrong = total + 1, wrong + bool(tried(zygote, cell, Path(folder)))
        found[kind] = (total, total - wrong)
    return found
