"""The loop that runs a pickle through a machine.

It treats the opcodes that fill a state dict itself, one branch each: a call for each of millions costs more than all
the rest. Every other opcode goes through the table of `opcodes`. The steps are counted, which bounds time and memory.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Any, Final

from .machine import Machine, Short
from .opcodes import TABLE

__all__ = ["run"]

_MAX_MARKS: Final = 10_000
_MAX_STEPS: Final = 10_000_000
_U4: Final = Struct("<I").unpack_from

_MARK, _STOP, _REDUCE, _PUT, _LONG_PUT, _GET = b"(.Rqrh"
_TUPLE, _TUPLE1, _TUPLE2, _INT1 = b"t\x85\x86K"
_MEMOIZE: Final = 0x94


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


def _loop(m: Machine) -> Any:  # noqa: C901 - one branch an opcode, see the head of this file
    data, memo, meta, table = m.data, m.memo, m.meta, TABLE
    stack, pos, index = m.stack, m.pos, -1
    try:
        for _ in range(_MAX_STEPS * m.allowance):
            op = data[pos]
            pos += 1
            if op == _LONG_PUT:
                memo[_U4(data, pos)[0]] = stack[-1]
                pos += 4
            elif op == _GET:
                index = data[pos]
                stack.append(memo[index])
                pos += 1
            elif op == _INT1:
                stack.append(data[pos])
                pos += 1
            elif op == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif op == _MARK:
                meta.append(stack)
                m.stack = stack = []
                if len(meta) > _MAX_MARKS:
                    raise m.hostile(f"nests deeper than {_MAX_MARKS:,} levels")
            elif op == _TUPLE:
                items = tuple(stack)
                m.stack = stack = meta.pop()
                stack.append(items)
            elif op == _REDUCE:
                m.pos = pos
                args = stack.pop()
                stack[-1] = m.call(stack[-1], args)
            elif op == _TUPLE2:
                last = stack.pop()
                stack[-1] = (stack[-1], last)
            elif op == _PUT:
                memo[data[pos]] = stack[-1]
                pos += 1
            elif op == _TUPLE1:
                stack[-1] = (stack[-1],)
            elif op == _STOP:
                return stack.pop()
            else:
                m.pos = pos
                pos = table[op](m, pos)
                stack = m.stack
    except KeyError:
        if index in memo:
            raise
        raise m.corrupt(f"recalls memo {index}, which was never stored") from None
    finally:
        m.pos = pos
    raise m.hostile(f"takes more than {_MAX_STEPS * m.allowance:,} steps")
