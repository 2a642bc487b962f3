"""Every exotic dtype and layout on every road into and out of a file: `python -m tests.matrix.dtypes` prints the table.

A row is a tensor with the values that it must have wherever it arrives. A road writes it and reads it back. A cell is
"equal", or who refused and why; what cannot be so is a value that differs or an exception without a name.
"""

from __future__ import annotations

import re
import struct
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import unmoor

WIDTH: Final = 80


@dataclass(frozen=True)
class Row:
    """One kind of tensor: how to make one, its values (see `values`), and one of the same kind without them."""

    name: str
    make: Callable[[], torch.Tensor]
    right: Any
    blank: Callable[[], torch.Tensor]


class Marked(torch.Tensor):
    """A subclass of a user's own."""


class Holder(nn.Module):
    """A module whose buffer `x` is the tensor, beside one of the usual kind."""

    def __init__(self, tensor: torch.Tensor, beside: float) -> None:
        super().__init__()
        self.register_buffer("x", tensor)
        self.register_buffer("beside", torch.full((2,), beside))


def counted(name: str) -> torch.Tensor:
    """Two rows of three elements whose bytes count up from 0; 0 and 1 where no others are legal."""
    dtype = getattr(torch, name)
    data = torch.arange(6 * dtype.itemsize, dtype=torch.uint8)
    return (data % 2 if dtype == torch.bool else data).view(dtype).reshape(2, 3)


