"""What the pages say of commands, names and bytes is what the program has; what the program says of pages is there."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import torch

import unmoor
from unmoor import cli

from .blocks import blocks_of
from .made import tag
from .running import ROOT

DOCS = ROOT / "docs"


def test_every_command_has_its_section_with_its_help():
    """commands.md shows `--help` of each command, held by the page's own test, under a heading of its name."""
    text = (DOCS / "commands.md").read_text()
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(cli.COMMANDS)
    for name, section in sections.items():
        commands = [line for block in blocks_of(section) if block.tag == "console" for line in block.lines]
        assert f"$ unmoor {name} --help" in commands


def test_every_public_name_is_in_the_api_page_once():
    """api.md has each name of unmoor.__all__; a verb that is a folder too is named by the file of the verb."""
    found = re.findall(r"^::: unmoor\.(api\w*\.)?(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert [name for home, name in found if (ROOT / "src/unmoor" / name).is_dir() and not home] == []
    listed = [name for _, name in found]
    assert sorted(listed) == sorted(set(unmoor.__all__) - {"__version__"})


def _anchors(page: Path) -> set[str]:
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([\w-]+)"', text)) | set(re.findall(r"\{ ?#([\w-]+) ?\}", text))


def test_every_page_that_the_program_mentions_is_there():
    """An error or docstring that names a page of docs/, and a place in it, names one that exists."""
    for source in (ROOT / "src").rglob("*.py"):
        for page, anchor in re.findall(r"docs/([\w/-]+\.md)(?:#([\w-]+))?", source.read_text()):
            assert (DOCS / page).is_file(), f"{source.name}: docs/{page}"
            assert not anchor or anchor in _anchors(DOCS / page), f"{source.name}: docs/{page}#{anchor}"


def _table(heading: str) -> list[list[str]]:
    """The first columns of the rows of the table in formats.md whose first heading is `heading`, as words in quotes."""
    rows = (DOCS / "formats.md").read_text().split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].split("\n")[2:]
    return [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in rows]


def _keys(heading: str) -> set[str]:
    return {word for row in _table(heading) for word in row}


def _saved(folder: Path) -> Path:
    """A file with everything in it that a manifest tells of."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = unmoor.resumable(torch.utils.data.DataLoader([1, 2, 3]))
    path = folder / "all.pt"
    unmoor.save(path, model=model, optimizer=optimizer, loader=loader, table=np.arange(3))
    return path


def test_the_page_has_every_record_of_a_file(tmp_path):
    """The table of records is that of a file written now."""
    names = [name.partition("/")[2] for name in zipfile.ZipFile(_saved(tmp_path)).namelist()]
    assert {name for name in names if not name.startswith("data/")} == _keys("record") - {"data/0", "data/1"}


def test_the_page_has_every_key_of_the_manifest(tmp_path):
    """The tables of keys are those of a manifest written now; `ranks` is only there for several ranks."""
    manifest = json.loads(zipfile.ZipFile(_saved(tmp_path)).read("all/unmoor/manifest.json"))
    assert set(manifest) == _keys("key") - {"ranks"}
    assert {key for role in manifest["roles"].values() for key in role} == _keys("key of a role")


def test_the_page_has_every_file_and_key_of_a_folder(tmp_path):
    """The table of files, and that of the folder's manifest, are those of a folder written now."""
    unmoor.convert(_saved(tmp_path), tmp_path / "run")
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == _keys("file") - {"__1_0.distcp"}
    manifest = json.loads((tmp_path / "run" / "unmoor-manifest.json").read_text())
    assert set(manifest) == _keys("key of `unmoor-manifest.json`") - {"ranks"}


def test_the_page_has_every_key_of_a_relocation(tmp_path):
    """The table of keys of the record that a relocation leaves is that of one made now."""
    path = tmp_path / "w.pt"
    torch.save({"w": torch.zeros(2)}, path)
    tag(str(path), "cuda:7")
    unmoor.relocate(path, to="cpu")
    recorded = json.loads(zipfile.ZipFile(path).read("w/unmoor/relocated.json"))
    assert set(recorded) == _keys("key of `unmoor/relocated.json`")
