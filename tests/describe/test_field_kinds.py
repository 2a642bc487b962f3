"""Kinds of files and folders that people report: damaged, incomplete, misplaced, and sound ones in unusual dress."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import state_dict_saver

import unmoor
from tests.cases.files import tiny
from unmoor.errors import CorruptFile, HostileFile, KindError, MismatchError, NotACheckpoint, UnsupportedFile
from unmoor.filing import BriefReader

from .folders import Run, hf_trainer, shards
from .zero_maker import Shape, ZeroMaker

Make = Callable[[Path], str]


def _equal(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in model.state_dict().items())


def _link_to_nothing(folder: Path) -> str:
    (folder / "run.pt").symlink_to("gone.pt")
    return str(folder / "run.pt")


def _link_to_itself(folder: Path) -> str:
    (folder / "run.pt").symlink_to("run.pt")
    return str(folder / "run.pt")


def _below_a_file(folder: Path) -> str:
    (folder / "run.pt").write_bytes(b"x")
    return str(folder / "run.pt" / "step")


NOWHERE: Final[dict[str, tuple[Make, tuple[str, ...]]]] = {
    "link_to_nothing": (_link_to_nothing, ("run.pt is a link to gone.pt, which does not exist",)),
    "link_to_itself": (_link_to_itself, ("run.pt is a link to run.pt, which does not exist",)),
    "below_a_file": (_below_a_file, ("does not exist", "run.pt is no folder.")),
    "too_long": (lambda folder: str(folder / ("n" * 300 + ".pt")), ("does not exist",)),
    "zero_byte": (lambda _: "a\0b.pt", (r"'a\x00b.pt' does not exist", "Give the path")),
    "empty": (lambda _: "", ("'' does not exist", "Give the path")),
    "address": (lambda _: "memory://bucket/run.pt", ("memory://bucket/run.pt does not exist",)),
    "home": (lambda _: "~/none/run.pt", ("does not exist", "os.path.expanduser")),
}


@pytest.mark.parametrize("kind", NOWHERE)
def test_a_path_that_leads_nowhere_says_why(kind: str, tmp_path: Path) -> None:
    """Links to nothing, names that no file can have and addresses are no checkpoint, with what to do instead."""
    make, words = NOWHERE[kind]
    with pytest.raises(NotACheckpoint) as caught:
        unmoor.describe(make(tmp_path))
    for word in words:
        assert word in str(caught.value)


PAGE: Final = "<!DOCTYPE html><html><title>Quota exceeded</title></html>"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_page_is_named_in_every_encoding(encoding: str, tmp_path: Path) -> None:
    """A web page in place of a file is known with or without the mark of its encoding."""
    (tmp_path / "run.pt").write_bytes(PAGE.encode(encoding))
    with pytest.raises(NotACheckpoint, match='an HTML page, title "Quota exceeded"'):
        unmoor.describe(tmp_path / "run.pt")


def test_a_zip_around_a_checkpoint_says_to_unpack_it(tmp_path: Path) -> None:
    """A checkpoint that was packed into another zip is told from a damaged one."""
    torch.save(tiny().state_dict(), tmp_path / "run.pt")
    with zipfile.ZipFile(tmp_path / "packed.pt", "w") as packed:
        packed.write(tmp_path / "run.pt", "run.pt")
    with pytest.raises(UnsupportedFile, match=r"it holds run\.pt\n.*unpack that first"):
        unmoor.describe(tmp_path / "packed.pt")


def test_an_unpacked_torch_zip_is_named(tmp_path: Path) -> None:
    """The folder that an unpacking browser leaves says how to make a file of it again."""
    torch.save(tiny().state_dict(), tmp_path / "run.pt")
    with zipfile.ZipFile(tmp_path / "run.pt") as packed:
        packed.extractall(tmp_path / "out")
    with pytest.raises(UnsupportedFile, match=r"was unpacked(.|\n)*zip -0 -r run\.pt run"):
        unmoor.describe(tmp_path / "out" / "run")


def test_scores_by_checkpoint_path_are_values(tmp_path: Path) -> None:
    """Lightning's best_k_models, from paths to scores, are extra values and no model."""
    best = {"/runs/epoch=1-step=6.ckpt": torch.tensor(0.25), "/runs/epoch=0-step=3.ckpt": torch.tensor(0.5)}
    state = {f"model.{name}": value for name, value in tiny().state_dict().items()}
    callbacks = {"ModelCheckpoint{'monitor': 'val'}": {"best_model_score": torch.tensor(0.25), "best_k_models": best}}
    torch.save({"epoch": 1, "state_dict": state, "callbacks": callbacks}, tmp_path / "last.ckpt")
    parts = unmoor.describe(tmp_path / "last.ckpt").parts
    assert [part.path for part in parts if part.role == "model"] == ["state_dict"]
    extra = unmoor.restore(tmp_path / "last.ckpt", model=tiny(1)).extra
    assert extra["callbacks"]["ModelCheckpoint{'monitor': 'val'}"]["best_k_models"] == best


