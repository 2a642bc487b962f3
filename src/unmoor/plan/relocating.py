"""Which storage of a file gets which device tag: the role table for one device, map_location's meaning for a mapping.

As in a load that asks for the same, random number state is on the CPU whatever is asked; tensors without data keep
their tag. Pure: a catalog in, tags out. Whether this machine has a device does not matter: the file is for another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unmoor.errors import ArgumentConflict, UnsupportedFile, UsageError
from unmoor.values.catalog import Catalog, TensorEntry
from unmoor.values.nodes import CompositeTensor, Opaque, Storage, TorchValue
from unmoor.values.relocation import Kept, Move
from unmoor.values.tags import KNOWN_DEVICE_TYPES, is_tag, normalize_tag, split_tag
from unmoor.values.text import count, key_text, listing

from .placement import Wish, wished

__all__ = ["Retagging", "check_words", "retagging", "wish_of"]

Leaf = tuple[tuple[Any, ...], Any]
"""A key path and what stands there."""

_WORTH: Final = (str, TorchValue, CompositeTensor, Opaque, Mapping, list, tuple)
_META, _SCRIPT = "meta", "torchscript"
_WITHOUT_DATA: Final = frozenset({"meta", "lazy", "ideep", "opencl", "vulkan", "ipu", "ve", "xla", "hip"})
"""Device types that torch knows and on which torch.load can put no data."""

_SHOWN: Final = 6
_VISITS: Final = 200_000
_LONGEST: Final = 16
_WHY: Final = {
    "rng": "random number state is on the CPU, always",
    "optimizer": "an optimizer that is neither capturable nor fused counts there",
    "scheduler": "schedulers live on the CPU",
    "scaler": "a scaler moves it where it wants it",
    "metrics": "metrics live on the CPU",
    "extra": "no part of a model or an optimizer: it stays",
    "loader": "data is never moved",
}
"""Role -> why its tensors are not where the models go."""


@dataclass(frozen=True, slots=True)
class Retagging:
    """Storage key -> its tag, of all; and what that means for tensors, what a rule keeps, whose values name a tag.

    `pairs` are all old and new tags that go together. `others` is the tag, or old tag -> new, for storages that the
    catalog does not know.
    """

    tags: Mapping[str, str]
    pairs: frozenset[tuple[str, str]]
    others: str | Mapping[str, str]
    moves: tuple[Move, ...]
    kept: tuple[Kept, ...]
    values: tuple[str, ...]

    def tag(self, key: str, old: str) -> str:
        """The tag of a storage."""
        if key in self.tags:
            return self.tags[key]
        return self.others if isinstance(self.others, str) else self.others.get(_normal(old), old)

    def alike(self) -> dict[str, str]:
        """Old tag -> new, of all tags that change; none where the storages of one go to several devices."""
        goals: dict[str, set[str]] = {}
        for old, new in self.pairs:
            goals.setdefault(old, set()).add(new)
        if any(len(new) > 1 for new in goals.values()):
            return {}
        return {old: new for old, (new,) in goals.items() if new != old}


def check_words(to: Any, mapping: Any, path: str) -> None:
    """Look at what was asked for before a file is.

    Raises ArgumentConflict for both, UsageError for what is no device that torch.load can put data on.
    """
    if to is not None and mapping is not None:
        raise ArgumentConflict(
            "to and map_location are two answers to one question", remedy="Pass one of them.", path=path
        )
    if not isinstance(mapping, Mapping | None):
        raise ArgumentConflict(
            f"map_location={mapping!r} is no mapping from old to new tags",
            remedy='Pass {"cuda:7": "cuda:0"}, or to="cpu" for all.',
            path=path,
        )
    goals: dict[str, str] = {}
    for old, new in (mapping or {}).items():
        tag, goal = _tag(old), _goal(new)
        if goals.setdefault(tag, goal) != goal:
            raise UsageError(f"{tag} is mapped twice, to {goals[tag]} and to {goal}", remedy="Map each tag once.")
    if to is not None:
        _goal(to)


def wish_of(to: Any, mapping: Mapping[str, str] | None, tags: Sequence[str], path: str) -> Wish:
    """What was asked for, of a checkpoint whose storages bear `tags`.

    In `mapping` a type without an index stands for every device of that type that is not named itself. Raises
    UsageError for neither, and for tags that the checkpoint does not have.
    """
    found = f"{path} has {listing(tags, _SHOWN)}" if tags else f"{path} has no device tags"
    if to is not None:
        return Wish(device=_goal(to))
    if not mapping:
        raise UsageError(
            f"where should the tensors of {path} be? {found}",
            remedy=f"Say --to cpu, or --map {tags[0] if tags else 'cuda:7'}=cuda:0 as often as needed.",
            path=path,
        )
    known = {_normal(tag) for tag in tags}
    wanted = {_tag(old): _goal(new) for old, new in mapping.items()}
    expanded = {tag: goal for old, goal in wanted.items() for tag in known if tag != old and _covers(old, tag)}
    unknown = [old for old in wanted if old not in known and not any(_covers(old, tag) for tag in known)]
    if unknown:
        raise UsageError(
            f"{' and '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} no tag of {path}",
            details=[found],
            remedy="Map a tag that it has, or say --to for all.",
            path=path,
        )
    return Wish(mapping={**expanded, **{old: new for old, new in wanted.items() if old in known}})


def _covers(old: str, tag: str) -> bool:
    """Whether `cuda` stands for `cuda:3`."""
    return ":" not in old and tag.partition(":")[0] == old


def _tag(text: Any) -> str:
    try:
        return normalize_tag(str(text))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _goal(text: Any) -> str:
    """A tag that torch.load can put data on."""
    tag = _tag(text)
    kind = split_tag(tag)[0]
    if not is_tag(tag):
        raise UsageError(
            f"no torch knows a device {tag!r}",
            remedy=f"Types are {', '.join(sorted(_loadable()))}; an index follows a colon, as in cuda:0.",
        )
    if kind in _WITHOUT_DATA:
        raise UsageError(
            f"torch.load can put no data on {tag!r}", remedy=f"It can on {', '.join(sorted(_loadable()))}."
        )
    return tag


def _loadable() -> frozenset[str]:
    return KNOWN_DEVICE_TYPES - _WITHOUT_DATA - {"sim"}


def _normal(tag: str) -> str:
    try:
        return normalize_tag(tag)
    except ValueError:
        return tag


def retagging(catalog: Catalog, wish: Wish) -> Retagging:
    """The tags that a wish gives the storages of one file.

    Raises UnsupportedFile, naming them, for tensors whose device stands in an argument of their class's own.
    """
    placed = wished(catalog, wish)
    if catalog.format == _SCRIPT and wish.device is not None:
        placed = dict.fromkeys(placed, wish.device)  # one module, its constants included
    tags = {s.key: s.device if s.device == _META else placed[s.key] for s in catalog.storages}
    leaves = list(_leaves(catalog.tree))
    _refuse_own(catalog, leaves, wish)
    stored = {storage.key: storage for storage in catalog.storages}
    moved = [entry for entry in catalog.tensors if entry.storage in stored and _moves(entry, stored, tags)]
    gone = {stored[entry.storage].device for entry in moved}
    others = wish.device or (wish.mapping if isinstance(wish.mapping, Mapping) else {})
    kept = tuple(_kept(catalog, wish, tags))
    pairs = frozenset((storage.device, tags[storage.key]) for storage in catalog.storages)
    return Retagging(tags, pairs, others, tuple(_moved(moved, tags)), kept, tuple(_values(leaves, gone)))


def _moves(entry: TensorEntry, stored: Mapping[str, Storage], tags: Mapping[str, str]) -> bool:
    return stored[entry.storage].device != tags[entry.storage]


def _moved(entries: Sequence[TensorEntry], tags: Mapping[str, str]) -> Iterator[Move]:
    groups: dict[tuple[str, str], list[TensorEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.device, tags[entry.storage]), []).append(entry)
    for (old, new), group in groups.items():
        roles = tuple(dict.fromkeys(entry.role for entry in group))
        yield Move(old, new, len(group), sum(entry.nbytes for entry in group), roles)


def _kept(catalog: Catalog, wish: Wish, tags: Mapping[str, str]) -> Iterator[Kept]:
    """Tensors that a rule keeps from where the wish would have put them by their tag alone."""
    groups: dict[tuple[str, str, str], int] = {}
    for entry in catalog.tensors:
        device = tags.get(entry.storage)
        if device is not None and device not in (_META, _asked(wish, entry.device)):
            key = (_what(entry), device, _WHY.get(entry.role, _WHY["extra"]))
            groups[key] = groups.get(key, 0) + 1
    return (Kept(what, device, number, why) for (what, device, why), number in groups.items())


def _asked(wish: Wish, tag: str) -> str:
    if wish.device is not None:
        return wish.device
    return wish.mapping.get(_normal(tag), _normal(tag)) if isinstance(wish.mapping, Mapping) else tag


def _what(entry: TensorEntry) -> str:
    return f"optimizer {entry.keys[-1]}" if entry.role == "optimizer" and entry.keys else entry.role


def _refuse_own(catalog: Catalog, leaves: Sequence[Leaf], wish: Wish) -> None:
    """Tensors of classes that keep a device of their own beside their storage's tag."""
    own = [(entry.path, entry.device) for entry in catalog.tensors if not _follows(entry)]
    own += [
        (key_text(keys), str(value.detail["device"]))
        for keys, value in leaves
        if isinstance(value, CompositeTensor) and value.children and "device" in value.detail
    ]
    bad = [(path, device) for path, device in own if device != _META and _asked(wish, device) != _normal(device)]
    if bad:
        raise UnsupportedFile(
            f"{catalog.path}: {count(len(bad), 'tensor')} bear their device in an argument, not in a tag",
            details=[f"{path}: {device}" for path, device in bad[:_SHOWN]],
            remedy="Nothing was changed. Load it with unmoor.load(path, map_location=...) and save that.",
            path=catalog.path,
        )


