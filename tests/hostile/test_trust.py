"""`trust=` lets in what the caller named, whatever a file does with the names."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

import unmoor
from tests.hostile.gadgets import NAMES
from tests.hostile.make_hostile import archive
from tests.hostile.trees import MARKER
from unmoor.live.trusted import trusted_names


class Thing:
    """A class that callers trust here."""

    helper = os.system
    kind = "thing"

    def __init__(self, *args: Any) -> None:
        self.args = args


class Runner(subprocess.Popen):  # type: ignore[type-arg]
    """Never made."""


ALIAS = os.system
PARTIAL = functools.partial(os.system, "echo hostile")
HERE = __name__


def load(data: bytes, folder: Path, trust: Any) -> Any:
    path = folder / "f.pt"
    path.write_bytes(archive([("a/data.pkl", data), ("a/version", b"3\n")]))
    return unmoor.load(path, trust=trust)


def glob(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


CALL = b"X\x04\0\0\0echo\x85R."

WIDENED: dict[str, bytes] = {
    "an attribute of a trusted class": glob(HERE, "Thing.helper") + CALL,
    "a method of its builtins": glob(HERE, "Thing.__init__.__globals__") + CALL,
    "another name of its module": glob(HERE, "ALIAS") + CALL,
    "the module of its module": glob(HERE, "os.system") + CALL,
    "the module under a parent": glob(HERE.rpartition(".")[0], f"{HERE.rpartition('.')[2]}.os.system") + CALL,
    "getattr on it": b"cbuiltins\ngetattr\n" + glob(HERE, "Thing") + b"X\x06\0\0\0helper\x86R" + CALL,
    "attrgetter on it": b"coperator\nattrgetter\nX\x06\0\0\0helper\x85R" + glob(HERE, "Thing") + b"\x85R.",
    "a partial of it": b"cfunctools\npartial\ncposix\nsystem\nX\x04\0\0\0echo\x86R)R.",
    "a torch re-export": glob("torch", "os.system") + CALL,
    "builtins of a module": glob(HERE, "__builtins__") + b"X\x04\0\0\0eval\x85R.",
    "a state on the class": glob(HERE, "Thing") + b"N}X\x04\0\0\0kindX\x04\0\0\0evils\x86b.",
    "a state on a class of torch": b"ctorch\nTensor\nN}X\x08\0\0\0__repr__ccollections\nOrderedDict\ns\x86b.",
    "a state on a function of torch": b"ctorch._utils\n_rebuild_tensor_v2\nN}X\x0c\0\0\0__defaults__)s\x86b.",
    "an entry on a class": glob(HERE, "Thing") + b"X\x01\0\0\0aNs.",
}  # fmt: skip


@pytest.mark.parametrize("name", WIDENED)
def test_trust_is_not_widened_by_a_file(name, tmp_path, monkeypatch):
    """Trusting one class lets in nothing that can be reached from it, and changes nothing of it."""
    ran: list[Any] = []
    monkeypatch.setattr(Thing, "helper", ran.append)
    before = torch.Tensor.__repr__, torch._utils._rebuild_tensor_v2.__defaults__, dict(vars(Thing))
    try:
        made = load(b"\x80\x02" + WIDENED[name], tmp_path, [Thing])
    except unmoor.UnmoorError:
        made = None
    assert made is None or isinstance(made, unmoor.Opaque)
    assert not ran
    assert before == (torch.Tensor.__repr__, torch._utils._rebuild_tensor_v2.__defaults__, dict(vars(Thing)))


def test_a_trusted_class_is_built(tmp_path):
    """The door is open for what was named."""
    made = load(b"\x80\x02" + glob(HERE, "Thing") + b"K\x05\x85R.", tmp_path, [Thing])
    assert type(made) is Thing
    assert made.args == (5,)


def test_no_caller_can_trust_what_runs_anything():
    """Every function that a scanner should flag is refused by its name, and is not part of everything in a file."""
    for name in NAMES:
        with pytest.raises(unmoor.TrustError, match="can run anything a file asks for"):
            trusted_names([name], [name])
    assert not trusted_names("everything in this file", NAMES)


@pytest.mark.parametrize("name", ["ALIAS", "PARTIAL", "Thing.helper", "os", "subprocess.Popen"])
def test_a_harmless_name_that_leads_to_danger_is_refused(name, tmp_path):
    """What counts is what an object calls itself: an alias, a partial, an attribute or a module does not hide it."""
    data = b"\x80\x02" + glob(HERE, name) + CALL
    with pytest.raises(unmoor.TrustError):
        load(data, tmp_path, [f"{HERE}.{name}"])


@pytest.mark.parametrize(
    "item",
    [PARTIAL, os, 5, None, "plain", lambda: None, [Thing]],
    ids=["partial", "module", "number", "None", "no dot", "lambda", "list"],
)
def test_what_is_no_class_and_no_name_is_refused(item):
    """Things without a name of their own cannot be trusted; the error says what can."""
    if getattr(item, "__name__", "") == "<lambda>":
        assert trusted_names([item], [])  # a function of the caller's own, which no file can name
        return
    with pytest.raises(unmoor.TrustError, match=r"trust="):
        trusted_names([item], [])


def test_a_module_is_imported_only_for_a_trusted_name(tmp_path, monkeypatch):
    """Importing runs code: it happens when a file asks for a name that was trusted, and for no other name."""
    (tmp_path / f"{MARKER}.py").write_text("class Thing: pass\nclass Other: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    data = b"\x80\x02" + glob(MARKER, "Thing") + b")\x81."
    try:
        assert isinstance(load(data, tmp_path, [Thing, f"{MARKER}.Other"]), unmoor.Opaque)
        assert MARKER not in sys.modules
        assert type(load(data, tmp_path, [f"{MARKER}.Thing"])).__name__ == "Thing"
        assert MARKER in sys.modules
    finally:
        sys.modules.pop(MARKER, None)


GREEDY: dict[str, bytes] = {
    "a list of a range": b"cbuiltins\nlist\ncbuiltins\nrange\nJ\xff\xff\xff\x7f\x85R\x85R.",
    "a set of a range": b"cbuiltins\nset\ncbuiltins\nrange\nJ\xff\xff\xff\x7f\x85R\x85R.",
    "a counter of a range": b"ccollections\nCounter\ncbuiltins\nrange\nJ\xff\xff\xff\x7f\x85R\x85R.",
    "a bytearray of 2 GiB": b"cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
    "bytes of 2 GiB": b"cbuiltins\nbytes\nJ\xff\xff\xff\x7f\x85R.",
    "an array of 2 GiB": b"cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85\x85R.",
    "a tensor of 8 GiB": b"ctorch\nTensor\nJ\xff\xff\xff\x7f\x85R.",
    "a storage of 2 GiB": b"ctorch.storage\nUntypedStorage\nJ\xff\xff\xff\x7f\x85R.",
    "a float storage of 8 GiB": b"ctorch\nFloatStorage\nJ\xff\xff\xff\x7f\x85R.",
    "the text of lists": b"cbuiltins\nstr\n]\x85R.",
    "thrown away": b"cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R0N.",
}  # fmt: skip


@pytest.mark.parametrize("name", GREEDY)
def test_a_trusted_load_takes_no_memory_that_a_file_asks_for(name, tmp_path):
    """Containers that the door always lets in are made only in the ways that picklers make them."""
    with pytest.raises(unmoor.HostileFile, match="what no pickler gives it"):
        load(b"\x80\x02" + GREEDY[name], tmp_path, [Thing])


def test_containers_of_every_kind_pass_the_door(tmp_path):
    """What picklers write of plain containers is let in beside a trusted class."""
    tree = {"a": OrderedDict(b=1), "c": {1, 2}, "d": frozenset({3}), "e": bytearray(b"xy"), "f": slice(1, 2), "g": 1j}
    for protocol in (2, 4):
        assert load(pickle.dumps(tree, protocol), tmp_path, [Thing]) == tree
