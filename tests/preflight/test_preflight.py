"""What a preflight tells of each run, all of them taken in one fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import unmoor
from unmoor.cli import main
from unmoor.errors import MachineError, UsageError
from unmoor.live.built import build_run, take_step
from unmoor.report.preflight import preflight_document, preflight_lines
from unmoor.values.preflight import Preflight
from unmoor.wiring import preflighting

from . import builds

ALL = ("build", "forward", "backward", "optimizer step")

RIGHT = {
    "right": {"value"},
    "loader_of_the_usual_step": set(),
    "words": {"value"},
    "image": {"value"},
    "asks_what_there_is": {"value"},
    "moves_by_cuda": set(),
    "depends_on_values": {"value", "shape"},
    "in_wrappers": {"value"},
    "loads_a_file": {"value"},
    "on_two_devices": {"value"},
    "forces": {"value"},
    "closure_of_lbfgs": {"value"},
    "packs_sequences": {"value"},
    "packs_by_lengths_there": {"value"},
}
"""Runs in which nothing is wrong, and what had to be invented for them."""

BROKEN = {
    "input_left": ("layer.self_attn (MultiheadAttention)", "inputs", "inputs = unmoor.to_device(inputs, like=model)"),
    "labels_left": ("loss (CrossEntropyLoss)", "labels", "labels = unmoor.to_device(labels, like=model)"),
    "weight_left": ("loss (CrossEntropyLoss)", "loss.weight", 'loss.to("cuda:0")'),
    "batch_of_the_usual_step": ("loss (CrossEntropyLoss)", "batch[1]", "batch = unmoor.to_device("),
    "attribute_left": ("Masked", "mask", "self.register_buffer("),
    "made_in_forward": ("Noisy", "noise", "noise = torch.zeros(16, device=x.device)"),
    "tokens_left": ("words (Embedding)", "inputs", "inputs = unmoor.to_device("),
    "image_left": ("0 (Conv2d)", "inputs", "inputs = unmoor.to_device("),
    "head_left": ("head (Linear)", "head.weight", 'model.to("cuda:0")'),
    "state_left": ("made (Adagrad)", "sum of layer.self_attn.in_proj_weight", "made.load_state_dict("),
    "without_a_device": ("0 (Linear)", "batch[0]", "batch = unmoor.to_device("),
}
"""Runs that a real device would refuse: the place, the first tensor that is away, the line that fixes it."""

STOPPED = {
    "operator_without_a_rule": ("operator", "not-faked", "warning"),
    "wrong_shape": ("fails", "step-fails", "error"),
    "numpy_from_the_device": ("fails", "step-fails", "error"),
}
UNBUILT = {
    "raises": "raised ZeroDivisionError: division by zero",
    "returns_no_run": "returned list, not a mapping",
    "needs_more": "needs the arguments width",
    "exits_with_words": r"ended the program instead of building a run: no data found",
}
OTHERS = ("stays_on_the_cpu",)


@pytest.fixture(scope="module")
def flown():
    """Name of a build function -> its preflight, or the error in its place; one process for all."""
    names = [*RIGHT, *BROKEN, *STOPPED, *UNBUILT, *OTHERS]
    found = preflighting.preflights([getattr(builds, name) for name in names], device="cuda:0", timeout=300.0)
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize(("name", "invented"), RIGHT.items())
def test_a_right_run_takes_its_whole_step(flown, name, invented):
    """Forward, backward and optimizer run; what was invented on the way is told by its line."""
    found = flown[name]
    assert found, found.text
    assert found.mismatch is None
    assert found.stop is None
    assert all(found.parts.get(part) for part in ALL)
    assert {one.what for one in found.invented} == invented
    assert all(one.line.file == "tests/preflight/builds.py" for one in found.invented)
    assert not found.findings


@pytest.mark.parametrize(("name", "place", "away", "fix"), [(name, *row) for name, row in BROKEN.items()])
def test_a_broken_run_is_told_as_a_real_device_would_find_it(flown, name, place, away, fix):
    """The place, the tensor that is away and the line that fixes it, with the device that was asked for."""
    found = flown[name]
    assert not found
    text = str(found.mismatch)
    assert text.startswith(place)
    assert found.mismatch.away[0].name == away
    assert found.mismatch.away[0].device == "cpu"
    assert found.mismatch.home == "cuda:0"
    assert fix in found.mismatch.fix.line
    assert found.findings[0].code == "device-mismatch"
    assert "privateuse" not in found.text
    assert "meta" not in found.text


@pytest.mark.parametrize("name", sorted({*BROKEN} - {"without_a_device"}))
def test_a_device_that_is_there_finds_the_same(flown, sim, name):
    """The same run on the simulated device hits the same mismatch: place, tensors, devices, fix."""
    built = build_run(getattr(builds, name), device="sim:0")
    with pytest.raises(unmoor.DeviceMismatch) as caught, unmoor.device_context(built["model"], built["optimizer"]):
        take_step(built, built.batch)
    real, told = caught.value.mismatch, flown[name].mismatch
    assert (real.situation, real.place, real.owner) == (told.situation, told.place, told.owner)
    assert [met.name for met in real.away] == [met.name for met in told.away]
    assert real.home.replace("sim", "cuda") == told.home
    assert [fix.line.replace("sim", "cuda") for fix in real.fixes] == [fix.line for fix in told.fixes]
    assert real.lines == told.lines


@pytest.mark.parametrize(("name", "why", "code", "severity"), [(name, *row) for name, row in STOPPED.items()])
def test_what_ends_a_step_otherwise_is_told_for_what_it_is(flown, name, why, code, severity):
    """An operation without a rule is no fault of the run; a wrong shape, or numpy of a device, is."""
    found = flown[name]
    assert found.stop.why == why
    assert [(one.code, one.severity) for one in found.findings] == [(code, severity)]
    assert bool(found) == (severity == "warning")
    assert found.stop.lines[-1].file == "tests/preflight/builds.py"
    assert "Traceback" in found.stop.trace


@pytest.mark.parametrize(("name", "message"), UNBUILT.items())
def test_a_run_that_cannot_be_built_is_an_error(flown, name, message):
    """What the function raises is told with its traceback; what it returns wrongly as for every verb."""
    error = flown[name]
    assert isinstance(error, UsageError)
    assert message in error.headline
    assert ("builds.py" in str(error)) == (name == "raises")
    assert "unmoor/wiring" not in str(error)


def test_a_run_that_never_goes_to_the_device_is_told(flown):
    """A function that is given a device and does not use it runs on the CPU, which shows nothing."""
    found = flown["stays_on_the_cpu"]
    assert [finding.code for finding in found.findings] == ["run-stays-on-cpu"]
    assert found.text.startswith("tests.preflight.builds:stays_on_the_cpu never goes to cuda:0")


def test_a_function_without_device_has_its_model_put_there(flown):
    """Its batch is where it is: that is the mismatch."""
    assert flown["without_a_device"].placed
    assert "takes no device: its model" in flown["without_a_device"].text


def test_memory_is_a_sum_of_what_the_run_holds(flown):
    """Parameters, gradients and Adam's two moments, in bytes, of a model that was never anywhere."""
    held = flown["right"].memory
    number = sum(parameter.numel() for parameter in builds.Net().parameters())
    assert held["parameters"] == held["gradients"] == 4 * number
    assert held["optimizer state"] == 8 * number


