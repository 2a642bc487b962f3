"""A folder as it is found: half copied, linked, changing while it is listed, with strange files, without permission."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import unmoor
from tests.cases.files import tiny
from tests.listing.makers import made, own
from unmoor import filing, places
from unmoor.describe import glance_shards, listed_files, listed_inside
from unmoor.errors import NotACheckpoint, UsageError
from unmoor.wiring.listing import listed

HOSTILE_FILES = Path(__file__).parents[1] / "hostile"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two checkpoints, steps 10 and 20."""
    return made("unmoor", tmp_path / "run")


TEMPORARY = [
    "model200000.pt.tmp", "step_000000030.pt.part", "step_000000030.pt.incomplete", "tmp-checkpoint-500", "last.ckpt~",
    ".step_000000030.pt.unmoor-77-0123456789abcdef.tmp", ".step_000000030.pt.aB3xY9", "model.safetensors.crdownload",
    ".step_000000030.pt.unmoor-77-0123456789abcdef.old",
]  # fmt: skip


@pytest.mark.parametrize("name", TEMPORARY)
def test_a_temporary_name_is_no_checkpoint(name: str, run: Path) -> None:
    """What a save, a copy or a download has not put in its place is listed without a step, and never taken."""
    shutil.copy(run / "step_000000020.pt", run / name)
    found = unmoor.runs(run)
    (row,) = [row for row in found if row.name == name]
    assert (row.complete, row.step, row.verified) == (False, None, None)
    assert "cut off" in row.why
    assert unmoor.latest(run).name == "step_000000020.pt"
    assert unmoor.latest(run).passed == ()


@pytest.mark.parametrize(
    "name", ["notes.txt", "run.json", "events.out.tfevents.1", ".git", "notes.txt.tmp", "config.yaml", "a.pt.lock"]
)
def test_other_files_are_no_rows(name: str, run: Path) -> None:
    """What is called as no checkpoint is, is not looked at."""
    (run / name).write_bytes(b"anything")
    assert len(unmoor.runs(run)) == 2


def test_other_pickles_and_archives_are_no_rows(run: Path) -> None:
    """A .pkl, .bin or .tar that other programs wrote is passed over."""
    (run / "config.pkl").write_bytes(pickle.dumps({"a": 1}))
    (run / "vocab.bin").write_bytes(b"\x07" * 100)
    with zipfile.ZipFile(run / "docs.bin", "w") as archive:
        archive.writestr("a.txt", "a")
    assert len(unmoor.runs(run)) == 2


def test_the_newest_is_by_number_not_by_step_or_clock(run: Path) -> None:
    """A run that went back to step 10 and saved again there goes on from that save, whatever the clock said."""
    path = own(run, step=15, number=3)
    os.utime(path, (1, 1))
    assert [(row.step, row.number) for row in unmoor.runs(run)] == [(15, 3), (20, 2), (10, 1)]


def test_foreign_ones_are_by_step_then_by_time(tmp_path: Path) -> None:
    """Without numbers the step decides, and of two at one step the later one."""
    for name, step, moment in (("a.pt", 5, 300), ("b.pt", 7, 100), ("c.pt", 7, 200), ("d.pt", None, 900)):
        torch.save({"model": tiny().state_dict(), **({} if step is None else {"step": step})}, tmp_path / name)
        os.utime(tmp_path / name, (moment, moment))
    assert [row.name for row in unmoor.runs(tmp_path)] == ["c.pt", "b.pt", "a.pt", "d.pt"]


def test_a_broken_one_stands_where_its_step_does(run: Path) -> None:
    """A cut file of a run has no number to be had: its name puts it among the others."""
    own(run, step=30, number=3)
    own(run, step=40, number=4)
    (run / "step_000000030.pt").write_bytes(b"PK\x03\x04 cut")
    assert [row.step for row in unmoor.runs(run)] == [40, 30, 20, 10]


def test_a_name_that_says_another_step_is_told(run: Path) -> None:
    """The checkpoint itself is believed, and that its name says otherwise is told."""
    (run / "step_000000020.pt").rename(run / "step_000000099.pt")
    newest = unmoor.latest(run)
    assert (newest.step, newest.notes) == (20, ("its name says step 99",))


