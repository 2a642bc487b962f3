"""Loss scale, position in the data, and the best moment: state that a run has beside its weights."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import unmoor

from .files import refused, same_bits, tiny, train, trained


def _scaled_steps(device: str, scaler: torch.amp.GradScaler, seed: int = 0) -> tuple[torch.nn.Module, Any]:
    """Three scaled steps, the first two of which overflow."""
    model = tiny(seed).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        _scaled_step(model, optimizer, scaler, overflow=step < 2)
    return model, optimizer


def _scaled_step(model: Any, optimizer: Any, scaler: torch.amp.GradScaler, *, overflow: bool) -> None:
    optimizer.zero_grad()
    device = next(model.parameters()).device
    scaler.scale(model(torch.ones(2, 3, device=device)).sum()).backward()
    if overflow:
        model[0].weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()


def _scaler(device: str = "cpu", **options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(device.partition(":")[0], init_scale=65536.0, growth_interval=4, **options)


@pytest.mark.parametrize("used", [False, True], ids=["before the first scale", "after it"])
@pytest.mark.parametrize(("saved", "resumed"), [("cpu", "cpu"), ("cpu", "sim:0"), ("sim:1", "cpu"), ("sim:0", "sim:1")])
def test_loss_scale_goes_on(sim: object, tmp_path: Path, saved: str, resumed: str, used: bool) -> None:
    """C80: scale 16384 and growth tracker 1 are back, also in a scaler that has not scaled yet, on any device."""
    scaler = _scaler(saved)
    model, optimizer = _scaled_steps(saved, scaler)
    unmoor.save(tmp_path / "run.pt", model=model, optimizer=optimizer, scaler=scaler)
    other = tiny(5).to(resumed)
    fresh, again = torch.optim.SGD(other.parameters(), lr=0.1), _scaler(resumed)
    if used:
        _scaled_step(other, fresh, again, overflow=False)
    unmoor.restore(tmp_path / "run.pt", model=other, optimizer=fresh, scaler=again)
    assert (again.get_scale(), again._get_growth_tracker()) == (16384.0, 1)
    for step in range(5):
        _scaled_step(model, optimizer, scaler, overflow=step == 1)
        _scaled_step(other, fresh, again, overflow=step == 1)
    assert again.state_dict() == scaler.state_dict()
    assert same_bits(dict(other.state_dict()), dict(model.state_dict()))


def test_state_of_a_scaler_as_torch_saves_it_is_taken(tmp_path: Path) -> None:
    """C80: a file that holds nothing but {"scaler": ...}, written by torch.save."""
    scaler = _scaler()
    _scaled_steps("cpu", scaler)
    torch.save({"scaler": scaler.state_dict()}, tmp_path / "ck.pt")
    again = _scaler()
    unmoor.restore(tmp_path / "ck.pt", scaler=again)
    assert (again.get_scale(), again._get_growth_tracker()) == (16384.0, 1)


@pytest.mark.parametrize(
    "writer", [unmoor.save, lambda path, scaler: torch.save({"scaler": scaler.state_dict()}, path)]
)
def test_a_scaler_that_was_disabled_when_saved_is_left_fresh_and_told(tmp_path: Path, writer: Any) -> None:
    """C80: an empty state is no crash; the report says why the scaler is as it was."""
    writer(tmp_path / "disabled.pt", scaler=_scaler(enabled=False))
    scaler = _scaler()
    report = unmoor.restore(tmp_path / "disabled.pt", scaler=scaler)
    assert scaler.get_scale() == 65536.0
    assert "the scaler was disabled when saved: left as it is" in str(report)


def test_a_missing_loss_scale_is_reported(tmp_path: Path) -> None:
    """C80: a file without a scaler says so in the report; and a live scaler that is disabled takes none."""
    torch.save({"model": tiny().state_dict()}, tmp_path / "no_scaler.pt")
    report = unmoor.restore(tmp_path / "no_scaler.pt", model=tiny(1), scaler=_scaler())
    assert [c.before for c in report.not_restored if c.label == "scaler"] == ["the file holds no GradScaler state"]
    unmoor.save(tmp_path / "run.pt", scaler=_scaler(), model=tiny())
    report = unmoor.restore(tmp_path / "run.pt", model=tiny(), scaler=_scaler(enabled=False))
    assert "the live scaler is disabled: the saved state was not used" in str(report)


def _shuffled(seed: int) -> Any:
    return unmoor.resumable(
        DataLoader(range(12), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(seed))
    )


def test_a_resumed_epoch_gives_the_batches_that_were_left(tmp_path: Path) -> None:
    """C83: three batches into the second epoch, [2,7], [6,9], [10,8] are left, and no sample comes twice."""
    loader = _shuffled(0)
    first = [batch.tolist() for batch in loader]
    second = []
    for batch in loader:
        second.append(batch.tolist())
        if len(second) == 3:
            unmoor.save(tmp_path / "loader.pt", loader=loader, epoch=1)
            break
    again = _shuffled(77)
    assert unmoor.restore(tmp_path / "loader.pt", loader=again).extra == {"epoch": 1}
    left = [batch.tolist() for batch in again]
    assert left == [[2, 7], [6, 9], [10, 8]]
    assert sorted(chain(*second, *left)) == sorted(chain(*first)) == list(range(12))


@pytest.mark.parametrize("keyword", ["loader", "batches"])
def test_a_loader_that_does_not_know_its_position_is_refused(tmp_path: Path, keyword: str) -> None:
    """C83: a stock DataLoader passed as it is names the wrapper; nothing is written and nothing changes."""
    stock = DataLoader(range(4), batch_size=2)
    model = tiny()
    with refused(unmoor.UsageError, model) as caught:
        unmoor.save(tmp_path / "run.pt", model=model, **{keyword: stock})
    assert "unmoor.resumable(loader)" in str(caught.value)
    assert not (tmp_path / "run.pt").exists()
    unmoor.save(tmp_path / "run.pt", model=tiny(1))
    with refused(unmoor.UsageError, model) as caught:
        unmoor.restore(tmp_path / "run.pt", model=model, **{keyword: stock})
    assert "unmoor.resumable(loader)" in str(caught.value)


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_a_snapshot_does_not_drift(sim: object, tmp_path: Path, device: str) -> None:
    """C84: what was the best after step 1 is written as it was then: its weights, and Adam's step 1."""
    model = tiny().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    train(model, optimizer, 1)
    best = unmoor.snapshot(model=model, optimizer=optimizer, rng=False, epoch=1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, optimizer, 5)
    unmoor.save(tmp_path / "best.pt", best)
    found = torch.load(tmp_path / "best.pt")
    assert same_bits(dict(found["model"]), weights)
    assert [float(state["step"]) for state in found["optimizer"]["state"].values()] == [1.0] * 4
    other, fresh = trained(3)
    assert unmoor.restore(tmp_path / "best.pt", model=other, optimizer=fresh).extra == {"epoch": 1}
    assert same_bits(dict(other.state_dict()), weights)


def test_a_snapshot_keeps_what_shares_memory_together(tmp_path: Path) -> None:
    """C84: tied weights are copied once and stay tied in the file; values that can change are copies too."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    history = [1.0]
    best = unmoor.snapshot(model=model, history=history)
    assert str(best).startswith("snapshot of model, rng, history: ")
    history.append(2.0)
    unmoor.save(tmp_path / "best.pt", best)
    found = torch.load(tmp_path / "best.pt")
    assert found["history"] == [1.0]
    assert found["model"]["0.weight"].data_ptr() == found["model"]["1.weight"].data_ptr()
    with pytest.raises(unmoor.UsageError, match=r"a tree and model by keyword"):
        unmoor.save(tmp_path / "best.pt", best, model=model)
