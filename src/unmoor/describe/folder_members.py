"""Which files of a folder make up one checkpoint, told from their names alone. Pure: names in, members out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unmoor.values.finding import Finding
from unmoor.values.text import listing

from .folder_tables import INDEX, TABLES, Row, Table

__all__ = ["Member", "StepFiles", "find_table", "members_of", "natural", "steps_of"]


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a checkpoint, or one index with its files.

    `key` is where its tree stands in the folder's; `role` what the file is for ("" where its structure decides);
    `label` which of several, `rank` whose. The parts of one that is `aside` are restored only where `at` names them.
    """

    key: str
    file: str
    role: str = ""
    label: str = ""
    rank: int | None = None
    aside: bool = False


class _Hit(NamedTuple):
    row: Row
    file: str
    match: re.Match[str]

    def group(self, name: str) -> str:
        return self.match.groupdict().get(name) or ""

    @property
    def kind(self) -> tuple[str, str, str]:
        """What stays the same from one step to the next."""
        return self.row.pattern.pattern, self.group("key"), self.group("rank")


def find_table(files: Iterable[str]) -> Table | None:
    """The dialect whose marks are all among the names of `files`."""
    names = list(files)
    return next((table for table in TABLES if all(any(mark.fullmatch(n) for n in names) for mark in table.marks)), None)


def members_of(table: Table, files: Iterable[str]) -> tuple[list[Member], int | None, list[Finding]]:
    """The members, the step that their names bear, and what a reader should know of the choice."""
    hits = list(_hits(table, sorted(files, key=natural)))
    hits, step, findings = _of_one_step(hits)
    return [_member(hit) for hit in hits], step, findings


class StepFiles(NamedTuple):
    """The files of one step, and the names of those that other steps have and this one lacks."""

    files: tuple[str, ...]
    missing: tuple[str, ...]


def steps_of(table: Table, files: Iterable[str]) -> dict[str, StepFiles]:
    """The steps of a folder whose files bear them, by their digits as the names spell them."""
    hits = [hit for hit in _hits(table, sorted(files, key=natural)) if hit.group("step")]
    kinds = {hit.kind: hit for hit in hits}
    steps: dict[str, dict[tuple[str, str, str], str]] = {}
    for hit in hits:
        steps.setdefault(hit.group("step"), {})[hit.kind] = hit.file
    return {
        digits: StepFiles(
            tuple(own.values()), tuple(_at_step(hit, digits) for kind, hit in kinds.items() if kind not in own)
        )
        for digits, own in steps.items()
    }


def _at_step(hit: _Hit, digits: str) -> str:
    """What the same file is called at another step."""
    start, end = hit.match.span("step")
    return f"{hit.file[:start]}{digits}{hit.file[end:]}"


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key under which names sort as people count: file_2 before file_10."""
    return tuple((int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", name))


def _hits(table: Table, files: Sequence[str]) -> Iterator[_Hit]:
    taken: dict[str, Row] = {}
    for row in table.rows:
        found = [_Hit(row, file, match) for file in files if (match := row.pattern.fullmatch(file))]
        if found and (not row.one_of or taken.setdefault(row.one_of, row) is row):
            yield from found


def _of_one_step(hits: Sequence[_Hit]) -> tuple[list[_Hit], int | None, list[Finding]]:
    """The files of the newest step that has all that any step has; files without a step belong to every one."""
    steps: dict[int, list[_Hit]] = {}
    for hit in hits:
        if hit.group("step"):
            steps.setdefault(int(hit.group("step")), []).append(hit)
    if not steps:
        return list(hits), None, []
    kinds = {hit.kind for own in steps.values() for hit in own}
    whole = [step for step, own in steps.items() if {hit.kind for hit in own} == kinds]
    step = max(whole or steps)
    chosen = [hit for hit in hits if not hit.group("step") or int(hit.group("step")) == step]
    newer = [number for number in sorted(steps) if number > step]
    if not newer:
        return chosen, step, []
    names = [hit.file for number in newer for hit in steps[number]]
    message = f"step {step} is the newest that is whole; of later steps there is only {listing(names)}"
    return (
        chosen,
        step,
        [Finding("incomplete-step", "warning", "", message, "a save was interrupted, or files deleted")],
    )


def _member(hit: _Hit) -> Member:
    rank = hit.group("rank")
    ranked = "rank" in hit.match.groupdict()
    return Member(
        key=hit.file.removesuffix(INDEX),
        file=hit.file,
        role=hit.row.role,
        label=hit.group("key"),
        rank=int(rank or 0) if ranked else None,
        aside=hit.row.use == "aside",
    )
