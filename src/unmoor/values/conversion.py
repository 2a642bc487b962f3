"""What a conversion wrote, as a frozen value. `text` is the sentence form, made by the report stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .plan import Change
from .report import Receipt
from .salvage import Salvage

__all__ = ["Cast", "Conversion"]


@dataclass(frozen=True, slots=True)
class Cast:
    """Tensors of one role that were written in another dtype, and what that lost.

    Of `elements` values `changed` are not what they were: by at most `largest` in proportion, but for `beyond`, which
    the new dtype cannot hold and became infinite or no number, and `zeroed`, which became zero. `names` are those of
    the tensors, `lost` of those with values beyond the range.
    """

    role: str
    before: str
    after: str
    names: tuple[str, ...]
    elements: int = 0
    changed: int = 0
    largest: float = 0.0
    beyond: int = 0
    zeroed: int = 0
    lost: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The cast as plain JSON values."""
        return {
            "role": self.role,
            "before": self.before,
            "after": self.after,
            "tensors": list(self.names),
            "elements": self.elements,
            "changed": self.changed,
            "largest": self.largest,
            "beyond": self.beyond,
            "zeroed": self.zeroed,
            "lost": list(self.lost),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Conversion(Receipt):
    """A receipt that also says what was read and what differs from it.

    `source` is what was read, of `source_format` and `dialect`; `format` what was written: torch, legacy, safetensors
    or dcp, in `files`. `renamed` are names that were changed, `cast` dtypes, `left_out` values that are not in the
    target, on request. `salvage` is what became of a rescue, None where none was asked for.
    """

    source: str = ""
    source_format: str = ""
    dialect: str = ""
    format: str = ""
    files: tuple[str, ...] = ()
    renamed: tuple[Change, ...] = ()
    cast: tuple[Cast, ...] = ()
    left_out: tuple[Change, ...] = ()
    salvage: Salvage | None = None

    def to_json(self) -> dict[str, Any]:
        """The conversion as plain JSON values."""
        return {
            **Receipt.to_json(self),
            "source": self.source,
            "source_format": self.source_format,
            "dialect": self.dialect,
            "format": self.format,
            "files": list(self.files),
            "renamed": [change.to_json() for change in self.renamed],
            "cast": [cast.to_json() for cast in self.cast],
            "left_out": [change.to_json() for change in self.left_out],
            "salvage": None if self.salvage is None else self.salvage.to_json(),
        }
