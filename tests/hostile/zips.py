"""Zips that lie about themselves, by name. Made when they are tested."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable

from tests.hostile.make_hostile import DATA, W, archive, central, checkpoint, dump, end, patched

__all__ = ["ZIPS"]

_SYSTEM = b"\x80\x02cposix\nsystem\nX\x04\0\0\0echo\x85R."


def _local(raw: bytes, number: int) -> int:
    at = -1
    for _ in range(number + 1):
        at = raw.find(b"PK\x03\x04", at + 1)
    return at


def _sound() -> bytearray:
    return checkpoint({"w": W})


def _central(number: int, offset: int, new: bytes) -> bytes:
    raw = _sound()
    return patched(raw, [(central(raw, number) + offset, new)])


def _both(number: int, local: int, listed: int, new: bytes) -> bytes:
    raw = _sound()
    return patched(raw, [(_local(raw, number) + local, new), (central(raw, number) + listed, new)])


def _end(offset: int, new: bytes) -> bytes:
    raw = _sound()
    return patched(raw, [(end(raw) + offset, new)])


def _two_directories() -> bytes:
    """A second directory, of a pickle that runs a command, behind the first: which end record counts decides."""
    other = archive([("a/data.pkl", _SYSTEM), ("a/data/0", DATA)])
    return bytes(_sound()) + bytes(other)


def _hidden_in_comment() -> bytes:
    """A whole zip as the comment of another."""
    inner = bytes(archive([("a/data.pkl", _SYSTEM)]))
    raw = _sound()
    return patched(raw, [(end(raw) + 20, struct.pack("<H", len(inner)))]) + inner


def _comment(length: int, text: bytes) -> bytes:
    raw = _sound()
    return patched(raw, [(end(raw) + 20, struct.pack("<H", length))]) + text


def _inside() -> bytes:
    """A record whose bytes are those of another record, header and all."""
    inner = bytes(archive([("a/data/1", DATA)]))
    head = inner[: central(inner, 0)]
    raw = archive([("a/data.pkl", dump({"w": W})), ("a/data/0", DATA), ("a/box", head)])
    at, listed = raw.find(head), central(raw, 2)
    entry = bytearray(inner[central(inner, 0) : end(inner)])
    entry[42:46] = struct.pack("<I", at)
    last = end(raw)
    made = raw[:last] + entry + raw[last:]
    made[last + len(entry) + 8 : last + len(entry) + 12] = struct.pack("<HH", 4, 4)
    made[last + len(entry) + 12 : last + len(entry) + 16] = struct.pack("<I", last + len(entry) - central(raw, 0))
    assert listed
    return bytes(made)


def _quoted() -> bytes:
    """Three records that share one run of deflated bytes, each header quoted by the one before it (a quoted bomb)."""
    kernel = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = kernel.compress(bytes(1 << 20)) + kernel.flush()
    out, listed = bytearray(), bytearray()
    for number in range(3):
        name = b"a/data/%d" % number
        fields = (20, 0, 8, 0, 33, zlib.crc32(bytes(1 << 20)), len(body) + 40 * (2 - number), 1 << 20, len(name))
        listed += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, *fields, 0, 0, 0, 0, 0, len(out)) + name
        out += struct.pack("<IHHHHHIIIHH", 0x04034B50, *fields, 0) + name
    out += body
    count = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 3, 3, len(listed), len(out), 0)
    return bytes(out + listed + count)


def _wide(number: int, fields: bytes) -> bytes:
    """An entry of the directory whose sizes stand in a ZIP64 field with these bytes."""
    raw = _sound()
    at = central(raw, number)
    extra = struct.pack("<HH", 1, len(fields)) + fields
    name = struct.unpack_from("<H", raw, at + 28)[0]
    raw[at + 20 : at + 28] = b"\xff" * 8
    raw[at + 42 : at + 46] = b"\xff" * 4
    raw[at + 30 : at + 32] = struct.pack("<H", len(extra))
    raw[at + 46 + name : at + 46 + name] = extra
    last = end(raw)
    size = struct.unpack_from("<I", raw, last + 12)[0] + len(extra)
    raw[last + 12 : last + 16] = struct.pack("<I", size)
    return bytes(raw)


def _deflated(pickled: bytes, declared: int | None = None) -> bytes:
    """data.pkl deflated, with a size of its own choosing."""
    raw = archive([("a/data.pkl", pickled), ("a/version", b"3")], zipfile.ZIP_DEFLATED)
    if declared is None:
        return bytes(raw)
    size = struct.pack("<I", declared)
    return patched(raw, [(22, size), (central(raw, 0) + 24, size)])


def _nested() -> bytes:
    """A zip in a zip in a zip, each deflated a thousandfold."""
    inner = _deflated(b"\x80\x02" + b"N0" * (4 << 20) + b"N.")
    for _ in range(3):
        inner = bytes(archive([("a/data.pkl", inner)], zipfile.ZIP_DEFLATED))
    return inner


def _named(*names: str) -> Callable[[], bytes]:
    return lambda: bytes(checkpoint({"w": W}, *((name, b"x") for name in names)))


def _renamed(name: bytes) -> bytes:
    return bytes(checkpoint({"w": W}, ("a/xy", b"x"))).replace(b"a/xy", name)


def _case() -> bytes:
    """Two names that differ in case: torch looks names up without regard to it."""
    return bytes(archive([("a/DATA.PKL", _SYSTEM), ("a/data.pkl", dump({"w": W})), ("a/data/0", DATA)]))


def _streamed(flags: int = 8) -> bytes:
    """Sizes only behind the data, as a stream is written."""
    out = io.BytesIO()

    class Stream(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            return out.write(data)

    with zipfile.ZipFile(Stream(), "w") as file:  # type: ignore[arg-type]
        for name, data in (("a/data.pkl", dump({"w": W})), ("a/data/0", DATA)):
            file.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue() if flags == 8 else out.getvalue().replace(b"PK\x07\x08", b"PK\x07\x09")


_BELOW = struct.pack("<q", -1)

ZIPS: dict[str, tuple[Callable[[], bytes], str]] = {
    "two directories": (_two_directories, "UnsupportedFile"),
    "a zip as a comment": (_hidden_in_comment, "UnsupportedFile CorruptFile"),
    "a comment longer than there is": (lambda: _comment(500, b"short"), "CorruptFile"),
    "a comment that is an end record": (lambda: _comment(22, b"PK\x05\x06" + bytes(18)), "CorruptFile UnsupportedFile"),
    "a record inside another": (_inside, "CorruptFile"),
    "quoted headers": (_quoted, "CorruptFile UnsupportedFile"),
    "one header twice": (lambda: _central(1, 42, b"\0\0\0\0"), "CorruptFile"),
    "a header in the directory": (lambda: _central(1, 42, struct.pack("<I", central(_sound(), 0))), "CorruptFile"),
    "sizes below zero": (lambda: _wide(1, _BELOW + _BELOW + bytes(8)), "CorruptFile HostileFile"),
    "a header below zero": (lambda: _wide(1, struct.pack("<qqq", 12, 12, -1)), "CorruptFile"),
    "sizes of 2 ** 63": (lambda: _wide(1, struct.pack("<QQQ", 1 << 63, 1 << 63, 0)), "CorruptFile HostileFile"),
    "ZIP64 that is too short": (lambda: _wide(1, bytes(8)), "CorruptFile"),
    "a directory that is too small": (lambda: _end(12, struct.pack("<I", 10)), "CorruptFile UnsupportedFile"),
    "a directory at 0": (lambda: _end(16, bytes(4)), "CorruptFile UnsupportedFile"),
    "fewer records than there are": (lambda: _end(8, b"\1\0\1\0"), "CorruptFile"),
    "no records at all": (lambda: _end(8, bytes(4)), "CorruptFile UnsupportedFile"),
    "bytes before the zip": (lambda: b"#!/bin/sh\n" + bytes(_sound()), "NotACheckpoint UnsupportedFile"),
    "a zip before the zip": (lambda: bytes(archive([("a/x", b"")])) + bytes(_sound()), "UnsupportedFile"),
    "one size in the header, another listed": (lambda: _central(1, 24, struct.pack("<I", 8)), "CorruptFile"),
    "an extra field past the end": (lambda: _central(1, 30, b"\xff\xff"), "CorruptFile"),
    "a name past the end": (lambda: _central(1, 28, b"\xff\xff"), "CorruptFile"),
    "an extra field of the header past the end": (lambda: _both(1, 28, 30, b"\xff\xff"), "CorruptFile"),
    "encrypted": (lambda: _both(0, 6, 8, b"\1\0"), "UnsupportedFile"),
    "strongly encrypted": (lambda: _both(0, 6, 8, b"\x41\0"), "UnsupportedFile"),
    "encrypted by the header alone": (lambda: patched(_sound(), [(6, b"\1\0")]), "CorruptFile UnsupportedFile"),
    "a pickle of a gibibyte": (lambda: _deflated(b"N." + bytes(2000), 1 << 30), "HostileFile"),
    "a pickle that inflates to more": (lambda: _deflated(b"N." + bytes(2000), 3), "CorruptFile"),
    "a pickle that inflates a thousandfold": (
        lambda: _deflated(b"\x80\x02" + b"N0" * (4 << 20) + b"N."), "HostileFile"),
    "dicts that inflate a thousandfold": (lambda: _deflated(b"\x80\x02(" + b"}" * (1 << 20) + b"l."), "HostileFile"),
    "zips in zips": (_nested, "CorruptFile UnsupportedFile HostileFile"),
    "names that differ in case": (_case, "CorruptFile"),
    "a stream": (_streamed, "sound"),
    "a stream of odd descriptors": (lambda: _streamed(0), "sound CorruptFile"),
    "names that climb": (_named("../../evil", "a/../../evil"), "sound"),
    "absolute names": (_named("/etc/evil", "//evil", "\\\\host\\evil"), "sound"),
    "names of drives": (_named("C:\\evil", "C:evil"), "sound"),
    "names with a zero byte": (lambda: _renamed(b"a\0xy"), "sound"),
    "names of 60,000 letters": (_named("a/" + "x" * 60000), "sound"),
    "names that are no UTF-8": (lambda: _renamed(b"\xff\xfexy"), "sound"),
    "names that ring": (_named("a/\x1b[2J\x07\u202e"), "sound"),
    "an empty name": (_named(""), "sound"),
    "40,000 empty names": (lambda: bytes(archive([(f"{i}", b"") for i in range(40000)])), "UnsupportedFile"),
}  # fmt: skip
"""Name -> what makes it, and what may come of it: classes of errors, or "sound"."""
