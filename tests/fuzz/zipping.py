"""Zip archives with a lie: written by hand, so that every number in them can be another than it should."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from struct import pack

from tests.fuzz.choices import Files
from tests.fuzz.havoc import mutated
from tests.fuzz.jsons import lying_json
from tests.fuzz.pickling import bent, program, tensor, text, value

__all__ = ["Member", "checkpoint", "lying", "members_of", "rebent", "written"]

_NUMBERS = (0, 1, 4, 63, 64, 100, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF)
_WIDE = (0, 1, 64, 1 << 31, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@dataclass
class Member:
    """A record as both of its headers tell it. `local` and `central` are fields that are to be lied about in each."""

    name: bytes
    data: bytes
    method: int = 0
    flags: int = 0
    extra: bytes = b""
    wide: bool = False
    descriptor: bool = False
    local: dict[str, int] = field(default_factory=dict)
    central: dict[str, int] = field(default_factory=dict)
    local_name: bytes | None = None


@dataclass
class End:
    """The end records. `lies` are fields that are to be other than they should."""

    wide: bool = False
    comment: bytes = b""
    after: bytes = b""
    before: bytes = b""
    lies: dict[str, int] = field(default_factory=dict)


def written(members: list[Member], end: End | None = None) -> bytes:
    """The archive."""
    end = end or End()
    out, central = bytearray(end.before), bytearray()
    for member in members:
        header = len(out)
        stored = _deflated(member.data) if member.method == 8 else member.data
        facts = {"flags": member.flags | 8 * member.descriptor, "method": member.method, "crc": zlib.crc32(member.data),
                 "stored": len(stored), "nbytes": len(member.data), "header": header,
                 "signature": 0x04034B50}  # fmt: skip
        told = {**facts, **({"crc": 0, "stored": 0, "nbytes": 0} if member.descriptor else {}), **member.local}
        name = member.name if member.local_name is None else member.local_name
        out += pack("<IHHHHHIIIHH", told["signature"], 20, told["flags"] & 0xFFFF, told["method"] & 0xFFFF, 0, 0,
                    told["crc"] & 0xFFFFFFFF, told["stored"] & 0xFFFFFFFF, told["nbytes"] & 0xFFFFFFFF, len(name),
                    len(member.extra))  # fmt: skip
        out += name + member.extra + stored
        if member.descriptor:
            out += pack("<IIII", 0x08074B50, facts["crc"], len(stored), len(member.data))
        central += _entry(member, {**facts, "signature": 0x02014B50, **member.central})
    return bytes(out + central + _ends(end, len(members), len(central), len(out)) + end.after)


def _entry(member: Member, told: Mapping[str, int]) -> bytes:
    extra = pack("<HHQQQ", 1, told.get("wide_length", 24), told["nbytes"] % (1 << 64), told["stored"] % (1 << 64),
                 told["header"] % (1 << 64)) if member.wide else b""  # fmt: skip
    sizes = (0xFFFFFFFF,) * 3 if member.wide else (told["stored"], told["nbytes"], told["header"])
    stored, nbytes, header = (number & 0xFFFFFFFF for number in sizes)
    fixed = pack("<IHHHHHHIII", told["signature"], 20, 20, told["flags"] & 0xFFFF, told["method"] & 0xFFFF, 0, 0,
                 told["crc"] & 0xFFFFFFFF, stored, nbytes)  # fmt: skip
    lengths = pack(
        "<HHHHHII",
        told.get("name", len(member.name)),
        told.get("extra", len(extra)),
        told.get("comment", 0),
        0,
        0,
        0,
        header,
    )
    return fixed + lengths + member.name + extra


def _ends(end: End, entries: int, size: int, offset: int) -> bytes:
    told = {"entries": entries, "here": entries, "size": size, "offset": offset, "disk": 0, **end.lies}
    out = b""
    if end.wide:
        where = offset + size
        out += pack("<IQHHIIQQQQ", told.get("mark64", 0x06064B50), 44, 0, 0, told["disk"], 0, told["here"] % (1 << 64),
                    told["entries"] % (1 << 64), told["size"] % (1 << 64), told["offset"] % (1 << 64))  # fmt: skip
        out += pack("<IIQI", 0x07064B50, 0, told.get("locator", where) % (1 << 64), 1)
    short = (
        told["disk"] & 0xFFFF,
        0,
        told["here"] & 0xFFFF,
        told["entries"] & 0xFFFF,
        told["size"] & 0xFFFFFFFF,
        told["offset"] & 0xFFFFFFFF,
    )
    if end.wide and told.get("full", 1):
        short = (0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    return out + pack("<IHHHHIIH", 0x06054B50, *short, told.get("comment", len(end.comment)) & 0xFFFF) + end.comment


def _deflated(data: bytes) -> bytes:
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    return engine.compress(data) + engine.flush()


def checkpoint(rng: Random) -> list[Member]:
    """The records of a checkpoint of torch, sound or nearly."""
    top = rng.choice((b"a/", b"archive/", b"", b"x\x1b/", b"\xff\xfe/"))
    tensors = (
        b"}(" + b"".join(text(name) + tensor(rng, key=key) for name, key in (("w", "0"), ("v", "1"), ("u", "0"))) + b"u"
    )
    pickle = rng.choice((
        b"\x80\x02" + tensors + b".", b"\x80\x02}(" + text("model") + tensors + text("x") + value(rng, 3) + b"u.",
        program(rng), program(rng),
    ))  # fmt: skip
    members = [
        Member(top + b"data.pkl", pickle), Member(top + b"data/0", bytes(range(16))), Member(top + b"data/1",
        bytes(16)),
        Member(top + b"version", rng.choice((b"3\n", b"\x1b[1m", b"9" * 2000))),
        Member(top + b"byteorder", rng.choice((b"little", b"little", b"big", b"middle"))),
    ]  # fmt: skip
    if rng.randrange(3) == 0:
        members.append(Member(top + b"unmoor/manifest.json", lying_json(rng, "manifest")))
    if rng.randrange(6) == 0:
        members.append(Member(top + b"unmoor/relocated.json", lying_json(rng, "relocated")))
    if rng.randrange(6) == 0:
        members += [Member(top + b"constants.pkl", program(rng)), Member(top + b"code/__torch__.py", b"x")]
    for member in members:
        member.descriptor, member.wide = rng.randrange(4) == 0, rng.randrange(4) == 0
        member.method = 8 * (rng.randrange(8) == 0)
        if rng.randrange(6) == 0:
            member.extra = b"FB" + pack("<H", 5) + b"ZZZZZ"
    return members


def _lie_of_size(rng: Random, members: list[Member], end: End) -> None:
    member = rng.choice(members)
    key = rng.choice(("stored", "nbytes", "header", "crc"))
    told = rng.choice(_WIDE if member.wide else _NUMBERS)
    for where in rng.choice(((member.local,), (member.central,), (member.local, member.central))):
        where[key] = told


def _lie_of_fields(rng: Random, members: list[Member], end: End) -> None:
    member = rng.choice(members)
    key = rng.choice(("flags", "method", "signature"))
    told = rng.choice((0, 1, 8, 9, 0x800, 0x801, 99, 0xFFFF))
    for where in rng.choice(((member.local,), (member.central,), (member.local, member.central))):
        where[key] = told


def _lie_of_lengths(rng: Random, members: list[Member], end: End) -> None:
    rng.choice(members).central[rng.choice(("name", "extra", "comment", "wide_length"))] = rng.choice(
        (0, 1, 7, 24, 28, 0xFFFF)
    )


def _lie_of_name(rng: Random, members: list[Member], end: End) -> None:
    member = rng.choice(members)
    member.name = rng.choice((
        b"", rng.choice(members).name, b"a/data/../data.pkl", b"/etc/passwd", b"a/\x00data", b"\xc3\x28",
        member.name + b"/", b"a/x\x1b[2J",
        member.name.swapcase(), b"a" * 5000,
    ))  # fmt: skip
    if rng.randrange(4) == 0:
        member.local_name = rng.choice(members).name


def _lie_of_end(rng: Random, members: list[Member], end: End) -> None:
    end.wide = rng.randrange(2) == 0
    key = rng.choice(("entries", "here", "size", "offset", "disk", "locator", "mark64", "full", "comment"))
    end.lies[key] = (
        rng.choice((0, 1, 2, len(members), *_NUMBERS))
        if key in ("mark64", "full", "comment", "disk")
        else rng.choice(_WIDE)
    )
    if rng.randrange(3) == 0 and key in ("size", "offset", "locator"):
        end.lies[key] = rng.randrange(600)


def _lie_around(rng: Random, members: list[Member], end: End) -> None:
    junk = rng.choice(
        (b"x", bytes(40), b"PK\x05\x06" + bytes(18), b"PK\x05\x06", b"PK\x06\x07" + bytes(16), rng.randbytes(30))
    )
    where = rng.choice(("before", "after", "comment"))
    setattr(end, where, junk)


def _lie_of_anchor(rng: Random, members: list[Member], end: End) -> None:
    """The comment of a relocation that was interrupted, true or not."""
    mark = b"unmoor relocate was interrupted; the checkpoint is whole without what stands behind byte "
    sound = written(members)
    told = rng.choice((len(sound), len(sound) - 1, 0, 1, 10**18, 10**19, len(sound) * 2))
    end.comment = mark + str(told).encode()
    if rng.randrange(2):
        end.before = sound + bytes(rng.randrange(600))


def _lie_of_order(rng: Random, members: list[Member], end: End) -> None:
    rng.shuffle(members)
    if rng.randrange(2):
        members.append(replace(rng.choice(members)))
    if rng.randrange(2) and len(members) > 1:
        members.pop(rng.randrange(len(members)))


def _lie_of_data(rng: Random, members: list[Member], end: End) -> None:
    member = rng.choice(members)
    member.local["crc"] = member.central["crc"] = zlib.crc32(member.data)
    member.data = mutated(rng, member.data)


_LIES: tuple[Callable[[Random, list[Member], End], None], ...] = (
    _lie_of_size, _lie_of_size, _lie_of_fields, _lie_of_lengths, _lie_of_name, _lie_of_end, _lie_of_end, _lie_around,
    _lie_of_anchor,
    _lie_of_order, _lie_of_data,
)  # fmt: skip


def lying(rng: Random) -> bytes:
    """An archive like those of torch; three times in four with one lie in it, now and then with two."""
    members, end = checkpoint(rng), End(wide=rng.randrange(2) == 0)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 2))):
        rng.choice(_LIES)(rng, members, end)
    return written(members, end)


def members_of(data: bytes) -> list[Member]:
    """The records of a sound archive, by Python's own reader."""
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [Member(info.filename.encode(), archive.read(info)) for info in archive.infolist()]


def rebent(rng: Random, files: Files) -> Files:
    """An input in which the pickle or the JSON within one archive, or one that lies bare, tells something else."""
    import zipfile

    names = sorted(files)
    lists = [name for name in names if not name.endswith(".distcp")]
    name = rng.choice(lists if lists and rng.randrange(8) else names)
    data = files[name]
    if not data.startswith(b"PK"):
        return {**files, name: bent(rng, data) if data[:1] != b"{" else lying_json(rng, "", data)}
    try:
        members = members_of(data)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error, EOFError, OSError, ValueError):
        return files
    inner = [member for member in members if member.name.endswith((b".pkl", b".json"))]
    if not inner:
        return files
    chosen = rng.choice(inner)
    chosen.data = bent(rng, chosen.data) if chosen.name.endswith(b".pkl") else lying_json(rng, "", chosen.data)
    return {**files, name: written(members)}
