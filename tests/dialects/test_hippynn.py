"""The pair of files of a hippynn run, given as their folder, goes on where the uninterrupted run did.

The model is made of hippynn's own layers and its epochs are hippynn's, so it is needed here too.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import unmoor
from tests.real.compare import differences

from .made import made
from .training import kept

if find_spec("hippynn") is None:  # importing it here would be before hippynn_run has made its settings
    pytest.skip('hippynn is not installed: pip install "unmoor[real]"', allow_module_level=True)

from tests.real.hippynn_run import start, tracker_of, train

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture
def pair() -> Iterator[Path]:
    """The folder of the pair, in a process that computes on one thread as its writer did."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield made("hippynn", "pair") / "pair"
    torch.set_num_threads(threads)


def test_the_folder_is_one_checkpoint(pair: Path) -> None:
    """The state is what is restored; the structure, pickled objects, is described and stands aside."""
    catalog = unmoor.describe(pair)
    assert catalog.dialect == "hippynn"
    assert set(catalog.facts["files"]) == {path.name for path in pair.iterdir()}
    tree = unmoor.load(pair, model_device="cpu")
    assert set(tree) == {path.name for path in pair.iterdir()}


def test_the_next_epochs_are_those_of_the_uninterrupted_run(pair: Path, tmp_path: Path) -> None:
    """Model, optimizer, schedulers, counters, tracker and random numbers go on as they were, bit for bit."""
    run = start(pair.parent)
    control = run["controller"]
    report = unmoor.restore(
        pair, model=run["training_modules"].model, optimizer=control.optimizer, scheduler=control.scheduler_list
    )
    assert report.restored == ("model", "optimizer", "scheduler[0]", "rng")
    saved = report.extra["checkpoint_epoch_2.pt"]
    vars(control).update(saved["controller"])
    run["metric_tracker"] = tracker_of(saved["metric_tracker"].state)
    got = train(tmp_path / "run", run)
    wanted = kept(pair.parent)
    assert not list(differences(plain(wanted), plain(got)))


def plain(result: dict[str, Any]) -> dict[str, Any]:
    """An outcome of hippynn in plain containers."""
    return {**result, "metric_tracker": dict(result["metric_tracker"])}
