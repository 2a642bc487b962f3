"""Folders of torch.distributed.checkpoint: described as one whole, as torch's own reader has it."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint import metadata as md
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import unmoor
from tests.describe import dcp_ranks
from tests.describe.dcp_maker import DcpMaker, rows
from unmoor.describe import items
from unmoor.describe.dcp import describe_dcp
from unmoor.describe.dcp_tree import grown
from unmoor.errors import CorruptFile, FileError, HostileFile, NotACheckpoint, UnsupportedFile
from unmoor.filing import open_reader
from unmoor.values.nodes import TensorNode

W = torch.arange(24.0).reshape(6, 4)


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """The folders that runs of several ranks wrote."""
    return dcp_ranks.written(tmp_path_factory)


@pytest.fixture
def make(tmp_path):
    return DcpMaker(tmp_path / "step-1")


def small(make):
    """A folder of every kind of entry."""
    make.tensor(("model", "a.weight"), W, rows(W.shape, 3))
    make.tensor(("model", "a.bias"), torch.ones(4, dtype=torch.bfloat16))
    make.tensor(("buffers", 0), torch.tensor(7))
    make.tensor(("buffers", 1), torch.zeros(0, 3))
    make.value(("step",), 3)
    make.value(("betas",), (0.9, 0.99))
    make.value(("words",), ["a", {"b": torch.arange(3)}])
    return make


def by_torch(folder, scratch):
    """The same folder as torch's own converter reads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_to_torch_save(folder, scratch / "whole.pt")
    return torch.load(scratch / "whole.pt", weights_only=False)


def leaves(tree, path=()):
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if pairs is None:
        return {".".join(path): tree}
    return {key: leaf for k, value in pairs for key, leaf in leaves(value, (*path, str(k))).items()}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("name", dcp_ranks.FOLDERS)
def test_every_layout_reads_as_torch_reads_it(ranks, name, tmp_path):
    """Whatever number of ranks and mesh wrote a folder, one process gets the values that torch's converter gets."""
    ours, theirs = leaves(unmoor.load(ranks / name)), leaves(by_torch(ranks / name, tmp_path))
    if name == "titan":
        ours = {key.removeprefix("model."): value for key, value in ours.items() if ".param_groups." not in key}
        theirs = {key: value for key, value in theirs.items() if ".param_groups." not in key}
    assert ours.keys() == theirs.keys()
    assert [key for key in ours if not same(ours[key], theirs[key])] == []


def test_every_kind_of_entry_reads_as_torch_reads_it(make, tmp_path):
    """Whole and cut tensors, empty ones, lists, tuples, and values with tensors inside."""
    folder = small(make).write()
    ours, theirs = leaves(unmoor.load(folder)), leaves(by_torch(folder, tmp_path))
    assert ours.keys() == theirs.keys()
    assert [key for key in ours if not same(ours[key], theirs[key])] == []


def test_a_tensor_in_chunks_is_one_entry(make):
    """One row of the table for a tensor, however many files hold it, with the place of each chunk at hand."""
    catalog = unmoor.describe(small(make).write())
    entry = next(entry for entry in catalog.tensors if entry.path == "model.a.weight")
    assert (entry.shape, entry.stride, entry.nbytes, entry.span, entry.role) == ((6, 4), (4, 1), 96, None, "model")
    assert [(chunk.start, chunk.node.storage.span.file) for chunk in entry.chunks] == [
        ((0, 0), "__0_0.distcp"),
        ((2, 0), "__1_0.distcp"),
        ((4, 0), "__2_0.distcp"),
    ]
    assert all(source.crc32 is not None for source in entry.node.storage.sources())
    assert catalog.format == "dcp"
    json.dumps(catalog.to_json())


def test_parts_are_told_by_structure(ranks):
    """Torchtitan's weights beside the other parts are the model, its flattened optimizer a state dict by name."""
    catalog = unmoor.describe(ranks / "titan")
    assert [(part.role, part.path) for part in catalog.parts] == [
        ("model", "model"),
        ("optimizer", "optimizer"),
        ("scheduler", "lr_scheduler"),
        ("extra", "train_state"),
        ("extra", "dataloader"),
    ]
    detail = next(catalog.part("optimizer")).detail
    assert (detail["family"], detail["params"], detail["groups"], detail["names"]) == ("Adam", 10, 1, True)
    assert catalog.dialect == "torchtitan"
    assert "gathered" in {finding.code for finding in catalog.findings}


