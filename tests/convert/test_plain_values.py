"""convert writes plain values in the place of objects that say no more, and lists or leaves out the others."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import operator
import pathlib
import types
import uuid
from typing import NamedTuple

import numpy as np
import pytest
import torch

import unmoor
from unmoor.values.plainer import PLAINER

from .trees import run


@dataclasses.dataclass
class Config:
    """Settings as people keep them."""

    lr: float = 0.1
    inner: object = None


class Mode(enum.Enum):
    """A choice."""

    TRAIN = 1


class EasyDict(dict):
    """A dict whose keys are attributes too."""

    def __init__(self, **items: object) -> None:
        super().__init__(items)
        self.__dict__.update(items)


class Names(list):
    """A list of a class of its own."""


class Slotted:
    """Attributes without a dict."""

    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a, self.b = 1, [2]


class Keyword(str):
    """A str of a class of its own."""

    __slots__ = ()


class Point(NamedTuple):
    """Two numbers."""

    x: int
    y: list[int]


class Hidden:
    """An object that only its own code can make."""

    def __reduce__(self):
        return (operator.add, (1, 2))


VALUES = {
    "a Namespace": (
        argparse.Namespace(lr=1e-3, hidden=[4, 8], resume=None),
        {"lr": 1e-3, "hidden": [4, 8], "resume": None},
    ),
    "a SimpleNamespace": (types.SimpleNamespace(a=1), {"a": 1}),
    "a dataclass": (Config(0.5, Config()), {"lr": 0.5, "inner": {"lr": 0.1, "inner": None}}),
    "an enum": (Mode.TRAIN, 1),
    "an EasyDict": (EasyDict(a=1, b=EasyDict(c=2)), {"a": 1, "b": {"c": 2}}),
    "a list of its own class": (Names([1, "x"]), [1, "x"]),
    "slots": (Slotted(), {"a": 1, "b": [2]}),
    "a str of its own class": (Keyword("x"), "x"),
    "a named tuple": (Point(1, [2]), (1, [2])),
    "a posix path": (pathlib.PurePosixPath("/data/run/x.pt"), "/data/run/x.pt"),
    "a relative path": (pathlib.PurePosixPath("a/b"), "a/b"),
    "a windows path": (pathlib.PureWindowsPath("C:/a/b"), "C:\\a\\b"),
    "here": (pathlib.PurePosixPath("."), "."),
    "a uuid": (uuid.UUID(int=5), str(uuid.UUID(int=5))),
    "a decimal": (decimal.Decimal("1.50"), "1.50"),
    "a deque": (collections.deque([1, 2], maxlen=3), [1, 2]),
    "a defaultdict of a partial": (collections.defaultdict(functools.partial(dict, a=1), x=[1]), {"x": [1]}),
    "a frozenset": (frozenset([1]), {1}),
    "a range": (range(1, 7, 2), [1, 3, 5]),
    "a slice": (slice(1, None), (1, None, None)),
    "a datetime": (dt.datetime(2024, 1, 2, 3, tzinfo=dt.timezone.utc), "2024-01-02T03:00:00+00:00"),
    "a duration": (dt.timedelta(seconds=90), 90.0),
    "a numpy number": (np.float32(0.5), 0.5),
    "a numpy bool": (np.bool_(1), True),
    "numpy text": (np.array(["run", "é"]), ["run", "é"]),
    "a numpy table of text": (np.array([["a", "b"], ["c", "d"]], order="F"), [["a", "b"], ["c", "d"]]),
    "numpy objects": (np.array([1, "a", None], dtype=object), [1, "a", None]),
    "a numpy dtype": (np.dtype("float32"), "f4"),
    "a layout": (torch.strided, "torch.strided"),
    "a Counter": (collections.Counter("aab"), {"a": 2, "b": 1}),
    "an enum as a key": ({Mode.TRAIN: "x"}, {1: "x"}),
    "deep inside": ([({"a": [Config()]},)], [({"a": [{"lr": 0.1, "inner": None}]},)]),
}


@pytest.mark.parametrize("name", VALUES)
def test_objects_become_plain_values(tmp_path, name):
    """Each kind of object as the value that the table promises; plain torch loads it with its safe default."""
    value, wanted = VALUES[name]
    torch.save({"model": run()[0].state_dict(), "v": value}, tmp_path / "a.pt")
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert found["v"] == wanted
    assert len(found["model"]) == 9
    told = {change.name for change in receipt.converted} | {finding.place for finding in receipt.findings}
    assert told or name == "a Counter"


def test_tensors_in_objects_come_along(tmp_path):
    """What an object holds of tensors is written with it, its sharing with the model kept."""
    model = run()[0].state_dict()
    torch.save({"model": model, "best": Config(inner=model["0.weight"])}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert found["best"]["inner"].data_ptr() == found["model"]["0.weight"].data_ptr()


def test_objects_that_know_each_other(tmp_path):
    """A cycle of objects is a cycle of dicts."""
    one, other = Config(), Config()
    one.inner, other.inner = other, one
    torch.save({"w": torch.ones(1), "v": one}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    found = torch.load(tmp_path / "b.pt", weights_only=True)["v"]
    assert found["inner"]["inner"] is found


def test_settings_of_omegaconf(tmp_path):
    """OmegaConf's nodes keep their content beside metadata and their parent: only the content is written."""
    node = {}
    modules = {}
    for name in ("dictconfig.DictConfig", "listconfig.ListConfig", "nodes.AnyNode"):
        module, _, kind = name.partition(".")
        made = modules.setdefault(module, types.ModuleType(f"omegaconf.{module}"))
        node[kind] = type(kind, (), {"__module__": f"omegaconf.{module}"})
        setattr(made, kind, node[kind])

    def make(kind, **state):
        made = node[kind]()
        made.__dict__.update(_metadata={"x": 1}, **state)
        return made

    root = make("DictConfig", _parent=None)
    leaf = make("AnyNode", _parent=root, _val=0.5)
    rows = make("ListConfig", _parent=root, _content=[make("AnyNode", _parent=root, _val="${lr}")])
    root.__dict__["_content"] = {"lr": leaf, "rows": rows}
    with pytest.MonkeyPatch.context() as patch:
        import sys

        patch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
        for module, made in modules.items():
            patch.setitem(sys.modules, f"omegaconf.{module}", made)
        torch.save({"w": torch.ones(1), "cfg": root}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    assert torch.load(tmp_path / "b.pt", weights_only=True)["cfg"] == {"lr": 0.5, "rows": ["${lr}"]}


CODE = {
    "functools.partial": functools.partial(torch.optim.Adam, lr=1e-3),
    "builtins.len": len,
    "torch.optim.adam.Adam": torch.optim.Adam,
    "torch.nn.modules.linear.Linear": torch.nn.Linear(2, 2),
    "_operator.add": Hidden(),
    "decimal.Context": decimal.Context(),
}


def test_all_that_is_code_is_listed_at_once(tmp_path):
    """Functions, classes, partials, modules, objects of unknown content: one error names every one with its place."""
    torch.save({"w": torch.ones(1), "v": {str(i): value for i, value in enumerate(CODE.values())}}, tmp_path / "a.pt")
    with pytest.raises(unmoor.UnsupportedFile, match="what no checkpoint without code can hold") as caught:
        unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    text = str(caught.value)
    assert all(f"v.{i}: {name}" in text for i, name in enumerate(CODE)), text
    assert 'opaque="drop"' in text
    assert not (tmp_path / "b.pt").exists()


@pytest.mark.parametrize("target", ["b.pt", "b", "legacy"])
def test_what_is_code_is_left_out_on_request(tmp_path, target):
    """With opaque="drop" the rest is written: entries are gone, elements are None, and the receipt names each."""
    saved = {"w": torch.ones(1), "v": CODE, "l": [1, len, {"f": len, "x": 2}], "t": (len, 3)}
    torch.save(saved, tmp_path / "a.pt")
    form = "legacy" if target == "legacy" else None
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / target, opaque="drop", format=form)
    found = unmoor.load(tmp_path / target)
    assert (found["v"], found["l"], found["t"]) == ({}, [1, None, {"x": 2}], (None, 3))
    assert [change.name for change in receipt.left_out] == [*(f"v.{n}" for n in CODE), "l.1", "l.2.f", "t.0"]
    assert "left out" in str(receipt)


