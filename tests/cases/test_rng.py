"""Random number states: exact, on the CPU whatever is asked, and never half restored in silence."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unmoor
from tests.worlds.as_rank import restore_as
from unmoor.plan.policy import Policy
from unmoor.plan.streams import plan_rng
from unmoor.values.target import Stream

from .files import refused, save_tagged, tiny, train, trained

GPUS = torch.cuda.device_count()
FEWER_THAN_FOUR = pytest.mark.skipif(GPUS >= 4, reason="this machine has the four GPUs of the file")


def _gpu_state(index: int) -> torch.Tensor:
    """The sixteen bytes of a CUDA generator: seed and offset."""
    return torch.frombuffer(bytearray(struct.pack("<QQ", 42, 4 * index)), dtype=torch.uint8).clone()


@pytest.fixture
def run_of_gpu_one(tmp_path: Path) -> Path:
    """A checkpoint of a run on cuda:1 with the state of the CPU generator, seeded with 123."""
    model, optimizer = trained()
    torch.manual_seed(123)
    tree = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "torch_rng_state": torch.get_rng_state(),
    }
    moved = ("exp_avg", "exp_avg_sq")
    return save_tagged(
        tree, tmp_path / "train.pt", lambda keys: "cuda:1" if keys[0] == "model" or keys[-1] in moved else None
    )


@pytest.fixture
def four_gpus(tmp_path: Path) -> Path:
    """The states of the CPU generator, seeded with 7, and of four GPUs."""
    torch.manual_seed(7)
    path = tmp_path / "rng_state.pth"
    torch.save({"cpu": torch.get_rng_state(), "cuda": [_gpu_state(i) for i in range(4)]}, path)
    return path


def test_the_next_draws_are_those_of_the_saved_run(run_of_gpu_one: Path) -> None:
    """C01: after a restore the generator draws the three numbers that the saved run would have drawn."""
    model = tiny(5)
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(0)
    report = unmoor.restore(run_of_gpu_one, model=model, optimizer=optimizer, model_device="cpu")
    assert torch.rand(3).tolist() == [0.29611194133758545, 0.516562283039093, 0.2516707181930542]
    state = optimizer.state[model[0].weight]
    assert {key: (value.device.type, value.dtype) for key, value in state.items()} == {
        "step": ("cpu", torch.float32),
        "exp_avg": ("cpu", torch.float32),
        "exp_avg_sq": ("cpu", torch.float32),
    }
    assert "rng" in report.restored


@pytest.mark.parametrize(
    "where",
    [
        {"model_device": "auto"},
        {"model_device": "cpu"},
        {"map_location": "cpu"},
        {"map_location": "meta"},
        {"map_location": {"cuda:1": "cpu", "cpu": "meta"}},
        {"map_location": lambda storage, tag: torch.UntypedStorage(storage.nbytes(), device="meta")},
    ],
    ids=["auto", "cpu", "one device", "meta", "by tag", "function"],
)
def test_a_loaded_rng_state_is_a_cpu_byte_tensor_wherever_the_rest_goes(run_of_gpu_one: Path, where: dict) -> None:
    """C01: no placement, not even one that sends the CPU elsewhere, moves the generator's state off the CPU."""
    state = unmoor.load(run_of_gpu_one, **where)["torch_rng_state"]
    assert (state.device.type, state.dtype, state.shape) == ("cpu", torch.uint8, (5056,))
    torch.set_rng_state(state)
    assert torch.rand(3).tolist() == [0.29611194133758545, 0.516562283039093, 0.2516707181930542]


def test_rng_state_stays_on_the_cpu_when_the_model_moves_to_a_device(run_of_gpu_one: Path, sim: object) -> None:
    """C01: on an accelerator moments go to the device, Adam's step and the generator's state stay on the CPU."""
    tree = unmoor.load(run_of_gpu_one, model_device="sim:1")
    state = tree["optimizer"]["state"][0]
    assert {str(t.device) for t in tree["model"].values()} == {"sim:1"}
    assert {key: str(value.device) for key, value in state.items()} == {
        "step": "cpu",
        "exp_avg": "sim:1",
        "exp_avg_sq": "sim:1",
    }
    assert tree["torch_rng_state"].device.type == "cpu"
    model = tiny(5).to("sim:1")
    optimizer = torch.optim.Adam(model.parameters())
    unmoor.restore(run_of_gpu_one, model=model, optimizer=optimizer)
    assert torch.rand(3).tolist() == [0.29611194133758545, 0.516562283039093, 0.2516707181930542]
    train(model, optimizer, 1)


@FEWER_THAN_FOUR
def test_states_of_gpus_that_are_not_here_are_counted_in_the_report(four_gpus: Path) -> None:
    """C03: with fewer GPUs the CPU stream is restored, and the report counts what was saved, visible and not used."""
    expected = torch.Generator().manual_seed(7)
    report = unmoor.restore(four_gpus)
    assert torch.rand(3).tolist() == torch.rand(3, generator=expected).tolist()
    rows = {change.name: (change.before, change.after) for change in report.not_restored}
    assert rows["cuda"] == (f"4 saved, {GPUS} visible", f"{4 - GPUS} not used")
    assert f"cuda: 4 saved, {GPUS} visible, {4 - GPUS} not used" in str(report)


