"""Broken runs by the code of the finding that each must give. A fault is real: see test_broken."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from .runs import HOME, Net, Run, batch, run


@dataclass(frozen=True)
class Broken:
    """A run with one fault.

    `fails` is what its step raises, "silent" where the step runs and is wrong, "" where it works. `fix` is used where
    the remedy of the finding is no line that can be run as it is.
    """

    make: Callable[[], Run]
    code: str
    fails: str
    severity: str = "error"
    place: str = ""
    fix: Callable[[Run], None] | None = None


def _with(change: Callable[[Run], Any], **how: Any) -> Callable[[], Run]:
    def make() -> Run:
        made = run(**how)
        change(made)
        return made

    return make


def _set(path: str, value: Callable[[Run], Any]) -> Callable[[Run], None]:
    def change(made: Run) -> None:
        *above, last = path.split(".")
        setattr(functools.reduce(getattr, above, made), last, value(made))

    return change


def _state(**changes: Callable[[torch.Tensor], Any]) -> Callable[[Run], None]:
    def change(made: Run) -> None:
        for state in made.optimizer.state.values():
            state.update({key: new(state[key]) for key, new in changes.items() if key in state})

    return change


def _cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu()


class Masked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.ones(3)

    def forward(self, x):
        return super().forward(x * self.mask)


class Unregistered(Net):
    """Layers that the module does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(3, 3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return super().forward(x)


class Listed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scales = {"in": [torch.ones(3)]}

    def forward(self, x):
        return super().forward(self._scaled(x))

    def _scaled(self, x):
        return x * self.scales["in"][0]


class Noisy(Net):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x):
        return super().forward(x + torch.rand(4, 3, generator=self.generator, out=torch.empty_like(x)))


class Tied(nn.Module):
    _tied_weights_keys = {"out.weight": "embed.weight"}

    def __init__(self) -> None:
        super().__init__()
        self.config = type("Config", (), {"tie_word_embeddings": True})()
        self.embed, self.out = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)

    def tie_weights(self):
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x))


class Registered(Net):
    """A buffer that is registered after the move."""

    def forward(self, x):
        return super().forward(x + self.shift)


def _model(cls: type[nn.Module], device: str = HOME) -> Run:
    model = cls().to(device)
    return Run(model, torch.optim.SGD(model.parameters(), lr=0.1), batch(device), nn.CrossEntropyLoss())


def _registered_late() -> Run:
    made = _model(Registered)
    made.model.register_buffer("shift", torch.zeros(3))
    return made


def _rebuilt_model() -> Run:
    made = run(steps=1)
    made.model = Net().to(HOME)
    return made


def _built_before_the_move() -> Run:
    model = Net()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.02)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.to(HOME)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    return Run(model, optimizer, batch(), nn.CrossEntropyLoss())


def _adagrad_before_the_move() -> Run:
    model = Net()
    optimizer = torch.optim.Adagrad(model.parameters())
    return Run(model.to(HOME), optimizer, batch(), nn.CrossEntropyLoss())


def _half_moved() -> Run:
    made = run()
    made.model.head.cpu()
    return made


def _schedule(made: Run) -> None:
    other = torch.optim.SGD(made.model.parameters(), lr=0.5)
    made.scheduler = torch.optim.lr_scheduler.StepLR(other, 1)
    other.step()


def _schedule_fixed(made: Run) -> None:
    made.scheduler = torch.optim.lr_scheduler.StepLR(made.optimizer, 1)


def _off_schedule() -> Run:
    """C75: the scheduler is built after the optimizer was loaded, and then loaded itself."""
    saved = run(optimizer="SGD")
    saved.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(saved.optimizer, 10)
    for _ in range(5):
        saved.step()
    states = saved.optimizer.state_dict(), saved.scheduler.state_dict()
    made = run(optimizer="SGD")
    made.optimizer.load_state_dict(states[0])
    made.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(made.optimizer, 10)
    made.scheduler.load_state_dict(states[1])
    made.optimizer.param_groups[0]["lr"] = 3e-05
    return made


