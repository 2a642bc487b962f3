"""A page as a person uses it, in headless Chromium: search, sort, colours, themes, and what must not happen."""

from __future__ import annotations

import re

import pytest

from tests.browser import opened
from tests.report.catalogs import catalog, part, tensor

from .pages import ATTACK, hostile, large, training_checkpoint, written


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The page of a training checkpoint, written once."""
    return written(training_checkpoint(), tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def shared(checkpoint):
    """That page, open; tests leave it as they found it."""
    with opened(checkpoint) as it:
        yield it
        assert (it.errors, it.requests) == ([], [])


@pytest.fixture
def page(shared):
    """The open page in its first state."""
    shared.page.reload()
    return shared.page


def names(page) -> list[str]:
    """The names of the rows that are shown."""
    return page.locator("#list tbody th").all_inner_texts()


def column(page, number: int) -> list[str]:
    """The cells of a column that are shown; the first one is the name's."""
    return page.locator(f"#list tbody tr > :nth-child({number})").all_inner_texts()


def head(page, title: str):
    """The button of a column."""
    return page.locator("#list").get_by_role("columnheader", name=title).get_by_role("button")


def test_search_finds_by_every_word_and_says_how_many(page):
    """Words in any order, of name, shape, dtype or device, all of which must fit."""
    page.get_by_label("Search tensors").fill("weight MLP 256x64")
    assert names(page) == [f"model.layers.{i}.mlp.0.weight" for i in range(4)]
    assert page.locator("#found").inner_text() == "4 of 220 tensors, 256.0 KiB"
    page.get_by_label("Search tensors").fill("no such name")
    assert "No tensor fits" in page.locator("#list tbody").inner_text()
    assert page.locator("#found").inner_text() == "0 of 220 tensors, 0 B"


def test_filters_by_role_device_and_dtype_go_together(page):
    """What is chosen in each list must fit as well."""
    page.locator("#by-role").select_option("rng")
    page.locator("#by-dtype").select_option("uint8")
    assert names(page) == ["rng.torch", "rng.cuda.0", "rng.cuda.1"]
    page.locator("#by-device").select_option("cuda:0")
    assert names(page) == []


def test_a_column_sorts_down_and_up_and_back_to_the_order_of_the_file(page):
    """The first click on bytes puts the largest first; the head says so to a screen reader."""
    before = names(page)
    cell = page.locator("#list").get_by_role("columnheader", name="bytes")
    head(page, "bytes").click()
    assert cell.get_attribute("aria-sort") == "descending"
    assert column(page, 6)[0] == "250.0 KiB"
    head(page, "bytes").click()
    assert cell.get_attribute("aria-sort") == "ascending"
    assert column(page, 6)[0] == "4 B"
    head(page, "bytes").click()
    assert cell.get_attribute("aria-sort") is None
    assert names(page) == before


def test_names_sort_with_their_numbers_as_numbers(page):
    """Layer 10 comes behind layer 9."""
    page.get_by_label("Search tensors").fill("optimizer exp_avg_sq")
    head(page, "name").click()
    numbers = [int(re.search(r"state\.(\d+)\.", name)[1]) for name in names(page)]
    assert numbers == sorted(numbers)


def test_the_keyboard_alone_is_enough(page):
    """A slash goes to the search, Tab to the lists and heads, Enter sorts."""
    page.keyboard.press("/")
    page.keyboard.type("norm")
    assert len(names(page)) == 5
    head(page, "name").focus()
    page.keyboard.press("Enter")
    assert names(page)[-1] == "model.norm.weight"


def test_pages_of_the_table_turn(page):
    """Fifty rows a page; the buttons at the ends know that they are there."""
    assert len(names(page)) == 50
    assert page.get_by_role("button", name="Previous").is_disabled()
    page.get_by_role("button", name="Last").click()
    assert len(names(page)) == 20
    assert page.get_by_role("button", name="Next").is_disabled()
    assert "201 to 220 of 220" in page.locator("#pager").inner_text()


def test_colours_switch_between_role_device_and_dtype(page):
    """The legend and the tiles follow; colours of the first kind are gone from the tiles."""
    tiles = "[...new Set([...document.querySelectorAll('#map path.surface')].map(p => p.style.fill))].sort()"
    by_role = page.evaluate(tiles)
    assert page.locator("#legend li").all_inner_texts()[0].startswith("model 55 tensors")
    page.get_by_text("dtype", exact=True).locator("visible=true").first.click()
    assert page.locator("#legend li").all_inner_texts()[0] == "float32 217 tensors, 3.3 MiB, 99.9 %"
    assert page.evaluate(tiles) != by_role
    page.get_by_text("device", exact=True).locator("visible=true").nth(1).click()
    assert [text.split(" ")[0] for text in page.locator("#legend li").all_inner_texts()] == ["cuda:0", "cpu"]


def test_the_map_opens_modules_and_narrows_the_table(page):
    """A module of the map is opened by its list as well as by a click; the table shows what lies below it."""
    page.get_by_label("Open a module").select_option(label="model (1.2 MiB)")
    assert page.locator("#found").inner_text() == "55 of 220 tensors, 1.2 MiB"
    assert page.locator("#trail button").all_inner_texts() == ["all", "model"]
    page.get_by_label("Open a module").select_option(index=1)
    assert names(page)[0] == "model.layers.0.attn.q.weight"
    page.locator("#trail button").first.click()
    assert page.locator("#found").inner_text().startswith("220 tensors")
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map g.slice path.surface").nth(5).bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert " of 220 tensors" in page.locator("#found").inner_text()
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#found").inner_text().startswith("220 tensors")


