"""The ways that `benchmarks.gpu` measures, each once in a process of its own."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

import unmoor
from benchmarks import common
from unmoor.api_files import THREADS
from unmoor.live.pinned import Lane, host_memory, pinned

PIECE = 4 << 20
TINY = 1

Run = tuple[nn.Module, torch.optim.Optimizer]


def name_of(device: torch.device) -> str:
    """What the device calls itself."""
    namer = getattr(getattr(torch, device.type), "get_device_name", None)
    return str(namer(device)) if namer else str(device)


def wait(device: torch.device) -> None:
    """Return when the device has done all it was given."""
    getattr(torch, device.type).synchronize(*(() if device.type == "mps" else (device,)))


def write_files(folder: str, nbytes: int, device: torch.device) -> int:
    """One run written by unmoor and by torch, large and tiny; the bytes of the large file."""
    for place, size in ((Path(folder, "tiny"), TINY), (Path(folder), nbytes)):
        place.mkdir(exist_ok=True)
        model, optimizer = _stepped(size, device)
        unmoor.save(place / "unmoor.pt", model=model, optimizer=optimizer, rng=False)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, place / "torch.pt")
        del model, optimizer
    return Path(folder, "unmoor.pt").stat().st_size


def do(way: str, folder: str, nbytes: int, device: torch.device) -> dict[str, float]:
    """One way's figures, after doing it once with the tiny files: all that is loaded on first use is there then."""
    _WAYS[way](f"{folder}/tiny", TINY, device)
    return _WAYS[way](folder, nbytes, device)


def _built(nbytes: int, device: torch.device, seed: int = 0) -> Run:
    with torch.device(device):
        return common.build(nbytes, seed=seed)


def _stepped(nbytes: int, device: torch.device) -> Run:
    model, optimizer = _built(nbytes, device)
    common.step(model, optimizer)
    wait(device)
    return model, optimizer


