"""What stands in the way of the next training step, as a frozen value. `text` is the sentence form, made by report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .finding import Finding

__all__ = ["Diagnosis"]


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """Findings about a live run, worst first, and what was looked at.

    `looked` counts what was looked at: parameters, buffers, state (tensors of optimizers), batch (tensors of the
    batch), others (tensors of losses, metrics and averages). `devices` is tag -> how many of these tensors are there.
    `unseen` are the objects of which nothing could be told, with the reason. Iterating gives the findings.
    """

    findings: tuple[Finding, ...]
    looked: Mapping[str, int]
    devices: Mapping[str, int]
    unseen: tuple[tuple[str, str], ...] = ()
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __bool__(self) -> bool:
        raise TypeError("a diagnosis is neither true nor false: ask for .ok, or for len(diagnosis)")

    @property
    def ok(self) -> bool:
        """Whether no finding is an error: nothing that was looked at makes the step fail or do something else."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make a step fail, or run and not do what it says."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are likely mistakes."""
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as plain JSON values. Each finding has the place of its page in the manual."""
        return {
            "ok": self.ok,
            "findings": [{**finding.to_json(), "page": finding.page} for finding in self.findings],
            "looked": dict(self.looked),
            "devices": dict(self.devices),
            "unseen": [list(pair) for pair in self.unseen],
        }
