"""Makes the pictures in the documentation anew.

python -m docs.pictures.make [NAME ...]

Each is a function that writes one file beside this one. They need Chromium; CHGNet's checkpoint is fetched with pip.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.browser import NAMES, chromium, opened
from tests.real.fetch import unzipped

import unmoor

FOLDER: Final = Path(__file__).parent

LARGEST: Final = 300_000
"""Bytes of one picture at most: they are part of the repository."""


def inspect(target: Path) -> None:
    """The page of a published training run, as a browser opens it."""
    [found] = unzipped("chgnet").glob("chgnet/pretrained/0.3.0/*.pth.tar")
    catalog = replace(unmoor.describe(found), path=found.name)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        unmoor.page(catalog, page)
        with opened(page, width=1200, height=1150) as it:
            it.page.screenshot(path=target)


def prove(target: Path) -> None:
    """The proof of the example that forgets its sampler's generator, where it goes apart."""
    proof = unmoor.prove("examples/prove_resume.py:forgetful", steps=20, cut=10, picture=target)
    if proof.ok or proof.difference is None or proof.difference.component != "data order":
        raise RuntimeError(f"the example does not differ as it should:\n{proof}")


def prove_equal(target: Path) -> None:
    """The proof of the same run, which carries all of its state."""
    proof = unmoor.prove("examples/prove_resume.py:build", steps=20, cut=10, picture=target)
    if proof.verdict != "equal":
        raise RuntimeError(f"the example is not equal as it should be:\n{proof}")


PICTURES: Final[dict[str, Callable[[Path], None]]] = {
    "inspect": inspect,
    "prove": prove,
    "prove_equal": prove_equal,
}
"""Name of a picture -> what makes it."""


def main(names: list[str]) -> int:
    """Make the pictures that are named, or all of them."""
    if chromium() is None:
        print(f"pictures need Chromium: none of {', '.join(NAMES)} is on the path", file=sys.stderr)
        return 1
    for name in names or PICTURES:
        target = FOLDER / f"{name}.png"
        PICTURES[name](target)
        size = target.stat().st_size
        print(f"docs/pictures/{target.name}  {size:,} bytes")
        if size > LARGEST:
            print(f"{target.name} is larger than {LARGEST:,} bytes", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
