"""Pickles that attack their reader: every instruction right and wrong, and bombs, bounded in memory and time."""

from __future__ import annotations

import pickletools
from typing import Any

import pytest

from tests.hostile.bombs import BOMBS
from tests.hostile.limits import LONG, MIB, answer, cost
from tests.hostile.make_hostile import DATA, archive, stream
from tests.hostile.opcodes import CODES, LEGAL, REFUSED, WRONG, stacks
from unmoor.describe.file import describe_file
from unmoor.describe.reading import read_pickle
from unmoor.errors import FileError, UnsupportedFile

SIZE = MIB if LONG else MIB // 8
"""How large bombs are: a mebibyte in the long form, by which the promise is worded, else an eighth of it."""

ARGUMENTS = (b"", b"\0", b"\1", b"\xff", b"\0\0\0\0", b"\1\0\0\0a", b"\xff\xff\xff\xff", b"5\n", b"a\nb\n", b"\n",
             b"\1" + bytes(7) + b"a", b"\xff" * 8)  # fmt: skip


def read(data: bytes) -> Any:
    return read_pickle(data, path="f.pt", where="f.pt: data.pkl").value


def test_every_instruction_is_in_the_table():
    """The table has each instruction that Python's own list of them has."""
    assert set(LEGAL) == {op.name for op in pickletools.opcodes}
    assert all(CODES[name] in data for name, (data, _) in LEGAL.items())


@pytest.mark.parametrize("name", LEGAL)
def test_an_instruction_is_read_as_pickle_does(name):
    """What each instruction makes is what Python makes of it, or the stand-in for what needs code."""
    data, wanted = LEGAL[name]
    if wanted is REFUSED:
        with pytest.raises(UnsupportedFile, match="no checkpoint does"):
            read(data)
        return
    value = read(data)
    assert (repr(value) if str(wanted).startswith("<") else value) == wanted
    assert type(value) is type(wanted) or str(wanted).startswith("<")


@pytest.mark.parametrize("name", LEGAL)
def test_an_instruction_cut_short_is_an_error(name):
    """Wherever a pickle ends before its last byte, it is told: no prefix of one is another."""
    data = LEGAL[name][0]
    for end in range(len(data)):
        assert isinstance(answer(lambda end=end: read(data[:end])), FileError), data[:end]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_pickle_gives_an_error_or_a_value(name):
    """No malformed instruction raises anything but an error of the file, which can be printed."""
    got = answer(lambda: read(WRONG[name]))
    assert str(got) if isinstance(got, FileError) else repr(got) or True


@pytest.mark.parametrize("code", range(256))
def test_an_instruction_on_any_stack_gives_an_error_or_a_value(code):
    """Each of 256 bytes, after everything that can lie on the stack, with every kind of argument."""
    for head in stacks():
        for argument in ARGUMENTS:
            data = b"\x80\x04" + head + bytes([code]) + argument + b"."
            got = answer(lambda data=data: read(data))
            assert repr(got) if not isinstance(got, FileError) else str(got), data


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_bounded(name, tmp_path):
    """A pickle of dense instructions costs at most 64 times its bytes, and 2 s for a mebibyte."""
    path = tmp_path / "bomb.pt"
    path.write_bytes(archive([("a/data.pkl", BOMBS[name](SIZE)), ("a/data/0", DATA)]))
    taken = cost(lambda: describe_file(path))
    assert not taken.faults(path.stat().st_size), (name, taken.outcome)


@pytest.mark.parametrize("name", ["lists", "dicts of one odd key", "deep tensors", "keys in a row", "sets"])
def test_a_bomb_in_a_stream_is_bounded(name, tmp_path):
    """The object of a legacy stream is read twice, and costs no more."""
    path = tmp_path / "bomb.pt"
    head, sep, tail = stream(None, ["0"], b"\3\0\0\0\0\0\0\0" + DATA).partition(b"\x80\x02N.")
    assert sep
    path.write_bytes(head + BOMBS[name](SIZE) + tail)
    taken = cost(lambda: describe_file(path))
    assert not taken.faults(path.stat().st_size), (name, taken.outcome)
