"""Commands as real child processes: start-up, pipes, terminals, encodings, exit codes."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import click
import pytest

import unmoor

torch = pytest.importorskip("torch")
SOURCE = str(Path(unmoor.__file__).parent.parent)


class RunsWhenLoaded:
    """An object whose unpickling makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkpoints as torch writes them."""
    made = tmp_path_factory.mktemp("checkpoints")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "größe_层": 1}, made / "run.pt")
    torch.save({f"parameter_{i}.weight": torch.zeros(2) for i in range(3000)}, made / "wide.pt")
    torch.save({"model": model.state_dict(), "callback": RunsWhenLoaded(made / "ran")}, made / "hostile.pt")
    (made / "page.pt").write_text("<!doctype html><html><body>Please log in</body></html>")
    return made


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without what decides about colour, width and encoding."""
    dropped = ("NO_COLOR", "COLUMNS", "TERM", "PYTHONIOENCODING", "PYTHONUTF8")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return {**kept, "PYTHONPATH": SOURCE, "PYTHONIOENCODING": "utf-8", **changes}


def run(*arguments, folder, **changes):
    """`python -m unmoor` in `folder`: a finished process with its output as text."""
    command = [sys.executable, "-W", "error", "-m", "unmoor", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(**changes),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("flags", [(), ("--all",), ("--json",)])
def test_inspect_needs_neither_torch_nor_rich_nor_numpy(folder, tmp_path, flags):
    """A process in which importing them raises describes a checkpoint."""
    for name in ("torch", "rich", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    done = run("inspect", "run.pt", *flags, folder=folder, PYTHONPATH=os.pathsep.join([str(tmp_path), SOURCE]))
    assert (done.returncode, done.stderr) == (0, "")
    assert "Adam" in done.stdout


def test_json_is_stable_and_parses(folder):
    """Two runs print the same document, and its path is as it was given."""
    first, second = (run("inspect", "run.pt", "--json", folder=folder) for _ in range(2))
    assert first.stdout == second.stdout
    assert json.loads(first.stdout)["path"] == "run.pt"
    assert {part["role"] for part in json.loads(first.stdout)["parts"]} == {"model", "optimizer", "extra"}


def test_a_hostile_file_ends_with_its_own_code_and_runs_nothing(folder):
    """Exit code 6 and a line in words; the file's code was not run."""
    done = run("inspect", "hostile.pt", folder=folder)
    assert (done.returncode, done.stderr) == (6, "")
    assert "DANGEROUS: " in done.stdout
    assert "mkdir" in done.stdout
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("path", ["page.pt", "missing.pt", "."])
def test_what_is_no_checkpoint_ends_with_the_file_at_fault(folder, path):
    """Exit code 3, the class and the file on stderr, nothing on stdout, no traceback."""
    done = run("inspect", path, folder=folder)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("unmoor.")
    assert path in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("flags", [(), ("--all",), ("--json",)])
def test_a_reader_that_leaves_early_is_no_error(folder, flags):
    """`| head -1` is silent and ends with 0."""
    command = [sys.executable, "-m", "unmoor", "inspect", "wide.pt", *flags]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        child.stdout.close()
        assert (child.stderr.read(), child.wait(timeout=60)) == (b"", 0)


PLAIN_C = {"PYTHONIOENCODING": "", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("changes", [{"PYTHONIOENCODING": "ascii"}, PLAIN_C])
def test_a_terminal_that_knows_only_ascii(folder, changes):
    """Names of any script come out as escapes, and nothing fails."""
    done = run("inspect", "run.pt", folder=folder, **changes)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "gr\\xf6\\xdfe_\\u5c42" in done.stdout


@pytest.mark.parametrize(("changes", "painted"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_on_a_real_terminal(folder, changes, painted):
    """A terminal gets colour unless it refuses it; the words are those that a pipe gets at the same width."""
    pty = pytest.importorskip("pty")
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 60, 0, 0))
    command = [sys.executable, "-m", "unmoor", "inspect", "hostile.pt"]
    terminal = environment(**{"TERM": "xterm", **changes})
    with subprocess.Popen(command, cwd=folder, env=terminal, stdout=theirs) as child:
        os.close(theirs)
        shown = _everything(ours)
        assert child.wait(timeout=60) == 6
    assert ("\x1b[" in shown) is painted
    assert click.unstyle(shown) == run("inspect", "hostile.pt", folder=folder, COLUMNS="60").stdout


def _everything(descriptor: int) -> str:
    """All that comes out of a terminal until its other end closes."""
    data = b""
    while True:
        try:
            more = os.read(descriptor, 65536)
        except OSError:
            more = b""
        if not more:
            os.close(descriptor)
            return data.decode("utf-8").replace("\r\n", "\n")
        data += more


def test_the_module_runs_and_names_itself(folder):
    """`python -m unmoor` is the command `unmoor`."""
    assert run("--version", folder=folder).stdout == f"unmoor {unmoor.__version__}\n"
    assert run("--help", folder=folder).stdout.startswith("Usage: unmoor ")
    assert run("bogus", folder=folder).returncode == 2
