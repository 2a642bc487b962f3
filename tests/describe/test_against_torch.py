"""What describe says of a file is what torch.load makes of it, for every dtype, layout, view and format."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.describe.makers import follow, hold_against_torch, repacked, save, tagged, tensors_in
from unmoor.describe.file import describe_file
from unmoor.values.dtypes import DTYPES
from unmoor.values.nodes import TensorNode

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{words}")
    for words in ("ComplexHalf support", "Sparse CSR tensor", "The PyTorch API of nested", "TypedStorage is deprecated",
                  "torch.quantize_per_tensor")
]  # fmt: skip
FORMATS = ("zip", "legacy")
QUANTIZED = {"qint8", "quint8", "qint32"}
PLAIN = [name for name, row in DTYPES.items() if row.family != "quantized"]
NO_LEGACY_CLASS = {name for name, row in DTYPES.items() if not row.storage}
SPARSE = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
TAGS = ("cuda:2", "cuda:6", "xla:0", "mps", "mps:0", "npu:0", "hpu:0", "xpu:0", "privateuseone:0", "maia:0")


def fresh(dtype: str, *shape: int) -> torch.Tensor:
    """A tensor of `dtype` whose bytes are all different."""
    size = DTYPES[dtype].itemsize
    count = torch.Size(shape).numel()
    raw = torch.arange(count * size, dtype=torch.int64).remainder(251 if dtype != "bool" else 2).to(torch.uint8)
    return raw.view(getattr(torch, dtype)).reshape(shape)


def load(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=False)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", PLAIN)
def test_every_dtype_is_described_as_torch_loads_it(dtype, form, tmp_path):
    """Contiguous, transposed, sliced, empty and scalar tensors of every dtype, in both of torch's formats.

    torch 2.13 writes legacy streams of dtypes without a storage class and cannot load them: the saved tree stands in.
    """
    base = fresh(dtype, 6, 4)
    tree = {"a": base, "b": {"t": base.t(), "s": base[2:4, 1:]}, "c": [fresh(dtype, 0), fresh(dtype, 1)[0]]}
    path = save(tree, tmp_path / "f.pt", legacy=form == "legacy")
    catalog = describe_file(path)
    assert len(catalog.tensors) == 5
    unloadable = form == "legacy" and dtype in NO_LEGACY_CLASS
    hold_against_torch(path, catalog, tree if unloadable else load(path))
    assert catalog.tensors[0].shared == ("b.t", "b.s")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("layout", SPARSE)
def test_sparse_tensors_are_described_by_their_parts(layout, form, tmp_path):
    """A sparse tensor of any layout is listed by its strided parts, each as torch.load makes it."""
    dense = torch.arange(16.0).reshape(4, 4) * torch.tensor([0.0, 1.0, 0.0, 1.0])
    blocks = {"blocksize": (2, 2)} if layout[-3:] in ("bsr", "bsc") else {}
    tensor = dense.to_sparse(layout=getattr(torch, layout), **blocks)
    path = save({"x": tensor}, tmp_path / "f.pt", legacy=form == "legacy")
    catalog = describe_file(path)
    assert {entry.layout for entry in catalog.tensors} == {layout}
    assert {entry.path for entry in catalog.tensors} >= {"x.values"}
    hold_against_torch(path, catalog, load(path))
    assert catalog.tree["x"].shape == (4, 4)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", sorted(QUANTIZED))
def test_quantized_tensors_keep_their_scheme(dtype, form, tmp_path):
    """A tensor quantized per tensor carries its scheme, scale and zero point in its node."""
    tensor = torch.quantize_per_tensor(torch.arange(6.0).reshape(2, 3), 0.5, 1, getattr(torch, dtype))
    path = save({"x": tensor}, tmp_path / "f.pt", legacy=form == "legacy")
    catalog = describe_file(path)
    (entry,) = catalog.tensors
    assert (entry.dtype, entry.layout) == (dtype, "quantized")
    assert entry.node.quantizer == ("per_tensor_affine", 0.5, 1)
    hold_against_torch(path, catalog, load(path))


@pytest.mark.parametrize("form", FORMATS)
def test_scales_of_a_channel_quantized_tensor_are_listed(form, tmp_path):
    """Scales and zero points of a tensor quantized per channel are tensors of the file and are listed beside it."""
    scales, zeros = torch.tensor([0.5, 0.25], dtype=torch.float64), torch.tensor([0, 1])
    tensor = torch.quantize_per_channel(torch.arange(6.0).reshape(2, 3), scales, zeros, 0, torch.qint8)
    path = save({"x": tensor}, tmp_path / "f.pt", legacy=form == "legacy")
    catalog = describe_file(path)
    assert [entry.path for entry in catalog.tensors] == ["x", "x.scales", "x.zero_points"]
    hold_against_torch(path, catalog, load(path))


@pytest.mark.parametrize("form", FORMATS)
def test_nested_tensors_are_described_by_their_parts(form, tmp_path):
    """A nested tensor is listed by its buffer, sizes, strides and offsets.

    torch 2.13 cannot load one from a legacy stream: the saved tensor stands in.
    """
    tensor = torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)])
    path = save({"x": tensor}, tmp_path / "f.pt", legacy=form == "legacy")
    catalog = describe_file(path)
    assert [entry.path for entry in catalog.tensors] == ["x.values", "x.sizes", "x.strides", "x.offsets"]
    assert {entry.layout for entry in catalog.tensors} == {"nested"}
    loaded = load(path)["x"] if form == "zip" else tensor
    buffer = catalog.tensors[0]
    assert path.read_bytes()[buffer.span.offset : buffer.span.end] == bytes(loaded.untyped_storage())


@pytest.mark.parametrize("form", FORMATS)
def test_lazy_conjugates_and_negations_keep_their_bits(form, tmp_path):
    """A conjugate or negative view is described as the storage it looks at and the bit that changes its meaning."""
    base = torch.tensor([1 + 2j, 3 - 4j])
    negative = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    path = save({"c": base.conj(), "n": negative, "p": base}, tmp_path / "f.pt", legacy=form == "legacy")
    catalog = describe_file(path)
    bits = {entry.path: entry.node.bits for entry in catalog.tensors}
    loaded = load(path)
    assert bits["c"] == {"conj"}
    assert bits["n"] == {"neg"}
    assert bits["p"] == frozenset()
    assert loaded["n"].is_neg()
    hold_against_torch(path, catalog, loaded)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("tag", TAGS)
def test_device_tags_are_reported_as_they_stand(tag, form, tmp_path):
    """Tags of any backend are read without that backend, in both formats."""
    tree = {"net": {"0.weight": torch.ones(2, 3), "0.bias": torch.ones(2)}}
    with tagged(tag):
        path = save(tree, tmp_path / "f.pt", legacy=form == "legacy")
    catalog = describe_file(path)
    assert catalog.devices() == {tag: (2, 32)}
    assert next(catalog.part("model")).devices == {tag: 2}


@pytest.mark.parametrize("form", FORMATS)
def test_tags_of_a_file_from_two_gpus_are_counted(form, tmp_path):
    """A file of two devices that are not here says how many tensors each holds."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).state_dict()
    second = {net[key].untyped_storage()._cdata for key in net if key.startswith("2.")}
    with tagged(lambda storage: "cuda:6" if storage._cdata in second else "cuda:2"):
        path = save({"net": net}, tmp_path / "f.pt", legacy=form == "legacy")
    counts = {tag: tensors for tag, (tensors, _) in describe_file(path).devices().items()}
    assert counts == {"cuda:2": 2, "cuda:6": 2}


