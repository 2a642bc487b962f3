"""A file is told by its content: what it is where it is no checkpoint, and where its name says something else."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
import socket
import tarfile
from typing import Any

import numpy as np
import pytest
import torch

from tests.describe.makers import outcome, save, zip_of
from tests.hostile.make_hostile import archive, entry, tensors
from unmoor.describe.file import describe_file
from unmoor.errors import CorruptFile, HostileFile, NotACheckpoint, UnsupportedFile


def tar(name: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return out.getvalue()


def npy(value: Any, **arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays) if arrays else np.save(out, value)
    return out.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12345\n"
INDEX = json.dumps({"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}).encode()
NOT_A_CHECKPOINT = {
    "nothing": (b"", ["is empty (0 bytes)"]),
    "web page": (b"<!DOCTYPE html>\n<html><head><title>Quota exceeded</title></head></html>\n",
                 ["HTML page", 'title "Quota exceeded"']),
    "web page without a title": (b"\n <HTML><body>no</body></HTML>" + b" " * 20, ["HTML page"]),
    "JSON": (b'{"message": "Not Found"}', ['JSON text {"message": "Not Found"}']),
    "index": (INDEX, ["JSON index", "model-00001-of-00002.safetensors"]),
    "text": (b"Access to this resource is denied\n", ['plain text "Access to this resource is denied"']),
    "text beyond ASCII": ("Zugriff verweigert: Schlüssel fehlt\n".encode(), ["plain text", "Schlüssel"]),
    "LFS": (LFS, ["Git LFS pointer", "size 12345", "git lfs pull"]),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(30), ["PNG image"]),
    "program": (b"\x7fELF" + bytes(30), ["ELF"]),
    "zeros": (bytes(5000), ["zeros"]),
    "noise": (bytes(range(200, 250)), ["c8 c9 ca"]),
    "short": (b"abc", ["3 bytes"]),
}  # fmt: skip
UNSUPPORTED = {
    "gzip": (gzip.compress(b"x" * 50), ["gzip", "Unpack"]),
    "xz": (lzma.compress(b"x" * 50), ["xz", "Unpack"]),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(20), ["zstd"]),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(20), ["7-Zip"]),
    "tar": (tar("model.pt"), ["tar archive", "Unpack"]),
    "npy": (npy(np.arange(3)), ["numpy .npy"]),
    "npz": (npy(None, a=np.arange(3)), ["numpy .npz", "a.npy"]),
    "first TorchScript": (bytes(archive([("net/model.json", b"{}")])), ["TorchScript archive of torch 1.0 to 1.3"]),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(20), ["HDF5"]),
    "ONNX": (b"\x08\x07\x12\x07pytorch" + bytes(20), ["ONNX"]),
    "GGUF": (b"GGUF" + bytes(20), ["GGUF"]),
    "pickle": (pickle.dumps({"lr": 1, "b": 2}), ["bare pickle (protocol 4)", "lr, b"]),
    "pickle of an object": (pickle.dumps(np.arange(3), 2), ["bare pickle (protocol 2)", "NumpyArray"]),
    "pickle of tensors": (pickle.dumps({"w": torch.ones(2)}), ["bare pickle", "torch.storage._load_from_bytes"]),
    "pickle of protocol 0": (pickle.dumps(["a", 1.5], 0), ["bare pickle (protocol 0)", "a list"]),
}


@pytest.mark.parametrize("name", NOT_A_CHECKPOINT)
def test_what_is_no_checkpoint_is_named(name, tmp_path):
    """Text, pages, pointers and pictures under a checkpoint's name are told as what they are, words quoted."""
    path = tmp_path / "vgg16.pth"
    data, words = NOT_A_CHECKPOINT[name]
    path.write_bytes(data)
    error = outcome(path)
    assert type(error) is NotACheckpoint
    assert str(error).startswith(str(path))
    assert all(word in str(error) for word in words), str(error)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_sound_files_of_other_kinds_are_named(name, tmp_path):
    """Files of other programs, and packed files, are told as what they are with what to do."""
    path = tmp_path / "model.pt"
    data, words = UNSUPPORTED[name]
    path.write_bytes(data)
    error = outcome(path)
    assert type(error) is UnsupportedFile
    assert all(word in str(error) for word in words), str(error)


