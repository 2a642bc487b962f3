"""Plans for one rank of many, made without a process group: whole names and shapes, own parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import unmoor
from unmoor.describe import describe_path
from unmoor.execute.streaming import stream
from unmoor.live.held import Held
from unmoor.live.sinks import HeldSink, TensorSink
from unmoor.plan.policy import Policy
from unmoor.plan.restore import plan_restore
from unmoor.values.boxes import Box
from unmoor.values.target import Slot, Target, TargetGroup, TargetModule, TargetOptimizer, TargetParam
from unmoor.wiring.spans import open_spans

RANKS, RANK = 1024, 517
SHAPES = {"rows": (2048, 8), "columns": (3, 4096), "short": (600, 2), "whole": (5,)}
BOXES = {
    "rows": (Box((2 * RANK, 0), (2, 8)),),
    "columns": (Box((0, 4 * RANK), (3, 4)),),
    "short": (Box((RANK, 0), (1, 2)),),
    "whole": None,
}


@pytest.fixture
def saved(tmp_path):
    """A run of one process in a file, with Adam's state, and its tensors by name."""
    torch.manual_seed(0)
    params = torch.nn.ParameterDict({n: torch.nn.Parameter(torch.randn(shape)) for n, shape in SHAPES.items()})
    optimizer = torch.optim.Adam(params.parameters())
    sum(p.square().sum() for p in params.values()).backward()
    optimizer.step()
    unmoor.save(tmp_path / "run.pt", model=params, optimizer=optimizer)
    state = {name: optimizer.state[param] for name, param in params.items()}
    return tmp_path / "run.pt", dict(params.items()), state


def slot(name):
    shape = SHAPES[name]
    stride = (shape[1], 1) if len(shape) == 2 else (1,)
    return Slot(f"model/{name}", shape, "float32", stride, "cpu", dense=True, boxes=BOXES[name])


def target(names=tuple(SHAPES), **changes):
    """What rank 517 of 1,024 holds."""
    slots = {name: slot(name) for name in names}
    module = TargetModule("model", "model", "Model", slots, frozenset(slots))
    params = tuple(
        TargetParam(name, s.shape, s.dtype, s.device, s.stride, s.dense, boxes=s.boxes) for name, s in slots.items()
    )
    options = {"lr": 1e-3, "betas": (0.9, 0.999)}
    optimizer = TargetOptimizer("optimizer", "optimizer", "Adam", "Adam", (TargetGroup(options, params),))
    return Target((module,), (replace(optimizer, **changes),), rank=RANK, world=RANKS, devices={"cpu": 1})


def memory(step):
    if step.slot.boxes is None:
        return torch.zeros(step.slot.shape)
    parts = tuple((box, torch.zeros(box.sizes)) for box in step.slot.boxes)
    return Held(torch.Size(step.slot.shape), torch.float32, torch.device("cpu"), parts)


def test_a_rank_of_many_reads_its_own_parts(saved):
    """Rank 517 of 1,024 gets its rows and columns of parameters and state, counters whole, and reads no more."""
    path, params, state = saved
    plan = plan_restore(describe_path(path), target(), Policy(rng="none"))
    live = {step.slot.id: memory(step) for step in plan.copies()}
    sinks = {k: HeldSink(t) if isinstance(t, Held) else TensorSink(t, dense=True) for k, t in live.items()}
    reads = []
    with open_spans(str(path)) as open_span:

        def counted(file):
            reader = open_span(file)

            class Counted:
                path, size = reader.path, reader.size

                def some_into(self, offset, buffer):
                    reads.append(len(buffer))
                    return reader.some_into(offset, buffer)

            return Counted()

        done = stream(
            plan.copies(),
            sinks,
            open_span=counted,
            buffer_bytes=1 << 20,
            threads=1,
            verify="stream",
            progress=None,
        )
    elements = sum(5 if boxes is None else sum(box.numel for box in boxes) for boxes in BOXES.values())
    assert done.nbytes == 3 * 4 * elements + 4 * len(SHAPES)
    assert len(done.in_part) == 9
    assert sum(reads) < done.nbytes + 8192
    for step in plan.copies():
        name, _, key = step.name.partition("/")
        source = state[name][key] if key else params[name].detach()
        held = live[step.slot.id]
        for box, part in held.parts if isinstance(held, Held) else [(Box((0,) * source.dim(), source.shape), held)]:
            window = tuple(slice(a, a + n) for a, n in zip(*box, strict=True))
            assert torch.equal(part, source[window])


def test_state_lies_where_its_parameter_does(saved):
    """State of the parameter's shape has its boxes; counters have none."""
    plan = plan_restore(describe_path(saved[0]), target(), Policy(rng="none"))
    made = {step.name: step.slot for step in plan.copies() if step.label == "optimizer"}
    assert {name: slot.boxes for name, slot in made.items() if name.endswith("exp_avg")} == {
        f"{name}/exp_avg": boxes for name, boxes in BOXES.items()
    }
    assert {slot.boxes for name, slot in made.items() if name.endswith("step")} == {None}
    assert all(slot.make for slot in made.values())


def test_a_rank_without_a_part_plans_and_reads_nothing_of_it(saved):
    """A rank past the last row has no box: the parameter counts as restored, and no byte of it is read."""
    path, *_ = saved
    made = target(("short",))
    slots = {"short": replace(made.modules[0].slots["short"], boxes=())}
    alone = Target((replace(made.modules[0], slots=slots),), rank=RANK, world=RANKS, devices={"cpu": 1})
    plan = plan_restore(describe_path(path), alone, Policy(rng="none", unexpected="ignore"))
    (step,) = plan.copies()
    held = Held(torch.Size((600, 2)), torch.float32, torch.device("cpu"), ())
    with open_spans(str(path)) as open_span:
        done = stream(
            [step],
            {step.slot.id: HeldSink(held)},
            open_span=open_span,
            buffer_bytes=1 << 20,
            threads=1,
            verify="stream",
            progress=None,
        )
    assert (done.nbytes, len(done.in_part)) == (0, 0)


def test_an_optimizer_that_loads_by_itself_is_handed_parts(saved):
    """A class with a load_state_dict of its own gets the same parts as any other."""
    plan, through = (
        plan_restore(describe_path(saved[0]), target(direct=direct), Policy(rng="none")) for direct in (True, False)
    )
    assert [step.slot.boxes for step in plan.copies()] == [step.slot.boxes for step in through.copies()]


def test_state_in_a_form_of_its_own_is_refused(saved):
    """Nothing tells which parts of such a state dict a rank has: refused by name, before anything is read."""
    with pytest.raises(unmoor.errors.MismatchError, match=r"rows, columns, short are spread over ranks"):
        plan_restore(describe_path(saved[0]), target(direct=False, whole=True), Policy(rng="none"))
