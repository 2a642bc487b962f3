"""The folder of a run: who may write there, what lies there already, what is kept and what goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import unmoor
from unmoor.values.run_events import KINDS, Event
from unmoor.wiring import run_lock

from .small import Training, kinds, names, the_run, trained


def steps_kept(folder):
    return sorted({int(name[5:14]) for name in names(folder)})


KEPT = [
    ({"keep_last": 3}, [8, 10, 11]),
    ({"keep_last": 1}, [11]),
    ({"keep_last": None}, [2, 4, 6, 8, 10, 11]),
    ({"keep_last": 1, "keep_every": 3}, [4, 6, 10, 11]),
    ({"keep_last": 1, "keep_best": ("loss", "min", 1)}, [4, 11]),
    ({"keep_last": 1, "keep_best": ("loss", "max", 2)}, [6, 8, 11]),
    ({"keep_last": 2, "keep_best": [("loss", "min", 1), ("loss", "max", 1)][:1]}, [4, 10, 11]),
]
LOSSES = {1: 3.0, 3: 1.0, 5: 8.0, 7: 9.0, 9: 2.0}


@pytest.mark.parametrize(
    ("policy", "left", "background"), [*((*row, False) for row in KEPT), *((*row, True) for row in KEPT[3:5])], ids=str
)
def test_what_is_kept(tmp_path, policy, left, background):
    """The newest, the best, the first of every span: in a real folder, as the policy says."""

    def body(run, training, step):
        if step in LOSSES:
            run.log(loss=torch.tensor(LOSSES[step]), seen=step)

    trained(tmp_path, 11, body, background=background, **policy)
    assert steps_kept(tmp_path) == left
    assert all(unmoor.verify(tmp_path / name).ok for name in names(tmp_path))
    rows = json.loads((tmp_path / "run.json").read_text())["verified"]
    assert sorted(rows) == names(tmp_path)
    assert [row.verified for row in unmoor.runs(tmp_path)] == [True] * len(left)


def test_a_new_best_is_saved_where_that_is_asked_for(tmp_path):
    """every=(..., "best"): the step at which a metric was best is kept, and not the next one that is due."""

    def body(run, training, step):
        run.log(loss=float(abs(step - 5)))

    trained(tmp_path, 11, body, every=(100, "best"), keep_last=1, keep_best=("loss", "min", 1))
    assert steps_kept(tmp_path) == [6, 11]


def test_metrics_go_into_the_next_checkpoint(tmp_path):
    """The last value of each name since the save before, and the step at which it was measured."""

    def body(run, training, step):
        if step in (1, 2, 5):
            run.log(loss=step, acc=torch.tensor([step / 10]))

    trained(tmp_path, 8, body, every=4, keep_last=None)
    rows = {row.step: dict(row.metrics) for row in unmoor.runs(tmp_path)}
    assert rows[4]["loss"] == 2
    assert rows[4]["acc"] == pytest.approx(0.2)
    assert rows[8]["loss"] == 5
    record = torch.load(tmp_path / "step_000000008.pt", weights_only=True)["run"]
    assert record["logged_at"] == {"loss": 6, "acc": 6}
    assert (record["version"], record["step"], record["number"], record["finished"]) == (1, 8, 2, True)
    assert (record["total"], record["resumed_from"], record["interrupted"]) == (8, None, False)


@pytest.mark.parametrize("value", ["0.5", None, True, [1.0], torch.zeros(2), 1j, torch.tensor(1j)], ids=str)
def test_what_is_no_number_is_no_metric(tmp_path, value):
    """Numbers alone can be compared."""
    run = the_run(tmp_path, Training())
    with pytest.raises(unmoor.UsageError, match="loss="):
        run.log(loss=value, fine=1)
    assert run._loop.metrics.values == {}


def test_one_run_at_a_time(tmp_path):
    """A second run in the folder is refused, with who has it; it may begin once the first has ended."""
    first = the_run(tmp_path, Training())
    first.resume()
    second = the_run(tmp_path, Training())
    with pytest.raises(unmoor.UsageError, match="another run that is under way: one of this process"):
        second.resume()
    first.close()
    assert second.resume() == 0
    with pytest.raises(unmoor.UsageError, match="after close"):
        first.resume()
    del second
    with the_run(tmp_path, Training()) as third:
        third.resume()
        code = f"import unmoor; unmoor.Run({str(tmp_path)!r}, config=1).resume()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"process {os.getpid()} on " in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_does_not_hold_the_folder(tmp_path):
    """Workers of a loader outlive their parent for a while: the next run need not wait for them."""
    first = the_run(tmp_path, Training())
    first.resume()
    ready, stop = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(ready[1], b"x")
        os.read(stop[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        first.close()
        assert the_run(tmp_path, Training()).resume() == 0
    finally:
        os.write(stop[1], b"x")
        os.waitpid(child, 0)
        for end in (*ready, *stop):
            os.close(end)


@pytest.mark.parametrize("how", ["no fcntl", "no locks"])
def test_goes_on_where_there_are_no_locks(tmp_path, monkeypatch, how):
    """On Windows and on file systems without locks nothing is refused, and the run says so."""
    if how == "no fcntl":
        monkeypatch.setattr(run_lock, "fcntl", None)
    else:

        def flock(*_):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(run_lock.fcntl, "flock", flock)
    _, run = trained(tmp_path, 3)
    assert kinds(run)[0] == "unlocked"
    assert run.finished


def test_a_folder_that_is_none(tmp_path):
    """A file, or something under a file, cannot be the folder of a run."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(unmoor.UsageError, match="is a file, not a folder"):
        the_run(tmp_path / "file", Training()).resume()
    with pytest.raises(unmoor.SaveError, match="could not be made"):
        the_run(tmp_path / "file" / "below", Training()).resume()
    with pytest.raises(unmoor.UsageError, match="path"):
        unmoor.Run(3)


