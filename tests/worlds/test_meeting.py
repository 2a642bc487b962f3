"""How ranks meet, with threads for ranks, on every store of torch: what is exchanged, who is told what, what stays."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed as dist

from tests.worlds.threads import Ranks
from unmoor.distributed.meeting import Meeting, meet
from unmoor.distributed.postings import Board
from unmoor.distributed.said import Call, names
from unmoor.errors import (
    CorruptFile,
    FileError,
    MismatchError,
    NotACheckpoint,
    RankError,
    RanksDiffer,
    UnmoorError,
    UsageError,
)

SHORT = 0.3
FACTS = {"path": "run.pt", "objects": "model (module)"}


def _store(kind: str, folder: Any) -> Any:
    if kind == "tcp":
        return dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    return dist.HashStore() if kind == "hash" else dist.FileStore(str(folder / "store"), -1)


@pytest.fixture(params=["hash", "file", "tcp"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """A store of each class that torch makes process groups with."""
    return _store(request.param, tmp_path)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_rank_gets_what_all_said_and_nothing_is_left(size, store):
    """Facts agree, values arrive by rank, outcomes are settled, and the store is as it was before."""
    ranks, before = Ranks(size, store), store.num_keys()

    def body(rank: int) -> Any:
        with ranks.meet(rank) as meeting:
            meeting.agree(FACTS)
            gathered = meeting.gather(bytes([rank]) * rank)
            first = meeting.to_first(b"%d" % rank)
            word = meeting.from_first(b"word" if rank == 0 else None)
            meeting.settle(None, "end")
            return gathered, first, word

    for rank, (gathered, first, word) in enumerate(ranks.run(body)):
        assert gathered == [bytes([r]) * r for r in range(size)]
        assert first == (None if rank else [b"%d" % r for r in range(size)])
        assert word == b"word"
    assert store.num_keys() == before


def test_values_larger_than_a_message_of_the_store_go_in_pieces(store):
    """Values of 9 MiB from each rank arrive whole; torch's server takes messages of 8 MiB at most."""
    ranks = Ranks(2, store)

    def body(rank: int) -> Any:
        with ranks.meet(rank) as meeting:
            return [(len(value), value[-1]) for value in meeting.gather(bytes([rank]) * (9 << 20))]

    assert ranks.run(body) == [[(9 << 20, 0), (9 << 20, 1)]] * 2


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (({}, {"path": "b.pt"}, {}), "path  ranks 0 and 2: run.pt; rank 1: b.pt"),
        (({}, {}, {"objects": "nothing"}), "objects  ranks 0 and 1: model (module); rank 2: nothing"),
        (({"at": "a"}, {"at": "b"}, {"at": "c"}), "at  rank 0: a; rank 1: b; rank 2: c"),
        (({}, {"cast": "any"}, {}), "cast  ranks 0 and 2: nothing; rank 1: any"),
    ],
)
def test_ranks_that_say_different_things_are_all_told_who_said_what(said, line):
    """Each fact in which they differ is one line, equal ranks together, the same on every rank."""
    ranks = Ranks(3)

    def body(rank: int) -> None:
        with ranks.meet(rank) as meeting:
            meeting.agree({**FACTS, **said[rank]})

    errors = ranks.run(body)
    assert [type(error) for error in errors] == [RanksDiffer] * 3
    assert all(line in map(str.strip, str(error).splitlines()) for error in errors)
    assert ranks.store.num_keys() == 0


def test_ranks_that_call_different_verbs_are_told_so():
    """Of different verbs only verb and path are told: the other facts belong to each verb alone."""
    ranks = Ranks(2)

    def body(rank: int) -> None:
        with ranks.meet(rank, "restore" if rank else "save") as meeting:
            meeting.agree({**FACTS, "objects": str(rank)})

    for error in ranks.run(body):
        assert type(error) is RanksDiffer
        assert "verb  rank 0: save; rank 1: restore" in str(error)
        assert "objects" not in str(error)


@pytest.mark.parametrize("missing", [(1,), (0,), (0, 2)])
def test_absent_ranks_are_named_on_every_rank_that_came(missing, store):
    """Who came and who did not, and the next call works; that the first was given up, and why, is all that stays."""
    ranks, before = Ranks(3, store), store.num_keys()

    def body(rank: int, timeout: float = SHORT) -> str:
        with ranks.meet(rank, timeout=timeout) as meeting:
            meeting.agree(FACTS)
        return "met"

    errors = ranks.run(*(None if rank in missing else body for rank in range(3)))
    for rank, error in enumerate(errors):
        if rank not in missing:
            assert type(error) is RankError
            assert error.ranks == missing
            assert f"{names(missing)} of 3 did not come within 0.3 s" in str(error)
            assert "every rank of the group calls restore" in str(error).lower()
    assert ranks.run(lambda rank: body(rank, 20.0)) == ["met"] * 3
    assert store.num_keys() == before + 2


