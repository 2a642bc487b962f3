"""Rules that no device here can show: facts as literals, and what the finding says of them."""

from __future__ import annotations

from typing import Any

import pytest

from unmoor.diagnose.run import devices_of, judge_run, looked_at
from unmoor.diagnose.run_losses import TAKES, takes
from unmoor.values.run_facts import (
    BatchFacts,
    GeneratorFact,
    GroupFacts,
    HeldFacts,
    LeafFact,
    LossFacts,
    ModelFacts,
    ModuleFacts,
    OptimizerFacts,
    ParamFacts,
    RunFacts,
    ScalerFacts,
    ScheduleFacts,
    TensorFact,
    WrapperFacts,
)


def tensor(name: str, device: str = "cuda:0", dtype: str = "float32", shape: tuple[int, ...] = (2, 2), **more: Any):
    more = {"key": hash(name), "trains": True, **more}
    return TensorFact(name, device, dtype, shape, **more)


def model(device: str = "cuda:0", **more: Any) -> ModelFacts:
    layer = ModuleFacts("layer", "Linear", (tensor("weight", device), tensor("bias", device, shape=(2,))))
    given = {"modules": (ModuleFacts("", "Net"), layer), "arguments": ("x",), **more}
    return ModelFacts("model", "model", "Net", **given)


def optimizer(device: str = "cuda:0", state: tuple[TensorFact, ...] = (), family: str = "Adam", **flags: Any):
    params = tuple(
        ParamFacts(tensor(n, device, shape=s), state, frozenset(t.name for t in state))
        for n, s in (("weight", (2, 2)), ("bias", (2,)))
    )
    group = GroupFacts(flags, (), params)
    return OptimizerFacts("optimizer", "optimizer", "Adam", family, (group,), "Adam({})", frozenset({1}))


def leaf(key: Any, device: str = "cuda:0", dtype: str = "float32", shape=(4, 2), kind: str = "map", **more: Any):
    return LeafFact(tensor(f"batch[{key!r}]", device, dtype, shape, trains=False), ((kind, key),), **more)


def state(name: str, device: str, shape: tuple[int, ...] = (), dtype: str = "float32") -> TensorFact:
    return tensor(name, device, dtype, shape, kind="state", trains=False)


def run(**parts: Any) -> RunFacts:
    given = {"models": (model(),), "capturable": frozenset({"cuda"}), "fused": frozenset({"cpu", "cuda"}), **parts}
    return RunFacts(**given)


def batch(*leaves: LeafFact, **more: Any) -> BatchFacts:
    return BatchFacts("batch", leaves, **more)


