"""What one rank sees of a checkpoint of several: tables of trees, no file and no torch."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from unmoor.plan.of_rank import ABSENT, every_rank, of_rank, own_leaves
from unmoor.plan.ranks_told import tell_ranks, withheld
from unmoor.values.catalog import Catalog, Part, TensorEntry
from unmoor.values.nodes import Span, Storage, TensorNode
from unmoor.values.target import Target, TargetObject


def _node(key: str) -> TensorNode:
    storage = Storage(key, "float32", 8, "cpu", Span(0, 8), crc32=int(key))
    return TensorNode(storage, 0, (2,), (1,), "float32", "cpu")


def _catalog(tree: Any, world: int = 1, roles: dict[str, Any] | None = None, **manifest: Any) -> Catalog:
    found = {"manifest": 1, "world_size": world, "roles": roles or {}, "numpy": [], **manifest}
    return Catalog("run.pt", "torch-zip", "unmoor", (), (), (), (), tree=tree, manifest=found)


SEEN: dict[str, tuple[Any, Any, dict[str, Any], Any]] = {
    "nothing of its own": ({"a": 1}, {}, {}, {"a": 1}),
    "a plain value": ({"a": 1, "b": 2}, {"a": 9}, {}, {"a": 9, "b": 2}),
    "a leaf further down": ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 9}}}, {}, {"a": {"b": {"c": 9, "d": 2}}}),
    "an element of a list": ({"a": [{"x": 1}, {"x": 2}]}, {"a": {"1": {"x": 9}}}, {}, {"a": [{"x": 1}, {"x": 9}]}),
    "a list as one leaf": ({"a": [1, 2]}, {"a": [1]}, {}, {"a": [1]}),
    "a tuple as one leaf": ({"a": (3, (1, 2), None)}, {"a": (3, (1, 5), None)}, {}, {"a": (3, (1, 5), None)}),
    "a dict as one leaf": ({"a": {"b": 1}}, {"a": {"c": 2}}, {"whole": [["a"]]}, {"a": {"c": 2}}),
    "a dict within as one leaf": ({"a": {"b": {"c": 1}}}, {"a": {"b": {}}}, {"whole": [["a", "b"]]}, {"a": {"b": {}}}),
    "a dict in the place of a value": ({"a": 1}, {"a": {"b": 2}}, {"whole": [["a"]]}, {"a": {"b": 2}}),
    "a key that it has alone": ({"a": 1}, {"b": 2}, {}, {"a": 1, "b": 2}),
    "a key that it lacks": ({"a": 1, "b": 2}, {}, {"absent": [["b"]]}, {"a": 1}),
    "keys that are numbers": ({"a": {1: "x", 2: "y"}}, {"a": {2: "z"}}, {}, {"a": {1: "x", 2: "z"}}),
    "a whole that is no path": ({"a": 1}, {"a": 2}, {"whole": "a", "absent": [[None], 3, []]}, {"a": 2}),
    "an index past the end": ({"a": [{"x": 1}]}, {"a": {"7": 1}}, {}, {"a": {"7": 1}}),
}


@pytest.mark.parametrize("case", SEEN)
def test_a_rank_sees_its_own_leaves_over_those_of_rank_0(case: str) -> None:
    """The leaves of rank 1 lie at the same places; ranks 0 and 2 see the tree of rank 0, no one sees the others'."""
    base, own, recorded, wanted = SEEN[case]
    tree = {**base, "ranks": {"1": own}}
    catalog = _catalog(tree, 3, ranks={"1": recorded})
    assert of_rank(catalog, 1, 3).tree == wanted
    assert of_rank(catalog, 0, 3).tree == of_rank(catalog, 2, 3).tree == base
    assert of_rank(catalog, 0, 1).tree == base
    assert catalog.tree == tree


@pytest.mark.parametrize("case", SEEN)
def test_what_every_rank_had_at_a_place(case: str) -> None:
    """Asked for a key of the root, the answer is by rank what each sees there."""
    base, own, recorded, wanted = SEEN[case]
    catalog = _catalog({**base, "ranks": {"1": own}}, 3, ranks={"1": recorded})
    for key in {**base, **wanted}:
        assert every_rank(catalog, (key,)) == tuple(tree.get(key, ABSENT) for tree in (base, wanted, base))


