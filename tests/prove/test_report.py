"""A proof as a person sees it: text at 80 columns, the JSON document, the PNG, the page in a browser."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace

import pytest

from tests.browser import opened
from unmoor.report.curves import differences, proof_picture
from unmoor.report.documents import document_text
from unmoor.report.proof import proof_document, proof_lines, proof_text
from unmoor.values.proof import Compared, Difference, Proof
from unmoor.wiring.proving_pictures import write_pictures

EQUAL = Proof(
    ok=True,
    verdict="equal",
    build="train:build",
    steps=20,
    cut=10,
    table=(
        Compared("data order", None, 10, 10),
        Compared("loss", None, 10, 10),
        Compared("parameters", True, 10, 10),
        Compared("optimizer", True, 10, 10),
        Compared("scheduler", True, 10, 10),
        *(Compared(f"rng {name}", True, 10, 10) for name in ("torch", "numpy", "python")),
    ),
    losses=tuple(1 / step for step in range(1, 21)),
    resumed=tuple(1 / step for step in range(11, 21)),
)

DIFFERENT = replace(
    EQUAL,
    ok=False,
    verdict="different",
    difference=Difference(11, "data order", "", "samples 7, 2, ..", "9, 4, .."),
    cause="the sampler's generator (loader.generator) is not in the checkpoint",
    fix='Pass it: unmoor.save(..., rng={"sampler": loader.generator}), and the same to restore.',
    table=(
        Compared("data order", None, 0, 10, 11, 0, "different"),
        Compared("parameters", True, 0, 10, 11, 4, "different"),
        Compared("optimizer", False, 0, 10, 11, 4, "different"),
        Compared("rng torch", True, 10, 10),
        Compared("rng numpy", False, 0, 10, 11, 1, "different"),
    ),
    resumed=tuple(1.5 / step for step in range(11, 21)),
    pictures=("prove.png", "prove.html"),
)

EQUAL_TEXT = """\
resumed run equals the uninterrupted run: 20 of 20 steps, bit for bit
  data order  equal    loss        equal    parameters  equal
  optimizer   equal    scheduler   equal
  rng         torch, numpy, python equal"""

DIFFERENT_TEXT = """\
resumed run DIFFERS from step 11 on
  first difference   data order: batch 11 holds samples 7, 2, ..; the
                     uninterrupted run drew 9, 4, ..
  cause              the sampler's generator (loader.generator) is not in the
                     checkpoint
  fix                Pass it: unmoor.save(..., rng={"sampler":
                     loader.generator}), and the same to restore.
               restored   steps 11 to 20
  data order              differs from step 11
  parameters   equal      differs from step 11
  optimizer    DIFFERS    differs from step 11
  rng          equal      equal  (torch)
               DIFFERS    differs from step 11  (numpy)
  picture   prove.png, prove.html"""

WITHIN_TEXT = """\
resumed run equals the uninterrupted run: bit for bit right after the restore,
  10 of 10 steps after it within 0.001
  device    saved on cuda:0, resumed on cpu
  largest   loss differs by 1.2e-07 at most: the arithmetic is another one
  data order  equal     loss        within    parameters  equal
  optimizer   equal     scheduler   equal
  rng         torch, numpy, python equal"""


@pytest.mark.parametrize(("proof", "text"), [(EQUAL, EQUAL_TEXT), (DIFFERENT, DIFFERENT_TEXT)])
def test_the_text_at_eighty_columns(proof, text):
    """The first line answers; then the first difference, its cause, what to do; then the table."""
    assert proof_text(proof) == text


def test_another_arithmetic_is_told():
    """What is only nearly equal is never called bit for bit."""
    rows = tuple(replace(row, verdict="within") if row.component == "loss" else row for row in EQUAL.table)
    setting = (("device", "saved on cuda:0, resumed on cpu"),)
    proof = replace(EQUAL, verdict="within", tolerance=1e-3, largest=1.2e-7, table=rows, setting=setting)
    assert proof_text(proof) == WITHIN_TEXT


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("proof", [EQUAL, DIFFERENT])
def test_no_line_is_wider_than_the_page(proof, width):
    """Sentences wrap, tables are elided."""
    assert max(len(line.text) for line in proof_lines(proof, width=width)) <= width


def test_what_came_from_the_run_cannot_move_the_cursor():
    """Names and errors are escaped, lines stay lines."""
    text = proof_text(replace(DIFFERENT, cause="a\x1b[2J\nb"))
    assert "\x1b" not in text
    assert "a\\x1b[2J" in text


@pytest.mark.parametrize("proof", [EQUAL, DIFFERENT, replace(EQUAL, losses=(float("nan"),) * 20)])
def test_the_document_is_strict_json(proof):
    """What JSON lacks is text; the keys are those of the value."""
    document = json.loads(document_text(proof_document(proof)), parse_constant=pytest.fail)
    assert document["schema"] == "unmoor.proof/1"
    assert document["verdict"] == proof.verdict
    assert len(document["table"]) == len(proof.table)


def test_differences_are_resumed_minus_uninterrupted():
    """A step that gave no loss on a side has none."""
    proof = replace(EQUAL, resumed=(None, *(loss + 0.5 for loss in EQUAL.resumed[1:])))
    assert differences(proof)[0] is None
    assert differences(proof)[1:] == pytest.approx([0.5] * 9)


PROOFS = {
    "equal": EQUAL,
    "different": DIFFERENT,
    "no losses": replace(EQUAL, losses=(None,) * 20, resumed=(None,) * 10),
    "not resumed": replace(DIFFERENT, table=(), resumed=(None,) * 10),
    "not finite": replace(DIFFERENT, resumed=(float("inf"), float("nan"), *DIFFERENT.resumed[2:])),
    "one step": replace(EQUAL, steps=2, cut=1, losses=(1.0, 0.5), resumed=(0.5,)),
}


@pytest.mark.parametrize("kind", PROOFS)
def test_the_picture_is_a_png_and_the_same_each_time(kind):
    """Drawn without any window or state of pyplot's; no warning for losses that are missing or not finite."""
    data = proof_picture(PROOFS[kind])
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (1200, 690)
    assert proof_picture(PROOFS[kind]) == data


