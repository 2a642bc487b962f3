"""Filling memory from a file, over all layouts, buffers and threads."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmoor.errors import CorruptFile, MismatchError, RestoreError
from unmoor.execute import reading, schedule
from unmoor.execute.streaming import stored_bytes, stream
from unmoor.filing import open_reader

from .fakes import FileMaker, MemorySlot, numbers
from .scenes import SCENES, everything, files


def run(make, *, open_span=None, buffer_bytes=64 << 10, threads=1, verify="stream", progress=None):
    return stream(
        make.copies,
        make.sinks,
        open_span=open_span or make.opener(),
        buffer_bytes=buffer_bytes,
        threads=threads,
        verify=verify,
        progress=progress,
    )


def assert_filled(make):
    for copy in make.copies:
        assert make.sinks[copy.slot.id].values() == make.expected(copy), copy.name


@pytest.fixture
def short_pieces(monkeypatch):
    """Limits so small that files of a few KiB meet every way of cutting."""
    monkeypatch.setattr(schedule, "PIECE", 1000)
    monkeypatch.setattr(schedule, "SMALL", 600)
    monkeypatch.setattr(schedule, "STAGED", 1500)
    monkeypatch.setattr(schedule, "TOGETHER", 2000)
    monkeypatch.setattr(schedule, "GAP", 50)
    monkeypatch.setattr(reading, "CHUNK", 300)


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("buffer_bytes", [256, 2000, 64 << 10])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_every_layout_arrives(scene, buffer_bytes, threads, device):
    """Exact: every layout arrives element by element, on the host and on a device, whatever buffer and threads."""
    make = FileMaker()
    scene(make, device=device)
    run(make, buffer_bytes=buffer_bytes, threads=threads)
    assert_filled(make)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("verify", ["stream", "first", "none"])
def test_a_whole_file_arrives(threads, verify):
    """All layouts in one file arrive, with the limits that are used in earnest and the smallest buffer."""
    make = FileMaker()
    everything(make)
    run(make, threads=threads, verify=verify)
    assert_filled(make)


@settings(deadline=None, max_examples=60)
@given(files(), st.integers(64, 2000), st.sampled_from(["stream", "first", "none"]))
def test_any_file_arrives(make, buffer_bytes, verify):
    """Exact: random windows on random storages arrive element by element."""
    run(make, buffer_bytes=buffer_bytes, verify=verify)
    assert_filled(make)


@settings(deadline=None, max_examples=100)
@given(files(), st.integers(64, 2000), st.data())
def test_no_damage_passes(make, buffer_bytes, data):
    """Every byte of tensor data that has a checksum is checked as it streams; a corrupt tensor is named."""
    read = [c.node.storage for c in make.copies if 0 not in c.node.shape and c.node.storage.crc32 is not None]
    if not read:
        return
    storage = data.draw(st.sampled_from(read))
    make.damage(storage, data.draw(st.integers(0, storage.nbytes - 1)))
    with pytest.raises(CorruptFile) as caught:
        run(make, buffer_bytes=buffer_bytes)
    names = [c.path for c in make.copies if c.node.storage is storage and 0 not in c.node.shape]
    assert names[0] in str(caught.value)
    assert f"{storage.crc32:08x}" in str(caught.value)
    assert f"{storage.span.offset:,} to {storage.span.end:,}" in str(caught.value)


def test_damage_met_half_way_tells_what_was_overwritten():
    """A bad checksum met half-way raises at once, naming the tensor and what was already overwritten."""
    make = FileMaker()
    first, bad, last = (make.storage(numbers(count, "float32")) for count in (50_000, 60_000, 70_000))
    for storage in (first, bad, last):
        make.tensor(storage, "float32", (storage.nbytes // 4,))
    make.damage(bad, 7)
    with pytest.raises(CorruptFile, match=r"run\.pt: the data of model\.t1 does not match its checksum") as caught:
        run(make)
    assert caught.value.done == {"t0", "t1"}
    assert caught.value.path == "run.pt"
    assert set(make.sinks["t2"].memory) == {0xAA}


def test_small_damaged_tensors_are_not_delivered():
    """A storage that fits the buffer is checked before anything of it reaches live memory."""
    make = FileMaker()
    make.tensor(make.storage(b"12345678"), "uint8", (8,))
    make.damage(make.storages[0], 3)
    with pytest.raises(CorruptFile) as caught:
        run(make)
    assert set(make.sinks["t0"].memory) == {0xAA}
    assert caught.value.done == frozenset()


def test_checking_first_gathers_all_damage_and_changes_nothing():
    """verify="first" reads and checks all data before touching anything; all faults of one input come together."""
    make = FileMaker()
    everything(make)
    for storage in (make.storages[0], make.storages[5]):
        make.damage(storage, 0)
    with pytest.raises(CorruptFile) as caught:
        run(make, verify="first")
    assert "2 storages" in caught.value.headline
    assert len(caught.value.details) == 2
    assert caught.value.done == frozenset()
    assert all(set(sink.memory) <= {0xAA} for sink in make.sinks.values())


def test_damage_is_not_seen_when_nothing_is_verified():
    """verify="none" computes no checksum, and the result says that nothing vouches for the data."""
    make = FileMaker()
    make.tensor(make.storage(b"12345678"), "uint8", (8,))
    make.damage(make.storages[0], 3)
    done = run(make, verify="none")
    assert (done.verified, done.unverified) == (0, 1)


def test_storages_without_a_checksum_are_counted():
    """The result tells storages that a checksum vouches for from those that have none."""
    make = FileMaker()
    for crc in (True, False, True):
        make.tensor(make.storage(b"12345678", crc=crc), "uint8", (8,))
    make.tensor(make.storages[0], "uint8", (4,))
    done = run(make)
    assert (done.nbytes, done.verified, done.unverified) == (24, 2, 1)
    assert done.seconds > 0


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("verify", ["stream", "first", "none"])
def test_progress_ends_at_the_bytes_stored(threads, verify):
    """Progress adds up to what stored_bytes() promised, one call at a time."""
    make = FileMaker()
    everything(make)
    calls, busy = [], threading.Lock()

    def progress(nbytes):
        assert busy.acquire(blocking=False)
        calls.append(nbytes)
        busy.release()

    run(make, threads=threads, verify=verify, progress=progress)
    assert min(calls) > 0
    assert sum(calls) == stored_bytes(make.copies, verify=verify)


def test_short_reads_are_continued():
    """A read may give less than was asked for: the rest is read too."""
    make = FileMaker()
    everything(make)
    reader = make.reader(most=700)
    run(make, open_span=lambda file: reader)
    assert_filled(make)


def test_a_file_cut_short_is_refused_before_anything_is_touched():
    """A restore that cannot succeed changes nothing: all storages past the end of the file are named together."""
    make = FileMaker()
    for _ in range(3):
        make.tensor(make.storage(b"12345678"), "uint8", (8,))
    del make.data[make.storages[1].span.offset + 4 :]
    with pytest.raises(CorruptFile) as caught:
        run(make)
    assert "model.t1" in str(caught.value)
    assert "model.t2" in str(caught.value)
    assert "ends before" in str(caught.value)
    assert set(make.sinks["t0"].memory) == {0xAA}


def test_a_file_cut_while_it_is_read_tells_what_was_overwritten():
    """A file that shrinks under the reader is an error that knows what was written so far."""
    make = FileMaker()
    for count in (200_000, 200_000):
        make.tensor(make.storage(bytes(count)), "uint8", (count,))
    reader = make.reader()
    reader._data = reader._data[:-10]
    with pytest.raises(CorruptFile, match="ends at byte") as caught:
        run(make, open_span=lambda file: reader)
    assert caught.value.done == {"t0", "t1"}


def test_copies_that_cannot_be_carried_out_are_named_together():
    """All faults of one input in one error, before the first byte moves."""
    make = FileMaker()
    make.tensor(make.storage(b"12345678"), "uint8", (8,))
    make.tensor(make.storage(b"1234"), "uint8", (2, 4))
    make.tensor(make.storage(b"1234"), "uint8", (4,))
    object.__setattr__(make.copies[2].node, "shape", (3,))
    make.tensor(make.storage(b"1234"), "uint8", (4,))
    object.__setattr__(make.copies[3].node, "storage", None)
    make.tensor(make.storage(b"1234"), "uint8", (4,))
    del make.sinks["t4"]
    with pytest.raises(MismatchError) as caught:
        run(make)
    assert [line.split(":")[0] for line in caught.value.details] == ["model.t1", "model.t2", "model.t3", "model.t4"]
    assert "4 copies of 5" in caught.value.headline
    assert set(make.sinks["t0"].memory) == {0xAA}


class BrokenSlot(MemorySlot):
    """A slot on a device that has run out of memory."""

    def put(self, offset, data):
        raise MemoryError("device out of memory")

    accept = put


@pytest.mark.parametrize("threads", [1, 2])
def test_a_sink_that_fails_names_its_slot(threads):
    """An error of a sink is passed on with the slot named and what had been written."""
    make = FileMaker()
    make.tensor(make.storage(b"1234"), "uint8", (4,))
    make.tensor(make.storage(b"1234", gap=100_000), "uint8", (4,), device=True)
    make.sinks["t1"] = BrokenSlot((4,), "uint8", None, device=True)
    with pytest.raises(RestoreError, match="t1 could not be filled: MemoryError: device out of memory") as caught:
        run(make, threads=threads)
    assert isinstance(caught.value.__cause__, MemoryError)
    assert "t1" in caught.value.done


def test_a_sink_with_the_wrong_memory_is_refused():
    """Memory of another length than the slot's is a defect of the sink, and named as one."""
    make = FileMaker()
    make.tensor(make.storage(b"1234"), "uint8", (4,))
    make.sinks["t0"].memory = bytearray(5)
    with pytest.raises(RestoreError, match=r"t0 could not be filled: .* gave 5 bytes of memory for 4"):
        run(make)


