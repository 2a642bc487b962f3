"""Who writes: a thread, or a process of its own, whatever the size of the save."""

from __future__ import annotations

import sys

import pytest
import torch

import unmoor
from unmoor.wiring import pending as registry
from unmoor.wiring import saving_behind, writing_apart


class Writers:
    """The processes that saves have started."""

    def __init__(self) -> None:
        self.started = []


@pytest.fixture
def process(monkeypatch):
    """Every save in the background is written by a process, at the test's own priority."""
    if not sys.platform.startswith("linux"):
        pytest.skip("a process of its own writes on Linux only")
    writers, start = Writers(), writing_apart._started

    def started(*args):
        found = start(*args)
        writers.started.append(found)
        return found

    monkeypatch.setattr(saving_behind, "_FEW", -1)
    monkeypatch.setattr(saving_behind, "step_back", lambda: None)
    monkeypatch.setattr(writing_apart, "_started", started)
    return writers


@pytest.fixture(params=["thread", "process"])
def way(request, monkeypatch):
    """Both ways of writing."""
    if request.param == "process":
        return request.getfixturevalue("process")
    monkeypatch.setattr(saving_behind, "_FEW", 10**9)
    return None


@pytest.fixture(autouse=True)
def told():
    """No test leaves a save behind that has not ended, or a failure that nobody was told."""
    yield
    if registry._last:
        registry._last[-1]._result.exception(60)
        registry._last[-1].untold()


class Run:
    """A model and its optimizer that train."""

    def __init__(self, seed: int = 0, width: int = 32) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.width = width
        self.train()

    @property
    def roles(self):
        """What save and restore take."""
        return {"model": self.model, "optimizer": self.optimizer}

    def train(self, steps: int = 1) -> None:
        """Take steps."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(4, self.width)).square().sum().backward()
            self.optimizer.step()

    def numbers(self):
        """Every number of the run, as it is now."""
        moments = [entry[key].clone() for entry in self.optimizer.state.values() for key in sorted(entry)]
        return [*(value.clone() for value in self.model.state_dict().values()), *moments]


@pytest.fixture
def run():
    """A run that has taken a step."""
    return Run()


def read(path, width: int = 32):
    """The numbers that a file holds."""
    other = Run(seed=9, width=width)
    unmoor.restore(path, **other.roles)
    return other.numbers()


def same(one, other) -> bool:
    """Whether two lists of tensors are equal, bit for bit."""
    return len(one) == len(other) and all(map(torch.equal, one, other))