SCALARS: Final[dict[str, Any]] = {
    "date": np.datetime64("2020-01-31"),
    "no_date": np.datetime64("NaT"),
    "time": np.datetime64("2020-01-31T12:30", "us"),
    "duration": np.timedelta64(3, "s"),
    "long_double": np.longdouble("1.5"),
    "void": np.void(b"abc"),
    "bytes": np.bytes_(b"a"),
    "half": np.float16(0.5),
}


@pytest.mark.parametrize("name", SCALARS)
def test_numpy_scalars_of_every_kind_load(name: str, tmp_path: Path) -> None:
    """Dates, durations, long doubles and raw bytes come back as the scalars that they were."""
    torch.save({"value": SCALARS[name]}, tmp_path / "run.pt")
    loaded = unmoor.load(tmp_path / "run.pt")["value"]
    assert type(loaded) is type(SCALARS[name])
    assert loaded.dtype == SCALARS[name].dtype
    assert loaded.tobytes() == SCALARS[name].tobytes()


def _hub(folder: Path) -> Path:
    """A repository in the cache of huggingface_hub with one snapshot of two shards."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    shards(blobs, tiny().state_dict())
    for number, file in enumerate(sorted(blobs.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
    return snapshot


def test_a_hub_cache_is_its_snapshot(tmp_path: Path) -> None:
    """The folder of a repository in the hub's cache, all of links, restores like its snapshot."""
    _hub(tmp_path)
    model = tiny(1)
    unmoor.restore(tmp_path, model=model)
    assert _equal(model, tiny())


def test_a_hub_cache_of_several_snapshots_is_the_one_that_main_names(tmp_path: Path) -> None:
    """Of two snapshots that lie there, refs/main says which is current."""
    snapshot = _hub(tmp_path)
    (tmp_path / "snapshots" / "old").mkdir()
    save_file(tiny(5).state_dict(), tmp_path / "snapshots" / "old" / "model.safetensors")
    with pytest.raises(NotACheckpoint, match="2 checkpoints"):
        unmoor.describe(tmp_path)
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "main").write_text(snapshot.name)
    model = tiny(1)
    unmoor.restore(tmp_path, model=model)
    assert _equal(model, tiny())


def test_a_link_to_a_lost_blob_is_named(tmp_path: Path) -> None:
    """A shard whose blob is gone is a link to nothing, and the error says to what."""
    snapshot = _hub(tmp_path)
    lost = next(snapshot.glob("*-00002-of-*")).resolve()
    lost.unlink()
    with pytest.raises(CorruptFile, match=rf"is a link to \.\./\.\./blobs/{lost.name}, which does not exist"):
        unmoor.describe(snapshot)


def test_a_link_to_nothing_in_a_run_is_no_absent_role(tmp_path: Path) -> None:
    """An optimizer file that is a link to nothing is an error, not a folder without an optimizer."""
    hf_trainer(tmp_path, Run().trained())
    (tmp_path / "optimizer.pt").unlink()
    (tmp_path / "optimizer.pt").symlink_to("elsewhere.pt")
    with pytest.raises(NotACheckpoint, match=r"optimizer\.pt is a link to elsewhere\.pt"):
        unmoor.restore(tmp_path, model=tiny(1))


@pytest.mark.parametrize("whole", [False, True], ids=["shards", "run"])
def test_numbered_files_without_index_are_one_state_dict(tmp_path: Path, *, whole: bool) -> None:
    """Shards whose index was not copied are joined by their numbers, alone and in a folder of the HF Trainer."""
    run = Run().trained()
    hf_trainer(tmp_path, run)
    if not whole:
        for file in tmp_path.iterdir():
            if not file.name.startswith("model"):
                file.unlink()
    (tmp_path / "model.safetensors.index.json").unlink()
    model = tiny(1)
    report = unmoor.restore(tmp_path, model=model, rng=False)
    assert _equal(model, run.model)
    assert any(finding.code == "no-index" for finding in report.findings)


def test_numbered_files_name_the_one_that_is_absent(tmp_path: Path) -> None:
    """A gap in the numbers is an error that says which number."""
    shards(tmp_path, tiny().state_dict(), number=3)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CorruptFile, match=r"2 of the 3 files(.|\n)*absent: 00002-of-00003"):
        unmoor.describe(tmp_path)


def test_numbered_files_that_share_a_name_are_refused(tmp_path: Path) -> None:
    """Two shards with one tensor are of two checkpoints."""
    for number in (1, 2):
        save_file(tiny(number).state_dict(), tmp_path / f"model-0000{number}-of-00002.safetensors")
    with pytest.raises(CorruptFile, match="in another of its files"):
        unmoor.describe(tmp_path)