@pytest.mark.parametrize("form", FORMATS)
def test_parameters_and_tied_tensors_are_told(form, tmp_path):
    """An nn.Parameter is a parameter, and tensors on one storage name each other."""
    weight = nn.Parameter(torch.ones(3, 2))
    path = save(
        {"embed.weight": weight, "head.weight": weight, "x": weight.detach()[1]},
        tmp_path / "f.pt",
        legacy=form == "legacy",
    )
    catalog = describe_file(path)
    assert [entry.parameter for entry in catalog.tensors] == [True, True, False]
    assert catalog.tensors[1].shared == ("embed.weight", "x")
    assert catalog.tensors[0].node.requires_grad
    hold_against_torch(path, catalog, load(path))


def test_meta_tensors_have_no_data(tmp_path):
    """A tensor saved from the meta device is listed with its shape and a finding says that its data is absent."""
    path = save({"a.weight": torch.empty(2, 4, device="meta"), "a.bias": torch.ones(2)}, tmp_path / "f.pt")
    catalog = describe_file(path)
    meta = catalog.tensors[0]
    assert (meta.device, meta.shape, meta.span, meta.storage) == ("meta", (2, 4), None, "")
    assert [finding.place for finding in catalog.findings if finding.code == "no-data"] == ["a.weight"]


