"""What the context leaves alone, and the ways it can be used."""

from __future__ import annotations

import ast
import asyncio
import pickle
import threading

import pytest
import torch
from torch import nn

import unmoor
from unmoor.live.context_frames import parsed

from .runs import HOME, Net, Run


def _wrong_shape(run):
    run.batch["image"] @ torch.ones(3, 3, device=HOME)


def _wrong_shape_across_devices(run):
    run.batch["image"].copy_(torch.ones(7, 7))


def _index_out_of_range(run):
    run.batch["image"][torch.tensor([99])]


def _raised_by_the_user(run):
    left = torch.ones(3)
    if left.device != run.batch["image"].device:
        raise RuntimeError("expected all tensors on one device, found cpu and sim:1")


def _asserted_by_the_user(run):
    left = torch.ones(3)
    assert left.device == run.batch["image"].device, "devices differ"


def _out_of_memory(run):
    left = torch.ones(3)
    raise torch.OutOfMemoryError(f"device out of memory beside {left.device}")


def _not_implemented(run):
    left = torch.ones(3)
    raise NotImplementedError(f"not on this device, {left.device}")


def _missing_key(run):
    run.batch["nothing"]


def _wrong_dtype(run):
    run.model(run.batch["labels"])


def _leaf_used_in_place(run):
    run.model.encoder[0].weight.add_(1)


def _backward_twice(run):
    out = run.model(run.batch["image"]).sum()
    out.backward()
    out.backward()


class _Strayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad.cpu()


def _within_autograd(run):
    _Strayed.apply(run.batch["image"].clone().requires_grad_()).sum().backward()


def _interrupted(run):
    raise KeyboardInterrupt


def _wrong_state(run):
    run.model.load_state_dict({"encoder.0.weight": torch.ones(2, 2)})


OTHERS = (
    _wrong_shape,
    _wrong_shape_across_devices,
    _index_out_of_range,
    _raised_by_the_user,
    _asserted_by_the_user,
    _out_of_memory,
    _not_implemented,
    _missing_key,
    _wrong_dtype,
    _leaf_used_in_place,
    _backward_twice,
    _within_autograd,
    _interrupted,
    _wrong_state,
)


@pytest.mark.parametrize("step", OTHERS, ids=lambda step: step.__name__)
def test_other_errors_pass_through_untouched(sim, step):
    """An error that devices have no part in is the very object that was raised, with its own cause and context."""
    run, kept = Run(), []

    def inside():
        try:
            step(run)
        except BaseException as error:
            kept.append((error, error.__cause__, error.__context__))
            raise

    with pytest.raises(BaseException) as caught, unmoor.device_context(run.model, run.optimizer):  # noqa: PT011
        inside()
    assert (caught.value, caught.value.__cause__, caught.value.__context__) == kept[0]


def _broken(run):
    run.model(run.batch["image"].cpu())


def test_the_original_error_is_the_cause(sim):
    """PyTorch's own error stays reachable, and handlers of RuntimeError still catch it."""
    run = Run()
    with pytest.raises(RuntimeError) as caught, unmoor.device_context(run.model, run.optimizer):
        _broken(run)
    assert isinstance(caught.value, unmoor.DeviceMismatch)
    assert type(caught.value.__cause__) is RuntimeError
    assert "same device" in str(caught.value.__cause__)


def test_a_fault_in_reading_never_hides_the_error(sim, monkeypatch):
    """Where the traceback cannot be read, PyTorch's own error arrives."""

    def faulty(*_):
        raise KeyError("a fault of ours")

    monkeypatch.setattr("unmoor.wiring.context.read_mismatch", faulty)
    run = Run()
    with pytest.raises(RuntimeError, match="same device"), unmoor.device_context(run.model, run.optimizer):
        _broken(run)


def test_without_model_and_optimizer_it_names_what_it_can(sim):
    """Both may be None: classes, variables and lines are known all the same."""
    run = Run()
    told = pytest.raises(unmoor.DeviceMismatch, match=r"Linear\)? got its input on cpu")
    with told, unmoor.device_context(None, None):
        _broken(run)


def test_a_step_without_error_gives_what_it_gives(sim):
    """Nothing is changed, caught or kept while nothing fails."""
    run = Run()
    with unmoor.device_context(run.model, run.optimizer) as context:
        run.step()
    with context:
        run.step()


def test_contexts_nest_and_the_inner_one_tells(sim):
    """The outer context passes on what the inner one has told."""
    run, kept = Run(), []
    with pytest.raises(unmoor.DeviceMismatch) as caught, unmoor.device_context(None, None):  # noqa: PT012
        try:
            with unmoor.device_context(run.model, run.optimizer):
                _broken(run)
        except unmoor.DeviceMismatch as error:
            kept.append(error)
            raise
    assert caught.value is kept[0]


