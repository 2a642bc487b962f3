"""Files of torch 0.1 to 1.13 and of big-endian machines: described, loaded and restored with the values they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unmoor
from tests.cases.files import refused, same_bits
from tests.describe.makers import outcome
from tests.golden import old
from tests.golden.make_golden import BY_HAND, HERE, dtypes, old_state
from unmoor.errors import CorruptFile

WARNINGS = ("ComplexHalf support", "TypedStorage is deprecated", "Couldn't retrieve source")
pytestmark = [pytest.mark.filterwarnings(f"ignore:{words}") for words in WARNINGS]

STATE = {name.decode(): tensor for name, tensor in old_state().items()}
LOOSE = ("uint16", "uint32", "uint64", "complex32")
BIG = {
    **dtypes(named=True), "complex": torch.tensor([1 + 2j, 3 - 4j]), "true": torch.tensor([True, False]),
    **{name: torch.arange(3 * getattr(torch, name).itemsize, dtype=torch.uint8).view(getattr(torch, name))
       for name in LOOSE},
}  # fmt: skip
HELD: dict[str, dict[str, torch.Tensor]] = {
    "tar-torch0.1.9.pt": {**STATE, "window": torch.arange(4.0, 8.0)},
    "python2-torch0.3.1.pt": STATE,
    "big_endian_legacy-torch0.3.1.pt": STATE,
    "zip-torch1.4.0.pt": STATE,
    "zip-torch1.6.0.pt": STATE,
    "big_endian-torch1.13.1.pt": BIG,
}
"""File -> what its model holds, as the values were before they were written."""


class Holder(nn.Module):
    """A module of buffers by name, each of its own; the names may be those of methods."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self._buffers[name] = tensor.clone()


def blank(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(tensor.numel() * tensor.itemsize, dtype=torch.uint8).view(tensor.dtype).reshape(tensor.shape)


def by_torch(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=False, encoding="latin1")


def test_each_old_writer_has_its_values_here() -> None:
    """No golden file of an old writer goes without the values that it holds."""
    assert set(HELD) == set(BY_HAND)


@pytest.mark.parametrize("name", BY_HAND)
def test_an_old_file_is_what_its_writer_writes(name: str) -> None:
    """The files do not depend on when or where they were made."""
    assert (HERE / name).read_bytes() == BY_HAND[name]()


@pytest.mark.parametrize("name", HELD)
def test_an_old_file_loads_with_its_values(name: str) -> None:
    """Every tensor has the dtype, shape and bits that were written, whatever their order of bytes in the file."""
    model = unmoor.load(HERE / name, map_location="cpu")["model"]
    assert {key: (t.dtype, same_bits(t, HELD[name][key])) for key, t in model.items()} == {
        key: (t.dtype, True) for key, t in HELD[name].items()
    }


@pytest.mark.parametrize("name", HELD)
def test_an_old_file_restores_with_its_values(name: str) -> None:
    """The tensors stream into live ones, each into its own memory."""
    model = Holder({key: blank(tensor) for key, tensor in HELD[name].items()})
    unmoor.restore(HERE / name, model=model)
    assert same_bits(dict(model.state_dict()), {key: tensor.contiguous() for key, tensor in HELD[name].items()})


@pytest.mark.parametrize("name", HELD)
def test_torch_reads_an_old_file_alike(name: str) -> None:
    """torch.load gives the same values and strides; it does not turn numbers round that have no storage class."""
    theirs, ours = by_torch(HERE / name)["model"], unmoor.load(HERE / name, map_location="cpu")["model"]
    keys = [key for key in ours if key not in LOOSE]
    assert keys == [key for key in theirs if key not in LOOSE]
    assert same_bits({key: ours[key] for key in keys}, {key: theirs[key] for key in keys})
    assert [ours[key].stride() for key in keys] == [theirs[key].stride() for key in keys]


@pytest.mark.parametrize("name", [name for name in HELD if "weight" in HELD[name]])
def test_tensors_of_an_old_file_share_their_storage(name: str) -> None:
    """A view of a matrix is a view of it after loading, too."""
    model = unmoor.load(HERE / name, map_location="cpu")["model"]
    storages = {model[key].untyped_storage().data_ptr() for key in ("weight", "same", "part")}
    assert len(storages) == 1


def test_an_optimizer_of_a_tar_is_matched_by_order() -> None:
    """Parameters were numbered by their addresses: state finds its parameter by order, proved by shape."""
    model = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    report = unmoor.restore(HERE / "tar-torch0.1.9.pt", optimizer=optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], torch.full((3, 4), 0.5))
    assert report.extra["epoch"] == 3


