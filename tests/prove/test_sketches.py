"""Sketches: a few numbers that tell how far apart two tensors are."""

from __future__ import annotations

import pytest
import torch

from unmoor.live.sketches import sketch


@pytest.mark.parametrize("number", [1, 7, 4096, 4097, 50_000])
def test_the_distance_of_two_tensors_is_estimated(number):
    """The mean square of the differences is that of the distance, within the scatter of eight sums."""
    one = torch.randn(number, generator=torch.Generator().manual_seed(1))
    other = one + 1e-3 * torch.randn(number, generator=torch.Generator().manual_seed(2))
    a, b = sketch(one), sketch(other)
    estimate = (sum((x - y) ** 2 for x, y in zip(a[1:], b[1:], strict=True)) / 8) ** 0.5
    assert a[0] == pytest.approx(float(one.double().norm()))
    assert 0.3 < estimate / float((one - other).double().norm()) < 2.5


def test_equal_values_have_one_sketch_whatever_their_memory():
    """Strides do not count, and neither does the dtype that holds the same values."""
    tensor = torch.arange(12.0).reshape(3, 4)
    assert sketch(tensor.t().contiguous().t()) == sketch(tensor) == sketch(tensor.double())


@pytest.mark.parametrize("tensor", [torch.arange(3), torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.complex64)])
def test_what_holds_no_real_numbers_has_no_sketch(tensor):
    """Integers count bit for bit; other layouts are left to their digest."""
    assert sketch(tensor) == ()
