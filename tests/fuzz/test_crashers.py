"""Whatever broke a reader once breaks none again, on any road."""

from __future__ import annotations

import functools

import pytest

from tests.fuzz.crashers import CRASHERS
from tests.fuzz.looks import ROADS, at_checkpoint
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("what", CRASHERS)
def test_what_broke_a_reader_once_does_not_again(what, tmp_path):
    """A value, or an error of this package: by the fast and the slow ways, and as the referees say."""
    name, files = CRASHERS[what]
    look = TARGETS[name].look
    look = functools.partial(at_checkpoint, roads=ROADS) if look is at_checkpoint else look
    look(files, tmp_path, None, None)
