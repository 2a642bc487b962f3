"""Every broken step is told by the tensor that is away, the line that fails, and the line that fixes it."""

from __future__ import annotations

import inspect

import pytest
import torch

import unmoor
from unmoor.live import context_frames
from unmoor.values.mismatch import KINDS, SITUATIONS

from . import elsewhere, fixes, modules, optimizers, steps
from .runs import CASES, MARK, Run

__all__ = ["elsewhere", "fixes", "modules", "optimizers", "steps"]


def _told(case):
    torch.manual_seed(0)
    run = Run()
    with pytest.raises((RuntimeError, AssertionError)) as failed:
        case.function(run)
    error = failed.value
    # The context is given what the run holds when it fails: some steps build their model themselves.
    with pytest.raises(unmoor.DeviceMismatch) as caught:
        unmoor.device_context(run.model, run.optimizer).__exit__(type(error), error, _of_case(error, case))
    return caught.value


def _of_case(error, case):
    """The traceback from the frame of the case on."""
    traceback = error.__traceback__
    while traceback.tb_frame.f_code is not case.function.__code__:
        traceback = traceback.tb_next
    return traceback


def _marked(case):
    source = inspect.getsource(getattr(case.function, "source", case.function)).splitlines()
    return [line.strip() for line in source if MARK in line]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_broken_step_is_told_by_names(sim, case):
    """The headline names who got what from where; the rest the tensors away from home, the line, the fix."""
    error = _told(case)
    mismatch = error.mismatch
    assert error.headline.startswith(case.head)
    away = {device.replace(":", ""): [] for device in mismatch.devices}
    for met in mismatch.met if mismatch.situation == "capturable" else mismatch.away:
        away[met.device.replace(":", "")].append(met.name)
    for device, names in case.away.items():
        assert away[device][: len(names)] == [*names]
    assert case.fix in mismatch.fix.line
    assert case.kind in ("", mismatch.fix.kind)
    assert not _marked(case) or any(line.text in _marked(case) for line in mismatch.lines)
    assert mismatch.situation in SITUATIONS
    assert {met.kind for met in mismatch.met} <= set(KINDS)
    assert all(len(line) <= 78 for line in error.details)


@pytest.mark.parametrize("name", ["labels_left_behind", "tensor_made_in_forward", "added_in_place", "parts_of_a_list"])
def test_without_positions_in_byte_code_the_line_is_read(sim, monkeypatch, name):
    """Python 3.10 keeps lines alone: the statement at the line stands for the expression."""
    kept = context_frames.steps_of

    def lines_alone(traceback):
        return [context_frames.Step(step.frame, step.line, -1) for step in kept(traceback)]

    monkeypatch.setattr("unmoor.live.context.steps_of", lines_alone)
    case = CASES[name]
    mismatch = _told(case).mismatch
    assert [met.name for met in mismatch.away] == [*case.away["cpu"]]


def test_the_message_is_as_the_manual_shows_it(sim):
    """The whole text of one mismatch, at 80 columns."""
    text = str(_told(CASES["labels_left_behind"]))
    source, first = inspect.getsourcelines(steps.labels_left_behind)
    line = first + next(i for i, text in enumerate(source) if MARK in text)
    assert text == (
        "loss (CrossEntropyLoss) got its input on sim:1, its target on cpu\n"
        "  cpu    batch['labels'] (int64 5)\n"
        "  sim:1  out (float32 5x3) and 8 parameters of the model\n"
        f'  at     tests/context/steps.py:{line}  loss(out, batch["labels"])  # fails\n'
        "Move the batch: batch = unmoor.to_device(batch, like=model)"
    )
    assert max(map(len, text.splitlines())) <= 80


def test_a_mismatch_is_plain_json(sim):
    """`to_json` holds what the text is made of."""
    import json

    document = json.loads(json.dumps(_told(CASES["labels_left_behind"]).mismatch.to_json()))
    assert document["place"] == "loss"
    assert document["met"][1]["name"] == "batch['labels']"
    assert document["fixes"][0]["line"].startswith("batch =")
