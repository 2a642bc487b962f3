"""CheckpointReader as its callers misuse it, and folders and manifests that anyone may have edited.

Never a wrong value, never an error of Python's own: what is malformed counts for nothing, or is an error that names it.
"""

from __future__ import annotations

import json
import shutil
import zipfile

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

import unmoor
from unmoor.plan.of_rank import every_rank, of_rank, own_leaves

pytestmark = pytest.mark.filterwarnings("ignore:.*(TypedStorage|torch.distributed is)")


def run(seed=0):
    """A small model and an AdamW that has stepped."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a file of unmoor.save, and the same run as a folder of shards."""
    folder = tmp_path_factory.mktemp("saved")
    model, optimizer = run()
    unmoor.save(folder / "run.pt", model=model, optimizer=optimizer, step=3, hist=[1, {"a": 2}])
    unmoor.convert(folder / "run.pt", folder / "run")
    return folder


def fails(state, reader, **how):
    """The text of dcp.load's failure; the state must be as it was."""
    with pytest.raises(dcp.api.CheckpointException) as caught:
        dcp.load(state, storage_reader=reader, no_dist=True, **how)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"verify": "yes"}, "verify='yes' is none of"),
        ({"buffer_bytes": 0}, "buffer_bytes=0 is no number"),
        ({"buffer_bytes": True}, "buffer_bytes=True is no number"),
        ({"threads": -1}, "threads=-1 is no number"),
        ({"threads": 1.5}, "threads=1.5 is no number"),
    ],
)
def test_arguments_are_looked_at_when_it_is_made(options, words):
    """A number or word that means nothing is refused by the constructor."""
    with pytest.raises(unmoor.UsageError, match=words):
        unmoor.CheckpointReader("any.pt", **options)


def _raises(_):
    raise LookupError("of the caller's own")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": 5}, "UsageError: only=5 is no role"),
        ({"only": []}, r"UsageError: only=\[\] is no role"),
        ({"rename": 3}, "UsageError: rename=3 is neither a dict"),
        ({"rename": {1: 2}}, "UsageError: rename={1: 2} is neither a dict"),
        ({"rename": lambda _: None, "only": ["step"]}, "UsageError: rename= gives 'step' the name None"),
        ({"rename": _raises}, "LookupError: of the caller's own"),
    ],
)
def test_what_cannot_be_asked_for_is_told_as_itself(saved, options, words):
    """The error that dcp.load ends with is the one that was made, and no AssertionError about metadata."""
    text = fails({"step": 0}, unmoor.CheckpointReader(saved / "run.pt", **options))
    assert words.replace("\\", "") in text
    assert "AssertionError" not in text


@pytest.mark.parametrize(
    "make", [lambda: torch.zeros(1, 4).expand(3, 4), lambda: torch.zeros(9).as_strided((3, 4), (1, 1))]
)
def test_never_writes_elements_that_share_memory(saved, make):
    """A live tensor whose elements lie on each other cannot hold what is read: refused by name, nothing written."""
    weight = make()
    text = fails({"model": {"0.weight": weight}}, unmoor.CheckpointReader(saved / "run.pt"))
    assert "model.0.weight: elements of the live tensor share memory: clone() it" in text
    assert "cast=" not in text
    assert not weight.any()


@pytest.mark.parametrize(
    "make",
    [lambda: torch.zeros(4, 3).t(), lambda: torch.zeros(6, 8)[::2, ::2], lambda: nn.Parameter(torch.zeros(3, 4))],
)
def test_fills_any_layout_in_place(saved, make):
    """Transposed, with gaps, a Parameter: the very tensor is filled."""
    weight = make()
    dcp.load({"model": {"0.weight": weight}}, storage_reader=unmoor.CheckpointReader(saved / "run.pt"), no_dist=True)
    assert torch.equal(weight, run()[0][0].weight)


def test_a_reader_sees_a_file_that_was_replaced(tmp_path):
    """A second load by one reader is of the file that is there now, whatever it remembers of the first."""
    reader, state = unmoor.CheckpointReader(tmp_path / "a.pt"), {"w": torch.zeros(3)}
    for value in (1.0, 2.0):
        torch.save({"w": torch.full((3,), value), "more": torch.ones(int(value) * 99)}, tmp_path / "a.pt")
        dcp.load(state, storage_reader=reader, no_dist=True)
        assert torch.equal(state["w"], torch.full((3,), value))


def test_planners_of_other_kinds(saved):
    """allow_partial_load fills what there is; a state dict that is flat already is not flattened again."""
    state = {"model": {"0.weight": torch.zeros(3, 4), "new": torch.full((2,), 7.0)}}
    reader = unmoor.CheckpointReader(saved / "run.pt")
    dcp.load(state, storage_reader=reader, planner=DefaultLoadPlanner(allow_partial_load=True), no_dist=True)
    assert torch.equal(state["model"]["0.weight"], run()[0][0].weight)
    assert torch.equal(state["model"]["new"], torch.full((2,), 7.0))
    flat = {"model.0.weight": torch.zeros(3, 4)}
    dcp.load(flat, storage_reader=reader, planner=DefaultLoadPlanner(flatten_state_dict=False), no_dist=True)
    assert torch.equal(flat["model.0.weight"], run()[0][0].weight)


