"""Several ranks of one machine: each works on its own device, and the numbers of streams and files are its own."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import unmoor
from tests.worlds.launch import Failed, launch
from unmoor.live import devices

from .files import gpu, refused, saved_run, tiny, trained

RANKS = 4


def test_each_rank_uses_its_own_device_alone(tmp_path: Path, sim: ModuleType) -> None:
    """C42: under torchrun all bytes of rank r arrive on sim:r, none on the devices of others, and steps on the CPU."""
    path = saved_run(tmp_path / "ck.pt", *trained(), lambda keys: gpu(keys) and "sim:0")
    for rank, found in enumerate(launch("tests.worlds.ranks.devices", RANKS, path)):
        assert not isinstance(found, Failed), found
        for way, (touched, places) in found.items():
            assert set(touched) == {rank}, way
            assert places == {"model": [f"sim:{rank}"], "state": [f"sim:{rank}"], "step": ["cpu"]}, way


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, sim: ModuleType) -> Any:
    """Makes this process a rank of several, as torchrun does; the current device is 0 again afterwards."""

    def become(rank: int, *, number: int = RANKS, current: int = 0, count: int | None = None) -> None:
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(number))
        sim.set_device(current)
        if count is not None:
            monkeypatch.setattr(sim, "device_count", lambda: count)

    yield become
    sim.set_device(0)


@pytest.mark.parametrize("asked", ["auto", "sim", "tag"])
@pytest.mark.parametrize(("rank", "current", "own"), [(0, 0, 0), (3, 0, 3), (3, 1, 1), (0, 2, 2), (9, 1, 1)])
def test_the_own_device_is_the_current_one_or_that_of_the_local_rank(
    ranks: Any, asked: Any, rank: int, current: int, own: int
) -> None:
    """C42: what the program set with set_device comes first, then LOCAL_RANK; a tag without an index means the same."""
    ranks(rank, current=current)
    assert devices.resolve(torch.device("sim") if asked == "tag" else asked) == torch.device("sim", own)
    assert unmoor.device_fallback() == torch.device("sim", own)


@pytest.mark.parametrize(
    ("where", "place"), [("sim", "sim:2"), ({"cuda:0": "sim"}, "sim:2"), ({"cuda:0": "sim:1"}, "sim:1")]
)
def test_map_location_without_an_index_is_the_own_device(tmp_path: Path, ranks: Any, where: Any, place: str) -> None:
    """C42: map_location="cuda" under torchrun is each rank's own device, and one with an index is that device."""
    path = saved_run(tmp_path / "ck.pt", *trained())
    ranks(2)
    assert {str(t.device) for t in unmoor.load(path, map_location=where)["model"].values()} == {place}


@pytest.mark.parametrize("asked", ["auto", "sim"])
def test_a_rank_without_a_device_of_its_own_is_told(tmp_path: Path, ranks: Any, asked: str) -> None:
    """C42: more ranks than devices is an error by name, with nothing changed; an explicit device is shared."""
    path = saved_run(tmp_path / "ck.pt", *trained())
    model, optimizer = trained(5)
    ranks(3, count=2)
    with refused(unmoor.DeviceError, model, optimizer) as caught:
        unmoor.restore(path, model=model, optimizer=optimizer, model_device=asked)
    text = str(caught.value)
    assert "local rank 3 has no sim device of its own: sim:3 is not here" in text.splitlines()[0]
    assert "present here: cpu, sim:0, sim:1" in text
    assert "torchrun --nproc-per-node 2" in text
    unmoor.restore(path, model=model, optimizer=optimizer, model_device="sim:1")
    assert {str(p.device) for p in model.parameters()} == {"sim:1"}


def test_one_visible_device_is_the_own_one(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """C42: where a launcher shows each rank one device, that is number 0 in all of them, and right."""
    monkeypatch.setattr(devices, "_VISIBLE", {"sim": ("SIM_VISIBLE_DEVICES",)})
    ranks(3, count=1)
    monkeypatch.setenv("SIM_VISIBLE_DEVICES", "3")
    assert unmoor.device_fallback() == torch.device("sim", 0)
    monkeypatch.setenv("SIM_VISIBLE_DEVICES", "2,3")
    with pytest.raises(unmoor.DeviceError, match="local rank 3 has no sim device of its own"):
        unmoor.device_fallback()


def test_a_file_of_another_rank_is_not_loaded_onto_its_device_unasked(tmp_path: Path, ranks: Any) -> None:
    """C42: with nothing asked, what was saved on the device of another rank here is refused; its own advice works."""
    path = saved_run(tmp_path / "ck.pt", *trained(), lambda keys: gpu(keys) and "sim:0")
    ranks(2)
    with refused(unmoor.DeviceError) as caught:
        unmoor.load(path)
    first, *rest = str(caught.value).splitlines()
    assert first == f"{path} was saved on sim:0, the device of local rank 0, and this rank would put it there too"
    assert rest[-1].endswith(
        "unmoor.load("
        + repr(str(path))
        + ', model_device="auto"). There all the same: map_location={"sim:0": "sim:0"}.'
    )
    place = lambda **where: {str(t.device) for t in unmoor.load(path, **where)["model"].values()}
    assert place(model_device="auto") == {"sim:2"}
    assert place(map_location={"sim:0": "sim:0"}) == {"sim:0"}
    ranks(0)
    assert place() == {"sim:0"}


def test_fewer_devices_than_at_the_save(tmp_path: Path, ranks: Any) -> None:
    """C42: a file whose tensors were on cuda:0 to cuda:7 goes to the own device of each of fewer ranks."""
    model, optimizer = trained()
    path = saved_run(tmp_path / "ck.pt", model, optimizer, lambda keys: f"cuda:{len(str(keys)) % 8}")
    assert len(unmoor.describe(path).devices()) > 2
    ranks(1, number=2)
    live = tiny(5)
    unmoor.restore(path, model=live, model_device="auto")
    assert {str(p.device) for p in live.parameters()} == {"sim:1"}
    assert all(torch.equal(a, b.cpu()) for a, b in zip(model.parameters(), live.parameters(), strict=True))
