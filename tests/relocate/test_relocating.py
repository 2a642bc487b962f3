"""relocate in place and in a copy: what plain torch.load sees then, and what is kept, told and refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import warnings
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.serialization import config

import unmoor
from tests.describe.makers import repacked, tagged, zip_of
from unmoor.errors import (
    ArgumentConflict,
    CorruptFile,
    MachineError,
    NotACheckpoint,
    SaveError,
    UnmoorError,
    UnsupportedFile,
    UsageError,
)
from unmoor.execute import superseding
from unmoor.execute.zipping import ZIP64_FROM
from unmoor.plan.sameness import first_difference

from .files import hold_plain, leaves, run, save, stored_tags

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_plain_load_puts_everything_elsewhere(tmp_path: Path, protocol: int) -> None:
    """After relocate --to cpu a file of cuda:7 loads with torch's defaults, and no old byte was changed."""
    tree = {"w": torch.randn(5, 4), "tied": [torch.ones(3)] * 2, "device": "cuda:7", "n": 3}
    path = save(tree, tmp_path / "run.pt", pickle_protocol=protocol)
    old = path.read_bytes()
    made = unmoor.relocate(path, to="cpu")
    assert path.read_bytes()[: len(old)] == old
    assert stored_tags(path) == {"cpu"}
    assert leaves(torch.load(path, weights_only=False)) == leaves(tree)
    assert [(move.old, move.new, move.tensors) for move in made.moves] == [("cuda:7", "cpu", 3)]
    assert made.values == ("device ('cuda:7')",)


def test_a_whole_run_passes_every_plain_reader(tmp_path: Path) -> None:
    """torch.load with its safe default, mmap, unzip -t and zipfile read the result; storages stay aligned."""
    tree = run()
    path = save(tree, tmp_path / "run.pt")
    unmoor.relocate(path, to="cpu")
    hold_plain(path, tree)
    unmoor.relocate(path, map_location={"cpu": "cuda:3"})
    unmoor.relocate(path, to="cpu")
    hold_plain(path, tree)


def test_storages_are_read_at_computed_offsets_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own arithmetic of where storages lie, which it can use in place of the directory, still holds."""
    tree = run()
    path = save(tree, tmp_path / "run.pt")
    unmoor.relocate(path, to="cpu")
    monkeypatch.setenv("TORCH_SERIALIZATION_DEBUG", "1")
    with config.patch({"load.calculate_storage_offsets": True}):
        assert leaves(torch.load(path, mmap=True)) == leaves(tree)


def by_key(names: dict[str, str]) -> Any:
    """A tag by the size of a storage in bytes, as the only thing that location_tag sees of it."""
    return lambda storage: names.get(str(storage.nbytes()), "cuda:7")


def tags_of(path: Path) -> dict[str, str]:
    return {entry.path: entry.device for entry in unmoor.describe(path).tensors}


@pytest.mark.parametrize(
    ("mapping", "after"),
    [
        ({"cuda:7": "cuda:0"}, {"a": "cuda:0", "b": "cuda:3", "c": "cpu"}),
        ({"cuda:7": "cuda:0", "cuda:3": "cpu"}, {"a": "cuda:0", "b": "cpu", "c": "cpu"}),
        ({"cuda": "cuda:0"}, {"a": "cuda:0", "b": "cuda:0", "c": "cpu"}),
        ({"cuda": "cpu", "cuda:3": "cuda:1"}, {"a": "cpu", "b": "cuda:1", "c": "cpu"}),
        ({"cpu": "cuda:2"}, {"a": "cuda:7", "b": "cuda:3", "c": "cuda:2"}),
        ({"cuda:7": "cuda:3", "cuda:3": "cuda:7"}, {"a": "cuda:3", "b": "cuda:7", "c": "cpu"}),
        ({"CUDA:07": "CPU:0"}, {"a": "cpu", "b": "cuda:3", "c": "cpu"}),
        ({"cuda:7": "mps"}, {"a": "mps", "b": "cuda:3", "c": "cpu"}),
    ],
    ids=str,
)
def test_a_map_changes_the_tags_that_it_names(tmp_path: Path, mapping: dict[str, str], after: dict[str, str]) -> None:
    """Each tag goes where the map says, a type stands for all its devices, others stay; two tags can change places."""
    tree = {"a": torch.ones(1), "b": torch.ones(2), "c": torch.ones(3)}
    path = save(tree, tmp_path / "run.pt", by_key({"8": "cuda:3", "12": "cpu"}))
    unmoor.relocate(path, map_location=mapping)
    assert tags_of(path) == after
    assert leaves(torch.load(path, map_location="cpu")) == leaves(tree)


def test_roles_decide_where_one_device_puts_things(tmp_path: Path) -> None:
    """--to cuda:0 follows the role table: models and moments there, Adam's step and random states on the CPU."""
    path = save(run(), tmp_path / "run.pt", "cpu")
    made = unmoor.relocate(path, to="cuda:0")
    tags = tags_of(path)
    assert {tags[f"model.{name}"] for name in ("0.weight", "1.running_mean")} == {"cuda:0"}
    assert (tags["optimizer.state.0.exp_avg"], tags["optimizer.state.0.step"], tags["rng"]) == ("cuda:0", "cpu", "cpu")
    assert {(kept.what, kept.device, kept.tensors) for kept in made.kept} == {
        ("optimizer step", "cpu", 6),
        ("rng", "cpu", 1),
    }


