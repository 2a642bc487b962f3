"""Checksums of storages of which each rank reads a part."""

from __future__ import annotations

from .launch import launch


def test_ranks_put_their_sums_together():
    """Each reads half of every tensor, all of them are vouched for; a byte that only rank 1 reads stops both ranks."""
    for rank, found in enumerate(launch("tests.worlds.ranks.checksums", 2)):
        assert found["equal"], rank
        assert (found["in part"], found["verified"]) == (0, 4)
        assert "every checksum holds" in " ".join(found["text"].split())
        assert "0.weight does not match its checksum" in found["error"]
        assert "restore" in found["error"]
