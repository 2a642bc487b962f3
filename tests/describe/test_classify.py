"""Roles are told by structure: whole files, nested keys, objects, and things that only look alike."""

from __future__ import annotations

import argparse
import json
import random
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.describe.makers import Call, save
from unmoor.describe.file import describe_file
from unmoor.values.catalog import Catalog, Part

OPTIMIZERS = {
    "Adam": {"lr": 0.1}, "AdamW": {"lr": 0.1}, "SGD": {"lr": 0.1, "momentum": 0.9}, "RMSprop": {"lr": 0.1},
    "Adagrad": {"lr": 0.1}, "Adadelta": {}, "Adamax": {}, "NAdam": {}, "RAdam": {}, "ASGD": {}, "Rprop": {},
    "Adafactor": {},
}  # fmt: skip
SCHEDULERS: dict[str, Any] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [3, 6]),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 300),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 10),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=50),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def stepped(net: nn.Module, name: str = "Adam", **options: Any) -> torch.optim.Optimizer:
    optimizer = getattr(torch.optim, name)(net.parameters(), **options)
    net(torch.ones(5, 3)).square().mean().backward()
    optimizer.step()
    return optimizer


def described(tree: Any, tmp_path: Any) -> Catalog:
    catalog = describe_file(save(tree, tmp_path / "f.pt"))
    json.dumps(catalog.to_json())
    return catalog


def only(catalog: Catalog, role: str) -> Part:
    (part,) = catalog.part(role)
    return part


def test_a_model_file_is_a_model_whatever_its_name(tmp_path):
    """The file that should hold an optimizer and holds a model state dict is told as what it is."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    path = save(net.state_dict(), tmp_path / "opt000100.pt")
    catalog = describe_file(path)
    assert [(part.role, part.kind, part.path, part.tensors) for part in catalog.parts] == [
        ("model", "state_dict", "", 7)
    ]
    assert "1.running_mean" in [entry.path for entry in catalog.tensors]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_told_with_its_family_and_options(name, tmp_path):
    """State, groups, parameters and options of every optimizer class, and a family that it belongs to."""
    catalog = described({"o": stepped(model(), name, **OPTIMIZERS[name]).state_dict()}, tmp_path)
    part = only(catalog, "optimizer")
    detail = part.detail
    assert (part.path, detail["groups"], detail["params"], detail["with_state"]) == ("o", 1, 4, 4)
    assert detail["family"] == ("Adam" if name == "AdamW" else name)
    assert detail["options"][0]["lr"] is not None
    assert not detail["names"]
    assert {entry.role for entry in catalog.tensors} <= {"optimizer"}


def test_parameters_without_state_are_not_counted(tmp_path):
    """A momentum buffer that is None is no state: two of four parameters have some."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net[0].requires_grad_(requires_grad=False)
    net(torch.ones(5, 3)).square().mean().backward()
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0] = {"momentum_buffer": None}
    detail = only(described(state, tmp_path), "optimizer").detail
    assert (detail["params"], detail["with_state"]) == (4, 2)


