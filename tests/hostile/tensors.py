"""Headers of safetensors that attack their reader, by name; after the format's own list of attacks, and beyond it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

from tests.hostile.make_hostile import DATA, entry, tensors

__all__ = ["HEADERS"]


def _one(fields: str) -> Callable[[], bytes]:
    """A header of one tensor whose entry is this text."""
    return lambda: tensors(f'{{"w":{fields}}}', DATA)


def _shape(text: str) -> Callable[[], bytes]:
    return _one(f'{{"dtype":"F32","shape":{text},"data_offsets":[0,12]}}')


def _offsets(text: str) -> Callable[[], bytes]:
    return _one(f'{{"dtype":"F32","shape":[3],"data_offsets":{text}}}')


def _raw(head: bytes, data: bytes = DATA, length: int | None = None) -> Callable[[], bytes]:
    return lambda: struct.pack("<Q", len(head) if length is None else length) + head + data


_GOOD = json.dumps({"w": entry(0, 12, [3])}).encode()
_BIG = "4611686018427387904"

HEADERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "length of 2 ** 64 - 1": (_raw(_GOOD, length=(1 << 64) - 1), "NotACheckpoint HostileFile"),
    "length of 2 ** 31": (_raw(_GOOD, length=1 << 31), "HostileFile"),
    "length of 100,000,001": (_raw(_GOOD, length=100_000_001), "HostileFile"),
    "length past the end": (_raw(_GOOD, length=4000), "CorruptFile"),
    "length of one byte too few": (_raw(_GOOD, length=len(_GOOD) - 1), "CorruptFile"),
    "length into the data": (_raw(_GOOD, length=len(_GOOD) + 4), "CorruptFile"),
    "length of 0": (_raw(_GOOD, length=0), "NotACheckpoint"),
    "a header that begins with a space": (_raw(b" " + _GOOD), "NotACheckpoint"),
    "a header that ends with spaces": (_raw(_GOOD + b"   "), "sound"),
    "a header that ends with a zero byte": (_raw(_GOOD + b"\0"), "CorruptFile"),
    "a byte order mark": (_raw(b"\xef\xbb\xbf" + _GOOD), "NotACheckpoint"),
    "UTF-16": (_raw(b"{" + _GOOD.decode().encode("utf-16")), "CorruptFile"),
    "bytes that are no UTF-8": (_raw(b'{"\xff\xfe":1}'), "CorruptFile"),
    "two objects": (_raw(_GOOD + b"{}"), "CorruptFile"),
    "a list": (_raw(b"{}".replace(b"{}", b"[]")), "NotACheckpoint CorruptFile"),
    "comments": (_raw(b"{/* */}"), "CorruptFile"),
    "single quotes": (_raw(b"{'w':1}"), "CorruptFile"),
    "a comma too many": (_raw(_GOOD[:-1] + b",}"), "CorruptFile"),
    "deep lists": (_raw(b'{"w":' + b"[" * 200_000), "CorruptFile"),
    "deep objects": (_raw(b'{"w":' * 100_000), "CorruptFile"),
    "one name twice": (_raw(_GOOD[:-1] + b"," + _GOOD[1:]), "CorruptFile"),
    "one name twice, once escaped": (_raw(_GOOD[:-1] + b"," + _GOOD[1:].replace(b'"w"', b'"\\u0077"')), "CorruptFile"),
    "one field twice": (_one('{"dtype":"F32","dtype":"F32","shape":[3],"data_offsets":[0,12]}'), "CorruptFile"),
    "metadata twice": (lambda: tensors('{"__metadata__":{"a":"b"},"__metadata__":{}}'), "CorruptFile"),
    "metadata of numbers": (lambda: tensors('{"__metadata__":{"a":5}}'), "CorruptFile"),
    "metadata that is a list": (lambda: tensors('{"__metadata__":[]}'), "CorruptFile"),
    "a field too many": (_one('{"dtype":"F32","shape":[3],"data_offsets":[0,12],"x":1}'), "CorruptFile"),
    "a field too few": (_one('{"dtype":"F32","shape":[3]}'), "CorruptFile"),
    "an entry that is a number": (_one("5"), "CorruptFile"),
    "an entry that is null": (_one("null"), "CorruptFile"),
    "a shape of floats": (_shape("[3.0]"), "CorruptFile"),
    "a shape of exponents": (_shape("[3e0]"), "CorruptFile"),
    "a shape of text": (_shape('["3"]'), "CorruptFile"),
    "a shape of true": (_shape("[true]"), "CorruptFile"),
    "a shape of NaN": (_shape("[NaN]"), "CorruptFile"),
    "a shape of Infinity": (_shape("[Infinity]"), "CorruptFile"),
    "a shape of -1": (_shape("[-1]"), "CorruptFile"),
    "a shape of -3 times -1": (_shape("[-3,-1]"), "CorruptFile"),
    "a shape of 2 ** 64": (_shape("[18446744073709551616]"), "CorruptFile"),
    "a shape of 5,000 digits": (_shape("[" + "9" * 5000 + "]"), "CorruptFile"),
    "a shape of 4,000 digits": (_shape("[" + "9" * 4000 + "]"), "CorruptFile"),
    "a shape that overflows": (_shape(f"[{_BIG},{_BIG},3]"), "CorruptFile"),
    "a shape that overflows to 12 bytes": (_shape("[9223372036854775807,2,5]"), "CorruptFile"),
    "a shape that is a number": (_shape("3"), "CorruptFile"),
    "a shape that is an object": (_shape("{}"), "CorruptFile"),
    "an empty shape of 2 ** 62": (
        _one(f'{{"dtype":"F32","shape":[0,{_BIG},{_BIG}],"data_offsets":[0,0]}}'), "CorruptFile"),
    "50,000 dimensions of 2 ** 62, one of 0": (
        lambda: tensors('{"w":{"dtype":"F32","shape":[0%s],"data_offsets":[0,0]}}' % (f",{_BIG}" * 50_000)),
        "CorruptFile HostileFile"),
    "300,000 dimensions of 1": (
        lambda: tensors('{"w":{"dtype":"F32","shape":[3%s],"data_offsets":[0,12]}}' % (",1" * 300_000), DATA),
        "CorruptFile HostileFile"),
    "300,000 dimensions of 0": (
        lambda: tensors('{"w":{"dtype":"F32","shape":[0%s],"data_offsets":[0,0]}}' % (",0" * 300_000)),
        "CorruptFile HostileFile"),
    "offsets of floats": (_offsets("[0.0,12.0]"), "CorruptFile"),
    "offsets of -0": (_offsets("[-0,12]"), "sound"),
    "offsets below zero": (_offsets("[-12,0]"), "CorruptFile"),
    "offsets backwards": (_offsets("[12,0]"), "CorruptFile"),
    "offsets of 2 ** 64": (_offsets("[18446744073709551604,18446744073709551616]"), "CorruptFile"),
    "three offsets": (_offsets("[0,12,24]"), "CorruptFile"),
    "one offset": (_offsets("[12]"), "CorruptFile"),
    "offsets past the end": (_offsets("[12,24]"), "CorruptFile"),
    "a dtype that is none": (_one('{"dtype":"F33","shape":[3],"data_offsets":[0,12]}'), "CorruptFile"),
    "a dtype in small letters": (_one('{"dtype":"f32","shape":[3],"data_offsets":[0,12]}'), "CorruptFile"),
    "a dtype that is a list": (_one('{"dtype":["F32"],"shape":[3],"data_offsets":[0,12]}'), "CorruptFile"),
    "a dtype of 100,000 letters": (
        _one('{"dtype":"%s","shape":[3],"data_offsets":[0,12]}' % ("F" * 100_000)), "CorruptFile"),
    "two tensors of the same bytes": (
        lambda: tensors({"v": entry(0, 12, [3]), "w": entry(0, 12, [3])}, DATA), "CorruptFile"),
    "a tensor inside another": (
        lambda: tensors({"v": entry(0, 24, [6]), "w": entry(4, 16, [3])}, bytes(24)), "CorruptFile"),
    "a hole": (lambda: tensors({"v": entry(0, 12, [3]), "w": entry(16, 28, [3])}, bytes(28)), "CorruptFile"),
    "a hole at the begin": (lambda: tensors({"w": entry(4, 16, [3])}, bytes(16)), "CorruptFile"),
    "bytes behind": (lambda: tensors({"w": entry(0, 12, [3])}, DATA + b"x"), "CorruptFile"),
    "data cut short": (lambda: tensors({"w": entry(0, 12, [3])}, DATA[:-1]), "CorruptFile"),
    "no tensors and bytes behind": (lambda: tensors("{}", b"x"), "CorruptFile"),
    "20,000 empty tensors": (
        lambda: tensors({f"w{i}": entry(0, 0, [0]) for i in range(20_000)}), "sound"),
    "names that ring": (lambda: tensors({"\x1b[31m\x07\u202e": entry(0, 12, [3])}, DATA), "sound"),
    "half a surrogate": (_raw(b'{"\\ud800":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}'), "sound CorruptFile"),
    "a name of 500,000 letters": (lambda: tensors({"w" * 500_000: entry(0, 12, [3])}, DATA), "sound"),
    "an empty name": (lambda: tensors({"": entry(0, 12, [3])}, DATA), "sound"),
    "a name of a path": (lambda: tensors({"../../evil": entry(0, 12, [3])}, DATA), "sound"),
}  # fmt: skip
"""What is wrong -> what makes it, and what may come of it: classes of errors, or "sound"."""
