"""convert to safetensors: the tensors of one flat mapping, read from the source -> head and data -> published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from unmoor.describe import describe_file
from unmoor.errors import UsageError
from unmoor.execute.commit import publish
from unmoor.execute.flat_file import write_flat
from unmoor.values.dtypes import DTYPES, nbytes_of
from unmoor.values.flat_sums import filled
from unmoor.values.nodes import CompositeTensor, TensorNode, kind_of
from unmoor.values.plan import Change
from unmoor.values.report import Receipt
from unmoor.values.strides import contiguous
from unmoor.values.text import is_text, key_text, listing

from .converting_file import hold_against
from .converting_meter import Meter
from .saving_flat import Row, flat_head

if TYPE_CHECKING:
    from unmoor.distributed.stored_sources import Sources
    from unmoor.live.content import Content
    from unmoor.plan.taken import Taken

__all__ = ["Flat", "bytes_of", "check_flat", "flat_of", "head_of", "write_file", "write_flat_nodes"]

_RESERVED: Final = "__metadata__"
_SHOWN: Final = 20


@dataclass(slots=True)
class Flat:
    """Tensors by name, other names of the same, what will not be found as it was, and what cannot be written."""

    nodes: dict[str, TensorNode] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    converted: list[Change] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def write_flat_nodes(target: str, content: Content, taken: Taken, sources: Sources, meter: Meter) -> Receipt:
    """Write the tensors of the tree to `target`, whole and durable. Raises UsageError for all that the format lacks."""
    flat = flat_of(target, content, taken)
    check_flat(flat, sources)
    meter.total(sum(bytes_of(node) for node in flat.nodes.values()))
    meant = [entry for entry in taken.tensors if entry.path in flat.nodes]

    def check(temporary: str) -> None:
        hold_against(describe_file(temporary).tensors, meant, target)

    head, order = head_of(flat, list(flat.nodes), target)
    needed = len(head) + sum(bytes_of(flat.nodes[name]) for name in order)
    with publish(target, needed=needed, durability="disk", check=check) as temporary:
        nbytes = write_file(temporary, flat, head, order, sources, meter)
    return Receipt(target, nbytes, 0.0, {}, converted=(*content.converted, *flat.converted))


def flat_of(target: str, content: Content, taken: Taken) -> Flat:
    """The tensors of the tree by name. Raises UsageError for all that the format lacks."""
    flat = _flat(content, taken)
    if flat.faults:
        more = [f"and {len(flat.faults) - _SHOWN:,} more"] if len(flat.faults) > _SHOWN else []
        raise UsageError(
            f"{target} was not written: safetensors holds named tensors and nothing else",
            details=(*flat.faults[:_SHOWN], *more),
            remedy='Take one model alone, only="model" or its key path; or convert to a .pt file or a folder.',
            path=target,
        )
    return flat


def check_flat(flat: Flat, sources: Sources) -> None:
    """Read and check what the sums of the values, as they are written, do not prove."""
    nodes = [node for node in flat.nodes.values() if node.storage is not None and sources.sums_tensor(node)]
    sources.check_ahead({sources.read_key(node.storage) for node in nodes if node.storage is not None})


def bytes_of(node: TensorNode) -> int:
    """How many bytes a tensor takes in a file."""
    return nbytes_of(node.dtype, node.numel)


def head_of(flat: Flat, names: Sequence[str], target: str) -> tuple[bytes, list[str]]:
    """The head of a file with tensors of these names, and their order in it."""
    order = sorted(names, key=lambda name: -DTYPES[flat.nodes[name].dtype].itemsize)
    rows = {name: Row(node.dtype, node.shape, bytes_of(node)) for name in names for node in (flat.nodes[name],)}
    held = set(names)
    aliases = {name: own for name, own in flat.aliases.items() if own in held}
    return flat_head(rows, order, aliases, target), order


def write_file(path: str, flat: Flat, head: bytes, order: Sequence[str], sources: Sources, meter: Meter) -> int:
    """Write one file, tensor after tensor; its length."""
    data = [(bytes_of(flat.nodes[name]), sources.of_tensor(flat.nodes[name])) for name in order]
    return write_flat(path, head, data, finish=filled, buffer_bytes=sources.buffer_bytes, progress=meter.progress)


def _flat(content: Content, taken: Taken) -> Flat:
    flat = Flat()
    tree = content.tree
    if not isinstance(tree, Mapping):
        flat.faults.append(f"the tree: {kind_of(tree)}, and no mapping of names to tensors")
        return flat
    arrays = {keys[0] for keys in content.arrays if keys}
    written: dict[tuple[Any, ...], str] = {}
    stores: dict[str, str] = {}
    for name, value in tree.items():
        why = _refusal(name, value) if name not in arrays else "a numpy array"
        if why:
            flat.faults.append(f"{key_text((name,))}: {why}")
            continue
        same = _identity(value)
        if same in written:
            flat.aliases[name] = written[same]
            continue
        written[same] = name
        flat.nodes[name] = value
        role = next((entry.role for entry in taken.tensors if entry.node is value), "extra")
        flat.converted += _changes(role, name, value, stores)
    return flat


def _identity(node: TensorNode) -> tuple[Any, ...]:
    key = node.storage.key if node.storage is not None else id(node)
    return (key, node.offset, node.shape, node.stride, node.dtype, node.bits)


def _refusal(name: Any, value: Any) -> str:
    """Why the format cannot hold a value under a name; "" where it can."""
    if not isinstance(name, str) or name == _RESERVED or not is_text(name):
        return "no name that a tensor can have"
    if isinstance(value, CompositeTensor) or (isinstance(value, TensorNode) and value.quantizer is not None):
        return f"a tensor of layout {value.layout if isinstance(value, CompositeTensor) else 'quantized'}"
    if isinstance(value, Mapping):
        return f"a mapping of {listing([str(key) for key in value], 3) or 'nothing'}"
    if not isinstance(value, TensorNode):
        return f"{kind_of(value)}, and no tensor"
    row = DTYPES[value.dtype]
    if not row.safetensors:
        return f"{value.dtype}, which safetensors lacks"
    return f"{value.dtype} without a dimension" if row.family == "packed" and not value.shape else ""


def _changes(role: str, name: str, node: TensorNode, stores: dict[str, str]) -> list[Change]:
    """What a reader of the file will not find as it was."""
    changes = []
    other = stores.setdefault(node.storage.key if node.storage is not None else name, name)
    if other != name and node.numel:
        changes.append(Change(role, name, f"on one storage with {other}", "written on its own"))
    if node.bits:
        changes.append(Change(role, name, "a lazy conjugate or negation", "its values"))
    elif 0 not in node.shape and node.stride != contiguous(node.shape):
        changes.append(Change(role, name, "laid out by strides", "laid out in order"))
    if node.requires_grad:
        changes.append(Change(role, name, "requires_grad", "a plain tensor"))
    return changes
