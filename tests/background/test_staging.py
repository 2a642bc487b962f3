"""Memory of copies: used again by the next save of a run, never while a save writes from it, and gone with the run."""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
import weakref

import pytest
import torch

import unmoor
from unmoor.errors import SaveError
from unmoor.live import staging
from unmoor.live.content import plain_tree
from unmoor.live.snapshots import take

from .conftest import Run, read, same


@pytest.fixture
def made(monkeypatch):
    """The arenas that were made, as weak references."""
    found, make = [], staging.Arena.__init__

    def noted(self, **how):
        make(self, **how)
        found.append(weakref.ref(self))

    monkeypatch.setattr(staging.Arena, "__init__", noted)
    return found


def alive(arenas):
    gc.collect()
    return sum(arena() is not None for arena in arenas)


def test_the_next_save_fills_the_memory_of_the_last(way, run, tmp_path, made):
    """One arena for all saves of a run, with each file of its own step."""
    numbers = []
    for i in range(3):
        unmoor.save(tmp_path / f"{i}.pt", **run.roles, background=True).wait()
        numbers.append(run.numbers())
        run.train()
    assert len(made) == 1
    assert all(same(read(tmp_path / f"{i}.pt"), numbers[i]) for i in range(3))


def test_grows_with_the_run(way, run, tmp_path, made):
    """A larger state, then a smaller one again."""
    for i, width in enumerate((0, 5000, 1)):
        extra = {"more": torch.arange(width * 10.0)}
        unmoor.save(tmp_path / f"{i}.pt", **run.roles, **extra, background=True).wait()
        assert same(read(tmp_path / f"{i}.pt"), run.numbers())
        assert torch.equal(unmoor.load(tmp_path / f"{i}.pt")["more"], extra["more"])
    assert len(made) == 1


def test_the_memory_goes_with_the_model(way, tmp_path, made):
    """Nothing keeps it once the run is dropped."""
    run = Run()
    unmoor.save(tmp_path / "run.pt", **run.roles, background=True).wait()
    assert alive(made) == 1
    del run
    assert alive(made) == 0


def test_the_memory_of_a_run_that_is_dropped_meanwhile_goes_when_it_is_written(way, tmp_path, made):
    """The file is whole all the same."""
    run, gate = Run(), threading.Event()
    numbers = run.numbers()
    pending = unmoor.save(tmp_path / "run.pt", **run.roles, background=True, progress=lambda _: gate.wait(60))
    owner = weakref.ref(run.model)
    del run
    gc.collect()
    assert owner() is None
    assert alive(made) == 1
    gate.set()
    pending.wait()
    assert alive(made) == 0
    assert same(read(tmp_path / "run.pt"), numbers)


def test_the_memory_of_a_save_that_failed_is_used_again(way, run, tmp_path, made):
    """An error keeps nothing back."""

    def no(_):
        raise ValueError("no")

    for progress in (no, None):
        pending = unmoor.save(tmp_path / "run.pt", **run.roles, background=True, progress=progress)
        if progress is not None:
            with pytest.raises(ValueError, match="no"):
                pending.wait()
    pending.wait()
    assert len(made) == 1


def test_a_tree_has_memory_for_one_save(way, tmp_path, made):
    """There is no live object that could own it."""
    unmoor.save(tmp_path / "tree.pt", {"w": torch.ones(1000)}, background=True).wait()
    assert alive(made) == 0


def test_two_runs_have_memory_each(way, tmp_path, made):
    """They alternate, and each file has its own run."""
    runs = [Run(0), Run(1, width=48)]
    for _ in range(2):
        for i, run in enumerate(runs):
            run.train()
            unmoor.save(tmp_path / f"{i}.pt", **run.roles, background=True).wait()
    assert len(made) == 2
    assert same(read(tmp_path / "0.pt"), runs[0].numbers())
    assert same(read(tmp_path / "1.pt", width=48), runs[1].numbers())


def test_memory_on_loan_is_lent_to_no_other():
    """Two threads may save one run at once."""
    owner = torch.nn.Linear(1, 1)
    first, second = staging.lend(owner), staging.lend(owner)
    assert first.arena is not second.arena
    kept = first.arena
    first.end()
    assert staging.lend(owner).arena is kept


def test_memory_of_another_process_is_not_used(monkeypatch):
    """A forked process would write into what its parent writes from."""
    owner = torch.nn.Linear(1, 1)
    loan = staging.lend(owner, shared=True)
    kept = loan.arena
    loan.end()
    monkeypatch.setattr(staging.os, "getpid", lambda: -1)
    assert staging.lend(owner, shared=True).arena is not kept


@pytest.mark.parametrize("number", [1, 300])
def test_copies_what_tensors_reach_and_no_more(number):
    """Slices of one large buffer take their own bytes."""
    base = torch.arange(100_000.0)
    tree = {str(i): base[50_000 + i : 50_010 + i] for i in range(number)}
    kept = take(plain_tree(tree)).content.tree
    assert all(torch.equal(kept[key], value) for key, value in tree.items())
    storages = {value.untyped_storage()._cdata for value in kept.values()}
    assert len(storages) == 1
    assert next(iter(kept.values())).untyped_storage().nbytes() < 4 * (number + 20)
    base.zero_()
    assert kept["0"][0] == 50_000


def test_a_snapshot_has_memory_of_its_own(run, made):
    """A save in the background does not fill it again."""
    kept = unmoor.snapshot(**run.roles)
    before = [value.clone() for value in kept.content.tensors.values()]
    run.train()
    other = unmoor.snapshot(**run.roles)
    assert len(made) == 2
    assert same(list(kept.content.tensors.values()), before)
    assert not same(list(other.content.tensors.values()), before)


def test_memory_that_the_system_refuses_is_an_error_of_the_save(run, tmp_path, monkeypatch):
    """It says how to do without, and the next save has all it needs."""

    def no(*_):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    mapped = staging.Arena._mapped
    monkeypatch.setattr(staging.Arena, "_mapped", no)
    with pytest.raises(SaveError, match="the state was not copied") as caught:
        unmoor.save(tmp_path / "run.pt", **run.roles, background=True)
    monkeypatch.setattr(staging.Arena, "_mapped", mapped)
    assert caught.value.errno == errno.ENOMEM
    unmoor.save(tmp_path / "run.pt", **run.roles, background=True).wait()
    assert same(read(tmp_path / "run.pt"), run.numbers())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="told by /proc")
@pytest.mark.parametrize(("shared", "how"), [(True, "rw-s"), (False, "rw-p")])
def test_memory_is_shared_only_where_it_is_to_be(shared, how):
    """What no other process writes from has huge pages, which shared memory has not, and is no forked process's."""
    arena = staging.Arena(shared=shared)
    arena.room(1)
    place = torch.frombuffer(arena.view(), dtype=torch.uint8).data_ptr()
    with open("/proc/self/maps") as rows:
        (found,) = (row.split()[1] for row in rows if _spans(row, place))
    assert found == how


def _spans(row, place):
    first, _, end = row.split()[0].partition("-")
    return int(first, 16) <= place < int(end, 16)


def test_what_is_equal_to_another_owns_no_memory():
    """It would not find it again once it has changed."""

    class Counted(torch.nn.Linear):
        def __hash__(self):
            return int(self.weight.sum())

    model = Counted(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    assert staging.owner_of({"model": model, "optimizer": optimizer}) is optimizer
