"""A folder that another program has written, brought to the disk and sealed: a list of its files and their checksums.

The list is a file `unmoor.sha256` in the folder, written last, as `sha256sum` writes it: `sha256sum -c` checks it too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["SEAL", "broken", "is_sealed", "seal", "unseal"]

SEAL: Final = "unmoor.sha256"

_DIGITS: Final = 64

_PIECE: Final = 1 << 20


def seal(folder: str) -> None:
    """Bring every file of a folder to the disk, then list them. Raises OSError for what the disk refuses."""
    root = Path(folder)
    lines = [f"{_digest(path, durable=True)}  {path.relative_to(root).as_posix()}\n" for path in _files(root)]
    for inner in sorted(root.rglob("*/")):
        if inner.is_dir() and not inner.is_symlink():
            _sync(inner)
    hidden = root / f".{SEAL}"
    hidden.write_text("".join(lines), "utf-8")
    _sync(hidden)
    hidden.replace(root / SEAL)
    _sync(root)
    _sync(root.parent)


def unseal(folder: str) -> None:
    """Take the seal off a folder that is about to be written into."""
    (Path(folder) / SEAL).unlink(missing_ok=True)


def is_sealed(folder: str) -> bool:
    """Whether the folder was finished: a list is there."""
    return (Path(folder) / SEAL).is_file()


def broken(folder: str) -> str:
    """What is wrong with the files of a sealed folder, in words; "" where all are as they were sealed."""
    root, faults = Path(folder), []
    try:
        listed = (root / SEAL).read_text("utf-8")
    except ValueError:
        return f"{SEAL} is damaged"
    if not listed.endswith("\n"):
        return f"{SEAL} is cut short"
    for line in listed.splitlines():
        digest, _, name = line.partition("  ")
        if len(digest) != _DIGITS or not name:
            return f"{SEAL} is not what was written"
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            return f"{SEAL} names what is not in the folder"
        try:
            if _digest(root / name) != digest:
                faults.append(f"{name} is not what was sealed")
        except FileNotFoundError:
            faults.append(f"{name} is missing")
    return ", ".join(faults)


def _files(root: Path) -> Iterator[Path]:
    own = (SEAL, f".{SEAL}")
    yield from sorted(
        path for path in root.rglob("*") if path.is_file() and path.relative_to(root).as_posix() not in own
    )


def _digest(path: Path, *, durable: bool = False) -> str:
    summed = hashlib.sha256()
    with path.open("rb") as file:
        if durable:
            os.fsync(file.fileno())
        while piece := file.read(_PIECE):
            summed.update(piece)
    return summed.hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
