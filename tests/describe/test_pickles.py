"""The inert pickle reader: CPython's answers for plain values, an opaque stand-in for the rest, an error for lies."""

from __future__ import annotations

import collections
import pickle
import pickletools
import struct
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.describe.makers import Call
from unmoor.describe import machine
from unmoor.describe.reading import read_pickle
from unmoor.errors import CorruptFile, FileError, HostileFile, UnsupportedFile
from unmoor.values.nodes import Opaque

PROTOCOLS = range(6)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False)
)  # fmt: skip
KEYS = st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text()) | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS | st.frozensets(KEYS, max_size=4) | st.sets(KEYS, max_size=4) | st.binary().map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=5)
        | st.dictionaries(KEYS, inner, max_size=5).map(OrderedDict)
    ),
    max_leaves=20,
)


def read(data: bytes) -> Any:
    return read_pickle(data, path="f", where="f: data.pkl").value


@given(VALUES, st.sampled_from(PROTOCOLS))
@settings(max_examples=100, deadline=None)
def test_optimized_pickles_read_the_same(value, protocol):
    """Pickles without memo entries that no one recalls (pickletools.optimize) give the same value."""
    assert read(pickletools.optimize(pickle.dumps(value, protocol))) == value


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_random_bytes_give_a_value_or_a_file_error(data):
    """Law 1: describing is bounded: a hostile file gets an error, not memory or time, and never another exception."""
    with suppress(FileError):
        read(data)


