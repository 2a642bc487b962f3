"""Mutation of bytes that knows no format: flips, numbers at their limits, pieces cut, doubled, moved and spliced."""

from __future__ import annotations

from random import Random

from tests.fuzz.choices import Files

__all__ = ["MOST", "mutated", "mutated_files"]

MOST = 1 << 20
_NUMBERS = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 32,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
_TOKENS = (
    b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"\x80\x02", b"\x80\x05", b".", b"(",
    b")",
    b"}", b"]", b"\x8f", b"R", b"b", b"Q", b"0", b"2", b"r\xff\xff\xff\x7f", b"q\x00", b"h\x00", b"\x94", b"\x93",
    b"\x81",
    b"cos\nsystem\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"\x8b\x00\x04\x00\x00" + b"\x7f" * 1024,
    b"I" + b"9" * 5000 + b"\n", b"S'\\q'\n", b"V\\ud800\n", b"null", b"NaN", b"-1", b"1e999", b'"\\ud800"', b"[[[[",
    b"../", b"\0",
    b"\xed\xa0\x80", b"\x1b[31m", b"\xc2\x9b", b"</script>", b"data.pkl", b"unmoor/manifest.json",
)  # fmt: skip


def mutated(rng: Random, data: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """`data` with one to eight changes; pieces of `others` may come into it."""
    raw = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        if not raw:
            raw = bytearray(rng.randbytes(1 + rng.randrange(40)))
        _CHANGES[rng.randrange(len(_CHANGES))](rng, raw, others)
    return bytes(raw[:MOST])


def mutated_files(rng: Random, files: Files, others: tuple[bytes, ...] = ()) -> Files:
    """The input with one of its files changed, or left out."""
    name = rng.choice(sorted(files))
    if len(files) > 1 and rng.randrange(16) == 0:
        return {other: data for other, data in files.items() if other != name}
    return {**files, name: mutated(rng, files[name], others)}


def _place(rng: Random, raw: bytearray) -> tuple[int, int]:
    at = rng.randrange(len(raw))
    return at, min(len(raw), at + (1 << rng.randrange(7)))


def _flip(rng: Random, raw: bytearray, _: tuple[bytes, ...]) -> None:
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def _byte(rng: Random, raw: bytearray, _: tuple[bytes, ...]) -> None:
    raw[rng.randrange(len(raw))] = rng.randrange(256)


def _number(rng: Random, raw: bytearray, _: tuple[bytes, ...]) -> None:
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(len(raw))
    old = int.from_bytes(raw[at : at + width], "little")
    new = rng.choice(_NUMBERS) if rng.randrange(2) else old + rng.choice((-16, -2, -1, 1, 2, 16, 64))
    raw[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")


def _cut(rng: Random, raw: bytearray, _: tuple[bytes, ...]) -> None:
    at, stop = _place(rng, raw)
    del raw[at:stop]


def _end(rng: Random, raw: bytearray, _: tuple[bytes, ...]) -> None:
    del raw[rng.randrange(len(raw)) :]


def _double(rng: Random, raw: bytearray, _: tuple[bytes, ...]) -> None:
    at, stop = _place(rng, raw)
    raw[at:at] = raw[at:stop] * (1 << rng.randrange(6))


def _move(rng: Random, raw: bytearray, _: tuple[bytes, ...]) -> None:
    at, stop = _place(rng, raw)
    piece = raw[at:stop]
    where = rng.randrange(len(raw))
    raw[where : where + len(piece)] = piece


def _fill(rng: Random, raw: bytearray, _: tuple[bytes, ...]) -> None:
    at, stop = _place(rng, raw)
    raw[at:stop] = bytes([rng.choice((0, 0xFF, rng.randrange(256)))]) * (stop - at)


def _token(rng: Random, raw: bytearray, _: tuple[bytes, ...]) -> None:
    at, token = rng.randrange(len(raw)), rng.choice(_TOKENS)
    raw[at : at + len(token) * rng.randrange(2)] = token


def _splice(rng: Random, raw: bytearray, others: tuple[bytes, ...]) -> None:
    other = rng.choice(others) if others else bytes(raw)
    if other:
        at = rng.randrange(len(other))
        where = rng.randrange(len(raw))
        raw[where:where] = other[at : at + (1 << rng.randrange(9))]


_CHANGES = (_flip, _flip, _byte, _byte, _number, _number, _cut, _end, _double, _move, _fill, _token, _token, _splice)
