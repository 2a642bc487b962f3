"""Damaged and foreign files: told for what they are by their content, before anything is overwritten."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import unmoor

from .files import bits, refused, same_bits, snapshot, tiny, train, trained

SIZES = (3, 64, 2)


def _whole(path: Path) -> bytes:
    model = tiny(sizes=SIZES)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7}, path)
    return path.read_bytes()


def _cut(data: bytes, where: str) -> bytes:
    """The file as an interrupted save or copy leaves it."""
    directory = data.find(b"PK\x01\x02")
    ends = {"half": len(data) // 2, "minus 100": len(data) - 100, "minus one": len(data) - 1, "no directory": directory}
    return data[: ends[where]]


@pytest.mark.parametrize("where", ["half", "no directory", "minus 100", "minus one"])
def test_a_file_that_was_cut_short_is_told_in_one_message(tmp_path: Path, where: str) -> None:
    """C52: every verb says that it is a truncated zip and how long it is; live objects stay as they are."""
    path = tmp_path / "cut.pt"
    path.write_bytes(_cut(_whole(path), where))
    model = tiny(5, sizes=SIZES)
    optimizer = torch.optim.Adam(model.parameters())
    for verb in (
        lambda: unmoor.describe(path),
        lambda: unmoor.load(path),
        lambda: unmoor.restore(path, model=model, optimizer=optimizer),
    ):
        with refused(unmoor.CorruptFile, model, optimizer) as caught:
            verb()
        text = str(caught.value)
        assert f"{path} is a truncated zip: no end record, {path.stat().st_size:,} bytes" in text
        assert "Copy it again, or use the checkpoint before it." in text


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    """C52: a file of no bytes is called empty, not a truncated zip."""
    (tmp_path / "empty.pt").touch()
    with refused(unmoor.NotACheckpoint) as caught:
        unmoor.describe(tmp_path / "empty.pt")
    assert "is empty" in str(caught.value)


def _safetensors(tensors: dict[str, torch.Tensor]) -> bytes:
    """The format by hand: eight bytes of length, a JSON header, the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize("name", ["pytorch_model.bin", "v1-5.ckpt", "model.safetensors"])
@pytest.mark.parametrize("kind", ["safetensors", "torch-zip"])
def test_a_file_is_what_its_content_is_whatever_its_name(tmp_path: Path, name: str, kind: str) -> None:
    """C59: safetensors named .bin or .ckpt, and a torch zip named .safetensors, are read for what they are."""
    saved = tiny()
    path = tmp_path / name
    if kind == "safetensors":
        path.write_bytes(_safetensors(dict(saved.state_dict())))
    else:
        torch.save(saved.state_dict(), path)
    assert unmoor.describe(path).format == kind
    assert same_bits(dict(unmoor.load(path)), dict(saved.state_dict()))
    model = tiny(5)
    unmoor.restore(path, model=model)
    assert same_bits(model.state_dict(), saved.state_dict())


def test_a_description_notes_a_name_that_says_something_else(tmp_path: Path) -> None:
    """C59: the catalog tells that the name promises another format than the content has."""
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(_safetensors(dict(tiny().state_dict())))
    assert any("safetensors data under a .bin name" in finding.message for finding in unmoor.describe(path).findings)
    torch.save(tiny().state_dict(), tmp_path / "model.pt")
    assert unmoor.describe(tmp_path / "model.pt").findings == ()


PAGES = {
    "html": (
        "<!DOCTYPE html>\n<html><head><title>Quota exceeded</title></head><body></body></html>\n",
        ["HTML page", "Quota exceeded"],
    ),
    "json": ('{"message": "Not Found"}', ["JSON", '"message": "Not Found"']),
    "text": ("Access to this resource is denied\n", ["text", "Access to this resource is denied"]),
    "pointer": (
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        ["Git LFS", "git lfs pull"],
    ),
}


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_saved_under_a_checkpoints_name_is_told(tmp_path: Path, kind: str) -> None:
    """C61: what was downloaded instead is named and quoted, and nobody is advised to load it without care."""
    content, words = PAGES[kind]
    path = tmp_path / "vgg16.pth"
    path.write_text(content)
    model = tiny()
    for verb in (lambda: unmoor.describe(path), lambda: unmoor.restore(path, model=model)):
        with refused(unmoor.NotACheckpoint, model) as caught:
            verb()
        text = str(caught.value)
        assert [word for word in words if word not in text] == []
        assert "weights_only" not in text


