"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from unmoor import execute


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(execute.__path__)])
def test_examples_run(name):
    """What a docstring shows is what happens."""
    assert doctest.testmod(importlib.import_module(f"unmoor.execute.{name}")).failed == 0