@pytest.mark.parametrize(
    ("visible", "restored", "left"),
    [(2, [0, 1], "2 not used"), (4, [0, 1, 2, 3], ""), (6, [0, 1, 2, 3], "2 without a saved state, left alone")],
)
def test_each_visible_gpu_gets_its_own_state(four_gpus: Path, visible: int, restored: list[int], left: str) -> None:
    """C03: states 0 to k-1 go to the k visible GPUs; the plan says what was saved, visible and left."""
    plan = plan_rng(unmoor.describe(four_gpus), (Stream("torch-device", "cuda", visible),), Policy())
    assert [(step.name, step.index) for step in plan.steps] == [("cuda", index) for index in restored]
    rows = [(change.before, change.after) for change in plan.not_restored if change.name == "cuda"]
    assert rows == ([(f"4 saved, {visible} visible", left)] if left else [])


def test_streams_that_the_file_lacks_are_in_the_report(four_gpus: Path) -> None:
    """C03: python's and numpy's streams, of which this file holds nothing, are named as left alone."""
    random.seed(1)
    np.random.seed(1)
    report = unmoor.restore(four_gpus)
    rows = {change.name: (change.before, change.after) for change in report.not_restored}
    assert rows["numpy"] == rows["python"] == ("not in the file", "left as it is")
    assert (random.random(), np.random.rand()) == (random.Random(1).random(), np.random.RandomState(1).rand())


@FEWER_THAN_FOUR
def test_exact_refuses_what_cannot_be_restored_and_touches_no_stream(four_gpus: Path) -> None:
    """C03: rng="exact" makes every stream that is left over or left out an error, all of them together."""
    with refused(unmoor.MismatchError) as caught:
        unmoor.restore(four_gpus, rng="exact")
    text = str(caught.value)
    assert f"cuda: 4 saved, {GPUS} visible, {4 - GPUS} not used" in text
    assert "numpy: not in the file" in text
    assert "python: not in the file" in text
    assert "rng=True" in text


def test_rng_false_leaves_every_stream_alone(four_gpus: Path) -> None:
    """C03: rng=False restores nothing and says how many states it left in the file."""
    torch.manual_seed(3)
    report = unmoor.restore(four_gpus, rng=False)
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(3))
    assert ("5 states in the file", "rng=False: left alone") in [(c.before, c.after) for c in report.not_restored]


@pytest.fixture
def three_streams(tmp_path: Path) -> Path:
    """The usual file of random states, numpy's as the tuple that torch's safe loading refuses; each seeded with 5."""
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    states = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    torch.save(states, tmp_path / "rng_rank0.pt")
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    return tmp_path / "rng_rank0.pt"


def _next_draws() -> tuple[float, ...]:
    return tuple(round(float(draw), 6) for draw in (torch.rand(1), np.random.rand(), random.random()))


def test_numpy_state_is_restored_with_the_others_and_runs_nothing(three_streams: Path) -> None:
    """C06: the next draws are those of the saved run, from a file that torch.load refuses by default."""
    with pytest.raises(pickle.UnpicklingError, match="numpy"):
        torch.load(three_streams)
    report = unmoor.restore(three_streams)
    assert _next_draws() == (0.830252, 0.221993, 0.622902)
    assert ("rng", "torch, numpy, python") in report.plan.notes
    assert not report.not_restored or [change.name for change in report.not_restored] == ["sim"]


def test_a_state_that_does_not_fit_makes_the_restore_fail_with_no_stream_changed(three_streams: Path) -> None:
    """C06: one bad state is listed, none of the others is set, and rng=False is the way to ask for that."""
    tree = unmoor.load(three_streams)
    version, words, gauss = tree["python"]
    tree["python"] = (version, (*words[:-1], 10_000), gauss)
    torch.save(tree, three_streams)
    with refused(unmoor.MismatchError) as caught:
        unmoor.restore(three_streams)
    assert any(line.startswith("python") for line in caught.value.details)
    assert "rng=False" in str(caught.value)
    assert unmoor.restore(three_streams, rng=False).restored == ()


GENERATORS = {
    "PCG64": lambda seed: np.random.default_rng(seed),
    "MT19937": lambda seed: np.random.Generator(np.random.MT19937(seed)),
    "Philox": lambda seed: np.random.Generator(np.random.Philox(seed)),
    "SFC64": lambda seed: np.random.Generator(np.random.SFC64(seed)),
    "bit generator": lambda seed: np.random.PCG64DXSM(seed),
    "RandomState": lambda seed: np.random.RandomState(seed),
    "python": lambda seed: random.Random(seed),
    "torch": lambda seed: torch.Generator().manual_seed(seed),
    "torch on sim": lambda seed: torch.Generator("sim:1").manual_seed(seed),
}


