"""The frame of a tree: its containers and their keys, as plain JSON values, without the leaves.

torch.distributed.checkpoint keeps leaves by flat keys and forgets what held them: empty containers, tuples, classes of
mappings, keys that are no text. The frame stands beside them and gives all of that back. Pure: knows no tensor.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["DEEPEST", "FrameError", "Framed", "framed", "is_at_home", "leaves_of", "plain", "rebuilt"]

_MAPPINGS: Final[dict[str, type[dict[Any, Any]]]] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_SEQUENCES: Final[dict[str, Callable[[list[Any]], Any]]] = {"list": list, "tuple": tuple}
_MARK: Final = "~"

DEEPEST: Final = 100
"""How many keys may lead to a leaf."""


class FrameError(ValueError):
    """A tree that has no frame, or a frame that describes none."""


@dataclass(slots=True)
class Framed:
    """A tree taken apart.

    `leaves` go by flat key, the key path joined by dots, which is what torch's planner makes of it. `paths` are the key
    paths as torch's planner notes them, `keys` the real ones. `frame` is what `rebuilt` takes. `left_out` are the
    places of mappings whose `_metadata` is of no plain values.
    """

    leaves: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    keys: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    frame: Any = None
    left_out: list[tuple[Any, ...]] = field(default_factory=list)


def framed(tree: Any, is_part: Callable[[Any], bool], is_tensor: Callable[[Any], bool]) -> Framed:
    """Take a tree apart as torch.distributed.checkpoint does: mappings, and lists in which tensors or mappings are.

    A tuple, which torch leaves whole, is taken apart where it holds a part: a tensor that several ranks hold together.
    Other lists and tuples are leaves. Raises FrameError for a container inside of itself, or too deep.

    >>> made = framed({"a": {1: "x"}, "b": []}, lambda leaf: False, lambda leaf: False)
    >>> made.leaves, made.frame
    ({'a.1': 'x', 'b': []}, ['dict', [['a', ['dict', [[1, 'a.1']]]], ['b', 'b']]])
    >>> rebuilt(made.frame, made.leaves)
    {'a': {1: 'x'}, 'b': []}
    """
    made = Framed()
    made.frame = _Taker(made, is_part, is_tensor).node(tree, (), ())
    return made


@dataclass(slots=True)
class _Taker:
    made: Framed
    is_part: Callable[[Any], bool]
    is_tensor: Callable[[Any], bool]
    open: set[int] = field(default_factory=set)

    def node(self, value: Any, keys: tuple[Any, ...], path: tuple[str | int, ...]) -> Any:
        if not self._is_open(value):
            return self._leaf(value, keys, path)
        if id(value) in self.open:
            raise FrameError(f"{'.'.join(map(str, keys))} contains itself")
        self.open.add(id(value))
        if isinstance(value, dict):
            rows = [[plain(k), self.node(item, (*keys, k), (*path, str(k)))] for k, item in value.items()]
            made = [type(value).__name__, rows]
            metadata = getattr(value, "_metadata", None)
            if metadata is not None:
                made += self._metadata(metadata, keys)
        else:
            items = [self.node(item, (*keys, i), (*path, i)) for i, item in enumerate(value)]
            made = [type(value).__name__, items]
        self.open.discard(id(value))
        return made

    def _metadata(self, metadata: Any, keys: tuple[Any, ...]) -> list[Any]:
        try:
            return [plain(metadata)]
        except FrameError:
            self.made.left_out.append(keys)
            return []

    def _leaf(self, value: Any, keys: tuple[Any, ...], path: tuple[str | int, ...]) -> str:
        """Its flat key: another than torch's where two key paths read the same."""
        key = ".".join(map(str, path))
        if len(path) > DEEPEST:
            raise FrameError(f"{key[:80]}... is nested more than {DEEPEST} levels deep")
        while key in self.made.leaves:
            path = (*path[:-1], f"{path[-1]}{_MARK}") if path else (_MARK,)
            key = ".".join(map(str, path))
        self.made.leaves[key], self.made.paths[key], self.made.keys[key] = value, path, keys
        return key

    def _is_open(self, value: Any) -> bool:
        """Whether a value is taken apart."""
        if type(value).__name__ in _MAPPINGS and isinstance(value, dict):
            return True
        if type(value) is tuple:
            return any(self.is_part(item) or (type(item) is tuple and self._is_open(item)) for item in value)
        if type(value) is not list:
            return False
        return any(self.is_part(item) or self.is_tensor(item) or self._is_open(item) for item in value)


def plain(value: Any) -> Any:
    """A value of plain Python types as JSON values that `_value` turns back; FrameError for any other.

    Text, numbers, bools and None stand for themselves; the rest is a list that begins with its type's name.
    """
    kind = type(value).__name__
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, dict) and kind in _MAPPINGS:
        return [kind, [[plain(key), plain(item)] for key, item in value.items()]]
    if type(value) in (list, tuple):
        return [kind, [plain(item) for item in value]]
    raise FrameError(f"a value of {kind}")


def leaves_of(frame: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """The flat keys that a frame refers to, each with the one that belongs at its place, but for what tells two apart.

    Raises FrameError for what is no frame.
    """
    if type(frame) is str:
        yield frame, ".".join(path)
        return
    kind, rows, *_ = _opened(frame)
    for number, row in enumerate(rows):
        if kind in _MAPPINGS:
            yield from leaves_of(row[1], (*path, str(_key(row[0]))))
        else:
            yield from leaves_of(row, (*path, str(number)))


def is_at_home(key: str, place: str) -> bool:
    """Whether a flat key belongs at a place of a frame.

    >>> is_at_home("a.b~", "a.b"), is_at_home("a.c", "a.b")
    (True, False)
    """
    return key.rstrip(_MARK) == place.rstrip(_MARK)


def rebuilt(frame: Any, leaves: Mapping[str, Any]) -> Any:
    """The tree that a frame and its leaves make. Raises FrameError for a frame that is none or lacks a leaf."""
    if type(frame) is str:
        if frame not in leaves:
            raise FrameError(frame)
        return leaves[frame]
    kind, rows, *metadata = _opened(frame)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind]([rebuilt(row, leaves) for row in rows])
    made = _MAPPINGS[kind]()
    for key, item in rows:
        made[_key(key)] = rebuilt(item, leaves)
    if metadata and isinstance(made, OrderedDict):
        made._metadata = _value(metadata[0])  # type: ignore[attr-defined]
    return made


def _opened(frame: Any) -> list[Any]:
    """A container of a frame, whose rows are proved to be rows."""
    if type(frame) is not list or not 2 <= len(frame) <= 3 or type(frame[1]) is not list:
        raise FrameError("a node that is none")
    if frame[0] in _MAPPINGS and all(type(row) is list and len(row) == 2 for row in frame[1]):
        return frame
    if frame[0] in _SEQUENCES:
        return frame
    raise FrameError("a node of an unknown kind")


def _value(node: Any) -> Any:
    """What `plain` wrote."""
    if type(node) is not list:
        if isinstance(node, dict):
            raise FrameError("a value that is none")
        return node
    if len(node) == 2 and node[0] == "bytes" and type(node[1]) is str:
        try:
            return bytes.fromhex(node[1])
        except ValueError:
            raise FrameError("bytes that are none") from None
    kind, rows, *_ = _opened(node)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind]([_value(row) for row in rows])
    made = _MAPPINGS[kind]()
    for key, item in rows:
        made[_key(key)] = _value(item)
    return made


def _key(node: Any) -> Any:
    key = _value(node)
    try:
        hash(key)
    except TypeError:
        raise FrameError("a key that is none") from None
    return key
