"""docs/findings.md and the source have the same codes, both ways, with the same severities; what it shows is real."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "unmoor"
PAGE = ROOT / "docs" / "findings.md"
SEVERITIES = ("danger", "error", "warning", "info")
_CODE = re.compile(r"[a-z]+(-[a-z]+)*")

HANDED_ON = {"describe/folder_merge.py", "wiring/saving_world.py", "wiring/repartitioning.py", "values/preflight.py"}
"""Files that make findings anew out of others: their codes are found where those are made."""


class _Codes(ast.NodeVisitor):
    """The codes of one file: (code, severity or "") of every finding that it can make, and lines with unknown ones."""

    def __init__(self, tree: ast.AST) -> None:
        self.found: set[tuple[str, str]] = set()
        self.unknown: list[int] = []
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self.helpers = {f.name for f in functions if _first_argument(f) == "code"}
        self.named = {f.name: _constants(f) for f in functions if f.name == "_code"}
        self.named |= {
            target.id: _constants(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name) and target.id in ("code", "_CODES")
        }
        self.visit(tree)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name == "Finding" or name in self.helpers or (name == "note" and not _is_of_a_diary(node.func)):
            given = [*node.args, *(k.value for k in node.keywords if k.arg == "code")]
            severity = node.args[1] if len(node.args) > 1 and name == "Finding" else None
            self._take(given[0] if given else None, _word(severity), node.lineno, sure=name != "note")
        self.generic_visit(node)

    def visit_Yield(self, node: ast.Yield) -> None:
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) == 4:
            first, second = node.value.elts[:2]
            if _CODE.fullmatch(_word(first) or "code") and _is_severity(second):
                self._take(first, _word(second), node.lineno, sure=True)
        self.generic_visit(node)

    def _take(self, node: ast.expr | None, severity: str, line: int, *, sure: bool) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.found.add((node.value, severity))
            return
        known = (
            next((n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in self.named), None) if node else ""
        )
        if known:
            self.found |= {(code, severity) for code in self.named[known]}
        elif sure:
            self.unknown.append(line)


def _is_of_a_diary(function: ast.expr) -> bool:
    """Whether what happened in a run is written down, which has kinds of its own."""
    return isinstance(function, ast.Attribute) and "diary" in ast.unparse(function.value)


def _is_severity(node: ast.expr) -> bool:
    """Whether the second of four values that a rule yields is how grave it is: a word, or a name or choice of one."""
    return _word(node) in SEVERITIES or "error" in _constants(node) or getattr(node, "id", "") == "severity"


def _first_argument(function: ast.FunctionDef) -> str:
    names = [argument.arg for argument in function.args.args if argument.arg != "self"]
    return names[0] if names else ""


def _constants(node: ast.AST) -> set[str]:
    """Strings that a value may be, those that it is compared with and the keys of a table left out."""
    if isinstance(node, ast.FunctionDef):
        return {c for r in ast.walk(node) if isinstance(r, ast.Return) and r.value for c in _constants(r.value)}
    if isinstance(node, ast.IfExp):
        return _constants(node.body) | _constants(node.orelse)
    if isinstance(node, ast.Dict):
        return {code for value in node.values for code in _constants(value)}
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def _word(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _files() -> Iterator[tuple[str, _Codes]]:
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if "Finding(" in text or "note(" in text:
            yield str(path.relative_to(SOURCE)), _Codes(ast.parse(text))


@functools.cache
def _source() -> dict[str, set[str]]:
    """Code -> the severities that the source gives it as words."""
    found: dict[str, set[str]] = {}
    for _, codes in _files():
        for code, severity in codes.found:
            if _CODE.fullmatch(code):
                found.setdefault(code, set()).update({severity} - {""})
    return found


@functools.cache
def _entries() -> dict[str, str]:
    """Code -> the text below its heading."""
    parts = re.split(r"^### (\S+)\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (re.split(r"^## ", part, flags=re.MULTILINE)[0] for part in parts[2::2]), strict=True))


def test_every_code_of_the_source_has_its_heading_and_every_heading_its_code() -> None:
    """Nothing is missing on the page and nothing is left over; what is missing is listed."""
    source, page = set(_source()), set(_entries())
    assert sorted(source - page) == [], "not on the page"
    assert sorted(page - source) == [], "in no source file"


def test_where_findings_are_made_their_codes_can_be_seen() -> None:
    """A code that is put together while running would be found by nobody, and have no page."""
    hidden = {path: codes.unknown for path, codes in _files() if codes.unknown and path not in HANDED_ON}
    # one call in assemble hands on notes of the reader, one in a helper hands on its own argument
    hidden = {path: lines for path, lines in hidden.items() if not _hands_on(path, lines)}
    assert hidden == {}


def _hands_on(path: str, lines: list[int]) -> bool:
    text = (SOURCE / path).read_text().splitlines()
    return all(re.search(r"Finding\(code, ", "".join(text[line - 1 : line + 2])) for line in lines)


@pytest.mark.parametrize("code", sorted(_entries()))
def test_each_entry_says_how_grave_it_is_whose_it_is_why_and_what_to_do(code: str) -> None:
    """Severities of the source stand there; a fix does wherever the finding is not just good to know."""
    entry = _entries()[code]
    head = re.search(r"^\*([a-z, ]+)\*, of (.+)$", entry, flags=re.MULTILINE)
    assert head, entry
    told = set(head[1].split(", "))
    assert told <= set(SEVERITIES)
    assert _source().get(code, set()) <= told
    if told & {"error", "warning", "danger"}:
        assert "**Fix:**" in entry
    assert len(entry.split()) > 10


def test_the_codes_have_the_form_that_stays() -> None:
    """Lower case words with dashes; the anchor of a heading is the code itself."""
    for code in _entries():
        assert _CODE.fullmatch(code)


def test_what_the_page_shows_of_live_runs_is_what_unmoor_says(sim) -> None:
    """Place, message and line of each finding of a live run are those of a broken or healthy run of the tests."""
    from tests.diagnose.broken import BROKEN
    from tests.diagnose.test_healthy import HEALTHY
    from tests.diagnose.test_rules import RULES
    from unmoor.diagnose.run import judge_run

    made = [finding for case in BROKEN.values() for finding in case.make().diagnose()]
    made += [finding for build in HEALTHY.values() for finding in build().diagnose()]
    made += [finding for rule in RULES for finding in judge_run(rule[1])]
    said: dict[str, set[str]] = {}
    for finding in made:
        text = f"{finding.place}: {finding.message}\n{finding.remedy}"
        said.setdefault(finding.code, set()).add(re.sub(r"\bsim\b", "cuda", text))
    entries = {code: entry for code, entry in _entries().items() if "of a live run" in entry}
    assert set(entries) == set(said)
    for code, entry in entries.items():
        quote = " ".join(line[2:] for line in entry.splitlines() if line.startswith("> "))
        line = "\n".join(line[4:] for line in entry.splitlines() if line.startswith("    "))
        assert f"{quote}\n{line}" in said[code], code
