"""One restore after another into sharded tensors of every odd kind: what each rank holds after it, or its error."""

from __future__ import annotations

import os
from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str, *names: str) -> Any:
    import torch

    torch.manual_seed(0)
    place = os.path.join(folder, "files")
    if rank == 0:
        os.makedirs(place)
    torch.distributed.barrier()
    return {name: CASES[name](rank, world, place) for name in names}


def _written(rank: int, path: str, tree: Any) -> str:
    """A file that rank 0 writes with torch, and every rank reads."""
    import torch

    if rank == 0:
        torch.save(tree, path)
    torch.distributed.barrier()
    return path


def _error(call: Any, **keywords: Any) -> str:
    import unmoor

    try:
        call(**keywords)
    except unmoor.errors.UnmoorError as error:
        return str(error)
    return "no error"


def _mesh(world: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (world,))


def _spread(values: Any, mesh: Any) -> Any:
    """A module whose parameters are DTensors of zeros: name -> (whole value, placement)."""
    import torch
    from torch.distributed.tensor import distribute_tensor

    module = torch.nn.Module()
    for name, (value, placement) in values.items():
        module.register_parameter(
            name, torch.nn.Parameter(distribute_tensor(torch.zeros_like(value), mesh, [placement]))
        )
    return module


def scalars(rank: int, world: int, place: str) -> Any:
    """Parameters without a dimension, of one element, of one row and of none; their state as one step makes it."""
    import torch
    from torch.distributed.tensor import Replicate, Shard

    import unmoor

    values = {
        "none": (torch.tensor(3.5), Replicate()),
        "one": (torch.tensor([4.5]), Shard(0)),
        "row": (torch.randn(1, 4), Shard(0)),
        "empty": (torch.zeros(0, 3), Shard(0)),
        "seven": (torch.randn(7, 2), Shard(0)),
    }
    plain = torch.nn.ParameterDict({name: torch.nn.Parameter(value.clone()) for name, (value, _) in values.items()})
    own = torch.optim.Adam(plain.parameters())
    sum(p.square().sum() for p in plain.values()).backward()
    own.step()
    path = _written(rank, f"{place}/scalars.pt", {"model": plain.state_dict(), "optimizer": own.state_dict()})
    found = {}
    for stepped in (False, True):
        live = _spread(values, _mesh(world))
        optimizer = torch.optim.Adam(live.parameters())
        if stepped:
            for param in live.parameters():
                param.grad = torch.ones_like(param)
            optimizer.step()
        unmoor.restore(path, model=live, optimizer=optimizer, rng=False)
        for name, param in live.named_parameters():
            found[f"{name} {stepped}"] = torch.equal(param.full_tensor(), plain[name])
            for key, value in optimizer.state[param].items():
                whole = value.full_tensor() if hasattr(value, "full_tensor") else value
                form = type(value).__name__ == ("Tensor" if key == "step" else "DTensor")
                found[f"{name} {key} {stepped}"] = form and torch.equal(whole, own.state[plain[name]][key])
    return found


def _fsdp(seed: int = 5, **own: Any) -> Any:
    import torch
    from torch.distributed.fsdp import fully_shard

    from tests.worlds import sharded

    model = sharded.Uneven(seed).to(own.pop("dtype", torch.float32))
    fully_shard(model, **own)
    return model


def _whole(model: Any) -> Any:
    return {n: p.full_tensor().detach() if hasattr(p, "full_tensor") else p for n, p in model.state_dict().items()}


def _equal(model: Any, saved: Any) -> bool:
    import torch

    return all(torch.equal(value, saved[name].to(value.dtype)) for name, value in _whole(model).items())


