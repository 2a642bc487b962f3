"""What the file's own model tells of an optimizer's parameters: the order they were saved in, and their dtypes."""

from __future__ import annotations

import pytest

from unmoor.plan.file_model import FileModel, Planned, file_model
from unmoor.plan.modules import ModulePlan
from unmoor.values.catalog import Catalog, Part
from unmoor.values.nodes import TensorNode
from unmoor.values.target import Slot, TargetGroup, TargetModule, TargetOptimizer, TargetParam


def part(*names: str, dtype: str = "float32") -> Part:
    """A model in the file that lists these names."""
    node = {name: TensorNode(None, 0, (2,), (1,), dtype, "cpu") for name in names}
    return Part("model", "state_dict", ("model",), len(names), 0, {}, node=node)


def planned(live: str, saved: str, *, label: str = "model", prefix: str = "", dtype: str = "float32") -> Planned:
    """A live module and its part of the file, one letter a name, each in the order it is listed in."""
    slots = {name: Slot(f"{label}/{name}", (2,), "float32", (1,), "cpu", dense=True) for name in live}
    target = TargetModule(label.partition("[")[0], label, "Net", slots, frozenset(slots))
    taken = ModulePlan(names={prefix + name: name for name in saved})
    return target, part(*(prefix + name for name in saved), dtype=dtype), taken


def optimizer(*names: str) -> TargetOptimizer:
    params = tuple(TargetParam(name, (2,), "float32", "cpu", (1,), dense=True) for name in names)
    return TargetOptimizer("optimizer", "optimizer", "Adam", "Adam", (TargetGroup({}, params),))


def told(names: str, *modules: Planned, parts: tuple[Part, ...] = ()) -> FileModel:
    catalog = Catalog("run.pt", "torch-zip", "plain", (), parts, (), ())
    many = sum(target.role == "model" for target, _, _ in modules) > 1
    return file_model(catalog, optimizer(*names.split()), modules, None, many=many)


@pytest.mark.parametrize(
    ("live", "saved", "optimized", "order"),
    [
        ("abc", "abc", "a b c", "abc"),
        ("abc", "abc", "c a b", "cab"),
        ("bac", "abc", "b a c", "abc"),
        ("bac", "abc", "c b", "cb"),
        ("cab", "abc", "c b", "bc"),
    ],
)
def test_only_a_model_that_was_reordered_tells_another_order(live: str, saved: str, optimized: str, order: str) -> None:
    """Where file and live model list an optimizer's parameters alike, its own order stands, whatever that is."""
    assert told(optimized, planned(live, saved, prefix="module.")).order == tuple(order)


def test_parameters_of_two_models_bear_their_labels() -> None:
    """With several models names carry the label, and each model is held against its own part of the file."""
    gen, disc = planned("ab", "ab", label="model[gen]"), planned("ba", "ab", label="model[disc]", dtype="bfloat16")
    found = told("model[gen]:a model[disc]:b", gen, disc)
    assert found.order == ("model[gen]:a", "model[disc]:b")
    assert told("model[disc]:b model[disc]:a", gen, disc).order == ("model[disc]:a", "model[disc]:b")
    assert found.dtypes["model[disc]:a"] == "bfloat16"
    assert found.dtypes["model[gen]:a"] == "float32"


def test_a_loss_beside_the_model_is_part_of_the_order() -> None:
    """An optimizer over a model and a loss has its order from both."""
    loss = planned("s", "s", label="loss")
    assert told("b a loss:s", planned("ba", "ab"), loss).order == ("a", "b", "loss:s")


def test_a_model_that_was_not_asked_for_tells_as_well() -> None:
    """Where the optimizer is restored alone, a model in the file with all its names gives order and dtypes."""
    found = told("b a", parts=(part("x"), part("module.a", "module.b", dtype="bfloat16")))
    params = (("a", (2,)), ("b", (2,)))
    assert found == FileModel(("a", "b"), {"a": "bfloat16", "b": "bfloat16"}, params)


@pytest.mark.parametrize("names", ["a z", ""])
def test_nothing_is_told_of_parameters_that_no_model_holds(names: str) -> None:
    """A parameter outside every model, or an optimizer without names, leaves the order open."""
    assert told(names, planned("ab", "ab")).order is None
    assert told(names, parts=(part("a", "b"),)).order is None