def _draw(generator: Any) -> Any:
    """Numbers of several kinds, among them such that leave half of a draw in the generator for later."""
    if isinstance(generator, torch.Generator):
        return torch.rand(3, generator=generator, device=generator.device).cpu().tolist()
    if isinstance(generator, random.Random):
        return generator.random(), generator.gauss(0, 1), generator.randrange(1 << 70)
    if isinstance(generator, np.random.BitGenerator):
        return generator.random_raw(3).tolist()
    small = getattr(generator, "integers", getattr(generator, "randint", None))
    return generator.normal(size=3).tolist(), small(9, dtype=np.uint8), small(9, dtype=np.uint32)


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_of_the_callers_own_go_on(sim: object, tmp_path: Path, kind: str) -> None:
    """C08: any generator passed by name is saved by reference and draws on where it was."""
    generator = GENERATORS[kind](1234)
    for _ in range(3):
        _draw(generator)
    unmoor.save(tmp_path / "run.pt", rng={"sampler": generator})
    torch.load(tmp_path / "run.pt")
    other = GENERATORS[kind](1)
    unmoor.restore(tmp_path / "run.pt", rng={"sampler": other})
    assert [_draw(other) for _ in range(3)] == [_draw(generator) for _ in range(3)]


@pytest.mark.parametrize(("name", "at"), [("generator", {}), ("sampler", {"rng[sampler]": "generator"})])
def test_state_of_a_samplers_generator_in_a_file_of_others_is_restored(tmp_path: Path, name: str, at: dict) -> None:
    """C08: a bit generator's state under any key goes into the generator of that name; the order goes on."""
    generator = np.random.default_rng(1234)
    for _ in range(3):
        generator.permutation(10)
    tree = {"np_rng": np.random.get_state()[1].tolist(), "generator": generator.bit_generator.state}
    torch.save(tree, tmp_path / "sampler.pt")
    other = np.random.default_rng(1234)
    unmoor.restore(tmp_path / "sampler.pt", rng={name: other}, at=at)
    assert other.permutation(10).tolist() == [6, 5, 1, 3, 8, 9, 2, 4, 0, 7]


def test_a_state_that_no_one_takes_is_named_and_one_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """C08: a saved generator that was not passed is in the report; one that was passed and not saved is an error."""
    torch.save({"generator": np.random.default_rng(1).bit_generator.state}, tmp_path / "sampler.pt")
    report = unmoor.restore(tmp_path / "sampler.pt")
    rows = {change.name: (change.before, change.after) for change in report.not_restored}
    assert rows["generator"] == ("the state of a PCG64 generator", "pass yours: rng={'generator': ...}")
    mine = np.random.default_rng(2)
    before = mine.bit_generator.state
    with refused(unmoor.MismatchError) as caught:
        unmoor.restore(tmp_path / "sampler.pt", rng={"other": mine})
    assert "the generator 'other', and the file holds no numpy state for it" in str(caught.value)
    assert mine.bit_generator.state == before
    with refused(unmoor.MismatchError):
        unmoor.restore(tmp_path / "sampler.pt", rng={"generator": torch.Generator()})


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    """The folder that accelerate leaves of two ranks, each with streams of its own."""
    for rank in range(2):
        torch.manual_seed(100 + rank)
        np.random.seed(100 + rank)
        random.seed(100 + rank)
        streams = {"random_state": random.getstate(), "numpy_random_seed": np.random.get_state()}
        torch.save(
            {"step": 40, **streams, "torch_manual_seed": torch.get_rng_state()}, tmp_path / f"random_states_{rank}.pkl"
        )
    return tmp_path


def _resumed_on_four(folder: Path) -> list[tuple[Any, tuple[float, ...]]]:
    found = []
    for rank in range(4):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        found.append((restore_as(rank, 4, folder), _next_draws()))
    return found


def test_more_ranks_than_saved_each_have_a_stream_of_their_own(two_ranks: Path) -> None:
    """C04: ranks 0 and 1 are exact; 2 and 3 derive theirs, unlike any other and the same on every retry; it is said."""
    resumed = _resumed_on_four(two_ranks)
    draws = [found for _, found in resumed]
    assert [found[0] for found in draws[:2]] == [0.111664, 0.198049]
    for stream in zip(*draws, strict=True):
        assert len(set(stream)) == 4
    assert draws == [found for _, found in _resumed_on_four(two_ranks)]
    notes = [dict(report.plan.notes)["rng"] for report, _ in resumed]
    assert notes[:2] == ["torch, numpy, python"] * 2
    assert notes[3] == ("torch, numpy, python derived for rank 3 from the states of rank 0; saved by 2 ranks, now 4")


def test_a_new_rank_is_no_exact_one(two_ranks: Path) -> None:
    """C04: rng="exact" refuses the ranks that would derive their streams, and no other."""
    streams = (Stream("torch-cpu", "cpu"), Stream("numpy", "numpy"), Stream("python", "python"))
    plans = [plan_rng(unmoor.describe(two_ranks), streams, Policy(rng="exact"), rank=r, world=4) for r in range(4)]
    assert [len(plan.faults) for plan in plans] == [0, 0, 1, 1]
    assert plans[2].faults[0].message == "torch, numpy, python: 2 ranks saved, and rank 2 was none of them"
    with refused(unmoor.MismatchError):
        restore_as(2, 4, two_ranks, rng="exact")