def test_makes_its_folder_where_it_is_missing(tmp_path):
    """Nothing has to be made before; nothing is made before the first call."""
    run = the_run(tmp_path / "a" / "b", Training())
    assert not (tmp_path / "a").exists()
    assert run.resume() == 0
    assert (tmp_path / "a" / "b").is_dir()


def test_foreign_files_are_left_alone(tmp_path):
    """What no run wrote is neither resumed from by itself nor deleted, whatever it is called."""
    theirs = Training()
    torch.save({"model": theirs.model.state_dict(), "step": 99}, tmp_path / "step_99.pt")
    torch.save({"model": theirs.model.state_dict()}, tmp_path / "step_000000001.pt")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "logs").mkdir()
    before = names(tmp_path)
    _, run = trained(tmp_path, 4, keep_last=1, every=1)
    assert "fresh" in kinds(run)
    assert "foreign" in kinds(run)
    assert sorted({*names(tmp_path)} - {*before}) == ["step_000000004.pt"]
    assert {*before} <= {*names(tmp_path)}


LOST = {
    "gone": lambda path: path.unlink(),
    "text": lambda path: path.write_text("no JSON"),
    "a list": lambda path: path.write_text("[1, 2]"),
    "odd rows": lambda path: path.write_text('{"verified": {"step_000000004.pt": {"size": "x"}, "b": 3}}'),
    "deep": lambda path: path.write_text("[" * 100000),
    "another size": lambda path: path.write_text(path.read_text().replace('"size": ', '"size": 9')),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("how", LOST)
def test_a_lost_note_means_only_that_nobody_knows(tmp_path, how):
    """Without run.json nothing is taken for verified, nothing is deleted early, and the run goes on."""
    trained(tmp_path, 4, keep_last=2)
    LOST[how](tmp_path / "run.json")
    assert next(row.verified for row in unmoor.runs(tmp_path)) is None
    training, run = trained(tmp_path, 6, keep_last=2)
    assert training.taken == [4, 5]
    assert run.last.verified
    assert steps_kept(tmp_path) == [2, 4, 6], "two verified ones before an older one goes"
    trained(tmp_path, 8, keep_last=2)
    assert steps_kept(tmp_path) == ([6, 8] if how != "a folder" else steps_kept(tmp_path))


def test_junk_of_killed_runs_is_swept(tmp_path):
    """Hidden files of saves whose process is gone are removed when the next run begins."""
    from unmoor.execute.leftovers import hidden_name

    trained(tmp_path, 3)
    code = "import sys; from unmoor.execute.leftovers import claim; print(claim(sys.argv[1])[0])"
    target = str(tmp_path / "step_000000009.pt")
    done = subprocess.run([sys.executable, "-c", code, target], capture_output=True, text=True, check=True)
    left = Path(done.stdout.strip())
    assert left.exists()
    alive = Path(hidden_name(target))
    alive.write_text("of a process that is there")
    _, run = trained(tmp_path, 3)
    assert kinds(run)[0] == "swept"
    assert not left.exists()
    assert alive.exists()


def test_a_checkpoint_that_cannot_be_deleted_stays(tmp_path, monkeypatch):
    """It is noted, and tried again at the next save; the run goes on."""
    from unmoor.wiring import run_folder

    real, refusing = run_folder.remove, [True]

    def remove(path):
        if refusing[0]:
            raise PermissionError(13, "Permission denied")
        real(path)

    monkeypatch.setattr(run_folder, "remove", remove)

    def body(run, training, step):
        refusing[0] = step < 6

    _, run = trained(tmp_path, 9, body, keep_last=1)
    assert "kept" in kinds(run)
    assert steps_kept(tmp_path) == [9]


def test_a_folder_checkpoint_is_hidden_before_it_is_taken_apart(tmp_path, monkeypatch):
    """A delete that is cut off leaves nothing that looks like a checkpoint."""
    from unmoor.wiring import run_folder

    whole = tmp_path / "step_000000002"
    whole.mkdir()
    (whole / ".metadata").write_bytes(b"x")
    seen = []
    monkeypatch.setattr(run_folder, "remove", lambda path: seen.append((path, sorted(os.listdir(tmp_path)))))
    run_folder._discard(str(whole))
    assert len(seen) == 1
    assert os.path.basename(seen[0][0]).startswith(".step_000000002.unmoor-")
    assert seen[0][1] == [os.path.basename(seen[0][0])]


def test_the_folder_that_vanishes_is_told(tmp_path):
    """Saves fail with a warning each; the last one raises."""
    import shutil

    taken = []

    def body(run, training, step):
        taken.append(step)
        if step == 2:
            shutil.rmtree(tmp_path / "run")

    with pytest.warns(UserWarning, match="was not saved"), pytest.raises(unmoor.SaveError):
        trained(tmp_path / "run", 5, body)
    assert taken == [0, 1, 2, 3, 4]


def test_everything_is_printed(tmp_path):
    """A run, and each of its events, says in words how it stands."""
    run = the_run(tmp_path, Training())
    assert str(run) == f"{tmp_path}: step 0\n  saves  every 2 steps\n  last   nothing"
    _, run = trained(tmp_path, 5, lambda run, _, step: run.log(loss=step / 4), every=(2, "1h"), background=True)
    text = str(run)
    assert text.splitlines()[0] == f"{tmp_path}: finished at step 5 of 5"
    assert "every 2 steps and every 1 h, behind the run" in text
    assert "step_000000005.pt (verified), loss 1" in text
    assert "3 checkpoints, steps 2, 4, 5" in text
    assert repr(run) == f"unmoor.Run({str(tmp_path)!r}, step=5)"
    for event in run.events:
        assert event.kind in KINDS
        assert Event(**event.to_json()) == event
        assert str(event).startswith(f"step {event.step}: ")
    assert kinds(run)[-1] == "finished"


def test_a_loop_within_a_loop_is_refused(tmp_path):
    """One loop at a time moves a run; a run that is closed moves no more."""
    run = the_run(tmp_path, Training())
    for _ in run.steps(run.resume(), 2):
        for call in (run.resume, lambda: run.steps(0, 2)):
            with pytest.raises(unmoor.UsageError, match=r"loop over run\.steps"):
                call()
        with pytest.raises(unmoor.UsageError, match="within the loop it is known"):
            run.save(step=1)
    with pytest.raises(unmoor.UsageError, match="none is under way"):
        run.stop()
    run.close()
    for call in (run.save, lambda: run.steps(2, 3), run.resume):
        with pytest.raises(unmoor.UsageError, match="after close"):
            call()


def test_two_loops_one_after_the_other(tmp_path):
    """A warm-up and a training proper are two loops of one run."""
    training = Training()
    with the_run(tmp_path, training, every=None) as run:
        start = run.resume()
        for step in run.steps(start, 3):
            training.step(step)
        for step in run.steps(max(run.step, 3), 7):
            training.step(step)
    assert training.taken == list(range(7))
    assert trained(tmp_path / "one", 7)[0].digest() == training.digest()
