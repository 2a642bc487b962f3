"""The edit of a pickle: tags of storages change, everything else decodes to what it was."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmoor.errors import UnsupportedFile
from unmoor.plan.retagging import retagged, retagged_head

TAGS = ["cuda:7", "cpu", "mps"]


class Held:
    """Stands for a storage: pickles as its persistent id. `shared` is a tag object to use, for the memo to share."""

    def __init__(self, key: str, tag: str, numel: int = 6) -> None:
        self.pid = ("storage", float, key, tag, numel)


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if isinstance(obj, Held) else None


class _Slow(pickle._Pickler):
    """Python's own pickler, which frames and memoizes a little otherwise."""

    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if isinstance(obj, Held) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        return ("STORAGE", *pid)


def dumped(tree: Any, protocol: int, pickler: Any = _Pickler) -> bytes:
    out = io.BytesIO()
    pickler(out, protocol).dump(tree)
    return out.getvalue()


def loaded(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()


def meant(tree: Any, goal: Any) -> Any:
    """The tree as it should decode."""
    if isinstance(tree, Held):
        word, kind, key, tag, numel = tree.pid
        return ("STORAGE", word, kind, key, goal(key, tag), numel)
    if isinstance(tree, dict):
        return {key: meant(value, goal) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(meant(value, goal) for value in tree)
    return tree


def trees() -> st.SearchStrategy[Any]:
    """Trees in which tags, keys of storages and the user's own texts are often the very same objects."""
    shared = st.sampled_from([*TAGS, "0", "1", "storage", "x" * 300])
    texts = st.one_of(shared, st.text(max_size=5), st.sampled_from(TAGS).map(lambda tag: "".join(list(tag))))
    leaves = st.one_of(
        texts,
        st.builds(Held, st.sampled_from(["0", "1", "2"]), st.sampled_from(TAGS)),
        st.builds(Held, st.sampled_from(["3", "4"]), st.sampled_from(TAGS).map(lambda tag: "".join(list(tag)))),
        st.integers(),
        st.none(),
        st.binary(max_size=20),
        st.floats(allow_nan=False),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=6),
            st.dictionaries(texts, inner, max_size=6),
            st.tuples(inner, inner, inner, inner),
        ),
        max_leaves=40,
    )


@given(
    tree=trees(),
    protocol=st.integers(1, 5),
    pickler=st.sampled_from([_Pickler, _Slow]),
    goals=st.fixed_dictionaries({tag: st.sampled_from([*TAGS, "cuda:0", "privateuseone:11"]) for tag in TAGS}),
    pinned=st.sampled_from([None, "0"]),
)
def test_only_tags_change(tree: Any, protocol: int, pickler: Any, goals: dict[str, str], pinned: str | None) -> None:
    """A new pickle decodes to the same tree with only device tags changed, whatever shares its texts with a tag."""

    def goal(key: str, tag: str) -> str:
        return "cpu" if key == pinned else goals[tag]

    data = dumped(tree, protocol, pickler)
    made = retagged(data, goal, where="test", path="test")
    assert loaded(made) == meant(tree, goal)
    pickletools.dis(made, io.StringIO())


def test_a_text_of_the_users_that_is_the_tag_itself_stays() -> None:
    """A plain value that the memo shares with a tag keeps its text, before and behind the tag."""
    tag = "cuda:7"
    tree = {"before": tag, "w": Held("0", tag), "behind": [tag, tag], "v": Held("1", tag)}
    for protocol in range(1, 6):
        made = loaded(retagged(dumped(tree, protocol), lambda key, old: "cpu", where="t", path="t"))
        assert (made["before"], made["behind"]) == (tag, [tag, tag])
        assert (made["w"][4], made["v"][4]) == ("cpu", "cpu")


def test_a_memo_that_holds_a_tag_alone_keeps_its_size() -> None:
    """Where all that share a tag get the same new one, it is written once and recalled."""
    tag = "cuda:7"
    data = dumped([Held(str(i), tag) for i in range(50)], 2)
    assert len(retagged(data, lambda key, old: "cpu", where="t", path="t")) == len(data) - 3


def test_what_stands_behind_a_pickle_stays() -> None:
    """Bytes after the last instruction are kept."""
    made = retagged(dumped([Held("0", "cuda:7")], 2) + b"rest", lambda key, old: "cpu", where="t", path="t")
    assert made.endswith(b".rest")


def test_nothing_to_change_changes_nothing() -> None:
    """A goal that keeps every tag gives the same bytes."""
    data = dumped({"a": Held("0", "cuda:7"), "b": "cuda:7"}, 4)
    assert retagged(data, lambda key, old: old, where="t", path="t") == data


PID = b"(X\x07\x00\x00\x00storagecbuiltins\nfloat\nX\x01\x00\x00\x000X\x06\x00\x00\x00cuda:7K\x06t"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x80\x02" + PID + b"q\x00h\x00Q.", "takes a storage from what is no tuple of its own"),
        (b"\x80\x02" + PID + b"2Q.", "takes a storage from what is no tuple of its own"),
        (b"\x80\x02K\x05Q.", "takes a storage from what is no tuple of its own"),
        (b"P('storage', ...)\n.", "names a storage in text"),
        (b"\x80\x02(X\x05\x00\x00\x00otherK\x01K\x02K\x03K\x04tQ.", "what is no storage"),
        (b"\x80\x02(X\x07\x00\x00\x00storageK\x01K\x02K\x03K\x04tQ.", "has in a persistent id what is no text"),
        (
            b"\x80\x02(X\x07\x00\x00\x00storage}X\x01\x00\x00\x000X\x06\x00\x00\x00cuda:7K\x06tQ.",
            "more than plain values",
        ),
        (b"\x80\x02K\x05", "ends before its last instruction"),
        (b"\x80\x02\xff.", "holds instruction 0xff"),
    ],
)
def test_what_torch_never_writes_is_refused(data: bytes, what: str) -> None:
    """A storage that is named in another way than torch does is an error that says how to go on."""
    with pytest.raises(UnsupportedFile, match=what) as error:
        retagged(data, lambda key, old: "cpu", where="run.pt: data.pkl", path="run.pt")
    assert "unmoor.load(path, map_location=...)" in error.value.remedy


@pytest.mark.parametrize(
    "literal",
    [b"U\x06cuda:7", b"T\x06\x00\x00\x00cuda:7", b"\x8c\x06cuda:7", b"\x8d" + (6).to_bytes(8, "little") + b"cuda:7",
     b"S'cuda:7'\n", b"Vcuda:7\n"],
)  # fmt: skip
def test_every_kind_of_text_is_written_as_its_own_kind(literal: bytes) -> None:
    """A tag that Python 2 or another protocol pushed stays of that kind."""
    data = b"\x80\x02" + PID.replace(b"X\x06\x00\x00\x00cuda:7", literal) + b"Q."
    made = retagged(data, lambda key, old: "cpu", where="t", path="t")
    assert loaded(made) == ("STORAGE", "storage", float, "0", "cpu", 6)
    assert literal[:1] + literal[1:] not in made


def test_the_head_of_a_storage_in_a_tar() -> None:
    """(key, tag, class) gets another tag; anything else is refused."""
    data = pickle.dumps((140, "cuda:1", float), 2)
    assert pickle.loads(retagged_head(data, "cpu", where="t", path="t")) == (140, "cpu", float)
    with pytest.raises(UnsupportedFile, match="no head of one"):
        retagged_head(pickle.dumps([1, 2], 2), "cpu", where="t", path="t")