STRANGE: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "no manifest of ranks": ({"a": 1, "ranks": {"1": {"a": 2}}}, {"world_size": 1}, {"a": 1, "ranks": {"1": {"a": 2}}}),
    "ranks are no dict": ({"a": 1, "ranks": [5]}, {"world_size": 2}, {"a": 1}),
    "a rank is no dict": ({"a": 1, "ranks": {"1": 5}}, {"world_size": 2, "ranks": {"1": []}}, {"a": 1}),
    "a number that is no number": ({"a": 1, "ranks": {"x": {"a": 2}}}, {"world_size": 2, "ranks": {"x": {}}}, {"a": 1}),
    "more ranks than can be": ({"a": 1, "ranks": {"1": {"a": 2}}}, {"world_size": 1 << 40}, None),
    "a world that is no number": ({"a": 1, "ranks": {"1": {"a": 2}}}, {"world_size": "2"}, None),
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_manifest_that_makes_no_sense_counts_for_nothing(case: str) -> None:
    """A manifest is a claim of the file: what is malformed in it is passed over."""
    tree, manifest, wanted = STRANGE[case]
    assert of_rank(_catalog(tree, **manifest), 1, 2).tree == (wanted or tree)


def test_a_file_of_others_is_seen_as_it_is() -> None:
    """Without a manifest nothing is of a rank, whatever a key is called."""
    catalog = Catalog("x.pt", "torch-zip", "plain", (), (), (), (), tree={"ranks": {"1": {"a": 2}}, "a": 1})
    assert of_rank(catalog, 1, 2) is catalog
    assert tell_ranks(catalog, 1, 2, ()).note == ""


ROLES: dict[str, Any] = {
    "model": {"role": "model", "keys": ["model"], "wrappers": ["DistributedDataParallel"]},
    "optimizer": {"role": "optimizer", "keys": ["optimizer"], "names": []},
    "scheduler": {"role": "scheduler", "keys": ["scheduler"]},
    "scaler": {"role": "scaler", "keys": ["scaler"]},
    "loader": {"role": "loader", "keys": ["loader"]},
    "metrics[a]": {"role": "metrics", "keys": ["metrics", "a"], "wrappers": []},
    "critic": {"role": "critic", "keys": ["critic"], "wrappers": []},
    "buffer": {"role": "buffer", "keys": ["buffer"]},
}
BASE: dict[str, Any] = {
    "model": {"mean": 0},
    "optimizer": {},
    "scheduler": {"last_epoch": 3},
    "scaler": {"scale": 8},
    "loader": {"batches": 4},
    "metrics": {"a": {"sum": 1.5, "n": 2}},
    "critic": {"mean": 1},
    "buffer": {"kept": 10},
    "best": 0.5,
    "seen": {"epoch": 1, "files": ["0"], "parts": [{"n": 1}]},
    "step": 3,
}
OWN: dict[str, Any] = {
    "model": {"mean": 1},
    "scheduler": {"last_epoch": 4},
    "scaler": {"scale": 4},
    "loader": {"batches": 5},
    "metrics": {"a": {"sum": 2.5}},
    "critic": {"mean": 2},
    "buffer": {"kept": 20},
    "best": 1.5,
    "seen": {"files": ["1"], "parts": {"0": {"n": 2}}},
}


def _target(rank: int, *, summed: bool = False) -> Target:
    rows = (
        TargetObject(row["role"], label, "", "cpu", "cpu", summed=summed and label == "buffer")
        for label, row in ROLES.items()
    )
    return Target(objects=tuple(rows), rank=rank, world=4)


def test_a_new_rank_takes_what_is_common_and_nothing_that_each_had_for_itself() -> None:
    """Modules, schedulers, scalers and positions are seen as on rank 0; metrics, objects and plain values are not."""
    catalog = _catalog({**BASE, "ranks": {"1": OWN}}, 2, ROLES)
    seen = of_rank(catalog, 2, 4).tree
    kept = {key: BASE[key] for key in ("model", "optimizer", "scheduler", "scaler", "loader", "critic", "step")}
    assert seen == {**kept, "metrics": {}, "seen": {"epoch": 1}}
    assert withheld(catalog, _target(2)) == dict.fromkeys(["metrics[a]", "buffer"], "each of 2 ranks had its own")
    assert withheld(catalog, _target(1)) == {}


def test_what_is_the_same_on_all_ranks_is_taken_by_a_new_one_too() -> None:
    """A metric that no rank had for itself (it was gathered, say) is nobody's own."""
    catalog = _catalog(BASE, 2, ROLES)
    assert of_rank(catalog, 3, 4).tree == BASE
    assert withheld(catalog, _target(3)) == {}


def test_sums_that_one_process_saved_are_not_counted_by_each_rank() -> None:
    """A metric that adds up its ranks begins anew on ranks that one process did not have; others take its state."""
    catalog = _catalog(BASE, 1, ROLES)
    assert withheld(catalog, _target(1, summed=True)) == {"buffer": "1 rank saved its sums, which would count twice"}
    assert withheld(catalog, _target(0, summed=True)) == withheld(catalog, _target(1)) == {}