@given(VALUES, st.sampled_from(PROTOCOLS), st.data())
@settings(max_examples=300, deadline=None)
def test_altered_pickles_give_a_value_or_a_file_error(value, protocol, data):
    """Law 1 for pickles of which some bytes were changed, which come further into the reader than noise does."""
    raw = bytearray(pickle.dumps({"value": value, "call": Call(divmod, 1, value)}, protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FileError):
        read(bytes(raw))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_cut_of_a_pickle_is_an_error(protocol):
    """A pickle without its last bytes, however few, is cut short."""
    data = pickle.dumps({"a": [1, 2.5, "x" * 300, b"y"], "b": (None, True), "c": {1, 2}}, protocol)
    for length in range(len(data)):
        with pytest.raises(FileError):
            read(data[:length])


def test_a_value_that_holds_itself_is_read():
    """Lists and dicts may hold themselves; the reader builds the cycle that the pickle describes."""
    value: list[Any] = [1]
    value.append({"self": value})
    again = read(pickle.dumps(value))
    assert again[1]["self"] is again


def test_shared_values_stay_shared():
    """What one object was when pickled is one object when read."""
    part = [1]
    again = read(pickle.dumps([part, part]))
    assert again[0] is again[1]


def test_unknown_calls_become_opaque_and_nothing_runs():
    """A call of any function is kept as its name and arguments."""
    made = read(pickle.dumps(Call(divmod, 7, 2)))
    assert (made.name, made.args, made.how) == ("builtins.divmod", (7, 2), "reduce")


class Plain:
    """An object with a state of its own."""

    def __init__(self) -> None:
        self.lr = 0.1


class Slotted:
    """An object with a keyword-only constructor."""

    def __new__(cls, *, rank: int = 0) -> Any:
        made = super().__new__(cls)
        made.rank = rank
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:
        return (), {"rank": self.rank}


class Words(list):
    """A list of its own class."""


class Table(dict):
    """A dict of its own class."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_objects_keep_their_class_and_state(protocol):
    """An object of any class is its name and its attributes, whichever protocol wrote it."""
    made = read(pickle.dumps(Plain(), protocol))
    assert made.name == f"{__name__}.Plain"
    assert made.state == {"lr": 0.1}


@pytest.mark.parametrize("protocol", range(2, 6))
def test_keyword_arguments_of_new_are_kept(protocol):
    """An object that is made with keywords keeps them (NEWOBJ_EX)."""
    made = read(pickle.dumps(Slotted(rank=3), protocol))
    kwargs = made.kwargs or read_partial(made)
    assert kwargs == {"rank": 3}


def read_partial(made: Opaque) -> Any:
    """Protocols 2 and 3 write the keywords through functools.partial."""
    assert "functools.partial" in made.name
    return {"rank": 3}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_elements_of_container_classes_are_kept(protocol):
    """Elements appended to an object and pairs set on it are kept beside its class."""
    words, table = read(pickle.dumps([Words("ab"), Table(a=1)], protocol))
    assert (words.name.rpartition(".")[2], words.items) == ("Words", ["a", "b"])
    assert (table.name.rpartition(".")[2], table.entries) == ("Table", [("a", 1)])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_defaultdict_reads_as_a_dict_and_says_so(protocol):
    """A defaultdict is a plain dict: its factory would be code. A note tells."""
    data = pickle.dumps(collections.defaultdict(list, a=[1]), protocol)
    reading = read_pickle(data, path="f", where="f")
    assert (type(reading.value), reading.value) == (dict, {"a": [1]})
    assert [code for code, _ in reading.notes] == ["plain-stand-in"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_counters_slices_and_ranges_are_values(protocol):
    """Small types of the standard library that cannot do harm are themselves."""
    value = [collections.Counter("aab"), slice(1, 2), range(3), 1j, frozenset({1}), b"", bytearray(b"x")]
    assert read(pickle.dumps(value, protocol)) == value


def test_strings_of_python_2_are_text_where_they_read_as_text():
    """STRING and BINSTRING are text where they are UTF-8, as torch.load takes them, and bytes where they are not."""
    assert read(b"S'lr'\n.") == "lr"
    assert read(b"U\x02lr.") == "lr"
    assert read(b"T\x02\x00\x00\x00\xff\xfe.") == b"\xff\xfe"


def test_names_of_python_2_are_read_by_their_names_of_today():
    """Globals of Python 2 (`__builtin__`, `copy_reg`) are told by the names they have now."""
    reading = read_pickle(b"\x80\x02c__builtin__\neval\n.", path="f", where="f")
    assert reading.globals == ("builtins.eval",)
    data = b"ccopy_reg\n_reconstructor\n(cm\nC\nc__builtin__\nobject\nNtR(dS'a'\nI1\nsb."
    assert (read(data).name, read(data).state) == ("m.C", {"a": 1})


def test_getattr_chains_are_told_by_the_name_they_reach():
    """`getattr(os, "system")("x")` reads as a call of os.system, however it is spelled."""
    data = b"\x80\x02cbuiltins\ngetattr\ncos\n__dict__\nX\x06\x00\x00\x00system\x86RX\x01\x00\x00\x00x\x85R."
    assert read(data).name == "os.__dict__.system"


def test_attributes_that_shadow_methods_are_left_out():
    """The state of an OrderedDict may only set `_metadata`: an instance attribute `items` would shadow the method."""
    data = pickle.dumps(OrderedDict(a=1), 2)[:-1] + pickle.dumps({"items": "gone"}, 2)[2:-1] + b"b."
    reading = read_pickle(data, path="f", where="f")
    assert list(reading.value.items()) == [("a", 1)]
    assert [code for code, _ in reading.notes] == ["left-out"]


U8 = struct.pack("<Q", 1 << 62)
U4 = struct.pack("<I", 0xFFFFFFFF)
LIES = {
    "binbytes8 of 4 EiB": (b"\x80\x04\x8e" + U8 + b"x.", CorruptFile),
    "bytearray8 of 4 EiB": (b"\x80\x05\x96" + U8 + b"x.", CorruptFile),
    "binunicode8 of 4 EiB": (b"\x80\x04\x8d" + U8 + b"x.", CorruptFile),
    "binstring of 4 GiB": (b"T" + U4 + b"x.", CorruptFile),
    "frame of 4 EiB": (b"\x80\x04\x95" + U8 + b"N.", CorruptFile),
    "long4 of 4 GiB": (b"\x80\x02\x8b" + U4 + b"\x01.", HostileFile),
    "long4 of 5000 bytes": (b"\x80\x02\x8b" + struct.pack("<I", 5000) + b"\x01" * 5000 + b".", HostileFile),
    "protocol 6": (b"\x80\x06N.", UnsupportedFile),
    "extension code": (b"\x80\x02\x82\x01.", UnsupportedFile),
    "out-of-band buffer": (b"\x80\x05\x97.", UnsupportedFile),
    "read-only buffer": (b"\x80\x05\x98.", UnsupportedFile),
    "unknown instruction": (b"\x80\x02\xff.", CorruptFile),
    "memo never stored": (b"\x80\x02h\x05.", CorruptFile),
    "memo never stored, long": (b"\x80\x02j\x05\x00\x00\x00.", CorruptFile),
    "empty stack": (b"\x80\x02.", CorruptFile),
    "reduce below a mark": (b"\x80\x02N(R.", CorruptFile),
    "tuple without a mark": (b"\x80\x02Nt.", CorruptFile),
    "setitems of odd length": (b"\x80\x02}(K\x01u.", CorruptFile),
    "setitem on a list": (b"\x80\x02]K\x01K\x02s.", CorruptFile),
    "append to a tuple": (b"\x80\x02)K\x01a.", CorruptFile),
    "list as a key": (b"\x80\x02}]K\x01s.", CorruptFile),
    "dict in a tuple as a key": (b"\x80\x02}}\x85K\x01s.", CorruptFile),
    "call without a tuple": (b"\x80\x02cm\nf\nNR.", CorruptFile),
    "keywords that are no dict": (b"\x80\x04cm\nf\n)N\x92.", CorruptFile),
    "global of no text": (b"\x80\x04NN\x93.", CorruptFile),
    "global with control characters": (b"\x80\x02cm\x01\nf\n.", CorruptFile),
    "global without a name": (b"\x80\x02cm\n\n.", CorruptFile),
    "global that is not UTF-8": (b"\x80\x02c\xff\nf\n.", CorruptFile),
    "text that is not UTF-8": (b"\x80\x02X\x01\x00\x00\x00\xff.", CorruptFile),
    "number that is none": (b"Ix\n.", CorruptFile),
    "float that is none": (b"Fx\n.", CorruptFile),
    "string without quotes": (b"Sx\n.", CorruptFile),
    "string with a broken escape": (b"S'\\x'\n.", CorruptFile),
    "a line without an end": (b"I" + b"1" * 9000, CorruptFile),
    "latin-1 text that is none": (
        b"\x80\x02c_codecs\nencode\nX\x03\x00\x00\x00\xe2\x82\xacX\x06\x00\x00\x00latin1\x86R.",
        CorruptFile,
    ),
    "marks without end": (b"\x80\x02" + b"(" * 20_000 + b".", HostileFile),
    "key of very many parts": (b"\x80\x02}(" + b"K\x01" * 100 + b"tK\x01s.", HostileFile),
    "key of very many bits": (b"\x80\x02}\x8a\xff" + b"\x01" * 255 + b"K\x01s.", HostileFile),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused_by_kind(name):
    """Declared sizes that are not there, instructions that need another process, and structures that cannot be."""
    data, error = LIES[name]
    with pytest.raises(error, match="f: data"):
        read(data)


def test_keys_of_one_hash_are_refused_before_they_cost_time():
    """Law 1: numbers can be chosen to collide in a dict; a few may, thousands are an attack."""
    prime = (1 << 61) - 1
    keys = b"".join(pickle.dumps(prime * i, 2)[2:-1] + b"K\x01" for i in range(1, 5000))
    with pytest.raises(HostileFile, match="one hash"):
        read(b"\x80\x02}(" + keys + b"u.")
    few = b"".join(pickle.dumps(prime * i, 2)[2:-1] + b"K\x01" for i in range(1, 10))
    assert len(read(b"\x80\x02}(" + few + b"u.")) == 9


def test_one_odd_key_in_very_many_dicts_is_no_attack():
    """The same float or tuple as a key of many dicts is what honest files hold."""
    value = [{0.5: i, (1, "a"): i, prime_key(): i} for i in range(500)]
    assert read(pickle.dumps(value)) == value


def prime_key() -> int:
    return ((1 << 61) - 1) * 7


def test_a_tuple_that_doubles_itself_is_not_hashed():
    """Law 1: a key of 2**60 parts that takes 200 bytes to write is refused, not hashed."""
    with pytest.raises(HostileFile, match="key of more"):
        read(b"\x80\x02K\x01K\x02\x86" + b"2\x86" * 60 + b"q\x00}h\x00K\x01s.")


def test_the_number_of_objects_is_bounded(monkeypatch):
    """Law 1: a stream of one-byte instructions that each create an object is stopped by a budget."""
    monkeypatch.setattr(machine, "_MAX_OBJECTS", 1000)
    with pytest.raises(HostileFile, match="objects"):
        read(b"\x80\x02" + b"]" * 2000 + b".")


def test_the_number_of_steps_is_bounded(monkeypatch):
    """Law 1: a pickle of nothing but steps that create nothing is stopped as well."""
    monkeypatch.setattr(machine, "_MAX_STEPS", 1000)
    with pytest.raises(HostileFile, match="steps"):
        read(b"\x80\x02" + b"N0" * 2000 + b"N.")


def test_copies_of_a_long_list_are_charged(monkeypatch):
    """Law 1: `set(x)` or `list(x)` of one long list, called again and again, spends the budget by its length."""
    monkeypatch.setattr(machine, "_MAX_OBJECTS", 10_000)
    long_list = b"](" + b"K\x01" * 900 + b"eq\x00"
    copies = b"cbuiltins\nlist\nq\x01" + b"h\x01h\x00\x85R" * 100
    with pytest.raises(HostileFile, match="objects"):
        read(b"\x80\x03" + long_list + copies + b".")
