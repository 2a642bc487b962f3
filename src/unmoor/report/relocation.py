"""What became of the device tags of a checkpoint, as text. Pure: values in, words out.

The first line says what is where now. What a rule kept, and what was left as it is, is always said, and how to undo it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

from unmoor.values.relocation import Move, RelocatedFile, Relocation
from unmoor.values.text import count, format_bytes, listing

from .attention import finding_lines
from .layout import Line, Page, join_lines, plain
from .restore import headline, row_lines, seconds_text

__all__ = [
    "relocation_document",
    "relocation_lines",
    "relocation_text",
    "shell_word",
    "undone_lines",
    "undone_text",
]

SCHEMA: Final = "unmoor.relocation/1"
_SHOWN: Final = 4
_FILES: Final = 6

Row = tuple[str, str]


def relocation_text(made: Relocation, *, width: int = 80, ellipsis: str = "…") -> str:
    """What was relocated, what a rule kept, what was left alone, how the file changed, and how to undo it."""
    return join_lines(relocation_lines(made, width=width, ellipsis=ellipsis))


def relocation_lines(made: Relocation, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """The lines of `relocation_text` with their tones."""
    page = Page(width, ellipsis)
    rows = [
        *(("moved", _move(move)) for move in made.moves),
        *(("kept", f"{row.what}: {count(row.tensors, 'tensor')} on {row.device}; {row.why}") for row in made.kept),
        *([("values", _values(made.values))] if made.values else []),
        *(("now on", text) for text in _now(made)),
        *_files(made),
        *([("undo", made.undo)] if made.undo else _no_undo(made)),
    ]
    return [*_head(made, page), *row_lines(rows, page), *finding_lines(made.findings, page)]


def undone_text(made: Relocation, *, width: int = 80, ellipsis: str = "…") -> str:
    """What an undo took back, and whether there is more of it."""
    return join_lines(undone_lines(made, width=width, ellipsis=ellipsis))


def undone_lines(made: Relocation, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """The lines of `undone_text` with their tones."""
    page = Page(width, ellipsis)
    cut = -made.appended
    rows = [
        *(("moved", f"{move.old} -> {move.new}: {count(move.tensors, 'tensor')}") for move in made.moves),
        *(("now on", text) for text in _now(made)),
        ("file", f"{format_bytes(cut)} cut off: {_whose(made.files)} to the byte as before the relocation"),
        *([("undo", f"{made.undo} takes the one before it back")] if made.undo else []),
    ]
    before = "undid the last relocation of" if made.moves else "removed what an interrupted relocation left in"
    head = headline(before, made.path, f" in {seconds_text(made.seconds)}", page)
    return [*head, *row_lines(rows, page), *finding_lines(made.findings, page)]


def relocation_document(made: Relocation) -> dict[str, Any]:
    """A relocation, or the undo of one, as a JSON document."""
    return {"schema": SCHEMA, **made.to_json()}


def shell_word(path: str) -> str:
    """A path as a shell takes it."""
    return shlex.quote(path)


def _head(made: Relocation, page: Page) -> list[Line]:
    if made.moves:
        tail = "" if made.target == made.path else f" into {plain(made.target)}"
        return headline("relocated", made.path, f"{tail} in {seconds_text(made.seconds)}", page)
    why = "it keeps no device tags" if _untagged(made) else "every tensor is there already"
    done = "nothing to relocate in" if made.target == made.path else "copied as it is:"
    return headline(done, made.path, f": {why}", page)


def _untagged(made: Relocation) -> bool:
    return any(finding.code == "no-device-tags" for finding in made.findings) and not made.kept


def _move(move: Move) -> str:
    roles = f" of {listing(move.roles, _SHOWN)}" if move.roles else ""
    return f"{move.old} -> {move.new}: {count(move.tensors, 'tensor')}, {format_bytes(move.nbytes)}{roles}"


def _values(values: Sequence[str]) -> str:
    return f"{listing(values, _SHOWN)}: yours, left as {'it is' if len(values) == 1 else 'they are'}"


def _now(made: Relocation) -> Iterator[str]:
    if made.devices:
        yield listing([f"{tag} ({count(n, 'tensor')})" for tag, (n, _) in made.devices.items()], _FILES)


def _whose(files: Sequence[RelocatedFile]) -> str:
    return "it is" if len(files) == 1 else f"all {len(files):,} files are"


_HOW: Final = {
    "appended": "behind the old bytes, of which none was changed",
    "rewritten": "written anew, the tensor data copied as it is",
    "copied": "a copy",
    "unchanged": "unchanged",
}


def _files(made: Relocation) -> Iterator[Row]:
    """How each file changed; many in one line of each kind."""
    by_how: dict[str, list[RelocatedFile]] = {}
    for file in made.files:
        by_how.setdefault(file.how, []).append(file)
    for how, files in by_how.items():
        grown = sum(file.appended for file in files)
        names = f"{listing([plain(file.path) for file in files], 2)}: " if len(made.files) > 1 else ""
        if how == "appended":
            yield "file", f"{names}{format_bytes(grown)} appended {_HOW[how]}"
        elif how == "copied" and made.moves:
            yield "file", f"{format_bytes(files[0].after)}; {plain(made.path)} is as it was"
        elif made.moves or len(made.files) > 1:
            yield "file", f"{names}{_HOW[how]}"


def _no_undo(made: Relocation) -> list[Row]:
    """How to come back from a file that was written anew: by the opposite map, where there is one."""
    if not any(file.how == "rewritten" for file in made.files):
        return []
    back = {move.new: move.old for move in made.moves}
    there = {tag for tag, (n, _) in made.devices.items() if tag in back and n > _sum(made, tag)}
    if len(back) < len(made.moves) or there:
        return [("undo", "none: a file of this format is written anew, and other tensors were there already")]
    maps = " ".join(f"--map {new}={old}" for new, old in back.items())
    return [("undo", f"unmoor relocate {maps} {shell_word(made.path)}")]


def _sum(made: Relocation, tag: str) -> int:
    return sum(move.tensors for move in made.moves if move.new == tag)
