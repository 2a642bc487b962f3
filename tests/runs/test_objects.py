"""What else a run holds: metrics, averages, trackers, gradients between two steps, and stochastic weight averaging."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

import unmoor
from tests.cases.files import tiny, train

from .training import equal, network, on_cpu, start, state


def _torchmetrics() -> Any:
    return pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")


CLASSES = {"task": "multiclass", "num_classes": 3}

METRICS = {
    "sum state": lambda tm: tm.Accuracy(**CLASSES),
    "matrix state": lambda tm: tm.ConfusionMatrix(**CLASSES),
    "list state": lambda tm: tm.AUROC(**CLASSES),
    "binned": lambda tm: tm.AUROC(**CLASSES, thresholds=5),
    "mean": lambda tm: tm.MeanMetric(),
    "list of values": lambda tm: tm.CatMetric(),
    "running": lambda tm: tm.wrappers.Running(tm.MeanMetric(), 3),
    "extremes": lambda tm: tm.wrappers.MinMaxMetric(tm.Accuracy(**CLASSES)),
    "composition": lambda tm: tm.MeanMetric() + tm.SumMetric(),
    "collection": lambda tm: tm.MetricCollection([tm.Accuracy(**CLASSES), tm.AUROC(**CLASSES)]),
    "compute groups": lambda tm: tm.MetricCollection(
        {"precision": tm.Precision(**CLASSES, average="macro"), "recall": tm.Recall(**CLASSES, average="macro")}
    ),
}
VALUES = ("mean", "list of values", "running", "composition")


def _update(kind: str, metric: Any, device: str, steps: range) -> None:
    for step in steps:
        source = torch.Generator().manual_seed(step)
        scores = torch.rand(8, 3, generator=source).softmax(-1).to(device)
        target = torch.randint(0, 3, (8,), generator=source).to(device)
        metric.update(scores[:, 0]) if kind in VALUES else metric.update(scores, target)
        if kind == "extremes":
            metric.compute()


def _computed(metric: Any) -> Any:
    found = metric.compute()
    return {k: v.cpu().tolist() for k, v in found.items()} if isinstance(found, dict) else found.cpu().tolist()


@pytest.mark.parametrize(("saved", "resumed"), [("cpu", "cpu"), ("sim:0", "cpu"), ("cpu", "sim:1")])
@pytest.mark.parametrize("kind", METRICS)
def test_metrics_go_on(sim, tmp_path, kind, saved, resumed):
    """A torchmetrics module, whose own state dict is empty by default, computes the same now and after more updates."""
    tm = _torchmetrics()
    metric, other = METRICS[kind](tm).to(saved), METRICS[kind](tm).to(resumed)
    _update(kind, metric, saved, range(3))
    _update(kind, other, resumed, range(90, 92))
    other.compute()
    unmoor.save(tmp_path / "a.pt", metrics=metric)
    unmoor.restore(tmp_path / "a.pt", metrics=other)
    assert _computed(other) == _computed(metric)
    _update(kind, metric, saved, range(3, 5))
    _update(kind, other, resumed, range(3, 5))
    assert _computed(other) == _computed(metric)


def test_metrics_of_a_device_are_loaded_to_the_cpu(sim, tmp_path):
    """The role table: metrics live on the CPU, wherever the model goes; torchmetrics itself takes what was written."""
    tm = _torchmetrics()
    metric = tm.Accuracy(**CLASSES).to("sim:0")
    _update("", metric, "sim:0", range(3))
    unmoor.save(tmp_path / "a.pt", model=network().to("sim:0"), metrics=metric)
    tree = unmoor.load(tmp_path / "a.pt", model_device="sim:1")
    assert {v.device.type for v in tree["metrics"].values() if isinstance(v, torch.Tensor)} == {"cpu"}
    other = tm.Accuracy(**CLASSES)
    other.load_state_dict(torch.load(tmp_path / "a.pt", map_location="cpu")["metrics"], strict=False)
    assert [getattr(other, key).tolist() for key in other._defaults] == [
        getattr(metric, key).cpu().tolist() for key in metric._defaults
    ]


def test_persistent_states_that_others_saved_are_taken(tmp_path):
    """A state dict written by torch.save with persistent states restores, and the metric counts as updated."""
    tm = _torchmetrics()
    metric, other = tm.Accuracy(**CLASSES), tm.Accuracy(**CLASSES)
    metric.persistent(True)
    _update("", metric, "cpu", range(3))
    torch.save({"metrics": metric.state_dict()}, tmp_path / "a.pt")
    unmoor.restore(tmp_path / "a.pt", metrics=other)
    assert other.update_called
    assert _computed(other) == _computed(metric)


def test_metrics_built_in_another_way_are_refused_whole(tmp_path):
    """A collection with another member is an error that names what is missing; the metric keeps what it had."""
    tm = _torchmetrics()
    unmoor.save(tmp_path / "a.pt", metrics=tm.MetricCollection([tm.Accuracy(**CLASSES)]))
    other = tm.MetricCollection([tm.Accuracy(**CLASSES), tm.AUROC(**CLASSES)])
    _update("", other, "cpu", range(2))
    before = _computed(other)
    with pytest.raises(unmoor.MismatchError, match=r"missing: MulticlassAUROC\.preds") as caught:
        unmoor.restore(tmp_path / "a.pt", metrics=other)
    assert "nothing was changed" in str(caught.value)
    assert _computed(other) == before


class Shadow:
    """An average of parameters as users write it: a list of tensors beside the model, replaced when it is loaded."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.shadow = [p.detach().clone() for p in model.parameters()]

    def update(self, model: nn.Module) -> None:
        self.updates += 1
        for mean, p in zip(self.shadow, model.parameters(), strict=True):
            mean.mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        return {"decay": self.decay, "updates": self.updates, "shadow_params": self.shadow, "collected": None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.decay, self.updates, self.shadow = state["decay"], state["updates"], state["shadow_params"]


@pytest.mark.parametrize("keyword", ["ema", "average"])
@pytest.mark.parametrize(("saved", "built"), [("cpu", "sim:1"), ("sim:0", "cpu")])
def test_an_average_beside_the_model_goes_where_the_live_one_is(sim, tmp_path, saved, built, keyword):
    """State that an object replaces on load arrives where its present state is, so that the next update works."""
    run, other = start(device=saved).train(2), start(device=built, seed=4)
    average, again = Shadow(run.model, 0.9), Shadow(other.model, 0.5)
    average.update(run.model)
    unmoor.save(tmp_path / "a.pt", **run.roles, **{keyword: average})
    assert keyword in unmoor.restore(tmp_path / "a.pt", **other.roles, **{keyword: again}).restored
    other.step = run.step
    for each, mean in ((run, average), (other, again)):
        each.train(2)
        mean.update(each.model)
    assert {str(t.device) for t in again.shadow} == {built}
    assert equal(on_cpu(again.state_dict()), on_cpu(average.state_dict()))


def test_an_average_follows_the_model_that_restore_moves(sim, tmp_path):
    """The role table: with model_device an EMA lives beside the model, whatever class it is of."""
    run, other = start().train(2), start(seed=4)
    unmoor.save(tmp_path / "a.pt", **run.roles, ema=Shadow(run.model, 0.9))
    again = Shadow(other.model, 0.9)
    unmoor.restore(tmp_path / "a.pt", **other.roles, ema=again, model_device="sim:1")
    assert {str(t.device) for t in again.shadow} == {"sim:1"}
    again.update(other.model)


@dataclasses.dataclass
class Best:
    loss: float = float("inf")
    epoch: int = -1


class Tracker:
    """Early stopping with about every plain value that a state can hold."""

    def __init__(self) -> None:
        self.best, self.patience = Best(), 3
        self.seen: set[Any] = set()
        self.recent: collections.deque[float] = collections.deque(maxlen=3)
        self.losses = np.zeros(0, dtype=np.float32)
        self.nested: dict[Any, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        plain = {"best": dataclasses.asdict(self.best), "recent": list(self.recent)}
        return {**vars(self), **plain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.best, self.recent = Best(**state["best"]), collections.deque(state["recent"], 3)


def test_trackers_come_back_as_they_were(sim, tmp_path):
    """Plain values of every kind, numpy arrays, tensors and sets within an object's state keep type and value."""
    tracker, other = Tracker(), Tracker()
    tracker.best, tracker.patience = Best(0.25, 7), 1
    tracker.seen = {1, "a", (2, "b")}
    tracker.recent.extend([4.0, 3.0, 2.0, 1.0])
    tracker.losses = np.array([[1.5, 2.5]], dtype=np.float32)
    tracker.nested = {
        "path": [(1, 2.5, "x"), None, True, b"\x00", 1 + 2j, float("inf")],
        3: {"matrix": torch.eye(2, dtype=torch.float64), "count": torch.tensor(5)},
        ("a", 1): np.float64(0.5).item(),
    }
    unmoor.save(tmp_path / "a.pt", metrics=tracker)
    unmoor.restore(tmp_path / "a.pt", metrics=other)
    assert (other.best, other.patience, other.seen, other.recent) == (
        tracker.best, tracker.patience, tracker.seen, tracker.recent,
    )  # fmt: skip
    assert (other.losses.dtype, other.losses.tolist()) == (tracker.losses.dtype, tracker.losses.tolist())
    assert equal(other.nested, tracker.nested)


class Leaky:
    """An object whose state dict holds an instance."""

    def state_dict(self) -> dict[str, Any]:
        return {"best": Best(), "window": collections.deque([1])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def test_instances_within_a_state_are_refused_with_the_way_to_save_them(tmp_path):
    """A dataclass or a deque would need code to come back: all of them are named, and nothing is written."""
    with pytest.raises(unmoor.UsageError, match=r"(?s)2 values.*metrics\.best.*metrics\.window.*dataclasses\.asdict"):
        unmoor.save(tmp_path / "a.pt", metrics=Leaky())
    assert not (tmp_path / "a.pt").exists()


def _accumulate(run: Any, micro: range, every: int = 4) -> int:
    """Micro batches, an optimizer step after every fourth; the number within the current four."""
    device = next(run.model.parameters()).device
    for number in micro:
        data = torch.randn(16, 6, generator=torch.Generator().manual_seed(number)).to(device)
        (run.model(data).pow(2).mean() / every).backward()
        if (number + 1) % every == 0:
            run.optimizer.step()
            run.scheduler.step()
            run.optimizer.zero_grad()
    return micro.stop % every


@pytest.mark.parametrize(
    ("saved", "resumed", "moved"), [("cpu", "cpu", None), ("sim:0", "cpu", None), ("cpu", "cpu", "sim:1")]
)
def test_an_accumulation_goes_on_where_it_was(sim, tmp_path, saved, resumed, moved):
    """Saved in the middle of an accumulation with its gradients and counter, the run goes on bit for bit."""
    run = start(device=saved)
    counter = _accumulate(run, range(6))
    unmoor.save(tmp_path / "a.pt", **run.roles, gradients=unmoor.gradients(run.model), micro=6, counter=counter)
    other = start(device=resumed, seed=5)
    _accumulate(other, range(50, 51))
    report = unmoor.restore(
        tmp_path / "a.pt", **other.roles, gradients=unmoor.gradients(other.model), model_device=moved
    )
    assert (report.extra["micro"], report.extra["counter"]) == (6, 2)
    for each in (run, other):
        _accumulate(each, range(report.extra["micro"], 13))
    assert equal(state(other), state(run))
    grads = [[on_cpu(p.grad) for p in each.model.parameters()] for each in (run, other)]
    assert equal(*grads)


def test_gradients_are_taken_away_where_none_were_saved(tmp_path):
    """What had no gradient when saved has none after; gradients of another model are refused with nothing changed."""
    run, other = start(), start(seed=5)
    unmoor.save(tmp_path / "a.pt", gradients=unmoor.gradients(run.model))
    _accumulate(other, range(1))
    unmoor.restore(tmp_path / "a.pt", gradients=unmoor.gradients(other.model))
    assert all(p.grad is None for p in other.model.parameters())
    _accumulate(run, range(1))
    unmoor.save(tmp_path / "a.pt", gradients=unmoor.gradients(run.model))
    with pytest.raises(unmoor.MismatchError, match=r"(?s)nothing was changed.*gradients do not fit"):
        unmoor.restore(tmp_path / "a.pt", gradients=unmoor.gradients(tiny()))


class Averaging:
    """A run whose weights are averaged from its fourth step on, with a schedule of its own."""

    def __init__(self, seed: int) -> None:
        self.model = network(seed)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.average = AveragedModel(self.model)
        self.main = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 8)
        self.late = SWALR(self.optimizer, 0.02, anneal_epochs=4)

    def roles(self) -> dict[str, Any]:
        schedulers = {"main": self.main, "late": self.late}
        return {"model": self.model, "optimizer": self.optimizer, "ema": self.average, "scheduler": schedulers}

    def train(self, steps: range) -> None:
        for step in steps:
            data = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
            self.optimizer.zero_grad()
            self.model(data).pow(2).mean().backward()
            self.optimizer.step()
            if step >= 3:
                self.average.update_parameters(self.model)
            (self.late if step >= 3 else self.main).step()

    def state(self) -> Any:
        update_bn([torch.randn(16, 6, generator=torch.Generator().manual_seed(99))], self.average)
        modules = [dict(m.state_dict()) for m in (self.model, self.average)]
        return [*modules, self.optimizer.state_dict(), self.main.state_dict(), self.late.state_dict()]


@pytest.mark.parametrize("cut", [2, 5])
def test_stochastic_weight_averaging_goes_on(tmp_path, cut):
    """Cut before the averaging began or within it, the average, its batch norm and both schedules are equal."""
    run, other = Averaging(0), Averaging(1)
    run.train(range(cut))
    unmoor.save(tmp_path / "a.pt", **run.roles())
    unmoor.restore(tmp_path / "a.pt", **other.roles())
    for each in (run, other):
        each.train(range(cut, cut + 3))
    assert equal(other.state(), run.state())


def test_one_scaler_of_two_optimizers_goes_on(tmp_path):
    """A scaler keeps what it found for each optimizer within a step only: between steps its state is one for all."""
    runs = []
    for seed in (0, 1):
        models = [tiny(seed), tiny(seed + 2)]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
        runs.append((models, optimizers, torch.amp.GradScaler("cpu", growth_interval=2)))

    def steps(run: Any, first: int) -> Any:
        models, optimizers, scaler = run
        for step in range(first, first + 3):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                scaler.scale(model(torch.full((2, 3), float(step))).sum()).backward()
                scaler.step(optimizer)
            scaler.update()
        return [scaler.state_dict(), *(dict(m.state_dict()) for m in models)]

    steps(runs[0], 0)
    roles = [{"model": m, "optimizer": o, "scaler": s} for m, o, s in runs]
    unmoor.save(tmp_path / "a.pt", **roles[0])
    unmoor.restore(tmp_path / "a.pt", **roles[1])
    train(runs[0][0][0], runs[0][1][0], 1)
    train(runs[1][0][0], runs[1][1][0], 1)
    assert equal(steps(runs[1], 3), steps(runs[0], 3))