def test_a_disk_that_fails_is_the_machines_fault():
    """An error of the operating system while reading becomes a RestoreError that knows what was written."""
    make = FileMaker()
    for _ in range(2):
        make.tensor(make.storage(bytes(200_000)), "uint8", (200_000,))
    reader = make.reader()
    healthy = reader.some_into

    def failing(offset, target):
        if offset >= make.storages[1].span.offset:
            raise OSError(5, "Input/output error", "run.pt")
        return healthy(offset, target)

    reader.some_into = failing
    with pytest.raises(RestoreError, match="Input/output error") as caught:
        run(make, open_span=lambda file: reader)
    assert caught.value.done == {"t0"}  # not a byte of t1 came


def test_an_interrupt_stops_the_stream():
    """Control-C in the calling thread ends all threads and is passed on."""
    make = FileMaker()
    everything(make)

    def progress(nbytes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make, threads=2, progress=progress)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("unmoor-")]


def test_the_later_copy_wins():
    """Of two copies into the same memory the last in the order of the plan stays."""
    make = FileMaker()
    make.tensor(make.storage(b"1234"), "uint8", (4,))
    make.tensor(make.storage(b"5678"), "uint8", (4,), alias="t0")
    calls = []
    run(make, threads=2, verify="first", progress=calls.append)
    assert bytes(make.sinks["t0"].memory) == b"5678"
    assert sum(calls) == stored_bytes(make.copies, verify="first") == 16