def test_a_preflight_is_plain_json_and_comes_back(flown):
    """`of` reads what `to_json` gave, text and all."""
    for name in ("right", "labels_left", "wrong_shape"):
        found = flown[name]
        again = Preflight.of(json.loads(json.dumps(preflight_document(found))))
        assert again == found
        assert again.text == found.text == str(found)


def test_the_page_fits_its_width(flown):
    """At 80 columns nothing is wider, but a line of code that is to be copied."""
    for found in (one for one in flown.values() if isinstance(one, Preflight)):
        fix = found.mismatch.fix.line if found.mismatch else "nothing"
        assert all(len(line.text) <= 80 or fix in line.text for line in preflight_lines(found))
        assert all(len(line.text) <= 60 or fix in line.text for line in preflight_lines(found, width=60))


def test_the_page_of_a_mismatch(flown):
    """The whole text of one: the answer, both sides, the line, the fix, how far it came, what it would hold."""
    found = replace(flown["labels_left"], seconds=1.0)
    lines = [line.text for line in preflight_lines(found)]
    number = next(
        i for i, line in enumerate(Path(builds.__file__).read_text().splitlines(), 1) if "out = loss(" in line
    )
    assert lines == [
        "tests.preflight.builds:labels_left would fail on cuda:0: loss (CrossEntropyLoss)",
        "  got its input on cuda:0, its target on cpu",
        "  cpu     labels (int64 8)",
        "  cuda:0  its input (float32 8x3) and 16 parameters of the model",
        f"  at      tests/preflight/builds.py:{number}  out = loss(model(inputs), labels)",
        "Move it: labels = unmoor.to_device(labels, like=model)",
        "  ran      build, forward, on tensors without data, in 1.0 s",
        "  not run  backward, optimizer step: the step ended before",
        "  memory   18.2 KiB on cuda:0 without activations: parameters 9.0 KiB, buffers",
        "           136 B, gradients 9.0 KiB",
    ]


