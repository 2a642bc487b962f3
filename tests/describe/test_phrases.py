"""Plain tensors taken in one step are what the loop reads one instruction after another."""

from __future__ import annotations

import io
import pickle
import zipfile
from struct import pack

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.describe.sparse_zip import number, state_dict_pickle, text
from unmoor.describe import pickles
from unmoor.describe.file import describe_file
from unmoor.describe.machine import Machine, Recalled, Short
from unmoor.describe.phrases import Phrases
from unmoor.describe.rebuild import BUILDS, CONSTANTS, RULES, storage_parts
from unmoor.errors import FileError
from unmoor.values.dtypes import DTYPES
from unmoor.values.nodes import Opaque, Storage, TensorNode

FIELDS = ("offset", "shape", "stride", "dtype", "device", "requires_grad", "parameter", "bits", "quantizer")
MANY = 400
"""Tensors enough that numbers of the memo have four bytes, as phrases want them."""


def read(data: bytes | bytearray, *, phrases: bool, fields: int = 5):
    """The machine after a reading, and its value or error."""
    storages: dict[str, Storage] = {}

    def stored(m: Machine, dtype: str, key: str, tag: str, numel: int) -> Storage:
        nbytes = numel * DTYPES[dtype].itemsize
        if key not in storages:
            m.charge(6)
            storages[key] = Storage(key, dtype, nbytes, tag, None, None)
        elif storages[key].nbytes != nbytes:
            raise m.corrupt("two sizes")
        return storages[key]

    def persistent(m: Machine, pid: object) -> Storage:
        return stored(m, *storage_parts(m, pid, fields))

    machine = Machine(data, rules=RULES, constants=CONSTANTS, builds=BUILDS, persistent=persistent, path="f", where="f")
    machine.phrases = Phrases(stored, storage_parts) if phrases else None
    try:
        return machine, pickles.run(machine), storages
    except (FileError, Short) as error:
        return machine, error, storages


def plain(value: object) -> object:
    """A value that compares by what it holds."""
    if isinstance(value, TensorNode):
        return "tensor", plain(value.storage), *(getattr(value, name) for name in FIELDS)
    if isinstance(value, Opaque):
        return "opaque", value.name, value.how, plain(value.args), plain(value.state)
    if isinstance(value, dict):
        return type(value).__name__, [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(item) for item in value]
    return (str(value), type(value)) if isinstance(value, Exception) else value


def told(data: bytes | bytearray, *, phrases: bool, fields: int = 5) -> object:
    machine, value, storages = read(data, phrases=phrases, fields=fields)
    noticed = (tuple(machine.globals), [plain(call) for call in machine.calls], machine.notes, machine.left)
    where = () if isinstance(value, Exception) else (machine.pos,)
    return plain(value), list(storages.values()), noticed, where


def same(data: bytes, *, fields: int = 5) -> None:
    assert told(data, phrases=True, fields=fields) == told(data, phrases=False, fields=fields)


def saved(tree: object, **options: object) -> bytes:
    file = io.BytesIO()
    torch.save(tree, file, **options)
    with zipfile.ZipFile(file) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


