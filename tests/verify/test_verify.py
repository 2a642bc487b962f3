"""verify over every form of checkpoint: whole, with one bit turned round, cut short, with files missing."""

from __future__ import annotations

import json
import os
import zipfile

import pytest
import torch

import unmoor
from tests.cases.files import trained
from tests.describe.makers import repacked, save
from unmoor.errors import FileError, NotACheckpoint, UsageError

from .checkpoints import FORMS, dcp, deepspeed, flipped, index, own, place_of, safetensors, several, tensors, torch_zip

SUMMED = {"torch_zip", "own", "dcp", "deepspeed"}


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_checkpoint_is_whole(form, tmp_path):
    """No fault in any form; what has no checksum is counted with its format."""
    made = unmoor.verify(FORMS[form](tmp_path))
    assert made.ok, str(made)
    assert (made.complete, bool(made.records)) == (form in SUMMED, form in SUMMED or form == "several")
    assert sum(row.nbytes for row in made.unchecked) == 0 or not made.complete
    assert "no checksums in this format" in str(made) or form in SUMMED


def test_every_tensor_and_every_other_record_is_checked(tmp_path):
    """The numbers are those of the archive: all its records, and all tensors of the tree."""
    path = torch_zip(tmp_path)
    made = unmoor.verify(path)
    with zipfile.ZipFile(path) as archive:
        assert made.records == len(archive.infolist())
        assert made.nbytes == sum(info.file_size for info in archive.infolist())
    assert made.tensors == tensors(torch.load(path))


@pytest.mark.parametrize(
    ("record", "tensor"),
    [
        ("data/0", "model.0.weight"),
        ("data/5", "optimizer.state.0.exp_avg"),
        ("data.pkl", ""),
        ("byteorder", ""),
        ("version", ""),
        (".data/serialization_id", ""),
        ("unmoor/manifest.json", ""),
    ],
)
def test_one_bit_in_any_record_is_found_and_named(record, tensor, tmp_path):
    """The tensor on the record, its bytes and both checksums; a record that is no tensor by its own name."""
    path = own(tmp_path)
    flipped(path, place_of(path, record))
    made = unmoor.verify(path)
    assert not made.ok
    fault = next(fault for fault in made.faults if fault.kind == "checksum")
    assert fault.place.endswith(record)
    assert fault.saved is not None
    assert fault.saved != fault.read
    assert (fault.start <= place_of(path, record) < fault.end) or not fault.tensors
    assert fault.tensors == ((tensor,) if tensor else ())
    assert [fault.place for fault in made.faults] == [fault.place]
    assert f"CRC-32 saved {fault.saved:08x}, read {fault.read:08x}" in str(made)


def test_all_faults_are_gathered_and_the_rest_still_holds(tmp_path):
    """Three bad records are three faults in the order of the file; the others are counted as good."""
    path = torch_zip(tmp_path)
    for record in ("data/9", "data/0", "data/3"):
        flipped(path, place_of(path, record))
    made = unmoor.verify(path)
    assert [fault.place.rpartition("data/")[2] for fault in made.faults] == ["0", "3", "9"]
    assert made.damaged[0] == "model.0.weight"
    assert made.tensors == tensors(run_of(tmp_path)) - 3


def run_of(folder):
    return torch.load(torch_zip(folder))


def test_tensor_names_survive_a_broken_manifest(tmp_path):
    """Where the file cannot be described, the pickle alone still tells whose data is bad."""
    path = own(tmp_path)
    flipped(path, place_of(path, "unmoor/manifest.json"))
    flipped(path, place_of(path, "data/2"))
    assert unmoor.verify(path).damaged == ("model.2.weight",)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("form", ["torch_zip", "own", "legacy", "safetensors"])
