"""The command of a matrix whose cells are judged one by one: its table for one carrier, then what is not equal."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from .carriers import CARRIERS, Carrier
from .report import Outcome, failures, reasons, table

__all__ = ["run"]

Case = TypeVar("Case")


def run(arguments: Sequence[str], cases: Iterable[Case], judge: Callable[[Case, Carrier, Path], Outcome]) -> int:
    """Print the table of the carrier whose name begins as the first argument does; 1 where a cell is not equal."""
    wanted = arguments[0] if arguments else "unmoor"
    carrier = next(c for name, c in CARRIERS.items() if name.startswith(wanted))
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [judge(case, carrier, Path(folder)) for case in cases]
    print(table(outcomes, head=carrier.name))
    for verdict in ("differs", "refused"):
        if text := reasons(outcomes, verdict):
            print(f"\n{verdict}:\n{text}")
    return 1 if failures(outcomes) else 0