def test_verified_is_what_run_json_says_of_the_file_as_it_is(run: Path) -> None:
    """A note holds while size and time are those that were noted; a stale, foreign or broken one counts for nothing."""
    facts = {entry.name: entry for entry in places.entries(str(run))}
    rows = {name: {"size": e.nbytes, "mtime_ns": e.changed, "number": 1} for name, e in facts.items()}
    for text, wanted in (
        (json.dumps(rows), [True, True]),
        (json.dumps({"version": 1, "verified": rows}), [True, True]),
        (json.dumps({**rows, "step_000000020.pt": {"size": 1, "mtime_ns": 2}}), [None, True]),
        ("{", [None, None]),
        ("[]", [None, None]),
        ('{"step_000000020.pt": 7, "verified": "x"}', [None, None]),
    ):
        (run / "run.json").write_text(text)
        assert [row.verified for row in unmoor.runs(run)] == wanted
    (run / "run.json").write_text(json.dumps(rows))
    os.utime(run / "step_000000020.pt", (5, 5))
    assert [row.verified for row in unmoor.runs(run)] == [None, True]


def test_a_broken_one_keeps_the_number_that_was_noted(run: Path) -> None:
    """What a run noted of a save before it broke says where it stands: step 20 came after a later step."""
    own(run, step=30, number=3)
    (run / "step_000000020.pt").write_bytes(b"PK\x03\x04 cut")
    (run / "run.json").write_text(json.dumps({"step_000000020.pt": {"size": 1, "mtime_ns": 1, "number": 4}}))
    assert [(row.step, row.number, row.complete) for row in unmoor.runs(run)] == [
        (20, 4, False),
        (30, 3, True),
        (10, 1, True),
    ]


def flip(path: Path) -> None:
    span = unmoor.describe(path).tensors[0].span
    assert span is not None
    data = bytearray(path.read_bytes())
    data[span.offset] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_is_found_by_verify_alone(run: Path) -> None:
    """A glance does not see it; `verify` does, says which tensor, and falls back to the one before."""
    flip(run / "step_000000020.pt")
    assert unmoor.latest(run).step == 20
    rows = unmoor.runs(run, verify=True).rows
    assert [(row.verified, row.complete) for row in rows] == [(False, False), (True, True)]
    assert rows[0].why.startswith("damaged: model.")
    chosen = unmoor.latest(run, verify=True)
    assert (chosen.step, chosen.verified, [row.name for row in chosen.passed]) == (10, True, ["step_000000020.pt"])


def test_no_checksums_are_not_verified(tmp_path: Path) -> None:
    """What holds no checksum cannot be verified, and is no fault."""
    save_file(tiny().state_dict(), tmp_path / "model_5.safetensors")
    (row,) = unmoor.runs(tmp_path, verify=True)
    assert (row.step, row.verified, row.complete) == (5, None, True)


def test_no_link_is_followed_out_of_the_folder(run: Path, tmp_path: Path) -> None:
    """A link that leads out is named with its goal; one within the folder is another name for what it leads to."""
    outside = own(tmp_path / "elsewhere", step=50, number=9)
    (run / "step_000000050.pt").symlink_to(outside)
    (run / "checkpoint-60").symlink_to(tmp_path / "elsewhere")
    (run / "best.pt").symlink_to("step_000000010.pt")
    (run / "step_000000070.pt").symlink_to("step_000000071.pt")
    found = unmoor.runs(run)
    told = {row.name: row.why for row in found if not row.complete}
    assert set(told) == {"step_000000050.pt", "checkpoint-60"}
    assert str(outside) in told["step_000000050.pt"]
    assert found.notes == ("step_000000070.pt names step_000000071.pt, which is not there",)
    assert unmoor.latest(run).name == "step_000000020.pt"