def test_an_optimizer_with_names_says_so(tmp_path):
    """Parameter names in the groups, or as the keys of the state, are told."""
    net = model()
    named = torch.optim.Adam(net.named_parameters())
    assert only(described(named.state_dict(), tmp_path), "optimizer").detail["names"]
    by_name = {"state": {"0.weight": {"step": torch.ones(())}}, "param_groups": [{"params": ["0.weight"], "lr": 1.0}]}
    assert only(described(by_name, tmp_path), "optimizer").detail["names"]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_is_told_with_its_class(name, tmp_path):
    """The state of every scheduler class of torch is a scheduler, and its keys tell which."""
    optimizer = torch.optim.SGD(model().parameters(), lr=0.1, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    part = only(described({"s": scheduler.state_dict()}, tmp_path), "scheduler")
    assert (part.path, part.detail["guess"]) == ("s", name)
    assert part.detail["last_epoch"] == 0


def test_how_long_a_scheduler_runs_is_told(tmp_path):
    """The horizon that a scheduler keeps is told beside where it stands."""
    scheduler = lr_scheduler.CosineAnnealingLR(torch.optim.SGD(model().parameters(), lr=0.1), 300)
    assert only(described(scheduler.state_dict(), tmp_path), "scheduler").detail["total"] == 300


def test_optimizer_and_scheduler_under_each_others_key_are_told_apart(tmp_path):
    """The key under which a part was saved does not decide what it is."""
    net = model()
    optimizer = stepped(net, "SGD", lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 5)
    catalog = described({"optimizer": scheduler.state_dict(), "scheduler": optimizer.state_dict()}, tmp_path)
    assert [(part.role, part.path) for part in catalog.parts] == [
        ("scheduler", "optimizer"),
        ("optimizer", "scheduler"),
    ]


def test_a_scaler_is_told(tmp_path):
    """The state of a GradScaler is a scaler, with its scale."""
    scaler = {
        "scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 3,
    }
    part = only(described({"scaler": scaler}, tmp_path), "scaler")
    assert (part.path, part.detail) == ("scaler", {"scale": 65536.0})


@pytest.mark.parametrize("streams", [1, 4])
def test_every_generator_state_is_told_by_kind(streams, tmp_path):
    """The state of torch's CPU generator, CUDA states alone or in a list, numpy's old and new form, and python's."""
    cuda = [torch.zeros(16, dtype=torch.uint8)] * streams
    tree = {
        "cpu": torch.get_rng_state(),
        "cuda": cuda,
        "numpy": np.random.RandomState(0).get_state(),
        "new": np.random.default_rng(0).bit_generator.state,
        "python": random.Random(0).getstate(),
        "epoch": 1,
    }
    catalog = described(tree, tmp_path)
    kinds = [(part.path, part.kind) for part in catalog.part("rng")]
    assert kinds == [("cpu", "torch-cpu"), ("cuda", "cuda"), ("numpy", "numpy"), ("new", "numpy"), ("python", "python")]
    assert {entry.role for entry in catalog.tensors} == {"rng"}
    assert [part.detail.get("streams") for part in catalog.part("rng")][:2] == [1, streams]


def test_sixteen_bytes_are_no_generator_without_a_word_for_it(tmp_path):
    """A buffer of sixteen bytes in a model stays a buffer of the model."""
    catalog = described({"q.absmax": torch.zeros(16, dtype=torch.uint8), "q.weight": torch.ones(2, 2)}, tmp_path)
    assert [part.role for part in catalog.parts] == ["model"]


def test_what_stands_beside_parts_is_extra_key_by_key(tmp_path):
    """Plain values beside parts are extra, at the depth where they stand; an argparse.Namespace keeps its values."""
    net = model()
    tree = {
        "model": {"state_dict": net.state_dict(), "model_args": {"width": 4}},
        "history": [1.0, 2.0],
        "args": argparse.Namespace(lr=1e-3, hidden=[4, 8], resume=None),
        "mask": torch.ones(3, dtype=torch.bool),
        "epoch": 7,
    }
    catalog = described(tree, tmp_path)
    assert [(part.role, part.path) for part in catalog.parts] == [
        ("model", "model.state_dict"), ("extra", "model.model_args"), ("extra", "history"), ("extra", "args"),
        ("extra", "mask"), ("extra", "epoch"),
    ]  # fmt: skip
    args = catalog.parts[3].node
    assert (args.name, args.state) == ("argparse.Namespace", {"lr": 1e-3, "hidden": [4, 8], "resume": None})
    assert catalog.parts[4].tensors == 1
    assert catalog.tensors[-1].role == "extra"


def test_a_flat_mapping_may_hold_extra_state(tmp_path):
    """A module's `_extra_state` may be anything; the mapping stays a model."""
    state = OrderedDict({"a.weight": torch.ones(2), "a._extra_state": {"amax": [1.0]}})
    assert [part.role for part in described(state, tmp_path).parts] == ["model"]


def test_a_mapping_of_tensors_and_numbers_is_no_model(tmp_path):
    """Tensors beside counters are values of a checkpoint, not parameters."""
    catalog = described({"w": torch.ones(2), "epoch": 3}, tmp_path)
    assert [(part.role, part.path) for part in catalog.parts] == [("extra", "w"), ("extra", "epoch")]


def test_a_checkpoint_that_counts_epochs_itself_is_no_scheduler(tmp_path):
    """A `last_epoch` beside a model and an optimizer is a number of the checkpoint."""
    net = model()
    catalog = described({"last_epoch": 3, "net": net.state_dict(), "opt": stepped(net).state_dict()}, tmp_path)
    assert [part.role for part in catalog.parts] == ["extra", "model", "optimizer"]


def test_pickled_objects_are_told_by_their_attributes(tmp_path):
    """A whole module and a whole optimizer, pickled as objects, are a model and an optimizer with their class."""
    net = model()
    catalog = described({"net": net, "opt": stepped(net, "Adam")}, tmp_path)
    roles = {part.role: part for part in catalog.parts}
    assert roles["model"].kind == "object"
    assert roles["model"].detail["class"] == "torch.nn.modules.container.Sequential"
    assert (roles["model"].tensors, roles["optimizer"].detail["family"]) == (4, "Adam")
    assert roles["optimizer"].detail["class"] == "torch.optim.adam.Adam"
    assert any(finding.code == "foreign-class" for finding in catalog.findings)


def test_parts_of_an_object_are_found_under_its_attributes(tmp_path):
    """A part inside an object of a class that is not here stands under the name of its attribute."""
    tracker = argparse.Namespace(best=model().state_dict(), score=0.5)
    catalog = described({"tracker": tracker}, tmp_path)
    assert [(part.role, part.path) for part in catalog.parts] == [("model", "tracker.best"), ("extra", "tracker.score")]


def test_roles_of_a_whole_file_need_no_key(tmp_path):
    """A file that is one value is one part with an empty path."""
    for tree, role in ((torch.get_rng_state(), "rng"), (torch.ones(2), "extra"), ([1, 2], "extra"), (5, "extra")):
        catalog = described(tree, tmp_path)
        assert {part.role for part in catalog.parts} == {role}
        assert catalog.parts[0].keys in ((), (0,))


def test_aliased_containers_are_listed_at_every_path(tmp_path):
    """One state dict under two keys is two parts, and its tensors name each other."""
    state = model().state_dict()
    catalog = described({"model": state, "ema": state}, tmp_path)
    assert [(part.role, part.path) for part in catalog.parts] == [("model", "model"), ("model", "ema")]
    assert catalog.tensors[0].shared == ("ema.0.weight",)


def test_a_view_that_drags_a_large_storage_is_told(tmp_path):
    """Ten elements of a million: the finding says how many of how many, once for all views of one storage."""
    big = torch.arange(1_000_000, dtype=torch.float32)
    messages = [f.message for f in described({"w": big[:10]}, tmp_path).findings if f.code == "large-storage"]
    assert messages == ["w uses 10 of 1,000,000 elements (40 B of 3.8 MiB)"]
    catalog = described({"ema": {"w": big[:10]}, "rows": [big[:4], big[2:6]]}, tmp_path)
    (finding,) = [f for f in catalog.findings if f.code == "large-storage"]
    assert finding.message == "ema.w and 2 more use 10 of 1,000,000 elements (40 B of 3.8 MiB)"
    chunks = described({"shards": list(torch.randn(4096, 4).chunk(4))}, tmp_path)
    assert not [f for f in chunks.findings if f.code == "large-storage"]


class Pair(NamedTuple):
    """A tuple of its own class."""

    first: Any
    second: Any


def test_fields_of_a_named_tuple_are_judged(tmp_path):
    """What a tuple class was made of is its content: parts in there are parts."""
    catalog = described({"pair": Pair(model().state_dict(), 5)}, tmp_path)
    assert [(part.role, part.path) for part in catalog.parts] == [("model", "pair.args.0"), ("extra", "pair.args.1")]


def test_arguments_of_unknown_functions_are_not_judged(tmp_path):
    """What a function would be called with is one extra value, whatever it looks like; its tensors are listed."""
    catalog = described({"x": Call(divmod, {"a.weight": torch.ones(2)})}, tmp_path)
    assert [(part.role, part.path, part.tensors) for part in catalog.parts] == [("extra", "x", 1)]


def test_objects_that_know_each_other_are_walked_once(tmp_path):
    """A graph of objects has more paths than tensors: each object is listed at the first path that reaches it."""
    nodes = [argparse.Namespace(weight=torch.ones(1), others=[]) for _ in range(30)]
    for node in nodes:
        node.others.extend(nodes)
    catalog = described({"graph": nodes[0]}, tmp_path)
    assert len(catalog.tensors) == 30
    assert "walk-cut" not in {finding.code for finding in catalog.findings}


DIALECTS = {
    "lightning": {"pytorch-lightning_version": "2.0", "state_dict": {"a.b": torch.ones(1)}},
    "hippynn": {"model": {"a.b": torch.ones(1)}, "controller": {}, "torch_rng_state": torch.get_rng_state()},
    "timm": {"arch": "resnet", "state_dict": {"a.b": torch.ones(1)}},
    "nanogpt": {"model_args": {}, "iter_num": 3, "model": {"a.b": torch.ones(1)}},
    "hf-trainer": {"python": 1, "numpy": 2, "cpu": torch.get_rng_state()},
    "plain": {"model": {"a.b": torch.ones(1)}},
}


@pytest.mark.parametrize("name", DIALECTS)
def test_who_wrote_a_file_is_told_by_its_keys(name, tmp_path):
    """The keys that only one program sets tell which program wrote the file."""
    assert described(DIALECTS[name], tmp_path).dialect == name
