"""What a file says of itself beside its tensors: who wrote it and when, on how many ranks, objects' classes, wrappers.

Pure. A claim is told, never acted on; what is malformed counts for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.values.catalog import Catalog
from unmoor.values.ranks import saved_world

__all__ = ["Claim", "Claims", "claims"]

_LONGEST: Final = 200

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a manifest says of one object: its class, the wrappers around it (outer first), streams of a generator."""

    name: str = ""
    wrappers: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """The class without its module."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Claims:
    """What a catalog says of how it was made.

    `writer` is program -> version, `created` the time as text. `world` is the number of ranks that saved, 0 where
    nothing says it; `files_of` the number of ranks whose files are there, 0 where files are not by rank. `saved_as` is
    the name under which a torch zip was saved. `objects` is the key path of a part -> what is said of the object.
    """

    writer: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    world: int = 0
    files_of: int = 0
    saved_as: str = ""
    objects: Mapping[Keys, Claim] = field(default_factory=dict)

    def of(self, keys: tuple[Any, ...]) -> Claim:
        """What is said of the object at a key path."""
        return self.objects.get(tuple(map(str, keys)), _NOTHING)


_NOTHING: Final = Claim()


def claims(catalog: Catalog) -> Claims:
    """Gather what a file says of itself."""
    manifest = catalog.manifest or {}
    recorded = manifest.get("roles")
    rows = [row for row in recorded.values() if isinstance(row, Mapping)] if isinstance(recorded, Mapping) else []
    return Claims(
        writer=_writer(catalog),
        created=_text(manifest.get("created")),
        world=_world(catalog),
        files_of=_files_of(catalog.facts.get("files")),
        saved_as=_saved_as(catalog),
        objects={tuple(map(str, row.get("keys", ()))): _claim(row) for row in rows},
    )


def _claim(row: Mapping[str, Any]) -> Claim:
    return Claim(_text(row.get("class")), _texts(row.get("wrappers")), _texts(row.get("streams")))


def _writer(catalog: Catalog) -> dict[str, str]:
    """The versions of what wrote the file, as far as it tells them."""
    recorded = (catalog.manifest or {}).get("writer")
    if isinstance(recorded, Mapping):
        return {_text(name): _text(version) for name, version in recorded.items() if _text(name) and _text(version)}
    tell = _VERSIONS.get(catalog.dialect)
    version = _text(tell[1](catalog.tree)) if tell and isinstance(catalog.tree, Mapping) else ""
    return {tell[0]: version} if tell and version else {}


def _at(*keys: str) -> Callable[[Any], Any]:
    def found(tree: Any) -> Any:
        for key in keys:
            tree = tree.get(key) if isinstance(tree, Mapping) else None
        return tree

    return found


_VERSIONS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "lightning": ("Lightning", _at("pytorch-lightning_version")),
    "deepspeed": ("DeepSpeed", _at("ds_version")),
    "mmengine": ("mmengine", _at("meta", "mmengine_version")),
    "ultralytics": ("Ultralytics", _at("version")),
}
"""Where the checkpoints of a program hold its version."""


def _world(catalog: Catalog) -> int:
    if catalog.manifest and "world_size" in catalog.manifest:
        return saved_world(catalog.manifest)
    told = catalog.facts.get("world_size")
    return told if type(told) is int and told > 0 else 0


_OF_RANK: Final = re.compile(r"(?:^|/)(?:__(\d{1,9})_\d+\.distcp|(?:random_states|rng_state)_(\d{1,9})\.(?:pkl|pth))$")
"""The names of files that torch.distributed.checkpoint, accelerate and the HF Trainer give to single ranks."""


def _files_of(files: Any) -> int:
    names = [name for name in files if isinstance(name, str)] if isinstance(files, list | tuple) else []
    found = [match for name in names if (match := _OF_RANK.search(name)) is not None]
    return len({int(match[1] or match[2]) for match in found})


def _saved_as(catalog: Catalog) -> str:
    """The name of a torch zip's folder, which torch takes from the file's, where the file now bears another."""
    archive = _text(catalog.facts.get("archive"))
    name = re.split(r"[/\\]", catalog.path)[-1]
    usual = archive in ("", "archive") or name == archive or name.startswith(f"{archive}.")
    return "" if usual else archive


def _text(value: Any) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for item in value if (text := _text(item))) if isinstance(value, list) else ()
