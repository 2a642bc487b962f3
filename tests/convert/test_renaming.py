"""convert strips, adds and changes names of models, averages and optimizers alike, or refuses with the list."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import unmoor
from unmoor.plan.renaming import module_paths, naming, new_names
from unmoor.plan.renaming_tree import renamed
from unmoor.plan.taking import take

from .trees import difference, run


def loaded(path):
    return torch.load(path, weights_only=True)


class Inner(nn.Module):
    """A model whose own attributes look like what wrappers put into names."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.submodule = nn.Linear(2, 2)
        self.model_head = nn.Linear(2, 2)


def wrapped(state, prefix):
    """A state dict as a wrapper gives it: every name behind a prefix, and every module's path."""
    made = OrderedDict((prefix + name, value) for name, value in state.items())
    made._metadata = OrderedDict({"": {"version": 1}})
    for path, facts in state._metadata.items():
        made._metadata[(prefix + path).rstrip(".")] = facts
    return made


NAMES = {
    "one leading module of DDP": ({"strip": "auto"}, ["module.0.w", "module.0.b"], ["0.w", "0.b"]),
    "a submodule called module": ({"strip": "auto"}, ["module.module.w", "module.sub.w"], ["module.w", "sub.w"]),
    "module beside others": ({"strip": "auto"}, ["module.w", "head.w"], ["module.w", "head.w"]),
    "module deeper than the root": ({"strip": "auto"}, ["a.module.w", "b.w"], ["a.module.w", "b.w"]),
    "module twice": ({"strip": "auto"}, ["module.module.module.w"], ["module.module.w"]),
    "compiled inside of DDP": ({"strip": "auto"}, ["module._orig_mod.w", "module._orig_mod.b"], ["w", "b"]),
    "DDP inside of compile": ({"strip": "auto"}, ["_orig_mod.module.w"], ["w"]),
    "checkpointed blocks": (
        {"strip": "auto"},
        ["0._checkpoint_wrapped_module.w", "1.w"],
        ["0.w", "1.w"],
    ),
    "sharded, checkpointed, compiled": (
        {"strip": "auto"},
        [
            "_fsdp_wrapped_module._orig_mod.0._fsdp_wrapped_module._checkpoint_wrapped_module.w",
        ]
        + ["_fsdp_wrapped_module._orig_mod.1.w"],
        ["0.w", "1.w"],
    ),
    "a wrapper's word with neighbours": ({"strip": "auto"}, ["_orig_mod.w", "w"], ["_orig_mod.w", "w"]),
    "a parameter of that name": ({"strip": "auto"}, ["a.module"], ["a.module"]),
    "an average of torch": ({"strip": "auto"}, ["n_averaged", "module.w"], ["n_averaged", "module.w"]),
    "Lightning's attribute": ({"strip": "auto", "dialect": "lightning"}, ["model.0.w", "model.1.w"], ["0.w", "1.w"]),
    "Lightning's attribute and a loss": (
        {"strip": "auto", "dialect": "lightning"},
        ["model.0.w", "criterion.weight"],
        ["model.0.w", "criterion.weight"],
    ),
    "the same attribute elsewhere": ({"strip": "auto"}, ["model.0.w", "model.1.w"], ["model.0.w", "model.1.w"]),
    "a prefix by name": ({"strip": "net"}, ["net.a.w", "net.net.b"], ["a.w", "net.b"]),
    "prefixes one after the other": ({"strip": ["module.", "model."]}, ["module.model.w"], ["w"]),
    "a prefix beside an average's counter": ({"strip": "module."}, ["n_averaged", "module.w"], ["n_averaged", "w"]),
    "a prefix added": ({"add": "module"}, ["0.w", "n_averaged"], ["module.0.w", "n_averaged"]),
    "a pattern": (
        {"rename": {"*.attn.*": "*.attention.*"}},
        ["l.0.attn.w", "l.0.mlp.w"],
        ["l.0.attention.w", "l.0.mlp.w"],
    ),
    "stripped, changed, added": (
        {"strip": "module.", "rename": {"0.": "first."}, "add": "net."},
        ["module.0.w", "module.1.w"],
        ["net.first.w", "net.1.w"],
    ),
    "a function": ({"rename": str.upper}, ["a.w"], ["A.W"]),
}


