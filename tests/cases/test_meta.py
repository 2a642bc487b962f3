"""Tensors without data: refused when saved, marked when described, and made where a live model has none yet."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from unmoor.report.inspect import inspect_text

from .files import refused, same_bits, tiny, train, trained


def _partly() -> dict[str, torch.Tensor]:
    """A model state dict one of whose tensors is on the meta device."""
    state = tiny().state_dict()
    state["2.weight"] = state["2.weight"].to("meta")
    return dict(state)


def _empty(*, head: bool = False) -> nn.Sequential:
    """A tiny model on the meta device, with a new layer behind it if asked."""
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), *([nn.Linear(2, 2)] if head else []))


@pytest.mark.parametrize("kind", ["tree", "model"])
def test_refuses_to_save_tensors_without_data_by_name(tmp_path: Path, kind: str) -> None:
    """C47: save names every tensor on the meta device, and writes nothing."""
    model = tiny()
    model[2].to("meta")
    tree, roles = ((_partly(),), {}) if kind == "tree" else ((), {"model": model})
    with pytest.raises(unmoor.UsageError) as caught:
        unmoor.save(tmp_path / "x.pt", *tree, **roles)
    assert "2.weight (meta): it holds no data" in str(caught.value)
    assert "0.weight" not in str(caught.value)
    assert "model.to_empty(device=...)" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_description_marks_tensors_without_data(tmp_path: Path) -> None:
    """C47: inspect names the tensor that the file has no data for."""
    torch.save(_partly(), tmp_path / "partly.pt")
    catalog = unmoor.describe(tmp_path / "partly.pt")
    (finding,) = [f for f in catalog.findings if "2.weight" in f.place]
    assert "no data was saved" in finding.message
    assert "2.weight: 1 tensor on the meta device: no data was saved" in inspect_text(catalog)


def test_refuses_to_restore_what_the_file_has_no_data_for(tmp_path: Path) -> None:
    """C47: a file with such a tensor is refused before the model is touched; torch leaves a meta parameter behind."""
    torch.save(_partly(), tmp_path / "partly.pt")
    plain = tiny(5)
    plain.load_state_dict(torch.load(tmp_path / "partly.pt"), assign=True)
    assert plain[2].weight.is_meta
    model = tiny(5)
    with refused(unmoor.MismatchError, model) as caught:
        unmoor.restore(tmp_path / "partly.pt", model=model)
    assert "2.weight (meta) saved on the meta device: the file holds no data for it" in str(caught.value)
    report = unmoor.restore(tmp_path / "partly.pt", model=model, skip="2.weight")
    assert same_bits(model[0].state_dict(), tiny()[0].state_dict())
    assert same_bits(model[2].weight, tiny(5)[2].weight)
    assert "2.weight: left out by skip=" in str(report)


def test_refuses_to_load_what_the_file_has_no_data_for(tmp_path: Path) -> None:
    """C47: load names the tensor instead of giving a meta tensor in silence; who asks for meta gets the shapes."""
    torch.save(_partly(), tmp_path / "partly.pt")
    with pytest.raises(unmoor.UnsupportedFile) as caught:
        unmoor.load(tmp_path / "partly.pt")
    assert "holds no data for 1 tensor: 2.weight (meta)" in str(caught.value)
    shapes = unmoor.load(tmp_path / "partly.pt", map_location="meta")
    assert {tensor.device.type for tensor in shapes.values()} == {"meta"}


def test_plain_values_without_data_do_not_stop_a_restore(tmp_path: Path) -> None:
    """C47: a meta tensor among the plain values is left out and told, the model restored."""
    torch.save({"model": tiny().state_dict(), "note": torch.ones(2, device="meta"), "step": 3}, tmp_path / "run.pt")
    report = unmoor.restore(tmp_path / "run.pt", model=tiny(5))
    assert report.extra == {"step": 3}
    assert "note: saved on the meta device: no data, left out" in str(report)


def test_a_model_without_data_needs_a_device_to_be_made_on(tmp_path: Path) -> None:
    """C47: a live meta model is refused with the call that works; torch's load_state_dict does nothing to it."""
    torch.save(tiny().state_dict(), tmp_path / "model.pt")
    plain = _empty()
    with pytest.warns(UserWarning, match="no-op"):
        plain.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert plain[0].weight.is_meta
    model = _empty()
    with pytest.raises(unmoor.DeviceError) as caught:
        unmoor.restore(tmp_path / "model.pt", model=model)
    assert "0.weight, 0.bias, 2.weight, 2.bias of the live model is on the meta device" in str(caught.value)
    assert 'model_device="cpu"' in str(caught.value)
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("device", ["cpu", "sim:1"])
def test_a_model_without_data_is_made_where_it_is_wanted(tmp_path: Path, device: str, sim: Any) -> None:
    """C47: parameters get memory and values on the chosen device and stay the objects that the optimizer holds."""
    saved, saved_optimizer = trained()
    unmoor.save(tmp_path / "run.pt", model=saved, optimizer=saved_optimizer, rng=False)
    model = _empty()
    optimizer = torch.optim.Adam(model.parameters())
    before = list(model.parameters())
    report = unmoor.restore(tmp_path / "run.pt", model=model, optimizer=optimizer, model_device=device)
    after = list(model.parameters())
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert {str(parameter.device) for parameter in after} == {device}
    assert f"4 tensors of the meta device made on {device}" in str(report)
    for run in ((saved, saved_optimizer), (model, optimizer)):
        train(*run)
    assert same_bits(model.state_dict(), saved.state_dict())


