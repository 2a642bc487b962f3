"""Folders and paths that are hostile, by name: each maker puts one into an empty folder and gives the path to open."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as md
from torch.distributed.checkpoint.filesystem import _StorageInfo

from tests.describe.dcp_maker import DcpMaker
from tests.hostile.make_hostile import DATA, SYSTEM, Call, W, checkpoint, entry, tensors

__all__ = ["FOLDERS", "SECRET"]

SECRET = "the bytes of another file"
"""What stands in a file outside that hostile folders point to; it must come up nowhere."""

_INDEX = "model.safetensors.index.json"
_SHARD = "model-00001-of-00001.safetensors"


def _secret(folder: Path) -> Path:
    """A file beside the checkpoint that is none of its own."""
    path = folder.parent / "secret.txt"
    path.write_text(SECRET)
    return path


def _index(names: Any, *, text: str | None = None) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        _secret(folder)
        (folder / _SHARD).write_bytes(tensors({"w": entry(0, 12, [3])}, DATA))
        (folder / _INDEX).write_text(text if text is not None else json.dumps({"weight_map": names}))
        return folder

    return made


def _dcp(edit: Callable[[DcpMaker], None]) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        maker = DcpMaker(folder)
        maker.tensor(("model", "w"), torch.arange(6.0).reshape(3, 2), [((0, 0), (2, 2)), ((2, 0), (1, 2))])
        maker.value(("step",), 3)
        edit(maker)
        return maker.write()

    return made


def _place(file: str, at: int = 0, nbytes: int = 10) -> Callable[[DcpMaker], None]:
    def edit(maker: DcpMaker) -> None:
        index = next(iter(maker.metadata.storage_data))
        maker.metadata.storage_data[index] = _StorageInfo(file, at, nbytes)

    return edit


def _chunks(shape: Sequence[int], boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Callable[[DcpMaker], None]:
    """A tensor whose table of chunks says this, whatever the items hold."""

    def edit(maker: DcpMaker) -> None:
        key, table = "model.w", maker.metadata
        where = next(iter(table.storage_data.values()))
        chunks = [md.ChunkStorageMetadata(torch.Size(a), torch.Size(n)) for a, n in boxes]
        properties = md.TensorProperties(dtype=torch.float32)
        table.state_dict_metadata[key] = md.TensorStorageMetadata(properties, torch.Size(shape), chunks)
        for number, (start, _) in enumerate(boxes):
            table.storage_data[md.MetadataIndex(key, torch.Size(start), number)] = where

    return edit


def _code_in_metadata(folder: Path) -> Path:
    (folder / ".metadata").write_bytes(pickle.dumps([SYSTEM], 2))
    (folder / "__0_0.distcp").write_bytes(b"x")
    return folder


def _code_beside_metadata(maker: DcpMaker) -> None:
    maker.metadata.planner_data = {"step": ("step",), "x": Call(eval, "1")}  # type: ignore[dict-item]


def _linked(folder: Path) -> Path:
    """A checkpoint file that is a link to a file elsewhere."""
    target = folder.parent / "elsewhere.pt"
    target.write_bytes(checkpoint({"w": W}))
    (folder / "linked.pt").symlink_to(target)
    return folder / "linked.pt"


def _link_to(target: str, name: str = "model.pt") -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        _secret(folder)
        (folder / name).symlink_to(target)
        return folder

    return made


def _special(name: str, file: bool) -> Callable[[Path], Path]:
    """A pipe in a folder, or the pipe itself."""

    def made(folder: Path) -> Path:
        os.mkfifo(folder / name)
        (folder / "sound.pt").write_bytes(checkpoint({"w": W}))
        return folder / name if file else folder

    return made


def _pipes_everywhere(folder: Path) -> Path:
    for name in ("model.safetensors", "optimizer.bin", "scheduler.bin", "latest", "trainer_state.json", _INDEX,
                 ".metadata", "__0_0.distcp", "unmoor-manifest.json", "pytorch_model.bin", "run.json"):  # fmt: skip
        os.mkfifo(folder / name)
    return folder


def _latest(text: bytes) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        (folder / "latest").write_bytes(text)
        step = folder / "global_step1"
        step.mkdir()
        (step / "mp_rank_00_model_states.pt").write_bytes(checkpoint({"module": {"w": W}}))
        return folder

    return made


def _json(name: str, text: str) -> Callable[[Path], Path]:
    """A Trainer's folder with one JSON file that is hostile."""

    def made(folder: Path) -> Path:
        (folder / "model.safetensors").write_bytes(tensors({"w": entry(0, 12, [3])}, DATA))
        (folder / "optimizer.pt").write_bytes(checkpoint({"state": {}, "param_groups": []}))
        (folder / "scheduler.pt").write_bytes(checkpoint({"last_epoch": 1}))
        (folder / "trainer_state.json").write_text('{"global_step": 3}')
        (folder / name).write_text(text)
        return folder

    return made