class Wrapper:
    """An optimizer's wrapper that keeps the groups it saw when it was made (C24)."""

    def __init__(self, optimizer) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    def step(self):
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


def _stale_groups() -> Run:
    made = run(steps=1)
    made.optimizer = Wrapper(made.optimizer)
    made.optimizer.optimizer.load_state_dict(made.optimizer.optimizer.state_dict())
    return made


def _meta() -> Run:
    made = run(optimizer="SGD")
    with torch.device("meta"):
        made.model.head = nn.Linear(4, 3)
    made.optimizer = torch.optim.SGD(made.model.parameters(), lr=0.1)
    return made


def _meta_fixed(made: Run) -> None:
    made.model.to_empty(device=HOME)
    for tensor in (*made.model.parameters(), *made.model.buffers()):
        tensor.data.zero_()
    made.optimizer = torch.optim.SGD(made.model.parameters(), lr=0.1)


def _given_another_class() -> Run:
    made, other = run(optimizer="RMSprop"), run(optimizer="Adadelta", steps=1)
    groups = made.optimizer.state_dict()["param_groups"]
    made.optimizer.load_state_dict({**other.optimizer.state_dict(), "param_groups": groups})
    return made


def _amsgrad_later(made: Run) -> None:
    made.optimizer.param_groups[0]["amsgrad"] = True


def _swapped_shapes(made: Run) -> None:
    states = list(made.optimizer.state.values())
    states[0]["exp_avg"], states[-2]["exp_avg"] = states[-2]["exp_avg"].t().clone(), states[0]["exp_avg"]


def _fresh_state(made: Run) -> None:
    made.optimizer.state.clear()


def _rate_elsewhere(made: Run) -> None:
    made.optimizer.param_groups[0]["lr"] = torch.tensor(0.1, device="sim:1")


def _two_devices(made: Run) -> None:
    class Split(Net):
        def forward(self, x):
            return self.head(self.body(x).to("sim:1"))

    made.model = Split()
    made.model.body.to(HOME)
    made.model.head.to("sim:1")
    made.batch = batch(HOME, "sim:1")
    made.optimizer = torch.optim.LBFGS(made.model.parameters(), max_iter=1)


def _one_by_one(made: Run) -> None:
    made.optimizer = torch.optim.AdamW(made.model.parameters())


def _closure(made: Run) -> None:
    weights = torch.ones(3)
    made.loss = lambda output, labels: F.cross_entropy(output, labels, weight=weights)


def _closure_fixed(made: Run) -> None:
    weights = torch.ones(3).to(HOME)
    made.loss = lambda output, labels: F.cross_entropy(output, labels, weight=weights)


def _criterion_in_a_function(made: Run) -> None:
    criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
    made.loss = lambda output, labels: criterion(output, labels)


def _targets(made: Run, dtype: torch.dtype, loss: nn.Module, shape: tuple[int, ...] = (4, 3)) -> None:
    made.loss, made.batch = loss, (made.batch[0], torch.ones(shape, dtype=dtype, device=HOME))


def _metric(made: Run) -> None:
    made.metrics = torchmetrics.classification.MulticlassAccuracy(3)


class TwoIds(nn.DataParallel):
    """DataParallel whose copies are one: this build of torch has no scatter."""

    def scatter(self, inputs, kwargs, device_ids):
        return [tuple(x.to(self.src_device_obj) for x in inputs)], [kwargs]

    def replicate(self, module, device_ids):
        return [module for _ in device_ids]

    def gather(self, outputs, output_device):
        return outputs[0]

    def parallel_apply(self, replicas, inputs, kwargs):
        return [replicas[0](*inputs[0], **kwargs[0])]


def _data_parallel() -> Run:
    model = TwoIds(Net().to("sim:1"), device_ids=[0, 2])
    return Run(model, torch.optim.SGD(model.parameters(), lr=0.1), batch(HOME), nn.CrossEntropyLoss())


