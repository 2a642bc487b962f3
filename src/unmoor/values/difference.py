"""How two checkpoints differ, as frozen values. `text` is the sentence form, made by the report stage.

Must not know torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Difference", "Distance", "Leaf", "Retagged", "TensorDifference", "ValueDifference"]


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A tensor at a place of one of two trees; `nbytes` are those of its elements.

    `node` is what stands there: a described tensor, a numpy array, or a number that the other side holds as a tensor.
    """

    path: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    nbytes: int
    node: Any = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The leaf as plain JSON values."""
        return {
            "path": self.path,
            "role": self.role,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "device": self.device,
            "nbytes": self.nbytes,
        }


@dataclass(frozen=True, slots=True)
class Distance:
    """How far the elements of two tensors of one shape are apart.

    `differing` elements have other bits (of two dtypes: another value); `not_finite` of these are NaN or infinite on a
    side, and are in none of the numbers. `max_abs` is the largest |a - b|, `max_rel` the largest of
    |a - b| / max(|a|, |b|), `cosine` that of both tensors as vectors, None where one of them is zero. `first` is the
    index of the first differing element, `values` what stands there on each side. `within` tells that every element is
    within the tolerances. All numbers are None for tensors whose elements are not numbers (quantized, packed), or where
    PyTorch is missing.
    """

    differing: int | None
    first: tuple[int, ...] = ()
    values: tuple[Any, Any] | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    cosine: float | None = None
    not_finite: int = 0
    within: bool = False

    def to_json(self) -> dict[str, Any]:
        """The distance as plain JSON values."""
        return {
            "differing": self.differing,
            "first": list(self.first),
            "values": None if self.values is None else [_plain(value) for value in self.values],
            "max_abs": _plain(self.max_abs),
            "max_rel": _plain(self.max_rel),
            "cosine": _plain(self.cosine),
            "not_finite": self.not_finite,
            "within": self.within,
        }


@dataclass(frozen=True, slots=True, eq=False)
class TensorDifference:
    """A tensor that is not the same on both sides.

    `name` is what both sides are told under. `distance` is None where values were not compared: other shapes, or
    structure alone.
    """

    name: str
    a: Leaf
    b: Leaf
    distance: Distance | None = None
    note: str = ""

    @property
    def elements(self) -> int:
        """The number of elements of the first side."""
        return math.prod(self.a.shape)

    @property
    def reshaped(self) -> bool:
        """Whether the shapes differ."""
        return self.a.shape != self.b.shape

    @property
    def cast(self) -> bool:
        """Whether the dtypes differ."""
        return self.a.dtype != self.b.dtype

    @property
    def within(self) -> bool:
        """Whether the shapes are equal and all elements within the tolerances that were asked for."""
        return self.distance is not None and self.distance.within

    def to_json(self) -> dict[str, Any]:
        """The difference as plain JSON values."""
        return {
            "name": self.name,
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "elements": self.elements,
            "distance": None if self.distance is None else self.distance.to_json(),
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A plain value that is not the same on both sides. `kind` is changed, only-a or only-b; `a` and `b` are texts."""

    path: str
    kind: str
    a: str = ""
    b: str = ""
    role: str = "extra"

    def to_json(self) -> dict[str, Any]:
        """The difference as plain JSON values."""
        return {"path": self.path, "kind": self.kind, "a": self.a, "b": self.b, "role": self.role}


@dataclass(frozen=True, slots=True)
class Retagged:
    """Tensors whose device tag alone changed: from `a` to `b`, `tensors` of them, `nbytes` in all."""

    a: str
    b: str
    tensors: int
    nbytes: int

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"a": self.a, "b": self.b, "tensors": self.tensors, "nbytes": self.nbytes}


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """How the checkpoint `b` differs from the checkpoint `a`.

    `compared` tensors stand on both sides, `identical` of them bit for bit, in `changed` the others. `only_a` and
    `only_b` are tensors of one side alone. `values` are plain values that differ: hyper-parameters, schedules,
    counters. `retagged` are changes of device tags, which are no difference. `matched` says how names and parts were
    paired where that is not plain, `notes` what could not be compared. `damaged` names data that does not match its own
    checksum: there the difference is damage. `structure_only` tells that no tensor data was read. `nbytes` were read of
    both in `seconds`.
    """

    a: str
    b: str
    forms: tuple[str, str]
    compared: int
    identical: int
    changed: tuple[TensorDifference, ...]
    only_a: tuple[Leaf, ...]
    only_b: tuple[Leaf, ...]
    values: tuple[ValueDifference, ...]
    retagged: tuple[Retagged, ...] = ()
    matched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    structure_only: bool = False
    tolerances: Mapping[str, float] = field(default_factory=dict)
    nbytes: int = 0
    seconds: float = 0.0
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def equal(self) -> bool:
        """Whether nothing differs that counts: no tensor beyond the tolerances, no value, nothing on one side alone."""
        apart = any(not one.within for one in self.changed)
        return not (apart or self.only_a or self.only_b or self.values or self.damaged)

    def to_json(self) -> dict[str, Any]:
        """The difference as plain JSON values."""
        return {
            "a": self.a,
            "b": self.b,
            "forms": list(self.forms),
            "equal": self.equal,
            "compared": self.compared,
            "identical": self.identical,
            "structure_only": self.structure_only,
            "tolerances": dict(self.tolerances),
            "nbytes": self.nbytes,
            "seconds": self.seconds,
            "matched": list(self.matched),
            "notes": list(self.notes),
            "damaged": list(self.damaged),
            "retagged": [row.to_json() for row in self.retagged],
            "only_a": [leaf.to_json() for leaf in self.only_a],
            "only_b": [leaf.to_json() for leaf in self.only_b],
            "values": [value.to_json() for value in self.values],
            "changed": [one.to_json() for one in self.changed],
        }


def _plain(value: Any) -> Any:
    """A number as JSON has it; NaN, infinity and complex numbers as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)
