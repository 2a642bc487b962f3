"""convert in odd places and of odd trees: equal values in the target, or nothing written and an error that says why."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter, OrderedDict
from functools import partial, reduce
from pathlib import Path

import numpy as np
import pytest
import torch

import unmoor
from tests.convert.trees import difference
from tests.describe.zero_maker import Shape, ZeroMaker

GOLDEN = Path(__file__).parents[1] / "golden"

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(TypedStorage|ComplexHalf|torch.distributed is|[Ss]parse|nested tensors)"
)

BASE = torch.arange(24.0).reshape(4, 6)


def loaded(path):
    return torch.load(path, weights_only=True)


def run(folder: Path, code: str) -> subprocess.CompletedProcess:
    """A process of its own in `folder`."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


TREES = {
    "keys of every kind": {0: BASE, "0": 1, -5: 2, None: 3, True: 4, (1, "a"): 5, 1.5: 6, b"x": 7, "": 8},
    "two paths of one flat key": {"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}},
    "names that are paths": {"a/b": torch.ones(2), "../x": torch.ones(1), "\n": torch.ones(1), "k" * 300: BASE},
    "text that is no UTF-8": {"\ud800": "\udfff", "x": torch.ones(1)},
    "empty containers": {"e": {}, "l": [], "t": (), "tt": ((),), "od": OrderedDict(), "c": Counter(), "s": set()},
    "tensors in lists in tuples": {"l": [[torch.ones(2), [torch.zeros(1)]], ({"a": torch.ones(3)},)]},
    "no dimension": {"z": torch.tensor(5), "b": torch.tensor(True)},
    "no elements": {"a": torch.empty(0), "b": torch.empty(3, 0, 2)},
    "a part of a storage": {"a": torch.arange(1000.0)[10:20]},
    "numbers": {"big": 1 << 2000, "small": -(1 << 2000), "inf": float("inf"), "c": 1 + 2j, "bytes": b"\0\xff"},
    "unsigned": {str(d): torch.arange(5).to(d) for d in (torch.uint16, torch.uint32, torch.uint64)},
    "eight bits": {str(d): torch.randn(5).to(d) for d in (torch.float8_e4m3fn, torch.float8_e5m2)},
    "a values tensor of a sparse one": {"v": (s := torch.eye(3).to_sparse().coalesce()), "values": s.values()},
    "deep": reduce(lambda inner, _: {"k": inner}, range(60), torch.ones(2)),
}


@pytest.mark.parametrize("name", TREES)
def test_odd_trees_pass_through_every_format(tmp_path, name):
    """File, folder, folder, file: plain torch.load finds the tree that went in."""
    torch.save(TREES[name], tmp_path / "a.pt")
    for source, target in (("a.pt", "b.pt"), ("a.pt", "one"), ("one", "two"), ("two", "c.pt")):
        unmoor.convert(tmp_path / source, tmp_path / target)
    for end in ("b.pt", "c.pt"):
        assert difference(loaded(tmp_path / "a.pt"), loaded(tmp_path / end)) == ""


@pytest.mark.parametrize("file", sorted(path.name for path in GOLDEN.glob("dtypes*.pt")))
def test_every_dtype_goes_through_a_folder(tmp_path, file):
    """Also those whose elements torch's planner knows no size of: written as values, equal to the last bit."""
    unmoor.convert(GOLDEN / file, tmp_path / "folder")
    unmoor.convert(tmp_path / "folder", tmp_path / "b.pt")
    before, after = unmoor.load(GOLDEN / file), loaded(tmp_path / "b.pt")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert (tensor.dtype, tensor.shape) == (after[key].dtype, after[key].shape)
        raw = [bytes(each.detach().reshape(-1).contiguous().untyped_storage()) for each in (tensor, after[key])]
        assert raw[0] == raw[1], key


@pytest.mark.parametrize("array", [np.arange(3, dtype=">i4"), np.ones((2, 3), dtype=">f8"), np.arange(6)[::-2]])
@pytest.mark.parametrize("road", ["save", "file", "folder"])
def test_arrays_of_another_byte_order_keep_their_values(tmp_path, array, road):
    """A numpy array is written in this machine's order, whatever its own, and comes back as an array."""
    if road == "save":
        unmoor.save(tmp_path / "a.pt", {"a": array})
    else:
        torch.save({"a": array}, tmp_path / "a.pt")
        unmoor.convert(tmp_path / "a.pt", tmp_path / ("b.pt" if road == "file" else "b"))
    found = unmoor.load(tmp_path / {"save": "a.pt", "file": "b.pt", "folder": "b"}[road])["a"]
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, array)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1 << 2040, "int of 2,041 bits"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "MaskedArray"),
        ({1 << 3000: 1}, "int of 3,001 bits"),
    ],
)
def test_save_refuses_what_safe_loading_cannot_read(tmp_path, value, words):
    """What torch.load refuses with its safe default, or what would lose a mask, is refused by name, nothing written."""
    with pytest.raises(unmoor.UsageError, match=words):
        unmoor.save(tmp_path / "a.pt", {"v": value})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (partial(len, ()), "functools.partial"),
        (len, "builtins.len"),
        (int, "builtins.int"),
        (random.Random(0), "random.Random"),
        (torch.ones(2).untyped_storage(), "a storage without a tensor"),
    ],
)
def test_names_what_would_need_code(tmp_path, value, name):
    """An object is called by its own class or function, never by what stands for it here."""
    torch.save({"w": torch.ones(1), "v": value}, tmp_path / "a.pt")
    with pytest.raises(unmoor.UnsupportedFile, match=f"v: .*{name}") as caught:
        unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    assert "nodes." not in str(caught.value)


