"""What of a file plays no role in the run: its plain values, for the report, and the parts that nobody asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.nodes import Opaque, TensorNode
from unmoor.values.plan import Change, Copy
from unmoor.values.target import Slot
from unmoor.values.text import format_bytes

from .choose import array_nodes, subtree
from .policy import Policy
from .slots import make_slot
from .templates import Template

__all__ = ["Extras", "plan_extras", "unasked"]

Keys = tuple[Any, ...]


@dataclass(slots=True)
class Extras:
    """The plain values, inert, with Slots in the place of tensors; the copies that fill those; what has no data."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    without_data: list[Change] = field(default_factory=list)


def plan_extras(catalog: Catalog, policy: Policy, used: Collection[Keys]) -> Extras:
    """The tree without the parts that play a role, those at `used` among them."""
    if not isinstance(catalog.tree, Mapping):
        return Extras()
    roles = {part.keys for part in catalog.parts if not _is_extra(part)} | set(used)
    own = (catalog.manifest or {}).get("roles", {})
    roles |= {tuple(entry["keys"]) for entry in own.values() if isinstance(entry, Mapping) and "keys" in entry}
    empty = [entry for entry in catalog.tensors if entry.device == "meta" and entry.span is None and entry.nbytes]
    told = [entry for entry in empty if not any(entry.keys[:length] in roles for length in range(len(entry.keys)))]
    roles |= {entry.keys for entry in told}
    above = {keys[:length] for keys in roles for length in range(len(keys))}
    without = [Change("extra", entry.path, "saved on the meta device: no data", "left out") for entry in told]
    pruned = _prune(catalog.tree, (), roles, above)
    if pruned is _GONE:
        return Extras(without_data=without)
    template = Template("extra", "extra", (), _slot(policy), array_nodes(catalog))
    return Extras(template(pruned), template.copies, without)


def _is_extra(part: Part) -> bool:
    """Whether a part is plain values unless something takes it: tensors by name may be a model's state or not."""
    return part.role == "extra" or part.kind == "tensors"


def _slot(policy: Policy) -> Callable[[str, TensorNode], Slot]:
    """Tensors among plain values stay on the CPU unless a map_location sends their tag elsewhere."""

    def make(suffix: str, node: TensorNode) -> Slot:
        wish = policy.extras
        device = wish if isinstance(wish, str) else "cpu" if wish is None else wish.get(node.device, "cpu")
        return make_slot("extra", device)(suffix, node)

    return make


_GONE: Final = object()


def _prune(node: Any, keys: Keys, roles: set[Keys], above: set[Keys]) -> Any:
    """The node without what stands at `roles`; `above` are the places on the way there."""
    if keys in roles:
        return _GONE
    if keys not in above:
        return node
    if isinstance(node, Mapping):
        pruned = ((key, _prune(item, (*keys, key), roles, above)) for key, item in node.items())
        return {key: value for key, value in pruned if value is not _GONE} or _GONE
    if isinstance(node, list | tuple):
        items = (_prune(item, (*keys, i), roles, above) for i, item in enumerate(node))
        return [value for value in items if value is not _GONE] or _GONE
    return node


def unasked(catalog: Catalog, used: Collection[Keys], *, told: Collection[str]) -> list[Change]:
    """The parts that nothing took. `told` are roles of which it is said elsewhere that they were left out."""
    changes = []
    for part in catalog.parts:
        if part.role == "rng" or part.role in told or _is_extra(part):
            continue
        if any(part.keys[: len(keys)] == keys for keys in used):
            continue
        if _is_in_object(catalog.tree, part.keys):  # it is among the extra values, whole
            continue
        size = f"{part.tensors} tensors, {format_bytes(part.nbytes)}" if part.tensors else "plain values"
        where = "" if part.path == part.role or "file" in part.detail else f" at {part.path}"
        what = "folder" if "file" in part.detail else "file"
        changes.append(Change(part.role, part.path, f"in the {what}{where} ({size})", "not asked for"))
    return changes


def _is_in_object(tree: Any, keys: tuple[Any, ...]) -> bool:
    """Whether a place lies within an object that stands in the file, where nothing can be taken out of it."""
    for key in keys:
        if isinstance(tree, Opaque):
            return True
        if not isinstance(tree, Mapping | list | tuple):
            return False
        tree = subtree(tree, (key,))
    return False
