"""Digests of live values: equal for equal values in any process, whatever memory or device they lie on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import torch

from .held import Held
from .layouts import strided_parts
from .sinks import host_memory

__all__ = ["Digester"]

_PIECE: Final = 16 << 20


class Digester:
    """Gives the digest of a value as text; keeps those of containers and tensors, so that each is read once."""

    def __init__(self) -> None:
        self._done: dict[int, str] = {}
        self._open: set[int] = set()
        self._keep: list[Any] = []

    def __call__(self, value: Any) -> str:
        """The digest of a tensor, a plain value or a container of them."""
        if id(value) in self._done:
            return self._done[id(value)]
        sink = hashlib.sha256()
        self._feed(sink, value)
        made = sink.hexdigest()
        if isinstance(value, torch.Tensor | Mapping | list | tuple):
            self._keep.append(value)
            self._done[id(value)] = made
        return made

    def structure(self, value: Any) -> str:
        """The digest of a container without what it holds: its class, its keys in their order or its length."""
        inner = list(value) if isinstance(value, Mapping) else len(value)
        return hashlib.sha256(repr((type(value).__name__, inner)).encode()).hexdigest()

    def _feed(self, sink: Any, value: Any) -> None:
        if id(value) in self._open:
            sink.update(b"itself")
            return
        self._open.add(id(value))
        try:
            self._say(sink, value)
        finally:
            self._open.discard(id(value))

    def _say(self, sink: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            _feed_tensor(sink, value)
        elif isinstance(value, Mapping):
            sink.update(f"{type(value).__name__} {len(value)}\n".encode())
            for key, item in value.items():
                sink.update(f"{type(key).__name__} {key!r}\n".encode())
                self._inner(sink, item)
        elif type(value) in (list, tuple):
            sink.update(f"{type(value).__name__} {len(value)}\n".encode())
            for item in value:
                self._inner(sink, item)
        elif isinstance(value, set | frozenset):
            sink.update(f"set {sorted(map(repr, value))}\n".encode())
        elif isinstance(value, Held):
            sink.update(f"held {tuple(value.shape)} {value.dtype}\n".encode())
        else:
            sink.update(f"{type(value).__name__} {value!r}\n".encode())

    def _inner(self, sink: Any, item: Any) -> None:
        """A container or tensor within another by its digest, anything else as it is."""
        if isinstance(item, torch.Tensor | Mapping | list | tuple):
            sink.update((b"itself" if id(item) in self._open else self(item).encode()) + b"\n")
        else:
            self._say(sink, item)


def _feed_tensor(sink: Any, tensor: torch.Tensor) -> None:
    kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "tensor"
    sink.update(f"{kind} {tensor.layout} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}\n".encode())
    for name, part in strided_parts(tensor.detach()).items():
        sink.update(f"{name} {tuple(part.shape)} {part.dtype}\n".encode())
        if part.is_quantized:
            sink.update(f"{part.qscheme()} {_numbers(part)}\n".encode())
        plain = part.int_repr() if part.is_quantized else part.resolve_conj().resolve_neg()
        _feed_bytes(sink, plain.contiguous())


def _numbers(tensor: torch.Tensor) -> Any:
    whole = tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
    return (tensor.q_scale(), tensor.q_zero_point()) if whole else tensor.q_per_channel_axis()


def _feed_bytes(sink: Any, tensor: torch.Tensor) -> None:
    """The bytes of a tensor without gaps, from a device piece by piece."""
    if tensor.numel() == 0:
        return
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.untyped_storage(),
        tensor.storage_offset() * tensor.itemsize,
        (tensor.numel() * tensor.itemsize,),
        (1,),
    )
    for start in range(0, flat.numel(), _PIECE):
        piece = flat[start : start + _PIECE].cpu()
        sink.update(host_memory(piece, piece.numel()))