def test_tensors_of_a_device_without_storages_keep_their_tag(tmp_path):
    """XLA-like tensors are pickled as a CPU tensor and a tag: the tag is the device, the bytes are the CPU tensor's."""

    class Lazy:
        def __reduce__(self) -> Any:
            rebuild = torch._utils._rebuild_device_tensor_from_cpu_tensor
            return rebuild, (torch.arange(3.0), torch.float32, "xla:1", True)

    path = save({"w": Lazy()}, tmp_path / "f.pt")
    (entry,) = describe_file(path).tensors
    assert (entry.device, entry.shape, entry.span.nbytes) == ("xla:1", (3,), 12)
    assert entry.node.requires_grad


def test_tensors_of_old_xla_files_are_kept_as_arrays(tmp_path):
    """A tensor that was pickled through numpy has no bytes of its own in the file: it is listed without a span."""

    class Lazy:
        def __reduce__(self) -> Any:
            rebuild = torch._utils._rebuild_device_tensor_from_numpy
            return rebuild, (torch.arange(3.0).numpy(), torch.float32, "xla:1", False)

    path = save({"w": Lazy()}, tmp_path / "f.pt")
    (entry,) = describe_file(path).tensors
    assert (entry.device, entry.shape, entry.span, entry.layout, entry.nbytes) == ("xla:1", (3,), None, "numpy", 12)


def test_tensor_subclasses_keep_their_tensor(tmp_path):
    """A tensor of a class of its own is described as its tensor; a finding names the class."""
    path = save({"w": Marked(torch.arange(4.0)), "p": nn.Buffer(torch.ones(2))}, tmp_path / "f.pt")
    catalog = describe_file(path)
    assert [entry.shape for entry in catalog.tensors] == [(4,), (2,)]
    assert any("Marked" in finding.message for finding in catalog.findings if finding.code == "tensor-subclass")


class Marked(torch.Tensor):
    """A subclass without anything of its own."""


def test_state_dict_metadata_survives(tmp_path):
    """The `_metadata` of a state dict is on the inert OrderedDict as on the live one."""
    state = nn.Sequential(nn.BatchNorm1d(2)).state_dict()
    tree = describe_file(save(state, tmp_path / "f.pt")).tree
    assert type(tree) is OrderedDict
    assert tree._metadata == state._metadata


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_pickle_protocol_of_torch_save_is_read(protocol, tmp_path):
    """torch.save takes any protocol from 2; a description does not depend on it."""
    tree = {"model": nn.Linear(2, 3).state_dict(), "names": ["a", "b"] * 200, "nested": [{"x": (1, 2.5, None, b"z")}]}
    path = save(tree, tmp_path / "f.pt", pickle_protocol=protocol)
    catalog = describe_file(path)
    assert catalog.facts["protocol"] == protocol
    assert catalog.tree["names"] == tree["names"]
    assert catalog.tree["nested"] == tree["nested"]
    hold_against_torch(path, catalog, load(path))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop", "Adagrad", "LBFGS", "NAdam", "Adafactor"])
def test_whole_training_checkpoints_are_listed_completely(name, form, tmp_path):
    """Model, optimizer and RNG of a real run: as many tensors as torch.load finds, each described the same."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(5, 3)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(), "epoch": 3}
    path = save(tree, tmp_path / "f.pt", legacy=form == "legacy")
    catalog, loaded = describe_file(path), load(path)
    assert len(catalog.tensors) == tensors_in(loaded)
    hold_against_torch(path, catalog, loaded)
    assert [part.role for part in catalog.parts] == ["model", "optimizer", "rng", "extra"]


def test_big_endian_files_are_marked(tmp_path):
    """The byte order record of a zip is on its storages: whoever reads the data must swap it."""
    path = save({"w": torch.arange(3.0)}, tmp_path / "f.pt")
    data = path.read_bytes()
    big = repacked(path, tmp_path / "big.pt", lambda name, raw: b"big" if name.endswith("byteorder") else raw)
    assert data != big.read_bytes()
    assert describe_file(big).storages[0].byteorder == "big"
    assert describe_file(path).storages[0].byteorder == "little"


def test_entries_lead_back_into_the_tree(tmp_path):
    """The keys of an entry lead to its node through the inert tree."""
    path = save({"a": [{"b": torch.ones(2)}, (torch.ones(1),)]}, tmp_path / "f.pt")
    catalog = describe_file(path)
    for entry in catalog.tensors:
        assert type(entry.node) is TensorNode
        assert follow(catalog.tree, entry.keys) is entry.node
