"""State that ranks hold together, saved as a folder: what torch and unmoor read of it, and what failures leave."""

from __future__ import annotations

import json
import warnings
from collections import Counter, OrderedDict
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import unmoor
from unmoor.errors import CorruptFile
from unmoor.live.content import plain_tree
from unmoor.live.held import Held
from unmoor.values.boxes import Box

from .launch import launch
from .layouts import LAYOUTS, build
from .matrix import saved, worlds
from .ranks.sharded_save import odd_tree
from .whole import differences

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant")

SHARDED = ["FSDP1 x2", "FSDP2 x2", "TP x2", "FSDP2 x3", "HSDP 2x2", "FSDP2+TP 2x2"]


@pytest.fixture(scope="module")
def saves(tmp_path_factory):
    """NAME/run is what unmoor saved of a layout, NAME/whole.pt the same run gathered by torch."""
    return saved(worlds(tmp_path_factory), "unmoor")


def whole_of(saves, name):
    return torch.load(saves / name / "whole.pt", weights_only=False)


@pytest.mark.parametrize("name", SHARDED)
def test_plain_torch_reads_the_folder_in_one_process(saves, name):
    """dcp.load fills torch's own state dicts, optimizer by name, and set_state_dict takes them: the run as it was."""
    run, whole = build(LAYOUTS["plain"], 0, seed=8), whole_of(saves, name)
    model, optimizer = get_state_dict(run.model, run.optimizer)
    tree = {"model": model, "optimizer": optimizer, "scheduler": run.scheduler.state_dict(), "step": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(tree, checkpoint_id=saves / name / "run", no_dist=True)
    set_state_dict(run.model, run.optimizer, model_state_dict=tree["model"], optim_state_dict=tree["optimizer"])
    model, optimizer = get_state_dict(run.model, run.optimizer)
    assert not list(differences({k: model[k] for k in whole["model"]}, whole["model"]))
    assert not list(differences(optimizer, whole["optimizer"]))
    assert tree["scheduler"] == whole["scheduler"]
    assert tree["step"] == whole["step"]


@pytest.mark.parametrize("name", SHARDED)
def test_one_process_restores_the_run(saves, name):
    """Parameters, buffers of rank 0, optimizer by name, scheduler, scaler: as torch gathered them."""
    run, whole = build(LAYOUTS["plain"], 0, seed=7), whole_of(saves, name)
    report = unmoor.restore(saves / name / "run", **run.roles)
    model, optimizer = get_state_dict(run.model, run.optimizer)
    buffers = torch.load(saves / name / "rank-0.pt", weights_only=False)["buffers"]
    assert not list(differences(model, {**model, **whole["model"], **buffers}))
    assert not list(differences(optimizer, whole["optimizer"]))
    assert run.scheduler.state_dict() == whole["scheduler"]
    assert run.scaler.state_dict() == whole["scaler"]
    assert report.extra["step"] == whole["step"]
    assert report.unverified == 0


@pytest.mark.parametrize("name", SHARDED)
def test_nothing_is_written_twice(saves, name):
    """Boxes of all entries lie apart but for tied names, whatever ranks there are."""
    catalog = unmoor.describe(saves / name / "run")
    run = {e.keys: e for e in catalog.tensors if e.keys[0] in ("model", "optimizer")}
    places = {}
    for keys, entry in run.items():
        for storage in entry.node.storage.sources():
            places.setdefault((storage.span.file, storage.span.offset), []).append(keys)
    tied = [sorted(keys[-1] for keys in names) for names in places.values() if len(names) > 1]
    assert all(names == ["embedding.weight", "head.weight"] for names in tied)
    shards = [p.stat().st_size for p in (saves / name / "run").glob("*.distcp")]
    assert len(shards) == LAYOUTS[name].world
    assert run["model", "head.weight"].shared == ("model.embedding.weight",)


@pytest.mark.parametrize("name", SHARDED)
def test_describes_who_saved_it(saves, name):
    """The manifest gives roles and the number of ranks; what single ranks have is told once, apart from the run."""
    catalog = unmoor.describe(saves / name / "run")
    text = str(unmoor.describe(saves / name / "run"))
    assert catalog.dialect == "unmoor"
    assert catalog.manifest["world_size"] == LAYOUTS[name].world
    assert not catalog.findings, text
    assert {"model", "optimizer", "scheduler", "scaler", "rng"} <= {part.role for part in catalog.parts}


def test_inspect_tells_the_ranks(saves):
    """The page says how many ranks saved, and counts the run's parts without what single ranks have."""
    from unmoor.report.inspect import inspect_text

    text = inspect_text(unmoor.describe(saves / "FSDP2 x3" / "run"))
    assert "(model + optimizer + scheduler + scaler + rng)" in " ".join(text.split())
    assert "saved by 3 ranks on cpu" in text
    assert "what 2 ranks have unlike rank 0: model, rng" in " ".join(text.split())


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """The folder in which two ranks saved and failed, and what each of them was told."""
    root = tmp_path_factory.mktemp("sharded")
    return root, launch("tests.worlds.ranks.sharded_save", 2, root)


def equal(one, other):
    """Whether two trees are one: classes, keys in their order, values, tensors with dtype and layout."""
    if isinstance(one, torch.Tensor):
        same = type(one) is type(other) and one.dtype == other.dtype and one.layout == other.layout
        return same and one.is_conj() == other.is_conj() and torch.equal(one.to_dense(), other.to_dense())
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        marks = [getattr(tree, "_metadata", None) for tree in (one, other)]
        return (
            type(one) is type(other)
            and marks[0] == marks[1]
            and all(a == b and equal(v, w) for (a, v), (b, w) in pairs)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    if hasattr(one, "dtype"):
        return type(one) is type(other) and one.dtype == other.dtype and (one == other).all()
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("key", odd_tree())
def test_values_and_containers_come_back(odd, key):
    """What torch's engine forgets (empty containers, tuples, keys that are no text, metadata) comes back as it was."""
    assert equal(unmoor.load(odd[0] / "odd")[key], odd_tree()[key])


def test_keys_keep_their_order(odd):
    """The tree has the keys of rank 0 in their order, and what other ranks have at the end."""
    assert list(unmoor.load(odd[0] / "odd")) == [*odd_tree(), "parts", "rank", "both", "ranks"]


def test_parts_of_any_kind_become_whole(odd):
    """Rows, columns, one row of which a rank has nothing, replicas, no elements at all; inside of lists and tuples."""
    whole, parts = torch.arange(35.0).reshape(7, 5), unmoor.load(odd[0] / "odd")["parts"]
    same = ("rows", "twin", "columns", "everywhere")
    assert all(torch.equal(parts[key], whole) for key in same)
    assert torch.equal(parts["one"], whole[:1])
    assert parts["void"].shape == (0, 5)
    assert equal(parts["list"], [whole, 1])
    assert equal(parts["tuple"], (2, whole))
    assert unmoor.load(odd[0] / "odd")["ranks"] == {"1": {"rank": 1, "both": {"0": 1, "1": {"x": 1}}}}


def test_ties_stay_ties(odd):
    """One tensor under two names is written once and is one tensor again; plain torch reads both names."""
    tree, catalog = unmoor.load(odd[0] / "odd"), unmoor.describe(odd[0] / "odd")
    assert tree["tied"][0].data_ptr() == tree["tied"][1].data_ptr()
    assert tree["parts"]["rows"].data_ptr() == tree["parts"]["twin"].data_ptr()
    entry = next(e for e in catalog.tensors if e.path == "parts.twin")
    assert set(entry.shared) == {"parts.rows", "parts.list.0", "parts.tuple.1"}
    plain = {"parts": {"rows": torch.zeros(7, 5), "twin": torch.zeros(7, 5)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(plain, checkpoint_id=odd[0] / "odd", no_dist=True)
    assert torch.equal(plain["parts"]["rows"], torch.arange(35.0).reshape(7, 5))
    assert torch.equal(plain["parts"]["twin"], plain["parts"]["rows"])


def test_the_receipt_is_the_same_on_all_ranks(odd):
    """Tensors count whole and once."""
    first, second = (rank["receipt"] for rank in odd[1])
    assert first["counts"] == second["counts"]
    assert first["nbytes"] == second["nbytes"] == sum(p.stat().st_size for p in (odd[0] / "odd").glob("*.distcp"))


def test_a_newer_save_takes_the_place_of_an_older_one(odd):
    """The folder holds the last save that ended well, its own files, and those that failed left nothing."""
    first = [".metadata", "__0_0.distcp", "__1_0.distcp", "unmoor-manifest.json"]
    folders = {"kept": first, "later": first, "made": first, "mine": ["notes.txt"], "node-0": [], "node-1": []}
    left = ["file.pt", *folders, *(f"{name}/{file}" for name, files in folders.items() for file in files)]
    assert unmoor.load(odd[0] / "kept")["step"] == 2
    for rank in odd[1]:
        assert rank["first"] == first
        assert rank["left"] == sorted(left)


TOLD = {
    "full": ("SaveError", "the disk is full", "the disk is full"),
    "both": ("ValueError", "no more on 0", "no more on 1"),
    "rename": ("SaveError", "may not write", "may not write"),
    "file": ("SaveError", "a file is there", "a file is there"),
    "folder": ("SaveError", "it holds notes.txt", "it holds notes.txt"),
    "flat": ("UsageError", "unmoor.convert(folder", "unmoor.convert(folder"),
    "alone": ("UsageError", "this process saves alone", "this process saves alone"),
    "absent": ("SaveError", "does not exist", "does not exist"),
    "knot": ("UsageError", "contains itself", "contains itself"),
    "holes": ("SaveError", "w: 15 of its 35 elements are in no chunk", "w: 15 of its 35 elements are in no chunk"),
    "drifted": ("RanksDiffer", "bias   rank 0 unlike rank 1", "bias   rank 0 unlike rank 1"),
    "node": ("SaveError", "node-1", "node-1"),
}


@pytest.mark.parametrize("what", TOLD)
def test_every_rank_is_told(odd, what):
    """What makes a save impossible on one rank, before or while it is written, is an error that names it on all."""
    kind, *causes = TOLD[what]
    for rank, cause in zip(odd[1], causes, strict=True):
        assert rank[what].startswith(f"{kind}: ")
        assert cause in rank[what]


def test_a_folder_on_one_node_only_names_the_rank_that_does_not_see_it(odd):
    """Before any data is written, rank 1 is named as the one that does not see what rank 0 made."""
    assert "rank 1" in odd[1][0]["node"]
    assert "does not see the folder that rank 0 made" in odd[1][0]["node"]


def test_an_optimizer_without_names_is_kept_by_number(tmp_path):
    """Where parameters have no names, state goes by the numbers that the optimizer gives them."""
    from unmoor.distributed.saving import share_of

    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    share = share_of(plain_tree({"optimizer": optimizer.state_dict()}), None, 0)
    assert "optimizer.state.0.exp_avg" in share.values
    assert share.values["optimizer.param_groups.0.params"] == [0]


def test_ranks_write_only_what_is_theirs():
    """Rank 0 offers everything; any other its parts of tensors and its own leaves, and of ties one name."""
    from unmoor.distributed.saving import share_of

    part = Held(torch.Size([4]), torch.float32, torch.device("cpu"), ((Box((0,), (2,)), torch.ones(2)),))
    content = plain_tree({"w": part, "tied": part, "b": torch.ones(2), "step": 1})
    first, second = share_of(content, None, 0), share_of(content, {"step": 5}, 1)
    assert list(first.values) == ["w", "b", "step"]
    assert list(second.values) == ["w", "ranks.1.step"]
    assert first.aliases == second.aliases == {"tied": "w"}
    assert second.paths["ranks.1.step"] == ("ranks", "1", "step")


@pytest.fixture
def folder(odd, tmp_path):
    """A copy of a folder of two ranks, to be broken."""
    import shutil

    return Path(shutil.copytree(odd[0] / "kept", tmp_path / "copy"))


@pytest.mark.parametrize("broken", ["missing", "empty", "no JSON", "a list"])
def test_a_damaged_manifest_is_no_obstacle(folder, broken):
    """Without a manifest that can be read the folder is one of torch.distributed.checkpoint; a damaged one is told."""
    manifest = folder / "unmoor-manifest.json"
    manifest.unlink() if broken == "missing" else manifest.write_text(
        {"empty": "", "no JSON": "{", "a list": "[1]"}[broken]
    )
    catalog = unmoor.describe(folder)
    assert catalog.manifest is None
    assert {entry.path for entry in catalog.tensors} == {"w"}
    assert [finding.code for finding in catalog.findings] == ([] if broken == "missing" else ["manifest-damaged"])


def test_a_manifest_of_another_save_is_left_out(folder):
    """torch.distributed.checkpoint saves over our folder and leaves our manifest: what is there is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": torch.ones(2), "other": 5}, checkpoint_id=folder, no_dist=True)
    catalog = unmoor.describe(folder)
    assert catalog.manifest is None
    assert any("of another save" in finding.message for finding in catalog.findings)
    assert unmoor.load(folder)["other"] == 5


def _without_leaf(manifest):
    manifest["frame"][1].pop()


def _other_size(manifest):
    manifest["files"]["__1_0.distcp"][0] += 1


def _other_sum(manifest):
    manifest["metadata"][1] ^= 1


def _no_frame(manifest):
    manifest["frame"] = ["dict", 5]


def _other_leaf(manifest):
    manifest["frame"][1][0][1] = "nothing"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without_leaf, "its tree has 1 entry, .metadata 2 entries"),
        (_other_size, "__1_0.distcp: saved as"),
        (_other_sum, ".metadata: saved as"),
        (_no_frame, "the frame of its tree is none"),
        (_other_leaf, "nothing"),
    ],
)
def test_a_manifest_that_contradicts_its_own_save_is_found(folder, change, said):
    """Of the same save, it says what the files are: one of the two is damaged."""
    place = folder / "unmoor-manifest.json"
    manifest = json.loads(place.read_text())
    change(manifest)
    place.write_text(json.dumps(manifest))
    with pytest.raises(CorruptFile, match="contradict each other") as caught:
        unmoor.describe(folder)
    assert said in str(caught.value)


def test_a_shard_of_another_save_is_found(odd, folder):
    """A file of another step has the same names, sizes and places, and sound checksums of its own: its sum differs."""
    shard, other = folder / "__1_0.distcp", (odd[0] / "later" / "__1_0.distcp").read_bytes()
    assert len(other) == shard.stat().st_size
    shard.write_bytes(other)
    with pytest.raises(CorruptFile, match=r"contradict each other\n  __1_0\.distcp: saved as"):
        unmoor.describe(folder)
    (folder / "unmoor-manifest.json").unlink()
    assert unmoor.describe(folder).dialect == "plain"


@pytest.mark.parametrize("depth", [200, 100_000])
def test_a_frame_nested_without_end_is_harmless(folder, depth):
    """It is found to be no frame; or too deep to be JSON at all, and left out."""
    place = folder / "unmoor-manifest.json"
    text = json.dumps({**json.loads(place.read_text()), "frame": "HERE"})
    place.write_text(text.replace('"HERE"', '["list", [' * depth + "1" + "]]" * depth))
    if depth == 200:
        with pytest.raises(CorruptFile, match="contradict each other"):
            unmoor.describe(folder)
    else:
        assert unmoor.describe(folder).manifest is None


def test_c55_latest_points_to_an_unfinished_folder(tmp_path):
    """C55: the link that was moved too early is told with what is missing, and the newest complete folder is named."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in (5, 10, 20):
            dcp.save(
                {"model": {"w": torch.ones(3)}, "step": step}, checkpoint_id=tmp_path / f"step_{step}", no_dist=True
            )
    (tmp_path / "step_20" / ".metadata").unlink()
    shard = next((tmp_path / "step_20").glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-700])
    (tmp_path / "latest").symlink_to("step_20")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    with pytest.raises(CorruptFile, match=r"latest \(a link to .*step_20\).* no \.metadata") as caught:
        unmoor.describe(tmp_path / "latest")
    assert caught.value.remedy.endswith(f"The newest complete one beside it is {tmp_path / 'step_10'}")
    with pytest.raises(unmoor.NotACheckpoint, match="step_20: unfinished") as listed:
        unmoor.describe(tmp_path)
    assert listed.value.remedy.endswith(f"The last by name that is complete is {tmp_path / 'step_10'}")
    assert unmoor.load(tmp_path / "step_10")["step"] == 10


@pytest.mark.parametrize("tree", [Counter(a=1), OrderedDict(a=[]), {}])
def test_a_tree_of_a_kind_of_its_own_is_shared_whole(tree):
    """The root may be any mapping that a file could hold."""
    from unmoor.distributed.saving import share_of
    from unmoor.values.frames import rebuilt

    share = share_of(plain_tree(tree), None, 0)
    assert equal(rebuilt(share.frame, share.values), tree)
