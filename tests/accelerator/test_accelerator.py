"""What the simulated accelerator promises, each promise a test: results are the CPU's, placement is a real device's."""

import copy
import io
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = pytest.mark.usefixtures("sim")

# x is (4, 6) float64 and requires grad, i is (4,) int64 in 0..3; both are on the device under test.
FORWARDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda x, i: F.linear(x, x, x[:, 0]),
    "conv2d": lambda x, i: F.conv2d(x[None, None], x[None, None, :3, :3], padding=1),
    "conv_transpose1d": lambda x, i: F.conv_transpose1d(x[None], x[:, :3, None].expand(4, 3, 2)),
    "max_pool2d": lambda x, i: F.max_pool2d(x[None], 2),
    "interpolate": lambda x, i: F.interpolate(x[None], scale_factor=2.0, mode="linear"),
    "embedding": lambda x, i: F.embedding(i, x),
    "layer_norm": lambda x, i: F.layer_norm(x, (6,), x[0], x[1]),
    "batch_norm": lambda x, i: F.batch_norm(x, None, None, training=True),
    "group_norm": lambda x, i: F.group_norm(x, 3),
    "gelu": lambda x, i: F.gelu(x),
    "silu": lambda x, i: F.silu(x),
    "mish": lambda x, i: F.mish(x),
    "softmax": lambda x, i: F.softmax(x, 1),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i),
    "mse_loss": lambda x, i: F.mse_loss(x, x.detach().flip(0)),
    "attention": lambda x, i: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "index_add": lambda x, i: torch.zeros_like(x).index_add(0, i, x),
    "index_put": lambda x, i: torch.zeros_like(x).index_put((i,), x, accumulate=True),
    "scatter": lambda x, i: torch.zeros_like(x).scatter(0, i.argsort()[:, None].expand(4, 6), x),
    "scatter_add": lambda x, i: torch.zeros_like(x).scatter_add(0, i[:, None].expand(4, 6), x),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "index": lambda x, i: x[i, i],
    "mask": lambda x, i: x[x > 0],
    "masked_fill": lambda x, i: x.masked_fill(x > 0, 2.0),
    "where": lambda x, i: torch.where(x > 0, x, torch.zeros((), dtype=x.dtype)),
    "cumsum": lambda x, i: x.cumsum(1),
    "einsum": lambda x, i: torch.einsum("ab,cb->ac", x, x),
    "stack": lambda x, i: torch.stack([x, x[i]]),
    "cat": lambda x, i: torch.cat([x, x[i]], 1),
    "sort": lambda x, i: x.sort(1).values,
    "norm": lambda x, i: torch.linalg.vector_norm(x, dim=1),
    "det": lambda x, i: torch.linalg.det(x[:, :4]),
    "inv": lambda x, i: torch.linalg.inv(x[:, :4]),
    "views": lambda x, i: x.t()[1:].reshape(2, 10).unfold(1, 4, 3).diagonal().squeeze(),
    "in_place": lambda x, i: x.mul(2).add_(1).clamp_(min=0).t_(),
    "in_place_through_view": lambda x, i: _halved_row(x.clone()),
    "complex": lambda x, i: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2)).conj() * 1j),
    "fft": lambda x, i: torch.fft.rfft(x).abs(),
}

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda params, **kw: torch.optim.SGD(params, lr=0.1, momentum=0.9, **kw),
    "adam": lambda params, **kw: torch.optim.Adam(params, lr=0.1, amsgrad=True, **kw),
    "adamw": lambda params, **kw: torch.optim.AdamW(params, lr=0.1, **kw),
}

DTYPES = [torch.int64, torch.bool, torch.bfloat16, torch.float16, torch.float64, torch.complex64]


def _halved_row(x: Tensor) -> Tensor:
    x[1].mul_(0.5)
    x[:, 2] = 1.0
    return x


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.GELU(), nn.Flatten(), nn.LayerNorm(24), nn.Linear(24, 3)
    )


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, device: str, steps: int = 3) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        batch = torch.randn(5, 2, 8, generator=generator).to(device)
        optimizer.zero_grad()
        F.cross_entropy(model(batch), torch.arange(5, device=device) % 3).backward()
        optimizer.step()


def _saved(value: object, *, zipped: bool) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=zipped)
    file.seek(0)
    return file


def _assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    assert (actual.dtype, actual.shape, actual.stride()) == (expected.dtype, expected.shape, expected.stride())
    left, right = (t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in (actual, expected))
    assert left.equal(right)


