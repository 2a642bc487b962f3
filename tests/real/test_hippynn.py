"""A run of hippynn, saved by hippynn itself as its pair of files, taken up again on two kinds of device.

Its pickled objects with the classes that are trusted by name, and its state with nothing trusted at all.
"""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from unmoor.values.nodes import Opaque

from .compare import bits, differences, tensors

if find_spec("hippynn") is None:  # importing it here would be before hippynn_run has made its settings
    pytest.skip('hippynn is not installed: pip install "unmoor[real]"', allow_module_level=True)

from . import hippynn_run
from .hippynn_run import LAST_EPOCH, load_checkpoint, outcome, restore_checkpoint, start, tracker_of, train

pytestmark = pytest.mark.real

TRACKER = "hippynn.experiment.metric_tracker.MetricTracker"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """One thread: sums over several may round otherwise from one run to the next."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["cpu", "sim:0"])
def device(request: pytest.FixtureRequest) -> str:
    """A device of this machine."""
    if request.param != "cpu":
        request.getfixturevalue("sim")
    return str(request.param)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the molecules."""
    folder = tmp_path_factory.mktemp("hippynn")
    hippynn_run.write_data(folder / "data.npz")
    return folder


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    """The folder of an uninterrupted run on the CPU, with the files that hippynn wrote on the way."""
    torch.manual_seed(123)
    train(data / "run", start(data))
    return data / "run"


@pytest.fixture(scope="module")
def expected(data: Path, finished: Path) -> Any:
    """Device -> where a run that is resumed from epoch 2 must end.

    On the CPU that is where the uninterrupted run did, elsewhere where one does that hippynn itself moved there.
    """
    known = {"cpu": outcome(finished / f"checkpoint_epoch_{LAST_EPOCH}.pt")}

    def find(device: str) -> dict[str, Any]:
        if device not in known:
            files = [str(finished / name) for name in ("experiment_structure.pt", "checkpoint_epoch_2.pt")]
            run = load_checkpoint(*files, restart_db=True, model_device=device)
            known[device] = train(data / f"moved_{device.replace(':', '_')}", run)
        return known[device]

    return find


def test_hippynn_itself_moves_the_run_to_the_accelerator(sim: object, expected: Any) -> None:
    """What the runs on the simulated accelerator are held against: hippynn's own move, with losses as on the CPU."""
    there, here = (expected(device)["metric_tracker"]["epoch_metric_values"] for device in ("sim:0", "cpu"))
    assert len(there) == LAST_EPOCH + 1
    assert there[-1]["valid"] == pytest.approx(here[-1]["valid"], rel=1e-3)


def trusted(path: Path) -> list[str]:
    """The names in a file that belong to hippynn and to torch's modules and optimizers, and the sums of its losses."""
    ours = ("hippynn.", "torch.nn.", "torch.optim.", "_operator.")
    return [name for name in unmoor.describe(path).globals if name.startswith(ours)]


def devices(items: Any) -> set[str]:
    """The devices of named tensors, which must not be none at all."""
    found = {str(tensor.device) for _, tensor in items}
    assert found
    return found


@pytest.mark.parametrize("name", ["experiment_structure.pt", "structure_trained.pt"])
def test_the_pickled_objects_are_placed_by_role(finished: Path, device: str, name: str) -> None:
    """Model, loss and Adam's moments are on the device, its counters and the evaluator's loss on the CPU."""
    tree = unmoor.load(finished / name, model_device=device, trust=trusted(finished / name))
    model, loss, evaluator = tree["training_modules"]
    assert devices([*model.named_parameters(), *model.named_buffers()]) == {device}
    assert devices(loss.named_buffers()) == {device}
    assert devices(evaluator.loss.named_buffers()) == {"cpu"}
    assert evaluator.model is model
    optimizer = tree["controller"].optimizer
    assert tree["controller"].scheduler_list[0].optimizer is optimizer
    held = optimizer.param_groups[0]["params"]
    assert all(one is other for one, other in zip(held, model.parameters(), strict=True))
    assert bool(optimizer.state) == (name == "structure_trained.pt")
    for parameter, state in optimizer.state.items():
        assert {key: str(value.device) for key, value in state.items()} == {
            "step": "cpu", "exp_avg": str(parameter.device), "exp_avg_sq": str(parameter.device),
        }  # fmt: skip


