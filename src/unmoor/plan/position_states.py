"""A loader's saved state, made over for another place in its epoch: by what keeps it, unmoor.resumable or torchdata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unmoor.values.positions import POSITION, Position

__all__ = ["moved_state", "own_data"]

_STATEFUL_SAMPLER: Final = "torchdata.stateful_dataloader.sampler.StatefulDistributedSampler"
_ALL: Final = 1 << 40
"""More batches than any epoch has: passing over as many leaves none."""

_SEEDS: Final = 1 << 63


def moved_state(node: Mapping[str, Any], own: Position, live: Position, first: int | None, *, new_rank: int) -> Any:
    """The state of the `live` loader after the `first` samples of all ranks, None for after the end of the epoch.

    `node` is the saved state and `own` its facts. `new_rank` is the number of a process that did not save, 0 for one
    that did: the random streams of its workers are others.
    """
    if live.kind == "resumable":
        return _resumable(node, own, live, live.length if first is None else first)
    if live.kind == "sampler":
        return {**node, "yielded": live.each if first is None else first // live.replicas, POSITION: own.to_plain()}
    return _stateful(node, own, live, first, new_rank)


def _resumable(node: Mapping[str, Any], own: Position, live: Position, first: int) -> dict[str, Any]:
    kept = own.kind == "resumable" and own.sampler == live.sampler
    start = dict(node["start"]) if kept else {}
    if start and own.order == "seeded" and own.world != live.world:
        start["host"] = {}  # its workers follow the streams of this process, which are derived for a new rank
    made = {
        "batches": 0,
        "digest": 0,
        "first": first,
        "anew": True,
        "start": start,
        "generators": node["generators"] if kept else None,
        "epoch": own.epoch,
        POSITION: own.to_plain(),
    }
    if own.kind == "resumable" and own.order in ("in order", "seeded") and not own.ended and node["batches"]:
        made["before"] = {key: node.get(key, 0) for key in ("first", "batches", "digest")}
    return made


def _stateful(node: Mapping[str, Any], own: Position, live: Position, first: int | None, new_rank: int) -> Any:
    each = None if first is None else first // (1 if live.dealt == "whole" else live.replicas)
    samples = live.each if each is None else each
    batches = _ALL if each is None else each // max(live.batch, 1)

    def moved(main: Mapping[str, Any]) -> dict[str, Any]:
        counted = {"_sampler_iter_yielded": samples if live.unit == "single" else batches}
        return {**main, **counted, **_sampler_states(main, live, samples)}

    if "_snapshot" not in node:
        return {**moved(node), "_num_yielded": batches, "_iterator_finished": False, POSITION: own.to_plain()}
    snapshot = node["_snapshot"]
    main = moved(snapshot["_main_snapshot"])
    main["_base_seed"] = (main["_base_seed"] + (new_rank << 32)) % _SEEDS
    return {
        **node,
        "_snapshot": {**snapshot, "_main_snapshot": main, "_snapshot_step": batches},
        "_steps_since_snapshot": 0,
        "_iterator_finished": False,
        POSITION: own.to_plain(),
    }


def _sampler_states(main: Mapping[str, Any], live: Position, samples: int) -> dict[str, Any]:
    """What torchdata keeps of the live loader's samplers, after `samples` of this rank."""
    yielded = {"yielded": samples} if live.sampler == _STATEFUL_SAMPLER else None
    drawn = _drawn(main, samples) if live.order == "drawn" else None
    if live.unit != "sample":
        single = live.unit == "single"
        return {"_index_sampler_state": yielded if single else None, "_sampler_iter_state": drawn if single else None}
    made: dict[str, Any] = {"samples_yielded": samples}
    made |= {} if yielded is None else {"sampler_state": yielded}
    made |= {} if drawn is None else {"sampler_iter_state": drawn}
    return {"_index_sampler_state": None, "_sampler_iter_state": made}


def _drawn(main: Mapping[str, Any], samples: int) -> dict[str, Any] | None:
    """The state of torchdata's RandomSampler: the random state that the epoch was drawn from, and how far it came."""
    known = main.get("_sampler_iter_state")
    state = known.get("sampler_iter_state", known) if isinstance(known, Mapping) else None
    return {**state, "yielded": samples} if isinstance(state, Mapping) and "generator" in state else None


def own_data(node: Mapping[str, Any]) -> bool:
    """Whether torchdata's state holds that of the dataset itself, of which nothing can be told from outside."""
    workers = node.get("_snapshot", {}).get("_worker_snapshots", {})
    states = [node, *workers.values()] if isinstance(workers, Mapping) else [node]
    return any(state.get(key) is not None for state in states for key in ("dataset_state", "fetcher_state"))
