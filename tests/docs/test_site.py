"""The site builds without a warning, refers to nothing outside of itself, and its search finds what people look for."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.browser import FLAGS, chromium

from .running import ROOT

_FETCHED = re.compile(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(https?:)?//|<link\b[^>]*\bhref="(https?:)?//')


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site; any warning of the build is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_in_the_site_and_its_navigation(site):
    """Each Markdown file of docs/ became a page that the first one leads to."""
    start = (site / "index.html").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        made = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / made).is_file()
        assert page.name == "index.md" or f'href="{made.as_posix()}"' in start, made


def test_nothing_is_fetched_from_elsewhere(site):
    """Pages and styles load no font, script, style or picture from another host."""
    for page in site.rglob("*.html"):
        assert not _FETCHED.search(page.read_text()), page
        assert "mermaid" not in page.read_text(), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//", style.read_text()), style


@pytest.mark.parametrize("words", ["param_groups", "capturable", "relocate", "map_location"])
def test_the_index_of_the_search_has_the_words(site, words):
    """What a person types at midnight is in the index."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any(words in entry["text"] or words in entry["title"] for entry in index["docs"])


@pytest.fixture
def served(site) -> Iterator[str]:
    """The address of a server of this machine that shows the site."""
    handler = partial(_Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the method it replaces)
        """Say nothing."""


def test_search_finds_the_entry_of_an_error(served):
    """In a browser, a message typed into the search leads to its entry, and no request leaves this machine."""
    sync_api, path = pytest.importorskip("playwright.sync_api"), chromium()
    if path is None:
        pytest.skip("no Chromium on this machine")
    asked: list[str] = []
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=list(FLAGS))
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{served}/index.html")
        page.locator("input[name=query]").click()
        page.keyboard.type("param_groups")
        result = page.locator("a.md-search-result__link[href*='errors.html']").first
        result.wait_for(timeout=20_000)
        href = result.get_attribute("href")
        browser.close()
    assert href is not None
    assert all(url.startswith((served, "data:", "blob:")) for url in asked), asked
