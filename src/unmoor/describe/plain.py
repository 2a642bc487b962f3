"""Builders for what the standard library pickles: plain values, never a call.

Each rule gets the machine and the pickled arguments and answers the value, or None where the arguments are not of the
one form it knows: the object then stays opaque. Copies are charged, sizes come from bytes that are there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from typing import Any, Final

from unmoor.values.nodes import Opaque

from .machine import Machine, Rule

__all__ = ["PLAIN_BUILDS", "PLAIN_RULES"]

_Args = tuple[Any, ...]
_LATIN: Final = ("latin1", "latin-1")


def _pairs(value: Any) -> list[Any] | None:
    """`[(k, v), ...]` or a dict as one flat list; None for anything else."""
    if type(value) in (dict, OrderedDict):
        return [part for pair in value.items() for part in pair]
    if type(value) in (list, tuple) and all(type(pair) in (list, tuple) and len(pair) == 2 for pair in value):
        return [part for pair in value for part in pair]
    return None


def _filled(m: Machine, target: Any, args: _Args) -> Any:
    if len(args) > 1:
        return None
    pairs = _pairs(args[0]) if args else []
    if pairs is None:
        return None
    m.charge(3 + len(pairs))
    m.put(target, pairs)
    return target


def _ordered_dict(m: Machine, args: _Args) -> Any:
    if not args:
        m.charge(3)
        return OrderedDict()
    return _filled(m, OrderedDict(), args)


def _dict(m: Machine, args: _Args) -> Any:
    return _filled(m, {}, args)


def _counter(m: Machine, args: _Args) -> Any:
    known = not args or type(args[0]) in (dict, OrderedDict)
    return _filled(m, Counter(), args) if known else None


def _default_dict(m: Machine, args: _Args) -> Any:
    """A plain dict: the factory would be code, and a dict that answers to missing keys hides mistakes."""
    value = _filled(m, {}, args[1:])
    if value is not None:
        m.note("plain-stand-in", "a collections.defaultdict is read as a plain dict")
    return value


def _items(args: _Args) -> list[Any] | None:
    if not args:
        return []
    known = len(args) == 1 and type(args[0]) in (list, tuple)
    return list(args[0]) if known else None


def _set(m: Machine, args: _Args) -> Any:
    items = _items(args)
    if items is None:
        return None
    m.charge(4 + len(items))
    value: set[Any] = set()
    m.extend(value, items)
    return value


def _frozenset(m: Machine, args: _Args) -> Any:
    value = _set(m, args)
    return None if value is None else frozenset(value)


def _list(m: Machine, args: _Args) -> Any:
    m.charge(1 + (len(args[0]) if args and type(args[0]) in (list, tuple) else 0))
    return _items(args)


def _tuple(m: Machine, args: _Args) -> Any:
    items = _list(m, args)
    return None if items is None else tuple(items)


def _complex(m: Machine, args: _Args) -> Any:
    m.charge(1)
    known = 1 <= len(args) <= 2 and all(type(part) is float for part in args)
    return complex(*args) if known else None


def _slice(m: Machine, args: _Args) -> Any:
    m.charge(1)
    known = 1 <= len(args) <= 3 and all(part is None or type(part) is int for part in args)
    return slice(*args) if known else None


def _range(m: Machine, args: _Args) -> Any:
    m.charge(2)
    known = 1 <= len(args) <= 3 and all(type(part) is int for part in args) and args[2:] != (0,)
    return range(*args) if known else None


def _moment(kind: Callable[..., Any]) -> Rule:
    """A date, time or both: packed into bytes, with a time zone of the standard library or none."""

    def rule(m: Machine, args: _Args) -> Any:
        m.charge(2)
        packed = [part.encode("utf-8", "surrogatepass") if type(part) is str else part for part in args[:1]]
        if not packed or type(packed[0]) is not bytes or any(type(part) is not timezone for part in args[1:]):
            return None
        try:
            return kind(*packed, *args[1:])
        except (TypeError, ValueError):
            return None

    return rule


def _duration(m: Machine, args: _Args) -> Any:
    m.charge(2)
    try:
        return timedelta(*args) if len(args) == 3 and all(type(part) is int for part in args) else None
    except OverflowError:
        return None


def _zone(m: Machine, args: _Args) -> Any:
    m.charge(2)
    known = 1 <= len(args) <= 2 and type(args[0]) is timedelta and all(type(part) is str for part in args[1:])
    try:
        return timezone(*args) if known else None
    except ValueError:
        return None


def _encode(m: Machine, args: _Args) -> Any:
    """Protocol 2 has no bytes: it writes them as latin-1 text and a call of _codecs.encode."""
    if len(args) != 2 or type(args[0]) is not str or args[1] not in _LATIN:
        return None
    m.charge(1 + len(args[0]) // 64)
    try:
        return args[0].encode("latin-1")
    except UnicodeEncodeError:
        raise m.corrupt("holds bytes as text that are none") from None


def _bytes(m: Machine, args: _Args) -> Any:
    return b"" if not args else _encode(m, args)


def _bytearray(m: Machine, args: _Args) -> Any:
    if args and type(args[0]) is bytes and len(args) == 1:
        m.charge(1 + len(args[0]) // 64)
        return bytearray(args[0])
    data = _bytes(m, args)
    return None if data is None else bytearray(data)


def _reconstructor(m: Machine, args: _Args) -> Any:
    """Copyreg's way to make an object of protocol 0 and 1: (class, base, value of the base)."""
    if len(args) != 3 or not all(type(part) is Opaque and part.how == "global" for part in args[:2]):
        return None
    cls, base, value = args
    made = m.call(cls, (), "new")
    if type(made) is not Opaque or base.name == "builtins.object":
        return made
    pairs = _pairs(value) if base.name == "builtins.dict" else None
    if pairs is not None:
        m.charge(len(pairs))
        m.put(made, pairs)
    elif base.name == "builtins.list" and type(value) is list:
        m.charge(len(value))
        m.extend(made, list(value))
    else:
        made.args = (value,)
    return made


def _new_object(m: Machine, args: _Args) -> Any:
    return m.call(args[0], args[1:], "new") if args else None


def _metadata(m: Machine, target: Any, state: Any) -> None:
    """The `_metadata` that a state dict carries; any other attribute could shadow a method and is left out."""
    known = state if type(state) in (dict, OrderedDict) else {}
    if "_metadata" in known:
        target._metadata = known["_metadata"]
    if len(known) > ("_metadata" in known) or known is not state:
        m.note("left-out", "attributes of an OrderedDict are left out")


PLAIN_RULES: Final[dict[str, Rule]] = {
    "collections.OrderedDict": _ordered_dict,
    "collections.Counter": _counter,
    "collections.defaultdict": _default_dict,
    "builtins.set": _set, "builtins.frozenset": _frozenset, "builtins.list": _list, "builtins.tuple": _tuple,
    "builtins.dict": _dict, "builtins.complex": _complex, "builtins.slice": _slice, "builtins.range": _range,
    "builtins.bytes": _bytes, "builtins.bytearray": _bytearray,
    "_codecs.encode": _encode,
    "datetime.datetime": _moment(datetime), "datetime.date": _moment(date), "datetime.time": _moment(time),
    "datetime.timedelta": _duration, "datetime.timezone": _zone,
    "copyreg._reconstructor": _reconstructor, "copyreg.__newobj__": _new_object,
}  # fmt: skip

PLAIN_BUILDS: Final[dict[type, Callable[[Machine, Any, Any], None]]] = {OrderedDict: _metadata}
