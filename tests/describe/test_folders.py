"""A folder is read as one checkpoint: which files, which role each plays, and what is said where it is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import unmoor
from tests.cases.files import bits, refused, same_bits, tiny, train
from tests.describe.folders import FOLDERS, Run, accelerate, shards, written
from tests.runs.training import draws
from unmoor.describe import describe_path
from unmoor.errors import CorruptFile, FileError, HostileFile, NotACheckpoint, UnsupportedFile
from unmoor.report.inspect import inspect_text
from unmoor.values.catalog import Catalog
from unmoor.wiring import restoring

ROOT = Path(__file__).parents[2]

ROLES = {
    "accelerate": {
        "model": "model.safetensors", "optimizer": "optimizer.bin", "scheduler": "scheduler.bin",
        "custom": "custom_checkpoint_0.pkl", "rng": "random_states_0.pkl",
    },
    "hf-trainer": {
        "model": "model.safetensors", "optimizer": "optimizer.pt", "scheduler": "scheduler.pt", "rng": "rng_state.pth",
    },
    "guided-diffusion": {"model": "model000100.pt", "ema": "ema_0.9999_000100.pt", "optimizer": "opt000100.pt"},
    "plain": {
        "model": "net.pt", "ema": "net_ema.pt", "optimizer": "optim.pt", "scheduler": "sched.pt", "rng": "rest.pt",
    },
}  # fmt: skip


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of every dialect, named by it."""
    return written(request.param, tmp_path / request.param)


