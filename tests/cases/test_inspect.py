"""What `unmoor inspect` prints of these files, and the exit code by which a script tells them apart."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from unmoor import cli

from .files import save_tagged, tiny, train

Build = Callable[[Path], object]


def _lazy_sgd(path: Path) -> None:
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model[0].requires_grad_(False)
    train(model, optimizer, 1)
    torch.save(optimizer.state_dict(), path)


def _cut(path: Path) -> None:
    torch.save(tiny().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-100])


def _flipped_key(path: Path) -> None:
    torch.save(tiny().state_dict(), path)
    path.write_bytes(path.read_bytes().replace(b"0.bias", b"9.bias"))


class _Command:
    def __reduce__(self) -> object:
        return os.system, ("exit 1",)


def _slice(path: Path) -> None:
    torch.save({"w": torch.arange(1_000_000, dtype=torch.float32)[:10]}, path)


SEEN: dict[str, tuple[Build, int, list[str]]] = {
    "C22": (_lazy_sgd, 0, ["momentum_buffer for 2 of 4 parameters"]),
    "C41": (
        lambda path: save_tagged(
            tiny().state_dict(), path, lambda keys: "cuda:6" if keys[-1].startswith("2.") else "cuda:2"
        ),
        0,
        ["cuda:2 (2 tensors)", "cuda:6 (2"],
    ),
    "C43": (_slice, 0, ["w uses 10 of 1,000,000 elements (40 B of 3.8 MiB)"]),
    "C52": (_cut, 3, ["is a truncated zip: no end record"]),
    "C61": (lambda path: path.write_text("<html><title>404</title></html>"), 3, ["HTML page", "404"]),
    "C63": (_flipped_key, 3, ["CRC mismatch in ", "data.pkl"]),
    "C64": (
        lambda path: torch.save({"args": argparse.Namespace(lr=1.0), "model": tiny().state_dict()}, path),
        0,
        ["argparse.Namespace", "a model state dict"],
    ),
    "C70": (
        lambda path: torch.save({"callbacks": _Command(), "model": tiny().state_dict()}, path),
        6,
        ["DANGEROUS", "system(", "callbacks", "never unpickle this file"],
    ),
}


@pytest.mark.parametrize("case", SEEN)
def test_a_person_and_a_script_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    """C22, C41, C43, C52, C61, C63, C64, C70: the words that name the trouble, and an exit code of its own kind."""
    build, expected, words = SEEN[case]
    path = tmp_path / "file.pt"
    build(path)
    code = cli.main(["inspect", str(path)])
    printed = capsys.readouterr()
    text = " ".join((printed.out + printed.err).split())
    assert code == expected
    assert [word for word in words if word not in text] == []
