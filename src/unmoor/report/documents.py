"""The JSON document of a catalog, for programs. Pure.

Law: the document is strict JSON in ASCII, its keys are stable, and `schema` changes when the meaning of a key does.
Keys may be added within a schema version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from unmoor.values.catalog import Catalog

from .about import dtypes, wrapped
from .claims import claims
from .content import content, safety
from .members import membership

__all__ = ["SCHEMA", "catalog_document", "document_text", "strict"]

SCHEMA: Final = "unmoor.catalog/1"


def catalog_document(catalog: Catalog) -> dict[str, Any]:
    """A catalog as plain JSON values: everything of `Catalog.to_json`, and what a reader is told of it.

    `content` is the sentence of the text form. `safety` has `level` (safe, code, danger) and `names`, the
    "module.name" of what would have to be imported. `world_size` is the number of ranks that saved, null where nothing
    says it. `writer` is program -> version and `created` the time, as the file claims them. `objects` is what it claims
    of the live objects, by key path: class, wrappers, random streams. `wrapped` tells wrappers by the names of tensors.
    """
    judged, claimed = safety(catalog), claims(catalog)
    told = {
        "schema": SCHEMA,
        "content": content(catalog),
        "safety": {"level": judged.level, "names": list(judged.names)},
        "world_size": claimed.world or None,
        "writer": dict(claimed.writer),
        "created": claimed.created or None,
        "objects": {
            ".".join(keys): {"class": claim.name, "wrappers": list(claim.wrappers), "streams": list(claim.streams)}
            for keys, claim in claimed.objects.items()
        },
        "wrapped": wrapped(membership(catalog)),
        "dtypes": {name: {"tensors": n, "nbytes": b} for name, (n, b) in dtypes(catalog).items()},
    }
    plain = catalog.to_json()
    tensors = plain.pop("tensors")
    return {**{key: strict(value) for key, value in {**told, **plain}.items()}, "tensors": tensors}


def document_text(document: Mapping[str, Any]) -> str:
    """A document as JSON text with one item of each list on a line, so that two of them can be compared by line."""
    return "{\n" + ",\n".join(_field(key, value) for key, value in document.items()) + "\n}"


def _field(key: str, value: Any) -> str:
    if isinstance(value, list) and value:
        items = ",\n".join(f"    {_json(item)}" for item in value)
        return f"  {_json(key)}: [\n{items}\n  ]"
    return f"  {_json(key)}: {_json(value)}"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def strict(value: Any) -> Any:
    """`value` in JSON's own types; what JSON lacks (infinity, bytes, inert objects) as text."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [strict(item) for item in (value if isinstance(value, list | tuple) else _sorted(value))]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > _BITS:
        return f"<int of {value.bit_length()} bits>"
    return value if value is None or isinstance(value, str | int | float) else str(value)


_BITS: Final = 1024
"""Python refuses to write longer integers at some length, and no reader of JSON takes them."""


def _sorted(values: set[Any] | frozenset[Any]) -> Iterator[Any]:
    yield from sorted(values, key=str)
