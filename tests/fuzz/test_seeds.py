"""The seeds are what their maker makes, and each is read."""

from __future__ import annotations

import pytest

from tests.fuzz.choices import packed, unpacked
from tests.fuzz.looks import _laid
from tests.fuzz.make_seeds import SEED_MAKERS, made
from tests.fuzz.targets import SEEDS, TARGETS
from unmoor.describe import describe_path


def _outline(files, folder):
    folder.mkdir()
    catalog = describe_path(_laid(files, folder))
    return catalog.format, [(entry.path, entry.shape, entry.dtype, entry.role) for entry in catalog.tensors]


def test_every_seed_has_a_maker():
    """What is committed is what the table names."""
    assert {f"{path.parent.name}/{path.stem}" for path in SEEDS.rglob("*.seed")} == set(SEED_MAKERS)


@pytest.mark.parametrize(
    "name", [name for name in SEED_MAKERS if TARGETS[name.partition("/")[0]].look.__name__ == "at_checkpoint"]
)
def test_a_seed_describes_as_one_made_now(name, tmp_path):
    """A seed of a checkpoint is read, and holds the tensors that its maker puts into it today."""
    kept = unpacked((SEEDS / f"{name}.seed").read_bytes())
    assert _outline(kept, tmp_path / "kept") == _outline(made(name), tmp_path / "made")


def test_packing_is_undone():
    """An input of several files comes back as it was."""
    files = {"a/b": b"x", "": b"", "c": bytes(300)}
    assert unpacked(packed(files)) == files
