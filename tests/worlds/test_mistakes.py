"""Law 13 with real ranks: a mistake is an error on every rank that is there, it names what is needed, nothing hangs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.launch import launch

WORLD = 4


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[dict[str, Any]]]:
    """What each rank met at each mistake: one world for all of them."""
    found = launch("tests.worlds.ranks.mistakes", WORLD)
    return {name: [rank[name] for rank in found] for name in found[0]}


EVERY_RANK = "Every rank of the group calls"
DIFFER = {
    "verbs": ("different verbs", "verb  ranks 0, 2 and 3: restore; rank 1: save", "if rank == 0"),
    "paths": ("with different paths", "path  ranks 0, 2 and 3: run.pt; rank 1: other.pt", "one path"),
    "roles": (
        "with different objects",
        "objects  ranks 0, 2 and 3: model (module), optimizer (optimizer); rank 1: model (module)",
        "the same keywords",
    ),
    "swapped": ("with different objects", "rank 1: model (optimizer), optimizer (module)", "the same kind of object"),
    "modes": ("with different missing=", "missing  ranks 0-2: 'error'; rank 3: 'fresh'", "the same arguments"),
}
ABSENT = {
    "restore on rank 0 only": ((0,), (1, 2, 3), "restore was called on rank 0 only: ranks 1-3 of 4 did not come"),
    "save on rank 0 only": ((0,), (1, 2, 3), "save was called on rank 0 only: ranks 1-3 of 4 did not come"),
    "snapshot on rank 0 only": ((0,), (1, 2, 3), "snapshot was called on rank 0 only: ranks 1-3 of 4 did not come"),
    "not on rank 2": ((0, 1, 3), (2,), "restore of run.pt: rank 2 of 4 did not come within 2 s"),
    "one of a group": ((3,), (2,), "restore was called on rank 3 only: rank 2 did not come within 2 s"),
}
ONE_FAILS: dict[str, tuple[tuple[int, ...], str, tuple[str, ...], bool]] = {
    "one bad argument": ((2,), "UsageError", ("buffer_bytes=0 is no number of bytes",), True),
    "all bad arguments": ((0, 1, 2, 3), "ArgumentConflict", ("are incompatible",), True),
    "on one node only": ((1, 2, 3), "NotACheckpoint", ("here.pt does not exist", "rank 0 finds it"), True),
    "cut short on one node": ((2,), "CorruptFile", ("cut.pt is a truncated zip",), True),
    "corrupt on one node, first": ((2,), "CorruptFile", ("model.2.weight does not match its checksum",), True),
    "corrupt on one node": ((2,), "CorruptFile", ("the data of model.2.weight", "already overwritten: model"), False),
    "misfit on one rank": ((1,), "MismatchError", ("faults between run.pt and the live run",), True),
}


@pytest.mark.parametrize("name", DIFFER)
def test_ranks_that_differ_are_all_told_who_said_what(outcomes, name):
    """The same error on all ranks, nothing is changed, and the next correct call works."""
    for rank in outcomes[name]:
        assert rank["kind"] == "RanksDiffer"
        assert all(words in rank["text"] for words in DIFFER[name])
        assert rank["unchanged"]
        assert rank["right"]
    assert len({rank["text"] for rank in outcomes[name]}) == 1


@pytest.mark.parametrize("name", ABSENT)
def test_ranks_that_do_not_come_are_named(outcomes, name):
    """Every rank that called says who did not and what to do; those that did not call are not disturbed."""
    here, missing, words = ABSENT[name]
    for number, rank in enumerate(outcomes[name]):
        assert rank["kind"] == ("RankError" if number in here else "")
        if number in here:
            assert words in rank["text"]
            assert EVERY_RANK in rank["text"]
            assert "group=None" in rank["text"]
            assert tuple(rank["ranks"]) == missing
        assert rank["unchanged"]
        assert rank["right"]


def test_a_save_on_one_rank_writes_nothing(outcomes):
    """A save that the others did not join leaves no file."""
    assert not any(rank["there"] for rank in outcomes["save on rank 0 only"])


@pytest.mark.parametrize("name", ONE_FAILS)
def test_a_rank_that_fails_stops_all(outcomes, name):
    """The others raise the class of its error, name it and its cause; nothing is changed where that can be."""
    failing, kind, words, unchanged = ONE_FAILS[name]
    for number, rank in enumerate(outcomes[name]):
        assert rank["kind"] == kind
        assert tuple(rank["ranks"]) == failing
        assert all(word in rank["text"] for word in words)
        first = rank["text"].splitlines()[0]
        assert first.startswith("restore of ") == (number not in failing)
        assert rank["unchanged"] == unchanged
        assert rank["right"]


def test_a_failure_half_way_is_told_with_what_each_rank_has_overwritten(outcomes):
    """The rank whose data is bad has part of it, the others all; each says to restore again."""
    for number, rank in enumerate(outcomes["corrupt on one node"]):
        own = "overwritten on this rank: model (all), optimizer (all); restore on every rank before training on"
        assert (own in rank["text"]) == (number != 2)
        assert "Restore another checkpoint before training on." in rank["text"]


def test_a_path_that_shows_different_files_is_an_error(outcomes):
    """What each rank saw is told, and nothing is changed."""
    for rank in outcomes["another file on one node"]:
        assert rank["kind"] == "RankError"
        assert "mixed.pt is not one checkpoint" in rank["text"]
        assert "contents  ranks 0-2: " in rank["text"]
        assert rank["unchanged"]
        assert rank["right"]


def test_ranks_share_the_reading_of_one_file(outcomes):
    """With verify="first" each reads its part: together every storage once."""
    shares = [rank["bytes"] for rank in outcomes["verified by shares"]]
    assert sum(share for share, _ in shares) == shares[0][1]
    assert all(share < streamed / 2 for share, streamed in shares)
    assert [rank["kind"] for rank in outcomes["corrupt for all, first"]] == ["CorruptFile"] * WORLD
    assert all(rank["unchanged"] for rank in outcomes["corrupt for all, first"])


def test_one_process_alone_and_groups_meet_nobody_else(outcomes):
    """group=None on rank 1 works while the others do nothing; two groups restore different files at once."""
    assert [rank["text"] for rank in outcomes["rank 1 alone"]] == ["", "run.pt", "", ""]
    assert [rank["unchanged"] for rank in outcomes["rank 1 alone"]] == [True, False, True, True]
    assert [rank["text"] for rank in outcomes["two groups"]] == ["run.pt", "run.pt", "other.pt", "other.pt"]
    runs = [[True, False], [True, False], [False, True], [False, True]]
    assert [rank["at"] for rank in outcomes["two groups"]] == runs
    assert {rank["kind"] for rank in outcomes["not a member"]} == {"UsageError"}


def test_a_search_for_the_newest_sound_checkpoint_ends_alike_on_all_ranks(outcomes):
    """`except unmoor.FileError` catches on every rank, though only some see the fault themselves."""
    assert {(rank["kind"], rank["text"]) for rank in outcomes["fallback"]} == {("", "run.pt")}
    assert all(rank["at"] == [True, False] for rank in outcomes["fallback"])


def test_after_every_mistake_the_next_call_works(outcomes):
    """Nothing that a failed call left stands in the way."""
    assert [name for name, ranks in outcomes.items() if not all(rank["right"] for rank in ranks)] == []
