"""The storages of a file as live memory, and tensors as windows into them.

Storages are made once, where they belong; tensors that share one in the file share it here. Nothing looks into the
file's own memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch

from unmoor.errors import UnsupportedFile
from unmoor.values.catalog import Catalog
from unmoor.values.dtypes import BY_STORAGE, dtype_bytes
from unmoor.values.nodes import Storage, TensorNode
from unmoor.values.plan import Copy
from unmoor.values.strides import contiguous
from unmoor.values.target import Slot

from .held import Held
from .memory import roomy_all
from .sinks import TensorSink
from .trees import Realizer, quantized

__all__ = ["LiveStorages", "allocate", "dtype_of", "refuse_other_order"]

_NUMBERS: Final = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def allocate(slot: Slot) -> torch.Tensor | Held:
    """A new tensor for a slot that is to be made, or its parts: each on its own."""
    dtype, device = _kind(slot.dtype, slot.device)
    if slot.boxes is None:
        return torch.empty_strided(slot.shape, slot.stride, dtype=dtype, device=device)
    parts = tuple((box, torch.empty(box.sizes, dtype=dtype, device=device)) for box in slot.boxes)
    return Held(torch.Size(slot.shape), dtype, device, parts)


@lru_cache(maxsize=256)
def _kind(dtype: str, device: str) -> tuple[torch.dtype, torch.device]:
    return dtype_of(dtype), torch.device(device)


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name. Raises UnsupportedFile where this torch lacks it."""
    found: torch.dtype | None = getattr(torch, name, None)
    if found is None:
        raise UnsupportedFile(
            f"the file holds tensors of dtype {name}, which torch {torch.__version__} lacks",
            remedy="Upgrade torch, or convert the file with a torch that has it.",
        )
    return found


def refuse_other_order(catalog: Catalog) -> None:
    """Raise UnsupportedFile where torch is told another order for files that do not say theirs than is read here."""
    asked = getattr(torch.serialization, "get_default_load_endianness", lambda: None)()
    name = getattr(asked, "name", "LITTLE")
    if catalog.facts.get("byteorder_assumed") and (sys.byteorder if name == "NATIVE" else name.lower()) != "little":
        raise UnsupportedFile(
            f"{catalog.path} does not say its byte order, and torch is set to read such files as {name}-endian",
            remedy="Only little-endian is read here: torch.load it, save it again, and the new file says its order.",
            path=catalog.path,
        )


class LiveStorages:
    """Every storage of a file on the device that `placed` (storage key -> tag) gives it.

    `swapped` are those in big-endian order: storage key -> bytes of one number.
    """

    def __init__(self, storages: Sequence[Storage], placed: Mapping[str, str], swapped: Mapping[str, int]) -> None:
        self._units = {key: _NUMBERS[unit] for key, unit in swapped.items()}
        self._stored = {storage.key: storage for storage in storages if storage.span or storage.chunks}
        self._live = {
            key: torch.UntypedStorage(storage.nbytes, device=torch.device(placed[key]))  # type: ignore[no-untyped-call]
            for key, storage in self._stored.items()
        }
        roomy_all(self._live.values())

    def copies(self, names: Mapping[str, str]) -> list[Copy]:
        """The copies that fill them; `names` (storage key -> tensor path) say whose data an error is about."""
        return [self._copy(storage, names.get(key, "")) for key, storage in self._stored.items() if storage.nbytes]

    def _copy(self, storage: Storage, name: str) -> Copy:
        dtype, shape, stride = self._layout(storage)
        node = TensorNode(storage, 0, shape, stride, dtype, storage.device)
        slot = Slot(storage.key, shape, dtype, stride, str(self._live[storage.key].device), dense=True, make=True)
        return Copy("file", name, name, node, slot)

    def _layout(self, storage: Storage) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """dtype, shape and strides of a storage as a tensor: its bytes in a row, or the tensor that its chunks fill."""
        if storage.chunks:
            return storage.dtype, storage.shape, contiguous(storage.shape)
        dtype = self._units.get(storage.key, "uint8")
        return dtype, (storage.nbytes // dtype_bytes(dtype),), (1,)

    def sinks(self) -> dict[str, TensorSink]:
        """Storage key -> sink of its memory."""
        flat = ((key, self._flat(self._stored[key], live)) for key, live in self._live.items())
        return {key: TensorSink(tensor, dense=True, fresh=True) for key, tensor in flat}

    def _flat(self, storage: Storage, live: torch.UntypedStorage) -> torch.Tensor:
        dtype, shape, stride = self._layout(storage)
        return torch.empty(0, dtype=getattr(torch, dtype), device=live.device).set_(live, 0, shape, stride)

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
        dtype = dtype_of(node.dtype)
        if node.storage is None or node.storage.key not in self._live:
            return torch.empty_strided(node.shape, node.stride, dtype=dtype, device="meta")
        live = self._live[node.storage.key]
        if node.quantizer is not None:
            numbers = Realizer(tensor=self.tensor)(node.quantizer)
            return quantized(live, node.dtype, (node.offset, node.shape, node.stride), numbers)
        return torch.empty(0, dtype=dtype, device=live.device).set_(live, node.offset, node.shape, node.stride)
