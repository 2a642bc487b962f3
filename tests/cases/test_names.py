"""Names: a prefix is proved, a head that changed is told, weights stay tied, and nothing matched is never a success."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor

from .files import refused, same_bits, tiny, trained

LENIENT = {"missing": "fresh", "unexpected": "ignore", "mismatched": "fresh"}


def _ddp(path: Path, model: nn.Module) -> Path:
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in model.state_dict().items()}}, path)
    return path


def _named(first: str, last: str) -> nn.Sequential:
    """A tiny model with names of its own."""
    layers = list(tiny(9))
    return nn.Sequential(OrderedDict([(first, layers[0]), ("relu", layers[1]), (last, layers[2])]))


def test_a_ddp_prefix_is_taken_off_where_all_names_fit_without_it(tmp_path: Path) -> None:
    """C38: a file of a DistributedDataParallel model fills the bare model, 4 of 4, and the report says how."""
    saved = tiny()
    model = tiny(9)
    report = unmoor.restore(_ddp(tmp_path / "ddp.pt", saved), model=model)
    assert same_bits(model.state_dict(), saved.state_dict())
    assert {(change.before, change.after) for change in report.renamed} >= {("module.0.weight", "0.weight")}
    assert "4 of 4 names match without 'module.'" in str(report)


@pytest.mark.parametrize("modes", [{}, LENIENT], ids=["default", "lenient"])
def test_nothing_matched_is_an_error_even_where_everything_is_allowed(tmp_path: Path, modes: dict[str, str]) -> None:
    """C38: a restore that would fill no tensor is refused in every mode, with names of both sides."""
    model = _named("encoder", "decoder")
    with refused(unmoor.MismatchError, model) as caught:
        unmoor.restore(_ddp(tmp_path / "ddp.pt", tiny()), model=model, **modes)
    text = str(caught.value)
    assert "0 of 4 tensors matched" in text
    assert "module.0.weight" in text
    assert "encoder.weight" in text
    assert "rename={...}" in text


def test_names_without_any_shape_count_as_nothing_matched(tmp_path: Path) -> None:
    """C38: where every name fits and no shape does, mismatched="fresh" does not turn it into a success."""
    torch.save(tiny(sizes=(5, 6, 7)).state_dict(), tmp_path / "other.pt")
    model = tiny(9)
    with refused(unmoor.MismatchError, model) as caught:
        unmoor.restore(tmp_path / "other.pt", model=model, **LENIENT)
    assert "0 of 4 tensors matched: 4 names do, none with its shape (0.weight: saved 6x5, live 4x3)" in str(
        caught.value
    )


def test_a_prefix_that_fits_a_part_of_the_model_is_named_with_its_remedy(tmp_path: Path) -> None:
    """C38: a model with a new layer is not filled by guess: the error says how many names fit, and the call."""
    path = _ddp(tmp_path / "ddp.pt", tiny())
    model = tiny(9).append(nn.Linear(2, 2))
    with refused(unmoor.MismatchError, model) as caught:
        unmoor.restore(path, model=model, missing="fresh")
    text = str(caught.value)
    assert "saved names without 'module.' fit the live ones (4 of 6 with their shapes)" in text
    assert "rename={'module.': ''}" in text
    report = unmoor.restore(path, model=model, missing="fresh", rename={"module.": ""})
    assert same_bits(model[0].state_dict(), tiny()[0].state_dict())
    assert [change.name for change in report.plan.missing] == ["3.weight", "3.bias"]


def _ten_classes(path: Path, prefix: str = "") -> nn.Sequential:
    saved = tiny(sizes=(3, 4, 10))
    torch.save({prefix + name: tensor for name, tensor in saved.state_dict().items()}, path)
    return saved


@pytest.mark.parametrize("prefix", ["", "module.", "net.module."], ids=repr)
def test_a_changed_head_is_refused_with_both_shapes_of_every_tensor(tmp_path: Path, prefix: str) -> None:
    """C39: all tensors whose shape differs are named at once, the model unchanged, also under a prefix."""
    _ten_classes(tmp_path / "ten.pt", prefix)
    model = tiny(9)
    with refused(unmoor.MismatchError, model) as caught:
        unmoor.restore(tmp_path / "ten.pt", model=model)
    text = str(caught.value)
    assert "2 faults between" in text
    assert "2.weight    saved 10x4, live 2x4" in text
    assert "2.bias    saved 10, live 2" in text
    assert text.count('mismatched="fresh"') == 2


@pytest.mark.parametrize("prefix", ["", "module.", "net.module."], ids=repr)
def test_everything_but_the_head_is_restored_when_asked(tmp_path: Path, prefix: str) -> None:
    """C39: mismatched="fresh" fills what fits and reports the two tensors it left as they are."""
    saved = _ten_classes(tmp_path / "ten.pt", prefix)
    model = tiny(9)
    report = unmoor.restore(tmp_path / "ten.pt", model=model, mismatched="fresh")
    assert same_bits(model[0].state_dict(), saved[0].state_dict())
    assert same_bits(model[2].state_dict(), tiny(9)[2].state_dict())
    assert [(change.name, change.before, change.after) for change in report.plan.fresh] == [
        ("2.weight", "saved 10x4", "live 2x4 kept"),
        ("2.bias", "saved 10", "live 2 kept"),
    ]
    assert "2.weight: saved 10x4, live 2x4 kept" in str(report)


def test_the_optimizer_of_a_changed_head_keeps_the_state_of_the_rest(tmp_path: Path) -> None:
    """C39: with the head its state is left out as well, and both are refused together unless asked for."""
    saved = tiny(sizes=(3, 4, 10))
    optimizer = torch.optim.Adam(saved.parameters())
    saved(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    torch.save({"model": saved.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "run.pt")
    model, live_optimizer = trained(9)
    with refused(unmoor.MismatchError, model, live_optimizer) as caught:
        unmoor.restore(tmp_path / "run.pt", model=model, optimizer=live_optimizer)
    assert "4 faults between" in str(caught.value)
    assert "state 'exp_avg' for 2.weight has shape 10x4, the live parameter has 2x4" in str(caught.value)
    unmoor.restore(tmp_path / "run.pt", model=model, optimizer=live_optimizer, mismatched="fresh")
    assert [bool(live_optimizer.state.get(p)) for p in model.parameters()] == [True, True, False, False]


class Language(nn.Module):
    """An embedding and an output layer, on one tensor unless untied."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.lm_head = nn.Linear(3, 5, bias=False)
        self.lm_head.weight = self.embed.weight if tied else nn.Parameter(torch.zeros(5, 3))


