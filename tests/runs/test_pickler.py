"""The pickler of saves against torch's own writer: what is loaded is the same, and shares what it shared."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unmoor
from unmoor.describe import describe_file
from unmoor.errors import UsageError
from unmoor.execute.archive import torch_records, torch_trailer, write_archive
from unmoor.live.content import plain_tree
from unmoor.live.pickling import pickle_tree
from unmoor.live.snapshots import take

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)
UNTYPED = (torch.uint16, torch.float8_e4m3fn)


def pool() -> list[torch.Tensor]:
    """Tensors that share storages, and some that do not."""
    made = []
    for dtype in DTYPES:
        base = torch.arange(24).to(dtype)
        made += [base, base[3:9], base.reshape(4, 6).t(), base.reshape(2, 3, 4)[:, 1], base[24:], base[5]]
    made += [torch.arange(6).to(dtype) for dtype in UNTYPED]
    made += [torch.arange(32, dtype=torch.uint8)[8:16].view(torch.float32), torch.zeros(7, dtype=torch.uint8)[3:]]
    made += [torch.ones(3, requires_grad=True), torch.empty(0, 4), torch.zeros(300), torch.zeros(70_000).char()]
    made += [torch.tensor([1 + 2j, 3 - 1j]).conj(), torch.tensor([1 + 2j, 3 - 1j]).conj().imag]
    made += [torch.nn.Parameter(torch.ones(2)), torch.ones(2).to_sparse()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to take them away
        made.append(torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.qint8))
    return made


KEYS = st.one_of(st.text(max_size=6), st.integers(-3, 70_000), st.sampled_from(["storage", "cpu", "exp_avg"]))
EDGES = [0, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31]
NUMBERS = st.one_of(st.integers(-(1 << 70), 1 << 70), st.sampled_from(EDGES))
OTHERS = [torch.Size([2, 3]), torch.float16, torch.device("cpu"), 1 + 2j, Counter("aab"), {1, 2}, bytearray(b"x")]
LEAVES = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.floats(), st.text(max_size=8), st.binary(min_size=1, max_size=4),
    st.sampled_from(OTHERS),
    st.integers(0, len(pool()) - 1).map(lambda index: ("tensor", index)),
)  # fmt: skip


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Containers of what is drawn; `again` refers to a container around it."""
    again = st.integers(0, 3).map(lambda depth: ("again", depth))
    within = st.one_of(children, children, again)
    return st.one_of(
        st.lists(within, max_size=5),
        st.lists(children, max_size=5).map(tuple),
        st.dictionaries(KEYS, within, max_size=5),
        st.dictionaries(KEYS, within, max_size=5).map(OrderedDict),
    )


TREES = st.recursive(LEAVES, containers, max_leaves=15)


def planted(value: Any, tensors: list[torch.Tensor], above: tuple[Any, ...] = ()) -> Any:
    """A drawn tree with its tensors, and with the containers that it is to hold again."""
    if type(value) is tuple and len(value) == 2 and value[0] == "tensor":
        return tensors[value[1]]
    if type(value) is tuple and len(value) == 2 and value[0] == "again":
        return above[-1 - value[1]] if value[1] < len(above) else None
    if type(value) is list:
        made: Any = []
        made.extend(planted(item, tensors, (*above, made)) for item in value)
        return made
    if type(value) in (dict, OrderedDict):
        made = type(value)()
        made.update((key, planted(item, tensors, (*above, made))) for key, item in value.items())
        return made
    return tuple(planted(item, tensors, above) for item in value) if type(value) is tuple else value


