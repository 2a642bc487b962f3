"""Reading a whole file to see whether it is sound."""

from __future__ import annotations

import pytest

from unmoor.execute.verify import check, corrupt

from .fakes import FileMaker, numbers


def checked(make, *, buffer_bytes=64 << 10, threads=2, progress=None, open_span=None):
    return check(
        [(storage, [f"t{storage.key}", f"tied{storage.key}"]) for storage in make.storages],
        open_span=open_span or make.opener(),
        buffer_bytes=buffer_bytes,
        threads=threads,
        progress=progress,
    )


@pytest.fixture
def make():
    made = FileMaker()
    for count in (10, 100_000, 3, 0, 70_000, 20):
        made.storage(numbers(count, "int32"))
    return made


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("buffer_bytes", [256, 64 << 10, 8 << 20])
def test_a_sound_file_has_no_faults(make, threads, buffer_bytes):
    """Nothing is found in a file whose bytes are those that were saved."""
    assert checked(make, threads=threads, buffer_bytes=buffer_bytes) == []


@pytest.mark.parametrize("threads", [1, 4])
def test_all_faults_are_found_in_file_order(make, threads):
    """All faults of one input are reported together, each with its tensors and both sums."""
    for key in (4, 0, 1):
        make.damage(make.storages[key], 11)
    faults = checked(make, threads=threads)
    assert [fault.storage.key for fault in faults] == ["0", "1", "4"]
    assert faults[1].paths == ("t1", "tied1")
    assert faults[1].saved == make.storages[1].crc32 != faults[1].read


def test_storages_past_the_end_are_faults_and_the_rest_is_checked(make):
    """A file cut short: what is cut off is named, and what is left is still checked."""
    make.damage(make.storages[0], 0)
    del make.data[make.storages[4].span.offset + 10 :]
    assert [(fault.storage.key, fault.read is None) for fault in checked(make)] == [
        ("0", False),
        ("4", True),
        ("5", True),
    ]


def test_storages_without_a_checksum_are_not_read():
    """Where nothing vouches for the bytes there is nothing to hold them against."""
    make = FileMaker()
    make.storage(b"1234", crc=False)
    reader = make.reader()
    assert checked(make, open_span=lambda file: reader) == []
    assert reader.reads == []


def test_progress_adds_up_to_the_bytes(make):
    """Progress ends at the bytes of all storages."""
    calls = []
    checked(make, progress=calls.append)
    assert sum(calls) == sum(storage.nbytes for storage in make.storages)


def test_the_error_for_one_fault_names_tensors_bytes_and_sums(make):
    """A corrupt tensor is named, with the byte range and both checksums."""
    make.damage(make.storages[2], 1)
    (fault,) = checked(make)
    error = corrupt([fault], "run.pt")
    span = make.storages[2].span
    assert error.headline == "run.pt: the data of t2, tied2 does not match its checksum"
    assert error.details == (
        f"bytes {span.offset:,} to {span.end:,}; CRC-32 saved {fault.saved:08x}, read {fault.read:08x}",
    )