def zeroed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same strides over a storage of its own, all of its bytes zero."""
    data = torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8).view(tensor.dtype)
    return data.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def values(tensor: torch.Tensor) -> Any:
    """What a tensor says: its bytes in the order of its dimensions, or numbers where its layout has another order."""
    tensor = tensor.detach().cpu()
    if tensor.is_nested:
        return [row.tolist() for row in tensor.unbind()]
    if tensor.is_quantized:
        return quantized_values(tensor)
    if tensor.layout != torch.strided:
        return tensor.to_dense().tolist()
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).tolist()).hex()


def quantized_values(tensor: torch.Tensor) -> Any:
    data = bytes(tensor.untyped_storage()).hex()
    if tensor.qscheme() == torch.per_tensor_affine:
        return data, tensor.q_scale(), tensor.q_zero_point()
    return data, tensor.q_per_channel_scales().tolist(), tensor.q_per_channel_zero_points().tolist()


def floats(*numbers: float) -> str:
    """The bytes of float32 numbers."""
    return struct.pack(f"<{len(numbers)}f", *numbers).hex()


def plain(name: str) -> Row:
    size = getattr(torch, name).itemsize
    right = bytes(i % 2 if name == "bool" else i for i in range(6 * size)).hex()
    return Row(name, lambda: counted(name), right, lambda: zeroed(counted(name)))


def strided(name: str, make: Callable[[], torch.Tensor], right: str) -> Row:
    return Row(name, make, right, lambda: zeroed(make()))


MATRIX = [[0.0, 1.0, 0.0, 2.0], [3.0, 0.0, 0.0, 4.0]]
SCALES = torch.tensor([0.5, 0.25], dtype=torch.float64)


def dense(scale: float = 1.0) -> torch.Tensor:
    return torch.tensor(MATRIX) * scale


def sparse(name: str) -> Row:
    blocks = {"blocksize": (1, 2)} if name[-3:] in ("bsr", "bsc") else {}

    def make(scale: float = 1.0) -> torch.Tensor:
        return (dense() * scale if scale else dense() + 1).to_sparse(layout=getattr(torch, name), **blocks)

    return Row(name, make, MATRIX, lambda: make(0.0))


def nested(layout: torch.layout) -> Row:
    def make(scale: float = 1.0) -> torch.Tensor:
        rows = [torch.tensor([1.0, 2.0]) * scale, torch.tensor([3.0, 4.0, 5.0]) * scale]
        return torch.nested.nested_tensor(rows, layout=layout)

    name = "nested jagged" if layout == torch.jagged else "nested strided"
    return Row(name, make, [[1.0, 2.0], [3.0, 4.0, 5.0]], lambda: make(0.0))


def quantized(name: str, make: Callable[[torch.Tensor, float], torch.Tensor], right: Any) -> Row:
    numbers = torch.tensor([[0.0, 0.5, 1.0, 1.5], [0.0, 0.25, 0.5, 0.75]])
    return Row(name, lambda: make(numbers, 1.0), right, lambda: make(numbers * 0, 2.0))


def per_channel(dtype: torch.dtype) -> Callable[[torch.Tensor, float], torch.Tensor]:
    zeros = torch.zeros(2, dtype=torch.int64)
    if dtype in (torch.quint4x2, torch.quint2x4):
        return lambda x, scale: torch.quantize_per_channel(x, (SCALES * scale).float(), zeros.float(), 0, dtype)
    return lambda x, scale: torch.quantize_per_channel(x, SCALES * scale, zeros, 0, dtype)


SHELLS = [f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)]
PACKED = [name for name in (*SHELLS, "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2") if hasattr(torch, name)]
FLOATS8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"]
NUMBERS = ["uint16", "uint32", "uint64", "complex32", "complex64", "complex128", "bool", "float16", "bfloat16"]
PAIR = torch.tensor([1 + 2j, 3 - 4j])

ROWS: list[Row] = [
    *(plain(name) for name in [*FLOATS8, *NUMBERS, *PACKED] if hasattr(torch, name)),
    quantized(
        "qint8", lambda x, scale: torch.quantize_per_tensor(x, 0.25 * scale, 3, torch.qint8),
        ("0305070903040506", 0.25, 3),
    ),
    quantized(
        "qint32", lambda x, scale: torch.quantize_per_tensor(x, 0.25 * scale, 0, torch.qint32),
        ("0000000002000000040000000600000000000000010000000200000003000000", 0.25, 0),
    ),
    quantized("qint8 by channel", per_channel(torch.qint8), ("0001020300010203", [0.5, 0.25], [0, 0])),
    quantized("quint4x2", per_channel(torch.quint4x2), ("10321032", [0.5, 0.25], [0.0, 0.0])),
    quantized("quint2x4", per_channel(torch.quint2x4), ("e4e4", [0.5, 0.25], [0.0, 0.0])),
    *(sparse(f"sparse_{name}") for name in ("coo", "csr", "csc", "bsr", "bsc")),
    nested(torch.strided),
    nested(torch.jagged),
    Row("conjugate view", lambda: PAIR.clone().conj(), floats(1, -2, 3, 4), lambda: (PAIR * 0).conj()),
    Row("negative view", lambda: PAIR.clone().conj().imag, floats(-2, 4), lambda: (PAIR * 0).conj().imag),
    strided("no elements", lambda: torch.ones(0, 3), ""),
    strided("no dimensions", lambda: torch.tensor(2.5), floats(2.5)),
    strided("transposed", lambda: torch.arange(6.0).reshape(2, 3).t(), floats(0, 3, 1, 4, 2, 5)),
    strided("with gaps", lambda: torch.arange(8.0).reshape(2, 4)[:, ::2], floats(0, 2, 4, 6)),
    strided("expanded", lambda: torch.tensor([1.0, 2.0]).expand(3, 2), floats(1, 2, 1, 2, 1, 2)),
    strided("overlapping", lambda: torch.arange(4.0).as_strided((2, 3), (1, 1)), floats(0, 1, 2, 1, 2, 3)),
    Row("subclass", lambda: torch.arange(3.0).as_subclass(Marked), floats(0, 1, 2), lambda: torch.zeros(3)),
]  # fmt: skip


def torch_file(row: Row, folder: Path, *, legacy: bool) -> Path:
    path = folder / "torch.pt"
    with theirs("torch.save"):
        torch.save({"x": row.make()}, path, _use_new_zipfile_serialization=not legacy)
    return path


class Theirs(Exception):
    """Another library could not do its part of a road."""


@contextmanager
def theirs(name: str) -> Iterator[None]:
    """Names the library whose part of a road fails."""
    try:
        yield
    except Exception as error:
        raise Theirs(name) from error


def torch_to_load(row: Row, folder: Path) -> torch.Tensor:
    return unmoor.load(torch_file(row, folder, legacy=False))["x"]


def legacy_to_load(row: Row, folder: Path) -> torch.Tensor:
    return unmoor.load(torch_file(row, folder, legacy=True))["x"]


def save_to_torch(row: Row, folder: Path) -> torch.Tensor:
    unmoor.save(folder / "ours.pt", {"x": row.make()}, rng=False)
    return torch.load(folder / "ours.pt")["x"]


def save_to_load(row: Row, folder: Path) -> torch.Tensor:
    unmoor.save(folder / "ours.pt", {"x": row.make()}, rng=False)
    return unmoor.load(folder / "ours.pt")["x"]


def restored(path: Path, row: Row, device: str = "cpu") -> torch.Tensor:
    """The live tensor after a restore. One that fails must have changed nothing."""
    with theirs(f"torch on {device.partition(':')[0]}"):
        model = Holder(row.blank(), 0.0).to(device)
        before = values(model.x)
    try:
        unmoor.restore(path, model=model)
    except unmoor.UnmoorError:
        assert (values(model.x), model.beside.tolist()) == (before, [0.0, 0.0]), "a refusal has changed the module"
        raise
    assert model.beside.tolist() == [7.0, 7.0]
    return model.x


def save_to_live(row: Row, folder: Path) -> torch.Tensor:
    unmoor.save(folder / "ours.pt", model=Holder(row.make(), 7.0), rng=False)
    return restored(folder / "ours.pt", row)


def legacy_to_live(row: Row, folder: Path) -> torch.Tensor:
    with theirs("torch.save"):
        state = Holder(row.make(), 7.0).state_dict()
        torch.save(state, folder / "torch.pt", _use_new_zipfile_serialization=False)
    return restored(folder / "torch.pt", row)


def save_to_sim(row: Row, folder: Path) -> torch.Tensor:
    unmoor.save(folder / "ours.pt", model=Holder(row.make(), 7.0), rng=False)
    return restored(folder / "ours.pt", row, "sim:1")


def save_to_safetensors(row: Row, folder: Path) -> torch.Tensor:
    unmoor.save(folder / "x.safetensors", {"x": row.make()}, rng=False)
    with theirs("safetensors' reader"):
        return load_file(folder / "x.safetensors")["x"]


def safetensors_to_load(row: Row, folder: Path) -> torch.Tensor:
    with theirs("safetensors' writer"):
        save_file({"x": row.make().resolve_conj().contiguous()}, folder / "x.safetensors")
    return unmoor.load(folder / "x.safetensors")["x"]


def safetensors_to_live(row: Row, folder: Path) -> torch.Tensor:
    unmoor.save(folder / "x.safetensors", model=Holder(row.make(), 7.0), rng=False)
    return restored(folder / "x.safetensors", row)


ROADS: dict[str, Callable[[Row, Path], torch.Tensor]] = {
    "torch zip > load": torch_to_load,
    "torch legacy > load": legacy_to_load,
    "save > torch.load": save_to_torch,
    "save > load": save_to_load,
    "save > live": save_to_live,
    "torch legacy > live": legacy_to_live,
    "save > live on sim:1": save_to_sim,
    "save > safetensors' own": save_to_safetensors,
    "safetensors' own > load": safetensors_to_load,
    "save as safetensors > live": safetensors_to_live,
}

WHOLE: Final = ("torch zip > load", "torch legacy > load", "save > torch.load", "save > load")
"""Roads at whose end the tensor has the strides and the storage that were saved."""


def travel(row: Row, road: str, folder: Path) -> str:
    """One cell: "equal", "refused: ..." by unmoor, or "not by ..." where another library cannot do its part."""
    try:
        arrived = ROADS[road](row, folder)
    except Theirs as error:
        return f"not by {error}"
    except unmoor.UnmoorError as error:
        return f"refused: {reason(error)}"
    return differences(row, road, arrived) or "equal"


def reason(error: unmoor.UnmoorError) -> str:
    """What is at fault, without the names of the file, of the tensor and of its kind."""
    line = (error.details or (error.headline,))[0].strip().partition("   -> ")[0]
    bare = re.sub(r"^model", "", line).strip().removeprefix(".").removeprefix("x").lstrip(": ")
    for words, kind in _KINDS:
        bare = re.sub(words, kind, bare)
    return bare


_KINDS: Final = (
    (r"layout \w+", "this layout"),
    (r"torch\.(?!uint8)(u?int|bits|complex)\w+", "this dtype"),
    (r"class [\w.]+", "a class of its own"),
)
"""What a refusal calls the kind of a tensor, and the word for it that rows of one kind share."""


def differences(row: Row, road: str, arrived: torch.Tensor) -> str:
    """How a tensor differs from the one that was saved, in dtype, layout, strides or values."""
    saved = row.make()
    if (arrived.dtype, arrived.layout, arrived.is_nested) != (saved.dtype, saved.layout, saved.is_nested):
        return f"{arrived.dtype} {arrived.layout}"
    if road in WHOLE and saved.layout == torch.strided and not saved.is_nested and arrived.stride() != saved.stride():
        return f"strides {arrived.stride()}"
    return "" if values(arrived) == row.right else f"values {values(arrived)}"


def printed(cells: dict[tuple[str, str], str]) -> str:
    """The table: "equal" or a letter, the letters told below."""
    told: dict[str, str] = {}
    for said in cells.values():
        if said != "equal":
            told.setdefault(said, chr(ord("a") + len(told)))
    heads = [f"{number:>6}" for number in range(1, len(ROADS) + 1)]
    lines = [f"{number}  {road}" for number, road in enumerate(ROADS, 1)]
    lines += ["", f"{'':19}{''.join(heads)}"]
    for row in ROWS:
        marks = [cells[row.name, road] for road in ROADS]
        lines.append(f"{row.name:<19}" + "".join(f"{'equal' if m == 'equal' else told[m]:>6}" for m in marks))
    lines.append("")
    for said, letter in told.items():
        lines += textwrap.wrap(f"{letter}  {said}", WIDTH, subsequent_indent="   ")
    return "\n".join(lines)


def quiet() -> None:
    """The warnings of torch about dtypes and layouts that it calls unfinished."""
    warnings.simplefilter("ignore")


def main() -> None:
    from tests.accelerator import install

    install()
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        cells = {(row.name, road): travel(row, road, Path(folder)) for row in ROWS for road in ROADS}
    print(f"torch {torch.__version__}, safetensors {safetensors.__version__}\n\n{printed(cells)}")


if __name__ == "__main__":
    main()