DDP = WrapperFacts("DistributedDataParallel", "cuda:1", (1,), "cuda:1")
RULES: list[tuple[str, RunFacts, list[tuple[str, str]], str]] = [
    ("nothing wrong", run(optimizers=(optimizer(),)), [], ""),
    (
        "a rank that works on the first device",
        run(others={"cuda:0": 0}),
        [("warning", "device-of-another-rank")],
        "the device of local rank 0",
    ),
    ("another rank's device and its own", run(others={"cuda:1": 1}), [], ""),
    (
        "device_ids of another device",
        run(models=(model(wrappers=(DDP,), compute="cuda:1", brings=True),)),
        [("error", "wrapper-device")],
        "brings inputs to cuda:1 (device_ids=[1]), and the parameters are on cuda:0",
    ),
    (
        "inputs on the CPU under a wrapper that brings them",
        run(models=(model(compute="cuda:0", brings=True),), batch=batch(leaf("x", "cpu"))),
        [],
        "",
    ),
    (
        "labels on the CPU under a wrapper that brings inputs",
        run(
            models=(model(compute="cuda:0", brings=True),),
            batch=batch(leaf("x", "cpu"), leaf("labels", "cpu", target=True)),
        ),
        [("error", "labels-elsewhere")],
        "on cpu, the model is on cuda:0",
    ),
    (
        "one leaf of several that nobody may read",
        run(batch=batch(leaf("image"), leaf("index", "cpu", "int64", sure=False))),
        [("warning", "batch-elsewhere")],
        "it fails if the model reads it",
    ),
    ("lengths on the CPU", run(batch=batch(leaf("x"), leaf("src_lengths", "cpu", "int64", (4,)))), [], ""),
    ("a length that is no integer", run(batch=batch(leaf("length", "cpu"))), [("error", "batch-elsewhere")], ""),
    ("an argument that forward moves", run(models=(model(moved=frozenset("x")),), batch=batch(
        leaf("x", "cpu", argument="x"))), [], ""),
    (
        "a batch on the device and a model that was forgotten",
        run(models=(model("cpu"),), batch=batch(leaf("x"))),
        [("error", "batch-elsewhere")],
        'model.to("cuda:0")',
    ),
    (
        "an array of numpy",
        run(batch=batch(leaf("x"), arrays=("batch['y']",))),
        [("warning", "numpy-in-batch")],
        "torch.from_numpy(batch['y'])",
    ),
    ("half inputs under autocast", run(batch=batch(leaf("x", dtype="float16"), autocast=True)), [], ""),
    (
        "double inputs under autocast",
        run(batch=batch(leaf("x", dtype="float64"), autocast=True)),
        [("error", "batch-dtype")],
        "batch['x'] = batch['x'].float()",
    ),
    (
        "half inputs of a wrapper that casts",
        run(models=(model(casts=True),), batch=batch(leaf("x", dtype="float16"))),
        [],
        "",
    ),
    (
        "half weights of a loss",
        run(losses=(LossFacts("loss", "loss", "NLLLoss", (tensor("weight", dtype="float16", key=7),)),)),
        [("warning", "loss-dtype")],
        "float16, the model's output is float32",
    ),
    (
        "a loader that draws on the device",
        run(generators=(GeneratorFact("loader.generator", "cuda:0", "cpu", "loader.generator"),)),
        [("error", "generator-device")],
        'loader.generator = torch.Generator("cpu")',
    ),
    (
        "a generator of a module on the CPU",
        run(generators=(GeneratorFact("model.noise", "cpu", "cuda", "model.noise"),)),
        [("warning", "generator-device")],
        "its module is on cuda",
    ),
    ("a generator of the caller's own", run(generators=(GeneratorFact("rng[a]", "cuda:1"),)), [], ""),
    (
        "a scaler of a device that is not the model's",
        run(scalers=(ScalerFacts("scaler", "scaler", True, "cuda", "cuda:0"),), models=(model("cpu"),)),
        [("info", "scaler-device")],
        'torch.amp.GradScaler("cpu")',
    ),
    (
        "a scaler without its device",
        run(scalers=(ScalerFacts("scaler", "scaler", False, "cuda"),)),
        [("info", "scaler-disabled")],
        "losses are not scaled",
    ),
    (
        "averages on the CPU",
        run(averages=(HeldFacts("ema", "ema", "AveragedModel", ("cpu",)),)),
        [("info", "averages-elsewhere")],
        "the averages are on cpu",
    ),
    ("metrics of nobody's class", run(metrics=(HeldFacts("metrics", "metrics", "Tracker", ("cpu",)),)), [], ""),
    (
        "fused where there is no kernel",
        run(models=(model("npu:0"),), optimizers=(optimizer("npu:0", fused=True),)),
        [("error", "fused-device")],
        'group["fused"] = False',
    ),
    (
        "fused and foreach",
        run(optimizers=(optimizer(fused=True, foreach=True),)),
        [("info", "fused-and-foreach")],
        "fused wins",
    ),
    (
        "state of a class that nobody knows, on the CPU in another shape",
        run(optimizers=(optimizer(state=(state("factors", "cpu", (5,)),), family=""),)),
        [("warning", "state-elsewhere")],
        "its factors is on cpu",
    ),
    (
        "state of a class that nobody knows, on the CPU in the shape of its parameter",
        run(models=(model(),), optimizers=(
            OptimizerFacts("optimizer", "optimizer", "Lion", "", (GroupFacts({}, (), (
                ParamFacts(tensor("weight"), (state("exp_avg", "cpu", (2, 2)),), frozenset({"exp_avg"})),
                ParamFacts(tensor("bias", shape=(2,))))),)),)),
        [("error", "state-elsewhere")],
        "optimizer.load_state_dict(optimizer.state_dict())",
    ),
    (
        "a counter of a class that nobody knows, on another device",
        run(optimizers=(optimizer(state=(state("k", "cuda:1"),), family=""),)),
        [("warning", "counter-elsewhere")],
        'state["k"] = state["k"].cpu()',
    ),
    (
        "a counter of a class that nobody knows, on the CPU",
        run(optimizers=(optimizer(state=(state("k", "cpu"),), family=""),)),
        [],
        "",
    ),
    (
        "finer momentum",
        run(
            models=(ModelFacts("model", "model", "Net", (ModuleFacts("", "Net", (tensor("w", dtype="bfloat16"),)),)),),
            optimizers=(OptimizerFacts("optimizer", "optimizer", "SGD", "SGD", (GroupFacts({}, (), (
                ParamFacts(tensor("w", dtype="bfloat16"), (state("momentum_buffer", "cuda:0", (2, 2)),),
                           frozenset({"momentum_buffer"})),)),)),),
        ),
        [("info", "state-dtype")],
        "kept finer than the parameter",
    ),
    (
        "parameters of no module",
        run(optimizers=(OptimizerFacts("optimizer", "optimizer", "SGD", "SGD", (GroupFacts({}, (), (
            ParamFacts(tensor("weight")), ParamFacts(tensor("bias", shape=(2,))),
            ParamFacts(tensor("prompt", shape=(9,), key=99)))),)),)),
        [("info", "foreign-parameters")],
        "in no module that was passed",
    ),
    (
        "an optimizer of another model in another size",
        run(optimizers=(OptimizerFacts("optimizer", "optimizer", "SGD", "SGD", (GroupFacts({}, (), (
            ParamFacts(tensor("w", shape=(9, 9), key=99)),)),), "SGD({})"),)),
        [("error", "optimizer-holds-other-parameters"), ("warning", "parameters-not-optimized")],
        "none of its 1 parameter is in the model",
    ),
    (
        "an engine that steps copies",
        run(optimizers=(OptimizerFacts("optimizer", "optimizer", "Zero", "", (GroupFacts({}, (), (
            ParamFacts(tensor("flat", shape=(6,), key=99)),)),), copies=True),)),
        [("info", "master-weights")],
        "of which nothing can be told",
    ),
    (
        "frozen parameters",
        run(optimizers=(OptimizerFacts("optimizer", "optimizer", "SGD", "SGD", (GroupFacts({}, (), (
            ParamFacts(tensor("weight", trains=False)), ParamFacts(tensor("bias", shape=(2,))))),)),)),
        [("info", "frozen-in-optimizer")],
        "a step passes over it",
    ),
    (
        "a scheduler where an optimizer cannot be seen",
        run(optimizers=(optimizer(),), schedules=(ScheduleFacts("s", "s", "StepLR", 5),), unseen=(("o", "why"),)),
        [],
        "",
    ),
    (
        "two schedules of one optimizer",
        run(optimizers=(optimizer(),), schedules=tuple(
            ScheduleFacts(f"s[{i}]", "s", "StepLR", 1, last=(float(i),), rates=(0.0,)) for i in range(2))),
        [],
        "",
    ),
    ("lazy parameters", run(models=(ModelFacts("model", "model", "Net", (ModuleFacts("", "Net", (
        tensor("w", "cuda:0", "float32", (), lazy=True),)),)),)), [("info", "lazy-parameters")], "before the first"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "facts", "expected", "words"), RULES, ids=[rule[0] for rule in RULES])
