"""Writing torch archives: what torch, Python and unzip make of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
import zlib

import pytest
import torch

from unmoor.execute import archive
from unmoor.execute.archive import Record, archive_bytes, torch_records, torch_trailer, write_archive

from .fakes import numbers


class Bytes:
    """A blob in memory. `far` memory, as on a device, must be fetched."""

    def __init__(self, data: bytes, *, far: bool = False) -> None:
        self.data, self.far = data, far
        self.fetched: list[int] = []

    def direct(self, offset: int, nbytes: int) -> memoryview | None:
        return None if self.far else memoryview(self.data)[offset : offset + nbytes]

    def fetch(self, offset: int, target: memoryview) -> None:
        self.fetched.append(len(target))
        target[:] = self.data[offset : offset + len(target)]


def write(path, records, *, name="run", finish=torch_trailer, threads=2, buffer_bytes=1 << 20, progress=None, **how):
    return write_archive(
        path, records, name=name, finish=finish, threads=threads, buffer_bytes=buffer_bytes, progress=progress, **how
    )


def contents(path):
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None
        return {info.filename: zipped.read(info) for info in zipped.infolist()}


def sample(*, far=False):
    sizes = (3, 0, 200_000, 70, 1, 5000, 140_000, 131_072, 63)
    return [Record(f"data/{i}", n, Bytes(numbers(n, "uint8"), far=far)) for i, n in enumerate(sizes)]


def checkpoint(path, state, *, far=False, **how):
    """`state` as torch.save pickles it, written by us."""
    reference = path.with_suffix(".reference")
    torch.save(state, reference)
    with zipfile.ZipFile(reference) as zipped:
        top = zipped.namelist()[0].split("/")[0]
        pickled = zipped.read(f"{top}/data.pkl")
        storages = [
            (key, info.file_size, Bytes(zipped.read(info), far=far))
            for info in zipped.infolist()
            if (key := info.filename.removeprefix(f"{top}/data/")) != info.filename
        ]
    return write(path, torch_records(pickled, storages), **how)


STATE = {
    "weight": torch.arange(70_000.0).reshape(700, 100),
    "transposed": torch.arange(12).reshape(3, 4).t(),
    "step": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "half": torch.ones(5, dtype=torch.bfloat16),
    "rng": torch.arange(5000, dtype=torch.int64).to(torch.uint8),
    "lr": 1e-3,
}
STATE["tied"] = STATE["weight"]


def assert_same(state):
    assert state.keys() == STATE.keys()
    for key, value in STATE.items():
        assert torch.equal(state[key], value) if isinstance(value, torch.Tensor) else state[key] == value


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("buffer_bytes", [64, 64 << 10, 8 << 20])
@pytest.mark.parametrize("far", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("portable", [False, True], ids=["pwrite", "seek"])
def test_every_record_reads_back(tmp_path, threads, buffer_bytes, far, portable):
    """Whatever threads, buffer, memory and platform: the same bytes, in the same file."""
    path = tmp_path / "run.pt"
    records = sample(far=far)
    written = write(path, records, threads=threads, buffer_bytes=buffer_bytes, portable=portable)
    found = contents(path)
    assert {name: found[f"run/{name}"] for name in found and [r.name for r in records]} == {
        record.name: record.source.data for record in records
    }
    assert written.nbytes == path.stat().st_size
    whole = path.read_bytes()
    for record in records:
        offset, nbytes, crc = written.records[record.name]
        assert offset % 64 == 0
        assert whole[offset : offset + nbytes] == record.source.data
        assert crc == zlib.crc32(record.source.data)
        assert max(record.source.fetched, default=0) <= max(buffer_bytes // threads, 64)


def test_the_same_state_gives_the_same_bytes(tmp_path):
    """Nothing in the archive depends on time, threads or chance."""
    write(tmp_path / "a.pt", sample(), threads=1)
    write(tmp_path / "b.pt", sample(far=True), threads=4, buffer_bytes=64 << 10)
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("zip64_from", [0xFFFFFFFF, 300_000, 1])
def test_torch_loads_it(tmp_path, mmap, zip64_from):
    """`torch.load(path)` with its safe default opens it, `mmap=True` too."""
    path = tmp_path / "run.pt"
    checkpoint(path, STATE, zip64_from=zip64_from)
    assert_same(torch.load(path, mmap=mmap))


def test_torch_computes_the_same_offsets(tmp_path, monkeypatch):
    """PyTorch's own check of computed offsets against those in the file passes."""
    path = tmp_path / "run.pt"
    checkpoint(path, STATE)
    monkeypatch.setenv("TORCH_SERIALIZATION_DEBUG", "1")
    assert_same(torch.load(path))


