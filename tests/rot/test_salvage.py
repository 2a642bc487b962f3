"""`convert --salvage`: whatever the damage, a tensor is rescued bit for bit or lost by name; nothing is invented."""

from __future__ import annotations

import json
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import unmoor
from tests.describe.dcp_maker import DcpMaker, rows
from tests.rot.subjects import SUBJECTS, content, files_of, parts
from unmoor import cli
from unmoor.values.conversion import Conversion

TRIED = int(os.environ.get("UNMOOR_ROT", "40"))
"""Places that are tried in a file; UNMOOR_ROT asks for more."""


def tensors(path: Path) -> dict[str, tuple[object, ...]]:
    """Every tensor of a checkpoint by its path, as its bytes."""
    tree = unmoor.load(path, map_location="cpu")
    found = {}
    for entry in unmoor.describe(path).tensors:
        value = tree
        for key in entry.keys:
            value = value[key]
        found[entry.path] = content(value)
    return found


def rescued(path: Path, target: Path, whole: dict[str, tuple[object, ...]], **options: object) -> Conversion:
    """A rescue, held against the tensors that there were: each is there as it was, or among the lost."""
    made = unmoor.convert(path, target, salvage=True, **options)
    there = tensors(target)
    assert made.salvage is not None
    lost = {one.path for one in made.salvage.lost if one.tensor and not one.kept}
    vouched = not any("nothing vouches" in note for note in made.salvage.notes)
    for name, value in there.items() if vouched else ():
        if not name.startswith(("storages.", "shards.")):
            assert value == whole[name], name
    if vouched and not any("no name is known" in note for note in made.salvage.notes):
        assert set(there) | lost == set(whole)
        assert not set(there) & lost
    return made


def span_of(path: Path, name: str) -> tuple[int, int, int]:
    """Where the local header of a record begins, its data, and the end of its data."""
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith("/" + name))
    data = path.read_bytes()
    lengths = (int.from_bytes(data[info.header_offset + at : info.header_offset + at + 2], "little") for at in (26, 28))
    start = info.header_offset + 30 + sum(lengths)
    return info.header_offset, start, start + info.file_size


