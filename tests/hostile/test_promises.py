"""SECURITY.md promises what is tested, and names the tests by which."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()


def test_every_test_that_the_page_cites_exists():
    """A claim that cites a test that was renamed or removed is a claim without one."""
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    cited = set(re.findall(r"`(test_\w+)`", PAGE))
    assert cited
    assert not cited - there


def test_every_promise_cites_a_test():
    """Each paragraph that promises something says how it is tested."""
    promises = PAGE.partition("## What is promised")[2].partition("## To whom")[0]
    paragraphs = [text for text in promises.strip().split("\n\n") if text.startswith("**")]
    assert len(paragraphs) > 4
    assert all(re.search(r"\*Tested by\*[\s\S]*`test_\w+`", text) for text in paragraphs)


def test_the_page_names_what_is_there():
    """Files, folders and verbs that the page names exist."""
    import unmoor

    for path in re.findall(r"`((?:src|tests|benchmarks)/[\w./]+)`", PAGE):
        assert (ROOT / path).exists(), path
    verbs = re.findall(r"`(\w+)`", PAGE.partition("names: ")[2].partition("and their commands")[0])
    assert set(verbs) >= {"describe", "restore", "load", "convert"}
    assert all(hasattr(unmoor, verb) for verb in verbs)


def test_the_page_says_where_to_report():
    """Privately, and to no address of a person."""
    assert "privately, through the repository's security advisories" in PAGE
    assert "@" not in PAGE
