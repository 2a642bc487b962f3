"""Names: a prefix is proved, a head that changed is told, weights stay tied, and nothing matched is never a success."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import unmoor
from unmoor.values.beside import NAMES

from .files import refused, same_bits, saved_names, tiny, train, trained

LENIENT = {"missing": "fresh", "unexpected": "ignore", "mismatched": "fresh"}


def _ddp(path: Path, model: nn.Module) -> Path:
    return saved_names(path, model, "module.{}".format)


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


def _compiled(module: nn.Module) -> Any:
    """As torch.compile wraps it; no compiler is needed for the wrapper."""
    return torch.compile(module, backend="eager")


@pytest.mark.parametrize("saved_compiled", [True, False], ids=["compiled file", "plain file"])
@pytest.mark.parametrize("live_compiled", [True, False], ids=["compiled model", "plain model"])
def test_a_compiled_model_and_a_plain_one_are_one(tmp_path: Path, saved_compiled: bool, live_compiled: bool) -> None:
    """C32: all four tensors go in and out of torch.compile, and what was taken off the names is told."""
    saved, model = tiny(), tiny(9)
    torch.save({"model": (_compiled(saved) if saved_compiled else saved).state_dict()}, tmp_path / "a.pt")
    report = unmoor.restore(tmp_path / "a.pt", model=_compiled(model) if live_compiled else model)
    assert same_bits(model.state_dict(), saved.state_dict())
    assert ("4 of 4 names match without '_orig_mod.'" in str(report)) == saved_compiled
    assert len(report.renamed) == 4 * saved_compiled


def test_a_compiled_model_is_saved_under_its_own_names(tmp_path: Path) -> None:
    """C32: what unmoor writes of a compiled model has the names of the model, for the optimizer too."""
    model = tiny()
    optimizer = torch.optim.Adam(_compiled(model).parameters())
    train(model, optimizer, 1)
    unmoor.save(tmp_path / "a.pt", model=_compiled(model), optimizer=optimizer)
    written = torch.load(tmp_path / "a.pt")
    assert list(written["model"]) == written["optimizer"][NAMES][0] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    tiny(9).load_state_dict(written["model"])


class Blocks(nn.Module):
    """An encoder and two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])


@pytest.mark.parametrize("live_compiled", [True, False], ids=["compiled parts", "plain parts"])
def test_compiled_parts_are_seen_in_the_middle_of_names(tmp_path: Path, live_compiled: bool) -> None:
    """C34: six of six tensors, whichever parts were compiled when it was saved and whichever are now."""
    saved, model = Blocks(), Blocks()
    plain = {name: tensor.clone() for name, tensor in saved.state_dict().items()}
    saved.encoder, saved.blocks[1] = _compiled(saved.encoder), _compiled(saved.blocks[1])
    torch.save(saved.state_dict(), tmp_path / "sub.pt")
    if live_compiled:
        model.blocks[0] = _compiled(model.blocks[0])
    report = unmoor.restore(tmp_path / "sub.pt", model=model)
    assert [tensor.tolist() for tensor in model.parameters()] == [tensor.tolist() for tensor in plain.values()]
    assert {(c.before, c.after) for c in report.renamed} == {
        (f"{part}._orig_mod.{kind}", f"{part}.{kind}")
        for part in ("encoder", "blocks.1")
        for kind in ("weight", "bias")
    }


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(3, 3)
        self.mlp = nn.Linear(3, 3)


class Layers(nn.Module):
    """Two layers of two matrices: eight names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer.mlp(layer.attn(x))
        return x


def _nested(model: Layers) -> Layers:
    model.layers[0] = checkpoint_wrapper(_compiled(model.layers[0]))
    model.layers[1] = _compiled(checkpoint_wrapper(model.layers[1]))
    return model


def _raw(name: str) -> str:
    """A name with the wrappers of FSDP and activation checkpointing in either order."""
    name = name.replace("layers.0.", "layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.")
    return name.replace("layers.1.attn", "layers.1._checkpoint_wrapped_module._fsdp_wrapped_module.attn")


@pytest.mark.parametrize("before", ["", "module.", "net.model.", "_orig_mod.module.", "net._orig_mod."], ids=repr)
def test_wrappers_in_either_order_inside_names_are_taken_off(tmp_path: Path, before: str) -> None:
    """C35: eight of eight tensors from names with wrappers anywhere in them, under any prefix."""
    saved, model = Layers(), Layers()
    path = saved_names(tmp_path / "raw.pt", saved, lambda name: before + _raw(name))
    unmoor.restore(path, model=model)
    assert same_bits(model.state_dict(), saved.state_dict())


@pytest.mark.parametrize("live", [lambda m: m, _nested], ids=["bare", "wrapped"])
@pytest.mark.parametrize("writer", ["unmoor.save", "torch.save"])
def test_model_and_optimizer_names_are_the_same_from_every_nesting(tmp_path: Path, writer: str, live: Any) -> None:
    """C35: AC(compile) and compile(AC) leave no trace; the optimizer's own names are read as the model's are."""
    inner = Layers()
    model = _nested(inner)
    optimizer = torch.optim.Adam(model.named_parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    optimizer.step()
    roles = {"model": model, "optimizer": optimizer}
    if writer == "unmoor.save":
        unmoor.save(tmp_path / "a.pt", **roles)
        names = [f"layers.{i}.{part}.{kind}" for i in (0, 1) for part in ("attn", "mlp") for kind in ("weight", "bias")]
        assert list(torch.load(tmp_path / "a.pt")["model"]) == names
    else:
        torch.save({role: item.state_dict() for role, item in roles.items()}, tmp_path / "a.pt")
    other = live(Layers())
    turned = torch.optim.Adam([{"params": [parameter]} for parameter in reversed(list(other.parameters()))], lr=0.1)
    report = unmoor.restore(tmp_path / "a.pt", model=other, optimizer=turned, hyperparameters="live")
    assert "matched by name" in str(report)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert same_bits([one.detach(), optimizer.state[one]], [two.detach(), turned.state[two]])


class Inner(nn.Module):
    """Names that a blanket replacement of 'module.' would eat."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.submodule = nn.Linear(2, 2)
        self.model_head = nn.Linear(2, 2)


