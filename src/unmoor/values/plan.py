"""What a restore will do, step by step, as a pure value: printable, comparable, and carried out as it stands.

Must not know torch. Steps are in the order of execution; RNG is always last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .finding import Finding
from .nodes import TensorNode
from .quick import quickly_made
from .target import Slot

__all__ = [
    "AdvanceSchedule",
    "Change",
    "Copy",
    "LoadSchedule",
    "LoadState",
    "MoveModule",
    "Plan",
    "SetOptimizer",
    "SetRng",
    "Step",
]


@dataclass(frozen=True, slots=True)
class MoveModule:
    """Move a live module to `device` before anything is filled."""

    label: str
    device: str
    source: str = ""


@quickly_made
@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """Fill `slot` with the values of a stored tensor. `label` and `name` say whose it is, `path` where it stands."""

    label: str
    name: str
    path: str
    node: TensorNode
    slot: Slot


@dataclass(frozen=True, slots=True, eq=False)
class SetOptimizer:
    """Give an optimizer its groups' options and its state.

    `options` holds for each live group the options to set. `state` holds for each live parameter position its state:
    key -> a Slot that a Copy filled, or a plain value, or a container of those. Positions that are absent end up
    without state. `through` tells to hand the whole to the object's own load_state_dict. `aside` is what to keep beside
    the optimizer for parameters that it does not hold: a state dict whose ids are names. Positions in `left` keep the
    state that they have. `own` are keys of the state dict beside torch's, or with `whole` all of it; `unassigned` is
    state that belongs to no parameter.
    """

    label: str
    options: tuple[Mapping[str, Any], ...]
    state: Mapping[int, Mapping[str, Any]]
    through: bool = False
    aside: Mapping[str, Any] = field(default_factory=dict)
    left: tuple[int, ...] = ()
    own: Mapping[str, Any] = field(default_factory=dict)
    unassigned: Mapping[Any, Any] = field(default_factory=dict)
    whole: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LoadState:
    """Hand `tree` (an inert tree with Slots in the place of tensors) to an object's load_state_dict."""

    label: str
    tree: Any
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class LoadSchedule:
    """Hand `tree` to a scheduler's load_state_dict, then set `groups`: options of its optimizer, group by group."""

    label: str
    tree: Any
    groups: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class AdvanceSchedule:
    """Take a live scheduler `steps` further along its own schedule, its optimizer's groups with it."""

    label: str
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class SetRng:
    """Put a stream into a saved state. `state` is an inert value; a tensor in it is a Slot on the CPU.

    With a `spawn_key`, `state` is that of another rank, from which the stream's own is derived under this key.
    """

    kind: str
    name: str
    index: int
    state: Any
    spawn_key: tuple[int, ...] = ()


Step = MoveModule | Copy | SetOptimizer | LoadState | LoadSchedule | AdvanceSchedule | SetRng


@quickly_made
@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs between file and live run: where, what was saved, what it becomes."""

    label: str
    name: str
    before: str
    after: str
    nbytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """The change as plain JSON values."""
        return {
            "label": self.label,
            "name": self.name,
            "before": self.before,
            "after": self.after,
            "nbytes": self.nbytes,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Everything a restore does and does not do.

    `renamed`, `moved` and `cast` are changes on the way; `fresh` are live things left as they are because the file
    holds nothing for them; `missing` are live things without a counterpart that were let through by policy;
    `unexpected` are saved things that nothing takes. `options` are optimizer settings that change, `kept` live
    settings that a file's could not change. `notes` are one line a label on how it was matched. `extra` are the plain
    values of the file, inert, with Slots in the place of tensors. `sources` are label and file, where a folder of
    several was read. `twins` are pairs of stored tensors that go into the
    same live memory (tied weights) and must be proved equal before anything moves.
    """

    steps: tuple[Step, ...] = ()
    renamed: tuple[Change, ...] = ()
    moved: tuple[Change, ...] = ()
    cast: tuple[Change, ...] = ()
    fresh: tuple[Change, ...] = ()
    missing: tuple[Change, ...] = ()
    unexpected: tuple[Change, ...] = ()
    findings: tuple[Finding, ...] = ()
    path: str = ""
    restored: tuple[str, ...] = ()
    options: tuple[Change, ...] = ()
    kept: tuple[Change, ...] = ()
    not_restored: tuple[Change, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    twins: tuple[tuple[Copy, Copy], ...] = ()
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text

    def copies(self) -> tuple[Copy, ...]:
        """The steps that move tensor data."""
        return tuple(step for step in self.steps if isinstance(step, Copy))

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values: its changes and one row a tensor."""
        changes = ("renamed", "moved", "cast", "options", "kept", "fresh", "missing", "unexpected", "not_restored")
        return {
            "path": self.path,
            "restored": list(self.restored),
            **{name: [change.to_json() for change in getattr(self, name)] for name in changes},
            "notes": [list(note) for note in self.notes],
            "sources": [list(source) for source in self.sources],
            "findings": [finding.to_json() for finding in self.findings],
            "extra": sorted(self.extra),
            "copies": [{"label": c.label, "name": c.name, "path": c.path, "slot": c.slot.id} for c in self.copies()],
        }
