"""What the caller decided beforehand: named modes, no flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["CHOICES", "Fault", "Policy", "Rename"]

Rename = Mapping[str, str] | Callable[[str], str] | None

CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "missing": ("error", "fresh"),
    "unexpected": ("error", "ignore"),
    "mismatched": ("error", "fresh"),
    "hyperparameters": ("saved", "live"),
    "cast": ("exact", "any"),
    "order": ("proved", "live", "file"),
    "position": ("exact", "epoch", "saved"),
    "verify": ("stream", "first", "none"),
}
"""Every named mode of a restore and its values, the default first. Documentation and checks are made from it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The modes of one restore.

    `missing`: a live tensor that the file lacks. `unexpected`: a saved tensor that nothing takes. `mismatched`: a
    tensor whose shape differs. `hyperparameters`: whose learning rate and other options win. `cast`: which dtype
    changes are let through. `order`: how index-keyed optimizer state finds its parameters. `position`: where in its
    epoch a loader goes on. `rename`: from saved to live names. `only` and `skip`: patterns over live names, of what is
    restored and of what is left alone. `at`: role or label -> key path in the file. `device`: where the models will be
    moved, None for nowhere. `rng`: all, none, or exact (a saved stream left over is a fault). `extras`: where tensors
    among the plain values go.
    """

    missing: str = "error"
    unexpected: str = "error"
    mismatched: str = "error"
    hyperparameters: str = "saved"
    cast: str = "exact"
    order: str = "proved"
    position: str = "exact"
    rename: Rename = None
    only: tuple[str, ...] | None = None
    skip: tuple[str, ...] = ()
    at: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    rng: str = "all"
    extras: str | Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One reason why file and live run do not fit: whose, what, and what to pass to let it through."""

    kind: str
    label: str
    message: str
    remedy: str = ""
