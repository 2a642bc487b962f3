"""The call itself: what it takes, what it refuses, what it prints, what it gives to programs."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import unmoor
from unmoor.errors import UsageError
from unmoor.report.diagnosis import diagnosis_lines
from unmoor.report.layout import Page

from .runs import HOME, Net, batch, run

pytestmark = pytest.mark.usefixtures("sim")

HEALTHY = """\
nothing stands in the way of a step: 6 parameters, 3 buffers, 18 tensors of
  optimizer state, a batch of 2 tensors on sim:0"""

BROKEN = """\
this step will fail: 3 errors, 1 warning
error labels-elsewhere: batch['labels']: int64[4] on cpu, the model is on sim:0
  -> batch = unmoor.to_device(batch, like=model)
error loss-elsewhere: loss.weight: on cpu, the model's output is on sim:0
  -> loss.to("sim:0")
error counter-elsewhere: optimizer group 0, parameter 0 (body.0.weight) and 5
  others: its step is on sim:1, the parameter is on sim:0: steps of many tensors
  at once take it on the CPU or beside the parameter
  -> for state in optimizer.state.values(): state["step"] = state["step"].cpu()
warning metrics-elsewhere: metrics[acc]: MulticlassAccuracy is on cpu, the
  model's outputs are on sim:0: update() refuses them
  -> metrics['acc'] = metrics['acc'].to("sim:0")
looked at 6 parameters, 3 buffers, 18 tensors of optimizer state, a batch of 2
  tensors on sim:0, cpu
each code is explained in docs/findings.md"""


def _broken():
    torchmetrics = pytest.importorskip("torchmetrics")
    made = run(steps=1)
    for state in made.optimizer.state.values():
        state["step"] = state["step"].to("sim:1")
    made.batch = {"image": made.batch[0], "labels": made.batch[1].cpu()}
    made.loss = nn.CrossEntropyLoss(weight=torch.ones(3))
    made.metrics = {"acc": torchmetrics.classification.MulticlassAccuracy(3)}
    return made


def test_the_first_line_answers_and_the_rest_says_what_to_do() -> None:
    """The text of a healthy and of a broken run at 80 columns."""
    assert str(run(steps=1).diagnose()) == HEALTHY
    assert str(_broken().diagnose()) == BROKEN
    assert max(map(len, BROKEN.splitlines())) <= 80


def test_a_diagnosis_fits_other_widths_and_has_tones() -> None:
    """At 40 columns the words wrap; lines of code stay whole, to be copied; tones repeat the words."""
    lines = diagnosis_lines(_broken().diagnose(), Page(40))
    assert all(len(line.text) <= 40 for line in lines if not line.text.startswith("  -> "))
    assert lines[0].tone == "error"
    assert {line.tone for line in lines} == {"error", "warning", "", "hint"}


def test_programs_get_strict_json_with_the_page_of_each_finding() -> None:
    """Counts, devices and findings as plain values; each finding has its page."""
    told = json.loads(json.dumps(_broken().diagnose().to_json(), allow_nan=False))
    assert told["ok"] is False
    assert told["looked"] == {"parameters": 6, "buffers": 3, "state": 18, "batch": 2, "others": 2}
    assert told["devices"] == {"sim:0": 10, "cpu": 1}
    assert told["findings"][0] == {
        "code": "labels-elsewhere",
        "severity": "error",
        "place": "batch['labels']",
        "message": "int64[4] on cpu, the model is on sim:0",
        "remedy": "batch = unmoor.to_device(batch, like=model)",
        "page": "docs/findings.md#labels-elsewhere",
    }


def test_a_diagnosis_is_a_sequence_of_findings_and_no_truth_value() -> None:
    """It iterates, it counts, it sorts by severity; `if diagnosis:` would be read both ways and is refused."""
    found = _broken().diagnose()
    assert [f.severity for f in found] == ["error", "error", "error", "warning"]
    assert (len(found), len(found.errors), len(found.warnings)) == (4, 3, 1)
    with pytest.raises(TypeError, match=r"ask for \.ok"):
        bool(found)


def test_a_model_alone_is_enough() -> None:
    """Everything but the model may be left out."""
    assert unmoor.diagnose(Net()).ok
    assert unmoor.diagnose(nn.ReLU()).devices == {}
    assert str(unmoor.diagnose(nn.ReLU())) == "nothing stands in the way of a step: 0 parameters on no device"


def test_what_cannot_be_looked_into_is_said() -> None:
    """An optimizer that is none of torch's, and a scaler that is none, are named and held against nobody."""

    class Engine:
        def step(self):
            pass

    found = unmoor.diagnose(Net(), Engine(), scaler=Engine())
    assert found.ok
    assert [label for label, _ in found.unseen] == ["optimizer", "scaler"]
    assert "not looked at: optimizer: Engine is no optimizer of torch" in " ".join(str(found).split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (lambda: (torch.optim.SGD(Net().parameters(), lr=1), Net()), "takes a module"),
        (lambda: (Net(), Net()), "takes an optimizer"),
        (lambda: ("model",), "takes a module"),
        (lambda: (Net().state_dict(),), "takes a module"),
        (lambda: ({"gen": Net(), "disc": 3},), "model[disc]= was given a builtins.int"),
        (lambda: (None,), "model= holds no module"),
        (lambda: ({},), "model= holds no module"),
        (lambda: (Net,), "model= was given the class Net itself"),
        (lambda: (Net(), torch.optim.Adam), "optimizer= was given the class Adam itself"),
        (lambda: (Net(), "adam"), "optimizer= was given 'adam', and takes an optimizer"),
        (lambda: (Net(), None, DataLoader([1])), "batch= was given a DataLoader, which gives batches and is none"),
        (lambda: (Net(), None, iter([1])), "batch= was given a list_iterator, which gives batches and is none"),
    ],
)
def test_an_object_in_another_role_is_refused(arguments, words) -> None:
    """Swapped arguments and values that are no module are errors that name both."""
    with pytest.raises(UsageError) as caught:
        unmoor.diagnose(*arguments())
    assert words in caught.value.headline
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("role", "value", "words"),
    [
        ("loss", nn.MSELoss, "loss= was given the class MSELoss itself"),
        ("loss", torch.tensor(0.5), "loss= was given a tensor (), and takes the module or function that computes it"),
        ("loss", {"a": "mse"}, "loss[a]= was given 'mse'"),
        ("scheduler", "cosine", "scheduler= was given 'cosine', and takes a scheduler"),
        ("scaler", 3, "scaler= was given 3, and takes a gradient scaler"),
        ("rng", torch.Generator(), "rng= was given a Generator, and takes generators by name"),
    ],
)
def test_what_can_be_no_object_of_a_role_is_refused(role, value, words) -> None:
    """Classes, words and results in the place of live objects are slips, and never all clear."""
    with pytest.raises(UsageError) as caught:
        unmoor.diagnose(Net(), **{role: value})
    assert words in caught.value.headline
    assert caught.value.remedy


