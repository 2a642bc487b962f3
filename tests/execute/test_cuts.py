"""What one rank reads of tensors that are spread over many: its own boxes, and no more."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Size
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from unmoor.execute import cuts, partial, schedule
from unmoor.execute.cuts import cuts_of
from unmoor.execute.streaming import stored_bytes, stream
from unmoor.values.boxes import Box, flat_boxes
from unmoor.values.nodes import Chunk, Span, Storage, TensorNode
from unmoor.values.plan import Copy
from unmoor.values.target import Slot

from .fakes import BytesReader, FileMaker, MemorySlot, contiguous, indices, itemsize, numbers


class BoxedSlot:
    """Memory for some boxes of a tensor, each on its own."""

    def __init__(self, boxes, dtype, *, turned=False, device=False):
        self.parts = {}
        for box in boxes:
            stride = tuple(reversed(contiguous(box.sizes[::-1]))) if turned else None
            self.parts[box] = MemorySlot(box.sizes, dtype, stride, device=device)

    def part(self, start, shape):
        return self.parts[Box(start, shape)]


def grid(draw, shape, most):
    """Boxes that fill `shape`: cut along each dimension at random places."""
    edges = []
    for size in shape:
        inner = draw(st.lists(st.integers(1, max(1, size - 1)), max_size=most)) if size > 1 else []
        edges.append(sorted({0, size, *inner}))
    found = []
    for index in indices([len(e) - 1 for e in edges]):
        start = tuple(e[i] for i, e in zip(index, edges, strict=True))
        sizes = tuple(e[i + 1] - e[i] for i, e in zip(index, edges, strict=True))
        found.append(Box(start, sizes))
    return found


@st.composite
def scenes(draw):
    """A stored tensor, whole or in chunks, and the boxes of a rank: some of a grid, or a flat range cut into boxes."""
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
    chunks = draw(st.permutations(grid(draw, shape, 4)))
    if draw(st.booleans()):
        boxes = draw(st.lists(st.sampled_from(grid(draw, shape, 3)), unique=True, max_size=4))
    else:
        ends = sorted(draw(st.tuples(*[st.integers(0, math.prod(shape))] * 2)))
        boxes = flat_boxes(shape, *ends)
    return shape, chunks, tuple(boxes)


def by_torch(shape, chunks, boxes):
    """What torch's own planner would read."""

    def chunk(box):
        return ChunkStorageMetadata(Size(box.start), Size(box.sizes))

    saved = TensorStorageMetadata(TensorProperties(), Size(shape), list(map(chunk, chunks)))
    items = create_read_items_for_chunk_list("w", saved, list(map(chunk, boxes)))
    return sorted(
        (tuple(i.dest_index.offset), tuple(i.dest_offsets), tuple(i.storage_index.offset), tuple(i.storage_offsets),
         tuple(i.lengths))
        for i in items
    )  # fmt: skip


def copy_of(make, shape, chunks, boxes, dtype="float32", *, slot_dtype="", crc=True):
    """A copy of a tensor in chunks, one storage each, into boxes."""
    parts = []
    for box in chunks:
        data = numbers(box.numel, dtype)
        node = TensorNode(make.storage(data, dtype, crc=crc), 0, box.sizes, contiguous(box.sizes), dtype, "cpu")
        parts.append(Chunk(box.start, node))
    size = math.prod(shape) * itemsize(dtype)
    whole = Storage("whole", dtype, size, "cpu", None, None, shape=shape, chunks=tuple(parts))
    node = parts[0].node if len(parts) == 1 else TensorNode(whole, 0, shape, contiguous(shape), dtype, "cpu")
    slot = Slot("w", shape, slot_dtype or dtype, contiguous(shape), "cpu", dense=True, boxes=boxes)
    return Copy("model", "w", "model.w", node, slot)