def taken(data: bytes, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many tensors were taken in one step."""
    ends: list[int] = []
    take = Phrases.take

    def counted(self: Phrases, m: Machine, pos: int) -> int:
        ends.append(take(self, m, pos))
        return ends[-1]

    monkeypatch.setattr(Phrases, "take", counted)
    read(data, phrases=True)
    return sum(map(bool, ends))


SHAPES = ((), (3,), (0,), (2, 3), (2, 3, 4), (1, 2, 1, 2), (300, 70), (1, 1, 1, 1, 2))
TREES = {
    "every shape": lambda: {f"w{i}": torch.zeros(SHAPES[i % len(SHAPES)]) for i in range(MANY)},
    "every dtype": lambda: {
        f"w{i}": torch.zeros(4, dtype=(torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint16)[i % 5])
        for i in range(MANY)
    },
    "gradients": lambda: {f"w{i}": torch.zeros(4, requires_grad=i % 3 == 0) for i in range(MANY)},
    "parameters": lambda: {f"w{i}": torch.nn.Parameter(torch.zeros(4)) for i in range(MANY)},
    "views of one storage": lambda: {f"w{i}": row for i, row in enumerate(torch.zeros(MANY, 3))},
    "transposed": lambda: {f"w{i}": torch.zeros(3, 2 + i % 3).T for i in range(MANY)},
    "conjugates": lambda: {f"w{i}": torch.zeros(3, dtype=torch.complex64).conj() for i in range(MANY)},
    "keys that are digits": lambda: {str(i): torch.zeros(2) for i in range(MANY)},
    "a list": lambda: [torch.zeros(2) for _ in range(MANY)],
    "one tensor many times": lambda: [*[torch.ones(2)] * MANY, *(torch.zeros(2) for _ in range(MANY))],
    "meta": lambda: {f"w{i}": torch.zeros(4, device="meta") for i in range(MANY)},
    "an optimizer": lambda: {
        "state": {i: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(2, 3)} for i in range(MANY)},
        "param_groups": [{"params": list(range(MANY))}],
    },
}


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("protocol", [2, 4])
def test_every_kind_of_tree_reads_alike(kind, protocol):
    """Value, storages, names, notes, budget and end are the same with phrases and without."""
    same(saved(TREES[kind](), pickle_protocol=protocol))


@pytest.mark.parametrize("kind", ["every shape", "gradients", "an optimizer"])
def test_legacy_streams_read_alike(kind, tmp_path):
    """A file that is read in windows, whose ids have a field more: as its zip twin, and cut anywhere an error."""
    tree, paths = TREES[kind](), (tmp_path / "zip.pt", tmp_path / "legacy.pt")
    for path, zipped in zip(paths, (True, False), strict=True):
        torch.save(tree, path, _use_new_zipfile_serialization=zipped)
    ours = [[(e.path, e.role, e.shape, e.stride, e.dtype, e.nbytes) for e in describe_file(p).tensors] for p in paths]
    assert ours[0] == ours[1]
    raw = paths[1].read_bytes()
    for length in range(1, len(raw), len(raw) // 20):
        paths[1].write_bytes(raw[:length])
        with pytest.raises(FileError):
            describe_file(paths[1])


def test_a_window_that_may_be_written_to_reads_alike():
    """What is read in windows is a bytearray."""
    data = saved(TREES["every shape"]())
    assert told(bytearray(data), phrases=True) == told(data, phrases=False)


def test_tensors_that_torch_saves_are_taken_in_one_step(monkeypatch):
    """All but the first of each kind, and those whose numbers in the memo have one byte."""
    data = saved(TREES["gradients"]())
    assert taken(data, monkeypatch) > MANY - 60


@given(at=st.integers(0, 10**6), byte=st.integers(0, 255))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_reads_alike(at, byte):
    """Any byte of a pickle changed to any other: the same value or an error of the same kind."""
    raw = bytearray(state_dict_pickle([f"w{i}" for i in range(120)], (2, 3)))
    raw[at % len(raw)] = byte
    try:
        one = told(bytes(raw), phrases=True)
    except Recalled:
        return  # read again without phrases
    assert one == told(bytes(raw), phrases=False)


def test_what_a_phrase_left_out_is_made_when_it_is_recalled():
    """A pickle that recalls a tuple of arguments asks to be read without phrases."""
    whole = state_dict_pickle([f"w{i}" for i in range(100)], (2, 3))
    last = max(i for i in range(len(whole)) if whole[i : i + 1] == b"r" and whole[i - 1 : i] == b"t")
    index = whole[last + 1 : last + 5]
    data = whole.removesuffix(b"u.") + text("again") + b"j" + index + b"u."
    with pytest.raises(Recalled):
        read(data, phrases=True)
    assert "again" in read(data, phrases=False)[1]


@pytest.mark.parametrize(
    "other",
    [b"cos\nsystem\nr" + pack("<I", 0) + b"0", b"cos\nsystem\nq\x000"],
    ids=["four bytes", "one byte"],
)
def test_a_replaced_memo_ends_phrases(other):
    """What phrases recall by number may have become another thing: from then on the loop reads."""
    whole = state_dict_pickle([f"w{i}" for i in range(100)], (2, 3))
    names = state_dict_pickle([f"w{i}" for i in range(90)], (2, 3)).removesuffix(b"u.")
    assert whole.startswith(names)
    data = names + other + whole[len(names) :]
    same(data)
    assert read(data, phrases=True)[0].phrases is None


def test_numbers_that_are_out_of_order_are_remembered():
    """A memo with gaps is one all the same."""
    value = {"a": (1, 2), "b": [(1, 2)]}
    data = b"\x80\x02}(" + text("a") + b"r" + pack("<I", 1 << 31) + number(7) + text("b") + b"j" + pack("<I", 1 << 31)
    assert read(data + b"u.", phrases=True)[1] == {"a": 7, "b": "a"}
    assert read(pickle.dumps(value, 0), phrases=True)[1] == value
