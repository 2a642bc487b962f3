"""The engine under diff: pieces of two tensors laid out in any way, equal or not, within a bounded buffer."""

from __future__ import annotations

import math
import threading
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmoor.execute import comparing
from unmoor.execute.comparing import Pair, compare
from unmoor.execute.patches import patches, pieces
from unmoor.live import comparison
from unmoor.live.comparison import Comparison
from unmoor.values.boxes import Box
from unmoor.values.difference import Distance
from unmoor.values.nodes import Chunk, Span, Storage, TensorNode
from unmoor.values.strides import contiguous


class Memory:
    """A file in memory that remembers the largest read."""

    path = "fake"

    def __init__(self, data: bytes) -> None:
        self.data, self.size, self.largest = data, len(data), 0

    def some_into(self, offset: int, target: memoryview) -> int:
        self.largest = max(self.largest, len(target))
        part = self.data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)


def raw(tensor: torch.Tensor) -> bytes:
    """The whole storage of a tensor."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).numpy().tobytes()


def node_of(tensor: torch.Tensor, file: str = "") -> TensorNode:
    dtype = str(tensor.dtype).removeprefix("torch.")
    nbytes = tensor.untyped_storage().nbytes()
    storage = Storage(file or "0", dtype, nbytes, "cpu", Span(0, nbytes, file), None)
    return TensorNode(storage, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), dtype, "cpu")


def distance(a: torch.Tensor, b: torch.Tensor, **options: float) -> Distance | None:
    """What the engine and the measure tell of two tensors."""
    measure = Comparison(**{"atol": 0.0, "rtol": 0.0, **options})
    files = Memory(raw(a)), Memory(raw(b))
    pair = Pair(0, node_of(a), node_of(b))
    compare([pair], measure, open_a=lambda _: files[0], open_b=lambda _: files[1], threads=2, progress=None)
    return measure.distance(0, tuple(a.shape))


def laid(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values, laid out in another way."""
    if layout == "transposed":
        return values.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "gaps":
        whole = torch.zeros(*values.shape[:-1], values.shape[-1] * 2 + 1, dtype=values.dtype)
        view = whole[..., 1::2]
        view.copy_(values)
        return view
    if layout == "offset":
        flat = torch.zeros(values.numel() + 7, dtype=values.dtype)
        flat[7:] = values.reshape(-1)
        return flat[7:].view(values.shape)
    return values.contiguous()


LAYOUTS = ("plain", "transposed", "gaps", "offset")


@pytest.fixture
def small(monkeypatch):
    """Buffers so small that every tensor takes many pieces."""
    monkeypatch.setattr(comparing, "FLAT", 64)
    monkeypatch.setattr(comparing, "STRETCH", 256)
    monkeypatch.setattr(comparing, "BOX", 128)
    monkeypatch.setattr(comparing, "SMALL", 32)
    monkeypatch.setattr(comparison, "BLOCK", 8)


