"""One process for all forks of this folder's tests, and where there can be none, the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import missing
from tests.faults.zygote import Zygote


@pytest.fixture(scope="package")
def zygote() -> Iterator[Zygote]:
    """A process that forks for each verb, with faults."""
    if missing():
        pytest.skip(missing())
    with Zygote("tests.disks.verbs") as made:
        yield made
