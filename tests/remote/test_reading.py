"""Reading from S3: no byte more than is needed, whatever the network does; one version of the object, or an error."""

from __future__ import annotations

import pytest
import torch

import unmoor
from unmoor.errors import CorruptFile, MachineError, NotACheckpoint, ReadError
from unmoor.remote import reading, stores

from .runs import checkpoint, fresh, held, trained

MIB = 1 << 20


@pytest.fixture
def saved(store, monkeypatch):
    """The URL of a checkpoint that lies in the bucket; requests for data are small, so that there are many."""
    monkeypatch.setattr(reading, "GRAIN", MIB // 4)
    monkeypatch.setattr(reading.RemoteReader, "grain", MIB // 4)
    store.behind.pipe_file(f"{store.bucket}/run/step_1.pt", checkpoint())
    return f"{store.url}/run/step_1.pt"


def same(state, seed=0):
    wanted = held(trained(seed))
    found = held(state)
    return wanted.keys() == found.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_describing_asks_for_both_ends_of_a_file_and_no_more(saved, store):
    """A file of 1,000 tensors, each farther from the next than a read is long, takes a handful of requests."""
    tree = {f"t{number}": torch.zeros(24 << 10) for number in range(1000)}
    local = f"{store.url}/many.pt"
    unmoor.save(local, tree)
    store.proxy.clear()
    catalog = unmoor.describe(local)
    assert len(catalog.tensors) == 1000
    assert len(store.proxy.of("head")) <= 2
    assert len(store.proxy.of("get")) <= 4
    assert store.proxy.bytes_read() < MIB < catalog.size / 50


def test_a_model_is_restored_without_its_optimizer_being_read(saved, store):
    """Only the ranges of what is restored are asked for: a third of the file."""
    model = fresh()[0]
    store.proxy.clear()
    unmoor.restore(saved, model=model)
    size, model_bytes = len(checkpoint()), sum(p.nbytes for p in model.parameters())
    assert size > 2.9 * model_bytes
    spans = [request.span for request in store.proxy.of("get")]
    assert None not in spans
    assert store.proxy.bytes_read() < model_bytes + MIB
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), trained()[0].parameters(), strict=True))


def test_the_data_is_read_once(saved, store):
    """Of the data of all tensors no byte is asked for twice."""
    state = fresh()
    unmoor.restore(saved, model=state[0], optimizer=state[1], rng=False)
    assert same(state)
    assert store.proxy.bytes_read() < len(checkpoint()) * 1.05 + MIB


def test_verifying_reads_every_byte_that_has_a_checksum(saved, store):
    """Every record is read once, and damage is found and named."""
    assert unmoor.verify(saved).ok
    assert len(checkpoint()) * 0.98 < store.proxy.bytes_read() < len(checkpoint()) * 1.05 + MIB
    data = bytearray(checkpoint())
    data[len(data) // 2] ^= 1
    store.behind.pipe_file(f"{store.bucket}/run/step_2.pt", bytes(data))
    assert not unmoor.verify(f"{store.url}/run/step_2.pt").ok


PASSING = [
    ("get", "503", {"times": 3}),
    ("get", "drop", {"times": 3}),
    ("get", "cut", {"times": 5}),
    ("get", "refuse", {"times": 3}),
    ("get", "drop", {"times": 6, "skip": 4}),
    ("get", "cut", {"times": 6, "skip": 4}),
    ("get", "slow", {"times": 3, "skip": 3, "seconds": 0.2}),
    ("head", "503", {"times": 3}),
    ("head", "refuse", {"times": 3}),
]


@pytest.mark.parametrize(("operation", "how", "more"), PASSING, ids=lambda value: str(value).replace(" ", ""))
def test_what_passes_is_tried_again(saved, store, operation, how, more):
    """A dropped connection, a truncated answer, a store that says to slow down: it goes on from where it stopped."""
    state = fresh()
    fault = store.proxy.fail(operation, how, **more)
    unmoor.restore(saved, model=state[0], optimizer=state[1], rng=False)
    assert fault.hit == fault.times
    assert same(state)


LASTING = [("head", "503"), ("head", "refuse"), ("get", "503"), ("get", "refuse"), ("get", "403"), ("head", "403")]


@pytest.mark.parametrize(("operation", "how"), LASTING)
def test_what_lasts_is_an_error_that_names_the_url(saved, store, operation, how, monkeypatch):
    """After a bounded number of tries the error says which URL, what was done, and what to do; nothing was changed."""
    monkeypatch.setattr(stores, "TRIES", 2)
    state = fresh()
    before = held(state)
    fault = store.proxy.fail(operation, how, times=10_000)
    with pytest.raises(ReadError, match="could not be") as caught:
        unmoor.restore(saved, model=state[0], optimizer=state[1], rng=False)
    assert isinstance(caught.value, MachineError)
    assert saved in str(caught.value)
    assert caught.value.remedy
    assert fault.hit < 60
    assert all(torch.equal(value, before[name]) for name, value in held(state).items() if name in before)


def test_an_error_amid_the_data_says_what_had_been_filled(saved, store, monkeypatch):
    """Where the store goes away half-way, the slots that were written to are named, as for a disk."""
    monkeypatch.setattr(stores, "TRIES", 2)
    state = fresh()
    store.proxy.fail("get", "refuse", skip=8, times=10_000)
    with pytest.raises(MachineError) as caught:
        unmoor.restore(saved, model=state[0], optimizer=state[1], rng=False)
    assert saved in str(caught.value)
    assert caught.value.done


@pytest.mark.parametrize("skip", [1, 2, 4, 7])
def test_an_object_that_is_replaced_meanwhile_is_never_mixed(saved, store, skip):
    """Every request names the version that was seen first: another one is an error, not data."""
    state = fresh()
    replace = lambda: store.behind.pipe_file(f"{store.bucket}/run/step_1.pt", checkpoint(1))
    store.proxy.fail("get", replace, skip=skip)
    with pytest.raises(CorruptFile, match="was replaced while it was read"):
        unmoor.restore(saved, model=state[0], optimizer=state[1], rng=False)


def test_an_object_that_is_removed_meanwhile_is_told(saved, store):
    """404 in the middle says that it was removed."""
    state = fresh()
    store.proxy.fail("get", lambda: store.behind.rm_file(f"{store.bucket}/run/step_1.pt"), skip=5)
    with pytest.raises(CorruptFile, match="was removed while it was read"):
        unmoor.restore(saved, model=state[0], optimizer=state[1], rng=False)


def test_what_is_not_there_is_told_with_what_lies_beside_it(saved, store):
    """A name that leads to nothing, and a folder, are told as such."""
    with pytest.raises(NotACheckpoint, match=r"does not exist") as caught:
        unmoor.describe(f"{store.url}/run/step_7.pt")
    assert "step_1.pt" in str(caught.value)
    with pytest.raises(NotACheckpoint, match=r"holds no checkpoint|does not exist"):
        unmoor.describe(f"{store.url}/nothing/here")


def test_a_file_that_is_there_in_a_listing_and_gone_when_it_is_read(saved, store):
    """404 after the listing: the folder is read as far as it is there, or the missing one is named."""
    store.proxy.fail("head", "404", times=1000)
    store.proxy.fail("get", "404", times=1000)
    with pytest.raises(NotACheckpoint, match=r"step_1\.pt"):
        unmoor.describe(f"{store.url}/run")
