"""Summing up runs of bytes: pieces, neighbours, threads, files that fail, and how much memory it takes."""

from __future__ import annotations

import os
import threading
import tracemalloc
import zlib

import pytest

from unmoor.errors import CorruptFile
from unmoor.execute import audit as module
from unmoor.execute.audit import audit
from unmoor.values.nodes import Span
from unmoor.values.verification import Record

DATA = os.urandom(300_000)


class Reader:
    """A file in memory that may be bad from some byte on, and remembers how much it was asked for."""

    path = "fake"

    def __init__(self, data: bytes, bad: int = 1 << 60) -> None:
        self.data, self.size, self.bad = data, len(data), bad
        self.asked: list[int] = []

    def some_into(self, offset: int, target: memoryview) -> int:
        if offset + len(target) > self.bad:
            raise OSError(5, "Input/output error")
        self.asked.append(len(target))
        part = self.data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)


def record(name: str, start: int, end: int, crc: int | None = None) -> Record:
    return Record(name, Span(start, end - start), zlib.crc32(DATA[start:end]) if crc is None else crc)


def run(records: list[Record], reader: Reader, **options: int) -> list[module.Wrong]:
    settings = {"buffer_bytes": 1 << 20, "threads": 2, **options}
    return audit(records, open_span=lambda _: reader, progress=None, **settings)


LAID = [record("a", 0, 10), record("b", 10, 5_000), record("c", 5_000, 280_000), record("d", 290_000, 300_000)]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("buffer_bytes", [64, 4096, 1 << 20])
@pytest.mark.parametrize("piece", [1000, 1 << 20])
def test_sums_hold_in_any_pieces(threads, buffer_bytes, piece, monkeypatch):
    """However records are cut and shared, good ones are good and a bad one is found with its own sum."""
    monkeypatch.setattr(module, "PIECE", piece)
    assert run(LAID, Reader(DATA), threads=threads, buffer_bytes=buffer_bytes) == []
    bad = record("c", 5_000, 280_000, crc=1)
    wrong = run([*LAID, bad], Reader(DATA), threads=threads, buffer_bytes=buffer_bytes)
    assert [(one.record, one.read) for one in wrong] == [(bad, LAID[2].crc32)]


def test_what_cannot_be_read_is_a_fault_of_its_own():
    """A disk that fails under two of four records leaves the others checked."""
    wrong = run(LAID, Reader(DATA, bad=100_000))
    assert [one.record.name for one in wrong] == ["c", "d"]
    assert all("Input/output error" in one.why and one.read is None for one in wrong)


def test_neighbours_of_a_record_that_cannot_be_read_are_read_alone():
    """One read takes small neighbours; where it fails each is tried on its own."""
    small = [record(str(i), 100 * i, 100 * (i + 1)) for i in range(4)]
    wrong = run(small, Reader(DATA, bad=350))
    assert [one.record.name for one in wrong] == ["3"]


def test_a_record_past_the_end_is_a_fault():
    """A reader that ends first is told in its own words."""
    wrong = run([record("x", 299_000, 300_000), Record("y", Span(299_990, 500), 7)], Reader(DATA))
    assert [one.record.name for one in wrong] == ["y"]
    assert "ends at byte" in wrong[0].why


def test_errors_of_a_reader_are_gathered_from_any_thread():
    """A file that is damaged while it is inflated is a fault of that record."""

    class Broken(Reader):
        def some_into(self, offset: int, target: memoryview) -> int:
            raise CorruptFile("does not inflate")

    wrong = run(LAID, Broken(DATA), threads=3)
    assert {one.why for one in wrong} == {"does not inflate"}
    assert len(wrong) == len(LAID)


def test_memory_is_a_buffer_for_each_thread():
    """No read is larger than the chunk; nothing grows with the size of a record."""
    reader = Reader(DATA * 100)
    whole = Record("whole", Span(0, len(reader.data)), zlib.crc32(reader.data))
    tracemalloc.start()
    assert run([whole], reader, buffer_bytes=256 << 10, threads=2) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(reader.asked) <= 128 << 10
    assert peak < 1 << 20
    assert threading.active_count() < 10