def _flip(path: Path, raw: bytes, at: int = 3, bit: int = 0x40) -> Path:
    """One flipped bit, in place, where `raw` stands in the file."""
    data = bytearray(path.read_bytes())
    data[bytes(data).find(raw) + at] ^= bit
    path.write_bytes(data)
    return path


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().numpy().tobytes()


@pytest.mark.parametrize("verify", ["stream", "first"])
def test_a_flipped_bit_names_its_tensor(tmp_path: Path, verify: str) -> None:
    """C63: a tensor whose bytes differ from their checksum is named, with where they lie and both checksums."""
    saved = tiny()
    torch.save({"model": saved.state_dict()}, tmp_path / "flipped.pt")
    path = _flip(tmp_path / "flipped.pt", _raw(saved[0].weight))
    assert abs(torch.load(path)["model"]["0.weight"][0, 0].item()) > 1e36
    with refused(unmoor.CorruptFile) as caught:
        unmoor.load(path, verify=verify)
    text = str(caught.value)
    assert "the data of model.0.weight does not match its checksum" in text
    assert "CRC-32 saved" in text
    assert "bytes " in text


@pytest.mark.parametrize("ours", [True, False], ids=["unmoor.save", "torch.save"])
def test_verify_first_changes_nothing_where_any_data_is_damaged(tmp_path: Path, ours: bool) -> None:
    """C63: verify="first" reads all data before it touches anything, so a damaged optimizer leaves the model alone."""
    saved, optimizer = trained()
    path = tmp_path / "ck.pt"
    if ours:
        unmoor.save(path, model=saved, optimizer=optimizer)
    else:
        torch.save({"model": saved.state_dict(), "optimizer": optimizer.state_dict()}, path)
    _flip(path, _raw(optimizer.state[saved[2].weight]["exp_avg_sq"]), bit=1)
    model, live = trained(5)
    with refused(unmoor.CorruptFile, model, live) as caught:
        unmoor.restore(path, model=model, optimizer=live, verify="first")
    text = str(caught.value)
    assert "exp_avg_sq" in text
    assert "nothing was overwritten" in text


def test_verify_first_moves_and_loads_nothing_before_all_data_was_read(tmp_path: Path, sim: ModuleType) -> None:
    """C63: with damage anywhere, even in the optimizer, no model is moved and no scheduler is loaded either."""
    saved, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(saved, optimizer, 2, scheduler=scheduler)
    path = tmp_path / "ck.pt"
    unmoor.save(path, model=saved, optimizer=optimizer, scheduler=scheduler)
    _flip(path, _raw(optimizer.state[saved[2].weight]["exp_avg_sq"]), bit=1)
    model, live = trained(5)
    other = torch.optim.lr_scheduler.StepLR(live, 3)
    with refused(unmoor.CorruptFile, model, live, other) as caught:
        unmoor.restore(path, model=model, optimizer=live, scheduler=other, model_device="sim:1", verify="first")
    assert str(caught.value).splitlines()[-1] == "  nothing was overwritten"


def test_streaming_says_what_had_been_overwritten_when_damage_was_met(tmp_path: Path) -> None:
    """C63: with the default the error counts what was filled by then, and random streams are never half restored."""
    saved, optimizer = trained()
    path = tmp_path / "ck.pt"
    unmoor.save(path, model=saved, optimizer=optimizer)
    _flip(path, _raw(saved[2].bias), bit=1)
    model, live = trained(5)
    torch.manual_seed(1)
    before = snapshot(live)
    with pytest.raises(unmoor.CorruptFile) as caught:
        unmoor.restore(path, model=model, optimizer=live)
    text = str(caught.value)
    assert "the data of model.2.bias does not match its checksum" in text
    assert "already overwritten: model (3 of 4 tensors)" in text
    assert "Restore another checkpoint before training on." in text
    assert snapshot(live) == before


