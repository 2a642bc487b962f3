"""The code blocks of a Markdown page. Pure: text in, blocks out.

A block is a fence, or a comment `<!-- python` that readers do not see. What it is for is told by its tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Block", "blocks_of"]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<tag>[\w+-]*)[ \t]*(?P<info>.*)$")
_HIDDEN = re.compile(r"^(?P<indent>)<!-- (?P<tag>python|console)\b[ \t]*(?P<info>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """`lines` without their indentation; `first` is the number of the first of them in the page, counted from 1.

    `title` is the file that the block shows. `follows` tells that nothing but blank lines parts it from the block
    before.
    """

    tag: str
    title: str
    lines: tuple[str, ...]
    first: int
    indent: str
    hidden: bool
    follows: bool

    @property
    def code(self) -> str:
        return "\n".join(self.lines)


def blocks_of(text: str) -> Iterator[Block]:
    """The blocks of a page, in order."""
    lines, number, between = text.split("\n"), 0, True
    while number < len(lines):
        fence, hidden = _FENCE.match(lines[number]), _HIDDEN.match(lines[number])
        opened = fence or hidden
        if opened is None:
            between = between or bool(lines[number].strip())
            number += 1
            continue
        indent, end = opened["indent"], f"{opened['indent']}```" if fence else "-->"
        last = next((n for n in range(number + 1, len(lines)) if lines[n].rstrip() == end), None)
        if last is None:
            raise ValueError(f"line {number + 1}: the block that begins here has no end")
        title = _TITLE.search(opened["info"])
        inside = tuple(line.removeprefix(indent) for line in lines[number + 1 : last])
        yield Block(opened["tag"], title[1] if title else "", inside, number + 2, indent, not fence, not between)
        number, between = last + 1, False
