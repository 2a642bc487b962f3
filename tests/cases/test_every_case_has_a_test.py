"""The list of cases is kept by a test: each number stands at the head of a docstring of some test here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

CASES = """
C01 C03 C06 C08 C10 C12 C13 C14 C16 C17 C19 C20 C22 C24 C26 C27 C28 C30 C32 C34 C35 C36 C38 C39 C41 C43 C45 C47 C48
C50 C52 C57 C59 C61 C63 C64 C65 C68 C70 C71 C73 C74 C75 C77 C80 C83 C84 C87 C92 C96 C97
""".split()


def _told() -> set[str]:
    """The case numbers at the head of the docstrings of all tests beside this one."""
    heads = []
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and path.name != Path(__file__).name:
                head = ast.get_docstring(node) or ""
                assert re.match(r"C\d\d(, C\d\d)*: ", head), f"{path.name}: {node.name} does not say its case"
                heads.append(head.partition(":")[0])
    return {case for head in heads for case in head.split(", ")}


def test_every_case_has_a_test() -> None:
    """Each case of the list has at least one test, and no test speaks of a case that is not in the list."""
    assert _told() == set(CASES)