def test_tensors_of_one_storage_are_found_from_each_other(page):
    """A tied weight says that it is shared, and leads to the others."""
    page.get_by_role("button", name="shared with 1 other").first.click()
    assert names(page) == ["model.embed.weight", "model.head.weight"]


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_theme_follows_the_system_and_the_switch(checkpoint, scheme, dark):
    """The page is dark where the system is, and what the switch says where it was used; the map goes with it."""
    luminance = "parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    with opened(checkpoint, scheme=scheme) as it:
        assert (it.page.evaluate(luminance) < 128) is dark
        it.page.get_by_text("Light" if dark else "Dark", exact=True).click()
        assert (it.page.evaluate(luminance) < 128) is not dark
        it.page.get_by_text("Auto", exact=True).click()
        assert (it.page.evaluate(luminance) < 128) is dark
        assert (it.errors, it.requests) == ([], [])


def test_names_that_are_markup_run_nothing_and_are_shown(tmp_path):
    """A tensor named `</script><img onerror=...>` is a row like any other, in the table, the map and the findings."""
    with opened(written(hostile(), tmp_path)) as it:
        page = it.page
        title = page.title()
        assert title.startswith("b>")
        assert f"model.{ATTACK}" in names(page)
        for title_of in ("name", "device", "bytes"):
            head(page, title_of).click()
        page.get_by_label("Search tensors").fill("<img")
        assert len(names(page)) == 2
        for way in ("device", "dtype"):
            page.locator(f"input[name=colour][value={way}]").check(force=True)
        page.locator("#map g.slice").last.hover()
        assert page.locator("img, #map a, #tensors b").count() == 0
        assert page.title() == title
        assert (it.errors, it.requests) == ([], [])


@pytest.mark.parametrize("kind", ["empty", "no bytes", "one tensor"])
def test_small_files_have_a_page(tmp_path, kind):
    """Nothing at all, tensors without elements, and a file that is one tensor: no error."""
    entries = {"empty": [], "no bytes": [tensor(("w",), (0, 4))], "one tensor": [tensor((), (3,))]}[kind]
    found = catalog([(part("model", (), entries), entries)] if entries else [])
    with opened(written(found, tmp_path)) as it:
        assert it.page.locator("h1").inner_text() == "run.pt"
        assert it.page.locator("#list tbody tr").count() == len(entries)
        assert (it.errors, it.requests) == ([], [])


def test_fifty_thousand_tensors_are_searched_and_sorted(tmp_path):
    """A large file shows what a small one shows; fifty rows are in the page, and the tiles are few."""
    found = large(50_000)
    with opened(written(found, tmp_path)) as it:
        page = it.page
        assert page.locator("#found").inner_text().startswith(f"{len(found.tensors):,} tensors")
        page.get_by_label("Search tensors").fill("layers.1200.norm")
        assert names(page) == ["model.layers.1200.norm.weight"]
        page.get_by_label("Search tensors").fill("")
        head(page, "bytes").click()
        assert column(page, 6)[0] == "62.5 KiB"
        assert page.locator("#list tbody tr").count() == 50
        assert 10 < page.locator("#map g.slice").count() <= 2500
        assert (it.errors, it.requests) == ([], [])


@pytest.mark.parametrize("width", [360, 1400])
def test_no_width_makes_the_page_wider_than_the_screen(tmp_path, width):
    """On a phone only tables scroll sideways, each inside itself."""
    with opened(written(hostile(), tmp_path), width=width) as it:
        assert it.page.evaluate("document.documentElement.scrollWidth") <= width
        assert it.page.get_by_role("table").count() >= 1


def test_every_control_has_a_name_and_every_word_enough_contrast(checkpoint):
    """Screen readers find a name for each control; text stands out from what is behind it by 4.5 to 1."""
    unnamed = """[...document.querySelectorAll('button, input, select, nav, [role=region]')].filter(e =>
        e.offsetParent && !(e.innerText || e.ariaLabel || e.labels?.[0]?.innerText || e.labels?.[0]?.textContent.trim()
        || e.getAttribute('aria-labelledby'))).map(e => e.outerHTML)"""
    for scheme in ("light", "dark"):
        with opened(checkpoint, scheme=scheme) as it:
            assert it.page.evaluate(unnamed) == []
            assert it.page.evaluate(FAINT) == []


FAINT = """(() => {
  const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const parts = c => (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const bright = c => {
    const [r, g, b] = parts(c);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  };
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (parts(c).length < 4 || parts(c)[3] > 0) return c;
    }
    return 'rgb(255,255,255)';
  };
  const faint = [];
  for (const e of document.querySelectorAll('body *:not(#map *)')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.offsetParent || e.disabled || e.closest('script, style')) continue;
    const [a, b] = [bright(getComputedStyle(e).color), bright(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.push(`${e.className || e.tagName}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(faint)];
})()"""
