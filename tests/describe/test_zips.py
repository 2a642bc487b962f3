"""The ZIP container: spans and checksums as they stand, every contradiction named, ZIP64 beyond four gibibytes."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from torch import serialization

from tests.describe.makers import outcome, repacked, save, zip_of
from tests.describe.sparse_zip import SparseZip, write_sparse
from tests.hostile.make_hostile import DATA, Key, W, archive, checkpoint, dump, tensor
from unmoor.describe.file import describe_file
from unmoor.describe.zips import read_archive, record_bytes
from unmoor.errors import CorruptFile, HostileFile
from unmoor.filing import SeekReader, open_reader
from unmoor.values.nodes import deflated


def test_records_lie_where_pythons_reader_finds_them(tmp_path):
    """Names, spans, sizes and checksums equal those of the standard library's reader."""
    path = save({"w": torch.arange(5.0), "b": torch.ones(2), "e": torch.empty(0)}, tmp_path / "f.pt")
    data = path.read_bytes()
    with open_reader(path) as reader, zipfile.ZipFile(path) as python:
        records = read_archive(reader).records
        assert list(records) == python.namelist()
        for info in python.infolist():
            record = records[info.filename]
            assert (record.nbytes, record.crc32, record.header) == (info.file_size, info.CRC, info.header_offset)
            assert data[record.offset : record.offset + record.nbytes] == python.read(info)
            assert record_bytes(reader, record, 1 << 20) == python.read(info)


def test_the_portable_reader_reads_the_same(tmp_path):
    """Without preadv the archive is the same."""
    path = save({"w": torch.arange(5.0)}, tmp_path / "f.pt")
    with open_reader(path, portable=True) as seeking, open_reader(path) as vector:
        assert isinstance(seeking, SeekReader)
        assert read_archive(seeking) == read_archive(vector)


def test_storages_bear_the_checksum_of_their_record(tmp_path):
    """The CRC-32 of a storage is that of its bytes."""
    path = save({"w": torch.arange(5.0)}, tmp_path / "f.pt")
    (storage,) = describe_file(path).storages
    assert storage.crc32 == zlib.crc32(path.read_bytes()[storage.span.offset : storage.span.end])


def test_files_written_without_checksums_are_told(tmp_path):
    """A zero stands torch computed no CRC: the storage has none, and a finding says so."""
    serialization.set_crc32_options(compute_crc32=False)
    try:
        path = save({"w": torch.arange(5.0)}, tmp_path / "f.pt")
    finally:
        serialization.set_crc32_options(compute_crc32=True)
    catalog = describe_file(path)
    assert catalog.storages[0].crc32 is None
    assert "no-checksums" in {finding.code for finding in catalog.findings}


def test_skeletons_without_data_have_no_checksum(tmp_path):
    """Under torch's skip_data the records are holes without a CRC."""
    with serialization.skip_data():
        path = save({"w": torch.arange(5.0)}, tmp_path / "f.pt")
    assert describe_file(path).storages[0].crc32 is None


def test_compressed_records_lie_in_a_file_of_their_own(tmp_path):
    """A record that another program compressed is described: where it is inflated its bytes lie as they are."""
    source = save({"w": torch.zeros(500)}, tmp_path / "f.pt")
    packed = repacked(source, tmp_path / "g.pt", lambda _, data: data, compression=zipfile.ZIP_DEFLATED)
    catalog = describe_file(packed)
    assert catalog.to_json()["tensors"][0]["span"] is None
    name, offset, stored, nbytes = deflated(catalog.tensors[0].span.file)
    assert (name, nbytes, catalog.tensors[0].span.offset) == ("", 2000, 0)
    assert zlib.decompress(packed.read_bytes()[offset : offset + stored], -15) == bytes(2000)
    assert catalog.storages[0].nbytes == 2000
    assert catalog.facts["data_pkl"] is None
    assert "compressed-record" in {finding.code for finding in catalog.findings}


def test_all_faults_of_an_archive_are_told_together(tmp_path):
    """One error names every record that contradicts itself."""
    raw = archive([("a/data.pkl", dump({"w": W})), ("a/data/0", DATA), ("a/data/1", DATA)])
    for name in (b"a/data/0", b"a/data/1"):
        at = raw.find(name)
        raw[at : at + 8] = b"x/data/x"
    path = tmp_path / "f.pt"
    path.write_bytes(raw)
    error = outcome(path)
    assert type(error) is CorruptFile
    assert [line.partition(":")[0] for line in error.details] == ["a/data/0", "a/data/1"]