def test_facts_give_these_findings(name, facts, expected, words) -> None:
    """Severity and code of every finding, and words of what it says or advises."""
    found = judge_run(facts)
    assert [(f.severity, f.code) for f in found] == expected
    assert words in "\n".join(map(str, found))


def test_findings_come_worst_first_and_each_once() -> None:
    """Errors, then warnings, then notes; two parameters with one fault are one finding."""
    facts = run(
        others={"cuda:0": 0},
        scalers=(ScalerFacts("scaler", "scaler", False, "cuda"),),
        optimizers=(
            optimizer(
                state=(state("step", "cpu"), state("exp_avg", "cpu", (2, 2)), state("exp_avg_sq", "cuda:0", (2, 2)))
            ),
        ),
    )
    found = judge_run(facts)
    assert [f.severity for f in found] == sorted((f.severity for f in found), key=["error", "warning", "info"].index)
    elsewhere = [f for f in found if f.code == "state-elsewhere"]
    assert [f.place for f in elsewhere] == ["optimizer group 0, parameter 0 (layer.weight) and 1 other"]


def test_tied_parameters_are_counted_once() -> None:
    """What was looked at counts tensors, not names."""
    tied = tensor("weight", key=5)
    one = ModelFacts(
        "model", "model", "Net", (ModuleFacts("a", "Linear", (tied,)), ModuleFacts("b", "Linear", (tied,)))
    )
    facts = run(models=(one,), batch=batch(leaf("x"), leaf("y", "cpu")))
    assert looked_at(facts) == {"parameters": 1, "buffers": 0, "state": 0, "batch": 2, "others": 0}
    assert devices_of(facts) == {"cuda:0": 2, "cpu": 1}


