"""Pickle opcodes, protocols 0 to 5: one small function each, in one table.

The semantics are CPython's (Lib/pickle.py and Lib/pickletools.py): a mark opens a fresh stack, so nothing reaches below
it. Each function gets the machine and the position after its opcode and answers where the next one begins. Nothing is
allocated before its bytes are known to be there.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from unmoor.errors import UnsupportedFile

from .lines import LINE_HANDLERS, find, native, recall, store
from .machine import FRAME_END, Machine, Short

__all__ = ["TABLE"]

_MAX_INT_BYTES: Final = 1024
"""An integer of twice that many bytes has more digits than Python prints."""

_MAX_PROTOCOL: Final = 5

_U1: Final = Struct("<B").unpack_from
_U2: Final = Struct("<H").unpack_from
_U4: Final = Struct("<I").unpack_from
_I4: Final = Struct("<i").unpack_from
_U8: Final = Struct("<Q").unpack_from
_F8: Final = Struct(">d").unpack_from


def _constant(value: Any) -> Callable[[Machine, int], int]:
    def handler(m: Machine, pos: int) -> int:
        m.stack.append(value)
        return pos

    return handler


def _fresh(kind: type, units: int) -> Callable[[Machine, int], int]:
    def handler(m: Machine, pos: int) -> int:
        m.charge(units)
        m.stack.append(kind())
        return pos

    return handler


def _fixed(unpack: Callable[..., tuple[Any, ...]], nbytes: int) -> Callable[[Machine, int], int]:
    def handler(m: Machine, pos: int) -> int:
        (value,) = unpack(m.data, pos)
        m.stack.append(value)
        return pos + nbytes

    return handler


def _length(m: Machine, pos: int, width: int) -> int:
    if pos + width > m.size:
        raise Short(pos + width)
    return int.from_bytes(m.data[pos : pos + width], "little")


def _text(unpack: Callable[..., tuple[Any, ...]], width: int) -> Callable[[Machine, int], int]:
    def handler(m: Machine, pos: int) -> int:
        start = pos + width
        end = start + int(unpack(m.data, pos)[0])
        if end > m.size:
            raise Short(end)
        try:
            m.stack.append(m.data[start:end].decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            raise m.corrupt("holds text that is not UTF-8") from None
        return end

    return handler


def _blob(width: int, make: Callable[[bytes], Any]) -> Callable[[Machine, int], int]:
    def handler(m: Machine, pos: int) -> int:
        start = pos + width
        end = m.take(start, _length(m, pos, width))
        m.push(make(bytes(m.data[start:end])))
        return end

    return handler


def _long(width: int) -> Callable[[Machine, int], int]:
    def handler(m: Machine, pos: int) -> int:
        nbytes = _length(m, pos, width)
        if nbytes > _MAX_INT_BYTES:
            raise m.hostile(f"holds an integer of {nbytes:,} bytes")
        end = m.take(pos + width, nbytes)
        m.push(int.from_bytes(m.data[pos + width : end], "little", signed=True))
        return end

    return handler


def _proto(m: Machine, pos: int) -> int:
    if m.data[pos] > _MAX_PROTOCOL:
        raise UnsupportedFile(f"{m.where} says pickle protocol {m.data[pos]}; 0 to {_MAX_PROTOCOL} exist", path=m.path)
    m.protocol = m.data[pos]
    return pos + 1


def _frame(m: Machine, pos: int) -> int:
    return m.enter_frame(pos + 8, _length(m, pos, 8))


def _frame_end(m: Machine, pos: int) -> int:
    return m.leave_frame() if m.outside is not None and pos == m.size + 1 else _unknown(m, pos)


def _pop(m: Machine, pos: int) -> int:
    if m.stack:
        m.stack.pop()
    else:
        m.pop_mark()
    return pos


def _pop_to_mark(m: Machine, pos: int) -> int:
    m.pop_mark()
    return pos


def _dup(m: Machine, pos: int) -> int:
    m.stack.append(m.stack[-1])
    return pos


def _tuple3(m: Machine, pos: int) -> int:
    m.charge(1)
    stack = m.stack
    last, middle = stack.pop(), stack.pop()
    stack[-1] = (stack[-1], middle, last)
    return pos


def _list(m: Machine, pos: int) -> int:
    items = m.pop_mark()
    m.push(items)
    return pos


def _dict(m: Machine, pos: int) -> int:
    pairs = m.pop_mark()
    target: dict[Any, Any] = {}
    m.charge(3)
    m.put(target, pairs)
    m.stack.append(target)
    return pos


def _frozenset(m: Machine, pos: int) -> int:
    items: set[Any] = set()
    m.charge(4)
    m.extend(items, m.pop_mark())
    m.stack.append(frozenset(items))
    return pos


def _append(m: Machine, pos: int) -> int:
    item = m.stack.pop()
    m.extend(m.stack[-1], [item])
    return pos


def _extend(m: Machine, pos: int) -> int:
    items = m.pop_mark()
    m.extend(m.stack[-1], items)
    return pos


def _set_item(m: Machine, pos: int) -> int:
    value = m.stack.pop()
    key = m.stack.pop()
    m.put(m.stack[-1], [key, value])
    return pos


def _set_items(m: Machine, pos: int) -> int:
    pairs = m.pop_mark()
    m.put(m.stack[-1], pairs)
    return pos


def _long_get(m: Machine, pos: int) -> int:
    recall(m, _U4(m.data, pos)[0])
    return pos + 4


def _memoize(m: Machine, pos: int) -> int:
    store(m, len(m.memo))
    return pos


def _stack_global(m: Machine, pos: int) -> int:
    name, module = m.stack.pop(), m.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise m.corrupt("names a class by what is no text")
    m.stack.append(find(m, module, name))
    return pos


def _obj(m: Machine, pos: int) -> int:
    items = m.pop_mark()
    m.stack.append(m.call(items[0], tuple(items[1:])))
    return pos


def _new(m: Machine, pos: int) -> int:
    args = m.stack.pop()
    m.stack[-1] = m.call(m.stack[-1], args, "new")
    return pos


def _new_keywords(m: Machine, pos: int) -> int:
    kwargs, args = m.stack.pop(), m.stack.pop()
    if type(kwargs) is not dict:
        raise m.corrupt("passes keywords that are no dict")
    m.stack[-1] = m.call(m.stack[-1], args, "new", kwargs)
    return pos


def _build(m: Machine, pos: int) -> int:
    state = m.stack.pop()
    m.build(m.stack[-1], state)
    return pos


def _persistent(m: Machine, pos: int) -> int:
    m.stack.append(m.persistent(m, m.stack.pop()))
    return pos


def _refused(why: str) -> Callable[[Machine, int], int]:
    def handler(m: Machine, pos: int) -> int:
        raise UnsupportedFile(f"{m.where}: at byte {pos - 1:,} it {why}, which no checkpoint does", path=m.path)

    return handler


def _unknown(m: Machine, pos: int) -> int:
    raise m.corrupt(f"holds instruction 0x{m.data[pos - 1]:02x}, which no pickle has")


_EXTENSION: Final = _refused("looks a class up by number in another program's copyreg registry")
_BUFFER: Final = _refused("wants a buffer that was kept out of the pickle")

_HANDLERS: Final[dict[bytes, Callable[[Machine, int], int]]] = {
    **LINE_HANDLERS,
    b"0": _pop, b"1": _pop_to_mark, b"2": _dup,
    b"G": _fixed(_F8, 8), b"J": _fixed(_I4, 4), b"M": _fixed(_U2, 2),
    b"N": _constant(None), b"\x88": _constant(True), b"\x89": _constant(False), b")": _constant(()),
    b"Q": _persistent,
    b"T": _blob(4, native), b"U": _blob(1, native),
    b"X": _text(_U4, 4), b"\x8c": _text(_U1, 1), b"\x8d": _text(_U8, 8),
    b"B": _blob(4, bytes), b"C": _blob(1, bytes), b"\x8e": _blob(8, bytes), b"\x96": _blob(8, bytearray),
    b"\x8a": _long(1), b"\x8b": _long(4),
    b"a": _append, b"e": _extend, b"\x90": _extend, b"s": _set_item, b"u": _set_items,
    b"d": _dict, b"l": _list, b"}": _fresh(dict, 1), b"]": _fresh(list, 1), b"\x8f": _fresh(set, 4),
    b"\x91": _frozenset, b"\x87": _tuple3,
    b"j": _long_get, b"\x94": _memoize,
    b"\x93": _stack_global, b"o": _obj, b"\x81": _new, b"\x92": _new_keywords, b"b": _build,
    b"\x80": _proto, b"\x95": _frame, FRAME_END: _frame_end,
    b"\x82": _EXTENSION, b"\x83": _EXTENSION, b"\x84": _EXTENSION, b"\x97": _BUFFER, b"\x98": _BUFFER,
}  # fmt: skip

TABLE: Final = [_HANDLERS.get(bytes([op]), _unknown) for op in range(256)]
"""What to do at each of the 256 bytes that an instruction may begin with."""