def test_a_capturable_optimizer_keeps_its_counters_with_it(tmp_path: Path) -> None:
    """Where the file says capturable, step goes beside its parameter."""
    path = save(run(capturable=True), tmp_path / "run.pt", "cpu")
    unmoor.relocate(path, to="cuda:0")
    assert tags_of(path)["optimizer.state.0.step"] == "cuda:0"


@pytest.mark.parametrize("asked", [{"map_location": {"cuda:7": "cuda:0"}}, {"to": "cuda:0"}], ids=str)
def test_random_states_go_to_the_cpu_whatever_is_asked(tmp_path: Path, asked: dict[str, Any]) -> None:
    """A random state that was tagged cuda:7 is on the CPU afterwards, so that torch.set_rng_state takes it."""
    path = save(run(), tmp_path / "run.pt")
    made = unmoor.relocate(path, **asked)
    assert tags_of(path)["rng"] == "cpu"
    assert ("rng", "cpu", 1) in {(kept.what, kept.device, kept.tensors) for kept in made.kept}
    torch.random.set_rng_state(torch.load(path, map_location={"cuda:0": "cpu"})["rng"])


def test_a_file_of_this_library_keeps_its_manifest_true(tmp_path: Path) -> None:
    """The manifest's devices change with the tags, its spans and checksums stay; unmoor verifies the file whole."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    path = tmp_path / "run.pt"
    unmoor.save(path, model=model, optimizer=optimizer, step=5)
    before = unmoor.describe(path)
    unmoor.relocate(path, to="cuda:4")
    after = unmoor.describe(path)
    assert before.manifest is not None
    assert after.manifest is not None
    assert after.manifest["roles"]["model"]["devices"] == ["cuda:4"]
    assert after.manifest["storages"] == before.manifest["storages"]
    assert {**after.manifest, "roles": None} == {**before.manifest, "roles": None}
    live = nn.Linear(3, 2)
    report = unmoor.restore(path, model=live, verify="first")
    assert torch.equal(live.weight, model.weight)
    assert report.moved[0].before == "cuda:4"
    assert not unmoor.verify(path).faults


def test_the_catalog_and_inspect_tell_of_it(tmp_path: Path) -> None:
    """A relocated file says from where to where, and how to undo it."""
    path = save(run(), tmp_path / "run.pt")
    unmoor.relocate(path, map_location={"cuda:7": "cuda:0"})
    told = [finding for finding in unmoor.describe(path).findings if finding.code == "relocated"]
    assert [finding.message for finding in told] == [
        "unmoor relocate changed device tags: cuda:7 to cuda:0, cuda:7 to cpu"
    ]


def test_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    """Where every tensor is there already the file is not touched."""
    path = save(run(), tmp_path / "run.pt", "cpu")
    facts = path.stat()
    made = unmoor.relocate(path, to="cpu")
    assert path.stat().st_mtime_ns == facts.st_mtime_ns
    assert not made.changed
    assert made.files[0].how == "unchanged"
    assert str(made).startswith("nothing to relocate in ")


def test_a_copy_leaves_the_original(tmp_path: Path) -> None:
    """--output writes a relocated copy and counts its bytes; an undo of the copy gives the original back."""
    path = save(run(), tmp_path / "run.pt")
    old, counted = path.read_bytes(), []
    made = unmoor.relocate(path, to="cpu", output=tmp_path / "here.pt", progress=counted.append)
    assert path.read_bytes() == old
    hold_plain(tmp_path / "here.pt", run())
    assert sum(counted) == len(old)
    assert (made.target, made.files[0].how) == (str(tmp_path / "here.pt"), "copied")
    assert made.files[0].after == (tmp_path / "here.pt").stat().st_size > len(old)
    unmoor.undo_relocate(tmp_path / "here.pt")
    assert (tmp_path / "here.pt").read_bytes() == old


def test_a_copy_where_nothing_moves_is_a_copy(tmp_path: Path) -> None:
    """--output gives a file also where there is nothing to change in it."""
    path = save(run(), tmp_path / "run.pt", "cpu")
    unmoor.relocate(path, to="cpu", output=tmp_path / "here.pt")
    assert (tmp_path / "here.pt").read_bytes() == path.read_bytes()


def test_a_copy_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refuses the copy leaves the old target and nothing else."""
    path = save(run(), tmp_path / "run.pt")
    (tmp_path / "here.pt").write_bytes(b"old")

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(superseding._FileTail, "write", full)
    with pytest.raises(SaveError, match=r"here\.pt was not relocated: the disk is full"):
        unmoor.relocate(path, to="cpu", output=tmp_path / "here.pt")
    assert (tmp_path / "here.pt").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["here.pt", "run.pt"]