def test_values_beside_metrics_averages_and_loaders_are_fine() -> None:
    """Numbers in dicts of what a step does not compute with are no slip."""
    assert unmoor.diagnose(Net(), metrics={"best": 0.5}, ema={"decay": 0.9}, loader=[1, 2]).ok


def test_labels_of_several_objects_are_the_python_that_reaches_them() -> None:
    """In a dict or a list of objects the line of code has the key."""
    made = run(steps=1)
    for state in made.optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].cpu()
    found = unmoor.diagnose({"net": made.model}, {"main": made.optimizer})
    assert found.errors[0].place == "optimizer[main] group 0, parameter 0 (body.0.weight) and 5 others"
    assert found.errors[0].remedy == "optimizer['main'].load_state_dict(optimizer['main'].state_dict())"
    made.model.head.cpu()
    assert unmoor.diagnose([made.model]).errors[0].remedy == 'model[0].to("sim:0")'


def test_lines_reach_through_wrappers_and_lists() -> None:
    """An attribute deep in a wrapped model is reached by the Python that a user would write."""

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3)])
            self.named = nn.ModuleDict({"a-b": Scaled()})

        def forward(self, x):
            return self.named["a-b"](self.layers[0](x))

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.ones(3)

        def forward(self, x):
            return x * self.scale

    model = torch.compile(Holder().to(HOME), backend="eager")
    (finding,) = unmoor.diagnose(model).errors
    assert finding.place == "model.named.a-b.scale"
    assert finding.remedy.startswith("model._orig_mod.named.get_submodule('a-b').scale = ")
    exec(finding.remedy, {"model": model})
    assert unmoor.diagnose(model, batch=batch()).ok


def test_nothing_is_read_from_a_device_unless_values_are_asked_for(monkeypatch) -> None:
    """No tensor of the run is read or copied to the host; with values=True one question goes to each device."""
    made = run(steps=2)
    asked = []

    def told(name, own, *given):
        asked.append(name)
        return own(*given)

    for name in ("item", "tolist", "cpu", "__bool__", "__float__", "numpy"):
        own = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, *a, _own=own, _n=name, **k: told(_n, _own, self))
    made.diagnose()
    assert asked == []
    made.values = True
    made.diagnose()
    assert asked == ["tolist"]
