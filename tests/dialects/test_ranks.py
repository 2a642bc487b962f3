"""A run of accelerate on two ranks goes on on two ranks: each takes its own random streams from the folder."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

from tests.real.compare import differences

from .environment import ROOT
from .made import made
from .training import kept

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this build of PyTorch has no torch.distributed")
def test_each_rank_goes_on_with_its_own_streams(tmp_path: Path) -> None:
    """Both ranks end where those of the uninterrupted run did, with the draws that theirs would have made next."""
    folder = made("accelerate", "ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.dialects.ranks", str(folder / "state"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    wanted = [kept(folder, rank) for rank in (0, 1)]
    assert wanted[0]["draws"] != wanted[1]["draws"]
    for rank in (0, 1):
        assert not list(differences(wanted[rank], kept(tmp_path, rank)))
