"""Mapped files, numpy's random state and fresh optimizers in plain PyTorch and in unmoor (facts F1, F9 and F13)."""

from __future__ import annotations

import pickle
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import unmoor
from tests.cases.files import same_bits, tiny, train, trained

CHILD = """
    import sys, torch, unmoor

    way, path = sys.argv[1:]
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.Adam(model.parameters())
    if way == "torch":
        found = torch.load(path, mmap=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        del found
    else:
        unmoor.restore(path, model=model, optimizer=optimizer)
    open(path, "wb").close()
    model(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    print("saved again")
"""


@pytest.mark.skipif(
    not hasattr(signal, "SIGBUS"), reason="this system has no bus error: files that are mapped stay whole"
)
def test_f1_state_that_is_mapped_from_a_file_dies_with_it_and_restored_state_does_not(tmp_path: Path) -> None:
    """F1: after torch.load(mmap=True) Adam's moments lie in the file: overwriting it kills the process."""
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    results = {}
    for way in ("torch", "unmoor"):
        path = tmp_path / f"{way}.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        command = [sys.executable, "-c", textwrap.dedent(CHILD), way, str(path)]
        results[way] = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert results["torch"].returncode == -signal.SIGBUS
    assert (tmp_path / "torch.pt").stat().st_size == 0
    assert (results["unmoor"].returncode, results["unmoor"].stdout) == (0, "saved again\n"), results["unmoor"].stderr
    assert torch.load(tmp_path / "unmoor.pt").keys() == {"model", "optimizer"}


def test_f9_numpy_state_that_torch_refuses_is_restored_without_running_anything(tmp_path: Path) -> None:
    """F9: torch's safe loading refuses a file for the numpy state in it; unmoor reads all of it and runs nothing."""
    states = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    torch.save({"model": tiny().state_dict(), "rng": states}, tmp_path / "run.pt")
    drawn = np.random.rand(), random.random(), torch.rand(1)
    with pytest.raises(pickle.UnpicklingError, match="Unsupported global"):
        torch.load(tmp_path / "run.pt")
    report = unmoor.restore(tmp_path / "run.pt", model=tiny(4))
    assert (np.random.rand(), random.random(), torch.rand(1)) == drawn
    assert report.restored == ("model", "rng")
    unmoor.save(tmp_path / "again.pt", model=tiny(4))
    assert "rng" in torch.load(tmp_path / "again.pt")


def test_f13_asking_for_the_state_of_a_fresh_optimizer_does_not_step_it(tmp_path: Path) -> None:
    """F13: torch's get_optimizer_state_dict takes a step to have a state to give; unmoor saves what there is."""
    model = tiny()
    optimizer = torch.optim.Adam(model.parameters())
    asked = tiny()
    stepped = torch.optim.Adam(asked.parameters())
    get_optimizer_state_dict(asked, stepped)
    assert {float(state["step"]) for state in stepped.state.values()} == {1.0}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    unmoor.save(tmp_path / "run.pt", model=model, optimizer=optimizer)
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    assert same_bits(dict(model.state_dict()), before)
    other, used = trained(3)
    unmoor.restore(tmp_path / "run.pt", model=other, optimizer=used)
    assert not used.state
    for run in ((model, optimizer), (other, used)):
        train(*run)
    assert same_bits(dict(other.state_dict()), dict(model.state_dict()))