def casts(rank: int, world: int, place: str) -> Any:
    """Values arrive in another dtype: rounded on request, and exactly in a wider one."""
    import torch

    import unmoor
    from tests.worlds import sharded

    saved = sharded.Uneven(1).state_dict()
    path = _written(rank, f"{place}/casts.pt", saved)
    narrow, wide = _fsdp(dtype=torch.bfloat16), _fsdp(dtype=torch.float64)
    refused = _error(unmoor.restore, path=path, model=narrow, rng=False)
    unmoor.restore(path, model=narrow, cast="any", rng=False)
    unmoor.restore(path, model=wide, rng=False)
    told = "values would be rounded" in refused
    return {"refused": told, "narrow": _equal(narrow, saved), "wide": _equal(wide, saved)}


def missing(rank: int, world: int, place: str) -> Any:
    """A parameter that the file lacks keeps its parts; without the policy nothing is changed."""
    import torch

    import unmoor
    from tests.worlds import sharded

    saved = sharded.Uneven(1).state_dict()
    own = sharded.Uneven(5).state_dict()["second.weight"]
    path = _written(rank, f"{place}/missing.pt", {k: v for k, v in saved.items() if k != "second.weight"})
    model = _fsdp()
    refused = _error(unmoor.restore, path=path, model=model, rng=False)
    before = _whole(model)
    unmoor.restore(path, model=model, missing="fresh", rng=False)
    return {
        "refused": "second.weight" in refused,
        "unchanged": torch.equal(before["second.weight"], own),
        "rest": _equal(model, {**saved, "second.weight": own}),
    }


def bytes_read(rank: int, world: int, place: str) -> Any:
    """A rank reads the bytes of its own rows and of what all have, and no more; unless it is to check first."""
    import torch

    import unmoor
    from tests.worlds import sharded

    model, optimizer = sharded.trained("AdamW")
    path = f"{place}/bytes.pt"
    if rank == 0:
        unmoor.save(path, model=model, optimizer=optimizer, group=None)
    torch.distributed.barrier()
    live = _fsdp()
    own = torch.optim.AdamW(live.parameters())
    report = unmoor.restore(path, model=live, optimizer=own, rng=False)
    local = [p.to_local().nbytes for p in live.parameters()]
    steps = 4 * len(local)
    buffers = sum(b.nbytes for b in live.buffers())
    checked = unmoor.restore(path, model=live, optimizer=own, rng=False, verify="first")
    return {
        "bytes": (report.nbytes, 3 * sum(local) + steps + buffers),
        "told": (report.in_part, "every checksum holds" in " ".join(str(report).split())),
        "first": (checked.in_part, "every checksum holds" in " ".join(str(checked).split())),
    }


def damage(rank: int, world: int, place: str) -> Any:
    """verify="first" finds a byte that no part of this rank has; nothing is changed on any rank."""
    import torch

    import unmoor
    from tests.worlds import sharded

    model = sharded.Uneven(1)
    path = f"{place}/damage.pt"
    if rank == 0:
        unmoor.save(path, model=model, rng=False, group=None)
        entry = next(e for e in unmoor.describe(path).tensors if e.path.endswith("first.weight"))
        with open(path, "r+b") as file:
            file.seek(entry.span.offset)
            file.write(b"\x5a")
    torch.distributed.barrier()
    live = _fsdp()
    before = _whole(live)
    said = _error(unmoor.restore, path=path, model=live, verify="first", rng=False)
    return {"named": "first.weight" in said, "unchanged": _equal(live, before)}


def tied(rank: int, world: int, place: str) -> Any:
    """Two names of one sharded parameter: equal values are taken, different ones refused before anything changes."""
    import torch
    from torch.distributed.fsdp import fully_shard

    import unmoor

    def make() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.Linear(4, 7))
        model[1].weight = model[0].weight
        fully_shard(model)
        return model

    saved = {"0.weight": torch.randn(7, 4), "0.bias": torch.randn(7), "1.bias": torch.randn(7)}
    alike = _written(rank, f"{place}/alike.pt", {**saved, "1.weight": saved["0.weight"].clone()})
    other = saved["0.weight"].clone()
    other[0] += 1
    other[-1] += 1
    differ = _written(rank, f"{place}/differ.pt", {**saved, "1.weight": other})
    model = make()
    refused = _error(unmoor.restore, path=differ, model=model, rng=False)
    unmoor.restore(alike, model=model, rng=False)
    same = model[0].weight is model[1].weight
    values = torch.equal(model[0].weight.full_tensor(), saved["0.weight"])
    return {"refused": "tied weights are not equal" in refused, "same": same, "values": values}


