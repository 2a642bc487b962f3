"""The list of cases is kept by a test: each number stands at the head of a docstring of some test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent

CASES = """
C01 C03 C04 C06 C08 C10 C12 C13 C14 C16 C17 C19 C20 C22 C24 C26 C27 C28 C30 C32 C34 C35 C36 C38 C39 C41 C42 C43 C45 C47
C48 C50 C52 C53 C54 C55 C57 C59 C61 C63 C64 C65 C68 C70 C71 C73 C74 C75 C77 C80 C83 C84 C85 C86 C87 C88 C90 C92 C94 C96
C97
""".split()


def _heads(path: Path) -> Iterator[tuple[str, str]]:
    """Each test of a file, and the head of its docstring as far as it names cases."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found = re.match(r"(C\d\d(?:, C\d\d)*): ", ast.get_docstring(node) or "")
            yield node.name, found[1] if found else ""


def test_every_test_here_says_its_case() -> None:
    """Each test beside this one begins its docstring with the case, or cases, that it is about."""
    files = [path for path in HERE.glob("test_*.py") if path.name != Path(__file__).name]
    assert [f"{path.name}: {name}" for path in files for name, head in _heads(path) if not head] == []


def test_every_case_has_a_test() -> None:
    """Each case of the list has at least one test somewhere, and no test speaks of a case that is not in the list."""
    files = HERE.parent.rglob("test_*.py")
    told = {case for path in files for _, head in _heads(path) for case in head.split(", ") if case}
    assert sorted(told) == sorted(CASES)
