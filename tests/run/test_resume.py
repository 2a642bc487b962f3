"""A run goes on where it was: bit for bit, past what is broken, and not one step further than its end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

import unmoor

from .small import Training, damage, kinds, names, the_run, trained

TOTAL = 13


def step_file(number: int) -> str:
    return f"step_{number:09d}.pt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The digest of the run that nothing interrupts."""
    training, _ = trained(tmp_path_factory.mktemp("whole"), TOTAL)
    assert training.taken == list(range(TOTAL))
    return training.digest()


def cut(folder: Path, at: int, **policy) -> Training:
    """A run that ends within step `at`, as a process that was killed does."""
    training = Training()
    run = the_run(folder, training, on_exception="leave", **policy)
    steps = run.steps(run.resume(), TOTAL)
    for step in steps:
        if step == at:
            steps.close()
            break
        training.step(step)
    run.close()
    return training


@pytest.mark.parametrize(
    ("at", "background"),
    [*((at, False) for at in (1, 2, 5, 6, 7, 12)), (5, "wait"), (7, "wait"), (5, "skip"), (7, "skip")],
)
def test_goes_on_bit_for_bit(tmp_path, whole, at, background):
    """Cut anywhere, in an epoch or between two, the resumed run is the uninterrupted one: state, data, random draws."""
    cut(tmp_path, at, background=background)
    saved = [int(name[5:14]) for name in names(tmp_path)]
    training, run = trained(tmp_path, TOTAL)
    assert training.taken == list(range(max(saved, default=0), TOTAL))
    assert training.digest() == whole
    assert run.finished


def test_a_finished_run_does_nothing_more(tmp_path, whole):
    """Not a step more, not an epoch, not a file."""
    trained(tmp_path, TOTAL)
    before = {name: os.stat(tmp_path / name).st_mtime_ns for name in names(tmp_path)}
    training, run = trained(tmp_path, TOTAL)
    assert training.taken == []
    assert training.digest() == whole
    assert run.finished
    assert run.last.finished
    assert {name: os.stat(tmp_path / name).st_mtime_ns for name in names(tmp_path)} == before


def test_a_finished_run_goes_on_where_more_is_asked_of_it(tmp_path, whole):
    """A larger total goes on from the end as if it had always been that."""
    trained(tmp_path, 9)
    training, _ = trained(tmp_path, TOTAL)
    assert training.taken == [9, 10, 11, 12]
    assert training.digest() == whole


def test_a_run_that_stopped_itself_is_finished(tmp_path):
    """Early stopping: the step is ended and saved, and the run that is started again trains no further."""
    training, run = trained(tmp_path, TOTAL, lambda run, _, step: run.stop() if step == 4 else None)
    assert training.taken == [0, 1, 2, 3, 4]
    assert run.finished
    assert names(tmp_path)[-1] == step_file(5)
    again, run = trained(tmp_path, TOTAL)
    assert again.taken == []
    assert run.finished
    assert trained(tmp_path, TOTAL + 1)[0].taken == list(range(5, TOTAL + 1))


def test_without_a_total_it_runs_until_it_is_stopped(tmp_path):
    """steps(start) has no end of its own."""
    training, _ = trained(tmp_path, None, lambda run, _, step: run.stop() if step == 6 else None)
    assert training.taken == list(range(7))
    assert trained(tmp_path, None)[0].taken == []


def test_epochs_are_steps_too(tmp_path):
    """What a step is, the loop decides."""

    def epochs(total: int, stop: int) -> tuple[Training, list[int]]:
        training, done = Training(), []
        with the_run(tmp_path, training, every=1, keep_last=1) as run:
            for epoch in run.steps(run.resume(), total):
                for _ in range(6):
                    training.step(epoch)
                done.append(epoch)
                if epoch + 1 == stop:
                    run.stop()
        return training, done

    epochs(3, 2)
    again, done = epochs(5, 0)
    assert done == [2, 3, 4]
    shutil.rmtree(tmp_path)
    assert epochs(5, 0)[0].digest() == again.digest()
    assert epochs(5, 0)[1] == []


@pytest.mark.parametrize("broken", [1, 2])
def test_passes_over_what_is_broken(tmp_path, whole, broken):
    """The newest that verifies is restored; what was passed over is told in events, report and a warning."""
    cut(tmp_path, 7)
    bad = names(tmp_path)[-broken:]
    for name in bad:
        damage(tmp_path / name)
    with pytest.warns(UserWarning, match="passed over") as caught:
        training, run = trained(tmp_path, TOTAL)
    assert [str(each.message).split(": ")[1] for each in caught] == [f"passed over {name}" for name in reversed(bad)]
    assert training.taken[0] == 6 - 2 * broken
    assert training.digest() == whole
    assert kinds(run)[: broken + 1] == ["passed"] * broken + ["resumed"]
    assert f"passed over {bad[-1]}" in str(run.report)


