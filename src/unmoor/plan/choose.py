"""Which part of the file is meant for which live object.

The file's own record of roles decides where there is one; then the caller's `at`; then structure: the kind of a part,
how its names fit, and only among parts that fit equally well the words of its key path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.dtypes import DTYPES
from unmoor.values.manifests import BY_STRUCTURE
from unmoor.values.nodes import NumpyArray, TensorNode
from unmoor.values.target import TargetModule, TargetOptimizer
from unmoor.values.text import count, key_text, listing

from .policy import Fault
from .role_words import WORDS, AnyTarget, key_of, named_for, stem

__all__ = ["Choice", "array_nodes", "choose", "find_at", "subtree"]


@dataclass(frozen=True, slots=True)
class Choice:
    """What was found for one live object: the part, or the reason why none was taken."""

    part: Part | None
    reason: str = ""
    fault: Fault | None = None


def subtree(tree: Any, keys: Sequence[Any]) -> Any:
    """The node at a key path; KeyError where the path leads nowhere."""
    for key in keys:
        if (isinstance(tree, Mapping) and key in tree) or (
            isinstance(tree, list | tuple) and isinstance(key, int) and -len(tree) <= key < len(tree)
        ):
            tree = tree[key]
        else:
            raise KeyError(key)
    return tree


def array_nodes(catalog: Catalog) -> frozenset[int]:
    """Ids of the tensor nodes that were numpy arrays when unmoor.save wrote them."""
    recorded = (catalog.manifest or {}).get("numpy", ()) or catalog.facts.get("numpy", ())
    nodes = (_at(catalog.tree, keys) for keys in recorded)
    return frozenset(id(node) for node in nodes if isinstance(node, TensorNode) and DTYPES[node.dtype].numpy)


def _at(tree: Any, keys: Sequence[Any]) -> Any:
    """The node at a key path; None where the path leads nowhere."""
    try:
        return subtree(tree, keys)
    except KeyError:
        return None


def find_at(catalog: Catalog, place: Any) -> tuple[Any, ...] | None:
    """The key path that a caller's word means: a tuple of keys, or text with dots, matched against the tree."""
    if isinstance(place, tuple):
        try:
            subtree(catalog.tree, place)
        except KeyError:
            return None
        return place
    return _walk_text(catalog.tree, str(place), ())


