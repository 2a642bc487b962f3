"""Pickled objects as the plain values that say what they say, where they do (`values.plainer`). Pure; runs nothing.

What has none stays where it is, for the writer to refuse; or it is left out, and told. Cycles and shared values are
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from typing import Any, Final
from uuid import UUID

from unmoor.values.dangers import is_dangerous
from unmoor.values.nodes import CompositeTensor, NumpyArray, Opaque, TensorNode, TorchValue
from unmoor.values.plainer import FIRST, JOINED, LISTED
from unmoor.values.plan import Change
from unmoor.values.text import key_text

from .taken import Keys, Taken, remade, with_tree

__all__ = ["plain_values"]

_NONE: Final = object()
"""Stands for the plain value of what has none."""

_MOST: Final = 1_000_000
"""The longest range that is written out."""

_LEAVES: Final = (str, int, float, bool, bytes, type(None))
_MODULE: Final = {"_parameters", "_modules"}


def plain_values(
    taken: Taken, *, left_out: bool, unwritable: Callable[[Any], str]
) -> tuple[Taken, list[Change], list[Change]]:
    """The tree with plain values in the place of objects, what became of each, and what was left out.

    With `left_out` all that has no plain value is taken away: an entry of a mapping with its key, an element of a list
    as None. `unwritable` says of a composite tensor why it cannot be written, "" where it can.
    """
    work = _Plain(left_out, unwritable)
    tree = work(taken.tree, ())
    tree = None if tree is _NONE else tree
    if not work.touched:
        return taken, [], []
    return with_tree(taken, tree), work.changes, work.gone


class _Plain:
    def __init__(self, left_out: bool, unwritable: Callable[[Any], str]) -> None:  # noqa: FBT001 - passed on by name
        self._leave_out, self._unwritable = left_out, unwritable
        self._done: dict[int, Any] = {}
        self._keep: list[Any] = []
        self._whats: dict[int, str] = {}
        self.changes: list[Change] = []
        self.gone: list[Change] = []

    @property
    def touched(self) -> bool:
        return bool(self.changes or self.gone)

    def __call__(self, value: Any, keys: Keys) -> Any:
        """The plain value of what stands at `keys`; the same object where it is plain; _NONE where it is left out."""
        if type(value) in _LEAVES or isinstance(value, TensorNode):
            return value
        if id(value) in self._done:
            return self._again(value, keys)
        self._keep.append(value)
        if isinstance(value, dict):
            return self._mapping(value, value.items(), keys)
        if isinstance(value, list):
            return self._list(value, value, keys)
        if isinstance(value, tuple):
            return self._remember(value, tuple(self._item(item, (*keys, i)) for i, item in enumerate(value)))
        return self._remember(value, self._other(value, keys))

    def _remember(self, value: Any, made: Any) -> Any:
        self._done[id(value)] = made
        return made

    def _again(self, value: Any, keys: Keys) -> Any:
        """What became of a value that was met before; where it is left out, that is told of every place."""
        made = self._done[id(value)]
        if made is _NONE:
            self.gone.append(Change("extra", key_text(keys), self._whats[id(value)], "left out"))
        return made

    def _item(self, value: Any, keys: Keys) -> Any:
        made = self(value, keys)
        return None if made is _NONE else made

    def _mapping(self, value: Any, items: Any, keys: Keys) -> Any:
        made = self._remember(value, remade(value if isinstance(value, dict) else {}, ()))
        for key, item in items:
            plain = self._key(key, keys)
            found = self(item, (*keys, plain))
            if plain is not _NONE and found is not _NONE:
                made[plain] = found
        return made

    def _key(self, key: Any, keys: Keys) -> Any:
        if type(key) in _LEAVES or not isinstance(key, Opaque):
            return key
        found = self(key, (*keys, "(a key)"))
        plain = type(found) in _LEAVES or found is _NONE
        return found if plain else key

    def _list(self, value: Any, items: Any, keys: Keys) -> Any:
        made: list[Any] = self._remember(value, [])
        made.extend(self._item(item, (*keys, i)) for i, item in enumerate(items))
        return made

    def _other(self, value: Any, keys: Keys) -> Any:
        if isinstance(value, Opaque):
            return self._object(value, keys)
        if isinstance(value, CompositeTensor):
            why = self._unwritable(value)
            return self._without(keys, why, value) if why else value
        found = _leaf(value)
        if found is None:
            return value
        self._tell(keys, found[0], found[1])
        return found[1]

    def _object(self, value: Opaque, keys: Keys) -> Any:
        found = _text(value)
        if found is not None:
            return self._told(keys, value.name, found)
        if value.name.startswith("omegaconf."):
            inner = _omega(value)
            return self._told(keys, value.name, self(inner, keys)) if inner is not value else self._refused(value, keys)
        if value.how == "global" or value.kwargs or value.name == "functools.partial" or is_dangerous(value.name):
            return self._refused(value, keys)
        if value.name in LISTED:
            given = value.args[0] if value.args and isinstance(value.args[0], list | tuple) else []
            return self._told(keys, value.name, self._list(value, [*given, *value.items], keys))
        state = _attributes(value)
        if state is None or state.keys() >= _MODULE or "param_groups" in state or value.name.startswith("__torch__."):
            return self._refused(value, keys)
        return self._of_class(value, state, keys)

    def _of_class(self, value: Opaque, state: Mapping[Any, Any], keys: Keys) -> Any:
        """An object by what it was made of: its entries, elements or attributes, or what its class was called with."""
        bare = not value.args and (value.how == "new" or _is_class(value.name))
        if bare and not value.items:
            entries = [*value.entries, *((k, v) for k, v in state.items() if not _is_entry(k, value))]
            return self._told(keys, value.name, self._mapping(value, entries, keys))
        if bare and not state and not value.entries:
            return self._told(keys, value.name, self._list(value, value.items, keys))
        if state or value.items or value.entries or not value.args:
            return self._refused(value, keys)
        (first, *rest) = value.args
        if value.how == "new":
            alone = not rest and (type(first) is tuple or type(first) in _LEAVES)
            return self._told(keys, value.name, self(first if alone else tuple(value.args), keys))
        if not rest and type(first) in _LEAVES and _is_class(value.name):
            return self._told(keys, value.name, first)
        return self._refused(value, keys)

    def _told(self, keys: Keys, before: str, made: Any) -> Any:
        self._tell(keys, before, made)
        return made

    def _tell(self, keys: Keys, before: str, made: Any) -> None:
        self.changes.append(Change("extra", key_text(keys) or "(the whole file)", before, _kind(made)))

    def _refused(self, value: Opaque, keys: Keys) -> Any:
        return self._without(keys, value.name, value)

    def _without(self, keys: Keys, what: str, value: Any) -> Any:
        if not self._leave_out:
            return value
        self._whats[id(value)] = what
        self.gone.append(Change("extra", key_text(keys) or "(the whole file)", what, "left out"))
        return _NONE


def _attributes(value: Opaque) -> Mapping[Any, Any] | None:
    """The attributes of an object, those in slots among them; None where its state is of a form of its own."""
    if value.state is None:
        return {}
    if isinstance(value.state, Mapping):
        return value.state
    pair = value.state if type(value.state) is tuple and len(value.state) == 2 else ()
    known = bool(pair) and all(part is None or isinstance(part, Mapping) for part in pair)
    return {key: item for part in pair for key, item in (part or {}).items()} if known else None


def _is_entry(key: Any, value: Opaque) -> bool:
    """Whether an attribute repeats an entry, as in dicts whose keys are attributes too."""
    return any(key == other for other, _ in value.entries if type(other) is type(key))


def _is_class(name: str) -> bool:
    """Whether a name is spelled as classes are: a function that was called gave who knows what."""
    last = name.rpartition(".")[2].lstrip("_")
    return last[:1].isupper()


def _text(value: Opaque) -> str | None:
    """The text of a path, an identifier, a number of a class of its own."""
    if value.name in JOINED and all(type(part) is str for part in value.args):
        sep = JOINED[value.name]
        parts = [str(part) for part in value.args]
        head = parts[0] if parts and parts[0].endswith(sep) else ""
        return head + sep.join(parts[1:] if head else parts) or "."
    if value.name in FIRST and value.args and type(value.args[0]) is str:
        return str(value.args[0])
    if value.name == "uuid.UUID" and isinstance(value.state, Mapping) and type(value.state.get("int")) is int:
        number = value.state["int"]
        return str(UUID(int=number)) if 0 <= number < 1 << 128 else None
    return None


def _omega(value: Opaque) -> Any:
    """What a node of OmegaConf holds; the node itself where it has another form."""
    state = value.state if isinstance(value.state, Mapping) else {}
    return state["_content"] if "_content" in state else state.get("_val", value)


def _leaf(value: Any) -> tuple[str, Any] | None:
    """The class of a value that is no object, and its plain value; None where it is kept as it is."""
    found: Any = None
    if isinstance(value, datetime | date | time):
        found = value.isoformat()
    elif isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, timezone):
        found = str(value)
    elif isinstance(value, slice):
        found = (value.start, value.stop, value.step)
    elif isinstance(value, range) and not value[_MOST:]:  # len() takes no more than 64 bits
        found = list(value)
    elif isinstance(value, frozenset):
        found = set(value)
    elif isinstance(value, TorchValue) and value.kind in ("layout", "memory_format", "qscheme"):
        return f"torch.{value.kind}", f"torch.{value.value}"
    elif isinstance(value, NumpyArray):
        found = _listed(value)
        return None if found is None else (f"numpy array of {value.dtype}", found)
    return None if found is None else (type(value).__name__, found)


def _listed(array: NumpyArray) -> Any:
    """The elements of an array of text, bytes or plain objects as nested lists; None for numbers."""
    if array.values is not None:
        flat = list(array.values) if all(type(item) in _LEAVES for item in array.values) else None
    else:
        flat = _texts(array)
    if flat is None or 0 in array.shape:
        return flat if flat == [] else None
    return _nested(flat, array.shape, fortran=array.fortran)


def _texts(array: NumpyArray) -> list[Any] | None:
    kind, digits = array.dtype[1:2], array.dtype[2:]
    if kind not in ("U", "S") or not digits.isdecimal() or not int(digits):
        return None
    size = int(digits) * (4 if kind == "U" else 1)
    pieces = [array.data[i : i + size] for i in range(0, len(array.data), size)]
    if kind == "S":
        return [piece.rstrip(b"\0") for piece in pieces]
    coding = "utf-32-be" if array.dtype[0] == ">" else "utf-32-le"
    try:
        return [piece.decode(coding).rstrip("\0") for piece in pieces]
    except UnicodeDecodeError:
        return None


def _nested(flat: list[Any], shape: tuple[int, ...], *, fortran: bool) -> Any:
    if not shape:
        return flat[0]
    if fortran:
        return [_nested(flat[i :: shape[0]], shape[1:], fortran=True) for i in range(shape[0])]
    size = len(flat) // shape[0]
    return [_nested(flat[i * size : (i + 1) * size], shape[1:], fortran=False) for i in range(shape[0])]


def _kind(value: Any) -> str:
    name = "None" if value is None else type(value).__name__
    return name if value is None else f"an {name}" if name[0] in "aeiou" else f"a {name}"
