"""What PyTorch itself does with the names of wrapped models, and what unmoor does in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.nn.parallel import DataParallel, DistributedDataParallel

import unmoor
from tests.cases.files import bits, same_bits, saved_names, tiny
from tests.matrix.wrapper_kinds import world_of_one


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    with world_of_one():
        yield


def test_a_prefix_loads_nothing_where_strictness_is_switched_off(tmp_path: Path) -> None:
    """F7: into a plain model a `module.` state dict loads nothing with strict=False and says nothing.

    With strict=True torch lists keys and no cause. unmoor loads all four tensors, or says that none matched, which
    reading would, and the call.
    """
    saved, model = tiny(), tiny(9)
    path = saved_names(tmp_path / "ddp.pt", saved, "module.{}".format)
    before = bits(model.state_dict())

    theirs = torch.load(path)["state_dict"]
    result = model.load_state_dict(theirs, strict=False)
    assert (len(result.missing_keys), len(result.unexpected_keys)) == (4, 4)
    assert bits(model.state_dict()) == before
    with pytest.raises(RuntimeError, match="Missing key") as caught:
        model.load_state_dict(theirs)
    assert "prefix" not in str(caught.value)

    report = unmoor.restore(path, model=model)
    assert same_bits(model.state_dict(), saved.state_dict())
    assert "4 of 4 names match without 'module.'" in str(report)

    larger = tiny(9).append(nn.Linear(2, 2))
    with pytest.raises(unmoor.MismatchError) as refusal:
        unmoor.restore(path, model=larger, missing="fresh", unexpected="ignore")
    assert "0 of 6 tensors matched" in str(refusal.value)
    assert "saved names without 'module.' fit the live ones (4 of 6 with their shapes)" in str(refusal.value)
    assert "rename={'module.': ''}" in str(refusal.value)


class Net(nn.Module):
    """A part to be wrapped, and one that the user calls `module`."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.part = wrap(nn.Linear(3, 3))
        self.module = nn.Linear(3, 2)


def _compiled(module: Any) -> Any:
    return torch.compile(module, backend="eager")


def _same(module: Any) -> Any:
    return module


NAMES = ["part.weight", "part.bias", "module.weight", "module.bias"]

CANONICAL = {
    "plain": (_same, _same),
    "DDP": (DistributedDataParallel, _same),
    "compile": (_compiled, _same),
    "compile(DDP)": (lambda m: _compiled(DistributedDataParallel(m)), _same),
    "DDP(compile)": (lambda m: DistributedDataParallel(_compiled(m)), _same),
    "compile in the middle": (_same, _compiled),
    "DDP in the middle": (_same, DistributedDataParallel),
    "checkpoint_wrapper in the middle": (_same, checkpoint_wrapper),
}
"""What wraps the whole, what wraps a part: torch.distributed.checkpoint has the model's own names for all of these."""

NOT_CANONICAL = {
    "DataParallel": (DataParallel, _same),
    "DataParallel in the middle": (_same, DataParallel),
    "AC(compile) in the middle": (_same, lambda m: checkpoint_wrapper(_compiled(m))),
}


def _file_names(tmp_path: Path, model: nn.Module) -> list[str]:
    unmoor.save(tmp_path / "a.pt", model=model)
    return list(torch.load(tmp_path / "a.pt")["model"])


@pytest.mark.parametrize("kind", CANONICAL)
def test_dcp_names_are_canonical_under_most_wrappers(tmp_path: Path, kind: str) -> None:
    """F12: DCP's state dict API has canonical names under DDP, compile and checkpoint_wrapper, given the live model.

    It keeps a submodule that the user calls `module`. What unmoor writes has the same names, and it takes a file with
    wrapped names into a bare model.
    """
    whole, part = CANONICAL[kind]
    model = whole(Net(part))
    assert set(get_model_state_dict(model)) == set(NAMES)
    assert _file_names(tmp_path, model) == NAMES
    torch.save(model.state_dict(), tmp_path / "raw.pt")
    bare = Net(_same)
    unmoor.restore(tmp_path / "raw.pt", model=bare)
    assert [t.tolist() for t in bare.parameters()] == [t.tolist() for t in model.parameters()]


@pytest.mark.parametrize("kind", NOT_CANONICAL)
def test_dcp_fails_on_data_parallel_and_unmoor_does_not(tmp_path: Path, kind: str) -> None:
    """F12: DCP's state dict API fails for DataParallel anywhere, and keeps `_orig_mod` of AC(compile).

    unmoor writes the model's own names for all of these, and takes the raw ones into a bare model.
    """
    whole, part = NOT_CANONICAL[kind]
    model = whole(Net(part))
    try:
        theirs = list(get_model_state_dict(model))
    except (AssertionError, RuntimeError, KeyError, AttributeError) as error:
        theirs = [type(error).__name__]
    assert set(theirs) != set(NAMES)
    assert _file_names(tmp_path, model) == NAMES
    torch.save(model.state_dict(), tmp_path / "raw.pt")
    bare = Net(_same)
    unmoor.restore(tmp_path / "raw.pt", model=bare)
    assert [t.tolist() for t in bare.parameters()] == [t.tolist() for t in model.parameters()]
