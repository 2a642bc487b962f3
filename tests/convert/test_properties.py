"""Properties of convert over random trees: there and back is the identity, values stay, names are one to one."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unmoor
from unmoor.plan.renaming import naming, new_names

from .trees import difference

pytestmark = pytest.mark.filterwarnings("ignore:.*(TypedStorage|torch.distributed is)")

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
KEYS = st.one_of(st.text("ab.0_", max_size=4), st.integers(-2, 3), st.none(), st.booleans())
LEAVES = st.one_of(
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(min_size=1, max_size=4),
    st.none(),
    st.booleans(),
)


@st.composite
def views(draw, bases):
    """A view of one of a few storages: a slice, a stride, a transposed or expanded one."""
    base = draw(st.sampled_from(bases))
    first = draw(st.integers(0, base.numel()))
    last = draw(st.integers(first, base.numel()))
    step = draw(st.integers(1, 3))
    view = base[first:last:step]
    if view.numel() and view.numel() % 2 == 0 and draw(st.booleans()):
        view = view.reshape(2, -1) if step > 1 else view.view(2, -1)
        view = view.t() if draw(st.booleans()) else view
    return view


@st.composite
def trees(draw):
    """A tree whose tensors are views of a few shared storages, some of them met more than once."""
    bases = [
        torch.arange(draw(st.integers(0, 24))).to(draw(st.sampled_from(DTYPES))) for _ in range(draw(st.integers(1, 3)))
    ]
    tensors = [draw(views(bases)) for _ in range(draw(st.integers(1, 5)))]
    leaves = st.one_of(LEAVES, st.sampled_from(tensors))
    nodes = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(KEYS, inner, max_size=3),
            st.tuples(inner, inner),
            st.dictionaries(st.text("xyz", max_size=2), inner, max_size=3).map(OrderedDict),
        ),
        max_leaves=8,
    )
    return {"tree": draw(nodes), "tensors": tensors, "again": tensors[0]}


@settings(max_examples=25, deadline=None)
@given(tree=trees(), through=st.sampled_from(["torch", "legacy", "compact", "torch legacy torch"]))
def test_there_and_back_is_the_identity(tree, through):
    """Law 5: exact, whatever the tree: values, strides, dtypes, containers, and which tensors share a storage."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "0.pt")
        torch.save(tree, source)
        wanted = torch.load(source, weights_only=True)
        for number, word in enumerate(through.split(), 1):
            target = Path(folder, f"{number}.pt")
            form = "torch" if word == "compact" else word
            unmoor.convert(source, target, format=form, storage="compact" if word == "compact" else "shared")
            source = target
        found = torch.load(source, weights_only=True)
    if through == "compact":
        assert all(torch.equal(a, b) for a, b in zip(wanted["tensors"], found["tensors"], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(_tensors(wanted["tree"]), _tensors(found["tree"]), strict=True))
        return
    assert difference(wanted, found) == ""
    assert _shared(wanted["tensors"]) == _shared(found["tensors"])
    assert found["again"] is found["tensors"][0]


@settings(max_examples=20, deadline=None)
@given(tree=trees(), step=st.integers(0, 9), value=st.just(7))
def test_compact_keeps_what_shares_elements(tree, step, value):
    """A write through one view shows in every other that has the element, and in no more than before."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(tree["tensors"], Path(folder, "a.pt"))
        unmoor.convert(Path(folder, "a.pt"), Path(folder, "b.pt"), storage="compact")
        before = torch.load(Path(folder, "a.pt"), weights_only=True)
        after = torch.load(Path(folder, "b.pt"), weights_only=True)
    full = [i for i, tensor in enumerate(before) if tensor.numel()]
    if not full:
        return
    chosen = full[step % len(full)]
    for tensors in (before, after):
        tensors[chosen][(0,) * tensors[chosen].dim()] = value
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@given(
    names=st.lists(st.from_regex(r"(module\.|_orig_mod\.|[ab]\.){0,3}[wb]", fullmatch=True), min_size=1, unique=True)
)
def test_auto_is_one_to_one_and_does_it_once(names):
    """Law 8: auto leaves different names, and what it keeps of a name stays in its order."""
    made = new_names(names, naming("auto", None, None), label="model", dialect="plain")
    assert len(set(made.names.values())) == len(names)
    for old, new in made.names.items():
        rest = iter(old.split("."))
        assert all(part in rest for part in new.split("."))
        dropped = len(old.split(".")) - len(new.split("."))
        assert old.split(".").count("module") - new.split(".").count("module") <= 1
        assert dropped <= old.count("_orig_mod.") + 1


@given(
    names=st.lists(st.from_regex(r"[ab]{1,2}\.[0-3]\.(w|b)", fullmatch=True), min_size=1, unique=True),
    prefix=st.sampled_from(["module", "net.", "a.b"]),
)
def test_adding_and_stripping_a_prefix_is_the_identity(names, prefix):
    """What add puts before every name strip takes away."""
    added = new_names(names, naming(None, None, prefix), label="model", dialect="plain")
    back = new_names(list(added.names.values()), naming(prefix, None, None), label="model", dialect="plain")
    assert list(back.names.values()) == names
    assert back.faults == []


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in inner for tensor in _tensors(item)]


def _shared(tensors):
    """Which tensors have a storage in common; those without elements have none that matters."""
    marks = [tensor.untyped_storage()._cdata if tensor.numel() else i for i, tensor in enumerate(tensors)]
    return [[a == b for b in marks] for a in marks]