def _follows(entry: TensorEntry) -> bool:
    if entry.node is None:
        return False
    return entry.node.storage is None or entry.node.storage.device == entry.device


def _values(leaves: Sequence[Leaf], gone: set[str]) -> Iterator[str]:
    """The places of values that name a device which tensors have left: torch.device objects, and texts."""
    for keys, value in leaves:
        if isinstance(value, str) and value in gone and keys:
            yield f"{key_text(keys)} ({value!r})"
        elif isinstance(value, TorchValue) and value.value in gone:
            yield f"{key_text(keys)} (torch.device({value.value!r}))"


def _leaves(tree: Any) -> Iterator[Leaf]:
    """Values that may name a device, and tensors made of others, each with its key path."""
    left: list[Leaf] = [((), tree)]
    seen: set[int] = set()
    while left and len(seen) < _VISITS:
        keys, value = left.pop()
        if isinstance(value, str):
            if is_tag(value):
                yield keys, value
        elif isinstance(value, TorchValue):
            if value.kind == "device":
                yield keys, value
        elif id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, CompositeTensor):
                yield keys, value
            else:
                left += [((*keys, key), part) for key, part in _inside(value) if isinstance(part, _WORTH)]


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, Opaque):
        parts = {"args": value.args, "kwargs": value.kwargs, "state": value.state, "items": value.items}
        return iter([*parts.items(), *((str(key)[:_LONGEST], part) for key, part in value.entries)])
    return iter(enumerate(value) if isinstance(value, list | tuple) else ())
