"""DeepSpeed folders cut for another number of ranks, against folders that this number of ranks made."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unmoor
from tests.describe.zero_maker import Shape, ZeroMaker, fragment_address
from unmoor.describe.zero_files import find_step, read_ranks
from unmoor.plan.zero_cuts import FlatCut, ShareCut, round_robin, sub_groups, unmixed
from unmoor.values.nodes import Opaque, TensorNode

STEP = "global_step3"


@pytest.fixture(autouse=True)
def address_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of the maps, under the name that DeepSpeed's has; nothing that is tested imports it."""
    module = types.ModuleType("deepspeed.utils.tensor_fragment")
    module.fragment_address = fragment_address
    for name in ("deepspeed", "deepspeed.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model whose sizes no number of ranks divides, after three steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()
    return model, optimizer


def made(folder: Path, shape: Shape) -> Path:
    """A folder of that shape, with the keys that tell DeepSpeed the number of ranks."""
    model, optimizer = trained()
    maker = ZeroMaker(model, optimizer, shape)
    for tree in maker.models:
        tree["dp_world_size"] = shape.world
    return maker.write(folder)


def trees(folder: Path) -> dict[str, Any]:
    """What every file holds: plain values, tensors as their numbers, objects as their names and states."""
    ranks = read_ranks(str(folder), find_step(str(folder)))
    found = {}
    for file in (*ranks.models, *ranks.optimizers):
        numbers = unmoor.load(folder / file.file)
        found[Path(file.file).name] = plain(file.tree, numbers)
    return found


def plain(inert: Any, live: Any) -> Any:
    """A tree that can be compared with ==."""
    if isinstance(inert, TensorNode):
        return str(live.dtype), list(live.shape), live.float().tolist()
    if isinstance(inert, Opaque):
        return inert.name, inert.how, plain(inert.args, live.args), plain(inert.state, live.state)
    if isinstance(inert, dict):
        return [(key, plain(value, live[key])) for key, value in inert.items()]
    if isinstance(inert, list | tuple):
        return [plain(value, other) for value, other in zip(inert, live, strict=True)]
    return inert


SHAPES = {
    "stage 1": {"stage": 1},
    "stage 2, mapped": {"stage": 2, "maps": True},
    "stage 2, two groups": {"stage": 2, "groups": (2, 2)},
    "stage 1, elastic": {"stage": 1, "elastic": True},
    "stage 3": {"stage": 3, "lean": False},
    "stage 3, float32": {"stage": 3, "dtype": torch.float32},
}


@pytest.mark.parametrize(
    ("shape", "ranks"),
    [*((shape, ranks) for shape in SHAPES for ranks in (1, 3, 4, 7)), ("stage 1", 40), ("stage 3", 40)],
)
def test_files_are_those_of_that_many_ranks(tmp_path: Path, shape: str, ranks: int) -> None:
    """Every value of every file, padding included, is what ranks of that number would have written."""
    source = made(tmp_path / "source", Shape(world=3, **SHAPES[shape]))
    wanted = made(tmp_path / "wanted", Shape(world=ranks, **SHAPES[shape]))
    receipt = unmoor.repartition(source, tmp_path / "target", ranks=ranks)
    assert trees(tmp_path / "target") == trees(wanted)
    assert (tmp_path / "target" / "latest").read_text() == STEP
    assert f"shares of 3 ranks cut for {ranks} rank" in str(receipt)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_way_back_gives_the_same_files(tmp_path: Path, shape: str) -> None:
    """Nothing is lost on the way to one rank or to many."""
    source = made(tmp_path / "source", Shape(world=2, **SHAPES[shape]))
    for ranks in (1, 5):
        unmoor.repartition(source, tmp_path / f"on_{ranks}", ranks=ranks)
        unmoor.repartition(tmp_path / f"on_{ranks}", tmp_path / f"from_{ranks}", ranks=2)
        assert trees(tmp_path / f"from_{ranks}") == trees(source)


def test_a_folder_of_its_own_is_replaced_and_no_other(tmp_path: Path) -> None:
    """What lies in the target and is no part of such a folder is not removed, and scripts are carried along."""
    source = made(tmp_path / "source", Shape(stage=1, world=2))
    (source / "zero_to_fp32.py").write_text("raise SystemExit('never run')")
    target = tmp_path / "target"
    for ranks in (3, 1):
        unmoor.repartition(source, target, ranks=ranks)
        assert sorted(p.name for p in target.iterdir()) == [STEP, "latest", "zero_to_fp32.py"]
        assert unmoor.describe(target).facts["world_size"] == ranks
    (target / "notes.txt").write_text("mine")
    with pytest.raises(unmoor.SaveError, match=r"notes\.txt"):
        unmoor.repartition(source, target, ranks=2)
    assert unmoor.describe(target).facts["world_size"] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "target"]


