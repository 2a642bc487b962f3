"""Legacy streams: today's, and forms that only old torch wrote, built by hand."""

from __future__ import annotations

import struct

import pytest
import torch

from tests.describe.makers import outcome, save
from tests.hostile.make_hostile import DATA, Key, W, counted, dump, stream, tensor
from unmoor.describe.file import describe_file
from unmoor.errors import CorruptFile
from unmoor.values.nodes import TensorNode


def written(data: bytes, tmp_path):
    path = tmp_path / "legacy.pt"
    path.write_bytes(data)
    return path


def pid(key: str, numel: int, view: bytes = b"N", kind: bytes = b"ctorch\nFloatStorage\n") -> bytes:
    """A persistent id as Python 2 pickled it: strings are bytes."""
    return (
        b"(U\x07storage"
        + kind
        + b"U"
        + bytes([len(key)])
        + key.encode()
        + b"U\x06cuda:1J"
        + struct.pack("<i", numel)
        + view
        + b"tQ"
    )


def rebuilt(storage: bytes, size: int, offset: int = 0) -> bytes:
    return (
        b"ctorch._utils\n_rebuild_tensor\n(" + storage + b"K" + bytes([offset]) + b"(K" + bytes([size]) + b"t(K\x01ttR"
    )


def old_stream(value: bytes, keys: list[str], data: bytes) -> bytes:
    head = stream(None, [], b"")
    facts_end = head.rindex(dump(None))
    return head[:facts_end] + b"\x80\x02" + value + b"." + dump(keys) + data


def test_streams_of_python_2_are_read(tmp_path):
    """Strings that Python 2 wrote as bytes, and the four-argument rebuild of torch before 0.4."""
    value = b"}U\x01w" + rebuilt(pid("140", 3), 3) + b"s"
    path = written(old_stream(value, ["140"], counted(3)), tmp_path)
    (entry,) = describe_file(path).tensors
    assert (entry.path, entry.shape, entry.device, entry.dtype) == ("w", (3,), "cuda:1", "float32")
    assert path.read_bytes()[entry.span.offset : entry.span.end] == DATA


def test_views_of_storages_look_into_their_root(tmp_path):
    """Before torch 0.4 a storage could be a window into another: its tensors are windows into the root."""
    view = b"(U\x03141K\x01K\x02t"
    value = b"}(U\x01w" + rebuilt(pid("140", 3), 3) + b"U\x01v" + rebuilt(pid("140", 3, view), 1, 1) + b"u"
    catalog = describe_file(written(old_stream(value, ["140"], counted(3)), tmp_path))
    whole, part = catalog.tensors
    assert (whole.storage, part.storage, part.offset) == ("140", "140", 2)
    assert part.shared == ("w",)


def test_classes_of_whole_modules_are_not_imported(tmp_path):
    """A module saved whole stands under a persistent id with its source: class and attributes are kept, no more."""
    value = b"(U\x06modulecmine\nNet\nU\x06net.pyU\x0aclass Net:tQ)\x81}U\x08trainingI01\nsb"
    catalog = describe_file(written(old_stream(value, [], b""), tmp_path))
    assert (catalog.tree.name, catalog.tree.state) == ("mine.Net", {"training": True})


def test_variables_of_torch_before_0_4_are_tensors(tmp_path):
    """A Parameter was a call with its tensor and a state of three; a bare tensor had a state of four."""
    parameter = (
        b"ctorch.nn.parameter\nParameter\n"
        + rebuilt(pid("140", 3), 3)
        + b"\x85Rq\x05(I01\nI00\nccollections\nOrderedDict\n)Rtb"
    )
    bare = b"ctorch\nFloatTensor\n)Rq\x06(" + pid("140", 3) + b"K\x01K\x02\x85K\x01\x85tb"
    value = b"}(U\x01p" + parameter + b"U\x01b" + bare + b"U\x01ch\x06u"
    catalog = describe_file(written(old_stream(value, ["140"], counted(3)), tmp_path))
    found = {entry.path: entry for entry in catalog.tensors}
    assert found["p"].parameter
    assert found["p"].node.requires_grad
    assert (found["b"].shape, found["b"].offset, found["b"].device) == ((2,), 1, "cuda:1")
    assert found["c"].node is found["b"].node


def test_a_stream_cut_short_names_its_tensors(tmp_path):
    """The last storage is short by so many bytes; its tensors and those after it are named, the others are not."""
    tree = {name: tensor(Key(name, 3), (3,), (1,)) for name in "abc"}
    data = stream(tree, ["a", "b", "c"], counted(3) + counted(3, DATA[:-5]))
    error = outcome(written(data, tmp_path))
    assert type(error) is CorruptFile
    assert error.details == (
        "b: its data is short by 5 bytes",
        "c: its data comes after data that is cut short",
        "the other tensor is whole",
    )


def test_storages_come_in_the_order_of_the_list(tmp_path):
    """The list of keys, not the pickle, says which storage comes first."""
    tree = {name: tensor(Key(name, 3), (3,), (1,)) for name in "ab"}
    path = written(stream(tree, ["b", "a"], counted(3) + counted(3)), tmp_path)
    a, b = describe_file(path).tensors
    assert b.span.offset < a.span.offset


def test_what_follows_the_last_storage_is_told(tmp_path):
    """Bytes after a stream are no part of it."""
    path = written(stream({"w": W}, ["0"], counted(3)) + b"more", tmp_path)
    assert "trailing-bytes" in {finding.code for finding in describe_file(path).findings}


def test_long_pickles_are_read_in_growing_windows(tmp_path):
    """The pickle of a stream has no length: one that is larger than the first window is read all the same."""
    tree = {"words": [f"word {i}" for i in range(20_000)], "w": torch.ones(3)}
    path = save(tree, tmp_path / "f.pt", legacy=True)
    catalog = describe_file(path)
    assert catalog.tree["words"] == tree["words"]
    assert catalog.facts["data_pkl"][1] > 1 << 16
    assert type(catalog.tree["w"]) is TensorNode


@pytest.mark.parametrize("key", ["a", "9" * 50])
def test_storage_keys_are_any_text(key, tmp_path):
    """Keys were numbers of the process that saved; nothing is read into them."""
    tree = {"w": tensor(Key(key, 3), (3,), (1,))}
    assert describe_file(written(stream(tree, [key], counted(3)), tmp_path)).tensors[0].storage == key
