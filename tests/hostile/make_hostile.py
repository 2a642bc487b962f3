"""Writes the hostile files of this folder, and README.md with a line for each.

python -m tests.hostile.make_hostile    (the files are committed: run it only to add one)

Nothing here is dangerous to look at: commands in these files print a word or touch nothing.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

HERE = Path(__file__).parent
Rebuild = torch._utils._rebuild_tensor_v2


class Key(NamedTuple):
    """Stands for a storage of so many float32 numbers; pickled as its persistent id."""

    name: str
    numel: int


class Call:
    """Pickles as a call of `function(*args)`."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.args


class _Pickler(pickle.Pickler):
    legacy = False

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Key):
            return None
        pid = ("storage", torch.FloatStorage, obj.name, "cpu", obj.numel)
        return (*pid, None) if self.legacy else pid


def dump(value: Any, *, legacy: bool = False) -> bytes:
    out = io.BytesIO()
    pickler = _Pickler(out, 2)
    pickler.legacy = legacy
    pickler.dump(value)
    return out.getvalue()


def tensor(key: Key, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> Call:
    return Call(Rebuild, key, offset, size, stride, False, OrderedDict())


W = tensor(Key("0", 3), (3,), (1,))
DATA = struct.pack("<3f", 1, 2, 3)


def archive(records: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytearray:
    """A zip whose bytes depend on nothing but `records`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in records:
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            file.writestr(info, data)
    return bytearray(out.getvalue())


def checkpoint(value: Any, *extra: tuple[str, bytes], data: bytes = DATA) -> bytearray:
    return archive([("a/data.pkl", value if isinstance(value, bytes) else dump(value)), ("a/data/0", data), *extra])


def patched(raw: bytearray, edits: list[tuple[int, bytes]]) -> bytes:
    for at, new in edits:
        raw[at : at + len(new)] = new
    return bytes(raw)


def end(raw: bytes) -> int:
    return raw.rfind(b"PK\x05\x06")


def central(raw: bytes, number: int) -> int:
    at = -1
    for _ in range(number + 1):
        at = raw.find(b"PK\x01\x02", at + 1)
    return at


def edited(where: Callable[[bytes], int], offset: int, new: bytes) -> bytes:
    """A sound checkpoint with `new` written `offset` bytes after a place of it."""
    raw = checkpoint({"w": W})
    return patched(raw, [(where(raw) + offset, new)])


def duplicated() -> bytes:
    """The directory gives both data records one name; the local headers agree with it."""
    raw = archive([("a/data.pkl", dump({"w": W})), ("a/data/0", DATA), ("a/data/1", DATA)])
    return bytes(raw.replace(b"a/data/1", b"a/data/0"))


def grown(by: int) -> bytes:
    """A data record that claims `by` bytes more than it has, in both headers."""
    raw = checkpoint({"w": W})
    header = raw.find(b"PK\x03\x04", 4)
    size = struct.pack("<II", 12 + by, 12 + by)
    return patched(raw, [(header + 18, size), (central(raw, 1) + 20, size)])


def bomb() -> bytes:
    """A compressed data.pkl that declares a gibibyte."""
    raw = archive([("a/data.pkl", b"\x80\x02]." + b"\0" * 2000), ("a/version", b"3")], zipfile.ZIP_DEFLATED)
    huge = struct.pack("<I", 1 << 30)
    return patched(raw, [(22, huge), (central(raw, 0) + 24, huge)])


def data_bomb() -> bytes:
    """A compressed record of data that declares a gibibyte, as its pickle does."""
    many = tensor(Key("0", 1 << 28), (1 << 28,), (1,))
    raw = archive([("a/data.pkl", dump({"w": many})), ("a/data/0", bytes(100))], zipfile.ZIP_DEFLATED)
    huge = struct.pack("<I", 1 << 30)
    return patched(raw, [(raw.find(b"PK\x03\x04", 4) + 22, huge), (central(raw, 1) + 24, huge)])


def stream(value: Any, keys: list[str], data: bytes) -> bytes:
    """A legacy stream with the parts given."""
    facts = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    head = [0x1950A86A20F9469CFC6C, 1001, facts]
    return b"".join([*map(dump, head), dump(value, legacy=True), dump(keys), data])


def counted(count: int, data: bytes = DATA) -> bytes:
    return struct.pack("<q", count) + data


def tensors(header: dict[str, Any] | str, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin: int, stop: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, stop]}


def doubled(levels: int) -> bytes:
    """A list that holds a list twice that holds a list twice, and so on."""
    return b"\x80\x02](" + b"K\x01e" + b"".join(b"q%c](h%ch%ce" % (i, i, i) for i in range(levels)) + b"."


def nested(levels: int) -> bytes:
    return b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."


def flooded(count: int) -> bytes:
    keys = b"".join(pickle.dumps(((1 << 61) - 1) * i, 2)[2:-1] + b"N" for i in range(1, count))
    return b"\x80\x02}(" + keys + b"u."


def circle() -> list[Any]:
    value: list[Any] = [W]
    value.append({"again": value})
    return value


def tar(**members: bytes) -> bytes:
    """A tar archive of before torch 0.1.10: one tensor of three numbers, but for the members given."""
    sound = {
        "pickle": b"\x80\x02}U\x01wU\x012Qs.",
        "tensors": dump(1) + TENSOR,
        "storages": dump(1) + dump((1, "cpu", torch.FloatStorage)) + counted(3) + dump([]),
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as file:
        for name, data in {**sound, **members}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if data:
                file.addfile(info, io.BytesIO(data))
    return out.getvalue()


TENSOR = dump((2, 1, torch.FloatTensor)) + struct.pack("<i4x3q", 1, 3, 1, 0)
SYSTEM = Call(os.system, "echo hostile")
POPPED = dump(SYSTEM)[:-1] + b"0" + dump({"w": W})[2:]

FILES: dict[str, tuple[bytes, str, str]] = {
    "empty.pt": (b"", "NotACheckpoint", "no bytes at all"),
    "one_byte.pt": (b"P", "NotACheckpoint", "a single byte"),
    "zeros.pt": (bytes(600), "NotACheckpoint", "zeros only, as a copy that never finished leaves"),
    "lfs_pointer.pt": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n",
        "NotACheckpoint", "a Git LFS pointer in place of the file"),
    "page.pth": (b"<!DOCTYPE html>\n<html><head><title>Quota exceeded</title></head></html>\n", "NotACheckpoint",
                 "a web page under a checkpoint's name"),
    "message.pt": (b'{"message": "Not Found"}', "NotACheckpoint", "a JSON answer of a server"),
    "words.pt": (b"Access to this resource is denied\n", "NotACheckpoint", "a line of text"),
    "image.pt": (b"\x89PNG\r\n\x1a\n" + bytes(20), "NotACheckpoint", "the head of an image"),
    "packed.pt": (gzip.compress(b"x", mtime=0), "UnsupportedFile", "a gzip file"),
    "bare_pickle.pt": (dump({"a": 1}), "UnsupportedFile", "a pickle that torch did not write"),
    "bare_pickle_0.pt": (pickle.dumps({"a": [1, 2]}, 0), "UnsupportedFile", "the same in protocol 0, which is text"),
    "arrays.npz": (bytes(archive([("x.npy", b"\x93NUMPY")])), "UnsupportedFile", "a numpy archive"),
    "zip_empty.pt": (bytes(archive([])), "UnsupportedFile", "a zip without records"),
    "zip_cut.pt": (bytes(checkpoint({"w": W})[:-1]), "CorruptFile", "a zip without its last byte"),
    "zip_headers_only.pt": (b"PK\x03\x04" + bytes(200), "CorruptFile", "a zip without its end"),
    "zip_directory_past_end.pt": (edited(end, 16, b"\xff\xff\xff\x7f"), "CorruptFile",
                                  "an end record that points past the file"),
    "zip_many_records.pt": (edited(end, 8, b"\xf0\xff\xf0\xff"), "CorruptFile",
                            "an end record that announces more records than fit"),
    "zip_split.pt": (edited(end, 4, b"\x01\x00\x01\x00"), "UnsupportedFile", "a part of a split zip"),
    "zip_other_name.pt": (edited(lambda raw: raw.find(b"a/data/0"), 0, b"a/data/9"), "CorruptFile",
                          "a local header with another name than the directory gives"),
    "zip_other_method.pt": (edited(lambda raw: central(raw, 1), 10, b"\x08\x00"), "CorruptFile",
                            "a record stored by one header and compressed by the other"),
    "zip_strange_method.pt": (
        patched(checkpoint({"w": W}), [(8, b"\x63\x00"), (central(checkpoint({"w": W}), 0) + 10, b"\x63\x00")]),
        "UnsupportedFile", "a record compressed by a method that torch lacks"),
    "zip_encrypted.pt": (
        patched(checkpoint({"w": W}), [(6, b"\x01\x00"), (central(checkpoint({"w": W}), 0) + 8, b"\x01\x00")]),
        "UnsupportedFile", "an encrypted record"),
    "zip_header_past_end.pt": (edited(lambda raw: central(raw, 1), 42, b"\xff\xff\xff\x7f"), "CorruptFile",
                               "a record whose local header is past the end"),
    "zip_no_header.pt": (edited(lambda raw: central(raw, 1), 42, b"\x01\x00\x00\x00"), "CorruptFile",
                         "a record whose local header is somewhere in the data"),
    "zip_overlap.pt": (grown(8), "CorruptFile", "a record that runs into what follows"),
    "zip_past_end.pt": (grown(1 << 20), "CorruptFile", "a record that is longer than the file"),
    "zip_duplicate.pt": (duplicated(), "CorruptFile", "two records of one name"),
    "zip_bomb.pt": (bomb(), "HostileFile", "a compressed pickle that declares a gibibyte"),
    "zip_concatenated.pt": (bytes(checkpoint({"w": W}) * 2), "UnsupportedFile", "two zips one after another"),
    "zip64_without_record.pt": (
        bytes(checkpoint({"w": W})[:-22]) + struct.pack("<IIQI", 0x07064B50, 0, 7, 1)
        + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0),
        "CorruptFile", "a ZIP64 locator without a ZIP64 record before it"),
    "crc_of_pickle.pt": (edited(lambda raw: raw.find(b"\x80\x02"), 1, b"\x03"), "CorruptFile",
                         "a pickle that does not match its checksum"),
    "byteorder_odd.pt": (bytes(checkpoint({"w": W}, ("a/byteorder", b"middle"))), "CorruptFile",
                         "a byte order that is none"),
    "manifest_no_json.pt": (bytes(checkpoint({"w": W}, ("a/unmoor/manifest.json", b"{"))), "CorruptFile",
                            "an unmoor manifest that is no JSON"),
    "manifest_deep.pt": (bytes(checkpoint({"w": W}, ("a/unmoor/manifest.json", b"[" * 100_000))), "CorruptFile",
                         "an unmoor manifest that nests without end"),
    "record_missing.pt": (bytes(archive([("a/data.pkl", dump({"w": W}))])), "CorruptFile",
                          "a tensor whose record is not there"),
    "record_short.pt": (bytes(checkpoint({"w": W}, data=DATA[:8])), "CorruptFile",
                        "a tensor whose record has fewer bytes"),
    "shape_past_storage.pt": (bytes(checkpoint({"w": tensor(Key("0", 3), (2, 3), (3, 1))})), "CorruptFile",
                              "a tensor larger than its storage"),
    "offset_past_storage.pt": (bytes(checkpoint({"w": tensor(Key("0", 3), (3,), (1,), 1)})), "CorruptFile",
                               "a tensor that begins too late in its storage"),
    "stride_negative.pt": (bytes(checkpoint({"w": tensor(Key("0", 3), (3,), (-1,), 2)})), "CorruptFile",
                           "a tensor that walks backwards"),
    "offset_negative.pt": (bytes(checkpoint({"w": tensor(Key("0", 3), (1,), (1,), -1)})), "CorruptFile",
                           "a tensor that begins before its storage"),
    "shape_overflow.pt": (bytes(checkpoint({"w": tensor(Key("0", 3), (1 << 62, 1 << 62), (1 << 62, 1))})),
                          "CorruptFile", "sizes whose product overflows"),
    "storage_two_sizes.pt": (
        bytes(checkpoint({"v": W, "w": tensor(Key("0", 300), (300,), (1,))})), "CorruptFile",
        "one storage declared with two sizes"),
    "shape_no_tuple.pt": (bytes(checkpoint({"w": Call(Rebuild, Key("0", 3), 0, "abc", (1,), False, None)})),
                          "CorruptFile", "a shape that is text"),
    "storage_no_storage.pt": (bytes(checkpoint({"w": Call(Rebuild, 5, 0, (3,), (1,), False, None)})),
                              "CorruptFile", "a tensor whose storage is a number"),
    "system.pt": (bytes(checkpoint({"w": W, "hook": SYSTEM})), "runs-code", "a pickle that runs a command"),
    "popped.pt": (bytes(checkpoint(POPPED)), "runs-code", "a command whose result is thrown away"),
    "evaluated.pt": (bytes(checkpoint({"w": W, "hook": Call(eval, "print(1)")})), "runs-code", "a call of eval"),
    "nested_pickle.pt": (bytes(checkpoint({"w": W, "n": Call(pickle.loads, dump(Call(pickle.loads, dump(SYSTEM))))})),
                         "runs-code", "a pickle in a pickle in a pickle"),
    "getattr_chain.pt": (
        bytes(checkpoint(b"\x80\x02cbuiltins\ngetattr\ncos\nX\nX\x06\x00\x00\x00system\x86RX\x02\x00\x00\x00ls\x85R.")),
        "runs-code", "os.system reached through getattr"),
    "named_only.pt": (bytes(checkpoint({"w": W, "f": os.system})), "runs-code", "a dangerous function as a value"),
    "partial.pt": (bytes(checkpoint(
        b"\x80\x02cfunctools\npartial\ncos\nsystem\n\x85R(cos\nsystem\nX\x02\x00\x00\x00ls\x85}NtbN\x85R.")),
        "runs-code", "a dangerous function inside functools.partial"),
    "method.pt": (bytes(checkpoint({"w": W, "f": Call(getattr, torch.nn.Linear, "forward")})), "suspicious-call",
                  "a harmless use of getattr"),
    "doubled.pt": (bytes(checkpoint(doubled(60))), "walk-cut", "lists that double sixty times over"),
    "deep.pt": (bytes(checkpoint(nested(5000))), "HostileFile", "lists nested five thousand deep"),
    "flood.pt": (bytes(checkpoint(flooded(2000))), "HostileFile", "dict keys chosen to collide"),
    "circle.pt": (bytes(checkpoint(circle())), "sound", "a list that holds itself"),
    "trailing.pt": (bytes(checkpoint({"w": W})) + b"more", "trailing-bytes", "bytes after the end of the zip"),
    "compressed.pt": (bytes(archive([("a/data.pkl", dump({"w": W})), ("a/data/0", DATA)], zipfile.ZIP_DEFLATED)),
                      "compressed-record", "records compressed by another program"),
    "data_bomb.pt": (data_bomb(), "CorruptFile", "compressed data that declares more than it can inflate to"),
    "legacy_cut.pt": (stream({"w": W}, ["0"], counted(3, DATA[:-4])), "CorruptFile", "a stream short of four bytes"),
    "legacy_no_data.pt": (stream({"w": W}, ["0"], b""), "CorruptFile", "a stream without its data"),
    "legacy_other_count.pt": (stream({"w": W}, ["0"], counted(1 << 40)), "CorruptFile",
                              "a stream whose data claims other sizes than its pickle"),
    "legacy_unlisted.pt": (stream({"w": W}, [], b""), "CorruptFile", "a storage that the list lacks"),
    "legacy_unused.pt": (stream({"w": W}, ["0", "1"], counted(3) + counted(3)), "CorruptFile",
                         "a listed storage that no tensor uses"),
    "legacy_keys_no_list.pt": (stream({"w": W}, 5, counted(3)), "CorruptFile", "a list of storages that is none"),  # type: ignore[arg-type]
    "legacy_system.pt": (stream({"w": W, "x": SYSTEM}, ["0"], counted(3)), "runs-code", "a command in a stream"),
    "legacy_head_only.pt": (dump(0x1950A86A20F9469CFC6C), "CorruptFile", "the magic number and nothing else"),
    "legacy_version.pt": (dump(0x1950A86A20F9469CFC6C) + dump(7) + dump({}), "UnsupportedFile",
                          "a stream of an unknown version"),
    "tar_sound.pt": (tar(), "sound", "a tar archive of before torch 0.1.10"),
    "tar_members.pt": (tar(pickle=b"", tensors=b""), "CorruptFile", "a tar archive without its object"),
    "tar_size.pt": (patched(bytearray(tar()), [(124, b"a lot")]), "CorruptFile", "a member without a size"),
    "tar_count_negative.pt": (tar(tensors=dump(-1)), "CorruptFile", "fewer tensors than none"),
    "tar_count_huge.pt": (tar(tensors=dump(1 << 40)), "HostileFile", "more tensors than any file holds"),
    "tar_count_false.pt": (tar(tensors=dump(2) + TENSOR), "CorruptFile", "more tensors than the member holds"),
    "tar_dimensions.pt": (tar(tensors=dump(1) + TENSOR[:-32] + struct.pack("<i4x", 1 << 30)), "CorruptFile",
                          "a tensor of a billion dimensions"),
    "tar_shape.pt": (tar(tensors=dump(1) + TENSOR[:-24] + struct.pack("<3q", 1 << 62, 1 << 62, 0)), "CorruptFile",
                     "a tensor larger than its storage"),
    "tar_no_storage.pt": (tar(tensors=dump(1) + dump((2, 9, torch.FloatTensor)) + TENSOR[-32:]), "CorruptFile",
                          "a tensor on a storage that is not there"),
    "tar_no_tensor.pt": (tar(pickle=b"\x80\x02}U\x01wU\x0277Qs."), "CorruptFile",
                         "an object with a tensor that is not there"),
    "tar_storage_cut.pt": (tar(storages=dump(1) + dump((1, "cpu", torch.FloatStorage)) + counted(1 << 40)),
                           "CorruptFile", "a storage longer than the file"),
    "tar_storage_negative.pt": (tar(storages=dump(1) + dump((1, "cpu", torch.FloatStorage)) + counted(-1)),
                                "CorruptFile", "a storage of fewer bytes than none"),
    "tar_storage_class.pt": (tar(storages=dump(1) + dump((1, "cpu", os.system)) + counted(3)), "CorruptFile",
                             "a storage of a class that is none"),
    "tar_window.pt": (tar(storages=dump(0) + dump([(1, 5, 0, 3)])), "CorruptFile",
                      "a window into a storage that is not there"),
    "tar_system.pt": (tar(pickle=dump({"x": SYSTEM})), "runs-code", "a command in a tar archive"),
    "tensors_cut.safetensors": (tensors({"w": entry(0, 12, [3])}, DATA[:-1]), "CorruptFile", "data short of a byte"),
    "tensors_header_cut.safetensors": (tensors({"w": entry(0, 12, [3])}, length=4000), "CorruptFile",
                                       "a header longer than the file"),
    "tensors_header_huge.safetensors": (tensors("{}", length=1 << 31), "HostileFile", "a header of two gibibytes"),
    "tensors_no_json.safetensors": (tensors("{nothing}"), "CorruptFile", "a header that is no JSON"),
    "tensors_deep.safetensors": (tensors('{"a":' * 100_000), "CorruptFile", "a header that nests without end"),
    "tensors_twice.safetensors": (tensors('{"w":{},"w":{}}'), "CorruptFile", "a name that occurs twice"),
    "tensors_overlap.safetensors": (tensors({"v": entry(0, 12, [3]), "w": entry(8, 20, [3])}, bytes(20)),
                                    "CorruptFile", "two tensors that share bytes"),
    "tensors_hole.safetensors": (tensors({"v": entry(0, 12, [3]), "w": entry(16, 28, [3])}, bytes(28)),
                                 "CorruptFile", "bytes between two tensors that belong to none"),
    "tensors_trailing.safetensors": (tensors({"w": entry(0, 12, [3])}, DATA + b"more"), "CorruptFile",
                                     "bytes after the last tensor"),
    "tensors_size.safetensors": (tensors({"w": entry(0, 12, [4])}, DATA), "CorruptFile",
                                 "a shape that takes more bytes than the offsets give"),
    "tensors_backwards.safetensors": (tensors({"w": entry(12, 0, [3])}, DATA), "CorruptFile",
                                      "an end before its begin"),
    "tensors_negative.safetensors": (tensors({"w": entry(0, 12, [-3])}, DATA), "CorruptFile", "a negative size"),
    "tensors_overflow.safetensors": (tensors({"w": entry(0, 12, [1 << 62, 1 << 62])}, DATA), "CorruptFile",
                                     "sizes whose product overflows"),
    "tensors_dtype.safetensors": (tensors({"w": entry(0, 12, [3], "F33")}, DATA), "CorruptFile",
                                  "a dtype that is none"),
    "tensors_metadata.safetensors": (tensors({"__metadata__": {"a": 1}, "w": entry(0, 12, [3])}, DATA), "CorruptFile",
                                     "metadata that is not text"),
}  # fmt: skip
"""Name -> bytes, what describe says (an error class, the code of a finding, or "sound"), and one line."""


def main() -> None:
    for name, (data, _, _) in FILES.items():
        (HERE / name).write_bytes(data)
    lines = [f"* `{name}`: {line} ({verdict})" for name, (_, verdict, line) in FILES.items()]
    head = "# Hostile files\n\nOne file, one line, and what describe says of it. Made by `make_hostile.py`.\n"
    (HERE / "README.md").write_text("\n".join([head, *lines, ""]))


if __name__ == "__main__":
    main()
