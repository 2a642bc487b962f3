"""What a pickle would run is told whatever way it takes, and nothing that honest checkpoints hold raises an alarm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.gadgets import BENIGN, FORMS, MALICIOUS
from tests.hostile.limits import LONG
from tests.hostile.make_hostile import DATA, SYSTEM, archive, dump, stream, tar
from tests.hostile.peers import ALARMS, PEERS, STORED, Unavailable, laid, scanned, told
from tests.real.fetch import PACKAGES, package
from unmoor.describe.file import describe_file
from unmoor.values.dangers import danger_of

KEPT = json.loads(STORED.read_text())


def written(data: bytes, folder: Path) -> Path:
    path = folder / "f.pt"
    path.write_bytes(archive([("a/data.pkl", data), ("a/version", b"3\n"), ("a/data/0", DATA)]))
    return path


def test_no_dangerous_pickle_is_waved_through(tmp_path):
    """Every name that was published as a way past a scanner, and every way to a function, is told or refused."""
    files = {name: path for name, path in laid(tmp_path).items() if name.startswith("malicious")}
    assert len(files) >= len(MALICIOUS)
    assert not [name for name, path in files.items() if told(path) not in ("danger", "warning", "refused")]


@pytest.mark.parametrize("form", [form for form in FORMS if not form.startswith(("cut off", "garbage", "a frame"))])
def test_a_way_to_a_function_is_told_in_a_stream_too(form, tmp_path):
    """The object of a legacy stream is judged like that of a zip."""
    path = tmp_path / "f.pt"
    path.write_bytes(stream(None, [], b"").replace(b"\x80\x02N.", FORMS[form], 1))
    assert told(path) in ("danger", "warning", "refused")


def test_no_harmless_name_raises_an_alarm():
    """Classes that honest checkpoints hold are no danger, those of packages that share a word with one neither."""
    assert not [name for name in BENIGN if danger_of(name)]


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_each_pickle_of_a_stream_is_judged(at, tmp_path):
    """PyTorch unpickles the magic number, the version, the facts and the list of keys as well as the object."""
    parts = [dump(0x1950A86A20F9469CFC6C), dump(1001), dump({"little_endian": True}), dump({}, legacy=True), dump([])]
    parts[at] = parts[at][:2] + dump(SYSTEM)[2:-1] + b"0" + parts[at][2:]
    path = tmp_path / "f.pt"
    path.write_bytes(b"".join(parts))
    assert told(path) == "danger"


@pytest.mark.parametrize("member", ["tensors", "storages"])
def test_each_pickle_of_a_tar_is_judged(member, tmp_path):
    """So are the counts and heads of tensors and storages in the oldest format."""
    path = tmp_path / "f.pt"
    command = dump(SYSTEM)[2:-1] + b"0"
    sound = tar()
    first = sound.index(b"\x80\x02K\x01.", sound.index(member.encode() + b"\0"))
    head = sound[first : first + 2] + command
    path.write_bytes(tar(**{member: head + _member(sound, first)}))
    assert told(path) == "danger"


def _member(whole: bytes, first: int) -> bytes:
    """The bytes of a member behind the begin of its first pickle, to the end that its header gives."""
    size = int(whole[first - 512 + 124 : first - 512 + 135].strip(b" \0"), 8)
    return whole[first + 2 : first + size]


def test_the_kept_answers_are_of_these_files(tmp_path):
    """The answers of all scanners are kept for each file, and unmoor's are what it says now."""
    files = laid(tmp_path)
    assert set(KEPT) == set(files), "python -m benchmarks.hostile makes them anew"
    assert all(set(row) == {"unmoor", *PEERS} for row in KEPT.values())
    assert {name: row["unmoor"] for name, row in KEPT.items()} == {name: told(path) for name, path in files.items()}


def test_what_any_scanner_calls_dangerous_is_flagged():
    """No file that a peer flags as dangerous is clean here, but for names that honest checkpoints hold."""
    missed = [
        name
        for name, row in KEPT.items()
        if "danger" in (row[peer] for peer in PEERS) and row["unmoor"] not in ALARMS and not name.startswith("benign")
    ]
    assert not missed


@pytest.mark.real
@pytest.mark.parametrize("name", PACKAGES)
def test_no_published_checkpoint_raises_an_alarm(name):
    """The checkpoints that packages on the index carry are read without one."""
    found = {str(path): describe_file(path) for path in _checkpoints(package(name))}
    assert found
    alarms = {path: [f for f in made.findings if f.severity in ("warning", "danger")] for path, made in found.items()}
    assert not any(alarms.values())


def _checkpoints(folder: Path) -> Iterator[Path]:
    ends = (".pt", ".pth", ".pth.tar", ".jit", ".ckpt")
    yield from (path for path in sorted(folder.rglob("*")) if path.name.endswith(ends))


if LONG:  # asks three scanners, which takes minutes

    def test_the_scanners_still_answer_so(tmp_path):
        """The kept answers are those that the scanners give."""
        files = laid(tmp_path)
        try:
            theirs = scanned(files.values())
        except Unavailable as reason:
            pytest.skip(str(reason))
        assert {name: theirs[str(path)] for name, path in files.items()} == {
            name: {peer: row[peer] for peer in PEERS} for name, row in KEPT.items()
        }