def _language_files(folder: Path) -> tuple[Language, dict[str, Path]]:
    model = Language()
    tied = model.state_dict()
    cloned = {name: tensor.clone() for name, tensor in tied.items()}
    trees: dict[str, Any] = {
        "tied": tied,
        "cloned": cloned,
        "embed only": {"embed.weight": cloned["embed.weight"]},
        "head only": {"lm_head.weight": cloned["lm_head.weight"]},
        "head only, ddp": {"module.lm_head.weight": cloned["lm_head.weight"]},
        "diverged": {**cloned, "lm_head.weight": cloned["lm_head.weight"] + 1},
    }
    for name, tree in trees.items():
        torch.save(tree, folder / f"{name}.pt")
    return model, {name: folder / f"{name}.pt" for name in trees}


@pytest.mark.parametrize("kind", ["tied", "cloned", "embed only", "head only", "head only, ddp"])
def test_weights_are_tied_after_every_way_of_storing_them(tmp_path: Path, kind: str) -> None:
    """C45: stored once, twice or under one of its names, the tensor is filled once and stays one parameter."""
    saved, files = _language_files(tmp_path)
    model = Language()
    before = model.embed.weight
    report = unmoor.restore(files[kind], model=model)
    assert model.embed.weight is model.lm_head.weight is before
    assert len(list(model.parameters())) == 1
    assert same_bits(model.state_dict(), saved.state_dict())
    assert report.plan.missing == report.plan.fresh == ()
    assert ("is tied to a name that the file has" in " ".join(str(report).split())) == ("only" in kind)


def test_a_tied_tensor_is_written_once(tmp_path: Path) -> None:
    """C45: unmoor.save stores tied weights once, and torch.load finds them tied."""
    model = Language()
    unmoor.save(tmp_path / "ours.pt", model=model, rng=False)
    loaded = torch.load(tmp_path / "ours.pt")["model"]
    assert loaded["embed.weight"].data_ptr() == loaded["lm_head.weight"].data_ptr()
    assert len(unmoor.describe(tmp_path / "ours.pt").storages) == 1


def test_refuses_two_values_for_one_tensor(tmp_path: Path) -> None:
    """C45: copies that have drifted apart cannot go into a tied model: both names and the largest difference."""
    _, files = _language_files(tmp_path)
    model = Language()
    with refused(unmoor.MismatchError, model) as caught:
        unmoor.restore(files["diverged"], model=model)
    text = str(caught.value)
    assert "embed.weight and lm_head.weight are one tensor in the live model and differ in the file" in text
    assert "by at most 1" in text
    assert "Untie them in the live model" in text
    unmoor.restore(files["diverged"], model=model, rename={"lm_head.weight": "unused"}, unexpected="ignore")
    assert torch.equal(model.lm_head.weight, torch.load(files["embed only"])["embed.weight"])
    untied = Language(tied=False)
    unmoor.restore(files["diverged"], model=untied)
    assert torch.equal(untied.lm_head.weight, untied.embed.weight + 1)
