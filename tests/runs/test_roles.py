"""Which part of a foreign file is meant for which live object."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unmoor

from .training import equal, network, on_cpu, start, state


def parts(run):
    return {name: part.state_dict() for name, part in run.roles.items()}


def test_average_is_never_taken_from_the_model(tmp_path):
    """An EMA that the file lacks is reported, not filled with the model's weights in silence."""
    run = start().train(1)
    torch.save({"model": run.model.state_dict()}, tmp_path / "a.pt")
    model, ema = network(3), network(4)
    before = {k: v.clone() for k, v in ema.state_dict().items()}
    report = unmoor.restore(tmp_path / "a.pt", model=model, ema=ema)
    assert equal(dict(model.state_dict()), dict(run.model.state_dict()))
    assert equal(dict(ema.state_dict()), before)
    assert "ema" in {change.label for change in report.not_restored}


def test_model_and_average_are_told_apart_by_their_keys(tmp_path):
    """Two state dicts that fit equally well are told apart by the words of their key paths."""
    run, average = start().train(1), network(9)
    torch.save({"ema_state_dict": average.state_dict(), "state_dict": run.model.state_dict()}, tmp_path / "a.pt")
    model, ema = network(3), network(4)
    unmoor.restore(tmp_path / "a.pt", model=model, ema=ema)
    assert equal(dict(model.state_dict()), dict(run.model.state_dict()))
    assert equal(dict(ema.state_dict()), dict(average.state_dict()))


def test_parts_that_cannot_be_told_apart_are_an_error(tmp_path):
    """Two models that fit and whose keys say nothing are an error that names both; at= says which."""
    one, two = network(1), network(2)
    torch.save({"a": one.state_dict(), "b": two.state_dict()}, tmp_path / "a.pt")
    model = network(3)
    with pytest.raises(unmoor.AmbiguousError, match=r"2 parts of the file fit equally well: a, b.*at="):
        unmoor.restore(tmp_path / "a.pt", model=model)
    unmoor.restore(tmp_path / "a.pt", model=model, at={"model": "b"})
    assert equal(dict(model.state_dict()), dict(two.state_dict()))
    with pytest.raises(unmoor.MismatchError, match="at= says 'c', which is not in the file"):
        unmoor.restore(tmp_path / "a.pt", model=model, at={"model": "c"})


def test_average_in_a_file_of_its_own_is_taken(tmp_path):
    """A file that is nothing but one state dict fills the one module that is asked for, whatever its role."""
    average = network(1)
    torch.save(average.state_dict(), tmp_path / "ema_0.9999_000100.pt")
    ema = network(2)
    unmoor.restore(tmp_path / "ema_0.9999_000100.pt", ema=ema)
    assert equal(dict(ema.state_dict()), dict(average.state_dict()))


def test_loss_without_tensors_needs_nothing(tmp_path):
    """A loss without tensors takes nothing from the file and is no fault."""
    run = start().train(1)
    torch.save(parts(run), tmp_path / "a.pt")
    other = start(seed=5)
    unmoor.restore(tmp_path / "a.pt", **other.roles, loss=nn.MSELoss())
    assert equal(state(other), state(run))


def test_several_models_of_a_foreign_file_go_by_key(tmp_path):
    """Models given as a dict find their parts by key, optimizers given as a list by position."""
    gen, disc = start(seed=1).train(2), start(seed=2).train(3)
    tree = {
        "netG": {"gen": gen.model.state_dict(), "disc": disc.model.state_dict()},
        "optimizers": [gen.optimizer.state_dict(), disc.optimizer.state_dict()],
    }
    torch.save(tree, tmp_path / "a.pt")
    new_gen, new_disc = start(seed=3), start(seed=4)
    unmoor.restore(
        tmp_path / "a.pt",
        model={"disc": new_disc.model, "gen": new_gen.model},
        optimizer=[new_gen.optimizer, new_disc.optimizer],
    )
    for old, new in ((gen, new_gen), (disc, new_disc)):
        assert equal(state(old)["model"], state(new)["model"])
        assert equal(state(old)["optimizer"], state(new)["optimizer"])


def test_wrong_kind_under_the_role_key_is_named(tmp_path):
    """A scheduler under the key `optimizer` is named as what it is, and nothing changes."""
    run = start().train(1)
    tree = {"model": run.model.state_dict(), "optimizer": run.scheduler.state_dict()}
    torch.save(tree, tmp_path / "a.pt")
    other = start(seed=5)
    before = state(other)
    with pytest.raises(unmoor.KindError, match=r"optimizer= was given 'optimizer' of .* holds a scheduler state"):
        unmoor.restore(tmp_path / "a.pt", model=other.model, optimizer=other.optimizer)
    assert equal(state(other), before)


def test_model_alone_comes_out_of_anything(tmp_path):
    """restore(path, model=model) takes the model out of a whole checkpoint, a nested one, or a bare state dict."""
    run = start().train(1)
    trees = (run.model.state_dict(), parts(run), {"checkpoint": {"net": {"state_dict": run.model.state_dict()}}})
    for tree in trees:
        torch.save(tree, tmp_path / "a.pt")
        model = network(6)
        unmoor.restore(tmp_path / "a.pt", model=model)
        assert equal(dict(model.state_dict()), dict(run.model.state_dict()))


