"""What relocate says at 80 columns, and the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import unmoor
from tests.describe.makers import tagged
from tests.describe.zero_maker import Shape, ZeroMaker
from unmoor import cli
from unmoor.report.layout import cells
from unmoor.report.relocation import relocation_document, relocation_lines, relocation_text, undone_text
from unmoor.values.finding import Finding
from unmoor.values.relocation import Kept, Move, RelocatedFile, Relocation

from .files import run, save, stored_tags

GOLDEN = Path(__file__).parent / "golden"
MIB = 1 << 20


def relocation(**changed: Any) -> Relocation:
    """A relocation of a training run from cuda:7 to the CPU, changed in some facts."""
    facts: dict[str, Any] = {
        "path": "run/step_1000.pt",
        "target": "run/step_1000.pt",
        "format": "torch-zip",
        "moves": (Move("cuda:7", "cpu", 390, 4_720_000, ("model", "optimizer")),),
        "files": (RelocatedFile("run/step_1000.pt", "appended", 4 * MIB, 4 * MIB + 52_000),),
        "devices": {"cpu": (517, 4_720_508)},
        "seconds": 0.0042,
        "undo": "unmoor relocate --undo run/step_1000.pt",
    }
    return Relocation(**{**facts, **changed})


SCENES = {
    "zip": relocation(),
    "kept": relocation(
        moves=(Move("cpu", "cuda:0", 390, 4_720_000, ("model", "optimizer")),),
        kept=(
            Kept("optimizer step", "cpu", 127, "an optimizer that is neither capturable nor fused counts there"),
            Kept("rng", "cpu", 1, "random number state is on the CPU, always"),
        ),
        values=("args.device ('cpu')", "config.where (torch.device('cpu'))"),
        devices={"cuda:0": (390, 4_720_000), "cpu": (128, 5564)},
        findings=(Finding("hard-links", "warning", "run/step_1000.pt", "the file has 2 names", "--output FILE"),),
    ),
    "copy": relocation(target="here.pt", files=(RelocatedFile("here.pt", "copied", 4 * MIB, 4 * MIB),), undo=""),
    "stream": relocation(
        format="torch-legacy",
        moves=(Move("cuda:7", "cuda:0", 4, 400, ("model",)), Move("cuda:3", "cpu", 2, 80, ("ema",))),
        files=(RelocatedFile("run/step_1000.pt", "rewritten", 4 * MIB, 4 * MIB - 3),),
        devices={"cuda:0": (4, 400), "cpu": (2, 80)},
        undo="",
    ),
    "stream_without_way_back": relocation(
        files=(RelocatedFile("run/step_1000.pt", "rewritten", 4 * MIB, 4 * MIB - 3),), undo=""
    ),
    "folder": relocation(
        path="checkpoint-500",
        target="checkpoint-500",
        format="folder",
        files=(
            RelocatedFile("checkpoint-500/optimizer.pt", "appended", 4 * MIB, 4 * MIB + 52_000),
            RelocatedFile("checkpoint-500/rng_state.pth", "appended", 4096, 5120),
            RelocatedFile("checkpoint-500/scheduler.pt", "unchanged", 1000, 1000),
        ),
        undo="unmoor relocate --undo checkpoint-500",
    ),
    "nothing": relocation(moves=(), files=(RelocatedFile("run.pt", "unchanged", 9, 9),), undo=""),
    "no_tags": relocation(
        path="model.safetensors",
        target="model.safetensors",
        moves=(),
        files=(RelocatedFile("model.safetensors", "unchanged", 9, 9),),
        findings=(Finding("no-device-tags", "info", "", "safetensors keeps no device of a tensor"),),
        undo="",
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_the_page_is_as_it_was_looked_at(name: str) -> None:
    """The text at 80 columns equals the one that was read by a person."""
    path = GOLDEN / f"{name}.txt"
    text = relocation_text(SCENES[name]) + "\n"
    if not path.exists():
        path.write_text(text)
    assert text == path.read_text()


def test_the_page_of_an_undo() -> None:
    """An undo says what is back and whether there is more to take back; without moves it was an interrupted one."""
    cut = (RelocatedFile("run/step_1000.pt", "cut", 4 * MIB + 52_000, 4 * MIB),)
    back = relocation(moves=(Move("cpu", "cuda:7", 390, 0),), files=cut, devices={"cuda:7": (390, 1)}, undo="")
    path = GOLDEN / "undone.txt"
    text = f"{undone_text(back)}\n\n{undone_text(relocation(moves=(), files=cut))}\n"
    if not path.exists():
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("width", [40, 80, 132])
def test_no_line_is_wider_than_the_page(name: str, width: int) -> None:
    """At any width lines fit, and the first one is the headline."""
    lines = relocation_lines(SCENES[name], width=width)
    assert all(cells(line.text) <= width for line in lines)
    assert lines[0].tone == "headline"


@pytest.mark.parametrize("name", SCENES)
def test_the_document_is_json(name: str) -> None:
    """A relocation is a JSON document with its schema."""
    document = json.loads(json.dumps(relocation_document(SCENES[name]), allow_nan=False))
    assert document["schema"] == "unmoor.relocation/1"
    assert document["changed"] == any(file["how"] in ("appended", "rewritten") for file in document["files"])


def test_names_from_a_file_cannot_move_the_cursor() -> None:
    """Values and paths that came out of a file are escaped."""
    made = relocation(path="a\x1b[2J.pt", target="a\x1b[2J.pt", values=("\x1b]0;x ('cuda:7')",))
    assert "\x1b" not in relocation_text(made)


def invoke(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli.commands, list(arguments), env={"COLUMNS": "80"})
    return (done.exit_code if done.exception is None or isinstance(done.exception, SystemExit) else 99), done.output


def test_the_command_relocates_and_undoes(tmp_path: Path) -> None:
    """--to, --map, --output and --undo do what the functions do, and print their page."""
    path = save(run(), tmp_path / "run.pt")
    old = path.read_bytes()
    code, text = invoke("relocate", str(path), "--map", "cuda:7=cuda:1")
    assert (code, stored_tags(path)) == (0, {"cuda:1", "cpu"})
    assert "moved   cuda:7 -> cuda:1" in text
    code, text = invoke("relocate", str(path), "--to", "cpu", "--output", str(tmp_path / "b.pt"), "--json")
    assert (code, json.loads(text)["target"]) == (0, str(tmp_path / "b.pt"))
    assert stored_tags(tmp_path / "b.pt") == {"cpu"}
    code, text = invoke("relocate", "--undo", str(path))
    assert (code, path.read_bytes() == old) == (0, True)
    assert "to the byte as before the relocation" in text


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["--to", "cpu", "--map", "cuda:7=cpu"], 2),
        (["--map", "cuda:7"], 2),
        (["--map", "=cpu"], 2),
        (["--map", "cuda:5=cpu"], 2),
        (["--map", "cuda:7=cpu", "--map", "cuda:7=cuda:0"], 2),
        (["--to", "nonsense"], 2),
        (["--undo", "--to", "cpu"], 2),
        (["--undo"], 3),
        (["--output", "/nowhere/x.pt", "--to", "cpu"], 5),
    ],
)
def test_the_codes_of_the_command(tmp_path: Path, monkeypatch: Any, arguments: list[str], code: int) -> None:
    """Wrong calls end with 2, a file that was not relocated with 3, a disk that refuses with 5; nothing is changed."""
    monkeypatch.setenv("COLUMNS", "80")
    path = save(run(), tmp_path / "run.pt")
    old = path.read_bytes()
    assert cli.main(["relocate", str(path), *arguments]) == code
    assert path.read_bytes() == old


def test_repartition_is_a_command(tmp_path: Path) -> None:
    """`unmoor repartition` cuts a DeepSpeed folder for another number of ranks, as the function does."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    with tagged("cpu"):
        maker = ZeroMaker(model, optimizer, Shape(stage=2, world=2))
        for tree in maker.models:
            tree["dp_world_size"] = 2
        maker.write(tmp_path / "run")
    code, text = invoke("repartition", str(tmp_path / "run"), str(tmp_path / "three"), "--ranks", "3")
    assert (code, text.split(" ")[0]) == (0, "saved")
    assert "shares of 2 ranks cut for 3 ranks" in text
    assert unmoor.describe(tmp_path / "three").facts["world_size"] == 3
    code, text = invoke("repartition", str(tmp_path / "run"), str(tmp_path / "one"), "--ranks", "1", "--json")
    assert (code, json.loads(text)["schema"]) == (0, "unmoor.receipt/1")
    assert invoke("repartition", str(tmp_path / "run"), str(tmp_path / "x"), "--ranks", "0")[0] == 2
