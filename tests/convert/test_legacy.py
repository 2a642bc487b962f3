"""convert to the stream of before torch 1.6, as torch.load and our own reader find it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import unmoor

from .trees import difference, run, tree

pytestmark = pytest.mark.filterwarnings("ignore:.*(TypedStorage|[Ss]parse|nested tensors)")


def loaded(path):
    return torch.load(path, weights_only=True)


def test_zip_legacy_zip_is_the_same_tree(tmp_path):
    """Every tensor, stride, tie, container and plain value comes through the stream and back."""
    saved = tree(strange=True)
    del saved["nested"]  # torch builds it before its data is read, and fails
    torch.save(saved, tmp_path / "a.pt")
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "legacy.pt", format="legacy")
    assert unmoor.describe(tmp_path / "legacy.pt").format == "torch-legacy"
    one, other = loaded(tmp_path / "a.pt"), loaded(tmp_path / "legacy.pt")
    assert difference(one, other) == ""
    assert other["tied"][0] is other["tied"][1]
    unmoor.convert(tmp_path / "legacy.pt", tmp_path / "c.pt")
    assert difference(one, loaded(tmp_path / "c.pt")) == ""
    assert [finding.code for finding in receipt.findings] == ["no-manifest"]


def test_it_is_what_torch_writes(tmp_path):
    """Head and data of a simple tree are torch's own, byte for byte; between them stand keys of storages."""
    torch.save({"a": torch.arange(5.0)}, tmp_path / "theirs.pt", _use_new_zipfile_serialization=False)
    torch.save({"a": torch.arange(5.0)}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "ours.pt", format="legacy")
    ours, theirs = ((tmp_path / name).read_bytes() for name in ("ours.pt", "theirs.pt"))
    assert ours[:100] == theirs[:100]
    assert ours[-28:] == theirs[-28:]


def test_dtypes_without_a_storage_class(tmp_path):
    """Newer dtypes load in this torch, and the receipt says that older readers cannot."""
    state = {"a": torch.randn(6).to(torch.float8_e4m3fn), "b": torch.arange(5).to(torch.uint16)}
    torch.save(state, tmp_path / "a.pt")
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", format="legacy")
    found = loaded(tmp_path / "b.pt")
    assert all(torch.equal(found[k].view(torch.uint8), state[k].view(torch.uint8)) for k in state)
    assert "newer-dtype" in {finding.code for finding in receipt.findings}


def test_arrays_and_folders_go_there(tmp_path):
    """Numpy arrays as tensors, and the boxes of a folder as whole storages."""
    torch.save({"a": np.arange(4.0), "m": {"w": torch.arange(12.0).reshape(3, 4)}}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    for source in ("a.pt", "folder"):
        unmoor.convert(tmp_path / source, tmp_path / "b.pt", format="legacy")
        found = loaded(tmp_path / "b.pt")
        assert torch.equal(found["a"], torch.arange(4.0).double())
        assert torch.equal(found["m"]["w"], torch.arange(12.0).reshape(3, 4))


def test_a_run_restores_from_it(tmp_path):
    """Model, optimizer and random streams of a run of ours are restored from the stream as from the file."""
    model, optimizer = run()
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, step=3)
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", format="legacy")
    other, its = run()
    with torch.no_grad():
        other[0].weight.zero_()
    report = unmoor.restore(tmp_path / "b.pt", model=other, optimizer=its)
    assert report.extra["step"] == 3
    assert difference(other.state_dict(), model.state_dict()) == ""
    assert difference(its.state_dict(), optimizer.state_dict()) == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded(tmp_path / "b.pt")
