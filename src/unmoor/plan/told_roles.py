"""The roles of models that only their keys tell apart: an average or a loss has the structure of a model. Pure."""

from __future__ import annotations

from dataclasses import replace

from unmoor.values.catalog import Catalog, Part

from .role_words import is_average, names_role

__all__ = ["with_told_roles"]


def with_told_roles(catalog: Catalog) -> Catalog:
    """The catalog with `ema` and `loss` for the models that bear such a name beside one that does not.

    What a manifest records stands as it is.
    """
    if (catalog.manifest or {}).get("roles"):
        return catalog
    models = [part for part in catalog.run_parts() if part.role == "model" and part.kind != "tensors"]
    told = {id(part): role for part in models if (role := _role(part))}
    if not told or len(told) == len(models):
        return catalog
    parts = tuple(replace(part, role=told[id(part)]) if id(part) in told else part for part in catalog.parts)
    places = {part.keys: told[id(part)] for part in models if id(part) in told}
    lengths = sorted({len(keys) for keys in places})
    roles = (next((places[e.keys[:n]] for n in lengths if e.keys[:n] in places), e.role) for e in catalog.tensors)
    tensors = tuple(
        entry if entry.role == role else replace(entry, role=role)
        for entry, role in zip(catalog.tensors, roles, strict=True)
    )
    return replace(catalog, parts=parts, tensors=tensors)


def _role(part: Part) -> str:
    return "ema" if is_average(part) else "loss" if names_role(part, "loss") else ""