@pytest.mark.parametrize(
    ("tree", "target", "words"),
    [
        ([1, 2], "b", "the tree is a list"),
        (torch.ones(2), "b", "the tree is a tensor"),
        (5, "b", "the tree is an int"),
        (torch.ones(2), "b.safetensors", "the tree: a tensor"),
        ({"a": 5}, "b.safetensors", "a: an int, and no tensor"),
    ],
)
def test_says_what_a_tree_is(tmp_path, tree, target, words):
    """What a format has no place for is named in words, and nothing is written."""
    torch.save(tree, tmp_path / "a.pt")
    with pytest.raises(unmoor.UsageError, match=words):
        unmoor.convert(tmp_path / "a.pt", tmp_path / target)
    assert os.listdir(tmp_path) == ["a.pt"]


def _knot():
    tree = {"a": torch.ones(1)}
    tree["self"] = tree
    return tree


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (_knot(), "self contains itself"),
        (reduce(lambda inner, _: {"k": inner}, range(150), torch.ones(2)), "more than 100 levels deep"),
    ],
)
def test_a_folder_refuses_a_knot(tmp_path, tree, words):
    """A tree that contains itself, or is too deep to read back, is an error in words and leaves nothing."""
    torch.save(tree, tmp_path / "a.pt")
    with pytest.raises(unmoor.UsageError, match=words):
        unmoor.convert(tmp_path / "a.pt", tmp_path / "b")
    with pytest.raises(unmoor.UnsupportedFile, match=words):
        len(unmoor.CheckpointReader(tmp_path / "a.pt").read_metadata().state_dict_metadata)
    assert os.listdir(tmp_path) == ["a.pt"]


def test_tells_of_strides_that_a_folder_does_not_keep(tmp_path):
    """Gaps, overlaps and repeated elements are laid out in order, and the receipt says so; what is dense is kept."""
    views = {"wide": torch.ones(1).expand(5), "over": BASE.as_strided((4, 4), (1, 1)), "t": torch.randn(4, 6).t()}
    torch.save(views, tmp_path / "a.pt")
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    told = {change.name: change.before for change in receipt.converted}
    assert told == {"wide": "laid out by strides", "over": "laid out by strides"}
    assert unmoor.load(tmp_path / "folder")["t"].stride() == (1, 6)


