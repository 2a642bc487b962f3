"""What a pickle would run is found and named, wherever it hides; nothing is run to find it."""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import subprocess
from typing import Any

import pytest
import torch

from tests.describe.makers import Call, dumps, pickled, save
from tests.hostile.make_hostile import W, checkpoint
from unmoor.describe.file import describe_file
from unmoor.values.catalog import Catalog
from unmoor.values.dangers import danger_of
from unmoor.values.finding import Finding

CALLS = {
    "posix.system": Call(os.system, "touch MARKER"),
    "builtins.eval": Call(eval, "1"),
    "builtins.exec": Call(exec, "1"),
    "builtins.__import__": Call(__import__, "os"),
    f"{open.__module__}.open": Call(open, "MARKER", "w"),
    "subprocess.Popen": Call(subprocess.Popen, ["touch", "MARKER"]),
    "importlib.import_module": Call(importlib.import_module, "os"),
    "pickle.loads": Call(pickle.loads, b"N."),
    "torch.serialization.load": Call(torch.load, "other.pt"),
}


def described(tree: Any, tmp_path: Any, **options: Any) -> Catalog:
    return describe_file(save(tree, tmp_path / "f.pt", **options))


def graded(catalog: Catalog, severity: str) -> list[Finding]:
    return [finding for finding in catalog.findings if finding.severity == severity]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_runs_code_is_named_with_its_place(name, legacy, tmp_path):
    """Function, arguments and key path of a call, in both formats; the tensors beside it are still listed."""
    catalog = described({"state": {"a.weight": torch.ones(2)}, "callbacks": CALLS[name]}, tmp_path, legacy=legacy)
    (finding,) = graded(catalog, "danger")
    assert (finding.code, finding.place) == ("runs-code", "callbacks")
    assert f"would run {name}(" in finding.message
    assert [entry.path for entry in catalog.tensors] == ["state.a.weight"]
    assert not os.path.exists("MARKER")


def test_arguments_of_a_command_are_shown(tmp_path):
    """The command that would run is in the message."""
    (finding,) = graded(described({"x": CALLS["posix.system"]}, tmp_path), "danger")
    assert "posix.system('touch MARKER')" in finding.message


def test_pickles_inside_pickles_are_read_too(tmp_path):
    """A call of pickle.loads is followed into the bytes that it would load, as deep as they go."""
    inner = dumps(Call(pickle.loads, dumps(Call(eval, "open('MARKER')"))))
    (finding,) = graded(described({"n": Call(pickle.loads, inner)}, tmp_path), "danger")
    assert finding.message.count("inner pickle would run") == 2
    assert "builtins.eval(\"open('MARKER')\")" in finding.message


def test_a_getattr_is_suspicious_and_no_more(tmp_path):
    """Bound methods are pickled through getattr: worth a look, and no command."""
    catalog = described({"fn": Call(getattr, torch.nn.Linear, "forward")}, tmp_path)
    (finding,) = graded(catalog, "warning")
    assert (finding.code, finding.place) == ("suspicious-call", "fn")
    assert not graded(catalog, "danger")


def test_a_getattr_that_reaches_a_command_is_a_danger(tmp_path):
    """os.system reached through getattr is a call of os.system."""
    data = b"\x80\x02cbuiltins\ngetattr\ncos\npath\nX\x02\x00\x00\x00os\x86RX\x02\x00\x00\x00ls\x85R."
    catalog = describe_file(pickled(data, tmp_path / "f.pt"))
    assert any("os.path.os('ls')" in finding.message for finding in graded(catalog, "danger"))


def test_a_command_whose_result_is_dropped_is_found(tmp_path):
    """What is called and thrown away leaves no trace in the tree and would run all the same."""
    data = dumps(Call(os.system, "ls"))[:-1] + b"0N."
    catalog = describe_file(pickled(data, tmp_path / "f.pt"))
    assert catalog.tree is None
    assert [finding.place for finding in graded(catalog, "danger")] == [""]


@pytest.mark.parametrize("value", [os.system, functools.partial(os.system, "ls"), {"f": [eval]}])
def test_a_dangerous_function_as_a_value_is_found(value, tmp_path):
    """A function that is only named can be called by what holds it."""
    (finding,) = graded(described({"f": value}, tmp_path), "danger")
    assert "names" in finding.message


def test_names_through_which_protocol_4_hides_are_joined(tmp_path):
    """STACK_GLOBAL takes module and name from the stack, where they may come from the memo."""
    data = b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93\x8c\x02ls\x85R."
    catalog = describe_file(pickled(data, tmp_path / "f.pt"))
    assert any("os.system('ls')" in finding.message for finding in graded(catalog, "danger"))


def test_very_many_dangers_are_told_by_some(tmp_path):
    """A file of thousands of calls gives a report that a person can read."""
    catalog = described([Call(os.system, str(i)) for i in range(3000)], tmp_path)
    assert 0 < len(graded(catalog, "danger")) <= 100


def test_unknown_classes_are_one_finding(tmp_path):
    """Classes of other packages are listed once for the file, at the lowest grade."""
    catalog = describe_file(pickled(b"\x80\x02](cmine\nTracker\n)Rcmine\nOther\n)\x81e.", tmp_path / "f.pt"))
    (finding,) = [f for f in catalog.findings if f.code == "foreign-class"]
    assert finding.severity == "info"
    assert "mine.Other, mine.Tracker" in finding.message
    assert catalog.globals == ("mine.Tracker", "mine.Other")


def test_an_ordinary_checkpoint_has_no_dangers(tmp_path):
    """Tensors, numpy values, sets and dates raise no finding above info."""
    path = tmp_path / "f.pt"
    path.write_bytes(checkpoint({"w": W}))
    assert not [f for f in describe_file(path).findings if f.severity in ("warning", "danger")]


def test_grades_follow_the_module_of_a_name():
    """A module in the table makes all its names dangerous; harmless names of it are excepted one by one."""
    assert danger_of("os.path.join") == "danger"
    assert danger_of("os.PathLike") == ""
    assert danger_of("osmium.Reader") == ""
    assert danger_of("torch.nn.modules.linear.Linear") == ""
