"""What each byte of a torch zip is: so that a table can say which ones a restore has no need of."""

from __future__ import annotations

import struct
import zipfile
from bisect import bisect
from pathlib import Path

LOCAL = [("signature", 4), ("version", 2), ("flags", 2), ("method", 2), ("time", 2), ("date", 2), ("crc", 4),
         ("stored size", 4), ("size", 4), ("name length", 2), ("extra length", 2)]  # fmt: skip
CENTRAL = [("signature", 4), ("version made by", 2), ("version", 2), ("flags", 2), ("method", 2), ("time", 2),
           ("date", 2), ("crc", 4), ("stored size", 4), ("size", 4), ("name length", 2), ("extra length", 2),
           ("comment length", 2), ("disk", 2), ("internal attributes", 2), ("external attributes", 4),
           ("header offset", 4)]  # fmt: skip

UNREAD = (".format_version", ".storage_alignment", ".data/serialization_id", "version")
"""Records that tell how torch wrote the file; no reader of this version needs them."""


class Regions:
    """Names of the bytes of one zip, by their offset."""

    def __init__(self, path: Path) -> None:
        self._starts: list[int] = []
        self._names: list[str] = []
        data = path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            records, directory = sorted(archive.infolist(), key=lambda info: info.header_offset), archive.start_dir
            listed = archive.infolist()
        for info in records:
            at = self._fields(info.header_offset, LOCAL, "local header: ")
            name, extra = struct.unpack_from("<2H", data, info.header_offset + 26)
            self._add(at, "local header: name")
            self._add(at + name, "local header: padding")
            self._add(at + name + extra, _data(info.filename))
            self._add(at + name + extra + info.compress_size, "descriptor behind the data")
        at = directory
        for info in listed:
            end = self._fields(at, CENTRAL, "directory: ")
            self._add(end, "directory: name")
            at = end + len(info.filename.encode()) + len(info.extra)
        self._add(at, "end records")

    def _fields(self, at: int, fields: list[tuple[str, int]], prefix: str) -> int:
        for name, size in fields:
            self._add(at, prefix + name)
            at += size
        return at

    def _add(self, at: int, name: str) -> None:
        self._starts.append(at)
        self._names.append(name)

    def at(self, offset: int) -> str:
        """What the byte at an offset is."""
        return self._names[bisect(self._starts, offset) - 1]


def _data(name: str) -> str:
    inner = name.partition("/")[2]
    return f"record that no reader needs: {inner}" if inner in UNREAD else f"data of {inner.partition('/')[0]}"
