"""Plots of the stored figures of the speed suite, as PNG that can be read at 700 pixels.

Each file carries the digest of the figures that it was drawn from, so that a test can tell a plot that is older than
they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from PIL import Image

from .speed_page import median, seconds

__all__ = ["DIGEST", "PLOTS", "digest", "draw", "drawn_from"]

DIGEST: Final = "figures"
OURS, THEIRS, FLOOR, TEXT = "#00796b", "#90a4ae", "#37474f", "#263238"
LINES: Final = ("#5c6bc0", "#ef6c00", "#8e24aa", "#c62828", "#6d4c41", "#546e7a")
STYLE: Final = {
    "font.size": 9,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": "#b0bec5",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "svg.hashsalt": "unmoor",
}

Figures = Mapping[str, Any]


def digest(figures: Figures, keys: Sequence[str]) -> str:
    """What tells the figures of some tables from all others."""
    text = json.dumps([figures["tables"][key] for key in keys], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def drawn_from(file: Path) -> str | None:
    """The digest that a plot carries."""
    with Image.open(file) as image:
        return image.info.get(DIGEST)


def draw(figures: Figures, folder: Path) -> list[Path]:
    """Every plot whose tables were measured."""
    made = []
    for name, (keys, draws) in PLOTS.items():
        if all(key in figures["tables"] for key in keys):
            with mpl.rc_context(STYLE):
                figure = draws([figures["tables"][key] for key in keys])
                folder.mkdir(parents=True, exist_ok=True)
                made.append(folder / f"{name}.png")
                figure.savefig(made[-1], dpi=160, metadata={DIGEST: digest(figures, keys), "Software": None})
                plt.close(figure)
    return made


def _colour(way: str) -> str:
    return OURS if way.startswith("unmoor") else FLOOR if way.startswith("floor") else THEIRS


def _bars(tables: Sequence[Figures], title: str) -> Figure:
    """One bar a way, with the spread of its rounds and its figure at the end."""
    ways = {way: rows for way, rows in tables[0]["points"][0]["ways"].items() if rows}
    figure, axes = plt.subplots(figsize=(7, 0.5 + 0.27 * len(ways)), layout="constrained")
    longest = max(max(row["seconds"] for row in rows) for rows in ways.values())
    for place, (way, rows) in enumerate(ways.items()):
        values = [row["seconds"] for row in rows]
        value = median(rows) or 0
        axes.barh(place, value, color=_colour(way), height=0.68)
        axes.plot([min(values), max(values)], [place, place], color=TEXT, linewidth=0.8)
        axes.text(max(values) + longest * 0.012, place, f"{seconds(value)} s", va="center", fontsize=8.5)
    axes.set_yticks(range(len(ways)), list(ways))
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_xlim(0, longest * 1.1)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(title, loc="left", fontsize=10)
    return figure


def _curves(tables: Sequence[Figures], titles: Sequence[str], label: str) -> Figure:
    """Seconds against the size or the number of tensors, both logarithmic, one panel a table."""
    figure, panels = plt.subplots(len(tables), 1, figsize=(7, 3.1 * len(tables)), layout="constrained", squeeze=False)
    for axes, table, title in zip(panels[:, 0], tables, titles, strict=True):
        _panel(axes, table, title)
        axes.set_xlabel(label)
    return figure


def _panel(axes: Axes, table: Figures, title: str) -> None:
    ends: list[tuple[str, float, float, str]] = []
    colours = iter(LINES)
    for way in table["settings"]["ways"]:
        found = [(_x(point), median(point["ways"].get(way, []))) for point in table["points"]]
        line = [(x, y) for x, y in found if y]
        if not line:
            continue
        special = way.startswith(("unmoor", "floor"))
        colour = _colour(way) if special else next(colours)
        style = "--" if way.startswith("floor") else "-"
        axes.plot(
            *zip(*line, strict=True), style, color=colour, marker="o", markersize=3, linewidth=2 if special else 1.2
        )
        ends.append((way, *line[-1], colour))
    axes.set_xscale("log")
    axes.set_yscale("log")
    places = [_x(point) for point in table["points"]]
    axes.set_xticks(places, [f"{place:,.0f}" for place in places])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel("seconds")
    axes.grid(visible=True, color="#eceff1", linewidth=0.8)
    axes.set_axisbelow(True)
    _label(axes, ends)


def _x(point: Figures) -> float:
    return point["tensors"] if point["tensors"] > 0 else point["nbytes"] / 1e6


def _label(axes: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """The name of each line beside its end, moved apart where they would meet."""
    if not ends:
        return
    low, high = axes.get_ylim()
    gap = (high / low) ** 0.075
    right = max(x for _, x, _, _ in ends)
    below = 0.0
    for way, x, y, colour in sorted(ends, key=lambda end: end[2]):
        below = max(y, below * gap)
        place = (x, below) if x < right and below == y else (right, below)
        _named(axes, way, place, colour)
    axes.set_ylim(low, max(high, below * gap))
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * (right / left) ** 0.36)


def _named(axes: Axes, way: str, place: tuple[float, float], colour: str) -> None:
    look = {"color": colour, "va": "center", "fontsize": 8.5, "annotation_clip": False}
    axes.annotate(way, place, xytext=(7, 0), textcoords="offset points", **look)


def _memory(tables: Sequence[Figures]) -> Figure:
    """Resident memory while a restore runs, above that of the complete live run."""
    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    colours = iter(LINES)
    longest = 0.0
    tops: list[tuple[str, float, float, str]] = []
    for way, rows in tables[0]["points"][0]["ways"].items():
        trace = rows[0].get("trace") if rows else None
        if not trace:
            continue
        ours = way.startswith("unmoor")
        colour = OURS if ours else next(colours)
        axes.plot(*zip(*trace, strict=True), color=colour, linewidth=2.2 if ours else 1.2)
        longest = max(longest, trace[-1][0])
        tops.append((way, trace[-1][0], trace[-1][1], colour))
    axes.axhline(0, color=FLOOR, linewidth=0.8, linestyle="--")
    below = -1e18
    for way, x, y, colour in sorted(tops, key=lambda top: top[2]):
        low, high = axes.get_ylim()
        below = max(y, below + (high - low) * 0.06)
        axes.annotate(
            way, (x, below), xytext=(5, 0), textcoords="offset points", color=colour, va="center", fontsize=8.5
        )
    axes.set_xlim(-0.05, longest * 1.3)
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB beyond the complete live run")
    axes.set_title("Resident memory while a restore runs", loc="left", fontsize=10)
    axes.grid(visible=True, color="#eceff1", linewidth=0.8)
    return figure


BOTH: Final = ("restore", "save")
PLOTS: Final[dict[str, tuple[tuple[str, ...], Callable[[Sequence[Figures]], Figure]]]] = {
    "restore": (("restore-memory",), partial(_bars, title="Restore from /dev/shm, seconds")),
    "save": (("save-memory",), partial(_bars, title="Save to /dev/shm, seconds")),
    "hold-up": (("hold-up",), partial(_bars, title="How long training stands still for a save, seconds")),
    "size": (("size-restore", "size-save"), partial(_curves, titles=BOTH, label="MB of state, tensors of 4 MiB")),
    "many": (("many-restore", "many-save"), partial(_curves, titles=BOTH, label="tensors, the same bytes in all")),
    "memory": (("memory",), _memory),
}
"""Plot -> the tables that it draws, and how."""
