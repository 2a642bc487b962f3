"""A file that is written to by steps, and what is on the disk when the process dies in the middle of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Recorder", "after", "states"]


@dataclass(frozen=True)
class Write:
    """`data` at `offset`."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class Cut:
    """The file ends at `size`."""

    size: int


@dataclass
class Recorder:
    """Takes what a tail is told, and does nothing but remember it; `synced` are the numbers of steps before a sync."""

    steps: list[Write | Cut] = field(default_factory=list)
    synced: list[int] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        self.steps.append(Write(offset, bytes(data)))

    def truncate(self, size: int) -> None:
        self.steps.append(Cut(size))

    def sync(self) -> None:
        self.synced.append(len(self.steps))


def after(old: bytes, steps: list[Write | Cut]) -> bytes:
    """What a file holds after some steps."""
    made = bytearray(old)
    for step in steps:
        _apply(made, step)
    return bytes(made)


def states(old: bytes, steps: list[Write | Cut], every: int = 1) -> Iterator[tuple[int, int, bytes]]:
    """Step, bytes of it that were written, and the file then: after each byte of each write, and after each cut.

    With `every`, of writes longer than that only each so-manieth byte, and the first and last few of each write.
    """
    made = bytearray(old)
    for number, step in enumerate(steps):
        if isinstance(step, Write):
            for count in _counts(len(step.data), every):
                part = bytearray(made)
                _apply(part, Write(step.offset, step.data[:count]))
                yield number, count, bytes(part)
        _apply(made, step)
        yield number, -1, bytes(made)


def _counts(length: int, every: int) -> Iterator[int]:
    return iter(sorted({*range(1, length, every), *range(1, min(length, 60)), *range(max(length - 60, 1), length)}))


def _apply(made: bytearray, step: Write | Cut) -> None:
    if isinstance(step, Cut):
        del made[step.size :]
        made.extend(bytes(step.size - len(made)))
        return
    if not step.data:
        return
    end = step.offset + len(step.data)
    made.extend(bytes(max(0, end - len(made))))
    made[step.offset : end] = step.data
