"""A tree without some of what stands in it. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

from .nodes import CompositeTensor, Opaque, TensorNode

__all__ = ["pruned"]

_GONE = object()


def pruned(tree: Any, gone: Mapping[int, str]) -> Any:
    """The tree without the values whose ids are in `gone`; None where nothing is left.

    An entry of a mapping goes with its key, an element of a list or tuple becomes None, a tensor made of several goes
    with any of them.

    >>> lost, kept = TensorNode(None, 0, (), (), "int8", "cpu"), 5
    >>> pruned({"a": lost, "b": [lost, kept]}, {id(lost): "cut short"})
    {'b': [None, 5]}
    """
    made = _Pruning(gone)(tree)
    return None if made is _GONE else made


class _Pruning:
    def __init__(self, gone: Mapping[int, str]) -> None:
        self._gone = gone
        self._done: dict[int, Any] = {}
        self._kept: list[Any] = []

    def __call__(self, value: Any) -> Any:
        if id(value) in self._gone:
            return _GONE
        if isinstance(value, CompositeTensor):
            return _GONE if any(id(part) in self._gone for part in value.children.values()) else value
        if isinstance(value, TensorNode):
            parts = value.quantizer[1:3] if value.quantizer else ()
            return _GONE if any(id(part) in self._gone for part in parts) else value
        if not isinstance(value, dict | list | tuple | set | Opaque):
            return value
        if id(value) not in self._done:
            self._kept.append(value)
            self._make(value)
        return self._done[id(value)]

    def _make(self, value: Any) -> None:
        if isinstance(value, tuple):
            items = tuple(map(self._element, value))
            same = all(a is b for a, b in zip(items, value, strict=True))
            self._done[id(value)] = value if same else items
        elif isinstance(value, set):
            self._done[id(value)] = {item for item in value if self(item) is not _GONE}
        elif isinstance(value, dict):
            self._mapping(value)
        elif isinstance(value, list):
            made: list[Any] = []
            self._done[id(value)] = made
            made.extend(map(self._element, value))
        else:
            self._object(value)

    def _mapping(self, value: dict[Any, Any]) -> None:
        made: Any = OrderedDict() if isinstance(value, OrderedDict) else Counter() if isinstance(value, Counter) else {}
        self._done[id(value)] = made
        if hasattr(value, "_metadata"):
            made._metadata = value._metadata
        for key, item in value.items():
            kept = self(item)
            if kept is not _GONE:
                made[key] = kept

    def _object(self, value: Opaque) -> None:
        made = Opaque(value.name, how=value.how)
        self._done[id(value)] = made
        made.args, made.kwargs = self(value.args), self(value.kwargs) if value.kwargs is not None else None
        state = self(value.state)
        made.state = None if state is _GONE else state
        made.items = [item for item in map(self, value.items) if item is not _GONE]
        made.entries = [(key, item) for key, item in ((k, self(v)) for k, v in value.entries) if item is not _GONE]

    def _element(self, value: Any) -> Any:
        made = self(value)
        return None if made is _GONE else made
