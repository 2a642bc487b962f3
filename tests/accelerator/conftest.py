"""The fixture `sim` for the tests of this folder; other folders get it from `plugin.py` too."""

from .plugin import sim

__all__ = ["sim"]