def directory_of(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        return archive.start_dir


def overwritten(path: Path, start: int, stop: int, byte: bytes = b"\0") -> None:
    data = bytearray(path.read_bytes())
    data[start:stop] = byte * (stop - start)
    path.write_bytes(data)


def flipped(path: Path, at: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def _record(name: str, part: int) -> Callable[[Path], None]:
    """Zeros over the header of a record (0), its data (1), or the descriptor behind it (2)."""

    def damage(path: Path) -> None:
        header, start, end = span_of(path, name)
        overwritten(path, *((header, start), (start, end), (end, end + 16))[part])

    return damage


ZIPS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "no directory": (lambda path: cut(path, directory_of(path)), set()),
    "a directory of zeros": (lambda path: overwritten(path, directory_of(path), path.stat().st_size), set()),
    "half a directory": (lambda path: cut(path, directory_of(path) + 200), set()),
    "an end record that points elsewhere": (lambda path: flipped(path, path.stat().st_size - 6), set()),
    "a tensor of zeros": (_record("data/0", 1), {"model.0.weight"}),
    "a header of zeros": (_record("data/1", 0), set()),
    "a descriptor of zeros": (_record("data/1", 2), set()),
    "the first bytes": (lambda path: overwritten(path, 0, 16), set()),
    "a flipped bit in the pickle": (lambda path: flipped(path, sum(span_of(path, "data.pkl")[1:]) // 2), set()),
    "no header of the pickle": (_record("data.pkl", 0), set()),
    "a flipped bit in the byte order": (lambda path: flipped(path, span_of(path, "byteorder")[1]), set()),
}
"""Damage to a zip, and the tensors that must be lost, and no others."""


@pytest.mark.parametrize("damage", ZIPS)
@pytest.mark.parametrize("form", ["unmoor.save", "torch.save", "relocated"])
def test_what_is_whole_of_a_damaged_zip_is_rescued(tmp_path: Path, form: str, damage: str) -> None:
    """Each list of a zip is written twice; what one has lost the other tells, and a checksum says which is right."""
    path = SUBJECTS[form].make(tmp_path)
    whole = tensors(path)
    change, gone = ZIPS[damage]
    change(path)
    made = rescued(path, tmp_path / "out.pt", whole)
    assert made.salvage is not None
    assert {one.path for one in made.salvage.lost} == gone
    assert made.salvage.bare == 0
    assert unmoor.verify(tmp_path / "out.pt").ok


@pytest.mark.parametrize("form", ["unmoor.save", "torch.save", "relocated", "legacy", "safetensors of unmoor.save"])
def test_a_file_cut_anywhere_gives_what_lies_before_the_cut(tmp_path: Path, form: str) -> None:
    """At some forty places: what is rescued is what was saved, the rest is named, or all of it is lost."""
    path = SUBJECTS[form].make(tmp_path)
    data, whole = path.read_bytes(), tensors(path)
    best = 0
    for size in range(len(data) - 1, 0, -max(1, len(data) // TRIED)):
        path.write_bytes(data[:size])
        try:
            made = rescued(path, tmp_path / "out.pt", whole)
        except unmoor.FileError:
            continue
        best = max(best, len(whole) - len([one for one in made.salvage.lost if not one.kept]))
    assert best >= len(whole) - 4


@pytest.mark.parametrize("form", SUBJECTS)
def test_a_rescue_never_invents(tmp_path: Path, form: str) -> None:
    """Flips, zeroed runs, moved blocks anywhere: an error that says so, or tensors as they were and the lost by name.

    Formats without checksums cannot tell what was changed: of these only what is lost is held.
    """
    subject = SUBJECTS[form]
    path = subject.make(tmp_path)
    whole = tensors(path)
    chance = random.Random(7)
    files = list(files_of(path))
    for _ in range(TRIED // 4):
        file = chance.choice(files)
        before = file.read_bytes()
        _harm(file, chance)
        try:
            if subject.summed:
                rescued(path, tmp_path / "out.pt", whole)
            else:
                unmoor.convert(path, tmp_path / "out.pt", salvage=True)
        except unmoor.UnmoorError:
            pass
        finally:
            file.write_bytes(before)


def _harm(file: Path, chance: random.Random) -> None:
    data = bytearray(file.read_bytes())
    at, kind = chance.randrange(len(data)), chance.randrange(4)
    if kind == 0:
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        length = min(chance.choice([16, 64, 512]), len(data) - at)
        data[at : at + length] = bytes(length)
    elif kind == 2:
        other = chance.randrange(len(data))
        data[at : at + 64], data[other : other + 64] = data[other : other + 64], data[at : at + 64]
    else:
        data[at:at] = data[at : at + 100]
    file.write_bytes(data)


def test_c57_a_legacy_stream_names_what_is_short(tmp_path: Path) -> None:
    """C57: the last storage is short by 20 bytes; all others are rescued, told to be without a checksum."""
    tree = {name: torch.arange(8.0) + number for number, name in enumerate("abcd")}
    torch.save(tree, tmp_path / "legacy_cut.pth", _use_new_zipfile_serialization=False)
    whole = tensors(tmp_path / "legacy_cut.pth")
    cut(tmp_path / "legacy_cut.pth", (tmp_path / "legacy_cut.pth").stat().st_size - 20)
    made = rescued(tmp_path / "legacy_cut.pth", tmp_path / "out.pt", whole)
    assert made.salvage is not None
    assert [one.why for one in made.salvage.lost] == ["its data is short by 20 bytes"]
    assert (made.salvage.summed, made.salvage.bare) == (0, 3)


def test_storages_without_a_name_come_by_their_number(tmp_path: Path) -> None:
    """Where the pickle is gone no name is known: the storages are there as bytes, by the number of their record."""
    path = SUBJECTS["unmoor.save"].make(tmp_path)
    with zipfile.ZipFile(path) as archive:
        stored = {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist() if "/data/" in name}
    _record("data.pkl", 1)(path)
    made = unmoor.convert(path, tmp_path / "out.pt", salvage=True)
    found = unmoor.load(tmp_path / "out.pt")["storages"]
    assert {key: bytes(value.tolist()) for key, value in found.items()} == stored
    assert any("no name is known" in note for note in made.salvage.notes)


def test_a_pickle_that_breaks_off_gives_what_it_said_before(tmp_path: Path) -> None:
    """Zeros over the middle of the pickle: the model, which comes first, is rescued by name, the rest by number."""
    path = SUBJECTS["unmoor.save"].make(tmp_path)
    whole = tensors(path)
    _, start, end = span_of(path, "data.pkl")
    middle = start + path.read_bytes()[start:end].index(b"optimizer") + 40
    overwritten(path, middle, middle + 64)
    made = rescued(path, tmp_path / "out.pt", whole)
    assert {name for name in tensors(tmp_path / "out.pt") if name.startswith("model")} == {
        name for name in whole if name.startswith("model")
    }
    assert any("breaks off" in note for note in made.salvage.notes)


def test_what_is_rescued_is_restored_and_the_rest_is_fresh(tmp_path: Path) -> None:
    """The state of the parameter whose average is lost goes as a whole; restore says what it left as it was."""
    path = SUBJECTS["unmoor.save"].make(tmp_path)
    saved, _ = parts()
    keys = [entry for entry in unmoor.describe(path).tensors if entry.path.endswith("state.1.exp_avg")]
    _record(f"data/{keys[0].storage}", 1)(path)
    _record("data/0", 1)(path)
    made = unmoor.convert(path, tmp_path / "out.pt", salvage=True)
    assert {one.path for one in made.salvage.lost} == {
        "model.0.weight", "optimizer.state.1.exp_avg", "optimizer.state.1.exp_avg_sq", "optimizer.state.1.step",
    }  # fmt: skip
    assert dict(made.salvage.incomplete).keys() == {"model", "optimizer"}
    model, optimizer = parts(9)
    before = model[0].weight.clone()
    report = unmoor.restore(tmp_path / "out.pt", model=model, optimizer=optimizer, missing="fresh", rng=False)
    assert report.extra["step"] == 3
    assert torch.equal(model[0].weight, before)
    assert torch.equal(model[1].weight, saved[1].weight)
    assert {change.name for change in report.missing} >= {"0.weight"}


def test_damaged_data_is_kept_on_request(tmp_path: Path) -> None:
    """With keep_damaged, the tensor is written as it is and told; nothing else changes."""
    path = SUBJECTS["torch.save"].make(tmp_path)
    whole = tensors(path)
    _, start, _ = span_of(path, "data/0")
    flipped(path, start)
    made = unmoor.convert(path, tmp_path / "out.pt", salvage=True, keep_damaged=True)
    there = tensors(tmp_path / "out.pt")
    assert [(one.path, one.kept) for one in made.salvage.lost] == [("model.0.weight", True)]
    assert {name for name in whole if there[name] != whole[name]} == {"model.0.weight"}
    assert [finding.code for finding in made.findings] == ["damaged-data"]


def test_a_folder_without_one_shard_gives_the_tensors_of_the_others(tmp_path: Path) -> None:
    """A tensor with a box in the missing file is lost as a whole; one that lies in the others is rescued."""
    maker = DcpMaker(tmp_path / "run")
    maker.tensor(("model", "cut"), torch.arange(8.0).reshape(4, 2), rows((4, 2), 2))
    maker.tensor(("model", "whole"), torch.arange(3.0))
    maker.value(("step",), 5)
    folder = maker.write()
    (folder / "__1_0.distcp").unlink()
    made = unmoor.convert(folder, tmp_path / "out.pt", salvage=True)
    assert [(one.path, one.why) for one in made.salvage.lost] == [
        ("model.cut", "the file __1_0.distcp is missing"),
    ]
    assert unmoor.load(tmp_path / "out.pt")["step"] == 5
    assert torch.equal(unmoor.load(tmp_path / "out.pt")["model"]["whole"], torch.arange(3.0))


@pytest.mark.parametrize("lost", [".metadata", "unmoor-manifest.json", "a flipped bit of .metadata"])
def test_a_sharded_folder_without_its_lists(tmp_path: Path, lost: str) -> None:
    """Without names the items come by file and place; one flipped bit of the list is turned back by the manifest."""
    folder = SUBJECTS["sharded"].make(tmp_path)
    whole = tensors(folder)
    if lost.startswith("a flipped"):
        flipped(folder / ".metadata", 300)
    else:
        (folder / lost).unlink()
    made = unmoor.convert(folder, tmp_path / "out.pt", salvage=True)
    there = tensors(tmp_path / "out.pt")
    if lost == ".metadata":
        assert sorted(there.values()) == sorted(whole.values())
        assert any("no name is known" in note for note in made.salvage.notes)
    else:
        assert there == whole


def test_an_index_with_a_missing_and_a_cut_file(tmp_path: Path) -> None:
    """Of files that an index joins, the tensors of those that are there are rescued, the others lost by name."""
    torch.save({f"w{number}": torch.full((64,), float(number)) for number in range(6)}, tmp_path / "in.pt")
    unmoor.convert(tmp_path / "in.pt", tmp_path / "hub", max_shard_size=600)
    index = tmp_path / "hub" / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    files = sorted(set(places.values()))
    assert len(files) == 3
    (tmp_path / "hub" / files[0]).unlink()
    cut(tmp_path / "hub" / files[1], (tmp_path / "hub" / files[1]).stat().st_size - 10)
    made = unmoor.convert(tmp_path / "hub", tmp_path / "out.pt", salvage=True)
    lost = {one.path: one.why for one in made.salvage.lost}
    assert {name for name, file in places.items() if file == files[0]} <= set(lost)
    assert sum("short by 10 bytes" in why for why in lost.values()) == 1
    assert set(unmoor.load(tmp_path / "out.pt")) == set(places) - set(lost)


def test_a_lying_size_is_not_believed(tmp_path: Path) -> None:
    """What a header declares and no file holds is lost, takes no memory, and keeps nothing else from being rescued."""
    head = json.dumps({
        "big": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [8, 8 + (1 << 42)]},
        "small": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    }).encode()  # fmt: skip
    (tmp_path / "x.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(8))
    made = unmoor.convert(tmp_path / "x.safetensors", tmp_path / "out.pt", salvage=True)
    assert made.salvage is not None
    assert [(one.path, one.why) for one in made.salvage.lost] == [("big", f"its data is short by {1 << 42:,} bytes")]
    assert set(unmoor.load(tmp_path / "out.pt")) == {"small"}


def test_a_whole_file_is_rescued_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is lost, nothing found, and the exit code is that of a conversion."""
    path = SUBJECTS["unmoor.save"].make(tmp_path)
    code = cli.main(["convert", "--salvage", str(path), str(tmp_path / "out.pt")])
    assert (code, "nothing that is known of" in capsys.readouterr().out) == (0, True)
    assert content(unmoor.load(path)) == content(unmoor.load(tmp_path / "out.pt"))


def test_the_command_lists_what_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The receipt names each lost tensor with its reason, and the command ends with 1; as JSON it has all of it."""
    path = SUBJECTS["unmoor.save"].make(tmp_path)
    _record("data/0", 1)(path)
    call = ["convert", "--salvage", str(path), str(tmp_path / "out.pt")]
    assert cli.main(call) == 1
    printed = capsys.readouterr().out
    assert "LOST        model.0.weight: its data is damaged" in printed
    assert cli.main([*call, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["salvage"]
    assert [one["path"] for one in told["lost"]] == ["model.0.weight"]


def test_what_is_no_checkpoint_is_refused_as_ever(tmp_path: Path) -> None:
    """There is nothing to rescue in a web page."""
    (tmp_path / "page.pt").write_text("<html>" + "words " * 100)
    with pytest.raises(unmoor.FileError):
        unmoor.convert(tmp_path / "page.pt", tmp_path / "out.pt", salvage=True)
