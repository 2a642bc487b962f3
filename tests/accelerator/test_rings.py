"""Copies between files and devices that run beside reading and writing: what arrives, in what order, what it takes.

On `sim` a queued copy runs as late as it may, so each wait that is missing is seen: the last tests leave one out each.
"""

import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unmoor
from unmoor.live import pinned, rings
from unmoor.live.pickling import StorageBlob
from unmoor.values.dtypes import DTYPES

pytestmark = [
    pytest.mark.usefixtures("sim", "_nothing_waits"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]

MIB = 1 << 20
BUFFERS = (3000, 300_000, 32 * MIB)
"""Rings that are smaller than one tensor, than all of them, and larger."""


@pytest.fixture
def _nothing_waits(sim: ModuleType) -> Iterator[None]:
    """No test leaves copies behind for the next one."""
    yield
    left = sim.waiting()
    for index in range(sim.device_count()):
        sim.synchronize(index)
    assert left == 0


class Flights:
    """A progress callback that sees how many copies are on their way."""

    def __init__(self, sim: ModuleType) -> None:
        self._waiting, self.most = sim.waiting, 0

    def __call__(self, _: int) -> None:
        self.most = max(self.most, self._waiting())


def _bits(tensor: Tensor) -> bytes:
    """The bytes of all elements in the order of the dimensions."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy())


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(_bits(one[name]) == _bits(other[name]) for name in one)


def _of_every_dtype(device: str) -> dict[str, Tensor]:
    """A tensor of each dtype and an odd size, and views of one storage: transposed, with gaps, from the middle."""
    generator = torch.Generator().manual_seed(5)
    found = {}
    for name in DTYPES:
        dtype = getattr(torch, name, None)
        if dtype is None or name.startswith("q") or DTYPES[name].packing > 1:
            continue
        data = torch.randint(0, 2 if name == "bool" else 60, (1237 * dtype.itemsize,), generator=generator)
        found[name] = data.to(torch.uint8).view(dtype).to(device)
    base = torch.rand(301, 203, generator=generator).to(device)
    return found | {
        "base": base,
        "turned": base.t(),
        "gaps": base[3::7, 5:90:2],
        "middle": base[100:200],
        "none": base[:0],
    }


@pytest.mark.parametrize("buffer_bytes", [1, *BUFFERS])
def test_every_dtype_and_view_goes_and_comes(sim: ModuleType, tmp_path: Path, buffer_bytes: int) -> None:
    """Bytes are equal through rings of any size, to the CPU and to another device, and copies were under way."""
    tree = _of_every_dtype("sim:1")
    out, back = Flights(sim), Flights(sim)
    unmoor.save(tmp_path / "a.pt", tree, buffer_bytes=buffer_bytes, progress=out)
    loaded = unmoor.load(tmp_path / "a.pt", map_location="sim:2", buffer_bytes=buffer_bytes, progress=back)
    assert _same(tree, torch.load(tmp_path / "a.pt", map_location="cpu"))
    assert _same(tree, loaded)
    assert {tensor.device for tensor in loaded.values()} == {torch.device("sim:2")}
    assert back.most > 0


class Shuffled(nn.Module):
    """Parameters that lie in memory otherwise than they are stored, in a dtype of their own, on two devices."""

    def __init__(self, seed: int, *, places: tuple[str, str], turned: bool, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        wide = torch.randn(57, 129, 3, generator=generator).to(dtype)
        self.one = nn.Parameter(self._laid(wide.to(places[0]), turned=turned))
        self.other = nn.Parameter(self._laid(wide.neg().to(places[1]), turned=turned))
        self.small = nn.Parameter(torch.randn(3, generator=generator).to(places[1]))
        self.register_buffer("number", torch.tensor(seed))

    @staticmethod
    def _laid(tensor: Tensor, *, turned: bool) -> Tensor:
        if not turned:
            return tensor
        with_gaps = torch.zeros(3, 129, 114, dtype=tensor.dtype, device=tensor.device)
        return with_gaps.permute(2, 1, 0)[::2].copy_(tensor)


@pytest.mark.parametrize("buffer_bytes", BUFFERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("turned", [False, True], ids=["as stored", "turned"])
def test_what_lies_otherwise_is_converted_in_the_ring(
    sim: ModuleType, tmp_path: Path, buffer_bytes: int, dtype: torch.dtype, turned: bool
) -> None:
    """Another layout and another dtype arrive with the CPU's own values, on two devices and on the CPU at once."""
    saved = Shuffled(1, places=("cpu", "cpu"), turned=False, dtype=torch.float32)
    unmoor.save(tmp_path / "a.pt", model=saved, rng=False)
    live = Shuffled(2, places=("sim:1", "sim:3"), turned=turned, dtype=dtype)
    flights = Flights(sim)
    peaks = [_peak_from_now(sim, index) for index in (1, 3)]
    policy = {} if dtype == torch.float32 else {"cast": "any"}
    unmoor.restore(tmp_path / "a.pt", model=live, buffer_bytes=buffer_bytes, progress=flights, rng=False, **policy)
    assert [peak() for peak in peaks] == [0, 0]
    assert _same({n: v.to(live.state_dict()[n].dtype) for n, v in saved.state_dict().items()}, live.state_dict())
    assert flights.most > 0


def _peak_from_now(sim: ModuleType, index: int) -> Callable[[], int]:
    """What tells the most bytes of a device that were allocated at once from now on, beyond those there are now."""
    sim.reset_peak_memory_stats(index)
    before = sim.memory_allocated(index)
    return lambda: int(sim.max_memory_allocated(index) - before)


def _run(seed: int, place: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(251, 509), nn.Tanh(), nn.Linear(509, 127)).to(place)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, place: str) -> None:
    model(torch.linspace(-1, 1, 251).expand(5, 251).to(place)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_resumed_run_takes_the_same_step_and_no_second_state(sim: ModuleType, tmp_path: Path) -> None:
    """A restore takes the optimizer's new state on the device and not a byte more, a save nothing."""
    model, optimizer = _run(0, "sim:1")
    _step(model, optimizer, "sim:1")
    saving = _peak_from_now(sim, 1)
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
    assert saving() == 0
    other, fresh = _run(1, "sim:2")
    restoring = _peak_from_now(sim, 2)
    unmoor.restore(tmp_path / "a.pt", model=other, optimizer=fresh)
    assert restoring() == 2 * sum(p.numel() * 4 for p in model.parameters())
    _step(model, optimizer, "sim:1")
    _step(other, fresh, "sim:2")
    assert _same(model.state_dict(), other.state_dict())


def _kept(tensor: Tensor) -> Tensor:
    """Pinned memory that a copy of a tensor, queued now on the current stream, is on its way to."""
    host = torch.zeros(tensor.shape, pin_memory=True)
    return host.copy_(tensor.detach(), non_blocking=True)


def test_kernels_that_are_queued_before_a_restore_read_the_old_values(sim: ModuleType, tmp_path: Path) -> None:
    """What was queued on the caller's stream before still reads what it was queued for; what comes after, the new."""
    model, _ = _run(0, "sim:1")
    unmoor.save(tmp_path / "a.pt", model=model)
    other, _ = _run(1, "sim:2")
    old, stream = _bits(other[0].weight), torch.Stream(device="sim:2")
    with sim.stream(stream):
        kept = _kept(other[0].weight)
        assert sim.waiting() == 1
        unmoor.restore(tmp_path / "a.pt", model=other)
        new = _kept(other[0].weight)
    assert _bits(other[0].weight) == _bits(model[0].weight)
    stream.synchronize()
    assert (_bits(kept), _bits(new)) == (old, _bits(model[0].weight))


def test_a_save_waits_for_kernels_that_are_queued(sim: ModuleType, tmp_path: Path) -> None:
    """What was queued on the caller's stream before a save is in the file."""
    model, _ = _run(0, "sim:1")
    coming = torch.rand_like(model[0].weight, device="cpu").pin_memory()
    with sim.stream(torch.Stream(device="sim:1")), torch.no_grad():
        model[0].weight.copy_(coming, non_blocking=True)
        assert sim.waiting() == 1
        unmoor.save(tmp_path / "a.pt", model=model)
    assert torch.load(tmp_path / "a.pt", map_location="cpu")["model"]["0.weight"].equal(coming)


def test_memory_that_is_not_pinned_is_filled_through_a_ring(sim: ModuleType) -> None:
    """A background save's copies: many small tensors and a large one, of two devices, each in its own place."""
    generator = torch.Generator().manual_seed(0)
    sizes = (1, 3, 70_000, rings.PASSING - 5, 0, 2 * rings.PASSING + 11, 2)
    sources = [torch.randint(0, 255, (n,), generator=generator, dtype=torch.uint8) for n in sizes]
    placed = [source.to(f"sim:{i % 2}") for i, source in enumerate(sources)]
    targets = [bytearray(n) for n in sizes]
    with sim.stream(torch.Stream(device="sim:1")):
        placed[1].copy_((new := torch.tensor([7, 8, 9], dtype=torch.uint8).pin_memory()), non_blocking=True)
        rings.bring([(memoryview(target), source) for target, source in zip(targets, placed, strict=True)])
    assert targets == [bytearray(source.numpy()) for source in (sources[0], new, *sources[2:])]


@pytest.mark.parametrize("nbytes", [0, 1, 4 * MIB, 21 * MIB + 3])
def test_the_sum_of_a_devices_bytes_is_that_of_its_values(nbytes: int) -> None:
    """Ranks that hold the same compare such sums before a save."""
    values = torch.randint(0, 255, (nbytes + 5,), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    blob = StorageBlob(values.to("sim:3").untyped_storage(), 5, nbytes)
    alive: list[int] = []
    assert blob.checksum(zlib.crc32, lambda: alive.append(1)) == zlib.crc32(values[5:].numpy().tobytes())
    assert len(alive) == -(-nbytes // (4 * MIB))


def test_a_background_save_of_a_device_is_of_one_step(sim: ModuleType, tmp_path: Path) -> None:
    """What a background save writes is the state at its call, with what was queued then, whatever comes after."""
    model, optimizer = _run(0, "sim:1")
    _step(model, optimizer, "sim:1")
    right = {name: value.cpu().clone() for name, value in model.state_dict().items()}
    pending = unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, background=True)
    for _ in range(3):
        _step(model, optimizer, "sim:1")
    pending.wait()
    assert _same(torch.load(tmp_path / "a.pt", map_location="cpu")["model"], right)


def test_a_background_save_has_the_device_tags_of_any_other(tmp_path: Path) -> None:
    """Copies are on the CPU, and what is said of them in the file is not."""
    model, optimizer = _run(0, "sim:1")
    _step(model, optimizer, "sim:1")
    found = []
    for background in (False, True):
        saved = unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, rng=False, background=background)
        if background:
            saved.wait()
        with zipfile.ZipFile(tmp_path / "a.pt") as archive:
            found.append(archive.read("a/data.pkl"))
    assert found[0] == found[1]
    assert b"sim:1" in found[0]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_model_alone_goes_through_the_ring(sim: ModuleType, tmp_path: Path, suffix: str) -> None:
    """Both kinds of file are written from a device while the next bytes are on their way."""
    model, _ = _run(0, "sim:1")
    flights = Flights(sim)
    for _ in range(10):  # whether a look meets a copy that is on its way is up to the threads
        unmoor.save(tmp_path / f"a{suffix}", model=model, rng=False, buffer_bytes=1 << 20, progress=flights)
        if flights.most:
            break
    assert flights.most > 0
    other, _ = _run(1, "cpu")
    unmoor.restore(tmp_path / f"a{suffix}", model=other, rng=False)
    assert _same(model.state_dict(), other.state_dict())


@pytest.mark.parametrize("buffer_bytes", BUFFERS)
def test_after_a_wrong_checksum_nothing_is_on_its_way(sim: ModuleType, tmp_path: Path, buffer_bytes: int) -> None:
    """The error comes when no copy runs any more, and names what was overwritten."""
    model, optimizer = _run(0, "sim:1")
    _step(model, optimizer, "sim:1")
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
    span = max((t.span for t in unmoor.describe(tmp_path / "a.pt").tensors), key=lambda span: span.nbytes)
    with open(tmp_path / "a.pt", "r+b") as file:
        file.seek(span.offset + span.nbytes - 1)
        file.write(b"\x55")
    other, fresh = _run(1, "sim:2")
    with pytest.raises(unmoor.CorruptFile, match="checksum") as caught:
        unmoor.restore(tmp_path / "a.pt", model=other, optimizer=fresh, buffer_bytes=buffer_bytes)
    assert sim.waiting() == 0
    before, after = _run(1, "sim:2")[0].state_dict(), other.state_dict()
    changed = {f"model/{name}" for name in before if _bits(before[name]) != _bits(after[name])}
    assert changed <= caught.value.done


def test_a_device_that_fails_is_the_machine_at_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that a device reports late stops the restore, which names what was touched."""

    class Failing(pinned.Lane):
        def wait(self) -> None:
            super().wait()
            raise RuntimeError("the device fell off the bus")

    model, _ = _run(0, "sim:1")
    unmoor.save(tmp_path / "a.pt", model=model)
    monkeypatch.setattr(rings, "Lane", Failing)
    with pytest.raises(unmoor.RestoreError, match="sim:1 did not end well: RuntimeError: the device fell") as caught:
        unmoor.restore(tmp_path / "a.pt", model=model)
    assert "model/0.weight" in caught.value.done


def _without_streams(monkeypatch: pytest.MonkeyPatch, sim: ModuleType) -> None:
    monkeypatch.delattr(sim, "Stream")


def _without_pinning(monkeypatch: pytest.MonkeyPatch, _: ModuleType) -> None:
    empty = torch.empty

    def refusing(*size: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        if pin_memory:
            raise RuntimeError("no memory can be locked")
        return empty(*size, **options)

    monkeypatch.setattr(torch, "empty", refusing)


def _without_streams_that_work(monkeypatch: pytest.MonkeyPatch, sim: ModuleType) -> None:
    def none_here(**_: Any) -> Any:
        raise RuntimeError("Backend doesn't support create a new Stream.")

    monkeypatch.setattr(sim, "Stream", none_here)


@pytest.mark.parametrize("without", [_without_streams, _without_streams_that_work, _without_pinning])
def test_what_cannot_run_beside_is_done_at_once(
    sim: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: Any
) -> None:
    """A device without streams, or without pinned memory, gets the same bytes by plain copies."""
    tree = _of_every_dtype("sim:1")
    without(monkeypatch, sim)
    unmoor.save(tmp_path / "a.pt", tree, buffer_bytes=5000)
    assert _same(tree, unmoor.load(tmp_path / "a.pt", map_location="sim:2", buffer_bytes=5000))
    model, _ = _run(0, "sim:1")
    unmoor.save(tmp_path / "b.pt", model=model, background=True).wait()
    other, _ = _run(1, "sim:2")
    unmoor.restore(tmp_path / "b.pt", model=other)
    assert _same(model.state_dict(), other.state_dict())


@pytest.mark.parametrize("default", ["cpu", "sim:1", "sim:2"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_default_device_of_the_program_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: str, threads: int
) -> None:
    """Memory of the host is asked for as such: torch.set_default_device means what the program makes."""
    monkeypatch.setattr("unmoor.api.THREADS", threads)
    model, optimizer = _run(0, "sim:1")
    _step(model, optimizer, "sim:1")
    with torch.device(default):
        unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
        unmoor.save(tmp_path / "b.pt", model=model, optimizer=optimizer, background=True).wait()
        unmoor.save(tmp_path / "c.pt", unmoor.snapshot(model=model, optimizer=optimizer))
        for name in "abc":
            for dtype in (torch.float32, torch.float64):
                other, fresh = _run(1, "sim:3")
                unmoor.restore(tmp_path / f"{name}.pt", model=other.to(dtype), optimizer=fresh)
                assert _same({key: value.to(dtype) for key, value in model.state_dict().items()}, other.state_dict())


def _no_reuse_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings._Ring, "_wait", lambda self, slot: self._marks[slot].clear())


def _no_end_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings.Lane, "wait", lambda _: None)


def _no_start_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    init = rings.Lane.__init__
    monkeypatch.setattr(rings.Lane, "__init__", lambda self, device, after: init(self, device, torch.Event(device)))


def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings._Ring, "settle", lambda *_: None)


@pytest.mark.parametrize(
    ("left_out", "caught"),
    [
        (None, set()),
        (_no_reuse_wait, {"written", "filled", "written behind"}),
        (_no_end_wait, {"filled"}),
        (_no_start_wait, {"read before", "written behind"}),
        (_no_settling, {"written", "written behind"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_wait_is_needed(
    sim: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: Any, caught: set[str]
) -> None:
    """Each wait that is left out makes a file or a tensor wrong; with all of them nothing is."""
    if left_out is not None:
        left_out(monkeypatch)
    found = {what for what, is_right in _outcomes(sim, tmp_path) if not is_right}
    for index in range(sim.device_count()):
        sim.synchronize(index)
    assert found == caught


def _outcomes(sim: ModuleType, folder: Path) -> Iterator[tuple[str, bool]]:
    """What a save and a restore are for, and whether it is so, through rings of many turns."""
    model, other = _run(0, "sim:1")[0], _run(1, "sim:2")[0]
    right, old = {name: value.cpu() for name, value in model.state_dict().items()}, _bits(other[0].weight)
    torch.save({"model": right}, folder / "right.pt")
    unmoor.save(folder / "a.pt", model=model, buffer_bytes=300_000)
    yield "written", _same(torch.load(folder / "a.pt", map_location="cpu")["model"], right)
    stream = torch.Stream(device="sim:2")
    with sim.stream(stream):
        kept = _kept(other[0].weight)
        unmoor.restore(folder / "right.pt", model=other, buffer_bytes=300_000)
    yield "filled", _same(other.state_dict(), right)
    stream.synchronize()
    yield "read before", _bits(kept) == old
    coming = torch.ones_like(model[0].weight, device="cpu").pin_memory()
    with sim.stream(torch.Stream(device="sim:1")), torch.no_grad():
        model[0].weight.copy_(coming, non_blocking=True)
        unmoor.save(folder / "b.pt", model=model, buffer_bytes=300_000)
    yield "written behind", torch.load(folder / "b.pt", map_location="cpu")["model"]["0.weight"].equal(coming)
