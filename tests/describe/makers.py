"""What the tests of describe share: files with chosen device tags, zips made by hand, answers held against torch."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import serialization

from unmoor.describe.file import describe_file
from unmoor.errors import FileError
from unmoor.values.catalog import Catalog, TensorEntry

Tag = str | Callable[[torch.UntypedStorage], str]


@contextmanager
def tagged(tag: Tag) -> Iterator[None]:
    """Within, torch.save writes `tag` for every storage."""
    real = serialization.location_tag
    serialization.location_tag = lambda storage: tag(storage) if callable(tag) else tag
    try:
        yield
    finally:
        serialization.location_tag = real


def save(tree: Any, path: Path, *, legacy: bool = False, **options: Any) -> Path:
    """torch.save, zip or legacy stream."""
    torch.save(tree, path, _use_new_zipfile_serialization=not legacy, **options)
    return path


def repacked(source: Path, target: Path, edit: Callable[[str, bytes], bytes | None], **options: Any) -> Path:
    """A copy of a zip with every record passed through `edit`; None leaves the record out."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", **options) as new:
        for info in old.infolist():
            data = edit(info.filename, old.read(info))
            if data is not None:
                new.writestr(info.filename, data)
    return target


def zip_of(records: Mapping[str, bytes], path: Path, **options: Any) -> Path:
    """A zip of `records` by Python's own writer."""
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return path


def pickled(data: bytes, path: Path) -> Path:
    """A torch zip whose data.pkl is `data`."""
    return zip_of({"a/data.pkl": data, "a/version": b"3\n"}, path)


class Call:
    """Pickles as a call of `function(*args)`."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.args


def outcome(path: Path) -> Catalog | FileError:
    """The catalog or the error of a file; any other exception is a fault of the reader and passes through."""
    try:
        return describe_file(path)
    except FileError as error:
        return error


def follow(tree: Any, keys: tuple[Any, ...]) -> Any:
    """The value that stands at `keys` of a loaded tree."""
    for key in keys:
        if isinstance(tree, torch.Tensor):
            tree = tensor_part(tree, key)
        elif isinstance(tree, Mapping | list | tuple):
            tree = tree[key]
        else:
            tree = vars(tree)[key]
    return tree


def tensor_part(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A strided part of a composite tensor by the name that describe gives it."""
    private = {"indices": "_indices", "values": "_values"} if tensor.layout == torch.sparse_coo else {}
    named = {"scales": "q_per_channel_scales", "zero_points": "q_per_channel_zero_points"}
    nested = {
        "sizes": "_nested_tensor_size",
        "strides": "_nested_tensor_strides",
        "offsets": "_nested_tensor_storage_offsets",
    }
    return getattr(tensor, {**private, **named, **nested}.get(name, name))()


def hold_against_torch(path: Path, catalog: Catalog, loaded: Any) -> None:
    """Every entry says what torch.load made: shape, stride, offset, dtype, and the bytes at its span."""
    data = path.read_bytes()
    for entry in catalog.tensors:
        tensor = follow(loaded, entry.keys)
        assert tuple(tensor.shape) == entry.shape, entry.path
        assert str(tensor.dtype) == f"torch.{entry.dtype}", entry.path
        if entry.storage:
            hold_strided(entry, tensor, data)


def hold_strided(entry: TensorEntry, tensor: torch.Tensor, data: bytes) -> None:
    """A strided entry: where it looks into its storage, and what its storage holds."""
    assert tensor.stride() == entry.stride, entry.path
    assert tensor.storage_offset() == entry.offset, entry.path
    storage = tensor.untyped_storage()
    assert entry.span is not None, entry.path
    assert entry.span.nbytes == storage.nbytes(), entry.path
    if storage.nbytes():
        assert data[entry.span.offset : entry.span.end] == bytes(storage), entry.path


def tensors_in(tree: Any) -> int:
    """How many tensors a loaded tree of plain containers holds."""
    if isinstance(tree, torch.Tensor):
        return 1
    if isinstance(tree, Mapping):
        return sum(tensors_in(value) for value in tree.values())
    return sum(tensors_in(value) for value in tree) if isinstance(tree, list | tuple) else 0


def dumps(value: Any, protocol: int = 2) -> bytes:
    """A pickle of `value`."""
    return pickle.dumps(value, protocol)
