"""torch.distributed.checkpoint reads any checkpoint: a StorageReader over what `describe` finds.

The file's names are offered as torch's planner flattens a state dict; each rank then reads the bytes of its own boxes
through the executor. Nothing of a file is unpickled. Values that are no tensors reach torch's planner as bytes that are
made here, of plain values.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from unmoor.describe import describe_path
from unmoor.errors import MismatchError, UnsupportedFile, UsageError
from unmoor.execute.opening import open_spans
from unmoor.execute.streaming import Streamed, Verify
from unmoor.filing import path_text
from unmoor.live.trees import Realizer
from unmoor.plan.flat_entries import FORMS, Entries, flat_entries
from unmoor.plan.policy import CHOICES
from unmoor.plan.repeats import overlaps
from unmoor.values.boxes import Box
from unmoor.values.catalog import Catalog
from unmoor.values.dtypes import is_exact_cast
from unmoor.values.nodes import CompositeTensor, Opaque, TensorNode
from unmoor.values.text import count, format_shape

from .filling import Filler, Wanted, read_whole

__all__ = ["CheckpointReader"]

_BUFFER: Final = 32 << 20
_SHOWN: Final = 12
_CASTS: Final = ("exact", "any")
_ROUNDS: Final = "which would round its values"


class CheckpointReader(StorageReader):
    """Lets `torch.distributed.checkpoint.load` read anything that `unmoor.describe` reads, each rank its own parts.

    A .pt file, safetensors, an index of several files, a folder of torch.distributed.checkpoint or DeepSpeed: DTensors
    (FSDP2, tensor parallel) and plain tensors are filled in place. A rank reads headers and the bytes of its own boxes;
    no rank holds more than it keeps, nothing is broadcast, and nothing in the file is run. What is no tensor is loaded
    too, if it is made of plain values. `dcp.load` is a collective call of all ranks of its process group.

    path: the file or folder.
    only: what to offer: a role word (model, optimizer, ...) or key path, whose content becomes the root; or a list,
        which keeps the places.
    rename: flat keys of the file to those of the state dict: leading text ({"state_dict.": "model.", "module.": ""}),
        patterns with * , or a callable. {"": "model."} puts everything under `model`.
    optimizer: "named" offers state by parameter name, as get_optimizer_state_dict has it, where the file holds names;
        "flattened" as it has it with flatten_optimizer_state_dict; "saved" as in the file.
    cast: "exact" lets dtype changes through that keep every value, "any" all.
    verify: "stream" holds each storage that this rank reads whole against its checksum, "first" does so before anything
        changes; "none" checks nothing.
    buffer_bytes: memory to use beside the state, in bytes. threads: how many read at once.

    The names are those of rank 0 of the ranks that saved; what another had of its own stands under `ranks`.

    Errors leave `dcp.load` as its CheckpointException, on every rank, with the text of unmoor's own error in it.
    `streamed` tells what the last load read on this rank, in bytes.

    >>> state = {"model": get_model_state_dict(model)}  # doctest: +SKIP
    >>> dcp.load(state, storage_reader=unmoor.CheckpointReader("theirs.pt"))  # doctest: +SKIP
    >>> set_model_state_dict(model, state["model"])  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        only: str | Sequence[str] | None = None,
        rename: Mapping[str, str] | Callable[[str], str] | None = None,
        optimizer: str = "named",
        cast: str = "exact",
        verify: Verify = "stream",
        buffer_bytes: int = _BUFFER,
        threads: int = 2,
    ) -> None:
        super().__init__()
        _check_modes(optimizer=(optimizer, FORMS), cast=(cast, _CASTS), verify=(verify, CHOICES["verify"]))
        _check_numbers(buffer_bytes=buffer_bytes, threads=threads)
        self.path = path_text(path)
        self.streamed: Streamed | None = None
        self._only, self._rename, self._optimizer, self._cast = only, rename, optimizer, cast
        self._reading: dict[str, Any] = {"verify": verify, "buffer_bytes": buffer_bytes, "threads": threads}
        self._catalog: Catalog | None = None
        self._entries: Entries | None = None

    @property
    def checkpoint_id(self) -> str:
        """The path."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether a path leads to something."""
        return os.path.exists(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load, of `checkpoint_id` where that is given."""
        if checkpoint_id is not None:
            self.path = path_text(checkpoint_id)
        self._catalog = self._entries = self.streamed = None

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """What the file offers, as torch's planner wants to know it.

        A file at fault is told by whoever looks into the answer, `set_up_storage_reader` at the latest: an error from
        here torch takes for a sign to look elsewhere, and tells of it as an AssertionError.
        """
        self._catalog = self._entries = None  # the file may be another one than at the load before
        try:
            entries = self._described()[1]
        except Exception as error:  # noqa: BLE001 - a caller's rename= may raise anything
            refused: Any = _Refused(error)
            return Metadata(refused)
        offered = {key: _metadata(value) for key, value in entries.values.items()}
        return Metadata(offered, planner_data=dict(entries.paths))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:  # noqa: ARG002, FBT001
        """Raise FileError for a file at fault, MismatchError for what `only` or `rename` cannot do."""
        if isinstance(metadata.state_dict_metadata, _Refused):
            raise metadata.state_dict_metadata.error

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are: every rank reads for itself."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill what this rank holds.

        Raises MismatchError, with nothing changed, for dtypes that would lose values; UnsupportedFile for values that
        need code; CorruptFile for a wrong checksum.
        """
        catalog, entries = self._described()
        self._refuse_opaque(catalog, entries, plan)
        wanted, done = self._wanted(catalog, entries, plan, planner)
        with open_spans(catalog.path) as open_span:
            fill = Filler(open_span, **self._reading)
            self.streamed = fill(wanted)
            for item, tensor in done:
                planner.commit_tensor(item, tensor)
            for item in _of_type(plan, LoadItemType.BYTE_IO):
                planner.load_bytes(item, _bytes(entries.values[item.storage_index.fqn], fill))
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _described(self) -> tuple[Catalog, Entries]:
        if self._catalog is None or self._entries is None:
            self._catalog = describe_path(self.path)
            self._entries = flat_entries(self._catalog, self._only, self._rename, self._optimizer)
        return self._catalog, self._entries

    def _wanted(
        self, catalog: Catalog, entries: Entries, plan: LoadPlan, planner: LoadPlanner
    ) -> tuple[list[Wanted], list[tuple[ReadItem, torch.Tensor]]]:
        """The boxes to read and where they go, all looked at before any is read."""
        wanted, done, faults = [], [], []
        for item in _of_type(plan, LoadItemType.TENSOR):
            key = item.storage_index.fqn
            node, target = entries.values[key], planner.resolve_tensor(item)
            fault = self._fault(node, item, target)
            if fault:
                faults.append(f"{key}: {fault}")
            box = Box(tuple(item.storage_offsets), tuple(item.lengths))
            wanted.append(Wanted(node, box, target.detach(), entries.places[key]))
            done.append((item, target))
        if faults:
            more = [f"and {len(faults) - _SHOWN:,} more"] if len(faults) > _SHOWN else []
            raise MismatchError(
                f"{count(len(faults), 'tensor')} of {catalog.path} cannot go where the state dict has them; "
                "nothing was changed",
                details=[*faults[:_SHOWN], *more],
                remedy='cast="any" lets values be rounded: CheckpointReader(path, cast="any").'
                if any(fault.endswith(_ROUNDS) for fault in faults)
                else "",
                path=catalog.path,
            )
        return wanted, done

    def _fault(self, node: TensorNode, item: ReadItem, target: torch.Tensor) -> str:
        live = str(target.dtype).removeprefix("torch.")
        if tuple(target.shape) != tuple(item.lengths):
            return f"the planner gave {format_shape(tuple(target.shape))} for {format_shape(tuple(item.lengths))}"
        if node.storage is None:
            return "the file holds no data for it (meta)"
        if overlaps(target.shape, target.stride()):
            return "elements of the live tensor share memory: clone() it"
        if self._cast == "exact" and not is_exact_cast(node.dtype, live):
            return f"saved {node.dtype}, live {live}, {_ROUNDS}"
        return ""

    def _refuse_opaque(self, catalog: Catalog, entries: Entries, plan: LoadPlan) -> None:
        keys = [item.storage_index.fqn for item in _of_type(plan, LoadItemType.BYTE_IO)]
        found = {key: next(_opaque(entries.values[key]), "") for key in dict.fromkeys(keys)}
        faults = [f"{key}: {name}" for key, name in found.items() if name]
        if faults:
            more = [f"and {len(faults) - _SHOWN:,} more"] if len(faults) > _SHOWN else []
            raise UnsupportedFile(
                f"{count(len(faults), 'value')} of {catalog.path} would need code of the file's to exist",
                details=[*faults[:_SHOWN], *more],
                remedy="Leave them out of the state dict. unmoor.load(path, trust=[...]) builds classes that you name.",
                path=catalog.path,
            )


def _check_modes(**modes: tuple[Any, Sequence[str]]) -> None:
    for word, (value, known) in modes.items():
        if value not in known:
            raise UsageError(f"{word}={value!r} is none of {', '.join(map(repr, known))}")


def _check_numbers(**numbers: Any) -> None:
    for word, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{word}={value!r} is no number of them", remedy="Pass a whole number, 1 or more.")


class _Refused(Mapping[str, Any]):
    """In the place of what a file at fault offers: whoever looks into it gets the error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getitem__(self, _: str) -> Any:
        raise self.error

    def __iter__(self) -> Iterator[str]:
        raise self.error

    def __len__(self) -> int:
        raise self.error


def _of_type(plan: LoadPlan, kind: LoadItemType) -> list[ReadItem]:
    return [item for item in plan.items if item.type == kind]


def _metadata(value: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if not isinstance(value, TensorNode) or value.quantizer is not None:
        return BytesStorageMetadata()
    size = torch.Size(value.shape)
    properties = TensorProperties(dtype=getattr(torch, value.dtype))
    return TensorStorageMetadata(properties, size, [ChunkStorageMetadata(torch.Size([0] * len(size)), size)])


def _bytes(value: Any, fill: Filler) -> io.BytesIO:
    """A plain value as torch.load reads it back. Tensors inside of it are read whole."""
    sink = io.BytesIO()
    torch.save(Realizer(tensor=partial(read_whole, fill=fill, place="a value"))(value), sink)
    sink.seek(0)
    return sink


def _opaque(value: Any) -> Iterator[str]:
    """The names of what stands inside of a value and would need code to exist."""
    left, seen = [value], set()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Opaque):
            yield node.name
        elif isinstance(node, Mapping):
            left += [*node, *node.values()]
        elif isinstance(node, list | tuple | set | frozenset):
            left += node
        elif isinstance(node, CompositeTensor):
            left += node.detail.values()