class Evil:
    def __reduce__(self):
        return os.mkdir, (os.environ["EVIL"],)


@pytest.mark.parametrize("place", ["metadata", "value"])
def test_nothing_of_a_hostile_folder_is_run(make, place, tmp_path, monkeypatch):
    """F3: torch's own reader runs code from `.metadata` and from any value; reading the same folder here runs none."""
    monkeypatch.setenv("EVIL", str(tmp_path / "it ran"))
    small(make)
    if place == "metadata":
        make.metadata.storage_meta = Evil()
    else:
        make.value(("evil",), Evil())
    folder = make.write()
    found = unmoor.describe(folder)
    tree = unmoor.load(folder)
    assert not (tmp_path / "it ran").exists()
    assert torch.equal(tree["model"]["a.weight"], W)
    assert any(finding.severity in ("danger", "error") and "mkdir" in finding.message for finding in found.findings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if place == "metadata":
            FileSystemReader(folder).read_metadata()
        else:
            dcp.load({"evil": 0}, checkpoint_id=folder, no_dist=True)
    assert (tmp_path / "it ran").exists()


def widen(make):
    box = make.metadata.state_dict_metadata["model.a.weight"].chunks[2]
    box.sizes = torch.Size((3, 4))


def leave_out(make):
    del make.metadata.state_dict_metadata["model.a.weight"].chunks[1]


def overlap(make):
    make.tensor(("model", "b"), W, [((0, 0), (4, 4)), ((3, 0), (3, 4))])


def other_dtype(make):
    make.metadata.state_dict_metadata["model.a.weight"].properties.dtype = torch.int32


def no_place(make):
    del make.metadata.storage_data[md.MetadataIndex("model.a.weight", (2, 0))]


def no_tensor(make):
    places = make.metadata.storage_data
    places[md.MetadataIndex("model.a.weight", (2, 0))] = places[md.MetadataIndex("step")]
    del make.metadata.state_dict_metadata["step"]


def repeated(make):
    """One element that stands for six rows: a kilobyte could ask for a terabyte."""
    key = ("model", "c")
    make.tensor(key, W, rows(W.shape, 2))
    index = md.MetadataIndex("model.c", (3, 0))
    stream = io.BytesIO()
    torch.save(torch.ones(1, 1).expand(3, 4), stream)
    data = make.files["__1_0.distcp"]
    make.metadata.storage_data[index] = _StorageInfo("__1_0.distcp", len(data), len(stream.getvalue()))
    data += stream.getvalue()


FAULTS = {
    repeated: "model.c: its chunk at (3, 0): it repeats the elements of a storage of 4 bytes",
    widen: "model.a.weight: its chunk at (4, 0) is [2, 4] of float32, .metadata says [3, 4] of float32",
    leave_out: "model.a.weight: 8 of its 24 elements are in no chunk",
    overlap: "model.b: its chunks at (0, 0) and (3, 0) overlap",
    other_dtype: "model.a.weight: its chunk at (0, 0) is [2, 4] of float32, .metadata says [2, 4] of int32",
    no_place: "model.a.weight: no file is named for it at (2, 0)",
    no_tensor: "model.a.weight: the item of its chunk at (2, 0) holds no plain tensor",
}


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_chunks_that_do_not_make_up_a_tensor_are_refused(make, spoil):
    """Gaps, overlaps and chunks of another kind are an error that names the tensor, before any data is read."""
    spoil(small(make))
    with pytest.raises(CorruptFile) as caught:
        unmoor.describe(make.write())
    assert FAULTS[spoil] in str(caught.value)


def test_all_faults_are_told_together(make):
    """A missing file, a cut one and a broken entry: every tensor is named in one error."""
    small(make)
    make.tensor(("model", "c"), W, rows(W.shape, 2))
    leave_out(make)
    folder = make.write()
    (folder / "__2_0.distcp").unlink()
    shard = folder / "__1_0.distcp"
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(CorruptFile) as caught:
        unmoor.describe(folder)
    text = str(caught.value)
    assert "model.a.weight: the file __2_0.distcp is missing" in text
    assert "model.c: its bytes" in text
    assert "of __1_0.distcp are missing" in text


def test_an_unfinished_save_is_named(make):
    """`.metadata` is written last: without it the folder is no checkpoint, and the error says why."""
    folder = small(make).write()
    (folder / ".metadata").unlink()
    with pytest.raises((NotACheckpoint, CorruptFile), match=r"\.metadata, which is written last"):
        unmoor.describe(folder)
    with pytest.raises(NotACheckpoint, match=r"3 shard files, but no \.metadata"):
        describe_dcp(str(folder))


def test_shards_of_another_save_are_told(make):
    """A folder that was saved over by fewer ranks still holds the old files: a finding names them."""
    folder = small(make).write()
    (folder / "__9_0.distcp").write_bytes(b"old")
    finding = next(f for f in unmoor.describe(folder).findings if f.code == "stray-shards")
    assert finding.message == "1 shard file of another save: __9_0.distcp"


@pytest.mark.parametrize("file", ["../secret.pt", "/etc/passwd", "a/../../b", "C:\\x", ""])
def test_places_outside_the_folder_are_hostile(make, file):
    """No entry can have a file read that does not lie in the folder."""
    small(make)
    make.metadata.storage_data[md.MetadataIndex("step")] = _StorageInfo(file, 0, 10)
    with pytest.raises(HostileFile, match="points out of its folder"):
        unmoor.describe(make.write())


def test_items_that_share_bytes_are_refused(make):
    """One item cannot stand for many: reading it again and again would have no end."""
    small(make)
    places = make.metadata.storage_data
    places[md.MetadataIndex("betas")] = places[md.MetadataIndex("step")]
    with pytest.raises(CorruptFile, match=r"the same bytes of __0_0\.distcp"):
        unmoor.describe(make.write())


def transformed(make):
    make.metadata.storage_data[md.MetadataIndex("step")].transform_descriptors = ["stream.zstd"]


def as_raw_bytes(make):
    place = make.metadata.storage_data[md.MetadataIndex("step")]
    make.files["__0_0.distcp"][place.offset : place.offset + place.length] = b"x" * place.length


@pytest.mark.parametrize(
    ("spoil", "words"), [(transformed, "stream.zstd"), (as_raw_bytes, "the item of step is no archive of torch.save")]
)
def test_items_that_need_code_are_refused_by_name(make, spoil, words):
    """Compressed by an extension, or written in another format: the entry is named, and what to do."""
    small(make)
    spoil(make)
    with pytest.raises(UnsupportedFile, match=words):
        unmoor.describe(make.write())


@pytest.mark.parametrize(
    "paths",
    [
        [("a", "b"), ("a", "b", "c")],
        [("a", "b", "c"), ("a", "b")],
        [("a", 0), ("a", 2)],
        [("a", 10**9)],
        [("a", 0), ("a", "0")],
    ],
)
def test_key_paths_that_contradict_are_refused(paths):
    """Two values at one place, or a list with holes, however large its numbers: an error, not memory."""
    with pytest.raises(CorruptFile):
        grown([(path, 1) for path in paths], "run")


@pytest.mark.parametrize(
    "path", [("a",), ("optimizer", "param_groups.w.lr"), ("s", "milestones"), ("o", "param_groups")]
)
def test_what_an_entry_holds_costs_no_more_than_it_is_large(make, path):
    """A list that holds itself sixty times doubled, and one that holds itself for ever, are read as any other value."""
    doubled = []
    for _ in range(60):
        doubled = [doubled, doubled]
    doubled.append(doubled)
    make.tensor(("w",), W)
    make.value(path, doubled)
    make.value(("s", "last_epoch"), 1)
    assert "walk-cut" in {finding.code for finding in unmoor.describe(make.write()).findings}


def test_a_flipped_byte_names_its_tensor(make):
    """Every byte of tensor data is checked against the checksum of its item as it streams."""
    folder = small(make).write()
    shard = folder / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    data[data.index(W[2:4].numpy().tobytes()) + 5] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptFile, match=r"__1_0.distcp: the data of model.a.weight does not match its checksum"):
        unmoor.load(folder)
    live = {"a.weight": torch.zeros(6, 4), "a.bias": torch.zeros(4, dtype=torch.bfloat16)}
    with pytest.raises(CorruptFile, match=r"model\.a\.weight"):
        unmoor.restore(folder, model=live, rng=False, verify="first", at={"model": "model"})
    assert not live["a.weight"].any()


