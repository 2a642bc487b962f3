"""A run of many small tensors: what is done for each of them is counted, never timed."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import unmoor
from unmoor.live.running import Run
from unmoor.live.sinks import TensorSink
from unmoor.live.survey import Handles


class Calls(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def run(count: int):
    model = nn.ParameterList([nn.Parameter(torch.randn(7)) for _ in range(count)])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def saved(path, count: int):
    model, optimizer = run(count)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    unmoor.save(path, model=model, optimizer=optimizer)
    return model, optimizer


def calls_of(path, count: int) -> Counter:
    saved(path, count)
    model, optimizer = run(count)
    with Calls() as calls:
        unmoor.restore(path, model=model, optimizer=optimizer)
    return calls.counts


def test_torch_is_asked_for_the_memory_of_new_state_and_nothing_else(tmp_path):
    """For one more parameter three state tensors are made; its data arrives without a call of torch."""
    few, many = calls_of(tmp_path / "few.pt", 20), calls_of(tmp_path / "many.pt", 50)
    more = {name: number - few[name] for name, number in many.items() if number != few[name]}
    assert more == {"aten.empty_strided.default": 3 * 30}


def test_state_that_exists_is_filled_where_it_is(tmp_path):
    """A second restore makes nothing: the same tensors get the values."""
    path = tmp_path / "run.pt"
    model, optimizer = saved(path, 30)
    before = [(id(v), v.clone()) for entry in optimizer.state.values() for v in entry.values()]
    for entry in optimizer.state.values():
        for value in entry.values():
            value.add_(1)
    unmoor.restore(path, model=model, optimizer=optimizer)
    after = [v for entry in optimizer.state.values() for v in entry.values()]
    assert all(id(v) == known and torch.equal(v, value) for v, (known, value) in zip(after, before, strict=True))


@pytest.mark.parametrize("broken", [False, True])
def test_the_garbage_collector_rests_until_a_restore_ends(tmp_path, broken):
    """A tree of many tensors holds no garbage; the collector runs again afterwards, after an error too."""
    path = tmp_path / "run.pt"
    saved(path, 300)
    model, optimizer = run(299 if broken else 300)
    seen, before = [], gc.get_threshold()
    gc.callbacks.append(lambda phase, info: seen.append(phase))
    gc.set_threshold(50)
    try:
        seen.clear()
        if broken:
            with pytest.raises(unmoor.MismatchError):
                unmoor.restore(path, model=model, optimizer=optimizer)
        else:
            unmoor.restore(path, model=model, optimizer=optimizer)
        within = len(seen)
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*before)
    assert within < 100
    assert gc.isenabled()


def test_live_modules_are_looked_at_again_only_after_something_changed_them(tmp_path, monkeypatch):
    """Nothing was moved and nothing loaded: what was seen of the modules still holds."""
    looks = []
    refresh = Handles.refresh
    monkeypatch.setattr(Handles, "refresh", lambda handles: looks.append(1) or refresh(handles))
    path = tmp_path / "run.pt"
    saved(path, 3)
    model, optimizer = run(3)
    unmoor.restore(path, model=model, optimizer=optimizer)
    assert not looks
    unmoor.restore(path, model=model, optimizer=optimizer, model_device="cpu")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    unmoor.save(path, model=model, optimizer=optimizer, scheduler=scheduler)
    looks.clear()
    unmoor.restore(path, model=model, optimizer=optimizer, scheduler=scheduler)
    assert looks


@pytest.mark.parametrize("array", [False, True])
def test_a_slot_is_the_tensor_that_arrived_or_its_array(array):
    """A slot on its own becomes what it becomes within a container."""
    pytest.importorskip("numpy")
    from unmoor.values.target import Slot

    run_ = Run(Handles())
    slot = Slot("x", (2,), "float32", (1,), "cpu", dense=True, make=True, array=array)
    tensor = run_._made["x"] = torch.tensor([1.0, 2.0])
    alone, within = run_.value(slot), run_.value([slot])[0]
    assert type(alone) is type(within)
    assert (alone.ctypes.data if array else alone.data_ptr()) == tensor.data_ptr()


def test_a_sink_of_a_leaf_that_needs_gradients_writes_past_autograd():
    """Bytes, pieces and converted elements go into a parameter as into any tensor."""
    param = nn.Parameter(torch.zeros(4))
    sink = TensorSink(param, dense=True)
    data = torch.arange(4, dtype=torch.float32).numpy().tobytes()
    sink.put(4, memoryview(bytearray(data[4:])))
    assert param.tolist() == [0, 1, 2, 3]
    sink.part((2,), (2,)).put(0, memoryview(bytearray(data[:8])))
    assert param.tolist() == [0, 1, 0, 1]
    memory = sink.direct(16)
    assert memory is not None
    memory[:] = data
    assert param.tolist() == [0, 1, 2, 3]
    assert param.grad_fn is None
    assert param._version == 2