def test_torch_finds_the_storages_without_reading_them(tmp_path):
    """Under FakeTensorMode PyTorch tells where each storage stands: at the offsets of our receipt."""
    path = tmp_path / "run.pt"
    written = checkpoint(path, STATE)
    with torch._subclasses.FakeTensorMode():
        state = torch.load(path)
    assert state["weight"].untyped_storage()._checkpoint_offset == written.records["data/0"][0]
    assert state["rng"].untyped_storage()._checkpoint_offset == written.records["data/5"][0]


def test_records_stand_in_the_order_of_torch(tmp_path):
    """The records are those that torch.save writes, in its order."""
    path = tmp_path / "run.pt"
    checkpoint(path, STATE)
    with zipfile.ZipFile(path) as ours, zipfile.ZipFile(path.with_suffix(".reference")) as theirs:
        names = [name.split("/", 1)[1] for name in theirs.namelist()]
        assert [name.split("/", 1)[1] for name in ours.namelist()] == names


@pytest.mark.skipif(shutil.which("unzip") is None, reason="needs unzip")
@pytest.mark.parametrize("zip64_from", [0xFFFFFFFF, 300_000, 1])
def test_unzip_finds_no_errors(tmp_path, zip64_from):
    """Correct ZIP CRC-32 for every record, so `unzip -t` passes."""
    write(tmp_path / "run.pt", sample(), zip64_from=zip64_from)
    done = subprocess.run(["unzip", "-tq", str(tmp_path / "run.pt")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No errors detected" in done.stdout


def test_more_records_than_16_bits_count(tmp_path):
    """A checkpoint of 70,000 tensors is a sound archive: the directory's end is then in 64 bits."""
    path = tmp_path / "run.pt"
    blob = Bytes(b"12345678")
    write(path, [Record(f"data/{i}", 8, blob) for i in range(70_000)])
    with zipfile.ZipFile(path) as zipped:
        assert len(zipped.infolist()) == 70_002
        assert zipped.read("run/data/69999") == b"12345678"
    reader = torch._C.PyTorchFileReader(str(path))
    assert reader.get_record("data/69999") == b"12345678"


def test_the_last_records_may_depend_on_the_checksums(tmp_path):
    """The manifest comes last and can hold where every tensor stands, with a checksum each."""
    seen = {}

    def finish(receipts):
        seen.update(receipts)
        return [Record("manifest.json", 2, b"{}")]

    written = write(tmp_path / "run.pt", sample(), finish=finish)
    assert seen == {name: entry for name, entry in written.records.items() if name != "manifest.json"}
    assert list(contents(tmp_path / "run.pt"))[-1] == "run/manifest.json"


def test_the_size_is_known_before(tmp_path):
    """archive_bytes() tells what will be needed, but for what `finish` adds."""
    records = sample()
    written = write(tmp_path / "run.pt", records, finish=lambda crcs: [])
    assert archive_bytes(records, name="run") == written.nbytes


def test_an_archive_without_records_is_sound(tmp_path):
    """No records, nothing to finish: still an archive."""
    assert write(tmp_path / "run.pt", [], finish=lambda crcs: []).nbytes == archive_bytes([], name="run")
    assert contents(tmp_path / "run.pt") == {}


def test_progress_adds_up_to_the_record_data(tmp_path):
    """Progress ends at the bytes of all records."""
    calls = []
    records = sample()
    write(tmp_path / "run.pt", records, finish=lambda crcs: [], progress=calls.append)
    assert sum(calls) == sum(record.nbytes for record in records)


def test_a_longer_file_is_cut(tmp_path):
    """What was at the path before leaves nothing behind."""
    path = tmp_path / "run.pt"
    path.write_bytes(bytes(2_000_000))
    assert write(path, sample()).nbytes == path.stat().st_size
    contents(path)


@pytest.mark.skipif(not archive.HAS_PWRITE, reason="needs pwrite")
def test_short_writes_are_continued(tmp_path, monkeypatch):
    """A write may take less than it was given: the rest is written too."""
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: whole(handle, data[:1000], offset))
    write(tmp_path / "run.pt", sample())
    contents(tmp_path / "run.pt")


@pytest.mark.parametrize("threads", [1, 3])
def test_a_blob_that_fails_is_passed_on(tmp_path, threads):
    """An error of a blob reaches the caller as it is."""

    class Broken(Bytes):
        def fetch(self, offset, target):
            raise RuntimeError("device lost")

    records = [*sample(), Record("data/bad", 500_000, Broken(bytes(500_000), far=True))]
    with pytest.raises(RuntimeError, match="device lost"):
        write(tmp_path / "run.pt", records, threads=threads)
