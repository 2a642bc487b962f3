"""DeepSpeed itself goes on with folders that unmoor cut for another number of ranks."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import unmoor

from . import environment
from .made import VARIANTS, made
from .training import kept

pytestmark = [pytest.mark.real, pytest.mark.slow]

RANKS = (1, 4)
LIMIT = 300
"""Seconds that a launch may take on a machine that is busy with others."""

STAGES = [variant for variant in VARIANTS["deepspeed"] if variant != "zero0"]
LAYOUTS = ("robin", "aligned", "sub_groups", "accumulated")
"""Written by `deepspeed_layouts`; DeepSpeed cannot load what it saves elastic with an optimizer of PyTorch."""

BF16 = {variant for variant in (*STAGES, *LAYOUTS) if variant.endswith("bf16")} | {"aligned", "accumulated"}


def saved(variant: str) -> Path:
    """The folder that two ranks saved."""
    if variant in STAGES:
        return made("deepspeed", variant) / "saved"
    return made("deepspeed_layouts", "all") / variant


def expected(variant: str) -> dict[str, Any]:
    """What the ranks that saved held then, and the losses of the first of them in the next steps."""
    if variant in LAYOUTS:
        return kept(made("deepspeed_layouts", "all"))[variant]
    tree, outcome = unmoor.load(saved(variant)), kept(made("deepspeed", variant))
    state = tree["optimizer"]["state"]
    kinds = ("exp_avg", "exp_avg_sq")
    held = {name: {"weight": tree["model"][name].float(), **{k: state[name][k] for k in kinds}} for name in state}
    return {"held": held, "losses": outcome["losses"], "rates": outcome["rates"]}


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks} ranks")
def resumed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each run held and did on that many ranks, all of them in one launch."""
    ranks, folder = request.param, tmp_path_factory.mktemp("repartition")
    runs = {variant: folder / variant for variant in (*STAGES, *LAYOUTS)}
    for variant, target in runs.items():
        unmoor.repartition(saved(variant), target, ranks=ranks)
    launch(ranks, folder / "out.pt", runs)
    return torch.load(folder / "out.pt", weights_only=True)


def launch(ranks: int, out: Path, runs: dict[str, Path]) -> None:
    """Start DeepSpeed's own processes; all of them are ended after the time limit."""
    script = f"{__package__}.writers.deepspeed_resumed"
    command = [str(environment.python()), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", script, str(out), *(f"{variant}={target}" for variant, target in runs.items())]
    with subprocess.Popen(
        command,
        cwd=environment.ROOT,
        env=environment.settings(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            words, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            words, _ = process.communicate()
    assert process.returncode == 0, words[-6000:]


@pytest.mark.parametrize("variant", [*STAGES, *LAYOUTS])
def test_deepspeed_goes_on_with_another_number_of_ranks(resumed: dict[str, Any], variant: str) -> None:
    """Weights and moments are those that were saved, bit for bit; the next losses are those of the run that went on."""
    found, wanted = resumed[variant], expected(variant)
    assert found["loaded"].keys() == wanted["held"].keys()
    for name, own in found["loaded"].items():
        for kind, value in own.items():
            assert torch.equal(value, wanted["held"][name][kind]), (name, kind)
    exact = {"rel": 0, "abs": 1e-3} if variant in BF16 else {"rel": 1e-6}
    assert found["losses"][0] == wanted["losses"][0]
    assert found["losses"] == pytest.approx(wanted["losses"], **exact)
    assert found["words"] == 24
    assert found["rates"] == wanted.get("rates", found["rates"])


@pytest.mark.parametrize("layout", [*LAYOUTS, "elastic"])
def test_layouts_of_deepspeed_are_read_as_its_ranks_held_them(layout: str) -> None:
    """Also those that are out of the order in which DeepSpeed's own maps list them."""
    tree = unmoor.load(made("deepspeed_layouts", "all") / layout)
    for name, own in kept(made("deepspeed_layouts", "all"))[layout]["held"].items():
        assert torch.equal(tree["model"][name].float(), own["weight"])
        assert torch.equal(tree["optimizer"]["state"][name]["exp_avg"], own["exp_avg"])
