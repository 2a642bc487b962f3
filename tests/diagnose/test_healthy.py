"""No false alarms: runs that work, of every kind that people build, get no error and no warning."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import schedulefree
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from .runs import HOME, OPTIMIZERS, Net, Run, batch, run

pytestmark = pytest.mark.usefixtures("sim")


def _net(cls: type[nn.Module] = Net, **parts: Any) -> Run:
    torch.manual_seed(0)
    model = cls().to(HOME)
    given = {"batch": batch(), "loss": nn.CrossEntropyLoss(), **parts}
    return Run(model, torch.optim.SGD(model.parameters(), lr=0.1), **given)


def _with(change: Callable[[Run], Any], **how: Any) -> Callable[[], Run]:
    def make() -> Run:
        made = run(**how)
        change(made)
        return made

    return make


def _sets(**values: Callable[[Run], Any]) -> Callable[[], Run]:
    return _with(lambda made: [setattr(made, name, value(made)) for name, value in values.items()])


class SplitByHand(Net):
    def forward(self, x):
        return self.head(self.body(x.to("sim:0")).to("sim:1"))


class SplitList(nn.Module):
    """Layers of a list on two devices; a helper brings the activations over."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x):
        for layer in self.layers:
            x = self._on(x, layer)
        return x

    def _on(self, x, layer):
        return layer(x.to(layer.weight.device))


class MovesItsInput(Net):
    def forward(self, x):
        return super().forward(x.to(self.head.weight.device))


class MovesItsMask(Net):
    def __init__(self) -> None:
        super().__init__()
        self.mask, self.unused = torch.ones(3), torch.ones(3)

    def forward(self, x):
        return super().forward(x * self.mask.to(x.device))


