"""From a hidden folder with all its data to a checkpoint: manifest, description held against the promise, in place.

Knows no process group: it runs wherever the last step of a save of several ranks runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from unmoor.describe import describe_path
from unmoor.describe.dcp import METADATA
from unmoor.describe.dcp_manifest import MANIFEST, summed
from unmoor.errors import SaveError
from unmoor.execute.checksums import crc32
from unmoor.execute.folder_commit import Staging, publish_folder
from unmoor.values.catalog import Catalog
from unmoor.values.progress import VALUES
from unmoor.values.text import key_text

__all__ = ["Completion", "is_own", "is_whole"]

_PIECE: Final = 1 << 20
_ENDINGS: Final = (".distcp", METADATA, MANIFEST, f"{METADATA}.tmp")

Promise = Mapping[tuple[Any, ...], tuple[tuple[int, ...], str]]


def is_own(name: str) -> bool:
    """Whether a file of that name is one that a checkpoint folder of torch.distributed.checkpoint consists of."""
    return name.endswith(_ENDINGS)


def is_whole(names: Collection[str]) -> bool:
    """Whether the names in a folder are those of a checkpoint, and not of one that was never finished."""
    return METADATA in names or not all(map(is_own, names))


@dataclass(frozen=True, slots=True)
class Completion:
    """What is left to do for the hidden folder `staging` of a save to `path`, once all data and `.metadata` are in it.

    `manifest` is to be written beside, `promise` what must be found: shape and dtype of each tensor by key path.
    """

    staging: Staging
    path: str
    manifest: Mapping[str, Any]
    promise: Promise

    def __call__(self, save_id: str) -> None:
        """Make it the checkpoint at `path`. `save_id` is that in `.metadata`.

        Raises SaveError where it does not read back as it was meant, or where the system refuses.
        """
        folder = self.staging.beside(self.path)
        own = {"save_id": save_id, "metadata": _synced(os.path.join(folder, METADATA))}
        recorded = _recorded(self.manifest, own)
        _write(os.path.join(folder, MANIFEST), recorded)
        found = describe_path(folder)
        _hold_against(found, self.promise, self.path)
        _write(os.path.join(folder, MANIFEST), _recorded(self.manifest, {**own, "files": found.facts["sums"]}))
        publish_folder(self.staging, self.path)


def _recorded(manifest: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with what is known of its files, which stands at its head where a listing finds it."""
    head = {key: manifest[key] for key in ("manifest", VALUES) if key in manifest}
    return {**head, **own, **manifest}


def _synced(path: str) -> list[int]:
    """Bring a file to the disk; its bytes and their CRC-32. torch syncs `.metadata` before its buffer is written."""
    nbytes = crc = 0
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
        while piece := file.read(_PIECE):
            nbytes, crc = nbytes + len(piece), crc32(piece, crc)
    return [nbytes, crc]


def _write(path: str, manifest: Mapping[str, Any]) -> None:
    with open(path, "wb") as file:
        file.write(summed(json.dumps(manifest, separators=(",", ":")).encode()))
        file.flush()
        os.fsync(file.fileno())


def _hold_against(catalog: Catalog, promise: Promise, path: str) -> None:
    """Every tensor that was to be written must be described as it was; the reader is the writer's checker."""
    found = {entry.keys: (entry.shape, entry.dtype) for entry in catalog.tensors}
    wrong = [keys for keys, want in promise.items() if found.get(keys) != want]
    faults = [f"{key_text(keys)}: meant {promise[keys]}, found {found.get(keys)}" for keys in wrong]
    if catalog.manifest is None:
        faults += [str(finding) for finding in catalog.findings if finding.code == "manifest"] or ["no manifest"]
    if faults:
        raise SaveError(
            f"what was written for {path} does not read back as it was meant; the older checkpoint is intact",
            details=faults[:10],
            remedy="This is a defect of unmoor: please report it with the tensor's class and layout.",
            path=path,
        )
