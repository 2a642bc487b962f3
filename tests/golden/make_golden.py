"""Writes the golden files of this folder: tiny real files of torch, and what describe says of each beside it.

python -m tests.golden.make_golden             write what is missing, with the torch that is installed
python -m tests.golden.make_golden --expected  write the expected descriptions again, after a change of their form

The files stay for ever: a newer torch adds files under its own names and changes none.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import struct
import sys
import warnings
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn, serialization
from torch.optim import lr_scheduler

from tests.golden import old
from unmoor.describe.file import describe_file
from unmoor.values.dtypes import DTYPES

HERE = Path(__file__).parent


def saved(tree: Any, *, tag: str = "", crc: bool = True, **options: Any) -> bytes:
    """What torch.save writes, with a device tag of choice."""
    real, out = serialization.location_tag, io.BytesIO()
    serialization.location_tag = (lambda storage: tag) if tag else real
    serialization.set_crc32_options(compute_crc32=crc)
    try:
        torch.save(tree, out, **options)
    finally:
        serialization.location_tag = real
        serialization.set_crc32_options(compute_crc32=True)
    return out.getvalue()


def legacy(tree: Any, **options: Any) -> bytes:
    return saved(tree, _use_new_zipfile_serialization=False, **options)


def training() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 30)
    model(torch.ones(5, 3)).square().mean().backward()
    optimizer.step()
    scheduler.step()
    scaler = {
        "scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 1,
    }
    return {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
        "scaler": scaler, "epoch": 3, "best": 0.25,
    }  # fmt: skip


def generators() -> dict[str, Any]:
    return {
        "torch": torch.Generator().manual_seed(1).get_state(), "cuda": [torch.zeros(16, dtype=torch.uint8)],
        "numpy": np.random.RandomState(0).get_state(), "python": random.Random(0).getstate(),
    }  # fmt: skip


def dtypes(*, named: bool) -> dict[str, torch.Tensor]:
    """One tensor of each dtype; those without a storage class of their own apart, because legacy streams lack them."""
    rows = [row for row in DTYPES.values() if row.family != "quantized" and bool(row.storage) == named]
    return {row.name: torch.ones(2 * row.itemsize, dtype=torch.uint8).view(getattr(torch, row.name)) for row in rows}


def layouts(*, nested: bool) -> dict[str, Any]:
    """Every layout but strided; torch itself cannot load a nested tensor from a legacy stream."""
    dense = torch.tensor([[1.0, 0.0, 2.0, 0.0]] * 2)
    blocked = {
        name: dense.to_sparse(layout=getattr(torch, f"sparse_{name}"), blocksize=(1, 2)) for name in ("bsr", "bsc")
    }
    return {
        "coo": dense.to_sparse(), "csr": dense.to_sparse_csr(), "csc": dense.to_sparse_csc(), **blocked,
        **({"nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])} if nested else {}),
        "meta": torch.empty(2, 3, device="meta"), "conj": torch.tensor([1 + 2j]).conj(),
        "neg": torch.tensor([1 + 2j]).conj().imag,
    }  # fmt: skip


def quantized() -> dict[str, Any]:
    values, scales = torch.arange(4.0).reshape(2, 2), torch.tensor([0.5, 0.25], dtype=torch.float64)
    return {
        "tensor": torch.quantize_per_tensor(values, 0.5, 1, torch.quint8),
        "channel": torch.quantize_per_channel(values, scales, torch.tensor([0, 1]), 0, torch.qint8),
    }


def views() -> dict[str, Any]:
    base, weight = torch.arange(24.0).reshape(4, 6), nn.Parameter(torch.ones(2, 3))
    return {
        "tied": {"embed.weight": weight, "head.weight": weight},
        "views": [base, base.t(), base[1:3, ::2], base[0, 0], base[:0]],
        "large": torch.arange(5000.0)[:10],
    }


def values() -> dict[str, Any]:
    metadata = OrderedDict({"a.weight": torch.ones(1)})
    metadata._metadata = OrderedDict({"": {"version": 1}})
    return {
        "model": metadata, "args": argparse.Namespace(lr=1e-3, hidden=[4, 8], resume=None),
        "rank1": np.float32(0.5), "loss": np.float64(0.125), "done": np.bool_(True), "step": np.int64(7),
        "hist": np.arange(3.0), "words": np.array(["a", None], dtype=object), "name": np.str_("run"),
        "day": np.datetime64("2024-01-02"), "counter": Counter("aab"), "dd": defaultdict(list, a=[1]),
        "size": torch.Size([1, 2]), "device": torch.device("cuda", 1), "dtype": torch.bfloat16, "set": {1},
        "slice": slice(1, 2), "bytes": b"\xff\x00", "complex": 1 + 2j, "big": 1 << 100,
    }  # fmt: skip


def tensors_file() -> bytes:
    path = HERE / "made.tmp"
    save_file({"b.weight": torch.ones(2, 3), "a.bias": torch.ones(2, dtype=torch.bfloat16)}, path, {"format": "pt"})
    data = path.read_bytes()
    path.unlink()
    return data


def script() -> bytes:
    out = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Sequential(nn.Linear(2, 3))), out)
    return out.getvalue()


def old_state() -> dict[bytes, torch.Tensor]:
    """Tensors of an old model: a matrix, two views of it, and one of each dtype that torch had."""
    base = torch.arange(12.0).reshape(3, 4)
    dtypes = {b"double": torch.float64, b"half": torch.float16, b"char": torch.int8, b"long": torch.int64,
              b"int": torch.int32, b"short": torch.int16, b"byte": torch.uint8}  # fmt: skip
    return {
        b"weight": base, b"same": base, b"part": base[1:, ::2],
        **{name: torch.arange(5).to(dtype) for name, dtype in dtypes.items()},
    }  # fmt: skip


def old_tar() -> bytes:
    """Before torch 0.1.10: tensors by number, one of them on a window into a storage."""
    tar = old.Tar()
    state = old_state()
    model = {name: tar.tensor(tensor) for name, tensor in state.items()}
    model[b"window"] = tar.tensor(state[b"weight"].reshape(-1)[4:8], window=(4, 8))
    momentum = {b"momentum_buffer": tar.tensor(torch.full((3, 4), 0.5))}
    optimizer = {
        b"state": {old.Long(140_000_000_000_001): momentum},
        b"param_groups": [{b"lr": 0.1, b"momentum": 0.9, b"params": [old.Long(140_000_000_000_001)]}],
    }
    return tar.written({b"model": old.ordered(model), b"optimizer": optimizer, b"epoch": 3})


def old_python2(*, little: bool = True) -> bytes:
    """As torch 0.3 on Python 2: its str as bytes, unicode keys, longs, an object of copy_reg, numpy of Python 2."""
    stream = old.Stream("cuda:1")
    state = {name: stream.tensor(tensor) for name, tensor in old_state().items()}
    window = torch.arange(8.0)
    root = stream.pid(window, view=(b"140000000000999", 2, 3))
    dtype = old.Call(old.Name("numpy", "dtype"), (b"f8", 0, 1), (3, b"<", None, None, None, -1, -1, 0))
    empty = old.Call(old.Name("numpy.core.multiarray", "_reconstruct"), (old.Name("numpy", "ndarray"), (0,), b"b"),
                     (1, (2,), dtype, False, b"\0" * 8 + struct.pack("<d", 0.5)))  # fmt: skip
    bases = (old.Name("argparse", "Namespace"), old.Name("__builtin__", "object"), None)
    args = old.Call(old.Name("copy_reg", "_reconstructor"), bases, {b"lr": 0.5})
    view = old.Call(old.Name("torch._utils", "_rebuild_tensor"), (root, 1, (2,), (1,)))
    return stream.written(
        {
            "model": old.ordered(state), b"view": view, b"step": old.Long(1 << 40), b"caf\xc3\xa9": "caf\u00e9",
            b"latin": b"caf\xe9", b"loss": empty, b"args": args,
            b"seen": old.Call(old.Name("__builtin__", "set"), ([1, 2],)),
        }, little=little,
    )  # fmt: skip


def old_zip(version: bytes, name: str) -> bytes:
    """As torch 1.4 (by a switch) to 1.6: no byte order, no alignment, no id of the data."""
    stream = old.Stream()
    state = {k.decode(): stream.tensor(t, legacy=False, version=2) for k, t in old_state().items()}
    return stream.zipped({"model": old.ordered(state), "epoch": 3}, name, [("version", version)])


def big_endian() -> bytes:
    """A zip of a big-endian machine: every number of more than a byte turned round."""
    stream = old.Stream()
    named = {**dtypes(named=True), "complex": torch.tensor([1 + 2j, 3 - 4j]), "true": torch.tensor([True, False])}
    tensors = {name: stream.tensor(tensor, legacy=False, version=2) for name, tensor in named.items()}
    loose = {name: torch.arange(3 * DTYPES[name].itemsize, dtype=torch.uint8).view(getattr(torch, name))
             for name in ("uint16", "uint32", "uint64", "complex32")}  # fmt: skip
    for name, tensor in loose.items():
        tensors[name] = stream.untyped(tensor)
    return stream.zipped({"model": tensors}, "archive", [("version", b"3\n"), ("byteorder", b"big")], "big")


MAKERS: dict[str, Callable[[], bytes]] = {
    "training.pt": lambda: saved(training()),
    "training_legacy.pt": lambda: legacy(training()),
    "training_cuda7.pt": lambda: saved(training(), tag="cuda:7"),
    "training_cuda7_legacy.pt": lambda: legacy(training(), tag="cuda:7"),
    "protocol_5.pt": lambda: saved(values(), pickle_protocol=5),
    "values.pt": lambda: saved(values()),
    "values_legacy.pt": lambda: legacy(values()),
    "generators.pt": lambda: saved(generators()),
    "dtypes.pt": lambda: saved({**dtypes(named=True), **dtypes(named=False)}),
    "dtypes_legacy.pt": lambda: legacy(dtypes(named=True)),
    "layouts.pt": lambda: saved(layouts(nested=True)),
    "layouts_legacy.pt": lambda: legacy(layouts(nested=False)),
    "quantized.pt": lambda: saved(quantized()),
    "quantized_legacy.pt": lambda: legacy(quantized()),
    "views.pt": lambda: saved(views()),
    "views_legacy.pt": lambda: legacy(views()),
    "no_crc.pt": lambda: saved({"w": torch.ones(3)}, crc=False),
    "object.pt": lambda: saved(nn.Sequential(nn.Linear(2, 3))),
    "model.safetensors": tensors_file,
    "script.pt": script,
    **{f"protocol_{p}_legacy.pt": lambda p=p: legacy(values(), pickle_protocol=p) for p in (1, 3, 4, 5)},
}

BY_HAND: dict[str, Callable[[], bytes]] = {
    "tar-torch0.1.9.pt": old_tar,
    "python2-torch0.3.1.pt": old_python2,
    "big_endian_legacy-torch0.3.1.pt": lambda: old_python2(little=False),
    "zip-torch1.4.0.pt": lambda: old_zip(b"2\n", "archive"),
    "zip-torch1.6.0.pt": lambda: old_zip(b"3\n", "checkpoint"),
    "big_endian-torch1.13.1.pt": big_endian,
}
"""Files of writers that are gone, put together by tests/golden/old.py: each bears the torch that wrote such."""


def description(path: Path) -> dict[str, Any]:
    """What describe says of a golden file, without where it lies."""
    said = describe_file(path).to_json()
    return json.loads(json.dumps({**said, "path": path.name}))


def main() -> None:
    warnings.simplefilter("ignore")
    version = torch.__version__.partition("+")[0]
    for name, make in MAKERS.items():
        stem, _, suffix = name.partition(".")
        path = HERE / f"{stem}-torch{version}.{suffix}"
        if not path.exists():
            path.write_bytes(make())
    for name, make in BY_HAND.items():
        if not (HERE / name).exists():
            (HERE / name).write_bytes(make())
    for path in HERE.iterdir():
        expected = path.with_suffix(path.suffix + ".json")
        if path.suffix in (".pt", ".safetensors") and (not expected.exists() or "--expected" in sys.argv):
            expected.write_text(json.dumps(description(path), indent=1) + "\n")


if __name__ == "__main__":
    main()