class ReadsLengths(nn.Module):
    """Packs sequences by lengths, which belong on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.rnn(packed)[1][0])


class TiedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x))


class OwnOptimizer(torch.optim.Optimizer):
    """A user's optimizer: sign of a running mean, with a counter as a number and one as a tensor on the CPU."""

    def __init__(self, params, lr=0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("mean", torch.zeros_like(p)).lerp_(p.grad, 0.1)
                state["count"] = state.get("count", 0) + 1
                state.setdefault("beta", torch.tensor(0.9))
                p.add_(state["mean"].sign(), alpha=-group["lr"])


class TwoSteps(OwnOptimizer):
    def step(self, closure=None):
        return self.base.step(closure)


def _split(cls: type[nn.Module]) -> Run:
    model = cls()
    first, second = (model.layers[0], model.layers[1]) if isinstance(model, SplitList) else (model.body, model.head)
    first.to("sim:0")
    second.to("sim:1")
    optimizer = torch.optim.Adam(model.parameters())
    return Run(model, optimizer, batch("sim:0", "sim:1"), nn.CrossEntropyLoss())


def _amp() -> Run:
    made = _net()
    made.scaler = torch.amp.GradScaler("sim", init_scale=8.0)
    inputs, labels = made.batch

    def forward(self):
        with torch.autocast("sim", dtype=torch.bfloat16):
            return F.cross_entropy(self.model(inputs).float(), labels)

    made.forward = forward
    return made


def _data_parallel(made: Run) -> None:
    made.model = nn.DataParallel(made.model, device_ids=[0, 1])
    made.model.device_ids = []  # as where no accelerator is


def _frozen(made: Run) -> None:
    made.model.body.requires_grad_(False)


def _ema(made: Run) -> None:
    made.ema = AveragedModel(made.model)
    made.ema.update_parameters(made.model)


def _two_models() -> Run:
    made = _net()
    second = copy.deepcopy(made.model)
    optimizers = {"gen": made.optimizer, "disc": torch.optim.SGD(second.parameters(), lr=0.1)}
    first, (inputs, labels) = made.model, made.batch
    made.model, made.optimizer = {"gen": first, "disc": second}, optimizers
    made.forward = lambda self: F.cross_entropy(first(inputs) + second(inputs), labels)
    return made


def _lengths() -> Run:
    made = _net(ReadsLengths)
    lengths = torch.tensor([2, 2, 1, 1])
    inputs, labels = torch.randn(4, 2, 3, device=HOME), made.batch[1]
    made.batch = {"x": inputs, "lengths": lengths, "labels": labels}
    made.forward = lambda self: self.loss(self.model(inputs, lengths), labels)
    return made


def _schedules(made: Run) -> None:
    warm = torch.optim.lr_scheduler.LinearLR(made.optimizer, total_iters=2)
    then = torch.optim.lr_scheduler.CosineAnnealingLR(made.optimizer, 4)
    made.scheduler = torch.optim.lr_scheduler.SequentialLR(made.optimizer, [warm, then], [2])


def _two_steps(made: Run) -> None:
    """As SAM: the scheduler sets the rate in groups that both optimizers share."""
    made.optimizer = TwoSteps(made.model.parameters())
    made.optimizer.base = torch.optim.SGD(made.optimizer.param_groups, lr=0.1)
    made.optimizer.param_groups = made.optimizer.base.param_groups
    made.scheduler = torch.optim.lr_scheduler.StepLR(made.optimizer.base, 3)


def _pruned(made: Run) -> None:
    prune.l1_unstructured(made.model.head, "weight", 0.5)
    made.optimizer = torch.optim.SGD(made.model.parameters(), lr=0.1)


def _weight_norm(made: Run) -> None:
    nn.utils.parametrizations.weight_norm(made.model.head)
    made.optimizer = torch.optim.SGD(made.model.parameters(), lr=0.1)


def _old_spectral_norm() -> Run:
    model = Net()
    nn.utils.spectral_norm(model.head)
    model.to(HOME)
    return Run(model, torch.optim.SGD(model.parameters(), lr=0.1), batch(), nn.CrossEntropyLoss())


def _bfloat16(made: Run) -> None:
    made.model.to(torch.bfloat16)
    made.batch = (made.batch[0].bfloat16(), made.batch[1])
    made.optimizer = torch.optim.SGD(made.model.parameters(), lr=0.1, momentum=0.9)


def _master_weights() -> Run:
    made = _net()
    made.model.to(torch.bfloat16)
    made.batch = (made.batch[0].bfloat16(), made.batch[1])
    masters = [p.detach().float().requires_grad_() for p in made.model.parameters()]
    made.optimizer = torch.optim.SGD(masters, lr=0.1)
    return made


def _learnt_loss() -> Run:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log_scale = nn.Parameter(torch.zeros(()))

        def forward(self, output, labels):
            return F.cross_entropy(output * self.log_scale.exp(), labels)

    made = _net(loss=Scaled().to(HOME))
    made.optimizer = torch.optim.Adam([*made.model.parameters(), *made.loss.parameters()])
    return made


def _schedule_free(made: Run) -> None:
    made.optimizer = schedulefree.AdamWScheduleFree(made.model.parameters(), lr=0.1)
    made.optimizer.train()


HEALTHY: dict[str, Callable[[], Run]] = {
    "on the CPU": lambda: run("cpu"),
    "without a loss": _sets(loss=lambda _: None),
    "a mapping": _sets(batch=lambda r: {"x": r.batch[0], "labels": r.batch[1]}),
    "a list": _sets(batch=lambda r: list(r.batch)),
    "a batch without labels": _sets(batch=lambda r: r.batch[0], loss=lambda _: None),
    "a mapping with text and numbers": _sets(
        batch=lambda r: {"x": r.batch[0], "labels": r.batch[1], "ids": ["a", "b"], "epoch": 3}
    ),
    "a number on the CPU in the batch": _sets(
        batch=lambda r: {"x": r.batch[0], "labels": r.batch[1], "temperature": torch.tensor(2.0)}
    ),
    "lengths on the CPU": _lengths,
    "class probabilities": _sets(batch=lambda r: (r.batch[0], torch.full((4, 3), 1 / 3, device=HOME))),
    "uint8 classes": _sets(batch=lambda r: (r.batch[0], r.batch[1].byte())),
    "double targets of a mean square": _sets(
        batch=lambda r: (r.batch[0], torch.zeros(4, 3, device=HOME).double()), loss=lambda _: nn.MSELoss()
    ),
    "weights on the device": _sets(loss=lambda _: nn.CrossEntropyLoss(weight=torch.ones(3)).to(HOME)),
    "a loss in a function": _sets(loss=lambda _: functools.partial(F.cross_entropy, label_smoothing=0.1)),
    "a loss in a lambda": _sets(loss=lambda _: lambda output, labels: F.cross_entropy(output, labels)),
    "a loss that is trained": _learnt_loss,
    "a model split by hand": lambda: _split(SplitByHand),
    "layers of a list on two devices": lambda: _split(SplitList),
    "a model that moves its input": lambda: _net(MovesItsInput, batch=batch("cpu", HOME)),
    "a mask that is moved where it is used": lambda: _net(MovesItsMask),
    "tied weights": lambda: _net(TiedNet),
    "compiled": _with(lambda r: setattr(r, "model", torch.compile(r.model, backend="eager"))),
    "DataParallel without devices": _with(_data_parallel, device="cpu"),
    "frozen layers": _with(_frozen),
    "frozen layers left out": _with(
        lambda r: (_frozen(r), setattr(r, "optimizer", torch.optim.Adam(r.model.head.parameters())))
    ),
    "mixed precision": _amp,
    "bfloat16": _with(_bfloat16),
    "master weights": _master_weights,
    "a disabled scaler": _sets(scaler=lambda _: torch.amp.GradScaler("sim", enabled=False)),
    "averages": _with(_ema),
    "averages on the CPU": _sets(ema=lambda r: AveragedModel(r.model, device="cpu")),
    "metrics": _sets(metrics=lambda _: torchmetrics.classification.MulticlassAccuracy(3).to(HOME)),
    "a collection of metrics": _sets(
        metrics=lambda _: torchmetrics.MetricCollection([torchmetrics.classification.MulticlassAccuracy(3)]).to(HOME)
    ),
    "two models": _two_models,
    "a schedule": _sets(scheduler=lambda r: torch.optim.lr_scheduler.StepLR(r.optimizer, 1)),
    "schedules in a row": _with(_schedules),
    "a rate that is a tensor": lambda: run(lr=torch.tensor(0.1), foreach=False),
    "gradients checked for order": _with(lambda r: r.model.register_forward_pre_hook(lambda module, args: None)),
    "pruned": _with(_pruned),
    "weight normalisation": _with(_weight_norm),
    "spectral normalisation of old": _old_spectral_norm,
    "a scheduler of the base of a two-step optimizer": _with(_two_steps),
    "a user's optimizer": _sets(optimizer=lambda r: OwnOptimizer(r.model.parameters())),
    "schedule-free": _with(_schedule_free),
    "a loader": _sets(loader=lambda _: DataLoader([0, 1], shuffle=True, generator=torch.Generator())),
    "generators of the caller": _sets(rng=lambda _: {"noise": torch.Generator("sim:1"), "data": torch.Generator()}),
    "a count of batches on the CPU": _with(
        lambda r: setattr(r.model.body[1], "num_batches_tracked", torch.tensor(0))
    ),
    **{f"{name} after two steps": functools.partial(run, optimizer=name, steps=2) for name in OPTIMIZERS},
    **{
        f"{name} {switch} after two steps": functools.partial(run, optimizer=name, steps=2, **{switch: True})
        for switch, names in {
            "capturable": ["Adam", "AdamW", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"],
            "fused": ["Adam", "AdamW", "SGD", "Adagrad"],
            "foreach": ["Adam", "SGD", "Adafactor"],
        }.items()
        for name in names
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_a_run_that_works_gets_no_error_and_no_warning_before_and_after_a_step(name: str) -> None:
    """Nothing grave is said of it, its step runs, and nothing grave is said after that either."""
    made = HEALTHY[name]()
    for _ in range(2):
        found = made.diagnose()
        assert not found.errors + found.warnings, str(found)
        assert found.ok
        made.step()


LAYERS = {
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "lstm": lambda: nn.LSTM(3, 4, 2),
    "embedding bag": lambda: nn.EmbeddingBag(5, 3),
    "transposed convolution": lambda: nn.ConvTranspose2d(2, 2, 3),
    "attention": lambda: nn.MultiheadAttention(8, 2, kdim=4, vdim=4),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)),
    "spectral": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)),
    "synchronised normalisation": lambda: nn.SyncBatchNorm(3),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_torch_are_no_fault_after_a_move(name: str) -> None:
    """Whatever a layer keeps beside its parameters, nothing is said of it once it was moved."""
    layer = LAYERS[name]().to(HOME)
    found = Run(layer, torch.optim.Adam(layer.parameters())).diagnose()
    assert not list(found), str(found)


@pytest.mark.parametrize("name", ["Lion", "Shampoo", "SOAP", "LARS", "AdaBelief", "Lookahead", "SAM"])
def test_optimizers_of_others_are_no_fault(name: str) -> None:
    """Classes of another package, and wrappers of it, before and after steps."""
    import pytorch_optimizer

    made = _net(loss=None)
    made.batch = made.batch[0]
    cls, parameters = getattr(pytorch_optimizer, name), list(made.model.parameters())
    if name == "Lookahead":
        made.optimizer = cls(torch.optim.Adam(parameters))
    elif name == "SAM":
        made.optimizer = cls(parameters, torch.optim.SGD, lr=0.1)
    else:
        made.optimizer = cls(parameters)
    for _ in range(2):
        assert not made.diagnose().errors + made.diagnose().warnings, str(made.diagnose())
        made.model(made.batch).square().mean().backward()
        if name == "SAM":
            made.optimizer.first_step(zero_grad=True)
            made.model(made.batch).square().mean().backward()
            made.optimizer.second_step()
        else:
            made.optimizer.step()
    assert not made.diagnose().errors + made.diagnose().warnings, str(made.diagnose())


def test_a_lazy_model_is_only_told_of() -> None:
    """Parameters without a shape are a note before the first step, and none after it."""
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3)).to(HOME)
    made = Run(model, torch.optim.SGD(model.parameters(), lr=0.1), batch(), nn.CrossEntropyLoss())
    assert [(f.severity, f.code) for f in made.diagnose()] == [("info", "lazy-parameters")]
    made.step()
    assert not list(made.diagnose())


