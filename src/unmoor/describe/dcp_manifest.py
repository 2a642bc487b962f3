"""What `unmoor.save` writes beside `.metadata`: roles, ranks, and the frame of the tree, which `.metadata` lacks.

Such a folder is one of torch.distributed.checkpoint without it too: a manifest that is missing or unreadable is no
obstacle. One that belongs to another save is told by the id of the save, and left out; one that contradicts the data of
its own save means that either is damaged.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from unmoor import places
from unmoor.errors import CorruptFile
from unmoor.filing import open_reader, read
from unmoor.values.finding import Finding
from unmoor.values.frames import FrameError, is_at_home, leaves_of, rebuilt
from unmoor.values.manifests import sound
from unmoor.values.text import count

__all__ = ["MANIFEST", "Beside", "read_beside", "summed"]

MANIFEST: Final = "unmoor-manifest.json"
_MAX: Final = 1 << 30
_SHOWN: Final = 8
_WITHOUT: Final = "roles and containers are then told by structure alone"
_SUM: Final = "crc32"
_DAMAGED: Final = 2
_CLOSING: Final = re.compile(rb',"([^"]{1,8})":"[^"]{8}"\}\Z')


@dataclass(frozen=True, slots=True)
class Beside:
    """The manifest of a folder, None where there is none that can be used, and what a reader should know of that."""

    manifest: Mapping[str, Any] | None = None
    findings: tuple[Finding, ...] = ()

    def tree(self, values: Mapping[str, Any]) -> Any:
        """The tree that the manifest tells of, of the values by flat key; None without a manifest."""
        return None if self.manifest is None else rebuilt(self.manifest["frame"], values)

    def check_files(self, path: str, sums: Mapping[str, list[int]]) -> None:
        """Hold bytes and checksum of each file of the folder against the manifest's: it may be of another save.

        The checksum is one over those of all tensors in the file, in the order in which they lie there.
        """
        recorded = (self.manifest or {}).get("files")
        rows = recorded.items() if isinstance(recorded, dict) else ()
        _complain(
            path,
            [
                f"{name}: saved as {row} (bytes and checksum), is {sums.get(name)}"
                for name, row in rows
                if sums.get(name) != row
            ],
        )


def read_beside(path: str, save_id: str, crc: tuple[int, int], keys: Mapping[str, Any]) -> Beside:
    """The manifest of the folder `path` whose `.metadata` names `save_id` and `keys`, and has those bytes and CRC-32.

    Raises CorruptFile where it is of the same save and contradicts it.
    """
    place = places.join(path, MANIFEST)
    if not places.is_file(place):
        return Beside()
    manifest = _read(place)
    if manifest is None:
        text = f"{MANIFEST} is damaged: the folder is described without it"
        return Beside(findings=(Finding("manifest-damaged", "error", "", text, _WITHOUT),))
    if not save_id or not _same_save(manifest.get("save_id"), save_id):
        text = f"{MANIFEST} is of another save than .metadata: the folder is described without it"
        return Beside(findings=(_finding(text),))
    _complain(path, list(_faults(manifest, crc, keys)))
    return Beside(manifest)


def summed(text: bytes) -> bytes:
    """A manifest with its own checksum as its last key.

    >>> summed(b'{"manifest":1}')
    b'{"manifest":1,"crc32":"3a47d62d"}'
    """
    return text[:-1] + f',"{_SUM}":"{zlib.crc32(text):08x}"}}'.encode()


def _holds(text: bytes) -> bool:
    """Whether the checksum of a manifest is that of the rest; True for one without, as others and people write it."""
    found = _CLOSING.search(text)
    return found is None or (found[1] == _SUM.encode() and summed(text[: found.start()] + b"}") == text)


def _same_save(one: Any, other: str) -> bool:
    """Whether two ids are of one save: those of two saves differ in nearly all letters, a damaged one in few."""
    if not isinstance(one, str) or len(one) != len(other):
        return False
    return sum(a != b for a, b in zip(one, other, strict=True)) <= _DAMAGED


def _complain(path: str, faults: list[str]) -> None:
    if faults:
        more = [f"and {len(faults) - _SHOWN:,} more"] if len(faults) > _SHOWN else []
        raise CorruptFile(
            f"{path}: {MANIFEST} and the files of its save contradict each other",
            details=[*faults[:_SHOWN], *more],
            remedy="Copy the folder again, or use the checkpoint before it. Without that file it is read as any other "
            "folder of torch.distributed.checkpoint.",
            path=path,
        )


def _finding(text: str) -> Finding:
    return Finding("manifest", "warning", "", text, _WITHOUT)


def _read(place: str) -> dict[str, Any] | None:
    with open_reader(place) as reader:
        if reader.size > _MAX:
            return None
        data = read(reader, 0, reader.size)
    if not _holds(data):
        return None
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return sound(manifest) if isinstance(manifest, dict) else None


def _faults(manifest: Mapping[str, Any], crc: tuple[int, int], keys: Mapping[str, Any]) -> Any:
    if manifest.get("metadata") != list(crc):
        yield f".metadata: saved as {manifest.get('metadata')} (bytes and CRC-32), is {list(crc)}"
    try:
        leaves = list(leaves_of(manifest.get("frame")))
        named = [key for key, _ in leaves]
        rebuilt(manifest.get("frame"), dict.fromkeys(named))
    except (FrameError, RecursionError, ValueError) as fault:
        yield f"the frame of its tree is none: {str(fault)[:100]}"
        return
    differ = set(named) ^ set(keys)
    if differ or len(named) != len(keys):
        shown = ", ".join(sorted(differ)[:_SHOWN])
        yield f"its tree has {count(len(named), 'entry')}, .metadata {count(len(keys), 'entry')}: {shown[:200]}"
    yield from (f"its tree has {key[:80]} at {place[:80]}" for key, place in leaves if not is_at_home(key, place))