class _Meter:
    """Seconds, and the most memory beyond what was there and what is there at the end, on the device and here."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, getattr(torch, device.type)
        wait(device)
        if hasattr(self._module, "reset_peak_memory_stats"):
            self._module.reset_peak_memory_stats(device)
        self._host = common.memory()
        common.reset_peak()
        self._clock = common.Clock()

    def stop(self) -> dict[str, float]:
        wait(self._device)
        seconds, extra = self._clock(), 0
        if hasattr(self._module, "max_memory_allocated"):
            extra = self._module.max_memory_allocated(self._device) - self._module.memory_allocated(self._device)
        host = max(0, common.peak_memory() - self._host)
        return {"seconds": seconds, "extra": max(0, extra) / 2**20, "host": host / 2**20}


def _restore(by: Callable[[str, Run, torch.device], None], file: str) -> Callable[..., dict[str, float]]:
    def way(folder: str, nbytes: int, device: torch.device) -> dict[str, float]:
        run = _built(nbytes, device, seed=1)
        meter = _Meter(device)
        by(f"{folder}/{file}", run, device)
        common.touch([t for t in common.state_tensors(*run) if t.device == device])
        return meter.stop()

    return way


def _by_unmoor(path: str, run: Run, _: torch.device) -> None:
    unmoor.restore(path, model=run[0], optimizer=run[1], rng=False)


def _by_unmoor_unchecked(path: str, run: Run, _: torch.device) -> None:
    unmoor.restore(path, model=run[0], optimizer=run[1], rng=False, verify="none")


def _by_torch(path: str, run: Run, device: torch.device) -> None:
    tree = torch.load(path, map_location=device)
    run[0].load_state_dict(tree["model"])
    run[1].load_state_dict(tree["optimizer"])


def _by_torch_on_cpu(path: str, run: Run, _: torch.device) -> None:
    _by_torch(path, run, torch.device("cpu"))


def _save(by: Callable[[str, Run], None]) -> Callable[..., dict[str, float]]:
    def way(folder: str, nbytes: int, device: torch.device) -> dict[str, float]:
        run = _stepped(nbytes, device)
        meter = _Meter(device)
        by(f"{folder}/saved.pt", run)
        figures = meter.stop()
        os.unlink(f"{folder}/saved.pt")
        return figures

    return way


def _save_by_unmoor(path: str, run: Run) -> None:
    unmoor.save(path, model=run[0], optimizer=run[1], rng=False)


def _save_by_torch(path: str, run: Run) -> None:
    torch.save({"model": run[0].state_dict(), "optimizer": run[1].state_dict()}, path)


def _save_by_torch_on_cpu(path: str, run: Run) -> None:
    tree = {"model": run[0].state_dict(), "optimizer": run[1].state_dict()}
    torch.save(_on_cpu(tree), path)


def _on_cpu(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value


def _floor_of_restore(folder: str, nbytes: int, device: torch.device) -> dict[str, float]:
    """Reading the file into a buffer of each thread, and copying as many bytes from pinned memory to the tensors."""
    run = _stepped(nbytes, device)
    meter = _Meter(device)
    _shared(f"{folder}/unmoor.pt", os.O_RDONLY, os.preadv)
    file, meter = meter.stop()["seconds"], _Meter(device)
    _copy(run, device, to_device=True)
    return {"file": file, "copy": meter.stop()["seconds"]}


def _floor_of_save(folder: str, nbytes: int, device: torch.device) -> dict[str, float]:
    """Writing as many bytes as the file has, by as many threads, and copying the tensors into pinned memory."""
    run = _stepped(nbytes, device)
    path = f"{folder}/saved.pt"
    with open(path, "wb") as made:
        made.truncate(os.stat(f"{folder}/unmoor.pt").st_size)
    meter = _Meter(device)
    _shared(path, os.O_WRONLY, os.pwritev)
    file, meter = meter.stop()["seconds"], _Meter(device)
    os.unlink(path)
    _copy(run, device, to_device=False)
    return {"file": file, "copy": meter.stop()["seconds"]}


def _shared(path: str, how: int, call: Callable[..., int]) -> None:
    """Every byte of a file read or written once, in pieces that threads take in turn."""
    handle, size = os.open(path, how), os.stat(path).st_size
    turn, lock = iter(range(0, size, PIECE)), threading.Lock()

    def work() -> None:
        buffer = memoryview(bytearray(PIECE))
        while True:
            with lock:
                at = next(turn, None)
            if at is None:
                return
            end = min(at + PIECE, size)
            while at < end:
                at += call(handle, [buffer[: end - at]], at)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(handle)


def _copy(run: Run, device: torch.device, *, to_device: bool) -> None:
    """All tensors of the device to or from one pinned buffer, piece by piece on one stream."""
    host, lane = pinned(PIECE, device), Lane(device)
    host_memory(host, PIECE)[:] = bytes(PIECE)
    for piece in _pieces(run, device):
        part = host[: len(piece)]
        lane.copy(piece, part) if to_device else lane.copy(part, piece)
    lane.wait()


def _pieces(run: Run, device: torch.device) -> Iterator[torch.Tensor]:
    for tensor in common.state_tensors(*run):
        if tensor.device == device:
            yield from tensor.view(-1).view(torch.uint8).split(PIECE)


def _background(folder: str, nbytes: int, device: torch.device) -> dict[str, float]:
    """How long the call holds the run up, the first time and again, and a step beside the writing and alone."""
    run = _stepped(nbytes, device)
    for _ in range(3):
        _step(run, device)
    alone = statistics.median(_step(run, device) for _ in range(10))
    figures, during = {}, []
    for name in ("first", "again"):
        wait(device)
        clock = common.Clock()
        pending = unmoor.save(f"{folder}/saved.pt", model=run[0], optimizer=run[1], rng=False, background=True)
        figures[name] = clock()
        while not pending.done and len(during) < 1000:
            during.append(_step(run, device))
        pending.wait()
    os.unlink(f"{folder}/saved.pt")
    return {**figures, "alone": alone, "during": statistics.median(during or [alone])}


def _step(run: Run, device: torch.device) -> float:
    clock = common.Clock()
    common.step(*run)
    wait(device)
    return clock()


_WAYS: dict[str, Callable[..., dict[str, float]]] = {
    "unmoor.restore": _restore(_by_unmoor, "unmoor.pt"),
    "unmoor.restore, verify=none": _restore(_by_unmoor_unchecked, "unmoor.pt"),
    "torch.load to the device": _restore(_by_torch, "torch.pt"),
    "torch.load to the CPU": _restore(_by_torch_on_cpu, "torch.pt"),
    "unmoor.save": _save(_save_by_unmoor),
    "torch.save": _save(_save_by_torch),
    "torch.save of the state on the CPU": _save(_save_by_torch_on_cpu),
    "floor of a restore": _floor_of_restore,
    "floor of a save": _floor_of_save,
    "unmoor.save in the background": _background,
}
