"""Formats that other programs write or read: streams of before torch 1.6, exotic dtypes, safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import unmoor
from unmoor.report.inspect import inspect_text

from .files import refused, same_bits, tiny, train

Tree = dict[str, Any]


@pytest.fixture
def checkpoint() -> Tree:
    """The state of a model and of the SGD that trained it with momentum."""
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer)
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


@pytest.mark.parametrize(
    ("legacy", "words"),
    [(True, "torch legacy stream (0.1.10-1.5), "), (False, "torch zip, ")],
    ids=["legacy.pth", "zip.pth"],
)
def test_two_formats_under_one_extension_are_told_apart(
    tmp_path: Path, checkpoint: Tree, legacy: bool, words: str
) -> None:
    """C57: the first line of inspect says which of torch's formats it is; either loads and restores alike."""
    path = tmp_path / "model.pth"
    torch.save(checkpoint, path, _use_new_zipfile_serialization=not legacy)
    assert inspect_text(unmoor.describe(path)).startswith(words)
    loaded = unmoor.load(path)
    assert same_bits(dict(loaded["model"]), dict(checkpoint["model"]))
    model = tiny(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    unmoor.restore(path, model=model, optimizer=optimizer)
    assert same_bits(model.state_dict(), checkpoint["model"])
    assert same_bits(optimizer.state_dict(), checkpoint["optimizer"])


@pytest.mark.parametrize("call", [unmoor.describe, unmoor.load, lambda path: unmoor.restore(path, model=tiny(5))])
def test_a_legacy_stream_cut_short_names_its_last_storage(tmp_path: Path, checkpoint: Tree, call: Any) -> None:
    """C57: twenty bytes are missing, two storages with them; the six others are whole, and the error says so."""
    path = tmp_path / "legacy_cut.pth"
    torch.save(checkpoint, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-20])
    with refused(unmoor.CorruptFile) as caught:
        call(path)
    lines = str(caught.value).splitlines()
    cut = [line for line in lines if "its data is short by" in line]
    assert len(cut) == 1
    lost = sum("its data" in line for line in lines)
    assert lines[lost + 1].strip() == f"the other {8 - lost} tensors are whole"


def exotic() -> Tree:
    """Tensors of dtypes and layouts that the two formats treat differently."""
    numbers = torch.tensor([[0.5, -1.5], [2.0, 0.25]])
    return {
        "f8e4m3": numbers.to(torch.float8_e4m3fn), "f8e8m0": numbers.abs().to(torch.float8_e8m0fnu),
        "f4": torch.arange(8, dtype=torch.uint8).reshape(2, 4).view(torch.float4_e2m1fn_x2),
        "u16": torch.arange(4).to(torch.uint16), "u32": torch.arange(4).to(torch.uint32),
        "u64": torch.tensor([2**63 - 1]).to(torch.uint64), "transposed": torch.arange(6.0).reshape(2, 3).t(),
    }  # fmt: skip


def test_exotic_dtypes_go_from_a_torch_file_into_safetensors(tmp_path: Path) -> None:
    """C50: float8, float4 and unsigned integers keep every bit, a transposed tensor its values."""
    torch.save(exotic(), tmp_path / "in.pt")
    unmoor.save(tmp_path / "out.safetensors", unmoor.load(tmp_path / "in.pt"))
    for found in (load_file(tmp_path / "out.safetensors"), unmoor.load(tmp_path / "out.safetensors")):
        assert same_bits(found, {name: tensor.contiguous() for name, tensor in exotic().items()})


def test_lazy_views_go_into_safetensors_as_what_they_say(tmp_path: Path) -> None:
    """C50: a conjugate is written conjugated, which safetensors' own writer does not do, and a negation negated."""
    base = torch.tensor([1 + 2j, 3 - 4j])
    torch.save({"conj": base.conj(), "neg": base.clone().conj().imag}, tmp_path / "in.pt")
    receipt = unmoor.save(tmp_path / "out.safetensors", unmoor.load(tmp_path / "in.pt"))
    found = load_file(tmp_path / "out.safetensors")
    assert found["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert found["neg"].tolist() == [-2.0, 4.0]
    assert [change.name for change in receipt.converted] == ["conj", "neg"]


REFUSED = {
    "complex32": (lambda: torch.tensor([1 + 2j]).to(torch.complex32), "torch.complex32, which safetensors lacks"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "layout sparse_coo"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8), "layout quantized"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2)]), "layout nested"),
    "number": (lambda: 3, "type int"),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:.*PyTorch API of nested", "ignore:.*quantize_per_tensor")
def test_what_safetensors_lacks_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """C50: every such value is named in one error, an older file stays as it is, and no other is left behind."""
    path = tmp_path / "out.safetensors"
    path.write_bytes(b"older")
    with refused(unmoor.UsageError) as caught:
        unmoor.save(path, {"fine": torch.ones(2), **{name: make() for name, (make, _) in REFUSED.items()}})
    assert all(f"{name}: " in str(caught.value) and words in str(caught.value) for name, (_, words) in REFUSED.items())
    assert "fine" not in str(caught.value)
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [(path.name, b"older")]


def test_a_run_does_not_go_into_safetensors(tmp_path: Path) -> None:
    """C50: an optimizer, plain values and generators of one's own are named, with the way to keep them."""
    model = tiny()
    optimizer = torch.optim.Adam(model.parameters())
    with refused(unmoor.UsageError, model, optimizer) as caught:
        roles = {"model": model, "optimizer": optimizer, "rng": {"mine": torch.Generator()}}
        unmoor.save(tmp_path / "run.safetensors", **roles, step=3)
    assert caught.value.details == (
        "optimizer: its state is no flat set of tensors",
        "step: a plain value",
        "rng[mine]: the state of a generator",
    )
    assert "run.pt" in caught.value.remedy


def test_tied_weights_go_into_safetensors_once(tmp_path: Path) -> None:
    """C50: written under the first name, the other in the metadata, restored into a model that ties them."""

    def tied(seed: int) -> nn.Module:
        model = nn.ModuleDict({"embed": nn.Embedding(3, 2), "head": nn.Linear(2, 3, bias=False)})
        with torch.no_grad():
            model["embed"].weight.fill_(seed)
        model["head"].weight = model["embed"].weight
        return model

    path = tmp_path / "model.safetensors"
    unmoor.save(path, model=tied(3))
    assert list(load_file(path)) == ["embed.weight"]
    assert unmoor.describe(path).facts["metadata"] == {"format": "pt", "head.weight": "embed.weight"}
    model = tied(5)
    unmoor.restore(path, model=model)
    assert model["head"].weight is model["embed"].weight
    assert model["head"].weight.tolist() == [[3.0, 3.0]] * 3