def test_a_link_is_followed_and_stays_one(tmp_path: Path) -> None:
    """A symbolic link leads to the file that is relocated."""
    path = save(run(), tmp_path / "run.pt")
    (tmp_path / "latest.pt").symlink_to("run.pt")
    unmoor.relocate(tmp_path / "latest.pt", to="cpu")
    assert (tmp_path / "latest.pt").is_symlink()
    assert stored_tags(path) == {"cpu"}


def test_other_names_of_the_file_are_told(tmp_path: Path) -> None:
    """A hard link shows the new tags as well, and the report says so."""
    path = save(run(), tmp_path / "run.pt")
    os.link(path, tmp_path / "backup.pt")
    made = unmoor.relocate(path, to="cpu")
    assert [finding.code for finding in made.findings] == ["hard-links"]


def test_other_names_of_an_older_file_keep_the_old_tags(tmp_path: Path) -> None:
    """A file that is written anew is no longer the one of its other names, and the report says so."""
    path = save(run(), tmp_path / "run.pt", _use_new_zipfile_serialization=False)
    os.link(path, tmp_path / "backup.pt")
    (finding,) = unmoor.relocate(path, to="cpu").findings
    assert finding.code == "hard-links"
    assert "the others keep the old tags" in finding.message
    assert (stored_tags(path), stored_tags(tmp_path / "backup.pt")) == ({"cpu"}, {"cuda:7"})


def test_values_that_name_a_device_are_told_and_left(tmp_path: Path) -> None:
    """torch.device objects and texts of the user's stay what they are, also where the memo shares them with tags."""
    tree = {"args": {"device": torch.device("cuda:7"), "name": "cuda:7", "other": "cuda:1"}, "w": torch.ones(2)}
    path = save(tree, tmp_path / "run.pt", tree["args"]["name"])
    made = unmoor.relocate(path, to="cpu")
    assert sorted(made.values) == ["args.device (torch.device('cuda:7'))", "args.name ('cuda:7')"]
    assert torch.load(path)["args"] == tree["args"]


