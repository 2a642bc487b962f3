"""Writes a torch zip of any size in no time: headers at their places, tensor data as holes of a sparse file.

python tests/describe/sparse_zip.py PATH [TENSORS] [BYTES_EACH]
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from struct import pack

ALIGNMENT = 64
END64 = 0xFFFFFFFF


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + pack("<I", len(data)) + data


def number(value: int) -> bytes:
    """As the C pickler writes a whole number."""
    if value < 1 << 8:
        return b"K" + bytes([value])
    if value < 1 << 16:
        return b"M" + pack("<H", value)
    return b"J" + pack("<i", value) if value < 1 << 31 else b"\x8a\x08" + pack("<q", value)


def state_dict_pickle(names: list[str], shape: tuple[int, ...]) -> bytes:
    """`OrderedDict` of float32 tensors as torch.save pickles it (protocol 2), memo included."""
    out = [b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01("]
    memo = 2
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    numel = strides[0] * shape[0]

    def put() -> bytes:
        nonlocal memo
        memo += 1
        return b"q" + bytes([memo - 1]) if memo <= 256 else b"r" + pack("<I", memo - 1)

    first: dict[str, bytes] = {}

    def again(name: str, code: bytes) -> bytes:
        if name in first:
            return first[name]
        mark = put()
        first[name] = b"h" + mark[1:]
        return code + mark

    for index, name in enumerate(names):
        out += [text(name), put(), again("rebuild", b"ctorch._utils\n_rebuild_tensor_v2\n"), b"(("]
        out += [again("storage", text("storage")), again("class", b"ctorch\nFloatStorage\n"), text(str(index)), put()]
        out += [again("cpu", text("cpu")), number(numel), b"t", put(), b"QK\x00"]
        out += [
            number(shape[0]),
            number(shape[1]),
            b"\x86",
            put(),
            number(strides[0]),
            number(strides[1]),
            b"\x86",
            put(),
        ]
        out += [b"\x89h\x00)R", put(), b"t", put(), b"R", put()]
    return b"".join([*out, b"u."])


class SparseZip:
    """A ZIP writer in torch's manner: stored records, data descriptors, data aligned to 64 bytes."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.central: list[bytes] = []

    def add(self, name: str, data: bytes | int) -> None:
        """A record of real bytes, or of a hole of so many bytes."""
        size, crc = (len(data), zlib.crc32(data)) if isinstance(data, bytes) else (data, 0)
        raw, header = name.encode(), self.file.tell()
        pad = -(header + 30 + len(raw) + 4) % ALIGNMENT
        extra = b"FB" + pack("<H", pad) + b"Z" * pad
        self.file.write(
            pack("<IHHHHHIIIHH", 0x04034B50, 0, 0x0808, 0, 0, 0, 0, 0, 0, len(raw), len(extra)) + raw + extra
        )
        if isinstance(data, bytes):
            self.file.write(data)
        else:
            self.file.seek(data, 1)
        self.file.write(pack("<IIQQ", 0x08074B50, crc, size, size))
        wide = pack("<HHQQQ", 1, 24, size, size, header)
        self.central.append(
            pack("<IHHHHHHIII", 0x02014B50, 0, 0, 0x0808, 0, 0, 0, crc, END64, END64)
            + pack("<HHHHHII", len(raw), len(wide), 0, 0, 0, 0, END64)
            + raw
            + wide
        )

    def close(self) -> None:
        start = self.file.tell()
        directory = b"".join(self.central)
        count = len(self.central)
        self.file.write(directory)
        end = self.file.tell()
        self.file.write(pack("<IQHHIIQQQQ", 0x06064B50, 44, 0, 0, 0, 0, count, count, len(directory), start))
        self.file.write(pack("<IIQI", 0x07064B50, 0, end, 1))
        self.file.write(pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, END64, END64, 0))
        self.file.close()


def write_sparse(path: Path, tensors: int, nbytes: int) -> None:
    """A model state dict of `tensors` float32 tensors of `nbytes` bytes each, all holes."""
    names = [f"layers.{i // 10}.block.{i % 10}.weight" for i in range(tensors)]
    archive = SparseZip(path)
    archive.add("archive/data.pkl", state_dict_pickle(names, (nbytes // 4096, 1024)))
    archive.add("archive/byteorder", b"little")
    for index in range(tensors):
        archive.add(f"archive/data/{index}", nbytes)
    archive.add("archive/version", b"3\n")
    archive.close()


if __name__ == "__main__":
    write_sparse(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:4] or ("10000", "10485760")))