def unclear(rank: int, world: int, place: str) -> Any:
    """DTensors whose local values are summands, or lie apart, are refused by name."""
    import torch
    from torch.distributed.tensor import DTensor, Partial
    from torch.distributed.tensor.placement_types import _StridedShard

    import unmoor

    path = _written(rank, f"{place}/unclear.pt", {"w": torch.randn(8, 2)})
    mesh = _mesh(world)
    own = {"run_check": False, "shape": torch.Size((8, 2)), "stride": (2, 1)}
    summands = DTensor.from_local(torch.zeros(8, 2), mesh, [Partial()], **own)
    apart = DTensor.from_local(torch.zeros(8 // world, 2), mesh, [_StridedShard(0, split_factor=2)], **own)
    return [_error(unmoor.restore, path=path, model={"w": tensor}, rng=False) for tensor in (summands, apart)]


def refusals(rank: int, world: int, place: str) -> Any:
    """State that no rank's part is told of, and an optimizer whose state dict has a form of its own."""
    import torch

    import unmoor
    from tests.worlds import sharded

    class Own(torch.optim.AdamW):
        def state_dict(self) -> Any:
            return {"mine": super().state_dict()["state"]}

    found = {}
    for name, cls in (("Adafactor", torch.optim.Adafactor), ("Own", Own)):
        plain = sharded.Uneven(1)
        optimizer = cls(plain.parameters())
        sharded.step(plain, optimizer, 0)
        tree = {"model": plain.state_dict(), "optimizer": optimizer.state_dict()}
        path = _written(rank, f"{place}/{name}.pt", tree)
        model = _fsdp()
        before = _whole(model)
        found[name] = _error(unmoor.restore, path=path, model=model, optimizer=cls(model.parameters()), rng=False)
        found[name + " unchanged"] = _equal(model, before)
    alone = sharded.LAYOUTS["fsdp1"](sharded.Uneven(5))
    optimizer = torch.optim.AdamW(alone.parameters())
    _, own = sharded.trained("AdamW")
    path = _written(rank, f"{place}/alone.pt", {"optimizer": own.state_dict()})
    found["alone"] = _error(unmoor.restore, path=path, optimizer=optimizer, rng=False)
    model = _fsdp()
    own = torch.optim.AdamW(model.parameters())
    path = _written(rank, f"{place}/moved.pt", sharded.Uneven(1).state_dict())
    found["moved"] = _error(unmoor.restore, path=path, model=model, optimizer=own, model_device="meta", rng=False)
    found["moved alone"] = _error(unmoor.restore, path=path, model=model, model_device="meta", rng=False)
    found["gradients"] = _error(unmoor.gradients(model).state_dict)
    found["stays"] = _error(unmoor.restore, path=path, model=model, model_device="cpu", rng=False)
    return found


def bags(rank: int, world: int, place: str) -> Any:
    """DTensors in a dict, and as a buffer, are filled as parameters are."""
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    import unmoor

    value = torch.randn(7, 3)
    path = _written(rank, f"{place}/bags.pt", {"w": value})
    bag = distribute_tensor(torch.zeros(7, 3), _mesh(world), [Shard(0)])
    module = torch.nn.Module()
    module.register_buffer("w", distribute_tensor(torch.zeros(7, 3), _mesh(world), [Shard(1)]))
    unmoor.restore(path, model={"w": bag}, rng=False)
    unmoor.restore(path, model=module, rng=False)
    return {"bag": torch.equal(bag.full_tensor(), value), "buffer": torch.equal(module.w.full_tensor(), value)}


def resident(rank: int, world: int, place: str) -> Any:
    """Whole parameters that a forward pass left in memory do not outlive a restore."""
    import torch

    import unmoor
    from tests.worlds import sharded

    plain = sharded.Uneven(1).eval()
    path = _written(rank, f"{place}/resident.pt", plain.state_dict())
    words = sharded.batch(3)
    live = {"fsdp2": _fsdp(reshard_after_forward=False)}
    live |= {name: sharded.LAYOUTS[name](sharded.Uneven(5)) for name in ("fsdp1 grads", "fsdp1 grads flat")}
    found = {}
    for name, model in live.items():
        model.eval()
        for grads in (torch.no_grad(), torch.enable_grad()):
            with grads:
                model(words)
                unmoor.restore(path, model=model, rng=False)
                found[f"{name} {grads.__class__.__name__}"] = torch.equal(model(words), plain(words))
    return found


def without_memory(rank: int, world: int, place: str) -> Any:
    """A model that begins on the meta device, with buffers there: each rank makes its own parts; then it trains."""
    import torch

    import unmoor
    from tests.worlds import sharded

    plain, own = sharded.trained("AdamW")
    tree = {"model": plain.state_dict(), "optimizer": own.state_dict()}
    path = _written(rank, f"{place}/meta.pt", tree)
    saved = torch.load(path, weights_only=True)["model"]
    with torch.device("meta"):
        model = sharded.LAYOUTS["fsdp2"](sharded.Uneven(5).to("meta"))
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params)
    unmoor.restore(path, model=model, optimizer=optimizer, model_device="cpu", rng=False)
    kept = all(a is b for a, b in zip(params, model.parameters(), strict=True))
    values = _equal(model, saved)
    theirs = sharded.LAYOUTS["fsdp2"](sharded.Uneven(5))
    other = torch.optim.AdamW(theirs.parameters())
    unmoor.restore(path, model=theirs, optimizer=other, rng=False)
    for number in (1, 2):
        sharded.step(model, optimizer, number)
        sharded.step(theirs, other, number)
    return {"kept": kept, "values": values, "steps": _equal(model, _whole(theirs))}


def outside(rank: int, world: int, place: str) -> Any:
    """A rank that is not of the mesh has no part of the tensor, and changes nothing."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    import unmoor

    value = torch.randn(5, 3)
    path = _written(rank, f"{place}/outside.pt", {"w": value})
    tensor = distribute_tensor(torch.zeros(5, 3), DeviceMesh("cpu", list(range(world - 1))), [Shard(0)])
    report = unmoor.restore(path, model={"w": tensor}, rng=False)
    own = tensor.to_local()
    start = 0 if rank == 0 else 3
    expected = value[start : start + len(own)] if rank < world - 1 else own
    return {"values": torch.equal(own, expected), "bytes": report.nbytes == own.nbytes}


def safetensors(rank: int, world: int, place: str) -> Any:
    """A model out of a safetensors file, into rows and into columns."""
    import torch

    import unmoor
    from tests.worlds import sharded

    plain = sharded.Uneven(1)
    path = f"{place}/model.safetensors"
    if rank == 0:
        unmoor.save(path, model=plain, rng=False, group=None)
    torch.distributed.barrier()
    found = {}
    for layout in ("fsdp2", "fsdp2 columns"):
        model = sharded.LAYOUTS[layout](sharded.Uneven(5))
        unmoor.restore(path, model=model, rng=False)
        found[layout] = _equal(model, plain.state_dict())
    return found


CASES = {
    case.__name__: case
    for case in (
        scalars, casts, missing, bytes_read, damage, tied, unclear, refusals, bags, resident, without_memory, outside,
        safetensors,
    )
}  # fmt: skip

if __name__ == "__main__":
    main(run)