def _walk_text(tree: Any, text: str, done: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if not text:
        return done
    pairs: Any = (
        tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    )
    for key, item in pairs:
        name = str(key)
        if text == name:
            return (*done, key)
        if text.startswith(name + ".") and (found := _walk_text(item, text[len(name) + 1 :], (*done, key))):
            return found
    return None


def choose(
    catalog: Catalog,
    target: AnyTarget,
    *,
    at: Mapping[str, Any],
    fits: Callable[[Part], bool],
    rivals: Sequence[AnyTarget],
    alone: bool,
) -> Choice:
    """Find the part for one live object.

    `fits` proves names and shapes; `rivals` are all targets of the same role; `alone` tells that no other module is
    to be restored.
    """
    role, _ = key_of(target.label)
    place = at.get(target.label, at.get(role))
    if place is not None:
        return _chosen_by_caller(catalog, target, place)
    recorded = _recorded(catalog, target)
    if recorded is not None:
        return recorded
    if isinstance(target, TargetModule) and not target.slots:
        return Choice(None, "it holds no tensors")
    wanted = _kind(target)
    parts = _candidates(catalog, target, wanted, alone=len(rivals) == 1 and alone)
    if not parts:
        return _nothing(catalog, target, wanted)
    parts = _under_key(parts, target, rivals) or parts
    if len(parts) == 1:
        return Choice(parts[0])
    fitting = [part for part in parts if fits(part)] or parts
    named = [part for part in fitting if named_for(part, target)] or fitting
    if len(named) == 1:
        return Choice(named[0])
    return Choice(None, fault=_ambiguous(named, target))


def _candidates(catalog: Catalog, target: AnyTarget, wanted: str, *, alone: bool) -> list[Part]:
    """Parts of the right kind. Any model will do for `model`; a loss, an EMA and others must be named by the file."""
    offered = [part for part in catalog.parts if not _is_withheld(part)]
    own = [part for part in offered if part.role == target.role] if target.role != "rng" else []
    if own and target.role != wanted:
        return own
    parts = [part for part in offered if part.role == wanted] if wanted else []
    if wanted != "model" or target.role == "model":
        return parts
    return [part for part in parts if named_for(part, target) or (alone and not part.keys)]


def _is_withheld(part: Part) -> bool:
    """Whether a part is restored only where `at` names it: it lies in a file for another role, or beside the state."""
    return bool(part.detail.get("meant") or part.detail.get("aside"))


def _kind(target: AnyTarget) -> str:
    if isinstance(target, TargetModule):
        return "model"
    if isinstance(target, TargetOptimizer):
        return "optimizer"
    own_form = target.role == "scheduler" and target.schedule is None
    return target.role if target.role in ("scheduler", "scaler", "model") and not own_form else ""


def _recorded(catalog: Catalog, target: AnyTarget) -> Choice | None:
    """What the file's own manifest says of this label; None where it has no manifest, or one that gives no labels."""
    if catalog.manifest is None:
        return None
    entry = catalog.manifest.get("roles", {}).get(target.label)
    if entry is None:
        told = catalog.manifest.get("labels") == BY_STRUCTURE
        return None if told or target.label in (target.role, "") else Choice(None, f"the file holds no {target.label}")
    keys = find_at(catalog, tuple(entry["keys"]))
    return Choice(_part_at(catalog, keys, target)) if keys is not None else None


def _part_at(catalog: Catalog, keys: tuple[Any, ...], target: AnyTarget) -> Part:
    for part in catalog.parts:
        if part.keys == keys:
            return part
    inside = [e for e in catalog.tensors if e.keys[: len(keys)] == keys]
    node = subtree(catalog.tree, keys)
    return Part(target.role, "object", keys, len(inside), sum(e.nbytes for e in inside), {}, node=node)


def _chosen_by_caller(catalog: Catalog, target: AnyTarget, place: Any) -> Choice:
    keys = find_at(catalog, place)
    if keys is None:
        text = place if isinstance(place, str) else key_text(place)
        there = listing([part.path or "(whole file)" for part in catalog.parts], 8)
        return Choice(
            None,
            fault=Fault("mismatch", target.label, f"at= says {text!r}, which is not in the file", f"it holds: {there}"),
        )
    part = _part_at(catalog, keys, target)
    wanted = _kind(target)
    if wanted and part.role != wanted and part.kind not in ("object", "state_dict"):
        return Choice(
            None, fault=Fault("kind", target.label, f"at= says {part.path!r}, which holds {describe_part(part)}", "")
        )
    return Choice(part)


def _under_key(parts: Sequence[Part], target: AnyTarget, rivals: Sequence[AnyTarget]) -> list[Part]:
    """The parts of the same key, or of the same place in a list, where file and caller both have several.

    Names in a file stand in no order that means anything, unless they are one name with numbers.
    """
    _, key = key_of(target.label)
    same = [p for p in parts if key and p.detail.get("key", str(p.keys[-1]) if p.keys else "") == key]
    if same or not key.isdigit() or len(parts) != len(rivals):
        return same
    names = [key_text(part.keys) for part in parts]
    numbered = len({re.sub(r"[^A-Za-z]+", "", name) for name in names}) == 1
    by_number = sorted(range(len(parts)), key=lambda i: [int(number) for number in re.findall(r"[0-9]+", names[i])])
    return [parts[by_number[int(key)]]] if numbered else []


def _nothing(catalog: Catalog, target: AnyTarget, wanted: str) -> Choice:
    """No part of the right kind: a role that stands under its own key, a wrong kind under that key, or nothing."""
    role, key = key_of(target.label)
    mixed = [part for part in catalog.parts if part.detail.get("meant") in (role, wanted or role)]
    if mixed:
        return Choice(None, fault=_wrong_kind(catalog, target, mixed[0]))
    keys = _under_role_key(catalog, role, key)
    if keys is None:
        only = catalog.parts[0] if len(catalog.parts) == 1 and not catalog.parts[0].keys else None
        if only is not None and wanted and only.role != wanted:
            return Choice(None, fault=_wrong_kind(catalog, target, only))
        return Choice(None, _absent(catalog, target, wanted))
    part = _part_at(catalog, keys, target)
    whole = isinstance(target, TargetOptimizer) and target.whole and isinstance(part.node, Mapping)
    if not wanted or whole or (wanted == "scaler" and part.node == {}):
        return Choice(part)
    return Choice(None, fault=_wrong_kind(catalog, target, part))


def _absent(catalog: Catalog, target: AnyTarget, wanted: str) -> str:
    """Why there is nothing for a live object; models that the file keeps under names of other roles are told."""
    models = [part.path for part in catalog.part("model") if part.keys and not _is_withheld(part)]
    if wanted == "model" and models:
        takes = f"at={{{target.label!r}: {models[0]!r}}} takes the one there"
        return f"the {_container(catalog)} names no model for {target.label}; it holds {listing(models)}: {takes}"
    if wanted == "model" and (arrays := _arrays(catalog.tree)):
        return f"the file holds {arrays}, and no model state dict"
    role, _ = key_of(target.label)
    return f"the {_container(catalog)} holds no {_noun(wanted or role)}{_custom(catalog, target)}"


def _under_role_key(catalog: Catalog, role: str, key: str) -> tuple[Any, ...] | None:
    words = dict.fromkeys((role, *WORDS.get(role, ())))
    for root, names in _roots(catalog):
        found = next((names[word] for word in words if word in names), None)
        if found is not None:
            keys = (*root, found)
            return _walk_text(subtree(catalog.tree, keys), key, keys) if key else keys
    return None


def _roots(catalog: Catalog) -> Iterator[tuple[tuple[Any, ...], Mapping[Any, Any]]]:
    """Where roles may stand under their names, and the keys there by name: the file, or a folder, then its files."""
    tree = catalog.tree
    if not isinstance(tree, Mapping):
        return
    if catalog.format != "folder":
        yield (), {key: key for key in tree}
        return
    yield (), {stem(str(key)): key for key in tree}
    for file, inner in tree.items():
        if isinstance(inner, Mapping):
            yield (file,), {key: key for key in inner}


def _container(catalog: Catalog) -> str:
    return "folder" if catalog.format == "folder" else "file"


def _custom(catalog: Catalog, target: AnyTarget) -> str:
    """Where objects of the user's own lie in a folder that numbers them: their names are not saved."""
    files = [part.path for part in catalog.part("custom")]
    if not files or _kind(target):
        return ""
    return f"; it numbers objects of your own: at={{{target.label!r}: {files[0]!r}}} takes {listing(files)}"


def _noun(kind: str) -> str:
    return {
        "model": "model state dict",
        "optimizer": "optimizer state",
        "scheduler": "scheduler state",
        "scaler": "GradScaler state",
    }.get(kind, f"state for {kind}")


def describe_part(part: Part) -> str:
    """A part in words: what kind it is and how one can tell."""
    if part.role == "model":
        return f"a model state dict ({count(part.tensors, 'tensor')} such as {_examples(part)})"
    if part.role == "optimizer":
        family = part.detail.get("family") or "of unknown class"
        return f"an optimizer state ({family}, {count(int(part.detail.get('params', 0)), 'parameter')})"
    if part.role == "scheduler":
        return f"a scheduler state ({part.detail.get('guess') or 'last_epoch'} ...)"
    if part.role == "rng":
        return f"a random number state ({part.kind})"
    if part.role == "extra" and part.node is None:
        return "None"
    if arrays := _arrays(part.node):
        return arrays
    return {"scaler": "a GradScaler state"}.get(part.role, f"plain values ({part.kind})")


def _arrays(node: Any) -> str:
    """What to say of a dict of numpy arrays, which have no place in the file to stream from; "" for anything else."""
    if not isinstance(node, Mapping) or not node or not all(isinstance(item, NumpyArray) for item in node.values()):
        return ""
    named = f"{count(len(node), 'numpy array')} such as {next(iter(node))}"
    return f"{named} (torch.from_numpy of each in unmoor.load(path) gives tensors)"


def _examples(part: Part) -> str:
    """The first and the longest name of a state dict."""
    names = list(map(str, part.node)) if isinstance(part.node, Mapping) else []
    return ", ".join(dict.fromkeys((names[0], max(names, key=len)))) if names else "?"


_EXPECTED: Final = {
    "optimizer": "a dict with 'state' and 'param_groups'",
    "model": "a dict from dotted names to tensors",
    "scheduler": "a dict with 'last_epoch' or '_step_count'",
    "scaler": "a dict with 'scale' and 'growth_factor'",
}


def _wrong_kind(catalog: Catalog, target: AnyTarget, part: Part) -> Fault:
    wanted = _kind(target)
    where = f"{catalog.path}, which" if not part.keys else f"{part.path!r} of {catalog.path}, which"
    found = f"{target.label}= was given {where} holds {describe_part(part)}, not {_noun(wanted)}"
    return Fault("kind", target.label, found, _EXPECTED.get(wanted, ""))


def _ambiguous(parts: Sequence[Part], target: AnyTarget) -> Fault:
    paths = [part.path for part in parts]
    return Fault(
        "ambiguous",
        target.label,
        f"{len(parts)} parts of the file fit equally well: {listing(paths, 6)}",
        f"at={{{target.label!r}: ...}} says which",
    )