def test_ranks_of_one_machine_keep_to_their_devices(monkeypatch) -> None:
    """Under torchrun a model on the device of another rank is told, and the line brings it to its own."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    made = run()
    (finding,) = made.diagnose()
    assert (finding.severity, finding.code) == ("warning", "device-of-another-rank")
    made.apply(finding.remedy)
    made.batch = batch("sim:1")
    assert not list(made.diagnose())
    made.step()


def test_hooks_of_accelerate_make_a_split_model_whole() -> None:
    """A model that accelerate's hooks spread over devices, and keep partly on the meta device, is no fault."""

    class Hook:
        execution_device = 0

    made = _split(SplitByHand)
    made.model.body._hf_hook = made.model.head._hf_hook = Hook()
    made.model.head.bias = nn.Parameter(torch.empty(3, device="meta"))
    made.optimizer = torch.optim.Adam(made.model.parameters())
    found = made.diagnose()
    assert [f.code for f in found if f.severity != "info"] == []
    assert "split-model" in [f.code for f in found]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:FSDP is switching:UserWarning")
def test_wrappers_of_a_world_of_one_are_no_fault(tmp_path) -> None:
    """DistributedDataParallel, FSDP of both kinds and a sharded optimizer, on the CPU in a process group of one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for wrap in (
            DistributedDataParallel,
            lambda m: FullyShardedDataParallel(m, device_id=torch.device("cpu")),
            lambda m: FullyShardedDataParallel(m, device_id=torch.device("cpu"), use_orig_params=True),
            lambda m: fully_shard(m, mesh=init_device_mesh("cpu", (1,))) or m,
            lambda m: torch.compile(DistributedDataParallel(m), backend="eager"),
        ):
            model = wrap(Net())
            made = Run(model, torch.optim.Adam(model.parameters()), batch("cpu"), nn.CrossEntropyLoss())
            for _ in range(2):
                assert not made.diagnose().errors + made.diagnose().warnings, str(made.diagnose())
                made.step()
        model = DistributedDataParallel(Net())
        shared = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        made = Run(model, shared, batch("cpu"), nn.CrossEntropyLoss())
        made.step()
        assert not made.diagnose().errors + made.diagnose().warnings, str(made.diagnose())
        sharded = Net()
        before = torch.optim.Adam(sharded.parameters())
        fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
        found = Run(sharded, before, batch("cpu"), nn.CrossEntropyLoss()).diagnose()
        assert [f.code for f in found.errors] == ["optimizer-holds-other-parameters"]
        assert "sharded" in found.errors[0].message
        moved = DistributedDataParallel(nn.Linear(3, 3))
        moved.module.to(HOME)
        found = Run(moved, torch.optim.SGD(moved.parameters(), lr=0.1), batch(), nn.CrossEntropyLoss()).diagnose()
        assert [(f.severity, f.code) for f in found] == [("warning", "wrapper-device")]
        moved.device_ids, moved.device_type = [1], "sim"
        made = Run(moved, torch.optim.SGD(moved.parameters(), lr=0.1), batch("cpu", "sim:1"), nn.CrossEntropyLoss())
        assert [(f.severity, f.code) for f in made.diagnose()] == [("error", "wrapper-device")]
        with pytest.raises(RuntimeError, match="on the same device"):
            made.step()
        made.apply(made.diagnose().errors[0].remedy)
        assert made.diagnose().ok
    finally:
        torch.distributed.destroy_process_group()
