"""Exit codes: what each says, and which error ends with which. One table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from unmoor.errors import FileError, FitError, MachineError, UsageError

if TYPE_CHECKING:
    from unmoor.values.finding import Finding

__all__ = [
    "DANGER",
    "DIFFERENT",
    "EXIT_CODES",
    "FILE",
    "FINDINGS",
    "FINE",
    "FIT",
    "INTERNAL",
    "INTERRUPTED",
    "MACHINE",
    "USAGE",
    "exit_code",
    "lacks_torch",
    "verdict",
]

FINE: Final = 0
FINDINGS: Final = 1
USAGE: Final = 2
FILE: Final = 3
FIT: Final = 4
MACHINE: Final = 5
DANGER: Final = 6
DIFFERENT: Final = 7
INTERNAL: Final = 70
INTERRUPTED: Final = 130

EXIT_CODES: Final[dict[int, str]] = {
    FINE: "fine",
    FINDINGS: "read, and something in it will fail: see the lines marked error",
    USAGE: "the command was called wrong; no file was read",
    FILE: "the file is broken, hostile, or no checkpoint",
    FIT: "file and live run do not fit together; nothing was changed",
    MACHINE: "the machine failed: disk, memory, permissions, or no PyTorch",
    DANGER: "the file would run code that no checkpoint needs; nothing of it was run",
    DIFFERENT: "two things that were compared differ (diff, prove)",
    INTERNAL: "a fault in unmoor itself",
    INTERRUPTED: "interrupted",
}
"""Every exit code and what it means; `unmoor --help` prints this table."""

_FAULTS: Final = ((UsageError, USAGE), (FileError, FILE), (FitError, FIT), (MachineError, MACHINE))


def exit_code(error: BaseException) -> int:
    """The exit code for an error that ends a command: whose fault it is."""
    if isinstance(error, click.ClickException):
        return USAGE
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return INTERRUPTED
    for kind, code in _FAULTS:
        if isinstance(error, kind):
            return code
    return MACHINE if isinstance(error, OSError | MemoryError) or lacks_torch(error) else INTERNAL


def lacks_torch(error: BaseException) -> bool:
    """Whether a command failed because PyTorch is not installed."""
    return isinstance(error, ModuleNotFoundError) and error.name == "torch"


def verdict(findings: Sequence[Finding]) -> int:
    """The exit code that findings ask for: the gravest of them decides."""
    severities = {finding.severity for finding in findings}
    return DANGER if "danger" in severities else FINDINGS if "error" in severities else FINE
