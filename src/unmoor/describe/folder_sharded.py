"""Folders in which sharded state lies beside other files: what accelerate, transformers and Lightning write for FSDP.

accelerate and transformers put a torch.distributed.checkpoint folder for each model and optimizer beside their usual
files; Lightning puts one file, meta.pt, into the folder of the shards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from unmoor import places
from unmoor.errors import NotACheckpoint, UnsupportedFile
from unmoor.values.catalog import Catalog

from .dcp import METADATA, describe_dcp
from .file import describe_file
from .folder_members import Member
from .folder_merge import Described, together

__all__ = ["META", "describe_beside_shards", "sharded_members", "with_meta"]

META: Final = "meta.pt"
_SHARDED: Final = re.compile(r"(?P<what>pytorch_model_fsdp|optimizer)_(?P<number>\d+)")
_ROLES: Final = {"pytorch_model_fsdp": "model", "optimizer": "optimizer"}
_FILES: Final = (".pt", ".pth", ".bin", ".pkl", ".safetensors")


def sharded_members(path: str, folders: Iterable[str]) -> list[Described]:
    """The subfolders that hold a sharded model or optimizer, each with what it holds."""
    found = []
    names = [(name, match) for name in folders if (match := _SHARDED.fullmatch(name))]
    held = [(name, match) for name, match in names if places.exists(places.join(path, name, METADATA))]
    several = any(int(match["number"]) for _, match in held)
    for name, match in held:
        member = Member(name, name, _ROLES[match["what"]], match["number"] if several else "")
        found.append((member, describe_dcp(places.join(path, name), name)))
    return found


def describe_beside_shards(path: str, files: Iterable[str], sharded: list[Described]) -> Catalog:
    """Sharded members of a folder that no table knows, with the checkpoint files beside them."""
    described = [*sharded]
    for name in files:
        if name.endswith(_FILES):
            try:
                described.append((Member(name, name), describe_file(places.join(path, name), file=name)))
            except (NotACheckpoint, UnsupportedFile):
                continue
    return together(path, "accelerate", described, {}, [])


def with_meta(path: str, shards: Catalog) -> Catalog:
    """The shards of a folder and its meta.pt as one tree, whose keys are those of both."""
    meta = describe_file(places.join(path, META), file=META)
    if not isinstance(meta.tree, dict) or meta.tree.keys() & shards.tree.keys():
        return shards
    return replace(
        shards,
        dialect=meta.dialect,
        tensors=(*shards.tensors, *meta.tensors),
        parts=(*shards.parts, *meta.parts),
        globals=tuple(dict.fromkeys((*shards.globals, *meta.globals))),
        findings=(*shards.findings, *meta.findings),
        size=shards.size + meta.size,
        storages=(*shards.storages, *meta.storages),
        tree={**shards.tree, **meta.tree},
    )
