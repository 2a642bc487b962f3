"""unmoor.resumable: what it promises beside the matrix of loaders, for any size and any cut."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler

import unmoor
from tests.cases.files import refused

from .training import draws


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _loader(size: int = 10, batch: int | None = 2, **options: Any) -> Any:
    return unmoor.resumable(
        DataLoader(range(size), batch_size=batch, **{"shuffle": True, "generator": _seeded()} | options)
    )


def _lists(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def _part(loader: Any, number: int) -> list[Any]:
    """The first batches of an epoch, which is left there."""
    return _lists(batch for _, batch in zip(range(number), loader, strict=False))


@settings(max_examples=80, deadline=None)
@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 9),
    drop_last=st.booleans(),
    replacement=st.booleans(),
    own=st.booleans(),
    cut=st.integers(1, 90),
)
def test_whatever_the_sizes_and_the_cut_nothing_is_lost_or_seen_twice(size, batch, drop_last, replacement, own, cut):
    """Law 5: cut after any batch of any epoch, the resumed loader gives what the uninterrupted one would have given."""

    def make(seed: int) -> Any:
        torch.manual_seed(seed)
        source = _seeded(seed) if own else None
        sampler = RandomSampler(range(size), replacement=replacement, generator=source)
        return _loader(size, batch, shuffle=False, sampler=sampler, drop_last=drop_last, generator=source)

    def epochs(loader: Any, first: int, seen: list[Any], stop: int = -1) -> Any:
        for number in range(first, 3):
            for values in loader:
                seen.append((number, values.tolist(), torch.rand(()).item()))
                if len(seen) == stop:
                    return number, loader.state_dict(), torch.get_rng_state()
        return None

    whole: list[Any] = []
    epochs(make(1), 0, whole)
    if not whole:
        return
    seen: list[Any] = []
    number, position, stream = epochs(make(1), 0, seen, stop=1 + cut % len(whole))
    again = make(2)
    again.load_state_dict(position)
    torch.set_rng_state(stream)
    epochs(again, number, seen)
    assert seen == whole


class Loud(Dataset[int]):
    """A dataset that notes what is loaded from it."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.loaded.append(index)
        return index


def test_batches_that_were_done_are_passed_over_without_loading_them(tmp_path):
    """Of a map-style dataset only what is handed out is loaded; skip="data" loads what is passed over too."""
    loader = _loader()
    done = _part(loader, 3)
    unmoor.save(tmp_path / "a.pt", loader=loader)
    for skip, expected in (("order", 4), ("data", 10)):
        data = Loud()
        stock = DataLoader(data, batch_size=2, shuffle=True, generator=_seeded(5))
        again = unmoor.resumable(stock, skip=skip)
        unmoor.restore(tmp_path / "a.pt", loader=again)
        left = _lists(again)
        assert sorted(chain(*done, *left)) == list(range(10))
        assert len(data.loaded) == expected


def test_saving_and_restoring_draw_no_random_numbers(tmp_path):
    """The streams of the process are where they were after a save, and where the file says after restore and loop."""
    loader = _loader(generator=None)
    _part(loader, 2)
    before = draws()
    unmoor.save(tmp_path / "a.pt", loader=loader)
    assert draws() == before
    again = _loader(generator=None)
    torch.rand(3), random.random(), np.random.rand()
    unmoor.restore(tmp_path / "a.pt", loader=again)
    assert draws() == before
    iterator = iter(again)
    assert draws() == before
    next(iterator)
    assert draws() == before


def test_a_position_that_was_just_restored_can_be_saved_again(tmp_path):
    """Between a restore and the next loop a save writes the position that was restored."""
    loader = _loader()
    _part(loader, 2)
    unmoor.save(tmp_path / "a.pt", loader=loader)
    again = _loader(generator=_seeded(9))
    unmoor.restore(tmp_path / "a.pt", loader=again)
    unmoor.save(tmp_path / "b.pt", loader=again)
    third = _loader(generator=_seeded(8))
    unmoor.restore(tmp_path / "b.pt", loader=third)
    assert _lists(third) == _lists(again)


