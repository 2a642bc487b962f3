"""Pickles by a grammar of opcodes: most of the time the stack is what each instruction wants.

`program` writes a whole pickle, `value` the instructions that push one value, `bent` a given pickle in which one value
was replaced by another. What readers stumble over (depth, doubling, huge numbers, broken text, names of code) is here.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from random import Random
from struct import pack

__all__ = ["bent", "doubled", "named", "program", "tensor", "text", "value"]

_NAMES = (
    ("collections", "OrderedDict"), ("collections", "Counter"), ("collections", "defaultdict"), ("builtins", "set"),
    ("builtins", "frozenset"), ("builtins", "list"), ("builtins", "tuple"), ("builtins", "dict"), ("builtins",
    "complex"),
    ("builtins", "slice"), ("builtins", "range"), ("builtins", "bytearray"), ("builtins", "bytes"), ("_codecs",
    "encode"),
    ("datetime", "datetime"), ("datetime", "date"), ("datetime", "time"), ("datetime", "timedelta"),
    ("datetime", "timezone"), ("copyreg", "_reconstructor"), ("copyreg", "__newobj__"), ("copy_reg", "_reconstructor"),
    ("torch", "Size"), ("torch", "device"), ("torch", "float32"), ("torch", "strided"), ("torch", "FloatStorage"),
    ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor_v3"), ("torch._utils",
    "_rebuild_parameter"),
    ("torch._utils", "_rebuild_sparse_tensor"), ("torch._utils", "_rebuild_nested_tensor"),
    ("torch._utils", "_rebuild_qtensor"), ("torch._utils", "_rebuild_meta_tensor_no_storage"),
    ("torch._utils", "_rebuild_wrapper_subclass"), ("torch._utils", "_rebuild_device_tensor_from_numpy"),
    ("torch._tensor", "_rebuild_from_type_v2"), ("torch.serialization", "_get_layout"), ("torch", "FloatTensor"),
    ("torch.nested._internal.nested_tensor", "_rebuild_njt"), ("torch.nn.parameter", "Parameter"),
    ("torch.jit._pickle", "build_intlist"), ("torch.jit._pickle", "restore_type_tag"),
    ("numpy._core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "scalar"), ("numpy._core.numeric",
    "_frombuffer"),
    ("numpy", "dtype"), ("numpy", "ndarray"), ("builtins", "getattr"), ("os", "system"), ("posix", "system"),
    ("functools", "partial"), ("builtins", "eval"), ("my.module", "Class"), ("__main__", "A"), ("a\x1b[31m", "b"), ("",
    ""),
    ("torch.distributed._shard.sharded_tensor.api", "ShardedTensor"), ("x" * 2000, "y"), ("m", "\u202eevil"),
)  # fmt: skip
_TEXTS = (
    "", "a", "state", "param_groups", "model", "optimizer", "step", "exp_avg", "weight", "a.b", "_metadata", "storage",
    "cpu",
    "cuda:7", "params", "0", "lr", "\x1b[31mred", "\x9b31m", "line\nline", "\u202e", "\0", "\ud800",
    "</script><script>x",
    "a" * 300, "é", "\U0001f600", "{}", "%s", "../..", "flat_param", "module", "latin1", "O8", "<", "dict",
)  # fmt: skip
_INTS = (
    0,
    1,
    -1,
    2,
    7,
    255,
    256,
    65535,
    1 << 31,
    -(1 << 31),
    (1 << 62),
    (1 << 63) - 1,
    1 << 63,
    -(1 << 63),
    1 << 64,
    1 << 200,
)


def text(word: str) -> bytes:
    """A unicode string, surrogates and all."""
    raw = word.encode("utf-8", "surrogatepass")
    return b"X" + pack("<I", len(raw)) + raw


def integer(number: int) -> bytes:
    if 0 <= number < 256:
        return b"K" + bytes([number])
    if -(1 << 31) <= number < 1 << 31:
        return b"J" + pack("<i", number)
    raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw if len(raw) < 256 else b"\x8b" + pack("<I", len(raw)) + raw


def named(module: str, name: str) -> bytes:
    if "\n" in module + name:
        return text(module) + text(name) + b"\x93"
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def _name(rng: Random) -> bytes:
    module, name = rng.choice(_NAMES)
    return named(module, name) if rng.randrange(3) else text(module) + text(name) + b"\x93"


def _tuple(rng: Random, depth: int) -> bytes:
    return b"(" + b"".join(value(rng, depth - 1) for _ in range(rng.randrange(6))) + b"t"


def _few(rng: Random, depth: int) -> bytes:
    count = 1 + rng.randrange(3)
    return b"".join(value(rng, depth - 1) for _ in range(count)) + (b"\x85", b"\x86", b"\x87")[count - 1]


def _list(rng: Random, depth: int) -> bytes:
    items = b"".join(value(rng, depth - 1) for _ in range(rng.randrange(6)))
    return rng.choice((b"](" + items + b"e", b"(" + items + b"l", b"\x8f(" + items + b"\x90", b"(" + items + b"\x91"))


def _dict(rng: Random, depth: int) -> bytes:
    pairs = b"".join(_key(rng) + value(rng, depth - 1) for _ in range(rng.randrange(6)))
    return rng.choice((b"}(" + pairs + b"u", b"(" + pairs + b"d"))


def _key(rng: Random) -> bytes:
    return text(rng.choice(_TEXTS)) if rng.randrange(4) else value(rng, 1)


def _call(rng: Random, depth: int) -> bytes:
    args = _tuple(rng, depth) if rng.randrange(4) else value(rng, depth - 1)
    kwargs = rng.randrange(12) == 0
    made = _name(rng) + args + (_dict(rng, depth) + b"\x92" if kwargs else rng.choice((b"R", b"R", b"\x81")))
    return made + (value(rng, depth - 1) + b"b" if rng.randrange(3) == 0 else b"")


def _obj(rng: Random, depth: int) -> bytes:
    return b"(" + _name(rng) + b"".join(value(rng, depth - 1) for _ in range(rng.randrange(4))) + b"o"


def _build(rng: Random, depth: int) -> bytes:
    return value(rng, depth - 1) + value(rng, depth - 1) + b"b"


def _twice(rng: Random, depth: int) -> bytes:
    """A value that is remembered and recalled."""
    at = rng.randrange(6)
    put, get = (
        (b"q" + bytes([at]), b"h" + bytes([at])) if rng.randrange(4) else (b"r" + pack("<I", at), b"j" + pack("<I", at))
    )
    return b"(" + value(rng, depth - 1) + put + value(rng, depth - 1) + get + b"t"


def tensor(
    rng: Random, *, key: str = "0", numel: int = 4, shape: tuple[int, ...] = (2, 2), legacy: bool = False
) -> bytes:
    """A tensor as torch pickles it; now and then with something odd in the place of one of its arguments."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    pid = b"(" + text("storage") + named("torch", rng.choice(("FloatStorage",) * 8 + ("LongStorage", "HalfStorage")))
    pid += (
        text(key)
        + text(rng.choice(("cpu", "cpu", "cpu", "cuda:7", "cuda:7", "meta")))
        + integer(numel)
        + b"N" * legacy
        + b"tQ"
    )
    parts = [
        pid, integer(0), b"(" + b"".join(map(integer, shape)) + b"t",
        b"(" + b"".join(map(integer, strides[: len(shape)])) + b"t", b"\x89", named("collections",
        "OrderedDict") + b")R",
    ]  # fmt: skip
    if rng.randrange(12) == 0:
        parts[rng.randrange(len(parts))] = value(rng, 2)
    return named("torch._utils", "_rebuild_tensor_v2") + b"(" + b"".join(parts) + b"tR"


def _phrases(rng: Random, depth: int) -> bytes:
    """Many tensors that differ in nothing but their key, as a state dict has them; some treated unkindly between."""
    from tests.describe.sparse_zip import state_dict_pickle

    body = state_dict_pickle([f"w{i}" for i in range(90 + rng.randrange(40))], (2, 2))
    body = body.removeprefix(b"\x80\x02").removesuffix(b".")
    tensors = [at for at in range(len(body) - 6) if body[at : at + 2] == b"Rr" and body[at + 6 : at + 7] in b"Xu"]
    for at in sorted((rng.choice(tensors) for _ in range(rng.randrange(4))), reverse=True):
        number = body[at + 2 : at + 6]
        deed = rng.choice((
            b"j" + number + value(rng, 2) + b"b", b"2" + value(rng, 2) + b"b0", value(rng, 2) + b"b", value(rng,
            2) + b"r" + number + b"0",
            value(rng, 2) + b"q\x05" + b"0", b"j" + number + pid_state(rng) + b"b0", b"j" + pack("<I",
            rng.randrange(900)) + b"0",
        ))  # fmt: skip
        body = body[: at + 6] + deed + body[at + 6 :]
    return body


def pid_state(rng: Random) -> bytes:
    """The state of a tensor of before torch 0.4: a storage, an offset, sizes, strides."""
    pid = text("storage") + named("torch", "FloatStorage") + text("1") + text("cpu") + integer(4)
    return b"((" + pid + b"tQ" + integer(rng.randrange(3)) + integer(2) + b"\x85" + integer(1) + b"\x85" + b"t"


def _deep(rng: Random, depth: int) -> bytes:
    levels = rng.choice((60, 300, 990, 1500, 1500, 9000))
    kind = rng.randrange(4)
    if kind == 0:
        return b"]" * levels + b"a" * (levels - 1)
    if kind == 1:
        return b"N" + b"\x85" * levels
    if kind == 2:
        return (b"}" + text("a")) * levels + b"N" + b"s" * levels
    return named("m", "C") * levels + b")R" + b"\x85R" * (levels - 1)


def _doubled(rng: Random, depth: int) -> bytes:
    return doubled(rng.choice((10, 30, 60, 200)))


def doubled(levels: int) -> bytes:
    """A list that holds a list twice that holds a list twice, and so on."""
    steps = b"".join(b"](h%ch%ceq%c0" % (i, i, i + 1) for i in range(levels))
    return b"](K\x01eq\x000" + steps + b"h%c" % levels


def _circle(rng: Random, depth: int) -> bytes:
    at = bytes([rng.randrange(256)])
    return rng.choice((b"]q" + at + b"h" + at + b"a", b"}q" + at + text("a") + b"h" + at + b"s",
                       named("m", "C") + b")Rq" + at + b"h" + at + b"b"))  # fmt: skip


def _huge(rng: Random, depth: int) -> bytes:
    nbytes = rng.choice((250, 1000, 1024, 1025, 1780, 1800, 4000, 4096, 5000))
    sign = rng.choice((b"\x7f", b"\x80"))
    return rng.choice((
        b"\x8b" + pack("<I", nbytes) + b"\x11" * (nbytes - 1) + sign, b"L" + b"7" * nbytes + b"L\n",
        b"I" + b"7" * nbytes + b"\n",
    ))  # fmt: skip


def _odd_text(rng: Random, depth: int) -> bytes:
    return rng.choice((
        b"S'a\\x41'\n", b"S'\\q'\n", b'S"\\777"\n', b"S'\\x4'\n", b"V\\u0041\n", b"V\\ud800\n", b"V\\U00110000\n",
        b"V\\u12\n",
        b"U\x03\xff\xfe\xfd", b"T\x02\0\0\0\xc3\x28", b"\x8c\x01a", b"\x8d" + pack("<Q", 1) + b"z", b"C\x02ab",
        b"B\x01\0\0\0b",
        b"\x96" + pack("<Q", 3) + b"abc", b"\x8e" + pack("<Q", 2) + b"ab", b"\x8d" + pack("<Q", 1 << 63),
        b"X\xff\xff\xff\xff",
        b"F1.5\n", b"Fnan\n", b"F1_0\n", b"I010\n", b"I0x10\n", b"I01\n", b"I 7\n", b"L5\n", b"I1_0\n", b"P7\n",
    ))  # fmt: skip


def _number(rng: Random, depth: int) -> bytes:
    return (
        integer(rng.choice(_INTS))
        if rng.randrange(4)
        else b"G" + rng.choice((b"\x7f\xf8" + bytes(6), pack(">d", 0.1), pack(">d", 1e308)))
    )


def _persistent(rng: Random, depth: int) -> bytes:
    return value(rng, depth - 1) + b"Q"


def _state_dict(rng: Random, depth: int) -> bytes:
    names = rng.sample(("a.weight", "a.bias", "module.a", "flat_param", "b", "c.d.e", "\x1b[1m"), 3)
    return b"}(" + b"".join(text(name) + tensor(rng) for name in names) + b"u"


def _optimizer(rng: Random, depth: int) -> bytes:
    state = b"}(" + integer(0) + b"}(" + text("step") + value(rng, 1) + text("exp_avg") + tensor(rng) + b"uu"
    groups = b"](}(" + text("lr") + value(rng, 1) + text("params") + b"](" + integer(0) + value(rng, 1) + b"eue"
    return b"}(" + text("state") + state + text("param_groups") + groups + b"u"


_LEAVES: tuple[Callable[[Random, int], bytes], ...] = (
    lambda rng, depth: text(rng.choice(_TEXTS)), _number, lambda rng, depth: rng.choice((b"N", b"\x88", b"\x89", b")",
    b"}", b"]", b"\x8f")),
    _number, lambda rng, depth: text(rng.choice(_TEXTS)), _odd_text,
)  # fmt: skip
_RARE: tuple[Callable[[Random, int], bytes], ...] = (_deep, _doubled, _circle, _huge, _odd_text)
_INNER: tuple[Callable[[Random, int], bytes], ...] = (
    _tuple, _few, _list, _dict, _call, _call, _obj, _build, _twice, lambda rng, depth: tensor(rng), _persistent,
    _state_dict, _optimizer,
)  # fmt: skip


def value(rng: Random, depth: int = 4) -> bytes:
    """Instructions that push one value."""
    if rng.randrange(24) == 0:
        return rng.choice(_RARE)(rng, depth)
    if depth <= 0 or rng.randrange(3) == 0:
        return rng.choice(_LEAVES)(rng, depth)
    return rng.choice(_INNER)(rng, depth)


def program(rng: Random) -> bytes:
    """A whole pickle of some protocol; one in eight with something left over, or a stray instruction."""
    head = rng.choice((b"", b"\x80\x02", b"\x80\x02", b"\x80\x04", b"\x80\x05", b"\x80\x03"))
    body = _phrases(rng, 3) if rng.randrange(8) == 0 else value(rng, 5)
    odd = rng.randrange(16)
    if odd == 0:
        body = value(rng, 2) + body
    elif odd == 1:
        body += rng.choice(
            (b"0", b"1", b"2", b"(", b"t", b"a", b"u", b"b", b"R", b"\x95" + bytes(8), b"\x97", b"\x82\x01", b"\xff")
        )
    return head + body + (b"." if odd != 2 else b"")


_PUSHING = {
    op.name for op in pickletools.opcodes if len(op.stack_after) == 1 and not op.stack_before and op.name != "MARK"
}


def bent(rng: Random, data: bytes) -> bytes:
    """A pickle, or several behind each other, in which one to three values that are pushed are others."""
    data = unframed(data)
    places = _pushes(data)
    if not places:
        return data
    for start, stop in sorted((rng.choice(places) for _ in range(1 << rng.randrange(2))), reverse=True):
        new = rng.choice(_RARE)(rng, 2) if rng.randrange(3) == 0 else value(rng, 1 + rng.randrange(3))
        data = data[:start] + new + data[stop:]
    return data


def unframed(data: bytes) -> bytes:
    """A pickle without its frames, which would no longer fit."""
    try:
        frames = [at for op, _, at in pickletools.genops(data) if op.name == "FRAME" and at is not None]
    except (ValueError, IndexError):
        return data
    for at in reversed(frames):
        data = data[:at] + data[at + 9 :]
    return data


def _pushes(data: bytes) -> list[tuple[int, int]]:
    """Where the instructions stand that push one value, in the pickles that `data` begins with."""
    places: list[tuple[int, int]] = []
    base = 0
    try:
        while data[base : base + 1] in (b"\x80", b"c", b"(", b"}", b"]"):
            before, end = None, base
            for op, _, at in pickletools.genops(data[base:]):
                place = base + (at or 0)
                if before is not None:
                    places.append((before, place))
                before = place if op.name in _PUSHING else None
                end = place + 1
            base = end
    except (ValueError, IndexError):
        return places
    return places