def test_alike_items_are_taken_apart_once(make, monkeypatch):
    """Four hundred chunks of two shapes: what decided how one is read is known of the next."""
    for number in range(100):
        make.tensor(("model", f"{number}.weight"), W + number, rows(W.shape, 3))
        make.tensor(("model", f"{number}.bias"), torch.full((5,), number))
    read = []
    kept = items.read_saved
    monkeypatch.setattr(items, "read_saved", lambda *args: read.append(args) or kept(*args))
    folder = make.write()
    tree = unmoor.load(folder)["model"]
    assert all(torch.equal(tree[f"{n}.weight"], W + n) for n in range(100))
    assert all(torch.equal(tree[f"{n}.bias"], torch.full((5,), n)) for n in range(100))
    assert len(read) <= 4


@pytest.mark.parametrize(
    "value", [torch.arange(6.0), (0.9, 0.99), torch.zeros(70, 300).t()], ids=["tensor", "plain", "large"]
)
def test_what_is_known_of_an_item_never_misreads_another(value, tmp_path):
    """After a sound item, one that differs from it in any byte reads exactly as it would alone."""
    stream = io.BytesIO()
    torch.save(value, stream)
    sound = stream.getvalue()
    outside = [at for at in range(len(sound)) if at < 2000 or at > len(sound) - 1200]

    def told(reading, path, at):
        with open_reader(path) as reader:
            try:
                item = reading.read(reader, "f", at, len(sound))
            except FileError as fault:
                return type(fault)
        node = item.value
        if not isinstance(node, TensorNode):
            return repr(node)
        return node.shape, node.stride, node.offset, node.dtype, node.storage

    path = tmp_path / "items.distcp"
    for place in outside:
        other = bytearray(sound)
        other[place] ^= 0x41
        path.write_bytes(sound + other)
        reading = items.Items()
        told(reading, path, 0)
        assert told(reading, path, len(sound)) == told(items.Items(), path, len(sound)), place