def _names(*names: str) -> Callable[[Path], Path]:
    """A folder of sound files with names that are hostile."""

    def made(folder: Path) -> Path:
        for name in names:
            (folder / name).write_bytes(checkpoint({"w": W}))
        return folder

    return made


def _ranks(count: int) -> Callable[[Path], Path]:
    """A DeepSpeed folder that says it was cut for very many ranks."""

    def made(folder: Path) -> Path:
        (folder / "mp_rank_00_model_states.pt").write_bytes(checkpoint({"module": {"w": W}, "dp_world_size": count}))
        state = {
            "optimizer_state_dict": {"partition_count": count, "zero_stage": 2, "single_partition_of_fp32_groups": [W]}
        }
        (folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(checkpoint(state))
        return folder

    return made


_DEEP = "[" * 100_000
_WIDE = "[" + "[]," * 100_000 + "[]]"

FOLDERS: dict[str, Callable[[Path], Path]] = {
    "index that climbs": _index({"w": "../secret.txt"}),
    "index of an absolute file": _index({"w": "/etc/hostname"}),
    "index of a folder": _index({"w": "."}),
    "index of the folder above": _index({"w": ".."}),
    "index of nothing": _index({"w": ""}),
    "index of a zero byte": _index({"w": "a\0b"}),
    "index of a backslash": _index({"w": "..\\secret.txt"}),
    "index of a drive": _index({"w": "C:secret.txt"}),
    "index of a long name": _index({"w": "x" * 5000}),
    "index of itself": _index({"w": _INDEX}),
    "index of half a surrogate": _index({}, text='{"weight_map": {"w": "\\ud800"}}'),
    "index of numbers": _index({"w": 5}),
    "index of one name twice": _index({}, text=f'{{"weight_map": {{"w": "{_SHARD}", "w": "other"}}}}'),
    "index of 20,000 files": _index({f"w{i}": f"{i}.safetensors" for i in range(20_000)}),
    "index that is deep": _index({}, text=_DEEP),
    "index of a huge number": _index({}, text='{"weight_map": %s}' % ("9" * 5000)),
    "index that is a list": _index({}, text="[]"),
    "chunks that climb": _dcp(_place("../secret.txt")),
    "chunks in an absolute file": _dcp(_place("/etc/hostname")),
    "chunks on a drive": _dcp(_place("C:\\evil")),
    "chunks with a zero byte": _dcp(_place("a\0b")),
    "chunks in the folder": _dcp(_place(".")),
    "chunks in the metadata": _dcp(_place(".metadata")),
    "chunks below zero": _dcp(_place("__0_0.distcp", -1)),
    "chunks of 2 ** 63 bytes": _dcp(_place("__0_0.distcp", 0, 1 << 63)),
    "chunks at 2 ** 70": _dcp(_place("__0_0.distcp", 1 << 70)),
    "chunks that overlap": _dcp(_chunks((3, 2), [((0, 0), (2, 2)), ((1, 0), (2, 2))])),
    "chunks that leave a hole": _dcp(_chunks((9, 2), [((0, 0), (2, 2)), ((5, 0), (4, 2))])),
    "chunks past the tensor": _dcp(_chunks((3, 2), [((2, 0), (9, 2))])),
    "chunks of no dimensions": _dcp(_chunks((3, 2), [((), ())])),
    "a tensor of 2 ** 62 rows": _dcp(_chunks((1 << 62, 4), [((0, 0), (2, 2))])),
    "a tensor of 2 ** 62 rows in one chunk": _dcp(_chunks((1 << 62, 4), [((0, 0), (1 << 62, 4))])),
    "a tensor of 5,000 dimensions": _dcp(_chunks((1 << 60,) * 5000, [((0,) * 5000, (1 << 60,) * 5000)])),
    "an empty tensor of 5,000 dimensions": _dcp(_chunks((0, *(1 << 60,) * 5000), [((0,) * 5001, (0,) * 5001)])),
    "chunks without number": _dcp(_chunks((100_000, 1), [((i, 0), (1, 1)) for i in range(3000)])),
    "code for metadata": _code_in_metadata,
    "code in the metadata": _dcp(_code_beside_metadata),
    "code in an item": _dcp(lambda maker: maker.value(("hook",), Call(eval, "1"))),
    "keys that ring": _dcp(lambda maker: maker.value(("\x1b[31mred\x07",), 5)),
    "keys that are deep": _dcp(lambda maker: maker.value(("a",) * 3000, 5)),
    "a linked file": _linked,
    "a link to a secret": _link_to("../secret.txt"),
    "a link to a folder": _link_to(".."),
    "a link to itself": _link_to("model.pt"),
    "a link to nothing": _link_to("nothing.pt"),
    "a link to a device": _link_to("/dev/zero"),
    "a link to memory": _link_to("/proc/self/mem"),
    "a link to maps": _link_to("/proc/self/maps"),
    "a pipe in a folder": _special("model.pt", file=False),
    "a pipe": _special("model.pt", file=True),
    "a folder of pipes": _pipes_everywhere,
    "an endless device": lambda folder: Path("/dev/zero"),
    "a terminal": lambda folder: Path("/dev/null"),
    "memory": lambda folder: Path("/proc/self/mem"),
    "environment": lambda folder: Path("/proc/self/environ"),
    "latest that climbs": _latest(b"../.."),
    "latest of an absolute path": _latest(b"/etc"),
    "latest with a zero byte": _latest(b"a\0b"),
    "latest that rings": _latest(b"\x1b[31mred\n"),
    "latest of a mebibyte": _latest(b"x" * (1 << 20)),
    "latest that is no text": _latest(b"\xff\xfe\xfd"),
    "trainer_state that is deep": _json("trainer_state.json", _DEEP),
    "trainer_state that is wide": _json("trainer_state.json", _WIDE),
    "trainer_state of a huge number": _json("trainer_state.json", '{"global_step": %s}' % ("9" * 4000)),
    "trainer_state of NaN": _json("trainer_state.json", '{"global_step": NaN, "epoch": Infinity, "log_history": NaN}'),
    "trainer_state that is a list": _json("trainer_state.json", "[1]"),
    "manifest that is deep": _json("unmoor-manifest.json", _DEEP),
    "run.json that is deep": _json("run.json", _DEEP),
    "names that ring": _names("model_\x1b[31m.pt", "optimizer_\x1b]0;x\x07.pt"),
    "names of tags": _names("<b>model.pt"),
    "names that break lines": _names("model\nfine.pt"),
    "names of very large numbers": _names("model-" + "9" * 200 + ".pt", "optimizer-" + "9" * 200 + ".pt"),
    "names of odd digits": _names("model-\u00b2.pt", "model-\u0663.pt"),
    "very many ranks": _ranks(1 << 40),
    "ranks beyond counting": _ranks(1 << 8000),
    "no ranks": _ranks(-1),
}  # fmt: skip
"""Name -> maker."""


def hole(path: Path) -> Path:
    """A file of a tebibyte that takes no room: a header of safetensors and nothing behind it."""
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 2) + b"{}")
        file.truncate(1 << 40)
    return path


__all__ += ["hole"]
