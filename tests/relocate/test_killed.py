"""A relocation that dies at any byte: the file opens as the old one or the new one, and the old one comes back.

The states are those of a process that is killed: every byte of every write, in the order in which they are told to the
system; and those of a machine that loses power between two syncs, where any sectors of a write may be on the disk.
"""

from __future__ import annotations

import io
import random
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import unmoor
from unmoor.describe.file import describe_file
from unmoor.describe.torch_zip import describe_zip
from unmoor.describe.zip_ends import read_end
from unmoor.errors import SaveError, UnsupportedFile
from unmoor.execute import superseding
from unmoor.execute.superseding import Addition, append
from unmoor.filing import open_reader
from unmoor.plan.relocating import retagging, wish_of
from unmoor.wiring import relocating_zip

from .files import Memory, leaves, save
from .kills import Recorder, Write, after, states

READERS_LOOK_BACK = 65_557


@dataclass
class Scene:
    """A file, what it becomes, and the steps between."""

    tree: Any
    old: bytes
    new: bytes
    recorder: Recorder
    added: Addition


def scene(folder: Path, tensors: int, **options: Any) -> Scene:
    """A file of so many tensors on cuda:7, on its way to the CPU."""
    tree = {f"layer.{i}.weight": torch.full((2,), float(i)) for i in range(tensors)}
    path = save(tree, folder / "run.pt", **options)
    catalog = describe_file(path)
    made = retagging(catalog, wish_of("cpu", None, ["cuda:7"], str(path)))
    with open_reader(path) as reader:
        added = relocating_zip._new(reader, catalog, made).added
    recorder, old = Recorder(), path.read_bytes()
    with append(recorder, added):
        pass
    return Scene(tree, old, after(old, recorder.steps), recorder, added)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(tmp_path_factory.mktemp("small"), 3)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """More is appended than readers look back over."""
    made = scene(tmp_path_factory.mktemp("large"), 700)
    assert len(made.added.data) > 90_000
    return made


def device(data: bytes) -> str:
    """Where our reader says the tensors are."""
    (tag,) = {entry.device for entry in describe_zip(Memory(data)).tensors}
    return tag


def hold(made: Scene, data: bytes) -> None:
    """A file in some state: both readers open it, as the old or the new one; of the old one all bytes can be told."""
    new = data == made.new
    assert device(data) == ("cpu" if new else "cuda:7")
    met: list[str] = []
    loaded = torch.load(io.BytesIO(data), map_location=lambda storage, tag: met.append(tag) or storage)
    assert set(met) == ({"cpu"} if new else {"cuda:7"})
    assert len(loaded) == len(made.tree)
    if not new:
        reader = Memory(data)
        archive = relocating_zip._whole(reader, read_end(reader))
        assert data[: archive.size] == made.old
        assert archive.left == (len(data) > len(made.old))


def test_at_every_byte_of_every_step(small: Scene) -> None:
    """Cut at each byte of each write and after each step, the file opens, and the old bytes are known from it."""
    seen = 0
    for _, _, data in states(small.old, small.recorder.steps):
        hold(small, data)
        seen += 1
    assert seen > sum(len(step.data) for step in small.recorder.steps if isinstance(step, Write))


def test_where_more_is_appended_than_readers_look_back_over(large: Scene) -> None:
    """With anchors between, a large file is open to both readers after each step, and its end is known at each cut."""
    for _, count, data in states(large.old, large.recorder.steps, every=997):
        assert len(data) - data.rfind(b"PK\x05\x06") <= READERS_LOOK_BACK
        reader = Memory(data)
        assert relocating_zip._whole(reader, read_end(reader)).size == len(
            large.new if data == large.new else large.old
        )
        if count == -1:
            hold(large, data)


def test_nothing_is_written_over(small: Scene, large: Scene) -> None:
    """No step touches a byte of the old file, and the last step is the cut that makes the new one seen."""
    for made in (small, large):
        assert all(step.offset >= len(made.old) for step in made.recorder.steps if isinstance(step, Write))
        assert [isinstance(step, Write) for step in made.recorder.steps].index(False) == len(made.recorder.steps) - 1
        assert made.recorder.synced == [len(made.recorder.steps) + back for back in (-2, -1, 0)]


