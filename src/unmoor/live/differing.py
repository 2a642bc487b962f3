"""In what the ranks of one save differ: every leaf of a rank's content as a digest, to be held against rank 0's.

What ranks may have for themselves (random streams, positions, metrics, buffers, plain values) is kept for each; what
replicas must share (parameters, everything of an optimizer, which names a module has) is told as a fault. What is
spread over the ranks (`Held`) is left out. A container that differs in its structure is one leaf.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from unmoor.errors import UsageError
from unmoor.values.optimizers import RANK_STATE
from unmoor.values.ranks import DEEPEST, RANKS, Keys
from unmoor.values.text import format_bytes, key_text

from .content import Content, plain_tree
from .digests import Digester
from .held import Held
from .layouts import layout_of
from .pickling import StorageBlob, storage_ranges

__all__ = [
    "MOST_BYTES",
    "Fingerprint",
    "Own",
    "fingerprint",
    "own_leaves",
    "strict_sums",
    "value_digests",
    "with_ranks",
]

MOST_BYTES: Final = 1 << 30
"""How many bytes rank 0 takes from all other ranks together."""

_MAPPINGS: Final = (dict, OrderedDict, Counter)
_SCALARS: Final = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Key of the root -> the key paths in it, outermost first, each with the digest of what stands there.

    Of a container it is the digest of its structure alone. `strict` are the places that must be the same on all ranks;
    of tensors there the digest tells shape and dtype only (for their values see `strict_sums`).
    """

    rows: Mapping[str, tuple[tuple[Keys, str], ...]]
    strict: frozenset[Keys]

    def heads(self) -> dict[str, str]:
        """One digest for each key of the root."""
        return {key: hashlib.sha256(repr(rows).encode()).hexdigest() for key, rows in self.rows.items()}

    def compare(
        self, first: Mapping[str, Iterable[tuple[Keys, str]]], root: Iterable[str]
    ) -> tuple[list[Keys], list[Keys]]:
        """The places that differ from rank 0's rows `first`, outermost only: those that may, and those that must not.

        `root` are the keys of rank 0's root; what only this rank has may differ, and is its own.
        """
        known_keys = set(root)
        free: list[Keys] = [(key,) for key in self.rows if key not in known_keys]
        faults: list[Keys] = []
        for key, theirs in first.items():
            known = dict(theirs)
            found: set[Keys] = set()
            for keys, digest in self.rows.get(key, ()):
                inside = any(keys[:length] in found for length in range(len(keys)))
                if not inside and known.get(keys) != digest:
                    found.add(keys)
                    (faults if keys in self.strict else free).append(keys)
        return free, faults


def fingerprint(content: Content) -> Fingerprint:
    """The digests of everything that this rank would write, keys of the root apart."""
    if not isinstance(content.tree, Mapping):
        raise UsageError(
            "ranks that save together save a dict of objects or values, and this tree is a "
            f"{type(content.tree).__name__}",
            remedy="Put it into a dict, or save each rank's own under a path of its own with group=None.",
        )
    if RANKS in content.tree:
        raise UsageError(
            f"{RANKS!r} is where a checkpoint of several ranks keeps what is not the same on all of them",
            remedy=f"Save what you pass as {RANKS}= under another name.",
        )
    must = _Must(content)
    walk = _Walk(must)
    rows = {str(key): tuple(walk.rows(value, (key,))) for key, value in content.tree.items()}
    return Fingerprint(rows, frozenset(walk.strict))


class _Must:
    """Which places must be the same on all ranks."""

    def __init__(self, content: Content) -> None:
        roles = content.roles.values()
        self._optimizers = [tuple(r["keys"]) for r in roles if "names" in r or r["role"] == "optimizer"]
        self._modules = {tuple(r["keys"]) for r in roles if "wrappers" in r and r["role"] != "metrics"}
        self._parameters = content.parameters

    def __call__(self, keys: Keys) -> bool:
        own = keys in self._modules or keys in self._parameters
        return own or any(_is_shared(keys, place) for place in self._optimizers)


def _is_shared(keys: Keys, place: Keys) -> bool:
    """Whether a place is one of the optimizer at `place` at which replicas have the same."""
    below = keys[len(place) :]
    of_rank = len(below) == 3 and below[0] == "state" and below[2] in RANK_STATE
    return keys[: len(place)] == place and not of_rank


