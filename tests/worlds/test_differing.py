"""In what two ranks differ: any two trees, and what replicas must share."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmoor.describe import describe_file
from unmoor.distributed.comparing import described_sums, live_sums
from unmoor.distributed.meeting import meet
from unmoor.errors import UsageError
from unmoor.execute.checksums import crc32
from unmoor.live.content import Content, collect, plain_tree
from unmoor.live.differing import Own, fingerprint, own_leaves, strict_sums, value_digests, with_ranks
from unmoor.live.digests import Digester
from unmoor.plan.of_rank import every_rank, of_rank
from unmoor.values.catalog import Catalog
from unmoor.wiring.saving import write_content

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(width=16)
    | st.sampled_from(["", "a", "1"])
    | st.binary(max_size=2)
)
KEYS = st.sampled_from(["a", "b", "1", "ranks."]) | st.integers(0, 2) | st.tuples(st.integers(0, 1))
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)
ROOTS = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), TREES, max_size=4)


def _own(first: Content, mine: Content) -> Own:
    """What a rank sends that compared itself with rank 0."""
    theirs, prints = fingerprint(first), fingerprint(mine)
    heads = theirs.heads()
    odd = {key: rows for key, rows in theirs.rows.items() if prints.heads().get(key) != heads[key]}
    free, faults = prints.compare(odd, heads)
    assert not faults
    return Own.from_bytes(own_leaves(mine, free, heads).to_bytes(1 << 20))


def _seen(first: Content, *others: Content) -> list[Any]:
    """The tree that each rank sees of what rank 0 writes."""
    made = with_ranks(first, {rank: _own(first, mine) for rank, mine in enumerate(others, 1)}, 1 + len(others))
    manifest = {"world_size": made.world_size, "ranks": made.ranks, "roles": {}, "numpy": []}
    catalog = Catalog("x.pt", "torch-zip", "unmoor", (), (), (), (), tree=made.tree, manifest=manifest)
    return [of_rank(catalog, rank, made.world_size).tree for rank in range(made.world_size)]


def _bits(tree: Any) -> str:
    """A tree as text: kinds, order and signs of zero too; the keys of the root in any order."""
    return repr(sorted(tree.items()))


@given(first=ROOTS, second=ROOTS, third=ROOTS)
@settings(deadline=None, max_examples=150)
def test_every_rank_gets_back_what_it_had(first: Any, second: Any, third: Any) -> None:
    """Whatever the trees of three ranks are, each sees its own of the one that rank 0 writes."""
    trees = [first, second, third]
    contents = [plain_tree(copy.deepcopy(tree)) for tree in trees]
    assert list(map(_bits, _seen(*contents))) == [_bits(plain_tree(tree).tree) for tree in trees]


@given(tree=ROOTS)
@settings(deadline=None, max_examples=50)
def test_equal_trees_cost_nothing(tree: Any) -> None:
    """Of a rank that has what rank 0 has, nothing is kept."""
    own = _own(plain_tree(tree), plain_tree(copy.deepcopy(tree)))
    assert (own.tree, own.whole, own.absent, own.recorded()) == ({}, (), (), None)


def test_only_the_leaf_that_differs_is_kept() -> None:
    """One tensor of many, one element of a list, one value of a dict: not what stands beside them."""
    base = {"a": {"x": torch.zeros(3), "y": [torch.ones(2), torch.ones(2)], "z": {1: 5}}, "b": (1, 2)}
    mine = {"a": {"x": torch.zeros(3), "y": [torch.ones(2), torch.full((2,), 7.0)], "z": {1: 6}}, "b": (1, 2)}
    own = _own(plain_tree(base), plain_tree(mine))
    assert str(own.tree) == "{'a': {'y': {'1': tensor([7., 7.])}, 'z': {1: 6}}}"


ALIKE = {
    "another stride": (
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(3, 2).t().contiguous().t().reshape(2, 3),
    ),
    "a view of more": (torch.zeros(2), torch.zeros(9)[3:5]),
    "a lazy conjugate": (torch.tensor([1 - 2j]), torch.tensor([1 + 2j]).conj()),
    "not a number": (float("nan"), float("nan")),
    "a set in another order": ({"a", "b", "c"}, {"c", "b", "a"}),
    "an array": (np.arange(3), np.arange(3)),
}
UNLIKE = {
    "the sign of zero": (0.0, -0.0),
    "a number and a truth": (1, True),
    "a list and a tuple": ([1], (1,)),
    "a dict and an ordered one": ({}, OrderedDict()),
    "a count": (Counter(a=1), {"a": 1}),
    "the order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "a dtype": (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    "a shape": (torch.zeros(2), torch.zeros(2, 1)),
    "a bit of a bfloat16": (torch.zeros(2, dtype=torch.bfloat16), -torch.zeros(2, dtype=torch.bfloat16)),
    "a sparse value": (torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse()),
}  # fmt: skip


@pytest.mark.parametrize("case", [*ALIKE, *UNLIKE])
def test_a_digest_is_of_the_value_alone(case: str) -> None:
    """Equal values have one digest, whatever memory they lie in; anything that a program could tell apart has two."""
    one, other = (plain_tree({"v": value}).tree["v"] for value in (ALIKE | UNLIKE)[case])
    assert (Digester()(one) == Digester()(other)) == (case in ALIKE)
    assert (Digester()([one]) == Digester()([other])) == (case in ALIKE)


def test_a_container_that_holds_itself_or_stands_twice_is_one_leaf() -> None:
    """Neither a cycle nor a row of lists that each hold the next twice costs more than its size."""
    ring: dict[str, Any] = {"n": torch.ones(1)}
    ring["self"] = ring
    row: Any = [torch.zeros(1)]
    for _ in range(60):
        row = [row, row]
    first, mine = (plain_tree({"ring": copy.deepcopy(ring), "row": row, "x": n}) for n in (1, 2))
    assert _own(first, mine).tree == {"x": 2}


def _run(seed: int, lr: float = 0.1) -> Content:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return collect({"model": model, "optimizer": optimizer}, {"step": 1}, rng=True, generators={})


def test_buffers_and_streams_may_differ_and_options_may_not() -> None:
    """Of two runs of other seeds: statistics and streams are a rank's own, a learning rate is a fault."""
    first, mine = _run(1), _run(2, lr=0.2)
    prints = fingerprint(mine)
    free, faults = prints.compare(fingerprint(first).rows, first.tree)
    assert faults == [("optimizer", "param_groups", 0, "lr")]
    assert {keys for keys in free if keys[0] == "model"} == {("model", "1.running_mean"), ("model", "1.running_var")}
    streams = {keys[:2] for keys in free if keys[0] != "model"}
    assert streams - {("rng", "devices")} == {("rng", "torch")}  # torch.manual_seed seeds devices too


