"""Random streams in worlds of another size: exact where a rank was there, derived where not, and said (law 15)."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds.as_rank import restore_as
from unmoor.errors import MismatchError
from unmoor.live import derived as deriving
from unmoor.live import rng
from unmoor.live.content import Content, collect
from unmoor.live.derived import derived, entropy
from unmoor.live.differing import fingerprint, own_leaves, with_ranks
from unmoor.plan.policy import Policy
from unmoor.plan.stream_ranks import KINDS, SavedState, placed, same_everywhere, spawn_key
from unmoor.plan.streams import plan_rng
from unmoor.values.catalog import Catalog
from unmoor.values.target import Stream
from unmoor.wiring.saving import write_content


def _seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def _draws() -> tuple[float, ...]:
    return torch.rand(1).item(), np.random.rand(), random.random()


def _write(path: Path, *contents: Content) -> Path:
    """What rank 0 of as many ranks writes of their contents."""
    first, *others = contents
    prints = fingerprint(first)
    owns = {}
    for rank, mine in enumerate(others, 1):
        free, faults = fingerprint(mine).compare(prints.rows, prints.heads())
        assert not faults
        owns[rank] = own_leaves(mine, free, prints.heads())
    whole = with_ranks(first, owns, len(contents))
    write_content(str(path), whole, buffer_bytes=1 << 20, threads=1, progress=None)
    return path


def _streams(seed: int, **generators: Any) -> Content:
    """The streams of a process that was seeded so."""
    _seed(seed)
    return collect({}, {"step": 1}, rng=True, generators=generators)


def _all_draws(path: Path, world: int, **generators: Any) -> list[tuple[float, ...]]:
    found = []
    for rank in range(world):
        _seed(999)
        restore_as(rank, world, path, generators=generators)
        found.append((*_draws(), *(_draw(generator) for generator in generators.values())))
    return found


def _draw(generator: Any) -> float:
    if isinstance(generator, torch.Generator):
        return torch.rand(1, generator=generator).item()
    return float(generator.random())


def _generators() -> dict[str, Any]:
    numbers = np.random.Generator
    return {
        "own torch": torch.Generator(), "own numpy": np.random.default_rng(0), "philox": numbers(np.random.Philox(0)),
        "sfc": numbers(np.random.SFC64(0)), "old": np.random.RandomState(0), "own python": random.Random(0),
    }  # fmt: skip


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    """A checkpoint of two ranks with other streams, generators of every kind among them."""
    ranks = []
    for rank in range(2):
        own = _generators()
        for _ in range(rank):
            list(map(_draw, own.values()))
        ranks.append(_streams(100 + rank, **own))
    return _write(tmp_path / "run.pt", *ranks)


def _expected(rank: int) -> tuple[float, ...]:
    _seed(100 + rank)
    own = _generators()
    for _ in range(rank):
        list(map(_draw, own.values()))
    return (*_draws(), *map(_draw, own.values()))


def test_ranks_that_were_there_are_exact_and_new_ones_unlike_all_others(two_ranks: Path) -> None:
    """Of eight ranks the two that saved draw what they would have drawn; no two ranks draw the same on any stream."""
    found = _all_draws(two_ranks, 8, **_generators())
    assert found[:2] == [_expected(0), _expected(1)]
    for stream in zip(*found, strict=True):
        assert len(set(stream)) == 8
    assert len({draw for rank in found[2:] for draw in rank}) == 6 * 9


def test_a_new_rank_has_the_same_streams_at_every_try_and_in_any_world(two_ranks: Path) -> None:
    """Rank 3 of 4 and rank 3 of 7 draw the same, at every try."""
    first = _all_draws(two_ranks, 4, **_generators())
    assert _all_draws(two_ranks, 4, **_generators()) == first
    assert _all_draws(two_ranks, 7, **_generators())[:4] == first


def test_other_steps_of_a_run_derive_other_streams(tmp_path: Path) -> None:
    """What is derived follows from the saved state: a later checkpoint gives a new rank other numbers."""
    _seed(5)
    drawn = []
    for step in range(2):
        path = _write(tmp_path / f"{step}.pt", collect({}, {}, rng=True, generators={}))
        _draws()
        kept = rng.host_states()
        drawn.append(_all_draws(path, 2)[1])
        for set_state in rng.host_setters(kept):
            set_state()
    assert not set(drawn[0]) & set(drawn[1])


SAME: dict[str, tuple[list[int], list[int], bool]] = {
    "two ranks alike": ([7, 7], [3, 3], True),
    "two ranks unlike": ([7, 8], [3, 4], False),
    "one process": ([7], [3], False),
}


@pytest.mark.parametrize("case", SAME)
def test_what_was_the_same_on_all_ranks_stays_so(case: str, tmp_path: Path) -> None:
    """A stream that all ranks shared is shared with a new one; of one process nothing tells that, save a generator."""
    seeds, samplers, alike = SAME[case]
    contents = [
        _streams(seed, sampler=torch.Generator().manual_seed(own)) for seed, own in zip(seeds, samplers, strict=True)
    ]
    path = _write(tmp_path / "run.pt", *contents)
    found = _all_draws(path, 3, sampler=torch.Generator())
    for stream in range(3):
        assert (found[2][stream] == found[0][stream]) == alike
    assert (found[2][3] == found[0][3]) == (alike or len(seeds) == 1)
    note = dict(restore_as(2, 3, path, generators={"sampler": torch.Generator()}).plan.notes)["rng"]
    assert ("derived for rank 2" in note) == (not alike)
    assert f"saved by {len(seeds)} rank" in note
    assert "now 3" in note


def test_exact_refuses_a_stream_that_would_be_derived(two_ranks: Path) -> None:
    """rng="exact" lets the ranks go on that were there, and names what a new one would have derived."""
    restore_as(1, 4, two_ranks, rng="exact", generators=_generators())
    _seed(3)
    before = rng.capture({})["python"]
    with pytest.raises(MismatchError) as caught:
        restore_as(2, 4, two_ranks, rng="exact", generators=_generators())
    assert "numpy, python, own torch" in str(caught.value)
    assert "2 ranks saved, and rank 2 was none of them" in str(caught.value)
    assert "rng=True" in str(caught.value)
    assert random.getstate() == before


def test_fewer_ranks_hear_whose_streams_are_not_used(two_ranks: Path) -> None:
    """One process of two goes on as rank 0, and hears of rank 1; two of two hear of nobody."""
    report = restore_as(0, 1, two_ranks, generators=_generators())
    rows = [(c.before, c.after) for c in report.not_restored if c.label == "rng" and not c.name]
    said = "those of the others are not used: rank 1"
    assert rows == [("saved by 2 ranks, this process is rank 0", said)]
    assert not restore_as(1, 2, two_ranks, generators=_generators()).not_restored


def test_without_numpy_nothing_is_derived_and_that_is_said(two_ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that cannot be derived is left as it is, by name; ranks that were there need no numpy for it."""
    monkeypatch.setattr(deriving.importlib.util, "find_spec", lambda name: None if name == "numpy" else sys)
    _seed(6)
    expected = torch.Generator().manual_seed(6)
    report = restore_as(2, 3, two_ranks)
    assert torch.rand(1) == torch.rand(1, generator=expected)
    rows = {c.name: c.before for c in report.not_restored if c.label == "rng"}
    assert (
        rows["torch"]
        == rows["python"]
        == "a state for a rank that did not exist is derived by numpy, which is not here"
    )
    assert "rng" not in report.restored
    assert "rng" in restore_as(1, 3, two_ranks).restored


