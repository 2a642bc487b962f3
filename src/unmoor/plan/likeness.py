"""Whether a model state dict that was taken for an optimizer's state is that of the live model. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from unmoor.values.catalog import Catalog
from unmoor.values.nodes import TensorNode
from unmoor.values.target import Target

from .role_words import key_of

__all__ = ["likeness"]


def likeness(catalog: Catalog, target: Target, wanted: str) -> tuple[str, ...]:
    """A line on how many of the file's names are in the live model, for a file that is one model and no optimizer.

    Without a live model, on how many parameters of the live optimizer have the shape of one of its tensors.
    """
    only = catalog.parts[0] if len(catalog.parts) == 1 else None
    if wanted != "optimizer" or only is None or only.role != "model" or not isinstance(only.node, Mapping):
        return ()
    saved = {str(name): node.shape for name, node in only.node.items() if isinstance(node, TensorNode)}
    live = {name for module in target.modules if key_of(module.label)[0] == "model" for name in module.slots}
    if live:
        return (f"found      {_of(len(saved.keys() & live), len(saved))} of its names are in the live model",)
    shapes = [param.shape for optimizer in target.optimizers for group in optimizer.groups for param in group.params]
    fitting = sum(shape in set(saved.values()) for shape in shapes)
    return (f"found      the shapes of {_of(fitting, len(shapes))} parameters of the live optimizer are in it",)


def _of(number: int, total: int) -> str:
    return f"all {total}" if number == total else f"{number} of {total}"
