"""Every exotic dtype and layout arrives with its values on every road, or is refused by name with nothing changed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import torch
from torch import nn

import unmoor
from tests.matrix.dtypes import PACKED, ROADS, ROWS, WIDTH, Row, printed, travel, values

WARNINGS = (
    "ComplexHalf support",
    "Sparse",
    "The PyTorch API of nested",
    "TypedStorage is deprecated",
    "torch.quantize_per_tensor",
)
pytestmark = [pytest.mark.filterwarnings(f"ignore:.*{words}") for words in WARNINGS]

SHELLS: Final = [name for name in PACKED if "int" in name]
BITS: Final = [name for name in PACKED if "bits" in name]
QUANTIZED: Final = ["qint8", "qint32", "qint8 by channel"]
SUB_BYTE: Final = ["quint4x2", "quint2x4"]
COMPRESSED: Final = [f"sparse_{name}" for name in ("csr", "csc", "bsr", "bsc")]
NESTED: Final = ["nested strided", "nested jagged"]
REPEATS: Final = ["expanded", "overlapping"]

OURS: Final = ["save > torch.load", "save > load", "save > live", "save > live on sim:1", "save > safetensors' own",
               "save as safetensors > live"]  # fmt: skip
LIVE: Final = ["save > live", "torch legacy > live"]
SAFETENSORS: Final = ["save > safetensors' own", "save as safetensors > live"]

NO_FORM: Final = (
    "refused: a tensor of this dtype, which torch itself can neither save nor load; save its view(torch.uint8)"
)
NO_REPEATS: Final = "refused: elements of the live tensor share memory, those of the saved one do not"
NO_PLACE: Final = "refused: of the live model is of this layout and cannot be filled in place"

EXCEPTIONS: Final[list[tuple[list[str], list[str], str]]] = [
    (SHELLS, ["torch zip > load", "torch legacy > load", "torch legacy > live"], "not by torch.save"),
    (SHELLS, OURS, NO_FORM),
    (["complex32", "complex128", *BITS], SAFETENSORS, "refused: this dtype, which safetensors lacks"),
    ([*QUANTIZED, *SUB_BYTE, "sparse_coo", *COMPRESSED, *NESTED], SAFETENSORS, "refused: a tensor of this layout"),
    ([*SUB_BYTE, *COMPRESSED, *NESTED], LIVE, NO_PLACE),
    ([*QUANTIZED, *SUB_BYTE, "sparse_coo", *COMPRESSED, NESTED[0]], ["save > live on sim:1"], "not by torch on sim"),
    ([NESTED[1]], ["save > live on sim:1"], NO_PLACE),
    (REPEATS, ["save as safetensors > live"], NO_REPEATS),
    (["subclass"], OURS, "refused: a tensor of a class of its own"),
    ([*SHELLS, "complex32", "complex128", *BITS, *QUANTIZED, *SUB_BYTE, "sparse_coo", *COMPRESSED, *NESTED],
     ["safetensors' own > load"], "not by safetensors' writer"),
]  # fmt: skip
"""Rows, roads, and what is so there; everywhere else the tensor arrives equal."""

EXPECTED: Final = {(row, road): said for rows, roads, said in EXCEPTIONS for row in rows for road in roads}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_right_values_are_those_of_the_tensor(row: Row) -> None:
    """The literal values of a row are what its tensor says before it is written; the blank one says others."""
    assert values(row.make()) == row.right
    assert not row.make().numel() or values(row.blank()) != row.right


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_tensor_arrives_equal_or_is_refused_by_name(sim: object, row: Row, road: str, tmp_path: Path) -> None:
    """C50: equal values, dtype and strides; or a refusal that names the kind and leaves no file and no change."""
    said = EXPECTED.get((row.name, road), "equal")
    assert travel(row, road, tmp_path) == said
    if said.startswith("refused") and said not in (NO_PLACE, NO_REPEATS):
        assert list(tmp_path.iterdir()) == []


def test_every_exception_is_of_a_row_and_a_road() -> None:
    """No exception speaks of a row or a road that is not there."""
    assert {row for row, _ in EXPECTED} <= {row.name for row in ROWS}
    assert {road for _, road in EXPECTED} <= set(ROADS)


def test_the_table_fits_a_terminal() -> None:
    """Printed at 80 columns, with each reason told once."""
    cells = {(row.name, road): EXPECTED.get((row.name, road), "equal") for row in ROWS for road in ROADS}
    text = printed(cells)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(text.count(said.split(": ")[-1][:30]) == 1 for said in set(EXPECTED.values()))


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated")
@pytest.mark.parametrize("writer", ["torch zip", "torch legacy", "unmoor"])
def test_a_quantized_module_answers_as_before(writer: str, tmp_path: Path) -> None:
    """Packed weights stand in tuples of a state dict: they go through the module's own loading, values unchanged."""

    def quantized(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        return torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)

    saved, live, batch = quantized(0), quantized(1), torch.ones(3, 4)
    if writer == "unmoor":
        unmoor.save(tmp_path / "q.pt", model=saved)
    else:
        torch.save(saved.state_dict(), tmp_path / "q.pt", _use_new_zipfile_serialization=writer == "torch zip")
    assert not torch.equal(live(batch), saved(batch))
    unmoor.restore(tmp_path / "q.pt", model=live)
    assert torch.equal(live(batch), saved(batch))
