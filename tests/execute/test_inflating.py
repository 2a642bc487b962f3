"""Deflated bytes by position: the same as inflated at once, in any order and from several threads."""

from __future__ import annotations

import threading
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmoor.errors import CorruptFile
from unmoor.filing import InflatingReader, open_reader, read

DATA = b"".join(i.to_bytes(3, "little") for i in range(100_000))


def deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    return engine.compress(data) + engine.flush()


def drain(reader: InflatingReader) -> None:
    """Read all that a reader says it holds, a little at a time."""
    target, at = memoryview(bytearray(1 << 16)), 0
    while at < reader.size:
        at += reader.some_into(at, target[: reader.size - at])


PACKED = deflate(DATA)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Deflated bytes between others."""
    made = tmp_path_factory.mktemp("inflating") / "packed"
    made.write_bytes(b"before" + PACKED + b"after")
    return made


@settings(deadline=None, max_examples=30)
@given(places=st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 90_000)), max_size=5))
def test_bytes_are_the_same_in_whatever_order(path: Path, places: list[tuple[int, int]]) -> None:
    """Law 4: no more than a window is held, and reading back begins anew; the bytes are those of the whole."""
    with open_reader(path) as under:
        reader = InflatingReader(under, 6, len(PACKED), len(DATA))
        for offset, nbytes in places:
            assert read(reader, offset, nbytes) == DATA[offset : offset + nbytes]


def test_threads_do_not_disturb_each_other(path: Path) -> None:
    """Each thread inflates for itself."""
    found: dict[int, bytes] = {}
    with open_reader(path) as under:
        reader = InflatingReader(under, 6, len(PACKED), len(DATA))
        parts = range(0, len(DATA), 75_000)
        threads = [threading.Thread(target=lambda at=at: found.update({at: read(reader, at, 75_000)})) for at in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert b"".join(found[at] for at in parts) == DATA


@pytest.mark.parametrize(
    ("stored", "size", "words"),
    [
        (len(PACKED) - 100, len(DATA), "were due"),
        (len(PACKED), len(DATA) + 1, "were due"),
        (len(PACKED), 1 << 40, "were due"),
    ],
    ids=["cut short", "one byte too few", "far too few"],
)
def test_data_that_ends_too_early_is_an_error(path: Path, stored: int, size: int, words: str) -> None:
    """Law 11: what inflates to less than was declared is named with both numbers."""
    with open_reader(path) as under:
        reader = InflatingReader(under, 6, stored, size)
        with pytest.raises(CorruptFile, match=words):
            drain(reader)


def test_bytes_that_are_not_deflated_are_an_error(path: Path) -> None:
    """Data that no engine can follow is named as such."""
    with open_reader(path) as under, pytest.raises(CorruptFile, match="does not inflate"):
        read(InflatingReader(under, 0, len(PACKED), len(DATA)), 0, 100)
