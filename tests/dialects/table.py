"""The table of dialects: what was restored of each program's files, and whether the next steps were equal.

    python -m tests.dialects.table

A number says how many of a kind were restored; where there is none, the program's files hold none.
"""

import re
from collections import Counter

from tests.real.compare import differences

from .resuming import CASES, Case

ROLES = {
    "model": "model",
    "optimizer": "optim",
    "scheduler": "sched",
    "scaler": "scaler",
    "ema": "ema",
    "custom": "custom",
    "rng": "rng",
}
"""Role -> its column."""


def row(case: Case) -> list[str]:
    """Program, format, how many of each role, and "yes" or the first place that differs."""
    resumed = case.run()
    number = Counter(re.sub(r"\[.*\]$", "", label) for label in resumed.report.restored)
    different = next(differences(resumed.wanted, resumed.got), None)
    return [case.program, case.what, *(str(number[role] or "") for role in ROLES), different or "yes"]


def line(cells: list[str]) -> str:
    program, what, *roles, equal = cells
    wide = zip(roles, ROLES.values(), strict=True)
    return f"{program:<12}  {what:<19}  {' '.join(f'{cell:>{len(name)}}' for cell, name in wide)}  {equal}"


if __name__ == "__main__":
    print(line(["written by", "format", *ROLES.values(), "equal"]))
    for one in CASES:
        print(line(row(one)), flush=True)
