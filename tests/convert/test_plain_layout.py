"""convert with layout="plain": one dict by role that plain torch takes, whoever wrote it; a restore is the same."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.distributed import checkpoint as dcp

import unmoor
from tests.describe.zero_maker import Shape, ZeroMaker

from .trees import difference, run

pytestmark = pytest.mark.filterwarnings("ignore:.*(TypedStorage|torch.distributed is)")


def loaded(path):
    return torch.load(path, weights_only=True)


def states():
    """A run that has stepped: model, optimizer, scheduler as state dicts, and an average."""
    model, optimizer = run()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    average = {
        name: tensor * 0.5 if tensor.is_floating_point() else tensor for name, tensor in model.state_dict().items()
    }
    return model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), average


def lightning(folder):
    model, optimizer, scheduler, _ = states()
    tree = {
        "epoch": 3,
        "global_step": 7,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {f"model.{name}": value for name, value in model.items()},
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}},
        "optimizer_states": [optimizer],
        "lr_schedulers": [scheduler],
        "hyper_parameters": {"lr": 0.1},
    }
    torch.save(tree, folder / "last.ckpt")
    return folder / "last.ckpt"


def accelerate(folder):
    model, optimizer, scheduler, _ = states()
    made = folder / "accelerate"
    made.mkdir()
    safetensors.torch.save_file({k: v.contiguous() for k, v in model.items()}, made / "model.safetensors")
    torch.save(optimizer, made / "optimizer.bin")
    torch.save(scheduler, made / "scheduler.bin")
    torch.manual_seed(3)
    for rank in range(2):
        state = {"step": 5, "random_state": random.Random(rank).getstate()}
        state |= {
            "numpy_random_seed": np.random.RandomState(rank).get_state(),
            "torch_manual_seed": torch.get_rng_state(),
        }
        (made / f"random_states_{rank}.pkl").write_bytes(b"")
        torch.save(state, made / f"random_states_{rank}.pkl")
    return made


def trainer(folder):
    model, optimizer, scheduler, _ = states()
    made = folder / "checkpoint-10"
    made.mkdir()
    torch.save(model, made / "pytorch_model.bin")
    torch.save(optimizer, made / "optimizer.pt")
    torch.save(scheduler, made / "scheduler.pt")
    rng = {
        "python": random.Random(1).getstate(),
        "numpy": np.random.RandomState(1).get_state(),
        "cpu": torch.get_rng_state(),
    }
    torch.save(rng, made / "rng_state.pth")
    (made / "trainer_state.json").write_text('{"global_step": 10}')
    return made


def diffusion(folder):
    model, optimizer, _, average = states()
    made = folder / "diffusion"
    made.mkdir()
    torch.save(model, made / "model000010.pt")
    torch.save(average, made / "ema_0.9_000010.pt")
    torch.save(optimizer, made / "opt000010.pt")
    return made


def timm(folder):
    model, optimizer, _, average = states()
    tree = {
        "epoch": 4,
        "arch": "net",
        "state_dict": model,
        "optimizer": optimizer,
        "state_dict_ema": average,
        "metric": 0.5,
    }
    torch.save(tree, folder / "timm.pth.tar")
    return folder / "timm.pth.tar"


def nested(folder):
    model, optimizer, scheduler, _ = states()
    tree = {
        "model": {"state_dict": model, "model_args": {"dim": 64}},
        "optimizer": optimizer,
        "scheduler": scheduler,
        "history": [1, 2],
    }
    torch.save(tree, folder / "nested.pt")
    return folder / "nested.pt"


def pickled(folder):
    model, optimizer = run()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    torch.save({"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": 2}, folder / "whole.pt")
    return folder / "whole.pt"


def bare(folder):
    torch.save(states()[0], folder / "weights.pt")
    return folder / "weights.pt"


def sharded(folder):
    model, optimizer = run()
    tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "train_state": {"step": torch.tensor(4)}}
    dcp.save(tree, checkpoint_id=folder / "sharded")
    return folder / "sharded"


def ours(folder):
    model, optimizer = run()
    unmoor.save(folder / "ours.pt", model=model, optimizer=optimizer, step=1)
    return folder / "ours.pt"


SOURCES = {
    "lightning": (lightning, {"model", "optimizer", "scheduler"}),
    "accelerate": (accelerate, {"model", "optimizer", "scheduler", "rng", "ranks"}),
    "trainer": (trainer, {"model", "optimizer", "scheduler", "rng"}),
    "diffusion": (diffusion, {"model", "ema", "optimizer"}),
    "timm": (timm, {"model", "ema", "optimizer"}),
    "nested": (nested, {"model", "optimizer", "scheduler"}),
    "pickled": (pickled, {"model", "optimizer", "scheduler"}),
    "bare": (bare, {"model"}),
    "sharded": (sharded, {"model", "optimizer"}),
    "ours": (ours, {"model", "optimizer", "rng"}),
}

WORDS = {"model", "ema", "loss", "optimizer", "scheduler", "scaler", "metrics", "loader", "rng", "ranks"}


@pytest.mark.parametrize("name", SOURCES)
def test_plain_torch_takes_every_role(tmp_path, name):
    """torch.load with its safe default, then load_state_dict of plain PyTorch: model, optimizer, scheduler, average."""
    make, roles = SOURCES[name]
    source = make(tmp_path)
    unmoor.convert(source, tmp_path / "plain.pt", layout="plain", strip="auto" if name == "lightning" else None)
    found = loaded(tmp_path / "plain.pt")
    assert WORDS & set(found) == roles
    model, optimizer = run()
    wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = optimizer.state_dict()["state"][0]["exp_avg"].clone()
    with torch.no_grad():
        model[0].weight.zero_()
    model.load_state_dict(found["model"])
    assert difference(dict(model.state_dict()), wanted) == ""
    if "optimizer" in roles:
        other = torch.optim.AdamW(model.parameters(), lr=1)
        other.load_state_dict(found["optimizer"])
        assert torch.equal(other.state_dict()["state"][0]["exp_avg"], state)
    if "ema" in roles:
        model.load_state_dict(found["ema"])
    if "scheduler" in roles:
        torch.optim.lr_scheduler.StepLR(other, 5).load_state_dict(found["scheduler"])
    if "rng" in roles:
        torch.set_rng_state(found["rng"]["torch"])


@pytest.mark.parametrize("name", SOURCES)
def test_a_restore_of_it_is_a_restore_of_the_source(tmp_path, name):
    """The same objects come to the same state, streams and rates included, and the same roles are restored."""
    make, roles = SOURCES[name]
    source = make(tmp_path)
    unmoor.convert(source, tmp_path / "plain.pt", layout="plain")
    results = []
    for path in (source, tmp_path / "plain.pt"):
        model, optimizer = run()
        ema, _ = run()
        with torch.no_grad():
            model[0].weight.zero_()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        objects = {"model": model}
        objects |= {"optimizer": optimizer} if "optimizer" in roles else {}
        objects |= {"scheduler": scheduler} if "scheduler" in roles else {}
        objects |= {"ema": ema} if "ema" in roles else {}
        torch.manual_seed(99)
        random.seed(99)
        np.random.seed(99)
        report = unmoor.restore(path, **objects)
        draws = (torch.rand(3).tolist(), random.random(), np.random.rand())
        results.append((set(report.restored), {k: v.state_dict() for k, v in objects.items()}, draws))
    assert results[0][0] == results[1][0]
    assert {k: difference(v, results[1][1][k]) for k, v in results[0][1].items()} == dict.fromkeys(results[0][1], "")
    assert results[0][2] == results[1][2]


def test_what_plays_no_role_keeps_its_key(tmp_path):
    """Other values stand where they stood; one whose key a role takes stands under `extra`."""
    unmoor.convert(nested(tmp_path), tmp_path / "a.pt", layout="plain")
    found = loaded(tmp_path / "a.pt")
    assert (found["history"], found["extra"]) == ([1, 2], {"model": {"model_args": {"dim": 64}}})
    unmoor.convert(lightning(tmp_path), tmp_path / "b.pt", layout="plain")
    found = loaded(tmp_path / "b.pt")
    assert (found["epoch"], found["hyper_parameters"]) == (3, {"lr": 0.1})
    assert "optimizer_states" not in found
    assert found["callbacks"]["ModelCheckpoint"]["best_model_score"] == 0.5


def test_several_of_a_role_keep_their_keys(tmp_path):
    """Models by name are a dict by name, optimizers in a list are a list; a restore finds each by its key."""
    nets = {name: nn.Linear(3, 3) for name in ("netG", "netD")}
    optimizers = [torch.optim.SGD(net.parameters(), 0.1, momentum=0.9) for net in nets.values()]
    for net, optimizer in zip(nets.values(), optimizers, strict=True):
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    tree = {name: net.state_dict() for name, net in nets.items()}
    torch.save({**tree, "optimizers": [one.state_dict() for one in optimizers]}, tmp_path / "a.pt")
    unmoor.convert(tmp_path / "a.pt", tmp_path / "b.pt", layout="plain")
    found = loaded(tmp_path / "b.pt")
    assert (list(found["model"]), len(found["optimizer"])) == (["netG", "netD"], 2)
    for path in ("a.pt", "b.pt"):
        live = {"G": nn.Linear(3, 3), "D": nn.Linear(3, 3)}
        unmoor.restore(tmp_path / path, model=live)
        assert torch.equal(live["G"].weight, nets["netG"].weight)
        assert torch.equal(live["D"].weight, nets["netD"].weight)


def test_ranks_find_their_random_states(tmp_path):
    """The states that accelerate keeps in one file a rank stand by rank, as a save of several ranks has them."""
    unmoor.convert(accelerate(tmp_path), tmp_path / "b.pt", layout="plain")
    manifest = unmoor.describe(tmp_path / "b.pt").manifest
    assert (manifest["world_size"], list(manifest["ranks"])) == (2, ["1"])
    found = loaded(tmp_path / "b.pt")
    assert found["rng"]["python"] == random.Random(0).getstate()
    assert found["ranks"]["1"]["rng"]["python"] == random.Random(1).getstate()


def test_shards_of_zero_become_one_file(tmp_path):
    """What DeepSpeed cut among ranks is one dict with whole fp32 weights and optimizer state by name."""
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    ZeroMaker(model, optimizer, Shape(stage=2, world=2)).write(tmp_path / "zero")
    unmoor.convert(tmp_path / "zero", tmp_path / "b.pt", layout="plain", opaque="drop")
    found = loaded(tmp_path / "b.pt")
    assert difference(dict(found["model"]), dict(model.state_dict())) == ""
    other = torch.optim.AdamW(model.parameters())
    report = unmoor.restore(tmp_path / "b.pt", model=model, optimizer=other)
    assert "optimizer" in report.restored
    assert torch.equal(other.state[model[0].weight]["exp_avg"], optimizer.state[model[0].weight]["exp_avg"])


def test_parts_of_the_plain_layout(tmp_path):
    """only= and drop= speak of the plain layout: a role that is there only after it is laid out can be taken alone."""
    unmoor.convert(timm(tmp_path), tmp_path / "ema.pt", layout="plain", only="ema")
    assert difference(loaded(tmp_path / "ema.pt"), dict(states()[3])) == ""
    unmoor.convert(timm(tmp_path), tmp_path / "b.pt", layout="plain", drop=["optimizer", "ema", "metric"])
    assert list(loaded(tmp_path / "b.pt")) == ["model", "epoch", "arch"]


def test_a_model_of_safetensors_tells_no_order(tmp_path):
    """Names of safetensors stand in no order of the model: the plain file says so, and nothing is matched by it."""
    unmoor.convert(accelerate(tmp_path), tmp_path / "b.pt", layout="plain")
    (part,) = unmoor.describe(tmp_path / "b.pt").part("model")
    assert part.detail["ordered"] is False


def test_pickle_is_needed_by_nothing(tmp_path):
    """Not a class of any program is named in what is written."""
    unmoor.convert(pickled(tmp_path), tmp_path / "b.pt", layout="plain")
    assert unmoor.describe(tmp_path / "b.pt").globals
    assert all(name.startswith(("torch.", "collections.")) for name in unmoor.describe(tmp_path / "b.pt").globals)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "whole.pt", weights_only=True)
