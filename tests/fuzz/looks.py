"""What is done with an input, and what must be true of what comes out. Raises Wrong where it is not."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import referees
from tests.fuzz.choices import Files
from tests.fuzz.fingerprint import difference, fingerprint
from tests.fuzz.guards import Guard
from tests.fuzz.slow import WAYS, slowly
from unmoor.describe import describe_path
from unmoor.describe.machine import Machine
from unmoor.describe.reading import read_pickle
from unmoor.describe.rebuild import storage_parts
from unmoor.describe.zips import read_archive
from unmoor.errors import FileError, UnmoorError
from unmoor.execute.checksums import combine, crc32
from unmoor.filing import InflatingReader, open_reader, read
from unmoor.report.documents import catalog_document, document_text
from unmoor.report.inspect import inspect_lines
from unmoor.report.layout import cells, join_lines
from unmoor.report.page import Assets, page_html
from unmoor.values import manifests
from unmoor.values.catalog import Catalog
from unmoor.values.difference import Difference
from unmoor.values.dtypes import DTYPES
from unmoor.values.nodes import Storage
from unmoor.values.superseded import anchored_size, read_record, split_ends
from unmoor.values.verification import Verification
from unmoor.wiring.differing import diff_paths
from unmoor.wiring.listing import listed
from unmoor.wiring.salvaging import salvaged
from unmoor.wiring.verifying import verify_path

__all__ = ["ROADS", "Wrong", "at_bytes", "at_checkpoint", "at_json", "at_pickle"]

_RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ASSETS = Assets(style="", table="table()", treemap="treemap()", plotly="plotly()")
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


class Wrong(Exception):
    """An outcome that is none of those that may be."""


def _tried(call: Callable[[], Any]) -> Any:
    """What a call gives, or the error of this package that it raises. Any other passes through."""
    try:
        return call()
    except UnmoorError as error:
        str(error)
        return error


def at_checkpoint(
    files: Files, folder: Path, guard: Guard | None, other: Path | None, *, roads: Sequence[Road] | None = None
) -> Any:
    """Describe what lies at one path, and go one other road with it, or those given; each twice: fast and slowly."""
    path = _laid(files, folder)
    mark = zlib.crc32(b"".join(files.values()))
    held = _Held(path, guard, sum(map(len, files.values())), mark)
    catalog = held(lambda: describe_path(path), "describe")
    if isinstance(catalog, Catalog):
        _shown(catalog, (40, 80, 200)[mark % 3])
    for road in ROADS[mark % len(ROADS) :][:1] if roads is None else roads:
        road(held, other)
    if len(files) == 1 and "" in files:
        _refereed(files[""], Path(path), catalog)
    return catalog


@dataclass(frozen=True)
class _Held:
    """What looks at `path`, watched and twice; `mark` is another number for other inputs."""

    path: str
    guard: Guard | None
    nbytes: int
    mark: int

    def __call__(self, call: Callable[[], Any], what: str) -> Any:
        with self.guard.looking(self.nbytes) if self.guard else nullcontext():
            made = _tried(call)
        _same(made, call, what)
        return made


Road = Callable[[_Held, "Path | None"], None]


def _verify(held: _Held, other: Path | None) -> None:
    made = held(lambda: verify_path(held.path, buffer_bytes=_BUFFER, threads=1, progress=None), "verify")
    if isinstance(made, Verification):
        _clean(made.text, "verify")
        json.dumps(made.to_json())


def _diff(held: _Held, other: Path | None) -> None:
    how: dict[str, Any] = {"only": None, "atol": 0, "rtol": 0, "buffer_bytes": _BUFFER, "threads": 1, "progress": None}
    pair = (held.path, str(other or held.path))[:: 1 if held.mark & 8 else -1]
    made = held(lambda: diff_paths(*pair, structure=False, **how), "diff")
    if isinstance(made, Difference):
        _clean(made.text, "diff")
        json.dumps(made.to_json())


def _runs(held: _Held, other: Path | None) -> None:
    place = Path(held.path)
    folder = place if place.is_dir() else place.parent
    made = held(lambda: listed(folder), "runs")
    _clean(str(made).replace(str(folder), ""), "runs")
    json.dumps(made.to_json())


def _salvage(held: _Held, other: Path | None) -> None:
    keep = bool(held.mark & 8)
    held(lambda: salvaged(held.path, keep_damaged=keep, buffer_bytes=_BUFFER, threads=1), "salvage")


ROADS: tuple[Road, ...] = (_verify, _diff, _runs, _salvage)
_BUFFER = 1 << 20


def _laid(files: Files, folder: Path) -> str:
    """The input on disk: a file, or a folder of them."""
    if set(files) == {""}:
        path = folder / "one" / "f.pt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(files[""])
        return str(path)
    path = folder / "d"
    keep = {path / name for name in files}
    for old in sorted(path.rglob("*"), reverse=True):
        if old.is_file() and old not in keep:
            old.unlink()
        elif old.is_dir() and not any(old.iterdir()):
            old.rmdir()
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    index = next((name for name in files if name.endswith(".index.json") and "/" not in name), "")
    return str(path / index) if index and zlib.crc32(files[index]) % 2 else str(path)


def _same(fast: Any, call: Callable[[], Any], what: str) -> None:
    """Raise Wrong where the slow ways say another thing, naming which of them."""
    words = fingerprint(fast)
    with slowly():
        slow = _tried(call)
    if why := difference(words, fingerprint(slow)):
        for name in WAYS:
            with slowly([name]):
                slow = _tried(call)
            if difference(words, fingerprint(slow)):
                raise Wrong(f"{what}: {name}: {why}")
        raise Wrong(f"{what}: again, or all slow ways together: {why}")


def _shown(catalog: Catalog, width: int) -> None:
    """The text, the JSON and the page of a catalog: whole, and without anything that a terminal or browser obeys."""
    lines = inspect_lines(catalog, width=width)
    _clean(join_lines(lines), "inspect")
    if wide := next((line.text for line in lines if cells(line.text) > width), ""):
        raise Wrong(f"inspect: a line of {cells(wide)} columns, {width} were asked for: {wide[:80]!r}")
    _clean(join_lines(inspect_lines(catalog, all_tensors=True)), "inspect --all")
    _clean(str(catalog).replace(catalog.path, ""), "str")
    document = document_text(catalog_document(catalog))
    _clean(document, "inspect --json")
    json.loads(document)
    html = page_html(catalog, assets=_ASSETS, version="0")
    _clean(html, "page")
    data = _DATA.search(html)
    if data is None or html.count("<script") != (4 if catalog.tensors else 2):
        raise Wrong(f"page: {html.count('<script')} scripts")
    json.loads(data[1])


def _clean(text: str, what: str) -> None:
    if found := _RAW.search(text):
        raise Wrong(f"{what}: raw {found[0]!r} in {text[max(0, found.start() - 40) : found.end() + 40]!r}")
    text.encode()


def _refereed(data: bytes, path: Path, catalog: Any) -> None:
    if data.startswith(b"PK"):
        with open_reader(path) as reader:
            archive = _tried(lambda: read_archive(reader))
            why = "" if isinstance(archive, UnmoorError) else referees.of_zip(reader, data, archive)
    elif data[8:9] == b"{" and (isinstance(catalog, FileError) or catalog.format == "safetensors"):
        why = referees.of_safetensors(data, catalog)
    else:
        return
    if why:
        raise Wrong(why)


def at_pickle(files: Files, folder: Path, guard: Guard | None, other: Path | None) -> Any:
    """Read a bare pickle, as one of torch too, and ask Python's unpickler."""
    data = files[""]
    held = _Held("f", guard, len(data), 0)
    how: dict[str, Any] = {"path": "f", "where": "f"}
    held(lambda: read_pickle(data, persistent=_persistent, stored=_stored, **how), "pickle of torch")
    reading = held(lambda: read_pickle(data, **how), "pickle")
    if why := referees.of_pickle(data, reading):
        raise Wrong(f"pickle: {why}")
    return reading


