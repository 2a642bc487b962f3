"""What a file holds, as frozen values: the answer of `describe`.

Must not know torch. A catalog says what was found, never what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .finding import Finding
from .nodes import Chunk, Span, Storage, TensorNode, deflated
from .quick import quickly_made
from .ranks import RANKS, ranks_recorded, saved_world
from .text import count, format_bytes, key_text, plain

__all__ = ["Catalog", "Part", "TensorEntry"]


@quickly_made
@dataclass(frozen=True, slots=True, eq=False)
class TensorEntry:
    """One tensor at one place of the tree.

    `path` is its key path as text, `keys` the same as a tuple. `shape` and `stride` count elements; `nbytes` is
    numel times element size. `storage` is the key of its storage ("" without data) and `span` the whole byte range of
    that storage, None where it lies in several places (`chunks`); `offset` is its first element in there. `shared` are
    the paths of other tensors on the same storage.
    """

    path: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    device: str
    nbytes: int
    storage: str
    span: Span | None
    offset: int = 0
    layout: str = "strided"
    parameter: bool = False
    shared: tuple[str, ...] = ()
    keys: tuple[Any, ...] = ()
    node: TensorNode | None = field(default=None, repr=False)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The boxes of a tensor that lies in several places of a folder; empty for any other."""
        storage = self.node.storage if self.node is not None else None
        return storage.chunks if storage is not None else ()

    def to_json(self) -> dict[str, Any]:
        """The entry as plain JSON values."""
        span = self.span
        return {
            "path": self.path,
            "role": self.role,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "stride": list(self.stride),
            "device": self.device,
            "nbytes": self.nbytes,
            "storage": self.storage,
            "span": None if span is None or deflated(span.file) else [span.offset, span.nbytes],
            "file": "" if span is None else (deflated(span.file) or (span.file,))[0],
            "offset": self.offset,
            "layout": self.layout,
            "parameter": self.parameter,
            "shared": list(self.shared),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of the tree that plays a role in a training run, judged by its structure.

    `role` is model, optimizer, scheduler, scaler, rng or extra. `kind` says more: state_dict; for rng torch-cpu,
    numpy, python, or a type of device such as cuda; tensors where it may be values as well. `keys` is where it stands.
    `node` is the inert subtree. `detail` holds what its kind allows to tell: for an optimizer family, groups, params,
    with_state, options; for a scheduler guess, last_epoch.
    """

    role: str
    kind: str
    keys: tuple[Any, ...]
    tensors: int
    nbytes: int
    devices: Mapping[str, int]
    detail: Mapping[str, Any] = field(default_factory=dict)
    node: Any = field(default=None, repr=False)

    @property
    def path(self) -> str:
        """The key path as text; "" for the whole file."""
        return key_text(self.keys)

    def to_json(self) -> dict[str, Any]:
        """The part as plain JSON values, without its subtree."""
        return {
            "role": self.role,
            "kind": self.kind,
            "path": self.path,
            "tensors": self.tensors,
            "nbytes": self.nbytes,
            "devices": dict(self.devices),
            "detail": dict(self.detail),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """Everything that can be known of a file without running it or reading its tensor data.

    `format` is torch-zip, torch-legacy, torch-tar, torchscript, safetensors, dcp or folder (several files, each under
    its name in the tree; `file` in the detail of a part names it). `dialect` is who wrote it (plain,
    unmoor, lightning, ...). `globals` are the "module.name" of every class and function its pickle names. `tree` is
    the inert tree, `manifest` what `unmoor.save` added beside the data, None in other files. `facts` are facts about
    the container (archive name, pickle protocol, byte order). `entries` are, of a folder of
    torch.distributed.checkpoint, its values by flat key as they were saved, each with the key path noted for it.
    """

    path: str
    format: str
    dialect: str
    tensors: tuple[TensorEntry, ...]
    parts: tuple[Part, ...]
    globals: tuple[str, ...]
    findings: tuple[Finding, ...]
    size: int = 0
    storages: tuple[Storage, ...] = ()
    tree: Any = field(default=None, repr=False)
    manifest: Mapping[str, Any] | None = field(default=None, repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, tuple[tuple[str | int, ...], Any]] = field(default_factory=dict, repr=False)

    def part(self, role: str) -> Iterator[Part]:
        """The parts of the run that play `role`, in the order of the file."""
        return (part for part in self.run_parts() if part.role == role)

    def run_parts(self) -> tuple[Part, ...]:
        """The parts of the run itself: all but what single ranks have for themselves."""
        if saved_world(self.manifest) == 1:
            return self.parts
        return tuple(part for part in self.parts if part.keys[:1] != (RANKS,))

    def devices(self) -> dict[str, tuple[int, int]]:
        """Device tag -> (tensors, bytes) over all tensors, largest first."""
        return _totals((entry.device, entry.nbytes) for entry in self.tensors)

    def roles(self) -> dict[str, tuple[int, int]]:
        """Role -> (tensors, bytes) over all tensors, largest first."""
        return _totals((entry.role, entry.nbytes) for entry in self.tensors)

    def __str__(self) -> str:
        devices = ", ".join(f"{tag} ({count(n, 'tensor')})" for tag, (n, _) in self.devices().items())
        lines = [f"{self.path}: {self.format}, {format_bytes(self.size)}, {self.dialect}; {devices or 'no tensors'}"]
        lines += [
            f"  {p.role:<10} {p.path or '(whole file)'}  {count(p.tensors, 'tensor')}  {format_bytes(p.nbytes)}"
            for p in self.run_parts()
        ]
        own = [entry.nbytes for entry in self.tensors if entry.keys[:1] == (RANKS,)]
        if len(self.run_parts()) < len(self.parts):
            number = len(ranks_recorded(self.manifest))
            text = f"{count(len(own), 'tensor')}  {format_bytes(sum(own))}"
            lines.append(f"  {RANKS:<10} {RANKS}  {text}  (what {count(number, 'rank')} has unlike rank 0)")
        return "\n".join([*map(plain, lines), *(f"  {finding}" for finding in self.findings)])

    def to_json(self) -> dict[str, Any]:
        """The catalog as plain JSON values, without the tree."""
        return {
            "path": self.path,
            "format": self.format,
            "dialect": self.dialect,
            "size": self.size,
            "facts": dict(self.facts),
            "devices": {tag: {"tensors": n, "nbytes": b} for tag, (n, b) in self.devices().items()},
            "roles": {role: {"tensors": n, "nbytes": b} for role, (n, b) in self.roles().items()},
            "parts": [part.to_json() for part in self.parts],
            "globals": list(self.globals),
            "findings": [finding.to_json() for finding in self.findings],
            "tensors": [entry.to_json() for entry in self.tensors],
        }


def _totals(pairs: Iterable[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    sums: dict[str, tuple[int, int]] = {}
    for name, nbytes in pairs:
        count, total = sums.get(name, (0, 0))
        sums[name] = (count + 1, total + nbytes)
    return dict(sorted(sums.items(), key=lambda item: -item[1][1]))