@pytest.mark.parametrize("dialect", ["guided-diffusion", "hf-trainer", "unmoor", "deepspeed"])
def test_other_links_are_no_fault(dialect: str, tmp_path: Path) -> None:
    """A link to data or logs beside checkpoints, or in one, says nothing of them."""
    folder = made(dialect, tmp_path / "run")
    for place in (folder, *(path for path in folder.iterdir() if path.is_dir())):
        (place / "data").symlink_to(tmp_path)
    found = unmoor.runs(folder)
    assert [row.step for row in found if row.complete] == [20, 10]
    assert len(found) == 2


def test_a_name_is_shown_and_not_obeyed(run: Path) -> None:
    """Escape sequences in the name of a file are printed as such."""
    (run / "evil\x1b[31m.pt").write_bytes(b"")
    assert "\x1b" not in str(unmoor.runs(run))
    assert all("\x1b" not in str(row) for row in unmoor.runs(run))


def test_a_link_out_of_a_checkpoint_is_a_fault_of_it(tmp_path: Path) -> None:
    """A folder whose model is a link to elsewhere is not taken at its word."""
    folder = made("hf-trainer", tmp_path / "run")
    model = folder / "checkpoint-20" / "model-00001-of-00002.safetensors"
    shutil.move(model, tmp_path / "model.safetensors")
    model.symlink_to(tmp_path / "model.safetensors")
    assert "is a link that leads out" in unmoor.runs(folder).rows[0].why


def bomb(path: Path) -> None:
    path.write_bytes(b"\x80\x02" + b"(" * 50_000 + b".")


class Runs:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch executed",)


HOSTILE: dict[str, Callable[[Path], None]] = {
    "code": lambda path: torch.save({"step": Runs()}, path),
    "marks": bomb,
    "a directory over the end": lambda path: path.write_bytes(b"PK\x03\x04" + b"PK\x05\x06" + b"\xff" * 18),
    "safetensors without end": lambda path: path.write_bytes((1 << 31).to_bytes(8, "little") + b"{" + bytes(100)),
    "random": lambda path: path.write_bytes(bytes(range(256)) * 40),
    "a name twice": lambda path: _twice(path),
}


def _twice(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a/data.pkl", b"\x80\x02}X\x04\0\0\0stepK\x05s.")