def test_a_file_cut_short_is_a_fault_and_no_error(form, part, tmp_path):
    """The value says so; nothing is raised."""
    path = FORMS[form](tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    made = unmoor.verify(path)
    assert not made.ok
    assert {fault.kind for fault in made.faults} == {"structure"}
    assert "DAMAGED" in str(made).splitlines()[0]


def test_a_bit_in_the_list_of_records_is_a_fault_of_structure(tmp_path):
    """A local header whose name differs from the directory's is named with its place."""
    path = torch_zip(tmp_path)
    with zipfile.ZipFile(path) as archive:
        header = next(info.header_offset for info in archive.infolist() if info.filename.endswith("data/0"))
    flipped(path, header + 32)
    made = unmoor.verify(path)
    assert [fault.kind for fault in made.faults] == ["structure"]
    assert f"local header at byte {header:,}" in str(made)


def test_a_bit_in_an_item_of_a_folder_names_its_tensor(tmp_path):
    """Every item of a shard file is an archive: its data is named by tensor, its pickle by the key of the item."""
    path = dcp(tmp_path)
    shard = next(path.glob("*.distcp"))
    catalog = unmoor.describe(path)
    entry = next(e for e in catalog.tensors if e.path == "model.0.weight")
    flipped(shard, entry.span.offset)
    made = unmoor.verify(path)
    assert made.damaged == ("model.0.weight",)
    assert (made.faults[0].file, made.faults[0].start) == (shard.name, entry.span.offset)


def test_a_bit_in_the_pickle_of_an_item_is_told_once(tmp_path):
    """The folder cannot be described then; the record is named, and not said twice."""
    path = dcp(tmp_path)
    shard = next(path.glob("*.distcp"))
    data = shard.read_bytes()
    flipped(shard, data.index(b"torch._utils"))
    made = unmoor.verify(path)
    assert not made.ok
    assert [fault.kind for fault in made.faults] == ["checksum"]
    assert "data.pkl" in made.faults[0].place


def test_a_bit_in_the_list_of_a_folder_is_found_where_unmoor_wrote_it(tmp_path):
    """The manifest holds bytes and checksum of .metadata."""
    path = dcp(tmp_path)
    data = (path / ".metadata").read_bytes()
    flipped(path / ".metadata", data.rindex(b"model.0.weight"))
    assert not unmoor.verify(path).ok


def test_a_missing_shard_is_a_fault_that_names_it(tmp_path):
    """Of a folder and of an index alike."""
    folder = dcp(tmp_path)
    next(folder.glob("*.distcp")).unlink()
    (tmp_path / "shards").mkdir()
    shards = index(tmp_path / "shards")
    (shards.parent / "model-00002-of-00002.safetensors").unlink()
    for path, name in ((folder, ".distcp"), (shards, "model-00002-of-00002.safetensors")):
        made = unmoor.verify(path)
        assert not made.ok
        assert name in str(made)


@pytest.mark.parametrize("make", [several, deepspeed])
def test_a_bad_file_of_several_is_named_with_its_file(make, tmp_path):
    """The other files are checked too."""
    path = make(tmp_path)
    bad = sorted(p for p in path.rglob("*") if p.suffix in (".bin", ".pt"))[0]
    flipped(bad, place_of(bad, "data/0"))
    made = unmoor.verify(path)
    assert [fault.kind for fault in made.faults] == ["checksum"]
    assert made.faults[0].file == bad.relative_to(path).as_posix()
    assert made.tensors


def test_compressed_records_are_inflated_and_summed(tmp_path):
    """Damage in a deflated record is a fault of that record; the others hold."""
    path = repacked(torch_zip(tmp_path), tmp_path / "packed.pt", lambda _, data: data, compression=zipfile.ZIP_DEFLATED)
    assert unmoor.verify(path).complete
    flipped(path, place_of(path, "data/0") + 8, bit=8)
    made = unmoor.verify(path)
    assert made.damaged == ("model.0.weight",)
    assert made.tensors == tensors(run_of(tmp_path)) - 1


def test_records_without_a_checksum_stand_unverified(tmp_path):
    """Torch can be told to write none: the structure is checked, the bytes are counted."""
    from tests.golden.make_golden import HERE

    made = unmoor.verify(HERE / "no_crc-torch2.13.0.pt")
    assert (made.ok, made.complete) == (True, False)
    assert made.unchecked[0].nbytes == 12


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (lambda m: m["storages"]["0"].__setitem__(1, 4), "manifest-span"),
        (lambda m: m["storages"].update({"99": [0, 1, 2]}), "manifest-span"),
        (lambda m: m["roles"]["model"].update(keys=["ema"]), "manifest-role"),
        (lambda m: m["roles"]["optimizer"]["names"].pop(), "manifest-names"),
        (lambda m: m.update(numpy=[["nowhere"]]), "manifest-array"),
        (lambda m: m["values"].update(step=99), "manifest-values"),
    ],
)
def test_a_manifest_that_contradicts_the_tree_is_an_error(edit, code, tmp_path):
    """Names, roles, spans and arrays that it claims are held against the file."""

    def edited(name, data):
        if not name.endswith("manifest.json"):
            return data
        manifest = json.loads(data)
        edit(manifest)
        return json.dumps(manifest).encode()

    plain = repacked(own(tmp_path), tmp_path / "edited.pt", edited)
    made = unmoor.verify(plain)
    assert not made.faults
    assert code in {finding.code for finding in made.findings if finding.severity == "error"}
    assert not made.ok


