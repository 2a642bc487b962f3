"""`unmoor.page` and `unmoor inspect --html`: what is written, what is never overwritten, what is said."""

from __future__ import annotations

import importlib.resources
import json
import os

import pytest
import torch

import unmoor
from unmoor import cli
from unmoor.errors import MachineError, NotACheckpoint, SaveError, UsageError


@pytest.fixture
def checkpoint(tmp_path):
    """A file that torch wrote."""
    model = torch.nn.Linear(4, 4)
    torch.save({"model": model.state_dict(), "step": 3}, tmp_path / "run.pt")
    return tmp_path / "run.pt"


def test_the_function_gives_the_page_and_writes_it(checkpoint, tmp_path):
    """Of a path or of a catalog comes the same text, and the file holds it."""
    text = unmoor.page(checkpoint)
    assert text == unmoor.page(unmoor.describe(checkpoint), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == text
    assert sorted(os.listdir(tmp_path)) == ["page.html", "run.pt"]


def test_a_page_replaces_an_older_page(checkpoint, tmp_path):
    """The second page of one name takes the place of the first; so does one of an empty file."""
    (tmp_path / "page.html").touch()
    unmoor.page(unmoor.describe(checkpoint), tmp_path / "page.html")
    torch.save({"other": torch.ones(3)}, checkpoint)
    unmoor.page(checkpoint, tmp_path / "page.html")
    assert "other" in (tmp_path / "page.html").read_text("utf-8")


def test_nothing_but_a_page_is_overwritten(checkpoint, tmp_path, capsys):
    """The checkpoint itself, another one, a link to it: refused before anything is drawn, and left as it was."""
    before = checkpoint.read_bytes()
    (tmp_path / "link.html").symlink_to(checkpoint)
    for target in (checkpoint, tmp_path / "link.html"):
        with pytest.raises(UsageError, match="exists and is no page: it was left as it is"):
            unmoor.page(checkpoint, target)
        assert cli.main(["inspect", str(checkpoint), "--html", str(target)]) == 2
    assert checkpoint.read_bytes() == before
    assert "unmoor.UsageError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [("none/page.html", SaveError, "does not exist"), ("", UsageError, "no path"), (".", SaveError, "a folder")],
)
def test_a_target_that_cannot_be_written_is_named(checkpoint, tmp_path, monkeypatch, target, error, words):
    """No folder, no name, a folder in its place: an error with the path, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        unmoor.page(checkpoint, target)
    assert os.listdir(tmp_path) == ["run.pt"]


def test_what_is_no_checkpoint_is_no_page(tmp_path):
    """The error is that of describe, and no file is made."""
    with pytest.raises(NotACheckpoint):
        unmoor.page(tmp_path / "none.pt", tmp_path / "page.html")
    assert os.listdir(tmp_path) == []


def test_without_plotly_the_error_says_what_to_install(checkpoint, monkeypatch, capsys):
    """A machine without the package gets its name and the way around it, and exit code 5."""
    real = importlib.resources.files

    def files(name):
        if name == "plotly":
            raise ModuleNotFoundError("No module named 'plotly'", name="plotly")
        return real(name)

    monkeypatch.setattr("unmoor.wiring.paging.files", files)
    with pytest.raises(MachineError, match=r'pip install "unmoor\[pictures\]"'):
        unmoor.page(checkpoint)
    assert cli.main(["inspect", str(checkpoint), "--html", "page.html"]) == 5
    assert "plotly, which is not installed here" in capsys.readouterr().err


def test_the_command_says_what_it_wrote(checkpoint, tmp_path, monkeypatch, capsys):
    """The first line is that of the text form, the second names the page and how to open it."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["inspect", "run.pt", "--html", "run.html"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "torch zip, 1.9 KiB, plain dict: a model state dict, inside a larger dict"
    assert said[1].startswith("page run.html, 4.")
    assert max(map(len, said)) <= 80
    assert (tmp_path / "run.html").is_file()


def test_the_document_and_the_page_come_from_one_look(checkpoint, tmp_path, capsys):
    """With --json the document alone is printed, and the page is written beside."""
    assert cli.main(["inspect", str(checkpoint), "--json", "--html", str(tmp_path / "run.html")]) == 0
    assert json.loads(capsys.readouterr().out)["content"].startswith("a model state dict")
    assert (tmp_path / "run.html").is_file()
