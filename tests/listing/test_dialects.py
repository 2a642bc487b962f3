"""The folders of every program are listed, and what is said to be the newest is what `restore` takes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import unmoor
from tests.cases.files import same_bits, tiny, trained
from tests.listing.makers import FOLDERS, STEPS, made
from unmoor.values.listing import Listing, Saved

NAMES = {
    "unmoor": "step_{:09d}.pt", "hf-trainer": "checkpoint-{}", "accelerate": "checkpoint_{}",
    "deepspeed": "global_step{}", "torchtitan": "step-{}", "dcp": "ckpt_{}", "guided-diffusion": "*{:06d}.pt",
    "hippynn": "checkpoint_epoch_{}.pt", "megatron": "iter_{:07d}",
}  # fmt: skip


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of every program, named by it."""
    return made(request.param, tmp_path / request.param)


def test_lists_the_newest_first(folder: Path) -> None:
    """Each checkpoint is one row, whole, with its step, its size and who wrote it; the newest is the first."""
    found = unmoor.runs(folder)
    assert [row.step for row in found] == [*reversed(STEPS)]
    assert all(row.complete and not row.why and row.nbytes > 100 and row.written > 0 for row in found)
    assert {row.dialect for row in found} == {folder.name}
    assert found.newest is found.rows[0]
    assert not found.notes
    if folder.name in NAMES:
        assert [row.name for row in found] == [NAMES[folder.name].format(step) for step in reversed(STEPS)]


def test_what_latest_gives_is_restored(folder: Path) -> None:
    """`restore` takes every row as a path, of the older ones too."""
    assert unmoor.latest(folder) == unmoor.runs(folder).newest
    saved = trained()[0] if folder.name not in ("hf-trainer", "accelerate", "guided-diffusion") else None
    for row in unmoor.runs(folder):
        model = torch.nn.ModuleDict({"net": tiny(7)}) if folder.name == "lightning" else tiny(7)
        unmoor.restore(row, model=model, rng=False)
        if saved is not None and folder.name not in ("torchtitan", "dcp", "lightning", "deepspeed"):
            assert same_bits(dict(model.state_dict()), dict(saved.state_dict()))


def test_every_row_verifies(folder: Path) -> None:
    """What is listed can be verified by its path, and the listing says so."""
    assert [row.verified for row in unmoor.runs(folder, verify=True)] == [True, True]
    assert unmoor.latest(folder, verify=True).verified is True


METRICS = {
    "unmoor": {"val_loss": 0.05}, "lightning": {"val_loss": 0.25},
    "hf-trainer": {"eval_loss": 0.05, "best_metric": 0.05}, "plain": {"val_loss": 0.05},
}  # fmt: skip


@pytest.mark.parametrize("dialect", METRICS)
def test_metrics_are_those_of_the_checkpoint(dialect: str, tmp_path: Path) -> None:
    """What a program notes beside its state is in the row: a run's own, the monitored score, the logged evaluation."""
    assert unmoor.latest(made(dialect, tmp_path / dialect)).metrics == METRICS[dialect]


def test_a_loop_that_saves_before_it_counts_is_told(tmp_path: Path) -> None:
    """guided-diffusion's optimizer has done one step more than its files are called for."""
    (note,) = unmoor.latest(made("guided-diffusion", tmp_path / "run")).notes
    assert note.startswith("its optimizer counts 21 steps done: the loop saves before it counts")


def test_epochs_are_called_so(tmp_path: Path) -> None:
    """Where a checkpoint counts epochs alone, its unit says that."""
    assert {row.unit for row in unmoor.runs(made("hippynn", tmp_path / "run"))} == {"epoch"}


Breaks = Callable[[Path], None]


def cut(path: Path, nbytes: int = 700) -> None:
    path.write_bytes(path.read_bytes()[:-nbytes])


def unlink(name: str) -> Breaks:
    return lambda folder: (folder / name).unlink()


SHARD, PART = "__0_0.distcp", "model-00002-of-00002.safetensors"

