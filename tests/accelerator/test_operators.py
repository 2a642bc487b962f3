"""Operators and training on the simulated accelerator: the CPU's bits, on a device that refuses all others."""

import copy
from collections.abc import Callable

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


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_agree_with_the_cpu(kind: type[nn.RNNBase], bias: bool) -> None:
    """Recurrent layers, whose algorithm PyTorch chooses by device, agree with the CPU up to rounding."""
    layer, x = kind(3, 4, bias=bias), torch.ones(5, 2, 3)
    outputs = [layer.to(device)(x.to(device))[0] for device in ("cpu", "sim:1")]
    outputs[1].sum().backward()
    assert outputs[1].device == layer.weight_ih_l0.grad.device == torch.device("sim:1")
    torch.testing.assert_close(outputs[1].cpu(), outputs[0])


def test_views_of_trained_tensors_work_in_inference_mode() -> None:
    """A view taken in inference mode of a tensor made outside it still shares its memory."""
    x = torch.zeros(2, 3, device="sim:1")
    with torch.inference_mode():
        x.t()[1:].split(1)[1].add_(1)
    assert x.tolist() == [[0, 0, 1], [0, 0, 1]]


def test_backward_follows_the_number_of_threads() -> None:
    """A gradient that is a long sum has the CPU's bits for any number of threads, though another thread sums it."""
    threads = torch.get_num_threads()
    values = torch.randn(300_000, generator=torch.Generator().manual_seed(3))
    try:
        for count in (2, 1, 2):
            torch.set_num_threads(count)
            weights = [torch.ones((), device=device, requires_grad=True) for device in ("cpu", "sim:1")]
            for weight in weights:
                (values.to(weight.device) * weight).sum().backward()
            _assert_same_bits(weights[1].grad, weights[0].grad)
    finally:
        torch.set_num_threads(threads)


def test_gradients_flow_back_across_devices() -> None:
    """A model split over two devices gives every parameter its gradient where it lives."""
    first, second = nn.Linear(3, 4).to("sim:0"), nn.Linear(4, 1).to("sim:1")
    second(first(torch.ones(2, 3, device="sim:0")).to("sim:1")).sum().backward()
    assert (first.weight.grad.device, second.weight.grad.device) == (torch.device("sim:0"), torch.device("sim:1"))


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


def test_parameters_keep_their_identity_when_a_module_moves() -> None:
    """`Module.to` fills the parameters it has, so that an optimizer made before it goes on working."""
    model = _model()
    parameters = list(model.parameters())
    optimizer = OPTIMIZERS["adam"](parameters)
    for device in ("sim:1", "sim:0", "cpu"):
        assert all(a is b for a, b in zip(model.to(device).parameters(), parameters, strict=True))
        optimizer.state.clear()
        _train(model, optimizer, device, steps=1)
        assert {state["exp_avg"].device for state in optimizer.state.values()} == {torch.device(device)}


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
