"""The laws that a restore keeps when the input is bad, and what it may take while it is good."""

from __future__ import annotations

import io
import os
import socket
import zipfile

import pytest
import torch

import unmoor

from .training import draws, equal, network, start, state


def flip(path, entry, byte=0, bit=0x40):
    """Flip one bit in the stored data of a tensor."""
    data = bytearray(path.read_bytes())
    data[entry.span.offset + byte] ^= bit
    path.write_bytes(data)


@pytest.fixture
def saved(tmp_path):
    run = start().train(3)
    unmoor.save(tmp_path / "run.pt", **run.roles, step=3)
    return tmp_path / "run.pt", run


def entry_of(path, name):
    return next(e for e in unmoor.describe(path).tensors if e.path == name)


def test_flipped_bit_found_first_changes_nothing(saved):
    """Law 2: verify="first" reads and checks all data before touching anything."""
    path, _ = saved
    flip(path, entry_of(path, "optimizer.state.5.exp_avg"))
    other = start(seed=4)
    before, drawn = state(other), draws()
    with pytest.raises(unmoor.CorruptFile, match=r"optimizer\.state\.5\.exp_avg") as caught:
        unmoor.restore(path, **other.roles, verify="first")
    assert equal(state(other), before)
    assert draws() == drawn
    assert "nothing was overwritten" in str(caught.value)


def test_flipped_bit_met_on_the_way_says_what_was_overwritten(saved):
    """Law 2: a bad checksum met half-way raises at once, naming the tensor and what was already overwritten."""
    path, _ = saved
    flip(path, entry_of(path, "model.5.weight"), byte=8)
    other = start(seed=4).train(1)
    before, drawn = state(other), draws()
    with pytest.raises(unmoor.CorruptFile) as caught:
        unmoor.restore(path, **other.roles)
    text = str(caught.value)
    assert "model.5.weight" in text
    assert "CRC-32" in text
    assert "already overwritten: model" in text
    assert "Restore another checkpoint before training on." in text
    assert draws() == drawn
    after = state(other)
    assert after["scheduler"] == before["scheduler"]
    assert after["optimizer"]["param_groups"] == before["optimizer"]["param_groups"]


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_load_finds_a_flipped_bit_where_the_format_has_checksums(tmp_path, legacy):
    """Law 11: every byte of tensor data that has a checksum is checked; a format without any is reported as such."""
    path = tmp_path / "a.pt"
    torch.save({"w": torch.randn(100)}, path, _use_new_zipfile_serialization=not legacy)
    flip(path, entry_of(path, "w"), byte=3)
    if legacy:
        assert unmoor.load(path)["w"].shape == (100,)
        assert "no-checksums" in {finding.code for finding in unmoor.describe(path).findings}
    else:
        with pytest.raises(unmoor.CorruptFile, match=r"'?w'?"):
            unmoor.load(path)


