"""hippynn: the pair of a run, its structure and its best checkpoint, with the checkpoints of its epochs.

python -m tests.dialects.writers.hippynn OUT VARIANT
"""

import shutil
import sys
import warnings
from pathlib import Path

import torch

from tests.dialects.training import keep
from tests.real.hippynn_run import start, train, write_data

EPOCH = 2
"""The epoch whose checkpoint the pair holds."""


def main(folder: Path) -> None:
    torch.manual_seed(123)
    write_data(folder / "data.npz")
    result = train(folder / "run", start(folder))
    (folder / "pair").mkdir()
    for name in ("experiment_structure.pt", f"checkpoint_epoch_{EPOCH}.pt"):
        shutil.copy(folder / "run" / name, folder / "pair")
    shutil.rmtree(folder / "run")
    keep(folder, result)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
