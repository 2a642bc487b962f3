"""diff over files: forms, dialects, prefixes, optimizers by number and by name, plain values, ranks, damage."""

from __future__ import annotations

import copy
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import unmoor
from tests.cases.files import save_tagged, tiny, train, trained
from tests.describe.makers import repacked, save
from tests.verify.checkpoints import FORMS, flipped, place_of
from unmoor.errors import NotACheckpoint, UsageError


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_equals_itself_in_every_form(form, tmp_path):
    """No tensor, no value, nothing on one side alone."""
    path = FORMS[form](tmp_path)
    made = unmoor.diff(path, path)
    assert made.equal, str(made)
    assert made.compared == made.identical > 0
    assert str(made).startswith("equal: ")


@pytest.fixture
def runs(tmp_path):
    """A run saved at two steps, as torch.save trees: {step: tree}."""
    model, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    trees = {}
    for step in (1, 2):
        train(model, optimizer, 1, scheduler=scheduler, seed=step)
        tree = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        trees[step] = {**{key: copy.deepcopy(value.state_dict()) for key, value in tree.items()}, "step": step}
        save(trees[step], tmp_path / f"{step}.pt")
    return tmp_path, trees


def test_two_steps_of_a_run_differ_as_torch_says(runs):
    """Every number of every tensor, and every plain value that changed, from the trees themselves."""
    folder, trees = runs
    made = unmoor.diff(folder / "1.pt", folder / "2.pt")
    assert not made.equal
    assert {one.name for one in made.changed} == {
        name for name, x, y in walked(trees[1], trees[2]) if isinstance(x, torch.Tensor) and not torch.equal(x, y)
    }
    assert {value.path for value in made.values} == {
        name for name, x, y in walked(trees[1], trees[2]) if not isinstance(x, torch.Tensor) and x != y
    }
    pairs = {name: (x, y) for name, x, y in walked(trees[1], trees[2])}
    for one in made.changed:
        x, y = (t.double() for t in pairs[one.name])
        assert one.distance.max_abs == pytest.approx(float((x - y).abs().max()), rel=1e-5)
        assert one.distance.differing == int((x != y).sum())
        assert one.distance.first == tuple((x != y).nonzero()[0].tolist())


def walked(a, b, path=""):
    """Name and both values of every leaf of two trees of one structure."""
    if isinstance(a, dict | list | tuple):
        keys = a.keys() if isinstance(a, dict) else range(len(a))
        for key in keys:
            yield from walked(a[key], b[key], f"{path}.{key}" if path else str(key))
    else:
        yield path, a, b


