"""A run as it is now, copied to the CPU: what a save writes later, whatever training has done to the run by then."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from unmoor.values.text import count, format_bytes

from .cleaning import depth_refused
from .content import Content
from .held import Held
from .pickling import StorageBlob
from .staging import Loan, apart
from .windows import storage_ranges

__all__ = ["Snapshot", "staged", "take"]


class Snapshot:
    """Everything that a save of the run would have written at this moment. Pass it to `unmoor.save(path, snapshot)`."""

    def __init__(self, content: Content) -> None:
        self.content = content

    def __str__(self) -> str:
        counts = self.content.counts()
        held = (
            f"{count(sum(n for n, _ in counts.values()), 'tensor')}, {format_bytes(sum(b for _, b in counts.values()))}"
        )
        return f"snapshot of {', '.join(self.content.tree) or 'nothing'}: {held}, on the CPU"

    __repr__ = __str__


def take(content: Content, loan: Loan | None = None) -> Snapshot:
    """Copy what is to be written, into memory of its own or that of `loan`.

    Tensors that share memory go on sharing it.
    """
    copier = _Copier(content.tensors.values(), content.held.values(), loan or apart())
    with depth_refused():
        tree = copier.tree(content.tree)
    tensors = {keys: copier.tensor(tensor) for keys, tensor in content.tensors.items()}
    held = {keys: copier.held(value) for keys, value in content.held.items()}
    return Snapshot(replace(content, tree=tree, tensors=tensors, held=held, copied=True))


def staged(values: dict[str, Any], loan: Loan) -> dict[str, Any]:
    """Copies of values on the CPU, in the memory of `loan`. Tensors that share memory go on sharing it."""
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    held = [value for value in values.values() if isinstance(value, Held)]
    made: dict[str, Any] = _Copier(tensors, held, loan).tree(values)
    return made


class _Copier:
    """Copies containers, tensors and their storages, each once; of a storage what the tensors reach."""

    def __init__(self, tensors: Iterable[torch.Tensor], held: Iterable[Held], loan: Loan) -> None:
        self._done: dict[int, Any] = {}
        self._keep: list[Any] = []
        self._ranges = storage_ranges(tensors)
        parts = [part.detach() for value in {id(value): value for value in held}.values() for _, part in value.parts]
        self._parts = {_place(part): part for part in parts if part.is_contiguous()}
        blobs = [StorageBlob(entry.storage, entry.start, entry.end - entry.start) for entry in self._ranges.values()]
        blobs += [StorageBlob(part.untyped_storage(), *_place(part)[1:]) for part in self._parts.values()]
        staging = loan.stage(blobs)
        made = [_storage(staging.memory, start, blob.nbytes) for blob, start in zip(blobs, staging.starts, strict=True)]
        self._storages = dict(zip((*self._ranges, *self._parts), made, strict=True))

    def tree(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if id(value) in self._done:
            return self._done[id(value)]
        if isinstance(value, Held):
            return self.held(value)
        if isinstance(value, dict):
            made: Any = self._remember(value, type(value)())
            made.update((key, self.tree(item)) for key, item in value.items())
            if isinstance(value, OrderedDict) and hasattr(value, "_metadata"):
                made._metadata = copy.deepcopy(value._metadata)
            return made
        if isinstance(value, list):
            made = self._remember(value, [])
            made.extend(map(self.tree, value))
            return made
        if type(value) is tuple:
            return self._remember(value, tuple(map(self.tree, value)))
        return copy.copy(value)

    def tensor(self, value: torch.Tensor) -> torch.Tensor:
        if id(value) in self._done:
            found: torch.Tensor = self._done[id(value)]
            return found
        plain = value.layout == torch.strided and not (value.is_conj() or value.is_neg() or value.is_quantized)
        with torch.no_grad():
            made = self._view(value) if plain else copy.deepcopy(value.detach()).cpu()
        if isinstance(value, torch.nn.Parameter):
            made = torch.nn.Parameter(made, value.requires_grad)
        return self._remember(value, made.requires_grad_(value.requires_grad))  # type: ignore[no-any-return]

    def held(self, value: Held) -> Held:
        """This rank's parts, each copied by itself: the memory around them is not what is saved."""
        if id(value) in self._done:
            found: Held = self._done[id(value)]
            return found
        with torch.no_grad():
            parts = tuple((box, self._part(part.detach())) for box, part in value.parts)
        made = replace(value, device=torch.device("cpu"), parts=parts, local=None)
        return self._remember(value, made)  # type: ignore[no-any-return]

    def _view(self, value: torch.Tensor) -> torch.Tensor:
        """The same view of a copy of its storage."""
        entry = self._ranges.get(value.untyped_storage()._cdata)
        if entry is None:
            return value.detach().to("cpu", copy=True)
        offset = max(0, value.storage_offset() - entry.start // value.itemsize)
        made = torch.empty(0, dtype=value.dtype, device="cpu")
        return made.set_(self._storages[entry.storage._cdata], offset, value.shape, value.stride())

    def _part(self, part: torch.Tensor) -> torch.Tensor:
        storage = self._storages.get(_place(part)) if part.is_contiguous() else None
        if storage is None:
            return part.to("cpu", copy=True)
        return torch.empty(0, dtype=part.dtype, device="cpu").set_(storage, 0, part.shape, part.stride())

    def _remember(self, value: Any, made: Any) -> Any:
        self._keep.append(value)
        self._done[id(value)] = made
        return made


def _place(part: torch.Tensor) -> tuple[int, int, int]:
    """Which bytes a contiguous tensor is: its storage, where it begins in that, and how many."""
    return part.untyped_storage()._cdata, int(part.storage_offset()) * part.itemsize, part.numel() * part.itemsize


def _storage(memory: memoryview, start: int, nbytes: int) -> torch.UntypedStorage:
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()
    return torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=start).untyped_storage()
