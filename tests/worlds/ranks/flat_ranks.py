"""What FSDP1 runs save rank by rank: local state dicts and each rank's own optimizer state, and what they are whole.

Each variant trains three steps of a small network on equal batches, writes its files into its own folder, and returns
the whole of everything: parameters as FSDP1 gathers them, optimizer state put end to end from the ranks' own pieces.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, StateDictType
from torch.distributed.fsdp._common_utils import _FSDPState

from tests.worlds.ranks import main

__all__ = ["VARIANTS", "Network", "Variant", "optimizer_of", "step"]

STEPS = 3


class Layer(nn.Module):
    """Sizes that no number of ranks divides, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 5)
        self.norm = nn.BatchNorm1d(5)
        self.b = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.norm(self.a(x))))


class Network(nn.Module):
    """Two layers between two others; the scale has one element, so that most ranks hold nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(3, 3)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.scale = nn.Linear(1, 1, bias=False)
        self.out = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.scale(x.unsqueeze(-1)).squeeze(-1))


@dataclass(frozen=True)
class Variant:
    """How a run is wrapped (`wrap`: one, nested, checkpointed) and what its ranks write.

    `files` is sharded (ShardedTensors, as torch gives them), local (plain tensors), copied (plain tensors of their
    own), vectors (plain, without the parameters that FSDP1 names beside) or single (one file a rank with everything).
    `groups` is the number of parameter groups, `low` the dtype that FSDP1 computes in.
    """

    original: bool = False
    wrap: str = "one"
    files: str = "sharded"
    groups: int = 1
    low: torch.dtype | None = None


VARIANTS = {
    "flat": Variant(),
    "flat_local": Variant(files="local"),
    "nested": Variant(wrap="nested"),
    "nested_local": Variant(wrap="nested", files="local"),
    "nested_groups": Variant(wrap="nested", groups=2),
    "checkpointed": Variant(wrap="checkpointed"),
    "single": Variant(wrap="nested", files="single"),
    "original": Variant(original=True),
    "original_nested": Variant(original=True, wrap="nested"),
    "original_groups": Variant(original=True, wrap="nested", groups=2),
    "original_copied": Variant(original=True, wrap="nested", files="copied"),
    "aligned": Variant(original=True, files="vectors"),
    "aligned_nested": Variant(original=True, wrap="nested", files="vectors"),
    "aligned_bf16": Variant(original=True, files="vectors", low=torch.bfloat16),
}


def optimizer_of(params: list[Any], groups: int) -> torch.optim.Optimizer:
    """AdamW over the parameters in order, in one group or in two with rates of their own."""
    cut = len(params) if groups == 1 else len(params) // 2
    own = [{"params": part, "lr": 0.01 * (n + 1)} for n, part in enumerate((params[:cut], params[cut:])) if part]
    return torch.optim.AdamW(own, weight_decay=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    """One step on batch `number`; the loss before it."""
    loss = model(torch.randn(8, 3, generator=torch.Generator().manual_seed(number))).float().pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def wrapped(variant: Variant) -> FullyShardedDataParallel:
    """The network as the variant wraps it, with weights that are the same every time."""
    torch.manual_seed(7)
    model = Network()
    low = None if variant.low is None else MixedPrecision(param_dtype=variant.low, buffer_dtype=variant.low)
    own: dict[str, Any] = {
        "device_id": torch.device("cpu"),
        "use_orig_params": variant.original,
        "mixed_precision": low,
    }
    if variant.wrap == "checkpointed":
        model.layers[0] = checkpoint_wrapper(model.layers[0])
    if variant.wrap != "one":
        for number, layer in enumerate(model.layers):
            model.layers[number] = FullyShardedDataParallel(layer, **own)
        model.scale = FullyShardedDataParallel(model.scale, **own)
    return FullyShardedDataParallel(model, **own)


def local_state(model: FullyShardedDataParallel, variant: Variant) -> dict[str, Any]:
    """What this rank saves of the model."""
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        state = model.state_dict()
    if variant.files == "sharded":
        return state
    plain = {name: _local(value) for name, value in state.items()}
    if variant.files == "vectors":
        named = {name.replace("_fsdp_wrapped_module.", "") for name, _ in model.named_parameters()}
        return {name: value for name, value in plain.items() if name not in named}
    return {name: value.clone() if variant.files == "copied" else value for name, value in plain.items()}


def _local(value: Any) -> torch.Tensor:
    if not hasattr(value, "local_shards"):
        return value
    shards = value.local_shards()
    return shards[0].tensor if shards else torch.empty(0)


def write(folder: Path, rank: int, model: FullyShardedDataParallel, optimizer: Any, variant: Variant) -> None:
    """The files of this rank."""
    folder.mkdir(parents=True, exist_ok=True)
    state, moments = local_state(model, variant), optimizer.state_dict()
    if variant.files == "single":
        state = {name: _local(value) for name, value in state.items()}
        torch.save({"model": state, "optimizer": moments, "iteration": STEPS}, folder / f"model.rank_{rank}.pth")
        return
    torch.save(state, folder / f"model_local_rank{rank}.pt")
    torch.save(moments, folder / f"optim_rank{rank}.pt")


def whole_state(model: FullyShardedDataParallel, optimizer: Any, world: int) -> dict[str, dict[str, torch.Tensor]]:
    """Optimizer state by parameter: every rank's pieces, as FSDP1's own metadata place them, put end to end."""
    shapes: dict[str, Any] = {}
    pieces: dict[str, dict[str, torch.Tensor]] = {}
    for prefix, module in _states(model):
        flat = module._handle.flat_param
        offset = flat._sharded_size.numel() * dist.get_rank()
        starts = module._handle._get_flat_param_offsets()
        kept = [at for at, padding in zip(starts, flat._is_padding_mask, strict=True) if not padding]
        for number, (name, shape, (begin, end)) in enumerate(zip(flat._fqns, flat._shapes, kept, strict=True)):
            name = prefix + name
            shapes[name] = shape
            owner = flat._params[number] if flat._params is not None else flat
            low, high = max(begin, offset), min(end + 1, offset + flat._sharded_size.numel())
            for key, value in optimizer.state.get(owner, {}).items():
                if not value.dim():
                    pieces.setdefault(name, {})[key] = value
                elif low < high:
                    own = value if flat._params is not None else value[low - offset : high - offset]
                    pieces.setdefault(name, {})[key] = own.flatten().clone()
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, pieces)
    whole: dict[str, dict[str, torch.Tensor]] = {}
    for name, shape in shapes.items():
        entries = [own[name] for own in gathered if name in own]
        for key in dict.fromkeys(key for entry in entries for key in entry):
            parts = [entry[key] for entry in entries if key in entry]
            whole.setdefault(name, {})[key] = torch.cat(parts).reshape(shape) if parts[0].dim() else parts[0]
    return whole


def _states(model: nn.Module) -> Any:
    """Every wrapped module with parameters, and what its names begin with in the network."""
    for name, module in model.named_modules():
        if isinstance(module, _FSDPState) and module._handle is not None:
            parts = [part for part in name.split(".") if part and not part.startswith(("_fsdp", "_checkpoint"))]
            yield "".join(f"{part}." for part in parts), module


def run(rank: int, world: int, folder: str, place: str) -> Any:
    found = {}
    for name, variant in VARIANTS.items():
        model = wrapped(variant)
        optimizer = optimizer_of(list(model.parameters()), variant.groups)
        for number in range(STEPS):
            step(model, optimizer, number)
        write(Path(place) / name, rank, model, optimizer, variant)
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            whole = {key: value.clone() for key, value in model.state_dict().items()}
        whole = {key.replace("_checkpoint_wrapped_module.", ""): value for key, value in whole.items()}
        state = whole_state(model, optimizer, world)
        state = {key.replace("_checkpoint_wrapped_module.", ""): value for key, value in state.items()}
        rates = [group["lr"] for group in optimizer.param_groups]
        found[name] = {"model": whole, "state": state, "rates": rates, "next": step(model, optimizer, STEPS)}
        dist.barrier()
    return found if rank == 0 else None


if __name__ == "__main__":
    sys.modules.setdefault("tests.worlds.ranks.flat_ranks", sys.modules["__main__"])
    main(run)