BROKEN: dict[str, tuple[str, Breaks, str]] = {
    "a save cut off (C55)": ("torchtitan", lambda f: (unlink("step-20/.metadata")(f), cut(f / "step-20" / SHARD))[0],
                             ".metadata is missing, __0_0.distcp is cut short"),
    "no list of shards": ("dcp", unlink("ckpt_20/.metadata"), ".metadata is missing"),
    "a shard cut short": ("dcp", lambda f: cut(f / "ckpt_20/__0_0.distcp"), "__0_0.distcp is cut short"),
    "a shard missing": ("torchtitan", unlink("step-20/__0_0.distcp"), "__0_0.distcp is missing"),
    "a file cut short": ("unmoor", lambda f: cut(f / "step_000000020.pt"), "truncated zip"),
    "an empty file": ("unmoor", lambda f: (f / "step_000000020.pt").write_bytes(b""), "empty (0 bytes)"),
    "zeros": ("unmoor", lambda f: (f / "step_000000020.pt").write_bytes(bytes(5000)), "zeros"),
    "a web page": ("unmoor", lambda f: (f / "step_000000020.pt").write_text("<!DOCTYPE html><p>Sign in"), "HTML page"),
    "a Lightning file cut short": ("lightning", lambda f: cut(f / "epoch=1-step=20.ckpt"), "truncated zip"),
    "no trainer state": ("hf-trainer", unlink("checkpoint-20/trainer_state.json"), "trainer_state.json is missing"),
    "half a trainer state": ("hf-trainer", lambda f: cut(f / "checkpoint-20/trainer_state.json", 9), "no JSON"),
    "no optimizer of a trainer": ("hf-trainer", unlink("checkpoint-20/optimizer.pt"), "optimizer.pt is missing"),
    "a shard of a model missing": ("hf-trainer", unlink(f"checkpoint-20/{PART}"), f"{PART} is missing"),
    "a shard of a model cut short": ("hf-trainer", lambda f: cut(f / "checkpoint-20" / PART, 8), "truncated"),
    "no streams": ("accelerate", unlink("checkpoint_20/random_states_0.pkl"), "random_states_0.pkl is missing"),
    "no model": ("accelerate", unlink("checkpoint_20/model.safetensors"), "no file of a model"),
    "an optimizer cut short": ("accelerate", lambda f: cut(f / "checkpoint_20/optimizer.bin"), "optimizer.bin"),
    "a rank's optimizer missing": ("deepspeed", unlink("global_step20/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
                                   "rank 1 is missing"),
    "no model states": ("deepspeed", unlink("global_step20/mp_rank_00_model_states.pt"), "_model_states.pt are"),
    "no optimizer of a triple": ("guided-diffusion", unlink("opt000020.pt"), "opt000020.pt is missing"),
    "no average of a triple": ("guided-diffusion", unlink("ema_0.9999_000020.pt"), "ema_0.9999_000020.pt is missing"),
    "no file of a rank": ("megatron", unlink("iter_0000020/mp_rank_00/model_optim_rng.pt"), "mp_rank_00: model_optim"),
    "an epoch cut short": ("hippynn", lambda f: cut(f / "checkpoint_epoch_20.pt"), "truncated zip"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_not_whole_is_passed_over(case: str, tmp_path: Path) -> None:
    """An unfinished, damaged or half copied checkpoint is listed with the reason; latest is the whole one before."""
    dialect, spoil, why = BROKEN[case]
    folder = made(dialect, tmp_path / "run")
    spoil(folder)
    newest, older = unmoor.runs(folder)
    assert (newest.complete, newest.step, older.complete, older.step) == (False, STEPS[1], True, STEPS[0])
    assert why in newest.why
    assert str(folder) not in newest.why
    chosen = unmoor.latest(folder)
    assert (chosen.step, [(row.step, row.why) for row in chosen.passed]) == (STEPS[0], [(STEPS[1], newest.why)])
    assert newest.why in str(chosen)


@pytest.mark.parametrize("dialect", ["deepspeed", "megatron", "lightning"])
def test_a_pointer_is_a_hint_and_is_told_if_wrong(dialect: str, tmp_path: Path) -> None:
    """What a file or link names is never taken because it is named; a name that leads to nothing good is told."""
    folder = made(dialect, tmp_path / "run")
    name = {"deepspeed": "latest", "megatron": "latest_checkpointed_iteration.txt", "lightning": "last.ckpt"}[dialect]
    target = unmoor.latest(folder).name
    gone = folder / target
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    found = unmoor.runs(folder)
    assert found.notes == (f"{name} names {target}, which is not there",)
    assert unmoor.latest(folder).step == STEPS[0]
    assert name in str(found)


def test_a_link_to_an_unfinished_folder_is_told(tmp_path: Path) -> None:
    """C55: `latest` leads to a folder whose save never ended, the older and complete one is taken."""
    folder = made("torchtitan", tmp_path / "run")
    (folder / "latest").symlink_to("step-20")
    assert not unmoor.runs(folder).notes
    (folder / "step-20" / ".metadata").unlink()
    found = unmoor.runs(folder)
    assert found.notes == ("latest names step-20, which cannot be resumed from",)
    assert unmoor.latest(folder).name == "step-10"
    assert len(found) == 2


def test_an_older_pointer_is_told(tmp_path: Path) -> None:
    """A pointer that was not moved on does not hide the newer checkpoint."""
    folder = made("deepspeed", tmp_path / "run")
    (folder / "latest").write_text("global_step10")
    assert unmoor.runs(folder).notes == ("latest names global_step10, and global_step20 is newer",)


@pytest.mark.parametrize(
    "dialect", [d for d in FOLDERS if d not in ("guided-diffusion", "lightning", "hippynn", "plain", "unmoor")]
)
def test_one_checkpoint_is_a_listing_of_itself(dialect: str, tmp_path: Path) -> None:
    """The folder of one checkpoint in the place of that of a run: it is the only row."""
    row = unmoor.latest(made(dialect, tmp_path / "run"))
    alone = unmoor.runs(row.path)
    assert [(one.path, one.step, one.complete) for one in alone] == [(row.path, row.step, True)]


def test_a_run_keeps_its_checkpoints_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """Lightning, torchtitan and accelerate put them into `checkpoints`: the folder above lists them."""
    outer = tmp_path / "version_0"
    outer.mkdir()
    made("lightning", outer / "checkpoints")
    (outer / "hparams.yaml").write_text("{}")
    found = unmoor.runs(outer)
    assert [row.step for row in found] == [20, 10]
    assert found.notes == ("they lie in checkpoints/",)


def test_values_are_frozen_and_documented(tmp_path: Path) -> None:
    """Listing and Saved are values: frozen, printable, JSON; a Saved is a path."""
    import json
    import os

    found = unmoor.runs(made("unmoor", tmp_path / "run"))
    assert isinstance(found, Listing)
    assert isinstance(found.rows[0], Saved)
    document = json.loads(json.dumps(found.to_json()))
    assert document["newest"] == os.fspath(found.rows[0]) == found.rows[0].path
    assert set(document["rows"][0]) == {*Saved.__slots__}
    with pytest.raises(AttributeError):
        found.rows[0].step = 3  # type: ignore[misc]


@pytest.mark.parametrize("dialect", [name for name in FOLDERS if name != "lightning"])
def test_a_folder_behind_a_url_is_listed_alike(dialect: str, tmp_path: Path) -> None:
    """What fsspec reaches is listed as what lies on a disk; every row is restored from there."""
    fsspec = pytest.importorskip("fsspec")
    folder = made(dialect, tmp_path / "run")
    files = fsspec.filesystem("memory")
    files.put(str(folder), f"/listed/{dialect}", recursive=True)
    try:
        near, far = unmoor.runs(folder), unmoor.runs(f"memory://listed/{dialect}")
        assert [(row.name, row.step, row.metrics, row.nbytes) for row in far] == [
            (row.name, row.step, row.metrics, row.nbytes) for row in near
        ]
        assert unmoor.latest(f"memory://listed/{dialect}", verify=True).verified is True
    finally:
        files.rm("/listed", recursive=True)