def test_a_deflated_archive_and_one_without_checksums(tmp_path: Path) -> None:
    """A checkpoint that was zipped again with compression relocates as well, and so does one without checksums."""
    tree = run()
    path = repacked(save(tree, tmp_path / "a.pt"), tmp_path / "b.pt", lambda n, d: d, compression=zipfile.ZIP_DEFLATED)
    unmoor.relocate(path, to="cpu")
    assert leaves(torch.load(path)) == leaves(tree)
    path = tmp_path / "c.pt"
    shutil.copy(GOLDEN / "no_crc-torch2.13.0.pt", path)
    unmoor.relocate(path, to="cuda:1")
    assert set(tags_of(path).values()) == {"cuda:1"}


@pytest.mark.parametrize("top", ["archive", "a" * 300, "größe 日本", "x/y", "with space", ""])
def test_the_top_folder_may_have_any_name(tmp_path: Path, top: str) -> None:
    """Whatever an archive calls its top folder, the new records stand in it."""
    source = save({"w": torch.ones(3)}, tmp_path / "a.pt")
    with zipfile.ZipFile(source) as old:
        records = {name.partition("/")[2]: old.read(name) for name in old.namelist()}
    path = zip_of({f"{top}/{name}".lstrip("/"): data for name, data in records.items()}, tmp_path / "b.pt")
    unmoor.relocate(path, to="cpu")
    assert tags_of(path) == {"w": "cpu"}
    with zipfile.ZipFile(path) as new:
        assert f"{top}/unmoor/relocated.json".lstrip("/") in new.namelist()
        assert new.testzip() is None
    if "/" not in top and top:
        assert torch.load(path)["w"].tolist() == [1.0] * 3


def test_a_name_in_an_old_code_page_stays_it(tmp_path: Path) -> None:
    """A top folder whose name is no UTF-8, and does not say to be, keeps its bytes and is read as before by zipfile."""
    raw = bytearray(save({"w": torch.ones(3)}, tmp_path / "qq.pt").read_bytes().replace(b"qq/", b"\x94\x94/"))
    for mark, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = raw.find(mark)
        while at >= 0:
            raw[at + flags + 1] &= 0xF7
            at = raw.find(mark, at + 1)
    path = tmp_path / "b.pt"
    path.write_bytes(raw)
    unmoor.relocate(path, to="cpu")
    assert tags_of(path) == {"w": "cpu"}
    with zipfile.ZipFile(path) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == {"öö"}


