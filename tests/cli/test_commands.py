"""Commands in this process: what they print, where, and the code they end with."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

import unmoor.errors
from tests.report.catalogs import catalog, danger, opaque, part, tensor, training_checkpoint
from unmoor import cli
from unmoor.errors import (
    CorruptFile,
    FileError,
    FitError,
    HostileFile,
    KindError,
    MachineError,
    SaveError,
    TrustError,
    UnmoorError,
    UsageError,
)
from unmoor.report.inspect import inspect_text
from unmoor.values.finding import Finding

from .fakes import ClosedPipe, Stream, answer


@pytest.fixture
def run(monkeypatch):
    """Run a command on streams of a given kind; the code and both streams."""
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, out=None, err=None):
        out, err = out or Stream(), err or Stream(errors="backslashreplace")
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        return cli.main(arguments), out, err

    return run


def test_inspect_prints_the_page(run, monkeypatch):
    """The text of the report stage goes to stdout, nothing to stderr, and the code is 0."""
    answer(monkeypatch, training_checkpoint())
    code, out, err = run("inspect", "run.pt")
    assert (code, out.text, err.text) == (0, inspect_text(training_checkpoint()) + "\n", "")


def test_all_lists_every_tensor(run, monkeypatch):
    """--all has a line for each tensor."""
    answer(monkeypatch, training_checkpoint())
    _, out, _ = run("inspect", "run.pt", "--all")
    assert all(f"  {entry.path}\n" in out.text for entry in training_checkpoint().tensors)


def test_json_is_one_document(run, monkeypatch):
    """--json prints a document that parses and nothing else."""
    answer(monkeypatch, training_checkpoint())
    code, out, err = run("inspect", "run.pt", "--json")
    assert (code, err.text) == (0, "")
    assert len(json.loads(out.text)["tensors"]) == len(training_checkpoint().tensors)


@pytest.mark.parametrize("flags", [(), ("--json",), ("--all",)])
@pytest.mark.parametrize(
    ("found", "code"),
    [
        (catalog(), 0),
        (catalog(tree=opaque("x.Y")), 0),
        (catalog(findings=[Finding("note", "info", "", "m"), Finding("look", "warning", "", "m")]), 0),
        (catalog(findings=[Finding("fails", "error", "", "m")]), 1),
        (catalog(findings=[Finding("fails", "error", "", "m"), danger()]), 6),
    ],
)
def test_the_code_says_how_grave_the_findings_are(run, monkeypatch, found, code, flags):
    """Unknown classes and warnings end with 0, errors with 1, dangerous code with 6, however it is printed."""
    answer(monkeypatch, found)
    assert run("inspect", "run.pt", *flags)[0] == code


@pytest.mark.parametrize(
    ("kind", "code"), [(UsageError, 2), (FileError, 3), (FitError, 4), (MachineError, 5), (UnmoorError, 70)]
)
def test_every_error_has_the_code_of_its_branch(kind, code):
    """The code says whose fault an error is; the table is walked with every class of the error tree."""
    for name in unmoor.errors.__all__:
        error = getattr(unmoor.errors, name)
        branch = next((b for b in (UsageError, FileError, FitError, MachineError) if issubclass(error, b)), UnmoorError)
        if branch is kind:
            assert cli.exit_code(error("headline")) == code, name


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TrustError("t"), 2),
        (HostileFile("h"), 3),
        (CorruptFile("c"), 3),
        (KindError("k"), 4),
        (SaveError("s"), 5),
        (PermissionError(13, "Permission denied", "run.pt"), 5),
        (MemoryError(), 5),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 5),
        (KeyError("x"), 70),
        (click.UsageError("u"), 2),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_errors_end_with_their_code(run, monkeypatch, error, code):
    """Whatever a command raises becomes a documented code, with words on stderr and nothing on stdout."""
    answer(monkeypatch, error)
    ended, out, err = run("inspect", "run.pt")
    assert (ended, out.text) == (code, "")
    assert err.text
    assert code in cli.EXIT_CODES


def test_an_error_is_told_in_full_without_a_traceback(run, monkeypatch):
    """Class, headline, details and remedy stand on stderr as the error words them."""
    answer(
        monkeypatch,
        KindError("opt.pt holds a model", details=["found      184 tensors"], remedy="Nothing was changed."),
    )
    _, _, err = run("inspect", "opt.pt")
    assert err.text == "unmoor.KindError: opt.pt holds a model\n  found      184 tensors\nNothing was changed.\n"


def test_an_error_cannot_move_the_cursor(run, monkeypatch):
    """Names from a file in an error are escaped, its lines stay lines."""
    answer(monkeypatch, CorruptFile("\x1b[2J is broken", details=["a", "b"]))
    _, _, err = run("inspect", "x")
    assert err.text == "unmoor.CorruptFile: \\x1b[2J is broken\n  a\n  b\n"


def test_a_missing_torch_is_told_with_the_remedy(run, monkeypatch):
    """A command that needs PyTorch says how to get it."""
    answer(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert 'pip install "unmoor[torch]"' in run("inspect", "x")[2].text


def test_a_fault_of_ours_shows_its_traceback(run, monkeypatch):
    """An unforeseen exception is not swallowed: the traceback is what a bug report needs."""
    answer(monkeypatch, ZeroDivisionError("inside"))
    code, _, err = run("inspect", "x")
    assert code == 70
    assert "Traceback" in err.text
    assert "ZeroDivisionError: inside" in err.text
    assert "this is a fault in unmoor" in err.text


@pytest.mark.parametrize("arguments", [("inspect",), ("inspect", "a", "b"), ("inspect", "a", "--bogus"), ("bogus",)])
def test_a_wrong_call_ends_with_usage(run, arguments):
    """A wrong call says on stderr how the command is called."""
    code, out, err = run(*arguments)
    assert (code, out.text) == (2, "")
    assert "Usage: unmoor" in err.text


@pytest.mark.parametrize("name", [None, *cli.commands.commands])
def test_help_carries_an_example_and_fits(name):
    """Every command's help has an example and is no wider than 80 columns."""
    result = CliRunner().invoke(cli.commands, [name, "--help"] if name else ["--help"], prog_name="unmoor")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"  unmoor {name or 'inspect'}" in result.output
    assert max(map(len, result.output.split("\n"))) <= 80