def test_it_decorates_a_function_a_method_and_a_coroutine(sim):
    """As a decorator it keeps name and result, and tells what fails inside."""
    run = Run()
    context = unmoor.device_context(run.model, run.optimizer)

    @context
    def step(x, *, twice=False):
        return run.model(x).sum() * (2 if twice else 1)

    @context
    async def later(x):
        await asyncio.sleep(0)
        return run.model(x)

    assert step.__name__ == "step"
    assert step(run.batch["image"], twice=True).shape == ()
    assert asyncio.run(later(run.batch["image"])).shape == (5, 3)
    for call in (lambda: step(run.batch["image"].cpu()), lambda: asyncio.run(later(run.batch["image"].cpu()))):
        with pytest.raises(unmoor.DeviceMismatch) as caught:
            call()
        assert caught.value.mismatch.away[0].name == "x"


def test_it_is_an_asynchronous_context_too(sim):
    """`async with` does the same."""
    run = Run()

    async def step():
        async with unmoor.device_context(run.model, run.optimizer):
            _broken(run)

    with pytest.raises(unmoor.DeviceMismatch):
        asyncio.run(step())


def test_a_large_list_beside_the_step_is_no_burden(sim):
    """Of what a frame holds only so much is looked through for names."""
    run = Run()
    rows = [[0.0] * 10] * 200_000
    with pytest.raises(unmoor.DeviceMismatch), unmoor.device_context(run.model, run.optimizer):
        _broken(run)
    assert len(rows) == 200_000


def test_threads_share_one_context(sim):
    """Each thread is told of its own error."""
    runs = [Run(), Run()]
    runs[1].batch["labels"] = runs[1].batch["labels"].cpu()
    runs[0].batch["image"] = runs[0].batch["image"].cpu()
    context, told = unmoor.device_context(runs[0].model, None), {}

    def work(i):
        try:
            with context:
                runs[i].step()
        except unmoor.DeviceMismatch as error:
            told[i] = error.mismatch

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told[0].owner == "Linear"
    assert told[1].owner == "CrossEntropyLoss"


def test_a_tree_that_cannot_be_built_at_once_is_built_again(monkeypatch):
    """Python 3.11 refuses one where another thread builds another at that moment."""
    answers = [SystemError("AST constructor recursion depth mismatch"), ast.parse("x")]

    def parse(text):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("unmoor.live.context_frames.ast.parse", parse)
    assert isinstance(parsed("x"), ast.Module)
    assert not answers


def test_code_without_source_is_read_by_its_variables(sim):
    """A step that was made by exec has no source: nothing is guessed, and what PyTorch's frames say is told."""
    run, scope = Run(), {}
    exec("def step(model, x):\n    return model(x)\n", scope)
    with pytest.raises(unmoor.DeviceMismatch) as caught, unmoor.device_context(run.model, None):
        scope["step"](run.model, run.batch["image"].cpu())
    assert caught.value.headline == "encoder.0 (Linear) got its input on cpu, its weight is on sim:1"
    exec("def add(a, b):\n    return a + b\n", scope)
    with pytest.raises(RuntimeError) as passed, unmoor.device_context(run.model, None):
        scope["add"](run.batch["image"], run.batch["image"].cpu())
    assert type(passed.value) is RuntimeError


def test_properties_of_the_user_are_not_run(sim):
    """Reading a frame runs none of the user's code: a property with an effect is left alone."""
    run, touched = Run(), []

    class Batch:
        @property
        def image(self):
            touched.append(1)
            return run.batch["image"].cpu()

    batch = Batch()
    with pytest.raises(unmoor.DeviceMismatch), unmoor.device_context(run.model, None):
        run.model(batch.image)
    assert touched == [1]


def test_a_failed_step_keeps_its_random_stream(sim):
    """Asking torch whether the operation works draws no random number."""
    run = Run()
    x = run.batch["image"].cpu()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    with pytest.raises(unmoor.DeviceMismatch), unmoor.device_context(run.model, None):
        torch.cat([run.batch["image"], torch.rand_like(run.batch["image"]), x])
    assert torch.equal(torch.rand(1), expected)


def test_a_told_error_crosses_processes_as_text():
    """A pickled error keeps its text."""
    error = unmoor.DeviceMismatch("here", details=["a"], remedy="b")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("wrong", [3, "model", nn.Linear])
def test_what_is_no_model_is_refused(wrong):
    """A class, a number or a name is no model, and the error says what was given."""
    with pytest.raises(unmoor.UsageError, match="model"):
        unmoor.device_context(wrong, None)


def test_models_and_optimizers_come_in_dicts_and_lists(sim):
    """Several models are named by their keys."""
    gen, disc = Net().to(HOME), Net().to("sim:0")
    with pytest.raises(unmoor.DeviceMismatch) as caught, unmoor.device_context({"gen": gen, "disc": disc}):
        disc(torch.ones(2, 4, device=HOME) * gen.encoder[0].weight[0])
    assert caught.value.mismatch.place == "disc.encoder.0"
