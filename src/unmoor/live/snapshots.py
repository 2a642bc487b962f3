"""A run as it is now, copied to the CPU: what a save writes later, whatever training has done to the run by then."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch

from unmoor.values.text import count, format_bytes

from .content import Content
from .held import Held

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


def take(content: Content) -> Snapshot:
    """Copy what is to be written. Tensors that share memory go on sharing it."""
    copier = _Copier()
    tree = copier.tree(content.tree)
    tensors = {keys: copier.tensor(tensor) for keys, tensor in content.tensors.items()}
    held = {keys: copier.held(value) for keys, value in content.held.items()}
    return Snapshot(replace(content, tree=tree, tensors=tensors, held=held, copied=True))


def staged(values: dict[str, Any]) -> dict[str, Any]:
    """Copies of values on the CPU. Tensors that share memory go on sharing it."""
    made: dict[str, Any] = _Copier().tree(values)
    return made


class _Copier:
    """Copies containers, tensors and their storages, each once."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._keep: list[Any] = []

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
            parts = tuple((box, part.detach().to("cpu", copy=True)) for box, part in value.parts)
        made = replace(value, device=torch.device("cpu"), parts=parts, local=None)
        return self._remember(value, made)  # type: ignore[no-any-return]

    def _view(self, value: torch.Tensor) -> torch.Tensor:
        """The same view of a copy of its storage."""
        storage = value.untyped_storage()
        if storage._cdata not in self._storages:
            flat = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            self._storages[storage._cdata] = flat.to("cpu", copy=True).untyped_storage()
        made = torch.empty(0, dtype=value.dtype)
        return made.set_(self._storages[storage._cdata], value.storage_offset(), value.shape, value.stride())

    def _remember(self, value: Any, made: Any) -> Any:
        self._keep.append(value)
        self._done[id(value)] = made
        return made
