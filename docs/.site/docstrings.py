"""Docstrings as Markdown, for the API page: arguments as a list, examples as code, without marks for doctest.

A paragraph whose first line begins with `name:` or `name, name:` is a list of arguments; lines that go on are indented.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

__all__ = ["Markdown", "markdown"]

_ARGUMENT = re.compile(r"^(\*{0,2}[a-z_]\w*(?:, [a-z_]\w*)*): (.*)$")
_NEXT = re.compile(r"(?<=[.;]) ([a-z_]\w*(?:, [a-z_]\w*)*): (?=[a-z\"])")
_SKIP = re.compile(r"  # doctest:.*$")


class Markdown(griffe.Extension):
    """Rewrites every docstring of the package before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    r"""A docstring as Markdown.

    >>> markdown("What.\n\npath: a file\n    or folder. size: bytes.\n\n>>> f()  # doctest: +SKIP\n1")
    'What.\n\n* **path**: a file or folder.\n* **size**: bytes.\n\n```pycon\n>>> f()\n1\n```'
    """
    return "\n\n".join(_paragraph(lines) for lines in _paragraphs(text))


def _paragraphs(text: str) -> Iterator[list[str]]:
    lines: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line.strip():
            lines.append(line)
        elif lines:
            yield lines
            lines = []


def _paragraph(lines: list[str]) -> str:
    if lines[0].startswith(">>> "):
        return "\n".join(["```pycon", *(_SKIP.sub("", line) for line in lines), "```"])
    if not _ARGUMENT.match(lines[0]):
        return "\n".join(lines)
    items: list[str] = []
    for line in lines:
        if _ARGUMENT.match(line):
            items.append(line)
        else:
            items[-1] += f" {line.strip()}"
    rows = [part for item in items for part in _NEXT.sub(r"\n\1: ", item).split("\n")]
    return "\n".join(f"* **{name}**: {what}" for name, _, what in (row.partition(": ") for row in rows))