def _half_model() -> Run:
    made = run()
    made.model.to(torch.float16)
    made.batch = (made.batch[0].half(), made.batch[1])
    made.scaler = torch.amp.GradScaler("sim", init_scale=8.0)
    return made


def _nan(made: Run) -> None:
    with torch.no_grad():
        made.model.head.weight[0, 0] = float("nan")
    made.values = True


def _restored(made: Run) -> None:
    with torch.no_grad():
        made.model.head.weight[0, 0] = 0.0


def _loader(made: Run) -> None:
    made.loader = DataLoader([0, 1], shuffle=True, generator=torch.Generator("sim:0"))


DEVICE, DTYPE = "RuntimeError", "RuntimeError"
BROKEN: dict[str, Broken] = {
    # the model
    "a layer left on the CPU": Broken(
        _half_moved, "parameters-elsewhere", DEVICE, place="model.head.weight and 1 other"
    ),
    "a model that was never moved": Broken(
        _with(_set("batch", lambda _: batch(HOME)), device="cpu"), "batch-elsewhere", DEVICE, place="batch[0], batch[1]"
    ),
    "a buffer left behind": Broken(
        _with(_set("model.body", lambda r: nn.Sequential(r.model.body[0], nn.BatchNorm1d(4, affine=False)))),
        "buffer-elsewhere",
        DEVICE,
        place="model.body.1.running_mean and 1 other",
    ),
    "a buffer registered after the move": Broken(_registered_late, "buffer-elsewhere", DEVICE, place="model.shift"),
    "a mask that is no buffer": Broken(lambda: _model(Masked), "attribute-elsewhere", DEVICE, place="model.mask"),
    "layers in a plain list": Broken(
        lambda: _model(Unregistered),
        "attribute-elsewhere",
        DEVICE,
        place="model.layers[0].weight and 1 other",
    ),
    "a tensor in a list in a dict": Broken(
        lambda: _model(Listed), "attribute-elsewhere", DEVICE, place="model.scales['in'][0]"
    ),
    "parameters on the meta device": Broken(
        _meta, "meta-tensors", "NotImplementedError RuntimeError", fix=_meta_fixed,
        place="model.head.weight and 1 other",
    ),
    "nothing to train": Broken(
        _with(lambda r: r.model.requires_grad_(False)), "nothing-to-train", "RuntimeError", place="model"
    ),
    "a generator of another device": Broken(lambda: _model(Noisy), "generator-device", DEVICE, severity="warning"),
    "tied weights that came apart": Broken(
        lambda: _model(Tied), "weights-untied", "", severity="warning", place="model.out.weight"
    ),
    "a weight that is no number": Broken(
        _with(_nan), "not-finite", "nan", fix=_restored, place="model.head.weight"
    ),
    "DataParallel from another device": Broken(_data_parallel, "data-parallel-source", "RuntimeError"),
    # the batch and the loss
    "the whole batch on the CPU": Broken(_with(_set("batch", lambda _: batch("cpu"))), "batch-elsewhere", DEVICE),
    "a batch on another accelerator": Broken(
        _with(_set("batch", lambda _: batch("sim:2"))), "batch-elsewhere", DEVICE, place="batch[0], batch[1]"
    ),
    "labels forgotten": Broken(
        _with(_set("batch", lambda _: batch(HOME, "cpu"))), "labels-elsewhere", DEVICE, place="batch[1]"
    ),
    "labels of a mapping forgotten": Broken(
        _with(_set("batch", lambda _: {"image": batch()[0], "labels": batch("cpu")[1]})),
        "labels-elsewhere",
        DEVICE,
        place="batch['labels']",
    ),
    "inputs in double precision": Broken(
        _with(_set("batch", lambda r: (r.batch[0].double(), r.batch[1]))), "batch-dtype", DTYPE, place="batch[0]"
    ),
    "inputs of a mapping in double precision": Broken(
        _with(_set("batch", lambda r: {"image": r.batch[0].double(), "labels": r.batch[1]})), "batch-dtype", DTYPE
    ),
    "inputs in half precision, no autocast": Broken(
        _with(_set("batch", lambda r: (r.batch[0].half(), r.batch[1]))), "batch-dtype", DTYPE, severity="warning"
    ),
    "class weights on the CPU": Broken(
        _with(_set("loss", lambda _: nn.CrossEntropyLoss(weight=torch.ones(3)))), "loss-elsewhere", DEVICE,
        place="loss.weight",
    ),
    "pos_weight on the CPU": Broken(
        _with(lambda r: _targets(r, torch.float32, nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)))), "loss-elsewhere",
        DEVICE, place="loss.pos_weight",
    ),
    "weights in a closure": Broken(
        _with(_closure), "loss-elsewhere", DEVICE, fix=_closure_fixed, place="loss.weights"
    ),
    "weights in a partial": Broken(
        _with(_set("loss", lambda _: functools.partial(F.cross_entropy, weight=torch.ones(3)))), "loss-elsewhere",
        DEVICE, fix=_closure_fixed,
    ),
    "a criterion in a closure": Broken(
        _with(_criterion_in_a_function), "loss-elsewhere", DEVICE, fix=_closure_fixed, place="loss.criterion.weight"
    ),
    "class weights in double precision": Broken(
        _with(_set("loss", lambda _: nn.CrossEntropyLoss(weight=torch.ones(3).double()).to(HOME))), "loss-dtype", DTYPE
    ),
    "int32 classes": Broken(
        _with(_set("batch", lambda r: (r.batch[0], r.batch[1].int()))), "label-dtype", DTYPE, place="batch[1]"
    ),
    "classes as floating numbers": Broken(
        _with(_set("batch", lambda r: (r.batch[0], r.batch[1].float()))), "label-dtype", DTYPE
    ),
    "int64 targets of BCE with logits": Broken(
        _with(lambda r: _targets(r, torch.int64, nn.BCEWithLogitsLoss())), "label-dtype", DTYPE
    ),
    "double targets of Huber": Broken(
        _with(lambda r: _targets(r, torch.float64, nn.HuberLoss())), "label-dtype", DTYPE
    ),
    "bool targets of L1": Broken(_with(lambda r: _targets(r, torch.bool, nn.L1Loss())), "label-dtype", DTYPE),
    # who holds whom
    "an optimizer of another model": Broken(
        _rebuilt_model, "optimizer-holds-other-parameters", "silent",
        place="optimizer group 0, parameter 0 (body.0.weight) and 5 others",
    ),
    "an optimizer built before the move": Broken(
        _built_before_the_move, "optimizer-holds-other-parameters", "silent",
    ),
    "a layer in no optimizer": Broken(
        _with(_set("optimizer", lambda r: torch.optim.SGD(r.model.body.parameters(), lr=0.1))),
        "parameters-not-optimized", "", severity="warning", place="model.head.weight and 1 other",
    ),
    "a parameter in two optimizers": Broken(
        _with(_set("optimizer", lambda r: {"a": torch.optim.SGD(r.model.parameters(), lr=0.1),
                                           "b": torch.optim.SGD(r.model.head.parameters(), lr=0.1)})),
        "parameter-in-two-optimizers", "", severity="warning", place="head.weight and 1 other",
        fix=lambda r: r.optimizer.pop("b"),
    ),
    "a scheduler of another optimizer": Broken(
        _with(_schedule), "scheduler-of-another-optimizer", "silent-rate", fix=_schedule_fixed
    ),
    "a rate that the schedule did not set": Broken(_off_schedule, "rate-off-schedule", "", severity="warning"),
    "a wrapper with groups of before a load": Broken(_stale_groups, "stale-groups", "silent-groups"),
    # state
    "Adagrad built before the move": Broken(_adagrad_before_the_move, "state-elsewhere", DEVICE),
    "state of another class": Broken(
        _given_another_class, "state-of-another-class", "KeyError"
    ),
    "amsgrad switched on later": Broken(_with(_amsgrad_later, steps=1), "state-of-another-class", "KeyError"),
    "moments in another order": Broken(
        _with(_swapped_shapes, steps=1), "state-shape", "RuntimeError", fix=_fresh_state
    ),
    "moments in double precision": Broken(
        _with(_state(exp_avg=torch.Tensor.double), steps=1), "state-dtype", DTYPE
    ),
    "momentum in half precision": Broken(
        _with(_state(momentum_buffer=torch.Tensor.bfloat16), optimizer="SGD", steps=1), "state-dtype", "",
        severity="warning",
    ),
    "capturable on the CPU": Broken(
        _with(lambda r: r.optimizer.param_groups[0].update(capturable=True), device="cpu"), "capturable-device",
        "AssertionError", place="optimizer group 0",
    ),
    "a rate on another accelerator": Broken(
        _with(_rate_elsewhere, capturable=True, foreach=True), "option-elsewhere", DEVICE,
        place="optimizer group 0, lr",
    ),
    "LBFGS over two devices": Broken(_with(_two_devices), "one-device-optimizer", DEVICE, fix=_one_by_one),
    "a scaler for float16 parameters": Broken(
        _half_model, "scaler-half", "ValueError", fix=lambda r: (r.model.float(), setattr(r, "batch", batch()))
    ),
    "metrics on the CPU": Broken(_with(_metric), "metrics-elsewhere", "RuntimeError", severity="warning"),
}  # fmt: skip

