"""Catalogs of several files as one: each under its own key, or all as one state dict.

Knows no dialect. Spans and storage keys bear the names of their files already, because each file was described so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part, TensorEntry
from unmoor.values.finding import Finding
from unmoor.values.text import count, listing

from .folder_members import Member

__all__ = ["joined", "together"]

_STRUCTURED: Final = frozenset({"model", "optimizer", "scheduler", "scaler", "rng"})
"""Roles that structure tells; a file that is for one of them and holds another is of the wrong kind."""

_AS: Final = {"ema": "model"}
"""Roles whose state has another role's structure."""

Described = tuple[Member, Catalog]


def joined(
    path: str, size: int, shards: Mapping[str, Catalog], tree: Mapping[str, Any], findings: Sequence[Finding]
) -> Catalog:
    """The state dict that several files make up, whose merged mapping is `tree`."""
    catalogs = list(shards.values())
    found = (entry for shard in catalogs for entry in shard.tensors)
    tensors = tuple(entry if entry.role == "model" else replace(entry, role="model") for entry in found)
    detail = {"files": len(catalogs), **({"ordered": False} if _unordered(catalogs) else {})}
    nbytes = sum(entry.nbytes for entry in tensors)
    devices = dict(Counter(entry.device for entry in tensors))
    return Catalog(
        path=path,
        format=catalogs[0].format,
        dialect="plain",
        tensors=tensors,
        parts=(Part("model", "state_dict", (), len(tensors), nbytes, devices, detail, node=tree),),
        globals=_globals(catalogs),
        findings=(*findings, *_findings(shards.items())),
        size=size + sum(shard.size for shard in catalogs),
        storages=tuple(storage for shard in catalogs for storage in shard.storages),
        tree=tree,
        facts={"byteorder": "little", "records": sum(len(shard.storages) for shard in catalogs), "files": [*shards]},
    )


def _unordered(catalogs: Iterable[Catalog]) -> bool:
    """Whether the order of names means nothing: safetensors sorts its tensors by dtype and name."""
    return any(catalog.format == "safetensors" for catalog in catalogs)


def together(
    path: str, dialect: str, described: Sequence[Described], values: Mapping[str, Any], findings: Sequence[Finding]
) -> Catalog:
    """A catalog of files that lie in the folder `path`, each under its key. `values` are plain values beside them."""
    catalogs = [catalog for _, catalog in described]
    extra = [Part("extra", "value", (key,), 0, 0, {}, node=value) for key, value in values.items()]
    wrong = [found for member, catalog in described if (found := _wrong_kind(member, catalog))]
    return Catalog(
        path=path,
        format="folder",
        dialect=dialect,
        tensors=tuple(entry for one in described for entry in _entries(*one)),
        parts=(*(part for one in described for part in _parts(*one)), *extra),
        globals=_globals(catalogs),
        findings=(*findings, *wrong, *_findings([(member.key, catalog) for member, catalog in described])),
        size=sum(catalog.size for catalog in catalogs),
        storages=tuple(storage for catalog in catalogs for storage in catalog.storages),
        tree={**{member.key: catalog.tree for member, catalog in described}, **values},
        facts=_facts(described),
    )


def _facts(described: Sequence[Described]) -> dict[str, Any]:
    """The files by role, and which tensors were numpy arrays in the files that tell."""
    arrays = [
        (member.key, *keys) for member, catalog in described for keys in (catalog.manifest or {}).get("numpy", ())
    ]
    files = [file for member, catalog in described for file in (member.file, *catalog.facts.get("files", ()))]
    return {"files": files, "numpy": arrays}


def _globals(catalogs: Iterable[Catalog]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for catalog in catalogs for name in catalog.globals))


def _findings(named: Iterable[tuple[str, Catalog]]) -> list[Finding]:
    """The findings of all files, each with its file; what all of a kind have alike is told once."""
    alike: dict[tuple[str, str, str, str], list[str]] = {}
    placed: list[Finding] = []
    for name, catalog in named:
        for finding in catalog.findings:
            if finding.place and isinstance(catalog.facts.get("files"), list):
                placed.append(finding)
            elif finding.place:
                placed.append(replace(finding, place=f"{name}.{finding.place}"))
            else:
                told = (finding.code, finding.severity, finding.message, finding.remedy)
                alike.setdefault(told, []).append(name)
    whole = [
        Finding(code, severity, listing(names, 3), message, remedy)
        for (code, severity, message, remedy), names in alike.items()
    ]
    return [*placed, *whole]


def _entries(member: Member, catalog: Catalog) -> list[TensorEntry]:
    key, role = member.key, _owned(member)
    made = []
    for e in catalog.tensors:
        path = f"{key}.{e.path}" if e.path else key
        shared = tuple([f"{key}.{other}" for other in e.shared])
        own = role or _role(member, e.role)
        made.append(TensorEntry(path, own, e.shape, e.dtype, e.stride, e.device, e.nbytes, e.storage, e.span, e.offset,
                                e.layout, e.parameter, shared, (key, *e.keys), e.node))  # fmt: skip
    return made


def _role(member: Member, role: str) -> str:
    """The role of a part in a file that is for a role: a moving average has the structure of a model."""
    return member.role if role == _AS.get(member.role) else role


def _owned(member: Member) -> str:
    """The role of a file that belongs to one object whole, whatever its structure looks like."""
    return member.role if member.role and member.role not in _STRUCTURED and member.role not in _AS else ""


def _parts(member: Member, catalog: Catalog) -> list[Part]:
    detail = _detail(member, catalog)
    if _owned(member) or _is_object(member, catalog):
        node, tensors = catalog.tree, catalog.tensors
        devices = dict(Counter(entry.device for entry in tensors))
        nbytes = sum(entry.nbytes for entry in tensors)
        return [Part(member.role, "object", (member.key,), len(tensors), nbytes, devices, detail, node=node)]
    meant = {"meant": member.role} if _wrong_kind(member, catalog) else {}
    return [
        replace(
            part,
            role=_role(member, part.role),
            keys=(member.key, *part.keys),
            detail={**part.detail, **detail, **(meant if _is_structured(part) else {})},
        )
        for part in catalog.parts
    ]


def _detail(member: Member, catalog: Catalog) -> dict[str, Any]:
    files = catalog.facts.get("files")
    detail: dict[str, Any] = {"file": member.file}
    if isinstance(files, list):
        detail["file"] = f"{member.file} ({count(len(files), 'file')})"
    if member.label:
        detail["key"] = member.label
    if _unordered([catalog]):
        detail["ordered"] = False
    if member.rank is not None:
        detail["rank"] = member.rank
    if member.aside:
        detail["aside"] = True
    return detail


def _is_object(member: Member, catalog: Catalog) -> bool:
    """A scheduler or scaler whose structure is its own: nothing in the file has another role that structure tells."""
    return member.role in ("scheduler", "scaler") and not any(map(_is_structured, catalog.parts))


def _is_structured(part: Part) -> bool:
    return part.role in _STRUCTURED and part.kind != "tensors"


def _wrong_kind(member: Member, catalog: Catalog) -> Finding | None:
    """What to say of a file that is for one role and holds nothing but another."""
    wanted = _AS.get(member.role, member.role)
    held = list(dict.fromkeys(part.role for part in catalog.parts if _is_structured(part)))
    if wanted not in _STRUCTURED or wanted in held or not held:
        return None
    message = f"this file is for the {member.role}, and holds {' and '.join(held)} state"
    return Finding("wrong-kind", "error", member.key, message, "a loader or a copy mixed files up: find the right one")
