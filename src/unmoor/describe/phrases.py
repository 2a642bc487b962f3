"""The instructions by which torch pickles one plain tensor, taken in one step where they are known.

torch.save writes some thirty instructions for each tensor, and all tensors of one shape, dtype and device have the same
but for the key of the storage and the numbers under which what is made is remembered. The loop of `pickles` reads the
first of a kind; what it made is then known of the next. A phrase is known only where all its other bytes are the same
and nothing that they recall was replaced, so that nothing is believed here that the loop did not find.

What a phrase makes on its way (tuples of arguments) and nothing recalls is not made: LATER is remembered in its place.
A pickle that does recall it is read again without phrases.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from struct import Struct
from typing import Any, Final, NamedTuple

from unmoor.values.nodes import Storage, TensorNode

from .machine import LATER, Machine

__all__ = ["REBUILD", "Phrases", "Stored"]

Stored = Callable[[Machine, str, str, str, int], Storage]
"""The storage of a dtype, key, device tag and number of elements: what a persistent id stands for once it is read."""

Named = Callable[[Machine, Any, int], tuple[str, str, str, int]]
"""Those four parts of a persistent id, which has so many fields."""

REBUILD: Final = "torch._utils._rebuild_tensor_v2"
_NO_HOOKS: Final = "collections.OrderedDict"
_PUT: Final = rb"(?:r(....))?"
_GET: Final = rb"(?:h.|j....)"
_INT: Final = rb"(?:K.|M..|J....)"
_SIZES: Final = b"".join((
    b"(", _GET, rb"|\)|(?:", _INT, b"\x85|", _INT, _INT, b"\x86|", _INT, _INT, _INT, rb"\x87|\(", _INT, rb"{4,16}t)",
    _PUT, b")",
))  # fmt: skip
_TENSOR: Final = re.compile(
    b"".join((
        rb"\(\((", _GET, b")(", _GET, rb")X(.)\0\0\0([0-9]+)", _PUT, b"(", _GET, b")(", _INT, rb")(N?)t", _PUT,
        b"Q(", _INT, b")", _SIZES, _SIZES, b"[\x88\x89](", _GET, rb")\)R", _PUT, b"t", _PUT, b"Rr(....)",
    )),
    re.DOTALL,
)  # fmt: skip
"""The arguments of `REBUILD`, those of its storage before them, the call, and what is remembered on the way."""

_WORD, _CLASS, _LENGTH, _KEY, _TAG, _NUMEL, _VIEW, _OFFSET, _SHAPE, _STRIDE, _HOOKS = (
    1,
    2,
    3,
    4,
    6,
    7,
    8,
    10,
    11,
    13,
    15,
)
_PUTS: Final = (5, 9, 12, 14, 16, 17, 18)
_UNITS: Final = 9
"""What the loop charges for a phrase, beside its storage and the tuples of its sizes and strides."""
_MOST: Final = 1024


class _Seen(NamedTuple):
    """A phrase that the loop is left to read, and what the machine holds before it does.

    `same` are the bytes that tell its kind; what it remembers has numbers from `first` on, `puts` of them.
    """

    nbytes: int
    persistent: int
    same: tuple[bytes, ...]
    key: str
    pid: tuple[Any, ...]
    first: int
    puts: int
    tuples: int
    told: tuple[int, int, int]


class _Kind:
    """A kind of phrase. `remembered` is what the memo is given, the key of the storage and the tensor left out."""

    __slots__ = ("device", "dtype", "following", "keyed", "nbytes", "node", "numel", "persistent", "puts",
                 "remembered", "same", "units", "unpack")  # fmt: skip

    def __init__(self, seen: _Seen, node: TensorNode, made: list[Any], storage: tuple[str, str, str, int]) -> None:
        first, *rest = seen.same
        form = f"<{len(first)}s{len(seen.key)}s" + "".join(f"{len(piece)}sI" for piece in rest)
        self.unpack = Struct(form).unpack_from
        self.nbytes, self.same, self.puts, self.persistent = seen.nbytes, seen.same, seen.puts, seen.persistent
        self.units = _UNITS + seen.tuples
        self.node = node
        self.dtype, _, self.device, self.numel = storage
        self.keyed = made[0] == seen.key
        self.remembered = [value if value is node.shape or value is node.stride else LATER for value in made[:-1]]
        self.following: dict[_Kind | None, _Kind] = {}


class Phrases:
    """The phrases of one pickle, whose storages `stored` makes and `named` takes from a persistent id."""

    __slots__ = ("_before", "_kinds", "_last", "_named", "_seen", "_stored")

    def __init__(self, stored: Stored, named: Named) -> None:
        self._stored, self._named = stored, named
        self._kinds: dict[tuple[bytes, ...], _Kind] = {}
        self._last: _Kind | None = None
        self._before: _Kind | None = None
        self._seen: _Seen | None = None

    def take(self, m: Machine, pos: int) -> int:
        """The end of the phrase that begins at `pos`, after it was taken; 0 where the loop must read it."""
        last = self._last
        if last is not None:
            kind = last.following.get(self._before)
            if kind is not None and pos + kind.nbytes <= m.size:
                fields = kind.unpack(m.data, pos)
                if fields[::2] == kind.same:
                    return self._taken(m, pos, kind, fields)
        return self._looked_up(m, pos)

    def _taken(self, m: Machine, pos: int, kind: _Kind, fields: tuple[Any, ...]) -> int:
        memo: Any = m.memo
        first, digits = len(memo), fields[1]
        puts = kind.puts
        if fields[3] != first or (puts > 1 and fields[3::2] != tuple(range(first, first + puts))):
            return 0
        if not digits.isdigit():
            return 0
        key, like = digits.decode(), kind.node
        m.pos = pos + kind.persistent
        storage = self._stored(m, kind.dtype, key, kind.device, kind.numel)
        m.left -= kind.units
        if m.left < 0:
            m.charge(0)
        node = TensorNode(
            storage, like.offset, like.shape, like.stride, storage.dtype, storage.device, like.requires_grad
        )
        if puts > 1:
            memo += kind.remembered
            if kind.keyed:
                memo[first] = key
        memo.append(node)
        m.stack[-1] = node
        self._before, self._last = self._last, kind
        return pos + kind.nbytes

    def _looked_up(self, m: Machine, pos: int) -> int:
        if self._seen is not None:
            self._learn(m, self._seen)
            self._seen = None
        found = _TENSOR.match(m.data, pos)
        if found is None or found[_LENGTH][0] != len(found[_KEY]):
            return 0
        same = _same(found)
        kind = self._kinds.get(same)
        if kind is None:
            if len(self._kinds) < _MOST:
                self._seen = _seen(m, found, same)
            return 0
        if self._last is not None:
            self._last.following[self._before] = kind
        return self._taken(m, pos, kind, kind.unpack(m.data, pos))

    def _learn(self, m: Machine, seen: _Seen) -> None:
        """What the loop made of a phrase, if that was one plain tensor and nothing else was noticed since."""
        made: Any = m.memo[seen.first : seen.first + seen.puts]  # type: ignore[index]
        node = made[-1] if len(made) == seen.puts else None
        if type(node) is TensorNode and type(node.storage) is Storage and seen.told == _told(m):
            storage = self._named(m, seen.pid, len(seen.pid))
            self._kinds[seen.same] = _Kind(seen, node, made, storage)


def _same(found: re.Match[bytes]) -> tuple[bytes, ...]:
    """The bytes of a phrase between what varies: the key of its storage and the numbers of what is remembered."""
    varying = [found.span(_KEY), *(found.span(put) for put in _PUTS if found[put] is not None)]
    places = [found.start(), *(place for span in varying for place in span)]
    return tuple([bytes(found.string[start:stop]) for start, stop in list(pairwise(places))[::2]])


def _seen(m: Machine, found: re.Match[bytes], same: tuple[bytes, ...]) -> _Seen | None:
    """A phrase to learn; None where what it recalls is not there, or is not what it takes."""
    memo: Any = m.memo
    numbers = [int.from_bytes(found[group][1:], "little") for group in (_WORD, _CLASS, _TAG, _HOOKS)]
    if max(numbers) >= len(memo):
        return None
    word, kind, tag, hooks = (memo[number] for number in numbers)
    if hooks is not m.globals.get(_NO_HOOKS):
        return None
    key, numel = found[_KEY].decode(), _number(found[_NUMEL])
    tuples = sum(found[group][:1] in (b"K", b"M", b"J", b"(") for group in (_SHAPE, _STRIDE))
    puts = sum(found[put] is not None for put in _PUTS)
    pid = (word, kind, key, tag, numel, *([None] if found[_VIEW] else []))
    return _Seen(found.end() - found.start(), found.start(_OFFSET) - found.start(), same, key, pid, len(memo), puts,
                 tuples, _told(m))  # fmt: skip


def _number(code: bytes) -> int:
    return int.from_bytes(code[1:], "little", signed=code[:1] == b"J")


def _told(m: Machine) -> tuple[int, int, int]:
    """How much a machine has noticed so far, of what a plain tensor gives no cause to."""
    return len(m.calls), sum(m.notes.values()), len(m.globals)
