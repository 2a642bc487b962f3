"""The table of dialects: what was restored of each program's files, and whether the next steps were equal.

python -m tests.dialects.table
"""

from tests.real.compare import differences

from .resuming import CASES, Case

ROLES = ("model", "optimizer", "scheduler", "scaler", "ema", "custom", "rng")


def row(case: Case) -> tuple[str, str, str, str]:
    """Program, format, roles, and "yes" or where the first difference is."""
    try:
        resumed = case.run()
    except Exception as error:
        return case.program, case.what, "", f"{type(error).__name__}: {error}".splitlines()[0]
    different = next(differences(resumed.wanted, resumed.got), None)
    return case.program, case.what, ", ".join(resumed.report.restored), different or "yes"


if __name__ == "__main__":
    print(f"{'written by':<13} {'format':<19} {'restored':<39} equal")
    for case in CASES:
        program, what, roles, equal = row(case)
        print(f"{program:<13} {what:<19} {roles:<39} {equal}", flush=True)
