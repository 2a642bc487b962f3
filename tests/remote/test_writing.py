"""Writing to S3: an object appears whole or not at all, the older one is never lost, no part is left over."""

from __future__ import annotations

import io

import pytest
import torch

import unmoor
from unmoor.errors import MachineError, SaveError
from unmoor.remote import drafts, stores

PART = 5 << 20


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    """Parts are as small as S3 lets them be, so that a small object has several."""
    monkeypatch.setattr(drafts, "PART", PART)
    monkeypatch.setattr(stores, "TRIES", 3)


def tree(seed: int = 0):
    """Some 11 MiB: one tensor over three parts, and small ones before and after it."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"small": 100, "large": 11 << 18, "empty": 0, "last": 5000}
    return {name: torch.randn(size, generator=generator) for name, size in sizes.items()} | {"step": seed}


def put(store, kept):
    """An older object, written by torch."""
    made = io.BytesIO()
    torch.save(kept, made)
    store.behind.pipe_file(f"{store.bucket}/run/step.pt", made.getvalue())


def stored(store, name="run/step.pt"):
    return torch.load(io.BytesIO(store.behind.cat_file(f"{store.bucket}/{name}")))


def equal(found, wanted):
    return found["step"] == wanted["step"] and all(
        torch.equal(found[name], value) for name, value in wanted.items() if name != "step"
    )


def test_an_object_has_the_bytes_of_the_file(store, tmp_path):
    """What is sent part by part is what a file would hold, byte for byte; it is complete before it is read back."""
    url, kept = f"{store.url}/run/step.pt", tree()
    receipt = unmoor.save(url, kept)
    unmoor.save(tmp_path / "step.pt", kept)
    here, there = (tmp_path / "step.pt").read_bytes(), store.behind.cat_file(f"{store.bucket}/run/step.pt")
    assert receipt.nbytes == len(here) == len(there)
    assert here[:-2000] == there[:-2000]  # the manifest after that says when it was made
    assert [r.operation for r in store.proxy.seen if r.operation in ("part", "complete")] == ["part"] * 3 + ["complete"]
    assert store.names() == ["run/step.pt"]
    assert not store.uploads()


PASSING = [
    ("part", "503", {"times": 2}),
    ("part", "503", {"times": 2, "skip": 2}),
    ("part", "refuse", {"times": 2, "skip": 1}),
    ("part", "swallow", {"times": 2, "skip": 1}),
    ("part", "slow", {"times": 2, "seconds": 0.2}),
    ("create", "503", {"times": 2}),
    ("create", "refuse", {"times": 1}),
    ("complete", "503", {"times": 2}),
    ("complete", "refuse", {"times": 1}),
    ("complete", "swallow", {"times": 1}),
    ("get", "503", {"times": 2}),
    ("get", "drop", {"times": 2}),
    ("head", "503", {"times": 2}),
]


@pytest.mark.parametrize(("operation", "how", "more"), PASSING, ids=lambda value: str(value).replace(" ", ""))
def test_a_part_that_fails_in_passing_is_sent_again(store, operation, how, more):
    """Whatever fails once is done again, and no part twice in the object: an answer that was lost is found out."""
    put(store, tree(1))
    store.proxy.clear()
    fault = store.proxy.fail(operation, how, **more)
    unmoor.save(f"{store.url}/run/step.pt", tree(2))
    assert fault.hit == fault.times
    assert equal(stored(store), tree(2))
    assert store.names() == ["run/step.pt"]


LASTING = [
    ("create", "503", 0, True),
    ("create", "403", 0, False),
    ("part", "503", 0, False),
    ("part", "503", 2, True),
    ("part", "refuse", 1, True),
    ("part", "403", 2, False),
    ("complete", "503", 0, True),
    ("complete", "403", 0, False),
    ("complete", "refuse", 0, True),
    ("head", "403", 0, True),
]


@pytest.mark.parametrize(("operation", "how", "skip", "older"), LASTING)
def test_a_save_that_fails_leaves_what_was_there(store, operation, how, skip, older):
    """The upload is given up: nothing of it is to be seen or paid for, and the older object is untouched."""
    if older:
        put(store, tree(1))
    store.proxy.clear()
    store.proxy.fail(operation, how, times=10_000, skip=skip)
    with pytest.raises(SaveError, match=r"was not saved: could not be") as caught:
        unmoor.save(f"{store.url}/run/step.pt", tree(2))
    assert isinstance(caught.value, MachineError)
    assert isinstance(caught.value, OSError)
    assert f"{store.url}/run/step.pt" in str(caught.value)
    assert store.names() == (["run/step.pt"] if older else [])
    assert not store.uploads()
    if older and operation != "head":
        assert "the checkpoint that was there before is untouched" in str(caught.value)
    if older:
        assert equal(stored(store), tree(1))


def test_an_upload_that_cannot_be_given_up_is_told(store):
    """Where even that is refused, the error says what may be left."""
    store.proxy.fail("part", "403", times=100)
    store.proxy.fail("abort", "403", times=100)
    with pytest.raises(SaveError, match="an upload that was never completed"):
        unmoor.save(f"{store.url}/run/step.pt", tree(2))
    assert store.names() == []


@pytest.mark.parametrize("older", [False, True], ids=["alone", "over an older one"])
def test_what_reads_back_otherwise_is_no_success(store, older):
    """A store that gives back other bytes than were sent: the object is removed, or the error says what it replaced."""
    if older:
        unmoor.save(f"{store.url}/run/step.pt", tree(1))
    store.proxy.clear()
    other = lambda: store.behind.pipe_file(f"{store.bucket}/run/step.pt", b"x" * 1000)
    store.proxy.fail("head", other, skip=1)
    with pytest.raises(SaveError, match="the store has 1,000") as caught:
        unmoor.save(f"{store.url}/run/step.pt", tree(2))
    assert ("has replaced the checkpoint" in str(caught.value)) == older
    assert store.names() == (["run/step.pt"] if older else [])


def test_a_save_in_the_background_tells_its_failure(store):
    """background=True goes the same way, in a thread: credentials stay in this process."""
    pending = unmoor.save(f"{store.url}/run/step.pt", tree(1), background=True)
    pending.wait()
    assert equal(stored(store), tree(1))
    store.proxy.fail("part", "403", times=100)
    pending = unmoor.save(f"{store.url}/run/step.pt", tree(2), background=True)
    with pytest.raises(SaveError, match="was not saved"):
        pending.wait()
    assert equal(stored(store), tree(1))
    assert not store.uploads()


def test_uploads_of_a_killed_process_are_given_up_when_they_are_old(store, monkeypatch):
    """An upload to the name that was never completed is not to be seen; once it is old, the next save aborts it."""
    store.behind.call_s3("create_multipart_upload", Bucket=store.bucket, Key="run/step.pt")
    store.behind.call_s3("create_multipart_upload", Bucket=store.bucket, Key="run/step.pt.other")
    assert store.names() == []
    monkeypatch.setattr(drafts, "ORPHAN", 1e12)
    unmoor.save(f"{store.url}/run/step.pt", tree(1))
    assert sorted(store.uploads()) == ["run/step.pt", "run/step.pt.other"]
    monkeypatch.setattr(drafts, "ORPHAN", 24 * 3600)  # this server says of every upload that it was begun years ago
    unmoor.save(f"{store.url}/run/step.pt", tree(2))
    assert store.uploads() == ["run/step.pt.other"]
    assert equal(stored(store), tree(2))


def test_a_folder_is_not_replaced_by_an_object(store):
    """Where objects lie below the name, nothing is written."""
    store.behind.pipe_file(f"{store.bucket}/run/step.pt/note.txt", b"note")
    with pytest.raises(SaveError, match="it is a folder"):
        unmoor.save(f"{store.url}/run/step.pt", tree(1))
    assert store.names() == ["run/step.pt/note.txt"]
