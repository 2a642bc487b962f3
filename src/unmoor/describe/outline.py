"""A folder in the place of a file: a name and a size, for what judges a tree and reads no byte itself."""

from __future__ import annotations

__all__ = ["Outline"]


class Outline:
    """A Reader that has nothing to give."""

    def __init__(self, path: str, size: int) -> None:
        self.path, self.size = path, size

    def some_into(self, offset: int, target: memoryview) -> int:  # noqa: ARG002 - a Reader has this form
        """No bytes: they lie in the files of the folder."""
        return 0