@pytest.fixture
def places(tmp_path):
    """A file, a folder and a safetensors file of one model, in the working directory's place."""
    torch.save({"model": {"w": torch.ones(3, 4), "b": torch.ones(2)}}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "f")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "s.safetensors", only="model")
    os.symlink("a.pt", tmp_path / "link.pt")
    os.link(tmp_path / "a.pt", tmp_path / "hard.pt")
    os.symlink("f", tmp_path / "linkf")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "target", "form", "words"),
    [
        ("a.pt", "a.pt", None, "the source itself"),
        ("a.pt", "link.pt", None, "the source itself"),
        ("a.pt", "hard.pt", None, "the source itself"),
        ("f", "f/", None, "the source itself"),
        ("f", "linkf", None, "the source itself"),
        ("f", "f/__0_0.distcp", "torch", "a part of the source"),
        ("linkf", "f/.metadata", "torch", "a part of the source"),
        ("f", "f/unmoor-manifest.json", "torch", "a part of the source"),
        ("f/__0_0.distcp", "f", None, "the folder in which the source"),
        ("s.safetensors", "s.safetensors", None, "the source itself"),
    ],
)
def test_never_replaces_what_it_reads(places, source, target, form, words):
    """The source, a part of it and the folder that holds it are refused as targets, links followed; all stays whole."""
    before = {path: path.read_bytes() for path in places.rglob("*") if path.is_file()}
    single = places / source
    if source.endswith(".distcp"):  # a shard file of one item is an archive by itself
        torch.save({"w": torch.ones(2)}, single)
        before[single] = single.read_bytes()
    with pytest.raises(unmoor.UsageError, match=words):
        unmoor.convert(single, f"{places}/{target}", format=form)
    assert {path: path.read_bytes() for path in places.rglob("*") if path.is_file()} == before


def test_never_replaces_a_file_of_an_index(tmp_path):
    """The files that an index names are a part of the source too."""
    from safetensors.torch import save_file

    save_file({"w": torch.ones(3)}, tmp_path / "model-00001-of-00001.safetensors")
    index = '{"metadata": {}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(unmoor.UsageError, match="a part of the source"):
        unmoor.convert(tmp_path / "model.safetensors.index.json", tmp_path / "model-00001-of-00001.safetensors")


def test_repartition_never_replaces_what_it_reads(tmp_path):
    """A step inside of the source, and the folder around a step, are refused as targets."""
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    folder = ZeroMaker(model, optimizer, Shape(2, 2)).write(tmp_path / "zero")
    step = next(path for path in Path(folder).iterdir() if path.is_dir())
    before = {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    for source, target in ((folder, step), (step, folder), (folder, folder)):
        with pytest.raises(unmoor.UsageError, match="the source"):
            unmoor.repartition(source, target, ranks=1)
    assert {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("", "'' is no path"),
        ("x\0.pt", "is no path"),
        ("x\0", "is no path"),
        ("n" * 300 + ".pt", "longer than the file system takes"),
        ("n" * 300, "longer than the file system takes"),
        ("no/such/x", "does not exist"),
        ("a.pt/x", "is not a folder"),
        ("foreign", "^foreign was not saved: the folder there holds more than a checkpoint[^~]*it holds note.txt"),
        ("plain", "^plain was not saved: a file is there"),
        (".", "the folder in which the source a.pt lies"),
        ("/dev/null", "no regular file"),
    ],
)
def test_a_target_that_cannot_be_is_told_once(places, monkeypatch, target, words):
    """Each is one sentence about the target, and leaves nothing behind."""
    monkeypatch.chdir(places)
    (places / "foreign").mkdir()
    (places / "foreign" / "note.txt").write_text("mine")
    (places / "plain").write_text("mine")
    before = sorted(os.listdir(places))
    form = "torch" if target == "/dev/null" else None
    with pytest.raises((unmoor.SaveError, unmoor.UsageError), match=words) as caught:
        unmoor.convert("a.pt", target, format=form)
    assert str(caught.value).count("was not saved") <= 1
    assert sorted(os.listdir(places)) == before


def test_save_refuses_a_path_that_is_none(tmp_path, monkeypatch):
    """An empty path is not the working directory, and a zero byte is no ValueError."""
    monkeypatch.chdir(tmp_path)
    for path in ("", "x\0y"):
        with pytest.raises(unmoor.UsageError, match="is no path"):
            unmoor.save(path, {"w": torch.ones(1)})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("only", [[], "", 5, [5], [""], {"model": 1}])
