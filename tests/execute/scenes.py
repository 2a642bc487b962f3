"""Files with every layout that checkpoints hold, for tests that run over all of them."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from unmoor.values.nodes import TensorNode

from .fakes import FileMaker, contiguous, numbers


def plain(make: FileMaker, *, device: bool = False) -> None:
    make.tensor(make.storage(numbers(40, "float32")), "float32", (8, 5), device=device)


def large(make: FileMaker, *, device: bool = False) -> None:
    make.tensor(make.storage(numbers(3000, "float32")), "float32", (60, 50), device=device)


def many_small(make: FileMaker, *, device: bool = False) -> None:
    for count in (1, 2, 3, 50, 7, 1, 90, 4):
        make.tensor(make.storage(numbers(count, "int16"), gap=count), "int16", (count,), device=device)


def scalars_and_empties(make: FileMaker, *, device: bool = False) -> None:
    make.tensor(make.storage(numbers(1, "int64")), "int64", (), device=device)
    make.tensor(make.storage(b""), "float32", (0, 4), device=device)
    make.tensor(make.storage(numbers(6, "float32")), "float32", (3, 0), device=device)


def tied(make: FileMaker, *, device: bool = False) -> None:
    storage = make.storage(numbers(500, "float32"))
    make.tensor(storage, "float32", (20, 25), device=device)
    make.tensor(storage, "float32", (20, 25), device=device)
    make.tensor(storage, "float32", (20, 25), device=device, alias=make.copies[-2].slot.id)


def views_with_gaps(make: FileMaker, *, device: bool = False) -> None:
    storage = make.storage(numbers(2000, "float32"))
    make.tensor(storage, "float32", (10, 20), offset=100, device=device)
    make.tensor(storage, "float32", (3,), offset=301, device=device)
    make.tensor(storage, "float32", (900,), offset=1000, device=device)


def overlapping_views(make: FileMaker, *, device: bool = False) -> None:
    storage = make.storage(numbers(2000, "float32"))
    make.tensor(storage, "float32", (1500,), device=device)
    make.tensor(storage, "float32", (900,), offset=1000, device=not device)
    make.tensor(storage, "float32", (100,), offset=1200, device=device)


def transposed(make: FileMaker, *, device: bool = False) -> None:
    make.tensor(make.storage(numbers(1200, "float32")), "float32", (40, 30), (1, 40), device=device)


def transposed_alike(make: FileMaker, *, device: bool = False) -> None:
    make.tensor(
        make.storage(numbers(1200, "float32")), "float32", (40, 30), (1, 40), slot_stride=(1, 40), device=device
    )


def column_of_a_matrix(make: FileMaker, *, device: bool = False) -> None:
    make.tensor(make.storage(numbers(1200, "int16")), "int16", (40, 3), (30, 1), offset=5, device=device)


def interleaved(make: FileMaker, *, device: bool = False) -> None:
    storage = make.storage(numbers(1200, "int32"))
    make.tensor(storage, "int32", (600,), (2,), device=device)
    make.tensor(storage, "int32", (600,), (2,), offset=1, device=device)
    make.tensor(storage, "int32", (100,), offset=50, device=device)


def expanded(make: FileMaker, *, device: bool = False) -> None:
    make.tensor(make.storage(numbers(30, "float32")), "float32", (4, 30), (0, 1), device=device)


def gappy_slot(make: FileMaker, *, device: bool = False) -> None:
    make.tensor(make.storage(numbers(120, "float32")), "float32", (10, 12), slot_stride=(20, 1), device=device)


def cast(make: FileMaker, *, device: bool = False) -> None:
    make.tensor(make.storage(numbers(1500, "float32")), "float32", (30, 50), slot_dtype="float64", device=device)
    make.tensor(make.storage(numbers(9, "int16")), "int16", (9,), slot_dtype="float32", device=device)


def swapped(make: FileMaker, *, device: bool = False) -> None:
    storage = make.storage(numbers(700, "int32", "big"), byteorder="big")
    make.tensor(storage, "int32", (700,), device=device)
    make.tensor(make.storage(numbers(7, "uint8"), byteorder="big"), "uint8", (7,), device=device)


def lazy_bits(make: FileMaker, *, device: bool = False) -> None:
    storage = make.storage(numbers(400, "complex64"))
    make.tensor(storage, "complex64", (400,), bits=frozenset({"conj"}), device=device)
    make.tensor(storage, "complex64", (20, 20), bits=frozenset({"conj", "neg"}), device=device)


def no_checksum(make: FileMaker, *, device: bool = False) -> None:
    make.tensor(make.storage(numbers(900, "float32"), crc=False), "float32", (900,), device=device)
    make.tensor(make.storage(numbers(9, "float32"), crc=False), "float32", (9,), device=device)


def cast_beside_a_view(make: FileMaker, *, device: bool = False) -> None:
    storage = make.storage(numbers(3000, "float32"))
    make.tensor(storage, "float32", (20, 50), offset=200, slot_dtype="float64", device=device)
    make.tensor(storage, "float32", (1000,), offset=900, device=device)
    make.tensor(storage, "float32", (700,), offset=2200, device=device)


def _box(make: FileMaker, shape: tuple[int, ...], dtype: str = "float32", **options: object) -> TensorNode:
    """A stored tensor of its own, to be a chunk."""
    count = math.prod(shape)
    return TensorNode(make.storage(numbers(count, dtype), **options), 0, shape, contiguous(shape), dtype, "cpu")


def chunks_of_rows(make: FileMaker, *, device: bool = False) -> None:
    make.chunked([((0, 0), _box(make, (17, 30))), ((17, 0), _box(make, (23, 30)))], (40, 30), device=device)


def chunks_of_columns(make: FileMaker, *, device: bool = False) -> None:
    make.chunked([((0, 13), _box(make, (20, 37))), ((0, 0), _box(make, (20, 13)))], (20, 50), device=device)


def chunks_in_a_grid(make: FileMaker, *, device: bool = False) -> None:
    corners = [((i, j), _box(make, (10, 6 if j == 0 else 9))) for i in (0, 10, 20) for j in (0, 6)]
    make.chunked(corners, (30, 15), device=device)


def chunks_cast_and_swapped(make: FileMaker, *, device: bool = False) -> None:
    big = make.storage(numbers(60, "float32", "big"), byteorder="big")
    chunks = [((0, 0), _box(make, (5, 20))), ((5, 0), TensorNode(big, 0, (3, 20), (20, 1), "float32", "cpu"))]
    make.chunked(chunks, (8, 20), slot_dtype="float64", device=device)


def chunks_into_gaps(make: FileMaker, *, device: bool = False) -> None:
    make.chunked(
        [((0, 0), _box(make, (4, 9))), ((4, 0), _box(make, (4, 9), crc=False))],
        (8, 9),
        slot_stride=(12, 1),
        device=device,
    )


def chunks_into_a_transposed_slot(make: FileMaker, *, device: bool = False) -> None:
    turned = TensorNode(make.storage(numbers(90, "float32")), 0, (9, 10), (1, 9), "float32", "cpu")
    make.chunked([((0, 0), turned), ((0, 10), _box(make, (9, 4)))], (9, 14), slot_stride=(1, 9), device=device)


def flat_partitions(make: FileMaker, *, device: bool = False) -> None:
    """Two tensors flattened one behind the other, cut into three shares with padding at the end."""
    shares = [make.storage(numbers(70, "float32")) for _ in range(3)]

    def run(share: int, offset: int, shape: tuple[int, ...]) -> TensorNode:
        return TensorNode(shares[share], offset, shape, contiguous(shape), "float32", "cpu")

    first = [((0, 0), run(0, 0, (8, 8))), ((8, 0), run(0, 64, (1, 6))), ((8, 6), run(1, 0, (1, 2)))]
    make.chunked([*first, ((9, 0), run(1, 2, (1, 8)))], (10, 8), device=device)
    second = [((0,), run(1, 10, (60,))), ((60,), run(2, 0, (65,)))]
    make.chunked(second, (125,), device=device)


SCENES = (
    plain,
    large,
    many_small,
    scalars_and_empties,
    tied,
    views_with_gaps,
    overlapping_views,
    transposed,
    transposed_alike,
    column_of_a_matrix,
    interleaved,
    expanded,
    gappy_slot,
    cast,
    swapped,
    lazy_bits,
    no_checksum,
    cast_beside_a_view,
    chunks_of_rows,
    chunks_of_columns,
    chunks_in_a_grid,
    chunks_cast_and_swapped,
    chunks_into_gaps,
    chunks_into_a_transposed_slot,
    flat_partitions,
)


def everything(make: FileMaker) -> None:
    """All layouts in one file, on the host and on a device."""
    for scene in SCENES:
        scene(make)
        scene(make, device=True)


@st.composite
def files(draw: st.DrawFn) -> FileMaker:
    """Random storages with random windows on them, into random slots."""
    make = FileMaker()
    for _ in range(draw(st.integers(1, 6))):
        dtype = draw(st.sampled_from(["uint8", "int16", "float32"]))
        count = draw(st.integers(0, 300))
        order = draw(st.sampled_from(["little", "little", "big"]))
        data = numbers(count, dtype, order)
        storage = make.storage(data, dtype, crc=draw(st.booleans()), byteorder=order, gap=draw(st.integers(0, 200)))
        for _ in range(draw(st.integers(1, 3))):
            _window(draw, make, storage, count, dtype)
    return make


def _window(draw: st.DrawFn, make: FileMaker, storage: object, count: int, dtype: str) -> None:
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    dense = contiguous(shape)
    stride = draw(st.sampled_from([dense, tuple(reversed(dense)), tuple(2 * step for step in dense)]))
    if 0 not in shape and sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) >= count:
        shape, stride = (count,), (1,)
    reach = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    offset = draw(st.integers(0, max(0, count - reach)))
    make.tensor(
        storage,
        dtype,
        shape,
        stride,
        offset,
        slot_dtype=draw(st.sampled_from([dtype, dtype, "float64"])),
        slot_stride=draw(st.sampled_from([None, stride if 0 not in stride else None])),
        device=draw(st.booleans()),
    )