def test_nothing_to_copy_is_nothing_read():
    """A plan without copies, or with empty tensors only, reads nothing."""
    make = FileMaker()
    make.tensor(make.storage(b""), "uint8", (0,))
    reader = make.reader()
    done = run(make, open_span=lambda file: reader)
    assert (done.nbytes, reader.reads) == (0, [])
    make.copies.clear()
    assert run(make, open_span=lambda file: reader).nbytes == 0


@pytest.mark.parametrize("portable", [False, True], ids=["preadv", "seek"])
def test_reads_a_real_file_on_every_platform(tmp_path, portable):
    """Linux first; macOS and Windows work: the way without preadv gives the same."""
    make = FileMaker()
    everything(make)
    path = tmp_path / "run.pt"
    path.write_bytes(make.data)
    with open_reader(path, portable=portable) as reader:
        run(make, open_span=lambda file: reader, threads=3)
    assert_filled(make)


def test_several_files_are_read_each_by_its_reader():
    """A storage is read from the file that its span names."""
    make = FileMaker()
    make.tensor(make.storage(b"1234"), "uint8", (4,))
    other = FileMaker()
    other.tensor(other.storage(b"5678"), "uint8", (4,))
    storage = other.storages[0]
    object.__setattr__(storage, "span", type(storage.span)(storage.span.offset, 4, "shard.pt"))
    readers = {"": make.reader(), "shard.pt": other.reader()}
    object.__setattr__(other.copies[0].slot, "id", "shard")
    make.copies += other.copies
    make.sinks["shard"] = other.sinks["t0"]
    run(make, open_span=readers.__getitem__)
    assert bytes(make.sinks["t0"].memory) == b"1234"
    assert bytes(make.sinks["shard"].memory) == b"5678"