def test_all_tensors_without_data_are_named(tmp_path):
    """Missing records and short ones: one error, every tensor with its path and its reason."""
    tree = {"m": {name: tensor(Key(name, 3), (3,), (1,)) for name in "abc"}}
    path = zip_of({"x/data.pkl": dump(tree), "x/data/a": DATA, "x/data/b": DATA[:4]}, tmp_path / "f.pt")
    error = outcome(path)
    assert type(error) is CorruptFile
    assert error.details == (
        "m.b: its record data/b has 4 bytes, the pickle says 12",
        "m.c: its record data/c is missing from the archive",
        "the other tensor is whole",
    )


def test_a_damaged_pickle_is_known_by_its_checksum(tmp_path):
    """The pickle of a file is read whole, and held against its CRC before it is believed."""
    raw = checkpoint({"some_name": W})
    at = raw.find(b"some_name")
    raw[at] ^= 1
    path = tmp_path / "f.pt"
    path.write_bytes(raw)
    error = outcome(path)
    assert "CRC mismatch in a/data.pkl" in str(error)


def test_a_truncated_zip_says_how_long_it_is(tmp_path):
    """The end of a zip is its table of contents: without it nothing is listed, and the message says why."""
    path = save({"w": torch.ones(3)}, tmp_path / "f.pt")
    path.write_bytes(path.read_bytes()[:700])
    assert "truncated zip: no end record, 700 bytes" in str(outcome(path))


@pytest.mark.parametrize("tensors", [1, 5])
def test_archives_beyond_four_gibibytes_are_read(tensors, tmp_path):
    """Offsets and sizes in their ZIP64 form; the holes take no room."""
    path = tmp_path / "f.pt"
    write_sparse(path, tensors, 5 << 30)
    catalog = describe_file(path)
    assert catalog.size > tensors * (5 << 30)
    assert [entry.nbytes for entry in catalog.tensors] == [5 << 30] * tensors
    assert all(entry.span.offset % 64 == 0 for entry in catalog.tensors)


def test_torch_reads_what_the_sparse_writer_writes(tmp_path):
    """The maker of the large files is held against torch itself on a small one."""
    path = tmp_path / "f.pt"
    write_sparse(path, 300, 4096)
    loaded = torch.load(path)
    catalog = describe_file(path)
    assert [entry.path for entry in catalog.tensors] == list(loaded)
    assert {entry.shape for entry in catalog.tensors} == {tuple(value.shape) for value in loaded.values()}


def test_the_manifest_is_read(tmp_path):
    """The JSON record that unmoor.save adds is on the catalog, and marks who wrote the file."""
    path = zip_of({"x/data.pkl": dump({"w": 1}), "x/unmoor/manifest.json": b'{"format": 1}'}, tmp_path / "f.pt")
    catalog = describe_file(path)
    assert (catalog.manifest, catalog.dialect) == ({"format": 1}, "unmoor")
    for text in (b"[]", b"\xff", b"{"):
        broken = zip_of({"x/data.pkl": dump(1), "x/unmoor/manifest.json": text}, tmp_path / "g.pt")
        assert type(outcome(broken)) is CorruptFile


def test_files_without_a_prefix_or_with_another_order_are_read(tmp_path):
    """Zips that people packed again: no folder inside, records in another order."""
    bare = zip_of({"data.pkl": dump({"w": W}), "data/0": DATA}, tmp_path / "f.pt")
    assert describe_file(bare).tensors[0].span is not None
    other = zip_of({"__MACOSX/x": b"", "run/data/0": DATA, "run/data.pkl": dump({"w": W})}, tmp_path / "g.pt")
    catalog = describe_file(other)
    assert (catalog.facts["archive"], catalog.tensors[0].nbytes) == ("run", 12)


def test_what_a_compressed_pickle_may_take_is_bounded(tmp_path, monkeypatch):
    """Law 1: a pickle that inflates to more than a limit is refused by what it declares, and by what comes."""
    path = zip_of({"x/data.pkl": dump({"w": "a" * 100_000})}, tmp_path / "f.pt", compression=zipfile.ZIP_DEFLATED)
    with open_reader(path) as reader:
        record = read_archive(reader).records["x/data.pkl"]
        with pytest.raises(HostileFile):
            record_bytes(reader, record, 1000)
        with pytest.raises(CorruptFile, match="does not inflate"):
            record_bytes(reader, record._replace(nbytes=50_000), 1 << 20)