@pytest.mark.parametrize("one", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
@pytest.mark.parametrize("shape", [(7, 9), (3, 4, 5), (1, 30), (33,)])
def test_layouts_make_no_difference(one, other, shape, small):
    """Equal values are equal however each side lays them out; one changed element is found at its index."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert distance(laid(values, one), laid(values, other)) is None
    changed = values.clone()
    at = tuple(size // 2 for size in shape)
    changed[at] += 0.5
    found = distance(laid(values, one), laid(changed, other))
    assert (found.differing, found.first) == (1, at)
    assert found.max_abs == pytest.approx(0.5, rel=1e-6)
    assert found.values == (values[at].item(), changed[at].item())


@pytest.mark.parametrize("one", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
def test_numbers_are_those_that_torch_computes_of_the_whole(one, other, small):
    """Max abs, relative, cosine, first index and number of a tensor of many pieces, held against one computation."""
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(13, 17, generator=generator)
    b = torch.where(torch.rand(13, 17, generator=generator) < 0.3, a + torch.randn(13, 17, generator=generator), a)
    hold(distance(laid(a, one), laid(b, other)), a, b)


def hold(found: Distance | None, a: torch.Tensor, b: torch.Tensor) -> None:
    """The numbers, computed here in one go in float64."""
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    apart = (x - y).abs()
    unlike = x != y
    assert found is not None
    assert found.differing == int(unlike.sum())
    assert found.first == tuple(unlike.nonzero()[0].tolist())
    assert found.max_abs == pytest.approx(float(apart.max()), rel=1e-6)
    largest = torch.maximum(x.abs(), y.abs())
    assert found.max_rel == pytest.approx(float((apart / largest.clamp(min=1e-300)).max()), rel=1e-5)
    u, v = (torch.view_as_real(t).flatten() if t.is_complex() else t.flatten() for t in (x, y))
    assert found.cosine == pytest.approx(float(u @ v / (u.norm() * v.norm())), rel=1e-6)


NUMBERS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip


def sample(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.randn(6, 50, dtype=dtype, generator=generator)
    if dtype == torch.bool:
        return torch.rand(6, 50, generator=generator) < 0.5
    return (torch.randn(6, 50, generator=generator) * 3 + 20).to(dtype)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_every_dtype_of_numbers(dtype, small):
    """Equal with itself; apart by what torch computes in float64."""
    a, b = sample(dtype), sample(dtype, seed=1)
    assert distance(a, a.clone()) is None
    hold(distance(a, b), a, b)


@pytest.mark.parametrize("name", ["complex32", "bits8", "bits16", "float4_e2m1fn_x2", "float8_e8m0fnu"])
def test_dtypes_that_torch_hardly_computes_with(name, small):
    """Told apart by their bits; where torch has no numbers for them there are none."""
    dtype = getattr(torch, name)
    data = torch.arange(1, 65, dtype=torch.uint8)
    a, b = data.view(dtype), data.clone()
    b[40] ^= 1
    assert distance(a, data.clone().view(dtype)) is None
    found = distance(a, b.view(dtype))
    assert (found.differing, found.first) == (1, (40 // dtype.itemsize,))
    assert (found.max_abs is None) == (name in ("bits8", "bits16", "float4_e2m1fn_x2"))


@pytest.mark.parametrize("one", [torch.float32, torch.bfloat16, torch.int32, torch.float8_e5m2, torch.complex64])
@pytest.mark.parametrize("other", [torch.float64, torch.float16, torch.uint8])
def test_two_dtypes_are_compared_by_value(one, other, small):
    """In float64; values that both dtypes have are equal."""
    whole = torch.arange(1, 41).reshape(5, 8) % 7
    assert distance(whole.to(one), whole.to(other)) is None
    changed = whole.clone()
    changed[2, 3] += 1
    hold(distance(whole.to(one), changed.to(other)), whole.to(one), changed.to(other))


def test_nan_is_equal_to_the_same_nan_and_zero_has_a_sign(small):
    """Bits decide: NaN is NaN, 0.0 is not -0.0 and yet 0 apart."""
    a = torch.tensor([1.0, math.nan, 0.0, 5.0])
    assert distance(a, a.clone()) is None
    b = torch.tensor([1.0, math.nan, -0.0, 5.0])
    found = distance(a, b)
    assert (found.differing, found.first, found.max_abs, found.max_rel) == (1, (2,), 0.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_counted_and_leaves_the_numbers_alone(bad, small):
    """Two elements turned NaN or infinite, one moved: the distance is that of the one."""
    a = torch.arange(1.0, 101.0)
    b = a.clone()
    b[10] = b[77] = bad
    b[50] += 2.0
    found = distance(a, b)
    assert (found.differing, found.not_finite, found.first) == (3, 2, (10,))
    assert found.max_abs == 2.0
    assert 0.99 < found.cosine < 1
    assert distance(a, b, atol=5.0).within is False


def test_numbers_that_overflow_their_dtype_are_measured_in_a_wider_one(small):
    """Squares of 1e30 are no float32."""
    a, b = torch.full((40,), 1e30), torch.full((40,), 2e30)
    found = distance(a, b)
    assert found.max_abs == pytest.approx(1e30, rel=1e-6)
    assert (found.not_finite, found.cosine) == (0, pytest.approx(1.0))


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        (2**60, 2**60 + 1, 1),
        (-(2**63), 2**63 - 1, 2**64 - 1),
        (5, -7, 12),
    ],
)
def test_integers_beyond_float64_keep_their_distance(a, b, apart):
    """2**60 and 2**60 + 1 are one apart, not zero."""
    found = distance(torch.tensor([a, 1]), torch.tensor([b, 1]))
    assert found.max_abs == float(apart)


def test_unsigned_integers_of_64_bits():
    """Their upper half is no negative number."""
    a, b = torch.tensor([2**64 - 1, 3], dtype=torch.uint64), torch.tensor([2**64 - 3, 3], dtype=torch.uint64)
    assert distance(a, b).max_abs == 2.0


@pytest.mark.parametrize(
    ("options", "within"), [({"atol": 0.2}, True), ({"atol": 0.05}, False), ({"rtol": 0.2}, True), ({}, False)]
)
def test_tolerances_mean_what_isclose_means(options, within, small):
    """Every element is within atol + rtol * |b|, and nothing is where no tolerance was asked for."""
    a = torch.linspace(1, 2, 50)
    b = a + 0.1
    assert distance(a, b, **options).within is within
    if options:
        assert bool(torch.isclose(a, b, **{"atol": 0.0, "rtol": 0.0, **options}).all()) is within


def test_conjugates_and_negations_are_what_they_stand_for(small):
    """A lazy conjugate is compared by its values, not by the bits of its storage."""
    values = sample(torch.complex64)
    lazy = node_of(values)
    bits = TensorNode(lazy.storage, 0, lazy.shape, lazy.stride, lazy.dtype, "cpu", bits=frozenset({"conj"}))
    solid = values.conj().resolve_conj()
    measure = Comparison(atol=0.0, rtol=0.0)
    files = Memory(raw(values)), Memory(raw(solid))
    pair = Pair(0, bits, node_of(solid))
    compare([pair], measure, open_a=lambda _: files[0], open_b=lambda _: files[1], threads=1, progress=None)
    assert measure.distance(0, tuple(values.shape)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.complex64, torch.complex128], ids=str)
def test_another_byte_order_is_the_same_value(dtype, small):
    """Data of a big-endian machine equals that of a little-endian one."""
    values = sample(dtype)
    part = dtype.itemsize // (2 if dtype.is_complex else 1)
    turned = torch.frombuffer(bytearray(raw(values)), dtype=torch.uint8).view(-1, part).flip(1).contiguous()
    node = node_of(values)
    storage = Storage("0", node.dtype, node.storage.nbytes, "cpu", node.storage.span, None, "big")
    big = TensorNode(storage, 0, node.shape, node.stride, node.dtype, "cpu")
    measure = Comparison(atol=0.0, rtol=0.0)
    files = Memory(bytes(turned.numpy().tobytes())), Memory(raw(values))
    pair = Pair(0, big, node)
    compare([pair], measure, open_a=lambda _: files[0], open_b=lambda _: files[1], threads=1, progress=None)
    assert measure.distance(0, tuple(values.shape)) is None


def chunked(tensor: torch.Tensor, boxes: list[Box], file: str) -> tuple[TensorNode, bytes]:
    """A tensor that lies in boxes, one behind the other in one file."""
    data, chunks = b"", []
    for number, (start, sizes) in enumerate(boxes):
        part = tensor
        for axis, (first, size) in enumerate(zip(start, sizes, strict=True)):
            part = part.narrow(axis, first, size)
        part = part.contiguous().clone()
        storage = Storage(str(number), "float32", len(raw(part)), "cpu", Span(len(data), len(raw(part)), file), None)
        chunks.append(Chunk(start, TensorNode(storage, 0, tuple(sizes), part.stride(), "float32", "cpu")))
        data += raw(part)
    whole = Storage("w", "float32", len(data), "cpu", None, None, shape=tuple(tensor.shape), chunks=tuple(chunks))
    return TensorNode(whole, 0, tuple(tensor.shape), contiguous(tensor.shape), "float32", "cpu"), data


ROWS = [Box((0, 0), (4, 6)), Box((4, 0), (6, 6))]
QUARTERS = [Box((0, 0), (5, 2)), Box((0, 2), (5, 4)), Box((5, 0), (5, 2)), Box((5, 2), (5, 4))]
WHOLE = [Box((0, 0), (10, 6))]


@pytest.mark.parametrize("mine", [WHOLE, ROWS, QUARTERS], ids=["whole", "rows", "quarters"])
@pytest.mark.parametrize("theirs", [WHOLE, ROWS, QUARTERS], ids=["whole", "rows", "quarters"])
def test_chunks_of_ranks_are_one_tensor(mine, theirs, small):
    """Cut in any way on each side: equal where values are, and the index of a change is that of the whole."""
    values = torch.arange(60.0).view(10, 6)
    changed = values.clone()
    changed[7, 4] = -1.0
    changed[8, 0] = -1.0
    for other, wanted in ((values, None), (changed, (7, 4))):
        measure = Comparison(atol=0.0, rtol=0.0)
        (a, data_a), (b, data_b) = chunked(values, mine, "a"), chunked(other, theirs, "b")
        files = Memory(data_a), Memory(data_b)
        compare([Pair(0, a, b)], measure, open_a=lambda _, f=files: f[0], open_b=lambda _, f=files: f[1],
                threads=2, progress=None)  # fmt: skip
        found = measure.distance(0, (10, 6))
        assert (None if found is None else found.first) == wanted
        if found is not None:
            hold(found, values, other)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=0, max_size=4).map(tuple),
    layouts=st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    limits=st.tuples(st.integers(16, 200), st.integers(16, 200)),
    data=st.data(),
)
def test_one_changed_element_is_found_wherever_it_is(shape, layouts, limits, data):
    """diff(a, a) is equal; a single changed element is found with its index and its distance."""
    values = torch.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    at = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    changed = values.clone()
    changed[at] += 0.25
    held = comparing.FLAT, comparing.STRETCH, comparing.BOX
    comparing.FLAT, comparing.STRETCH, comparing.BOX = limits[0] // 4 * 4, limits[0] // 4 * 8, limits[1]
    try:
        a = laid(values, layouts[0]) if shape else values
        same, other = (laid(t, layouts[1]) if shape else t for t in (values, changed))
        assert distance(a, same) is None
        found = distance(a, other)
    finally:
        comparing.FLAT, comparing.STRETCH, comparing.BOX = held
    assert (found.differing, found.first, found.max_abs) == (1, at, 0.25)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    layouts=st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    limit=st.integers(4, 300),
)
def test_pieces_cover_every_element_once(shape, layouts, limit):
    """Whatever the layouts and the limit: each element of the whole is in exactly one piece, within the limit."""
    values = torch.zeros(shape)
    seen: list[int] = []
    for patch in patches(*(node_of(laid(values, layout)) for layout in layouts)):
        for piece in pieces(patch, limit):
            seen += [piece.order.place(piece.first + i) for i in range(piece.a.numel)]
            assert piece.nbytes <= max(limit, 4)
    assert sorted(seen) == list(range(values.numel()))


def counted(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int]:
    """The largest read, and the most memory that Python had, while two tensors were compared by two threads."""
    files = Memory(raw(a)), Memory(raw(b))
    pair = Pair(0, node_of(a), node_of(b))
    measure = Comparison(atol=0.0, rtol=0.0)
    tracemalloc.start()
    compare([pair], measure, open_a=lambda _: files[0], open_b=lambda _: files[1], threads=2, progress=None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return max(file.largest for file in files), peak


def test_equal_layouts_take_two_small_buffers_for_each_thread():
    """32 MiB on each side: no read is larger than the buffer, and there are two of those for each of two threads."""
    a = torch.zeros(8 << 20)
    largest, peak = counted(a, a.clone())
    assert largest == comparing.FLAT
    assert peak < 2 * 2 * comparing.FLAT * 2 + (1 << 20)


def test_unequal_layouts_take_two_buffers_of_a_box_for_each_thread():
    """A transposed tensor of 64 MiB against a plain one: boxes, never the tensor."""
    a = torch.zeros(4096, 4096)
    _, peak = counted(a, laid(a, "transposed"))
    assert peak < 2 * 2 * comparing.BUFFER + (4 << 20)


def test_arithmetic_is_done_in_blocks(monkeypatch):
    """No tensor larger than a block is made of what differs."""
    sizes: list[int] = []
    real = Comparison._numbers

    def counted(self: Comparison, made: object, x: torch.Tensor, *rest: object) -> None:
        sizes.append(x.numel())
        real(self, made, x, *rest)

    monkeypatch.setattr(Comparison, "_numbers", counted)
    a = torch.zeros(1 << 20)
    assert distance(a, a + 1).differing == 1 << 20
    assert max(sizes) <= comparison.BLOCK
    assert threading.active_count() < 20
