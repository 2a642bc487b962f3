"""The way in: one file to its Catalog."""

from __future__ import annotations

import os

from ..filing import open_reader
from ..values.catalog import Catalog
from .torch_zip import describe_zip

__all__ = ["describe_file"]


def describe_file(path: str | os.PathLike[str]) -> Catalog:
    with open_reader(path) as reader:
        return describe_zip(reader)