def test_between_two_epochs_the_next_one_is_the_next_one(tmp_path):
    """Saved after an epoch, or before the first, the generators alone decide what comes."""
    loader = _loader()
    for _ in range(2):
        unmoor.save(tmp_path / "a.pt", loader=loader)
        again = _loader(generator=_seeded(9))
        unmoor.restore(tmp_path / "a.pt", loader=again)
        assert _lists(again) == _lists(loader)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"size": 14}, "saved over 10 samples, now 14"),
        ({"batch": 3, "size": 4}, "saved over 10 samples, now 4"),
        ({"shuffle": False}, "another order: saved shuffled by a random stream (RandomSampler, 1 process)"),
    ],
    ids=str,
)
def test_a_loader_that_would_give_another_order_is_an_error_not_other_batches(tmp_path, other, why):
    """A dataset that grew, or another sampler: what is left of the epoch is not known, and nothing is changed."""
    loader = _loader()
    _part(loader, 3)
    unmoor.save(tmp_path / "a.pt", loader=loader)
    again = _loader(**other)
    expected = _lists(_loader(**other))
    with refused(unmoor.MismatchError) as caught:
        unmoor.restore(tmp_path / "a.pt", loader=again, rng=False)
    assert why in str(caught.value)
    assert 'position="epoch" begins the epoch again' in str(caught.value)
    assert _lists(again) == expected


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_batches_of_another_size_are_cut_from_where_the_epoch_was(tmp_path, batch):
    """The samples that were left come in their order, whatever the size of a batch is now; the report says where."""
    loader, whole = _loader(), [sample for batch in _lists(_loader()) for sample in batch]
    _part(loader, 2)
    unmoor.save(tmp_path / "a.pt", loader=loader)
    again = _loader(batch=batch, generator=_seeded(9))
    report = unmoor.restore(tmp_path / "a.pt", loader=again)
    left = whole[4:]
    assert _lists(again) == [left[i : i + batch] for i in range(0, len(left), batch)]
    assert "the epoch, 4 of 10 samples: it goes on at sample 4" in dict(report.plan.notes)["loader"]


def test_data_that_changed_in_secret_is_noticed_by_the_checksum(tmp_path):
    """A sampler that gives other indices than it gave then, with the same facts, is an error of the next loop."""
    data = list(range(10))
    loader = _loader(shuffle=False, sampler=Listed(data), generator=None)
    _part(loader, 3)
    unmoor.save(tmp_path / "a.pt", loader=loader)
    again = _loader(shuffle=False, sampler=Listed(data[::-1]), generator=None)
    unmoor.restore(tmp_path / "a.pt", loader=again, rng=False)
    stream = draws()
    with pytest.raises(unmoor.MismatchError, match="cannot go on after 3 batches of the saved epoch"):
        next(iter(again))
    assert draws() == stream


class Listed(Sampler[int]):
    """A sampler of the caller's own: a list of indices."""

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices

    def __iter__(self) -> Any:
        return iter(self.indices)


class Interleaved(Sampler[int]):
    """A sampler that draws each index from python's global stream, between the draws of the training."""

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Any:
        for _ in range(10):
            yield random.randrange(1000) % 10


def test_a_stream_that_training_draws_from_between_the_batches_is_noticed(tmp_path):
    """An order that depends on draws of the training cannot be drawn again: that is an error, never a wrong batch."""
    random.seed(3)
    loader = _loader(shuffle=False, sampler=Interleaved(), generator=None)
    for _, _ in zip(range(4), loader, strict=False):
        random.random()
    unmoor.save(tmp_path / "a.pt", loader=loader)
    again = _loader(shuffle=False, sampler=Interleaved(), generator=None)
    unmoor.restore(tmp_path / "a.pt", loader=again)
    with pytest.raises(unmoor.MismatchError, match="another part of the program draws from its random stream"):
        next(iter(again))


