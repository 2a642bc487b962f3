"""Writes state that is spread over ranks as a folder of torch.distributed.checkpoint, by torch's own engine.

A tree is taken apart into flat entries, of which each rank offers what it alone has; the engine plans, writes and
collects. Once all is written, `finish` of the coordinator's writer puts `.metadata` in, then calls what makes of a
hidden folder a checkpoint: so that a save in the background commits as any other does. Knows nothing of roles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from unmoor.errors import UsageError
from unmoor.execute.yielding import step_back
from unmoor.live.content import Content
from unmoor.live.held import Held
from unmoor.live.layouts import strided_parts
from unmoor.values.beside import NAMES
from unmoor.values.finding import Finding
from unmoor.values.frames import Framed, FrameError, framed
from unmoor.values.ranks import RANKS
from unmoor.values.text import key_text

from .items import write_items

__all__ = ["Share", "Writer", "share_of"]

Promise = dict[tuple[Any, ...], tuple[tuple[int, ...], str]]


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank writes.

    `values` go by flat key, each with its key path in `paths` as torch's planner notes it. `aliases` are the keys of
    tensors that have another name too -> the key under which they are written. `frame` is the frame of the whole tree
    on rank 0, on any other rank that of its own leaves. `promise` is shape and dtype of every tensor by key path.
    """

    values: dict[str, Any]
    paths: dict[str, tuple[str | int, ...]]
    aliases: dict[str, str]
    frame: Any
    promise: Promise

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors that this rank has to write."""
        return sum(
            sum(part.numel() * part.itemsize for _, part in value.parts)
            if isinstance(value, Held)
            else value.numel() * value.itemsize
            for value in self.values.values()
            if isinstance(value, Held | torch.Tensor)
        )

    def spread(self) -> list[list[Any]]:
        """Key, shape and dtype of every tensor that ranks hold together: the same on all of them, or they differ."""
        rows = ((key, value) for key, value in self.values.items() if isinstance(value, Held))
        return [[key, list(value.shape), str(value.dtype)] for key, value in rows]


def share_of(content: Content, own: Any, rank: int) -> Share:
    """What `rank` writes of `content`: rank 0 all of it, any other its parts of tensors and `own`, its own leaves.

    Raises UsageError for a tree that is no mapping, or that contains itself.
    """
    tree = _by_name(content)
    if not isinstance(tree, dict):
        raise UsageError(
            f"state that is spread over ranks is saved as a folder of named entries, and the tree is a "
            f"{type(tree).__name__}",
            remedy='Save a dict: unmoor.save(path, {"model": ...}).',
        )
    made = _framed(tree)
    content.findings += [_metadata_left_out(key_text(keys)) for keys in made.left_out]
    if rank == 0:
        return _share(made, made.frame, _aliases(made.leaves))
    spread = {key: value for key, value in made.leaves.items() if isinstance(value, Held)}
    added = _framed({RANKS: {str(rank): own}}) if own else Framed()
    both = Framed({**spread, **added.leaves}, made.paths | added.paths, made.keys | added.keys)
    return _share(both, _inner(added.frame), _aliases(spread))


def _metadata_left_out(place: str) -> Finding:
    return Finding("metadata", "info", place, "its _metadata holds more than plain values: a folder does not keep it")


def _share(made: Framed, frame: Any, aliases: dict[str, str]) -> Share:
    values = {key: value for key, value in made.leaves.items() if key not in aliases}
    promise = {
        (*made.keys[key], name) if name else made.keys[key]: (tuple(part.shape), str(part.dtype).removeprefix("torch."))
        for key, value in made.leaves.items()
        for name, part in _parts(value)
    }
    return Share(_with_empty(values), {key: made.paths[key] for key in made.leaves}, aliases, frame, promise)


def _framed(tree: Any) -> Framed:
    try:
        return framed(tree, lambda leaf: isinstance(leaf, Held), lambda leaf: isinstance(leaf, torch.Tensor))
    except (FrameError, RecursionError) as fault:
        why = str(fault) if isinstance(fault, FrameError) else "it is nested too deeply"
        raise UsageError(
            f"a folder cannot keep the tree as it is: {why[:200]}",
            remedy="Save a flatter structure: a list of nodes and the indexes by which they refer to each other.",
        ) from None


def _inner(frame: Any) -> Any:
    """The frame of a rank's own leaves, out of {"ranks": {"1": ...}}; None where it has none."""
    return None if frame is None else frame[1][0][1][1][0][1]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Held):
        yield "", value
    elif isinstance(value, torch.Tensor):
        yield from strided_parts(value).items()