def tensors_of(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Every tensor of a tree."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(item, seen)


def written(tree: Any, path: Path) -> None:
    """The tree as a save writes it."""
    pickled, blobs = pickle_tree(tree, list(tensors_of(tree, set())))
    records = torch_records(pickled, [(key, blob.nbytes, blob) for key, blob in blobs.items()])
    write_archive(path, records, name="x", finish=torch_trailer, threads=1, buffer_bytes=1 << 20, progress=None)


def told(value: Any, seen: dict[int, int]) -> Any:
    """A tree as plain values: types, numbers, and which objects and storages are one."""
    if isinstance(value, dict | list | torch.Tensor):
        if id(value) in seen:
            return "again", seen[id(value)]
        seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return type(value), [(key, told(item, seen)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [told(item, seen) for item in value]
    return _tensor(value, seen) if isinstance(value, torch.Tensor) else (type(value), repr(value))


def _tensor(value: torch.Tensor, seen: dict[int, int]) -> Any:
    facts: Any = type(value), value.dtype, tuple(value.shape), value.requires_grad, value.layout
    if value.is_quantized or value.layout != torch.strided:
        return *facts, repr(value)
    where = seen.setdefault(-value.untyped_storage()._cdata, len(seen)) if value.numel() else 0
    return *facts, value.stride() if value.numel() else (), value.is_conj(), value.is_neg(), where, repr(value.tolist())


def inert(path: Path) -> Any:
    """A file as our own reader has it: what each tensor is, by key path, without where its storage stands."""
    catalog = describe_file(str(path))
    storages: dict[str, int] = {}

    def number(storage: str) -> int:
        return storages.setdefault(storage, len(storages))

    rows = catalog.tensors
    return [(e.keys, e.shape, e.stride, e.dtype, e.device, number(e.storage) if e.nbytes else -1) for e in rows]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(TREES)
def test_a_tree_loads_as_torch_writes_it(drawn: Any) -> None:
    """For all trees: types, values, sharing of objects and storages, recursion."""
    tree = planted(drawn, pool())
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "x.pt"), Path(folder, "y.pt")
        written(tree, ours)
        torch.save(tree, theirs)
        try:
            wanted = told(torch.load(theirs), {})
        except Exception:  # noqa: BLE001 - torch's safe loading does not read all that torch.save writes
            wanted = told(torch.load(theirs, weights_only=False), {})
            assert told(torch.load(ours, weights_only=False), {}) == wanted
        else:
            assert told(torch.load(ours), {}) == wanted
        assert inert(ours) == inert(theirs)


def _far() -> dict[str, list[torch.Tensor]]:
    """Tensors that look into one storage in ways that do not show from its plain tensors alone."""
    base, waves = torch.arange(100.0), torch.tensor([1 + 2j, 3 - 1j])
    at, pairs = torch.arange(4), torch.view_as_real(waves)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invariants, which hold
        listed = torch.sparse_coo_tensor(at[None], base[50:54], (9,))
        compressed = torch.sparse_csr_tensor(torch.tensor([0, 4]), at, base[50:54], (1, 9))
    return {
        "sparse values outside": [base[:4], listed],
        "compressed values outside": [base[:4], compressed],
        "numbers before conjugates": [pairs, waves.conj()],
        "conjugates before numbers": [waves.conj(), pairs],
        "nothing, far outside": [base[:4], base.as_strided((0, 3), (1, 1), 1 << 40)],
    }


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:Sparse")
@pytest.mark.parametrize("kind", _far())
@pytest.mark.parametrize("safely", [True, False])
def test_what_looks_far_into_a_storage_is_written(kind: str, safely: bool, tmp_path: Path) -> None:
    tree = _far()[kind]
    written(tree, tmp_path / "x.pt")
    found = torch.load(tmp_path / "x.pt", weights_only=safely)
    assert [told(tensor.to_dense(), {}) for tensor in found] == [told(tensor.to_dense(), {}) for tensor in tree]
    assert [entry.shape for entry in describe_file(str(tmp_path / "x.pt")).tensors]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("left", [0, 40])
@pytest.mark.parametrize("background", [False, True])
def test_freed_memory_is_refused_and_not_read(suffix: str, left: int, background: bool, tmp_path: Path) -> None:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(left)
    with pytest.raises(UsageError, match=rf"float32 \[1000\]: its storage has {left} bytes"):
        unmoor.save(tmp_path / f"x{suffix}", model={"w": tensor}, rng=False, background=background)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrap", [lambda x: (x,), lambda x: {"a": x}, lambda x: OrderedDict(a=x), lambda x: [x]])
@pytest.mark.parametrize("step", [lambda made: take(made), lambda made: pickle_tree(made.tree, [])])
def test_a_tree_of_any_depth_is_walked_or_refused(wrap: Any, step: Any) -> None:
    """Each walk over a tree takes its own share of the stack: none runs out of it unseen."""
    trees: list[Any] = [None]
    with pytest.raises(UsageError, match="nested more deeply"):  # noqa: PT012 - the depth differs by what calls it
        for _ in range(sys.getrecursionlimit()):
            trees.append(wrap(trees[-1]))
            plain_tree(trees[-1])
    for tree in trees[-16:]:
        with suppress(UsageError):
            step(plain_tree(tree))
