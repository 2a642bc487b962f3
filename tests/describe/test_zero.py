"""DeepSpeed's ZeRO folders: whole fp32 weights and moments by name, whatever stage and world."""

from __future__ import annotations

import sys
import types
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import unmoor
from tests.cases.files import tiny, train
from tests.describe.zero_maker import MOMENTS, Shape, ZeroMaker, fragment_address
from unmoor.errors import CorruptFile, FileError, HostileFile, NotACheckpoint, UnsupportedFile

SHAPES = {f"stage {stage}, world {world}": Shape(stage, world) for stage in (1, 2, 3) for world in (1, 2, 3, 5)} | {
    "two groups": Shape(2, 2, groups=(1, 3)),
    "two units of stage 3": Shape(3, 3, groups=(3, 1)),
    "maps of the slices": Shape(1, 3, maps=True),
    "elastic": Shape(2, 2, elastic=True),
    "weights with their padding": Shape(2, 4, lean=False),
    "fp16": Shape(2, 2, dtype=torch.float16),
    "fp32": Shape(2, 2, dtype=torch.float32),
    "more ranks than elements need": Shape(2, 40),
}


@pytest.fixture(autouse=True)
def address_can_be_pickled(monkeypatch):
    """The class of the maps, under the name that DeepSpeed's has; nothing here imports it."""
    module = types.ModuleType("deepspeed.utils.tensor_fragment")
    module.fragment_address = fragment_address
    for name in ("deepspeed", "deepspeed.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def trained(groups=(4,)):
    model = tiny(3)
    parameters = list(model.parameters())
    cut = groups[0]
    parts = [{"params": parameters[:cut]}, *([{"params": parameters[cut:], "lr": 0.002}] if cut < 4 else [])]
    optimizer = torch.optim.AdamW(parts, lr=0.001)
    train(model, optimizer)
    return model, optimizer


@pytest.fixture
def made(tmp_path):
    def make(shape, change=lambda maker: None):
        model, optimizer = trained(shape.groups)
        maker = ZeroMaker(model, optimizer, shape)
        change(maker)
        return maker.write(tmp_path / "run"), model, optimizer

    return make


@pytest.mark.parametrize("name", SHAPES)
def test_every_layout_gives_whole_weights_and_moments(made, name):
    """C94: exact fp32 weights, moments and steps for every parameter, padding dropped, from every stage and world."""
    folder, model, optimizer = made(SHAPES[name])
    tree = unmoor.load(folder)
    for key, parameter in model.named_parameters():
        assert torch.equal(tree["model"][key], parameter), key
        entry = tree["optimizer"]["state"][key]
        assert {k: v for k, v in entry.items() if k not in MOMENTS} == {"step": torch.tensor(3.0)}
        assert all(torch.equal(entry[k], optimizer.state[parameter][k]) for k in MOMENTS), key
    assert [group["params"] for group in tree["optimizer"]["param_groups"]] == [
        list(unit) for unit in ZeroMaker(model, optimizer, SHAPES[name]).models[0]["param_shapes"]
    ]


@pytest.mark.parametrize("name", [name for name in SHAPES if "elastic" not in name])
def test_a_run_goes_on_from_every_layout(made, name):
    """C94: fp32 weights and AdamW's state into plain PyTorch; three steps later all is equal, bit for bit."""
    folder, model, optimizer = made(SHAPES[name])
    live, fresh = tiny(8), None
    cut = SHAPES[name].groups[0]
    parameters = list(live.parameters())
    parts = [{"params": parameters[:cut]}, *([{"params": parameters[cut:]}] if cut < 4 else [])]
    fresh = torch.optim.AdamW(parts, lr=0.5)
    report = unmoor.restore(folder, model=live, optimizer=fresh, rng=False)
    assert [group["lr"] for group in fresh.param_groups] == [group["lr"] for group in optimizer.param_groups]
    assert report.extra["global_steps"] == 3
    train(model, optimizer, seed=2)
    train(live, fresh, seed=2)
    for one, other in zip(model.parameters(), live.parameters(), strict=True):
        assert torch.equal(one, other)
        assert all(torch.equal(optimizer.state[one][k], fresh.state[other][k]) for k in (*MOMENTS, "step"))


def test_the_16_bit_copy_is_used_on_request_alone(made):
    """C94: the fp32 master is the model; a bf16 model takes the copy that training computed with where `at` says so."""
    folder, model, _ = made(SHAPES["stage 2, world 2"])
    assert [part.path for part in unmoor.describe(folder).part("model")] == ["model", "module_16bit"]
    half = tiny(8).bfloat16()
    with pytest.raises(unmoor.errors.MismatchError, match="saved float32, live bfloat16: values would be rounded"):
        unmoor.restore(folder, model=half, rng=False)
    unmoor.restore(folder, model=half, rng=False, at={"model": "module_16bit"})
    assert all(torch.equal(a.bfloat16(), b) for a, b in zip(model.parameters(), half.parameters(), strict=True))


def test_no_copy_is_told_where_there_is_none(made):
    """Stage 3 leaves empty tensors in the place of weights: they are no second model."""
    folder, *_ = made(SHAPES["stage 3, world 2"])
    assert [part.path for part in unmoor.describe(folder).part("model")] == ["model"]


class Tied(nn.Module):
    """Tied weights, a frozen one, a buffer that training changes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.frozen = nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight
        self.frozen.requires_grad_(requires_grad=False)
        self.register_buffer("seen", torch.arange(4.0))


@pytest.mark.parametrize("stage", [2, 3])
def test_frozen_tied_and_buffers(made, stage, tmp_path):
    """Frozen weights come from their own place, tied ones from their owner's, buffers from the module."""
    model = Tied()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    model.two(model.one(torch.ones(2, 3))).sum().backward()
    optimizer.step()
    trained_only = nn.Module()
    trained_only.one = model.one
    maker = ZeroMaker(trained_only, optimizer, Shape(stage, 2, groups=(2,)))
    frozen = model.frozen.weight.detach()
    for rank, tree in enumerate(maker.models):
        stub = torch.empty(0, dtype=torch.bfloat16)
        tree["module"] |= {"two.weight": stub, "frozen.weight": stub, "seen": model.seen}
        tree["shared_params"] = {"two.weight": "one.weight"}
        tree["frozen_param_shapes"] = {"frozen.weight": frozen.shape}
        share = torch.cat([frozen.flatten(), torch.zeros(1)])[rank * 5 : rank * 5 + 5].clone()
        tree["frozen_param_fragments"] = {"frozen.weight": share if stage == 3 else frozen}
    live = Tied()
    with torch.no_grad():
        for tensor in live.state_dict().values():
            tensor.zero_()
    unmoor.restore(maker.write(tmp_path / "tied"), model=live, rng=False)
    assert all(torch.equal(value, live.state_dict()[name]) for name, value in model.state_dict().items())


def steps_in_the_group(maker):
    for tree in maker.optimizers:
        base = tree["optimizer_state_dict"]["base_optimizer_state"]
        for group, entry in zip(base["param_groups"], base["state"].values(), strict=True):
            group["step"] = int(entry.pop("step"))


def test_steps_that_the_group_counts(made):
    """DeepSpeed's fused Adam counts steps in the group: they are the steps of its parameters."""
    folder, _, _ = made(SHAPES["two groups"], steps_in_the_group)
    state = unmoor.load(folder)["optimizer"]["state"]
    assert [entry["step"] for entry in state.values()] == [3, 3, 3, 3]


def shorter(maker):
    inner = maker.optimizers[1]["optimizer_state_dict"]
    inner["single_partition_of_fp32_groups"] = [part[:-3] for part in inner["single_partition_of_fp32_groups"]]


def fewer_groups(maker):
    maker.models[0]["param_shapes"] *= 2


def no_layout(maker):
    maker.models[0]["param_shapes"] = None


def other_stage(maker):
    for tree in maker.optimizers:
        tree["optimizer_state_dict"]["zero_stage"] = 9


FAULTS = {
    shorter: (CorruptFile, "model.2.bias: 2 elements, 0 of them are there"),
    fewer_groups: (CorruptFile, "2 groups of parameters, and flat weights of 1"),
    no_layout: (CorruptFile, "do not say how parameters are flattened"),
    other_stage: (UnsupportedFile, "ZeRO stage that is not known: 9"),
}


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_what_does_not_add_up_is_refused(made, spoil):
    """Partitions that are too short, groups that do not match: an error that names what is missing."""
    folder, *_ = made(SHAPES["stage 2, world 2"], spoil)
    error, words = FAULTS[spoil]
    with pytest.raises(error) as caught:
        unmoor.describe(folder)
    assert words in str(caught.value)


def test_a_missing_rank_is_named(made):
    """Every rank's file is needed: the error counts them and says which is not there."""
    folder, *_ = made(SHAPES["stage 2, world 3"])
    (folder / "global_step3" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CorruptFile, match=r"optimizer states of 2 ranks, of 3 that saved them: rank 1 is missing"):
        unmoor.describe(folder)


def test_any_number_of_ranks_can_be_claimed(made):
    """A file that speaks of 2**70 ranks costs an error, not memory."""

    def claim(maker):
        for tree in maker.optimizers:
            tree["optimizer_state_dict"]["partition_count"] = 1 << 70

    folder, *_ = made(SHAPES["stage 2, world 2"], claim)
    with pytest.raises(CorruptFile, match=r"rank 2, 3, 4, 5, 6, 7, 8, 9 and 1 more is missing"):
        unmoor.describe(folder)


def test_a_flipped_byte_names_tensor_and_file(made):
    """A partition has one checksum: every tensor on it is named where it does not hold."""
    folder, model, _ = made(SHAPES["stage 2, world 2"])
    file = folder / "global_step3" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    data = bytearray(file.read_bytes())
    data[data.index(model[2].weight.detach().numpy().tobytes())] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptFile, match=r"rank_1_mp_rank_00_optim_states\.pt: the data of .*model\.2\.weight"):
        unmoor.load(folder)