def test_a_tensor_that_only_code_makes_can_be_left_out(tmp_path):
    """A tensor subclass with a way of its own to be built is refused, or left out."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    torch.save({"w": torch.ones(1), "n": nested}, tmp_path / "a.pt")
    with pytest.raises(unmoor.UnsupportedFile, match="n: a tensor of layout jagged"):
        unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", opaque="drop")
    assert list(torch.load(tmp_path / "b.pt", weights_only=True)) == ["w"]


def test_dangerous_calls_are_never_read_as_values(tmp_path):
    """A call that would run something is no value of its argument, however it is spelled; and nothing runs."""

    class Runs:
        def __reduce__(self):
            import subprocess

            return (subprocess.Popen, ("touch ran",))

    torch.save({"w": torch.ones(1), "v": Runs()}, tmp_path / "a.pt")
    with pytest.raises(unmoor.UnsupportedFile, match=r"v: subprocess\.Popen"):
        unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", opaque="drop")
    assert [change.before for change in receipt.left_out] == ["subprocess.Popen"]
    assert list(tmp_path.iterdir()) == [tmp_path / "a.pt", tmp_path / "b.pt"] or not (tmp_path / "ran").exists()


def test_the_page_has_the_table():
    """docs/commands.md shows every row of the table, and no other."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    section = page.partition("\n## convert\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert rows == ["| in the source | in the target |", *(f"| {row.what} | {row.becomes} |" for row in PLAINER)]
