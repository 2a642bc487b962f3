"""Where the loaders of another world go on: every sample that was left, once; or an error that says why not."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler

import unmoor
from tests.dialects import environment
from unmoor.plan.positions import plan_position
from unmoor.values.positions import Position
from unmoor.values.target import TargetObject

from .epochs import EPOCH, batches, carry, distributed, flat, left, order, stateful, stop
from .launch import Failed, launch

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

SIZE = 25
PAIRS = [(saved, live) for saved in (1, 2, 3, 4) for live in (1, 2, 3, 4)]
MAKERS = {"resumable": distributed, "torchdata": stateful}


def rest(done: int, live: int, *, shuffle: bool, cut: bool, size: int = SIZE) -> list[int]:
    """What is left of an epoch's order after `done` samples, made even for `live` ranks as DistributedSampler does."""
    whole = order(size, shuffle=shuffle)
    tail = whole[done:]
    if cut:
        return tail[: len(tail) // live * live]
    return tail + whole[: -len(tail) % live]


def is_over(done: int, saved: int, *, cut: bool, size: int = SIZE) -> bool:
    return done >= (size // saved * saved if cut else size)


@pytest.mark.parametrize(("saved", "live"), PAIRS)
def test_what_is_left_of_an_epoch_is_dealt_out_to_any_number_of_ranks(saved, live):
    """The samples of the resumed ranks are those that were left, in equal shares; then the next epoch follows."""
    for batch, now, shuffle, cut, number in itertools.product((2, 3), (1, 2, 4), (True, False), (True, False), (1, 2)):
        given, states = stop(distributed(SIZE, saved, batch, shuffle=shuffle, cut=cut), number)
        done = saved * batch * number
        if not is_over(done, saved, cut=cut):
            assert Counter(flat(given)) == Counter(order(SIZE, shuffle=shuffle)[:done])
        loaders = distributed(SIZE, live, now, shuffle=shuffle, cut=cut)
        for loader in loaders:
            loader.sampler.set_epoch(0)
        carry(states, loaders)
        shares = left(loaders)
        over = is_over(done, saved, cut=cut)
        assert Counter(flat(shares)) == Counter([] if over else rest(done, live, shuffle=shuffle, cut=cut))
        assert len({len(flat(share)) for share in shares}) == 1
        after = distributed(SIZE, live, now, shuffle=shuffle, cut=cut)
        for loader in (*loaders, *after):
            loader.sampler.set_epoch(EPOCH + 1)
        assert left(loaders) == left(after)


@pytest.mark.parametrize("own", [False, True], ids=["DistributedSampler", "StatefulDistributedSampler"])
@pytest.mark.parametrize(("saved", "live"), PAIRS)
def test_torchdata_goes_on_where_its_state_can_say_so_and_is_refused_elsewhere(saved, live, own):
    """A position that is a multiple of the live ranks is exact; any other is an error that offers what works."""
    for batch, now, shuffle, cut, number in itertools.product(
        (2, 3), (1, 4, None), (True, False), (True, False), (1, 2)
    ):
        options = {"shuffle": shuffle, "cut": cut, "own": own}
        _, states = stop(stateful(SIZE, saved, batch, **options), number)
        done = saved * batch * number
        loaders = stateful(SIZE, live, now, **options)
        for loader in loaders:
            loader.sampler.set_epoch(0)
        plans = carry(states, loaders)
        over = is_over(done, saved, cut=cut)
        if done % live and not over:
            assert f"{done} samples were done, no multiple of the {live}" in plans[0].faults[0].message
            assert "unmoor.resumable(DataLoader(...)) goes on from any sample" in plans[0].faults[0].remedy
            continue
        assert not any(plan.faults for plan in plans)
        expected = [] if over else rest(done, live, shuffle=shuffle, cut=cut)
        assert Counter(flat(left(loaders))) == Counter(expected)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_in_the_same_world_every_rank_gets_its_own_batches_back(make, workers):
    """The batches that follow are those of the run that was not interrupted, in this epoch and the next."""
    options = {"num_workers": workers}
    _, states = stop(MAKERS[make](SIZE, 3, 2, **options), 2)
    whole, loaders = (MAKERS[make](SIZE, 3, 2, **options) for _ in range(2))
    for loader in loaders:
        loader.sampler.set_epoch(0)
    assert [plan.note for plan in carry(states, loaders)] == ["epoch 3, 12 of 25 samples"] * 3
    assert left(loaders) == [share[2:] for share in left(whole)]
    for loader in (*loaders, *whole):
        loader.sampler.set_epoch(EPOCH + 1)
    assert left(loaders) == left(whole)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_workers_and_what_they_fetch_ahead_do_not_move_the_position(make, persistent):
    """With worker processes, persistent or not, and batches fetched ahead, a third rank takes its share."""
    options = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": persistent}
    _, states = stop(MAKERS[make](48, 2, 3, **options), 2)
    loaders = MAKERS[make](48, 3, 2, **options)
    assert [plan.note for plan in carry(states, loaders)] == [
        "epoch 3, 12 of 48 samples, saved by 2 ranks, now 3: each goes on at sample 4"
    ] * 3
    shares = left(loaders)
    assert Counter(flat(shares)) == Counter(order(48)[12:])
    assert shares[2] == [order(48)[12:][2::3][i : i + 2] for i in range(0, 12, 2)]


def test_a_world_that_changes_again_within_the_epoch_loses_nothing():
    """2 ranks, then 3, then the same 3 again, then 4, each cut within one epoch: every sample once."""
    size = 96
    seen, states = stop(distributed(size, 2, 5), 2)
    for ranks, batch, number in ((3, 4, 2), (3, 4, 1), (4, 3, 1)):
        loaders = distributed(size, ranks, batch)
        carry(states, loaders)
        given, states = stop(loaders, number)
        seen += given
    loaders = distributed(size, 1, 7)
    (plan,) = carry(states, loaders)
    assert plan.note.startswith("epoch 3, 68 of 96 samples, saved by 4 ranks, now 1: it goes on at sample 68")
    assert sorted(flat(seen) + flat(left(loaders))) == sorted(order(size))


@pytest.mark.parametrize("make", MAKERS)
def test_a_position_just_restored_is_saved_again_as_it_is(make):
    """Between a restore in another world and the next loop a save writes the same position."""
    _, states = stop(MAKERS[make](24, 2, 3), 1)
    once, twice, straight = (MAKERS[make](24, 3, 2) for _ in range(3))
    carry(states, once)
    carry(states, straight)
    _, again = stop(once, 0)
    carry(again, twice)
    assert left(twice) == left(straight) == left(once)


def _alone(shuffle: bool = False, batch: int = 4, size: int = 24, seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [unmoor.resumable(DataLoader(range(size), batch_size=batch, shuffle=shuffle, generator=generator))]


def test_the_order_of_the_dataset_is_one_order_in_one_process_and_in_many():
    """SequentialSampler to DistributedSampler(shuffle=False) and back: the position carries over."""
    _, states = stop(_alone(), 2)
    loaders = distributed(24, 4, 2, shuffle=False)
    plans = carry(states, loaders)
    assert plans[0].note == "the epoch, 8 of 24 samples, saved by 1 process, now 4: each goes on at sample 2"
    assert sorted(flat(left(loaders))) == list(range(8, 24))
    _, states = stop(distributed(24, 3, 2, shuffle=False), 2)
    (one,) = _alone()
    carry(states, [one])
    assert left([one]) == [[[12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22, 23]]]


class Stream(IterableDataset[int]):
    """An iterable dataset, which says nothing of who reads what."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(24))


class Backwards(Sampler[int]):
    """A sampler of the user's own."""

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Iterator[int]:
        return iter(range(23, -1, -1))


def _own() -> Any:
    return unmoor.resumable(DataLoader(range(24), batch_size=4, sampler=Backwards()))


def _stream() -> Any:
    return unmoor.resumable(DataLoader(Stream(), batch_size=4))


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "another order": (
        lambda: _alone(shuffle=True),
        lambda: distributed(24, 2, 2),
        "another order: saved shuffled by a random stream (RandomSampler, 1 process), now shuffled by seed and epoch",
    ),
    "in order no more": (
        lambda: distributed(24, 2, 2),
        lambda: distributed(24, 4, 2, shuffle=False),
        "(DistributedSampler, 2 ranks), now the order of the dataset (DistributedSampler, 4 ranks)",
    ),
    "more data": (lambda: distributed(24, 2, 2), lambda: distributed(40, 4, 2), "saved over 24 samples, now 40"),
    "another seed": (
        lambda: distributed(24, 2, 2),
        lambda: distributed(24, 4, 2, seed=7),
        "saved with seed=0, now seed=7",
    ),
    "another end": (
        lambda: distributed(24, 2, 2),
        lambda: distributed(24, 4, 2, cut=True),
        "saved with drop_last=False, now drop_last=True",
    ),
    "iterable": (lambda: [_stream(), _stream()], lambda: [_stream()] * 3, "an iterable dataset does not say"),
    "own sampler": (lambda: [_own()], lambda: [_own(), _own()], "how a Backwards shares an epoch among ranks is not"),
    "another class": (
        lambda: distributed(24, 2, 2),
        lambda: stateful(24, 4, 2),
        "saved by unmoor.resumable, now torchdata's StatefulDataLoader",
    ),
}


def _worlds(states: list[Any], loaders: list[Any], mode: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Carry as if the processes were as many as the loaders."""
    monkeypatch.setattr("unmoor.live.loader_facts._world", lambda: len(loaders))
    return carry(states, loaders, mode)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exact_is_refused_by_name_with_the_choice(case, monkeypatch):
    """Another order, length, seed or end, and what does not tell its position: both sides are named."""
    saved, live, why = REFUSED[case]
    _, states = stop(saved(), 2)
    plans = _worlds(states, live(), "exact", monkeypatch)
    for plan in plans:
        (fault,) = plan.faults
        assert fault.kind == "mismatch"
        assert why in fault.message
        assert 'position="epoch" begins' in fault.remedy


@pytest.mark.parametrize("case", REFUSED)
def test_the_epoch_can_begin_again_where_its_position_cannot_be_had(case, monkeypatch):
    """position="epoch": each rank begins, told the saved epoch where that has a number; the report says so."""
    saved, live, _ = REFUSED[case]
    _, states = stop(saved(), 2)
    loaders, whole = live(), live()
    for loader in loaders:
        if isinstance(loader.sampler, DistributedSampler) and "sampler" in states[0]["position"]:
            loader.sampler.set_epoch(0)
    plans = _worlds(states, loaders, "epoch", monkeypatch)
    assert all(plan.note.startswith("begins ") and not plan.faults for plan in plans)
    if states[0]["position"]["epoch"] is None:
        for loader in whole:
            if isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(0)
    assert left(loaders) == left(whole)


def test_all_that_differs_is_said_together():
    """A seed, a length and an end that differ are three faults of one error."""
    _, states = stop(distributed(24, 2, 2), 2)
    plan = carry(states, distributed(30, 4, 2, seed=1, cut=True))[0]
    assert len(plan.faults) == 3


def test_ranks_that_stood_at_different_positions_are_refused_elsewhere_and_exact_at_home():
    """Uneven ranks: another world is refused with the positions; in the same world each gets its own back."""
    loaders = distributed(24, 3, 2)
    states = [stop([loader], number)[1][0] for loader, number in zip(loaders, (2, 2, 1), strict=True)]
    plan = carry(states, distributed(24, 2, 2))[1]
    assert plan.faults[0].message == (
        "the ranks did not stand at one position: epoch 3, 12 of 24 samples (ranks 0 and 1); "
        "epoch 3, 6 of 24 samples (rank 2)"
    )
    same = distributed(24, 3, 2)
    assert not any(plan.faults for plan in carry(states, same))
    assert [len(share) for share in left(same)] == [2, 2, 3]


def _shuffled(seed: int | None) -> Any:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return unmoor.resumable(DataLoader(range(24), batch_size=4, sampler=RandomSampler(range(24), generator=generator)))


def test_one_shuffle_on_every_rank_goes_on_on_new_ranks_too(monkeypatch):
    """RandomSampler alike on all ranks is not sharded: position and order carry over unchanged, batches of any size."""
    monkeypatch.setattr("unmoor.live.loader_facts._world", lambda: 2)
    whole = batches(_shuffled(5))
    _, states = stop([_shuffled(5), _shuffled(5)], 2)
    loaders = [_shuffled(seed) for seed in (1, 2, 3)]
    plans = _worlds(states, loaders, "exact", monkeypatch)
    assert [plan.note for plan in plans] == ["the epoch, 8 of 24 samples: it goes on at sample 8"] * 3
    assert left(loaders) == [whole[2:]] * 3


def test_a_shuffle_of_its_own_on_each_rank_is_no_global_order(monkeypatch):
    """Ranks that shuffled for themselves: another world is refused; "epoch" gives each its own order again."""
    monkeypatch.setattr("unmoor.live.loader_facts._world", lambda: 2)
    _, states = stop([_shuffled(5), _shuffled(6)], 2)
    loaders = [_shuffled(seed) for seed in (1, 2, 3)]
    plan = _worlds(states, loaders, "exact", monkeypatch)[0]
    assert plan.faults[0].message == "each rank shuffled for itself, and what the others took is not known"
    _worlds(states, loaders, "epoch", monkeypatch)
    assert left(loaders) == [batches(_shuffled(seed)) for seed in (5, 6, 3)]


@pytest.mark.parametrize("seed", [4, None], ids=["own generator", "stream of the process"])
def test_an_epoch_that_begins_again_has_the_order_of_the_saved_one(seed):
    """The states at its start are kept, so that the same shuffle is drawn, and the next one after it."""
    torch.manual_seed(11)
    loader = _shuffled(seed)
    _, states = stop([loader], 2)
    torch.manual_seed(11)
    whole = _shuffled(seed)
    expected = batches(whole)
    torch.manual_seed(3)
    again = _shuffled(1 if seed else None)
    carry(states, [again], "epoch")
    before = torch.get_rng_state()
    assert batches(again) == expected
    assert torch.equal(before, torch.get_rng_state())
    if seed:
        assert batches(again) == batches(whole)


def test_torchdata_begins_the_epoch_again_in_its_order():
    """position="epoch" for torchdata's own shuffle: the generator of the epoch's beginning is kept."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return StatefulDataLoader(range(24), batch_size=4, shuffle=True, generator=generator)

    _, states = stop([make(5)], 2)
    again = make(1)
    carry(states, [again], "epoch")
    assert batches(again) == batches(make(5))


def test_batches_of_another_size_in_torchdata_are_cut_from_where_the_epoch_was():
    """One process, its own shuffle, another batch size: the samples that were left, in their order."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make(seed: int, batch: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return StatefulDataLoader(range(24), batch_size=batch, shuffle=True, generator=generator)

    _, states = stop([make(5, 4)], 2)
    again = make(1, 5)
    (plan,) = carry(states, [again])
    assert "batches are cut from there, not at multiples of 5" in plan.note
    assert flat(batches(again)) == flat(batches(make(5, 4)))[8:]


@pytest.mark.parametrize("make", MAKERS)
def test_a_forgotten_set_epoch_repeats_the_order_here_as_there(make):
    """Without set_epoch every epoch has the order of the first; the rest of it follows in any world."""
    loaders = MAKERS[make](24, 2, 3)
    for loader in loaders:
        loader.sampler.set_epoch(0)
        batches(loader)
    _, states = stop(loaders, 2)
    again = MAKERS[make](24, 4, 3)
    carry(states, again)
    assert Counter(flat(left(again))) == Counter(order(24, epoch=0)[12:])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("live", [1, 3, 4])
def test_an_epoch_whose_last_batch_was_given_has_nothing_left(make, drop_last, live):
    """Saved in the loop after the last batch: nothing more of that epoch, whatever the live world cuts or repeats."""
    _, states = stop(MAKERS[make](22, 2, 4, drop_last=drop_last), 2 if drop_last else 3)
    loaders = MAKERS[make](22, live, 3, drop_last=drop_last)
    plans = carry(states, loaders)
    assert all(plan.note.endswith("nothing of it is left") for plan in plans)
    assert left(loaders) == [[]] * live
    for loader in loaders:
        loader.sampler.set_epoch(EPOCH + 1)
    assert Counter(flat(left(loaders))) >= Counter(order(22, epoch=EPOCH + 1)[: 12 if drop_last else 22])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("done", [0, None], ids=["before the first", "after an epoch"])
def test_between_epochs_any_world_begins_the_next(make, done):
    """Nothing is under way: no rule is needed, and the next epoch is the one that set_epoch says."""
    _, states = stop(MAKERS[make](24, 2, 3), done)
    loaders, whole = MAKERS[make](24, 3, 5, seed=0), MAKERS[make](24, 3, 5, seed=0)
    assert not any(plan.faults for plan in carry(states, loaders))
    for loader in (*loaders, *whole):
        loader.sampler.set_epoch(EPOCH + 1)
    assert left(loaders) == left(whole)


def test_what_torchdata_saved_goes_on_with_the_wrapper_at_any_sample():
    """A position of StatefulDataLoader, into unmoor.resumable: 8 samples on 3 ranks, of which it is no multiple."""
    _, states = stop(stateful(24, 2, 4), 1)
    loaders = distributed(24, 3, 4)
    plans = carry(states, loaders)
    assert plans[0].note.startswith("epoch 3, 8 of 24 samples, saved by 2 ranks, now 3: each goes on from there")
    assert Counter(flat(left(loaders))) == Counter(order(24)[8:] + order(24)[:2])


def test_an_order_that_torchdata_does_not_keep_is_named():
    """A RandomSampler of torch in StatefulDataLoader: its random state is in no file, in the same world too."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        return StatefulDataLoader(
            range(24), batch_size=4, sampler=RandomSampler(range(24), generator=torch.Generator())
        )

    _, states = stop([make()], 2)
    (plan,) = carry(states, [make()])
    assert "does not keep the random state that RandomSampler drew from" in plan.faults[0].message
    assert not carry(stop([make()], None)[1], [make()])[0].faults


def test_ranks_that_share_a_share_count_once():
    """Four processes on a mesh of 2 x 2 read two shares; two processes that read one each go on exactly."""
    both = [stop(distributed(24, 2, 3)[r : r + 1], 2)[1][0] for r in (0, 0, 1, 1)]
    loaders = distributed(24, 2, 3)
    assert not any(plan.faults for plan in carry(both, loaders))
    assert Counter(flat(left(loaders))) == Counter(order(24)[12:])


def test_the_report_says_what_the_end_of_the_epoch_repeats():
    """Padding differs by the world: where it does, the note gives both numbers."""
    _, states = stop(distributed(25, 2, 3), 2)
    assert carry(states, distributed(25, 4, 3))[0].note == (
        "epoch 3, 12 of 25 samples, saved by 2 ranks, now 4: each goes on at sample 3; "
        "3 samples repeated at its end to make ranks even, 1 when saved"
    )


def test_a_checksum_proves_that_the_order_is_the_saved_one():
    """What each rank was given is drawn again and held against its checksum before a new world goes on."""
    _, states = stop(distributed(24, 2, 3), 2)
    changed = [{**state, "digest": state["digest"] ^ 1} for state in states]
    loaders = distributed(24, 3, 2)
    carry(changed, loaders)
    with pytest.raises(unmoor.MismatchError, match="rank 1 was given other samples than come now"):
        next(iter(loaders[1]))


@pytest.mark.parametrize(("saved", "live"), [(2, 3), (4, 2)])
def test_a_sampler_of_torchdata_on_its_own_counts_for_all_ranks(saved, live):
    """StatefulDistributedSampler passed without its loader is carried by the same rule."""
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    def make(ranks: int) -> list[Any]:
        samplers = [StatefulDistributedSampler(range(24), ranks, rank) for rank in range(ranks)]
        for sampler in samplers:
            sampler.set_epoch(EPOCH)
        return samplers

    samplers = make(saved)
    for sampler in samplers:
        list(itertools.islice(sampler, 3))
    _, states = stop(samplers, 0)
    again = make(live)
    for sampler in again:
        sampler.set_epoch(0)
    carry(states, again)
    assert Counter(sample for sampler in again for sample in sampler) == Counter(order(24)[saved * 3 :])


MODES = {
    "exact": ("saved by 4 ranks, now 2, and what a Feed counts is not known", False),
    "saved": ("", True),
    "epoch": ("", False),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_loader_class_of_the_users_own_is_handed_its_state_only_where_asked(mode):
    """What it counts is not known: exact refuses another world, "saved" hands it over, "epoch" leaves it as it is."""
    why, handed = MODES[mode]
    target = TargetObject("loader", "loader", "Feed", "user", "cpu")
    plan = plan_position(target, {"done": 7}, [{"done": 7}] * 4, mode, rank=1, world=2)
    assert (plan.state == {"done": 7}) == handed
    assert [fault.message for fault in plan.faults] == ([why] if why else [])
    same = plan_position(target, {"done": 7}, [{"done": 7}] * 2, "exact", rank=1, world=2)
    assert (same.state, same.faults) == ({"done": 7}, [])


def test_a_file_of_one_rank_alone_is_carried_with_a_warning(tmp_path):
    """Saved by rank 0 alone: the others are taken to have stood there too, and the report says so."""
    loaders = distributed(24, 4, 2)
    given = [batches(loader, 2) for loader in loaders]
    unmoor.save(tmp_path / "a.pt", loader=loaders[0])
    again = distributed(24, 2, 2)
    reports = [unmoor.restore(tmp_path / "a.pt", loader=loader, rng=False) for loader in again]
    assert [f.code for f in reports[1].plan.findings] == ["position-of-one-rank"]
    assert sorted(flat(given) + flat(left(again))) == sorted(order(24))
    assert "saved by 4 ranks, now 2: each goes on at sample 8" in " ".join(str(reports[1]).split())


def test_a_file_without_these_facts_reads_as_before(tmp_path):
    """States of older files, and of torchdata alone, are handed over as they are; a share of them is a warning."""
    loaders = distributed(24, 2, 2)
    whole = [batches(loader) for loader in distributed(24, 2, 2)]
    _, states = stop(loaders, 2)
    old = {key: states[1][key] for key in ("batches", "digest", "start", "generators")}
    torch.save({"loader": old}, tmp_path / "a.pt")
    again = distributed(24, 2, 2)
    report = unmoor.restore(tmp_path / "a.pt", loader=again[1], rng=False)
    assert [f.code for f in report.plan.findings if f.severity == "warning"] == ["position-not-told"]
    assert batches(again[1]) == whole[1][2:]


def test_a_restore_that_fails_puts_epochs_back(tmp_path):
    """A loader of torchdata is told the saved epoch; where another object refuses its state, it is untold."""

    class Stubborn:
        def state_dict(self) -> dict[str, int]:
            return {"a": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            raise RuntimeError("not today")

    loaders = stateful(24, 2, 2)
    batches(loaders[0], 2)
    unmoor.save(tmp_path / "a.pt", loader=loaders[0], other=Stubborn())
    again = stateful(24, 2, 2)
    again[0].sampler.set_epoch(8)
    with pytest.raises(unmoor.MismatchError, match="not today"):
        unmoor.restore(tmp_path / "a.pt", loader=again[0], other=Stubborn())
    assert again[0].sampler.epoch == 8


@pytest.mark.parametrize(
    "damage",
    [
        {"replicas": 0},
        {"rank": 9},
        {"length": "many"},
        {"order": "best"},
        {"consumed": -1},
        {"dealt": "out"},
        {"kind": 1},
    ],
    ids=str,
)
def test_facts_that_cannot_be_are_no_facts(damage):
    """A position that no save writes counts for nothing, whoever wrote it."""
    plain = Position("resumable", "seeded", "a.B", length=9, replicas=2, rank=1).to_plain()
    assert Position.from_plain(plain) is not None
    assert Position.from_plain({**plain, **damage}) is None
    assert Position.from_plain(None) is None


def test_an_epoch_goes_through_three_worlds_of_real_processes(tmp_path):
    """Torchrun on 4, 2 and 3 ranks: saved and restored by all ranks, every sample of the epoch is given once."""
    first, second = tmp_path / "a.pt", tmp_path / "b.pt"
    worlds = [
        launch("tests.worlds.ranks.positions", 4, "", first, 2),
        launch("tests.worlds.ranks.positions", 2, first, second, 2),
        launch("tests.worlds.ranks.positions", 3, second, "", 0),
    ]
    assert not [rank for world in worlds for rank in world if isinstance(rank, Failed)]
    whole = order(96, seed=2, epoch=5)
    for name in ("stock", "torchdata", "other"):
        given = [flat([rank["given"][name] for rank in world]) for world in worlds]
        assert Counter(given[0] + given[1]) == Counter(whole[: len(given[0] + given[1])])
        assert sorted(flat(given)) == sorted(whole)
    assert {epoch for world in worlds for rank in world for epoch in rank["epochs"]} == {5}
    assert [rank["notes"]["loader[stock]"] for rank in worlds[2]] == [
        "epoch 5, 48 of 96 samples, saved by 2 ranks, now 3: each goes on at sample 16"
    ] * 3


def test_shards_of_accelerate_are_shares_of_one_order():
    """BatchSamplerShard by batch and by parts of batches, in order and shuffled, between 1 to 4 ranks each way."""
    command = [str(environment.python()), "-W", "ignore", "-m", "tests.worlds.shards"]
    path = os.pathsep.join([str(environment.ROOT), str(environment.ROOT / "src")])
    settings = {**environment.settings(), "PYTHONPATH": path}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=environment.ROOT, env=settings, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert (found["tried"], found["refused"]) == (256, 40)
