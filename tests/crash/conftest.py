"""One zygote for all tests: importing torch is what takes time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import missing
from tests.faults.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    why = missing()
    if why:
        pytest.skip(why)
    with Zygote("tests.crash.scenes", "tests.crash.mutations", "tests.crash.runs") as made:
        yield made
