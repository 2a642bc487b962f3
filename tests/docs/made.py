"""What the pages need and no reader wants to see: files with the tags of devices that are not here, other programs' files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.cases.files import save_tagged

__all__ = ["child", "tag", "tag_parts"]


def tag(path: str, device: str) -> None:
    """Rewrite a torch file as if all of its tensors but Adam's step had been saved on `device`."""
    tag_parts(path, device, lambda keys: keys[-1] != "step" and "rng" not in keys)


def tag_parts(path: str, device: str, where: Any) -> None:
    """Rewrite a torch file as if what `where` chooses by its key path had been saved on `device`."""
    tree = torch.load(path, map_location="cpu", weights_only=False)
    save_tagged(tree, Path(path), lambda keys: device if where(keys) else None)


def child(code: str) -> int:
    """The exit code of a Python process that runs `code`; a negative one is the number of a signal."""
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, check=False).returncode
