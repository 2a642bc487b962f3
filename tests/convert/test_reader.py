"""CheckpointReader in one process: what it offers to dcp.load under which names, and what it refuses."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

import unmoor
from tests.cases.files import tiny, train
from tests.describe.zero_maker import Shape, ZeroMaker

from .trees import difference, run, tree

pytestmark = pytest.mark.filterwarnings("ignore:.*(TypedStorage|torch.distributed is|[Ss]parse|nested tensors)")


def refusal(state, reader):
    """The text of the error with which dcp.load ends."""
    with pytest.raises(dcp.api.CheckpointException) as caught:
        dcp.load(state, storage_reader=reader)
    return str(caught.value)


@pytest.mark.parametrize("source", ["a.pt", "folder", "torch"])
def test_offers_the_keys_that_torch_makes(tmp_path, source):
    """Flat keys and key paths are those of torch's own flatten_state_dict, for a file and for folders."""
    saved = tree(strange=False)
    saved["8"] = saved.pop(7)
    torch.save(saved, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    dcp.save(saved, checkpoint_id=tmp_path / "torch")
    metadata = unmoor.CheckpointReader(tmp_path / source).read_metadata()
    _, paths = flatten_state_dict(saved)
    assert set(metadata.state_dict_metadata) == set(paths)
    assert metadata.planner_data == paths


def test_fills_every_kind_of_value(tmp_path):
    """Tensors in place, other values as they were saved: sparse, quantized, tuples, containers, None."""
    saved = tree(strange=True)
    saved["8"] = saved.pop(7)
    del saved["empty"]
    torch.save(saved, tmp_path / "a.pt")
    weight = torch.zeros(32, 64)
    state = {**tree(strange=True), "8": None, "model": {"0.weight": weight}}
    for name in ("empty", 7, "values", "parameter", "expanded", "optimizer"):
        del state[name]
    dcp.load(state, storage_reader=unmoor.CheckpointReader(tmp_path / "a.pt"))
    assert torch.equal(weight, saved["model"]["0.weight"])
    assert state["8"] == "a key that is no text"
    for name in ("sparse", "csr", "quantized", "channels", "nested", "tuple", "ordered", "scalar", "size"):
        assert difference(saved[name], state[name], name) == ""


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, {"model.0.weight", "optimizer.state.0.weight.exp_avg", "optimizer.param_groups.0.lr", "step"}),
        ({"optimizer": "saved"}, {"optimizer.state.0.exp_avg", "optimizer.param_names"}),
        ({"optimizer": "flattened"}, {"optimizer.state.0.weight.exp_avg", "optimizer.param_groups.0.weight.lr"}),
        ({"only": "model"}, {"0.weight"}),
        ({"only": "optimizer"}, {"state.0.weight.exp_avg", "param_groups.0.lr"}),
        ({"only": ["model", "step"]}, {"model.0.weight", "step"}),
        ({"rename": {"model.": "net."}}, {"net.0.weight", "step"}),
        ({"rename": {"*.weight": "*.kernel"}}, {"model.0.kernel"}),
        ({"rename": lambda name: "all." + name}, {"all.model.0.weight", "all.step"}),
    ],
)
def test_names_are_what_was_asked_for(tmp_path, options, keys):
    """only, rename and optimizer decide which names a load may ask for."""
    model, optimizer = run()
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer, step=1)
    offered = unmoor.CheckpointReader(tmp_path / "a.pt", **options).read_metadata()
    assert keys <= set(offered.state_dict_metadata)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("names", ["beside", "in groups", "folder"])