@settings(deadline=None, max_examples=300)
@given(scenes())
def test_cuts_are_those_of_torch(scene):
    """Each rank takes the parts that torch.distributed.checkpoint's own planner would have it read."""
    shape, chunks, boxes = scene
    copy = copy_of(FileMaker(), shape, chunks, boxes)
    starts = {c.node.storage.key: (c.start, c.node.stride) for c in copy.node.storage.chunks}
    found = []
    for cut in cuts_of(copy):
        start, stride = starts.get(cut.node.storage.key, (tuple(0 for _ in shape), copy.node.stride))
        rest, place = cut.node.offset, []
        for step in stride:
            place.append(rest // step)
            rest %= step
        found.append((cut.box.start, cut.start, start, tuple(place), cut.node.shape))
    assert sorted(found) == by_torch(shape, chunks, boxes)


def wanted_bytes(copy):
    """Every byte of the file that holds an element of a box."""
    size, found = itemsize(copy.node.dtype), set()
    for cut in cuts_of(copy):
        for index in indices(cut.node.shape):
            element = cut.node.offset + sum(i * s for i, s in zip(index, cut.node.stride, strict=True))
            first = cut.node.storage.span.offset + element * size
            found.update(range(first, first + size))
    return found


@settings(deadline=None, max_examples=200)
@given(scenes(), st.integers(64, 400), st.sampled_from([4, 16, 4096]), st.data())
def test_boxes_are_filled_and_no_page_of_others_is_read(scene, buffer_bytes, page, data):
    """Bytes read are those of a rank's own boxes; between two of them less than a page may be read through."""
    shape, chunks, boxes = scene
    make, dtype = FileMaker(), data.draw(st.sampled_from(["float32", "float64"]))
    copy = copy_of(make, shape, chunks, boxes, slot_dtype=dtype)
    turned, device = data.draw(st.booleans()), data.draw(st.booleans())
    sink, reader, calls = BoxedSlot(boxes, dtype, turned=turned, device=device), make.reader(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "PAGE", page)
        patch.setattr(schedule, "GAP", page)
        patch.setattr(partial, "PIECE", 100)
        done = stream(
            [copy],
            {"w": sink},
            open_span=lambda file: reader,
            buffer_bytes=buffer_bytes,
            threads=1,
            verify="stream",
            progress=calls.append,
        )
        assert sum(calls) == stored_bytes([copy], verify="stream")
    values = make._expected_of_chunks(copy.node) if copy.node.storage.chunks else make.expected(copy)
    places = dict(zip(indices(shape), values, strict=True))
    for box, memory in sink.parts.items():
        own = [places[tuple(a + i for a, i in zip(box.start, index, strict=True))] for index in indices(box.sizes)]
        assert memory.values() == own
    read = [byte for offset, count in reader.reads for byte in range(offset, offset + count)]
    wanted = wanted_bytes(copy)
    assert wanted <= set(read)
    assert len(read) == len(set(read)) or done.in_part
    assert all(any(near in wanted for near in range(byte - page, byte)) for byte in set(read) - wanted)


def test_a_storage_read_in_part_is_not_verified():
    """A checksum covers a storage whole: one that is read in part counts as neither verified nor unverified."""
    make = FileMaker()
    rows = copy_of(make, (8, 4), [Box((0, 0), (8, 4))], (Box((2, 0), (3, 4)),))
    done = stream(
        [rows],
        {"w": BoxedSlot(rows.slot.boxes, "float32")},
        open_span=make.opener(),
        buffer_bytes=1 << 16,
        threads=1,
        verify="stream",
        progress=None,
    )
    assert (done.nbytes, done.verified, done.unverified, len(done.in_part)) == (48, 0, 0, 1)


def test_boxes_that_leave_nothing_out_are_verified():
    """A storage whose bytes are all wanted keeps its checksum, though they go to several boxes."""
    make = FileMaker()
    boxes = tuple(flat_boxes((8, 4), 0, 18)) + tuple(flat_boxes((8, 4), 18, 32))
    copy = copy_of(make, (8, 4), [Box((0, 0), (8, 4))], boxes)
    sink = BoxedSlot(boxes, "float32")
    done = stream(
        [copy],
        {"w": sink},
        open_span=make.opener(),
        buffer_bytes=1 << 16,
        threads=1,
        verify="stream",
        progress=None,
    )
    assert (done.nbytes, done.verified, done.unverified, len(done.in_part)) == (128, 1, 0, 0)


class EndlessReader(BytesReader):
    """A file that is all zero, of any size, and notes what is read of it."""

    def __init__(self, size):
        super().__init__(b"")
        self.size = size

    def some_into(self, offset, target):
        self.reads.append((offset, len(target)))
        return len(target)


@pytest.mark.parametrize("axis", [0, 1], ids=["rows", "columns"])
def test_a_rank_reads_its_slice_and_nothing_else(axis):
    """Of a tensor of 4,096 columns, a quarter along either dimension costs a quarter of its bytes."""
    shape, size = (256, 4096), 256 * 4096 * 4
    node = TensorNode(
        Storage("0", "float32", size, "cpu", Span(1024, size), 7), 0, shape, contiguous(shape), "float32", "cpu"
    )
    sizes = tuple(n // 4 if i == axis else n for i, n in enumerate(shape))
    box = Box(tuple(n * (i == axis) for i, n in enumerate(sizes)), sizes)
    copy = Copy("model", "w", "w", node, Slot("w", shape, "float32", (4096, 1), "cpu", dense=True, boxes=(box,)))
    reader = EndlessReader(size + 2048)

    class Counted:
        dense, stride = True, contiguous(sizes)
        memory, elements = bytearray(size // 4), 0

        def part(self, start, shape):
            return self

        def direct(self, nbytes):
            return memoryview(self.memory)

        def expect(self, start, end):
            pass

        def accept(self, window, data):
            Counted.elements += math.prod(window.shape)

    done = stream(
        [copy],
        {"w": Counted()},
        open_span=lambda file: reader,
        buffer_bytes=1 << 20,
        threads=1,
        verify="stream",
        progress=None,
    )
    assert sum(count for _, count in reader.reads) == done.nbytes == size // 4
    assert Counted.elements == (0 if axis == 0 else math.prod(sizes))