def test_a_rank_that_comes_late_never_takes_what_was_left_for_live():
    """It waits for a call of its own, and says when and why the other had given up."""
    ranks = Ranks(2)

    def body(rank: int) -> None:
        with ranks.meet(rank, timeout=SHORT) as meeting:
            meeting.agree(FACTS)

    early, _ = ranks.run(body, None)
    _, late = ranks.run(None, body)
    assert early.ranks == (1,)
    assert late.ranks == (0,)
    assert "earlier: rank 0 gave up its restore of run.pt at " in str(late)
    assert str(late).count(": rank 1 did not come within 0.3 s") == 1


def test_a_group_made_anew_over_the_same_store_begins_anew():
    """What a call of the earlier group left does not stand in its way."""
    earlier = Ranks(3)

    def body(rank: int, ranks: Ranks, timeout: float) -> str:
        with ranks.meet(rank, timeout=timeout) as meeting:
            meeting.agree(FACTS)
        return "met"

    assert type(earlier.run(None, lambda rank: body(rank, earlier, SHORT), None)[1]) is RankError
    again = Ranks(3, earlier.store)
    for _ in range(2):
        assert again.run(lambda rank: body(rank, again, 20.0)) == ["met"] * 3
    assert again.store.num_keys() == 2


ERRORS = {
    "one rank": (
        {1: CorruptFile("bad", details=("at 7",), remedy="again")},
        CorruptFile,
        ("rank 1  CorruptFile: bad",),
    ),
    "a foreign error": ({2: ValueError("odd")}, RankError, ("rank 2  ValueError: odd",)),
    "one class": (
        {0: CorruptFile("bad"), 1: CorruptFile("worse")},
        CorruptFile,
        ("rank 0  CorruptFile: bad", "rank 1  CorruptFile: worse"),
    ),
    "two of one kind": ({0: CorruptFile("bad"), 1: NotACheckpoint("none")}, FileError, ("rank 0  CorruptFile: bad",)),
    "nothing in common": ({0: CorruptFile("bad"), 2: MismatchError("no")}, RankError, ("rank 2  MismatchError: no",)),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_on_one_rank_reaches_all_with_its_class(case):
    """A rank's own error stays its own and says where it was; the others raise one of its class, a line a cause."""
    failing, kind, lines = ERRORS[case]
    ranks = Ranks(4)

    def body(rank: int) -> None:
        with ranks.meet(rank) as meeting:
            meeting.agree(FACTS)
            with meeting.step("plan", lambda: ("nothing was changed",)):
                if rank in failing:
                    raise failing[rank]

    for rank, error in enumerate(ranks.run(body)):
        if rank in failing:
            assert error is failing[rank]
            if isinstance(error, UnmoorError):
                assert f"rank {rank}" in str(error)
        else:
            assert type(error) is kind
            assert error.ranks == tuple(failing)
            assert set(lines) <= set(map(str.strip, str(error).splitlines()))
            assert str(error).splitlines()[0].startswith("restore of run.pt failed on ")
            assert str(error).count("nothing was changed") == 1
        if isinstance(error, UnmoorError):
            assert error.args == (str(error),)
    assert ranks.store.num_keys() == 0


def test_an_error_that_all_ranks_meet_is_each_one_s_own():
    """Nobody is told of another; the error says that it is everybody's."""
    ranks = Ranks(3)

    def body(rank: int) -> None:
        with ranks.meet(rank) as meeting, meeting.step("plan"):
            raise CorruptFile("bad")

    assert [str(error) for error in ranks.run(body)] == ["bad\n  on every rank: ranks 0-2"] * 3


def test_an_error_outside_of_a_step_is_told_to_those_who_wait():
    """They are told at once, and do not wait for the timeout."""
    ranks = Ranks(3)

    def body(rank: int) -> None:
        with ranks.meet(rank, timeout=60.0) as meeting:
            meeting.agree(FACTS)
            if rank == 1:
                raise KeyboardInterrupt("stop")
            meeting.settle(None, "plan")

    first, own, third = ranks.run(body)
    assert type(own) is KeyboardInterrupt
    for error in (first, third):
        assert type(error) is RankError
        assert "rank 1  KeyboardInterrupt: stop" in str(error)
    assert ranks.store.num_keys() == 0


def test_arguments_that_one_rank_refuses_stop_all():
    """What keeps a rank from having any facts is exchanged like any error."""
    ranks = Ranks(2)

    def facts() -> tuple[dict[str, str], None]:
        raise UsageError("bad argument")

    def body(rank: int) -> None:
        with ranks.meet(rank) as meeting:
            meeting.begin(facts if rank else lambda: (FACTS, None))

    told, own = ranks.run(body)
    assert str(own).startswith("bad argument\n  on rank 1 of 2")
    assert type(told) is UsageError
    assert "rank 1  UsageError: bad argument" in str(told)


def test_a_rank_that_is_lost_on_the_way_is_named():
    """It was there when the call began; if it comes back it is told that it was too late."""
    ranks = Ranks(3)
    gone, back = threading.Event(), threading.Event()

    def waits(rank: int) -> None:
        with ranks.meet(rank, timeout=SHORT) as meeting:
            meeting.agree(FACTS)
            try:
                meeting.settle(None, "restore")
            finally:
                gone.set()

    def lost(rank: int) -> None:
        with ranks.meet(rank, timeout=SHORT) as meeting:
            meeting.agree(FACTS)
            back.set()
            assert gone.wait(30)
            meeting.settle(None, "restore")

    first, late, third = ranks.run(waits, lost, waits)
    for error in (first, third):
        assert type(error) is RankError
        assert error.ranks == (1,)
        assert "restore of run.pt: rank 1 of 3 was lost at 'restore'" in str(error)
    assert "this rank came too late" in str(late)
    assert ranks.store.num_keys() == 0


def test_ranks_wait_for_one_that_still_works():
    """Signs of life put the timeout off for as long as they come."""
    ranks = Ranks(2)

    def body(rank: int) -> str:
        with ranks.meet(rank, timeout=SHORT) as meeting:
            meeting.agree(FACTS)
            done = threading.Event()
            for _ in range(40 if rank else 0):
                meeting.alive()
                done.wait(SHORT / 10)
            meeting.settle(None, "restore")
        return "met"

    assert ranks.run(body) == ["met", "met"]
    assert ranks.store.num_keys() == 0


def test_what_ranks_see_under_one_path_must_be_one_checkpoint():
    """A difference is an error on every rank, with what each saw."""
    ranks = Ranks(3)

    def body(rank: int) -> None:
        with ranks.meet(rank) as meeting:
            meeting.agree(FACTS)
            with meeting.step("plan") as seen:
                seen.update({"size": f"{rank // 2} bytes", "format": "torch-zip"})

    for error in ranks.run(body):
        assert type(error) is RankError
        assert "run.pt is not one checkpoint" in str(error)
        assert "size  ranks 0 and 1: 0 bytes; rank 2: 1 bytes" in str(error)
        assert "format" not in str(error)


def test_a_month_of_calls_leaves_nothing(store):
    """Calls that work leave no key; one that ranks gave up before all had come leaves two, small ones."""
    ranks, before = Ranks(3, store), store.num_keys()

    def body(rank: int) -> None:
        for call in range(5):
            with ranks.meet(rank) as meeting:
                meeting.agree(FACTS)
                meeting.gather(b"x" * call)

    def alone(rank: int) -> None:
        with pytest.raises(RankError), ranks.meet(rank, timeout=0.01) as meeting:
            meeting.agree(FACTS)

    for given_up, caller in enumerate((0, 2, 1, 0)):
        assert ranks.run(*(alone if rank == caller else None for rank in range(3))) == [None] * 3
        assert ranks.run(body) == [None] * 3
        assert store.num_keys() == before + 2 * (given_up + 1)


class _Gone:
    """A store whose server has ended."""

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> Any:
            raise RuntimeError("Connection reset by peer")

        return call


def test_a_store_that_is_gone_is_told_in_a_sentence():
    """No raw error of a socket leaves."""
    ranks = Ranks(2, _Gone())

    def body(rank: int) -> None:
        with ranks.meet(rank) as meeting:
            meeting.agree(FACTS)

    for error in ranks.run(body):
        assert type(error) is RankError
        assert "the store of torch.distributed, through which ranks meet, cannot be reached" in str(error)
        assert "rank 0's or torchrun's" in str(error)


def test_one_process_meets_nobody():
    """Every method is a no-op, and an error is raised as it is."""
    error = CorruptFile("bad")
    for group in ("world", None):
        with meet("restore", group, 1.0) as meeting:
            assert (meeting.rank, meeting.size, meeting.group) == (0, 1, None)
            meeting.agree({"path": "a"})
            assert meeting.gather(b"a") == [b"a"]
            assert meeting.to_first(b"a") == [b"a"]
            assert meeting.from_first(b"a") == b"a"
            meeting.alive()
            meeting.settle(None, "plan")
            with pytest.raises(CorruptFile) as caught:
                meeting.settle(error, "plan")
            assert str(caught.value) == "bad"


@pytest.mark.parametrize(
    ("group", "timeout", "words"),
    [
        ("all", 1.0, "group='all' is no process group"),
        (7, 1.0, "group=7 is no process group"),
        (dist.GroupMember.NON_GROUP_MEMBER, 1.0, "no member of"),
        (None, 0, "timeout=0 is no number of seconds"),
        (None, "1", "timeout='1' is no number of seconds"),
        (None, True, "timeout=True is no number of seconds"),
        (None, float("nan"), "timeout=nan is no number of seconds"),
    ],
)
def test_what_is_no_group_and_no_timeout_is_refused(group, timeout, words):
    """Before anything is exchanged."""
    with pytest.raises(UsageError, match=words):
        meet("restore", group, timeout)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([1], "rank 1"), ([2, 0], "ranks 0 and 2"), ([0, 1, 2, 5], "ranks 0-2 and 5"), ([0, 1, 3], "ranks 0, 1 and 3")],
)
def test_names_of_ranks(ranks, text):
    """Three and more in a row are a range."""
    assert names(ranks) == text


