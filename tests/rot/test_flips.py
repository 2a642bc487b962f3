"""One flipped bit anywhere in a checkpoint is found: by verify always, by restore before anything wrong is used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import unmoor
from tests.rot.damage import Damage, Harm, every_flip, random_flips, random_harm
from tests.rot.flips import tried
from tests.rot.regions import UNREAD
from tests.rot.subjects import SUBJECTS, Live, parts

MORE = int(os.environ.get("UNMOOR_ROT", "1"))
"""How many times as many flips are tried; with enough of them every one."""

STEPS = {"unmoor.save": 251, "torch.save": 307, "relocated": 701, "sharded": 4507, "safetensors of unmoor.save": 17}
"""Of how many flips one is tried; primes, so that in the course of a file every bit of every field has its turn."""


HARMLESS = {
    *(f"local header: {name}" for name in ("version", "flags", "time", "date", "padding", "extra length")),
    *(f"local header: {name}" for name in ("crc", "stored size", "size")),
    *(f"directory: {name}" for name in ("version made by", "version", "flags", "time", "date", "disk")),
    *(f"directory: {name}" for name in ("internal attributes", "external attributes")),
    *(f"record that no reader needs: {name}" for name in UNREAD),
    "descriptor behind the data",
    "end records",
}
"""Bytes of a zip of which a flip may leave every restored value as it was. verify finds each of these flips.

Headers say twice what the directory says, padding and dates say nothing, and a few records only tell how torch wrote
the file. A length of an extra field decides where the data begins: it harms nothing where the record is not needed. Of
the end records, versions and numbers of disks.
"""


@pytest.mark.parametrize("form", STEPS)
def test_a_flip_is_found_or_harms_nothing(tmp_path: Path, form: str) -> None:
    """Of a form with checksums verify finds every flip; a restore raises or gives the very state that was saved.

    What a restore does not raise for are bytes that no reader needs: padding, dates and versions in headers, the sums
    behind the data, records that say how torch wrote the file. torch.load takes damaged data in silence.
    """
    path = SUBJECTS[form].make(tmp_path)
    made = tried(SUBJECTS[form], path, every_flip(path, max(1, STEPS[form] // MORE)), doors="verify restore")
    assert made.tried > 60
    assert not made.missed, [str(damage) for damage in made.missed]
    assert not made.silent, [str(damage) for damage in made.silent]
    assert not made.crashed
    if form in ("unmoor.save", "torch.save"):
        assert set(made.harmless) <= HARMLESS


@pytest.mark.parametrize("form", ["safetensors", "legacy", "torch.distributed.checkpoint"])
def test_what_no_checksum_covers_is_called_unchecked(tmp_path: Path, form: str) -> None:
    """Flips of data without checksums cannot be found: verify never calls such a checkpoint complete."""
    path = SUBJECTS[form].make(tmp_path)
    assert unmoor.verify(path).unchecked
    made = tried(SUBJECTS[form], path, every_flip(path, 12007 if path.is_dir() else 83), doors="verify restore")
    assert not made.crashed
    for damage in made.missed[:10]:
        with Harm(damage):
            assert unmoor.verify(path).unchecked


def test_other_harm_to_a_larger_file_is_found(tmp_path: Path) -> None:
    """Random flips, zeroed sectors, swapped blocks, cuts and doubled tails of a file of half a megabyte."""
    width = 7000
    model, optimizer = parts(width=width)
    path = tmp_path / "large.pt"
    unmoor.save(path, model=model, optimizer=optimizer, step=3, rng=False)
    subject = SUBJECTS["unmoor.save"].__class__(lambda _: path, summed=True, width=width)
    for damages in (random_flips(path, 60 * MORE), random_harm(path, 60 * MORE)):
        made = tried(subject, path, damages, doors="verify restore")
        assert not made.silent, [str(damage) for damage in made.silent]
        assert not made.crashed
        assert {damage.kind for damage in made.missed} <= {"tail twice"}


def test_a_relocation_whose_end_is_damaged_is_told(tmp_path: Path) -> None:
    """Its file opens as the one before, for every reader; verify says that there was another."""
    path = SUBJECTS["relocated"].make(tmp_path)
    with Harm(Damage("flip", path, path.stat().st_size - 19, 7)):
        made = unmoor.verify(path)
    assert [fault.kind for fault in made.faults] == ["structure"]
    assert "the end of that is damaged or cut off" in made.faults[0].message


@pytest.mark.filterwarnings("ignore:.*check_invariants")
def test_an_index_out_of_a_sparse_tensor_is_damage(tmp_path: Path) -> None:
    """Where no checksum tells, the values still must make sense: torch would reach out of the memory it has."""
    odd = torch.sparse_coo_tensor(torch.tensor([[0, 99]]), torch.ones(2), (3,), check_invariants=False)
    torch.save({"w": odd}, tmp_path / "odd.pt")
    with pytest.raises(unmoor.CorruptFile, match="found index 99"):
        unmoor.load(tmp_path / "odd.pt")


def test_the_damaged_tensor_is_named_and_so_is_what_was_overwritten(tmp_path: Path) -> None:
    """Verify names the tensor; restore names it too and says which live tensors hold what was read before."""
    path = SUBJECTS["unmoor.save"].make(tmp_path)
    entry = next(e for e in unmoor.describe(path).tensors if e.path == "optimizer.state.1.exp_avg")
    assert entry.span is not None
    live = Live(SUBJECTS["unmoor.save"])
    with Harm(Damage("flip", path, entry.span.offset, 2)):
        assert unmoor.verify(path).damaged == ("optimizer.state.1.exp_avg",)
        with pytest.raises(unmoor.CorruptFile, match=r"optimizer\.state\.1\.exp_avg") as caught:
            live.restore(path)
        assert "overwritten" in str(caught.value)
        before = {name: value.clone() for name, value in live.model.state_dict().items()}
        live.blank()
        with pytest.raises(unmoor.CorruptFile, match=r"optimizer\.state\.1\.exp_avg"):
            unmoor.restore(path, **live.roles, rng=False, verify="first")
        assert all(not value.any() for value in live.model.state_dict().values())
    assert before.keys() == live.model.state_dict().keys()
    assert torch.equal(unmoor.load(path)["model"]["0.weight"], parts()[0][0].weight)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (("data.pkl", 10), "its local header says time"),
        (("data.pkl", 4), "its local header says version"),
        (("data/0", 6), "its local header says flags"),
    ],
)
def test_bytes_that_no_reader_needs_are_held_too(tmp_path: Path, where: tuple[str, int], said: str) -> None:
    """A flip in a header that changes nothing for any reader is damage all the same, and the record is named."""
    from tests.rot.test_salvage import span_of

    path = SUBJECTS["torch.save"].make(tmp_path)
    header, _, _ = span_of(path, where[0])
    with Harm(Damage("flip", path, header + where[1], 1)):
        made = unmoor.verify(path)
    assert [fault.kind for fault in made.faults] == ["structure"]
    assert any(said in detail and where[0] in detail for detail in made.faults[0].details)