def test_what_was_passed_over_counts_as_verified_no_more(tmp_path):
    """A note that it held once does not have an older one go in its place: rot changes no time of a file."""
    cut(tmp_path, 7, keep_last=2)
    facts = os.stat(tmp_path / step_file(6))
    damage(tmp_path / step_file(6))
    os.utime(tmp_path / step_file(6), ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert [row.verified for row in unmoor.runs(tmp_path)] == [True, True]
    with the_run(tmp_path, Training(), keep_last=2) as run:
        with pytest.warns(UserWarning, match="passed over"):
            assert run.resume() == 4
        assert [row.verified for row in unmoor.runs(tmp_path)] == [None, True]
        run.save(step=5)
        assert names(tmp_path) == [step_file(n) for n in (4, 5, 6)]


BREAKAGES = {
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "text": lambda path: path.write_text("<html>"),
    "its end is lost": lambda path: os.truncate(path, path.stat().st_size - 1),
}
OTHERS = {
    "nothing": lambda path: path.unlink(),
    "an empty folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("how", BREAKAGES)
def test_passes_over_a_file_of_any_kind(tmp_path, whole, how):
    """Whatever lies under the name of the newest checkpoint, the run goes on from the one before."""
    cut(tmp_path, 7)
    BREAKAGES[how](tmp_path / step_file(6))
    with pytest.warns(UserWarning, match="passed over step_000000006.pt"):
        training, _ = trained(tmp_path, TOTAL)
    assert training.taken[0] == 4
    assert training.digest() == whole
    assert step_file(6) not in names(tmp_path), "a broken one goes once a later one is verified"


def test_passes_over_a_folder_whose_save_never_ended(tmp_path, whole):
    """C55: shards without their .metadata under the newest name: the run goes on from the one before."""
    cut(tmp_path, 7)
    partial = tmp_path / "step_000000008"
    partial.mkdir()
    (partial / "__0_0.distcp").write_bytes(b"PK\x03\x04 cut short")
    with pytest.warns(UserWarning, match=r"passed over step_000000008: \.metadata is missing"):
        training, _ = trained(tmp_path, TOTAL)
    assert training.taken[0] == 6
    assert training.digest() == whole
    assert not partial.exists(), "a broken one goes once a later one is verified"


@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.filterwarnings("ignore:unmoor.Run. passed over")
def test_goes_on_where_the_newest_is_no_checkpoint_any_more(tmp_path, whole, how):
    """What was noted as verified and is gone is not looked for; nothing is written over what took its name."""
    cut(tmp_path, 7)
    OTHERS[how](tmp_path / step_file(6))
    training, _ = trained(tmp_path, TOTAL, keep_last=None)
    assert training.taken[0] == 4
    assert training.digest() == whole
    wanted = step_file(6) if how == "nothing" else "step_000000006-"
    assert [name for name in names(tmp_path) if name.startswith(wanted)]


def test_nothing_changes_before_the_data_was_verified(tmp_path):
    """A checkpoint that turns out broken leaves the live objects as they were."""
    cut(tmp_path, 3)
    damage(tmp_path / step_file(2))
    training = Training(seed=3)
    before = training.digest()
    with the_run(tmp_path, training) as run, pytest.warns(UserWarning, match="unmoor") as told:
        assert run.resume() == 0
    assert ["passed over" in str(each.message) for each in told] == [True, False]
    assert "none of the checkpoints" in str(told[1].message)
    assert training.digest() == before
    assert run.report is None
    with (
        the_run(tmp_path, training) as run,
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(unmoor.CorruptFile, match="no checkpoint in"),
    ):
        run.resume(otherwise="error")


def test_does_not_start_anew_where_objects_had_begun_to_change(tmp_path):
    """With verify="stream" damage is met half-way: that is no fresh start."""
    cut(tmp_path, 3)
    damage(tmp_path / step_file(2))
    passed, none = pytest.warns(UserWarning, match="passed over"), pytest.raises(unmoor.CorruptFile, match="build them")
    with the_run(tmp_path, Training()) as run, passed, none:
        run.resume(verify="stream")


def test_a_disk_that_fails_is_no_fresh_start(tmp_path, monkeypatch):
    """Where files cannot be read nobody knows if they are broken."""
    cut(tmp_path, 7)

    def failing(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(unmoor.api, "restore", failing)
    passed, none = pytest.warns(UserWarning, match="passed over"), pytest.raises(unmoor.MachineError, match="no checkp")
    with the_run(tmp_path, Training()) as run, passed, none:
        run.resume()


def test_objects_that_do_not_fit_are_an_error(tmp_path):
    """Another model is no reason to go back to an older checkpoint, nor to start anew."""
    cut(tmp_path, 7)
    other = unmoor.Run(tmp_path, model=torch.nn.Linear(3, 3))
    with pytest.raises(unmoor.MismatchError):
        other.resume()
    assert len(names(tmp_path)) == 3


def test_every_keyword_of_restore_works(tmp_path):
    """Devices, patterns, policies: what restore takes, resume takes."""
    training, _ = trained(tmp_path, 4)
    meta = Training(seed=5)
    with the_run(tmp_path, meta) as run:
        assert run.resume(model_device="cpu", only="0.*", rng=False, verify="none") == 4
    assert torch.equal(meta.model[0].weight, training.model[0].weight)
    assert not torch.equal(meta.model[2].weight, training.model[2].weight)
    run = the_run(tmp_path, Training())
    with pytest.raises(unmoor.ArgumentConflict):
        run.resume(model_device="cpu", map_location="cpu")
    with pytest.raises(unmoor.UsageError, match="otherwise"):
        run.resume(otherwise="maybe")
    other = Training(seed=6)
    assert run.resume(model=other.model, optimizer=other.optimizer, scheduler=other.scheduler, loader=other.loader) == 4
    assert other.digest() == training.digest()


def test_keywords_beside_the_roles_are_carried(tmp_path):
    """Objects with a state come back, plain values are in the report."""

    class Counter:
        def __init__(self) -> None:
            self.seen = 0

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            self.seen = state["seen"]

    counter, generator = Counter(), torch.Generator().manual_seed(1)
    objects = {"counter": counter, "config": {"width": 8}, "rng": {"own": generator}}
    run = unmoor.Run(tmp_path, model=torch.nn.Linear(2, 2), **objects)
    for step in run.steps(run.resume(), 3):
        counter.seen += step
        torch.rand(1, generator=generator)
    run.close()
    other, own = Counter(), torch.Generator()
    again = unmoor.Run(tmp_path, model=torch.nn.Linear(2, 2), counter=other, config={}, rng={"own": own})
    assert again.resume() == 3
    assert other.seen == 3
    assert torch.equal(own.get_state(), generator.get_state())
    assert again.report.extra["config"] == {"width": 8}


def test_averages_belong_to_the_weights_of_their_step(tmp_path):
    """Model, optimizer and EMA are one file: none of them can be of another step. Its name says nothing."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    def averaged(stop):
        training = Training()
        ema = AveragedModel(training.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        with the_run(tmp_path / "run", training, ema=ema) as run:
            for step in run.steps(run.resume(), 9):
                training.step(step)
                ema.update_parameters(training.model)
                if step == stop:
                    run.stop()
        return training, ema

    averaged(4)
    os.rename(tmp_path / "run" / step_file(5), tmp_path / "weights-of-tuesday.pt")
    shutil.rmtree(tmp_path / "run")
    training = Training()
    ema = AveragedModel(training.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    with the_run(tmp_path / "run", training, ema=ema) as run:
        for step in run.steps(run.resume(from_=tmp_path / "weights-of-tuesday.pt"), 9):
            training.step(step)
            ema.update_parameters(training.model)
    assert training.taken == [5, 6, 7, 8]
    shutil.rmtree(tmp_path / "run")
    whole, wholly = averaged(None)
    assert whole.digest() == training.digest()
    assert all(map(torch.equal, wholly.state_dict().values(), ema.state_dict().values()))


def test_begins_from_a_checkpoint_of_another_place(tmp_path, whole):
    """A file of another folder; started again in the same way, the run goes on from its own."""
    cut(tmp_path / "one", 7)
    source = tmp_path / "one" / step_file(4)
    bytes_before = source.read_bytes()
    training = Training()
    with the_run(tmp_path / "two", training) as run:
        for step in run.steps(run.resume(from_=source), 8):
            training.step(step)
    assert training.taken == [4, 5, 6, 7]
    again = Training()
    with the_run(tmp_path / "two", again) as run:
        for step in run.steps(run.resume(from_=source), TOTAL):
            again.step(step)
    assert again.taken[0] == 8
    assert again.digest() == whole
    assert source.read_bytes() == bytes_before


def test_begins_from_the_newest_of_another_run(tmp_path, whole):
    """The folder of another run stands for its newest checkpoint that holds."""
    cut(tmp_path / "one", 7)
    damage(tmp_path / "one" / step_file(6))
    training = Training()
    with the_run(tmp_path / "two", training) as run:
        with pytest.warns(UserWarning, match="passed over"):
            start = run.resume(from_=tmp_path / "one")
        for step in run.steps(start, TOTAL):
            training.step(step)
    assert start == 4
    assert training.digest() == whole


def test_a_run_that_began_elsewhere_never_starts_from_nothing(tmp_path, whole):
    """Where its own checkpoints are broken it begins again from the one that was named; where that is too, it ends."""
    cut(tmp_path / "one", 7)
    source = tmp_path / "one" / step_file(4)
    with the_run(tmp_path / "two", Training(), every=None) as run:
        run.resume(from_=source)
        run.save(step=5)
    damage(tmp_path / "two" / step_file(5))
    training = Training()
    with the_run(tmp_path / "two", training) as run, pytest.warns(UserWarning, match="passed over step_000000005"):
        assert run.resume(from_=source) == 4
    damage(source)
    passed, none = (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(unmoor.CorruptFile, match="no checkpoint"),
    )
    with the_run(tmp_path / "two", Training()) as run, passed, none:
        run.resume(from_=source)


def test_goes_back_to_an_older_one_of_its_own(tmp_path, whole):
    """Nothing is written over; what comes after is the newest from then on."""
    cut(tmp_path, 9, keep_last=None)
    held = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    training = Training()
    with the_run(tmp_path, training, keep_last=None) as run:
        for step in run.steps(run.resume(from_=tmp_path / step_file(4)), 8):
            training.step(step)
    assert all((tmp_path / name).read_bytes() == data for name, data in held.items())
    again, run = trained(tmp_path, TOTAL, keep_last=None)
    assert again.taken[0] == 8
    assert again.digest() == whole


def test_begins_from_a_file_that_another_program_wrote(tmp_path):
    """Steps are counted by what the file says, and from 0 where it says nothing."""
    training = Training()
    for step in range(3):
        training.step(step)
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
    torch.save({**state, "step": 3}, tmp_path / "theirs.pt")
    torch.save(state, tmp_path / "weights.pt")
    for name, start in (("theirs.pt", 3), ("weights.pt", 0)):
        other = Training(seed=1)
        run = unmoor.Run(tmp_path / name[:3], model=other.model, optimizer=other.optimizer, every=None)
        assert run.resume(from_=tmp_path / name) == start
        assert torch.equal(other.model[0].weight, training.model[0].weight)
        assert list(run.steps(start, 5)) == list(range(start, 5))


def test_a_file_that_is_asked_for_by_name_must_hold(tmp_path):
    """There is nothing to fall back to from what the caller named."""
    cut(tmp_path / "one", 7)
    damage(tmp_path / "one" / step_file(6))
    with the_run(tmp_path / "two", Training()) as run, pytest.raises(unmoor.CorruptFile):
        run.resume(from_=tmp_path / "one" / step_file(6))
    with the_run(tmp_path / "two", Training()) as run, pytest.raises(unmoor.NotACheckpoint):
        run.resume(from_=tmp_path / "nothing.pt")


def test_a_run_that_did_not_look_at_its_folder_is_refused(tmp_path):
    """Training from step 0 beside an earlier run's checkpoints would end with these deleted."""
    cut(tmp_path, 7)
    with the_run(tmp_path, Training()) as run:
        with pytest.raises(unmoor.UsageError, match=r"Call start = run\.resume\(\) first"):
            run.steps(0, TOTAL)
        with pytest.raises(unmoor.UsageError, match=r"run\.resume"):
            run.save(step=3)
        run.resume()
        with pytest.raises(unmoor.UsageError, match="6 steps are done"):
            run.steps(0, TOTAL)
    assert names(tmp_path) == [step_file(n) for n in (2, 4, 6)]


@pytest.mark.parametrize("steps", [("0", 5), (-1, 5), (0, 2.5), (None, 5), (True, 5)], ids=str)
def test_steps_that_are_none_are_refused(tmp_path, steps):
    """Numbers of steps are whole numbers."""
    with the_run(tmp_path, Training()) as run:
        run.resume()
        with pytest.raises(unmoor.UsageError, match="names no steps"):
            run.steps(*steps)


def test_never_writes_into_what_it_resumed_from(tmp_path):
    """A save by hand at the very step gets a name of its own."""
    cut(tmp_path, 5)
    before = (tmp_path / step_file(4)).read_bytes()
    with the_run(tmp_path, Training(), keep_last=1) as run:
        assert run.resume() == 4
        made = run.save()
        assert made.name == "step_000000004-3.pt"
        assert made.verified
        run.save()
    assert (tmp_path / step_file(4)).read_bytes() == before
    assert names(tmp_path) == ["step_000000004-4.pt", step_file(4)]
    assert the_run(tmp_path, Training()).resume() == 4
