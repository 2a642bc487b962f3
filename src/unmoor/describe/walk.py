"""One walk over an inert tree: every tensor with its path and role, and the parts of the run.

Iterative, so that no depth overflows a stack; budgeted, so that a small file of containers that hold each other many
times over cannot cost more than a large honest one. A plain container is walked at every path it stands at; an object
once, because objects that know each other (modules, graphs) have more paths than anyone could read. Knows no format.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from unmoor.errors import HostileFile
from unmoor.values.nodes import CompositeTensor, NumpyArray, Opaque, TensorNode

from .classify import Match, match

__all__ = ["Found", "Seen", "Walked", "visits", "walk"]

_MAX_DEPTH: Final = 1000
_MIN_VISITS: Final = 100_000
_MAX_VISITS: Final = 20_000_000
_MAX_TEXT: Final = 128 << 20
_TEXT_OF_ONE: Final = 16
"""Bytes of what is kept of tensors that one visit pays for: honest ones take less, however deep they lie."""

_TENSOR: Final = 512
"""What is kept of a tensor, beside its path and its keys."""

_MAX_KEY: Final = 1024
_MAX_EXTRAS: Final = 1000
_ENTRY: Final = 4
_MAPPINGS: Final = frozenset({dict, OrderedDict, Counter})
_SEQUENCES: Final = frozenset({list, tuple})
_SIMPLE_KEYS: Final = frozenset({int, bool, float, type(None)})
_CONTAINERS: Final = _MAPPINGS | _SEQUENCES | {set, frozenset, Opaque, NumpyArray}
_TENSORS: Final = frozenset({TensorNode, CompositeTensor})


class Seen(NamedTuple):
    """One strided tensor at one place; `layout` tells the composite that it is a part of."""

    path: str
    keys: tuple[Any, ...]
    role: str
    node: TensorNode | CompositeTensor
    layout: str


Make = Callable[[str, tuple[Any, ...], str, Any, str], Any]
"""What is kept of a tensor, of the fields of `Seen`."""


class Found(NamedTuple):
    """One part and the range of `Walked.tensors` that lies in it."""

    order: int
    role: str
    kind: str
    keys: tuple[Any, ...]
    node: Any
    detail: dict[str, Any]
    start: int
    stop: int


class Walked(NamedTuple):
    """All tensors in the order of the tree, the parts, where objects of interest stand, and whether all was seen."""

    tensors: list[Any]
    parts: list[Found]
    places: dict[int, str]
    complete: bool


class _Frame:
    """One container on the way down. `rest` are the values beside parts so far, None where they are not counted."""

    __slots__ = ("above", "children", "found", "keys", "node", "open", "order", "rest", "role", "start", "text")

    def __init__(
        self, node: Any, keys: tuple[Any, ...], role: str, found: Match | None, start: int, order: int,
        above: _Frame | None,
    ) -> None:  # fmt: skip
        self.node, self.keys, self.role, self.found = node, keys, role, found
        self.start, self.order, self.above = start, order, above
        self.children = _children(node)
        self.rest: list[Found] | None = [] if not role and _size(node) <= _MAX_EXTRAS else None
        self.open = False
        self.text: str | None = None

    def prefix(self) -> str:
        """What the paths of its values begin with; made on demand, because most containers hold no tensor."""
        if self.text is None:
            if self.above is not None and self.above.text is None:
                self.above.text = _prefix(self.above.keys)
            known = self.above.text if self.above is not None else None
            self.text = _prefix(self.keys) if known is None else f"{known}{_key_text(self.keys[-1])}."
        return self.text


def visits(structure: int) -> int:
    """What a walk over a tree may cost that so many bytes describe."""
    return min(_MIN_VISITS + structure, _MAX_VISITS)


def walk(tree: Any, *, budget: int, wanted: Collection[int], path: str, make: Make = Seen) -> Walked:
    """Every tensor and part of `tree`. `wanted` are ids of objects to place, `make` makes what is kept of a tensor.

    `budget` bounds the visits: a value costs one, a container four more, which is less than what pickling it takes.
    """
    return _Walk(budget, wanted, path, make).run(tree)


class _Walk:
    def __init__(self, budget: int, wanted: Collection[int], path: str, make: Make) -> None:
        self.budget, self.wanted, self.path, self.make = budget, wanted, path, make
        self.frames: list[_Frame] = []
        self.entered: set[int] = set()
        self.tensors: list[Any] = []
        self.parts: list[Found] = []
        self.places: dict[int, str] = {}
        self.text = min(_MAX_TEXT, _TEXT_OF_ONE * budget)
        self.order = 0

    def run(self, tree: Any) -> Walked:
        if type(tree) in _CONTAINERS:
            self._enter(tree, "", (), "")
            self._drain()
        else:
            self._leaf(tree, "", None)
        self.parts.sort(key=lambda part: part.order)
        return Walked(self.tensors, self.parts, self.places, self.budget >= 0)

    def _drain(self) -> None:
        frames = self.frames
        while frames:
            frame = frames[-1]
            role, keys = frame.role, frame.keys
            for key, value in frame.children:
                kind = type(value)
                if kind is TensorNode and role and value.quantizer is None:
                    text = frame.text if frame.text is not None else frame.prefix()
                    self._seen(text + _key_text(key), (*keys, key), role, value, "strided")
                elif kind in _CONTAINERS:
                    if self.budget >= 0 and id(value) not in self.entered:
                        self._enter(value, key, (*frame.keys, key), frame.role or _unjudged(frame.node, value))
                        break
                elif kind in _TENSORS or frame.rest is not None:
                    self._leaf(value, key, frame)
            if frame is frames[-1]:
                self._leave(frames.pop())

    def _enter(self, node: Any, key: Any, keys: tuple[Any, ...], role: str) -> None:
        self.budget -= _ENTRY + _size(node)
        if len(keys) > _MAX_DEPTH:
            raise HostileFile(f"{self.path} nests its values deeper than {_MAX_DEPTH:,} levels", path=self.path)
        found = None if role else match(node, key)
        self.order += 1
        if id(node) in self.wanted:
            self.places.setdefault(id(node), ".".join(map(_key_text, keys)))
        if found:
            self._open()
        above = self.frames[-1] if self.frames else None
        role = found.role if found else role
        self.frames.append(_Frame(node, keys, role, found, len(self.tensors), self.order, above))
        self.entered.add(id(node))

    def _leave(self, frame: _Frame) -> None:
        if type(frame.node) is not Opaque:
            self.entered.discard(id(frame.node))
        found, stop = frame.found, len(self.tensors)
        if found:
            self.parts.append(Found(frame.order, *found[:2], frame.keys, frame.node, found.detail, frame.start, stop))
        elif frame.role:
            return
        elif frame.open or not self.frames:
            self._extras(frame, stop)
        else:
            self._keep(self.frames[-1], frame.node, frame.keys, frame.start, frame.order)

    def _extras(self, frame: _Frame, stop: int) -> None:
        """What stands beside parts, key by key; a container of very many values as one."""
        if frame.rest is not None:
            self.parts += frame.rest
        elif not frame.open:
            self.parts.append(_extra(frame.order, frame.keys, frame.node, frame.start, stop))

    def _keep(self, frame: _Frame, node: Any, keys: tuple[Any, ...], start: int, order: int) -> None:
        if frame.rest is not None:
            frame.rest.append(_extra(order, keys, node, start, len(self.tensors)))

    def _leaf(self, value: Any, key: Any, frame: _Frame | None) -> None:
        keys = (*frame.keys, key) if frame else ()
        role = frame.role if frame else ""
        start = len(self.tensors)
        found = match(value, key) if not role and type(value) is TensorNode else None
        if type(value) in _TENSORS:
            text = frame.prefix() + _key_text(key) if frame else ""
            self._tensor(value, keys, text, role or (found.role if found else "extra"))
        if not role:
            self._beside(value, keys, frame, found, start)

    def _beside(self, value: Any, keys: tuple[Any, ...], frame: _Frame | None, found: Match | None, start: int) -> None:
        """A value that stands in no part: one of its own, or one to keep until it is known what stands beside it."""
        self.order += 1
        if found:
            self.parts.append(Found(self.order, *found[:2], keys, value, found.detail, start, len(self.tensors)))
            self._open()
        elif frame is None:
            self.parts.append(_extra(self.order, keys, value, start, len(self.tensors)))
        else:
            self._keep(frame, value, keys, start, self.order)

    def _open(self) -> None:
        for frame in reversed(self.frames):
            if frame.open:
                break
            frame.open = True

    def _tensor(self, value: TensorNode | CompositeTensor, keys: tuple[Any, ...], text: str, role: str) -> None:
        layout, parts = _strided_parts(value)
        if type(value) is TensorNode or not parts:
            self._seen(text, keys, role, value, layout)
        for name, part in parts:
            self._seen(f"{text}.{name}" if text else name, (*keys, name), role, part, layout)

    def _seen(self, text: str, keys: tuple[Any, ...], role: str, node: Any, layout: str) -> None:
        self.text -= len(text) + 8 * len(keys) + _TENSOR
        if self.text < 0:
            raise HostileFile(
                f"{self.path} names its tensors at more places, or by longer names, than its bytes account for",
                path=self.path,
            )
        self.tensors.append(self.make(text, keys, role, node, layout))


def _unjudged(holder: Any, value: Any) -> str:
    """The role of what an unknown function is called with: no part of a run is judged in there.

    Arguments of `__new__` are the fields of a tuple class, and are judged.
    """
    return "extra" if type(holder) is Opaque and holder.how == "reduce" and value is holder.args else ""


def _extra(order: int, keys: tuple[Any, ...], node: Any, start: int, stop: int) -> Found:
    return Found(order, "extra", _kind(node), keys, node, {}, start, stop)


def _strided_parts(value: TensorNode | CompositeTensor) -> tuple[str, list[tuple[str, TensorNode]]]:
    """The layout of a tensor, and the strided tensors that it is made of by name."""
    if isinstance(value, CompositeTensor):
        return value.layout, list(value.children.items())
    if value.quantizer is None:
        return "strided", []
    numbers = zip(("scales", "zero_points"), value.quantizer[1:3], strict=False)
    return "quantized", [(name, part) for name, part in numbers if isinstance(part, TensorNode)]


def _prefix(keys: Iterable[Any]) -> str:
    return "".join([f"{_key_text(key)}." for key in keys])


def _key_text(key: Any) -> str:
    if type(key) is str:
        return key if len(key) <= _MAX_KEY else key[:_MAX_KEY] + "..."
    if type(key) in _SIMPLE_KEYS or (
        type(key) is tuple and all(type(k) in _SIMPLE_KEYS or type(k) is str for k in key)
    ):
        return str(key)
    return f"<{key.name}>" if type(key) is Opaque else f"<{type(key).__name__}>"


def _size(node: Any) -> int:
    kind = type(node)
    if kind is Opaque:
        state = node.state
        inner = len(state) if type(state) in _MAPPINGS or type(state) in _SEQUENCES else 1
        return 4 + inner + len(node.items) + len(node.entries)
    if kind is NumpyArray:
        return len(node.values or ())
    return len(node)


def _children(node: Any) -> Iterator[tuple[Any, Any]]:
    kind = type(node)
    if kind in _MAPPINGS:
        return iter(node.items())
    if kind is Opaque:
        return _opaque_children(node)
    if kind is NumpyArray:
        return enumerate(node.values or ())
    return enumerate(node)


def _opaque_children(node: Opaque) -> Iterator[tuple[Any, Any]]:
    """The state of an object by attribute, as its class would set it; arguments and elements beside it."""
    parts: list[Iterable[tuple[Any, Any]]] = [enumerate(node.items), node.entries]
    states = node.state if type(node.state) is tuple and len(node.state) == 2 else (node.state,)
    for state in states:
        if type(state) in _MAPPINGS:
            parts.append(state.items())
        elif state is not None:
            parts.append([("state", state)])
    if node.kwargs:
        parts.append(node.kwargs.items())
    if node.args:
        parts.append([("args", node.args)])
    return chain.from_iterable(parts)


def _kind(value: Any) -> str:
    if type(value) in _TENSORS:
        return "tensor"
    if type(value) in _MAPPINGS:
        return "mapping"
    if type(value) is Opaque:
        return "object"
    return "sequence" if type(value) in _CONTAINERS else "value"