TOLD: dict[str, tuple[int, int, str, list[tuple[str, str, str, str]]]] = {
    "the same world": (
        1, 2,
        "saved by 2 ranks, this is rank 1 of 2: 1 buffer of model, scheduler, scaler, loader and 6 more of rank 1",
        [],
    ),
    "one process": (
        0, 1,
        "saved by 2 ranks, this is one process: 1 buffer of model, scheduler, scaler, loader and 6 more of rank 0",
        [
            ("model", "", "1 buffer of rank 1", "not used"),
            ("metrics[a]", "", "of rank 1", "not used"),
            ("extra", "best", "of rank 1", "not used"),
            ("extra", "seen.files", "of rank 1", "not used"),
        ],
    ),
    "a new rank": (
        3, 4,
        "saved by 2 ranks, this is rank 3 of 4: 1 buffer of model, scheduler, scaler, loader and 1 more as on rank 0",
        [("extra", "best", "each of 2 ranks had its own", "rank 3 has none")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TOLD)
def test_the_report_says_whose_values_these_are(case: str) -> None:
    """One sentence on ranks, and a line for what is not used or not there."""
    rank, world, note, lines = TOLD[case]
    told = tell_ranks(_catalog({**BASE, "ranks": {"1": OWN}}, 2, ROLES), rank, world, list(ROLES))
    assert told.note == note
    found = [(c.label, c.name, c.before, c.after) for c in told.not_restored]
    assert [line for line in found if line in lines] == lines


def test_nothing_is_said_of_roles_that_are_not_restored() -> None:
    """A restore of the model alone hears of the model's buffers, and not of metrics."""
    told = tell_ranks(_catalog({**BASE, "ranks": {"1": OWN}}, 2, ROLES), 0, 1, ["model"])
    assert {change.label for change in told.not_restored} == {"model", "extra"}


def test_tensors_parts_and_arrays_are_those_of_the_rank() -> None:
    """Entries of a replaced place are the rank's own, under the place's name; no other rank's are there."""
    zero, one, array = _node("0"), _node("1"), _node("2")
    tree = {
        "model": OrderedDict(w=_node("5"), mean=zero),
        "rng": {"devices": {"cuda": [_node("6"), _node("7")]}},
        "note": _node("8"),
        "ranks": {
            "1": {"model": {"mean": one}, "rng": {"devices": {"cuda": {"1": array}}}},
            "2": {"model": {"mean": _node("3")}},
        },
    }
    entries = tuple(
        TensorEntry(".".join(map(str, keys)), keys[0] if keys[0] != "ranks" else "extra", (2,), "float32", (1,), "cpu",
                    8, key, None, keys=keys)
        for keys, key in [
            (("model", "w"), "5"), (("model", "mean"), "0"),
            (("rng", "devices", "cuda", 0), "6"), (("rng", "devices", "cuda", 1), "7"), (("note",), "8"),
            (("ranks", "1", "model", "mean"), "1"), (("ranks", "1", "rng", "devices", "cuda", "1"), "2"),
            (("ranks", "2", "model", "mean"), "3"),
        ]
    )  # fmt: skip
    parts = (
        Part("model", "state_dict", ("model",), 2, 16, {"cpu": 2}, node=tree["model"]),
        Part("model", "tensors", ("ranks", "1", "model"), 1, 8, {"cpu": 1}, node=tree["ranks"]["1"]["model"]),
        Part("rng", "cuda", ("rng", "devices", "cuda"), 2, 16, {"cpu": 2}, node=tree["rng"]["devices"]["cuda"]),
        Part("rng", "cuda", ("ranks", "1", "rng", "devices", "cuda", "1"), 1, 8, {"cpu": 1}, node=array),
    )
    manifest = {
        "world_size": 3,
        "numpy": [["note"], ["rng", "devices", "cuda", 1], ["ranks", "1", "rng", "devices", "cuda", "1"]],
        "ranks": {"1": {}, "2": {}},
    }
    catalog = Catalog("run.pt", "torch-zip", "unmoor", entries, parts, (), (), tree=tree, manifest=manifest)
    seen = of_rank(catalog, 1, 3)
    found = {entry.path: (entry.role, entry.storage) for entry in seen.tensors}
    assert found == {
        "model.w": ("model", "5"),
        "model.mean": ("model", "1"),
        "rng.devices.cuda.0": ("rng", "6"),
        "rng.devices.cuda.1": ("rng", "2"),
        "note": ("note", "8"),
    }
    assert [(part.role, part.keys) for part in seen.parts] == [
        ("model", ("model",)),
        ("rng", ("rng", "devices", "cuda")),
        ("rng", ("rng", "devices", "cuda", 1)),
    ]
    assert seen.parts[0].node["mean"] is one
    assert seen.manifest is not None
    assert seen.manifest["numpy"] == [["note"], ["rng", "devices", "cuda", 1]]
    assert {entry.storage for entry in of_rank(catalog, 0, 3).tensors} == {"5", "0", "6", "7", "8"}
    assert own_leaves(catalog)[2] == (("model", "mean"),)
