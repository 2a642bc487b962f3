"""Every pickle instruction: once as picklers write it, and in every way in which it can be wrong."""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Iterator
from typing import Any

__all__ = ["CODES", "LEGAL", "WRONG", "stacks"]

CODES = {op.name: op.code.encode("latin1") for op in pickletools.opcodes}


def _u4(number: int) -> bytes:
    return struct.pack("<I", number)


def _u8(number: int) -> bytes:
    return struct.pack("<Q", number)


REFUSED = object()
"""What no checkpoint does, though a pickler can: UnsupportedFile."""

LEGAL: dict[str, tuple[bytes, Any]] = {
    "INT": (b"I-5\n.", -5), "BININT": (b"J\xff\xff\xff\xff.", -1), "BININT1": (b"K\x05.", 5),
    "BININT2": (b"M\x01\x02.", 513), "LONG": (b"L12345678901234567890L\n.", 12345678901234567890),
    "LONG1": (b"\x80\x02\x8a\x02\xff\x00.", 255), "LONG4": (b"\x80\x02\x8b\x01\0\0\0\x80.", -128),
    "STRING": (b"S'a\\n\\x41'\n.", "a\nA"), "BINSTRING": (b"T\x02\0\0\0ab.", "ab"),
    "SHORT_BINSTRING": (b"U\x02ab.", "ab"), "BINBYTES": (b"\x80\x03B\x02\0\0\0ab.", b"ab"),
    "SHORT_BINBYTES": (b"\x80\x03C\x02ab.", b"ab"), "BINBYTES8": (b"\x80\x04\x8e" + _u8(2) + b"ab.", b"ab"),
    "BYTEARRAY8": (b"\x80\x05\x96" + _u8(2) + b"ab.", bytearray(b"ab")),
    "NEXT_BUFFER": (b"\x80\x05\x97.", REFUSED), "READONLY_BUFFER": (b"\x80\x05C\x01a\x98.", REFUSED),
    "NONE": (b"N.", None), "NEWTRUE": (b"\x80\x02\x88.", True), "NEWFALSE": (b"\x80\x02\x89.", False),
    "UNICODE": (b"Va\\u00e9\n.", "aé"), "SHORT_BINUNICODE": (b"\x80\x04\x8c\x02\xc3\xa9.", "é"),
    "BINUNICODE": (b"X\x02\0\0\0\xc3\xa9.", "é"), "BINUNICODE8": (b"\x80\x04\x8d" + _u8(2) + b"\xc3\xa9.", "é"),
    "FLOAT": (b"F-1.5\n.", -1.5), "BINFLOAT": (b"G" + struct.pack(">d", 0.25) + b".", 0.25),
    "EMPTY_LIST": (b"].", []), "APPEND": (b"]K\x01a.", [1]), "APPENDS": (b"](K\x01K\x02e.", [1, 2]),
    "LIST": (b"(K\x01K\x02l.", [1, 2]), "EMPTY_TUPLE": (b").", ()), "TUPLE": (b"(K\x01K\x02t.", (1, 2)),
    "TUPLE1": (b"\x80\x02K\x01\x85.", (1,)), "TUPLE2": (b"\x80\x02K\x01K\x02\x86.", (1, 2)),
    "TUPLE3": (b"\x80\x02K\x01K\x02K\x03\x87.", (1, 2, 3)), "EMPTY_DICT": (b"}.", {}),
    "DICT": (b"(K\x01K\x02d.", {1: 2}), "SETITEM": (b"}K\x01K\x02s.", {1: 2}), "SETITEMS": (b"}(K\x01K\x02u.", {1: 2}),
    "EMPTY_SET": (b"\x80\x04\x8f.", set()), "ADDITEMS": (b"\x80\x04\x8f(K\x01\x90.", {1}),
    "FROZENSET": (b"\x80\x04(K\x01\x91.", frozenset({1})), "POP": (b"K\x01K\x020.", 1), "DUP": (b"K\x012\x86.", (1, 1)),
    "MARK": (b"(t.", ()), "POP_MARK": (b"K\x01(K\x02K\x031.", 1), "GET": (b"K\x01p5\n0g5\n.", 1),
    "BINGET": (b"K\x01q\x050h\x05.", 1), "LONG_BINGET": (b"K\x01r" + _u4(5) + b"0j" + _u4(5) + b".", 1),
    "PUT": (b"K\x01p5\n.", 1), "BINPUT": (b"K\x01q\x05.", 1), "LONG_BINPUT": (b"K\x01r" + _u4(5) + b".", 1),
    "MEMOIZE": (b"\x80\x04K\x01\x94.", 1), "EXT1": (b"\x80\x02\x82\x01.", REFUSED),
    "EXT2": (b"\x80\x02\x83\x01\x02.", REFUSED), "EXT4": (b"\x80\x02\x84\x01\0\0\0.", REFUSED),
    "GLOBAL": (b"cmine\nMade\n.", "<mine.Made, not imported>"),
    "STACK_GLOBAL": (b"\x80\x04\x8c\x04mine\x8c\x04Made\x93.", "<mine.Made, not imported>"),
    "REDUCE": (b"cmine\nMade\n(K\x01tR.", "<mine.Made(1), not built>"),
    "BUILD": (b"cmine\nMade\n)\x81}K\x01K\x02sb.", "<mine.Made(1=2), not built>"),
    "INST": (b"(K\x01imine\nMade\n.", "<mine.Made(1), not built>"),
    "OBJ": (b"(cmine\nMade\nK\x01o.", "<mine.Made(1), not built>"),
    "NEWOBJ": (b"\x80\x02cmine\nMade\n)\x81.", "<mine.Made(), not built>"),
    "NEWOBJ_EX": (b"\x80\x04cmine\nMade\n)}\x8c\x01aK\x01s\x92.", "<mine.Made(a=1), not built>"),
    "PROTO": (b"\x80\x05N.", None), "STOP": (b"N.", None), "FRAME": (b"\x80\x04\x95" + _u8(2) + b"N.", None),
    "PERSID": (b"P5\n.", "<pickle.persistent_id('5'), not built>"),
    "BINPERSID": (b"K\x05Q.", "<pickle.persistent_id(5), not built>"),
}  # fmt: skip
"""Name of an instruction -> a pickle that has it, and what that is; of a stand-in, how it is printed."""

