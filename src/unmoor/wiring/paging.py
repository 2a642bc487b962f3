"""The verb page: describe -> report -> one file of HTML, in place at once.

Nothing but an older page is ever replaced: a slip of the hand must not cost a checkpoint.
"""

from __future__ import annotations

import os
from importlib.resources import files
from typing import Final

from unmoor import places
from unmoor.errors import MachineError, UsageError
from unmoor.execute.commit import real_path
from unmoor.execute.small import write_small
from unmoor.filing import open_reader, path_text, read
from unmoor.report.page import Assets, page_html
from unmoor.steady import one_reading
from unmoor.urls import is_url
from unmoor.values.catalog import Catalog
from unmoor.values.pausing import collector_paused
from unmoor.version import __version__

__all__ = ["make_page"]

_BEGINNING: Final = b"<!doctype html>"


@one_reading()
def make_page(source: str | os.PathLike[str] | Catalog, target: str | os.PathLike[str] | None) -> str:
    """The page of a checkpoint as text; where `target` is given, it is written there too."""
    assets = _assets()
    if target is not None:
        _refuse_other_files(path_text(target))
    with collector_paused():
        text = page_html(_catalog(source), assets=assets, version=__version__)
    if target is not None:
        write_small(path_text(target), text.encode(), durability="system")
    return text


def _catalog(source: str | os.PathLike[str] | Catalog) -> Catalog:
    if isinstance(source, Catalog):
        return source
    from unmoor.describe import describe_path

    return describe_path(source)


def _assets() -> Assets:
    own = files("unmoor.report") / "assets"
    style, table, treemap = ((own / name).read_text("utf-8") for name in ("page.css", "table.js", "treemap.js"))
    return Assets(style=style, table=table, treemap=treemap, plotly=_plotly())


def _plotly() -> str:
    """The script that plotly's package carries, without importing what draws figures in Python."""
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise MachineError(
            "a page draws its treemap with plotly, which is not installed here",
            remedy='Install it: pip install "unmoor[pictures]". The text form and --json say the same without it.',
        ) from error


def _refuse_other_files(path: str) -> None:
    """Raise UsageError where something that is no page stands at `path`."""
    target = path if is_url(path) else real_path(path)
    if not places.is_file(target) or places.tree_bytes(target) == 0:
        return
    with open_reader(target) as reader:
        beginning = read(reader, 0, len(_BEGINNING))
    if beginning.lower() != _BEGINNING:
        raise UsageError(
            f"{path} exists and is no page: it was left as it is",
            remedy="Give the page a name of its own, such as page.html.",
            path=path,
        )
