"""Another device tag for the storages of a pickle, by editing its instructions; nothing else in it changes. Pure.

torch pickles a storage as a persistent id ("storage", class, key, tag, number, ...): a tuple of plain pushes, any of
which may recall a text that was pickled before, and whose text may be recalled later, as another storage's tag or as a
value of the user's that happens to be equal. So a tag is changed where it is pushed, whatever recalls it afterwards
pushes for itself what it should be, and the memo numbers everything as before. Whether the result says the same but for
its tags is for a reader of pickles to judge, who knows nothing of this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import Struct
from typing import Final

from unmoor.errors import UnsupportedFile

__all__ = ["Goal", "retagged", "retagged_alike", "retagged_head"]

Goal = Callable[[str, str], str]
"""Key of a storage and its tag -> the tag that it should have."""

Edit = tuple[int, int, bytes]
"""Bytes from .. to .. of a pickle, and what comes in their place."""


def _table(rows: dict[int, bytes]) -> list[int]:
    """Instruction -> its length, -1 where that depends on its argument."""
    sizes = [-1] * 256
    for size, codes in rows.items():
        for code in codes:
            sizes[code] = 1 + size
    return sizes


_NO_ARGUMENT: Final = b"(.012NQR]})abdelostu\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94"
_SIZES: Final = _table({0: _NO_ARGUMENT, 1: b"Kqh\x80", 2: b"M", 4: b"Jrj", 8: b"G\x95"})
_COUNTED: Final = {
    **dict.fromkeys(b"UC\x8c\x8a", 1),
    **dict.fromkeys(b"XTB\x8b", 4),
    **dict.fromkeys(b"\x8d\x8e\x96", 8),
}
"""Instruction -> width of the count that begins its argument."""
_LINES: Final = {**dict.fromkeys(b"FILSVgp", 1), **dict.fromkeys(b"ci", 2)}
"""Instruction -> lines of text that are its argument."""

_TEXTS: Final = frozenset(b"XU\x8cTV\x8dS")
_SILENT: Final = frozenset(b"qrp\x94\x95")
_PUSHES: Final = _TEXTS | frozenset(b"hjgNKMJILFG\x88\x89\x8a\x8bc)")
_TAKES_MARK: Final = frozenset(b"tldeuoi1\x90\x91")
_TAKEN: Final = {0x85: 1, 0x86: 2, 0x87: 3, 0x93: 2}
"""Instruction -> values that it makes one of: tuples of a known length, a class by two texts."""
_MARK, _TUPLE, _STOP, _PERSISTENT, _LONG_PUT, _PUT, _LONG_GET, _GET, _UNICODE, _TEXT_PUT, _TEXT_GET = b"(t.QrqjhVpg"
_TEXT_PERSISTENT: Final = ord("P")
_PROTO, _TRIPLE, _MEMOIZE, _FRAME = 0x80, 0x87, 0x94, 0x95
_FRAME_HEAD: Final = 9
_U4: Final = Struct("<I").unpack_from
_STORAGE, _MODULE = "storage", "module"
_KEY, _TAG, _FEWEST, _HEAD_FIELDS = 2, 3, 5, 3


def retagged(data: bytes, goal: Goal, *, where: str, path: str) -> bytes:
    """The pickle at the beginning of `data` with every tag of a storage as `goal` says, and what stands behind it.

    Raises UnsupportedFile where the pickle puts its storages together in a way that torch never does.
    """
    trace = _Trace(data, where, path)
    trace.follow()
    return _edited(data, trace.edits({at: goal(key, tag) for at, key, tag in trace.uses}))


_BEHIND: Final = rb"(?=(?:q.|r....)?(?:K.|M..|J....|\x8a\x05.{5}|\x8a\x06.{6}|\x8a\x08.{8})t(?:q.|r....)?Q)"
"""What stands behind a tag in a persistent id: its number of elements, and the end of the tuple."""


def retagged_alike(data: bytes, changes: Mapping[str, str]) -> bytes:
    """The pickle with each tag changed to another by the look of its bytes alone: the quick way, not the safe one.

    Right where no value of the user's is the very text of a tag, none looks like a persistent id, and all storages of
    one tag go to one device: whoever takes it has to read it. The pickle as it is where it has frames.
    """
    if data[:2] not in (b"\x80\x02", b"\x80\x03") or not changes:
        return data
    pushes = {_literal(old): _literal(new) for old, new in changes.items()}
    look = re.compile(b"(?:" + b"|".join(map(re.escape, pushes)) + b")" + _BEHIND, re.DOTALL)
    return look.sub(lambda found: pushes[found[0]], data)


def _literal(text: str) -> bytes:
    raw = text.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


def retagged_head(data: bytes, tag: str, *, where: str, path: str) -> bytes:
    """The pickle of (key, tag, class) that stands before a storage in a torch tar, with another tag."""
    trace = _Trace(data, where, path)
    trace.follow()
    begins = {_TRIPLE: 2 if data[0] == _PROTO else 0, _TUPLE: trace.mark + 1}
    items = trace.items(begins[data[trace.last]], trace.last) if data[trace.last] in begins else []
    if len(items) != _HEAD_FIELDS:
        raise trace.odd(trace.last, "begins a storage by what is no head of one")
    return _edited(data, trace.edits({items[1]: tag}))


def _edited(data: bytes, edits: Iterable[Edit]) -> bytes:
    """`data` with each edit applied; they do not overlap."""
    out, at = [], 0
    for begin, stop, new in sorted(edits):
        out += [data[at:begin], new]
        at = stop
    return b"".join([*out, data[at:]])


class _Trace:
    """One pass over the instructions of a pickle, of which the few that matter here are understood.

    An instruction goes by where it begins. `memo` maps an index to the one that made what it stands for, `sources` each
    one that recalls to the one that it recalls, `uses` are the pushes of tags with key and tag, `frames` where frames
    begin, `last` is what made the value that is on top in the end, and `mark` the last mark that was taken.
    """

    def __init__(self, data: bytes, where: str, path: str) -> None:
        self.data, self.where, self.path = data, where, path
        self.memo: dict[int, int] = {}
        self.sources: dict[int, int] = {}
        self.uses: list[tuple[int, str, str]] = []
        self.frames: list[int] = []
        self.last = self.mark = -1

    def odd(self, at: int, what: str) -> UnsupportedFile:
        """The error for what torch never writes and this cannot follow."""
        return UnsupportedFile(
            f"{self.where}: at byte {at:,} it {what}, as torch never does: its device tags cannot be changed in place",
            remedy="Write it anew: torch.save(unmoor.load(path, map_location=...), new_path)",
            path=self.path,
        )

    def follow(self) -> None:  # noqa: C901 - one loop over the instructions, a branch for each that matters
        """Go through the pickle from its first instruction to its last."""
        data, memo, sources = self.data, self.memo, self.sources
        marks: list[int] = []
        pos, last, opened, closed = 0, -1, -1, -1
        while True:
            if pos >= len(data):
                raise self.odd(pos, "ends before its last instruction")
            at, code = pos, data[pos]
            pos += _SIZES[code]
            if code == _LONG_PUT:
                memo[_U4(data, at + 1)[0]] = last
            elif code == _PUT:
                memo[data[at + 1]] = last
            elif code == _GET:
                sources[at] = memo.get(data[at + 1], -1)
                last = at
            elif code == _MEMOIZE:
                memo[len(memo)] = last
            elif code == _MARK:
                marks.append(at)
            elif code == _PERSISTENT:
                if closed != last or data[closed] != _TUPLE:
                    raise self.odd(at, "takes a storage from what is no tuple of its own")
                self._use(opened + 1, closed)
                last = at
            elif code == _LONG_GET:
                sources[at] = memo.get(_U4(data, at + 1)[0], -1)
                last = at
            elif code == _FRAME:
                self.frames.append(at)
            elif code == _STOP:
                self.last, self.mark = last, opened
                return
            elif pos < at:
                pos = self._after(at)
                last = self._line(at, last)
            else:
                if code in _TAKES_MARK and marks:
                    opened, closed = marks.pop(), at
                last = at

    def _line(self, at: int, last: int) -> int:
        """What is on top after an instruction of variable length; those of text deal with the memo as others do."""
        if self.data[at] not in (_TEXT_PUT, _TEXT_GET):
            return at
        index = int(self.data[at + 1 : self.data.find(b"\n", at)])
        if self.data[at] == _TEXT_PUT:
            self.memo[index] = last
            return last
        self.sources[at] = self.memo.get(index, -1)
        return at

    def _after(self, at: int) -> int:
        """Where an instruction ends."""
        data, code = self.data, self.data[at]
        width = _COUNTED.get(code)
        if width is not None:
            return at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
        if code not in _LINES:
            what = "names a storage in text" if code == _TEXT_PERSISTENT else f"holds instruction 0x{code:02x}"
            raise self.odd(at, what)
        for _ in range(_LINES[code]):
            at = data.find(b"\n", at) + 1 or len(data)
        return at

    def _use(self, begin: int, end: int) -> None:
        """Note the tag of the persistent id that the instructions from `begin` to `end` push, part by part."""
        items = self.items(begin, end)
        kind = self.text(items[0]) if items else ""
        if kind == _MODULE:
            return
        if kind != _STORAGE or len(items) < _FEWEST:
            raise self.odd(end, "names by a persistent id what is no storage")
        self.uses.append((items[_TAG], self.text(items[_KEY]), self.text(items[_TAG])))

    def items(self, at: int, end: int) -> list[int]:
        """The instructions that made what stands on the stack after those from `at` to before `end`."""
        data = self.data
        stack: list[int] = []
        marks: list[int] = []
        while at < end:
            code = data[at]
            if code in _PUSHES:
                stack.append(at)
            elif code == _MARK:
                marks.append(len(stack))
            elif code not in _SILENT:
                taken = len(stack) - marks.pop() if code == _TUPLE and marks else _TAKEN.get(code, -1)
                if not 0 <= taken <= len(stack):
                    raise self.odd(at, "puts a persistent id together by more than plain values")
                stack[len(stack) - taken :] = [at]
            at = at + _SIZES[code] if _SIZES[code] > 0 else self._after(at)
        return stack

    def source(self, at: int) -> int:
        """The instruction that made what the one at `at` pushes."""
        while at in self.sources:
            at = self.sources[at]
        return at

    def text(self, at: int) -> str:
        """The text that an instruction pushes or recalls."""
        source = self.source(at)
        code = self.data[source] if source >= 0 else -1
        if code not in _TEXTS:
            raise self.odd(at, "has in a persistent id what is no text")
        raw = self.data[source + 1 + _COUNTED.get(code, 0) : self._after(source)]
        return raw.decode("utf-8", "replace") if code in _COUNTED else raw.rstrip(b"\r\n").strip(b"'\"").decode()

    def edits(self, wanted: dict[int, str]) -> list[Edit]:
        """What to change for each of these instructions to push that text, and all others what they push now."""
        made = list(self._retold(wanted))
        return [*made, *self._reframed(made)]

    def _retold(self, wanted: dict[int, str]) -> Iterator[Edit]:
        for at, text in wanted.items():
            if at not in self.sources and self.text(at) != text:
                yield at, self._after(at), self._push(at, text)
        for at in self.sources:
            source = self.source(at)
            if at in wanted or source in wanted:
                said = self.text(source)
                due = wanted.get(at, said)
                if due != wanted.get(source, said):
                    yield at, self._end(at), self._push(source, due)

    def _end(self, at: int) -> int:
        size = _SIZES[self.data[at]]
        return at + size if size > 0 else self._after(at)

    def _push(self, at: int, text: str) -> bytes:
        """The push of another text, by an instruction of the same kind."""
        code, raw = self.data[at], text.encode()
        if code in _COUNTED:
            return bytes([code]) + len(raw).to_bytes(_COUNTED[code], "little") + raw
        return b"V" + raw + b"\n" if code == _UNICODE else b"S'" + raw + b"'\n"

    def _reframed(self, edits: list[Edit]) -> Iterator[Edit]:
        """The lengths of the frames in which something has changed its length."""
        for at in self.frames:
            begin = at + _FRAME_HEAD
            length = int.from_bytes(self.data[at + 1 : begin], "little")
            grown = sum(len(new) - (stop - first) for first, stop, new in edits if begin <= first < begin + length)
            if grown:
                yield at + 1, begin, (length + grown).to_bytes(8, "little")
