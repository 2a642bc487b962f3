"""Calls of prove that cannot be meant, and build functions that no fresh process can use."""

from __future__ import annotations

import functools
import importlib.machinery
import os
import signal
import sys
import types

import pytest

import unmoor
from unmoor.errors import MachineError, UsageError
from unmoor.wiring.building import build_name, function_of, name_elsewhere
from unmoor.wiring.proving_leg import ENVIRONMENT
from unmoor.wiring.termination import ended_in_order

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


def test_a_folder_without_leave_to_write_is_told_before_the_work(monkeypatch):
    """An answer that took minutes is not lost for its picture; the command draws none there unless it is asked to."""
    from unmoor.cli.prove import _picture

    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(UsageError, match=r"the folder \. of proof\.png cannot be written to"):
        unmoor.prove(runs.plain, picture="proof.png")
    assert (_picture(None), _picture("none"), _picture("a.png")) == (None, None, "a.png")


def test_sigterm_ends_a_proof_as_an_interrupt_does():
    """What was begun is cleaned up on the way out, with the code of the signal; a handler of the caller's is kept."""
    with pytest.raises(SystemExit) as caught, ended_in_order():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    own = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with ended_in_order():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, own)


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
        ("exits", r"ended the program \(exit code 3\) instead of building a run"),
        ("exits_in_step", "could not take step 1 in a fresh process: SystemExit: 4"),
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


def test_a_save_function_that_writes_nothing_is_told():
    """The fault is that of the save, and not of the resume that finds no file."""
    with pytest.raises(UsageError, match="save_nothing has written nothing to the path that it was given"):
        proved("plain", save="save_nothing", resume="resume_all")


@pytest.mark.parametrize("wrap", ["data_parallel", "tests.prove.runs:in_parallel"])
def test_a_wrapper_goes_around_a_run_with_the_usual_step(wrap):
    """Where the step is unmoor's own, the model is wrapped after it was built; by a word, or by a function."""
    proof = proved("one_batch", resume_wrap=wrap)
    assert proof.ok
    assert proof.setting == (("wrapper", f"saved in none, resumed in {wrap}"),)


def test_a_module_that_ends_the_program_is_told_what_to_do(tmp_path, monkeypatch):
    """A parser that runs as its module is imported finds no arguments, and is told where it belongs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parses_at_import.py").write_text("raise SystemExit(2)\n")
    with pytest.raises(UsageError, match=r"cannot be imported: it ended the program \(exit code 2\)") as caught:
        unmoor.preflight("parses_at_import.py:build")
    assert "__main__" in caught.value.remedy


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


ENDS = {SystemExit: "it ended the program"}


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [
        ("x = 5\n1 / 0\n", ZeroDivisionError, "broken_script.py:2  1 / 0"),
        ("def build(:\n", SyntaxError, "broken_script.py:1  def build(:"),
        ("import a_package_that_is_not_here\n", ModuleNotFoundError, "broken_script.py:1"),
        ("import sys\nsys.exit(3)\n", SystemExit, "broken_script.py:2  sys.exit(3)"),
    ],
)
def test_a_module_that_fails_to_import_is_an_error_of_the_user(tmp_path, text, error, line):
    """What the user's file raises is the cause, and its line is shown; a second try says the same."""
    (tmp_path / "broken_script.py").write_text(text)
    for _ in range(2):
        with pytest.raises(UsageError, match=f"cannot be imported: {ENDS.get(error, error.__name__)}") as caught:
            function_of(f"{tmp_path / 'broken_script.py'}:build")
        assert isinstance(caught.value.__cause__, error)
        assert caught.value.details[-1].startswith(line)


def test_a_file_of_a_package_is_imported_with_it(tmp_path, monkeypatch):
    """Its relative imports work, and it is the module that others import."""
    inner = tmp_path / "a_package" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").touch()
    (inner / "script.py").write_text("from ..made import x\ndef build():\n    return x\n")
    (inner.parent / "made.py").write_text("x = 5\n")
    monkeypatch.setattr("sys.path", [*sys.path])
    found = function_of(f"{inner / 'script.py'}:build")
    assert (found(), found.__module__) == (5, "a_package.inner.script")


def test_the_main_module_has_its_name_elsewhere(monkeypatch):
    """Run by `python -m` it is a module, which may be in a package; else it is its file."""
    main = types.ModuleType("__main__")
    main.build = types.FunctionType(runs.plain.__code__, {"__name__": "__main__"}, "build")
    main.build.__qualname__ = "build"
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.__spec__ = importlib.machinery.ModuleSpec("a_package.train", None)
    assert name_elsewhere(main.build) == "a_package.train:build"
    main.__spec__, main.__file__ = None, runs.__file__
    assert name_elsewhere(main.build) == f"{runs.__file__}:build"


def test_what_could_be_meant_is_what_the_module_defines(tmp_path):
    """A name that is nearly right comes first; what the module imports is not offered."""
    (tmp_path / "imports_much.py").write_text(
        "from torch.nn import Linear, ReLU\ndef alpha(): ...\ndef build_run(): ...\n"
    )
    with pytest.raises(UsageError) as caught:
        function_of(f"{tmp_path / 'imports_much.py'}:build")
    assert caught.value.remedy == "It has build_run, alpha."


def test_a_process_that_dies_or_hangs_is_ended(tmp_path):
    """Both are MachineErrors that name the run, within the time; the first finds an empty command line before."""
    with pytest.raises(MachineError, match="ended with code 9 and left no recording"):
        unmoor.prove(runs.dies, steps=2, cut=1)
    with pytest.raises(MachineError, match="was still there after 3 s"):
        unmoor.prove(runs.hangs, steps=2, cut=1, timeout=3)
