"""The fixture `sim`: the module `torch.sim` in a process that has the simulated accelerator.

Without a C++ compiler the tests that use it are skipped; where the environment says CI=true they fail instead.
"""

import os
from contextlib import suppress
from types import ModuleType

import pytest

from . import CompilerMissing, install


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install the backend before the first test: autograd counts devices once, at the first backward pass."""
    if any("sim" in getattr(item, "fixturenames", ()) for item in session.items):
        with suppress(CompilerMissing):
            install()


@pytest.fixture(scope="session")
def sim() -> ModuleType:
    """The device module `torch.sim`, with the backend installed."""
    try:
        return install()
    except CompilerMissing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))
