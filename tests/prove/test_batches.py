"""The watch over data loaders: every batch with the indices of its samples, whoever draws it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import unmoor
from unmoor.live.batches import batch_of, comparable, watch

from .runs import data

pytestmark = pytest.mark.filterwarnings("ignore:.*(set_vital' is deprecated|multi-threaded, use of fork)")


def shuffled(**options):
    return DataLoader(data(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1), **options)


def order():
    return [tuple(map(str, batch)) for batch in shuffled().batch_sampler]


LOADERS = {
    "stock": lambda: shuffled(),
    "workers": lambda: shuffled(num_workers=2),
    "resumable": lambda: unmoor.resumable(shuffled()),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_batch_is_seen_with_its_samples(kind):
    """The indices are those that the sampler gives, in their order, although workers take them ahead."""
    loader = LOADERS[kind]()
    with watch() as seen:
        for _ in loader:
            pass
    drawn = seen.take()
    assert [batch.samples for batch in drawn] == _again(kind)
    assert all(batch.known for batch in drawn)
    assert seen.take() == []


def _again(kind):
    with watch() as seen:
        list(LOADERS[kind]())
    return [batch.samples for batch in seen.take()]


def test_persistent_workers_begin_each_epoch_anew():
    """The iterator of such a loader is one object for all epochs; its indices are those of the epoch."""
    loader = shuffled(num_workers=1, persistent_workers=True)
    with watch() as seen:
        for _ in range(2):
            list(loader)
    drawn = seen.take()
    assert len(drawn) == 12
    for epoch in (drawn[:6], drawn[6:]):
        assert sorted(int(s) for batch in epoch for s in batch.samples) == list(range(48))


def test_a_stateful_loader_of_torchdata_is_seen():
    """Its iterators have methods of their own."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    with watch() as seen:
        list(StatefulDataLoader(data(), batch_size=8))
    assert [batch.samples[0] for batch in seen.take()] == ["0", "8", "16", "24", "32", "40"]


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.arange(4.0)


def test_samples_without_an_index_are_told_by_their_values():
    """An iterable dataset has no indices: each row of a batch has a digest."""
    with watch() as seen:
        list(DataLoader(Stream(), batch_size=2))
    first, second = seen.take()
    assert not first.known
    assert len({*first.samples, *second.samples}) == 4


def test_nothing_of_torch_is_left_changed():
    """The watch takes itself away, after an error too."""
    before = _BaseDataLoaderIter.__next__, _BaseDataLoaderIter._next_index
    with pytest.raises(ZeroDivisionError), watch():
        1 / 0  # noqa: B018
    assert (_BaseDataLoaderIter.__next__, _BaseDataLoaderIter._next_index) == before


EQUAL = {
    "tensors": lambda: torch.ones(2, 3),
    "arrays": lambda: np.arange(3.0),
    "object arrays": lambda: np.array(["a", None], dtype=object),
    "nested": lambda: {"x": [torch.zeros(1), (1, "a")], "y": {2, 1}},
    "objects": lambda: type("Graph", (), {})(),
}


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_batches_have_equal_digests_in_any_process(kind):
    """A digest holds no address and no order of a set."""
    make = EQUAL[kind]
    assert batch_of(make()).digest == batch_of(make()).digest
    assert "0x" not in repr(comparable(make()))


def test_other_values_have_other_digests():
    """Also where only a dtype or a key differs."""
    values = [torch.zeros(2), torch.zeros(2, dtype=torch.float64), {"a": 1}, {"b": 1}, [1], np.zeros(2), np.ones(2)]
    assert len({batch_of(value).digest for value in values}) == len(values)