@pytest.mark.parametrize("case", NAMES)
def test_names_become(case):
    """Each way to change names, on names that try to mislead it."""
    asked, before, after = NAMES[case]
    wish = naming(asked.get("strip"), asked.get("rename"), asked.get("add"))
    made = new_names(before, wish, label="model", dialect=asked.get("dialect", "plain"))
    assert (list(made.names.values()), made.faults) == (after, [])


FAULTS = {
    "a part of the names": (
        {"strip": "module."},
        ["module.a.w", "b.w"],
        "1 name of 2 begin with 'module.', these do not: b.w",
    ),
    "two names that become one": ({"rename": {"a.": "b."}}, ["a.w", "b.w"], "a.w and b.w would both be 'b.w'"),
    "a name that is gone": ({"rename": {"w": ""}}, ["w"], "no name would be left of w"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_refuses_what_does_not_hold(case):
    """A prefix that only some names bear and names that would become one are faults, not guesses."""
    asked, before, words = FAULTS[case]
    wish = naming(asked.get("strip"), asked.get("rename"), asked.get("add"))
    assert words in new_names(before, wish, label="model", dialect="plain").faults[0]


def test_all_faults_of_names_are_told_together(tmp_path):
    """A partial prefix of one model, a collision in another, a pattern that nothing bears: one error, no target."""
    torch.save(
        {
            "model": {"module.a.w": torch.ones(2), "b.w": torch.ones(2)},
            "ema": {"x.w": torch.ones(2), "y.w": torch.ones(2)},
        },
        tmp_path / "a.pt",
    )
    with pytest.raises(unmoor.MismatchError) as caught:
        unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", strip="module.", rename={"x.": "y.", "*.q": "*.r"})
    text = str(caught.value)
    assert "these do not: b.w" in text
    assert "x.w and y.w would both be 'y.w'" in text
    assert "no name matches '*.q'; there are" in text
    assert not (tmp_path / "b.pt").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strip": ""}, "no prefix of names"),
        ({"strip": ["auto", "module."]}, "auto stands alone"),
        ({"strip": 5}, "no prefix of names"),
        ({"add": "."}, "no prefix of names"),
        ({"rename": 5}, "neither a dict of names nor a callable"),
        ({"rename": {"a*": "**"}}, "more \\* to the right"),
    ],
)
def test_refuses_what_is_no_renaming(tmp_path, options, words):
    """A wrong argument is a usage error before anything is written."""
    torch.save({"a": torch.ones(2), "a.b": torch.ones(1)}, tmp_path / "a.pt")
    with pytest.raises(unmoor.UsageError, match=words):
        unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", **options)


@pytest.mark.parametrize("strip", ["auto", "module."])
def test_a_blanket_replacement_never_happens(tmp_path, strip):
    """One leading segment goes; attributes that are called alike stay, and the plain model takes the result."""
    inner = Inner()
    torch.save(wrapped(inner.state_dict(), "module."), tmp_path / "ddp.pt")
    receipt = unmoor.convert(tmp_path / "ddp.pt", tmp_path / "plain.pt", strip=strip)
    assert difference(loaded(tmp_path / "plain.pt"), inner.state_dict()) == ""
    Inner().load_state_dict(loaded(tmp_path / "plain.pt"))
    assert len(receipt.renamed) == 6
    assert "'module.' taken out of 6 names" in str(receipt)


@pytest.mark.parametrize("target", ["b.pt", "b", "b.pth"])
def test_names_of_optimizers_follow(tmp_path, target):
    """An optimizer that names its parameters goes by the new names too: a restore without a wrapper finds all."""
    model, optimizer = run()
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
    unmoor.convert(tmp_path / "a.pt", tmp_path / target, add="net.", rename={"0.": "first."})
    plain = unmoor.load(tmp_path / target)
    assert plain["optimizer"]["param_names"][0][0] == "net.first.weight"
    roles = unmoor.describe(tmp_path / target).manifest["roles"]
    assert roles["optimizer"]["names"][:2] == ["net.first.weight", "net.first.bias"]
    unmoor.convert(tmp_path / target, tmp_path / "c.pt", strip="net.", rename={"first.": "0."})
    assert difference(loaded(tmp_path / "c.pt")["optimizer"], loaded(tmp_path / "a.pt")["optimizer"]) == ""
    other, its = run()
    unmoor.restore(tmp_path / "c.pt", model=other, optimizer=its)
    assert difference(its.state_dict(), optimizer.state_dict()) == ""


