"""Inert trees with Slots in the place of tensors: what a live object is handed once the data has arrived."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from unmoor.values.dtypes import nbytes_of
from unmoor.values.nodes import CompositeTensor, Opaque, TensorNode
from unmoor.values.plan import Copy
from unmoor.values.target import Slot
from unmoor.values.text import key_text

__all__ = ["Template"]


class Template:
    """Copies an inert tree, putting a Slot where each tensor stands and noting the Copy that fills it.

    `make` gives the Slot of a tensor, from the dotted place below the template's root ("" for the root itself).
    `arrays` are ids of tensor nodes that come back as numpy arrays.
    """

    def __init__(
        self,
        label: str,
        name: str,
        keys: tuple[Any, ...],
        make: Callable[[str, TensorNode], Slot],
        arrays: Collection[int] = (),
    ) -> None:
        self._label, self._name, self._keys, self._make, self._arrays = label, name, keys, make, arrays
        self._done: dict[int, Any] = {}
        self._taken: set[str] = set()
        self._open: deque[Callable[[], None]] = deque()
        self.copies: list[Copy] = []

    def __call__(self, value: Any) -> Any:
        """The tree with Slots. What a container holds is put into it once it is made, so that depth costs no stack."""
        made = self._convert(value, ())
        while self._open:
            self._open.popleft()()
        return made

    def _convert(self, value: Any, below: tuple[Any, ...]) -> Any:
        if not isinstance(value, dict | list | tuple | TensorNode | CompositeTensor | Opaque):
            return value
        if id(value) in self._done:
            return self._done[id(value)]
        if isinstance(value, TensorNode):
            filled = self._slot(value, below) if value.quantizer is None else self._quantized(value, below)
            return self._remember(value, filled)
        if isinstance(value, CompositeTensor):
            children = {name: self._convert(node, (*below, name)) for name, node in value.children.items()}
            made = CompositeTensor(
                value.layout, value.shape, value.dtype, children, value.detail, value.requires_grad, value.parameter
            )
            return self._remember(value, made)
        if isinstance(value, tuple):
            return self._remember(value, tuple(self._convert(item, (*below, i)) for i, item in enumerate(value)))
        if isinstance(value, list):
            items: list[Any] = self._remember(value, [])
            self._open.append(lambda: items.extend(self._convert(v, (*below, i)) for i, v in enumerate(value)))
            return items
        return self._object(value, below) if isinstance(value, Opaque) else self._mapping(value, below)

    def _remember(self, value: Any, made: Any) -> Any:
        self._done[id(value)] = made
        return made

    def _mapping(self, value: dict[Any, Any], below: tuple[Any, ...]) -> Any:
        made: Any = OrderedDict() if isinstance(value, OrderedDict) else Counter() if isinstance(value, Counter) else {}
        self._remember(value, made)

        def fill() -> None:
            for key, item in value.items():
                made[self._convert(key, (*below, "key"))] = self._convert(item, (*below, key))
            if hasattr(value, "_metadata"):
                made._metadata = value._metadata

        self._open.append(fill)
        return made

    def _object(self, value: Opaque, below: tuple[Any, ...]) -> Opaque:
        """The same stand-in with Slots inside; still not built."""
        made: Opaque = self._remember(value, Opaque(value.name, how=value.how))

        def fill() -> None:
            made.args = self._convert(value.args, (*below, "args"))
            if value.kwargs is not None:
                made.kwargs = {key: self._convert(item, (*below, key)) for key, item in value.kwargs.items()}
            made.state = self._convert(value.state, below)
            made.items = self._convert(value.items, below)
            made.entries = self._convert(value.entries, (*below, "entries"))

        self._open.append(fill)
        return made

    def _quantized(self, node: TensorNode, below: tuple[Any, ...]) -> CompositeTensor:
        """A quantized tensor as the bytes that it takes in its storage and the numbers that give them meaning."""
        last = sum((size - 1) * step for size, step in zip(node.shape, node.stride, strict=True))
        first, end = nbytes_of(node.dtype, node.offset), nbytes_of(node.dtype, node.offset + last + 1)
        data = replace(
            node, offset=first, shape=(end - first if node.numel else 0,), stride=(1,), dtype="uint8", quantizer=None
        )
        detail = {"quantizer": self._convert(node.quantizer, (*below, "quantizer")), "stride": node.stride}
        children = {"bytes": self._slot(data, below)}
        return CompositeTensor(
            "quantized", node.shape, node.dtype, children, detail, node.requires_grad, node.parameter
        )

    def _slot(self, node: TensorNode, below: tuple[Any, ...]) -> Slot:
        suffix = "".join(f".{key}" for key in below)
        slot = self._make(suffix, node)
        if slot.id in self._taken:  # the keys ("a.b",) and ("a", "b") read alike
            slot = replace(slot, id=f"{slot.id}~{len(self.copies)}")
        self._taken.add(slot.id)
        if id(node) in self._arrays:
            slot = replace(slot, array=True)
        self.copies.append(Copy(self._label, self._name + suffix, key_text((*self._keys, *below)), node, slot))
        return slot
