"""Tensors as tiles: what lies inside a tile adds up to it, whatever was cut, and no more is drawn than can be seen."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from unmoor.report.page_tree import Tile, tiles

NAMES = st.lists(st.sampled_from(["a", "b", "0", "1", "", "weight"]), min_size=1, max_size=30).map(".".join)
TENSORS = st.lists(st.tuples(NAMES, st.integers(0, 1 << 40), st.integers(0, 3)), max_size=60)


def hold_the_law(made: Sequence[Tile], found: Sequence[tuple[str, int, int]]) -> None:
    """Bytes and tensors of neighbours add up to those of the tile they lie in; the first tile is all of them."""
    assert (made[0].nbytes, made[0].tensors) == (sum(nbytes for _, nbytes, _ in found), len(found))
    inside: dict[int, list[Tile]] = {}
    for tile in made[1:]:
        inside.setdefault(tile.parent, []).append(tile)
    for number, children in inside.items():
        assert number < len(made)
        assert sum(child.nbytes for child in children) == made[number].nbytes
        assert sum(child.tensors for child in children) == made[number].tensors


@given(TENSORS, st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_tiles_of_one_parent_hold_its_bytes_whatever_is_cut(found, budget):
    """Tiles that have the same parent hold together exactly the bytes of that parent, whatever was cut."""
    made = tiles(found, budget=budget)
    assert len(made) <= budget
    hold_the_law(made, found)


def test_modules_are_tiles_and_chains_of_one_are_one_tile():
    """A module that holds nothing but another is drawn with it, as `state_dict.net`."""
    made = tiles([("state_dict.net.0.w", 8, 0), ("state_dict.net.1.w", 4, 1)])
    assert [(tile.label, tile.path, tile.nbytes, tile.kind) for tile in made] == [
        ("all", "", 12, 0),
        ("state_dict.net", "state_dict.net", 12, 0),
        ("0.w", "state_dict.net.0.w", 8, 0),
        ("1.w", "state_dict.net.1.w", 4, 1),
    ]


def test_a_tensor_beside_what_lies_below_its_name_is_a_tile_of_its_own():
    """`scale` and `scale.zero` are both there, the first as itself."""
    made = tiles([("q.scale", 4, 0), ("q.scale.zero", 8, 0)])
    assert [(tile.label, tile.nbytes) for tile in made[2:]] == [("itself", 4), ("zero", 8)]


def test_many_neighbours_are_drawn_by_runs_and_the_large_ones_alone():
    """Ten thousand layers and one embedding: the embedding stands alone, the layers by runs that can be opened."""
    found = [("embed", 1 << 30, 0), *((f"layers.{i}.w", 1000, 1) for i in range(10_000))]
    made = tiles(found)
    hold_the_law(made, found)
    inside = [tile.label for tile in made if made[tile.parent].label == "layers"]
    assert inside[0] == "0.w..156.w"
    assert len(inside) <= 64
    assert any(tile.label == "embed" for tile in made)


def test_no_more_is_drawn_than_can_be_seen():
    """A hundred thousand names make some thousand tiles, nested as deep as they please."""
    found = [(f"{'m.' * (i % 200)}{i}.w", i, 0) for i in range(20_000)]
    made = tiles(found)
    assert len(made) <= 2500
    hold_the_law(made, found)
