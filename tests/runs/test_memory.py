"""What a restore and a load take beside the live state, and what the system is told of the memory they make."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import unmoor
from unmoor.live import memory

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells the peak of memory on Linux")

MEASURE = """
import json, sys
from pathlib import Path
import torch
import unmoor

def status(name):
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(name))
    return int(line.split()[1]) * 1024

def restore(file, width, dtype=torch.float32, device=None, steps=True):
    with torch.device(device or "cpu"):
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False, dtype=dtype) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters()) if steps else None
    target = {} if device is None else {"model_device": "cpu"}
    cast = {} if dtype is torch.float32 else {"cast": "any"}
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    roles = {"model": model, **({"optimizer": optimizer} if steps else {})}
    unmoor.restore(file, **roles, rng=False, **target, **cast)
    moments = [t for entry in optimizer.state.values() for t in entry.values()] if steps else []
    made = [*moments, *(model.parameters() if device == "meta" else ())]
    return status("VmHWM") - before - sum(t.nbytes for t in made)

def load(file, width):
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    tree = unmoor.load(file)
    made = [*tree["model"].values(), *(t for e in tree["optimizer"]["state"].values() for t in e.values())]
    return status("VmHWM") - before - sum(t.nbytes for t in made)

KINDS = {
    "fresh optimizer": restore,
    "meta": lambda file, width: restore(file, width, device="meta"),
    "bfloat16": lambda file, width: restore(file, width, dtype=torch.bfloat16, steps=False),
    "load": load,
}
kind = KINDS[sys.argv[1]]
kind(sys.argv[2], 64)
print(json.dumps(kind(sys.argv[3], 2304)))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same small and large run: four matrices and their moments, 255 MB in the large one."""
    folder = tmp_path_factory.mktemp("memory")
    made = []
    for width in (64, 2304):
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
        optimizer = torch.optim.AdamW(model.parameters())
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        optimizer.step()
        made.append(str(folder / f"{width}.pt"))
        unmoor.save(made[-1], model=model, optimizer=optimizer, rng=False)
    yield made
    for file in made:
        Path(file).unlink()


@linux
@pytest.mark.parametrize("kind", ["fresh optimizer", "meta", "bfloat16", "load"])
def test_memory_is_the_live_state_and_a_bounded_rest(files, kind):
    """Memory: live state and one bounded buffer. 255 MB are restored and loaded with less than 64 MiB beside them."""
    code = [sys.executable, "-W", "ignore", "-c", MEASURE, kind, *files]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) < 64 << 20


ROOM = """
import json
import torch
from unmoor.live.memory import map_pages, roomy_all

def rows(name, file):
    return [line for line in open(file) if line.startswith(name)]

def resident():
    return int(rows("VmRSS", "/proc/self/status")[0].split()[1]) * 1024

roomy_all([torch.empty(5 << 20, dtype=torch.uint8)])
before, mappings = resident(), len(rows("", "/proc/self/maps"))
made = [torch.empty((5 << 20) + 24, dtype=torch.uint8) for _ in range(40)]
roomy_all(made)
asked, told = resident(), len(rows("", "/proc/self/maps"))
for tensor in made:
    map_pages(tensor.data_ptr(), tensor.nbytes)
print(json.dumps([asked - before, resident() - before - 40 * (5 << 20), told - mappings]))
"""


@linux
def test_room_costs_neither_memory_nor_mappings():
    """Asking takes no memory; what is mapped then is the tensors' own; and what lies side by side stays one mapping."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ROOM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    asked, beside, mappings = json.loads(done.stdout)
    assert asked < 4 << 20
    assert abs(beside) < 8 << 20
    assert mappings < 12


def _told(monkeypatch, *, mappings, most=65_530):
    calls = []
    monkeypatch.setattr(memory, "_madvise", lambda: lambda *call: calls.append(call))
    monkeypatch.setattr(memory, "_mappings", lambda: mappings)
    monkeypatch.setattr(memory, "_most_mappings", lambda: most)
    return calls


class _Block:
    """Memory at an address, as far as asking for room goes."""

    device = torch.device("cpu")

    def __init__(self, address, nbytes):
        self.data_ptr, self.nbytes = (lambda: address), (lambda: nbytes)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system knows no huge pages")
@pytest.mark.parametrize(("mappings", "told"), [(700, 1_000), (32_000, 382), (40_000, 256)])
def test_no_more_mappings_are_made_than_half_of_what_a_process_may_have(monkeypatch, mappings, told):
    """A thousand blocks that lie apart are told of as long as there is room for two mappings more for each."""
    calls = _told(monkeypatch, mappings=mappings)
    memory.roomy_all(_Block((1 << 40) + number * (16 << 20), 8 << 20) for number in range(1_000))
    assert len(calls) == told


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system knows no huge pages")
def test_blocks_that_touch_are_told_of_at_once(monkeypatch):
    """Blocks of malloc begin 64 bytes into the page after the last; small ones and other devices are left alone."""
    calls, page = _told(monkeypatch, mappings=100), mmap.PAGESIZE
    size, first = (8 << 20) + page, 1 << 40
    blocks = [_Block(first + number * size + 64, 8 << 20) for number in range(3)]
    memory.roomy_all([blocks[2], blocks[0], blocks[1], torch.empty(100), torch.empty(8 << 20, device="meta")])
    assert calls == [(first, 3 * size, mmap.MADV_HUGEPAGE)]


def test_a_system_without_huge_pages_changes_nothing(monkeypatch, tmp_path):
    """Where there is no madvise, memory is mapped as it is touched, and a restore is the same."""
    monkeypatch.setattr(memory, "_madvise", lambda: None)
    model = torch.nn.Linear(1100, 1100)
    unmoor.save(tmp_path / "a.pt", model=model, rng=False)
    memory.map_pages(0, 1 << 20)
    assert memory.roomy(model.weight) is model.weight
    assert torch.equal(unmoor.load(tmp_path / "a.pt")["model"]["weight"], model.weight)
