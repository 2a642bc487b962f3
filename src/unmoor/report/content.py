"""What a file is, in one sentence, and whether it holds code. Pure: catalog in, words out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.finding import Finding
from unmoor.values.nodes import CompositeTensor, NumpyArray, Opaque, TensorNode
from unmoor.values.text import count, format_bytes, listing

from .layout import plain
from .own import OWN

__all__ = [
    "Safety",
    "content",
    "dialect_text",
    "format_text",
    "headline",
    "role_rank",
    "safety",
    "safety_text",
    "writer_text",
]

_FORMATS: Final = {
    "torch-zip": "torch zip",
    "torch-legacy": "torch legacy stream (0.1.10-1.5)",
    "torch-tar": "torch tar (before 0.1.10)",
    "torchscript": "TorchScript archive",
    "safetensors": "safetensors",
    "dcp": "distributed checkpoint",
    "deepspeed": "ZeRO shards",
}

_WRITERS: Final = {
    "lightning": "Lightning",
    "hf-trainer": "the HF Trainer",
    "deepspeed": "DeepSpeed",
    "nanogpt": "nanoGPT",
    "megatron": "Megatron",
    "ultralytics": "Ultralytics",
}
"""Writers whose name is not spelt as their dialect."""

_ORDER: Final = ("model", "ema", "loss", "optimizer", "scheduler", "scaler", "metrics", "loader", "rng", OWN)
"""The order in which roles are told: what is learnt, what learns it, what goes with that."""

_WEIGHTS: Final = frozenset({"model", "ema", "loss"})

_ALONE: Final = {
    "model": "a model state dict",
    "ema": "the state dict of a model's moving average",
    "loss": "a loss state dict",
    "optimizer": "an optimizer state dict",
    "scheduler": "a scheduler state dict",
    "scaler": "a gradient scaler's state",
    "metrics": "a metrics state",
    "loader": "a data loader's state",
    "rng": "the states of random number generators",
}


def headline(catalog: Catalog) -> str:
    """The first line: format, size, who wrote it, what it is."""
    known = [_form(catalog), format_bytes(catalog.size), dialect_text(catalog)]
    return f"{', '.join(word for word in known if word)}: {content(catalog)}"


def _form(catalog: Catalog) -> str:
    files = catalog.facts.get("files")
    if not files:
        return format_text(catalog.format)
    number = count(len(files), "file")
    return f"folder of {number}" if catalog.format == "folder" else f"{format_text(catalog.format)} in {number}"


def format_text(name: str) -> str:
    """A format as a person says it."""
    return _FORMATS.get(name, name.replace("-", " "))


def dialect_text(catalog: Catalog) -> str:
    """Who wrote the file, as a person says it; "" where the format says it all."""
    if catalog.dialect == "plain":
        return "plain dict" if isinstance(catalog.tree, Mapping) and catalog.format.startswith("torch-") else ""
    return writer_text(catalog.dialect)


def writer_text(dialect: str) -> str:
    """The program of a dialect; "" where nothing tells."""
    if dialect == "unmoor":
        return "saved by unmoor"
    return f"written by {_WRITERS.get(dialect, dialect)}" if dialect not in ("", "plain") else ""


def content(catalog: Catalog) -> str:
    """What the file is to someone who wants to resume a run."""
    if catalog.format == "torchscript":
        return f"a program with its weights, not a checkpoint ({count(len(catalog.tensors), 'tensor')})"
    parts = [part for part in catalog.run_parts() if _plays(part)]
    roles = Counter(part.role for part in parts)
    if not roles:
        return _without_roles(catalog)
    told = " + ".join(_how_many(role, roles[role]) for role in sorted(roles, key=role_rank))
    if len(roles) == 1 and roles.total() == 1:
        return _alone(parts[0])
    if _WEIGHTS.issuperset(roles):
        return f"model weights ({told})"
    if not _WEIGHTS & set(roles):
        return f"training state without a model ({told})" if len(roles) > 1 or "rng" not in roles else _ALONE["rng"]
    return f"a training checkpoint ({told})"


def _plays(part: Part) -> bool:
    """Whether a part plays a role for certain and by itself.

    Tensors by name may be a model's state or values of the user's own; what lies aside is not the state of the run.
    """
    return part.role not in ("extra", OWN) and part.kind != "tensors" and not part.detail.get("aside")


def _alone(part: Part) -> str:
    """A file with one part that plays a role."""
    what = f"a pickled {part.role} object" if part.kind == "object" else _ALONE.get(part.role, f"a {part.role} state")
    return f"{what}, inside a larger dict" if part.keys else what


def role_rank(role: str) -> tuple[int, str]:
    """The place of a role in a list of roles; roles that the table lacks come last, by name."""
    return (_ORDER.index(role) if role in _ORDER else len(_ORDER) + (role == "extra"), role)


def _how_many(role: str, number: int) -> str:
    return role if number == 1 or role in ("rng", "metrics", "loss") else count(number, role)


def _without_roles(catalog: Catalog) -> str:
    if isinstance(catalog.tree, TensorNode | CompositeTensor):
        return "a single tensor"
    if catalog.tensors:
        return f"{count(len(catalog.tensors), 'tensor')}, not known as a part of a training run"
    if isinstance(catalog.tree, Mapping) and not catalog.tree:
        return "empty"
    return "values without a tensor" if catalog.parts or catalog.tree is not None else "nothing in it"


@dataclass(frozen=True, slots=True)
class Safety:
    """What code a file asks for: `level` is safe, code (classes that would have to be trusted) or danger.

    `names` are the "module.name" of what would be imported or called; `dangers` are the findings that say what would
    run, `foreign` those that only count such classes.
    """

    level: str
    names: tuple[str, ...]
    dangers: tuple[Finding, ...]
    foreign: tuple[Finding, ...] = ()
    program: bool = False

    @property
    def told(self) -> tuple[Finding, ...]:
        """The findings that `safety_text` tells, so that no other line does."""
        return self.dangers[:1] or self.foreign


def safety(catalog: Catalog) -> Safety:
    """Judge a catalog by its inert tree and its findings."""
    dangers = tuple(finding for finding in catalog.findings if finding.severity == "danger")
    names = tuple(dict.fromkeys(node.name for node in _opaque(catalog.tree)))
    program = catalog.format == "torchscript"
    foreign = tuple(finding for finding in catalog.findings if finding.code == "foreign-class") if names else ()
    return Safety("danger" if dangers else "code" if names or program else "safe", names, dangers, foreign, program)


def safety_text(judged: Safety) -> str:
    """Whether it is safe to load the file, and what it would run or need."""
    if judged.dangers:
        worst = judged.dangers[0]
        return f"DANGEROUS: {plain(worst.message)}" + (f" at {plain(worst.place)}" if worst.place else "")
    if judged.program:
        return "holds a program, none of it was run"
    if judged.names:
        number = len(judged.names)
        named = listing([plain(name) for name in judged.names], 3)
        return f"names {number:,} {'class' if number == 1 else 'classes'} that would need code: {named}"
    return "safe: no code in it"


def _opaque(tree: Any) -> Iterator[Opaque]:
    """Every object in the tree that would need code to exist, in the order of the file."""
    seen: set[int] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Opaque):
            yield node
        waiting.extend(value for value in reversed(_inside(node)) if not isinstance(value, _SCALARS))


_SCALARS: Final = (TensorNode, str, bytes, int, float, complex, type(None))
"""What holds nothing that could hold an object."""


def _inside(node: Any) -> list[Any]:
    if isinstance(node, Mapping):
        return [*node.keys(), *node.values()]
    if isinstance(node, list | tuple | set | frozenset):
        return list(node)
    if isinstance(node, Opaque):
        pairs = [value for pair in node.entries for value in pair]
        return [*node.args, node.state, *(node.kwargs or {}).values(), *node.items, *pairs]
    if isinstance(node, CompositeTensor):
        return list(node.detail.values())
    return list(node.values or ()) if isinstance(node, NumpyArray) else []