def test_tensors_in_a_plain_dict_are_a_module_too(tmp_path):
    """An EMA kept as a dict or list of tensors is filled in place."""
    shadow = {name: p.detach().clone() for name, p in network(1).named_parameters()}
    unmoor.save(tmp_path / "a.pt", ema=shadow, other=3)
    mine = {name: torch.zeros_like(p) for name, p in shadow.items()}
    kept = dict(mine)
    unmoor.restore(tmp_path / "a.pt", ema=mine)
    assert equal(mine, shadow)
    assert all(mine[name] is kept[name] for name in mine)


@pytest.mark.parametrize("value", [3, "text", object()])
def test_plain_value_in_the_place_of_an_object_is_refused(tmp_path, value):
    """A value that has no load_state_dict cannot be restored into, and the error says where the file's values are."""
    unmoor.save(tmp_path / "a.pt", model=network(), step=1)
    with pytest.raises(unmoor.UsageError, match=r"step= was given a .* no load_state_dict.*\n.*report\.extra"):
        unmoor.restore(tmp_path / "a.pt", model=network(), step=value)


def test_keys_are_found_inside_the_words_of_a_path(tmp_path):
    """optimizer={"gen": ..., "disc": ...} finds `opt_gen` and `opt_disc`."""
    gen, disc = start(seed=1).train(2), start(seed=2).train(3)
    torch.save({"opt_gen": gen.optimizer.state_dict(), "opt_disc": disc.optimizer.state_dict()}, tmp_path / "a.pt")
    new_gen, new_disc = start(seed=1), start(seed=2)
    unmoor.restore(tmp_path / "a.pt", optimizer={"disc": new_disc.optimizer, "gen": new_gen.optimizer})
    assert equal(state(gen)["optimizer"], state(new_gen)["optimizer"])
    assert equal(state(disc)["optimizer"], state(new_disc)["optimizer"])


def test_modules_with_hooks_of_their_own_are_moved_and_restored(sim, tmp_path):
    """A module that loads through hooks (the older spectral norm) follows model_device, and so does its optimizer."""

    def build(seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return model, optimizer

    def train(model, optimizer, device):
        for step in range(2):
            data = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).to(device)
            optimizer.zero_grad()
            model(data).pow(2).mean().backward()
            optimizer.step()

    model, optimizer = build(1)
    train(model, optimizer, "cpu")
    unmoor.save(tmp_path / "a.pt", model=model, optimizer=optimizer)
    other, adam = build(2)
    unmoor.restore(tmp_path / "a.pt", model=other, optimizer=adam, model_device="sim:1")
    assert {p.device for p in other.parameters()} == {torch.device("sim:1")}
    assert {v.device for s in adam.state.values() for k, v in s.items() if k != "step"} == {torch.device("sim:1")}
    assert equal(on_cpu(dict(other.state_dict())), on_cpu(dict(model.state_dict())))
    train(other, adam, "sim:1")


def test_a_model_that_the_file_lacks_is_moved_with_its_optimizer(sim, tmp_path):
    """model_device moves the live model whether or not the file holds one, so that state never waits elsewhere."""
    run = start().train(1)
    torch.save({"optimizer": run.optimizer.state_dict()}, tmp_path / "a.pt")
    other = start(seed=3)
    unmoor.restore(tmp_path / "a.pt", model=other.model, optimizer=other.optimizer, model_device="sim:0")
    assert {p.device for p in other.model.parameters()} == {torch.device("sim:0")}
    other.train(1)


@pytest.mark.parametrize("rng", ["all", 3, None])
def test_other_words_for_rng_are_refused(tmp_path, rng):
    """rng= takes True, False, "exact" or a dict; anything else is named."""
    unmoor.save(tmp_path / "a.pt", model=network())
    with pytest.raises(unmoor.UsageError, match="rng="):
        unmoor.restore(tmp_path / "a.pt", model=network(), rng=rng)


def test_swapped_arguments_are_named_by_save_and_restore(tmp_path):
    """An optimizer in the model's place, or a model in the optimizer's, is named before anything is read or written."""
    run = start().train(1)
    unmoor.save(tmp_path / "a.pt", **run.roles)
    before = state(run)
    for verb in (unmoor.restore, unmoor.plan, unmoor.save):
        with pytest.raises(unmoor.UsageError, match=r"model= was given a torch\.optim\..*takes a module"):
            verb(tmp_path / "a.pt", model=run.optimizer)
        with pytest.raises(unmoor.UsageError, match=r"optimizer= was given a torch\.nn\..*takes an optimizer"):
            verb(tmp_path / "a.pt", optimizer=run.model)
    assert equal(state(run), before)


@pytest.mark.parametrize("size", ["32", 0, -1, 1.5, None, True])
def test_buffer_that_is_no_number_of_bytes_is_refused(tmp_path, size):
    """buffer_bytes takes a whole number of bytes, in every verb that has it."""
    unmoor.save(tmp_path / "a.pt", {"a": 1})
    for call in (
        lambda: unmoor.save(tmp_path / "b.pt", {"a": 1}, buffer_bytes=size),
        lambda: unmoor.load(tmp_path / "a.pt", buffer_bytes=size),
        lambda: unmoor.restore(tmp_path / "a.pt", buffer_bytes=size),
    ):
        with pytest.raises(unmoor.UsageError, match="buffer_bytes="):
            call()


def test_nothing_is_a_tree_too(tmp_path):
    """unmoor.save(path, None) writes None, as torch.save does."""
    unmoor.save(tmp_path / "a.pt", None)
    assert torch.load(tmp_path / "a.pt") is None
    assert unmoor.load(tmp_path / "a.pt") is None
