"""The glossary cannot rot: the message in each heading is the one that PyTorch raises below it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch

from .blocks import blocks_of
from .running import ROOT

PAGE = ROOT / "docs" / "errors.md"
_ENTRY = re.compile(r'<a id="([\w-]+)"></a>\n\n#+ (.*)')

IN_TORCH = {
    "same-device-as": ("lib/libtorch_cpu.so", " to have the same device as tensor for "),
}
"""Messages that need hardware: the file of the torch package that has the words of the message."""

NO_MESSAGE = {
    "devices": "a chapter",
    "optimizers": "a chapter",
    "names": "a chapter",
    "files": "a chapter",
    "ranks": "a chapter",
    "bus-error": "the process ends by a signal, and the shell words it; the page holds the signal",
    "hang": "there is no message: tests/worlds/test_mistakes.py makes the hang, and what unmoor says instead",
    "capturable": "the words of an older torch; the page raises those of this one",
    "two-devices-in-step": "the message of the entry above it",
}
"""Entries whose heading is no message that this torch raises, and why."""


def _entries() -> dict[str, tuple[str, str]]:
    """Anchor -> heading and text of each entry."""
    text = PAGE.read_text()
    found = list(_ENTRY.finditer(text))
    ends = [m.start() for m in found[1:]] + [len(text)]
    return {m[1]: (m[2], text[m.end() : end]) for m, end in zip(found, ends, strict=True)}


def _words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("anchor", _entries())
def test_the_heading_is_what_pytorch_says(anchor):
    """The first error that an entry shows holds the message of its heading; a page test holds that it is raised."""
    heading, text = _entries()[anchor]
    if anchor in NO_MESSAGE:
        return
    message = "".join(re.findall(r"`(.*)`", heading))
    if anchor in IN_TORCH:
        file, words = IN_TORCH[anchor]
        assert words.encode() in _bytes(file)
        return
    shown = next(block.code for block in blocks_of(text) if block.tag == "text" and block.follows)
    pattern = ".*".join(re.escape(_words(part).strip()) for part in message.split("..."))
    assert re.search(pattern, _words(shown)), f"{message}\nis not in\n{shown}"


@cache
def _bytes(file: str) -> bytes:
    return (Path(torch.__file__).parent / file).read_bytes()


def test_every_entry_is_listed_at_the_head():
    """The list at the head of the page has each message, with its link, in the order of the page."""
    head = PAGE.read_text().split("All code on this page")[0]
    listed = re.findall(r"^\* \[(.*)\]\(#([\w-]+)\)$", head, re.MULTILINE)
    entries = [(h, a) for a, (h, _) in _entries().items() if NO_MESSAGE.get(a) != "a chapter"]
    assert listed == [(h, a) for h, a in entries if a != "two-devices-in-step"]


def test_there_are_at_least_twenty_messages():
    """The twenty best known messages, and more."""
    assert len([a for a in _entries() if a not in NO_MESSAGE]) >= 20