@pytest.mark.parametrize("suffix", [".bin", ".ckpt", ".pt", ".pth"])
def test_safetensors_under_another_name_are_read(suffix, tmp_path):
    """The content decides; a finding tells that the name misleads."""
    path = tmp_path / f"pytorch_model{suffix}"
    path.write_bytes(tensors({"0.weight": entry(0, 12, [3])}, bytes(12)))
    catalog = describe_file(path)
    assert catalog.format == "safetensors"
    (finding,) = [f for f in catalog.findings if f.code == "misleading-name"]
    assert finding.message == f"safetensors data under a {suffix} name"


def test_a_torch_zip_named_safetensors_is_read(tmp_path):
    """The reverse: a torch zip under a .safetensors name."""
    catalog = describe_file(save({"w": torch.ones(1)}, tmp_path / "model.safetensors"))
    assert catalog.format == "torch-zip"
    assert "misleading-name" in {finding.code for finding in catalog.findings}


def test_a_fitting_name_earns_no_finding(tmp_path):
    """A .pt file of torch's is what it says."""
    assert not describe_file(save({"w": torch.ones(1)}, tmp_path / "model.pt")).findings


def test_a_shard_of_a_folder_is_told(tmp_path):
    """One shard file of a torch.distributed.checkpoint folder is told to be opened by its folder."""
    single = save(torch.ones(2), tmp_path / "__0_0.distcp")
    assert "shard-of-folder" in {finding.code for finding in describe_file(single).findings}
    single.write_bytes(single.read_bytes() * 3)
    error = outcome(single)
    assert type(error) is UnsupportedFile
    assert "one shard file" in str(error)


def test_other_zips_are_told_by_what_they_hold(tmp_path):
    """A zip without a data.pkl is told with the names of its records."""
    error = outcome(zip_of({"word/document.xml": b"<x/>"}, tmp_path / "thesis.pt"))
    assert type(error) is UnsupportedFile
    assert "word/document.xml" in str(error)


def test_folders_sockets_and_missing_files_are_named(tmp_path):
    """What is no regular file is told before it is opened; a missing file with its neighbours."""
    (tmp_path / "near.pt").write_bytes(b"x")
    for path, word in ((tmp_path, "a folder"), (tmp_path / "gone.pt", "near.pt")):
        error = outcome(path)
        assert type(error) is NotACheckpoint
        assert word in str(error)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system here")
def test_a_pipe_is_not_waited_for(tmp_path, monkeypatch):
    """A pipe or a socket would block whoever reads it; it is refused by its kind."""
    os.mkfifo(tmp_path / "pipe.pt")
    assert "a pipe" in str(outcome(tmp_path / "pipe.pt"))
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.pt")
        assert "a socket" in str(outcome(tmp_path / "s.pt"))


def test_messages_never_advise_to_switch_safety_off(tmp_path):
    """No message of any refusal advises weights_only=False."""
    for data, _ in (*NOT_A_CHECKPOINT.values(), *UNSUPPORTED.values()):
        path = tmp_path / "f.pt"
        path.write_bytes(data)
        assert "weights_only" not in str(outcome(path))


@pytest.mark.parametrize("length", [0x80, 0x280, 0x580])
def test_a_header_length_that_reads_as_a_pickle_is_a_length(length, tmp_path):
    """A safetensors header of 128 bytes begins the file with the mark of a pickle."""
    text = json.dumps({"w": entry(0, 12, [3])}).encode().ljust(length)
    path = tmp_path / "f.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + text + bytes(12))
    assert describe_file(path).format == "safetensors"


@pytest.mark.parametrize(("length", "error"), [(1 << 31, HostileFile), (5000, CorruptFile), (2, CorruptFile)])
def test_a_safetensors_head_is_known_by_its_first_nine_bytes(length, error, tmp_path):
    """Eight bytes of length and a brace are safetensors, sound or not."""
    path = tmp_path / "f.bin"
    path.write_bytes(length.to_bytes(8, "little") + b'{"a":1}')
    assert type(outcome(path)) is error
