"""CRC-32, alone and combined."""

from __future__ import annotations

import importlib
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.execute import checksums
from unmoor.execute.checksums import combine, crc32


@given(st.binary(max_size=3000), st.integers(0, 0xFFFFFFFF))
def test_sums_are_those_of_zip(data, value):
    """The checksum is zlib's, from any start value and any kind of buffer."""
    assert crc32(data, value) == zlib.crc32(data, value)
    assert crc32(memoryview(bytearray(data)), value) == zlib.crc32(data, value)


@given(st.lists(st.binary(max_size=400), max_size=6))
def test_parts_summed_alone_combine_to_the_whole(parts):
    """Every byte of tensor data that has a checksum is checked as it streams: also when threads read its parts."""
    total = 0
    for part in parts:
        total = combine(total, zlib.crc32(part), len(part))
    assert total == zlib.crc32(b"".join(parts))


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF), st.integers(0, 1 << 45))
def test_combining_agrees_with_zlib_on_lengths_beyond_memory(crc_a, crc_b, nbytes):
    """Lengths of many GiB are combined without their bytes: the same as in two steps."""
    half = nbytes // 2
    assert combine(crc_a, crc_b, nbytes) == combine(combine(crc_a, 0, half), crc_b, nbytes - half)


def test_works_without_isal(monkeypatch):
    """Where python-isal is missing, zlib gives the same sums."""
    monkeypatch.setitem(sys.modules, "isal", None)
    try:
        plain = importlib.reload(checksums)
        assert plain.crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(checksums)


def test_uses_isal_where_it_is_installed():
    """With python-isal installed, its checksum is used."""
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    assert checksums.crc32 is isal_zlib.crc32
