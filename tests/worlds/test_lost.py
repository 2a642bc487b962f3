"""Processes that end while others wait for them: no torchrun here, which would end the others too."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import distributed as dist

from tests.worlds.launch import ROOT

LIMIT = 150.0


def test_a_killed_rank_and_a_store_that_is_gone_are_told_in_sentences(tmp_path):
    """The others name the lost rank, both where it was lost and at the next call; without a store each says so."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": "3",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.worlds.ranks.lost", str(tmp_path)]
    ranks = [subprocess.Popen(command, cwd=ROOT, env={**env, "RANK": str(rank)}) for rank in range(3)]
    try:
        _wait(lambda: all((tmp_path / f"ready{rank}").exists() for rank in (0, 2)))
        del store
        (tmp_path / "gone").touch()
        codes = [process.wait(LIMIT) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert codes[1] == -9
    for rank in (0, 2):
        _, _, text = torch.load(tmp_path / f"result-{rank}.pt", weights_only=True)["failed"]
        lost, absent, gone, alone = text.split("\n\n")
        assert lost.startswith("RankError: restore of ")
        assert "rank 1 of 3 was lost at 'prepare'" in lost or "rank 1 of 3 was lost at 'restore'" in lost
        assert "Its process was killed, hangs, or left the call" in lost
        assert absent.startswith("RankError: ")
        assert "rank 1 of 3 did not come within 1 s" in absent
        assert gone.startswith("RankError: the store of torch.distributed, through which ranks meet, cannot be reached")
        assert "group=None" in gone
        assert alone.startswith("restored")


def _wait(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not there():
        if time.monotonic() > deadline:
            raise TimeoutError("the ranks did not come so far")
        time.sleep(0.05)
