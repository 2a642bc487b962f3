"""Seals of folders, what breaks them, which folder is taken, and programs that are missing: in this process."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from unmoor.errors import MachineError
from unmoor.integrations import resuming, sealing


def made(folder: Path) -> Path:
    """A folder as a program writes it, with a folder in it."""
    (folder / "inner").mkdir(parents=True)
    (folder / "one.bin").write_bytes(bytes(range(256)))
    (folder / "inner" / "two words.json").write_text("{}")
    return folder


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda _: None, ""),
    "a file more": (lambda folder: (folder / "more").write_text("x"), ""),
    "a file less": (lambda folder: (folder / "one.bin").unlink(), "one.bin is missing"),
    "a bit": (lambda folder: (folder / "one.bin").write_bytes(bytes(256)), "one.bin is not what was sealed"),
    "cut short": (lambda folder: (folder / "one.bin").write_bytes(b""), "one.bin is not what was sealed"),
    "within": (lambda folder: (folder / "inner" / "two words.json").write_text("[]"), "inner/two words.json is not"),
    "no seal in it": (lambda folder: (folder / sealing.SEAL).write_text(""), "unmoor.sha256 is cut short"),
    "half a seal": (lambda folder: (folder / sealing.SEAL).write_text("abc"), "unmoor.sha256 is cut short"),
    "words": (lambda folder: (folder / sealing.SEAL).write_text("no seal\n"), "unmoor.sha256 is not what was written"),
    "no text": (lambda folder: (folder / sealing.SEAL).write_bytes(b"\xff\xfe\n"), "unmoor.sha256 is damaged"),
    "zeros": (lambda folder: (folder / sealing.SEAL).write_bytes(bytes(99) + b"\n"), "unmoor.sha256 is not what"),
    "out of it": (
        lambda folder: (folder / sealing.SEAL).write_text("0" * 64 + "  ../../x\n"),
        "names what is not in the folder",
    ),
}
"""What happens to a sealed folder, and what is said of it."""


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_not_as_it_was_sealed_is_named(harm: str, tmp_path: Path) -> None:
    """Each file that differs or is missing, and a seal that is none."""
    folder = made(tmp_path / "folder")
    sealing.seal(str(folder))
    happens, said = HARMS[harm]
    happens(folder)
    found = sealing.broken(str(folder))
    assert said in found
    assert bool(said) == bool(found)


def test_sha256sum_reads_the_seal(tmp_path: Path) -> None:
    """The list is in the form that the common program checks."""
    folder = made(tmp_path / "folder")
    sealing.seal(str(folder))
    done = subprocess.run(["sha256sum", "-c", sealing.SEAL], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "inner/two words.json: OK\none.bin: OK\n"), done.stderr


def test_latest_passes_over_a_broken_file_and_says_so(tmp_path: Path) -> None:
    """Of files: the newest that holds; none where none does, with a warning; none where nothing is."""
    assert resuming.latest(tmp_path / "none") is None
    assert resuming.latest(tmp_path) is None
    for step in (1, 2):
        torch.save({"step": step, "w": torch.ones(64)}, tmp_path / f"checkpoint_{step}.pt")
    assert resuming.latest(tmp_path) == str(tmp_path / "checkpoint_2.pt")
    (tmp_path / "checkpoint_2.pt").write_bytes((tmp_path / "checkpoint_2.pt").read_bytes()[:500])
    with pytest.warns(UserWarning, match=r"passed over .*checkpoint_2\.pt"):
        assert resuming.latest(tmp_path) == str(tmp_path / "checkpoint_1.pt")
    (tmp_path / "checkpoint_1.pt").write_bytes(b"PK")
    with pytest.warns(UserWarning, match="a fresh start"):
        assert resuming.latest(tmp_path) is None


def test_a_disk_that_refuses_the_seal_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on, and knows that the checkpoint is not sealed."""

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sealing, "_sync", full)
    with pytest.warns(UserWarning, match="is not sealed.*No space left"):
        assert not resuming.sealed(str(made(tmp_path / "folder")))
    assert not sealing.is_sealed(str(tmp_path / "folder"))


MISSING = {
    "lightning": ("lightning", lambda module: module.UnmoorCheckpointIO()),
    "transformers": ("transformers", lambda module: module.UnmoorCallback()),
    "ignite": ("pytorch-ignite", lambda module: module.UnmoorSaver("x")),
    "accelerate": ("accelerate", lambda module: module.attach(None)),
}
"""Module -> what is to be installed, and what needs it."""


@pytest.mark.parametrize("name", MISSING)
def test_a_program_that_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    install, use = MISSING[name]
    for absent in (name, f"{name}_fabric"):
        monkeypatch.setitem(sys.modules, absent, None)
    monkeypatch.delitem(sys.modules, f"unmoor.integrations.{name}", raising=False)
    with pytest.raises(MachineError, match=f"pip install {install}"):
        use(importlib.import_module(f"unmoor.integrations.{name}"))