@pytest.mark.parametrize("kind", HOSTILE)
def test_goes_on_past_hostile_files(kind: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a file is run, none takes long, and the sound ones are listed all the same."""
    monkeypatch.chdir(run)
    HOSTILE[kind](run / "evil.pt")
    begin = time.process_time()
    found = unmoor.runs(run)
    assert time.process_time() - begin < 2
    assert not (run / "executed").exists()
    assert [row.step for row in found][:2] == [20, 10]
    (row,) = [row for row in found if row.name == "evil.pt"]
    assert not row.complete or kind in ("code", "a name twice")
    assert unmoor.latest(run, verify=True).step == 20


def test_goes_on_past_every_hostile_file_there_is(run: Path) -> None:
    """The corpus of tests/hostile, in one folder with two sound checkpoints: those are listed first, nothing raises."""
    corpus = [path for path in HOSTILE_FILES.iterdir() if path.suffix in (".pt", ".pth", ".safetensors", ".npz")]
    for path in corpus:
        shutil.copy(path, run / f"{path.stem}{path.suffix}")
    begin = time.process_time()
    found = unmoor.runs(run)
    assert time.process_time() - begin < 10
    assert len(corpus) > 60
    assert [row.number for row in found][:3] == [2, 1, 0]


def test_a_hostile_manifest_is_no_more_than_a_wrong_one(run: Path) -> None:
    """Values of any kind at the head of a manifest: no error, no step, no number."""
    for number, values in enumerate(
        ({"run": {"step": "x", "number": -5, "metrics": 7}}, {"step": [[]]}, {"epoch": 1e400}, 3, [])
    ):
        _with_manifest(run / f"odd{'abcde'[number]}.pt", {"manifest": 1, "values": values})
    rows = [row for row in unmoor.runs(run) if row.name.startswith("odd")]
    assert {(row.step, row.number, row.metrics == {}) for row in rows} == {(None, 0, True)}


def _with_manifest(path: Path, manifest: object) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        archive.writestr("a/unmoor/manifest.json", json.dumps(manifest, separators=(",", ":")))


def test_a_manifest_behind_other_records_is_found(run: Path) -> None:
    """What a relocation appends stands behind the manifest, and the values at its head are still read."""
    with zipfile.ZipFile(run / "step_000000020.pt", "a") as archive:
        archive.writestr("step_000000020/more", "x")
    newest = unmoor.latest(run)
    assert (newest.step, newest.number, newest.dialect) == (20, 2, "unmoor")


def test_a_large_manifest_is_read_by_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a checkpoint of thousands of tensors no more than a few pages are read."""
    tree = {
        "model": {f"w{i}": torch.zeros(1) for i in range(3000)},
        "run": {"step": 7, "number": 4, "metrics": {"a": 1.5}},
    }
    unmoor.save(tmp_path / "step_000000007.pt", tree)
    read = 0
    real = filing.VectorReader.some_into

    def counted(self: filing.VectorReader, offset: int, target: memoryview) -> int:
        nonlocal read
        got = real(self, offset, target)
        read += got
        return got

    monkeypatch.setattr(filing.VectorReader, "some_into", counted)
    row = unmoor.latest(tmp_path)
    assert (row.step, row.number, row.metrics) == (7, 4, {"a": 1.5})
    assert 0 < read < 200_000 < row.nbytes


def test_survives_files_that_vanish(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is deleted between the listing and the glance is no row, and no error."""
    own(run, step=30, number=3)
    (run / "checkpoint-40").mkdir()
    real = places.entries

    def entries(folder: str) -> tuple[places.Entry, ...]:
        found = real(folder)
        if folder == str(run) and (run / "step_000000030.pt").exists():
            (run / "step_000000030.pt").unlink()
            (run / "checkpoint-40").rmdir()
        return found

    monkeypatch.setattr(listed_inside, "entries", entries)
    assert [row.step for row in listed(run)] == [20, 10]


@pytest.mark.parametrize("what", ["a file", "a folder"])
def test_an_error_of_the_system_is_a_row_that_says_so(what: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or folder that the system refuses to read does not hide the others."""
    refused = PermissionError(13, "Permission denied")

    def refuse(*_: object) -> None:
        raise refused

    if what == "a file":
        real = listed_files.glance_file
        monkeypatch.setattr(
            listed_files, "glance_file", lambda path: refuse() if path.endswith("20.pt") else real(path)
        )
    else:
        (run / "checkpoint-20").mkdir()
        (run / "step_000000020.pt").unlink()
        monkeypatch.setattr(listed_inside.Inside, "below", refuse)
    found = unmoor.runs(run)
    assert [row.why for row in found if not row.complete] == ["cannot be read: Permission denied"]
    assert found.newest is not None
    assert found.newest.path == unmoor.latest(run).path
    assert len(found) == 2


def test_thousands_of_entries(run: Path) -> None:
    """A folder of thousands of names costs no more than looking at each once."""
    for number in range(3000):
        (run / f"log_{number}.txt").touch()
    for number in range(1000, 1500):
        os.link(run / "step_000000010.pt", run / f"copy_{number}.pt")
    begin = time.process_time()
    assert len(unmoor.runs(run)) == 502
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda path: path.mkdir(), NotACheckpoint, "it is empty"),
        (lambda path: path.write_text("x"), NotACheckpoint, "is a file, not a folder"),
        (lambda path: None, NotACheckpoint, "does not exist"),
        (lambda path: (path.mkdir(), (path / "a.txt").touch()), NotACheckpoint, "it holds a.txt"),
        (lambda path: (path.mkdir(), (path / "a.pt").touch()), NotACheckpoint, r"a.pt: empty \(0 bytes\)"),
    ],
)
def test_latest_names_what_is_there(
    make: Callable[[Path], object], error: type[Exception], words: str, tmp_path: Path
) -> None:
    """Where nothing can be resumed from, the error says what there is instead."""
    make(tmp_path / "run")
    with pytest.raises(error, match=words):
        unmoor.latest(tmp_path / "run")


