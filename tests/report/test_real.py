"""What is said of a checkpoint that nobody here wrote."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from unmoor.describe import describe_file
from unmoor.report.inspect import inspect_text
from unmoor.report.layout import cells

from .golden import check_golden

pytestmark = pytest.mark.real


@pytest.fixture
def chgnet():
    """The weights that the package chgnet 0.4.2 carries, saved on cuda:7."""
    spec = find_spec("chgnet")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package chgnet")
    [path] = Path(spec.origin).parent.glob("pretrained/0.3.0/*.pth.tar")
    return replace(describe_file(path), path=path.name)


def test_the_page_of_a_run_saved_on_a_gpu(chgnet):
    """A real training checkpoint, as a person sees it."""
    check_golden("real_chgnet_80", inspect_text(chgnet))


@pytest.mark.parametrize("width", [40, 64, 120])
def test_the_page_fits_at_any_width(chgnet, width):
    """No line of a real checkpoint's page is wider than asked for."""
    assert all(cells(line) <= width for line in inspect_text(chgnet, width=width).split("\n"))
