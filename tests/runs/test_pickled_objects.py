"""Files that hold a whole model and optimizer as pickled objects: restored by their values, with no class trusted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from tests.cases.files import trained

Objects = dict[str, Any]


@pytest.fixture
def pickled(tmp_path: Path) -> tuple[Path, Objects]:
    """A file of pickled objects, and the objects."""
    model, optimizer = trained()
    torch.save({"model": model, "optimizer": optimizer, "epoch": 3}, tmp_path / "objects.pt")
    return tmp_path / "objects.pt", {"model": model, "optimizer": optimizer}


def assert_equal(one: Objects, other: Objects) -> None:
    for name, value in one["model"].state_dict().items():
        assert torch.equal(other["model"].state_dict()[name], value)
    states = [[t for entry in run["optimizer"].state.values() for t in entry.values()] for run in (one, other)]
    assert states[0]
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def test_a_pickled_model_and_optimizer_go_into_live_ones(pickled: tuple[Path, Objects]) -> None:
    """Parameters and optimizer state come out of the objects in the file; the plain values are in the report."""
    path, saved = pickled
    model, optimizer = trained(seed=5, steps=1)
    report = unmoor.restore(path, model=model, optimizer=optimizer)
    assert report.restored == ("model", "optimizer")
    assert report.extra == {"epoch": 3}
    assert_equal(saved, {"model": model, "optimizer": optimizer})


def test_a_whole_pickled_model_goes_into_a_wrapped_one(tmp_path: Path) -> None:
    """A file that is one module, saved out of a DataParallel, fits the bare model by its proved prefix."""
    model, _ = trained()
    torch.save(nn.DataParallel(model), tmp_path / "whole.pt")
    other, _ = trained(seed=5)
    unmoor.restore(tmp_path / "whole.pt", model=other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_stored_objects_are_placed_by_role(pickled: tuple[Path, Objects], sim: object) -> None:
    """Loaded with their classes trusted, model and moments are on the device, the optimizer's counters on the CPU."""
    path, saved = pickled
    tree = unmoor.load(path, model_device="sim:1", trust="everything in this file")
    assert {p.device for p in tree["model"].parameters()} == {torch.device("sim:1")}
    held = tree["optimizer"].param_groups[0]["params"]
    assert all(a is b for a, b in zip(held, tree["model"].parameters(), strict=True))
    for state in tree["optimizer"].state.values():
        assert {key: str(t.device) for key, t in state.items()} == {
            "step": "cpu", "exp_avg": "sim:1", "exp_avg_sq": "sim:1",
        }  # fmt: skip
    assert_equal(
        saved, {key: tree[key].cpu() if key == "model" else tree[key] for key in saved} | {"optimizer": host(tree)}
    )


def host(tree: Objects) -> Any:
    """The optimizer of a tree with its state on the CPU."""
    for state in tree["optimizer"].state.values():
        state.update({key: value.cpu() for key, value in state.items()})
    return tree["optimizer"]


def test_plain_values_that_need_code_come_back_inert_with_their_tensors(tmp_path: Path) -> None:
    """An object among the extra values is a stand-in with its tensors; a model that none asked for is named."""
    model, _ = trained()
    kept = SimpleNamespace(seen=torch.ones(1), where={"a.b": torch.ones(2), "a": {"b": torch.zeros(2), "unit": "m"}})
    torch.save({"model": model.state_dict(), "best": nn.Linear(2, 1), "kept": kept}, tmp_path / "mixed.pt")
    report = unmoor.restore(tmp_path / "mixed.pt", model=model)
    assert list(report.extra) == ["kept"]
    assert repr(report.extra["kept"]) == "<types.SimpleNamespace(seen=<Tensor>, where=<dict>), not built>"
    inside = report.extra["kept"].state
    assert (inside["seen"].tolist(), inside["where"]["a.b"].tolist()) == ([1], [1, 1])
    assert inside["where"]["a"]["b"].tolist() == [0, 0]
    assert [change.name for change in report.not_restored if change.label == "model"] == ["best"]


def test_a_capturable_pickled_optimizer_keeps_its_counters_on_the_device(tmp_path: Path, sim: object) -> None:
    """Where a pickled group is capturable its counters go with the parameters."""
    model, optimizer = trained()
    optimizer.param_groups[0]["capturable"] = True
    torch.save({"model": model, "optimizer": optimizer}, tmp_path / "capturable.pt")
    tree = unmoor.load(tmp_path / "capturable.pt", model_device="sim:0", trust="everything in this file")
    assert {str(state["step"].device) for state in tree["optimizer"].state.values()} == {"sim:0"}
