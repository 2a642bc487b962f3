"""The fixture `sim`: the module `torch.sim` in a process that has the simulated accelerator.

Without a C++ compiler the tests that use it are skipped; where the environment says CI=true they fail instead.
"""

import os
from types import ModuleType

import pytest

from . import CompilerMissing, install


@pytest.fixture(scope="session")
def sim() -> ModuleType:
    """The device module `torch.sim`, with the backend installed."""
    try:
        return install()
    except CompilerMissing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))
