"""convert in another dtype: the numbers are torch's own, only what was asked changes, and what is lost is told."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

import unmoor

from .trees import difference, run


def loaded(path):
    return torch.load(path, weights_only=True)


@pytest.fixture
def saved(tmp_path):
    """A run with an average, saved as torch has it."""
    model, optimizer = run()
    ema = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.save(
        {"model": model.state_dict(), "ema": ema, "optimizer": optimizer.state_dict(), "x": torch.ones(2)},
        tmp_path / "a.pt",
    )
    return tmp_path


def cast(state, dtype):
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("target", ["b.pt", "b", "legacy.pt"])
def test_values_are_those_of_torch(saved, dtype, target):
    """Every value is the one that Tensor.to gives; integers, counters and the optimizer stay, and so does `x`."""
    form = "legacy" if target.startswith("legacy") else None
    unmoor.convert(saved / "a.pt", saved / target, dtype=dtype, format=form)
    before, after = loaded(saved / "a.pt"), unmoor.load(saved / target)
    for role in ("model", "ema"):
        assert difference(cast(before[role], getattr(torch, dtype)), dict(after[role])) == ""
    assert difference(before["optimizer"], after["optimizer"]) == ""
    assert after["x"].dtype == torch.float32
    assert after["model"]["1.num_batches_tracked"].dtype == torch.int64


def test_a_model_for_the_hub(saved):
    """One model as bfloat16 in safetensors, read by the format's own library."""
    receipt = unmoor.convert(saved / "a.pt", saved / "m.safetensors", only="model", dtype="bfloat16")
    found = safetensors.torch.load_file(saved / "m.safetensors")
    assert (
        difference(
            cast(loaded(saved / "a.pt")["model"], torch.bfloat16),
            {n: found[n] for n in loaded(saved / "a.pt")["model"]},
        )
        == ""
    )
    (told,) = receipt.cast
    assert (told.role, told.before, told.after, told.beyond) == ("model", "float32", "bfloat16", 0)
    assert 0 < told.changed <= told.elements
    assert 0 < told.largest <= 2**-8
    assert "values rounded," in str(receipt)


def test_roles_and_key_paths_have_dtypes_of_their_own(saved):
    """A dict says which; the counters of an optimizer keep theirs whatever is said."""
    unmoor.convert(
        saved / "a.pt", saved / "b.pt", dtype={"optimizer": "bfloat16", "model": "float16", "model.0.bias": "float64"}
    )
    found = loaded(saved / "b.pt")
    assert found["model"]["0.weight"].dtype == torch.float16
    assert found["model"]["0.bias"].dtype == torch.float64
    assert found["optimizer"]["state"][0]["exp_avg"].dtype == torch.bfloat16
    assert found["optimizer"]["state"][0]["step"].dtype == torch.float32
    assert found["ema"]["0.weight"].dtype == torch.float32