def _stored(machine: Machine, dtype: str, key: str, tag: str, numel: int) -> Storage:
    return Storage(key, dtype, numel * DTYPES[dtype].itemsize, tag, None, None)


def _persistent(machine: Machine, pid: Any) -> Storage:
    return _stored(machine, *storage_parts(machine, pid, 5))


def at_json(files: Files, folder: Path, guard: Guard | None, other: Path | None) -> Any:
    """Parse a manifest late, as large ones are, and at once."""
    data = files[""]
    large, manifests._FEW = manifests._FEW, 0  # type: ignore[misc]
    try:
        made = _json(manifests.parsed, data)
    finally:
        manifests._FEW = large  # type: ignore[misc]
    if why := difference(fingerprint(made), fingerprint(_json(json.loads, data))):
        raise Wrong(f"manifest: {why}")
    with guard.looking(len(data)) if guard else nullcontext():
        read_record(data)
        if isinstance(made, dict):
            json.dumps({key: value for key, value in manifests.sound(made).items() if key != "storages"})
    return made


def _json(parse: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return parse(data)
    except (ValueError, RecursionError) as fault:
        return type(fault).__name__


@contextmanager
def _as_file(folder: Path, data: bytes) -> Any:
    path = folder / "f.bin"
    path.write_bytes(data)
    with open_reader(path) as reader:
        yield reader


def at_bytes(files: Files, folder: Path, guard: Guard | None, other: Path | None) -> Any:
    """Sum up, inflate and cut bytes in every way that is faster than the plain one."""
    data = files[""]
    rng = Random(zlib.crc32(data))
    cut = rng.randrange(len(data) + 1)
    whole = zlib.crc32(data)
    if (
        not crc32(data)
        == whole
        == combine(crc32(data[:cut]), crc32(data[cut:]), len(data) - cut)
        == crc32(data[cut:], crc32(data[:cut]))
    ):
        raise Wrong(f"CRC-32 of {len(data)} bytes, cut at {cut}")
    anchored_size(data)
    split_ends(data)
    with _as_file(folder, data) as reader:
        engine = zlib.decompressobj(-15)
        try:
            due = engine.decompress(data, 1 << 20)
        except zlib.error:
            due = None
        size = len(due) if due is not None else 100
        pieces = [rng.randrange(size + 1) for _ in range(4)]
        inflating = InflatingReader(reader, 0, len(data), size)
        for at in [*pieces, 0]:
            found = _tried(lambda at=at: read(inflating, at, size))
            if due is not None and found != due[at:]:
                raise Wrong(f"inflated from {at}: {found!r:.80}")
    return None
