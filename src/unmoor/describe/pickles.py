"""The loop that runs a pickle through a machine.

It treats the opcodes that fill a state dict itself, one branch each: a call for each of millions costs more than all
the rest, and plain tensors go through `phrases`. Every other opcode goes through the table of `opcodes`. The steps are
counted, which bounds time and memory.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Any, Final

from .machine import LATER, Machine, Short
from .opcodes import TABLE
from .phrases import REBUILD

__all__ = ["run"]

_MAX_MARKS: Final = 10_000
_U4: Final = Struct("<I").unpack_from

_MARK, _STOP, _REDUCE, _PUT, _LONG_PUT, _GET, _LONG_GET, _TEXT = b"(.RqrhjX"
_TUPLE, _TUPLE1, _TUPLE2, _INT1 = b"t\x85\x86K"
_MEMOIZE: Final = 0x94


def run(machine: Machine) -> Any:
    """The value that the machine's pickle describes; `machine.pos` is then just past it.

    Raises Short where the data ends first, CorruptFile where no unpickler could follow, HostileFile where the budget
    is spent, UnsupportedFile for what only another process could answer.
    """
    try:
        value = _loop(machine)
    except (struct_error, IndexError, Short) as fault:
        if isinstance(fault, IndexError) and machine.pos < machine.size:
            raise machine.corrupt("takes more from its stack than there is") from None
        if machine.outside is not None:
            raise machine.corrupt("holds an instruction that reaches out of its frame") from None
        raise fault if isinstance(fault, Short) else Short(machine.size + 1) from None
    else:
        if machine.outside is not None and machine.pos != machine.size:
            raise machine.corrupt("ends before its frame does")
        return value
    finally:
        machine.pos += machine.base
        machine.leave_frame()


def _loop(m: Machine) -> Any:  # noqa: C901 - one branch an opcode, see the head of this file
    data, size, memo, meta, table = m.data, m.size, m.memo, m.meta, TABLE
    stack, pos, phrases, rebuild = m.stack, m.pos, m.phrases, None
    try:
        for _ in range(m.steps):
            op = data[pos]
            pos += 1
            if op == _LONG_PUT:
                index = _U4(data, pos)[0]
                pos += 4
                if index == len(memo) and type(memo) is list:
                    memo.append(stack[-1])
                else:
                    m.remember(index, stack[-1])
                    memo, phrases = m.memo, m.phrases
            elif op in (_GET, _LONG_GET):
                index, pos = (data[pos], pos + 1) if op == _GET else (_U4(data, pos)[0], pos + 4)
                value = memo[index] if index < len(memo) and type(memo) is list else LATER
                if value is LATER:
                    m.pos = pos
                    value = m.recall(index)
                stack.append(value)
            elif op == _MARK:
                if phrases is not None and data[pos] == _MARK and stack:
                    rebuild = m.globals.get(REBUILD) if rebuild is None else rebuild
                    end = phrases.take(m, pos - 1) if stack[-1] is rebuild else 0
                    if end:
                        pos = end
                        continue
                meta.append(stack)
                m.stack = stack = []
                if len(meta) > _MAX_MARKS:
                    raise m.hostile(f"nests deeper than {_MAX_MARKS:,} levels")
            elif op == _TEXT:
                m.pos, start = pos, pos + 4
                pos = start + int(_U4(data, pos)[0])
                if pos > size:
                    raise Short(pos)
                try:
                    stack.append(data[start:pos].decode("utf-8", "surrogatepass"))
                except UnicodeDecodeError:
                    raise m.corrupt("holds text that is not UTF-8") from None
            elif op == _INT1:
                stack.append(data[pos])
                pos += 1
            elif op == _MEMOIZE:
                if type(memo) is list:
                    memo.append(stack[-1])
                else:
                    m.remember(len(memo), stack[-1])
            elif op == _TUPLE:
                items = tuple(stack)
                m.stack = stack = meta.pop()
                stack.append(items)
                m.left -= 1
            elif op == _REDUCE:
                m.pos = pos
                args = stack.pop()
                stack[-1] = m.call(stack[-1], args)
            elif op == _TUPLE2:
                last = stack.pop()
                stack[-1] = (stack[-1], last)
                m.left -= 1
            elif op == _PUT:
                m.remember(data[pos], stack[-1])
                pos += 1
                memo, phrases = m.memo, m.phrases
            elif op == _TUPLE1:
                stack[-1] = (stack[-1],)
                m.left -= 1
                if m.left < 0:
                    m.charge(0)
            elif op == _STOP:
                return stack.pop()
            else:
                m.pos = pos
                pos = table[op](m, pos)
                data, size, stack, memo, phrases = m.data, m.size, m.stack, m.memo, m.phrases
    finally:
        m.pos = pos
    raise m.hostile(f"takes more than {m.steps:,} steps")