_MOST = 0xFF

WRONG: dict[str, bytes] = {
    "text length past the end": b"X\xff\xff\xff\xff.",
    "text length of 2 ** 63": b"\x80\x04\x8d" + _u8(1 << 63) + b"a.",
    "bytes length of 2 ** 63": b"\x80\x04\x8e" + _u8(1 << 63) + b"a.",
    "bytes length of 2 ** 64 - 1": b"\x80\x04\x8e" + _u8((1 << 64) - 1) + b"a.",
    "bytearray length of 2 ** 63": b"\x80\x05\x96" + _u8(1 << 63) + b"a.",
    "string of a negative length": b"T\xff\xff\xff\xffa.",
    "long of a negative length": b"\x80\x02\x8b\xff\xff\xff\xffa.",
    "long of 2 GiB": b"\x80\x02\x8b\xff\xff\xff\x7fa.",
    "frame past the end": b"\x80\x04\x95" + _u8(1 << 40) + b"N.",
    "frame of 2 ** 64 - 1": b"\x80\x04\x95" + _u8((1 << 64) - 1) + b"N.",
    "protocol 6": b"\x80\x06N.",
    "protocol 255": b"\x80\xffN.",
    "text that is no UTF-8": b"X\x02\0\0\0\xff\xfe.",
    "short text that is no UTF-8": b"\x80\x04\x8c\x02\xff\xfe.",
    "name that is no UTF-8": b"c\xff\xfe\nb\n.",
    "persistent id that is no UTF-8": b"P\xff\xfe\n.",
    "text escape cut off": b"Va\\u00\n.",
    "text escape past Unicode": b"V\\U00110000\n.",
    "quoted without quotes": b"Sa\n.",
    "quoted by one quote": b"S'\n.",
    "quoted by two kinds": b"S'a\"\n.",
    "quoted escape cut off": b"S'\\x4'\n.",
    "int of letters": b"Iabc\n.",
    "int of nothing": b"I\n.",
    "int that is half a number": b"I1.5\n.",
    "long of letters": b"LabcL\n.",
    "long of 5,000 digits": b"L" + b"9" * 5000 + b"L\n.",
    "long of 4,200 digits": b"L" + b"9" * 4200 + b"L\n.",
    "float of letters": b"Fabc\n.",
    "memo of letters": b"gabc\n.",
    "memo below zero": b"Np-5\ng-5\n.",
    "memo that was not stored": b"h\x05.",
    "memo of 10 ** 30": b"Np" + b"1" + b"0" * 30 + b"\n.",
    "name without a module": b"c\nMade\n.",
    "name without a name": b"cmine\n\n.",
    "name with an escape": b"cmi\x1b[31mne\nMade\n.",
    "name with a zero byte": b"cmi\x00ne\nMade\n.",
    "name by a number": b"\x80\x04K\x05\x8c\x04Made\x93.",
    "name by bytes": b"\x80\x04C\x04mine\x8c\x04Made\x93.",
    "name by what a call gave": b"\x80\x04cmine\nMade\n)R\x8c\x04Made\x93.",
    "name by half a surrogate": b"\x80\x04\x8c\x03\xed\xa0\x80\x8c\x04Made\x93.",
    "call with a list": b"cmine\nMade\n]R.",
    "call with a number": b"cmine\nMade\nK\x05R.",
    "new without arguments": b"\x80\x02cmine\nMade\nN\x81.",
    "keywords that are a list": b"\x80\x04cmine\nMade\n)]\x92.",
    "keywords that are numbers": b"\x80\x04cmine\nMade\n)}K\x01K\x02s\x92.",
    "state of a class itself": b"cmine\nMade\n}b.",
    "state of a class of torch": b"ctorch\nTensor\nN}\x8c\x08__repr__cmine\nMade\ns\x86b.",
    "element of a class itself": b"cmine\nMade\nNa.",
    "elements of a class itself": b"cmine\nMade\n(NNe.",
    "entry of a class itself": b"cmine\nMade\nNNs.",
    "entries of a class itself": b"cmine\nMade\n(NNu.",
    "append to a dict": b"}Na.",
    "append to a tuple": b")Na.",
    "entry of a list": b"]NNs.",
    "entry without a value": b"}(Nu.",
    "dict of three": b"(NNNd.",
    "dict with a list as a key": b"}]Ns.",
    "dict with a dict as a key": b"(}Nd.",
    "set of lists": b"\x80\x04\x8f(]\x90.",
    "frozenset of dicts": b"\x80\x04(}\x91.",
    "obj without a class": b"(o.",
    "nothing to stop with": b".",
    "stop inside a mark": b"N(.",
    "mark and nothing": b"(",
    "two values left": b"NNN.",
    "an instruction that is none": b"\xff.",
    "nothing after the protocol": b"\x80\x04",
}
"""What is wrong -> a pickle that is wrong in that way; some are merely odd, and read."""


def stacks() -> Iterator[bytes]:
    """Code that leaves something on the stack, for instructions that take what they find there."""
    yield from (
        b"", b"N", b"NN", b"NNN", b"(", b"(N", b"(NN", b"N(", b"N(N", b"]", b"]N", b"](N", b"}", b"}NN", b"}(NN", b")",
        b"))", b"\x8f", b"\x8f(N", b"\x8c\x01a", b"\x8c\x01a\x8c\x01b", b"ca\nb\n",
        b"ca\nb\n)", b"ca\nb\n)}", b"ca\nb\n)RN",
        b"ca\nb\n(NN", b"(ca\nb\nN", b"ccollections\nOrderedDict\n)R}", b"ctorch\nFloatTensor\n)R(NK\0))t",
        b"\x8a\x14" + b"\x7f" * 20, b"ctorch._utils\n_rebuild_tensor_v2\n(NNNNNNt", b"cnumpy\nndarray\n)RN",
    )  # fmt: skip
