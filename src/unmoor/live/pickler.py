"""Python's pickler, taught the few opcodes by which torch.save writes a tensor.

Nearly all of a checkpoint are tensors in dictionaries under names. Their opcodes are written from templates, one for
all tensors of one shape; what is left goes the way of Python's own pickler. The opcodes are those of torch's writer
(protocol 2, persistent ids for storages), without memo entries that nothing refers to.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from struct import Struct
from typing import Any, ClassVar, Final

import torch
from torch.serialization import location_tag

from .windows import Range, Windows

__all__ = ["TreePickler"]

_BATCH: Final = 1000
_UINT32: Final = Struct("<I")
_GETS: Final = [pickle.BINGET + bytes([index]) for index in range(256)]
_PUTS: Final = [pickle.BINPUT + bytes([index]) for index in range(256)]
_TEXTS: Final = [pickle.BINUNICODE + _UINT32.pack(length) for length in range(20)]


_Python: Any = pickle._Pickler  # the one in C has no place for opcodes of one's own


class TreePickler(_Python):  # type: ignore[misc]
    """Pickles one tree whose tensors `windows` has seen. `used` are the storages met, in the order of their keys."""

    def __init__(self, windows: Windows) -> None:
        self._pieces: list[bytes] = []
        super().__init__(_Sink(self._pieces), protocol=2)
        self.write = self._pieces.append
        self._windows = windows
        self._templates: dict[Any, tuple[bytes, bytes, bytes, int]] = {}
        self._heads: dict[Any, tuple[bytes, bytes]] = {}
        self._tails: dict[Any, bytes] = {}
        self._locations: dict[torch.device, str] = {}
        self.used: list[Range] = []

    def pickled(self, tree: Any) -> bytes:
        """The pickle of `tree`."""
        self.dump(tree)
        return b"".join(self._pieces)

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:  # noqa: FBT001, FBT002 - Python's own signature
        """Write one object, or a reference to it."""
        known = self.memo.get(id(obj))
        if known is not None:
            index = known[0]
            self.write(_GETS[index] if index <= 0xFF else pickle.LONG_BINGET + _UINT32.pack(index))
            return
        own = self.dispatch.get(type(obj))
        if own is None:
            super().save(obj, save_persistent_id)
        else:
            own(self, obj)

    def _mapping(self, obj: Any) -> None:
        """A dict or an OrderedDict. Python's way needs half as many calls again for each level."""
        save, write, state = self.save, self.write, None
        if type(obj) is dict:
            write(pickle.EMPTY_DICT)
        else:
            state = obj.__reduce__()[2]
            save(OrderedDict)
            write(pickle.EMPTY_TUPLE + pickle.REDUCE)
        self.memoize(obj)
        for batch in _batches(obj.items()) if len(obj) > _BATCH else (obj.items(),) if obj else ():
            if len(batch) > 1:
                write(pickle.MARK)
            for key, item in batch:
                save(key)
                save(item)
            write(pickle.SETITEMS if len(batch) > 1 else pickle.SETITEM)
        if state is not None:
            save(state)
            write(pickle.BUILD)

    def _list(self, obj: list[Any]) -> None:
        save, write = self.save, self.write
        write(pickle.EMPTY_LIST)
        self.memoize(obj)
        for batch in _batches(obj) if len(obj) > _BATCH else (obj,) if obj else ():
            if len(batch) > 1:
                write(pickle.MARK)
            for item in batch:
                save(item)
            write(pickle.APPENDS if len(batch) > 1 else pickle.APPEND)

    def _tensor(self, tensor: torch.Tensor) -> None:
        """A plain tensor by its window into the written range; any other as torch does."""
        window = self._windows.known.get(id(tensor)) or self._windows.of(tensor)
        if window is None:
            self.save_reduce(*self._reduced(tensor), obj=tensor)
            return
        entry, offset, shape, stride, dtype = window
        key, nbytes, itemsize = entry.key or self._use(entry), entry.end - entry.start, dtype.itemsize
        untyped = entry.mixed or bool(nbytes % itemsize)
        which = (dtype, shape, stride, tensor.requires_grad, entry.location, untyped)
        template = self._templates.get(which)
        if template is None:
            template = self._template(*which)
            self._templates[which] = self._template(*which)
        head, place, tail, unit = template
        if entry.start:
            offset -= entry.start // itemsize
        if 0 in shape:
            offset = max(0, min(offset, nbytes // itemsize))
        index = len(self.memo)
        self.memo[id(tensor)] = index, tensor
        put = _PUTS[index] if index <= 0xFF else pickle.LONG_BINPUT + _UINT32.pack(index)
        named, sized = _TEXTS[len(key)] + key.encode(), _number(nbytes // unit) + _STORED
        self.write(b"".join((head, named, place, sized, _number(offset), tail, put)))

    def _reduced(self, tensor: torch.Tensor) -> Any:
        """What torch makes of a tensor; over a storage of several dtypes with one of its own, as plain tensors have."""
        reduced = tensor.__reduce_ex__(2)  # type: ignore[no-untyped-call]
        rebuild, (storage, *rest) = reduced[0], reduced[1]
        if rebuild is not torch._utils._rebuild_tensor_v2 or not self._windows.whole(storage._untyped_storage).mixed:
            return reduced
        window, metadata = rest[:5], rest[5:]
        return torch._utils._rebuild_tensor_v3, (storage._untyped_storage, *window, tensor.dtype, *metadata)

    def _template(
        self,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        requires_grad: bool,  # noqa: FBT001 - a field of the tensor
        location: str,
        untyped: bool,  # noqa: FBT001
    ) -> tuple[bytes, bytes, bytes, int]:
        """The opcodes around the key, size and offset of a tensor, and the bytes by which its storage is counted.

        They are all by reference the second time.
        """
        kind = None if untyped else _storage_class(dtype)
        head, place = self._head(kind, location)
        if kind is None:
            return head, place, self._tail(shape, stride, requires_grad, dtype), 1
        return head, place, self._tail(shape, stride, requires_grad, None), dtype.itemsize

    def _head(self, kind: Any, location: str) -> tuple[bytes, bytes]:
        """The opcodes before the key of a storage, and those between the key and the number of its elements."""
        known = self._heads.get((kind, location))
        if known is not None:
            return known
        rebuild = torch._utils._rebuild_tensor_v3 if kind is None else torch._utils._rebuild_tensor_v2
        objects = (rebuild, _MARK, _MARK, "storage", torch.UntypedStorage if kind is None else kind)
        first = self._opcodes(objects), self._opcodes((location,))
        self._heads[kind, location] = self._opcodes(objects), self._opcodes((location,))
        return first

    def _tail(self, shape: Any, stride: Any, requires_grad: Any, dtype: torch.dtype | None) -> bytes:
        """The opcodes behind the offset of a tensor, up to the call that rebuilds it."""
        known = self._tails.get((shape, stride, requires_grad, dtype))
        if known is not None:
            return known
        objects = (shape, stride, requires_grad, OrderedDict, _NO_HOOKS, *(() if dtype is None else (dtype,)), _CALLED)
        first = self._opcodes(objects)
        self._tails[shape, stride, requires_grad, dtype] = self._opcodes(objects)
        return first

    def _opcodes(self, objects: Any) -> bytes:
        """Objects, and opcodes between them, as they are written now: the second time by reference."""
        pieces: list[bytes] = []
        before, self.write = self.write, pieces.append
        try:
            for item in objects:
                if type(item) is _Opcodes:
                    self.write(item)
                else:
                    self.save(item)
        finally:
            self.write = before
        return b"".join(pieces)

    def _typed(self, storage: Any) -> None:
        kind = _storage_class(storage.dtype)
        self._whole(storage._untyped_storage, kind, storage.dtype.itemsize)

    def _untyped(self, storage: torch.UntypedStorage) -> None:
        self._whole(storage, torch.UntypedStorage, 1)

    def _whole(self, storage: torch.UntypedStorage, kind: Any, itemsize: int) -> None:
        """A storage by itself, as torch's own way of pickling has it."""
        entry = self._windows.whole(storage)
        self._use(entry)
        self.save_pers(("storage", kind, entry.key, entry.location, (entry.end - entry.start) // itemsize))

    def _use(self, entry: Range) -> str:
        """The key of a storage, given where it is met first."""
        if not entry.key:
            entry.key = str(len(self.used))
            device = entry.storage.device
            if device not in self._locations:
                self._locations[device] = location_tag(entry.storage)
            entry.location = self._locations[device]
            self.used.append(entry)
        return entry.key

    dispatch: ClassVar[dict[Any, Callable[[Any, Any], None]]] = {
        **_Python.dispatch,
        dict: _mapping,
        OrderedDict: _mapping,
        list: _list,
        torch.Tensor: _tensor,
        torch.storage.TypedStorage: _typed,
        torch.UntypedStorage: _untyped,
    }


class _Sink:
    """What Python's pickler asks for: something with a `write`."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.write = pieces.append


class _Opcodes(bytes):
    """Opcodes among objects."""

    __slots__ = ()


_MARK: Final = _Opcodes(pickle.MARK)
_NO_HOOKS: Final = _Opcodes(pickle.EMPTY_TUPLE + pickle.REDUCE)
_CALLED: Final = _Opcodes(pickle.TUPLE + pickle.REDUCE)
_STORED: Final = pickle.TUPLE + pickle.BINPERSID


def _batches(items: Any) -> Iterator[list[Any]]:
    """The items in runs of as many as Python's pickler puts behind one mark."""
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _storage_class(dtype: torch.dtype) -> Any:
    """The storage class that tells a dtype; None where torch has none."""
    name = torch.storage._dtype_to_storage_type_map().get(dtype)
    return None if name is None else getattr(torch, name)


@lru_cache(maxsize=4096)
def _number(value: int) -> bytes:
    """An int that is not negative, in as few bytes as protocol 2 has for it."""
    if value <= 0xFF:
        return b"K" + value.to_bytes(1, "little")
    if value <= 0xFFFF:
        return b"M" + value.to_bytes(2, "little")
    if value <= 0x7FFFFFFF:
        return b"J" + value.to_bytes(4, "little")
    data = pickle.encode_long(value)
    return pickle.LONG1 + len(data).to_bytes(1, "little") + data
