"""Figures of the speed suite as Markdown: what stands in docs/performance.md and README.md between its marks.

Pure: the stored figures in, text out. `python -m benchmarks.speed --render` puts it into the pages, and a test holds
the pages against it, so that they say what was measured.

    <!-- figures: restore-memory -->
    ...
    <!-- end of figures -->
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .common import table as as_table
from .speed_child import BEHIND, RESTORES, SAVES
from .speed_tables import ONCE

__all__ = ["PEER", "filled_in", "median", "rendered", "seconds"]

Figures = Mapping[str, Any]

_MARKS: Final = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
PEER: Final = {"restore": "torch.load", "save": "torch.save", "behind": "floor: one copy in memory"}
"""What a table's ways are held against first."""
_FLOORS: Final = {"restore": ("floor: bare read, huge pages", "floor: bare read"), "save": ("floor: bare write",)}
"""The floor of a table is the first of these that it has."""
_WIDTH: Final = 125
_WHERE: Final = {"memory": "in /dev/shm", "disk": "on the disk"}


def filled_in(page: str, figures: Figures) -> str:
    """A page with what stands between its marks replaced by the rendering of the figures."""
    texts = rendered(figures)
    return _MARKS.sub(lambda found: f"{found[1]}{texts.get(found[2], _missing(found[2]))}\n{found[3]}", page)


def rendered(figures: Figures) -> dict[str, str]:
    """Every table by its key, and the text about the machine, `machine`, and the sentence, `summary`."""
    texts = {key: _rendered(table) for key, table in figures["tables"].items()}
    return {**texts, "machine": _machine(figures["machine"]), "summary": _summary(figures)}


def median(rows: Sequence[Mapping[str, Any]], name: str = "seconds") -> float | None:
    """The median of one figure over the rounds in which there is one."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return statistics.median(values) if values else None


def seconds(value: float | None) -> str:
    """Two significant digits, three from 0.1 s on."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.{3 if value < 0.1 else 2 if value < 10 else 1}f}"


def _missing(key: str) -> str:
    return f"Not measured yet: `python -m benchmarks.speed` makes the table {key}."


def _rendered(table: Figures) -> str:
    settings, points = table["settings"], table["points"]
    one = len(points) == 1
    text = _bars(settings, points[0]) if one else _curve(settings, points)
    head = f"{_size(points[0]['nbytes'])} {_conditions(settings)}" if one else _conditions(settings)
    return "\n\n".join([f"{head}:", text, *_once(points, settings["rounds"]), *_left_out(points, one=one)])


def _conditions(settings: Figures) -> str:
    rounds = f"{settings['rounds']} round{'s' if settings['rounds'] > 1 else ''}"
    state = ""
    if settings["what"] == "restore":
        state = ", not in the page cache" if settings["cold"] else ", page cache warm"
    if settings["fsync"]:
        state = ", brought to the disk before the clock stops"
    return f"{_WHERE[settings['where']]}{state}, {rounds}"


def _once(points: Sequence[Figures], rounds: int) -> list[str]:
    """Ways that were done fewer times than the table has rounds."""
    found = {way for point in points for way, rows in point["ways"].items() if 0 < len(rows) < rounds}
    return [f"Done once, for more than {ONCE:.0f} s each: {', '.join(sorted(found))}."] if found else []


def _bars(settings: Figures, point: Figures) -> str:
    return as_table(_COLUMNS[settings["what"]](settings["what"], point["ways"]))


def _ratios(what: str, ways: Figures, way: str) -> list[str]:
    own = median(ways[way])
    floor = next((name for name in _FLOORS[what] if ways.get(name)), "")
    others = [median(ways.get(name, [])) for name in (PEER[what], floor)]
    return ["-" if not own or not other else f"{own / other:.2f}" for other in others]


def _spread(rows: Sequence[Mapping[str, Any]]) -> str:
    values = [row["seconds"] for row in rows]
    return f"{seconds(min(values))}..{seconds(max(values))}"


def _extra(rows: Sequence[Mapping[str, Any]]) -> str:
    return f"{median(rows, 'extra'):,.0f} MiB"


def _of_restores(what: str, ways: Figures) -> list[tuple[str, ...]]:
    head = (
        "restore",
        "seconds",
        "spread",
        "of torch.load",
        "of the floor",
        "extra memory",
        "sums verified",
        "in place",
    )
    rows = [head]
    for way, found in ways.items():
        facts = (RESTORES[way].verified, RESTORES[way].in_place)
        rows.append((way, seconds(median(found)), _spread(found), *_ratios(what, ways, way), _extra(found), *facts))
    return rows


