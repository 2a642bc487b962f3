"""What kind of file this is, told from its bytes: a format this package reads, or by name what it is instead.

The extension never decides; it only earns a finding where it misleads.
"""

from __future__ import annotations

import codecs
import os
import re
from pathlib import PurePath
from typing import Any, Final

from unmoor.errors import FileError, NotACheckpoint, UnsupportedFile
from unmoor.filing import Reader, read
from unmoor.values.finding import Finding
from unmoor.values.nodes import Opaque
from unmoor.values.text import count, format_bytes, listing

from .reading import read_pickle_at
from .torch_legacy import MAGIC
from .torch_tar import is_torch_tar

__all__ = ["detect", "name_finding"]

_HEAD: Final = 1 << 16
_SHORTEST: Final = 9
_TAR_MARK: Final = 257
_QUOTED: Final = 60
_LATEST_PICKLE: Final = 5
_MAX_TEXT_PICKLE: Final = 64 << 20
_OLD_MAGIC: Final = f"L{MAGIC}L\n".encode()
_LFS: Final = b"version https://git-lfs"
_DCP: Final = "torch.distributed.checkpoint.metadata.Metadata"
_UNPACK: Final = "Unpack it first, then give the file inside."

_FOREIGN: Final[tuple[tuple[int, bytes, str, str], ...]] = (
    (0, b"\x1f\x8b", "a gzip-compressed file", _UNPACK),
    (0, b"\xfd7zXZ\x00", "an xz-compressed file", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd-compressed file", _UNPACK),
    (0, b"BZh", "a bzip2-compressed file", _UNPACK),
    (0, b"\x04\x22\x4d\x18", "an lz4-compressed file", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", _UNPACK),
    (0, b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x93NUMPY", "a numpy .npy array", "Read it with numpy.load."),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras writes such)", "Read it with h5py."),
    (0, b"GGUF", "a GGUF model of llama.cpp", ""),
    (0, b"SQLite format 3\x00", "an SQLite database", ""),
    (0, b"PAR1", "a Parquet table", ""),
)
"""Sound files that this package does not read: offset, mark, name, remedy."""

_NO_DATA: Final[tuple[tuple[int, bytes, str, str], ...]] = (
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image", ""),
    (0, b"\xff\xd8\xff", "a JPEG image", ""),
    (0, b"GIF8", "a GIF image", ""),
    (8, b"WEBP", "a WebP image", ""),
    (0, b"%PDF", "a PDF document", ""),
    (0, b"\x7fELF", "an ELF program or library", ""),
    (0, b"\xcf\xfa\xed\xfe", "a Mach-O program or library", ""),
    (0, b"MZ", "a Windows program or library", ""),
)
"""Files that are no checkpoint of anything."""

_SHARD: Final = re.compile(r"-(\d{5})-of-(\d{5})\.(?:safetensors|bin)$")

_RANK: Final = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_\d+_(?:optim|model)_states\.pt$")

_TORCH_NAMES: Final = frozenset({".pt", ".pth", ".ckpt", ".bin", ".pkl", ".t7", ".tar", ".model", ".weights"})


def detect(reader: Reader) -> str:
    """`zip`, `legacy`, `tar` or `safetensors`. Raises NotACheckpoint or UnsupportedFile saying what else it is."""
    head = read(reader, 0, _HEAD)
    if not head:
        raise NotACheckpoint(
            f"{reader.path} is empty (0 bytes)",
            remedy="A save was interrupted before its first byte, or a download failed.",
            path=reader.path,
        )
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 1 << 32:
        return "safetensors"
    if head.startswith(_OLD_MAGIC) or (head[0] == 0x80 and len(head) > 1 and head[1] <= _LATEST_PICKLE):
        return _pickle(reader)
    if head.startswith(b"ustar", _TAR_MARK) and is_torch_tar(reader):
        return "tar"
    _refuse_marked(reader, head)
    if reader.size < _SHORTEST:
        raise NotACheckpoint(f"{reader.path} has only {count(reader.size, 'byte')}: {head!r}", path=reader.path)
    _refuse_protobuf(reader, head)
    _refuse_text(reader, head)
    if not any(head):
        raise NotACheckpoint(
            f"{reader.path} begins with {format_bytes(len(head))} of zeros: it was never written to its end",
            path=reader.path,
        )
    raise NotACheckpoint(
        f"{reader.path} begins with the bytes {head[:8].hex(' ')}, as no known checkpoint does", path=reader.path
    )


def name_finding(path: str, kind: str) -> list[Finding]:
    """A finding where the extension says another thing than the content is."""
    suffix = PurePath(path).suffix.lower()
    if suffix == ".distcp":
        what = "one shard file of a torch.distributed.checkpoint (DCP) folder: its tensors have no names in here"
        return [Finding("shard-of-folder", "warning", "", what, "open the folder")]
    rank = _RANK.search(path)
    if rank:
        what = f"what rank {int(rank[1])} kept of a DeepSpeed checkpoint: the files of the other ranks lie beside it"
        return [Finding("shard-of-folder", "warning", "", what, "open the folder")]
    shard = _SHARD.search(path)
    if shard:
        what = f"file {int(shard[1])} of the {int(shard[2])} of one state dict: the others lie beside it"
        return [Finding("shard-of-index", "warning", "", what, "open the folder, or the .index.json")]
    if kind == "safetensors" and suffix in _TORCH_NAMES:
        what = f"safetensors data under a {suffix} name"
    elif kind != "safetensors" and suffix == ".safetensors":
        what = f"a {kind.replace('-', ' ')} file under a .safetensors name"
    else:
        return []
    return [Finding("misleading-name", "info", "", what, "the content decides; rename it to spare other readers")]


def _pickle(reader: Reader) -> str:
    reading = read_pickle_at(reader, 0, where=f"{reader.path}: the first pickle")
    if type(reading.value) is int and reading.value == MAGIC:
        return "legacy"
    details = [f"it names {listing(sorted(reading.globals), 6)}"] if reading.globals else []
    listed = type(reading.value) is Opaque and reading.value.name == _DCP
    raise UnsupportedFile(
        f"{reader.path} is a bare pickle (protocol {reading.protocol}) of {_kind(reading.value)}, not a torch file",
        details=details,
        remedy="Give the folder that it lies in."
        if listed
        else "Only files that torch.save wrote, or safetensors, are read here.",
        path=reader.path,
    )


def _kind(value: Any) -> str:
    if type(value) is Opaque:
        return value.name
    if type(value) is dict:
        keys = [str(key)[:_QUOTED] for key in value if type(key) is str]
        return f"a dict of {count(len(value), 'key')}" + (f" ({listing(keys)})" if keys else "")
    return f"a {type(value).__name__}"


def _refuse_marked(reader: Reader, head: bytes) -> None:
    for table, error in ((_FOREIGN, UnsupportedFile), (_NO_DATA, NotACheckpoint)):
        for offset, mark, name, remedy in table:
            if head.startswith(mark, offset):
                raise error(
                    f"{reader.path} is {name}, not a torch or safetensors file", remedy=remedy, path=reader.path
                )


def _refuse_protobuf(reader: Reader, head: bytes) -> None:
    """ONNX has no mark: a ModelProto begins with its IR version (field 1) and most often its producer (field 2)."""
    if head[0] == 0x08 and 1 <= head[1] <= 0x20 and head[2] in (0x12, 0x1A, 0x3A):
        raise UnsupportedFile(
            f"{reader.path} reads as a protobuf message, most likely an ONNX model, not a torch or safetensors file",
            path=reader.path,
        )


def _refuse_text(reader: Reader, head: bytes) -> None:
    if head.startswith(_LFS):
        raise NotACheckpoint(
            f"{reader.path} is a Git LFS pointer, not the file itself",
            details=[line.decode("ascii", "replace")[:100] for line in head.splitlines()[1:3]],
            remedy="Fetch the file it points to: git lfs pull",
            path=reader.path,
        )
    text = _decoded(head)
    if text is None:
        return
    if os.path.islink(reader.path):  # whoever made the link may be the one who reads this
        raise NotACheckpoint(f"{reader.path} is a link to text, not to a checkpoint", path=reader.path)
    _refuse_text_pickle(reader, head)
    start = " ".join(text.split())[:_QUOTED]
    lower = text[:1024].lstrip("\ufeff \t\r\n").lower()
    if lower.startswith(("<!doctype html", "<html")) or "<html" in lower:
        title = re.search(r"<title[^>]{0,100}>([^<]{0,200})", text, re.IGNORECASE)
        named = f', title "{" ".join(title[1].split())}"' if title else ""
        what, remedy = f"an HTML page{named}", "A download saved a web page: log in, or use the direct link."
    elif lower.startswith(("{", "[")):
        what, remedy = _json(text, start)
    else:
        what, remedy = f'plain text "{start}"', "A download or a script saved a message in place of the file."
    raise NotACheckpoint(f"{reader.path} is {what}, not a checkpoint", remedy=remedy, path=reader.path)


def _json(text: str, start: str) -> tuple[str, str]:
    if '"weight_map"' in text:
        files = sorted(set(re.findall(r'"([^"\s]{1,200}\.(?:safetensors|bin|pt))"', text)))
        shards = f" in {listing(files, 3)}" if files else ""
        return f"the JSON index of a checkpoint{shards}", "Give one of those files."
    return f"JSON text {start}", "A download saved a message in place of the file."


def _decoded(head: bytes) -> str | None:
    """The head as text, None where it is no text; a last character that the window cut counts as whole."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = head.decode("utf-16", "replace")
        return None if "\ufffd" in text[:-1] else text
    head = head.removeprefix(codecs.BOM_UTF8)
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as fault:
        if len(head) < _HEAD or fault.start < len(head) - 4:
            return None
        text = head[: fault.start].decode("utf-8")
    control = sum(1 for letter in text[:1024] if not letter.isprintable() and not letter.isspace())
    return None if control else text


def _refuse_text_pickle(reader: Reader, head: bytes) -> None:
    """Protocol 0 is plain text; it counts as a pickle where it reads as one to the file's last byte."""
    if head[:1] not in (b"(", b"c", b"]", b"}", b"I", b"L", b"V", b"S") or reader.size > _MAX_TEXT_PICKLE:
        return
    try:
        reading = read_pickle_at(reader, 0, where=f"{reader.path}: the first pickle")
    except FileError:
        return
    if reading.end == reader.size:
        _pickle(reader)
