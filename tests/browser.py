"""Headless Chromium for tests and for the pictures of the documentation; where there is none, tests skip.

`opened(path)` opens a file. Nothing goes out to the network: every other request is refused and noted, and so is every
error that the page prints or throws.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

__all__ = ["Opened", "chromium", "opened"]

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")

FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

Scheme = Literal["dark", "light"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A page that is open.

    `errors` are the errors of its console and its scripts, `requests` what it asked for beside the file itself; both
    grow while it is used.
    """

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def chromium() -> str | None:
    """The path of the Chromium of this machine; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def opened(
    path: Path, *, width: int = 1200, height: int = 800, scheme: Scheme = "light", scale: float = 1, **context: Any
) -> Iterator[Opened]:
    """The HTML file at `path`, open in a window of so many CSS pixels. Skips the test where Chromium is missing.

    `scale` is device pixels per CSS pixel; `context` goes to playwright's new_context (has_touch, reduced_motion).

    >>> with opened(Path("page.html"), scheme="dark") as it:  # doctest: +SKIP
    ...     it.page.screenshot(path="page.png")
    ...     assert not it.errors
    """
    program = chromium()
    if program is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is on the path")
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with _running(program) as browser:
        window = {"width": width, "height": height}
        made = browser.new_context(viewport=window, color_scheme=scheme, device_scale_factor=scale, **context)
        try:
            page = made.new_page()
            it = Opened(page)
            page.on("console", lambda said: it.errors.append(said.text) if said.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: it.errors.append(str(error)))
            address = path.resolve().as_uri()
            made.route("**/*", lambda route: _local_only(route, address, it))
            page.goto(address)
            yield it
        finally:
            made.close()


_browsers: list[Browser] = []
"""The browser that runs, if one does. playwright takes one driver a process, and an event loop while it is there."""


@contextmanager
def _running(program: str) -> Iterator[Browser]:
    """The browser of this process: started by the outermost page that is opened, gone with it."""
    if _browsers:
        yield _browsers[0]
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        _browsers.append(browser)
        try:
            yield browser
        finally:
            _browsers.clear()
            browser.close()


def _local_only(route: Route, address: str, it: Opened) -> None:
    asked = route.request.url
    if asked.partition("#")[0] == address:
        route.continue_()
    else:
        it.requests.append(asked)
        route.abort()
