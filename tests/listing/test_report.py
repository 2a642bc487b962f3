"""What a listing looks like at 80 columns, and what the command prints and ends with."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.fakes import Stream
from tests.listing.makers import made
from unmoor import cli
from unmoor.report.layout import cells
from unmoor.report.listing import listing_document, listing_lines, listing_text
from unmoor.values.listing import Listing, Saved, newest_first

NOON = time.mktime((2026, 11, 30, 12, 0, 0, 0, 0, 0))


def saved(step: int, **more: object) -> Saved:
    name = f"step_{step:09d}.pt"
    facts = {"number": step // 1000, "nbytes": 4 << 20, "written": NOON, "dialect": "unmoor"}
    row = Saved(f"runs/a/{name}", name, step, metrics={"val_loss": 1000 / step}, **facts)  # type: ignore[arg-type]
    return replace(row, **more)  # type: ignore[arg-type]


CUT = {"complete": False, "why": "a truncated zip: no end record, 21,338 bytes", "nbytes": 21338, "metrics": {}}
RUN = Listing(
    "runs/a",
    (saved(3000, **CUT), saved(2000, verified=True), saved(1000)),
    ("latest names step_7, which is not there",),
)


def test_a_run_at_80_columns() -> None:
    """The answer, then what needs attention, then a line each: aligned, the newest first, what resume takes marked."""
    assert listing_text(RUN).split("\n") == [
        "3 checkpoints in runs/a, 8.0 MiB; resume takes step_000002000.pt; 1 cannot be",
        "  resumed from",
        "  latest names step_7, which is not there",
        "",
        "    step  name                   size  val_loss  written",
        "   3,000  step_000003000.pt  20.8 KiB            2026-11-30 12:00",
        "            cannot be resumed from: a truncated zip: no end record, 21,338 bytes",
        "-> 2,000  step_000002000.pt   4.0 MiB       0.5  2026-11-30 12:00  verified",
        "   1,000  step_000001000.pt   4.0 MiB         1  2026-11-30 12:00",
    ]


def test_tones_repeat_what_the_words_say() -> None:
    """What is broken is an error, what is wrong with the folder a warning."""
    tones = {line.tone for line in listing_lines(RUN)}
    assert tones == {"headline", "warning", "hint", "error", ""}


LONG = "a_very_long_name_of_a_checkpoint_that_goes_on_and_on_without_end_epoch=3-step=400-val_loss=0.123.ckpt"
ROWS = [
    saved(5000, name=LONG, metrics={"a_metric_with_a_long_name": 1e-9, "acc": 3, "f1": float("nan")}, dialect="plain"),
    saved(4000, name="größe_\x1b[31m.pt", written=1e300, finished=True, verified=True),
    replace(saved(3000), step=None, complete=False, why="x" * 500, name="末" * 30),
    saved(2000, unit="epoch", metrics={}),
]  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_fits_every_width(width: int) -> None:
    """No line is wider than the page, whatever the names; escapes of a name are shown, never obeyed."""
    lines = listing_lines(Listing("runs/" + "b" * 90, tuple(ROWS), ("n " * 200,)), width=width, ellipsis="...")
    assert all(cells(line.text) <= width for line in lines if line.tone != "headline")
    assert "\x1b" not in "".join(line.text for line in lines)


def test_a_folder_without_checkpoints() -> None:
    """One line says so."""
    assert listing_text(Listing("runs/a", ())) == "no checkpoint in runs/a"
    broken = Listing("runs/a", (saved(1000, **CUT),))
    assert listing_text(broken).startswith("1 checkpoint in runs/a, 20.8 KiB: none can be resumed from")


def test_the_document_is_strict_json() -> None:
    """What JSON lacks (NaN) is text."""
    document = listing_document(Listing("runs/a", tuple(ROWS)))
    assert document["schema"] == "unmoor.listing/1"
    assert json.loads(json.dumps(document, allow_nan=False))["rows"][0]["metrics"]["f1"] == "nan"


def test_newest_first_is_a_total_order() -> None:
    """However the rows come, they are sorted alike."""
    rows = [saved(1000), saved(2500), saved(3000, number=0, complete=False), saved(500, number=9), *ROWS]
    assert newest_first(rows) == newest_first(list(reversed(rows)))
    assert [row.step for row in newest_first(rows)][:2] == [3000, 500]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """Run `unmoor runs` beside a folder `run`; the code and what it printed."""
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        out, err = Stream(), Stream()
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        return cli.main(["runs", *arguments]), out.text, err.text

    return run


def test_the_command_prints_the_listing(command, tmp_path: Path) -> None:
    """Text, JSON, and 0 where there is one to resume from."""
    made("unmoor", tmp_path / "run")
    code, out, err = command("run")
    assert (code, err) == (0, "")
    assert "resume takes step_000000020.pt" in out
    code, out, err = command("run", "--json", "--verify")
    document = json.loads(out)
    assert (code, document["newest"]) == (0, "run/step_000000020.pt")
    assert [row["verified"] for row in document["rows"]] == [True, True]


def test_the_code_says_if_there_is_one(command, tmp_path: Path) -> None:
    """3 for none, for a damaged one where all are read, for no folder at all."""
    run = made("unmoor", tmp_path / "run")
    (tmp_path / "empty").mkdir()
    assert command("empty") == (3, "no checkpoint in empty\n", "")
    code, out, err = command("missing")
    assert (code, out) == (3, "")
    assert "does not exist" in err
    data = bytearray((run / "step_000000020.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (run / "step_000000020.pt").write_bytes(data)
    assert command("run")[0] == 0
    code, out, _ = command("run", "--verify")
    assert code == 3
    assert "resume takes step_000000010.pt" in out
    for path in run.iterdir():
        path.write_bytes(b"")
    code, out, _ = command("run")
    assert code == 3
    assert "none can be resumed from" in out
