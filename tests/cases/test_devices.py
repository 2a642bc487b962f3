"""Devices: state beside its parameter, tags of machines that are not this one, views, and memory."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from unmoor.live.devices import is_available

from .files import SGD, bits, gpu, refused, same_bits, save_tagged, saved_run, tiny, train, trained


def _places(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    state = optimizer.state[model[0].weight]
    return {key: str(value.device) for key, value in state.items()}


@pytest.mark.parametrize("tag", ["cuda:0", gpu, "cpu"], ids=["all on the gpu", "step on the cpu", "cpu"])
@pytest.mark.parametrize(
    ("device", "options", "step_on"),
    [
        ("cpu", {}, "cpu"),
        ("cpu", {"foreach": False}, "cpu"),
        ("cpu", {"fused": True}, "cpu"),
        ("sim:1", {}, "cpu"),
        ("sim:1", {"foreach": True}, "cpu"),
        ("sim:1", {"fused": True}, "sim:1"),
        ("sim:1", {"capturable": True}, "sim:1"),
    ],
    ids=str,
)
def test_step_goes_where_the_live_optimizer_wants_it(
    tmp_path: Path, sim: ModuleType, tag: Any, device: str, options: dict[str, bool], step_on: str
) -> None:
    """C10: wherever the file had it, step is on the CPU unless the live optimizer is capturable or fused."""
    saved, optimizer = trained(steps=5, lr=0.01)
    path = saved_run(tmp_path / "ck.pt", saved, optimizer, tag)
    model = tiny(5).to(device)
    live = torch.optim.Adam(model.parameters(), lr=0.01, **options)
    unmoor.restore(path, model=model, optimizer=live)
    assert _places(model, live) == {"step": step_on, "exp_avg": device, "exp_avg_sq": device}
    assert {(state["step"].dtype, float(state["step"])) for state in live.state.values()} == {(torch.float32, 5.0)}
    assert same_bits(live.state_dict()["state"], optimizer.state_dict()["state"])
    train(model, live, 1)
    train(saved, optimizer, 1)
    own_arithmetic = options.get("fused") or options.get("capturable")
    assert own_arithmetic or same_bits(model.state_dict(), saved.state_dict())


def _flagged(path: Path, **flags: bool) -> tuple[Path, torch.optim.Optimizer]:
    model, optimizer = trained()
    state = optimizer.state_dict()
    state["param_groups"][0].update(flags)
    return save_tagged({"model": model.state_dict(), "optimizer": state}, path, "cuda:0"), optimizer


def test_a_file_of_a_capturable_run_steps_on_the_cpu(tmp_path: Path) -> None:
    """C12: capturable stays the live optimizer's own, values are the file's, the report says what was kept."""
    path, saved = _flagged(tmp_path / "gpu.pt", capturable=True)
    model = tiny(5)
    optimizer = torch.optim.Adam(model.parameters())
    report = unmoor.restore(path, model=model, optimizer=optimizer)
    assert optimizer.param_groups[0]["capturable"] is False
    assert same_bits(optimizer.state_dict()["state"], saved.state_dict()["state"])
    assert "capturable=False (the file: True)" in str(report)
    train(model, optimizer, 1)


@pytest.mark.parametrize("live", [{}, {"fused": True}, {"foreach": True}, {"differentiable": True}], ids=str)
def test_execution_flags_are_never_flipped_by_a_file(tmp_path: Path, live: dict[str, bool]) -> None:
    """C12: a file that says fused and foreach at once changes neither, so both are never true together."""
    flags = {"fused": True, "foreach": True, "capturable": True, "differentiable": True, "maximize": True}
    path, _ = _flagged(tmp_path / "flags.pt", **flags)
    model = tiny(5)
    optimizer = torch.optim.Adam(model.parameters(), **live)
    before = {flag: optimizer.param_groups[0][flag] for flag in flags}
    report = unmoor.restore(path, model=model, optimizer=optimizer)
    assert {flag: optimizer.param_groups[0][flag] for flag in flags} == before
    kept = {change.name: (change.before, change.after) for change in report.plan.kept}
    assert kept == {flag: ("True", str(value)) for flag, value in before.items() if value is not True}


def test_restoring_last_puts_state_beside_parameters_that_moved(tmp_path: Path, sim: ModuleType) -> None:
    """C13: an optimizer that was built and filled before model.to() ends with its state beside its parameters."""
    path = saved_run(tmp_path / "ck.pt", *trained(**SGD))
    model, optimizer = trained(5, **SGD)
    model.to("sim:1")
    assert _places(model, optimizer) == {"momentum_buffer": "cpu"}
    unmoor.restore(path, model=model, optimizer=optimizer)
    assert _places(model, optimizer) == {"momentum_buffer": "sim:1"}
    train(model, optimizer, 1)


def test_model_device_moves_the_model_and_its_state_together(tmp_path: Path, sim: ModuleType) -> None:
    """C13: model_device= moves first and fills afterwards: the order of calls does not matter."""
    path = saved_run(tmp_path / "ck.pt", *trained(**SGD))
    model, optimizer = trained(5, **SGD)
    unmoor.restore(path, model=model, optimizer=optimizer, model_device="sim:0")
    assert {str(p.device) for p in model.parameters()} == {"sim:0"}
    assert _places(model, optimizer) == {"momentum_buffer": "sim:0"}
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
    train(model, optimizer, 1)


def test_refuses_an_optimizer_that_holds_other_parameters_than_the_model(tmp_path: Path) -> None:
    """C13: an optimizer over parameters that the model no longer has is named, with how many and the order to build."""
    path = saved_run(tmp_path / "ck.pt", *trained(**SGD))
    _, optimizer = trained(5, **SGD)
    model = tiny(6)
    with refused(unmoor.MismatchError, model, optimizer) as caught:
        unmoor.restore(path, model=model, optimizer=optimizer)
    text = str(caught.value)
    assert "optimizer holds 4 tensors that are not in the model" in text
    assert "4 parameters of the model are in no optimizer" in text
    assert "0.weight" in text
    assert "then .to(device), then the optimizer" in text


def test_refuses_a_move_that_would_leave_the_optimizer_with_old_parameters(tmp_path: Path) -> None:
    """C13: a move that makes new Parameter objects, as to the meta device, is refused before anything is touched."""
    path = saved_run(tmp_path / "ck.pt", *trained(**SGD))
    model, optimizer = trained(5, **SGD)
    with refused(unmoor.DeviceError, model, optimizer) as caught:
        unmoor.restore(path, model=model, optimizer=optimizer, model_device="meta")
    assert "meta" in str(caught.value)


def _two_gpus(path: Path, *, legacy: bool) -> nn.Sequential:
    model = tiny()
    tree = {"net": model.state_dict()}
    save_tagged(tree, path, lambda keys: "cuda:6" if keys[-1].startswith("2.") else "cuda:2", legacy=legacy)
    return model


BOTH_FORMATS = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


@BOTH_FORMATS
def test_a_description_shows_the_devices_of_another_machine(tmp_path: Path, legacy: bool) -> None:
    """C41: the tags and their tensors are known without loading anything."""
    _two_gpus(tmp_path / "net.t7", legacy=legacy)
    catalog = unmoor.describe(tmp_path / "net.t7")
    assert {tag: number for tag, (number, _) in catalog.devices().items()} == {"cuda:2": 2, "cuda:6": 2}


@BOTH_FORMATS
@pytest.mark.parametrize(
    ("where", "device"),
    [
        ({"model_device": "cpu"}, "cpu"),
        ({"map_location": "cpu"}, "cpu"),
        ({"map_location": {"cuda:2": "cpu", "cuda:6": "cpu"}}, "cpu"),
        ({"model_device": "auto"}, "sim:0"),
        ({"model_device": "sim:1"}, "sim:1"),
        ({"model_device": 3}, "sim:3"),
    ],
    ids=str,
)
def test_everything_goes_to_the_device_that_was_asked_for(
    tmp_path: Path, sim: ModuleType, legacy: bool, where: dict[str, Any], device: str
) -> None:
    """C41: tensors of two GPUs load onto the CPU or onto one device, in both formats, with equal values."""
    saved = _two_gpus(tmp_path / "net.t7", legacy=legacy)
    loaded = unmoor.load(tmp_path / "net.t7", **where)["net"]
    assert {str(tensor.device) for tensor in loaded.values()} == {device}
    assert same_bits(dict(loaded), dict(saved.state_dict()))
    model = tiny(5)
    unmoor.restore(tmp_path / "net.t7", model=model)
    assert same_bits(model.state_dict(), saved.state_dict())


@BOTH_FORMATS
def test_absent_devices_are_named_with_the_call_that_works(tmp_path: Path, legacy: bool) -> None:
    """C41: with nothing asked the error counts the tensors of each absent device; its own advice is then followed."""
    path = tmp_path / "net.t7"
    saved = _two_gpus(path, legacy=legacy)
    with refused(unmoor.DeviceError) as caught:
        unmoor.load(path)
    first, *rest = str(caught.value).splitlines()
    assert first.startswith(f"{path} was saved on cuda:2 and cuda:6, and this machine has ")
    advice = 'model_device="auto"), or map_location={"cuda:2": "cpu", "cuda:6": "cpu"}.'
    assert rest == [
        "  cuda:2   2 tensors   model",
        "  cuda:6   2 tensors   model",
        f"Say where it should go: unmoor.load({str(path)!r}, {advice}",
    ]
    with refused(unmoor.DeviceError) as caught:
        unmoor.load(path, map_location={"cuda:2": "cpu"})
    assert advice in str(caught.value)
    where = {"cuda:2": "cpu", "cuda:6": "cpu"}
    assert same_bits(dict(unmoor.load(path, map_location=where)["net"]), dict(saved.state_dict()))


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ({"map_location": "cuda:63"}, "cuda:63"),
        ({"map_location": {"cpu": "cuda:63"}}, "cuda:63"),
        ({"model_device": "xpu:63"}, "xpu:63"),
        ({"model_device": "npu:0"}, "npu:0"),
        ({"map_location": "npu:0"}, "npu:0"),
    ],
    ids=str,
)
def test_a_wanted_device_that_is_not_here_is_told_with_those_that_are(
    tmp_path: Path, where: dict[str, Any], named: str
) -> None:
    """C48: one error names the device that was asked for, those present, and a call that works."""
    torch.save(tiny().state_dict(), tmp_path / "cpu.pt")
    with refused(unmoor.DeviceError) as caught:
        unmoor.load(tmp_path / "cpu.pt", **where)
    text = str(caught.value)
    assert f"{named}" in text.splitlines()[0]
    assert "which this machine does not have" in text or "this machine does not have it" in text
    assert "was saved on" not in text
    assert "present here: cpu" in text
    assert 'model_device="auto"' in text


TAGS = ("xla:0", "mps", "mps:0", "npu:0", "hpu:0", "xpu:0", "privateuseone:0", "maia:0")
EXOTIC = [tag for tag in TAGS if not is_available(tag)]


@pytest.mark.parametrize("tag", EXOTIC)
def test_files_of_other_backends_open_everywhere_once_asked(tmp_path: Path, tag: str) -> None:
    """C48: a tag that this build does not know is told with the call that works; all ways to the CPU load it."""
    path = save_tagged(tiny().state_dict(), tmp_path / "other.pt", tag)
    assert list(unmoor.describe(path).devices()) == [tag]
    with refused(unmoor.DeviceError) as caught:
        unmoor.load(path)
    text = str(caught.value)
    assert f"was saved on {tag}" in text
    assert f'map_location={{"{tag}": "cpu"}}' in text
    for where in ({"model_device": "cpu"}, {"map_location": "cpu"}, {"map_location": {tag: "cpu"}}):
        assert same_bits(dict(unmoor.load(path, **where)), dict(tiny().state_dict()))
    model = tiny(5)
    report = unmoor.restore(path, model=model)
    assert same_bits(model.state_dict(), tiny().state_dict())
    assert f"{tag} -> cpu: 4 tensors" in str(report)


@pytest.mark.parametrize("argument", ["model_device", "map_location"])
@pytest.mark.parametrize("spelling", ["cpu", "cpu:0", "CPU", torch.device("cpu"), torch.device("cpu", 0)], ids=repr)
def test_every_spelling_of_the_cpu_is_the_cpu(tmp_path: Path, argument: str, spelling: Any) -> None:
    """C48: "cpu:0", "CPU" and torch.device("cpu", 0) all mean the CPU."""
    path = save_tagged(tiny().state_dict(), tmp_path / "gpu.pt", "cuda:0")
    loaded = unmoor.load(path, **{argument: spelling})
    assert {tensor.device for tensor in loaded.values()} == {torch.device("cpu")}


@pytest.mark.parametrize(
    "where", [{"map_location": "gpu zero"}, {"map_location": {"cuda:0": "?"}}, {"model_device": True}], ids=str
)
def test_what_is_no_device_is_an_argument_conflict_in_its_own_name(tmp_path: Path, where: dict[str, Any]) -> None:
    """C48: a word that names no device at all is refused before the file is opened, under the name it was passed by."""
    with refused(unmoor.ArgumentConflict) as caught:
        unmoor.load(tmp_path / "not there.pt", **where)
    assert next(iter(where)) in str(caught.value).splitlines()[0]


def _views(path: Path) -> Path:
    big = torch.arange(1_000_000, dtype=torch.float32)
    torch.save({"ema": {"w": big[:10]}, "rows": [big[:4], big[2:6]]}, path)
    return path


def _share(tree: Any) -> bool:
    """Whether a write through one view shows in the others."""
    tree["rows"][0][2] = -1.0
    return tree["rows"][1][0].item() == tree["ema"]["w"][2].item() == -1.0


def test_a_view_that_drags_its_storage_along_is_told(tmp_path: Path) -> None:
    """C43: a description says how few elements of a storage are used, in elements and in bytes."""
    torch.save({"w": torch.arange(1_000_000, dtype=torch.float32)[:10]}, tmp_path / "slice.pt")
    (finding,) = unmoor.describe(tmp_path / "slice.pt").findings
    assert finding.code == "large-storage"
    assert "w uses 10 of 1,000,000 elements (40 B of 3.8 MiB)" in finding.message


def test_views_of_one_storage_share_it_after_load_and_after_save(tmp_path: Path) -> None:
    """C43: sharing is kept both ways; what unmoor writes holds only the elements that a view reaches."""
    assert _share(unmoor.load(_views(tmp_path / "theirs.pt")))
    unmoor.save(tmp_path / "ours.pt", torch.load(tmp_path / "theirs.pt"))
    ours = torch.load(tmp_path / "ours.pt")
    assert [tensor.tolist() for tensor in ours["rows"]] == [[0, 1, 2, 3], [2, 3, 4, 5]]
    assert ours["ema"]["w"].untyped_storage().nbytes() == 40
    assert _share(ours)
    assert _share(unmoor.load(tmp_path / "ours.pt"))
    assert (tmp_path / "ours.pt").stat().st_size < 4000


def test_two_optimizers_of_one_file_share_nothing_and_nothing_of_it(tmp_path: Path) -> None:
    """C97: after a restore the file may be overwritten and deleted, and stepping one optimizer leaves the other."""
    saved, optimizer = trained()
    path = saved_run(tmp_path / "ck.pt", saved, optimizer)
    runs = []
    for seed in (4, 6):
        model = tiny(seed)
        live = torch.optim.Adam(model.parameters())
        unmoor.restore(path, model=model, optimizer=live)
        runs.append((model, live))
    tree = unmoor.load(path, map_location="cpu")
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    path.unlink()
    train(*runs[0], steps=2)
    model, live = runs[1]
    assert same_bits(model.state_dict(), saved.state_dict())
    assert same_bits(live.state_dict(), optimizer.state_dict())
    assert {float(state["step"]) for state in live.state.values()} == {3.0}
    assert same_bits(tree["optimizer"], optimizer.state_dict())
    storages = [t.untyped_storage().data_ptr() for _, o in runs for s in o.state.values() for t in s.values()]
    assert len(set(storages)) == len(storages)


def test_a_restore_adds_no_more_than_one_buffer_to_a_device(tmp_path: Path, sim: ModuleType) -> None:
    """C97: filling a run that is on a device takes no second copy of it there: at most the staging buffer."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(32)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    path = saved_run(tmp_path / "ck.pt", model, optimizer, gpu)
    live = nn.Sequential(*(nn.Linear(64, 64) for _ in range(32))).to("sim:1")
    live_optimizer = torch.optim.Adam(live.parameters())
    live(torch.ones(2, 64, device="sim:1")).sum().backward()
    live_optimizer.step()
    live_optimizer.zero_grad()
    size, buffer = sum(p.nbytes for p in live.parameters()), 128 << 10
    before = sim.memory_allocated("sim:1")
    sim.reset_peak_memory_stats("sim:1")
    unmoor.restore(path, model=live, optimizer=live_optimizer, buffer_bytes=buffer)
    peak = sim.max_memory_allocated("sim:1") - before
    assert before >= 3 * size
    assert peak <= buffer
    assert sim.memory_allocated("sim:1") == before
    assert bits(live.cpu().state_dict()) == bits(model.state_dict())