def test_tied_weights_are_made_once(tmp_path: Path) -> None:
    """C47: a tensor under two names is one tensor again once it has memory."""
    saved = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    saved[1].weight = saved[0].weight
    unmoor.save(tmp_path / "model.pt", model=saved, rng=False)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    unmoor.restore(tmp_path / "model.pt", model=model, model_device="cpu")
    assert model[0].weight is model[1].weight
    assert same_bits(model.state_dict(), saved.state_dict())


def test_refuses_to_make_what_the_file_would_not_fill(tmp_path: Path) -> None:
    """C47: memory that would get no values is refused by name: new layers, and buffers that no state dict holds."""
    unmoor.save(tmp_path / "model.pt", model=tiny(), rng=False)
    with pytest.raises(unmoor.DeviceError, match=r"3\.weight, 3\.bias of the live model .*nothing of the file"):
        unmoor.restore(tmp_path / "model.pt", model=_empty(head=True), model_device="cpu", missing="fresh")
    model = _empty()
    model.register_buffer("table", torch.ones(2, device="meta"), persistent=False)
    with pytest.raises(unmoor.DeviceError, match="table of the live model is a buffer on the meta device") as caught:
        unmoor.restore(tmp_path / "model.pt", model=model, model_device="cpu")
    assert "nothing was changed" in str(caught.value)
    assert model[0].weight.is_meta


def test_refuses_where_the_optimizer_would_be_left_with_old_parameters(tmp_path: Path) -> None:
    """C47: a parameter that cannot get memory and stay the same object is named, with the order that works."""
    unmoor.save(tmp_path / "run.pt", **dict(zip(("model", "optimizer"), trained(), strict=True)), rng=False)
    model = _empty()
    optimizer = torch.optim.Adam(model.parameters())
    watcher = weakref.ref(model[2].weight)
    with pytest.raises(unmoor.DeviceError) as caught:
        unmoor.restore(tmp_path / "run.pt", model=model, optimizer=optimizer, model_device="cpu")
    assert watcher() is model[2].weight
    assert "giving memory to 2.weight would make new parameters" in str(caught.value)
    assert "model.to_empty(device=...); optimizer = ...;" in str(caught.value)


def test_state_does_not_go_to_the_meta_device(tmp_path: Path) -> None:
    """C47: an optimizer over meta parameters that is restored without its model is refused."""
    unmoor.save(tmp_path / "run.pt", **dict(zip(("model", "optimizer"), trained(), strict=True)), rng=False)
    optimizer = torch.optim.Adam(_empty().parameters())
    with pytest.raises(unmoor.DeviceError, match="of the live optimizer is on the meta device"):
        unmoor.restore(tmp_path / "run.pt", optimizer=optimizer)
    assert not optimizer.state
