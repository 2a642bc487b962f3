"""Kinds of live model that hold one small net: every wrapper, every parametrization, and what a user may name a part.

Two kinds of one structure hold the same numbers. What a kind is and what it holds is told here by torch's own means,
never by the code under test.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

__all__ = ["FAMILY", "KINDS", "STRUCTURES", "Kind", "Net", "build", "data_parallel", "quiet", "world_of_one"]


@contextmanager
def world_of_one() -> Iterator[None]:
    """A process group of this process alone; one that exists already is used and left."""
    if distributed.is_initialized():
        yield
        return
    with quiet():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings that torch has for old wrappers, for FSDP in a world of one and for compiled modules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Net(nn.Module):
    """Tied weights, a norm with buffers, a buffer that is not saved, a head that kinds change."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.head: nn.Module = nn.Linear(4, 2)
        self.register_buffer("scale", torch.full((4,), 0.5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.norm(self.first(x)).tanh()) * self.scale)


class LowRank(nn.Module):
    """A LoRA-style parametrization: the frozen weight and a product of two thin matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.randn(1, 4))
        self.B = nn.Parameter(torch.randn(2, 1))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.B @ self.A


class Called(nn.Module):
    """A user's own part whose submodules bear the names of wrappers' attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 3)
        self._orig_mod = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._orig_mod(self.module(x))


def _lora(net: Net) -> None:
    parametrize.register_parametrization(net.head, "weight", LowRank())
    net.head.parametrizations.weight.original.requires_grad_(False)


def _called(net: Net) -> None:
    net.head = Called()


def _nothing(net: Net) -> None:
    pass


STRUCTURES: Final[dict[str, Callable[[Net], Any]]] = {
    "plain": _nothing,
    "weight_norm old": lambda net: nn.utils.weight_norm(net.head),
    "weight_norm": lambda net: parametrizations.weight_norm(net.head),
    "spectral_norm old": lambda net: nn.utils.spectral_norm(net.head),
    "spectral_norm": lambda net: parametrizations.spectral_norm(net.head),
    "pruned": lambda net: prune.l1_unstructured(net.head, "weight", 0.5),
    "lora": _lora,
    "user's module": _called,
}
"""How the net is changed before it is wrapped: other names, and other numbers than the plain one's."""

FAMILY: Final = {"weight_norm old": "weight_norm"}
"""Structures that hold the same numbers as another under other names."""


def _compile(module: nn.Module) -> nn.Module:
    """Compiled without a compiler: the wrapper is the same, the arithmetic is eager."""
    made: nn.Module = torch.compile(module, backend="eager")
    return made


def _in_place(net: nn.Module) -> nn.Module:
    net.compile(backend="eager")
    return net


def _head(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    def apply(net: Any) -> nn.Module:
        net.head = wrap(net.head)
        made: nn.Module = net
        return made

    return apply


def data_parallel(net: nn.Module) -> nn.Module:
    """On the CPU, as on a machine without an accelerator: the simulated one may be installed in this process."""
    wrapped = DataParallel(net)
    wrapped.device_ids = []
    return wrapped


def _fsdp1(*, original: bool) -> Callable[[nn.Module], nn.Module]:
    return lambda net: FullyShardedDataParallel(net, use_orig_params=original, device_id=torch.device("cpu"))


def _fsdp2(*, head: bool) -> Callable[[nn.Module], nn.Module]:
    def wrap(net: Any) -> nn.Module:
        mesh = init_device_mesh("cpu", (1,))
        if head:
            fully_shard(net.head, mesh=mesh)
        made: nn.Module = fully_shard(net, mesh=mesh)
        return made

    return wrap


def _skipped(net: Any) -> nn.Module:
    with torch.no_grad():
        filled = net.head.state_dict()
        net.head = nn.utils.skip_init(nn.Linear, 4, 2)
        net.head.load_state_dict(filled)
    made: nn.Module = net
    return made


def _lazy(net: Any) -> nn.Module:
    net.head = nn.LazyLinear(2)
    net.eval()
    net(torch.ones(2, 4))
    net.train()
    made: nn.Module = net
    return made


def _averaged(**options: Any) -> Callable[[nn.Module], nn.Module]:
    return lambda net: AveragedModel(net, **options)


@dataclass(frozen=True)
class Kind:
    """A structure in its wrappers. `hidden` is text of the wrappers in torch's names, to be left out of them.

    `rule` is how averages go on: from the same state, kinds of different rules take different steps.
    """

    group: str
    name: str
    wrap: Callable[[nn.Module], nn.Module] = lambda net: net
    structure: str = "plain"
    hidden: tuple[str, ...] = ()
    flat: bool = False
    rule: str = ""


_M, _O, _C, _F = "module.", "_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."
_EMA: Final = get_ema_multi_avg_fn(0.9)

KINDS: Final[dict[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind("plain", "plain"),
        Kind("DP, DDP", "DataParallel", data_parallel, hidden=(_M,)),
        Kind("DP, DDP", "DDP", DistributedDataParallel, hidden=(_M,)),
        Kind("compile", "compile", _compile, hidden=(_O,)),
        Kind("compile", "compile in place", _in_place),
        Kind("compile", "compile of the head", _head(_compile), hidden=(_O,)),
        Kind("compile", "DDP(compile)", lambda net: DistributedDataParallel(_compile(net)), hidden=(_M, _O)),
        Kind("compile", "compile(DDP)", lambda net: _compile(DistributedDataParallel(net)), hidden=(_M, _O)),
        Kind("AC", "AC of the head", _head(checkpoint_wrapper), hidden=(_C,)),
        Kind("AC", "AC(compile)", _head(lambda m: checkpoint_wrapper(_compile(m))), hidden=(_C, _O)),
        Kind("AC", "compile(AC)", _head(lambda m: _compile(checkpoint_wrapper(m))), hidden=(_C, _O)),
        Kind("FSDP", "FSDP1", _fsdp1(original=True), hidden=(_F,)),
        Kind("FSDP", "FSDP1 flat", _fsdp1(original=False), hidden=(_F,), flat=True),
        Kind("FSDP", "fully_shard", _fsdp2(head=False)),
        Kind("FSDP", "fully_shard twice", _fsdp2(head=True)),
        Kind("plain", "skip_init", _skipped),
        Kind("plain", "lazy, run once", _lazy),
        Kind("averaged", "AveragedModel", _averaged(), "averaged"),
        Kind("averaged", "AveragedModel use_buffers", _averaged(use_buffers=True), "averaged", rule="buffers"),
        Kind("averaged", "AveragedModel multi_avg_fn", _averaged(multi_avg_fn=_EMA), "averaged", rule="ema"),
        Kind("averaged", "compile(AveragedModel)", lambda net: _compile(AveragedModel(net)), "averaged", hidden=(_O,)),
        Kind("norms", "weight_norm old", structure="weight_norm old"),
        Kind("norms", "weight_norm", structure="weight_norm"),
        Kind("norms", "spectral_norm old", structure="spectral_norm old"),
        Kind("norms", "spectral_norm", structure="spectral_norm"),
        Kind("other", "pruned", structure="pruned"),
        Kind("other", "lora", structure="lora"),
        Kind("other", "user's module", structure="user's module"),
    )
}


def build(kind: Kind, seed: int) -> tuple[nn.Module, nn.Module]:
    """A model of this kind with numbers of its own, and the net in it before it was wrapped."""
    torch.manual_seed(seed)
    with quiet():
        net = Net()
        with torch.no_grad():
            net.norm.running_mean.normal_()
        STRUCTURES.get(kind.structure, _nothing)(net)
        return kind.wrap(net), net
