"""safetensors files, written by the format's own library and by hand."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from tests.describe.makers import outcome
from tests.hostile.make_hostile import FILES, HERE, entry, tensors
from unmoor.describe.file import describe_file
from unmoor.errors import FileError, UnsupportedFile
from unmoor.values.dtypes import DTYPES

WRITABLE = [name for name, row in DTYPES.items() if row.safetensors]


def fresh(dtype: str) -> torch.Tensor:
    size = DTYPES[dtype].itemsize
    raw = torch.arange(6 * size, dtype=torch.int64).remainder(2 if dtype == "bool" else 251).to(torch.uint8)
    return raw.view(getattr(torch, dtype)).reshape(2, 3)


@pytest.mark.parametrize("dtype", WRITABLE)
def test_every_dtype_is_described_as_the_library_loads_it(dtype, tmp_path):
    """Shape, dtype, order and bytes of every dtype that safetensors writes."""
    path = tmp_path / "f.safetensors"
    save_file({"b.weight": fresh(dtype), "a": torch.ones(1), "empty": torch.ones(0, 3)}, path, {"format": "pt"})
    catalog, loaded, data = describe_file(path), load_file(path), path.read_bytes()
    assert {e.path for e in catalog.tensors} == set(loaded)
    for e in catalog.tensors:
        tensor = loaded[e.path]
        assert (e.shape, f"torch.{e.dtype}", e.stride) == (tuple(tensor.shape), str(tensor.dtype), tensor.stride())
        assert data[e.span.offset : e.span.end] == bytes(tensor.untyped_storage())
    assert catalog.facts["metadata"] == {"format": "pt"}


def test_a_model_file_is_a_model_on_the_cpu(tmp_path):
    """The format has no device tags: tensors count as on the CPU, and the mapping is a model."""
    path = tmp_path / "f.safetensors"
    save_file({"0.weight": torch.ones(2, 2), "0.bias": torch.ones(2)}, path)
    catalog = describe_file(path)
    assert [(part.role, part.tensors) for part in catalog.parts] == [("model", 2)]
    assert catalog.devices() == {"cpu": (2, 24)}
    assert "no-checksums" in {finding.code for finding in catalog.findings}


def test_all_faults_of_a_header_are_told_together(tmp_path):
    """One error names every tensor that is wrong."""
    path = tmp_path / "f.safetensors"
    path.write_bytes(tensors({"a": entry(0, 4, [3]), "b": entry(0, 12, [3], "F99"), "c": {"dtype": "F32"}}, bytes(12)))
    error = outcome(path)
    assert isinstance(error, FileError)
    assert [line.partition(":")[0] for line in error.details] == ["a", "b", "c"]


def test_dtypes_that_torch_lacks_are_unsupported(tmp_path):
    """Six-bit floats are sound safetensors and no torch dtype."""
    path = tmp_path / "f.safetensors"
    path.write_bytes(tensors({"a": entry(0, 3, [4], "F6_E2M3")}, bytes(3)))
    assert type(outcome(path)) is UnsupportedFile


def test_a_scalar_and_padding_are_sound(tmp_path):
    """A tensor without dimensions has one element; a header may end in spaces."""
    text = json.dumps({"s": entry(0, 4, [])}).encode() + b"     "
    path = tmp_path / "f.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    assert describe_file(path).tensors[0].shape == ()


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".safetensors")])
def test_what_this_reader_refuses_the_library_refuses(name):
    """The format's own reader refuses every hostile file, too: the checks are those of the specification."""
    assert isinstance(outcome(HERE / name), FileError)
    with pytest.raises((SafetensorError, OSError)), safe_open(HERE / name, "pt") as file:
        list(file.keys())


def test_a_file_of_very_many_tensors_is_listed_whole(tmp_path):
    """What a walk may cost follows from the header: twenty thousand tensors are all listed."""
    header = {f"layers.{i}.w": entry(4 * i, 4 * i + 4, []) for i in range(20_000)}
    path = tmp_path / "f.safetensors"
    path.write_bytes(tensors(header, bytes(80_000)))
    catalog = describe_file(path)
    assert len(catalog.tensors) == 20_000
    assert [finding.code for finding in catalog.findings] == ["no-checksums"]