@pytest.mark.parametrize(
    ("latest", "error", "words"),
    [
        ("../secret", HostileFile, "no folder beside it"),
        ("", HostileFile, "no folder beside it"),
        ("global_step9", CorruptFile, "there is no such folder"),
    ],
)
def test_latest_names_a_folder_beside_it(made, latest, error, words):
    """The name in `latest` cannot lead out of the folder, and one that is gone is an error with both sides."""
    folder, *_ = made(SHAPES["stage 1, world 1"])
    (folder / "latest").write_text(latest)
    with pytest.raises(error, match=words):
        unmoor.describe(folder)


def test_the_folder_of_a_step_is_read_too(made):
    """`latest` is a convenience: the step's own folder can be given, and several without it must be told apart."""
    folder, model, _ = made(SHAPES["stage 1, world 2"])
    inner = folder / "global_step3"
    assert torch.equal(unmoor.load(inner)["model"]["0.weight"], model[0].weight)
    (folder / "latest").unlink()
    other = folder / "global_step4"
    other.mkdir()
    for file in inner.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    with pytest.raises(NotACheckpoint, match="global_step4"):
        unmoor.describe(folder)


@pytest.mark.parametrize("name", ["mp_rank_01_model_states.pt", "layer_03-model_00-model_states.pt"])
def test_models_that_other_parallelism_cut_are_refused(made, name):
    """Tensor and pipeline parallelism cut along dimensions that the files do not tell: refused by name."""
    folder, *_ = made(SHAPES["stage 1, world 1"])
    (folder / "global_step3" / name).write_bytes(b"")
    with pytest.raises(UnsupportedFile, match=name):
        unmoor.describe(folder)


JUNK = [None, -1, 3, "word", [], {}, (), torch.ones(2), torch.ones(2, 2), torch.tensor(1.0), 1 << 70]


def places(tree, path=()):
    pairs = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    for key, value in pairs:
        yield (*path, key)
        yield from places(value, (*path, key))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(["stage 2, world 2", "stage 3, world 2", "maps of the slices", "elastic"]), data=st.data())
def test_altered_trees_give_a_catalog_or_a_file_error(name, data, tmp_path_factory):
    """Anything in the place of anything: a catalog or an error of the file, and no other exception."""
    model, optimizer = trained()
    maker = ZeroMaker(model, optimizer, SHAPES[name])
    tree = data.draw(st.sampled_from([*maker.models, *maker.optimizers]))
    path = data.draw(st.sampled_from(list(places(tree))))
    holder = tree
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = data.draw(st.sampled_from(JUNK))
    with suppress(FileError):
        unmoor.describe(maker.write(tmp_path_factory.mktemp("altered") / "run"))
