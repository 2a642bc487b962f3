"""A file that was saved on device 0, brought by every rank to its own: which devices got bytes, and what lies where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str, path: str) -> Any:
    import torch

    import unmoor
    from tests.accelerator import install
    from tests.cases.files import tiny

    sim = install()

    def loaded(device: str) -> Any:
        tree = unmoor.load(path, model_device=device)
        return list(tree["model"].values()), list(tree["optimizer"]["state"].values())

    def restored(device: Any, **options: Any) -> Any:
        model = tiny(5).to(device or "cpu")
        optimizer = torch.optim.Adam(model.parameters())
        unmoor.restore(path, model=model, optimizer=optimizer, **options)
        return list(model.parameters()), list(optimizer.state.values())

    return {
        "load, auto": _watched(sim, lambda: loaded("auto")),
        "load, no index": _watched(sim, lambda: loaded("sim")),
        "restore moves": _watched(sim, lambda: restored(None, model_device="auto")),
        "live objects are there": _watched(sim, lambda: restored(unmoor.device_fallback())),
    }


def _watched(sim: Any, work: Callable[[], Any]) -> Any:
    """The devices whose memory grew at any time, and where model, moments and steps are."""
    before = [sim.memory_allocated(i) for i in range(sim.device_count())]
    for i in range(sim.device_count()):
        sim.reset_peak_memory_stats(i)
    model, states = work()
    touched = [i for i in range(sim.device_count()) if sim.max_memory_allocated(i) > before[i]]
    places = {
        "model": sorted({str(t.device) for t in model}),
        "state": sorted({str(t.device) for state in states for key, t in state.items() if key != "step"}),
        "step": sorted({str(state["step"].device) for state in states}),
    }
    return touched, places


if __name__ == "__main__":
    main(run)