def _of_saves(what: str, ways: Figures) -> list[tuple[str, ...]]:
    head = ("save", "seconds", "spread", "of torch.save", "of the floor", "extra memory", "size")
    rows = [(*head, "writes sums", "fsync", "old kept")]
    for way, found in ways.items():
        facts = (SAVES[way].sums, SAVES[way].synced, SAVES[way].whole)
        cells = (way, seconds(median(found)), _spread(found), *_ratios(what, ways, way), _extra(found))
        rows.append((*cells, _size(median(found, "bytes")), *facts))
    return rows


def _of_behind(what: str, ways: Figures) -> list[tuple[str, ...]]:
    head = ("save in the background", "held up", "spread", "of one copy", "first save", "written after")
    rows = [(*head, "steps slower", "extra memory", "who writes")]
    copied = median(ways.get(PEER[what], []))
    for way, found in ways.items():
        held, slower = median(found), median(found, "slower")
        ratio = "-" if not held or not copied else f"{held / copied:.2f}"
        cells = (way, seconds(held), _spread(found), ratio, seconds(median(found, "first")))
        steps = "-" if slower is None else f"{100 * slower:.0f} %"
        rows.append((*cells, seconds(median(found, "done")), steps, _extra(found), BEHIND[way].writer))
    return rows


_COLUMNS: Final[dict[str, Callable[[str, Figures], list[tuple[str, ...]]]]] = {
    "restore": _of_restores,
    "save": _of_saves,
    "behind": _of_behind,
}


def _curve(settings: Figures, points: Sequence[Figures]) -> str:
    """One row a way, one column a point: seconds, and in brackets the ratio to torch's way at that point."""
    what = settings["what"]
    by_count = len({point["tensors"] for point in points}) > 1
    names = [f"{point['tensors']:,} tensors" if by_count else _size(point["nbytes"]) for point in points]
    rows = [(f"{what}, seconds (of {PEER[what]})", *names)]
    for way in settings["ways"]:
        cells = []
        for point in points:
            own, peer = (median(point["ways"].get(name, [])) for name in (way, PEER[what]))
            cells.append(seconds(own) + (f" ({own / peer:.2f})" if own and peer else ""))
        rows.append((way, *cells))
    return as_table(rows)


def _left_out(points: Sequence[Figures], *, one: bool) -> list[str]:
    told: dict[str, list[str]] = {}
    for point in points:
        for way, why in point["left_out"].items():
            named = way if one else f"{way} at {point['tensors'] if point['tensors'] > 0 else _size(point['nbytes'])}"
            told.setdefault(re.sub(r"[\d.]+ GB of memory, and [\d.]+", "more memory than", why), []).append(named)
    texts = [f"{', '.join(ways)}: {why.replace('than are free', 'than is free')}" for why, ways in told.items()]
    return [f"Left out: {'; '.join(texts)}."] if texts else []


def _size(nbytes: float | None) -> str:
    if nbytes is None:
        return "-"
    return f"{nbytes / 1e9:.3g} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"


def _machine(machine: Figures) -> str:
    versions = "\n".join(_lines([f"{name} {version}" for name, version in machine["versions"].items()], ", "))
    memory = f"{machine['memory'] / 2**30:.0f} GiB of memory"
    return f"{machine['cores']} cores, {memory}, no GPU; Python {machine['python']},\n{versions}."


def _summary(figures: Figures) -> str:
    """The sentences of the README: the two main tables in short."""
    restore, save = (_point_of(figures, key) for key in ("restore-memory", "save-memory"))
    if restore is None or save is None:
        return _missing("restore-memory")
    ways, ours = restore["ways"], "unmoor.restore"
    peers = {way: median(found) for way, found in ways.items() if not way.startswith(("unmoor", "floor"))}
    best = min((way for way in peers if peers[way]), key=lambda way: peers[way] or 0, default=None)
    if best is None or ours not in ways or "unmoor.save" not in save["ways"]:
        return _missing("restore-memory")
    of_torch, of_floor = _ratios("restore", ways, ours)
    of_best = f"{(median(ways[ours]) or 0) / (peers[best] or 1):.2f}"
    saved, of_bare = _ratios("save", save["ways"], "unmoor.save")
    words = (
        f"{_size(restore['nbytes'])} of model and AdamW state, {figures['machine']['cores']} cores, a disk in memory, "
        f"checksums on: a restore takes {of_torch} of the time of `torch.load` and `load_state_dict`, {of_best} of the "
        f"fastest peer's ({best}), {of_floor} of a bare read, and {_extra(ways[ours])} beside the live state; a save "
        f"takes {saved} of `torch.save` and {of_bare} of a bare write."
    )
    return "\n".join(_lines(words.split(" "), " "))


def _lines(words: Sequence[str], between: str) -> list[str]:
    """Words in lines of the width of a page."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(between) + len(word) > _WIDTH:
            lines[-1] += between.rstrip()
            lines.append(word)
        else:
            lines[-1] += between + word
    return lines


def _point_of(figures: Figures, key: str) -> Figures | None:
    table = figures["tables"].get(key)
    return table["points"][0] if table else None
