"""`unmoor convert`: what it prints at 80 columns, what it answers programs, how it ends."""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import warnings

import click
import pytest
import torch
from torch import nn

import unmoor
from tests.cli.fakes import Stream
from unmoor import cli

from .trees import run as training_run


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Calls the command line in a folder with one run in it: exit code, stdout, stderr."""
    model, optimizer = training_run()
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    tree = {
        "model": state,
        "optimizer": optimizer.state_dict(),
        "args": argparse.Namespace(lr=0.1),
        "make": functools.partial(nn.Linear, 3),
        "epoch": 3,
    }
    torch.save(tree, tmp_path / "run.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments, out=None, err=None):
        out, err = out or Stream(), err or Stream()
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        return cli.main(["convert", *arguments]), out.text, err.text

    return call


PAGE = """\
wrote plain.pt: N KiB in T
  from       run.pt (torch zip)
  as         a torch zip
  model      9 tensors, 4.8 KiB
  optimizer  18 tensors, 18.8 KiB
  renamed    'module.' taken out of 9 names of model
  cast       float32 -> bfloat16: 8 tensors of model; 2,408 of 2,472 values
             rounded, by at most 0.38 %
  plain      argparse.Namespace -> a dict: args
  left out   functools.partial: make
"""


def test_the_page_says_what_was_written_and_what_differs(run):
    """One screen: where, from what, how much of which role, every difference; nothing is wider than 80 columns."""
    code, out, err = run("run.pt", "plain.pt", "--strip", "auto", "--dtype", "bfloat16", "--opaque", "drop")
    assert (code, err) == (0, "")
    shown = re.sub(r"[\d.]+ KiB in [\d.]+ m?s", "N KiB in T", out)
    shown = re.sub(r"[\d,]+ of 2,472 values\n", "2,408 of 2,472 values\n", shown)
    assert re.sub(r"at most [\d.]+ %", "at most 0.38 %", shown) == PAGE
    assert max(map(len, out.splitlines())) <= 80


def test_programs_get_a_document(run):
    """--json has a schema, every change, and the numbers of each cast."""
    code, out, _ = run(
        "run.pt", "m.safetensors", "--only", "model", "--strip", "module.", "--dtype", "float16", "--json"
    )
    document = json.loads(out)
    assert (code, document["schema"], document["format"]) == (0, "unmoor.conversion/1", "safetensors")
    assert document["renamed"][0]["before"] == "module.0.weight"
    assert document["cast"][0]["tensors"][0] == "0.weight"
    assert document["counts"]["model"]["tensors"] == 9


def test_overflow_ends_with_the_code_of_findings(run, tmp_path):
    """A model that float16 cannot hold is written, told, and ends with 1."""
    torch.save({"w.a": torch.tensor([1e9, 1.0])}, tmp_path / "wide.pt")
    code, out, _ = run("wide.pt", "b.pt", "--dtype", "float16")
    assert code == 1
    assert "error: model: 1 value of 2 beyond the range of float16" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run.pt", "b.pt"), 3, "make: functools.partial"),
        (("run.pt", "b.pt", "--opaque", "drop", "--strip", "net."), 4, "no name begins with 'net.'"),
        (("run.pt", "b.safetensors", "--opaque", "drop"), 2, "safetensors holds named tensors"),
        (("run.pt", "run.pt", "--opaque", "drop"), 2, "is the source itself"),
        (("run.pt", "b.pt", "--rename", "x"), 2, "is no OLD=NEW"),
        (("run.pt", "b.pt", "--dtype", "int9"), 2, "is none of float64"),
        (("run.pt", "b.pt", "--only", "ema"), 4, "chooses nothing in run.pt"),
        (("gone.pt", "b.pt"), 3, "gone.pt"),
        (("run.pt", "nowhere/b.pt", "--opaque", "drop"), 5, "does not exist"),
    ],
)
def test_failures_end_with_the_code_of_whose_fault_it_is(run, arguments, code, words):
    """The error says what, stdout stays empty, and there is no target."""
    ended, out, err = run(*arguments)
    assert (ended, out) == (code, "")
    assert words in err
    assert os.listdir() == ["run.pt"]


@pytest.mark.parametrize(
    ("flags", "target", "format_"),
    [
        (("--format", "legacy"), "b.pt", "torch-legacy"),
        (("--plain",), "b.pt", "torch-zip"),
        (("--format", "dcp"), "b.pt", "dcp"),
        (("--only", "model", "--max-shard-size", "4KB"), "hub", "safetensors"),
        (("--compact",), "b.pt", "torch-zip"),
        (("--drop", "optimizer", "--drop", "make"), "b", "dcp"),
    ],
)
def test_every_form_is_within_reach(run, flags, target, format_):
    """Each option writes what it says."""
    code, _, err = run("run.pt", target, *flags, "--opaque", "drop", "--verify", "first")
    assert (code, err) == (0, "")
    found = unmoor.describe(target)
    assert format_ in (found.format, *(["safetensors"] if found.facts.get("files") else []))


def test_dtypes_by_role(run):
    """--dtype takes one for models, and more by role."""
    code, out, _ = run(
        "run.pt",
        "b.pt",
        "--opaque",
        "drop",
        "--dtype",
        "bfloat16",
        "--dtype",
        "optimizer=float16",
        "--rename",
        "module.=net.",
    )
    assert code == 0
    assert "of optimizer" in out
    assert "'module.' -> 'net.' in 9 names of model" in click.unstyle(out)


def test_a_bar_that_ends_where_the_work_ends(run, monkeypatch):
    """The bar is told how much there is before the first byte, and hears all of it."""
    heard = []
    monkeypatch.setattr("unmoor.cli.progress.Bar.__call__", lambda self, nbytes: heard.append((self.total, nbytes)))
    run("run.pt", "b.pt", "--opaque", "drop")
    assert heard
    assert sum(nbytes for _, nbytes in heard) >= heard[0][0] > 20_000


@pytest.mark.parametrize("target", ["a.pt", "a", "a.bin"])
def test_warnings_of_torch_are_not_among_what_it_prints(target, run):
    """Sparse and quantized tensors are made to be written; that torch finds them experimental is nobody's fault."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = {"s": torch.eye(3).to_sparse_csr(), "q": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}
        torch.save(tree, "odd.pt")
    code, _, err = run("odd.pt", target)
    assert (code, err) == (0, "")