def test_facts_tell_of_the_container(tmp_path):
    """Archive name, protocol, byte order, number of records, and where the pickle lies."""
    path = save({"w": torch.ones(1)}, tmp_path / "f.pt")
    facts = describe_file(path).facts
    offset, nbytes = facts["data_pkl"]
    assert path.read_bytes()[offset : offset + nbytes].startswith(b"\x80\x02")
    assert (facts["archive"], facts["protocol"], facts["byteorder"]) == ("f", 2, "little")
    json.dumps(facts)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_archives_are_listed_without_their_code(tmp_path):
    """Tensors of a TorchScript archive are named by its two pickles; its code is not looked at."""
    module = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 3)))
    torch.jit.save(module, tmp_path / "f.pt")
    catalog = describe_file(tmp_path / "f.pt")
    assert catalog.format == "torchscript"
    assert {entry.path for entry in catalog.tensors} == {"data.0.weight", "data.0.bias"}
    assert [part.role for part in catalog.parts] == ["model", "extra"]
    assert not catalog.findings


def test_the_end_record_may_have_a_comment(tmp_path):
    """A zip comment is part of the archive; what follows it is not."""
    path = Path(tmp_path / "f.pt")
    path.write_bytes(checkpoint({"w": W}))
    with zipfile.ZipFile(path, "a") as file:
        file.comment = b"kept"
    assert not [f for f in describe_file(path).findings if f.code == "trailing-bytes"]
    path.write_bytes(path.read_bytes() + b"!")
    assert [f.code for f in describe_file(path).findings if f.severity == "warning"] == ["trailing-bytes"]
    path.write_bytes(path.read_bytes()[:-3])
    assert "announces 2 bytes more" in str(outcome(path))


def test_a_sparse_archive_can_be_written_by_records(tmp_path):
    """The writer takes bytes or holes."""
    writer = SparseZip(tmp_path / "f.zip")
    writer.add("a/x", b"abc")
    writer.add("a/y", 1 << 20)
    writer.close()
    with zipfile.ZipFile(tmp_path / "f.zip") as file:
        assert file.read("a/x") == b"abc"
        assert struct.unpack("<I", file.open("a/y").read(4)) == (0,)


WIDE = {
    "as torch writes it": lambda wide: wide,
    "behind another field": lambda wide: struct.pack("<HH2s", 7, 2, b"ab") + wide,
    "before another field": lambda wide: wide + struct.pack("<HH2s", 7, 2, b"ab"),
    "with a disk number": lambda wide: struct.pack("<HH", 1, 28) + wide[4:] + b"\0\0\0\0",
}
NARROW = {
    "of another kind": lambda wide: struct.pack("<HH", 7, 24) + wide[4:],
    "longer than it is": lambda wide: struct.pack("<HH", 1, 25) + wide[4:],
    "with a number less": lambda wide: struct.pack("<HH", 1, 16) + wide[4:],
    "left out": lambda wide: b"",
}


def _with_extra(path: Path, change) -> Path:
    """A sparse archive of one tensor, the ZIP64 field of whose entry was changed."""
    archive = SparseZip(path)
    archive.add("archive/data/0", 64)
    entry, name = archive.central[-1], len("archive/data/0")
    wide = change(entry[46 + name :])
    archive.central[-1] = entry[:30] + struct.pack("<H", len(wide)) + entry[32 : 46 + name] + wide
    archive.close()
    return path


@pytest.mark.parametrize("form", [*WIDE, *NARROW])
def test_zip64_numbers_are_found_in_every_form(form, tmp_path):
    """Alone, beside other fields, or with more than is wanted; nowhere else."""
    path = _with_extra(tmp_path / "f.pt", {**WIDE, **NARROW}[form])
    with open_reader(path) as reader:
        if form in WIDE:
            (record,) = read_archive(reader).records.values()
            assert (record.nbytes, record.stored, record.header, record.offset % 64) == (64, 64, 0, 0)
        else:
            with pytest.raises(CorruptFile, match="damaged zip"):
                read_archive(reader)
