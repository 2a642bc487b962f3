"""Small disks: a real file system where this process may mount one, else one that the shim makes believe.

`DISKS` are the ways; `missing(way)` says why one is not to be had here, "" where it is: its tests then run on the one
that is made believe. What is mounted is taken off again, whatever happens.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.faults import Fault

__all__ = ["DISKS", "Disk", "detached", "missing", "mounted", "read_only"]

SIZE = 16 << 20
_MNT_DETACH = 2
"""umount2's MNT_DETACH."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A small disk at `folder`. `real` tells that there is one."""

    folder: Path
    real: bool

    @contextmanager
    def with_room_for(self, nbytes: int) -> Iterator[dict[str, Any]]:
        """For the block only so many bytes are free; the faults that a fork needs for that."""
        if not self.real:
            full = {"error": errno.ENOSPC, "times": 0}
            yield {"fail": [Fault("write", after_bytes=nbytes, **full), Fault("copy", **full), Fault("clone", **full)]}
            return
        ballast = self.folder / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):  # it may need some of it for itself
            while (free := shutil.disk_usage(self.folder).free - nbytes) > 0:
                file.write(bytes(min(free, 1 << 20)))
        yield {}
        ballast.unlink()

    @contextmanager
    def without_names(self) -> Iterator[dict[str, Any]]:
        """For the block no file or folder can be made, whatever room there is for bytes."""
        if not self.real:
            made = [Fault(kind, errno.ENOSPC, times=0, match=".unmoor-") for kind in ("open", "mkdir")]
            yield {"fail": made}
            return
        folder = self.folder / "names"
        folder.mkdir()
        with suppress(OSError):
            for number in range(os.statvfs(self.folder).f_ffree + 1):
                (folder / str(number)).touch()
        yield {}
        shutil.rmtree(folder)


@contextmanager
def _tmpfs(folder: Path) -> Iterator[None]:
    with _mounted("-t", "tmpfs", "-o", f"size={SIZE},nr_inodes=64", "tmpfs", folder):
        yield


@contextmanager
def _image(kind: str, folder: Path) -> Iterator[None]:
    with TemporaryDirectory(prefix="disks-") as scratch:
        image = Path(scratch, "image")
        with image.open("wb") as file:
            file.truncate(SIZE)
        subprocess.run([f"mkfs.{kind}", "-q", *_OPTIONS[kind], image], check=True, capture_output=True)
        with _mounted("-o", "loop", image, folder):
            yield


_OPTIONS = {"ext4": ["-N", "64", "-m", "0"], "ext2": ["-N", "64", "-m", "0"]}
_WAYS: dict[str, Callable[[Path], Any]] = {
    "tmpfs": _tmpfs,
    "ext4": lambda folder: _image("ext4", folder),
    "ext2": lambda folder: _image("ext2", folder),
}
DISKS = (*_WAYS, "made believe")


@cache
def missing(way: str) -> str:
    """Why there can be no such disk here, found out by making one."""
    if way == "made believe":
        return ""
    if not sys.platform.startswith("linux"):
        return "small disks are mounted on Linux"
    if way in _OPTIONS and shutil.which(f"mkfs.{way}") is None:
        return f"mkfs.{way} is not installed"
    with TemporaryDirectory(prefix="disks-") as folder:
        try:
            with _WAYS[way](Path(folder)):
                return ""
        except subprocess.CalledProcessError as error:
            return f"no {way} can be mounted here: {error.stderr.decode(errors='replace').strip()}"


@contextmanager
def mounted(way: str, folder: Path) -> Iterator[Disk]:
    """A small disk at `folder`, which is empty; made believe where it cannot be mounted."""
    if way == "made believe" or missing(way):
        yield Disk(folder, real=False)
        return
    with _WAYS[way](folder):
        shutil.rmtree(folder / "lost+found", ignore_errors=True)
        yield Disk(folder, real=True)


@contextmanager
def _mounted(*arguments: object) -> Iterator[None]:
    folder = str(arguments[-1])
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)
    try:
        yield
    finally:
        detached(Path(folder))


@contextmanager
def read_only(disk: Disk) -> Iterator[dict[str, Any]]:
    """For the block nothing can be written to a disk; the faults that a fork needs for that."""
    if not disk.real:
        yield {"fail": Fault("change", errno.EROFS, times=0)}
        return
    subprocess.run(["mount", "-o", "remount,ro", str(disk.folder)], check=True, capture_output=True)
    try:
        yield {}
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(disk.folder)], check=False, capture_output=True)


def detached(folder: Path) -> None:
    """Take the disk off its folder, whoever still uses it: what is open stays open, names lead elsewhere."""
    ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(folder), _MNT_DETACH)