@pytest.mark.parametrize("name", ["experiment_structure.pt", "structure_trained.pt"])
def test_the_pickled_objects_hold_the_values_that_torch_loads(finished: Path, device: str, name: str) -> None:
    """Every tensor of model, losses and optimizer, the settings and the recipe of the database are torch.load's."""
    theirs = torch.load(finished / name, map_location="cpu", weights_only=False)
    ours = unmoor.load(finished / name, model_device=device, trust=trusted(finished / name))
    for one, other in zip(_modules(ours), _modules(theirs), strict=True):
        assert [name for name, _ in _named(one)] == [name for name, _ in _named(other)]
        assert [bits(tensor) for _, tensor in _named(one)] == [bits(tensor) for _, tensor in _named(other)]
    states = [tree["controller"].state_dict() for tree in (ours, theirs)]
    assert [bits(tensor) for _, tensor in tensors(states[0])] == [bits(tensor) for _, tensor in tensors(states[1])]
    assert {**states[0], "optimizer": None} == {**states[1], "optimizer": None}
    assert vars(ours["database"]) == vars(theirs["database"])


def _modules(tree: Any) -> list[nn.Module]:
    return [tree["training_modules"][0], tree["training_modules"][1], tree["training_modules"].evaluator.loss]


def _named(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def test_the_state_file_is_placed_by_role(finished: Path, device: str) -> None:
    """Model and moments are on the device; counters, the tracker's best model and the random numbers on the CPU."""
    path = finished / "checkpoint_epoch_4.pt"
    state = unmoor.load(path, model_device=device, trust=[TRACKER])
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    assert devices(state["model"].items()) == {device}
    moments = [(keys, t) for keys, t in tensors(state["controller"]["optimizer"]) if keys[-1] != "step"]
    counters = [(keys, t) for keys, t in tensors(state["controller"]["optimizer"]) if keys[-1] == "step"]
    assert (devices(moments), devices(counters)) == ({device}, {"cpu"})
    assert devices(state["metric_tracker"].best_model.items()) == {"cpu"}
    assert (state["torch_rng_state"].dtype, str(state["torch_rng_state"].device)) == (torch.uint8, "cpu")
    for one, other in ((state, theirs), (vars(state["metric_tracker"]), vars(theirs["metric_tracker"]))):
        pairs = zip(tensors(one), tensors(other), strict=True)
        assert all((a, bits(x)) == (b, bits(y)) for (a, x), (b, y) in pairs)


def test_the_next_epochs_of_the_pickled_objects_are_equal(
    data: Path, finished: Path, device: str, expected: Any, tmp_path: Path
) -> None:
    """After hippynn's own restore of the state into the objects its own training ends where it must, bit for bit."""
    path = finished / "experiment_structure.pt"
    structure = unmoor.load(path, model_device=device, trust=trusted(path))
    state = unmoor.load(finished / "checkpoint_epoch_2.pt", model_device=device, trust=[TRACKER])
    run = restore_checkpoint(structure, state, restart_db=True)
    evaluator = run["training_modules"].evaluator
    evaluator.model_device = next(evaluator.model.parameters()).device  # as hippynn's load_checkpoint does
    assert not list(differences(expected(device), train(tmp_path / "run", run)))


def test_the_state_alone_goes_into_objects_of_ones_own(data: Path, finished: Path, device: str) -> None:
    """With nothing trusted, all values arrive: partial optimizer state, a list of one scheduler, an inert tracker."""
    path = finished / "checkpoint_epoch_4.pt"
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    run = start(data, device)
    model, control = run["training_modules"].model, run["controller"]
    report = unmoor.restore(path, model=model, optimizer=control.optimizer, scheduler=control.scheduler_list)
    assert report.restored == ("model", "optimizer", "scheduler[0]", "rng")
    assert [bits(v) for v in model.state_dict().values()] == [bits(v) for v in theirs["model"].values()]
    parameters = list(model.parameters())
    assert parameters[0] not in control.optimizer.state  # the map of the species, which is not trained
    assert len(control.optimizer.state) == len(parameters) - 1 == len(theirs["controller"]["optimizer"]["state"])
    for index, state in theirs["controller"]["optimizer"]["state"].items():
        own = control.optimizer.state[parameters[index]]
        assert {key: bits(value) for key, value in own.items()} == {key: bits(value) for key, value in state.items()}
        assert own["exp_avg"].device == parameters[index].device == torch.device(device)
        assert own["step"].device == torch.device("cpu")
    assert control.scheduler_list[0].state_dict() == theirs["controller"]["scheduler"][0]
    counters = {k: v for k, v in theirs["controller"].items() if k not in ("optimizer", "scheduler")}
    assert report.extra["controller"] == counters
    tracker = report.extra["metric_tracker"]
    assert isinstance(tracker, Opaque)
    assert repr(tracker).startswith(f"<{TRACKER}(metric_names=<list>, stopping_key='MSE'")
    assert repr(tracker).endswith("not built>")
    assert tracker.state["epoch_metric_values"] == theirs["metric_tracker"].epoch_metric_values
    assert devices(tracker.state["best_model"].items()) == {"cpu"}
    assert torch.equal(torch.get_rng_state(), theirs["torch_rng_state"])


def test_the_next_epochs_of_objects_of_ones_own_are_equal(
    data: Path, finished: Path, device: str, expected: Any, tmp_path: Path
) -> None:
    """The run that was built anew and restored trains on as the run it must equal, bit for bit."""
    run = start(data, device)
    model, control = run["training_modules"].model, run["controller"]
    report = unmoor.restore(
        finished / "checkpoint_epoch_2.pt", model=model, optimizer=control.optimizer, scheduler=control.scheduler_list
    )
    vars(control).update(report.extra["controller"])
    run["metric_tracker"] = tracker_of(report.extra["metric_tracker"].state)
    assert not list(differences(expected(device), train(tmp_path / "run", run)))


def test_the_controller_takes_its_own_state(data: Path, finished: Path, expected: Any, tmp_path: Path) -> None:
    """The controller of hippynn, passed under its own name, loads optimizer, scheduler and counters itself."""
    run = start(data)
    report = unmoor.restore(
        finished / "checkpoint_epoch_2.pt", model=run["training_modules"].model, controller=run["controller"]
    )
    assert report.restored == ("model", "controller", "rng")
    run["metric_tracker"] = tracker_of(report.extra["metric_tracker"].state)
    assert not list(differences(expected("cpu"), train(tmp_path / "run", run)))


def test_a_run_that_unmoor_saved_trains_on_as_well(data: Path, finished: Path, expected: Any, tmp_path: Path) -> None:
    """Restored from hippynn's file, saved by unmoor, restored from that: the next epochs are still the same."""
    first = start(data)
    control = first["controller"]
    objects = {"model": first["training_modules"].model, "optimizer": control.optimizer}
    report = unmoor.restore(finished / "checkpoint_epoch_2.pt", **objects, scheduler=control.scheduler_list)
    values = {"counters": report.extra["controller"], "tracker": report.extra["metric_tracker"].state}
    unmoor.save(tmp_path / "ours.pt", **objects, scheduler=control.scheduler_list, **values)

    run = start(data)
    control = run["controller"]
    report = unmoor.restore(
        tmp_path / "ours.pt",
        model=run["training_modules"].model,
        optimizer=control.optimizer,
        scheduler=control.scheduler_list,
    )
    vars(control).update(report.extra["counters"])
    run["metric_tracker"] = tracker_of(report.extra["tracker"])
    assert not list(differences(expected("cpu"), train(tmp_path / "run", run)))


WITHOUT_HIPPYNN = """
import sys
import torch
import unmoor

sys.modules["hippynn"] = None  # importing it raises
for path in sys.argv[1:]:
    unmoor.describe(path)
    tree = unmoor.load(path, model_device="cpu")
    print({key: type(value).__name__ for key, value in tree.items()})
"""


def test_both_files_are_read_where_hippynn_is_not_installed(finished: Path) -> None:
    """Without trust nothing of hippynn is needed: what its classes would have made is inert, all else is there."""
    files = [str(finished / name) for name in ("structure_trained.pt", "checkpoint_epoch_4.pt")]
    command = [sys.executable, "-c", WITHOUT_HIPPYNN, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "{'training_modules': 'Opaque', 'controller': 'Opaque', 'database': 'Opaque'}",
        "{'model': 'OrderedDict', 'controller': 'dict', 'metric_tracker': 'Opaque', 'torch_rng_state': 'Tensor'}",
    ]
