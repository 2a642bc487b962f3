"""One process that restores as any rank of a world of any size: no rank needs another to read what is its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmoor.describe import describe_path
from unmoor.live.survey import survey
from unmoor.plan.policy import Policy
from unmoor.plan.restore import plan_restore
from unmoor.values.report import Report
from unmoor.wiring.carrying import Carrying
from unmoor.wiring.spans import open_spans

__all__ = ["restore_as"]


def restore_as(
    rank: int,
    world: int,
    path: Path,
    *,
    rng: str = "all",
    generators: Mapping[str, Any] | None = None,
    **roles: Any,
) -> Report:
    """What unmoor.restore does on rank `rank` of `world`."""
    target, handles = survey(roles, generators or {}, None, (rank, world))
    plan = plan_restore(describe_path(str(path)), target, Policy(rng=rng))
    with open_spans(plan.path) as open_span:
        carrying = Carrying(
            plan, handles, open_span=open_span, verify="stream", buffer_bytes=1 << 20, threads=1, progress=None
        )
        carrying.prepare()
        carrying.change()
    return carrying.finish(lambda: 0.0)