def _with_empty(values: dict[str, Any]) -> dict[str, Any]:
    """Tensors without elements have no part anywhere: each is written as the plain tensor that it is."""

    def written(value: Any) -> Any:
        empty = isinstance(value, Held) and not value.numel()
        return torch.empty(value.shape, dtype=value.dtype, device="cpu") if empty else value

    return {key: written(value) for key, value in values.items()}


def _aliases(leaves: Mapping[str, Any]) -> dict[str, str]:
    """Keys of tensors that were met before under another key -> that key."""
    first: dict[Any, str] = {}
    found: dict[str, str] = {}
    for key, value in leaves.items():
        mark = _mark(value)
        if mark is not None and first.setdefault(mark, key) != key:
            found[key] = first[mark]
    return found


def _mark(value: Any) -> Any:
    """What two names of one tensor have in common; None for what can have none."""
    if isinstance(value, Held):
        return id(value)
    plain = isinstance(value, torch.Tensor) and value.layout == torch.strided and type(value) in _PLAIN
    if not plain or not value.numel() or value.is_quantized or value.is_conj() or value.is_neg():
        return None
    return value.untyped_storage()._cdata, value.storage_offset(), value.shape, value.stride(), value.dtype


_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


def _by_name(content: Content) -> Any:
    """The tree, its optimizers' state by the names of parameters, as torch's get_optimizer_state_dict has it."""
    tree = content.tree
    for role in content.roles.values():
        if role.get("names"):
            tree = _replaced(tree, role["keys"], _named)
    return tree


def _replaced(tree: Any, keys: list[Any], change: Callable[[Any], Any]) -> Any:
    """A copy of the containers on the way to `keys`, with what is there changed."""
    if not keys:
        return change(tree)
    made = type(tree)(tree)
    made[keys[0]] = _replaced(tree[keys[0]], keys[1:], change)
    return made


def _named(state: Any) -> Any:
    names = state[NAMES]
    numbers = [group["params"] for group in state["param_groups"]]
    known = {n: name for row, own in zip(numbers, names, strict=True) for n, name in zip(row, own, strict=True)}
    groups = [{**group, "params": own} for group, own in zip(state["param_groups"], names, strict=True)]
    entries = {known.get(number, number): entry for number, entry in state["state"].items()}
    return {**{k: v for k, v in state.items() if k != NAMES}, "state": entries, "param_groups": groups}


class Writer(FileSystemWriter):
    """Torch's writer of files, into a hidden folder.

    folder: where that is, made already. path: the name under which it will be known. aliases: as in Share.
    complete: called on the coordinator, with the save's id, once `.metadata` is in the folder.
    progress: called with bytes written since its last call, by the thread that writes. yields: that thread is one of
    its own, which lets the run go first.
    """

    def __init__(
        self,
        folder: str,
        *,
        path: str,
        share: Share,
        complete: Callable[[str], None],
        progress: Callable[[int], None] | None,
        yields: bool = False,
    ) -> None:
        super().__init__(folder, sync_files=True)
        self._folder = folder
        self._known_as = path
        self._share = share
        self._complete = complete
        self._told = progress
        self._yields = yields

    def storage_meta(self) -> StorageMeta:
        """What torch notes of the place, in which the hidden name has no business."""
        return StorageMeta(checkpoint_id=self._known_as, save_id=self.save_id)

    def stage(self, state_dict: Any) -> Any:
        """What a write in the background is given was copied to the CPU before."""
        return state_dict

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items; a rank without any makes no file."""
        if self._yields:
            step_back()
        results: list[WriteResult] = []
        if plan.items:
            name = f"{plan.storage_data.prefix}0.distcp"
            results = write_items(os.path.join(self._folder, name), name, plan.items, planner.resolve_data, self._told)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, when all have written: `.metadata`, then what makes the folder a checkpoint."""
        for alias, key in self._share.aliases.items():
            metadata.state_dict_metadata[alias] = metadata.state_dict_metadata[key]
        names: dict[str, list[str]] = {}
        for alias, key in self._share.aliases.items():
            names.setdefault(key, []).append(alias)
        twins = [
            replace(result, index=replace(result.index, fqn=alias))
            for each in results
            for result in each
            for alias in names.get(result.index.fqn, ())
        ]
        super().finish(metadata, [*results, twins])
        self._complete(self.save_id)
