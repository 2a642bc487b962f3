"""The facts of a file below its role table: dtypes, hyper-parameters, wrappers, ranks, writer, imports. Pure.

Each fact is a word and a sentence; text, page and document tell the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from unmoor.values.catalog import Catalog
from unmoor.values.text import count, format_bytes, listing
from unmoor.values.wrapping import WRAPPER_SEGMENTS

from .claims import Claims
from .content import Safety
from .members import Membership, relative_name
from .parts import class_text

__all__ = ["Fact", "dtypes", "facts", "settings", "wrapped"]

Fact = tuple[str, str]
"""A word and a sentence. Escaping is for whoever shows it."""

_DTYPES: Final = 6
_VALUES: Final = 3
_NAMES: Final = 6
_WRAPPED: Final = 4
_SETTINGS: Final = 6

_QUIET: Final = frozenset({"lr", "decoupled_weight_decay"})
"""Options that the role table tells."""


def facts(catalog: Catalog, members: Membership, claims: Claims, judged: Safety) -> list[Fact]:
    """All that a reader may want to know and no other line says."""
    told = [("settings", text) for text in settings(members, claims)]
    told += [("wrapped", text) for text in wrapped(members)]
    rows = [
        ("dtypes", _dtypes_text(catalog)),
        *told,
        ("ranks", _ranks(catalog, claims)),
        ("writer", _writer(claims)),
        ("imports", _imports(catalog, judged)),
    ]
    return [(word, text) for word, text in rows if text]


def dtypes(catalog: Catalog) -> dict[str, tuple[int, int]]:
    """Dtype -> (tensors, bytes), largest first."""
    sums: dict[str, tuple[int, int]] = {}
    for entry in catalog.tensors:
        number, nbytes = sums.get(entry.dtype, (0, 0))
        sums[entry.dtype] = (number + 1, nbytes + entry.nbytes)
    return dict(sorted(sums.items(), key=lambda item: -item[1][1]))


def _dtypes_text(catalog: Catalog) -> str:
    """Each dtype with its tensors and bytes; "" where the tree of names says that all weights have one."""
    found = dtypes(catalog)
    if len(found) == 1 and _LISTED.issuperset(catalog.roles()):
        return ""
    counts = {name: f"{n:,}" for name, (n, _) in found.items()}
    counts.update({name: count(n, "tensor") for name, (n, _) in list(found.items())[:1]})
    words = [f"{name} ({counts[name]}, {format_bytes(b).replace(' ', _JOIN)})" for name, (_, b) in found.items()]
    return listing(words, _DTYPES)


_JOIN: Final = "\xa0"
"""A space at which no line breaks."""

_LISTED: Final = frozenset({"model", "ema", "loss"})


def settings(members: Membership, claims: Claims) -> list[str]:
    """The options of each optimizer but its learning rate, those that are off or unset left out."""
    parts = [part for part, _ in members.parts if part.role == "optimizer"]
    texts = []
    for part in parts:
        text = _options(part.detail.get("options"))
        name = part.path if len(parts) > 1 else class_text(part, claims.of(part.keys))
        texts += [f"{name}: {text}"] if text else []
    return _few(texts, _SETTINGS, "optimizer")


def _few(texts: Sequence[str], shown: int, noun: str) -> list[str]:
    more = len(texts) - shown
    return [*texts[:shown], *([f"and {count(more, noun)} more"] if more > 0 else [])]


def _options(options: Any) -> str:
    """`betas (0.9, 0.999), weight_decay 0 or 0.01`: what groups have in common once, where they differ each value."""
    groups = [group for group in options or () if isinstance(group, Mapping)]
    names = dict.fromkeys(str(name) for group in groups for name in group if name not in _QUIET)
    words = []
    for name in names:
        values = list(dict.fromkeys(_value(group[name]) for group in groups if name in group))
        shown = [value for value in values if value not in ("False", "None")]
        if shown:
            alike = " or ".join(values[:_VALUES]) + (" or others" if len(values) > _VALUES else "")
            words.append(name if values == ["True"] else f"{name}\xa0{alike}".replace(", ", ",\xa0"))
    return ", ".join(words)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_value, value[:_NAMES]))}{', ...' if len(value) > _NAMES else ''})"
    return str(value)


def wrapped(members: Membership) -> list[str]:
    """The wrappers whose segments stand in the names of a model, by part."""
    texts = []
    for part, entries in members.parts:
        names = [relative_name(part, entry) for entry in entries]
        found = _segments(names) if part.role in ("model", "ema", "loss") else []
        if found:
            words = " and ".join(f"{segment}. ({WRAPPER_SEGMENTS[segment]})" for segment in found)
            texts.append(f"names in {part.path or 'the file'} hold {words}")
    return _few(texts, _WRAPPED, "part")


def _segments(names: Sequence[str]) -> list[str]:
    """Segments that a wrapper put in: a row of them before every name, or one anywhere that nobody else writes."""
    below = [name for name in names if name != "n_averaged"]
    found: dict[str, None] = {}
    head = ""
    while below and (segment := below[0][len(head) :].partition(".")[0]) in WRAPPER_SEGMENTS:
        head += f"{segment}."
        if not all(name.startswith(head) for name in below):
            break
        found[segment] = None
    own = [segment for segment in WRAPPER_SEGMENTS if segment[0] == "_" and segment not in found]
    found.update((segment, None) for segment in own if any(f".{segment}." in f".{name}" for name in below))
    return list(found)


def _ranks(catalog: Catalog, claims: Claims) -> str:
    """Files of ranks, where no line says how many ranks saved."""
    words = [f"files of {count(claims.files_of, 'rank')}"] if claims.files_of > 1 and claims.world < 2 else []
    stage = catalog.facts.get("stage")
    return ", ".join([*words, *([f"ZeRO stage {stage}"] if type(stage) is int and stage else [])])


def _writer(claims: Claims) -> str:
    words = [f"{_PROGRAMS.get(name, name)}\xa0{version}" for name, version in claims.writer.items()]
    words += [claims.created.replace("T", " ").replace("+00:00", " UTC").replace(" ", "\xa0")] if claims.created else []
    words += [f"saved as {claims.saved_as}"] if claims.saved_as else []
    return ", ".join(words)


_PROGRAMS: Final = {"python": "Python"}


def _imports(catalog: Catalog, judged: Safety) -> str:
    """What an unpickler would import, but for what the first lines name."""
    names = [name for name in catalog.globals if name not in judged.names]
    if not names:
        return ""
    return listing(list(_short(names)), _NAMES)


def _short(names: Sequence[str]) -> Iterator[str]:
    """Every name; the storage classes of torch, one for each dtype, together."""
    storages = [name for name in names if _STORAGE.fullmatch(name)]
    yield from (name for name in names if name not in storages)
    if storages:
        yield storages[0] if len(storages) == 1 else f"{len(storages)} classes torch.*Storage"


_STORAGE: Final = re.compile(r"torch\.\w+Storage")
