"""Runs as people have them: saved by two ranks, put into other runs of the same form, compared as torch leaves them."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str, place: str, *names: str) -> Any:
    import torch

    found = {}
    for name in names:
        torch.manual_seed(0)
        found[name] = CASES[name](rank, os.path.join(place, name.replace(" ", "_")))
        torch.distributed.barrier()
    return found


def _error(call: Any, *arguments: Any, **keywords: Any) -> str:
    import unmoor

    try:
        call(*arguments, **keywords)
    except unmoor.errors.UnmoorError as error:
        return str(error)
    return "no error"


def _local(value: Any) -> Any:
    """What this rank has of a state, copied: local tensors, plain values as text."""
    import torch
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        return value.to_local().detach().clone()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {str(key): _local(item) for key, item in value.items()}
    return repr(value)


def _state(optimizer: Any) -> dict[str, Any]:
    """State by place, of parameters of which the rank has something, and the options of the groups."""
    inner = getattr(optimizer, "optim", optimizer)
    params = [param for group in inner.param_groups for param in group["params"]]
    found = {str(number): _local(inner.state.get(param) or {}) for number, param in enumerate(params)}
    for number, group in enumerate(optimizer.param_groups):
        found[f"options {number}"] = _local({key: value for key, value in group.items() if key != "params"})
    return found


def _held(model: Any, optimizers: dict[str, Any]) -> dict[str, Any]:
    tensors = {name: _local(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    return {"model": tensors, **{name: _state(optimizer) for name, optimizer in optimizers.items()}}


def _differ(one: Any, other: Any, place: str = "") -> list[str]:
    import torch

    if isinstance(one, dict) and isinstance(other, dict):
        lost = [f"{place}.{key}" for key in one.keys() ^ other.keys()]
        both = sorted(one.keys() & other.keys())
        return lost + [row for key in both for row in _differ(one[key], other[key], f"{place}.{key}")]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one, other)
    else:
        same = type(one) is type(other) and one == other
    return [] if same else [place]


def _net(seed: int, first: Any = None) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    made = nn.Sequential()
    made.add_module("a", first or nn.Linear(6, 7))
    made.add_module("n", nn.BatchNorm1d(7))
    made.add_module("b", nn.Linear(7, 3))
    return made


def _fsdp2(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for part in (model.a, model.b, model):
        fully_shard(part)
    return model


def _fsdp1(model: Any, *, original: bool = True) -> Any:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    how = {"use_orig_params": original, "device_id": torch.device("cpu")}
    model.a = FullyShardedDataParallel(model.a, **how)
    return FullyShardedDataParallel(model, **how)


def _ddp(model: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, broadcast_buffers=False)


def _step(model: Any, optimizers: dict[str, Any], number: int) -> None:
    import torch

    seed = 10 * number + torch.distributed.get_rank()
    batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))

    def loss() -> Any:
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        found = model(batch).square().mean()
        found.backward()
        return found

    if all(type(optimizer).__name__ == "LBFGS" for optimizer in optimizers.values()):
        next(iter(optimizers.values())).step(loss)
        return
    loss()
    for optimizer in optimizers.values():
        optimizer.step()


def _goes_on(rank: int, path: str, wrap: Any, make: Any, *, net: Any = _net, live: int = 0) -> Any:
    """Places that differ after a restore, and after two more steps, from the run that nothing interrupted."""
    import unmoor

    runs = []
    for seed in (1, 5):
        model = wrap(net(seed))
        made = make(model)
        runs.append((model, made if isinstance(made, dict) else {"": made}, made))
    (model, optimizers, given), (other, others, taking) = runs
    for number in range(3):
        _step(model, optimizers, number)
    for number in range(live):
        _step(other, others, number + 20)
    unmoor.save(path, model=model, optimizer=given)
    before = _held(model, optimizers)
    unmoor.restore(path, model=other, optimizer=taking)
    differ = _differ(before, _held(other, others), "restored")
    for number in (3, 4):
        _step(model, optimizers, number)
        _step(other, others, number)
    return differ + _differ(_held(model, optimizers), _held(other, others), "stepped")


def _optimizer(name: str, **options: Any) -> Any:
    def make(model: Any) -> Any:
        import torch

        return getattr(torch.optim, name)(model.parameters(), **options)

    return make


def _redundant(name: str, **options: Any) -> Any:
    def make(model: Any) -> Any:
        import torch
        from torch.distributed.optim import ZeroRedundancyOptimizer

        params = list(model.parameters())
        groups = [{"params": params[:3], "lr": 0.02}, {"params": params[3:]}]
        return ZeroRedundancyOptimizer(groups, optimizer_class=getattr(torch.optim, name), lr=0.01, **options)

    return make


def _own_loading(model: Any) -> Any:
    import torch

    class Own(torch.optim.AdamW):
        def load_state_dict(self, state_dict: Any) -> None:
            super().load_state_dict(state_dict)

    return Own(model.parameters(), lr=0.01)


def _hooked_optimizer(model: Any) -> Any:
    made = _optimizer("Adam", amsgrad=True)(model)
    made.register_load_state_dict_post_hook(lambda _: None)
    return made


def _one_each(model: Any) -> dict[str, Any]:
    import torch

    return {name: torch.optim.AdamW([param]) for name, param in model.named_parameters()}


def _hooked(seed: int) -> Any:
    import torch

    net = _net(seed)
    net.register_state_dict_post_hook(lambda _, state, prefix, __: state.__setitem__(prefix + "stamp", torch.ones(1)))
    net.register_load_state_dict_pre_hook(lambda _, state, prefix, *__: state.pop(prefix + "stamp", None))
    return net


def _older(seed: int) -> Any:
    from torch import nn

    class Older(nn.Linear):
        def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
            super()._load_from_state_dict(state, prefix, *rest)

    return _net(seed, Older(6, 7))


def extra(rank: int, path: str, wrap: Any) -> Any:
    """Extra states with tensors in them, or that are one, differ by rank and come back to each."""
    import torch
    from torch import nn

    import unmoor

    class Scaled(nn.Linear):
        def get_extra_state(self) -> Any:
            return self.kept

        def set_extra_state(self, state: Any) -> None:
            self.kept = state

    def made(seed: int, kept: Any) -> Any:
        net = _net(seed, Scaled(6, 7))
        net.a.kept = kept
        return net, wrap(net)

    found = []
    for kept in ({"amax": torch.full((2,), 3.0 + rank), "n": [rank, None]}, torch.arange(3, dtype=torch.uint8) + rank):
        _, model = made(1, kept)
        unmoor.save(path, model=model)
        net, other = made(5, None)
        unmoor.restore(path, model=other)
        inner = getattr(net.a, "_fsdp_wrapped_module", net.a)
        found.append(_differ(_local(kept), _local(inner.kept)))
    return found


def in_use(rank: int, path: str) -> Any:
    """FSDP has parameters whole in the middle of a pass and inside of summon_full_params: the shares stand still."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    import unmoor

    found = {}
    for name, wrap in (("fsdp1", _fsdp1), ("fsdp2", _fsdp2)):
        model = wrap(_net(1))
        said: list[str] = []
        model.b.register_forward_hook(
            lambda *_, said=said, own=model: said.append(_error(unmoor.save, path, model=own))
        )
        made = {"": _optimizer("SGD", lr=0.1)(model)}
        if name == "fsdp1":
            with FullyShardedDataParallel.summon_full_params(model):
                found["summon"] = _error(unmoor.save, path, model=model)
        before = _held(model, made)["model"]
        found[name] = said
        _step(model, made, 0)
        found[name + " trains on"] = bool(_differ(before, _held(model, made)["model"]))
        unmoor.save(path + name, model=model)
    return found


