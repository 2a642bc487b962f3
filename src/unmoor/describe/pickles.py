"""Pickle opcodes, protocols 0 to 5, one small function each and one loop.

The semantics are CPython's (Lib/pickle.py and Lib/pickletools.py): a mark opens a fresh stack, so nothing reaches below
it. Nothing is allocated before its bytes are known to be there. The loop treats the opcodes that fill a state dict
itself, because a call for each of millions costs more than all the rest; every other opcode goes through the table.
"""

from __future__ import annotations

import codecs
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

from unmoor.errors import UnsupportedFile

from .machine import Machine, Short

__all__ = ["run"]

_MAX_MARKS: Final = 10_000
_MAX_INT_BYTES: Final = 4096
_MAX_LINE: Final = 4096
_MAX_PROTOCOL: Final = 5

_U1: Final = Struct("<B").unpack_from
_U2: Final = Struct("<H").unpack_from
_U4: Final = Struct("<I").unpack_from
_I4: Final = Struct("<i").unpack_from
_U8: Final = Struct("<Q").unpack_from
_F8: Final = Struct(">d").unpack_from

_MARK, _STOP, _REDUCE, _PUT, _LONG_PUT, _GET = b"(.Rqrh"
_TUPLE, _TUPLE1, _TUPLE2, _INT1 = b"t\x85\x86K"


def run(machine: Machine) -> Any:
    """The value that the machine's pickle describes; `machine.pos` is then just past it.

    Raises Short where the data ends first, CorruptFile where no unpickler could follow, HostileFile where the budget
    is spent, UnsupportedFile for what only another process could answer.
    """
    try:
        return _loop(machine)
    except struct_error:
        raise Short(machine.size + 1) from None
    except IndexError:
        if machine.pos >= machine.size:
            raise Short(machine.size + 1) from None
        raise machine.corrupt("takes more from its stack than there is") from None


def _loop(m: Machine) -> Any:
    data, memo, meta, table = m.data, m.memo, m.meta, _TABLE
    stack, pos, left, index = m.stack, m.pos, m.left, -1
    try:
        while True:
            op = data[pos]
            pos += 1
            if op == _LONG_PUT:
                memo[_U4(data, pos)[0]] = stack[-1]
                pos += 4
                left -= 1
            elif op == _GET:
                index = data[pos]
                stack.append(memo[index])
                pos += 1
            elif op == _INT1:
                stack.append(data[pos])
                pos += 1
            elif op == _MARK:
                meta.append(stack)
                m.stack = stack = []
                if len(meta) > _MAX_MARKS:
                    raise m.hostile(f"nests deeper than {_MAX_MARKS:,} levels")
            elif op == _TUPLE:
                items = tuple(stack)
                m.stack = stack = meta.pop()
                stack.append(items)
                left -= 1
            elif op == _REDUCE:
                m.pos = pos
                args = stack.pop()
                stack[-1] = m.call(stack[-1], args)
            elif op == _TUPLE2:
                last = stack.pop()
                stack[-1] = (stack[-1], last)
                left -= 1
            elif op == _PUT:
                memo[data[pos]] = stack[-1]
                pos += 1
            elif op == _TUPLE1:
                stack[-1] = (stack[-1],)
                left -= 1
            elif op == _STOP:
                m.pos = pos
                return stack.pop()
            else:
                m.pos = pos
                pos = table[op](m, pos)
                stack = m.stack
                if left < 0 or m.left < 0:
                    m.charge(m.left + 1)
    except KeyError:
        if index in memo:
            raise
        raise m.corrupt(f"recalls memo {index}, which was never stored") from None
    finally:
        m.pos = pos


def _line(m: Machine, pos: int, limit: int = _MAX_LINE) -> tuple[bytes, int]:
    end = m.data.find(b"\n", pos, pos + limit + 1)
    if end < 0:
        if pos + limit >= m.size:
            raise Short(m.size + 1)
        raise m.corrupt(f"opens a line of more than {limit:,} bytes")
    return bytes(m.data[pos:end]), end + 1


def _word(m: Machine, pos: int) -> tuple[str, int]:
    line, pos = _line(m, pos)
    try:
        return line.decode("utf-8"), pos
    except UnicodeDecodeError:
        raise m.corrupt("holds a name that is not UTF-8") from None


