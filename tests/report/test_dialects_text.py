"""What a person reads of files of every kind, at 80 columns: one golden text for each writer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import unmoor
from tests.cases.files import tiny, train
from tests.describe.folders import Run, accelerate, written
from tests.describe.test_dialects import LAYOUTS, Parts
from tests.describe.zero_maker import Shape, ZeroMaker
from unmoor.report.claims import claims
from unmoor.report.documents import catalog_document
from unmoor.report.inspect import inspect_text

from .golden import check_golden


@pytest.fixture(autouse=True)
def seeded():
    """Pickled random states are as long as their numbers: they are those of seed 0."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


GOLDEN = Path(__file__).parents[1] / "golden"


def _accelerate(folder: Path) -> Path:
    accelerate(folder, Run().trained(), ranks=2)
    return folder


def _zero(folder: Path) -> Path:
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 3)
    ZeroMaker(model, optimizer, Shape(stage=3, world=2)).write(folder)
    return folder


def _lightning(folder: Path) -> Path:
    torch.save(LAYOUTS["lightning"][0](Parts()), folder / "last.ckpt")
    return folder / "last.ckpt"


def _wrapped(folder: Path) -> Path:
    state = {f"module._orig_mod.{name}": value for name, value in tiny().state_dict().items()}
    torch.save({"model": state, "ema": {"n_averaged": torch.tensor(3), **state}}, folder / "run.pt")
    return folder / "run.pt"


def _views(folder: Path) -> Path:
    large = torch.zeros(1000, 1000)
    torch.save({"rows": large[:10], "row": large[0], "model": tiny().state_dict()}, folder / "run.pt")
    return folder / "run.pt"


def _groups(folder: Path) -> Path:
    model = tiny()
    first, *rest = model.parameters()
    groups = [{"params": [first], "weight_decay": 0.0}, {"params": rest, "lr": 1e-3}]
    optimizers = [torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True), torch.optim.LBFGS(model.parameters())]
    torch.save({"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}, folder / "run.pt")
    return folder / "run.pt"


FILES: dict[str, Callable[[Path], Path]] = {
    "accelerate": _accelerate,
    "hf_trainer": lambda folder: written("hf-trainer", folder / "checkpoint-3"),
    "deepspeed": _zero,
    "lightning": _lightning,
    "wrapped": _wrapped,
    "views": _views,
    "groups": _groups,
    "python2": lambda _: GOLDEN / "python2-torch0.3.1.pt",
    "torchscript": lambda _: GOLDEN / "script-torch2.13.0.pt",
    "generators": lambda _: GOLDEN / "generators-torch2.13.0.pt",
    "safetensors": lambda _: GOLDEN / "model-torch2.13.0.safetensors",
}


@pytest.mark.parametrize("name", FILES)
def test_text_of_a_file_at_80_columns(name, tmp_path):
    """The whole text of a real file or folder of each writer."""
    check_golden(f"dialect_{name}_80", inspect_text(unmoor.describe(FILES[name](tmp_path))))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run as unmoor saves it: in a wrapper, with generators of the user's own."""
    path = tmp_path_factory.mktemp("own") / "run.pt"
    bare = tiny()
    optimizer = torch.optim.AdamW(bare.parameters(), lr=0.01)
    train(bare, optimizer, 1)
    model = torch.nn.DataParallel(bare)
    rng = {"sampler": torch.Generator(), "augment": torch.Generator()}
    unmoor.save(path, model=model, optimizer=optimizer, rng=rng, step=3)
    return unmoor.describe(path)


@pytest.mark.parametrize(
    "words",
    [
        "AdamW: exp_avg, exp_avg_sq, step for 4 of 4 parameters; lr 0.01",
        "26 parameters; saved out of DataParallel",
        "torch's CPU generator, ",
        "numpy's generator, Python's random",
        "generators of your own: sampler, augment",
        "settings AdamW: betas (0.9, 0.999), eps 1e-08, weight_decay 0.01",
        f"writer unmoor {unmoor.__version__}, torch {torch.__version__}, Python 3.",
        "extra step dtypes",
    ],
)
def test_what_unmoor_recorded_is_told(own, words):
    """Classes, wrappers, owners of random streams, writer: the file says them, so inspect does."""
    assert words in " ".join(inspect_text(own, width=200).split())


def test_streams_of_an_accelerator_are_told_as_such(sim, tmp_path):
    """Those of each device belong to the random state, and so does the number of the current device."""
    unmoor.save(tmp_path / "run.pt", model=tiny().to("sim:1"), step=3)
    text = " ".join(inspect_text(unmoor.describe(tmp_path / "run.pt"), width=200).split())
    assert "torch's SIM generators (4)" in text
    assert "extra step dtypes" in text


def test_what_unmoor_recorded_is_in_the_document(own):
    """The same facts for programs."""
    document = catalog_document(own)
    assert document["world_size"] == 1
    assert document["writer"]["unmoor"] == unmoor.__version__
    assert document["objects"]["model"]["wrappers"] == ["DataParallel"]
    assert document["objects"]["optimizer"]["class"] == "torch.optim.adamw.AdamW"
    assert document["objects"]["rng"]["streams"][:3] == ["torch", "numpy", "python"]
    assert {"sampler", "augment"} <= set(document["objects"]["rng"]["streams"])


MALFORMED = [
    {"world_size": "eight", "writer": ["unmoor"], "created": 7, "roles": 5},
    {
        "world_size": -1,
        "writer": {"unmoor": 5, "x" * 900: "y" * 900},
        "roles": {"model": {"keys": ["model"], "class": []}},
    },
    {"roles": {"model": {"keys": ["model"], "wrappers": [5, "DDP"], "streams": "torch"}}},
]


@pytest.mark.parametrize("manifest", MALFORMED)
def test_a_malformed_claim_counts_for_nothing(manifest, tmp_path):
    """Anyone may have edited a manifest: what is not of the usual form is left out, and nothing fails."""
    torch.save({"model": tiny().state_dict()}, tmp_path / "run.pt")
    found = replace(unmoor.describe(tmp_path / "run.pt"), manifest=manifest)
    told = claims(found)
    assert told.world in (0, 1)
    assert all(len(name) <= 200 and len(version) <= 200 for name, version in told.writer.items())
    assert inspect_text(found)
    assert catalog_document(found)["world_size"] in (None, 1)