def test_what_unmoor_writes_is_claimed_truly(tmp_path):
    """Every file that save and convert write holds all that its manifest claims."""
    path = own(tmp_path)
    unmoor.convert(path, tmp_path / "again.pt")
    unmoor.convert(path, tmp_path / "model.pt", only="model")
    unmoor.convert(path, tmp_path / "folder")
    unmoor.convert(tmp_path / "folder", tmp_path / "back.pt")
    for name in ("own.pt", "again.pt", "model.pt", "folder", "back.pt"):
        made = unmoor.verify(tmp_path / name)
        assert made.complete, str(made)
        assert not [f for f in made.findings if f.code.startswith("manifest")], str(made)


def test_the_newest_sound_checkpoint_beside_a_bad_one_is_named(tmp_path):
    """Newest by time, and verified itself: a bad sibling is passed over."""
    for number, name in enumerate(("step_1.pt", "step_2.pt", "step_3.pt")):
        model, _ = trained(seed=number)
        save(model.state_dict(), tmp_path / name)
        os.utime(tmp_path / name, (number, number))
    for name in ("step_2.pt", "step_3.pt"):
        flipped(tmp_path / name, place_of(tmp_path / name, "data/0"))
        os.utime(tmp_path / name, (9, 9))
    made = unmoor.verify(tmp_path / "step_3.pt")
    assert made.newest == str(tmp_path / "step_1.pt")
    assert made.newest_holds
    assert "newest that verifies here:" in str(made)


def test_what_is_no_checkpoint_raises(tmp_path):
    """A fault is for checkpoints; text, nothing and numbers are errors."""
    (tmp_path / "notes.txt").write_text("hello, this is a note\n" * 5)
    with pytest.raises(NotACheckpoint):
        unmoor.verify(tmp_path / "notes.txt")
    with pytest.raises(NotACheckpoint):
        unmoor.verify(tmp_path / "missing.pt")
    with pytest.raises((UsageError, FileError)):
        unmoor.verify(5)


def test_progress_adds_up_to_what_was_summed(tmp_path):
    """The bytes told are those of all records, whatever their size."""
    told = []
    made = unmoor.verify(own(tmp_path), progress=told.append)
    assert sum(told) == made.nbytes


def test_the_document_is_plain(tmp_path):
    """to_json holds nothing but JSON's own types, checksums as text."""
    path = own(tmp_path)
    flipped(path, place_of(path, "data/0"))
    row = json.loads(json.dumps(unmoor.verify(path).to_json()))
    assert row["ok"] is False
    assert row["faults"][0]["tensors"] == ["model.0.weight"]
    assert len(row["faults"][0]["saved"]) == 8


def test_safetensors_is_named_as_what_has_no_checksums(tmp_path):
    """The text says the format, how much stands unverified, and that the structure was checked."""
    text = str(unmoor.verify(safetensors(tmp_path)))
    assert "safetensors: no checksums in this format" in text
    assert "structure" in text