def test_damaged_data_is_met_before_anything_is_written(tmp_path: Path) -> None:
    """A flipped byte in the file of one rank is named, and no folder appears."""
    source = made(tmp_path / "source", Shape(stage=2, world=2))
    file = source / STEP / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    entry = next(e for e in unmoor.describe(file).tensors if e.nbytes > 8)
    data = bytearray(file.read_bytes())
    assert entry.span is not None
    data[entry.span.offset] ^= 1
    file.write_bytes(data)
    with pytest.raises(unmoor.CorruptFile, match="checksum"):
        unmoor.repartition(source, tmp_path / "target", ranks=3)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def unknown_share(maker: ZeroMaker) -> None:
    for tree in maker.optimizers:
        group = tree["optimizer_state_dict"]["single_partition_of_fp32_groups"]
        group[0] = torch.cat([group[0], torch.zeros(6)])


def other_tensors(maker: ZeroMaker) -> None:
    for tree in maker.optimizers:
        tree["optimizer_state_dict"]["error_feedback"] = [torch.zeros(4)]


REFUSED = {
    "shares of another size": (unknown_share, "rank 0 holds 26 elements of group 0 where 20 were expected"),
    "other tensors of each rank": (other_tensors, "error_feedback"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_layouts_that_are_not_known_are_refused_by_name(tmp_path: Path, fault: str) -> None:
    """What cannot be cut is said, with another way, and nothing is written."""
    change, words = REFUSED[fault]
    maker = ZeroMaker(*trained(), Shape(stage=1, world=2))
    change(maker)
    source = maker.write(tmp_path / "source")
    with pytest.raises(unmoor.UnsupportedFile, match=words) as failed:
        unmoor.repartition(source, tmp_path / "target", ranks=3)
    assert "ds_to_universal.py" in str(failed.value)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_models_that_were_cut_in_other_ways_are_refused(tmp_path: Path) -> None:
    """Tensor parallel files of a second rank are named."""
    source = made(tmp_path / "source", Shape(stage=1, world=2))
    shutil.copy(source / STEP / "mp_rank_00_model_states.pt", source / STEP / "mp_rank_01_model_states.pt")
    with pytest.raises(unmoor.UnsupportedFile, match="tensor, pipeline or expert parallelism"):
        unmoor.repartition(source, tmp_path / "target", ranks=3)


@pytest.mark.parametrize("ranks", [0, -1, 2.0, True, None])
def test_the_number_of_ranks_is_checked(tmp_path: Path, ranks: Any) -> None:
    """Anything but a whole number from one on is refused before a byte is read."""
    with pytest.raises(unmoor.UsageError, match="no number of ranks"):
        unmoor.repartition(tmp_path / "none", tmp_path / "target", ranks=ranks)


def test_round_robin_order_is_found_again() -> None:
    """The order that ranks of one number mixed can be mixed for another."""
    names = [str(n) for n in range(11)]
    for ranks in (1, 2, 3, 16):
        assert unmixed(round_robin(names, ranks), ranks) == names


def test_sub_groups_close_when_a_rank_holds_enough() -> None:
    """Another number of ranks gives other sub-groups, for each rank then holds less of every parameter."""
    sizes = {"a": 10, "b": 10, "c": 4}
    assert sub_groups(list(sizes), sizes, 1, 12) == [["a", "b"], ["c"]]
    assert sub_groups(list(sizes), sizes, 2, 12) == [["a", "b", "c"]]
    assert sub_groups(list(sizes), sizes, 2, 5) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_element_is_in_one_share(ranks: int) -> None:
    """The runs of all ranks cover each parameter once, in order, and never reach out of a share."""
    sizes = {"a": 7, "b": 1, "c": 12}
    flat = FlatCut(ranks, [["a", "b"], ["c"]], sizes, [[1, 0], [0]])
    for cut in (flat, ShareCut(ranks, [["a", "b"], ["c"]], sizes)):
        covered: dict[str, list[int]] = {name: [] for name in sizes}
        for unit in (0, 1):
            for rank in range(ranks):
                for run in cut.runs(unit, rank):
                    assert run.start + run.last - run.first <= cut.size(unit) - cut.padding(unit, rank)
                    covered[run.name] += range(run.first, run.last)
        assert {name: sorted(found) for name, found in covered.items()} == {n: list(range(s)) for n, s in sizes.items()}


def test_memory_stays_small(tmp_path: Path) -> None:
    """A folder of 96 MB is cut anew within a few megabytes beside the interpreter."""
    torch.manual_seed(0)
    model = nn.Linear(2048, 2048)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2048)).sum().backward()
    optimizer.step()
    source = ZeroMaker(model, optimizer, Shape(stage=2, world=2, groups=(2,))).write(tmp_path / "source")
    script = (
        "import json, resource, sys, unmoor, torch, unmoor.wiring.repartitioning\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "unmoor.repartition(sys.argv[1], sys.argv[2], ranks=3, buffer_bytes=4 << 20)\n"
        "print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))\n"
    )
    command = [sys.executable, "-c", script, str(source), str(tmp_path / "target")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout) < 24 << 10
    assert unmoor.describe(tmp_path / "target").size > 40 << 20


@pytest.mark.parametrize(("name", "said"), [("file.pt", "is a file"), ("nothing", "does not exist")])
def test_a_path_that_is_no_folder_is_named(tmp_path: Path, name: str, said: str) -> None:
    """A file, or nothing at all, is told as what it is."""
    (tmp_path / "file.pt").write_bytes(b"PK")
    with pytest.raises(unmoor.NotACheckpoint, match=said):
        unmoor.repartition(tmp_path / name, tmp_path / "out", ranks=2)