def test_values_of_python_2_are_read() -> None:
    """Its str is text where it reads as UTF-8 and bytes where not; longs, sets, objects, arrays are what they were."""
    tree = unmoor.load(HERE / "python2-torch0.3.1.pt", map_location="cpu")
    assert list(tree) == ["model", "view", "step", "caf\u00e9", "latin", "loss", "args", "seen"]
    assert (tree["step"], tree["caf\u00e9"], tree["latin"], tree["seen"]) == (1 << 40, "caf\u00e9", b"caf\xe9", {1, 2})
    assert tree["loss"].dtype == np.float64
    assert tree["loss"].tolist() == [0.0, 0.5]
    assert (tree["args"].name, tree["args"].state) == ("argparse.Namespace", {"lr": 0.5})
    assert tree["view"].tolist() == by_torch(HERE / "python2-torch0.3.1.pt")["view"].tolist() == [3.0, 4.0]


def test_a_storage_of_several_sizes_of_a_big_endian_machine_is_refused_by_load(tmp_path: Path) -> None:
    """No one order of bytes is right for all that look into it: load names them, restore gives each its own values."""
    stream = old.Stream()
    base = torch.arange(8, dtype=torch.int16)
    tree = {"model": {"wide": stream.untyped(base.view(torch.int32)), "narrow": stream.untyped(base)}}
    path = tmp_path / "big.pt"
    path.write_bytes(stream.zipped(tree, "big", [("version", b"3\n"), ("byteorder", b"big")], "big"))
    with refused(unmoor.UnsupportedFile) as caught:
        unmoor.load(path)
    assert "model.wide, model.narrow look into one storage" in str(caught.value)


@pytest.mark.parametrize("call", [unmoor.load, lambda path: unmoor.restore(path, model=Holder(STATE))])
def test_a_file_without_a_byte_order_is_not_read_against_torchs_setting(call: Any) -> None:
    """Where torch is told that such files are big-endian, the file is refused; one that says its order is read."""
    serialization = torch.serialization
    before = serialization.get_default_load_endianness()
    serialization.set_default_load_endianness(serialization.LoadEndianness.BIG)
    try:
        with refused(unmoor.UnsupportedFile) as caught:
            call(HERE / "zip-torch1.6.0.pt")
        unmoor.load(HERE / "big_endian-torch1.13.1.pt")
    finally:
        serialization.set_default_load_endianness(before)
    assert "does not say its byte order" in str(caught.value)


def tar(*tensors: torch.Tensor) -> bytes:
    archive = old.Tar()
    return archive.written({str(i).encode(): archive.tensor(tensor) for i, tensor in enumerate(tensors)})


def test_a_tar_cut_short_names_its_tensors(tmp_path: Path) -> None:
    """The storages are the last member: the tensors on those that are cut are named, the others counted as whole."""
    data = tar(torch.ones(3), torch.ones(2000), torch.ones(4))
    path = tmp_path / "cut.pt"
    path.write_bytes(data[: data.index(torch.ones(2000).numpy().tobytes()) + 5000])
    error = outcome(path)
    assert type(error) is CorruptFile
    assert error.details == (
        "1: its data is short by 3,000 bytes",
        "2: its data comes after data that is cut short",
        "the other tensor is whole",
    )


@pytest.mark.parametrize("cut", range(0, 3000, 37))
def test_a_tar_cut_anywhere_is_an_error_or_whole(cut: int, tmp_path: Path) -> None:
    """At whatever byte a tar ends, the answer is a catalog or a named error."""
    path = tmp_path / "cut.pt"
    path.write_bytes(tar(torch.arange(3.0), torch.arange(2.0))[:cut])
    said = outcome(path)
    assert not isinstance(said, unmoor.UnmoorError) or isinstance(said, unmoor.FileError)


def test_a_tar_beside_other_checkpoints_says_what_it_is(tmp_path: Path) -> None:
    """The first line names the kind of file and the torch that wrote such."""
    path = tmp_path / "old.pt"
    path.write_bytes(tar(torch.ones(3)))
    assert unmoor.describe(path).format == "torch-tar"
    with refused(unmoor.UnsupportedFile) as caught:
        unmoor.load(path, trust="everything in this file")
    assert "trust=" in str(caught.value)