class _Walk:
    """Goes through a tree leaf by leaf; a container that it meets again is a leaf there."""

    def __init__(self, must: Callable[[Keys], bool]) -> None:
        self._must = must
        self._digest = Digester()
        self._met: set[int] = set()
        self.strict: set[Keys] = set()

    def rows(self, value: Any, keys: Keys) -> Iterator[tuple[Keys, str]]:
        if self._must(keys):
            self.strict.add(keys)
        if isinstance(value, Held) or (isinstance(value, torch.Tensor) and keys in self.strict):
            yield keys, f"{tuple(value.shape)} {value.dtype}"
            return
        inner = self._inner(value, keys)
        if inner is None:
            yield keys, self._digest(value)
            return
        yield keys, self._digest.structure(value)
        for key, item in inner:
            yield from self.rows(item, (*keys, key))

    def _inner(self, value: Any, keys: Keys) -> Iterable[tuple[Any, Any]] | None:
        """What a container holds, by key; None for what is one leaf."""
        if len(keys) > DEEPEST or id(value) in self._met:
            return None
        if type(value) in _MAPPINGS and all(type(key) in (str, int) for key in value):
            self._met.add(id(value))
            return list(value.items())
        if type(value) is list and not all(isinstance(item, _SCALARS) for item in value):
            self._met.add(id(value))
            return list(enumerate(value))
        return None


@dataclass(frozen=True, slots=True)
class Own:
    """The leaves that a rank has for itself: a tree as under the key `ranks`, with what a manifest says of them.

    `whole` are key paths of leaves that are mappings, `absent` keys of the root that the rank lacks, `arrays` key paths
    of tensors that were numpy arrays.
    """

    tree: Mapping[Any, Any]
    whole: tuple[Keys, ...] = ()
    absent: tuple[Keys, ...] = ()
    arrays: tuple[Keys, ...] = ()

    def recorded(self) -> dict[str, Any] | None:
        """What the manifest says of these leaves; None where there are none."""
        if not self.tree and not self.absent:
            return None
        rows = (("whole", self.whole), ("absent", self.absent))
        return {name: [list(keys) for keys in places] for name, places in rows if places}

    def to_bytes(self, most: int) -> bytes:
        """As it is sent to rank 0. Raises UsageError where that is more than `most` bytes."""
        held = sum(map(_nbytes, _tensors(self.tree)))
        sink = io.BytesIO()
        if held <= most:
            places = (list(map(list, rows)) for rows in (self.whole, self.absent, self.arrays))
            torch.save([_on_cpu(self.tree), *places], sink)
        if max(held, sink.tell()) > most:
            raise self._too_large(max(held, sink.tell()), most)
        return sink.getvalue()

    @classmethod
    def from_bytes(cls, value: bytes) -> Own:
        """As it was sent; nothing in it can run code."""
        tree, *places = torch.load(io.BytesIO(value), weights_only=True)
        return cls(tree, *(tuple(map(tuple, rows)) for rows in places))

    def _too_large(self, nbytes: int, most: int) -> UsageError:
        sizes = {key: sum(map(_nbytes, _tensors(value))) for key, value in self.tree.items()}
        shown = sorted(sizes.items(), key=lambda item: -item[1])[:4]
        return UsageError(
            f"this rank has {format_bytes(nbytes)} that differ from what rank 0 has; {format_bytes(most)} a rank is "
            "what one file takes",
            details=[f"{key}  {format_bytes(size)}" for key, size in shown if size],
            remedy="Save what belongs to one rank alone under a path of its own: "
            'unmoor.save(f"run/rank_{rank}.pt", ..., group=None).',
        )


