"""Law 1: describing executes nothing from a file, allocates nothing for its tensors, and is bounded."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.describe.makers import outcome, save
from tests.describe.sparse_zip import write_sparse
from tests.hostile.make_hostile import FILES, HERE, W, checkpoint, counted, entry, stream, tar, tensors
from unmoor.describe.file import describe_file
from unmoor.errors import FileError
from unmoor.values.catalog import Catalog

ROOT = Path(__file__).parents[2]
DATA = counted(3)[8:]


def torch_zip(folder: Path) -> bytes:
    return save({"w": torch.ones(3)}, folder / "made.pt").read_bytes()


SOUND = {
    "torch zip": torch_zip,
    "plain zip": lambda _: bytes(checkpoint({"w": W})),
    "legacy": lambda _: stream({"w": W}, ["0"], counted(3)),
    "safetensors": lambda _: tensors({"w": entry(0, 12, [3])}, DATA),
    "tar": lambda _: tar().rstrip(b"\0"),
}


@pytest.mark.parametrize("form", SOUND)
def test_every_cut_of_a_file_is_a_file_error(form, tmp_path):
    """A file cut at any byte gives an error of the file, never a catalog and never another exception."""
    path = tmp_path / "cut.pt"
    path.write_bytes(SOUND[form](tmp_path))
    assert isinstance(outcome(path), Catalog)
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        assert isinstance(outcome(path), FileError), length


@pytest.mark.parametrize("form", SOUND)
@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="writes single bytes in place")
def test_every_flipped_byte_gives_a_catalog_or_a_file_error(form, tmp_path):
    """One changed byte anywhere: a catalog, or an error of the file, and nothing else."""
    raw = SOUND[form](tmp_path)
    path = tmp_path / "flipped.pt"
    path.write_bytes(raw)
    with path.open("r+b", buffering=0) as file:
        for at, byte in enumerate(raw):
            for flip in (0x01, 0x80, 0xFF):
                os.pwrite(file.fileno(), bytes([byte ^ flip]), at)
                outcome(path)
            os.pwrite(file.fileno(), bytes([byte]), at)


@given(form=st.sampled_from(list(SOUND)), data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scrambled_files_give_a_catalog_or_a_file_error(form, data, tmp_path):
    """Several changes at once, pieces cut out and pieces doubled: a catalog or an error of the file."""
    raw = bytearray(SOUND[form](tmp_path))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(raw) - 1))
        stop = min(len(raw), at + data.draw(st.integers(1, 40)))
        piece = data.draw(st.sampled_from(["noise", "cut", "double", "zero", "ones"]))
        new = {"cut": b"", "double": bytes(raw[at:stop]) * 2, "zero": bytes(stop - at), "ones": b"\xff" * (stop - at)}
        raw[at:stop] = new[piece] if piece in new else data.draw(st.binary(min_size=1, max_size=40))
        raw = raw or bytearray(b"x")
    path = tmp_path / "scrambled.pt"
    path.write_bytes(raw)
    outcome(path)


def test_nothing_is_allocated_for_tensors(tmp_path):
    """Describing 64 GiB of tensors takes memory for their names, not for their data."""
    path = tmp_path / "large.pt"
    write_sparse(path, 64, 1 << 30)
    tracemalloc.start()
    try:
        catalog = describe_file(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(entry.nbytes for entry in catalog.tensors) == 64 << 30
    assert peak < 4 << 20


CHILD = textwrap.dedent(
    """
    import sys

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("torch", "numpy", "rich"):
                raise ImportError(f"{name} is refused here")

    sys.meta_path.insert(0, Refuse())
    import json, encodings.latin_1, encodings.ascii, encodings.utf_32_le, encodings.raw_unicode_escape
    from unmoor.describe.file import describe_file
    from unmoor.errors import FileError

    seen = []
    GRAVE = ("exec", "compile", "import", "os.system", "subprocess.Popen", "socket", "ctypes", "pickle.find_class")

    def watch(event, args):
        if event.startswith(GRAVE):
            seen.append((event, str(args)[:200]))
        if event == "open" and any(letter in str(args[1]) for letter in "wax+"):
            seen.append((event, str(args)[:200]))

    sys.addaudithook(watch)
    described = 0
    for path in sys.argv[1:]:
        try:
            describe_file(path)
            described += 1
        except FileError:
            pass
    print(described, seen)
    """
)


def test_nothing_runs_and_torch_is_not_needed(tmp_path):
    """A process without torch describes every hostile file; its audit hook sees no import, code, process or write."""
    sound = save({"model": {"a.weight": torch.ones(2)}, "numpy": torch.ones(2).numpy()}, tmp_path / "sound.pt")
    files = [str(HERE / name) for name in FILES]
    command = [sys.executable, "-c", CHILD, str(sound), *files]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    count, _, seen = done.stdout.strip().partition(" ")
    assert seen == "[]"
    assert int(count) > 10


def test_describing_changes_no_global_state(tmp_path):
    """Generators, default dtype and the list of loaded modules are what they were."""
    path = save({"m": {"a.weight": torch.ones(2)}, "rng": torch.get_rng_state()}, tmp_path / "f.pt")
    describe_file(path)
    before = (torch.get_rng_state(), torch.get_default_dtype(), set(sys.modules))
    describe_file(path)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.get_default_dtype(), set(sys.modules)) == before[1:]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled, tmp_path):
    """Whether a file is described or refused, the collector runs afterwards where it ran before."""
    good = save({"w": torch.ones(1)}, tmp_path / "good.pt")
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        for path in (good, HERE / "flood.pt"):
            outcome(path)
            assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_the_file_is_closed_again(tmp_path):
    """No descriptor stays open, whether the file was described or refused."""
    good = save({"w": torch.ones(1)}, tmp_path / "good.pt")
    bad = tmp_path / "bad.pt"
    bad.write_bytes(good.read_bytes()[:-1])
    open_before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for path in (good, bad):
        outcome(path)
    if open_before:
        assert len(os.listdir("/proc/self/fd")) == open_before
