"""The speed suite measures what it says, keeps what it has, and its pages say what was measured. Nothing is timed."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from benchmarks.speed import JSON, PAGES, PLOTS, kept, stored_text, tables
from benchmarks.speed_page import filled_in, rendered, seconds
from benchmarks.speed_plots import PLOTS as DRAWN
from benchmarks.speed_plots import digest, draw, drawn_from
from benchmarks.speed_tables import Point, Table, child, fitting, measure, slow

from tests.docs.running import ROOT

GB = 1_000_000_000
MACHINE = {"cores": 2, "memory": 8 << 30, "python": "3.11.0", "versions": {"torch": "2.13.0"}}


def _rows(value, **more):
    return [{"seconds": value * turn, "extra": 1.0, **more} for turn in (1.0, 1.5, 1.25)]


def _made():
    """Figures as a run of the suite would have stored them."""
    found = {}
    for key, (_, table) in tables(1.5, 3).items():
        more = {
            "save": {"bytes": GB},
            "behind": {"first": 1.0, "done": 2.0, "slower": 0.1},
            "restore": {"trace": [[0.0, -10.0], [1.0, 3.0]]},
        }[table.what]
        points = [
            {
                "nbytes": point.nbytes,
                "tensors": point.tensors,
                "ways": {way: _rows(0.4 + at, **more) for at, way in enumerate(table.ways[1:])},
                "left_out": {table.ways[0]: "does not fit: it needs 9 GB of memory, and 8 are free"},
            }
            for point in table.points
        ]
        found[key] = json.loads(json.dumps({"settings": table.settings(), "points": points}))
    return {"machine": MACHINE, "tables": found}


@pytest.mark.slow
def test_the_quick_run_prints_every_column():
    """Tiny runs of the ways that need no other environment: a row for each way, a cell for each column."""
    command = [sys.executable, "-W", "error", "-m", "benchmarks.speed", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Left out" not in done.stdout
    shown = dict(re.findall(r"^([\w-]+): .*\n\n((?:\|.*\n)+)", done.stdout, re.MULTILINE))
    assert list(shown) == ["restore-memory", "save-memory", "hold-up"]
    for key, text in shown.items():
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        assert len(head) >= 8
        assert [row[0] for row in rows] == list(tables(0.001, 1, ours=True)[key][1].ways)
        assert all(all(row) for row in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_is_the_rendering_of_the_stored_figures(page):
    """`python -m benchmarks.speed --render` would change nothing."""
    assert filled_in(page.read_text(), json.loads(JSON.read_text())) == page.read_text()


@pytest.mark.parametrize("name", DRAWN)
def test_the_plot_was_drawn_from_the_stored_figures(name):
    """Each PNG carries the digest of its figures, and the page shows it."""
    figures, (keys, _) = json.loads(JSON.read_text()), DRAWN[name]
    assert drawn_from(PLOTS / f"{name}.png") == digest(figures, keys)
    assert f"performance/{name}.png" in PAGES[0].read_text()


def test_the_page_has_a_place_for_every_table():
    """No table is measured and not shown, but for the one that only a plot shows."""
    marks = re.findall(r"<!-- figures: ([\w-]+) -->", PAGES[0].read_text())
    assert sorted(marks) == sorted({*tables(1.5, 3), "machine"} - {"memory"})


def test_figures_are_rendered_with_ratios_spread_and_what_is_left_out():
    """A row has its median, its spread, its ratios to the peer and to the floor; what did not fit stands below."""
    text = rendered(_made())["save-memory"]
    row = next(line for line in text.splitlines() if line.startswith("| torch.save, crc32 off"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["torch.save, crc32 off", "1.75", "1.40..2.10", "3.50", "0.17", "1 MiB", "1 GB", "no", "no", "no"]
    assert text.startswith("1.51 GB in /dev/shm, 3 rounds:")
    assert text.endswith("Left out: unmoor.save: does not fit: it needs more memory than is free.")


def test_curves_have_a_column_for_every_point():
    """Seconds, and in brackets the ratio to torch's way at the same point."""
    text = rendered(_made())["many-restore"]
    assert "100 tensors" in text
    assert "100,000 tensors" in text
    assert "(1.00)" in next(line for line in text.splitlines() if line.startswith("| torch.load"))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "0.012"), (0.456, "0.46"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (None, "-")],
)
def test_seconds_are_told_with_the_digits_that_count(value, text):
    """Small figures get more digits."""
    assert seconds(value) == text