def test_a_big_archive_gets_the_fields_of_zip64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where offsets are large, the new records and the end say so in ZIP64; a low limit stands for 4 GiB."""
    tree = run()
    path = save(tree, tmp_path / "run.pt")
    real = superseding.addition
    monkeypatch.setattr("unmoor.wiring.relocating_zip.addition", lambda *a: real(*a, zip64_from=100))
    unmoor.relocate(path, to="cpu")
    hold_plain(path, tree)
    assert ZIP64_FROM == 0xFFFFFFFF


def test_a_file_of_more_than_four_gib(tmp_path: Path) -> None:
    """A sparse file of 6 GiB is relocated at once, and its last tensor reads as before."""
    from tests.describe.sparse_zip import write_sparse

    path = tmp_path / "big.pt"
    write_sparse(path, 6, 1 << 30)
    with tagged("cuda:0"):
        unmoor.relocate(path, to="cuda:0")
    assert set(tags_of(path).values()) == {"cuda:0"}
    loaded = torch.load(path, mmap=True, map_location={"cuda:0": "cpu"})
    assert [float(tensor[-1, -1]) for tensor in loaded.values()] == [0.0] * 6
    made = unmoor.undo_relocate(path)
    assert set(made.devices) == {"cpu"}


def test_tensors_without_data_keep_their_tag(tmp_path: Path) -> None:
    """A meta tensor has no data to be anywhere: it stays meta, the others move."""
    path = save({"m": torch.ones(2, device="meta"), "w": torch.ones(3)}, tmp_path / "run.pt")
    unmoor.relocate(path, to="cpu")
    assert tags_of(path) == {"m": "meta", "w": "cpu"}


def test_a_tensor_whose_device_is_no_tag_is_refused(tmp_path: Path) -> None:
    """A class that keeps its device in an argument of its own is named, and nothing is changed."""
    kept = torch._utils._rebuild_device_tensor_from_cpu_tensor

    class Other:
        def __reduce__(self) -> Any:
            return kept, (torch.ones(3), torch.float32, "xla:1", False)

    path = tmp_path / "run.pt"
    torch.save({"w": torch.ones(2), "x": Other()}, path)
    old = path.read_bytes()
    with pytest.raises(UnsupportedFile, match="1 tensor bear their device in an argument") as error:
        unmoor.relocate(path, to="cpu")
    assert error.value.details == ("x: xla:1",)
    assert path.read_bytes() == old


@pytest.mark.parametrize(
    "tag", ["xla:0", "mps", "mps:0", "npu:0", "hpu:0", "xpu:0", "privateuseone:0", "maia:0", "CPU", "cpu:0"]
)
def test_tags_of_other_backends_become_the_cpu(tmp_path: Path, tag: str) -> None:
    """C48: a file of any backend loads with torch's defaults once it was relocated."""
    path = save({"w": torch.arange(4.0)}, tmp_path / "run.pt", tag)
    unmoor.relocate(path, to="cpu")
    assert torch.load(path)["w"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_indices_that_do_not_exist_here(tmp_path: Path) -> None:
    """C41: cuda:2 and cuda:6, zip and stream, load after one relocation each, all four tensors."""
    state = {"0.weight": torch.ones(2), "0.bias": torch.ones(2), "2.weight": torch.ones(3), "2.bias": torch.ones(3)}
    for legacy in (False, True):
        path = save({"net": state}, tmp_path / "f", by_key({"8": "cuda:2", "12": "cuda:6"}),
                    _use_new_zipfile_serialization=not legacy)  # fmt: skip
        assert set(unmoor.describe(path).devices()) == {"cuda:2", "cuda:6"}
        unmoor.relocate(path, to="cpu")
        assert leaves(torch.load(path)) == leaves({"net": state})


def test_a_simulated_device_takes_it(tmp_path: Path, sim: ModuleType) -> None:
    """A file of the CPU relocated to a second device is there after a plain torch.load, step and random state apart."""
    path = save(run(), tmp_path / "run.pt", "cpu")
    unmoor.relocate(path, to="sim:2")
    loaded = torch.load(path)
    assert {str(tensor.device) for tensor in loaded["model"].values()} == {"sim:2"}
    assert {key: str(value.device) for key, value in loaded["optimizer"]["state"][0].items()} == {
        "step": "cpu",
        "exp_avg": "sim:2",
        "exp_avg_sq": "sim:2",
    }
    assert str(loaded["rng"].device) == "cpu"


@pytest.mark.parametrize(
    ("asked", "kind", "words"),
    [
        ({}, UsageError, "has cuda:7"),
        ({"to": "cpu", "map_location": {"cuda:7": "cpu"}}, ArgumentConflict, "two answers"),
        ({"map_location": {}}, UsageError, "has cuda:7"),
        (
            {"map_location": {"cuda:5": "cpu", "mps": "cpu"}},
            UsageError,
            r"cuda:5 and mps are no tag of .*\n.*has cuda:7",
        ),
        ({"map_location": {"cuda:7": "xla:0"}}, UsageError, "can put no data on 'xla:0'"),
        ({"map_location": "cpu"}, ArgumentConflict, "no mapping"),
        ({"to": "meta"}, UsageError, "can put no data on 'meta'"),
        ({"to": "gpu"}, UsageError, "no torch knows a device 'gpu'"),
        ({"to": "cuda:x"}, UsageError, "not a device tag"),
        ({"to": ""}, UsageError, "not a device tag"),
        ({"map_location": {"cuda:7": "cpu", "CUDA:07": "cuda:0"}}, UsageError, "cuda:7 is mapped twice, to cpu and to"),
        ({"to": 0}, UsageError, "no torch knows a device"),
        ({"to": "cpu", "output": "SAME"}, UsageError, "is the checkpoint itself"),
    ],
    ids=str,
)
def test_a_wrong_call_changes_nothing(tmp_path: Path, asked: Any, kind: type[UnmoorError], words: str) -> None:
    """What cannot be done is said with what the file has, before anything is written."""
    path = save({"w": torch.ones(2)}, tmp_path / "run.pt")
    old = path.read_bytes()
    if asked.get("output"):
        asked = {**asked, "output": path}
    with pytest.raises(kind, match=words):
        unmoor.relocate(path, **asked)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["run.pt"]


def test_words_are_looked_at_before_the_file(tmp_path: Path) -> None:
    """A device that is none is told although the file is not there either; then the file."""
    with pytest.raises(UsageError, match="no torch knows"):
        unmoor.relocate(tmp_path / "none.pt", to="nonsense")
    with pytest.raises(NotACheckpoint, match="does not exist"):
        unmoor.relocate(tmp_path / "none.pt", to="cpu")


def test_a_broken_file_is_named_and_left(tmp_path: Path) -> None:
    """A file that cannot be described is not written to."""
    path = save(run(), tmp_path / "run.pt")
    path.write_bytes(path.read_bytes()[:-200])
    old = path.read_bytes()
    with pytest.raises(CorruptFile, match="truncated zip"):
        unmoor.relocate(path, to="cpu")
    assert path.read_bytes() == old


def test_bytes_behind_the_archive_are_in_the_way(tmp_path: Path) -> None:
    """What stands behind an archive and is not this library's is not touched; a copy leaves it out."""
    path = save(run(), tmp_path / "run.pt")
    path.write_bytes(path.read_bytes() + b"signature")
    old = path.read_bytes()
    with pytest.raises(UnsupportedFile, match="9 bytes after the end"):
        unmoor.relocate(path, to="cpu")
    assert path.read_bytes() == old
    unmoor.relocate(path, to="cpu", output=tmp_path / "here.pt")
    hold_plain(tmp_path / "here.pt", run())


def test_undo_says_what_is_no_relocated_zip(tmp_path: Path) -> None:
    """A sound file of another format has nothing to undo; what is no checkpoint, or not there, is named as such."""
    legacy = save(run(), tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    tensors = tmp_path / "model.safetensors"
    tensors.write_bytes((2).to_bytes(8, "little") + b"{}")
    words = tmp_path / "words.pt"
    words.write_text("no checkpoint at all")
    for path, kind, said in (
        (legacy, UnsupportedFile, "nothing to undo"),
        (tensors, UnsupportedFile, "nothing to undo"),
        (words, NotACheckpoint, "is plain text"),
        (tmp_path / "none.pt", NotACheckpoint, "does not exist"),
    ):
        with pytest.raises(kind, match=said):
            unmoor.undo_relocate(path)


def test_undo_leaves_bytes_that_came_behind_a_relocated_archive(tmp_path: Path) -> None:
    """What someone put behind a relocated file is not cut off with the relocation; a copy without it is undone."""
    path = save(run(), tmp_path / "run.pt")
    before = path.read_bytes()
    unmoor.relocate(path, to="cpu")
    path.write_bytes(path.read_bytes() + b"signature")
    old = path.read_bytes()
    with pytest.raises(UnsupportedFile, match="9 bytes after the end") as caught:
        unmoor.undo_relocate(path)
    assert "--output FILE" in caught.value.remedy
    assert path.read_bytes() == old
    unmoor.relocate(path, to="cpu", output=tmp_path / "here.pt")
    unmoor.undo_relocate(tmp_path / "here.pt")
    assert (tmp_path / "here.pt").read_bytes() == before


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_file_that_may_not_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A read-only file is told as such, whatever the folder allows."""
    path = save(run(), tmp_path / "run.pt")

    def refused(path: str, **_: Any) -> Any:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr("unmoor.wiring.relocating_zip.locked", refused)
    for change in (lambda: unmoor.relocate(path, to="cpu"), lambda: unmoor.relocate(path, to="cuda:1")):
        with pytest.raises(SaveError, match=r"run\.pt was not relocated: this user may not write to it") as caught:
            change()
        assert caught.value.errno == code


def test_a_file_that_changes_meanwhile_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was replaced after it was described is not written to."""
    path = save(run(), tmp_path / "run.pt")
    other = save(run(1), tmp_path / "other.pt")
    real = superseding.locked

    def late(name: str, **how: bool) -> Any:
        os.replace(other, path)
        return real(name, **how)

    monkeypatch.setattr("unmoor.wiring.relocating_zip.locked", late)
    with pytest.raises(SaveError, match="replaced or written to while it was read; nothing was changed"):
        unmoor.relocate(path, to="cpu")
    assert stored_tags(path) == {"cuda:7"}


def test_two_at_once_do_not_meet(tmp_path: Path) -> None:
    """A file that another relocation holds is refused until that has ended."""
    path = save(run(), tmp_path / "run.pt")
    with superseding.locked(str(path)), pytest.raises(MachineError, match="is being relocated by another process"):
        unmoor.relocate(path, to="cpu")
    unmoor.relocate(path, to="cpu")
    assert stored_tags(path) == {"cpu"}


def test_systems_without_locks_go_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no fcntl, and no block sharing with it, files are relocated and copied all the same."""
    path = save(run(), tmp_path / "run.pt")
    monkeypatch.setitem(sys.modules, "fcntl", None)
    unmoor.relocate(path, to="cpu")
    unmoor.relocate(path, to="cuda:0", output=tmp_path / "copy.pt")
    assert stored_tags(path) == {"cpu"}
    assert "cuda:0" in set(tags_of(tmp_path / "copy.pt").values())


def test_the_result_is_plain_values(tmp_path: Path) -> None:
    """The value is frozen, prints, and is JSON."""
    path = save(run(), tmp_path / "run.pt")
    made = unmoor.relocate(path, to="cpu")
    assert json.loads(json.dumps(made.to_json()))["moves"][0]["old"] == "cuda:7"
    assert made.undo == f"unmoor relocate --undo {path}"
    assert made.appended == path.stat().st_size - made.files[0].before
    assert "moved" in str(made)
    with pytest.raises(AttributeError):
        made.path = "x"  # type: ignore[misc]


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    """Nothing of the hour or the machine is written: two relocations of one file are one file."""
    first = save(run(), tmp_path / "run.pt")
    second = tmp_path / "again" / "run.pt"
    second.parent.mkdir()
    shutil.copy(first, second)
    unmoor.relocate(first, to="cpu")
    unmoor.relocate(second, to="cpu")
    assert first.read_bytes() == second.read_bytes()


def test_what_does_not_read_back_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new pickle that says another thing than was meant is found before it is seen, and the old file stays."""
    path = save({"w": torch.ones(2), "device": "cuda:7"}, tmp_path / "run.pt")
    old = path.read_bytes()
    for name in ("retagged", "retagged_alike"):
        wrong = lambda data, *goal, **where: data.replace(b"cuda:7", b"cuda:0")
        monkeypatch.setattr(f"unmoor.wiring.relocating_zip.{name}", wrong)
    with pytest.raises(SaveError, match="do not read back as they were meant; the file is as it was") as error:
        unmoor.relocate(path, to="cuda:0")
    assert error.value.details == ("device was 'cuda:7' and is 'cuda:0'",)
    assert path.read_bytes() == old


def test_every_golden_zip_moves_there_and_back(tmp_path: Path) -> None:
    """Each golden zip, relocated to a device and back, says so, reads the same for torch, and can be undone."""
    seen = 0
    for source in sorted(GOLDEN.glob("*.pt")):
        before = unmoor.describe(source)
        if before.format != "torch-zip" or "object" in source.name:
            continue
        path = tmp_path / source.name
        shutil.copy(source, path)
        unmoor.relocate(path, to="cuda:9")
        after = unmoor.describe(path)
        tags = {storage.key: storage.device for storage in after.storages}
        assert first_difference(before.tree, after.tree, lambda storage, tags=tags: tags[storage.key]) == ""
        assert {e.device for e in after.tensors if e.role == "model" and e.device != "meta"} <= {"cuda:9"}
        unmoor.relocate(path, to="cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.load(path, weights_only=False)
        while "relocated" in unmoor.describe(path).facts:
            unmoor.undo_relocate(path)
        assert path.read_bytes() == source.read_bytes()
        seen += 1
    assert seen >= 10