def _forward_and_gradients(name: str, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4, 6, dtype=torch.float64, generator=generator).to(device).requires_grad_()
    i = torch.randint(4, (4,), generator=generator).to(device)
    with sdpa_kernel(SDPBackend.MATH):
        y = FORWARDS[name](x, i)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.cos().sum(), x)
    assert {t.device for t in (y, first, second)} == {torch.device(device)}
    return [y, first, second]


@pytest.mark.parametrize("name", FORWARDS)
def test_forward_backward_and_double_backward_equal_the_cpu_bit_for_bit(name: str) -> None:
    """Every operator of the table gives the CPU's values and its first and second derivatives, on the device."""
    for actual, expected in zip(
        _forward_and_gradients(name, "sim:1"), _forward_and_gradients(name, "cpu"), strict=True
    ):
        _assert_same_bits(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_computed_and_copied(dtype: torch.dtype) -> None:
    """Arithmetic, a change of dtype on the way to another device, and `tolist` agree with the CPU."""
    host = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    device = host.to("sim:2")
    _assert_same_bits(device * device, host * host)
    _assert_same_bits(device.t().to("sim:0", torch.complex128), host.t().to(torch.complex128))
    assert device.tolist() == host.tolist()


def test_operators_without_gradient_equal_the_cpu() -> None:
    """Counting, searching and comparing give what they give on the CPU."""
    host = torch.tensor([3, 1, 3, 0])
    device = host.to("sim:0")
    for operator in (torch.bincount, torch.unique, torch.nonzero, torch.argsort):
        _assert_same_bits(operator(device), operator(host))
    assert torch.equal(device, host.to("sim:0"))
    assert device[1].item() == 1
    assert repr(device) == "tensor([3, 1, 3, 0], device='sim:0')"


@pytest.mark.parametrize("switch", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_the_cpu_bit_for_bit(name: str, switch: dict[str, bool]) -> None:
    """Three steps of training leave parameters, buffers and optimizer state with the CPU's bits, on the device."""
    runs = []
    for device in ("cpu", "sim:1"):
        model = _model().to(device)
        optimizer = OPTIMIZERS[name](model.parameters(), **switch)
        _train(model, optimizer, device)
        runs.append((model.state_dict(), [s for state in optimizer.state.values() for s in state.items()]))
    (expected_model, expected_state), (model_state, state) = runs
    for key, tensor in model_state.items():
        assert tensor.device == torch.device("sim:1")
        _assert_same_bits(tensor, expected_model[key])
    for (key, tensor), (_, expected) in zip(state, expected_state, strict=True):
        assert tensor.device == torch.device("cpu" if key == "step" and "fused" not in switch else "sim:1")
        _assert_same_bits(tensor, expected)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_capturable_optimizers_keep_step_on_the_device(name: str, foreach: bool) -> None:
    """With `capturable=True` the step counter is a device tensor and training works."""
    model = _model().to("sim:1")
    optimizer = OPTIMIZERS[name](model.parameters(), capturable=True, foreach=foreach)
    _train(model, optimizer, "sim:1")
    assert {state["step"].device for state in optimizer.state.values()} == {torch.device("sim:1")}


@pytest.mark.parametrize(("left", "right"), [("sim:0", "cpu"), ("cpu", "sim:0"), ("sim:0", "sim:1")])
def test_refuses_mixed_devices_in_pytorch_words(left: str, right: str) -> None:
    """Tensors on two devices are refused with PyTorch's sentence, pointwise operators and matrix products alike."""
    a, b = torch.ones(2, 2, device=left), torch.ones(2, 2, device=right)
    sentence = f"^Expected all tensors to be on the same device, but found at least two devices, {left} and {right}!"
    for operator in (torch.add, torch.mm, torch.equal):
        with pytest.raises(RuntimeError, match=sentence):
            operator(a, b)
    with pytest.raises(RuntimeError, match=sentence):
        torch.cat([a, b])
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        nn.Linear(2, 2).to(left)(b)


def test_takes_cpu_scalars_and_indices_where_a_gpu_does() -> None:
    """A 0-dim CPU tensor is welcome as an input, never as the output, and CPU indices are."""
    x, scalar = torch.arange(4.0, device="sim:1"), torch.tensor(2.0)
    assert (x * scalar).tolist() == [0, 2, 4, 6]
    assert x[torch.tensor([1, 2])].tolist() == [1, 2]
    x[0] = scalar
    x.masked_fill_(x == 3, scalar)
    assert x.tolist() == [2, 1, 2, 2]
    with pytest.raises(RuntimeError, match="sim:1"):
        scalar.add_(x[0])


@pytest.mark.parametrize("switch", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_optimizer_refuses_state_on_another_device(switch: dict[str, bool]) -> None:
    """A step with the momentum of one parameter on the CPU fails as it does on a GPU."""
    model = _model().to("sim:0")
    optimizer = OPTIMIZERS["adam"](model.parameters(), **switch)
    _train(model, optimizer, "sim:0", steps=1)
    state = optimizer.state[model[0].weight]
    state["exp_avg"] = state["exp_avg"].cpu()
    with pytest.raises(RuntimeError, match="on the same device"):
        _train(model, optimizer, "sim:0", steps=1)


def test_copies_between_all_devices() -> None:
    """A non-contiguous tensor arrives with its values on every other device, also through `copy_`."""
    host = torch.arange(24.0).view(4, 6).t()[::2]
    for source in ("cpu", "sim:0", "sim:1"):
        for target in ("cpu", "sim:0", "sim:1"):
            moved = host.to(source).to(target, copy=True)
            assert moved.device == torch.device(target)
            assert moved.tolist() == host.tolist()
            filled = torch.zeros(3, 8, dtype=torch.float64, device=target)[:, ::2]
            assert filled.copy_(host.to(source)).tolist() == host.tolist()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_saved_file_keeps_devices_ties_and_views(zipped: bool) -> None:
    """Both formats keep the tag `sim:1`, and tensors that share a storage share it again, strides and all."""
    weight = torch.arange(6.0, device="sim:1").view(2, 3)
    loaded = torch.load(_saved({"a": weight, "b": weight.t()[1:]}, zipped=zipped))
    assert loaded["a"].device == loaded["b"].untyped_storage().device == torch.device("sim:1")
    assert loaded["a"].untyped_storage().data_ptr() == loaded["b"].untyped_storage().data_ptr()
    _assert_same_bits(loaded["a"], weight)
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


def test_module_and_optimizer_are_copied_and_reloaded() -> None:
    """`deepcopy` keeps device and ties; a state dict from the CPU loads onto the device."""
    model = _model().to("sim:1")
    model.tied = model[0].weight
    twin = copy.deepcopy(model)
    assert twin.tied is twin[0].weight
    assert twin.tied.device == torch.device("sim:1")
    optimizer = OPTIMIZERS["adam"](model.parameters())
    _train(model, optimizer, "sim:1")
    host = _model()
    host.tied = host[0].weight
    host_optimizer = OPTIMIZERS["adam"](host.parameters(), foreach=True)
    host.load_state_dict(model.state_dict())
    host_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert host_optimizer.state[host.tied]["exp_avg"].device == torch.device("cpu")
    _train(model, optimizer, "sim:1")
    _train(host, host_optimizer, "cpu")
    _assert_same_bits(model.tied, host.tied)


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
    y = torch.utils.checkpoint.checkpoint(lambda t: F.dropout(t * t), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(2 * y.detach())


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


def test_gradients_are_clipped_and_scaled() -> None:
    """`clip_grad_norm_`, autocast and `GradScaler` work, and an overflow skips the step and halves the scale."""
    model = _model().to("sim:1")
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    scaler = torch.amp.GradScaler("sim", init_scale=1024.0)
    for factor in (1.0, float("inf")):
        with torch.autocast("sim", dtype=torch.bfloat16):
            output = model(torch.ones(5, 2, 8, device="sim:1"))
        assert output.dtype == torch.bfloat16
        scaler.scale(output.float().sum() * factor).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.state_dict()["scale"] == 512.0
    assert {state["step"].item() for state in optimizer.state.values()} == {1.0}


def test_fake_tensors_plan_on_the_device() -> None:
    """Under `FakeTensorMode` shapes and devices propagate, and mixed devices are refused."""
    with torch._subclasses.FakeTensorMode():
        fake = torch.empty(2, 2, device="sim:1")
        assert (fake @ fake).device == torch.device("sim:1")
        with pytest.raises(RuntimeError, match="device"):
            fake @ torch.empty(2, 2)


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning")
def test_chgnet_predicts_the_energy_and_forces_of_the_cpu() -> None:
    """A published interatomic potential gives the CPU's bits on the device, forces (a derivative) included."""
    model_of = pytest.importorskip("chgnet.model").CHGNet
    pymatgen = pytest.importorskip("pymatgen.core")
    model = model_of.load(use_device="cpu", verbose=False)
    salt = pymatgen.Structure(pymatgen.Lattice.cubic(4.2), ["Na", "Cl"], [[0, 0, 0], [0.5, 0.5, 0.52]])
    graph = model.graph_converter(salt)
    expected = model([graph], task="ef")
    actual = model.to("sim:0")([graph.to("sim:0")], task="ef")
    assert actual["f"][0].device == torch.device("sim:0")
    _assert_same_bits(actual["e"], expected["e"])
    _assert_same_bits(actual["f"][0], expected["f"][0])