TARGETS = [
    ("CrossEntropyLoss", "int32", "float32", True, False),
    ("CrossEntropyLoss", "float32", "float32", False, True),
    ("cross_entropy", "float64", "float32", True, False),
    ("NLLLoss", "uint8", "float32", True, True),
    ("BCELoss", "float64", "float32", False, False),
    ("BCELoss", "float32", "", False, True),
    ("KLDivLoss", "int64", "float32", False, False),
    ("MSELoss", "int64", "float32", False, True),
]


@pytest.mark.parametrize(("loss", "dtype", "output", "flat", "fine"), TARGETS)
def test_targets_that_a_loss_takes(loss, dtype, output, flat, fine) -> None:
    """The table of losses says what is taken; a loss that it lacks takes anything."""
    assert (takes(loss, dtype, output, flat=flat) == "") is fine


@pytest.mark.filterwarnings("ignore:reduction:UserWarning")
def test_the_table_of_losses_says_what_torch_does() -> None:
    """Every loss of the table really takes the targets that it is said to take, and refuses those it is said not to."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    def tried(loss: str, target: torch.Tensor) -> bool:
        output = torch.rand(4, 3, requires_grad=True)
        call = getattr(nn, loss)() if hasattr(nn, loss) else getattr(F, loss)
        first = output.sigmoid() if TAKES[loss] != "classes" else output
        try:
            out = call(first, target, torch.ones(4, 3)) if "aussian" in loss else call(first, target)
            out.backward()
        except RuntimeError:
            return False
        return True

    kinds = ("int64", "int32", "uint8", "bool", "float64", "float32", "float16")
    for loss, rule in TAKES.items():
        flat = rule in ("classes", "indices") or loss in ("MultiMarginLoss", "multi_margin_loss")
        for dtype in kinds:
            values = torch.tensor([0, 1, 1, 0]) if flat else torch.ones(4, 3)
            if loss in ("MultiLabelMarginLoss", "multilabel_margin_loss"):
                values = torch.zeros(4, 3)
            fine = takes(loss, dtype, "float32", flat=flat) == ""
            assert tried(loss, values.to(getattr(torch, dtype))) is fine, (loss, dtype)
