"""What safetensors can hold of a save: one flat mapping of names to strided tensors, each written on its own.

A tensor is written in the order of its dimensions with its values resolved (conjugates, negations); two names of one
tensor are written once. Everything that the format lacks is refused, all of it at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from unmoor.errors import UsageError
from unmoor.values.dtypes import DTYPES
from unmoor.values.plan import Change
from unmoor.values.text import is_text, key_text

from .content import Content
from .layouts import layout_of
from .pinned import host_memory
from .rings import fetch
from .windows import storage_ranges

__all__ = ["DenseBlob", "Flat", "flatten"]

_MODULES: Final = ("model", "ema", "loss")
_RESERVED: Final = "__metadata__"
_SHOWN: Final = 20
_NUMBERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(slots=True)
class Flat:
    """Tensors by name as they are written, `aliases` (name -> name written in its place) and what is not kept."""

    role: str
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    converted: list[Change] = field(default_factory=list)


def flatten(content: Content, path: str) -> Flat:
    """The tensors of one module, or of a flat mapping. Raises UsageError naming all that safetensors cannot hold."""
    storage_ranges(content.tensors.values())  # refuses tensors whose memory was freed
    role, faults = _one_role(content)
    state = content.tree if not content.roles else content.tree.get(role, {})
    flat = Flat(role or "extra")
    if isinstance(state, Mapping):
        faults += _take(flat, state, [keys[-1] for keys in content.arrays])
    elif not faults:
        faults.append(f"the tree: a {type(state).__name__}, and no mapping of names to tensors")
    if faults:
        more = [f"and {len(faults) - _SHOWN:,} more"] if len(faults) > _SHOWN else []
        raise UsageError(
            f"{path} was not written: safetensors holds named tensors and nothing else",
            details=(*faults[:_SHOWN], *more),
            remedy=f"Save the whole run as {path.removesuffix('.safetensors')}.pt, or pass one model alone.",
        )
    if "rng" in content.roles:
        flat.converted.append(Change("rng", "", "random number streams", "not written: no place in safetensors"))
    return flat


def _one_role(content: Content) -> tuple[str, list[str]]:
    """The role of the one module that was passed, and everything else that was passed as faults."""
    if not content.roles:
        return "", []
    labels = [label for label, role in content.roles.items() if role["role"] in _MODULES and label == role["role"]]
    role = labels[0] if labels else ""
    own = content.tree.get("rng", {}) if "rng" in content.roles else {}
    faults = [f"{label}: more than one module" for label in labels[1:]]
    others = [label for label in content.roles if label not in (*labels, "rng")]
    faults += [f"{label}: its state is no flat set of tensors" for label in others]
    faults += [f"{key}: a plain value" for key in content.tree if key not in _names_of_roles(content)]
    faults += [f"rng[{name}]: the state of a generator" for name in own.get("generators", ())]
    return role, faults


def _names_of_roles(content: Content) -> set[str]:
    return {str(role["role"]) for role in content.roles.values()}


def _take(flat: Flat, state: Mapping[Any, Any], arrays: list[Any]) -> list[str]:
    written: dict[tuple[Any, ...], str] = {}
    stores: dict[int, str] = {}
    faults = []
    for name, value in state.items():
        why = _refusal(name, value) if name not in arrays else "a numpy array: pass torch.from_numpy of it"
        if why:
            faults.append(f"{key_text((name,))}: {why}")
            continue
        same = _identity(value)
        if same in written:
            flat.aliases[name] = written[same]
            continue
        written[same] = name
        flat.tensors[name] = value.detach()
        flat.converted += _changes(flat.role, name, value, stores)
    return faults


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    window = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return (tensor.untyped_storage()._cdata, *window, tensor.is_conj(), tensor.is_neg())


def _refusal(name: Any, value: Any) -> str:
    """Why the format cannot hold a value under a name; "" where it can."""
    if not isinstance(name, str) or name == _RESERVED or not is_text(name):
        return "no name that a tensor can have"
    if not isinstance(value, torch.Tensor):
        return f"a value of type {type(value).__name__}"
    if layout_of(value) != "strided":
        return f"a tensor of layout {layout_of(value)}"
    row = DTYPES[str(value.dtype).removeprefix("torch.")]
    if not row.safetensors:
        return f"{value.dtype}, which safetensors lacks"
    return f"{value.dtype} without a dimension" if row.family == "packed" and value.dim() == 0 else ""


def _changes(role: str, name: str, tensor: torch.Tensor, stores: dict[int, str]) -> Iterator[Change]:
    """What a reader of the file will not find as it was."""
    other = stores.setdefault(tensor.untyped_storage()._cdata, name)
    if other != name and tensor.numel():
        yield Change(role, name, f"on one storage with {other}", "written on its own")
    if tensor.is_conj() or tensor.is_neg():
        yield Change(role, name, "a lazy conjugate or negation", "its values")
    elif not tensor.is_contiguous():
        yield Change(role, name, "laid out by strides", "laid out in order")
    if tensor.requires_grad and role == "extra":
        yield Change(role, name, "requires_grad", "a plain tensor")


class DenseBlob:
    """The values of one tensor as bytes in the order of its dimensions: in place where they lie so in host memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.nbytes = tensor.numel() * tensor.itemsize
        lazy = tensor.is_conj() or tensor.is_neg()
        self._tensor = tensor if lazy else tensor.view(_NUMBERS.get(tensor.itemsize, tensor.dtype))
        self.device = tensor.device
        plain = not lazy and tensor.is_contiguous()
        self._host = plain and tensor.device.type == "cpu"
        self._flat = self._tensor.reshape(-1).view(torch.uint8) if plain and not self._host else None

    def direct(self, offset: int, nbytes: int) -> memoryview | None:
        """These bytes where they are; None where they must be put in order first."""
        if not self._host or nbytes == 0:
            return None
        return host_memory(self._tensor, self.nbytes)[offset : offset + nbytes]

    def fetch(self, offset: int, target: memoryview) -> None:
        """Copy bytes from `offset`, a whole number of elements, into `target`, which holds whole elements."""
        if self._flat is not None:
            fetch(target, self._flat[offset : offset + len(target)])
            return
        size = self._tensor.itemsize
        flat = torch.frombuffer(target, dtype=torch.uint8).view(self._tensor.dtype)
        _fill(flat, self._tensor, offset // size)


def _fill(target: torch.Tensor, source: torch.Tensor, first: int) -> None:
    """Copy elements `first` to `first + len(target)` of `source`, counted in the order of its dimensions."""
    if source.dim() == 0:
        target.copy_(source.reshape(1))
        return
    if source.dim() == 1:
        target.copy_(source[first : first + len(target)])
        return
    row = source[0].numel()
    done = 0
    while done < len(target):
        index, inside = divmod(first + done, row)
        whole = (len(target) - done) // row
        if inside == 0 and whole:
            target[done : done + whole * row].view(whole, *source.shape[1:]).copy_(source[index : index + whole])
            done += whole * row
        else:
            some = min(row - inside, len(target) - done)
            _fill(target[done : done + some], source[index], inside)
            done += some
