"""Hypothesis chooses what the grammars write, and makes what breaks small. PyTorch is there, to measure differences.

FUZZ_EXAMPLES tries more.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.campaign import Fuzzer
from tests.fuzz.targets import TARGETS

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "8"))


@pytest.mark.parametrize("name", TARGETS)
@given(rng=st.randoms(use_true_random=False))
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == 8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_whatever_lies_in_a_file_gives_a_value_or_an_error_of_this_package(name, rng, tmp_path):
    """Law 1, on every road, by fast and slow ways, beside who else reads such files."""
    files = TARGETS[name].made(rng)
    TARGETS[name].look(files, tmp_path, None, Fuzzer(Path(tmp_path), None).other(name))