def test_ranks_of_a_group_bear_the_numbers_of_the_world():
    """Member 1 of the group of ranks 2 and 3 is rank 3 in every sentence."""
    ranks = Ranks(2, ranks=(2, 3))

    def body(rank: int) -> None:
        with ranks.meet(rank, timeout=SHORT) as meeting:
            meeting.agree(FACTS)

    error, _ = ranks.run(body, None)
    assert error.ranks == (3,)
    assert "restore was called on rank 2 only: rank 3 of 2 did not come" not in str(error)
    assert "restore was called on rank 2 only: rank 3 did not come" in str(error)


class _Turns:
    """A store that lets one call through at a time, of the rank whose turn it is."""

    def __init__(self, order: list[int], ranks: int) -> None:
        self._store, self._lock = dist.HashStore(), threading.Condition()
        self._order, self._alive, self._here = order, set(range(ranks)), threading.local()

    def be(self, rank: int) -> None:
        """Say which rank this thread is."""
        self._here.rank = rank

    def end(self, rank: int) -> None:
        """A rank has no more turns."""
        with self._lock:
            self._alive.discard(rank)
            self._lock.notify_all()

    def has_extended_api(self) -> bool:
        """It has none."""
        return False

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            with self._lock:
                self._lock.wait_for(lambda: self._turn() in (None, self._here.rank), 20)
                if self._order:
                    self._order.pop(0)
                found = getattr(self._store, name)(*arguments)
                self._lock.notify_all()
                return found

        return call

    def _turn(self) -> int | None:
        while self._order and self._order[0] not in self._alive:
            self._order.pop(0)
        return self._order[0] if self._order else None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=0, max_size=60))
