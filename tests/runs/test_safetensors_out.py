"""save under a name that ends in .safetensors: what the format's own reader finds, within any buffer, whole or not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

import unmoor
from tests.cases.files import same_bits, tiny, trained
from unmoor.execute.flat_file import write_flat
from unmoor.live.flat import DenseBlob
from unmoor.values.dtypes import DTYPES

WRITABLE = [name for name, row in DTYPES.items() if row.safetensors]


@st.composite
def windows(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of up to four dimensions, its own order of them, with gaps, beginning somewhere in its storage."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    base = torch.arange(
        2.0 * torch.Size(shape).numel() + 3, dtype=draw(st.sampled_from([torch.float32, torch.float64]))
    )
    tensor = base[3:].reshape(*shape, 2)[..., 0]
    return tensor.permute(draw(st.permutations(range(len(shape)))))


@settings(deadline=None)
@given(tensor=windows(), pieces=st.integers(1, 7))
def test_bytes_of_a_tensor_come_in_the_order_of_its_dimensions(tensor: torch.Tensor, pieces: int) -> None:
    """Law 4: fetched in pieces of any number of elements, they are those of a contiguous copy that is never made."""
    blob = DenseBlob(tensor)
    found = bytearray()
    for start in range(0, blob.nbytes, pieces * tensor.itemsize):
        target = bytearray(min(pieces * tensor.itemsize, blob.nbytes - start))
        blob.fetch(start, memoryview(target))
        found += target
    assert bytes(found) == tensor.contiguous().numpy().tobytes()


@pytest.mark.parametrize("buffer", [1, 16, 50, 1 << 20])
def test_no_piece_is_larger_than_the_buffer(tmp_path: Path, buffer: int) -> None:
    """Law 4: the file is the same for any buffer; a buffer of less than an element of any dtype counts as one."""
    tensor = torch.arange(100.0).reshape(10, 10).t()
    pieces: list[int] = []
    end = write_flat(tmp_path / "f", b"head", [(400, DenseBlob(tensor))], buffer_bytes=buffer, progress=pieces.append)
    assert (tmp_path / "f").read_bytes() == b"head" + tensor.contiguous().numpy().tobytes()
    assert (end, sum(pieces)) == (404, 400)
    assert max(pieces) <= max(buffer, 16)


@pytest.mark.parametrize("dtype", WRITABLE)
def test_every_dtype_is_as_the_library_reads_it(tmp_path: Path, dtype: str) -> None:
    """Contiguous, transposed, empty: the same values, shapes and dtype by safetensors and by unmoor."""
    size = DTYPES[dtype].itemsize
    raw = torch.arange(24 * size, dtype=torch.int64).remainder(2 if dtype == "bool" else 251).to(torch.uint8)
    tensor = raw.view(getattr(torch, dtype)).reshape(2, 3, 4)
    state = {"a": tensor, "t": tensor.permute(2, 0, 1), "e": tensor[:0]}
    unmoor.save(tmp_path / "m.safetensors", state, buffer_bytes=32)
    right = {name: values.contiguous() for name, values in state.items()}
    assert same_bits(load_file(tmp_path / "m.safetensors"), right)
    assert same_bits(unmoor.load(tmp_path / "m.safetensors"), right)


def test_a_model_is_read_by_the_library_into_a_model(tmp_path: Path) -> None:
    """Names are those of the bare module, out of a wrapper as well."""
    model, _ = trained()
    unmoor.save(tmp_path / "m.SafeTensors", model=nn.DataParallel(model))
    other = tiny(5)
    assert load_model(other, tmp_path / "m.SafeTensors") == (set(), [])
    assert same_bits(other.state_dict(), model.state_dict())
    with safe_open(tmp_path / "m.SafeTensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "unmoor.crc32": ANY}


def test_what_is_not_kept_stands_in_the_receipt(tmp_path: Path) -> None:
    """Law 9: the random streams that save would carry, layouts, and storages that are no longer shared are named."""
    base = torch.arange(6.0).reshape(2, 3)
    holder = nn.Module()
    holder.register_buffer("base", base)
    holder.register_buffer("row", base[1])
    holder.register_buffer("turned", base.clone().t())
    receipt = unmoor.save(tmp_path / "m.safetensors", model=holder)
    assert [(change.name, change.before) for change in receipt.converted] == [
        ("row", "on one storage with base"),
        ("turned", "laid out by strides"),
        ("", "random number streams"),
    ]
    assert "random number streams" in str(receipt)


@pytest.mark.parametrize("roles", [{}, {"ema": tiny()}, {"loss": tiny()}], ids=["alone", "ema", "loss"])
def test_one_module_goes_into_one_file(tmp_path: Path, roles: dict[str, Any]) -> None:
    """A second module has no place beside the first: the error names it, whatever its role."""
    path = tmp_path / "m.safetensors"
    if not roles:
        assert unmoor.save(path, model=tiny()).counts == {"model": (4, 104)}
        return
    with pytest.raises(unmoor.UsageError, match="more than one module"):
        unmoor.save(path, model=tiny(), **roles)
    assert unmoor.save(path, **roles).counts == {next(iter(roles)): (4, 104)}


def test_tensors_of_a_device_go_through_the_buffer(tmp_path: Path, sim: object) -> None:
    """A model on an accelerator is written without a copy of it on the host."""
    model = tiny().to("sim:1")
    unmoor.save(tmp_path / "m.safetensors", model=model, buffer_bytes=64)
    assert same_bits(load_file(tmp_path / "m.safetensors"), dict(tiny().state_dict()))


def test_a_failure_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 12: where the disk fails in the middle, the older file is there and nothing else."""
    path = tmp_path / "m.safetensors"
    unmoor.save(path, model=tiny())
    older = path.read_bytes()
    real, written = os.write, []

    def fails(handle: int, data: Any) -> int:
        written.append(len(data))
        if len(written) > 2:
            raise OSError(28, "No space left on device")
        return real(handle, data)

    with monkeypatch.context() as broken:
        broken.setattr("unmoor.execute.flat_file.os.write", fails)
        with pytest.raises(unmoor.SaveError):
            unmoor.save(path, model=tiny(7))
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [(path.name, older)]
