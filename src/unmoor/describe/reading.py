"""Reading one pickle with the tables of this package, and what such a reading tells.

The bridge between the formats (which know where a pickle lies) and the machine (which knows what it says).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from unmoor.errors import CorruptFile, FileError, HostileFile, UnsupportedFile
from unmoor.filing import Reader, read_into
from unmoor.values.nodes import Opaque
from unmoor.values.text import format_bytes

from . import pickles
from .closing import closed
from .machine import Machine, Recalled, Short
from .phrases import Phrases, Stored
from .rebuild import BUILDS, CONSTANTS, RULES, storage_parts

__all__ = ["MAX_PICKLE", "WINDOW", "Reading", "Scanner", "read_partly", "read_pickle", "read_pickle_at"]

MAX_PICKLE: Final = 1 << 29
WINDOW: Final = 1 << 16
_GROWTH: Final = 4
_MAX_SCANNED: Final = 64 << 20

Persistent = Callable[[Machine, Any], Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one pickle says: its value, the names and unknown calls in it, what was simplified, where it ends.

    `nbytes` are those of the file that pay for a walk over it.
    """

    value: Any
    globals: tuple[str, ...]
    calls: list[Opaque]
    notes: dict[tuple[str, str], int]
    protocol: int
    nbytes: int
    end: int


def no_persistent(machine: Machine, pid: Any) -> Any:
    """What a persistent id is in a pickle that should have none."""
    machine.charge(4)
    return Opaque("pickle.persistent_id", (pid,))


def read_pickle(
    data: bytes | bytearray,
    *,
    path: str,
    where: str,
    persistent: Persistent = no_persistent,
    stored: Stored | None = None,
    weight: int | None = None,
    allowance: int = 1,
) -> Reading:
    """Read the pickle that begins `data`. Raises CorruptFile where the data ends first.

    `persistent` answers a persistent id, and may be asked for one twice. `stored` makes the storages of which the ids
    of torch tell, where `persistent` makes nothing else of them; tensors are then read in one step each.
    """
    try:
        return _read(
            data, path=path, where=where, persistent=persistent, stored=stored, weight=weight, allowance=allowance
        )
    except Short:
        raise CorruptFile(
            f"{where} is cut short: its {len(data):,} bytes end in the middle of an instruction",
            remedy="The save or the copy was cut short. Copy it again, or use the checkpoint before it.",
            path=path,
        ) from None


def read_pickle_at(
    reader: Reader,
    offset: int,
    *,
    where: str,
    persistent: Persistent = no_persistent,
    stored: Stored | None = None,
    window: int = WINDOW,
) -> Reading:
    """Read the pickle at `offset` of a file, whose length only reading tells. `end` counts from `offset`.

    Reads `window` bytes first and a larger window while the pickle goes on, never past MAX_PICKLE.
    """
    rest, size = max(0, reader.size - offset), window
    while True:
        data = bytearray(min(size, rest))
        read_into(reader, offset, memoryview(data))
        try:
            return _read(data, path=reader.path, where=where, persistent=persistent, stored=stored)
        except Short as short:
            need = short.need
        if size >= rest or need > rest:
            raise CorruptFile(
                f"{reader.path} is cut short: {where.removeprefix(reader.path + ': ')} begins at byte {offset:,} and "
                f"does not end before the file does, at byte {reader.size:,}",
                remedy="The save or the copy was cut short. Copy it again, or use the checkpoint before it.",
                path=reader.path,
            )
        if size >= MAX_PICKLE:
            raise HostileFile(f"{where} takes more than {format_bytes(MAX_PICKLE)}", path=reader.path)
        size = min(max(_GROWTH * size, need), MAX_PICKLE)


def _read(
    data: bytes | bytearray,
    *,
    path: str,
    where: str,
    persistent: Persistent,
    stored: Stored | None = None,
    weight: int | None = None,
    allowance: int = 1,
) -> Reading:
    how: Any = {"path": path, "where": where, "persistent": persistent, "weight": weight, "allowance": allowance}
    machine = _machine(data, **how)
    machine.phrases = Phrases(stored, storage_parts) if stored is not None else None
    try:
        value = pickles.run(machine)
    except Recalled:
        return _read(data, **how)
    paid = len(data) if weight is None else weight
    return Reading(value, tuple(machine.globals), machine.calls, machine.notes, machine.protocol, paid, machine.pos)


def _machine(
    data: bytes | bytearray,
    *,
    path: str,
    where: str,
    persistent: Persistent,
    weight: int | None = None,
    allowance: int = 1,
) -> Machine:
    return Machine(
        data,
        rules=RULES,
        constants=CONSTANTS,
        builds=BUILDS,
        persistent=persistent,
        path=path,
        where=where,
        weight=weight,
        allowance=allowance,
    )


def read_partly(data: bytes, *, path: str, where: str, persistent: Persistent) -> Reading:
    """What a damaged pickle says up to where it breaks off: containers that were open are closed with what they had.

    `end` is where that is. Raises HostileFile as `read_pickle` does.
    """
    machine = _machine(data, path=path, where=where, persistent=persistent)
    try:
        value = pickles.run(machine)
    except (CorruptFile, UnsupportedFile, Short):
        value = closed([*machine.meta, machine.stack])
    return Reading(
        value, tuple(machine.globals), machine.calls, machine.notes, machine.protocol, len(data), machine.pos
    )


class Scanner:
    """Reads pickles found inside pickles, for their names and calls; stops after a budget of bytes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.left = _MAX_SCANNED

    def __call__(self, data: bytes) -> tuple[Collection[str], list[Opaque]] | None:
        """Names and calls of the pickle in `data`; None where it cannot be read."""
        self.left -= len(data)
        if self.left < 0:
            return None
        try:
            reading = read_pickle(data, path=self.path, where=f"{self.path}: an inner pickle")
        except FileError:
            return None
        return reading.globals, reading.calls