def test_a_fault_of_one_shard_says_that_it_is_one(tmp_path: Path) -> None:
    """Names that one shard lacks are explained by what the file is."""
    shards(tmp_path, tiny().state_dict())
    with pytest.raises(MismatchError, match=r"file 1 of the 2 of one state dict.*open the folder"):
        unmoor.restore(tmp_path / "model-00001-of-00002.safetensors", model=tiny(1))


def _zero(folder: Path, stage: int) -> Path:
    run = Run().trained()
    return ZeroMaker(run.model, run.optimizer, Shape(stage, 2)).write(folder)


def test_a_rank_of_deepspeed_alone_says_to_open_the_folder(tmp_path: Path) -> None:
    """One rank's partition is no optimizer state by itself."""
    file = next(_zero(tmp_path, 2).rglob("*rank_1_mp*optim_states.pt"))
    live = Run()
    with pytest.raises(MismatchError, match=r"what rank 1 kept of a DeepSpeed checkpoint.*open the folder"):
        unmoor.restore(file, model=live.model, optimizer=live.optimizer)


def _without_optimizers(folder: Path) -> None:
    for file in folder.rglob("*optim_states.pt"):
        file.unlink()


def test_stage_3_without_optimizer_files_lacks_its_weights(tmp_path: Path) -> None:
    """Where the weights lie in files that were not copied, the error names those files, not shapes of nothing."""
    _without_optimizers(_zero(tmp_path, 3))
    with pytest.raises(CorruptFile, match=r"weights of 4 parameters(.|\n)*_optim_states\.pt of every rank"):
        unmoor.describe(tmp_path)


def test_stage_2_without_optimizer_files_says_what_its_weights_are(tmp_path: Path) -> None:
    """The 16-bit copy restores with a warning; an optimizer asked for is an error that names the files."""
    _without_optimizers(_zero(tmp_path, 2))
    live = Run()
    assert "lacks-files" in {finding.code for finding in unmoor.restore(tmp_path, model=live.model).findings}
    with pytest.raises(KindError, match=r"holds None, not optimizer state(.|\n)*_optim_states\.pt of every rank"):
        unmoor.restore(tmp_path, model=live.model, optimizer=live.optimizer)


def test_an_index_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    """Names with a folder in them are hostile even where such a file exists."""
    inner = tmp_path / "inner"
    inner.mkdir()
    shards(inner, tiny().state_dict())
    index = inner / "model.safetensors.index.json"
    shutil.copy(inner / "model-00001-of-00002.safetensors", tmp_path / "outside.safetensors")
    index.write_text(index.read_text().replace("model-00001-of-00002.safetensors", "../outside.safetensors"))
    with pytest.raises(HostileFile, match=r"\.\./outside\.safetensors"):
        unmoor.describe(inner)


def test_more_files_than_may_be_open_are_restored(tmp_path: Path) -> None:
    """A folder of more shards than the process may open files loads and restores."""
    resource = pytest.importorskip("resource", reason="this system sets no limit on open files")
    state = {f"{number}.weight": torch.full((2,), float(number)) for number in range(300)}
    shards(tmp_path, state, number=300)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        loaded = unmoor.load(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


def test_a_file_that_is_replaced_between_reads_is_refused(tmp_path: Path) -> None:
    """A reader that opens its file for each read takes nothing from another file of the same name and size."""
    place = tmp_path / "run.bin"
    place.write_bytes(b"one")
    reader = BriefReader(str(place))
    target = bytearray(3)
    assert reader.some_into(0, memoryview(target)) == 3
    assert target == b"one"
    (tmp_path / "new").write_bytes(b"two")
    (tmp_path / "new").replace(place)
    with pytest.raises(CorruptFile, match="was replaced or written to"):
        reader.some_into(0, memoryview(target))


def _scripted(program: torch.nn.Module, place: Path) -> None:
    torch.jit.trace(program, torch.ones(2, 3)).save(str(place))  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_torchscript_archive_restores_into_its_module(tmp_path: Path) -> None:
    """The weights of a TorchScript program go by their names into the module that it was made of."""
    _scripted(tiny(), tmp_path / "net.pt")
    model = tiny(1)
    unmoor.restore(tmp_path / "net.pt", model=model)
    assert _equal(model, tiny())


def test_an_exported_program_is_named(tmp_path: Path) -> None:
    """An archive of torch.export is told from a TorchScript one of old."""
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("net/archive_format", "pt2")
        archive.writestr("net/models/model.json", "{}")
    with pytest.raises(UnsupportedFile, match=r"a program of torch\.export"):
        unmoor.describe(tmp_path / "net.pt2")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_shard_of_zeros_is_damage(tmp_path: Path) -> None:
    """A shard file that was allocated and never written is damaged, not of another format."""
    state_dict_saver.save({"model": tiny().state_dict()}, checkpoint_id=str(tmp_path), no_dist=True)
    file = next(tmp_path.glob("*.distcp"))
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(CorruptFile, match="cannot be read whole"):
        unmoor.describe(tmp_path)
