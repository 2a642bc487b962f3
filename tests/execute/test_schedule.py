"""Which bytes are read and where they go: pure values, nothing is opened."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmoor.execute.preflight import waves_of
from unmoor.execute.schedule import SMALL, schedule
from unmoor.execute.takers import Batch, Piece, blocks_of

from .fakes import FileMaker, numbers
from .scenes import SCENES, everything, files


def jobs_of(make, buffer_bytes, *, checked=True):
    waves = [blocks_of(wave, make.sinks) for wave in waves_of(make.copies)]
    return [job for wave in waves for job in schedule(wave, buffer_bytes=buffer_bytes, checked=checked)]


def summed(jobs):
    """Storage key -> the byte ranges that make up its checksum."""
    ranges = {}
    for job in jobs:
        if isinstance(job, Batch):
            for block in job.blocks:
                ranges.setdefault(block.storage.key, []).append((0, block.span.nbytes))
        elif job.counted:
            ranges.setdefault(job.block.storage.key, []).append((job.start, job.end))
    return ranges


def assert_covered_once(make, jobs):
    read = {copy.node.storage.key for copy in make.copies if 0 not in copy.node.shape}
    ranges = summed(jobs)
    for storage in make.storages:
        if storage.crc32 is None or storage.key not in read:
            continue
        end = 0
        for start, stop in sorted(ranges[storage.key]):
            assert start == end
            end = stop
        assert end == storage.nbytes


@settings(deadline=None)
@given(files(), st.integers(64, 3000))
def test_every_byte_with_a_checksum_is_counted_once(make, buffer_bytes):
    """Every byte of tensor data that has a checksum is checked as it streams: each is in one counted read."""
    assert_covered_once(make, jobs_of(make, buffer_bytes))


@settings(deadline=None)
@given(files(), st.integers(64, 3000), st.booleans())
def test_reads_fit_the_buffer(make, buffer_bytes, checked):
    """Memory: live state + one bounded staging buffer: what does not go to its place at once fits the buffer."""
    for job in jobs_of(make, buffer_bytes, checked=checked):
        if isinstance(job, Batch):
            assert job.nbytes <= buffer_bytes
        elif job.into is None:
            assert job.end - job.start <= buffer_bytes
        else:
            assert job.into.start <= job.start < job.end <= job.into.end


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("buffer_bytes", [64, 500, 4096, 1 << 20])
@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_every_layout_is_covered(scene, buffer_bytes, device):
    """Each layout that checkpoints hold is read whole, whatever the buffer."""
    make = FileMaker()
    scene(make, device=device)
    assert_covered_once(make, jobs_of(make, buffer_bytes))


def test_reads_go_forward_through_the_file():
    """Storages are read in the order of the file, whatever the order of the copies."""
    make = FileMaker()
    everything(make)
    make.copies.reverse()
    blocks = blocks_of(make.copies, make.sinks)
    offsets = [block.span.offset for block in blocks]
    assert offsets == sorted(offsets)


def test_small_neighbours_share_one_read():
    """A thousand small tensors do not mean a thousand system calls."""
    make = FileMaker()
    for _ in range(1000):
        make.tensor(make.storage(numbers(16, "float32"), gap=64), "float32", (16,))
    (batch,) = jobs_of(make, 1 << 20)
    assert len(batch.blocks) == 1000


def test_neighbours_far_apart_are_read_alone():
    """A long gap that nothing wants is not read."""
    make = FileMaker()
    for _ in range(2):
        make.tensor(make.storage(numbers(16, "float32"), gap=100_000), "float32", (16,))
    assert [len(job.blocks) for job in jobs_of(make, 1 << 20)] == [1, 1]


def test_storages_of_two_files_are_never_one_read():
    """Neighbours are neighbours in one file only."""
    make = FileMaker()
    for _ in range(2):
        make.tensor(make.storage(numbers(16, "float32")), "float32", (16,))
    second = make.copies[1].node.storage
    object.__setattr__(second, "span", type(second.span)(second.span.offset, second.span.nbytes, "other.pt"))
    assert len(jobs_of(make, 1 << 20)) == 2


def test_large_host_tensors_need_no_buffer():
    """A large tensor laid out alike in file and memory is read straight into its memory."""
    make = FileMaker()
    make.tensor(make.storage(bytes(SMALL)), "uint8", (SMALL,))
    (piece,) = jobs_of(make, 1 << 20)
    assert isinstance(piece, Piece)
    assert piece.into.memory() is not None


def test_unchecked_gaps_are_not_read():
    """Without a checksum to compute, bytes that no tensor wants stay on the disk."""
    make = FileMaker()
    storage = make.storage(bytes(SMALL * 2))
    make.tensor(storage, "uint8", (10,), offset=SMALL)
    assert sum(job.end - job.start for job in jobs_of(make, SMALL)) == SMALL * 2
    assert sum(job.end - job.start for job in jobs_of(make, SMALL, checked=False)) == 10


def test_the_later_of_two_copies_into_one_memory_wins():
    """Copies into the same memory are carried out in the order of the plan; repeating one is not needed."""
    make = FileMaker()
    first, second = make.storage(b"1234"), make.storage(b"5678")
    make.tensor(first, "uint8", (4,))
    make.tensor(second, "uint8", (4,), alias="t0")
    make.tensor(second, "uint8", (4,), alias="t0")
    make.tensor(first, "uint8", (4,))
    waves = waves_of(make.copies)
    assert [[copy.name for copy in wave] for wave in waves] == [["t0", "t3"], ["t1"]]