def redundant_files(rank: int, path: str) -> Any:
    """A ZeroRedundancyOptimizer takes a plain run's file, gives one to it, and says what it cannot do."""
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer

    import unmoor

    def one(seed: int, make: Any) -> Any:
        model = _ddp(_net(seed))
        return model, make(model)

    shared = partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.Adam, lr=0.01)
    model, optimizer = one(1, lambda model: shared(model.parameters()))
    for number in range(3):
        _step(model, {"": optimizer}, number)
    unmoor.save(path, model=model, optimizer=optimizer)
    alone = _error(unmoor.save, path + "_alone", model=model, optimizer=optimizer, group=None)
    plain, own = one(5, _optimizer("Adam"))
    unmoor.restore(path, model=plain, optimizer=own)
    optimizer.consolidate_state_dict(0)
    differ = [] if rank else _differ(_local(optimizer.state_dict()["state"]), _local(own.state_dict()["state"]))
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path + ".pt")
    torch.distributed.barrier()
    other, taken = one(7, lambda model: shared(model.parameters()))
    unmoor.restore(path + ".pt", model=other, optimizer=taken)
    for number in (3, 4):
        for some, its in ((model, optimizer), (plain, own), (other, taken)):
            _step(some, {"": its}, number)
    names = dict(model.named_parameters())
    steps = [_differ(_local(names), _local(dict(some.named_parameters()))) for some in (plain, other)]
    inside = shared(model.parameters(), overlap_with_ddp=True)
    return {
        "plain": differ,
        "steps": steps,
        "alone": alone,
        "overlap": _error(unmoor.save, path, model=model, optimizer=inside),
    }