def _decimal(m: Machine, pos: int, suffix: bytes = b"") -> tuple[int, int]:
    line, pos = _line(m, pos)
    try:
        return int(line.removesuffix(suffix)), pos
    except ValueError:
        raise m.corrupt("holds a number that is none") from None


def _push(m: Machine, value: Any) -> None:
    m.charge(1)
    m.stack.append(value)


def _pop_mark(m: Machine) -> list[Any]:
    items = m.stack
    m.stack = m.meta.pop()
    return items


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
        m.left -= 1
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
        end = start + unpack(m.data, pos)[0]
        if end > m.size:
            raise Short(end)
        m.left -= 1
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
        _push(m, make(bytes(m.data[start:end])))
        return end

    return handler


def _native(data: bytes) -> str | bytes:
    """A str of Python 2: text where it reads as UTF-8, which is how torch.load takes it, else bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _long(width: int) -> Callable[[Machine, int], int]:
    def handler(m: Machine, pos: int) -> int:
        nbytes = _length(m, pos, width)
        if nbytes > _MAX_INT_BYTES:
            raise m.hostile(f"holds an integer of {nbytes:,} bytes")
        end = m.take(pos + width, nbytes)
        _push(m, int.from_bytes(m.data[pos + width : end], "little", signed=True))
        return end

    return handler


def _proto(m: Machine, pos: int) -> int:
    if m.data[pos] > _MAX_PROTOCOL:
        raise UnsupportedFile(f"{m.where} says pickle protocol {m.data[pos]}; 0 to {_MAX_PROTOCOL} exist", path=m.path)
    m.protocol = m.data[pos]
    return pos + 1


def _frame(m: Machine, pos: int) -> int:
    start = pos + 8
    m.take(start, _length(m, pos, 8))
    return start


def _int(m: Machine, pos: int) -> int:
    line, after = _line(m, pos)
    value, _ = (line == b"01", after) if line in (b"00", b"01") else _decimal(m, pos)
    _push(m, value)
    return after


def _long_text(m: Machine, pos: int) -> int:
    value, pos = _decimal(m, pos, b"L")
    _push(m, value)
    return pos


def _float(m: Machine, pos: int) -> int:
    line, pos = _line(m, pos)
    try:
        _push(m, float(line))
    except ValueError:
        raise m.corrupt("holds a number that is none") from None
    return pos


def _string(m: Machine, pos: int) -> int:
    line, pos = _line(m, pos, m.size)
    quote = line[:1]
    if len(line) < 2 or quote not in (b'"', b"'") or line[-1:] != quote:
        raise m.corrupt("holds a string without quotes")
    try:
        _push(m, _native(codecs.escape_decode(line[1:-1])[0]))
    except ValueError:
        raise m.corrupt("holds a string with a broken escape") from None
    return pos


def _unicode(m: Machine, pos: int) -> int:
    line, pos = _line(m, pos, m.size)
    try:
        _push(m, line.decode("raw-unicode-escape"))
    except UnicodeDecodeError:
        raise m.corrupt("holds text with a broken escape") from None
    return pos


def _pop(m: Machine, pos: int) -> int:
    if m.stack:
        m.stack.pop()
    else:
        _pop_mark(m)
    return pos


def _pop_to_mark(m: Machine, pos: int) -> int:
    _pop_mark(m)
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
    items = _pop_mark(m)
    _push(m, items)
    return pos


def _dict(m: Machine, pos: int) -> int:
    pairs = _pop_mark(m)
    target: dict[Any, Any] = {}
    m.charge(3)
    m.put(target, pairs)
    m.stack.append(target)
    return pos


def _frozenset(m: Machine, pos: int) -> int:
    items: set[Any] = set()
    m.charge(4)
    m.extend(items, _pop_mark(m))
    m.stack.append(frozenset(items))
    return pos


def _append(m: Machine, pos: int) -> int:
    item = m.stack.pop()
    m.extend(m.stack[-1], [item])
    return pos


def _extend(m: Machine, pos: int) -> int:
    items = _pop_mark(m)
    m.extend(m.stack[-1], items)
    return pos


def _set_item(m: Machine, pos: int) -> int:
    value = m.stack.pop()
    key = m.stack.pop()
    m.put(m.stack[-1], [key, value])
    return pos


def _set_items(m: Machine, pos: int) -> int:
    pairs = _pop_mark(m)
    m.put(m.stack[-1], pairs)
    return pos


def _recall(m: Machine, index: int) -> None:
    if index not in m.memo:
        raise m.corrupt(f"recalls memo {index:,}, which was never stored")
    m.stack.append(m.memo[index])


def _store(m: Machine, index: int) -> None:
    m.left -= 1
    m.memo[index] = m.stack[-1]


def _get_text(m: Machine, pos: int) -> int:
    index, pos = _decimal(m, pos)
    _recall(m, index)
    return pos


def _long_get(m: Machine, pos: int) -> int:
    _recall(m, _U4(m.data, pos)[0])
    return pos + 4


def _put_text(m: Machine, pos: int) -> int:
    index, pos = _decimal(m, pos)
    _store(m, index)
    return pos


def _memoize(m: Machine, pos: int) -> int:
    _store(m, len(m.memo))
    return pos


def _find(m: Machine, module: str, name: str) -> Any:
    if m.protocol < 3:
        if (module, name) in NAME_MAPPING:
            module, name = NAME_MAPPING[module, name]
        elif module in IMPORT_MAPPING:
            module = IMPORT_MAPPING[module]
    return m.named(module, name)


def _global(m: Machine, pos: int) -> int:
    module, pos = _word(m, pos)
    name, pos = _word(m, pos)
    m.stack.append(_find(m, module, name))
    return pos


def _stack_global(m: Machine, pos: int) -> int:
    name, module = m.stack.pop(), m.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise m.corrupt("names a class by what is no text")
    m.stack.append(_find(m, module, name))
    return pos


def _inst(m: Machine, pos: int) -> int:
    module, pos = _word(m, pos)
    name, pos = _word(m, pos)
    args = tuple(_pop_mark(m))
    m.stack.append(m.call(_find(m, module, name), args))
    return pos


def _obj(m: Machine, pos: int) -> int:
    items = _pop_mark(m)
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


def _persistent_text(m: Machine, pos: int) -> int:
    word, pos = _word(m, pos)
    m.stack.append(m.persistent(m, word))
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
    b"0": _pop, b"1": _pop_to_mark, b"2": _dup,
    b"F": _float, b"G": _fixed(_F8, 8), b"I": _int, b"J": _fixed(_I4, 4), b"M": _fixed(_U2, 2), b"L": _long_text,
    b"N": _constant(None), b"\x88": _constant(True), b"\x89": _constant(False), b")": _constant(()),
    b"P": _persistent_text, b"Q": _persistent,
    b"S": _string, b"T": _blob(4, _native), b"U": _blob(1, _native),
    b"V": _unicode, b"X": _text(_U4, 4), b"\x8c": _text(_U1, 1), b"\x8d": _text(_U8, 8),
    b"B": _blob(4, bytes), b"C": _blob(1, bytes), b"\x8e": _blob(8, bytes), b"\x96": _blob(8, bytearray),
    b"\x8a": _long(1), b"\x8b": _long(4),
    b"a": _append, b"e": _extend, b"\x90": _extend, b"s": _set_item, b"u": _set_items,
    b"d": _dict, b"l": _list, b"}": _fresh(dict, 1), b"]": _fresh(list, 1), b"\x8f": _fresh(set, 4),
    b"\x91": _frozenset, b"\x87": _tuple3,
    b"g": _get_text, b"j": _long_get, b"p": _put_text, b"\x94": _memoize,
    b"c": _global, b"\x93": _stack_global, b"i": _inst, b"o": _obj, b"\x81": _new, b"\x92": _new_keywords, b"b": _build,
    b"\x80": _proto, b"\x95": _frame,
    b"\x82": _EXTENSION, b"\x83": _EXTENSION, b"\x84": _EXTENSION, b"\x97": _BUFFER, b"\x98": _BUFFER,
}  # fmt: skip

_TABLE: Final = [_HANDLERS.get(bytes([op]), _unknown) for op in range(256)]