def test_help_prints_the_table_of_exit_codes():
    """Every documented code stands in `unmoor --help` with its meaning."""
    output = CliRunner().invoke(cli.commands, ["--help"]).output
    assert all(f"{code:<3}  {text}\n" in output for code, text in cli.EXIT_CODES.items())


def test_version_is_printed():
    """--version names the program and the version."""
    assert CliRunner().invoke(cli.commands, ["--version"]).output == f"unmoor {unmoor.__version__}\n"


def test_colour_is_only_on_a_terminal_and_repeats_the_words(run, monkeypatch):
    """On a terminal lines are painted; without the paint the text is that of a pipe."""
    answer(monkeypatch, catalog(findings=[danger()]))
    piped = run("inspect", "x")[1].text
    painted = run("inspect", "x", out=Stream(terminal=True))[1].text
    assert "\x1b[" not in piped
    assert "\x1b[" in painted
    assert click.unstyle(painted) == piped


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_can_refuse_colour(run, monkeypatch, name, value):
    """NO_COLOR and a dumb terminal get plain text."""
    answer(monkeypatch, catalog(findings=[danger()]))
    monkeypatch.setenv(name, value)
    assert "\x1b[" not in run("inspect", "x", out=Stream(terminal=True))[1].text


def test_errors_are_painted_by_the_stream_they_go_to(run, monkeypatch):
    """A terminal on stderr gets a painted name, whatever stdout is."""
    answer(monkeypatch, KindError("headline"))
    assert "\x1b[" in run("inspect", "x", err=Stream(terminal=True))[2].text
    assert "\x1b[" not in run("inspect", "x", out=Stream(terminal=True))[2].text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_output_is_safe_in_any_encoding(run, monkeypatch, encoding):
    """What the terminal's encoding lacks is written as an escape, the ellipsis as three dots; nothing is lost."""
    entries = [tensor(("model", "größe_层_" + "x" * 300))]
    answer(monkeypatch, catalog([(part("model", ("model",), entries), entries)]))
    code, out, _ = run("inspect", "x", out=Stream(encoding=encoding))
    assert code == 0
    ellipsis = "…" if encoding in ("utf-8", "cp1252") else "..."
    assert ellipsis in out.text
    whole = run("inspect", "x", "--all", out=Stream(encoding=encoding))[1].text
    assert "gr\\xf6\\xdfe_\\u5c42_" + "x" * 300 in whole.replace("ö", "\\xf6").replace("ß", "\\xdf").replace(
        "层", "\\u5c42"
    )


@pytest.mark.parametrize(("told", "width"), [("40", 40), ("20", 40), ("200", 200), ("", 80), ("wide", 80)])
def test_the_width_is_that_of_the_terminal(run, monkeypatch, told, width):
    """COLUMNS decides where it is set, 80 where nobody knows, and no page is narrower than 40."""
    answer(monkeypatch, training_checkpoint())
    monkeypatch.setenv("COLUMNS", told)
    assert run("inspect", "x")[1].text == inspect_text(training_checkpoint(), width=width) + "\n"


def test_a_closed_pipe_is_no_error(run, monkeypatch):
    """A reader that has gone changes neither the code nor stderr."""
    answer(monkeypatch, catalog(findings=[danger()]))
    monkeypatch.setattr("os.dup2", lambda *_: None)
    out = ClosedPipe()
    monkeypatch.setattr(out, "fileno", lambda: 1)
    code, _, err = run("inspect", "x", out=out)
    assert (code, err.text) == (6, "")


def test_a_process_without_stdout_works(run, monkeypatch):
    """A daemon whose stdout is closed still gets its exit code."""
    answer(monkeypatch, catalog(findings=[danger()]))
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", Stream())
    assert cli.main(["inspect", "x"]) == 6


def test_an_error_fits_the_terminal(run, monkeypatch):
    """Long lines of an error are folded on a terminal, indented below their first, and nothing of them is lost."""
    words = " ".join(f"word{i}" for i in range(40))
    answer(monkeypatch, FitError(words, details=[words], remedy=words))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    _, _, err = run("inspect", "run.pt", err=Stream(terminal=True))
    lines = err.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert err.text.split() == ["unmoor.FitError:", *words.split() * 3]
    assert [line[:6] for line in lines if line.startswith(" ")][-1] == "  word"


def test_an_error_keeps_its_lines_in_a_pipe(run, monkeypatch):
    """A program that reads stderr gets each line whole."""
    words = " ".join(f"word{i}" for i in range(40))
    answer(monkeypatch, FitError(words, remedy=words))
    _, _, err = run("inspect", "run.pt")
    assert err.text == f"unmoor.FitError: {words}\n{words}\n"