def test_seeds_of_many_ranks_are_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of 4,096 ranks and of every stream of each differ from each other, in the words that count."""
    monkeypatch.setattr(deriving, "entropy", lambda _: 7)  # the same for all, and costly to take again
    numbers = {
        "torch-cpu": lambda state: state[24:].numpy().tobytes(),
        "numpy": lambda state: state["state"]["key"].astype("int64").tobytes(),
        "python": lambda state: np.array(state[1][:-1]).tobytes(),
    }
    seen = {
        hash(words(derived(None, spawn_key(rank, Stream(kind, kind), 0), kind=kind, device=torch.device("cpu"))))
        for kind, words in numbers.items()
        for rank in range(1, 4097)
    }
    assert len(seen) == 3 * 4096


@given(
    rank=st.integers(1, 1 << 20),
    other=st.integers(1, 1 << 20),
    names=st.lists(st.text(), min_size=2, max_size=2, unique=True),
)
@settings(deadline=None)
def test_keys_tell_ranks_and_streams_apart(rank: int, other: int, names: list[str]) -> None:
    """No two streams of any ranks are derived under one key."""
    streams = [
        *(
            (Stream(kind, "x", 4, own=1), index)
            for kind in KINDS
            for index in range(4 if kind == "torch-device" else 1)
        ),
        *((Stream("generator", name), 0) for name in names),
    ]
    keys = {spawn_key(number, *stream) for number in {rank, other} for stream in streams}
    assert len(keys) == len({rank, other}) * len(streams)


def test_entropy_is_of_the_numbers_whatever_holds_them() -> None:
    """A state that was converted on the way (an array to a tensor, a tuple to a list) derives the same streams."""
    words = np.arange(5, dtype=np.uint32)
    one = {"key": words, "pos": np.int64(3), "gauss": 0.5}
    other = {"gauss": 0.5, "pos": 3, "key": torch.arange(5)}
    assert entropy(one) == entropy(other) == entropy({**one, "key": tuple(range(5))})
    assert entropy(one) != entropy({**one, "pos": 4})


def _device_states(count: int, own: int | None) -> list[SavedState]:
    return [SavedState("torch-device", "cuda", i, (), i, None if own is None else i == own) for i in range(count)]


PLACES: dict[str, tuple[int, int | None, int, int, dict[int, int]]] = {
    "the same device": (4, 2, 4, 2, {0: 0, 1: 1, 2: 2, 3: 3}),
    "another device": (4, 3, 4, 1, {0: 0, 1: 3, 2: 2, 3: 1}),
    "eight devices to one": (8, 5, 1, 0, {5: 0}),
    "one device to the third of four": (1, 0, 4, 2, {0: 2}),
    "not known whose": (2, None, 2, 1, {0: 0, 1: 1}),
}


@pytest.mark.parametrize("case", PLACES)
def test_the_stream_of_the_own_device_goes_to_the_own_device(case: str) -> None:
    """Saved index -> live index: the own ones change places with what was there, all others keep their index."""
    saved, own, count, live, wanted = PLACES[case]
    places = placed(_device_states(saved, own), Stream("torch-device", "cuda", count, own=live))
    assert {state.index: index for index, state in places if index < count} == wanted


def test_the_own_devices_of_ranks_are_compared_wherever_they_are() -> None:
    """Ranks that were seeded alike have alike streams on their own devices, which have other numbers."""
    same = [[SavedState("torch-device", "cuda", i, (), node, i == rank) for i, node in enumerate(nodes)]
            for rank, nodes in enumerate(([5, 0], [0, 5]))]  # fmt: skip
    assert same_everywhere(Stream("torch-device", "cuda", 2), same)
    assert not same_everywhere(Stream("torch-device", "cuda", 2), [same[0], same[0]][:1])
    assert not same_everywhere(
        Stream("torch-device", "cuda", 2), [same[0], [SavedState("torch-device", "cuda", 0, (), 7)]]
    )


@pytest.fixture
def on_devices(sim: ModuleType, tmp_path: Path) -> Path:
    """Two ranks on sim:0 and sim:1, each of which drew on its own device alone."""
    contents = []
    for rank in range(2):
        _seed(10 + rank)
        sim.set_device(rank)
        torch.rand(rank + 1, device=f"sim:{rank}")
        contents.append(collect({}, {}, rng=True, generators={}))
    sim.set_device(0)
    return _write(tmp_path / "run.pt", *contents)


@pytest.mark.parametrize(("rank", "live"), [(0, 0), (0, 3), (1, 1), (1, 0), (1, 2)])
def test_a_rank_goes_on_drawing_on_another_device(on_devices: Path, sim: ModuleType, rank: int, live: int) -> None:
    """The rank's own device has another number now; what is drawn on it is what would have been drawn."""
    sim.set_device(live)
    try:
        restore_as(rank, 2, on_devices)
        found = torch.rand(2, device=f"sim:{live}").cpu()
    finally:
        sim.set_device(0)
    torch.manual_seed(10 + rank)
    torch.rand(rank + 1, device=f"sim:{rank}")
    assert torch.equal(found, torch.rand(2, device=f"sim:{rank}").cpu())


