"""What a restore did or would do, and what a save wrote, as text. Pure: values in, words out.

What was not restored is always said, and so is that nothing was moved, renamed or cast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from unmoor.values.plan import Change, Plan
from unmoor.values.report import Receipt, Report
from unmoor.values.text import count, format_bytes, listing

from .attention import finding_lines
from .layout import Line, Page, cells, join_lines, plain

__all__ = [
    "alike",
    "headline",
    "plan_text",
    "receipt_lines",
    "receipt_text",
    "renamed_words",
    "report_lines",
    "report_text",
    "row_lines",
    "seconds_text",
]

_Row = tuple[str, str]
"""A word for the first column and the sentence beside it."""

_FILES: Final = 16
"""The most files of a folder to name."""

_SHOWN: Final = 4
"""The most lines of one kind, and the most names of one line."""


def report_text(report: Report, *, width: int = 80, ellipsis: str = "…") -> str:
    """What a restore did: restored, moved, renamed, cast, how it was matched, kept, NOT restored, extra values."""
    return join_lines(report_lines(report, width=width, ellipsis=ellipsis))


def report_lines(report: Report, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """The lines of `report_text` with their tones."""
    page = Page(width, ellipsis)
    what = ", ".join(report.plan.restored) or "nothing"
    first = headline(f"restored {what} from", report.path, f" in {seconds_text(report.seconds)}", page)
    return [*first, *_body(report.plan, [("read", _read(report))], page)]


def plan_text(plan: Plan, *, width: int = 80, ellipsis: str = "…") -> str:
    """What a restore would do, in the words of `report_text`."""
    page = Page(width, ellipsis)
    first = headline(f"would restore {', '.join(plan.restored) or 'nothing'} from", plan.path, "", page)
    return join_lines([*first, *_body(plan, [], page)])


def plan_rows(plan: Plan, page: Page) -> list[Line]:
    """The lines of `plan_text` below its first."""
    return _body(plan, [], page)


def receipt_text(receipt: Receipt, *, width: int = 80, ellipsis: str = "…") -> str:
    """What a save wrote: where, how much of what, and what is kept in another form."""
    return join_lines(receipt_lines(receipt, width=width, ellipsis=ellipsis))


def receipt_lines(receipt: Receipt, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """The lines of `receipt_text` with their tones."""
    page = Page(width, ellipsis)
    tail = f": {format_bytes(receipt.nbytes)} in {seconds_text(receipt.seconds)}"
    rows = [(role, f"{count(n, 'tensor')}, {format_bytes(b)}") for role, (n, b) in receipt.counts.items()]
    rows += [("converted", text) for text in alike(receipt.converted)]
    rows += receipt.notes
    lines = [*headline("saved", receipt.path, tail, page), *row_lines(rows, page)]
    return [*lines, *finding_lines(receipt.findings, page)]


def headline(before: str, path: str, after: str, page: Page) -> list[Line]:
    """The first line. The path is elided where the line is too long by it, and never below a readable rest."""
    room = max(page.width - cells(before) - cells(after) - 1, 24)
    text = f"{plain(before)} {page.elide(plain(path), room)}{after}"
    return [Line(line, "headline") for line in page.wrap(text, rest="  ")]


def _body(plan: Plan, read: Sequence[_Row], page: Page) -> list[Line]:
    rows = [
        *([("from", _sources(plan.sources))] if plan.sources else []),
        *(("moved", text) for text in _moved(plan.moved)),
        *(("renamed", text) for text in renamed_words(plan.renamed)),
        *(("cast", text) for text in _cast(plan.cast)),
        *read,
        *plan.notes,
        *(("set", text) for text in _settings(plan.options, _set)),
        *(("kept", text) for text in _settings(plan.kept, _kept)),
    ]
    left = [*plan.not_restored, *plan.missing, *plan.fresh, *plan.unexpected]
    extra = [("extra", f"{listing(_extra_names(plan), 8)}  -> report.extra")] if plan.extra else []
    below = list(_left(left))
    words = [*(word for word, _ in [*rows, *extra]), *(f"  {word}" for word, _ in below)]
    width = max((cells(plain(word)) for word in words), default=0)
    lines = row_lines(rows, page, width=width)
    if below:
        lines += [Line("  NOT restored", "warning"), *row_lines(below, page, indent=4, width=width - 2)]
    return [*lines, *row_lines(extra, page, width=width), *finding_lines(plan.findings, page)]


def row_lines(rows: Sequence[_Row], page: Page, *, indent: int = 2, width: int = 0) -> list[Line]:
    """A word and its sentence a row; a word that several rows share is said once."""
    width = max([width, *(cells(plain(word)) for word, _ in rows)], default=0)
    lines: list[Line] = []
    said = ""
    for word, text in rows:
        shown = "" if word == said else plain(word)
        start = " " * indent + shown + " " * (width - cells(shown) + 2)
        lines += [Line(line) for line in page.wrap(plain(text), first=start, rest=" " * cells(start))]
        said = word
    return lines


def _sources(sources: Sequence[tuple[str, str]]) -> str:
    """Each file of a folder with what was taken from it."""
    files: dict[str, list[str]] = {}
    for label, file in sources:
        files.setdefault(file, []).append(label)
    return listing([f"{file} ({', '.join(labels)})" for file, labels in files.items()], _FILES)


def _moved(changes: Sequence[Change]) -> list[str]:
    pairs: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        pairs.setdefault((change.before, change.after), []).append(change)
    lines = [
        f"{before} -> {after}: {count(len(moved), 'tensor')}, {format_bytes(sum(c.nbytes for c in moved))}"
        f" of {_labels(moved)}"
        for (before, after), moved in pairs.items()
    ]
    return _few(lines, "pair") or ["nothing"]


def _cast(changes: Sequence[Change]) -> list[str]:
    pairs: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        pairs.setdefault((change.before, change.after), []).append(change)
    lines = [
        f"{before} -> {after}: {count(len(cast), 'tensor')} of {_labels(cast)}"
        for (before, after), cast in pairs.items()
    ]
    return _few(lines, "pair") or ["nothing"]


def renamed_words(changes: Sequence[Change]) -> list[str]:
    """One line for each way in which names were changed."""
    ways: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        ways.setdefault((change.label, *_difference(change.before, change.after)), []).append(change)
    return _few([_way(*way, renamed) for way, renamed in ways.items()], "way") or ["nothing"]


def _way(label: str, before: str, after: str, changes: Sequence[Change]) -> str:
    if len(changes) == 1:
        return f"{changes[0].before} -> {changes[0].after} in {label}"
    names = f"{count(len(changes), 'name')} of {label}"
    if not after:
        return f"'{before}' taken out of {names}"
    return f"'{before}' -> '{after}' in {names}" if before else f"'{after}' put into {names}"


def _difference(before: str, after: str) -> tuple[str, str]:
    """Two names without the segments that both begin and end with; a dot at their end tells that others follow."""
    a, b = before.split("."), after.split(".")
    dot = "." if a[-1] == b[-1] else ""
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    return ".".join(a) + dot * bool(a), ".".join(b) + dot * bool(b)


def _read(report: Report) -> str:
    """How much was read and whether checksums held."""
    tensors = sum(n for n, _ in report.counts.values())
    held, none = report.verified, report.unverified
    if held and not none:
        checked = "every checksum holds"
    elif held:
        checked = f"checksums hold for {held:,} storages, {none:,} have none"
    else:
        checked = "the file has no checksums" if none else "no data was checked"
    read = f"{count(tensors, 'tensor')}, {format_bytes(report.nbytes)}"
    if not report.in_part:
        return f"{read}; {checked}"
    parts = f'{report.in_part:,} read in part, their checksums not checked; verify="first" reads and checks everything'
    return f"{read}; {parts}; of the others {checked}" if held or none else f"{read}; {parts}"


def _settings(changes: Sequence[Change], text: Callable[[Change], str]) -> list[str]:
    """Settings of each optimizer on one line."""
    by_label: dict[str, list[Change]] = {}
    for change in changes:
        by_label.setdefault(change.label, []).append(change)
    return [f"{listing([text(change) for change in own], 8)} of {label}" for label, own in by_label.items()]


def _set(change: Change) -> str:
    return f"{change.name} {change.before} -> {change.after}"


def _kept(change: Change) -> str:
    whole = change.name.startswith("group ") and change.name.count(" ") == 1
    if whole:
        return f"{change.name}: {change.before}, {change.after}"
    return f"{change.name}={change.after} (the file: {change.before})"


def _left(changes: Sequence[Change]) -> Iterable[_Row]:
    by_label: dict[str, list[Change]] = {}
    for change in changes:
        by_label.setdefault(change.label, []).append(change)
    for label, own in by_label.items():
        for text in alike(own):
            yield label, text


def alike(changes: Sequence[Change]) -> list[str]:
    """One line for all names to which the same happened."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        name = "" if change.name == change.label else change.name
        reasons.setdefault((change.before, change.after), []).append(name)
    lines = []
    for (before, after), names in reasons.items():
        known = [name for name in names if name]
        told = (", " if known else ": ").join(word for word in (before, after) if word)
        lines.append(f"{listing(known, _SHOWN)}: {told}" if known else told)
    return lines


def _few(lines: Sequence[str], noun: str) -> list[str]:
    if len(lines) <= _SHOWN + 1:
        return list(lines)
    return [*lines[:_SHOWN], f"and {count(len(lines) - _SHOWN, noun)} more"]


def _labels(changes: Iterable[Change]) -> str:
    return listing(list(dict.fromkeys(change.label for change in changes)), _SHOWN)


def seconds_text(seconds: float) -> str:
    """A duration as a person reads it."""
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.0f} s"


def _extra_names(plan: Plan) -> list[str]:
    """The plain values by name; below a key that also held a restored part, by what is left of it."""
    used = {copy.path.partition(".")[0] for copy in plan.copies() if copy.label != "extra"}
    names: list[str] = []
    for key, value in plan.extra.items():
        inner = isinstance(value, Mapping) and str(key) in used
        names += [f"{key}.{below}" for below in value] if inner else [str(key)]
    return sorted(names)