FAULTS: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {
    "a shape": (lambda m: torch.nn.Sequential(torch.nn.Linear(3, 5)), [("model", "0.weight"), ("model", "0.bias")]),
    "a dtype": (lambda m: m.double(), [("model", "0.weight"), ("model", "0.bias")]),
    "another name": (lambda m: torch.nn.Sequential(OrderedDict(x=torch.nn.Linear(3, 4))), [("model",)]),
    "one parameter more": (lambda m: torch.nn.Sequential(m[0], torch.nn.Linear(4, 1)), [("model",)]),
}


@pytest.mark.parametrize("case", FAULTS)
def test_modules_have_the_same_parameters(case: str) -> None:
    """Names, shapes and dtypes of parameters are faults; what is below a fault is not told again."""
    change, wanted = FAULTS[case]
    first, mine = (
        collect({"model": model}, {}, rng=False, generators={})
        for model in (torch.nn.Sequential(torch.nn.Linear(3, 4)), change(torch.nn.Sequential(torch.nn.Linear(3, 4))))
    )
    assert fingerprint(mine).compare(fingerprint(first).rows, first.tree)[1] == wanted


def test_sums_of_parameters_are_those_of_the_file(tmp_path: Any) -> None:
    """What other ranks sum up of their memory is what rank 0 finds in the file that it wrote, view for view."""
    flat = torch.randn(30)
    module = torch.nn.Module()
    module.a, module.b = torch.nn.Parameter(flat[3:9].reshape(2, 3)), torch.nn.Parameter(flat[11:15])
    module.c = torch.nn.Parameter(torch.randn(4, 5).t())
    module.empty = torch.nn.Parameter(torch.zeros(0, 3))
    module.lazy = torch.nn.Parameter(torch.randn(3, dtype=torch.complex64).conj())
    module.sparse = torch.nn.Parameter(torch.eye(2).to_sparse())
    content = collect({"model": module}, {}, rng=True, generators={})
    strict = sorted(keys for keys in fingerprint(content).strict if keys in content.tensors)
    path = str(tmp_path / "x.pt")
    write_content(path, content, buffer_bytes=1 << 20, threads=1, progress=None)
    with meet("save", None, 1.0) as alone:
        live = live_sums(alone, content, strict)
    assert described_sums(describe_file(path), content, strict) == live
    assert live.keys() == {("model", name) for name in ("a", "b", "c", "empty", "lazy", "sparse")}
    with torch.no_grad():
        flat[12] += 1
    changed = strict_sums(content, strict, crc32, lambda: None)
    assert {keys[1] for keys in strict if changed.get(keys) not in (None, live[keys])} == {"a", "b"}
    assert value_digests(content, [("model", "a")]) == value_digests(copy.deepcopy(content), [("model", "a")])


@pytest.mark.parametrize(
    ("tree", "said"),
    [({"ranks": 1}, "under another name"), ([1], "Put it into a dict"), (torch.ones(1), "into a dict")],
)
def test_what_several_ranks_cannot_save_is_refused(tree: Any, said: str) -> None:
    """There has to be a place for what each rank has for itself."""
    with pytest.raises(UsageError, match=said):
        fingerprint(plain_tree(tree))


def test_more_than_rank_0_takes_is_refused_by_name() -> None:
    """The error names what is large, and the way to save it."""
    own = _own(plain_tree({}), plain_tree({"small": 1, "replay": torch.zeros(1000)}))
    with pytest.raises(UsageError) as caught:
        own.to_bytes(3000)
    assert "replay  3.9 KiB" in str(caught.value)
    assert "group=None" in str(caught.value)


def test_arrays_of_a_rank_stay_arrays() -> None:
    """Where a numpy array is among a rank's own leaves, its place is noted."""
    first, mine = plain_tree({"a": {"v": np.zeros(2)}}), plain_tree({"a": {"v": np.ones(2)}})
    made = with_ranks(first, {1: _own(first, mine)}, 2)
    assert made.arrays == [("a", "v"), ("ranks", "1", "a", "v")]
    assert set(made.tensors) == {("a", "v"), ("ranks", "1", "a", "v")}
    manifest = {"world_size": 2, "ranks": made.ranks, "numpy": []}
    catalog = Catalog("x.pt", "torch-zip", "unmoor", (), (), (), (), tree=made.tree, manifest=manifest)
    assert [node["v"].tolist() for node in every_rank(catalog, ("a",))] == [[0, 0], [1, 1]]