def bare(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_every_file_has_the_role_that_it_is_for(folder: Path) -> None:
    """The dialect is told by the names, and each role by the file that holds it."""
    catalog = describe_path(folder)
    assert (catalog.path, catalog.format, catalog.dialect) == (str(folder), "folder", folder.name)
    assert {part.role: part.keys[0] for part in catalog.parts if part.role != "extra"} == ROLES[folder.name]
    json.dumps(catalog.to_json())


def test_a_catalog_of_a_folder_is_as_true_as_that_of_a_file(folder: Path) -> None:
    """The contract of all readers: unique storages, spans inside their files, paths that lead to the node they name."""
    catalog = describe_path(folder)
    assert len({storage.key for storage in catalog.storages}) == len(catalog.storages)
    for entry in catalog.tensors:
        assert entry.span is not None
        assert entry.span.end <= (folder / entry.span.file).stat().st_size
        assert follow(catalog.tree, entry.keys) is entry.node
        assert entry.path == ".".join(map(str, entry.keys))
    for part in catalog.parts:
        assert follow(catalog.tree, part.keys) is part.node


def follow(tree: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        tree = tree[key] if isinstance(tree, dict | list | tuple) else tree.state[key]
    return tree


def test_a_run_goes_on_from_a_folder(folder: Path) -> None:
    """Model, optimizer, scheduler and streams come back; the next steps and draws are those of the run that saved."""
    saved = Run().trained()
    before = draws()
    live = Run(seed=7)
    torch.rand(5)
    report = unmoor.restore(folder, **live.roles) if "scheduler" in ROLES[folder.name] else restored(folder, live)
    assert not report.renamed
    for run in (saved, live):
        if "scheduler" not in ROLES[folder.name]:
            run.scheduler = None
        train(run.model, run.optimizer, 3, scheduler=run.scheduler, seed=2)
    assert same_bits(saved.model.state_dict(), live.model.state_dict())
    assert bits(saved.optimizer.state_dict()["state"]) == bits(live.optimizer.state_dict()["state"])
    if "rng" in ROLES[folder.name]:
        assert draws() == before


def restored(folder: Path, live: Run) -> Any:
    return unmoor.restore(folder, model=live.model, optimizer=live.optimizer)


def test_the_report_says_which_file_each_role_comes_from(folder: Path) -> None:
    """Plan and report name the file of every label, as values and in their text."""
    live = Run(seed=7)
    roles = {role: item for role, item in live.roles.items() if role in ROLES[folder.name]}
    plan = unmoor.plan(folder, **roles)
    files = {label: file.partition(" ")[0].removesuffix(".index.json") for label, file in plan.sources}
    assert files == {role: file for role, file in ROLES[folder.name].items() if role in (*roles, "rng")}
    text = " ".join(str(plan).split())
    for label, file in plan.sources:
        assert f"{file} ({label})" in text
    report = unmoor.restore(folder, **roles)
    assert report.plan.sources == plan.sources


def test_load_gives_every_file_under_its_name(folder: Path) -> None:
    """A folder loads as a dict of its files' trees; the tensors are those that were saved."""
    tree = unmoor.load(folder)
    saved = Run().trained()
    files = ROLES[folder.name]
    assert same_bits(dict(tree[files["model"]]), dict(saved.model.state_dict()))
    assert same_bits(tree[files["optimizer"]]["state"], saved.optimizer.state_dict()["state"])


def test_inspect_shows_the_files(folder: Path) -> None:
    """The page says that it is a folder, who wrote it, and gives each role its file."""
    text = inspect_text(describe_path(folder), width=120)
    assert text.startswith("folder of ")
    for role, file in ROLES[folder.name].items():
        row = next(line for line in text.splitlines() if line.strip().startswith(role) and file in line)
        assert row


def test_the_ema_is_the_file_of_the_average(tmp_path: Path) -> None:
    """`ema=` takes the moving average and `model=` never does, by the name of the file and by its rate."""
    folder = written("guided-diffusion", tmp_path / "gd")
    live = Run(seed=7)
    report = unmoor.restore(folder, model=live.model, ema={"0.9999": live.ema}, optimizer=live.optimizer)
    assert report.restored == ("model", "ema[0.9999]", "optimizer")
    assert same_bits(live.ema.state_dict(), Run().ema.state_dict())
    assert report.extra == {"step": 100}


def test_the_newest_step_that_is_whole_is_taken(tmp_path: Path) -> None:
    """A later step without its optimizer is passed over, and a finding says so."""
    folder = written("guided-diffusion", tmp_path / "gd")
    torch.save(tiny(3).state_dict(), folder / "model000200.pt")
    catalog = describe_path(folder)
    assert catalog.tree["step"] == 100
    (finding,) = [f for f in catalog.findings if f.code == "incomplete-step"]
    assert finding.message == "step 100 is the newest that is whole; of later steps there is only model000200.pt"


def test_two_models_of_accelerate_go_by_their_numbers(tmp_path: Path) -> None:
    """Several models and optimizers are numbered files: a list takes them in that order."""
    first, second = Run().trained(), Run(seed=4).trained()
    accelerate(bare(tmp_path / "acc"), first)
    save_file(second.model.state_dict(), tmp_path / "acc" / "model_1.safetensors")
    torch.save(second.optimizer.state_dict(), tmp_path / "acc" / "optimizer_1.bin")
    live = [Run(seed=8), Run(seed=9)]
    unmoor.restore(tmp_path / "acc", model=[r.model for r in live], optimizer=[r.optimizer for r in live])
    for run, saved in zip(live, (first, second), strict=True):
        assert same_bits(run.model.state_dict(), saved.model.state_dict())
        assert bits(run.optimizer.state_dict()["state"]) == bits(saved.optimizer.state_dict()["state"])


class Counter:
    """An object of the user's own."""

    def __init__(self) -> None:
        self.words = 0

    def state_dict(self) -> dict[str, int]:
        return {"words": self.words}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.words = state["words"]


@pytest.mark.parametrize("given", ["custom", "custom=[...]", "at"])
def test_objects_of_the_user_are_taken_by_number(given: str, tmp_path: Path) -> None:
    """Registered objects are numbered by accelerate: custom= takes them in order, at= takes one under any name."""
    folder, counter = written("accelerate", tmp_path / "acc"), Counter()
    if given == "at":
        unmoor.restore(folder, counter=counter, at={"counter": "custom_checkpoint_0.pkl"})
    else:
        unmoor.restore(folder, custom=counter if given == "custom" else [counter])
    assert counter.words == 120


def test_an_object_under_another_name_is_told_where_its_state_may_lie(tmp_path: Path) -> None:
    """Names are not saved, so none is guessed: the reason names the file and the argument."""
    folder, counter = written("accelerate", tmp_path / "acc"), Counter()
    plan = unmoor.plan(folder, model=tiny(3), counter=counter)
    (reason,) = [change.before for change in plan.not_restored if change.label == "counter"]
    assert "at={'counter': 'custom_checkpoint_0.pkl'}" in reason


def test_streams_of_other_ranks_are_told(tmp_path: Path) -> None:
    """Of several ranks' streams one process takes those of rank 0; the report says whose were not used."""
    torch.manual_seed(3)
    before = draws()
    accelerate(bare(tmp_path / "acc"), Run().trained(), ranks=3)
    report = unmoor.restore(tmp_path / "acc", model=tiny(5))
    assert draws() == before
    (change,) = [c for c in report.not_restored if c.label == "rng" and not c.name]
    assert change.before == "saved by 3 ranks, this process is rank 0"
    assert change.after == "those of the others are not used: random_states_1.pkl, random_states_2.pkl"


def test_another_rank_takes_its_own_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of a group takes the states that its own rank saved; a rank that did not exist has its own derived."""
    torch.manual_seed(3)
    accelerate(bare(tmp_path / "acc"), Run().trained(), ranks=2)
    for rank, file in ((1, "random_states_1.pkl"), (2, "random_states_0.pkl")):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
        plan = unmoor.plan(tmp_path / "acc", model=tiny(5))
        assert dict(plan.sources)["rng"] == file
        assert ("derived for rank 2" in dict(plan.notes)["rng"]) == (rank == 2)


@pytest.mark.parametrize("form", ["folder", "index"])
def test_a_state_dict_in_several_files_is_one(form: str, tmp_path: Path) -> None:
    """An index and its files are one model, given by the index or by the folder that holds nothing else."""
    model = tiny(2)
    shards(bare(tmp_path / "m"), model.state_dict())
    (tmp_path / "m" / "config.json").write_text("{}")
    path = tmp_path / "m" if form == "folder" else tmp_path / "m" / "model.safetensors.index.json"
    live = tiny(5)
    unmoor.restore(path, model=live)
    assert same_bits(live.state_dict(), model.state_dict())
    assert inspect_text(describe_path(path)).startswith("safetensors in 2 files")


def test_a_shard_says_that_it_is_one(tmp_path: Path) -> None:
    """One file of several is read, and a finding says that the others belong to it."""
    shards(bare(tmp_path / "m"), tiny(2).state_dict())
    catalog = describe_path(tmp_path / "m" / "model-00001-of-00002.safetensors")
    assert "shard-of-index" in {finding.code for finding in catalog.findings}


def test_the_order_of_safetensors_is_no_evidence(tmp_path: Path) -> None:
    """Names in safetensors are sorted: optimizer state without names goes by position, which the report says."""
    live = Run(seed=7)
    report = unmoor.restore(written("accelerate", tmp_path / "acc"), **live.roles)
    assert "matched by position" in dict(report.plan.notes)["optimizer"]
    assert bits(live.optimizer.state_dict()["state"]) == bits(Run().trained().optimizer.state_dict()["state"])


def test_a_wrong_kind_names_its_file(tmp_path: Path) -> None:
    """An optimizer's file that holds a model is an error that names the file, and no second model."""
    folder = written("guided-diffusion", tmp_path / "gd")
    shutil.copy(folder / "model000100.pt", folder / "opt000100.pt")
    assert [f.place for f in describe_path(folder).findings if f.code == "wrong-kind"] == ["opt000100.pt"]
    live = Run(seed=7)
    with refused(unmoor.KindError, live.model, live.optimizer) as caught:
        unmoor.restore(folder, model=live.model, optimizer=live.optimizer)
    first = f"optimizer= was given 'opt000100.pt' of {folder}, which holds a model state dict (4 tensors such as"
    assert str(caught.value).startswith(first)
    unmoor.restore(folder, model=live.model)
    assert same_bits(live.model.state_dict(), Run().trained().model.state_dict())


def test_a_file_of_a_folder_is_still_one_file(tmp_path: Path) -> None:
    """A path to one file reads that file alone; what its neighbours hold is named and not taken."""
    folder = written("guided-diffusion", tmp_path / "gd")
    live = Run(seed=7)
    with refused(unmoor.KindError, live.model, live.optimizer) as caught:
        unmoor.restore(folder / "model000000.pt", model=live.model, optimizer=live.optimizer)
    assert "Its optimizer is probably opt000000.pt." in str(caught.value)
    assert unmoor.restore(folder / "model000000.pt", model=live.model).restored == ("model",)


@pytest.mark.parametrize("nested", [False, True])
def test_a_folder_of_one_checkpoint_is_that_checkpoint(nested: bool, tmp_path: Path) -> None:
    """One checkpoint in a folder, or in its only subfolder, is what the folder stands for."""
    folder = bare(tmp_path / "run")
    inner = bare(folder / "weights") if nested else folder
    torch.save({"model": tiny(2).state_dict(), "epoch": 3}, inner / "last.ckpt")
    (folder / "log.txt").write_text("epoch 3")
    catalog = describe_path(folder)
    assert (catalog.path, catalog.format) == (str(inner / "last.ckpt"), "torch-zip")
    live = tiny(5)
    unmoor.restore(folder, model=live)
    assert same_bits(live.state_dict(), tiny(2).state_dict())


def several(folder: Path) -> None:
    run = Run().trained()
    for step in (1, 2):
        torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, folder / f"at_{step}.pt")


def numbered(folder: Path) -> None:
    for step in (9, 10):
        torch.save(tiny(step).state_dict(), folder / f"model_{step}.pt")


def folders(folder: Path) -> None:
    for step in (9, 10):
        written("accelerate", folder / f"checkpoint_{step}")


NONE = {
    "empty": (lambda _: None, ["holds no checkpoint", "it is empty"]),
    "text": (lambda f: (f / "notes.txt").write_text("x"), ["holds no checkpoint", "it holds notes.txt"]),
    "several": (several, ["at_1.pt  model, optimizer", "at_2.pt  model, optimizer", "Give one of them"]),
    "numbered": (numbered, ["model_9.pt   model", "model_10.pt  model"]),
    "folders": (folders, ["checkpoint_9: accelerate", "The last by name is", "checkpoint_10"]),
}


@pytest.mark.parametrize("name", NONE)
def test_a_folder_of_none_or_several_says_what_lies_there(name: str, tmp_path: Path) -> None:
    """No checkpoint, steps of a run, or checkpoints in folders: an error that lists them."""
    make, words = NONE[name]
    make(bare(tmp_path / "run"))
    with pytest.raises(NotACheckpoint) as caught:
        describe_path(tmp_path / "run")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def without_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def outside(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../secret.safetensors"}}')


def contradicted(folder: Path) -> None:
    shutil.copy(folder / "model-00001-of-00002.safetensors", folder / "model-00002-of-00002.safetensors")


def no_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": []}')


BROKEN = {
    "a shard is gone": (without_shard, CorruptFile, "not beside it: model-00002-of-00002.safetensors"),
    "a path leads out": (outside, HostileFile, "do not lie beside it"),
    "a shard is another": (contradicted, CorruptFile, "is in model-00002-of-00002.safetensors and in another"),
    "the map is none": (no_index, CorruptFile, "has no weight_map"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_index_and_its_files_must_agree(name: str, tmp_path: Path) -> None:
    """Absent files, paths out of the folder and names in two files are errors before anything is read."""
    spoil, error, words = BROKEN[name]
    spoil(written("hf-trainer", tmp_path / "hf"))
    with pytest.raises(error, match=words.replace(".", r"\.")) as caught:
        describe_path(tmp_path / "hf")
    assert caught.value.path.endswith("model.safetensors.index.json")


def distributed(folder: Path) -> None:
    (folder / "__0_0.distcp").write_bytes(b"x" * 100)


def megatron(folder: Path) -> None:
    for rank in (0, 1):
        torch.save({"model": {}}, bare(folder / f"mp_rank_{rank:02d}") / "model_optim_rng.pt")


REFUSED = {
    "no metadata": (distributed, CorruptFile, "no .metadata"),
    "tensor parallel": (megatron, UnsupportedFile, "not supported yet"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_yet_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """Shards that only their program can join, and a save that was interrupted, are told."""
    make, error, words = REFUSED[name]
    make(bare(tmp_path / "run"))
    with pytest.raises(error, match=words):
        describe_path(tmp_path / "run")


def test_one_rank_of_megatron_is_a_file(tmp_path: Path) -> None:
    """A run of one rank has one file, found through the number that Megatron keeps beside its folders."""
    inner = bare(bare(bare(tmp_path / "run") / "iter_0000020") / "mp_rank_00")
    torch.save({"checkpoint_version": 3.0, "args": {}, "model": tiny(2).state_dict()}, inner / "model_optim_rng.pt")
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("20")
    assert describe_path(tmp_path / "run").dialect == "megatron"


def test_every_cut_of_every_file_is_told_with_its_name(folder: Path) -> None:
    """A file of a folder cut at any of many places: an error of the file that names it, or a catalog for JSON."""
    used = describe_path(folder).facts["files"]
    for file in used:
        raw = (folder / file).read_bytes()
        for length in sorted({0, 1, 9, *range(0, len(raw), max(1, len(raw) // 40)), len(raw) - 1}):
            (folder / file).write_bytes(raw[:length])
            assert file in str(failure(folder)), (file, length)
        (folder / file).write_bytes(raw)


def test_every_flipped_byte_gives_a_catalog_or_names_the_file(folder: Path) -> None:
    """One changed byte in any file: a catalog, or an error of the file that names it or the index that names it."""
    used = describe_path(folder).facts["files"]
    for file in used:
        raw = (folder / file).read_bytes()
        for at in range(0, len(raw), max(1, len(raw) // 150)):
            (folder / file).write_bytes(raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :])
            found = outcome(folder)
            assert isinstance(found, Catalog) or str(folder) in str(found), (file, at)
        (folder / file).write_bytes(raw)


def outcome(path: Path) -> Catalog | FileError:
    try:
        return describe_path(path)
    except FileError as error:
        return error


def failure(path: Path) -> FileError:
    found = outcome(path)
    assert isinstance(found, FileError)
    return found


def test_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    """A file that is cut short is met before the first byte moves, whatever the role it is for."""
    folder = written("hf-trainer", tmp_path / "hf")
    os.truncate(folder / "scheduler.pt", 200)
    live = Run(seed=7)
    with refused(CorruptFile, live.model, live.optimizer) as caught:
        unmoor.restore(folder, **live.roles)
    assert str(folder / "scheduler.pt") in str(caught.value)


def test_a_file_that_is_removed_since_it_was_described_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was described stays open: a restore is of one state of the folder, or changes nothing."""
    folder, live, whole = written("plain", tmp_path / "run"), Run(seed=7), Run(seed=8)
    unmoor.restore(folder, **whole.roles)
    real = restoring.Carrying

    def carrying(*arguments: Any, **options: Any) -> Any:
        (folder / "optim.pt").unlink()
        return real(*arguments, **options)

    monkeypatch.setattr(restoring, "Carrying", carrying)
    unmoor.restore(folder, **live.roles)
    assert bits(live.model.state_dict()) == bits(whole.model.state_dict())
    assert bits(live.optimizer.state_dict()) == bits(whole.optimizer.state_dict())


def test_damaged_data_is_told_with_its_file(tmp_path: Path) -> None:
    """A bad checksum names the tensor by the file that it is in."""
    folder = written("plain", tmp_path / "run")
    entry = next(e for e in describe_path(folder).tensors if e.path == "optim.pt.state.0.exp_avg")
    raw = bytearray((folder / "optim.pt").read_bytes())
    raw[entry.span.offset] ^= 1
    (folder / "optim.pt").write_bytes(raw)
    live = Run(seed=7)
    with pytest.raises(CorruptFile, match=r"optim\.pt\.state\.0\.exp_avg"):
        unmoor.restore(folder, **live.roles)


CHILD = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None
from unmoor.describe import describe_path
print([describe_path(path).dialect for path in sys.argv[1:]])
"""


def test_folders_are_described_without_torch(tmp_path: Path) -> None:
    """A process that cannot import torch describes every dialect's folder."""
    paths = [str(written(name, tmp_path / name)) for name in FOLDERS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", CHILD, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == str(list(FOLDERS))


def test_what_a_folder_only_names_is_left_out(tmp_path: Path) -> None:
    """Settings and logs beside a checkpoint are no part of it, and no error however broken."""
    folder = written("hf-trainer", tmp_path / "hf")
    for name in ("config.json", "tokenizer.json", "README.md"):
        (folder / name).write_text("{")
    catalog = describe_path(folder)
    assert not {"config.json", "tokenizer.json", "README.md"} & catalog.tree.keys()
    report = unmoor.restore(folder, model=tiny(5))
    assert report.extra["trainer_state.json"]["global_step"] == 3