def test_a_folder_is_a_path() -> None:
    """Anything else is refused as such."""
    with pytest.raises(UsageError):
        unmoor.runs(7)  # type: ignore[arg-type]


@pytest.fixture
def sharded(run: Path) -> Path:
    """A run whose checkpoint of step 20 is a folder of shards."""
    unmoor.convert(run / "step_000000020.pt", run / "step_000000020")
    (run / "step_000000020.pt").unlink()
    return run


def test_a_folder_of_shards_tells_what_a_file_does(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step, number and metrics out of the head of the manifest; `.metadata` is not taken apart."""
    monkeypatch.setattr(glance_shards, "read_metadata", lambda path: pytest.fail(path))
    newest = unmoor.latest(sharded)
    assert (newest.name, newest.step, newest.number, newest.dialect) == ("step_000000020", 20, 2, "unmoor")
    assert newest.metrics == {"val_loss": 0.05}
    assert newest.nbytes == places.tree_bytes(newest.path)


@pytest.mark.parametrize("manifest", ["its own", "none", "of another save", "broken"])
def test_a_folder_of_shards_is_whole_or_says_why(manifest: str, sharded: Path) -> None:
    """With unmoor's manifest, and by `.metadata` alone where it is missing, broken or of another save."""
    folder = sharded / "step_000000020"
    beside = folder / "unmoor-manifest.json"
    if manifest == "none":
        beside.unlink()
    elif manifest == "of another save":
        text = beside.read_text()
        beside.write_text(text.replace('"metadata":[', '"metadata":[1'))
    elif manifest == "broken":
        beside.write_text(beside.read_text()[:40])
    whole = unmoor.runs(sharded).rows[0]
    assert (whole.step, whole.number, whole.metrics, whole.complete) == (20, 2, {"val_loss": 0.05}, True)
    (shard,) = folder.glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:-9])
    assert f"{shard.name} is cut short" in unmoor.runs(sharded).rows[0].why
    shard.unlink()
    assert f"{shard.name} is missing" in unmoor.runs(sharded).rows[0].why
    assert unmoor.latest(sharded).step == 10


def test_files_that_go_together_are_one_row(tmp_path: Path) -> None:
    """Model, optimizer and step in files of their own, without numbers: the folder is the checkpoint."""
    from tests.describe.folders import written

    folder = written("plain", tmp_path / "run")
    (row,) = unmoor.runs(folder)
    assert (row.path, row.step, row.unit, row.complete) == (str(folder), 3, "epoch", True)


def test_two_models_are_two_rows(tmp_path: Path) -> None:
    """The best and the last are rivals, not parts of one checkpoint."""
    for name in ("best.pt", "last.pt"):
        torch.save(tiny().state_dict(), tmp_path / name)
    assert {row.name for row in unmoor.runs(tmp_path)} == {"best.pt", "last.pt"}


def test_an_index_stands_for_its_files(tmp_path: Path) -> None:
    """A state dict in several files is one row, under its index; one that lacks a file is not whole."""
    from tests.describe.folders import shards

    shards(tmp_path, tiny().state_dict())
    (row,) = unmoor.runs(tmp_path)
    assert (row.name, row.complete) == ("model.safetensors.index.json", True)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    (row,) = unmoor.runs(tmp_path)
    assert row.why == "model-00001-of-00002.safetensors is missing"
    (tmp_path / "model.safetensors.index.json").unlink()
    (row,) = unmoor.runs(tmp_path)
    assert row.why == "1 of 2 files are missing"


def test_a_legacy_stream_is_listed_too(tmp_path: Path) -> None:
    """Files of before torch 1.6 tell their step as others do."""
    torch.save({"model": tiny().state_dict(), "epoch": 4}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (row,) = unmoor.runs(tmp_path)
    assert (row.step, row.unit) == (4, "epoch")


def test_adams_count_is_the_last_resort(tmp_path: Path) -> None:
    """Where neither values nor name tell, the optimizer's own count does."""
    from tests.cases.files import trained

    model, optimizer = trained(steps=6)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "best.pt")
    assert unmoor.latest(tmp_path).step == 6
