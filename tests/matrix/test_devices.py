"""Saved on any device, resumed on any other: the next steps are those of the run that was never interrupted."""

from __future__ import annotations

import pytest
import torch

import unmoor
from tests.runs.training import OPTIMIZERS, equal, start, state

SAVED_ON = ("cpu", "sim:0", "sim:1", "cuda:0", "cuda:7", "mps", "xpu:1")
RESUMED_ON = ("cpu", "sim:0", "sim:1")
SWITCHES = ({"foreach": True}, {"foreach": False})
WRITERS = ("unmoor.save", "torch.save")
WAYS = ("live objects are there", "restore moves them")

CELLS = [
    (saved, resumed, optimizer, switch, WRITERS[i % 2], WAYS[(i // 2) % 2])
    for i, (saved, resumed, optimizer, switch) in enumerate(
        (s, r, o, w) for s in SAVED_ON for r in RESUMED_ON for o in OPTIMIZERS for w in SWITCHES
    )
]


def write(path, run, writer, tag, monkeypatch):
    """Save a run; a device that is absent here is written as a tag over data of the CPU."""
    if tag.partition(":")[0] not in ("cpu", "sim"):
        with monkeypatch.context() as patch:
            rng = torch.get_rng_state().untyped_storage().nbytes()
            fake = lambda storage: "cpu" if storage.nbytes() in (4, rng) else tag
            patch.setattr("unmoor.live.pickler.location_tag", fake)  # first: it takes torch's when it is imported
            patch.setattr(torch.serialization, "location_tag", fake)
            return write(path, run, writer, "cpu", monkeypatch)
    if writer == "unmoor.save":
        return unmoor.save(path, **run.roles, step=run.step)
    parts = {name: part.state_dict() for name, part in run.roles.items()}
    return torch.save({**parts, "step": run.step}, path)


@pytest.mark.parametrize(
    ("saved", "resumed", "optimizer", "switch", "writer", "way"),
    CELLS,
    ids=[f"{s}-{r}-{o}-foreach={w['foreach']}-{writer}-{way[:4]}" for s, r, o, w, writer, way in CELLS],
)
def test_resumes_on_another_device_bit_for_bit(
    sim, tmp_path, monkeypatch, saved, resumed, optimizer, switch, writer, way
):
    """Law 5: the next training step is bit-identical to the one an uninterrupted run takes."""
    home = saved if saved.partition(":")[0] in ("cpu", "sim") else "cpu"
    run = start(optimizer, home, **switch).train(3)
    write(tmp_path / "run.pt", run, writer, saved, monkeypatch)
    tags = unmoor.describe(tmp_path / "run.pt").devices()
    assert saved in tags

    there = way == "live objects are there"
    other = start(optimizer, resumed if there else "cpu", seed=7, **switch)
    report = unmoor.restore(tmp_path / "run.pt", **other.roles, model_device=None if there else resumed)
    other.step = report.extra["step"]
    assert equal(state(run), state(other))

    run.train(3)
    other.train(3)
    assert {p.device for p in other.model.parameters()} == {torch.device(resumed)}
    assert run.losses[-3:] == other.losses[-3:]
    assert equal(state(run), state(other))
    moments = [v for s in other.optimizer.state.values() for k, v in s.items() if k != "step"]
    assert {m.device for m in moments} == {torch.device(resumed)}