def test_plots_are_drawn_from_whatever_was_measured(tmp_path):
    """Each has its figures' digest; a table that was not measured leaves its plot out."""
    figures = _made()
    assert {file.stem for file in draw(figures, tmp_path)} == set(DRAWN)
    assert all(drawn_from(tmp_path / f"{name}.png") == digest(figures, keys) for name, (keys, _) in DRAWN.items())
    del figures["tables"]["hold-up"]
    assert {file.stem for file in draw(figures, tmp_path / "fewer")} == set(DRAWN) - {"hold-up"}


def test_stored_figures_read_back():
    """The text of the file is JSON of the same figures, a line a way."""
    figures = _made()
    assert json.loads(stored_text(figures)) == figures
    assert len(stored_text(figures).splitlines()) < 1000


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"rounds": 4}, False),
        ({"cold": True}, False),
        ({"points": (Point(2 * GB),)}, False),
        ({"ways": ("unmoor.save",)}, False),
    ],
)
def test_a_table_is_measured_once(change, same):
    """What is stored with the same settings is kept, so that an interrupted run goes on; other settings are not."""
    table = Table("save", "memory", (Point(GB),), ("unmoor.save", "torch.save"), 3)
    stored = {"settings": json.loads(json.dumps(table.settings())), "points": [{"left_out": {"torch.save": "broke"}}]}
    assert kept(Table(**{**vars(table), **change}), stored) is same
    assert not kept(table, None)


@pytest.mark.parametrize(("why", "same"), [("does not fit: it needs", True), ("RuntimeError: broke", False)])
def test_a_table_without_our_own_ways_is_measured_again(why, same):
    """Where unmoor or the floor failed there is nothing to compare with."""
    table = Table("save", "memory", (Point(GB),), ("unmoor.save",), 1)
    stored = {"settings": json.loads(json.dumps(table.settings())), "points": [{"left_out": {"unmoor.save": why}}]}
    assert kept(table, stored) is same


@pytest.mark.parametrize(
    ("where", "free", "fits"),
    [
        ("memory", 30, ["unmoor.restore", "torch.load", "safetensors.load_file"]),
        ("memory", 4, ["unmoor.restore", "torch.load"]),
        ("memory", 3, ["unmoor.restore"]),
        ("disk", 2, ["unmoor.restore", "torch.load", "safetensors.load_file"]),
        ("disk", 1, []),
    ],
)
def test_what_does_not_fit_in_memory_is_left_out_with_the_reason(where, free, fits):
    """Files in memory count for all ways that come after them; a way without a second copy fits longest."""
    ways = ("unmoor.restore", "torch.load", "safetensors.load_file")
    found, left_out = fitting(
        Table("restore", where, (Point(GB),), ways, 1), Point(GB), free=int(free * GB) + (1 << 30)
    )
    assert found == fits
    assert set(left_out) == set(ways) - set(fits)
    assert all(why.startswith("does not fit") for why in left_out.values())


def test_a_way_that_would_take_too_long_is_not_tried():
    """By what it took at the smaller point before, grown as the point has."""
    ways = {"fast": [{"seconds": 1.0}], "slow": [{"seconds": 2.0}, {"seconds": 7.0}]}
    before = {"nbytes": GB, "tensors": 100, "ways": ways}
    assert slow(Point(GB, 1_000), before, 60) == {"slow": "would take more than 60 s"}
    assert slow(Point(GB, 1_000), None, 60) == {}


def test_a_way_that_was_done_once_is_told():
    """What took long is not repeated, and stands below the table."""
    figures = _made()
    del figures["tables"]["save-memory"]["points"][0]["ways"]["torch.save"][1:]
    assert "Done once, for more than 15 s each: torch.save." in rendered(figures)["save-memory"]


def test_a_way_that_fails_is_told_and_the_others_go_on(tmp_path):
    """An error becomes the reason for which a way is left out."""
    asked = {"nbytes": 1 << 12, "tensors": 8, "tiny": False, "cold": False, "fsync": False, "folder": str(tmp_path)}
    found = child({**asked, "what": "restore", "way": "torch.load"}, 120)
    assert found["failed"].startswith("FileNotFoundError")


def test_a_table_is_measured_with_its_ways_in_turns(tmp_path):
    """Every way has a figure for every round, in the order of the table."""
    said = []
    table = Table("save", "memory", (Point(1 << 12, 8),), ("torch.save", "floor: bare write"), 2)
    found = measure(table, tmp_path, 120, said.append)
    assert {way: len(rows) for way, rows in found["points"][0]["ways"].items()} == dict.fromkeys(table.ways, 2)
    assert [text.rsplit(": ", 1)[-1] for text in said] == ["torch.save", "bare write"] * 2
    assert not list(tmp_path.iterdir())