def test_file_cut_anywhere_changes_nothing(saved):
    """A file cut at any byte is one clear error, and no live object changes."""
    path, _ = saved
    whole = path.read_bytes()
    other = start(seed=4)
    before, drawn = state(other), draws()
    for cut in [*range(0, len(whole), 251), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        with pytest.raises(unmoor.FileError) as caught:
            unmoor.restore(path, **other.roles)
        assert path.name in str(caught.value)
    assert equal(state(other), before)
    assert draws() == drawn


KINDS = {
    "text": (b"Access to this resource is denied\n", "text"),
    "page": (b"<!DOCTYPE html><html><head><title>Quota exceeded</title></head></html>", "Quota exceeded"),
    "json": (b'{"message": "Not Found"}', "JSON"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "git lfs pull"),
    "empty": (b"", "empty"),
    "noise": (bytes(range(256)) * 4, "begins with the bytes 00 01 02"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["restore", "load", "describe", "plan"])
def test_other_files_are_named_as_what_they_are(tmp_path, kind, verb):
    """Text, a web page, a Git LFS pointer or an empty file is named as what it is, by every verb."""
    data, word = KINDS[kind]
    path = tmp_path / "model.pt"
    path.write_bytes(data)
    with pytest.raises(unmoor.NotACheckpoint, match=word) as caught:
        getattr(unmoor, verb)(path, **({"model": network()} if verb in ("restore", "plan") else {}))
    assert "model.pt" in str(caught.value)
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("kind", ["folder", "socket", "pipe", "nothing"])
def test_things_that_are_no_files_are_named(tmp_path, kind, monkeypatch):
    """A folder, a socket, a pipe and a missing file are named at once; nothing hangs."""
    path = tmp_path / "run.pt"
    listener = socket.socket(socket.AF_UNIX)
    if kind == "folder":
        path.mkdir()
    elif kind == "socket":
        monkeypatch.chdir(tmp_path)
        listener.bind("run.pt")
    elif kind == "pipe":
        os.mkfifo(path)
    word = {"nothing": "does not exist"}.get(kind, kind)
    with pytest.raises(unmoor.NotACheckpoint, match=word):
        unmoor.restore(path, model=network())
    listener.close()


def test_placement_conflict_is_found_before_a_byte_is_read(tmp_path):
    """Passing map_location and model_device is a TypeError, raised before the path is even looked at."""
    for call in (
        lambda: unmoor.load(tmp_path / "missing.pt", map_location="cpu", model_device="cpu"),
        lambda: unmoor.restore(tmp_path / "missing.pt", model=network(), map_location="cpu", model_device="cpu"),
    ):
        with pytest.raises(TypeError, match="Passing map_location explicitly and the model device are incompatible"):
            call()


def test_device_memory_is_the_live_state_and_nothing_more(sim, tmp_path):
    """Law 4: never a second copy of the checkpoint on a device; the buffer is on the host."""
    run = start("Adam", "sim:1").train(2)
    unmoor.save(tmp_path / "a.pt", **run.roles)
    other = start("Adam", "sim:2", seed=3)
    before = sim.memory_allocated(2)
    state_bytes = sum(
        v.numel() * v.itemsize for s in run.optimizer.state.values() for v in s.values() if v.device.type == "sim"
    )
    sim.reset_peak_memory_stats(2)
    unmoor.restore(tmp_path / "a.pt", **other.roles)
    assert sim.memory_allocated(2) <= before + 2 * state_bytes
    assert sim.max_memory_allocated(2) <= sim.memory_allocated(2)
    sim.reset_peak_memory_stats(2)
    settled = sim.memory_allocated(2)
    unmoor.restore(tmp_path / "a.pt", **other.roles)
    assert sim.max_memory_allocated(2) == settled


@pytest.mark.parametrize("buffer_bytes", [1 << 16, 1 << 20, 32 << 20])
def test_any_buffer_gives_the_same_values(tmp_path, buffer_bytes):
    """A restore through a buffer smaller than its tensors gives the same values as one through a large buffer."""
    tree = {"big": torch.randn(300, 1000), "turned": torch.randn(500, 400).t(), "half": torch.randn(999).half()}
    torch.save({"model": tree}, tmp_path / "a.pt")
    live = {"big": torch.zeros(1000, 300).t(), "turned": torch.zeros(400, 500), "half": torch.zeros(999)}
    unmoor.restore(tmp_path / "a.pt", model=live, buffer_bytes=buffer_bytes)
    assert all(torch.equal(live[name], tree[name].to(live[name].dtype)) for name in tree)
    loaded = unmoor.load(tmp_path / "a.pt", buffer_bytes=buffer_bytes)["model"]
    assert equal(loaded, tree)


def test_rounding_needs_to_be_asked_for(tmp_path):
    """Law 9: narrowing a dtype happens on request and stands in the report; widening is exact and passes."""
    torch.save({"w": torch.tensor([1.0, 1.0 + 2**-20])}, tmp_path / "a.pt")
    narrow, wide = {"w": torch.zeros(2, dtype=torch.bfloat16)}, {"w": torch.zeros(2, dtype=torch.float64)}
    with pytest.raises(unmoor.MismatchError, match=r"saved float32, live bfloat16.*cast="):
        unmoor.restore(tmp_path / "a.pt", model=narrow)
    assert torch.equal(narrow["w"], torch.zeros(2, dtype=torch.bfloat16))
    report = unmoor.restore(tmp_path / "a.pt", model=narrow, cast="any")
    assert [(c.before, c.after) for c in report.cast] == [("float32", "bfloat16")]
    report = unmoor.restore(tmp_path / "a.pt", model=wide)
    assert wide["w"].tolist() == [1.0, 1.0 + 2**-20]
    assert report.cast[0].after == "float64"


def test_all_faults_stand_in_one_error(tmp_path):
    """Law 14: every error names the place, both sides and the remedy; all faults of one input are reported together."""
    run = start().train(1)
    tree = {name: part.state_dict() for name, part in run.roles.items()}
    tree["model"].pop("0.bias")
    tree["model"]["head.weight"] = torch.ones(1)
    tree["model"]["3.weight"] = torch.ones(2, 2)
    torch.save(tree, tmp_path / "a.pt")
    other = start("SGD momentum", seed=4)
    before = state(other)
    with pytest.raises(unmoor.MismatchError) as caught:
        unmoor.restore(tmp_path / "a.pt", model=other.model, optimizer=other.optimizer)
    text = str(caught.value)
    for part in ("4 faults", "0.bias", "head.weight", "saved 2x2, live 8x8", "Adam-like", "SGD", "nothing was changed"):
        assert part in text
    assert equal(state(other), before)


@pytest.mark.parametrize("verb", ["restore", "load", "describe", "plan", "save"])
def test_an_open_file_in_the_place_of_a_path_is_named(verb):
    """A buffer or an open file is no path, and the error says so; bytes and path objects are."""
    with pytest.raises(unmoor.UsageError, match=r"a path was due, and a _io\.BytesIO was given"):
        getattr(unmoor, verb)(io.BytesIO())


def test_load_takes_map_location_by_position_as_torch_does(tmp_path):
    """unmoor.load(path, "cpu") means what torch.load(path, "cpu") means; bytes paths work as well."""
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    assert torch.equal(unmoor.load(os.fsencode(tmp_path / "a.pt"), "cpu")["w"], torch.ones(2))


@pytest.mark.parametrize("buffer", [64, 1 << 16, 32 << 20])
@pytest.mark.parametrize("verify", ["stream", "first", "none"])
@pytest.mark.parametrize("verb", ["load", "restore"])
def test_compressed_data_is_inflated_on_the_way(tmp_path, verb, verify, buffer):
    """An archive that someone zipped with compression is read as torch.load reads it, within any buffer."""
    turned = torch.arange(6000.0).reshape(60, 100).t()
    saved = {"big.weight": torch.arange(60_000.0).reshape(200, 300), "turned": turned}
    torch.save({"model": saved}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(tmp_path / "b.pt", "w") as new:
        for item in old.infolist():
            new.writestr(item.filename, old.read(item), zipfile.ZIP_DEFLATED)
    if verb == "load":
        found = unmoor.load(tmp_path / "b.pt", verify=verify, buffer_bytes=buffer)["model"]
    else:
        found = {name: torch.zeros(tensor.shape) for name, tensor in saved.items()}
        report = unmoor.restore(tmp_path / "b.pt", model=found, verify=verify, buffer_bytes=buffer)
        assert report.verified == (0 if verify == "none" else 2)
    assert all(torch.equal(found[name], tensor) for name, tensor in saved.items())


@pytest.mark.parametrize("at", [0.02, 0.5, 0.98])
def test_damaged_compressed_data_is_an_error(tmp_path, at):
    """A byte of compressed data that has changed is met while it is inflated, or by the checksum."""
    torch.save({"big.weight": torch.randn(50_000).round(decimals=2)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(tmp_path / "b.pt", "w") as new:
        for item in old.infolist():
            packed = zipfile.ZIP_DEFLATED if "/data/" in item.filename else zipfile.ZIP_STORED
            new.writestr(item.filename, old.read(item), packed)
        info = max(new.infolist(), key=lambda info: info.compress_size)
    raw = bytearray((tmp_path / "b.pt").read_bytes())
    raw[info.header_offset + 100 + int(at * (info.compress_size - 100))] ^= 0x55
    (tmp_path / "b.pt").write_bytes(raw)
    live = {"big.weight": torch.zeros(50_000)}
    for call in (lambda: unmoor.load(tmp_path / "b.pt"), lambda: unmoor.restore(tmp_path / "b.pt", model=live)):
        with pytest.raises(unmoor.CorruptFile, match=r"inflate|checksum"):
            call()
