"""The storages of a file as live memory, and tensors as windows into them.

Storages are made once, where they belong; tensors that share one in the file share it here. Nothing looks into the
file's own memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from unmoor.values.dtypes import BY_STORAGE, dtype_bytes
from unmoor.values.nodes import Storage, TensorNode
from unmoor.values.plan import Copy
from unmoor.values.target import Slot

from .sinks import TensorSink
from .trees import Realizer

__all__ = ["LiveStorages", "allocate"]


def allocate(slot: Slot) -> torch.Tensor:
    """A new tensor for a slot that is to be made."""
    dtype = getattr(torch, slot.dtype)
    return torch.empty_strided(slot.shape, slot.stride, dtype=dtype, device=torch.device(slot.device))


class LiveStorages:
    """Every storage of a file on the device that `placed` (storage key -> tag) gives it."""

    def __init__(self, storages: Sequence[Storage], placed: Mapping[str, str]) -> None:
        self._stored = {storage.key: storage for storage in storages if storage.span is not None}
        self._live = {
            key: torch.UntypedStorage(storage.nbytes, device=torch.device(placed[key]))  # type: ignore[no-untyped-call]
            for key, storage in self._stored.items()
        }

    def copies(self, names: Mapping[str, str]) -> list[Copy]:
        """The copies that fill them; `names` (storage key -> tensor path) say whose data an error is about."""
        return [self._copy(storage, names.get(key, "")) for key, storage in self._stored.items() if storage.nbytes]

    def _copy(self, storage: Storage, name: str) -> Copy:
        dtype = storage.dtype if storage.byteorder == "big" else "uint8"
        shape = (storage.nbytes // dtype_bytes(dtype),)
        node = TensorNode(storage, 0, shape, (1,), dtype, storage.device)
        slot = Slot(storage.key, shape, dtype, (1,), str(self._live[storage.key].device), dense=True, make=True)
        return Copy("file", name, name, node, slot)

    def sinks(self) -> dict[str, TensorSink]:
        """Storage key -> sink of its memory."""
        return {key: TensorSink(self._flat(self._stored[key], live), dense=True) for key, live in self._live.items()}

    def _flat(self, storage: Storage, live: torch.UntypedStorage) -> torch.Tensor:
        dtype = getattr(torch, storage.dtype) if storage.byteorder == "big" else torch.uint8
        count = storage.nbytes // dtype.itemsize
        return torch.empty(0, dtype=dtype, device=live.device).set_(live, 0, (count,), (1,))

    def remap(self, call: Callable[[torch.UntypedStorage, str], Any], pinned: Collection[str]) -> None:
        """Let a map_location callable take each storage, with the tag it was saved under; None keeps it on the CPU.

        `pinned` are keys that stay where they are.
        """
        for key, live in list(self._live.items()):
            if key in pinned:
                continue
            made = call(live, self._stored[key].device)
            if made is not None:
                self._live[key] = getattr(made, "_untyped_storage", made)

    def persistent(self, pid: Any) -> Any:
        """What a persistent id of torch's pickles stands for: a storage, or the class of a module with its source."""
        kind, what = pid[0], pid[1]
        if kind != "storage":
            return what
        dtype = torch.uint8 if what is torch.UntypedStorage else getattr(torch, BY_STORAGE[what.__name__].name)
        live = self._live.get(str(pid[2]))
        live = torch.UntypedStorage(0) if live is None else live  # type: ignore[no-untyped-call]
        return torch.storage.TypedStorage(wrap_storage=live, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]

    def tensor(self, node: TensorNode) -> torch.Tensor:
        """The live tensor of a stored one: same dtype, shape, strides and sharing."""
        made = self._window(node)
        if node.bits:
            torch._utils.set_tensor_metadata(made, dict.fromkeys(node.bits, True))  # type: ignore[no-untyped-call]
        if node.parameter:
            return torch.nn.Parameter(made, requires_grad=node.requires_grad)
        return made.requires_grad_(node.requires_grad) if node.requires_grad else made

    def _window(self, node: TensorNode) -> torch.Tensor:
        dtype = getattr(torch, node.dtype)
        if node.storage is None or node.storage.key not in self._live:
            return torch.empty_strided(node.shape, node.stride, dtype=dtype, device="meta")
        live = self._live[node.storage.key]
        if node.quantizer is not None:
            quantizer = Realizer(tensor=self.tensor)(node.quantizer)
            typed = torch.storage.TypedStorage(wrap_storage=live, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
            made: torch.Tensor = torch._utils._rebuild_qtensor(  # type: ignore[no-untyped-call]
                typed, node.offset, node.shape, node.stride, quantizer, False, OrderedDict()
            )
            return made
        return torch.empty(0, dtype=dtype, device=live.device).set_(live, node.offset, node.shape, node.stride)