@pytest.mark.parametrize("before", ["", "module.", "module.module.", "net.module.", "_orig_mod.module."], ids=repr)
def test_a_users_own_module_is_never_stripped(tmp_path: Path, before: str) -> None:
    """C36: six of six tensors under exactly the names that the model has, however many prefixes stand before them."""
    saved, model = Inner(), Inner()
    unmoor.restore(saved_names(tmp_path / "ddp.pt", saved, f"{before}{{}}".format), model=model)
    assert same_bits(model.state_dict(), saved.state_dict())


class Deep(nn.Module):
    """A model in which leaving out every 'module' would make two names one."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.ModuleDict({"module": nn.Linear(2, 2), "a": nn.Linear(2, 2)})
        self.a = nn.Linear(2, 2)


def test_wrappers_around_a_users_module_are_told_from_it(tmp_path: Path) -> None:
    """C36: the tree of names tells a wrapper, which holds one thing, from a submodule that has neighbours."""
    saved, model = Deep(), Deep()

    def wrapped(name: str) -> str:
        return "module." + name.replace("module.module.", "module._orig_mod.module.module.").replace(
            "module.a.", "module._orig_mod.a."
        )

    unmoor.restore(saved_names(tmp_path / "a.pt", saved, wrapped), model=model)
    assert same_bits(model.state_dict(), saved.state_dict())


def test_two_candidates_are_listed_with_the_renaming_that_picks_each(tmp_path: Path) -> None:
    """C36: where two subtrees fit, both are told, and what is offered for one gives that one and not the other."""
    one, other, model = Layers(), Layers(), Layers()
    tensors = {f"a.{name}".replace("0.attn", "0._orig_mod.attn"): t for name, t in one.state_dict().items()}
    tensors |= {f"b.{name}".replace("1.attn", "1.module.attn"): t for name, t in other.state_dict().items()}
    torch.save(tensors, tmp_path / "two.pt")
    with refused(unmoor.AmbiguousError, model) as caught:
        unmoor.restore(tmp_path / "two.pt", model=model)
    offers = {
        "rename={'a.layers.0._orig_mod.': 'layers.0.', 'a.': ''}": one,
        "rename={'b.layers.1.module.': 'layers.1.', 'b.': ''}": other,
    }
    for offer, source in offers.items():
        assert offer in str(caught.value)
        chosen = eval(offer.removeprefix("rename="))
        unmoor.restore(tmp_path / "two.pt", model=model, rename=chosen, unexpected="ignore")
        assert same_bits(model.state_dict(), source.state_dict())


def test_a_renaming_that_picks_half_is_not_completed_from_the_other_half(tmp_path: Path) -> None:
    """C36: what rename= brings to a live name stays there; no reading that contradicts it is taken."""
    one, other, model = Layers(), Layers(), Layers()
    tensors = {f"a.{name}".replace("0.attn", "0._orig_mod.attn"): t for name, t in one.state_dict().items()}
    tensors |= {f"b.{name}": t for name, t in other.state_dict().items()}
    torch.save(tensors, tmp_path / "two.pt")
    with refused(unmoor.MismatchError, model) as caught:
        unmoor.restore(tmp_path / "two.pt", model=model, rename={"a.": ""})
    assert "rename={'a.layers.0._orig_mod.': 'layers.0.', 'a.': ''}" in str(caught.value)


def test_names_are_left_as_they_are_where_no_live_model_says_otherwise(tmp_path: Path) -> None:
    """C34: load and describe change no name: nothing there could prove what a segment is."""
    path = saved_names(tmp_path / "raw.pt", Layers(), lambda name: "module." + _raw(name))
    names = ["module." + _raw(name) for name in Layers().state_dict()]
    assert list(unmoor.load(path)["state_dict"]) == names
    assert [entry.keys[-1] for entry in unmoor.describe(path).tensors] == names
