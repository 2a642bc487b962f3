"""Pickled objects in a plan: roles of what they hold, their state as state dicts, stand-ins with Slots."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from unmoor.plan.pickled import STEP, pickled_roles
from unmoor.plan.pickled_state import with_states
from unmoor.plan.slots import make_slot
from unmoor.plan.templates import Template
from unmoor.values.catalog import Catalog, Part
from unmoor.values.nodes import Opaque, Storage, TensorNode
from unmoor.values.objects import OBJECT_ROLES
from unmoor.values.roles import ROLES
from unmoor.values.target import Slot

HIPPYNN = "hippynn.experiment"


def tensor(key: str) -> TensorNode:
    return TensorNode(Storage(key, "float32", 4, "cpu", None, None), 0, (1,), (1,), "float32", "cpu")


def module(parameters: dict[str, Any], buffers: dict[str, Any] | None = None, **attributes: Any) -> Opaque:
    state = {"_parameters": parameters, "_buffers": buffers or {}, "_modules": attributes.pop("children", {})}
    return Opaque("a.Module", state={**state, **attributes})


def catalog(tree: Any, *parts: Part, names: tuple[str, ...] = tuple(OBJECT_ROLES)) -> Catalog:
    return Catalog("run.pt", "torch-zip", "plain", (), parts, names, (), tree=tree)


def part(role: str, node: Any) -> Part:
    return Part(role, "object", (role,), 0, 0, {}, node=node)


def roles(tree: Any, *parts: Part) -> dict[str, set[str]]:
    return {key: set(found) for key, found in pickled_roles(catalog(tree, *parts)).items()}


def test_every_row_of_the_table_names_known_roles() -> None:
    """A role in the table of objects is a role of the role table."""
    assert {role for row in OBJECT_ROLES.values() for role in row.values()} <= ROLES.keys()


def test_nothing_is_said_of_files_without_known_objects() -> None:
    """Without a class of the table the catalog's own roles stand."""
    assert pickled_roles(catalog({"model": module({"w": tensor("0")})}, names=("a.Module",))) == {}


def test_an_evaluator_keeps_its_losses_apart_from_the_model() -> None:
    """The evaluator's model is the model; its loss and all else it holds are metrics."""
    model = module({"w": tensor("model")})
    loss = module({}, {"scale": tensor("loss")})
    own = module({}, {"scale": tensor("own")})
    evaluator = Opaque(f"{HIPPYNN}.evaluator.Evaluator", state={"model": model, "loss": own})
    tree = Opaque(f"{HIPPYNN}.assembly.TrainingModules", args=(model, loss, evaluator))
    assert roles(tree) == {"model": {"model"}, "loss": {"loss"}, "own": {"metrics"}}


def test_what_a_module_holds_beside_its_tensors_decides_nothing() -> None:
    """A graph that leads from the model to a loss and back neither makes the loss a part of it nor runs for ever."""
    loss = module({}, {"scale": tensor("loss")})
    model = module({"w": tensor("model")}, graph=[loss, tensor("loose")])
    loss.state["graph"] = [model]
    tree = Opaque(f"{HIPPYNN}.assembly.TrainingModules", args=(model, loss, Opaque("x.Y")))
    assert roles(tree) == {"model": {"model"}, "loss": {"loss"}, "loose": {"model", "loss"}}


def test_an_optimizer_object_keeps_counters_on_the_host_unless_its_group_is_capturable() -> None:
    """The state of a pickled optimizer has its role, its counters the host's unless their group is capturable."""
    a, b = tensor("a"), tensor("b")
    groups = [{"params": [a], "capturable": False}, {"params": [b], "capturable": True}]
    state = {a: {"step": tensor("a.step"), "m": tensor("a.m")}, b: {"step": tensor("b.step"), "m": tensor("b.m")}}
    optimizer = Opaque("torch.optim.adam.Adam", state={"state": state, "param_groups": groups})
    tree = Opaque(f"{HIPPYNN}.controllers.Controller", state={"optimizer": optimizer, "boredom": 3})
    assert roles(tree) == {
        "a": {"optimizer"}, "b": {"optimizer"}, "a.m": {"optimizer"}, "b.m": {"optimizer"},
        "a.step": {STEP}, "b.step": {"optimizer"},
    }  # fmt: skip


def test_a_part_inside_a_known_object_has_the_role_of_the_object() -> None:
    """The best model that a tracker keeps is a metric; a part outside of known objects keeps its own role."""
    best = OrderedDict({"w": tensor("best")})
    own = {"w": tensor("own")}
    tree = {"model": own, "tracker": Opaque(f"{HIPPYNN}.metric_tracker.MetricTracker", state={"best_model": best})}
    assert roles(tree, part("model", own), part("model", best)) == {"own": {"model"}, "best": {"metrics"}}


def test_a_pickled_module_gives_the_state_dict_that_it_would_have_given() -> None:
    """Names are dotted paths of submodules; buffers that are not persistent and absent parameters are left out."""
    w, b, mean, cache = (tensor(key) for key in ("w", "b", "mean", "cache"))
    inner = module({"weight": w, "bias": None}, {"mean": mean, "cache": cache}, _non_persistent_buffers_set={"cache"})
    outer = module({"scale": b}, children={"0": inner, "act": None})
    (made,) = with_states(catalog({}, part("model", outer))).parts
    assert made.node == {"scale": b, "0.weight": w, "0.mean": mean}
    assert list(made.node) == ["scale", "0.weight", "0.mean"]


def test_a_module_that_holds_itself_ends() -> None:
    """A submodule that is one of its own ancestors is not followed."""
    looped = module({"w": tensor("w")})
    looped.state["_modules"]["again"] = looped
    (made,) = with_states(catalog({}, part("model", looped))).parts
    assert list(made.node) == ["w"]


def test_a_pickled_optimizer_gives_its_state_by_number() -> None:
    """Parameters are numbered through the groups, and their state goes by that number."""
    a, b = tensor("a"), tensor("b")
    entry = {"m": tensor("m")}
    node = Opaque("x.Adam", state={"state": {b: entry}, "param_groups": [{"params": [a], "lr": 1}, {"params": [b]}]})
    (made,) = with_states(catalog({}, part("optimizer", node))).parts
    assert made.node == {"state": {1: entry}, "param_groups": [{"params": [0], "lr": 1}, {"params": [1]}]}


def test_a_stand_in_among_plain_values_gets_its_tensors() -> None:
    """Every tensor of an object that is not built becomes a Slot with a name of its own, whatever stands where."""
    inner = Opaque("x.Y", args=(tensor("0"),), state={"best": tensor("1"), tensor("2"): 1}, items=[tensor("3")])
    inner.entries.append((tensor("4"), tensor("5")))
    inner.state["self"] = inner
    template = Template("extra", "extra", (), make_slot("extra", "cpu"))
    made = template({"a": inner, "a.best": tensor("6")})["a"]
    assert (made.name, made.state["self"] is made) == ("x.Y", True)
    assert all(isinstance(x, Slot) for x in (made.args[0], made.state["best"], made.items[0], *made.entries[0]))
    assert {copy.node.storage.key for copy in template.copies if copy.node.storage} == set("0123456")
    assert len({copy.slot.id for copy in template.copies}) == 7