def test_at_a_power_failure(large: Scene) -> None:
    """Between two syncs any sectors of the new records may be on the disk or not: the file opens as the old one."""
    steps = large.recorder.steps
    before = after(large.old, steps[: large.recorder.synced[0]])
    (body,) = steps[large.recorder.synced[0] : large.recorder.synced[1]]
    assert isinstance(body, Write)
    whole = after(before, [body])
    chance = random.Random(0)
    for _ in range(8):
        data, share = bytearray(before), chance.random()
        for at in range(body.offset // 512 * 512, body.offset + len(body.data), 512):
            if chance.random() < share:
                data[at : at + 512] = whole[at : at + 512]
        hold(large, bytes(data))


def test_an_anchor_lies_in_one_sector(small: Scene, large: Scene) -> None:
    """A disk writes an anchor whole or not at all."""
    for made in (small, large):
        size = len(made.added.ends.anchor(made.added.size))
        assert all(at % 512 == 0 and size <= 512 for at in made.added.anchors())


@pytest.mark.parametrize("options", [{}, {"pickle_protocol": 4}], ids=["protocol 2", "protocol 4"])
def test_the_old_file_comes_back(tmp_path: Path, options: dict[str, Any]) -> None:
    """Whatever a killed relocation left, one undo gives the old file bit for bit, and a relocation goes through."""
    made = scene(tmp_path, 4, **options)
    path = tmp_path / "cut.pt"
    for number, (_, _, data) in enumerate(states(made.old, made.recorder.steps, every=211)):
        if data in (made.old, made.new) or number % 9:
            continue
        path.write_bytes(data)
        told = unmoor.undo_relocate(path)
        assert path.read_bytes() == made.old
        assert [finding.code for finding in told.findings] == ["interrupted-relocation"]
        path.write_bytes(data)
        told = unmoor.relocate(path, to="cpu")
        assert "interrupted-relocation" in {finding.code for finding in told.findings}
        assert len(path.read_bytes()) == len(made.new)
        assert leaves(torch.load(path, weights_only=False)) == leaves(made.tree)


def test_the_catalog_tells_of_an_interrupted_one(tmp_path: Path, large: Scene) -> None:
    """Inspect says that the checkpoint is whole, and what takes the rest away."""
    path = tmp_path / "cut.pt"
    path.write_bytes(after(large.old, large.recorder.steps[:-1]))
    (told,) = [finding for finding in unmoor.describe(path).findings if finding.code == "interrupted-relocation"]
    assert "which is whole" in told.message
    assert "--undo" in told.remedy


def test_what_other_programs_make_of_an_interrupted_one(tmp_path: Path, small: Scene) -> None:
    """Unzip tests it as before; Python's zipfile, which wants the directory right before the end, refuses it."""
    path = tmp_path / "cut.pt"
    path.write_bytes(after(small.old, small.recorder.steps[:-1]))
    done = subprocess.run(["unzip", "-tq", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(zipfile.BadZipFile):
        zipfile.ZipFile(path)
    unmoor.undo_relocate(path)
    assert zipfile.ZipFile(path).testzip() is None


def test_a_forged_anchor_is_none(tmp_path: Path, small: Scene) -> None:
    """An end that says to be a copy of an earlier one, and leads elsewhere, is damage."""
    whole = after(small.old, small.recorder.steps[:-1])
    at = whole.rfind(b"PK\x05\x06")
    for place in (at + 8, at + 12, at - 12):
        data = bytearray(whole)
        data[place] ^= 1
        path = tmp_path / "forged.pt"
        path.write_bytes(data)
        with pytest.raises(unmoor.CorruptFile, match="what it calls its end is none"):
            unmoor.describe(path)


@pytest.mark.parametrize("size", [b"0", b"1", b"99999999", b"9" * 19, b"9" * 40, b"x"])
def test_an_anchor_that_points_nowhere_is_damage(tmp_path: Path, small: Scene, size: bytes) -> None:
    """A size that is none, or not that of an archive, gets an error and no endless search."""
    whole = after(small.old, small.recorder.steps[:-1])
    digits = str(len(small.old)).encode()
    at = whole.rfind(b"PK\x05\x06")
    comment = whole[at + 22 :].replace(digits, size)
    path = tmp_path / "forged.pt"
    path.write_bytes(whole[: at + 20] + len(comment).to_bytes(2, "little") + comment)
    with pytest.raises(unmoor.CorruptFile):
        unmoor.describe(path)


class _Failing:
    """A tail on a real file whose n-th step fails as a full disk does, after half of what it should write."""

    def __init__(self, real: Any, step: int) -> None:
        self.real, self.left = real, step

    def _next(self) -> bool:
        self.left -= 1
        return self.left < 0

    def write(self, offset: int, data: bytes) -> None:
        if self._next():
            self.left = 10**6
            self.real.write(offset, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        self.real.write(offset, data)

    def truncate(self, size: int) -> None:
        if self._next():
            self.left = 10**6
            raise OSError(5, "Input/output error")
        self.real.truncate(size)

    def sync(self) -> None:
        if self._next():
            self.left = 10**6
            raise OSError(5, "Input/output error")
        self.real.sync()


@pytest.mark.parametrize("step", range(7))
def test_a_disk_that_fails_at_any_step_gives_the_old_file_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A step that fails is told, with its cause, and the file is cut off where it ended."""
    path = save({"w": torch.ones(3)}, tmp_path / "run.pt")
    old = path.read_bytes()
    real = superseding.append
    monkeypatch.setattr("unmoor.wiring.relocating_zip.append", lambda tail, added: real(_Failing(tail, step), added))
    with pytest.raises(SaveError, match=r"run\.pt was not relocated: (the disk is full|the disk reports an error)"):
        unmoor.relocate(path, to="cpu")
    assert path.read_bytes() == old


CHILD = """
import os, sys
import unmoor
from unmoor.execute.superseding import _FileTail
path, step = sys.argv[1], int(sys.argv[2])
count = 0
for name in ("write", "truncate", "sync"):
    def stop(self, *args, real=getattr(_FileTail, name), name=name):
        global count
        if count == step:
            if name == "write":
                real(self, args[0], args[1][: len(args[1]) * 2 // 3])
            os.kill(os.getpid(), 9)
        count += 1
        return real(self, *args)
    setattr(_FileTail, name, stop)
unmoor.relocate(path, to="cpu")
"""


@pytest.mark.parametrize("step", [0, 1, 3, 5])
def test_a_process_that_is_killed(tmp_path: Path, step: int) -> None:
    """A real process, killed in the middle of a step, leaves a file that loads; the next relocation goes through."""
    tree = {"w": torch.ones(3)}
    path = save(tree, tmp_path / "run.pt")
    old = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", CHILD, str(path), str(step)], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    assert leaves(torch.load(path, map_location="cpu")) == leaves(tree)
    assert path.read_bytes()[: len(old)] == old
    unmoor.relocate(path, to="cpu")
    assert leaves(torch.load(path)) == leaves(tree)
    unmoor.undo_relocate(path)
    assert path.read_bytes() == old


def test_genuine_trailing_bytes_are_not_taken_for_ours(tmp_path: Path, small: Scene) -> None:
    """Bytes behind an archive that are no beginning of an anchor are left, whatever is asked."""
    path = tmp_path / "run.pt"
    for tail in (b"P", b"\0", bytes(600), b"PK\x06\x07", b"x" * 700):
        path.write_bytes(small.old + tail)
        with pytest.raises(UnsupportedFile):
            unmoor.relocate(path, to="cpu")
        with pytest.raises(UnsupportedFile, match="not relocated in place"):
            unmoor.undo_relocate(path)
        assert path.read_bytes() == small.old + tail
