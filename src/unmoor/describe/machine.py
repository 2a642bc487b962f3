"""The state of one inert reading of a pickle: what it may create, and what stands for what it names.

Names are looked up in a table, never imported or called: what the table knows becomes plain values and nodes,
everything else an `Opaque`. Every creation is charged to a budget and every dict key is looked at before it is hashed.
Must not know torch, nor opcodes, which live in `opcodes`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from unmoor.errors import CorruptFile, HostileFile
from unmoor.values.nodes import CompositeTensor, NumpyScalar, Opaque, Storage, TensorNode, TorchValue

if TYPE_CHECKING:
    from .phrases import Phrases

__all__ = ["FRAME_END", "LATER", "Machine", "Recalled", "Rule", "Short", "callee_name"]

Rule = Callable[["Machine", tuple[Any, ...]], Any]
"""Builds a value from the arguments of a known function; None where they are none that it knows."""

_MAX_OBJECTS: Final = 10_000_000
_FREE_OBJECTS: Final = 100_000
_MAX_STEPS: Final = 10_000_000
_FREE_STEPS: Final = 1_000_000
_MAX_NAME: Final = 1024
_MAX_ATTRIBUTES: Final = 16
_MAX_KEY_PARTS: Final = 64
_MAX_KEY_BITS: Final = 1024
_MAX_TWINS: Final = 16
_SAFE_INT: Final = (1 << 61) - 1
_DICTS: Final = frozenset({dict, OrderedDict, Counter})
_EASY_KEYS: Final = frozenset({str, bytes, bool, type(None), Opaque, TensorNode, CompositeTensor})
_MOMENTS: Final = frozenset({date, datetime, time, timedelta, timezone})
_NUMBERS: Final = frozenset({int, float, complex, range})
_HASHABLE: Final = _EASY_KEYS | _NUMBERS | _MOMENTS | {tuple, frozenset, NumpyScalar, TorchValue, Storage}


class Short(Exception):
    """The data ends before the pickle does; `need` is the length known to be wanted."""

    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


class Recalled(Exception):
    """The pickle recalls what a phrase did not make: it has to be read without phrases."""


LATER: Final = object()
"""What the memo holds in place of a value that a phrase did not make."""

FRAME_END: Final = b"\xff"
"""Stands behind the bytes of a frame while they are read; no instruction begins so."""


class Machine:
    """One pass over one pickle that begins at `pos` of `data`.

    `rules` maps "module.name" to what builds a value from the arguments, `constants` to a ready value, `builds` a type
    of value to what sets a state on it. `persistent` answers a persistent id. `where` is how messages name the pickle.
    `globals` are all names met, `calls` every call of an unknown one, `notes` what was simplified and how often.
    `weight` is the number of bytes in the file that pay for what the reading creates and for its steps, all of `data`
    where none is given; `allowance` multiplies both. `phrases` take plain tensors in one step, while the memo is a list
    whose entries were never replaced.
    """

    __slots__ = ("allowance", "base", "builds", "calls", "constants", "data", "globals", "left", "memo", "meta", "most",
                 "notes", "outside", "path", "persistent", "phrases", "pos", "protocol", "rules", "size", "stack",
                 "steps", "twins", "where")  # fmt: skip

    def __init__(
        self,
        data: bytes | bytearray,
        *,
        pos: int = 0,
        rules: Mapping[str, Rule],
        constants: Mapping[str, Any],
        builds: Mapping[type, Callable[[Machine, Any, Any], None]],
        persistent: Callable[[Machine, Any], Any],
        path: str,
        where: str,
        weight: int | None = None,
        allowance: int = 1,
    ) -> None:
        self.data, self.pos, self.size = data, pos, len(data)
        self.rules, self.constants, self.builds, self.persistent = rules, constants, builds, persistent
        self.path, self.where = path, where
        self.base = 0
        self.outside: tuple[bytes | bytearray, int] | None = None
        self.stack: list[Any] = []
        self.meta: list[list[Any]] = []
        self.memo: list[Any] | dict[int, Any] = []
        self.phrases: Phrases | None = None
        self.globals: dict[str, Any] = {}
        self.calls: list[Opaque] = []
        self.notes: dict[tuple[str, str], int] = {}
        self.twins: dict[tuple[int, int], int] = {}
        self.protocol = 0
        weight = self.size if weight is None else weight
        self.left = self.most = min(_MAX_OBJECTS, _FREE_OBJECTS + 5 * weight // 8) * allowance
        self.steps = min(_MAX_STEPS, _FREE_STEPS + weight) * allowance

    def corrupt(self, what: str) -> CorruptFile:
        """The error for a pickle that no reader could follow."""
        return CorruptFile(
            f"{self.where} is damaged: at byte {self.base + self.pos:,} it {what}",
            remedy="The file was damaged after it was written, or was never a checkpoint. Copy or download it again.",
            path=self.path,
        )

    def hostile(self, what: str) -> HostileFile:
        """The error for a pickle that asks for more than any checkpoint needs."""
        return HostileFile(
            f"{self.where} is no honest pickle: at byte {self.base + self.pos:,} it {what}", path=self.path
        )

    def charge(self, units: int) -> None:
        """Take `units` (about 64 bytes of memory each) from the budget."""
        self.left -= units
        if self.left < 0:
            raise self.hostile(f"has created more than {self.most:,} objects")

    def note(self, code: str, what: str) -> None:
        """Count one simplification, to be told in a finding of that code."""
        self.notes[code, what] = self.notes.get((code, what), 0) + 1

    def take(self, pos: int, nbytes: int) -> int:
        """The end of `nbytes` bytes at `pos`, known to be there."""
        end = pos + nbytes
        if end > self.size:
            raise Short(end)
        return end

    def enter_frame(self, start: int, nbytes: int) -> int:
        """Read on within a frame, which ends where an instruction does: what reaches over that, unpicklers misread."""
        if self.outside is not None:
            raise self.corrupt("begins a frame within a frame")
        end = self.take(start, nbytes)
        self.outside, self.base, self.size = (self.data, self.size), start, nbytes
        self.data = bytes(self.data[start:end]) + FRAME_END
        return 0

    def leave_frame(self) -> int:
        """Read on behind the frame."""
        after = self.base + self.size
        if self.outside is not None:
            (self.data, self.size), self.outside, self.base = self.outside, None, 0
        return after

    def remember(self, index: int, value: Any) -> None:
        """Keep a value under a number; every pickler counts from 0, and a list holds that at a tenth of the price."""
        memo = self.memo
        if type(memo) is list:
            if index == len(memo):
                memo.append(value)
                return
            self.phrases = None
            if not 0 <= index < len(memo):
                self.memo = memo = dict(enumerate(memo))
        memo[index] = value

    def recall(self, index: int) -> Any:
        """What was kept under a number. Raises Recalled for what a phrase did not make."""
        memo = self.memo
        if not 0 <= index < len(memo) if type(memo) is list else index not in memo:
            raise self.corrupt(f"recalls memo {index:,}, which was never stored")
        value = memo[index]
        if value is LATER:
            raise Recalled
        return value

    def push(self, value: Any) -> None:
        """Put a new value on the stack, and one unit on the bill."""
        self.charge(1)
        self.stack.append(value)

    def pop_mark(self) -> list[Any]:
        """Everything above the last mark; the stack below it is the stack again."""
        items = self.stack
        self.stack = self.meta.pop()
        return items

    def named(self, module: str, name: str) -> Any:
        """What stands for the global `module.name`."""
        full = f"{module}.{name}"
        known = self.globals.get(full)
        if known is None:
            if not module or not name or not full.isprintable() or len(full) > _MAX_NAME:
                raise self.corrupt("names a class by what is no name")
            self.charge(6)
            known = self.constants.get(full)
            self.globals[full] = known = Opaque(full, how="global") if known is None else known
        return known

    def call(self, function: Any, args: Any, how: str = "reduce", kwargs: dict[str, Any] | None = None) -> Any:
        """What stands for `function(*args)`; nothing is called but the table's own builders."""
        if type(args) is not tuple:
            raise self.corrupt("calls something with what is no tuple of arguments")
        if type(function) is Opaque and function.how == "global":
            name = function.name
            rule = self.rules.get(name)
            if rule is not None and kwargs is None:
                value = rule(self, args)
                if value is not None:
                    return value
        else:
            name = callee_name(function)
        self.charge(4)
        opaque = Opaque(name, args, how=how, kwargs=kwargs)
        self.calls.append(opaque)
        return opaque

    def build(self, target: Any, state: Any) -> None:
        """Set `state` on a value: kept on opaque objects, applied by the table's builders, else noted as left out."""
        builder = self.builds.get(type(target))
        if type(target) is Opaque:
            self._check_object(target, "sets a state on")
            target.state = state
        elif builder is not None:
            builder(self, target, state)
        else:
            self.note("left-out", f"the state of a {type(target).__name__} is left out")

    def put(self, target: Any, pairs: list[Any]) -> None:
        """Set `pairs` (key, value, key, value, ...) on a mapping or an opaque object."""
        if len(pairs) % 2:
            raise self.corrupt("sets a key without a value")
        if type(target) in _DICTS:
            self.charge(len(pairs) // 2 + (0 if target else 2))
            for at in range(0, len(pairs), 2):
                key = pairs[at]
                if type(key) is not str:
                    self.check_key(key, target)
                target[key] = pairs[at + 1]
        elif type(target) is Opaque:
            self._check_object(target, "sets entries on")
            self.charge(len(pairs) // 2)
            target.entries.extend(zip(pairs[::2], pairs[1::2], strict=True))
        else:
            raise self.corrupt(f"sets keys on a {type(target).__name__}")

    def extend(self, target: Any, items: list[Any]) -> None:
        """Append `items` to a list, a set or an opaque object."""
        if type(target) is list:
            target.extend(items)
        elif type(target) is set:
            self.charge(len(items))
            for item in items:
                self.check_key(item, target)
                target.add(item)
        elif type(target) is Opaque:
            self._check_object(target, "appends to")
            target.items.extend(items)
        else:
            raise self.corrupt(f"appends to a {type(target).__name__}")

    def _check_object(self, target: Opaque, what: str) -> None:
        """Refuse what would change a class or a function itself, for all who use it, and not an object."""
        if target.how == "global":
            raise self.hostile(f"{what} {target.name} itself, which changes it for the whole program")

    def check_key(self, key: Any, target: Any) -> None:
        """Refuse keys whose hash or comparison costs more than a look, and too many of one hash in `target`.

        Strings are hashed with a secret; numbers and tuples can be chosen to collide and make a dict quadratic.
        """
        kind = type(key)
        if kind in _EASY_KEYS or (kind is int and -_SAFE_INT < key < _SAFE_INT):
            return
        self._check_parts(key)
        try:
            mark = (id(target), hash(key))
            if key in target:
                return
        except TypeError:
            raise self.corrupt(f"uses a {kind.__name__} as a key") from None
        self.charge(4)
        self.twins[mark] = twins = self.twins.get(mark, 0) + 1
        if twins > _MAX_TWINS:
            raise self.hostile(f"uses more than {_MAX_TWINS} keys of one hash value in one container")

    def _check_parts(self, key: Any) -> None:
        pending, parts = [key], 0
        while pending:
            part = pending.pop()
            kind = type(part)
            if kind not in _HASHABLE:
                raise self.corrupt(f"uses a {kind.__name__} as a key")
            inner = part.value if kind is TorchValue else part
            if type(inner) is tuple or type(inner) is frozenset:
                parts += len(inner)
                pending.extend(inner if parts <= _MAX_KEY_PARTS else ())
            if parts > _MAX_KEY_PARTS or (kind is int and part.bit_length() > _MAX_KEY_BITS):
                raise self.hostile(f"uses a key of more than {_MAX_KEY_PARTS} values or {_MAX_KEY_BITS} bits")


def callee_name(function: Any) -> str:
    """The dotted name of what is called; `getattr(os, "system")` reads as os.system."""
    names: list[str] = []
    for _ in range(_MAX_ATTRIBUTES):
        if type(function) is not Opaque:
            names.append(type(function).__name__)
            break
        if function.name != "builtins.getattr" or len(function.args) < 2 or type(function.args[1]) is not str:
            names.append(function.name if function.how == "global" else f"{function.name}(...)")
            break
        names.append(function.args[1])
        function = function.args[0]
    return ".".join(reversed(names))[:_MAX_NAME]
