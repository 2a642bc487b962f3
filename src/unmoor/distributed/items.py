"""Items of a shard file of torch.distributed.checkpoint: each the archive that torch.save writes of a tensor or value.

Written one after the other by the writer of archives, from the memory where a tensor is: none is held longer than it
takes, and every record has its CRC-32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from unmoor.execute.archive import ArchiveFile, archive_file, torch_records, torch_trailer
from unmoor.live.pickling import pickle_tree

__all__ = ["write_items"]

_NAME: Final = "archive"
_BUFFER: Final = 1 << 20


def write_items(
    path: str,
    name: str,
    items: Sequence[WriteItem],
    resolve: Callable[[WriteItem], Any],
    progress: Callable[[int], None] | None,
) -> list[WriteResult]:
    """Write `items` to the file at `path`, known as `name` in the folder, and bring it to the disk.

    `resolve` gives the data of each: a tensor, or an io.BytesIO of what torch.save wrote. `progress` gets the bytes
    written since its last call. Raises OSError as the system gives it.
    """
    results = []
    with archive_file(path) as file:
        for item in items:
            first = file.end
            data = resolve(item)
            if item.type == WriteItemType.BYTE_IO:
                file.append_bytes(data.getbuffer())
                if progress is not None:
                    progress(file.end - first)
            else:
                _append(file, data.detach().cpu(), progress)
            place = _StorageInfo(name, first, file.end - first)
            results.append(WriteResult(index=item.index, size_in_bytes=file.end - first, storage_data=place))
        file.sync()
    return results


def _append(file: ArchiveFile, tensor: torch.Tensor, progress: Callable[[int], None] | None) -> None:
    pickled, blobs = pickle_tree(tensor, [tensor])
    records = torch_records(pickled, [(key, blob.nbytes, blob) for key, blob in blobs.items()])
    file.append(records, name=_NAME, finish=torch_trailer, threads=1, buffer_bytes=_BUFFER, progress=progress)