_SWITCHES: dict[str, list[dict[str, Any]]] = {
    "Adam": [{}, {"foreach": False}, {"capturable": True}, {"fused": True}],
    "AdamW": [{}, {"fused": True}],
    "SGD": [{}, {"foreach": False}, {"fused": True}],
    "RMSprop": [{}, {"capturable": True}],
    "Adagrad": [{}, {"fused": True}],
    "Adadelta": [{}, {"capturable": True}],
    "Adamax": [{}, {"capturable": True}],
    "NAdam": [{}, {"capturable": True}],
    "RAdam": [{}, {"capturable": True}],
    "ASGD": [{}, {"capturable": True}],
    "Rprop": [{}, {"capturable": True}],
    "Adafactor": [{}],
    "LBFGS": [{}],
}
_COUNTED = [name for name in _SWITCHES if name not in ("SGD", "LBFGS")]


def _moments_on_the_cpu(made: Run) -> None:
    for state in made.optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim():
                state[key] = value.cpu()
            elif isinstance(value, list):
                state[key] = [v.cpu() if isinstance(v, torch.Tensor) and v.dim() else v for v in value]


for _name, _several in _SWITCHES.items():
    for _options in _several:
        _text = f"{_name} {_options or ''}".strip()
        BROKEN[f"{_text}, its moments on the CPU"] = Broken(
            _with(_moments_on_the_cpu, optimizer=_name, steps=2, **_options), "state-elsewhere", DEVICE
        )
        _switched = any(_options.get(switch) for switch in ("capturable", "fused"))
        if _name in _COUNTED and _switched:
            BROKEN[f"{_text}, its step on the CPU"] = Broken(
                _with(_state(step=_cpu), optimizer=_name, steps=1, **_options),
                "counter-elsewhere",
                "AssertionError RuntimeError",
            )
        elif _name in _COUNTED and _name != "ASGD":
            BROKEN[f"{_text}, its step beside the parameter"] = Broken(
                _with(_state(step=lambda t: t.to(HOME)), optimizer=_name, steps=1, **_options),
                "counter-elsewhere",
                "",
                severity="warning",
            )
        if _name in _COUNTED and _name != "Adafactor" and not _switched and "foreach" not in _options:
            BROKEN[f"{_text}, its step on another accelerator"] = Broken(
                _with(_state(step=lambda t: t.to("sim:1")), optimizer=_name, steps=1, **_options),
                "counter-elsewhere",
                DEVICE,
            )
