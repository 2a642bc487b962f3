"""Real files: those of torch.save through the stream, ours through torch and the stream."""

from __future__ import annotations

import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
import torch

from unmoor.execute.archive import torch_records, torch_trailer, write_archive
from unmoor.execute.streaming import stream
from unmoor.filing import open_reader
from unmoor.values.nodes import Span, Storage, TensorNode
from unmoor.values.plan import Copy
from unmoor.values.target import Slot

from .fakes import BytesReader, MemorySlot


def tensors():
    torch.manual_seed(0)
    flat = torch.randn(50_000)
    return {
        "weight": torch.randn(300, 200),
        "bias": torch.randn(200),
        "half": torch.randn(1000).to(torch.bfloat16),
        "float8": torch.randn(77).to(torch.float8_e4m3fn),
        "mask": torch.rand(33) > 0.5,
        "step": torch.tensor(12.0),
        "empty": torch.empty(0, 8),
        "view": flat[100:1100].reshape(10, 100),
        "tail": flat[40_000:],
        "transposed": torch.randn(40, 30).t(),
        "channels_last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "complex": torch.randn(9, dtype=torch.complex64),
    }


def spans(path):
    """Storage key -> (span, checksum), from Python's own ZIP reader."""
    reader = torch._C.PyTorchFileReader(str(path))
    with zipfile.ZipFile(path) as zipped:
        names = {info.filename.split("/", 1)[1]: info for info in zipped.infolist()}
    return {
        name.removeprefix("data/"): (Span(reader.get_record_offset(name), info.file_size), info.CRC)
        for name, info in names.items()
        if name.startswith("data/")
    }


def copies(path, state, *, device):
    """What describe and plan would make of `state` in the file at `path`."""
    found, keys = spans(path), {}
    made, sinks = [], {}
    for name, tensor in state.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        key = keys.setdefault(tensor.untyped_storage()._cdata, str(len(keys)))
        span, crc = found[key]
        storage = Storage(key, dtype, span.nbytes, "cpu", span, crc)
        node = TensorNode(storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), dtype, "cpu")
        sinks[name] = RawSlot(tensor, device=device)
        slot = Slot(name, node.shape, dtype, node.stride, "cpu", dense=True)
        made.append(Copy("model", name, name, node, slot))
    return made, sinks


class RawSlot(MemorySlot):
    """A slot laid out like a tensor, of any dtype: takes bytes, never elements."""

    def __init__(self, tensor, *, device):
        super().__init__(tuple(tensor.shape), "uint8", tensor.stride(), device=device)
        self.memory = bytearray(tensor.numel() * tensor.element_size())

    def accept(self, window, data):
        raise AssertionError("bytes that are laid out alike are not moved one by one")


def raw(tensor):
    """The bytes of a dense tensor in storage order."""
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return bytes(flat.contiguous().view(torch.uint8).numpy()) if tensor.numel() else b""


def assert_streams(path, state, *, device, threads, buffer_bytes):
    made, sinks = copies(path, state, device=device)
    with open_reader(path) as reader:
        done = stream(
            made,
            sinks,
            open_span=lambda file: reader,
            buffer_bytes=buffer_bytes,
            threads=threads,
            verify="stream",
            progress=None,
        )
    assert done.unverified == 0
    for name, tensor in state.items():
        assert bytes(sinks[name].memory) == raw(tensor), name


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("buffer_bytes", [64 << 10, 32 << 20])
def test_files_of_torch_save_arrive_bit_for_bit(tmp_path, device, threads, buffer_bytes):
    """Exact: every byte of every tensor, of every dtype and dense layout, with its checksum held."""
    state = tensors()
    torch.save(state, tmp_path / "run.pt")
    assert_streams(tmp_path / "run.pt", state, device=device, threads=threads, buffer_bytes=buffer_bytes)


class TensorBlob:
    """The bytes of one storage of a tensor."""

    def __init__(self, storage):
        self._bytes = torch.empty(0, dtype=torch.uint8).set_(storage)

    def direct(self, offset, nbytes):
        return memoryview(self._bytes[offset : offset + nbytes].numpy())

    def fetch(self, offset, target):
        raise AssertionError("the bytes are in host memory")


def test_our_files_are_read_by_torch_and_by_the_stream(tmp_path):
    """What the writer writes, torch.load and the stream read back bit for bit."""
    state, path = tensors(), tmp_path / "run.pt"
    torch.save(state, tmp_path / "reference.pt")
    with zipfile.ZipFile(tmp_path / "reference.pt") as zipped:
        pickled = zipped.read("reference/data.pkl")
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in state.values()}
    blobs = [(str(i), storage.nbytes(), TensorBlob(storage)) for i, storage in enumerate(storages.values())]
    write_archive(
        path,
        torch_records(pickled, blobs),
        name="reference",
        finish=torch_trailer,
        threads=2,
        buffer_bytes=64 << 10,
        progress=None,
    )
    assert spans(path) == spans(tmp_path / "reference.pt")
    for key, value in torch.load(path).items():
        assert raw(value) == raw(state[key]), key
    assert_streams(path, state, device=False, threads=2, buffer_bytes=64 << 10)


MEASURE = """
import resource, sys, zlib
from unmoor.execute.streaming import stream
from unmoor.filing import open_reader
from unmoor.values.nodes import Span, Storage, TensorNode
from unmoor.values.plan import Copy
from unmoor.values.target import Slot

class Nowhere:
    def direct(self, nbytes): return None
    def put(self, offset, data): pass
    def accept(self, window, data): pass
    def part(self, start, shape): return self

path, nbytes, crc, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
storage = Storage("0", "uint8", nbytes, "cpu", Span(0, nbytes), crc)
node = TensorNode(storage, 0, (nbytes,), (1,), "uint8", "cpu")
slot = Slot("t", (nbytes,), "uint8" if kind == "put" else "int16", (1,), "sim:0", dense=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open_reader(path) as reader:
    done = stream([Copy("model", "t", "t", node, slot)], {"t": Nowhere()}, open_span=lambda file: reader,
                  buffer_bytes=1 << 20, threads=2, verify="stream", progress=None)
print(done.verified, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("kind", ["put", "accept"])
def test_memory_is_one_bounded_buffer(tmp_path, kind):
    """Memory: live state + one bounded staging buffer: 64 MiB to a device through 1 MiB leave no trace."""
    data = bytes(range(256)) * (1 << 18)
    path = Path(tmp_path, "run.pt")
    path.write_bytes(data)
    code = [sys.executable, "-c", MEASURE, str(path), str(len(data)), str(zlib.crc32(data)), kind]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    verified, kib = map(int, done.stdout.split())
    assert verified == 1
    assert kib < 8 << 10


def test_nothing_aliases_the_file(tmp_path):
    """Restored tensors never alias the file: overwriting it afterwards is safe."""
    data = bytes(range(256)) * 1024
    reader = BytesReader(data)
    storage = Storage("0", "uint8", len(data), "cpu", Span(0, len(data)), zlib.crc32(data))
    node = TensorNode(storage, 0, (len(data),), (1,), "uint8", "cpu")
    sink = MemorySlot((len(data),), "uint8", None, device=False)
    copy = Copy("model", "t", "t", node, Slot("t", node.shape, "uint8", (1,), "cpu", dense=True))
    stream(
        [copy],
        {"t": sink},
        open_span=lambda file: reader,
        buffer_bytes=64 << 10,
        threads=1,
        verify="stream",
        progress=None,
    )
    reader._data = bytes(len(data))
    assert bytes(sink.memory) == data
