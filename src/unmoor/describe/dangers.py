"""What a pickle would run if it were loaded without care, as findings.

Nothing here imports or calls what it judges; inner pickles are read by the same inert reader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from unmoor.values.dangers import PICKLES, danger_of
from unmoor.values.finding import Finding
from unmoor.values.nodes import Opaque
from unmoor.values.text import count, listing

__all__ = ["Scan", "dangerous_calls", "find_dangers", "find_foreign"]

Scan = Callable[[bytes], "tuple[Collection[str], list[Opaque]] | None"]
"""Reads an inner pickle inertly: the names it holds and the calls it would make, None where it cannot be read."""

_KNOWN: Final = frozenset(
    {"datetime.datetime", "datetime.date", "datetime.time", "datetime.timedelta", "datetime.timezone",
     "decimal.Decimal", "fractions.Fraction", "uuid.UUID", "argparse.Namespace", "types.SimpleNamespace",
     "pathlib.Path", "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib.PurePosixPath", "pathlib.PureWindowsPath",
     "functools.partial", "numpy.dtype", "numpy.ndarray", "torch.Tensor", "torch._tensor.Tensor",
     *(f"builtins.{name}" for name in ("object", "int", "float", "bool", "str", "type", "Ellipsis", "NotImplemented"))}
)  # fmt: skip
_LOOK: Final = "harmless by itself, a step of many an attack: know the writer before unpickling it"
_LONG: Final = 200
_SHOWN: Final = 4
_MAX_FINDINGS: Final = 50
_MAX_NESTED: Final = 3


def dangerous_calls(calls: Iterable[Opaque]) -> list[Opaque]:
    """The calls that would run code or are suspicious, no more than a report can use."""
    grave = [call for call in calls if danger_of(call.name)]
    return grave[:_MAX_FINDINGS]


def find_dangers(names: Iterable[str], grave: Iterable[Opaque], places: Mapping[int, str], scan: Scan) -> list[Finding]:
    """A finding for each call of `grave`, and one for each such function that is only named.

    `places` tells where an object stands in the tree.
    """
    findings, called = [], set()
    for call in grave:
        called.add(call.name)
        findings.append(_call(call, danger_of(call.name), places.get(id(call), ""), _inner(call, scan, 0)))
    for name in names:
        grade = danger_of(name)
        if grade and name not in called and len(findings) < 2 * _MAX_FINDINGS:
            findings.append(_named(name, grade))
    return findings


def _call(call: Opaque, grade: str, place: str, inner: str) -> Finding:
    arguments = ", ".join(_short(part) for part in call.args[:_SHOWN]) + (", ..." if len(call.args) > _SHOWN else "")
    message = f"unpickling it would run {call.name}({arguments}){inner}"
    remedy = "never unpickle this file; its tensors can be read without running it" if grade == "danger" else _LOOK
    return Finding(_code(grade), grade, place, message, remedy)


def _named(name: str, grade: str) -> Finding:
    return Finding(
        _code(grade), grade, "", f"the file names {name}, without calling it by itself", "no checkpoint needs it"
    )


def _code(grade: str) -> str:
    return "runs-code" if grade == "danger" else "suspicious-call"


def _inner(call: Opaque, scan: Scan, depth: int) -> str:
    """What a pickle inside the pickle would run."""
    if call.name not in PICKLES or not call.args or type(call.args[0]) not in (bytes, bytearray):
        return ""
    read = scan(bytes(call.args[0])) if depth < _MAX_NESTED else None
    if read is None:
        return ", whose inner pickle cannot be read"
    names, calls = read
    grave = [f"{inner.name}({', '.join(map(_short, inner.args[:_SHOWN]))}){_inner(inner, scan, depth + 1)}"
             for inner in dangerous_calls(calls)[:_SHOWN]]  # fmt: skip
    if grave:
        return f", whose inner pickle would run {', '.join(grave)}"
    return f", whose inner pickle names {listing(sorted(names)) or 'nothing'}"


def find_foreign(names: Iterable[str], known: Collection[str]) -> list[Finding]:
    """One finding that lists the classes and functions that only their own code could build."""
    foreign = sorted(
        name
        for name in names
        if name not in known
        and name not in _KNOWN
        and not danger_of(name)
        and not name.startswith(("__torch__", "numpy.dtypes."))
    )
    if not foreign:
        return []
    message = f"holds objects of {count(len(foreign), 'unknown type')}, kept unopened: {listing(foreign, 8)}"
    return [Finding("foreign-class", "info", "", message)]


def _short(value: Any) -> str:
    if isinstance(value, str | bytes | bytearray):
        return repr(value if len(value) <= _LONG else value[:_LONG]) + ("..." if len(value) > _LONG else "")
    if type(value) is int:
        return repr(value) if value.bit_length() < 128 else f"<an integer of {value.bit_length()} bits>"
    if value is None or type(value) in (bool, float):
        return repr(value)
    return f"<{value.name}>" if type(value) is Opaque else f"<{type(value).__name__}>"