class Stubborn:
    """An object that refuses its state."""

    def state_dict(self) -> dict[str, int]:
        return {"a": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise RuntimeError("not today")


def test_a_restore_that_fails_leaves_the_position_alone(tmp_path):
    """Law 2: a loop that is under way goes on with its own batches, and a save then writes its own position."""
    loader, expected = _loader(), _lists(_loader())
    unmoor.save(tmp_path / "a.pt", loader=_loader(generator=_seeded(5)), other=Stubborn())
    iterator = iter(loader)
    done = [next(iterator).tolist()]
    with refused(unmoor.MismatchError) as caught:
        unmoor.restore(tmp_path / "a.pt", loader=loader, other=Stubborn())
    assert "not today" in str(caught.value)
    done.append(next(iterator).tolist())
    unmoor.save(tmp_path / "b.pt", loader=loader)
    again = _loader(generator=_seeded(7))
    unmoor.restore(tmp_path / "b.pt", loader=again)
    assert done + _lists(again) == expected


def test_two_loops_over_one_loader_do_not_disturb_each_other():
    """Nested loops see what they see over the stock loader; the position is that of the last batch handed out."""
    stock = DataLoader(range(6), batch_size=2, shuffle=True, generator=_seeded())
    wanted = [(a.tolist(), b.tolist()) for a in stock for b in stock]
    loader = _loader(6)
    assert [(a.tolist(), b.tolist()) for a in loader for b in loader] == wanted


def test_everything_else_of_the_loader_passes_through():
    """Length and attributes are the loader's own; a wrapper is not wrapped again."""
    loader = _loader(11, drop_last=True)
    assert (len(loader), loader.batch_size, loader.drop_last, len(loader.dataset)) == (5, 2, True, 11)
    assert (len(iter(loader)), unmoor.resumable(loader)) == (5, loader)
    with pytest.raises(AttributeError):
        loader.no_such_thing  # noqa: B018


@pytest.mark.parametrize("value", [[1, 2], None, iter([1])])
def test_only_a_data_loader_can_be_made_resumable(value):
    """Anything else is refused by name, and so is another word for skip."""
    with pytest.raises(unmoor.UsageError, match=f"resumable was given a builtins.{type(value).__name__}"):
        unmoor.resumable(value)
    with pytest.raises(unmoor.UsageError, match="skip='none' is none of 'order', 'data'"):
        unmoor.resumable(DataLoader([1]), skip="none")


class Ahead(DataLoader[int]):
    """A loader of a class that iterates in its own way: it runs one batch ahead."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        held = next(batches)
        for batch in batches:
            yield held
            held = batch
        yield held


def test_a_loader_that_iterates_in_its_own_way_is_refused():
    """Where a class overrides the iteration, what was handed out cannot be counted from outside."""
    with pytest.raises(unmoor.UsageError, match=r"Ahead, which iterates in its own way"):
        unmoor.resumable(Ahead(range(4)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_workers_that_the_stock_loader_started_are_not_used():
    """A loader whose persistent workers ran before it was wrapped gets workers of its own; its position is known."""

    def make(seed: int) -> Any:
        return DataLoader(
            range(10), batch_size=2, shuffle=True, generator=_seeded(seed), num_workers=1, persistent_workers=True
        )

    stock = make(0)
    list(stock)
    loader = unmoor.resumable(stock)
    iterator = iter(loader)
    done = [next(iterator).tolist() for _ in range(3)]
    again = unmoor.resumable(make(5))
    again.load_state_dict(loader.state_dict())
    assert sorted(chain(*done, *_lists(again))) == list(range(10))
    list(iterator)
    assert _lists(again) == _lists(loader)


def test_a_position_in_a_file_of_others_is_no_random_state_of_the_process(tmp_path):
    """torch.save of the loader's state dict: restored, and its random states are not taken for the process's."""
    loader = _loader()
    done = _part(loader, 2)
    torch.save({"loader": loader.state_dict(), "rng": torch.get_rng_state()}, tmp_path / "a.pt")
    torch.load(tmp_path / "a.pt")
    again = _loader(generator=_seeded(3))
    report = unmoor.restore(tmp_path / "a.pt", loader=again)
    assert report.restored == ("loader", "rng")
    assert done + _lists(again) == _lists(_loader())
    assert ("rng", "torch") in report.plan.notes
