"""A minute of fuzzing: whatever lies in a file, a reader gives a value or an error of this package, by any of its ways.

FUZZ_SECONDS and FUZZ_SEED make it longer and other; `make fuzz` takes an hour.
"""

from __future__ import annotations

import os
import sys

import pytest

from tests.fuzz.campaign import fuzzed
from tests.fuzz.guided import guided, is_here
from tests.fuzz.targets import SEEDS, TARGETS, seeds_of

SECONDS = float(os.environ.get("FUZZ_SECONDS", "26"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
GUIDED = ("zip",)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of memory and time are those of POSIX")


def _told(found):
    return "\n".join(f"{crash.target}: {crash.what}\n  at {crash.where}\n  {crash.files}" for crash in found.crashes)


def test_no_reader_breaks():
    """Generators, and mutation of seeds, over every reader: nothing comes out but values and errors of this package."""
    found = fuzzed(SECONDS, seed=SEED)
    assert not found.crashes, _told(found)
    assert set(found.executions) == set(TARGETS)
    assert min(found.executions.values()) >= 8
    assert all(found.accepted[name] for name in TARGETS)  # some inputs are read: not all that is fed is nonsense


@pytest.mark.skipif(not is_here(), reason="atheris is not installed")
@pytest.mark.parametrize("target", GUIDED)
def test_no_reader_breaks_where_coverage_leads(target):
    """Coverage guides the bytes that are tried next."""
    found = guided(target, max(3, int(SECONDS / 8)), seed=SEED)
    assert not found.crashes, _told(found)
    assert found.total > 10


def test_every_target_has_seeds_or_a_grammar():
    """No target is fed nothing; the seeds that are kept in the repository are small."""
    assert all(seeds_of(name) or target.grown is not None for name, target in TARGETS.items())
    assert {path.name for path in SEEDS.iterdir()} <= set(TARGETS)
    assert sum(path.stat().st_size for path in SEEDS.rglob("*.seed")) < 300 << 10