def test_a_flipped_bit_in_the_names_is_damage_too(tmp_path: Path) -> None:
    """C63: the pickle that holds the names has a checksum as well; a changed key is no other key."""
    torch.save({"model": tiny().state_dict()}, tmp_path / "key.pt")
    path = _flip(tmp_path / "key.pt", b"0.bias", at=0, bit=ord("0") ^ ord("9"))
    assert "9.bias" in torch.load(path)["model"]
    model = tiny(5)
    for verb in (lambda: unmoor.describe(path), lambda: unmoor.restore(path, model=model)):
        with refused(unmoor.CorruptFile, model) as caught:
            verb()
        assert "CRC mismatch in key/data.pkl" in str(caught.value)


def test_undamaged_tensors_keep_their_bits_when_checks_are_off(tmp_path: Path) -> None:
    """C63: verify="none" is the caller's own choice: the damaged bytes come as they are, and the report says so."""
    saved = tiny()
    torch.save({"model": saved.state_dict()}, tmp_path / "flipped.pt")
    path = _flip(tmp_path / "flipped.pt", _raw(saved[0].weight))
    model = tiny(5)
    report = unmoor.restore(path, model=model, verify="none")
    equal = [bits(a) == bits(b) for a, b in zip(model.state_dict().values(), saved.state_dict().values(), strict=True)]
    assert equal == [False, True, True, True]
    assert report.verified == 0
    assert "no data was checked" in str(report)


def _saved(seed: int, hidden: int, **more: Any) -> bytes:
    """What torch.save of one rank writes, under one name inside of the archive whatever the rank."""
    sink = io.BytesIO()
    torch.save({**more, "w": tiny(seed, sizes=(3, hidden, 2)).state_dict()}, sink)
    return sink.getvalue()


def _mixed(how: str) -> bytes:
    """One path after two ranks wrote to it at once."""
    if how == "data alone":  # what the ranks hold has one structure: the pickles are equal
        one, other = _saved(0, 3000), _saved(1, 3000)
        return one[: len(one) // 2] + other[len(one) // 2 :]
    one, other = _saved(0, 3000, rank=0), _saved(1, 3000, rank=1)
    if how == "blocks":
        return b"".join((one, other)[(i // 4096) % 2][i : i + 4096] for i in range(0, len(one), 4096))
    if how == "head of other":
        return other[: len(other) // 3] + one[len(other) // 3 :]
    if how == "longer tail":
        return one + other[:5000]
    short = _saved(0, 2000, rank=2)
    return short + one[len(short) :]


@pytest.mark.parametrize("how", ["blocks", "head of other", "short over long"])
def test_a_file_that_two_ranks_wrote_at_once_is_corrupt(tmp_path: Path, how: str) -> None:
    """C53: a mix of two archives is never opened, whatever of it plain torch.load takes; the live model stays."""
    path = tmp_path / "mixed.pt"
    path.write_bytes(_mixed(how))
    model = tiny(5, sizes=(3, 3000, 2))
    for verb in (lambda: unmoor.describe(path), lambda: unmoor.restore(path, model=model, verify="first")):
        with refused(unmoor.CorruptFile, model) as caught:
            verb()
        assert ("CRC mismatch in archive/data.pkl" in str(caught.value)) == (how != "short over long")
    if how != "short over long":
        assert torch.load(path)["rank"] in (0, 1)


def test_a_mix_of_data_under_one_structure_is_found_by_its_checksums(tmp_path: Path) -> None:
    """C53: where only the values are mixed, each tensor whose bytes are not its own is named, and nothing is filled."""
    path = tmp_path / "mixed.pt"
    path.write_bytes(_mixed("data alone"))
    model = tiny(5, sizes=(3, 3000, 2))
    with refused(unmoor.CorruptFile, model) as caught:
        unmoor.restore(path, model=model, verify="first")
    assert "0.weight" in str(caught.value)
    assert set(torch.load(path)) == {"w"}


def test_what_follows_a_whole_archive_is_told(tmp_path: Path) -> None:
    """C53: the tail of a longer file beneath a whole archive is no damage, and is said."""
    path = tmp_path / "mixed.pt"
    path.write_bytes(_mixed("longer tail"))
    model = tiny(5, sizes=(3, 3000, 2))
    report = unmoor.restore(path, model=model)
    assert same_bits(model.state_dict(), tiny(0, sizes=(3, 3000, 2)).state_dict())
    assert "5,000 bytes after the end of the archive" in str(report)