def test_what_is_tied_stays_tied(tmp_path):
    """One tensor under two names is one after a cast, and a view of it shares its memory still."""
    whole = torch.randn(6, 8)
    torch.save({"model": {"a.w": whole, "b.w": whole, "c.w": whole[1:3], "d.t": whole.t()}}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", dtype="bfloat16")
    found = loaded(tmp_path / "b.pt")["model"]
    assert found["a.w"].data_ptr() == found["b.w"].data_ptr()
    assert found["c.w"].untyped_storage()._cdata == found["a.w"].untyped_storage()._cdata
    for name, tensor in (("a.w", whole), ("c.w", whole[1:3]), ("d.t", whole.t())):
        assert torch.equal(found[name], tensor.bfloat16())
        assert found[name].stride() == tensor.stride()


def test_what_no_number_holds_is_a_finding(tmp_path):
    """Values beyond the range of float16 become infinite: counted, named, and an error to whoever reads the codes."""
    values = torch.tensor([1.0, 1e6, -1e9, float("inf"), float("nan"), 1e-12, 0.0])
    torch.save({"model": {"a.w": values, "b.w": torch.ones(3)}}, tmp_path / "a.pt")
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", dtype="float16")
    (told,) = receipt.cast
    assert (told.beyond, told.zeroed, told.changed, told.elements) == (2, 1, 3, 10)
    assert told.lost == ("model.a.w",)
    codes = {finding.code: finding.severity for finding in receipt.findings}
    assert codes == {"cast-overflow": "error", "cast-underflow": "info"}
    assert "2 values of 10 beyond the range of float16" in str(receipt)
    assert torch.equal(loaded(tmp_path / "b.pt")["model"]["a.w"].isnan(), values.isnan())


@pytest.mark.parametrize("narrow", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_widening_loses_nothing(saved, narrow):
    """Back to the wider dtype every value is the same, and the receipt says so."""
    unmoor.convert(saved / "a.pt", saved / "b.pt", dtype=narrow)
    receipt = unmoor.convert(saved / "b.pt", saved / "c.pt", dtype="float32")
    assert [cast.changed for cast in receipt.cast] == [0, 0]
    assert "every value the same" in str(receipt)


@pytest.mark.parametrize(
    ("dtype", "error", "words"),
    [
        ("int8", unmoor.UsageError, "none of float64"),
        ("bfloat17", unmoor.UsageError, "none of float64"),
        (5, unmoor.UsageError, "no dtype, nor a dict"),
        ({}, unmoor.UsageError, "no dtype, nor a dict"),
        ({"teacher": "float16"}, unmoor.MismatchError, "dtype='teacher' chooses nothing"),
    ],
)
def test_refuses_what_is_no_dtype(saved, dtype, error, words):
    """A wrong dtype, or one for what is not there, is told before anything is written."""
    with pytest.raises(error, match=words):
        unmoor.convert(saved / "a.pt", saved / "b.pt", dtype=dtype)
    assert not (saved / "b.pt").exists()


@pytest.mark.parametrize("target", ["b.pt", "b.safetensors", "b", "b.legacy"])
@pytest.mark.parametrize("verify", ["stream", "first"])
def test_damage_is_met_while_casting(tmp_path, target, verify):
    """A flipped bit of the source is told though its bytes are nowhere in the target, and nothing is left."""
    torch.save({"a.w": torch.randn(300_000), "b.w": torch.randn(3)}, tmp_path / "a.pt")
    entry = unmoor.describe(tmp_path / "a.pt").tensors[0]
    data = bytearray((tmp_path / "a.pt").read_bytes())
    data[entry.span.offset + 777_777] ^= 1
    (tmp_path / "a.pt").write_bytes(data)
    (tmp_path / "older").write_text("x")
    form = "legacy" if target.endswith("legacy") else None
    with pytest.raises(unmoor.CorruptFile, match=r"a\.w"):
        unmoor.convert(tmp_path / "a.pt", tmp_path / target, dtype="bfloat16", verify=verify, format=form)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "older"]


def test_tensors_in_parts_are_cast_too(tmp_path, monkeypatch):
    """A folder whose tensors lie in boxes, strided views and lazy negations: all come out as torch casts them."""
    monkeypatch.setattr("unmoor.distributed.stored_boxes.BOX_BYTES", 4096)
    big = torch.randn(300, 301)
    torch.save({"a.w": big, "b.w": big[::2, ::3], "c.w": torch._neg_view(big[:5])}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "folder")
    for source in ("a.pt", "folder"):
        unmoor.convert(tmp_path / source, tmp_path / "b.pt", dtype="bfloat16")
        unmoor.convert(tmp_path / source, tmp_path / "b.safetensors", dtype="bfloat16")
        for found in (loaded(tmp_path / "b.pt"), safetensors.torch.load_file(tmp_path / "b.safetensors")):
            for name, tensor in (("a.w", big), ("b.w", big[::2, ::3]), ("c.w", -big[:5])):
                assert torch.equal(found[name].resolve_neg(), tensor.bfloat16()), (source, name)


def test_a_failure_leaves_the_older_target_as_it_was(saved):
    """A target that is there is replaced by what is complete, and by nothing else."""
    unmoor.convert(saved / "a.pt", saved / "b.pt", only="model")
    before = (saved / "b.pt").read_bytes()
    data = bytearray((saved / "a.pt").read_bytes())
    data[unmoor.describe(saved / "a.pt").tensors[0].span.offset + 5] ^= 1
    (saved / "a.pt").write_bytes(data)
    with pytest.raises(unmoor.CorruptFile):
        unmoor.convert(saved / "a.pt", saved / "b.pt", dtype="float16")
    assert (saved / "b.pt").read_bytes() == before
    assert sorted(path.name for path in saved.iterdir()) == ["a.pt", "b.pt"]
