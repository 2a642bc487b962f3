"""Every golden file is described as it was on the day it was made, and as torch still loads it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.describe.makers import hold_against_torch
from tests.golden.make_golden import BY_HAND, HERE, MAKERS, description
from unmoor.describe.file import describe_file

FILES = sorted(path for path in HERE.iterdir() if path.suffix in (".pt", ".safetensors"))
WARNINGS = (
    "ComplexHalf support",
    "Sparse CSR tensor",
    "The PyTorch API of nested",
    "TypedStorage is deprecated",
    "torch.quantize_per_tensor",
)
pytestmark = [pytest.mark.filterwarnings(f"ignore:{words}") for words in WARNINGS]


def expected(path: Path) -> dict:
    return json.loads(path.with_suffix(path.suffix + ".json").read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_golden_file_is_described_as_expected(path):
    """The whole description, findings included, is the one beside the file."""
    assert description(path) == expected(path)


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if p.suffix == ".pt" and not p.name.startswith(("script", "object")) and p.name not in BY_HAND],
    ids=lambda path: path.name,
)
def test_a_golden_file_is_what_torch_loads(path):
    """Shapes, strides, dtypes and bytes at the spans are those that torch.load gives today."""
    loaded = torch.load(path, map_location="cpu", weights_only=False)
    catalog = describe_file(path)
    assert catalog.tensors
    hold_against_torch(
        path, replace(catalog, tensors=tuple(e for e in catalog.tensors if e.layout != "nested")), loaded
    )


def test_every_maker_left_its_file():
    """Each kind of file that the maker knows is there from some torch."""
    stems = {path.name.partition("-")[0] for path in FILES}
    assert {name.partition(".")[0] for name in MAKERS} <= stems


def test_golden_values_are_values():
    """Plain values of every kind that a checkpoint carries are read as values, numpy's as their bytes say."""
    tree = describe_file(next(path for path in FILES if path.name.startswith("values-"))).tree
    assert tree["args"].state == {"lr": 1e-3, "hidden": [4, 8], "resume": None}
    scalars = {name: tree[name].value for name in ("rank1", "loss", "done", "step", "name")}
    assert scalars == {"rank1": 0.5, "loss": 0.125, "done": True, "step": 7, "name": "run"}
    assert (tree["hist"].dtype, tree["hist"].shape, tree["words"].values) == ("<f8", (3,), ("a", None))
    assert (tree["day"].dtype, tree["day"].value) == ("<M8[D]", 19724)
    assert (tree["counter"], tree["dd"], tree["set"], tree["slice"]) == ({"a": 2, "b": 1}, {"a": [1]}, {1}, slice(1, 2))
    assert (tree["size"].value, tree["device"].value, tree["dtype"].value) == ((1, 2), "cuda:1", "bfloat16")
    assert (tree["bytes"], tree["complex"], tree["big"]) == (b"\xff\x00", 1 + 2j, 1 << 100)
    assert tree["model"]._metadata == {"": {"version": 1}}
