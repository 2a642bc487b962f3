"""What diff and verify print at 80 columns, made of literals, and how the commands end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import unmoor
from tests.cases.files import tiny, train, trained
from tests.cli.fakes import Stream
from tests.describe.makers import save
from unmoor import cli
from unmoor.report.difference import difference_lines, difference_text
from unmoor.report.verification import summary_line, verification_line, verification_text
from unmoor.values.difference import Difference, Distance, Leaf, Retagged, TensorDifference, ValueDifference
from unmoor.values.finding import Finding
from unmoor.values.verification import BadData, Unchecked, Verification

GOLDEN = Path(__file__).parent / "golden"


def check(name: str, text: str, *, width: int = 80) -> None:
    """Hold a text against golden/`name`.txt; UPDATE_GOLDEN=1 writes it."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8"), f"the text differs from {path.name}"
    assert all(len(line) <= width for line in text.split("\n"))


def leaf(path: str, shape: tuple[int, ...] = (64, 64), role: str = "model", dtype: str = "float32") -> Leaf:
    return Leaf(path, role, shape, dtype, "cuda:7", 4 * 64 * 64)


def apart(name: str, shape: tuple[int, ...] = (64, 64), *, role: str = "model", **numbers: object) -> TensorDifference:
    facts = {"first": (0, 3), "values": (0.5, 0.25), "max_abs": 3.14e-4, "max_rel": 0.02, "cosine": 0.99987, **numbers}
    one = leaf(name, shape, role)
    return TensorDifference(name, one, one, Distance(**{"differing": 4096, **facts}))