def test_names_in_torchs_own_place_follow(tmp_path):
    """State by name, as get_optimizer_state_dict has it, and `param_names` in groups."""
    state = {"module.0.weight": {"exp_avg": torch.ones(2)}}
    groups = [{"params": ["module.0.weight"], "lr": 0.1}]
    named = {
        "state": {0: {"exp_avg": torch.ones(2)}},
        "param_groups": [{"params": [0], "param_names": ["module.0.weight"]}],
    }
    torch.save(
        {"model": {"module.0.weight": torch.ones(2)}, "optimizer": {"state": state, "param_groups": groups}},
        tmp_path / "a.pt",
    )
    torch.save({"model": {"module.0.weight": torch.ones(2)}, "optimizer": named}, tmp_path / "n.pt")
    for name in ("a", "n"):
        unmoor.convert(tmp_path / f"{name}.pt", tmp_path / f"{name}2.pt", strip="auto")
    found = loaded(tmp_path / "a2.pt")["optimizer"]
    assert list(found["state"]) == found["param_groups"][0]["params"] == ["0.weight"]
    assert loaded(tmp_path / "n2.pt")["optimizer"]["param_groups"][0]["param_names"] == ["0.weight"]


def test_canonical_names_are_nobodys_wrapper(tmp_path):
    """What unmoor.save wrote has no wrappers in it: auto leaves a user's own outermost module alone."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    unmoor.save(tmp_path / "a.pt", model=Outer())
    receipt = unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", strip="auto")
    assert receipt.renamed == ()
    assert list(loaded(tmp_path / "b.pt")["model"]) == ["module.weight", "module.bias"]


def test_averages_keep_their_form(tmp_path):
    """AveragedModel's own counter stands beside its module: auto keeps the form that AveragedModel loads."""
    model, _ = run()
    torch.save({"model": model.state_dict(), "ema": AveragedModel(model).state_dict()}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", strip="auto")
    AveragedModel(model).load_state_dict(loaded(tmp_path / "b.pt")["ema"])
    unmoor.convert(tmp_path / "a.pt", tmp_path / "c.pt", strip="module.")
    ema = loaded(tmp_path / "c.pt")["ema"]
    model.load_state_dict({name: value for name, value in ema.items() if name != "n_averaged"})


def test_paths_of_modules_follow_their_tensors():
    """What a state dict notes of modules goes by their new paths; a module without tensors goes with what it is in."""
    assert module_paths({"0.w": "m.0.w"}, ["", "0", "1"]) == {"": "m", "0": "m.0", "1": "m.1"}
    assert module_paths({"a.w": "b.w", "c.w": "c.w"}, ["", "a", "a.x", "c"]) == {
        "": "",
        "a": "b",
        "a.x": "b.x",
        "c": "c",
    }


def test_what_single_ranks_have_follows(tmp_path):
    """Leaves that a rank has of its own, and what the manifest says of them, go by the new names too."""
    torch.save(
        {
            "model": {"module.w": torch.ones(2), "module.b": torch.ones(1)},
            "ranks": {"1": {"model": {"module.w": torch.ones(2)}}},
        },
        tmp_path / "a.pt",
    )
    ranks = {"1": {"whole": [["model", "module.w"]], "absent": [["model", "module.b"], ["step"]]}}
    manifest = {"world_size": 2, "roles": {"model": {"role": "model", "keys": ["model"]}}, "ranks": ranks}
    catalog = replace(unmoor.describe(tmp_path / "a.pt"), manifest=manifest)
    made, changes = renamed(take(catalog, None), catalog, naming("module.", None, None))
    assert list(made.tree["model"]) == ["w", "b"]
    assert list(made.tree["ranks"]["1"]["model"]) == ["w"]
    assert made.manifest["ranks"] == {"1": {"whole": [["model", "w"]], "absent": [["model", "b"], ["step"]]}}
    assert [change.after for change in changes] == ["w", "b"]
