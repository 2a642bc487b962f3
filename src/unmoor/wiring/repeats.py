"""Tensors that say far more than they hold: strides that repeat a few elements to sizes that nothing goes through."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from unmoor.errors import HostileFile
from unmoor.values.dtypes import nbytes_of
from unmoor.values.nodes import TensorNode
from unmoor.values.text import format_bytes

__all__ = ["refuse_repeats"]

_ALWAYS: Final = 1 << 30
_TIMES: Final = 1024


def refuse_repeats(path: str, named: Iterable[tuple[str, Any]]) -> None:
    """Raise HostileFile for a tensor of more than 1 GiB that is a thousand times its own storage.

    To look at each of its elements, or to write them out, would take any time or disk; it is loaded as it is.
    """
    for name, node in named:
        if not isinstance(node, TensorNode) or node.storage is None or 0 in node.shape:
            continue
        nbytes, held = nbytes_of(node.dtype, node.numel), node.storage.nbytes
        if nbytes > max(_ALWAYS, _TIMES * held):
            raise HostileFile(
                f"{path}: {name or 'the tensor'} repeats the {format_bytes(held)} of its storage over "
                f"{format_bytes(nbytes)}: its elements are not gone through one by one",
                remedy="unmoor.load and a conversion to a .pt file keep it as it is.",
                path=path,
            )
