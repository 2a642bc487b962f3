"""The devices of the simulated accelerator: copies, files, storages, random numbers and memory, as on a real one."""

import copy
import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("sim")


def _saved(value: object, *, zipped: bool) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=zipped)
    file.seek(0)
    return file


def test_the_backend_is_the_accelerator_of_the_process(sim: ModuleType) -> None:
    """PyTorch finds `sim` as current accelerator and device module, with its current device and streams."""
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    assert torch.get_device_module("sim") is torch.sim is sim
    assert sim.is_available()
    assert sim.device_count() == torch.accelerator.device_count() == 4
    with sim.device("sim:3"):
        assert (sim.current_device(), torch.empty(0, device="sim").device) == (3, torch.device("sim:3"))
    assert sim.current_device() == 0
    sim.synchronize("sim:1")
    with pytest.raises(RuntimeError, match="invalid device ordinal 9"):
        torch.empty(0, device="sim:9")


def test_copies_between_all_devices(sim: ModuleType) -> None:
    """A non-contiguous tensor arrives with its values on every other device, also through `copy_`."""
    host = torch.arange(24.0).view(4, 6).t()[::2]
    for source in ("cpu", "sim:0", "sim:1"):
        for target in ("cpu", "sim:0", "sim:1"):
            moved = host.to(source).to(target, copy=True)
            assert moved.device == torch.device(target)
            assert moved.tolist() == host.tolist()
            beside = moved.to("cpu", non_blocking=True)
            sim.synchronize(target if target != "cpu" else None)
            assert beside.tolist() == host.tolist()
            filled = torch.zeros(3, 8, dtype=torch.float64, device=target)[:, ::2]
            assert filled.copy_(host.to(source)).tolist() == host.tolist()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_saved_file_keeps_devices_ties_and_views(zipped: bool) -> None:
    """Both formats keep the tag `sim:1`, and tensors that share a storage share it again, strides and all."""
    weight = torch.arange(6.0, device="sim:1").view(2, 3)
    loaded = torch.load(_saved({"a": weight, "b": weight.t()[1:]}, zipped=zipped))
    assert loaded["a"].device == loaded["b"].untyped_storage().device == torch.device("sim:1")
    assert loaded["a"].untyped_storage().data_ptr() == loaded["b"].untyped_storage().data_ptr()
    assert torch.equal(loaded["a"], weight)
    assert (loaded["b"].stride(), loaded["b"].storage_offset()) == ((1, 3), 1)


@pytest.mark.parametrize(
    ("place", "expected"),
    [("cpu", "cpu"), ("sim:0", "sim:0"), (torch.device("cpu"), "cpu"), ({"sim:1": "sim:2"}, "sim:2")],
    ids=str,
)
@pytest.mark.parametrize("zipped", [True, False])
def test_map_location_decides_the_device(zipped: bool, place: Any, expected: str) -> None:
    """`torch.load` puts the tensors of a file where `map_location` says."""
    loaded = torch.load(_saved(torch.arange(3, device="sim:1"), zipped=zipped), map_location=place)
    assert loaded.device == torch.device(expected)
    assert loaded.tolist() == [0, 1, 2]


def test_a_file_from_a_device_that_is_not_there_is_refused() -> None:
    """A tag beyond the last device is PyTorch's own error, as on a machine with fewer GPUs."""
    file = _saved(torch.arange(3, device="sim:1"), zipped=True)
    with pytest.raises(RuntimeError, match=r"SIM device 9 but torch.sim.device_count\(\) is 4"):
        torch.load(file, map_location="sim:9")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_distributed_checkpoints_are_written_and_read(tmp_path: Path) -> None:
    """A DCP folder takes device tensors, and fills those of another device."""
    dcp.save({"w": torch.arange(4.0, device="sim:1")}, checkpoint_id=tmp_path, no_dist=True)
    target = torch.zeros(4, device="sim:0")
    dcp.load({"w": target}, checkpoint_id=tmp_path, no_dist=True)
    assert target.tolist() == [0, 1, 2, 3]


