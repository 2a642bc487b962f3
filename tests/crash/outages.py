"""Cuts the power at every operation of a save, and looks at every folder that the disk may have then."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tests.faults.zygote import Zygote

from .kills import Sweep, copied, lay, place, survives
from .power import Disk, laid, materialise, states
from .scenes import NEW, Scene
from .states import Broken

__all__ = ["after_outages"]


def after_outages(zygote: Zygote, scene: Scene, *, seeds: int, saves: int = 4, change: str = "") -> Sweep:
    """Cut the log of a scene off after each of its operations; `seeds` random states each, beside the worst ones.

    Of all states together, `saves` are saved to again. `change` ("module:name") is called in the fork beforehand: what
    it breaks must be found.
    """
    sweep, begin = Sweep(f"{scene.name} (power loss)"), time.monotonic()
    with place() as folder:
        point = copied(lay(zygote, scene, folder))
        disk = Disk(point)
        target = str(point / scene.target)
        call, more = (change, (scene.call,)) if change else (scene.call, ())
        run = zygote.run(call, point, *more, target, NEW, log=True)
        if run.error or run.code:
            raise RuntimeError(f"{scene.name} failed: {run.error or run.code}")
        found: dict[str, str] = {}
        judged: set[tuple[str, bool]] = set()
        returned = False
        for operation in (None, *run.log):
            if operation is not None:
                disk.do(operation)
                returned = returned or operation.data == b"returned"
            for state in states(disk, seeds=seeds):
                key = laid(state)
                if (key, returned) in judged:
                    continue
                judged.add((key, returned))
                sweep.tried += 1
                if key not in found:
                    again = zygote if len(found) % 50 == 25 and len(found) < 50 * saves else None
                    found[key] = _found(scene, state, folder / "state", again)
                fits = {scene.said(NEW)} if returned and scene.durable else {scene.old, scene.said(NEW)}
                if found[key] not in fits:
                    sweep.lost.append(f"after {operation or 'nothing'}: {found[key]}")
        sweep.operations = len(run.log)
    sweep.seconds = time.monotonic() - begin
    return sweep


def _found(scene: Scene, state: dict[str, bytes | None], folder: Path, zygote: Zygote | None) -> str:
    """Which generation a state holds, or what is wrong with it."""
    shutil.rmtree(folder, ignore_errors=True)
    materialise(state, folder)
    try:
        found = scene.read(str(folder / scene.target))
    except Broken as error:
        return f"broken: {error}"
    fault = survives(zygote, scene, folder) if zygote is not None else ""
    return fault or found
