"""Every verb and command, on everything hostile that can be opened: nothing runs, nothing leaks, nothing is raw.

In the short form each thing meets a part of the verbs, another part than its neighbours; UNMOOR_HOSTILE=long tries all.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.hostile.folders import FOLDERS, SECRET, hole
from tests.hostile.limits import LONG, cost
from tests.hostile.make_hostile import FILES, HERE, checkpoint
from tests.hostile.trees import BAD_NAMES, MARKER, TREES
from tests.hostile.verbs import COMMANDS, VERBS, done, run, sound
from tests.hostile.watching import watched
from unmoor.cli import EXIT_CODES
from unmoor.describe.file import describe_file
from unmoor.errors import HostileFile, UnmoorError

RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys, or what no encoding has; lines end in the one control that is left."""

INTERNAL = 70


def part(names: Iterable[str], number: int, of: int) -> list[str]:
    """All names in the long form, else every so-manieth from another one on."""
    return list(names)[:: 1 if LONG else of] if LONG else list(names)[number % of :: of]


def numbered(table: Iterable[str]) -> list[tuple[int, str]]:
    return list(enumerate(table))


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything once on a sound file: what libraries make when they are first used is none of a file's doing."""
    folder = tmp_path_factory.mktemp("warm")
    path = sound(folder)
    for name in VERBS:
        done(name, path, folder)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An empty folder for what is hostile, and one for what is written, which is where the process works."""
    box, out = tmp_path / "box", tmp_path / "out"
    box.mkdir()
    out.mkdir()
    monkeypatch.chdir(out)
    return box, out


def do(names: Iterable[str], path: Path, out: Path) -> list[str]:
    """What is wrong with what these verbs did to a path."""
    faults = []
    for name in names:
        with watched() as seen:
            answer = done(name, path, out)
        faults += [f"{name}: ran {what}" for what in seen.ran]
        faults += [f"{name}: wrote {what}" for what in seen.outside(out)]
        text = str(answer) if isinstance(answer, UnmoorError | str) else ""  # a loaded tree may be endless to print
        if isinstance(answer, UnmoorError) and RAW.search(text):
            faults.append(f"{name}: raw {answer!r:.200}")
        if SECRET in text:
            faults.append(f"{name}: told what stands in another file")
    return faults


def command(name: str, path: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is wrong with what a command printed, or with its exit code."""
    code = run(name, path, out)
    text = "".join(capsys.readouterr())
    faults = [f"{name}: {text[-400:]}"] if code == INTERNAL or code not in EXIT_CODES else []
    return faults + ([f"{name}: raw {RAW.search(text)!r}"] if RAW.search(text) else [])


@pytest.mark.parametrize(("number", "name"), numbered(FILES))
def test_nothing_runs_and_nothing_is_written_outside(number, name, places):
    """Whatever verb is done to a hostile file: no process, no socket, no write but where it was asked for."""
    assert not do(part(VERBS, number, 8), HERE / name, places[1])


@pytest.mark.parametrize(("number", "name"), numbered(TREES))
def test_a_hostile_tree_is_survived_by_every_verb(number, name, places):
    """Names, numbers and claims that no run has give an answer or an error of the package, and nothing else."""
    box, out = places
    path = box / "f.pt"
    path.write_bytes(checkpoint(TREES[name]))
    assert not do(part(VERBS, number, 11), path, out)


@pytest.mark.parametrize(("number", "name"), numbered(TREES))
def test_names_reach_no_terminal_and_no_page_raw(number, name, places, capsys):
    """What commands print of a hostile tree ends in a documented code, and holds nothing that a terminal obeys."""
    box, out = places
    path = box / "f.pt"
    path.write_bytes(checkpoint(TREES[name]))
    faults = []
    for one in part(COMMANDS, number, 8):
        faults += command(one, path, out, capsys)
    assert not faults


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_page_escapes_the_names_that_it_shows(name, places):
    """No name of a file becomes an element, an attribute or the end of a script."""
    box, out = places
    path = box / "f.pt"
    path.write_bytes(checkpoint(TREES[f"name: {name}"]))
    done("page", path, out)
    text = (out / "page.html").read_text()
    head, _, rest = text.partition('<script type="application/json" id="data">')
    shown = head + rest.partition("</script>")[0]  # what comes after are the page's own scripts
    assert "<script>alert" not in text
    assert not re.search(r"<[a-z]+[^>]* onmouseover=", shown)
    assert not RAW.search(shown)


@pytest.mark.parametrize(("number", "name"), numbered(FOLDERS))
def test_a_hostile_folder_is_survived_by_every_verb(number, name, places, capsys):
    """Folders, links, pipes, devices and pointers: an answer or an error, nothing read or written that lies outside."""
    box, out = places
    path = FOLDERS[name](box)
    assert not do(["describe", *part(VERBS, number, 7)], path, out)
    assert not command(("inspect", "verify", "inspect --json")[number % 3], path, out, capsys)


@pytest.mark.parametrize("name", ["an enormous view", "very many windows"])
@pytest.mark.parametrize("verb", ["diff with itself", "convert to safetensors", "convert to dcp", "convert to shards"])
def test_elements_that_repeat_without_end_are_not_gone_through(verb, name, places):
    """A tensor of four tebibytes on twelve bytes is named, not written out and not compared."""
    box, out = places
    path = box / "f.pt"
    path.write_bytes(checkpoint(TREES[name]))
    answer = done(verb, path, out)
    assert isinstance(answer, HostileFile)
    assert "repeats the 12 B of its storage" in str(answer)


def test_a_file_of_holes_costs_nothing(tmp_path):
    """A tebibyte that takes no room on the disk is refused by its header."""
    taken = cost(lambda: describe_file(hole(tmp_path / "f.safetensors")))
    assert isinstance(taken.outcome, UnmoorError)
    assert not taken.faults(1)


def test_no_module_that_a_file_names_is_imported(places, monkeypatch):
    """A module on the path that a file names stays unimported by every verb, whatever else it trusts."""
    box, out = places
    (box / f"{MARKER}.py").write_text(f"open({str(out / 'imported')!r}, 'w')\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(str(box))
    path = box / "f.pt"
    path.write_bytes(checkpoint(b"\x80\x02}X\x01\0\0\0xc%s\nThing\n)Rs." % MARKER.encode()))
    for name in VERBS:
        if name != "load everything":
            done(name, path, out)
    assert MARKER not in sys.modules
    assert not os.path.exists(out / "imported")