def test_storages_are_made_filled_resized_and_viewed() -> None:
    """An untyped storage on a device backs tensors of any stride and can grow."""
    storage = torch.UntypedStorage(24, device="sim:1")
    tensor = torch.empty(0, device="sim:1").set_(storage, 1, (2, 2), (1, 2)).fill_(3.0)
    assert tensor.untyped_storage().data_ptr() == storage.data_ptr() != 0
    assert storage.device == torch.empty_strided((2,), (3,), device="sim:1").untyped_storage().device
    storage.resize_(48)
    assert storage.nbytes() == 48
    assert tensor.resize_(11)[:4].tolist() == [3.0] * 4
    assert (bytes(storage.cpu())[4:8], storage.sim(2).device) == (b"\x00\x00\x40\x40", torch.device("sim:2"))


def test_memory_is_counted_per_device(sim: ModuleType) -> None:
    """Allocated bytes and their peak tell a copy from a move, device by device; an update in place adds nothing."""
    torch.ones(1, device="sim:3")
    start, elsewhere = sim.memory_allocated("sim:3"), sim.memory_allocated("sim:2")
    sim.reset_peak_memory_stats("sim:3")
    tensor = torch.zeros(1000, device="sim:3")
    tensor.mul_(2).add_(1)
    assert sim.memory_allocated("sim:3") - start == sim.max_memory_allocated("sim:3") - start == 4000
    second = tensor + 1
    assert sim.max_memory_allocated(3) - start == 8000
    del tensor, second
    assert (sim.memory_allocated(3), sim.memory_allocated("sim:2")) == (start, elsewhere)


def test_every_device_has_its_own_generator(sim: ModuleType) -> None:
    """Random numbers come from the device's generator: seeded, restored, and apart from the CPU's and the others'."""
    torch.manual_seed(5)
    assert [sim.initial_seed(), *(g.initial_seed() for g in sim.default_generators)] == [5] * 5
    before = torch.get_rng_state(), sim.get_rng_state("sim:0")
    state = sim.get_rng_state("sim:1")
    draws: list[Callable[[], Tensor]] = [
        lambda: torch.rand(3, device="sim:1"),
        lambda: torch.randn(17, device="sim:1"),
        lambda: torch.randperm(9, device="sim:1"),
        lambda: F.dropout(torch.ones(9, device="sim:1")),
        lambda: torch.ones(3, device="sim:1").multinomial(2),
        lambda: torch.normal(torch.zeros(3, device="sim:1")),
    ]
    first = [draw().tolist() for draw in draws]
    assert (state.device, state.dtype) == (torch.device("cpu"), torch.uint8)
    assert all(map(torch.equal, before, (torch.get_rng_state(), sim.get_rng_state("sim:0"))))
    assert not sim.get_rng_state("sim:1").equal(state)
    sim.set_rng_state(state, "sim:1")
    assert [draw().tolist() for draw in draws] == first


def test_explicit_generators_keep_their_state(sim: ModuleType) -> None:
    """A generator made for a device is drawn from, saved, restored and cloned; one of the CPU is refused."""
    generator = torch.Generator(device="sim:1").manual_seed(3)
    default = sim.get_rng_state_all()
    state, other = generator.get_state(), generator.clone_state()
    first = torch.rand(4, device="sim:1", generator=generator)
    generator.set_state(state)
    assert (generator.device, other.device) == (torch.device("sim:1"),) * 2
    for source in (generator, other, copy.deepcopy(torch.Generator(device="sim:1").manual_seed(3))):
        assert torch.rand(4, device="sim:1", generator=source).equal(first)
    assert all(map(torch.equal, default, sim.get_rng_state_all()))
    with pytest.raises(RuntimeError, match="Expected a 'sim' device type for generator but found 'cpu'"):
        torch.rand(4, device="sim:1", generator=torch.Generator())


def test_rng_states_fork_and_seed_per_device(sim: ModuleType) -> None:
    """`fork_rng` gives a device its state back, and `manual_seed` seeds the current device alone."""
    torch.manual_seed(0)
    states = sim.get_rng_state_all()
    with torch.random.fork_rng(devices=["sim:2"], device_type="sim"), sim.device("sim:2"):
        sim.manual_seed(7)
        torch.rand(3, device="sim")
    assert all(map(torch.equal, states, sim.get_rng_state_all()))
    sim.set_rng_state_all(states[::-1])
    assert torch.rand(2, device="sim:0").equal(torch.rand(2, device="sim:3").to("sim:0"))


def test_activation_checkpointing_replays_dropout_of_the_device() -> None:
    """Recomputing a segment draws the device's numbers again, so that gradients match the masks of the forward pass."""
    x = torch.ones(64, device="sim:1", requires_grad=True)
    y = checkpoint(lambda t: F.dropout(t * t), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(2 * y.detach())
