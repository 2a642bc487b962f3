"""Modules inside wrappers: extra state, hooks of their own, one module under two names, names that users give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DataParallel, DistributedDataParallel

import unmoor
from tests.cases.files import refused
from tests.runs.training import equal
from unmoor.values.beside import NAMES

from .wrapper_kinds import Net, data_parallel, quiet, world_of_one


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    """A process group of this process alone."""
    with world_of_one():
        yield


WRAPS = {
    "bare": lambda m: m,
    "DataParallel": data_parallel,
    "DDP": DistributedDataParallel,
    "compile": lambda m: torch.compile(m, backend="eager"),
    "AC": checkpoint_wrapper,
    "DDP(AC(compile))": lambda m: DistributedDataParallel(checkpoint_wrapper(torch.compile(m, backend="eager"))),
}
PAIRS = [
    *((one, "bare") for one in WRAPS),
    *(("bare", other) for other in WRAPS if other != "bare"),
    ("DDP", "compile"),
]
"""Into each wrapper, out of each, and across; the whole square is the matrix above."""


class _Dotted(nn.Module):
    """A model whose names begin and end with those of wrappers' attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self._orig_mod = nn.ModuleDict({"module": nn.Linear(4, 2), "submodule": nn.Linear(4, 2)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._orig_mod["module"](self.module(x)) + self._orig_mod["submodule"](x)
        return out


@pytest.mark.parametrize("writer", ["unmoor.save", "torch.save"])
@pytest.mark.parametrize(("saved", "live"), PAIRS)
def test_a_submodule_called_as_a_wrapper_would_call_it_survives(
    tmp_path: Path, writer: str, saved: str, live: str
) -> None:
    """Law 8: what a user calls `module` or `_orig_mod` keeps its name under every wrapper, in files of both writers."""
    torch.manual_seed(0)
    inner, twin = _Dotted(), _Dotted()
    model, other = WRAPS[saved](inner), WRAPS[live](twin)
    if writer == "unmoor.save":
        unmoor.save(tmp_path / "a.pt", model=model)
        assert list(torch.load(tmp_path / "a.pt")["model"]) == list(inner.state_dict())
    else:
        torch.save({"model": model.state_dict()}, tmp_path / "a.pt")
    unmoor.restore(tmp_path / "a.pt", model=other)
    assert equal(dict(twin.state_dict()), dict(inner.state_dict()))


class Noted(nn.Module):
    """A part with extra state, and hooks of its own that write and read a name of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.note = "fresh"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x)
        return out

    def get_extra_state(self) -> dict[str, str]:
        return {"note": self.note}

    def set_extra_state(self, state: dict[str, str]) -> None:
        self.note = state["note"]


class Hooked(Noted):
    """The same, its weight saved as its transpose under another name."""

    def __init__(self) -> None:
        super().__init__()
        self._register_state_dict_hook(_turn)
        self.register_load_state_dict_pre_hook(_turn_back)


def _turn(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
    state[prefix + "turned"] = state.pop(prefix + "linear.weight").t()


def _turn_back(module: nn.Module, state: Any, prefix: str, *rest: Any) -> None:
    if prefix + "turned" in state:
        state[prefix + "linear.weight"] = state.pop(prefix + "turned").t()


@pytest.mark.parametrize("part", [Noted, Hooked])
@pytest.mark.parametrize("inner", ["bare", "compile", "AC"])
@pytest.mark.parametrize(("saved", "live"), PAIRS)
def test_extra_state_and_hooks_inside_wrappers(tmp_path: Path, part: Any, inner: str, saved: str, live: str) -> None:
    """Modules that save in a way of their own do so inside wrappers too, under canonical names."""

    def make(wrap: str, within: str, note: str, seed: int) -> tuple[nn.Module, Any]:
        torch.manual_seed(seed)
        net, own = Net(), part()
        own.note = note
        net.head = WRAPS[within](own)
        return WRAPS[wrap](net), own

    model, own = make(saved, inner, "kept", 0)
    optimizer = torch.optim.Adam(model.parameters())
    with quiet():
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
        assert not any(
            "module." in n or "_orig" in n or "_wrapped" in n for n in torch.load(tmp_path / "a.pt")["model"]
        )
        other, twin = make(live, "bare", "lost", 5)
        live_optimizer = torch.optim.Adam(other.parameters())
        report = unmoor.restore(tmp_path / "a.pt", model=other, optimizer=live_optimizer)
    assert twin.note == "kept"
    assert equal(dict(twin.linear.state_dict()), dict(own.linear.state_dict()))
    assert [t.tolist() for t in other.parameters()] == [t.tolist() for t in model.parameters()]
    assert equal(live_optimizer.state_dict(), optimizer.state_dict())
    assert ("in a way of its own" in " ".join(str(report).split())) == (part is Hooked)


def test_a_hooked_module_gets_names_that_it_alone_knows(tmp_path: Path) -> None:
    """Where the saved names are not the live ones, the module's own hooks are asked, and what they refuse is undone."""
    own = Hooked()
    torch.save(Noted.state_dict(own) | {}, tmp_path / "a.pt")
    plain = {"linear.weight": own.linear.weight.detach(), "linear.bias": own.linear.bias.detach()}
    torch.save({**plain, "_extra_state": {"note": "old"}}, tmp_path / "older.pt")
    other = Hooked()
    unmoor.restore(tmp_path / "older.pt", model=other)
    assert other.note == "old"
    assert equal(other.linear.weight, own.linear.weight)
    torch.save({"linear.bias": torch.ones(2), "_extra_state": {"note": "half"}}, tmp_path / "half.pt")
    before = {name: tensor.clone() for name, tensor in other.named_parameters()}
    with pytest.raises(unmoor.MismatchError, match="nothing was changed"):
        unmoor.restore(tmp_path / "half.pt", model=other)
    assert equal(dict(other.named_parameters()), before)
    assert other.note == "old"