def test_all_ranks_go_on_or_none_whatever_the_order_of_their_calls(order):
    """Law 13: an error on one rank reaches all. No rank gives up an exchange that another goes past."""
    ranks = Ranks(3, _Turns(list(order), 3))

    def body(rank: int) -> list[str]:
        ranks.store.be(rank)
        outcomes = []
        try:
            with ranks.meet(rank, timeout=1e-9) as meeting:
                meeting.agree(FACTS)
                outcomes.append(f"met {meeting._way._number}")  # type: ignore[union-attr]
        except RankError:
            outcomes.append("gave up")
        finally:
            ranks.store.end(rank)
        return outcomes

    outcomes = ranks.run(body)
    met = [outcome for outcome in outcomes if outcome != ["gave up"]]
    assert len(met) in (0, 3)
    assert len({tuple(outcome) for outcome in met}) <= 1


def test_pieces_of_a_value_are_taken_away_with_it(store):
    """A value that is dropped leaves nothing, and dropping it twice is no error."""
    board, before = Board(store, "a"), store.num_keys()
    board.post("k", b"x" * (3 << 20))
    assert board.read(["k"]) == [b"x" * (3 << 20)]
    board.drop("k")
    board.drop("k")
    assert store.num_keys() == before


def test_an_empty_meeting_says_what_it_is():
    """A call without a path is named by its verb."""
    assert str(Call("snapshot", "", (0,))) == "snapshot"
    assert Meeting(Call("snapshot", "", (0,))).size == 1