def restored(path):
    """The extras of a restore of `path`, after which the run must be the saved one."""
    (model, optimizer), (other, its) = run(), run(1)
    report = unmoor.restore(path, model=other, optimizer=its)
    assert str(report)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in other.state_dict().items())
    pairs = zip(its.state_dict()["state"].values(), optimizer.state_dict()["state"].values(), strict=True)
    assert all(torch.equal(one[key], two[key]) for one, two in pairs for key in one)
    return report.extra


MALFORMED = [
    *({"world_size": value} for value in (0, -1, "2", None, 2.5, [2], True, 10**30, 1 << 20)),
    *(
        {"roles": value}
        for value in (None, [], 5, {"model": 5}, {"model": {"keys": "model"}}, {"model": {"keys": [["x"]]}})
    ),
    {"roles": {"model": {"role": "optimizer", "keys": ["model"]}}},
    {"roles": {"model": {"role": 5, "keys": ["model"], "names": 5, "wrappers": {}}}},
    {"roles": {"optimizer": {"role": "optimizer", "keys": ["optimizer"], "names": {"x": 1}}}},
    *({"numpy": value} for value in (5, "abc", [5], [["nope"]], [["hist", 5]], [[{}]], [[["x"]]], [["step"]], None)),
    *(
        {"world_size": 2, "ranks": value}
        for value in (
            [1],
            "x",
            {"1": 5},
            {"-1": {}},
            {"01": {"absent": [["model"]]}},
            {"9" * 5000: {"absent": [["model"]]}},
            {"999999999": {"whole": [["model"]]}},
            {"1": {"absent": "model"}},
            {"1": {"absent": [[{}], ["model", ["x"]], []]}},
        )
    ),
    *({"manifest": value} for value in (2, "x", None)),
]


@pytest.mark.parametrize("edit", MALFORMED, ids=lambda edit: str(edit)[:60])
@pytest.mark.parametrize("road", ["folder", "file"])
def test_a_malformed_claim_of_a_manifest_counts_for_nothing(saved, tmp_path, edit, road):
    """Whatever stands in its fields, the run that is read is the saved one, by every road."""
    path = _edited_folder(saved, tmp_path, edit) if road == "folder" else _edited_file(saved, tmp_path, edit)
    extra = restored(path)
    assert (extra["step"], extra["hist"]) == (3, [1, {"a": 2}])
    assert str(unmoor.describe(path))
    assert unmoor.describe(path).to_json()
    assert torch.equal(unmoor.load(path)["model"]["0.weight"], run()[0][0].weight)
    unmoor.convert(path, tmp_path / "out.pt")
    assert restored(tmp_path / "out.pt")["step"] == 3


def _edited_folder(saved, tmp_path, edit):
    shutil.copytree(saved / "run", tmp_path / "edited")
    place = tmp_path / "edited" / "unmoor-manifest.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **edit}))
    return tmp_path / "edited"


def _edited_file(saved, tmp_path, edit, tree=None):
    """A file of the saved tree (or `tree`) with the saved manifest, edited."""
    torch.save(unmoor.load(saved / "run.pt") if tree is None else tree, tmp_path / "edited.pt")
    with zipfile.ZipFile(saved / "run.pt") as archive:
        manifest = json.loads(archive.read("run/unmoor/manifest.json"))
    del manifest["storages"]
    with zipfile.ZipFile(tmp_path / "edited.pt", "a") as archive:
        archive.writestr("edited/unmoor/manifest.json", json.dumps({**manifest, **edit}))
    return tmp_path / "edited.pt"


def _swapped(text, one, other):
    return text.replace(one, "@").replace(other, one).replace("@", other)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: _swapped(text, '"model.1.weight"', '"model.1.bias"'),
        lambda text: _swapped(text, '["1.weight"', '["1.bias"'),
        lambda text: text.replace('"step"]', '"nowhere"]'),
        lambda _: '["list", ["step"]]',
        lambda _: '["zip", []]',
        lambda _: '["dict", [[["dict", []], "step"]]]',
        lambda _: "null",
        lambda _: "5",
    ],
)  # fmt: skip
def test_a_frame_that_moves_values_is_damage(saved, tmp_path, change):
    """The tree that a manifest tells of must be that of the keys in `.metadata`: nothing is read at another's name."""
    manifest = json.loads((saved / "run" / "unmoor-manifest.json").read_text())
    frame = json.loads(change(json.dumps(manifest["frame"])))
    path = _edited_folder(saved, tmp_path, {"frame": frame})
    with pytest.raises(unmoor.CorruptFile, match=r"manifest\.json and the files of its save contradict each other"):
        restored(path)