def test_fills_torchs_own_optimizer_state_dict(tmp_path, flat, names):
    """State by position and the names that the file holds become what get_optimizer_state_dict asks for."""
    model, optimizer = run()
    if names == "in groups":
        optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.01)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        torch.save({"optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    else:
        unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
    source = tmp_path / "a.pt"
    if names == "folder":
        source = tmp_path / "folder"
        unmoor.convert(tmp_path / "a.pt", source)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    expected = get_optimizer_state_dict(model, optimizer, options=options)
    other, its = run()
    if names == "in groups":
        other.zero_grad()  # torch makes state for no optimizer whose parameters have gradients
        its = torch.optim.AdamW(other.named_parameters())
    for group in its.param_groups:
        group["lr"] = 3.0
    state = {"optimizer": get_optimizer_state_dict(other, its, options=options)}
    for tensor in (t for t in _tensors(state) if t.dim()):
        tensor.zero_()
    reader = unmoor.CheckpointReader(source, optimizer="flattened" if flat else "named")
    dcp.load(state, storage_reader=reader)
    for group in [] if flat else [*state["optimizer"]["param_groups"], *expected["param_groups"]]:
        group.pop("param_names", None)
    assert difference(state["optimizer"], expected) == ""


def _tensors(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, torch.Tensor):
        yield value


def test_refuses_to_round_unless_asked(tmp_path):
    """A dtype change that loses values is refused before anything changes, naming every tensor; cast="any" does it."""
    torch.save({"a": torch.full((3,), 1 / 3), "b": torch.ones(2), "c": torch.ones(2)}, tmp_path / "a.pt")
    state = {"a": torch.zeros(3).bfloat16(), "b": torch.zeros(2).half(), "c": torch.zeros(2).double()}
    text = refusal(state, unmoor.CheckpointReader(tmp_path / "a.pt"))
    assert "a: saved float32, live bfloat16" in text
    assert "b: saved float32, live float16" in text
    assert 'cast="any"' in text
    assert not any(tensor.any() for tensor in state.values())
    dcp.load(state, storage_reader=unmoor.CheckpointReader(tmp_path / "a.pt", cast="any"))
    assert torch.equal(state["a"], torch.full((3,), 1 / 3).bfloat16())
    assert state["c"].dtype == torch.float64


def test_refuses_objects_by_name(tmp_path):
    """A value that needs code is refused by its name where it is asked for, and ignored where it is not."""
    torch.save({"w": torch.ones(3), "args": {"inner": [Namespace(lr=1)]}}, tmp_path / "a.pt")
    state = {"w": torch.zeros(3)}
    dcp.load(state, storage_reader=unmoor.CheckpointReader(tmp_path / "a.pt"))
    assert torch.equal(state["w"], torch.ones(3))
    state = {"w": torch.zeros(3), "args": {"inner": None}}
    text = refusal(state, unmoor.CheckpointReader(tmp_path / "a.pt"))
    assert "UnsupportedFile: 1 value" in text
    assert "args.inner: argparse.Namespace" in text
    assert not state["w"].any()


def test_tells_of_a_damaged_tensor(tmp_path):
    """A checksum that fails is CorruptFile in the words of every other road; verify="none" does not look."""
    torch.save({"w": torch.randn(300)}, tmp_path / "a.pt")
    entry = unmoor.describe(tmp_path / "a.pt").tensors[0]
    data = bytearray((tmp_path / "a.pt").read_bytes())
    data[entry.span.offset] ^= 1
    (tmp_path / "a.pt").write_bytes(data)
    text = refusal({"w": torch.zeros(300)}, unmoor.CheckpointReader(tmp_path / "a.pt"))
    assert "CorruptFile" in text
    assert "the data of w does not match its checksum" in text
    dcp.load({"w": torch.zeros(300)}, storage_reader=unmoor.CheckpointReader(tmp_path / "a.pt", verify="none"))


def test_tells_of_a_path_that_leads_nowhere(tmp_path):
    """Whoever looks into what an absent file offers gets the error; dcp.load ends with its class and text."""
    reader = unmoor.CheckpointReader(tmp_path / "gone.pt")
    assert "NotACheckpoint: " in refusal({"w": torch.zeros(3)}, reader)
    with pytest.raises(unmoor.NotACheckpoint, match=r"gone\.pt does not exist"):
        list(unmoor.CheckpointReader(tmp_path / "gone.pt").read_metadata().state_dict_metadata)
    assert not unmoor.CheckpointReader.validate_checkpoint_id(tmp_path / "gone.pt")


@pytest.mark.parametrize("options", [{"cast": "all"}, {"optimizer": "positions"}])
def test_refuses_words_that_mean_nothing(tmp_path, options):
    """A mode that is none of the known ones is refused when the reader is made."""
    with pytest.raises(unmoor.UsageError, match="is none of"):
        unmoor.CheckpointReader(tmp_path / "a.pt", **options)


def test_another_path_takes_the_place_of_the_first(tmp_path):
    """dcp.load's checkpoint_id, where it is given, is what is read; nothing of the file before is remembered."""
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    torch.save({"w": torch.full((3,), 2.0)}, tmp_path / "b.pt")
    reader, state = unmoor.CheckpointReader(tmp_path / "a.pt"), {"w": torch.zeros(3)}
    dcp.load(state, storage_reader=reader)
    dcp.load(state, storage_reader=reader, checkpoint_id=tmp_path / "b.pt")
    assert torch.equal(state["w"], torch.full((3,), 2.0))
    assert reader.checkpoint_id == str(tmp_path / "b.pt")


@pytest.mark.parametrize("road", ["reader", "safetensors", "file", "folder"])
def test_reads_the_partitions_of_deepspeed(tmp_path, road):
    """A ZeRO-3 folder of three ranks: whole fp32 weights and moments by name, through dcp.load and every conversion."""
    model = tiny(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    train(model, optimizer)
    folder = ZeroMaker(model, optimizer, Shape(3, 3)).write(tmp_path / "zero")
    if road == "reader":
        other = tiny(4)
        first, weight = next(iter(model.state_dict().items()))
        moments = {first: {"exp_avg": torch.zeros_like(weight)}}
        state = {"model": other.state_dict(), "optimizer": {"state": moments}}
        dcp.load(state, storage_reader=unmoor.CheckpointReader(folder))
        moment = next(iter(optimizer.state.values()))["exp_avg"]
        assert torch.equal(state["optimizer"]["state"][first]["exp_avg"], moment)
        found = other.state_dict()
    elif road == "safetensors":
        unmoor.convert(folder, tmp_path / "m.safetensors", only="model")
        found = unmoor.load(tmp_path / "m.safetensors")
    else:
        target = tmp_path / ("m.pt" if road == "file" else "m")
        unmoor.convert(folder, target, only=["model", "optimizer"])
        found = unmoor.load(target)["model"]
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())