def groups(rank: int, path: str) -> Any:
    """Two groups of two ranks: a model in common is saved once, models of their own each under its own path."""
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    import unmoor

    half = rank // 2
    both = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    meshes = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])]

    def sharded(seed: int) -> Any:
        return fully_shard(_net(seed), mesh=meshes[half])

    def flat(seed: int) -> Any:
        how = {"use_orig_params": True, "device_id": torch.device("cpu"), "process_group": both[half]}
        return FullyShardedDataParallel(_net(seed), **how)

    found = {}
    for name, wrap in (("fsdp2", sharded), ("fsdp1", flat)):
        model, other = wrap(1 + half), wrap(7)
        found[name] = _error(unmoor.save, path + name, model=model)
        common = wrap(3)
        unmoor.save(path + name, model=common)
        unmoor.restore(path + name, model=other)
        found[name + " common"] = _differ(_held(common, {}), _held(other, {}))
        unmoor.save(f"{path}{name}{half}", model=model, group=both[half])
        unmoor.restore(f"{path}{name}{half}", model=other, group=both[half])
        found[name + " own"] = _differ(_held(model, {}), _held(other, {}))
    return found


def refused_hooks(rank: int, path: str) -> Any:
    """What could not be restored is not saved; names that nothing proves are refused where parts are handed over."""
    import torch

    import unmoor

    flat = _error(unmoor.save, path, model=_fsdp1(_hooked(1)))
    state = {("a.w" if name == "a.weight" else name): value for name, value in _older(1).state_dict().items()}
    if rank == 0:
        torch.save(state, path + ".pt")
    torch.distributed.barrier()
    return {"flat": flat, "names": _error(unmoor.restore, path + ".pt", model=_fsdp2(_older(5)))}


def left(rank: int, path: str) -> Any:
    """A folder and a file of ranks that differ in buffers, for a process that looks at them."""
    import unmoor

    for name, wrap in (("folder", _fsdp2), ("file.pt", _ddp)):
        net = _net(1)
        net.n.running_mean += rank
        model = wrap(net)
        unmoor.save(os.path.join(os.path.dirname(path), name), model=model, ema=model, mine=rank)
    return True


_WRAPS = {"ddp": _ddp, "fsdp2": _fsdp2, "fsdp1": _fsdp1, "flat": partial(_fsdp1, original=False)}
_OPTIMIZERS = {
    "own loading": _own_loading,
    "hooked optimizer": _hooked_optimizer,
    "one each": _one_each,
}

CASES: dict[str, Any] = {
    "fsdp1 Adagrad": partial(_goes_on, wrap=_fsdp1, make=_optimizer("Adagrad", lr=0.1)),
    "ddp LBFGS": partial(_goes_on, wrap=_ddp, make=_optimizer("LBFGS", max_iter=3)),
    **{
        f"{name} {word}": partial(_goes_on, wrap=wrap, make=make, live=live)
        for name, wrap in _WRAPS.items()
        for (word, make), live in zip(_OPTIMIZERS.items(), (0, 2, 0), strict=True)
        if (name, word) != ("flat", "one each")
    },
    "zero Adam": partial(_goes_on, wrap=_ddp, make=_redundant("Adam")),
    "zero SGD": partial(_goes_on, wrap=_ddp, make=_redundant("SGD", momentum=0.9), live=1),
    "zero Adagrad": partial(_goes_on, wrap=_ddp, make=_redundant("Adagrad"), live=1),
    "fsdp2 hooked module": partial(_goes_on, wrap=_fsdp2, make=_optimizer("AdamW"), net=_hooked),
    "fsdp2 own module": partial(_goes_on, wrap=_fsdp2, make=_optimizer("AdamW"), net=_older),
    "ddp hooked module": partial(_goes_on, wrap=_ddp, make=_optimizer("AdamW"), net=_hooked),
    **{f"{name} extra": partial(extra, wrap=_WRAPS[name]) for name in ("ddp", "fsdp2", "fsdp1")},
    "in use": in_use,
    "redundant files": redundant_files,
    "refused hooks": refused_hooks,
    "left": left,
    "groups": groups,
}
EXTRA = tuple(name for name in CASES if name.endswith("extra"))
TOLD = ("in use", "redundant files", "refused hooks", "left", "groups")

if __name__ == "__main__":
    main(run)