LAYERS = [apart(f"model.layers.{i}.{name}", max_abs=i * 1e-3) for i in range(4) for name in ("weight", "bias")]
STEPS = Difference(
    a="run/step_1000.pt",
    b="run/step_2000.pt",
    forms=("torch zip, 4.6 MiB, saved by unmoor: a training checkpoint (model + optimizer)",) * 2,
    compared=517,
    identical=500,
    changed=(
        *LAYERS,
        apart("model.head.weight", (10, 64), differing=3, first=(2, 17), cosine=0.4),
        apart("model.head.bias", (10,), differing=10, first=(0,), not_finite=2),
        apart(
            "optimizer.state.0.step", (), differing=1, first=(), values=(1000.0, 2000.0), cosine=1.0, role="optimizer"
        ),
        apart("rng.torch", (5056,), differing=2, first=(8,), role="rng"),
        TensorDifference("model.embed", leaf("model.embed", (94, 64)), leaf("model.embed", (95, 64))),
    ),
    only_a=tuple(leaf(f"model.old.{i}.weight") for i in range(3)),
    only_b=(leaf("ema.shadow", (128,)),),
    values=(
        ValueDifference("optimizer.param_groups.0.lr", "changed", "0.001", "0.0005"),
        ValueDifference("scheduler.last_epoch", "changed", "1000", "2000"),
        *(ValueDifference(f"history.loss.{i}", "only-b", "", str(i)) for i in range(40)),
    ),
    retagged=(Retagged("cuda:7", "cpu", 390, 4_700_000),),
    matched=("model: names of b without 'module.'",),
    notes=("1 tensor without data in a file, compared by shape alone: w",),
)
EQUAL = Difference("a.pt", "b", ("torch zip", "distributed checkpoint in 2 files"), 517, 517, (), (), (), ())
TEXTS = {
    "diff_steps": STEPS,
    "diff_equal": EQUAL,
    "diff_within": Difference(
        "a.pt", "b.pt", ("", ""), 9, 8, (apart("w", within=True),), (), (), (), tolerances={"atol": 1e-6, "rtol": 0.0}
    ),
    "diff_damaged": Difference(
        "a.pt", "b.pt", ("", ""), 9, 8, (apart("w", differing=1),), (), (), (), damaged=("b: w",)
    ),
    "diff_values_alone": Difference("a.pt", "b.pt", ("", ""), 9, 9, (), (), (), STEPS.values[:1]),
    "diff_without_torch": Difference(
        "a.pt", "b.pt", ("", ""), 2, 1,
        (TensorDifference("w", leaf("w"), leaf("w"), Distance(None)),), (), (), (), notes=("PyTorch is not installed",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_difference_at_80_columns(name):
    """The page that a person sees, whole."""
    check(name, difference_text(TEXTS[name]))


def test_all_spells_every_name():
    """Each tensor on a line of its own, by its whole name; nothing is left out."""
    check("diff_steps_all", difference_text(STEPS, all_names=True), width=200)
    text = difference_text(STEPS, all_names=True)
    assert all(one.name in text for one in STEPS.changed)
    assert all(value.path in text for value in STEPS.values)


@pytest.mark.parametrize("width", [40, 60, 120])
def test_a_difference_fits_other_widths(width):
    """No line is wider than the page."""
    assert all(len(line.text) <= width for line in difference_lines(STEPS, width=width))


def test_escapes_of_a_file_do_not_reach_the_terminal():
    """Names and values that hold control characters are escaped."""
    hostile = Difference(
        "a\x1b[2J", "b", ("", "\x1b"), 1, 0, (apart("w\x1b[31m"),), (leaf("x\x07"),), (),
        (ValueDifference("k\x1b", "changed", "\x1b", "b"),), matched=("\x1b",), damaged=("a: \x1b",),
    )  # fmt: skip
    assert "\x1b" not in difference_text(hostile)
    assert "\x07" not in difference_text(hostile)


BAD = BadData(
    "checksum", "a/data/7", "", ("optimizer.state.3.exp_avg",), "", 8_423_104, 8_488_640, 0x5F1C09AA, 0x91BE3D02
)
VERIFICATIONS = {
    "verify_good": Verification("run.pt", "torch-zip", (), 524, 517, 3 << 30, 0.62),
    "verify_bare": Verification(
        "model.safetensors", "safetensors", (), 0, 0, 0, 0.001,
        (Unchecked("safetensors: no checksums in this format", 7, 3 << 30),),
    ),
    "verify_bad": Verification(
        "run/step_2000.pt", "torch-zip",
        (BAD, BadData("checksum", "a/data.pkl", "", (), "", 64, 200, 1, 2),
         BadData("unreadable", "a/data/9", "[Errno 5] Input/output error", ("w",), "b.pt", 1, 2, 3)),
        524, 515, 3 << 30, 0.62, (), (), "run/step_1500.pt", newest_holds=True,
    ),
    "verify_many": Verification("run.pt", "torch-zip", (BAD,) * 40, 524, 400, 3 << 30, 0.62),
    "verify_cut": Verification(
        "run.pt", "zip",
        (BadData("structure", "run.pt", "run.pt is a truncated zip: no end, 9,000 bytes", details=("one", "two")),),
        0, 0, 0, 0.001, newest="old.pt",
    ),
    "verify_findings": Verification(
        "run.pt", "torch-zip", (), 5, 1, 100, 0.001, (),
        (Finding("manifest-names", "error", "optimizer", "the manifest names 3 parameters", "save it again"),
         Finding("note", "info", "", "not told"), Finding("manifest-device", "info", "model", "tags", "nothing")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VERIFICATIONS)
def test_a_verification_at_80_columns(name):
    """The page that a person sees, whole."""
    check(name, verification_text(VERIFICATIONS[name]))


def test_several_verifications_take_a_line_each():
    """A word, the path, what is the matter; and how many are sound."""
    rows = [*VERIFICATIONS.items(), ("notes.txt", unmoor.NotACheckpoint("notes.txt is plain text"))]
    lines = [verification_line(path, made, column=24) for path, made in rows]
    check("verify_several", "\n".join(line.text for line in [*lines, summary_line(2, len(rows))]))


@pytest.fixture
def run(monkeypatch):
    """Run a command on streams of its own; the code and what was printed."""
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments):
        out, err = Stream(), Stream(errors="backslashreplace")
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        return cli.main([str(argument) for argument in arguments]), out.text, err.text

    return run


@pytest.fixture
def files(tmp_path):
    """A good checkpoint, a later one, a damaged one, one without checksums, text."""
    model, optimizer = trained()
    save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "good.pt")
    train(model, optimizer, 1)
    save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "later.pt")
    save(tiny().state_dict(), tmp_path / "old.pt", legacy=True)
    data = bytearray((tmp_path / "good.pt").read_bytes())
    data[data.index(torch.load(tmp_path / "good.pt")["model"]["0.weight"].numpy().tobytes())] ^= 1
    (tmp_path / "bad.pt").write_bytes(data)
    (tmp_path / "notes.txt").write_text("nothing but text in here, and enough of it\n")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "code"),
    [(("good.pt",), 0), (("bad.pt",), 3), (("old.pt",), 0), (("notes.txt",), 3), (("good.pt", "old.pt"), 0),
     (("good.pt", "bad.pt"), 3), (("good.pt", "notes.txt", "missing.pt"), 3)],
)  # fmt: skip
@pytest.mark.parametrize("flags", [(), ("--json",), ("--quiet",)])
def test_verify_ends_with_the_worst_code(names, code, flags, run, files):
    """Whatever is printed."""
    found, out, err = run("verify", *(files / name for name in names), *flags)
    assert found == code
    assert bool(out or err) == (flags != ("--quiet",) or code != 0)
    if flags == ("--json",) and names != ("notes.txt",):
        assert json.loads(out)["ok"] is (code == 0)


def test_verify_names_the_bad_tensor(run, files):
    """With its checksums, on stdout."""
    _, out, _ = run("verify", files / "bad.pt")
    assert "model.0.weight" in out
    assert "CRC-32 saved" in out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("good.pt", "good.pt"), 0), (("good.pt", "later.pt"), 7), (("good.pt", "later.pt", "--structure"), 0),
     (("good.pt", "later.pt", "--atol", "100"), 0), (("good.pt", "notes.txt"), 3),
     (("good.pt", "later.pt", "--only", "nonsense"), 2), (("good.pt", "later.pt", "--all"), 7)],
)  # fmt: skip
def test_diff_ends_with_its_answer(arguments, code, run, files):
    """0 equal, 7 different, 2 called wrong, 3 a file at fault."""
    names = [files / word if word.endswith((".pt", ".txt")) else word for word in arguments]
    assert run("diff", *names)[0] == code


def test_diff_prints_one_document(run, files):
    """--json parses and says what the code says."""
    code, out, _ = run("diff", files / "good.pt", files / "later.pt", "--json")
    row = json.loads(out)
    assert (code, row["schema"], row["equal"]) == (7, "unmoor.difference/1", False)


@pytest.mark.parametrize("name", ["verify", "diff"])
def test_help_shows_examples_and_codes(name, run):
    """With the exit codes that the command has."""
    code, out, _ = run(name, "--help")
    assert code == 0
    assert f"unmoor {name} " in out
    assert "Exit codes:" in out