def test_a_hooked_module_is_not_rounded_unless_asked(tmp_path: Path) -> None:
    """Law 9: what would be narrowed on the way into a module's own load_state_dict is refused beforehand."""
    torch.save(Hooked().double().state_dict(), tmp_path / "a.pt")
    other = Hooked()
    with refused(unmoor.MismatchError, other) as caught:
        unmoor.restore(tmp_path / "a.pt", model=other)
    assert "saved float64, live float32: values would be rounded" in str(caught.value)
    unmoor.restore(tmp_path / "a.pt", model=other, cast="any")


class Twice(nn.Module):
    """One module registered under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.b(self.a(x)))
        return out


@pytest.mark.parametrize(("saved", "live"), PAIRS)
def test_a_module_registered_twice_is_one_module(tmp_path: Path, saved: str, live: str) -> None:
    """Shared submodules, counters of norms, and buffers that are not saved: as torch's own state dict has them."""
    torch.manual_seed(0)
    model = WRAPS[saved](Twice())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with quiet():
        model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
    written = torch.load(tmp_path / "a.pt")
    assert set(written["model"]) == set(Twice().state_dict())
    assert written["optimizer"][NAMES] == [["a.weight", "a.bias", "norm.weight", "norm.bias"]]
    inner = Twice()
    other = WRAPS[live](inner)
    live_optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    unmoor.restore(tmp_path / "a.pt", model=other, optimizer=live_optimizer)
    assert inner.a is inner.b
    assert int(inner.norm.num_batches_tracked) == 1 + ("AC" in saved)
    assert [t.tolist() for t in other.state_dict().values()] == [t.tolist() for t in model.state_dict().values()]
    assert equal(live_optimizer.state_dict(), optimizer.state_dict())


def test_wrappers_are_told_by_class_and_not_by_name(tmp_path: Path) -> None:
    """A user's own class called as torch's wrapper is wraps nothing; a class derived from torch's does."""

    class DistributedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    class Mine(DataParallel):
        pass

    unmoor.save(tmp_path / "own.pt", model=DistributedDataParallel(nn.Linear(2, 2)))
    unmoor.save(tmp_path / "derived.pt", model=Mine(nn.Linear(2, 2)))
    assert list(torch.load(tmp_path / "own.pt")["model"]) == ["module.weight", "module.bias"]
    assert list(torch.load(tmp_path / "derived.pt")["model"]) == ["weight", "bias"]


def test_a_lazy_module_that_has_no_shape_yet_is_told(tmp_path: Path) -> None:
    """A module without shapes saves nothing and takes nothing: both say so, and nothing changes."""
    lazy = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    with pytest.raises(unmoor.UsageError, match=r"0\.weight has no shape yet"):
        unmoor.save(tmp_path / "lazy.pt", model=lazy)
    unmoor.save(tmp_path / "a.pt", model=nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
    before = lazy[1].weight.clone()
    with pytest.raises(unmoor.MismatchError, match="run one forward pass first"):
        unmoor.restore(tmp_path / "a.pt", model=lazy, optimizer=torch.optim.SGD(lazy.parameters(), lr=0.1))
    assert torch.equal(lazy[1].weight, before)
    lazy(torch.ones(1, 4))
    unmoor.restore(tmp_path / "a.pt", model=lazy)
