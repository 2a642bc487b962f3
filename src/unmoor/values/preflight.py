"""What one training step on a device in pretence came to, as a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from .finding import Finding
from .mismatch import Mismatch, SourceLine

__all__ = ["INVENTED", "PARTS", "Invented", "Preflight", "Stop"]

PARTS: Final = ("build", "forward", "backward", "optimizer step")
"""The parts of a step, in their order."""

INVENTED: Final = {
    "value": "a value was read, which a fake tensor has not: numbers were taken as 1, conditions as true",
    "shape": "a size depends on values: every element was taken as selected",
}
"""What had to be invented, and by which rule."""


@dataclass(frozen=True, slots=True)
class Invented:
    """A line that asked for what a tensor without data has not; `what` is a key of INVENTED."""

    what: str
    line: SourceLine


@dataclass(frozen=True, slots=True)
class Stop:
    """An error, no mismatch of devices, that ended the step.

    `why` is fails (a real run would fail so too), operator (it cannot be faked) or invented (values had been invented
    before, so that it may not happen in a real run). `trace` is the traceback.
    """

    why: str
    error: str
    message: str
    lines: tuple[SourceLine, ...] = ()
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Preflight:
    """One training step, taken without the device.

    `mismatch` is what a real run would hit, None where nothing was met. `findings` are all that there is to say, the
    mismatch among them. `parts` is part of the step -> how often it was reached. `invented` are the lines at which a
    value had to be invented. `memory` is what -> bytes on the device, without activations. `placed` tells that the
    build function takes no device, so that its model was put there. `stop` is what else ended the step. True where no
    finding is an error.
    """

    build: str
    device: str
    mismatch: Mismatch | None = None
    findings: tuple[Finding, ...] = ()
    parts: Mapping[str, int] = field(default_factory=dict)
    invented: tuple[Invented, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    placed: bool = False
    stop: Stop | None = None
    seconds: float = 0.0
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return self.ok

    @property
    def ok(self) -> bool:
        """Whether nothing was found that would fail."""
        return all(finding.severity not in ("error", "danger") for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The preflight as plain JSON values."""
        return {
            "build": self.build,
            "device": self.device,
            "ok": self.ok,
            "mismatch": None if self.mismatch is None else self.mismatch.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
            "parts": dict(self.parts),
            "invented": [asdict(one) for one in self.invented],
            "memory": dict(self.memory),
            "placed": self.placed,
            "stop": None if self.stop is None else asdict(self.stop),
            "seconds": self.seconds,
            "text": self.text,
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Preflight:
        """A preflight out of what `to_json` gave."""
        stop = row["stop"]
        return cls(
            row["build"],
            row["device"],
            None if row["mismatch"] is None else Mismatch.of(row["mismatch"]),
            tuple(Finding(**one) for one in row["findings"]),
            row["parts"],
            tuple(Invented(one["what"], SourceLine(**one["line"])) for one in row["invented"]),
            row["memory"],
            row["placed"],
            None if stop is None else Stop(**{**stop, "lines": tuple(SourceLine(**one) for one in stop["lines"])}),
            row["seconds"],
            row["text"],
        )

    def told(self, text: str) -> Preflight:
        """The same, with its text."""
        return replace(self, text=text)