def test_a_wrong_call_is_refused_before_a_process_starts():
    """Functions that no other process can import, and times that are none."""
    with pytest.raises(UsageError, match="cannot be imported by a fresh process"):
        unmoor.preflight(lambda device: None)
    with pytest.raises(UsageError, match="does not name a function"):
        unmoor.preflight("nonsense")
    with pytest.raises(UsageError, match="leaves no time"):
        unmoor.preflight(builds.right, timeout=0)
    with pytest.raises(UsageError, match="cannot be taken in pretence"):
        unmoor.preflight(builds.right, "cpu")
    with pytest.raises(UsageError, match="is no device"):
        unmoor.preflight(builds.right, "nonsense:0")


def test_the_process_ends_with_the_one_that_waits_for_it(tmp_path):
    """A preflight whose caller was killed does not go on for ever, nor does what it started."""
    (tmp_path / "stuck.py").write_text(
        "import threading\n\n\ndef build(device):\n    with open('alive', 'wb', buffering=0) as alive:\n"
        "        alive.write(b'built')\n        threading.Event().wait(60)\n"
    )
    (tmp_path / "caller.py").write_text("import unmoor\n\nunmoor.preflight('stuck:build')\n")
    os.mkfifo(tmp_path / "alive")
    caller = subprocess.Popen([sys.executable, "caller.py"], cwd=tmp_path)
    with caller, (tmp_path / "alive").open("rb") as alive:
        assert alive.read(5) == b"built"
        caller.kill()
        assert alive.read() == b""


def test_a_preflight_within_a_preflight_is_refused(monkeypatch):
    """A script that begins one as it is imported is told how not to."""
    monkeypatch.setenv(preflighting.ENVIRONMENT, "1")
    with pytest.raises(UsageError, match="__main__"):
        unmoor.preflight(builds.right)


def test_a_process_that_takes_too_long_is_ended():
    """The time limit is told, and no process is left."""
    with pytest.raises(MachineError, match=r"still there after 0.01 s"):
        unmoor.preflight(builds.right, timeout=0.01)


def test_the_command_ends_with_the_code_of_what_it_found(flown, monkeypatch, capsys):
    """0 for a right run, 1 for a mismatch; --json is one document with a schema."""
    monkeypatch.setattr("unmoor.api_runs.preflight", lambda build, device, timeout: flown[build.partition(":")[2]])
    assert main(["preflight", "builds:right"]) == 0
    assert "no mismatch of devices" in capsys.readouterr().out
    assert main(["preflight", "builds:labels_left"]) == 1
    assert "labels = unmoor.to_device(labels, like=model)" in capsys.readouterr().out
    assert main(["preflight", "builds:operator_without_a_rule"]) == 0
    capsys.readouterr()
    assert main(["preflight", "builds:labels_left", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "unmoor.preflight/1"
    assert document["mismatch"]["met"][0]["device"] in ("cpu", "cuda:0")