def test_drawing_leaves_pyplot_alone():
    """A program that draws figures of its own keeps them."""
    import sys

    proof_picture(EQUAL)
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


@pytest.mark.parametrize(("kind", "scheme"), [*((kind, "light") for kind in PROOFS), ("different", "dark")])
def test_the_page_opens_without_an_error(tmp_path, kind, scheme):
    """The sentence, the curves, the table; nothing is fetched and nothing is thrown, in both schemes."""
    proof = write_pictures(PROOFS[kind], tmp_path / "prove.html")
    with opened(tmp_path / "prove.html", scheme=scheme) as it:
        assert (it.errors, it.requests) == ([], [])
        assert it.page.locator("h1").inner_text() == proof_text(proof).split("\n")[0]
        assert it.page.locator("#curves .scatterlayer .trace").count() >= 1 or kind == "no losses"
        assert (it.page.locator("main > table").count() == 1) == bool(proof.table)
        paper = it.page.evaluate("getComputedStyle(document.body).backgroundColor")
        shade = sum(map(int, re.findall(r"\d+", paper)[:3]))
        assert (shade > 600) == (scheme == "light")
        it.page.locator("summary").click()
        assert it.page.locator("details tbody tr").count() == proof.steps


def test_the_page_changes_its_colours_with_the_scheme(tmp_path):
    """Curves are drawn anew where the reader switches between light and dark."""
    write_pictures(DIFFERENT, tmp_path / "prove.html")
    with opened(tmp_path / "prove.html") as it:
        line = it.page.locator("#curves .scatterlayer .js-line").first
        before = line.evaluate("it => getComputedStyle(it).stroke")
        it.page.emulate_media(color_scheme="dark")
        it.page.wait_for_function(
            "before => getComputedStyle(document.querySelector('#curves .js-line')).stroke !== before", arg=before
        )


def test_names_cannot_become_html(tmp_path):
    """What a run is called, and what it raised, is text on the page."""
    proof = replace(DIFFERENT, build="<script>alert(1)</script>", cause="<img src=x onerror=alert(1)>")
    write_pictures(proof, tmp_path / "prove.html")
    with opened(tmp_path / "prove.html") as it:
        assert it.errors == []
        assert "<img src=x" in it.page.locator("dl").inner_text()
        assert it.page.locator("dl img").count() == 0