def own_leaves(content: Content, free: Iterable[Keys], root: Iterable[str]) -> Own:
    """The leaves of this rank at `free`, for rank 0 whose tree has the keys `root`."""
    tree: dict[Any, Any] = {}
    whole, spelled = [], {}
    places = [keys for keys in free if keys[0] in content.tree]
    _refuse_spread(content, places)
    for keys in places:
        at: Any = content.tree
        below: Any = tree
        path: list[Any] = []
        for key in keys[:-1]:
            path.append(str(key) if isinstance(at, list) else key)
            below = below.setdefault(path[-1], {})
            at = at[key]
        path.append(str(keys[-1]) if isinstance(at, list) else keys[-1])
        below[path[-1]] = at[keys[-1]]
        spelled[keys] = tuple(path)
        if isinstance(at[keys[-1]], Mapping):
            whole.append(keys)
    arrays = [
        (*path, *array[len(keys) :])
        for keys, path in spelled.items()
        for array in content.arrays
        if array[: len(keys)] == keys
    ]
    absent = [(key,) for key in root if key not in content.tree]
    return Own(tree, tuple(whole), tuple(absent), tuple(arrays))


def _refuse_spread(content: Content, places: Iterable[Keys]) -> None:
    """Refuse a value of this rank's own with a tensor in it of which other ranks hold parts."""
    met = [held for keys in places for held in content.held if held[: len(keys)] == keys]
    if met:
        raise UsageError(
            f"{key_text(met[0])} is spread over the ranks, and stands in a value that is not the same on all of them",
            remedy="Save it beside that value, under a keyword of its own, on every rank.",
        )


def with_ranks(content: Content, owns: Mapping[int, Own], world: int) -> Content:
    """Rank 0's content with the other ranks' own leaves in it, and what the manifest says of them."""
    own = {str(rank): one for rank, one in owns.items() if one.tree or one.absent}
    if not own:
        return replace(content, world_size=world)
    clean = plain_tree({rank: one.tree for rank, one in own.items() if one.tree})
    tree = type(content.tree)(content.tree)
    tree |= {RANKS: clean.tree} if clean.tree else {}
    tensors = {(RANKS, *keys): tensor for keys, tensor in clean.tensors.items()}
    recorded = {rank: one.recorded() or {} for rank, one in own.items()}
    arrays = [(RANKS, rank, *keys) for rank, one in own.items() for keys in one.arrays]
    return replace(
        content,
        tree=tree,
        tensors={**content.tensors, **tensors},
        arrays=[*content.arrays, *arrays],
        world_size=world,
        ranks=recorded,
    )


Crc = Callable[..., int]
"""crc32(data, value=0), as zlib has it."""


def strict_sums(content: Content, strict: Iterable[Keys], crc: Crc, alive: Callable[[], None]) -> dict[Keys, str]:
    """Place -> what identifies the values of a tensor there: its window, and the CRC-32 of the storage's written bytes.

    The storages are read as a save writes them, piece by piece. A tensor that is none of plain strides is left out.
    """
    ranges = storage_ranges(content.tensors.values())
    sums: dict[int, str] = {}
    found = {}
    for keys in strict:
        tensor = content.tensors.get(keys)
        if tensor is None or layout_of(tensor) != "strided":
            continue
        entry = ranges[tensor.untyped_storage()._cdata]
        if id(entry) not in sums:
            blob = StorageBlob(entry.storage, entry.start, entry.end - entry.start)
            sums[id(entry)] = f"{blob.nbytes} {blob.checksum(crc, alive)}"
        offset = tensor.storage_offset() - entry.start // tensor.itemsize if tensor.numel() else 0
        bits = [name for name, lazy in (("conj", tensor.is_conj()), ("neg", tensor.is_neg())) if lazy]
        found[keys] = f"{offset} {tuple(tensor.stride())} {bits} {sums[id(entry)]}"
    return found


def value_digests(content: Content, places: Iterable[Keys]) -> dict[Keys, str]:
    """Place -> the digest of the tensor's values there, whatever memory they lie in."""
    digest = Digester()
    return {keys: digest(content.tensors[keys]) for keys in places if keys in content.tensors}


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    return plain_tree(value).tensors.values()


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize if layout_of(tensor) == "strided" else 0


def _on_cpu(value: Any) -> Any:
    """The tree with its tensors as copies on the CPU that hold their own values and nothing beside them."""
    if isinstance(value, torch.Tensor):
        made = value.detach().cpu().clone()
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(made, value.requires_grad)
        return made.requires_grad_(value.requires_grad)
    if type(value) in _MAPPINGS:
        copied = type(value)()
        copied.update({key: _on_cpu(item) for key, item in value.items()})
        return copied
    return type(value)(map(_on_cpu, value)) if type(value) in (list, tuple) else value
