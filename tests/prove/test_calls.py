"""Calls of prove that cannot be meant, and build functions that no fresh process can use."""

from __future__ import annotations

import functools

import pytest

import unmoor
from unmoor.errors import MachineError, UsageError
from unmoor.wiring.building import build_name, function_of, name_elsewhere
from unmoor.wiring.proving_leg import ENVIRONMENT

from . import runs
from .in_process import proved

WRONG = {
    "no steps": ({"steps": 0}, "steps=0 is no number from 1 on"),
    "a flag": ({"steps": True}, "steps=True is no number from 1 on"),
    "a late cut": ({"steps": 5, "cut": 5}, "cut=5 leaves nothing of 5 steps"),
    "no ranks": ({"world": 0}, "world=0"),
    "save alone": ({"save": runs.save_all}, "save= was given alone"),
    "resume alone": ({"resume": runs.resume_all}, "resume= was given alone"),
    "two ways": (
        {"save": runs.save_all, "resume": runs.resume_all, "omit": "rng"},
        "omit= says what unmoor leaves out",
    ),
    "a picture of text": ({"picture": "proof.txt"}, "is no picture that can be drawn"),
    "a picture nowhere": ({"picture": "nowhere/proof.png"}, "the folder nowhere of proof.png does not exist"),
    "tolerance": ({"tolerance": -1}, "tolerance=-1"),
    "timeout": ({"timeout": 0}, "timeout=0 is no number of seconds"),
    "an unknown module": ({"build": "tests.prove.absent:build"}, "there is no module 'tests.prove.absent'"),
    "an unknown function": ({"build": "tests.prove.runs:absent"}, "has no function 'absent'"),
    "no function": ({"build": "tests.prove.runs"}, "does not name a function"),
    "a lambda": ({"build": lambda: {"model": None}}, "cannot be imported by a fresh process"),
    "a bound partial": ({"build": functools.partial(runs.plain)}, "cannot be imported by a fresh process"),
    "an unknown file": ({"build": "absent.py:build"}, "there is no file absent.py"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_call_is_refused_before_a_process_starts(what, monkeypatch):
    """Each is a UsageError that shows what was given; nothing runs."""
    monkeypatch.setattr("subprocess.Popen", None)
    given, text = WRONG[what]
    with pytest.raises(UsageError, match="(?s)" + text.replace("(", r"\(").replace(")", r"\)")):
        unmoor.prove(**{"build": runs.plain, **given})


def test_a_local_function_is_refused():
    """A function inside of another is no one's to import."""

    def build():
        return runs.plain()

    with pytest.raises(UsageError, match="Define it by `def` at the top of a module"):
        unmoor.prove(build)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    """Nothing is ever written over."""
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        unmoor.prove(runs.plain, folder=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_picture_replaces_pictures_alone(tmp_path):
    """A slip of the hand must not cost a checkpoint."""
    (tmp_path / "run.png").write_bytes(b"PK\x03\x04 a checkpoint")
    with pytest.raises(UsageError, match="exists and is no picture"):
        unmoor.prove(runs.plain, picture=tmp_path / "run.png")


def test_prove_within_a_proof_is_refused(monkeypatch):
    """A script without a guard would prove itself for ever."""
    monkeypatch.setenv(ENVIRONMENT, "1")
    with pytest.raises(UsageError, match="__main__"):
        unmoor.prove(runs.plain)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        ("fails_in_step_three", "could not take step 3 in a fresh process: ZeroDivisionError"),
        ("nothing", "returned no model"),
        ("untold_loaders", "gives 2 loaders, and which one the steps take is not known"),
        ("strange_loss", "returned str, which is no loss"),
    ],
)
def test_a_run_that_fails_by_itself_is_no_proof(build, text):
    """An error of the uninterrupted run is told with the line of code, and is no verdict on a checkpoint."""
    with pytest.raises(UsageError, match=text):
        proved(build)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"save_on": "cpu"}, "takes no device"),
        ({"wrap": "ddp2"}, "is none of 'ddp'"),
        ({"wrap": "fsdp2"}, "does not take what wraps its model"),
    ],
)
def test_what_the_build_function_cannot_do_is_said(how, text):
    """A device or wrapper that the function does not take is refused with the parameter to give it."""
    with pytest.raises(UsageError, match=text):
        proved("plain", **how)


@pytest.mark.parametrize("wrap", ["data_parallel", "tests.prove.runs:in_parallel"])
def test_a_wrapper_goes_around_a_run_with_the_usual_step(wrap):
    """Where the step is unmoor's own, the model is wrapped after it was built; by a word, or by a function."""
    proof = proved("one_batch", resume_wrap=wrap)
    assert proof.ok
    assert proof.setting == (("wrapper", f"saved in none, resumed in {wrap}"),)


def test_functions_have_one_name_here_and_elsewhere(tmp_path, monkeypatch):
    """A function of a module or of a file is found by the name that another process is given."""
    assert name_elsewhere(runs.plain) == build_name(runs.plain) == "tests.prove.runs:plain"
    assert function_of("tests.prove.runs:plain") is runs.plain
    (tmp_path / "a_script.py").write_text("import a_neighbour\ndef build():\n    return {'model': a_neighbour.x}\n")
    (tmp_path / "a_neighbour.py").write_text("x = 5\n")
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    found = function_of(f"{tmp_path / 'a_script.py'}:build")
    assert found() == {"model": 5}
    assert function_of(f"{tmp_path / 'a_script.py'}:build") is found


def test_a_module_that_fails_to_import_passes_its_own_error(tmp_path):
    """What the user's file raises is what the user sees."""
    (tmp_path / "broken_script.py").write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            function_of(f"{tmp_path / 'broken_script.py'}:build")


def test_a_process_that_dies_or_hangs_is_ended(tmp_path):
    """Both are MachineErrors that name the run, within the time that was given."""
    with pytest.raises(MachineError, match="ended with code 9 and left no recording"):
        unmoor.prove(runs.dies, steps=2, cut=1)
    with pytest.raises(MachineError, match="was still there after 6 s"):
        unmoor.prove(runs.hangs, steps=2, cut=1, timeout=6)
