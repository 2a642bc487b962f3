"""The published CHGNet run, saved on cuda:7 of another machine, taken up where it was left.

On the CPU and on the simulated accelerator, in this process and in a fresh one.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import unmoor

from .compare import bits, differences

pytest.importorskip("chgnet", reason='chgnet is not installed: pip install "unmoor[real]"')

from . import chgnet_run
from .chgnet_run import PUBLISHED, Run, build

pytestmark = [
    pytest.mark.real,
    # chgnet makes a tensor from a list of volumes that carry gradients
    pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning"),
]

STEPS = 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One thread in this process as in the child: sums over threads may round otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["cpu", "sim:0"])
def device(request: pytest.FixtureRequest) -> str:
    """A device of this machine."""
    if request.param != "cpu":
        request.getfixturevalue("sim")
    return str(request.param)


@pytest.fixture(scope="module")
def saved() -> Any:
    """What PyTorch makes of the published file with everything on the CPU."""
    return torch.load(PUBLISHED, map_location="cpu", weights_only=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with CUDA may have a cuda:7")
def test_plain_torch_cannot_load_the_file_here() -> None:
    """The file is a real case: torch.load refuses it on a machine without CUDA."""
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
        torch.load(PUBLISHED, weights_only=True)


def test_restores_every_value_where_the_live_objects_are(device: str, saved: Any) -> None:
    """Parameters, Adam's state, options and scheduler are the file's, bit for bit, each on the device of its role."""
    run = build(device)
    report = unmoor.restore(PUBLISHED, **run.objects())
    assert report.restored == ("model", "optimizer", "scheduler")
    state = run.model.state_dict()
    assert list(state) == list(saved["model"]["state_dict"])
    for name, value in saved["model"]["state_dict"].items():
        assert state[name].device == torch.device(device)
        assert bits(state[name]) == bits(value), name
    _assert_adam_holds(run, saved["optimizer"])
    assert {key: run.scheduler.__dict__[key] for key in saved["scheduler"]} == saved["scheduler"]
    assert dict(report.extra["trainer_args"]) == saved["trainer_args"]


def _assert_adam_holds(run: Run, saved: Any) -> None:
    (group,), (stored,) = run.optimizer.param_groups, saved["param_groups"]
    options = set(stored) - {"params", "fused", "foreach", "capturable", "differentiable", "maximize"}
    assert {key: group[key] for key in options} == {key: stored[key] for key in options}
    assert len(run.optimizer.state) == len(saved["state"]) == 127
    for index, parameter in enumerate(group["params"]):
        entry = run.optimizer.state.get(parameter, {})
        assert list(entry) == list(saved["state"].get(index, {}))
        for key, value in entry.items():
            assert value.device == (torch.device("cpu") if key == "step" else parameter.device)
            assert bits(value) == bits(saved["state"][index][key]), (index, key)


def test_the_report_says_what_was_done(device: str) -> None:
    """The tags of the file, what moved and how the optimizer was matched are in the report, as text and as values."""
    report = unmoor.restore(PUBLISHED, **build(device).objects())
    assert {(change.before, change.after) for change in report.moved} == {("cuda:7", device)}
    assert len(report.moved) == 390
    assert (report.renamed, report.cast) == ((), ())
    assert f"cuda:7 -> {device}: 390 tensors" in str(report)
    assert "state for 127 of 136 parameters" in " ".join(str(report).split())


def test_a_plan_touches_nothing(device: str) -> None:
    """unmoor.plan with the same arguments leaves every parameter, state and setting as it was."""
    run = build(device)
    before = chgnet_run.on_cpu({name: item.state_dict() for name, item in run.objects().items()})
    made = unmoor.plan(PUBLISHED, **run.objects())
    assert made.restored == ("model", "optimizer", "scheduler")
    after = chgnet_run.on_cpu({name: item.state_dict() for name, item in run.objects().items()})
    assert not list(differences(before, after))


def test_model_device_moves_the_model_of_a_live_optimizer(sim: object, saved: Any) -> None:
    """A run that was built on the CPU goes to the device whole: the optimizer goes on with the same parameters."""
    run = build("cpu")
    held = list(run.model.parameters())
    unmoor.restore(PUBLISHED, **run.objects(), model_device="sim:0")
    run.device = "sim:0"
    assert all(one is other for one, other in zip(held, run.model.parameters(), strict=True))
    assert {parameter.device for parameter in held} == {torch.device("sim:0")}
    _assert_adam_holds(run, saved["optimizer"])
    before = bits(held[1])
    run.step()
    assert bits(held[1]) != before


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [("cpu", "cpu"), ("cpu", "sim:0"), ("sim:0", "cpu"), ("sim:0", "sim:1")])
def test_a_fresh_process_takes_the_same_next_steps(
    source: str, target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Resumed in a fresh process, the run takes the steps of the uninterrupted one, bit for bit.

    Losses, parameters, optimizer, scheduler and random numbers are compared. Where the device type changes, and with
    it the order in which gradients are summed, the run to equal is one that PyTorch itself loaded onto the new device.
    """
    if "sim" in source + target:
        request.getfixturevalue("sim")
    run = build(source)
    unmoor.restore(PUBLISHED, **run.objects())
    run.step()
    unmoor.save(tmp_path / "step_1.pt", **run.objects())
    expected = run if source.partition(":")[0] == target.partition(":")[0] else loaded_by_torch(run, target)
    command = [sys.executable, chgnet_run.__file__, str(tmp_path / "step_1.pt"), target, str(STEPS)]
    done = subprocess.run([*command, str(tmp_path / "out.pt")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(differences(expected.outcome(STEPS), torch.load(tmp_path / "out.pt", weights_only=True)))


def loaded_by_torch(run: Run, device: str) -> Run:
    """The same run on another device, by way of every object's own state_dict and load_state_dict."""
    made = build(device)
    for name, item in run.objects().items():
        made.objects()[name].load_state_dict(chgnet_run.on_cpu(item.state_dict()))
    return made
