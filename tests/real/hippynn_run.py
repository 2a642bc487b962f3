"""A small training run of hippynn, which writes its own checkpoints, and what it takes to go on with one.

hippynn reads its settings from the environment when it is imported, so this file sets them first.
"""

import os
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HIPPYNN_USE_CUSTOM_KERNELS", "False")
os.environ.setdefault("HIPPYNN_PROGRESS", "none")

import numpy as np
import torch

with warnings.catch_warnings():  # it builds kernels with what PyTorch has deprecated
    warnings.simplefilter("ignore")
    import hippynn
    import hippynn.experiment.metric_tracker
    from hippynn.experiment import assemble_for_training, setup_training, train_model
    from hippynn.experiment.assembly import TrainingModules
    from hippynn.experiment.controllers import PatienceController
    from hippynn.experiment.metric_tracker import MetricTracker
    from hippynn.experiment.serialization import create_structure_file, load_checkpoint, restore_checkpoint
    from hippynn.graphs import inputs, loss, networks, targets

hippynn.experiment.metric_tracker.plot_all_over_time = lambda *_: None  # pictures take longer than the training

__all__ = [
    "LAST_EPOCH",
    "load_checkpoint",
    "outcome",
    "restore_checkpoint",
    "start",
    "tracker_of",
    "train",
    "write_data",
]

LAST_EPOCH = 6

NETWORK = {
    "possible_species": [0, 1, 6, 8],
    "n_features": 4,
    "n_sensitivities": 4,
    "dist_soft_min": 0.5,
    "dist_soft_max": 4.0,
    "dist_hard_max": 5.0,
    "n_interaction_layers": 1,
    "n_atom_layers": 1,
}


def write_data(path: Path) -> None:
    """Sixty bent squares of four atoms and an energy that depends on their distances and species."""
    random = np.random.RandomState(0)
    species = random.choice([1, 6, 8], size=(60, 4))
    square = np.array([[0, 0, 0], [1.5, 0, 0], [0, 1.5, 0], [1.5, 1.5, 0]])
    positions = square + 0.2 * random.standard_normal((60, 4, 3)).clip(-1, 1)
    distances = np.linalg.norm(positions[:, :, None] - positions[:, None], axis=-1)
    energy = np.exp(-distances).sum((1, 2))[:, None] + 0.1 * species.sum(1, keepdims=True)
    np.savez(path, Z=species, R=positions, T=energy)


def assemble() -> tuple[TrainingModules, dict[str, Any]]:
    """Model, training loss and evaluator; both losses hold a constant, which is a buffer of theirs."""
    torch.manual_seed(0)
    species, positions = inputs.SpeciesNode(db_name="Z"), inputs.PositionsNode(db_name="R")
    network = networks.Hipnn("hipnn", (species, positions), module_kwargs=NETWORK)
    energy = targets.HEnergyNode("HEnergy", network, db_name="T")
    square, absolute = loss.MSELoss.of_node(energy), loss.MAELoss.of_node(energy)
    return assemble_for_training(square + 0.1 * absolute, {"MSE": square, "Twice": 2.0 * absolute})


def database(folder: Path, info: dict[str, Any]) -> Any:
    """The molecules, split the same way every time."""
    return hippynn.databases.NPZDatabase(
        str(folder / "data.npz"), seed=11, test_size=0.2, valid_size=0.2, quiet=True, pin_memory=False, **info
    )


def controller(modules: TrainingModules) -> PatienceController:
    """Adam, a scheduler in a list of one, and the counters of the run."""
    optimizer = torch.optim.Adam(modules.model.parameters(), lr=5e-2)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    return PatienceController(
        optimizer=optimizer,
        scheduler=[scheduler],
        batch_size=8,
        eval_batch_size=16,
        max_epochs=LAST_EPOCH + 1,
        termination_patience=20,
        stopping_key="MSE",
        fraction_train_eval=0.5,
        quiet=True,
    )


def start(folder: Path, device: str = "cpu") -> dict[str, Any]:
    """A fresh run, as the arguments of hippynn's train_model. hippynn moves the model after its optimizer is built."""
    modules, info = assemble()
    setup = hippynn.experiment.SetupParams(controller=controller(modules), device=device)
    modules, control, tracker = setup_training(modules, setup)
    data = database(folder, info)
    return {"training_modules": modules, "database": data, "controller": control, "metric_tracker": tracker}


def train(folder: Path, run: dict[str, Any]) -> dict[str, Any]:
    """Let hippynn train to its last epoch, its files in a new `folder`; what it wrote of that epoch."""
    folder.mkdir()
    # hippynn compiles its kernels, which takes longer than the training; uncompiled they are plain PyTorch.
    with hippynn.tools.active_directory(str(folder)), torch.compiler.set_stance("force_eager"):
        train_model(**run, callbacks=None, batch_callbacks=None, store_every=2, quiet=True)
        # The structure of a run under way: its optimizer has state.
        create_structure_file(run["training_modules"], run["database"], run["controller"], "structure_trained.pt")
    return outcome(folder / f"checkpoint_epoch_{LAST_EPOCH}.pt")


def outcome(path: Path) -> dict[str, Any]:
    """The checkpoint of hippynn as plain values on the CPU, without the times that its epochs took."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    tracker = {key: value for key, value in vars(state["metric_tracker"]).items() if key != "epoch_times"}
    return {**state, "metric_tracker": tracker}


def tracker_of(state: dict[str, Any]) -> MetricTracker:
    """A MetricTracker with the attributes that a file holds of one."""
    made = MetricTracker(state["metric_names"], stopping_key=state["stopping_key"])
    made.__dict__.update(state)
    return made