def outcome(folder):
    try:
        return unmoor.describe(folder)
    except FileError as fault:
        return fault


def test_every_cut_and_flipped_byte_of_the_list_is_answered(make):
    """A catalog or an error of the file, and no other exception, whatever happens to `.metadata`."""
    make.tensor(("model", "a.weight"), W, rows(W.shape, 2))
    make.value(("step",), 3)
    listed = make.write() / ".metadata"
    raw = listed.read_bytes()
    for at in range(len(raw)):
        listed.write_bytes(raw[:at])
        assert isinstance(outcome(make.folder), FileError), at
        for flip in (0x01, 0x80):
            listed.write_bytes(raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :])
            outcome(make.folder)


@pytest.mark.parametrize("value", [b"", pickle.dumps({"a": 1}), pickle.dumps(md.Metadata({"a": 1})), b"\x80\x04N."])
def test_a_list_that_is_none_is_refused(make, value):
    """What is no metadata of torch.distributed.checkpoint is said to be none."""
    folder = small(make).write()
    (folder / ".metadata").write_bytes(value)
    assert isinstance(outcome(folder), FileError)


CHILD = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy"):
            raise ImportError(f"{name} is refused here")

sys.meta_path.insert(0, Refuse())
from unmoor.describe import describe_path
print([(e.path, e.shape) for e in describe_path(sys.argv[1]).tensors][0])
"""


def test_describing_needs_no_torch(make):
    """A process without torch and numpy reads a folder too."""
    folder = small(make).write()
    code = [sys.executable, "-c", CHILD, str(folder)]
    done = subprocess.run(code, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "('model.a.weight', (6, 4))"