def test_only_has_to_choose(places, only):
    """An `only` that is no word, or none at all, is a mistake and no request for nothing."""
    with pytest.raises(unmoor.UsageError, match=r"is no role or key path"):
        unmoor.convert(places / "a.pt", places / "b.pt", only=only)


@pytest.mark.parametrize("verify", ["yes", None, True, 0])
def test_verify_is_one_of_three(places, verify):
    """A word that is none of them is refused by convert, repartition and load alike."""
    calls = (
        lambda: unmoor.convert(places / "a.pt", places / "b.pt", verify=verify),
        lambda: unmoor.repartition(places / "f", places / "b", ranks=1, verify=verify),
        lambda: unmoor.load(places / "a.pt", verify=verify),
    )
    for call in calls:
        with pytest.raises(unmoor.UsageError, match="is none of 'stream', 'first', 'none'"):
            call()


FULL = """
import resource, signal, unmoor
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
for target in ("new.pt", "new", "new.safetensors", "f", "s.safetensors"):
    try:
        unmoor.convert("big.pt", target, only="model")
    except unmoor.SaveError as error:
        print(error.errno, error.headline)
"""


def test_a_full_disk_is_told_and_leaves_what_was_there(places):
    """A file that grows past a limit fails as SaveError in every format; older targets stay, no hidden file does."""
    torch.save({"model": {"w": torch.randn(1 << 20)}}, places / "big.pt")
    before = sorted(os.listdir(places))
    done = run(places, FULL)
    assert done.stdout.count("would be larger than allowed") == 5, done.stdout + done.stderr
    assert sorted(os.listdir(places)) == before
    assert torch.equal(unmoor.load(places / "f")["model"]["w"], torch.ones(3, 4))


@pytest.mark.parametrize("target", ["k.pt", "k", "k.safetensors"])
def test_a_killed_process_leaves_the_older_target(places, target):
    """Killed while it writes: what was under the name is still there and whole, and the next one succeeds."""
    torch.save({"model": {"w": torch.zeros(4 << 20), "b": torch.zeros(2)}}, places / "big.pt")
    unmoor.convert(places / "a.pt", places / target, only="model")
    code = (
        "import os, unmoor\n"
        f"unmoor.convert('big.pt', {target!r}, only='model', progress=lambda _: os.kill(os.getpid(), 9))"
    )
    assert run(places, code).returncode == -signal.SIGKILL
    assert torch.equal(unmoor.load(places / target)["w"], torch.ones(3, 4))
    unmoor.convert(places / "big.pt", places / target, only="model")
    assert unmoor.load(places / target)["w"].shape == (4 << 20,)


@pytest.mark.parametrize("target", ["b.pt", "b", "b.safetensors"])
def test_a_callback_that_fails_leaves_nothing(places, target):
    """An error of the caller's own passes through as it is, and no part of the target stays."""
    before = sorted(os.listdir(places))
    with pytest.raises(ZeroDivisionError):
        unmoor.convert(places / "a.pt", places / target, only="model", progress=lambda _: 1 // 0)
    assert sorted(os.listdir(places)) == before


MEMORY = """
import sys, threading, time, torch, torch.distributed.checkpoint, unmoor
def held():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) >> 10
before, peak = held(), []
def watch():
    while True:
        peak.append(held())
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
source, target = sys.argv[1:]
unmoor.convert(source, target, only="model")
print(max(peak) - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system does not tell what a process holds")
@pytest.mark.parametrize(("source", "target"), [("a.pt", "b.safetensors"), ("f", "b.pt"), ("a.pt", "b"), ("f", "b")])
def test_no_tensor_is_whole_in_memory(tmp_path, source, target):
    """256 MiB that lie transposed take less than half of that, in every pair of formats."""
    torch.save({"model": {"w": torch.ones(1 << 12, 1 << 14).t()}}, tmp_path / "a.pt")
    if source == "f":
        unmoor.convert(tmp_path / "a.pt", tmp_path / "f")
    command = [sys.executable, "-W", "ignore", "-c", MEMORY, source, target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 128
    assert torch.equal(unmoor.load(tmp_path / target)["w"], torch.ones(1 << 14, 1 << 12))