def _knot():
    tree = {"model": {}}
    tree["model"]["0.weight"] = tree
    return tree


OVERLAYS = {
    "a list": [{"model": 5}],
    "a number": 5,
    "a tensor": torch.ones(3),
    "numbers for names": {1: {"model": {"1.running_mean": torch.ones(3)}}},
    "a rank 01": {"01": {"model": {"0.weight": torch.ones(3, 4)}}},
    "a rank below 0": {"-1": {"model": {"0.weight": torch.ones(3, 4)}}},
    "a rank beyond all": {"9" * 5000: {"model": {"0.weight": torch.ones(3, 4)}}},
    "no mapping": {"1": 7},
    "a number for the model": {"1": {"model": 5}},
    "a list for the model": {"1": {"model": [1, 2]}},
    "a mapping for a tensor": {"1": {"model": {"0.weight": {"a": 1}}}},
    "an index beyond the end": {"1": {"optimizer": {"param_groups": {"7": {"lr": 9.0}}}}},
    "an index below 0": {"1": {"optimizer": {"param_groups": {"-1": {"lr": 9.0}}}}},
    "an index 00": {"1": {"optimizer": {"param_groups": {"00": {"lr": 9.0}}}}},
    "an index of 5,000 digits": {"1": {"hist": {"9" * 5000: 1}}},
    "an index in other digits": {"1": {"hist": {"\u0661": 1}}},
    "streams that are none": {"1": {"rng": {"torch": 5, "numpy": "x", "devices": {"cuda": 7, 5: [1]}}}},
    "no mapping of streams": {"1": {"rng": {"devices": 5}}},
    "ranks in ranks": {"1": {"ranks": {"1": {"model": {"0.weight": torch.ones(3, 4)}}}}},
    "keys that rank 0 lacks": {"1": {"zzz": torch.ones(3), "model": {"new": torch.ones(3)}}},
    "a knot": {"1": _knot()},
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_nonsense_of_another_rank_is_no_business_of_this_one(saved, tmp_path, name):
    """Own leaves that nobody could have saved: rank 0's run is what it was, and every rank's view can be made."""
    tree = {**unmoor.load(saved / "run.pt"), "ranks": OVERLAYS[name]}
    path = _edited_file(saved, tmp_path, {"world_size": 2}, tree)
    assert restored(path)["step"] == 3
    catalog = unmoor.describe(path)
    assert str(catalog)
    assert own_leaves(catalog).keys() <= {1}
    for keys in (("rng", "torch"), ("hist", 1, "a"), ("model",)):
        assert len(every_rank(catalog, keys)) == 2
    for rank in (0, 1, 2):
        seen = of_rank(catalog, rank, 3)
        assert "ranks" not in seen.tree
        assert str(seen)


def test_a_million_ranks_cost_no_more_than_what_they_have_of_their_own(saved, tmp_path):
    """The number of ranks in a manifest is a claim: work goes by what is there."""
    path = _edited_file(saved, tmp_path, {"world_size": 1 << 20, "ranks": {"3": {"absent": [["hist"]]}}})
    catalog = unmoor.describe(path)
    assert own_leaves(catalog) == {3: (("hist",),)}
    assert len(every_rank(catalog, ("hist",))) == 1 << 20


def test_a_list_of_parts_keeps_what_each_rank_has_of_its_own(saved, tmp_path):
    """Parts in their places keep the leaves of every rank there, in lists that were cut too; of a root it is told."""
    own, mean = {"1": {"model": {"1.running_mean": torch.full((3,), 5.0)}, "hist": {"1": {"a": 9}}}}, "1.running_mean"
    tree = {**unmoor.load(saved / "run.pt"), "ranks": own}
    path = _edited_file(saved, tmp_path, {"world_size": 2}, tree)
    for target in ("some.pt", "some"):
        unmoor.convert(path, tmp_path / target, only=["model", "hist.1"])
        found = unmoor.describe(tmp_path / target)
        assert own_leaves(found) == {1: (("model", mean), ("hist", 0, "a"))}
        assert of_rank(found, 1, 2).tree["hist"] == [{"a": 9}]
    receipt = unmoor.convert(path, tmp_path / "one.safetensors", only="model")
    assert [(change.name, change.before) for change in receipt.converted] == [(mean, "other values on rank 1")]


@pytest.mark.parametrize("how", [{"at": 5}, {"at": {"model": 5}}, {"rename": 3}, {"rename": lambda _: None}])
def test_restore_refuses_what_names_nothing(saved, how):
    """A place or a renaming of another type is a UsageError of the argument, before anything is changed."""
    (model, _), (other, _) = run(), run(1)
    with pytest.raises(unmoor.UsageError, match=r"^(at|rename)="):
        unmoor.restore(saved / "run.pt", model=other, **how)
    assert not torch.equal(other[0].weight, model[0].weight)
