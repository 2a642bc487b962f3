"""The parts of a pickle that are lines of text: protocol 0, and the names of classes up to protocol 3.

Each function gets the machine and the position after its opcode and answers where the next one begins.
"""

from __future__ import annotations

import codecs
import re
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from typing import Any, Final

from .machine import Machine, Short

__all__ = ["LINE_HANDLERS", "find", "native", "recall", "store"]

_MAX_LINE: Final = 4096
_MAX_DIGITS: Final = 2500
_RENAMING: Final = 3
_DECIMAL: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)")
"""Numbers as repr writes them: what else Python takes for one, one of its unpicklers reads as octal."""

_BROKEN: Final = re.compile(rb"\\(?:[^'\"abfnrtvx0-7]|x(?![0-9A-Fa-f]{2})|[4-7][0-7]{2}|\Z)", re.DOTALL)
"""Escapes that no repr writes, in strings whose escaped backslashes were taken out: Python warns of some."""


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
    line, pos = _line(m, pos, _MAX_DIGITS)
    line = line.removesuffix(suffix)
    if _DECIMAL.fullmatch(line) is None:
        raise m.corrupt("holds a number that is none")
    return int(line), pos


def _int(m: Machine, pos: int) -> int:
    line, after = _line(m, pos)
    value, _ = (line == b"01", after) if line in (b"00", b"01") else _decimal(m, pos)
    m.push(value)
    return after


def _long_text(m: Machine, pos: int) -> int:
    value, pos = _decimal(m, pos, b"L")
    m.push(value)
    return pos


def _float(m: Machine, pos: int) -> int:
    line, pos = _line(m, pos)
    try:
        m.push(float(line))
    except ValueError:
        raise m.corrupt("holds a number that is none") from None
    return pos


def native(data: bytes) -> str | bytes:
    """A str of Python 2: text where it reads as UTF-8, which is how torch.load takes it, else bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _string(m: Machine, pos: int) -> int:
    line, pos = _line(m, pos, m.size)
    quote = line[:1]
    if len(line) < 2 or quote not in (b'"', b"'") or line[-1:] != quote:
        raise m.corrupt("holds a string without quotes")
    if _BROKEN.search(line[1:-1].replace(rb"\\", b"__")) is not None:
        raise m.corrupt("holds a string with a broken escape")
    m.push(native(codecs.escape_decode(line[1:-1])[0]))
    return pos


def _unicode(m: Machine, pos: int) -> int:
    line, pos = _line(m, pos, m.size)
    try:
        m.push(line.decode("raw-unicode-escape"))
    except UnicodeDecodeError:
        raise m.corrupt("holds text with a broken escape") from None
    return pos


def recall(m: Machine, index: int) -> None:
    """Put what the memo holds under `index` on the stack."""
    m.stack.append(m.recall(index))


def store(m: Machine, index: int) -> None:
    """Remember the top of the stack under `index`."""
    m.remember(index, m.stack[-1])


def _get_text(m: Machine, pos: int) -> int:
    index, pos = _decimal(m, pos)
    recall(m, index)
    return pos


def _put_text(m: Machine, pos: int) -> int:
    index, pos = _decimal(m, pos)
    store(m, index)
    return pos


def _persistent_text(m: Machine, pos: int) -> int:
    word, pos = _word(m, pos)
    m.stack.append(m.persistent(m, word))
    return pos


def find(m: Machine, module: str, name: str) -> Any:
    """What stands for a global; names that Python 2 wrote are read by their names of today, as unpicklers do."""
    if m.protocol < _RENAMING:
        if (module, name) in NAME_MAPPING:
            module, name = NAME_MAPPING[module, name]
        elif module in IMPORT_MAPPING:
            module = IMPORT_MAPPING[module]
    return m.named(module, name)


def _global(m: Machine, pos: int) -> int:
    module, pos = _word(m, pos)
    name, pos = _word(m, pos)
    m.stack.append(find(m, module, name))
    return pos


def _inst(m: Machine, pos: int) -> int:
    module, pos = _word(m, pos)
    name, pos = _word(m, pos)
    args = tuple(m.pop_mark())
    m.stack.append(m.call(find(m, module, name), args))
    return pos


LINE_HANDLERS: Final[dict[bytes, Callable[[Machine, int], int]]] = {
    b"F": _float, b"I": _int, b"L": _long_text, b"S": _string, b"V": _unicode,
    b"g": _get_text, b"p": _put_text, b"P": _persistent_text, b"c": _global, b"i": _inst,
}  # fmt: skip
