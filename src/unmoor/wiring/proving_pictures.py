"""The pictures of a proof: made by the report stage, written where the caller wants them, whole or not at all."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from unmoor.errors import UsageError
from unmoor.execute.commit import publish
from unmoor.values.proof import Proof
from unmoor.version import __version__

__all__ = ["can_draw", "check_pictures", "write_pictures"]

_NEEDS: Final = {".png": ("matplotlib", b"\x89PNG"), ".html": ("plotly", b"<!doctype html>")}
"""Ending -> the package that draws, and how such a file begins."""


def can_draw() -> bool:
    """Whether the packages are here that pictures are drawn with."""
    return all(find_spec(package) is not None for package, _ in _NEEDS.values())


def check_pictures(picture: Any) -> None:
    """Refuse, before any work, names of other kinds, pictures that packages are missing for, and other files' places.

    Only a picture is ever replaced: a slip of the hand must not cost a checkpoint.
    """
    for path in _paths(picture):
        if path.suffix not in _NEEDS:
            raise UsageError(
                f"picture={str(path)!r} is no picture that can be drawn",
                remedy="Name a .png or .html file, or neither.",
            )
        package, beginning = _NEEDS[path.suffix]
        if find_spec(package) is None:
            raise UsageError(
                f"{path.name} is drawn by {package}, which is not installed",
                remedy='Install it: pip install "unmoor[pictures]", or pass picture=None.',
            )
        if not path.parent.is_dir():
            raise UsageError(f"the folder {path.parent} of {path.name} does not exist", remedy="Make it first.")
        if not os.access(path.parent, os.W_OK):
            raise UsageError(
                f"the folder {path.parent} of {path.name} cannot be written to",
                remedy="Name another.",
            )
        if path.is_dir() or (path.is_file() and path.stat().st_size and not _begins(path, beginning)):
            raise UsageError(
                f"{path} exists and is no picture: it was left as it is", remedy="Give the picture a name of its own."
            )


def _begins(path: Path, beginning: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(beginning)) == beginning


def write_pictures(proof: Proof, picture: Any) -> Proof:
    """Write the pictures of a proof; the proof with their names."""
    paths = _paths(picture)
    proof = replace(proof, pictures=tuple(map(str, paths)))
    for path in paths:
        data = _drawn(proof, path.suffix)

        def whole(hidden: str, data: bytes = data) -> None:
            if os.path.getsize(hidden) != len(data):
                raise OSError(f"only {os.path.getsize(hidden):,} of {len(data):,} bytes were written")

        with publish(path, needed=len(data), durability="system", check=whole) as hidden:
            Path(hidden).write_bytes(data)
    return proof


def _drawn(proof: Proof, suffix: str) -> bytes:
    if suffix == ".png":
        from unmoor.report.curves import proof_picture

        return proof_picture(proof)
    from unmoor.report.proof_page import ProofAssets, proof_page

    own = files("unmoor.report") / "assets"
    style, script = ((own / name).read_text("utf-8") for name in ("proof.css", "proof.js"))
    plotly = (files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")
    return proof_page(proof, assets=ProofAssets(style, script, plotly), version=__version__).encode()


def _paths(picture: Any) -> list[Path]:
    """The files that are meant: one by its name, or both where the name has no ending."""
    if picture is None:
        return []
    path = Path(picture)
    return [path] if path.suffix else [path.with_name(path.name + suffix) for suffix in _NEEDS]
