"""The bytes of a ZIP archive as values, held against PyTorch's own writer and Python's reader."""

from __future__ import annotations

import io
import zipfile
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmoor.execute.zipping import ALIGNMENT, ZIP64_FROM, descriptor, directory, local_header, place

# Positions that PyTorch 2.13's writer gave records of 4 GiB + 100 bytes, 3 and 0 bytes below the folder "big".
BEYOND_4_GIB = [
    ("big/a", 4294967396, 0, 64),
    ("big/b", 3, 4294967484, 4294967552),
    ("big/c", 0, 4294967579, 4294967680),
    ("big/version", 2, 4294967680, 4294967744),
    ("big/byteorder", 6, 4294967770, 4294967872),
]


def archive(records, *, start=0, zip64_from=ZIP64_FROM):
    """A whole archive in memory."""
    members = list(place([(name, len(data)) for name, data in records], start, zip64_from=zip64_from))
    crcs = [zlib.crc32(data) for _, data in records]
    out = bytearray(start)
    for member, crc, (_, data) in zip(members, crcs, records, strict=True):
        out += local_header(member, crc) + data + descriptor(member, crc)
    end = members[-1].end if members else start
    assert len(out) == end
    return bytes(out + directory(members, crcs, end, zip64_from=zip64_from)), members


def torch_positions(state, path):
    torch.save(state, path)
    with zipfile.ZipFile(path) as zipped:
        reader = torch._C.PyTorchFileReader(str(path))
        rows = [(info.filename, info.file_size, info.header_offset) for info in zipped.infolist()]
        return [(name, size, header, reader.get_record_offset(name.split("/", 1)[1])) for name, size, header in rows]


def positions(rows):
    members = place([(name, size) for name, size, _, _ in rows], 0, zip64_from=ZIP64_FROM)
    return [(member.name.decode(), member.nbytes, member.header, member.data) for member in members]


def test_every_record_stands_where_torch_puts_it(tmp_path):
    """PyTorch computes the offsets of storages instead of reading them: ours are those of its own writer."""
    state = {f"w{i}": torch.zeros(n) for i, n in enumerate([0, 1, 3, 1000, 16, 17, 100_000, 0, 5])}
    rows = torch_positions(state, tmp_path / "model.pt")
    assert positions(rows) == rows


def test_records_beyond_4_gib_stand_where_torch_puts_them():
    """The layout agrees with PyTorch's also where sizes and offsets need the fields of ZIP64."""
    assert positions(BEYOND_4_GIB) == BEYOND_4_GIB


@given(st.lists(st.tuples(st.text("abc/é", min_size=1, max_size=90), st.binary(max_size=300)), max_size=6))
def test_any_records_read_back(records):
    """Python's own reader finds every record with its bytes and checksum; data is aligned."""
    data, members = archive([(f"{i}{name}", content) for i, (name, content) in enumerate(records)])
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        assert zipped.testzip() is None
        assert [zipped.read(info) for info in zipped.infolist()] == [content for _, content in records]
    assert all(member.data % ALIGNMENT == 0 for member in members)


@pytest.mark.parametrize("zip64_from", [0, 1, 100, 700, 5000])
def test_zip64_fields_read_back(zip64_from):
    """Sizes and offsets in 64 bits mean the same as in 32: the limit is lowered to meet every mixture."""
    records = [("a", b"x" * 90), ("b", b""), ("c", b"y" * 120), ("d", b"z" * 1500), ("e", b"!")]
    data, _ = archive(records, zip64_from=zip64_from)
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        assert zipped.testzip() is None
        assert [(info.filename, zipped.read(info)) for info in zipped.infolist()] == records


def test_local_headers_are_complete():
    """Readers that go from header to header find size and checksum there, and a data descriptor behind the data."""
    data, (member,) = archive([("top/a", b"123")])
    assert int.from_bytes(data[14:18], "little") == zlib.crc32(b"123")
    assert int.from_bytes(data[18:22], "little") == int.from_bytes(data[22:26], "little") == 3
    assert data[member.data_end : member.data_end + 4] == b"PK\x07\x08"


def test_an_archive_without_records_is_empty():
    """No records make an archive that readers open as empty."""
    data, _ = archive([])
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        assert zipped.namelist() == []
