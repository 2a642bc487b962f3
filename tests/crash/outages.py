"""Cuts the power at every operation of a save, and looks at every folder that the disk may have then."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tests.faults.zygote import Zygote

from .kills import Sweep, copied, lay, place, survives
from .power import Disk, State, laid, materialise, states
from .scenes import NEW, Scene
from .states import Seen

__all__ = ["after_outages"]


def after_outages(
    zygote: Zygote, scene: Scene, *, seeds: int, saves: int = 4, change: str = "", most: int = 0
) -> Sweep:
    """Cut the log of a scene off after each of its operations; `seeds` random states each, beside the worst ones.

    Of all states together, `saves` are saved to again. `change` ("module:name") is called in the fork beforehand: what
    it breaks must be found. The search ends with the `most`-th loss, if that is given.
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
        seen, judged, saved = Seen(scene.read), set(), 0
        returned = False
        for operation in (None, *run.log):
            if operation is not None:
                disk.do(operation)
                returned = returned or operation.data == b"returned"
            fits = {scene.said(NEW)} if returned else {scene.old, scene.said(NEW)}
            for state in states(disk, seeds=seeds):
                key = laid(state), returned
                if key in judged:
                    continue
                judged.add(key)
                sweep.tried += 1
                folder_then = _made(state, folder / "state")
                scene.resume(str(folder_then))
                found = seen(str(folder_then / scene.target))
                if found in fits and sweep.tried % 50 == 25 and saved < saves:
                    saved += 1
                    found = survives(zygote, scene, folder_then, seen) or found
                if found not in fits:
                    sweep.lost.append(f"after {operation or 'nothing'}: {found}")
            if most and len(sweep.lost) >= most:
                break
        sweep.operations = len(run.log)
    sweep.seconds = time.monotonic() - begin
    return sweep


def _made(state: State, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    materialise(state, folder)
    return folder