WRAPPED = {
    "module.": lambda m: {f"module.{name}": t for name, t in m.state_dict().items()},
    "_orig_mod.": lambda m: {f"_orig_mod.{name}": t for name, t in m.state_dict().items()},
    "net.": lambda m: {f"net.{name}": t for name, t in m.state_dict().items()},
    "average": lambda m: torch.optim.swa_utils.AveragedModel(m).state_dict(),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("turned", [False, True])
def test_names_under_a_wrapper_are_the_same_names(wrapped, turned, tmp_path):
    """Both ways round; the reading is told, and what a wrapper has more stands on its own side."""
    model = tiny()
    paths = [save(model.state_dict(), tmp_path / "a.pt"), save(WRAPPED[wrapped](model), tmp_path / "b.pt")]
    made = unmoor.diff(*(reversed(paths) if turned else paths))
    assert (made.compared, made.changed) == (4, ())
    assert any("without" in note for note in made.matched), made.matched
    assert [leaf.path for leaf in (*made.only_a, *made.only_b)] == (["n_averaged"] if wrapped == "average" else [])


class Counted(nn.Module):
    """A module with state that is no tensor."""

    def __init__(self, count):
        super().__init__()
        self.inner, self.count = nn.Linear(2, 2), count

    def get_extra_state(self):
        return {"count": self.count}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("deep", [False, True])
def test_extra_state_of_modules_goes_by_their_names(count, deep, tmp_path):
    """Under a wrapper's prefix too, at the root and below it."""
    models = [nn.Sequential(nn.Linear(2, 2), Counted(n)) if deep else Counted(n) for n in (1, count)]
    models[1].load_state_dict(models[0].state_dict(), strict=False)
    a = save(models[0].state_dict(), tmp_path / "a.pt")
    b = save({f"module.{name}": t for name, t in models[1].state_dict().items()}, tmp_path / "b.pt")
    want = [] if count == 1 else [("changed", "1", "2")]
    for made, values in ((unmoor.diff(a, b), want), (unmoor.diff(b, a), [(k, y, x) for k, x, y in want])):
        assert [(value.kind, value.a, value.b) for value in made.values] == values, str(made)


def test_weights_tied_in_a_file_are_the_one_that_safetensors_keeps(tmp_path):
    """Both ways round, and told; in other formats a name that is missing is missing."""
    weight = torch.randn(3, 2)
    a = save({"emb.weight": weight, "head.weight": weight, "head.bias": torch.zeros(3)}, tmp_path / "a.pt")
    save_file({"emb.weight": weight, "head.bias": torch.zeros(3)}, tmp_path / "b.safetensors")
    for made in (unmoor.diff(a, tmp_path / "b.safetensors"), unmoor.diff(tmp_path / "b.safetensors", a)):
        assert made.equal, str(made)
        assert "safetensors keeps tied weights once: head.weight is emb.weight" in made.matched[0]
    unmoor.convert(tmp_path / "b.safetensors", tmp_path / "c.pt")
    assert [leaf.path for leaf in unmoor.diff(a, tmp_path / "c.pt").only_a] == ["head.weight"]


def _sparse(size):
    return torch.sparse_coo_tensor([[0], [0]], [1.0], size, check_invariants=True)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_the_shape_of_a_sparse_tensor_is_a_part_of_it(prefix, tmp_path):
    """Equal indices and values of two sizes are two tensors."""
    dense = {"w": torch.ones(2), "v": torch.ones(3)}
    a = save({**dense, "s": _sparse((3, 3))}, tmp_path / "a.pt")
    paths = [
        save({f"{prefix}{name}": t for name, t in {**dense, "s": _sparse(size)}.items()}, tmp_path / f"{size[0]}.pt")
        for size in ((3, 3), (4, 4))
    ]
    assert unmoor.diff(a, paths[0]).equal
    (value,) = unmoor.diff(a, paths[1]).values
    assert (value.path, value.a, value.b) == ("s.layout", "'sparse_coo of 3x3'", "'sparse_coo of 4x4'")


def test_one_change_under_a_wrapper_is_found(tmp_path):
    """The index is that of the tensor, whatever its name."""
    model = tiny()
    save({"model": model.state_dict()}, tmp_path / "a.pt")
    with torch.no_grad():
        model[0].weight[2, 1] += 0.5
    save_file({f"module.{name}": t for name, t in model.state_dict().items()}, tmp_path / "b.safetensors")
    made = unmoor.diff(tmp_path / "a.pt", tmp_path / "b.safetensors")
    (one,) = made.changed
    assert (one.a.path, one.b.path, one.distance.first) == ("model.0.weight", "module.0.weight", (2, 1))
    assert one.distance.max_abs == pytest.approx(0.5, rel=1e-6)


def lightning(model, optimizer):
    return {
        "state_dict": model.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "epoch": 1,
        "global_step": 3,
        "pytorch-lightning_version": "2.5.0",
    }


def test_a_lightning_file_against_a_plain_one(tmp_path):
    """The same run: all tensors equal, the writer's own values on their own sides."""
    model, optimizer = trained()
    save(lightning(model, optimizer), tmp_path / "a.ckpt")
    save({"net": model.state_dict(), "opt": optimizer.state_dict()}, tmp_path / "b.pt")
    made = unmoor.diff(tmp_path / "a.ckpt", tmp_path / "b.pt")
    assert (made.compared, made.identical) == (4 + 4 * 3, 16)
    assert {value.kind for value in made.values} == {"only-a"}
    assert [*made.only_a, *made.only_b] == []


@pytest.mark.parametrize("target", ["folder", "other.pt"])
def test_a_converted_checkpoint_is_equal(target, tmp_path):
    """What convert wrote, against its source: a folder of torch.distributed.checkpoint among it."""
    source = FORMS["torch_zip"](tmp_path)
    unmoor.convert(source, tmp_path / target)
    made = unmoor.diff(source, tmp_path / target)
    assert made.equal, str(made)


def named_state(model, optimizer):
    """An optimizer's state dict by parameter name, as torch.distributed.checkpoint has it."""
    own, names = optimizer.state_dict(), [name for name, _ in model.named_parameters()]
    groups = [{**group, "params": [names[i] for i in group["params"]]} for group in own["param_groups"]]
    return {"state": {names[i]: entry for i, entry in own["state"].items()}, "param_groups": groups}


@pytest.mark.parametrize("turned", [False, True])
def test_state_by_number_meets_state_by_name_through_the_model(turned, tmp_path):
    """The order of the file's own model proves which number is which name."""
    model, optimizer = trained()
    trees = [
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        {"model": model.state_dict(), "optimizer": named_state(model, optimizer)},
    ]
    paths = [save(tree, tmp_path / f"{i}.pt") for i, tree in enumerate(reversed(trees) if turned else trees)]
    made = unmoor.diff(*paths)
    assert made.equal, str(made)
    assert "by the order of the model" in made.matched[0]


def test_names_that_go_in_another_order_are_still_paired_by_name(tmp_path):
    """An optimizer whose groups list parameters in another order than the other's: names decide."""
    model, optimizer = trained()
    save({"optimizer": named_state(model, optimizer)}, tmp_path / "a.pt")
    turned = named_state(model, optimizer)
    turned["param_groups"][0]["params"].reverse()
    save({"optimizer": turned}, tmp_path / "b.pt")
    assert unmoor.diff(tmp_path / "a.pt", tmp_path / "b.pt").equal


def test_numbers_that_nothing_names_and_whose_shapes_disagree_stand_alone(tmp_path):
    """A number without a model, against names of other shapes: nothing is guessed."""
    _, optimizer = trained()
    other = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    others = torch.optim.Adam(other.parameters())
    train(other, others, 1)
    save({"optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    save({"optimizer": named_state(other, others)}, tmp_path / "b.pt")
    made = unmoor.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert not made.compared
    assert (len(made.only_a), len(made.only_b)) == (12, 12)
    assert "not matched" in made.matched[0]


def test_hyper_parameters_are_told_by_their_place(tmp_path):
    """Options of a group, group by group; groups that one side lacks."""
    _, optimizer = trained()
    save({"optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    optimizer.param_groups[0].update(lr=0.5, betas=(0.8, 0.999))
    save({"optimizer": optimizer.state_dict()}, tmp_path / "b.pt")
    made = unmoor.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert {(v.path, v.a, v.b) for v in made.values} == {
        ("optimizer.param_groups.0.lr", "0.001", "0.5"),
        ("optimizer.param_groups.0.betas.0", "0.9", "0.8"),
    }
    assert "lr" in str(made).splitlines()[0]


VALUES = [
    (1, 1.0, True),
    (True, 1, False),
    (float("nan"), float("nan"), True),
    ((1, 2), [1, 2], True),
    ("a", b"a", False),
    (np.float64(0.5), 0.5, True),
    (np.arange(3), np.arange(3), True),
    (np.arange(3), torch.arange(3), True),
    (np.asfortranarray(np.arange(6.0).reshape(2, 3)), torch.arange(6.0).reshape(2, 3).double(), True),
    (torch.tensor(3.0), 3.0, False),
    (np.arange(3), np.array([0, 1, 5]), False),
    ({}, [], False),
    (None, 0, False),
    ({3}, {3}, True),
    (torch.float32, torch.float16, False),
]


@pytest.mark.parametrize(("a", "b", "same"), VALUES)
def test_plain_values_are_the_same_where_they_say_the_same(a, b, same, tmp_path):
    """Containers and numbers by what they say, kinds that mean another thing apart."""
    paths = [save({"extra": value, "w": torch.ones(2)}, tmp_path / f"{i}.pt") for i, value in enumerate((a, b))]
    assert unmoor.diff(*paths).equal is same


LOOK_ALIKE = {
    "kinds": ({3}, frozenset({3}), "a set {3}", "a frozenset {3}"),
    "long text": ("x" * 100 + "a", "x" * 100 + "b", "'xxxxxxxxxxxxa' at 88", "'xxxxxxxxxxxxb' at 88"),
    "long bytes": (b"x" * 100, b"x" * 99 + b"y", "b'xxxxxxxxxxxxx' at 87", "b'xxxxxxxxxxxxy' at 87"),
    "large integers": (2**200, 2**200 + 1, "an int of 201 bits", "an int of 201 bits, another"),
}


@pytest.mark.parametrize("case", LOOK_ALIKE)
def test_values_that_differ_are_told_in_words_that_differ(case, tmp_path):
    """Where they are cut alike, the place where they part; where they look alike, their kinds."""
    *values, a, b = LOOK_ALIKE[case]
    paths = [save({"extra": value, "w": torch.ones(2)}, tmp_path / f"{i}.pt") for i, value in enumerate(values)]
    (value,) = unmoor.diff(*paths).values
    assert (value.a, value.b) == (a, b)


def test_a_number_and_a_tensor_of_it_are_one_value_of_two_dtypes(tmp_path):
    """Adam's step was a number once: the values are equal, the kinds are told."""
    save({"step": torch.tensor(3.0)}, tmp_path / "a.pt")
    save({"step": 3}, tmp_path / "b.pt")
    (one,) = unmoor.diff(tmp_path / "a.pt", tmp_path / "b.pt").changed
    assert (one.a.dtype, one.b.dtype, one.distance.differing) == ("float32", "int64", 0)


def test_device_tags_alone_are_no_difference(tmp_path):
    """They are told, with how many tensors and bytes."""
    tree = {"model": tiny().state_dict()}
    save_tagged(tree, tmp_path / "a.pt", "cuda:7")
    save(tree, tmp_path / "b.pt")
    made = unmoor.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert made.equal
    assert [(row.a, row.b, row.tensors) for row in made.retagged] == [("cuda:7", "cpu", 4)]
    assert "cuda:7 -> cpu: 4 tensors" in str(made)


def test_shapes_and_dtypes_that_changed_are_told_apart_from_values(tmp_path):
    """Another shape is not measured; another dtype is, by value."""
    save({"a": torch.ones(2, 3), "b": torch.ones(4), "c": torch.arange(3.0)}, tmp_path / "a.pt")
    changed = {"a": torch.ones(3, 2), "b": torch.ones(4).bfloat16(), "c": torch.arange(3.0).half() + 1}
    save(changed, tmp_path / "b.pt")
    found = {one.name.rpartition(".")[2]: one for one in unmoor.diff(tmp_path / "a.pt", tmp_path / "b.pt").changed}
    assert (found["a"].reshaped, found["a"].distance) == (True, None)
    assert (found["b"].cast, found["b"].distance.differing) == (True, 0)
    assert (found["c"].cast, found["c"].distance.max_abs) == (True, 1.0)


def test_within_a_tolerance_a_narrower_copy_is_equal(tmp_path):
    """bfloat16 of the same weights: different without a tolerance, equal with one, not equal with one too small."""
    state = tiny().state_dict()
    save({"model": state}, tmp_path / "a.pt")
    save_file({name: t.bfloat16() for name, t in state.items()}, tmp_path / "b.safetensors")
    paths = tmp_path / "a.pt", tmp_path / "b.safetensors"
    assert not unmoor.diff(*paths).equal
    assert unmoor.diff(*paths, rtol=0.01).equal
    assert not unmoor.diff(*paths, rtol=1e-6).equal
    assert str(unmoor.diff(*paths, rtol=0.01)).startswith("equal within rtol 0.01")


def test_structure_alone_reads_no_data(runs):
    """Values differ, tensors are not looked at."""
    folder, _ = runs
    made = unmoor.diff(folder / "1.pt", folder / "2.pt", structure=True)
    assert (made.nbytes, made.changed, made.structure_only) == (0, (), True)
    assert made.values
    assert "no tensor data was read" in str(made)


ONLY = [
    ("model", {"model"}),
    ("optimizer", {"optimizer"}),
    (["model", "scheduler"], {"model", "scheduler"}),
    ("step", {"step"}),
    ("model.0", {"model"}),
]


@pytest.mark.parametrize(("only", "roots"), ONLY)
def test_only_leaves_the_rest_alone(only, roots, runs):
    """A role word or a key path; nothing else is compared or listed."""
    folder, _ = runs
    made = unmoor.diff(folder / "1.pt", folder / "2.pt", only=only)
    places = {one.name for one in made.changed} | {value.path for value in made.values}
    assert {place.partition(".")[0] for place in places} == roots
    assert [*made.only_a, *made.only_b] == []


def test_one_part_against_another_that_bears_another_name(tmp_path):
    """`model=ema`: the model of the one, the average of the other."""
    model, other = tiny(), tiny(1)
    save({"model": model.state_dict(), "ema": other.state_dict()}, tmp_path / "a.pt")
    save({"model": other.state_dict(), "ema": model.state_dict()}, tmp_path / "b.pt")
    made = unmoor.diff(tmp_path / "a.pt", tmp_path / "b.pt", only="model=ema")
    assert (made.compared, made.equal) == (4, True)
    assert not unmoor.diff(tmp_path / "a.pt", tmp_path / "b.pt", only="model").equal


@pytest.mark.parametrize("only", ["nonsense", "model=nonsense", ["model", "ema"], [5], "=", "model=", "=model"])
def test_an_only_that_chooses_nothing_is_an_error_that_lists_what_there_is(only, runs):
    """Said before anything is read."""
    folder, _ = runs
    with pytest.raises(UsageError, match="only="):
        unmoor.diff(folder / "1.pt", folder / "2.pt", only=only)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "x", True])
def test_a_tolerance_that_is_none_is_an_error(bad, runs):
    """Named with its value."""
    folder, _ = runs
    with pytest.raises(UsageError, match="no tolerance"):
        unmoor.diff(folder / "1.pt", folder / "2.pt", atol=bad)


def test_damage_is_told_from_difference(tmp_path):
    """A flipped bit is a difference that does not match its own checksum: which side, which tensor."""
    path = FORMS["torch_zip"](tmp_path)
    bad = flipped(path, place_of(path, "data/0"), tmp_path / "bad.pt")
    made = unmoor.diff(path, bad)
    assert made.damaged == ("b: model.0.weight",)
    assert not made.equal
    assert "b is DAMAGED" in str(made).splitlines()[0]


def test_views_transposed_tensors_and_packed_records(tmp_path):
    """What torch.save keeps as a view of a large storage, a transposed tensor, deflated records: by value."""
    base = torch.arange(400.0).view(20, 20)
    save({"view": base[3:9, 2:15:3], "turned": base.t(), "row": base[5]}, tmp_path / "a.pt")
    save(
        {"view": base[3:9, 2:15:3].clone(), "turned": base.t().contiguous(), "row": base[5].clone()}, tmp_path / "b.pt"
    )
    packed = repacked(tmp_path / "a.pt", tmp_path / "packed.pt", lambda _, d: d, compression=zipfile.ZIP_DEFLATED)
    for one in (tmp_path / "a.pt", packed):
        made = unmoor.diff(one, tmp_path / "b.pt")
        assert made.equal, str(made)
        assert made.identical == 3


def test_quantized_tensors_are_compared_by_bits_and_numbers(tmp_path):
    """Elements by bits, scale and zero point as values."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a, b = (torch.quantize_per_tensor(torch.arange(4.0), scale, 3, torch.quint8) for scale in (0.5, 0.25))
        save({"w": a}, tmp_path / "a.pt")
        save({"w": b}, tmp_path / "b.pt")
        made = unmoor.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert unmoor.diff(tmp_path / "a.pt", tmp_path / "a.pt").equal
    (one,) = made.changed
    assert (one.distance.differing, one.distance.max_abs) == (3, None)
    assert "0.5" in str(made)


def test_sparse_tensors_are_compared_part_by_part(tmp_path):
    """Indices and values are tensors of their own."""
    a = torch.eye(3).to_sparse()
    save({"w": a}, tmp_path / "a.pt")
    save({"w": a * 2}, tmp_path / "b.pt")
    made = unmoor.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert [one.name for one in made.changed] == ["w.values"]


def test_what_single_ranks_have_is_compared_rank_by_rank(tmp_path):
    """State under `ranks` meets that of the same rank."""

    def tree(value):
        return {"model": tiny().state_dict(), "ranks": {"1": {"seen": torch.tensor([value])}}}

    paths = [save(tree(value), tmp_path / f"{value}.pt") for value in (1, 2)]
    (one,) = unmoor.diff(*paths).changed
    assert (one.name, one.distance.values) == ("ranks.1.seen", (1, 2))


def test_tensors_without_data_are_told(tmp_path):
    """A meta tensor has nothing to compare but its shape."""
    save({"w": torch.ones(3, device="meta")}, tmp_path / "a.pt")
    made = unmoor.diff(tmp_path / "a.pt", tmp_path / "a.pt")
    assert "without data" in str(made)


def test_a_path_that_is_no_checkpoint_raises(tmp_path):
    """As describe does."""
    path = save({"w": torch.ones(1)}, tmp_path / "a.pt")
    with pytest.raises(NotACheckpoint):
        unmoor.diff(path, tmp_path / "missing.pt")


def test_the_document_is_plain(runs):
    """to_json holds nothing but JSON's own types."""
    folder, _ = runs
    row = json.loads(json.dumps(unmoor.diff(folder / "1.pt", folder / "2.pt").to_json(), allow_nan=False))
    assert row["equal"] is False
    assert {one["name"] for one in row["changed"]} >= {"model.0.weight"}


def test_progress_adds_up_to_what_was_read(runs):
    """The bytes told are those of both sides."""
    folder, _ = runs
    told = []
    made = unmoor.diff(folder / "1.pt", folder / "1.pt", progress=told.append)
    assert sum(told) == made.nbytes > 0


def test_torch_has_as_many_threads_after_a_diff_as_before(tmp_path):
    """They are lent while blocks are measured; several diffs at once give back what the first found."""
    x, y = torch.randn(2, 1 << 18).double()
    a, b = (save({"w": t}, tmp_path / f"{i}.pt") for i, t in enumerate((x.clone(), y.clone())))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with ThreadPoolExecutor(3) as pool:
            made = list(pool.map(lambda _: unmoor.diff(a, b), range(6)))
        assert {one.changed[0].distance.max_abs for one in made} == {float((x - y).abs().max())}
        assert torch.get_num_threads() == 3
        assert _in_a_new_thread(torch.get_num_threads) == 3
    finally:
        torch.set_num_threads(before)


def _in_a_new_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def _pickled_and_plain(folder, *, changed=False):
    """One run, its objects pickled whole and as their state dicts; `changed` in one weight and one option."""
    model, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    torch.save({"net": model, "optim": optimizer, "sched": scheduler, "epoch": 3}, folder / "pickled.pt")
    torch.save(model, folder / "module.pt")
    torch.save(scheduler, folder / "scheduler.pt")
    plain = {"net": model.state_dict(), "optim": optimizer.state_dict(), "sched": scheduler.state_dict(), "epoch": 3}
    plain = copy.deepcopy(plain)
    if changed:
        next(iter(plain["net"].values())).flatten()[0] += 1
        plain["optim"]["param_groups"][0]["eps"] = 0.5
        plain["optim"]["state"][0]["exp_avg"].zero_()
    save(plain, folder / "plain.pt")
    save_file(plain["net"], folder / "net.safetensors")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("one", "other"), [("pickled.pt", "plain.pt"), ("module.pt", "net.safetensors")])
def test_pickled_objects_meet_the_state_dicts_that_they_would_give(one, other, turned, tmp_path):
    """Modules, optimizers and schedulers; equal where they say the same, and how they were compared is told."""
    _pickled_and_plain(tmp_path)
    paths = [tmp_path / one, tmp_path / other]
    made = unmoor.diff(*(reversed(paths) if turned else paths))
    assert made.equal, str(made)
    assert f"pickled objects of {'b' if turned else 'a'} by the state dicts that they would give" in made.matched[0]


def test_what_differs_between_pickled_objects_and_state_dicts_is_found(tmp_path):
    """A weight, an option of a group and a moment, each under its name."""
    _pickled_and_plain(tmp_path, changed=True)
    made = unmoor.diff(tmp_path / "pickled.pt", tmp_path / "plain.pt")
    first = next(iter(tiny().state_dict()))
    assert {one.name for one in made.changed} == {f"net.{first}", "optim.state.0.exp_avg"}
    assert [value.path for value in made.values] == ["optim.param_groups.0.eps"]


def test_a_pickled_scheduler_that_holds_the_only_optimizer_is_compared_as_it_is(tmp_path):
    """Its state dict would lack the optimizer's tensors: none is lost from the answer."""
    _pickled_and_plain(tmp_path)
    made = unmoor.diff(tmp_path / "scheduler.pt", tmp_path / "plain.pt")
    assert any("exp_avg" in leaf.path for leaf in made.only_a)


AVERAGES = [("state_dict", "state_dict_ema"), ("model", "model_ema"), ("net", "ema"), ("model", "ema_model")]


@pytest.mark.parametrize("keys", AVERAGES)
@pytest.mark.parametrize("turned", [False, True])
def test_a_model_and_its_average_meet_those_of_another_dialect(keys, turned, tmp_path):
    """Both fit either, names and shapes being one: the word for the average tells them apart."""
    model, average = tiny(0).state_dict(), tiny(1).state_dict()
    source = save(dict(zip(keys, (model, average), strict=True)), tmp_path / "a.pt")
    unmoor.convert(source, tmp_path / "b.pt", layout="plain")
    paths = [source, tmp_path / "b.pt"]
    made = unmoor.diff(*(reversed(paths) if turned else paths))
    assert made.equal, str(made)
    assert made.compared == 2 * len(model)


def test_an_object_within_a_pickled_object_is_compared_as_it_is(tmp_path):
    """Nothing says otherwise: no note of state dicts, and its tensors stand on their own side."""
    model = tiny()
    model.held = {"inner": nn.Sequential(model)}
    torch.save({"all": nn.ModuleDict({"net": model})}, tmp_path / "a.pt")
    save({"all": tiny().state_dict()}, tmp_path / "b.pt")
    made = unmoor.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert made.compared == 4
    assert [note for note in made.matched if "pickled objects" in note] == [
        "all: pickled objects of a by the state dicts that they would give"
    ]