def test_new_ranks_draw_alone_on_their_devices(on_devices: Path, sim: ModuleType) -> None:
    """Ranks 2 and 3 on sim:2 and sim:3 draw what no other rank draws, and not what they draw elsewhere."""
    found = []
    for rank in range(4):
        sim.set_device(rank)
        try:
            restore_as(rank, 4, on_devices)
            found += [torch.rand(1, device=f"sim:{i}").item() for i in range(4 if rank > 1 else 1)]
        finally:
            sim.set_device(0)
    assert len(set(found)) == len(found)


def test_files_of_others_without_ranks_are_those_of_one(tmp_path: Path) -> None:
    """Four ranks that restore one file of torch.save go on with four streams; rank 0 has the saved one."""
    _seed(4)
    torch.save(
        {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}, tmp_path / "x.pt"
    )
    expected = _draws()
    found = _all_draws(tmp_path / "x.pt", 4)
    assert found[0] == expected
    assert len({draw for rank in found for draw in rank}) == 12


def test_ranks_that_saved_no_streams_have_none_to_derive_from() -> None:
    """Without states in the file nothing is done for a new rank, as for any other."""
    catalog = Catalog("x.pt", "torch-zip", "unmoor", (), (), (), (), tree={}, manifest={"world_size": 2, "roles": {}})
    plan = plan_rng(catalog, (Stream("python", "python"),), Policy(), rank=3, world=4)
    assert not plan.steps
    assert [change.before for change in plan.not_restored] == ["the file holds none"]
