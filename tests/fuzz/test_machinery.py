"""The fuzzer finds what it is there for: each kind of fault, planted in a reader, is told as a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tests.fuzz import looks, referees
from tests.fuzz.campaign import ROOT, Crash, smallest
from tests.fuzz.choices import Choices
from tests.fuzz.fingerprint import difference, fingerprint
from tests.fuzz.looks import Wrong, _clean, _same
from tests.fuzz.slow import WAYS, slowly
from tests.fuzz.targets import TARGETS
from unmoor.describe import reading
from unmoor.describe.reading import read_pickle
from unmoor.values.nodes import Opaque

ROW: list[int] = []
PLANTED = {
    "nothing at all": "kept = bytearray(4 << 20)",
    "a KeyError": "raise KeyError(5)",
    "depth": "def deep(): deep()\ndeep()",
    "memory": "kept = bytearray(400 << 20)",
    "a loop without end": "while True: pass",
    "an import": "import this_is_no_module_but_asked_for as x",
    "a file elsewhere": "open('/etc/passwd').close()",
    "a file written": "open(FOLDER + '/x', 'w').close()",
    "a command": "import os; os.system('true')",
    "code": "eval('1')",
    "a warning": "import warnings; warnings.warn('told')",
}
CHILD = textwrap.dedent(
    """
    import json, sys, tempfile, textwrap, warnings
    from pathlib import Path
    from tests.fuzz import campaign, guards
    from tests.fuzz.targets import TARGETS, Target
    from unmoor.errors import CorruptFile

    FOLDER = tempfile.mkdtemp(prefix="fuzz-")
    guards.SECONDS = 0.1
    CODES = {}
    for name, code in json.loads(sys.argv[1]).items():
        made = {}
        exec("def planted(FOLDER):\\n" + textwrap.indent(code, "    "), made)
        CODES[name.encode()] = made["planted"]

    def look(files, folder, guard, other):
        with guard.looking(1):
            CODES[files[""]](FOLDER)

    warnings.simplefilter("error")
    guard = guards.Guard(Path(FOLDER))
    fuzzer = campaign.Fuzzer(Path(FOLDER), guard)
    fuzzer.targets = {"x": Target("x", look)}
    guard.watch()
    crashes = {name.decode(): fuzzer.tried("x", {"": name}) for name in CODES}
    print(json.dumps({name: crash.what if crash else "" for name, crash in crashes.items()}))
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is told by /proc")
def test_planted_faults_are_told():
    """Whatever a reader must not do ends as a crash that says what it was; what it may do does not."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", CHILD, json.dumps(PLANTED)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, cwd=ROOT)
    told = json.loads(done.stdout.splitlines()[-1])
    assert not told.pop("nothing at all")
    assert all(told.values()), told


def test_like_choices_give_like_inputs():
    """What is made depends on the choices alone: bytes of another program, or a seed."""
    from random import Random

    for target in TARGETS.values():
        for first in range(4):
            data = bytes([first * 60]) + bytes(range(256)) * 4
            assert target.made(Choices(data)) == target.made(Choices(data))
            assert target.made(Random(first)) == target.made(Random(first))


@pytest.mark.parametrize("way", WAYS)
def test_a_slow_way_is_taken_and_left_again(way):
    """Within, the fast way is not there; afterwards it is."""
    owner, name, slow = WAYS[way][0]
    fast = getattr(owner, name)
    with slowly([way]):
        assert getattr(owner, name) is slow
    assert getattr(owner, name) is fast


def test_a_fast_way_that_differs_is_named(monkeypatch):
    """Phrases that leave something out are told, and by which way."""
    from tests.describe.sparse_zip import state_dict_pickle

    class Lying(reading.Phrases):
        def take(self, m, pos):
            end = super().take(m, pos)
            if end:
                m.note("lying", "x")
            return end

    monkeypatch.setattr(reading, "Phrases", Lying)
    data = state_dict_pickle([f"w{i}" for i in range(120)], (2, 2))
    with pytest.raises(Wrong, match="no phrases"):
        _same(read(data), lambda: read(data), "read")


def read(data):
    return read_pickle(data, path="f", where="f", persistent=looks._persistent, stored=looks._stored)


APART = {
    "type": ([1], [True]),
    "order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "sign": ([0.0], [-0.0]),
    "container": ((1,), [1]),
    "bytes": ("a", b"a"),
    "class": (Opaque("a"), Opaque("b")),
    "sharing": ([[], []], [ROW, ROW]),
    "large": (1 << 20000, (1 << 20000) + 1),
    "nan": (float("nan"), 0.0),
}


@pytest.mark.parametrize("what", APART)
def test_a_fingerprint_tells_values_apart(what):
    """Type, order, sign, sharing and numbers of any size are told."""
    a, b = APART[what]
    assert difference(fingerprint(a), fingerprint(b))
    assert not difference(fingerprint(a), fingerprint(a))


def test_raw_control_characters_are_told():
    """What a terminal or a browser would obey may stand in no text."""
    for letter in ("\x1b", "\x9b", "\u202e", "\x00", "\r", "\x7f", "\ud800"):
        with pytest.raises(Wrong):
            _clean(f"a{letter}b", "text")
    _clean("größe …\nline", "text")


def test_a_name_that_is_not_told_is_a_finding():
    """Python's unpickler asks for a class of which our reading says nothing."""
    data = b"\x80\x02cos\nsystem\n."
    ours = read_pickle(data, path="f", where="f")
    assert referees.of_pickle(data, ours) == ""
    assert "os.system" in referees.of_pickle(data, reading.Reading(ours.value, (), [], {}, 2, 5, 5))
    assert referees.of_pickle(b"K\x05.", reading.Reading(6, (), [], {}, 2, 3, 3))


def test_a_crash_is_made_small():
    """Files and bytes that the crash does not need are taken away."""
    crash = Crash("x", "KeyError: 1", "here", "")

    def again(files):
        found = any(b"bad" in data for data in files.values())
        return Crash("x", "KeyError: 1", "here", str(sorted(files.items()))) if found else None

    assert smallest({"a": b"good" * 9, "b": b"zzzbadzzz"}, crash, again).files == str([("b", b"bad")])
