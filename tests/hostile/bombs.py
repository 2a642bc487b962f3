"""Pickles that ask for more than they are worth, by name: each takes a number of bytes and gives about as many.

Made when they are tested. They repeat what is dense: a byte that makes an object, a key that is dear to hash, a number
that is long to print.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable

__all__ = ["BOMBS"]

PROTO = b"\x80\x04"
_CLASH = (1 << 61) - 1


def _times(piece: bytes, size: int, *, head: bytes = b"", tail: bytes = b".") -> bytes:
    room = max(size - len(PROTO) - len(head) - len(tail), 0)
    return PROTO + head + piece * (room // len(piece)) + tail


def _list_of(piece: bytes, head: bytes = b"") -> Callable[[int], bytes]:
    """A list of what `piece` makes, as often as it goes in; `head` is read first and dropped."""
    return lambda size: _times(piece, size, head=head + b"(", tail=b"l.")


def _chain(piece: bytes, start: bytes = b")") -> Callable[[int], bytes]:
    """`piece` done to what it made itself."""
    return lambda size: _times(piece, size, head=start)


def _named(module: bytes, name: bytes) -> bytes:
    """A global in memo 0, dropped from the stack."""
    return b"c" + module + b"\n" + name + b"\n\x940"


def _number(value: int) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def _colliding(size: int) -> bytes:
    """Keys of one hash value in one dict."""
    rows, number = [], 1
    left = size
    while left > 0:
        rows.append(_number(_CLASH * number) + b"N")
        left -= len(rows[-1])
        number += 1
    return PROTO + b"}(" + b"".join(rows) + b"u."


def _orbit(size: int) -> bytes:
    """Small numbers that lie one behind the other on the way that a dict looks for a free place, and more behind them.

    CPython looks at i, then at 5i + 1 and so on, once the high bits of a hash are used up.
    """
    bits = max((size // 5).bit_length() - 1, 8)
    room, at = 1 << bits, 0
    filled = int(room * 0.53)
    rows = []
    for _ in range(filled):
        rows.append(b"J" + struct.pack("<i", at) + b"N")
        at = (5 * at + 1) % room
    rows += [b"\x8a\x08" + struct.pack("<q", number << bits) + b"N" for number in range(1, int(room * 0.13))]
    return PROTO + b"}(" + b"".join(rows) + b"u."


def _doubled_tuples(size: int) -> bytes:
    """Tuples of two that are the same, as deep as it goes, used as a key: a hash of 2 ** n steps."""
    return _times(b"2\x86", size - 4, head=b"}N", tail=b"Ns.")


def _wide_key(size: int) -> bytes:
    """One tuple of very many values as a key."""
    return _times(b"N", size - 4, head=b"}(", tail=b"tNs.")


def _frozen_keys(size: int) -> bytes:
    """Frozensets that hold frozensets that hold frozensets, each the key of the next."""
    return _times(b"\x85\x94(h\x00\x91", size, head=b"(\x91\x94", tail=b".")


def _marks(size: int) -> bytes:
    return _times(b"(", size)


def _deep_lists(size: int) -> bytes:
    """Lists in lists: the depth is half of the bytes."""
    half = (size - 4) // 2
    return PROTO + b"]" * half + b"a" * (half - 1) + b"."


def _deep_calls(size: int) -> bytes:
    return _times(b"\x85h\x00\x8c\x01a\x86R", size, head=_named(b"mine", b"make") + b"N")


def _deep_builds(size: int) -> bytes:
    """Objects whose state is an object whose state is an object."""
    half = (size - 40) // 6
    return PROTO + _named(b"mine", b"Made") + b"h\x00)\x81" * half + b"b" * (half - 1) + b"."


def _long_text(code: bytes, tail: bytes) -> Callable[[int], bytes]:
    return lambda size: PROTO + code + b"7" * max(size - 5, 1) + tail + b"."


def _long4(size: int) -> bytes:
    return PROTO + b"\x8b" + struct.pack("<i", max(size - 8, 1)) + b"\x7f" * max(size - 8, 1) + b"."


def _repeated(size: int) -> bytes:
    """One long string, over and over, as keys of dicts: what is made of keys grows with each."""
    text = b"a" * (size // 2)
    head = b"X" + struct.pack("<I", len(text)) + text + b"\x94("
    return _times(b"}h\x00Ns", size, head=head, tail=b"l.")


def _memo_far(size: int) -> bytes:
    """Memo numbers far apart."""
    count = (size - 8) // 6
    return PROTO + b"".join(b"Nr" + struct.pack("<I", (i * 2654435761) % (1 << 32)) for i in range(count)) + b"N."


_TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x03tQ"
    b"K\0K\x03\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR"
)


def _deep_tensors(size: int) -> bytes:
    """One tensor at very many places, a thousand levels down: paths and keys that are long."""
    depth = min(900, size // 40)
    head = _TENSOR + b"\x940\x8c\x00\x940" + b"}h\x01" * depth + b"}("
    tail = b"u" + b"s" * depth + b"."
    rows = max(size - len(head) - len(tail) - 2, 9) // 9
    return PROTO + head + b"".join(b"J" + struct.pack("<i", i) + b"h\x00" + b"0N"[:0] for i in range(rows)) + tail


def _long_names(size: int) -> bytes:
    """One tensor at very many places below long names."""
    name = b"n" * 1000
    depth = min(60, size // 3000)
    head = _TENSOR + b"\x940X" + struct.pack("<I", len(name)) + name + b"\x940" + b"}h\x01" * depth + b"}("
    tail = b"u" + b"s" * depth + b"."
    rows = max(size - len(head) - len(tail) - 2, 7) // 7
    return PROTO + head + b"".join(b"J" + struct.pack("<i", i) + b"h\x00" for i in range(rows)) + tail


def _shape(dims: bytes) -> Callable[[int], bytes]:
    """A tensor of very many dimensions, none of them small but one that is 0."""

    def made(size: int) -> bytes:
        count = max((size - 200) // (2 * len(dims)), 1)
        many = b"(" + b"K\0" + dims * count + b"t"
        head, rest = _TENSOR.split(b"K\x03\x85K\x01\x85")
        return PROTO + head + many + many + rest + b"."

    return made


def _object_tail(tail: bytes) -> Callable[[int], bytes]:
    """An object with very many of what `tail` gives it."""
    return lambda size: _times(tail, size, head=_named(b"mine", b"Made") + b"h\x00)R", tail=b".")


_GETATTR = _named(b"builtins", b"getattr")

BOMBS: dict[str, Callable[[int], bytes]] = {
    "lists": _list_of(b"]"),
    "dicts": _list_of(b"}"),
    "sets": _list_of(b"\x8f"),
    "frozensets": _list_of(b"(N\x91"),
    "tuples": _list_of(b"N\x85"),
    "pairs": _list_of(b"NN\x86"),
    "triples": _list_of(b"NNN\x87"),
    "marked tuples": _list_of(b"(Nt"),
    "bytearrays": _list_of(b"\x96" + bytes(8)),
    "dicts of one": _list_of(b"}NNs"),
    "dicts of one odd key": _list_of(b"})Ns"),
    "sets of one": _list_of(b"\x8f(N\x90"),
    "lists of one": _list_of(b"]Na"),
    "texts": _list_of(b"\x8c\x02ab"),
    "wide texts": _list_of(b"\x8c\x03\xe2\x82\xac"),
    "floats": _list_of(b"G" + struct.pack(">d", 1.5)),
    "numbers": _list_of(b"J\x01\x02\x03\x04"),
    "longs": _list_of(b"\x8a\x09" + b"\x7f" * 9),
    "text numbers": _list_of(b"I123456\n"),
    "text floats": _list_of(b"F1e300\n"),
    "quoted": _list_of(b"S'a\\x41'\n"),
    "escaped": _list_of(b"V\\U0001F600\n"),
    "doubles": lambda size: _times(b"2", size, head=b"N"),
    "memo": lambda size: _times(b"\x94", size, head=b"N"),
    "memo far apart": _memo_far,
    "marks": _marks,
    "nested tuples": _chain(b"\x85"),
    "doubled tuples": _chain(b"2\x86"),
    "nested frozensets": _frozen_keys,
    "nested lists": _deep_lists,
    "nested calls": _deep_calls,
    "nested builds": _deep_builds,
    "nested getattr": lambda size: (
        PROTO + _GETATTR + b"h\x00" * (size // 8) + b"N" + b"\x8c\x01a\x86R" * (size // 8) + b"."
    ),
    "colliding keys": _colliding,
    "keys in a row": _orbit,
    "key of doubled tuples": _doubled_tuples,
    "wide key": _wide_key,
    "long int text": _long_text(b"I", b"\n"),
    "long long text": _long_text(b"L", b"L\n"),
    "long float text": _long_text(b"F", b"\n"),
    "long memo text": _long_text(b"g", b"\n"),
    "long name": _long_text(b"c", b"\nb\n"),
    "long persistent id": _long_text(b"P", b"\n"),
    "long4": _long4,
    "long repeated key": _repeated,
    "objects": _list_of(b"h\x00)R", _named(b"mine", b"Made")),
    "new objects": _list_of(b"h\x00)\x81", _named(b"mine", b"Made")),
    "objs": _list_of(b"(h\x00o", _named(b"mine", b"Made")),
    "ordered dicts": _list_of(b"h\x00)R", _named(b"collections", b"OrderedDict")),
    "ordered dicts of one": _list_of(b"h\x00)RNNs", _named(b"collections", b"OrderedDict")),
    "counters": _list_of(b"h\x00)R", _named(b"collections", b"Counter")),
    "default dicts": _list_of(b"h\x00h\x00\x85R", _named(b"collections", b"defaultdict")),
    "called sets": _list_of(b"h\x00)R", _named(b"builtins", b"set")),
    "called lists": _list_of(b"h\x00)R", _named(b"builtins", b"list")),
    "sizes": _list_of(b"h\x00)R", _named(b"torch", b"Size")),
    "ranges": _list_of(b"h\x00K\x09\x85R", _named(b"builtins", b"range")),
    "durations": _list_of(b"h\x00K\x09K\x09K\x09\x87R", _named(b"datetime", b"timedelta")),
    "globals": lambda size: PROTO + b"(" + b"".join(b"ca\nb%d\n" % i for i in range(size // 10)) + b"l.",
    "commands": _list_of(b"h\x00\x8c\x02ls\x85R", _named(b"posix", b"system")),
    "appended": _object_tail(b"Na"),
    "entries": _object_tail(b"NNs"),
    "states": _object_tail(b"}b"),
    "dicts that hold each other": lambda size: PROTO + b"(" + b"}\x94\x8c\x01ah\x00s" * (size // 8) + b"l.",
    "deep tensors": _deep_tensors,
    "long names": _long_names,
    "very many dimensions": _shape(b"\x8a\x08" + b"\xff" * 7 + b"\x3f"),
    "very many ones": _shape(b"K\x01"),
    "tensors": _list_of(b"h\x00h\x01R", _named(b"torch._utils", b"_rebuild_parameter") + _TENSOR + b"\x85\x940"),
    "persistent ids": _list_of(b"NQ"),
}
"""Name -> what makes it."""
