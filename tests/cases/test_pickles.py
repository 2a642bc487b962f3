"""Pickles: values decoded without their code, and code that never runs, named or not."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import datetime as dt
import enum
import functools
import os
import pickle
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unmoor
from unmoor.live.trusted import trusted_names
from unmoor.values.dangers import danger_of

from .files import refused, same_bits, tiny, train, trained


class Call:
    """What its pickle calls when it is loaded without care."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """The file that every payload here would create; it must not exist in the end."""
    path = tmp_path / "MARKER"
    yield path
    assert not path.exists()


def _touch(marker: Path) -> Call:
    return Call(os.system, f"touch '{marker}'")


def _evil(path: Path, payload: Any, *, legacy: bool = False) -> Path:
    tree = {"state_dict": tiny().state_dict(), "callbacks": payload}
    torch.save(tree, path, _use_new_zipfile_serialization=not legacy)
    return path


def test_arguments_of_a_script_are_read_without_its_class(tmp_path: Path) -> None:
    """C64: an argparse.Namespace is inert, bears its name and gives its values; model and plain values load."""
    saved = tiny()
    args = argparse.Namespace(lr=1e-3, hidden=[4, 8], resume=None)
    torch.save({"args": args, "model": saved.state_dict(), "iteration": 500}, tmp_path / "ck.pt")
    tree = unmoor.load(tmp_path / "ck.pt")
    assert same_bits(dict(tree["model"]), dict(saved.state_dict()))
    assert tree["iteration"] == 500
    assert type(tree["args"]) is unmoor.Opaque
    assert tree["args"].name == "argparse.Namespace"
    assert tree["args"].state == {"lr": 1e-3, "hidden": [4, 8], "resume": None}
    model = tiny(5)
    report = unmoor.restore(tmp_path / "ck.pt", model=model)
    assert same_bits(model.state_dict(), saved.state_dict())
    assert report.extra["args"].state == tree["args"].state
    assert report.extra["iteration"] == 500


@pytest.mark.parametrize(
    "trust", [[argparse.Namespace], ["argparse.Namespace"], "everything in this file"], ids=["class", "name", "words"]
)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_class_that_the_caller_trusts_is_built(tmp_path: Path, trust: Any, legacy: bool) -> None:
    """C64: named as a class, by its name or with all of the file, the Namespace itself comes back."""
    args = argparse.Namespace(lr=1e-3, hidden=[4, 8], resume=None)
    tree = {"args": args, "w": torch.ones(2)}
    torch.save(tree, tmp_path / "ck.pt", _use_new_zipfile_serialization=not legacy)
    loaded = unmoor.load(tmp_path / "ck.pt", trust=trust)
    assert loaded["args"] == args
    assert same_bits(loaded["w"], torch.ones(2))


def test_numpy_values_are_read_from_their_bytes(tmp_path: Path) -> None:
    """C65: scalars and arrays of numpy load by default, each with its value and dtype, in load and in restore."""
    values = {
        "rank1": np.float32(0.5),
        "best_loss": np.float64(0.125),
        "done": np.bool_(True),
        "step": np.int64(7),
        "hist": np.arange(3.0),
        "name": np.str_("run"),
    }
    torch.save({"state_dict": tiny().state_dict(), **values}, tmp_path / "ck.pt")
    report = unmoor.restore(tmp_path / "ck.pt", model=tiny(5))
    for tree in (unmoor.load(tmp_path / "ck.pt"), report.extra):
        for key, value in values.items():
            assert type(tree[key]) is type(value), key
            assert np.array_equal(tree[key], value), key
        assert tree["hist"].dtype == np.float64


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_command_in_a_file_is_shown_with_its_place_and_never_run(tmp_path: Path, marker: Path, legacy: bool) -> None:
    """C70: a description calls it danger, with function and arguments; weights load, the payload stays inert."""
    path = _evil(tmp_path / "evil.pt", _touch(marker), legacy=legacy)
    (finding,) = [found for found in unmoor.describe(path).findings if found.severity == "danger"]
    assert finding.place == "callbacks"
    assert f"{os.system.__module__}.system(\"touch '{marker}'\")" in finding.message
    tree = unmoor.load(path)
    assert same_bits(dict(tree["state_dict"]), dict(tiny().state_dict()))
    assert tree["callbacks"].name == f"{os.system.__module__}.system"
    model = tiny(5)
    report = unmoor.restore(path, model=model)
    assert same_bits(model.state_dict(), tiny().state_dict())
    assert "danger" in str(report)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("trust", [[os.system], ["os.system"], ["posix.system"], ["nt.system"]], ids=str)
def test_a_command_cannot_be_trusted_even_by_name(tmp_path: Path, marker: Path, legacy: bool, trust: Any) -> None:
    """C70: trust= with such a function is refused, and says that no checkpoint needs it."""
    path = _evil(tmp_path / "evil.pt", _touch(marker), legacy=legacy)
    with refused(unmoor.TrustError) as caught:
        unmoor.load(path, trust=trust)
    assert "system, which can run anything a file asks for" in str(caught.value)
    assert "No checkpoint needs it." in str(caught.value)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_trusting_everything_in_a_file_does_not_trust_its_commands(tmp_path: Path, marker: Path, legacy: bool) -> None:
    """C70: even where all classes of a file are trusted, functions that run code stay inert."""
    payload = {"args": argparse.Namespace(lr=1.0), "x": _touch(marker)}
    path = _evil(tmp_path / "evil.pt", payload, legacy=legacy)
    tree = unmoor.load(path, trust="everything in this file")["callbacks"]
    assert tree["args"] == argparse.Namespace(lr=1.0)
    assert isinstance(tree["x"], unmoor.Opaque)


class Mode(enum.Enum):
    """A class of the program that saved."""

    TRAIN = 1


@dataclasses.dataclass
class Config:
    """Another."""

    lr: float = 0.1


ORDINARY: dict[str, tuple[Any, Any]] = {
    "defaultdict": (defaultdict(list, a=[1]), {"a": [1]}),
    "frozenset": (frozenset([1]), frozenset([1])),
    "slice": (slice(1, 2), slice(1, 2)),
    "datetime": (dt.datetime(2024, 1, 2, 3, 4, 5, 6),) * 2,  # noqa: DTZ001 - without a zone, as most have it
    "zoned": (dt.datetime(2024, 1, 2, tzinfo=dt.timezone.utc),) * 2,
    "date": (dt.date(2024, 1, 2), dt.date(2024, 1, 2)),
    "time": (dt.time(3, 4), dt.time(3, 4)),
    "duration": (dt.timedelta(1, 2, 3), dt.timedelta(1, 2, 3)),
    "counter": (Counter([1]), Counter([1])),
    "size": (torch.Size([2]), torch.Size([2])),
}
"""Values of the standard library -> what stands for each after loading."""


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_values_load_beside_the_model(tmp_path: Path, kind: str, legacy: bool) -> None:
    """C68: containers, dates and times are values without a class being allowed one by one; the model loads."""
    saved, right = ORDINARY[kind]
    tree = unmoor.load(_evil(tmp_path / "ck.pt", saved, legacy=legacy))
    assert same_bits(dict(tree["state_dict"]), dict(tiny().state_dict()))
    assert tree["callbacks"] == right
    assert type(tree["callbacks"]) is (dict if kind == "defaultdict" else type(right))


STAND_INS: dict[str, tuple[Any, str, Any, str]] = {
    "dataclass": (Config(), "Config", {"lr": 0.1}, "Config(lr=0.1), not built>"),
    "enum": (Mode.TRAIN, "Mode", None, "Mode(1), not built>"),
    "partial": (
        functools.partial(torch.optim.Adam, lr=1e-3),
        "functools.partial",
        ...,
        "<functools.partial(<torch.optim.adam.Adam>, lr=0.001), not built>",
    ),
}
"""Objects that need code -> the name, state and words of what stands for each."""


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("kind", STAND_INS)
def test_objects_that_need_code_stand_inert_beside_the_model(tmp_path: Path, kind: str, legacy: bool) -> None:
    """C68: a dataclass with its fields, an enum with its value, a partial that is never called; the model loads."""
    saved, name, state, words = STAND_INS[kind]
    path = _evil(tmp_path / "ck.pt", saved, legacy=legacy)
    made = unmoor.load(path)["callbacks"]
    assert type(made) is unmoor.Opaque
    assert made.name.endswith(name)
    assert state is ... or made.state == state
    assert repr(made).endswith(words)
    model = tiny(5)
    report = unmoor.restore(path, model=model)
    assert same_bits(model.state_dict(), tiny().state_dict())
    assert repr(report.extra["callbacks"]) == repr(made)


_LATER = ("foreach", "maximize", "capturable", "differentiable", "fused", "decoupled_weight_decay")
"""Options that Adam has been given since it was first pickled whole."""


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_pickled_optimizer_of_an_older_torch_gives_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legacy: bool
) -> None:
    """C26: state comes out of the object unexecuted; options that it lacks keep those of the live class; step is 3."""
    model, optimizer = trained(lr=0.05)
    right = copy.deepcopy(optimizer.state_dict())
    for state in optimizer.state.values():
        state["step"] = int(state["step"])
    for option in _LATER:
        optimizer.param_groups[0].pop(option, None)
    fields = {"state": optimizer.state, "param_groups": optimizer.param_groups}
    with monkeypatch.context() as older:
        older.setattr(torch.optim.Adam, "__getstate__", lambda _: fields)
        torch.save({"encoder": model, "encoder_optimizer": optimizer}, tmp_path / "objects.pt",
                   _use_new_zipfile_serialization=not legacy)  # fmt: skip
    other = tiny(5)
    fresh = torch.optim.Adam(other.parameters())
    options = dict(fresh.param_groups[0])
    unmoor.restore(tmp_path / "objects.pt", model=other, optimizer=fresh)
    assert same_bits(other.state_dict(), model.state_dict())
    assert same_bits(fresh.state_dict()["state"], right["state"])
    assert [float(state["step"]) for state in fresh.state.values()] == [3.0] * 4
    group = fresh.param_groups[0]
    assert {name: group[name] for name in _LATER} == {name: options[name] for name in _LATER}
    assert (group["lr"], group["betas"]) == (0.05, (0.9, 0.999))
    train(other, fresh)


def _hidden(marker: Path) -> dict[str, tuple[Call, str, str, str]]:
    """Payload, severity, words of the finding and names that a user may be talked into trusting."""
    code = f"open({str(marker)!r}, 'w').close()"
    inner = pickle.dumps(Call(eval, code), 2)
    return {
        "eval": (Call(eval, code), "danger", "would run builtins.eval(", "builtins.eval"),
        "getattr": (Call(getattr, nn.Linear, "forward"), "warning", "builtins.getattr(", "builtins.getattr"),
        "nested": (
            Call(pickle.loads, inner),
            "danger",
            "whose inner pickle would run builtins.eval(",
            "_pickle.loads",
        ),
    }


@pytest.mark.parametrize("kind", ["eval", "getattr", "nested"])
def test_code_behind_builtins_is_found(tmp_path: Path, marker: Path, kind: str) -> None:
    """C71: eval, getattr chains and a pickle within the pickle are told for what they would run."""
    payload, severity, words, _ = _hidden(marker)[kind]
    path = _evil(tmp_path / "evil.pt", payload)
    finding = unmoor.describe(path).findings[0]
    assert (finding.severity, finding.place) == (severity, "callbacks")
    assert words in finding.message
    assert isinstance(unmoor.load(path)["callbacks"], unmoor.Opaque)
    assert isinstance(unmoor.load(path, trust="everything in this file")["callbacks"], unmoor.Opaque)


@pytest.mark.parametrize("as_name", [True, False], ids=["name", "object"])
@pytest.mark.parametrize("kind", ["eval", "getattr", "nested"])
def test_code_behind_builtins_cannot_be_trusted(tmp_path: Path, marker: Path, kind: str, as_name: bool) -> None:
    """C71: allow-listing the function that an error named is refused, by name and as the object itself."""
    payload, _, _, name = _hidden(marker)[kind]
    path = _evil(tmp_path / "evil.pt", payload)
    with refused(unmoor.TrustError) as caught:
        unmoor.load(path, trust=[name] if as_name else [payload.call[0]])
    assert name in str(caught.value)


def test_the_door_stays_shut_to_whatever_the_scanner_warns_of() -> None:
    """C71: whatever a description calls danger or suspicious is refused by trust= as well, by one table."""
    for name in ("builtins.eval", "__builtin__.eval", "posix.system", "builtins.getattr", "pickle.loads", "torch.load"):
        assert danger_of(name)
        with pytest.raises(unmoor.TrustError, match="can run anything a file asks for"):
            trusted_names([name], [])
