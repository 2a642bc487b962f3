"""Where a bare load puts each storage: the role table against every wish, and absent devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from unmoor.errors import DeviceError
from unmoor.plan.placement import Wish, is_present, place_storages
from unmoor.values.catalog import Catalog, Part, TensorEntry
from unmoor.values.nodes import Span, Storage
from unmoor.values.roles import ROLES

HERE = {"cpu": 1, "meta": 1, "sim": 2}


def storage(key: str, device: str) -> Storage:
    return Storage(key, "float32", 8, device, Span(0, 8), None)


def entry(key: str, role: str, *keys: Any) -> TensorEntry:
    path = ".".join(map(str, keys or (role, key)))
    return TensorEntry(path, role, (2,), "float32", (1,), "", 8, key, Span(0, 8), keys=keys or (role, key))


def catalog(storages: list[Storage], entries: list[TensorEntry], parts: tuple[Part, ...] = ()) -> Catalog:
    return Catalog("run.pt", "torch-zip", "plain", tuple(entries), parts, (), (), storages=tuple(storages))


def placed(role: str, stored: str, wish: Wish) -> str:
    """Where one storage of `role`, saved on `stored`, goes."""
    return place_storages(catalog([storage("0", stored)], [entry("0", role)]), wish, HERE)["0"]


@pytest.mark.parametrize("role", ROLES)
def test_nothing_asked_leaves_everything_where_it_was_stored(role: str) -> None:
    """model_device=None: as stored, for every role of the table but random number states."""
    assert placed(role, "sim:1", Wish()) == ("cpu" if role == "rng" else "sim:1")
    assert placed(role, "cpu", Wish()) == "cpu"


EXPECTED = {"device": "sim:0", "parameter": "sim:0", "live": "cpu", "cpu": "cpu"}


@pytest.mark.parametrize("stored", ["cuda:7", "sim:1", "cpu", "xla:0"])
@pytest.mark.parametrize("role", [name for name, role in ROLES.items() if role.placement != "user"])
def test_a_model_device_places_every_role_by_the_table(role: str, stored: str) -> None:
    """After model_device=D models and what stands beside their parameters are on D, all else on the CPU."""
    assert placed(role, stored, Wish(device="sim:0")) == EXPECTED[ROLES[role].placement]


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [("sim:0", "sim:0"), ("cpu", "cpu"), ({"cuda:7": "sim:1"}, "sim:1"), ({"cuda:7": "cpu", "cpu": "sim:0"}, "cpu")],
    ids=str,
)
def test_a_map_location_has_torchs_meaning(mapping: str | Mapping[str, str], expected: str) -> None:
    """A tag is for everything, a mapping for the tags it names; random number states stay on the CPU."""
    assert placed("model", "cuda:7", Wish(mapping=mapping)) == expected
    assert placed("rng", "cuda:7", Wish(mapping=mapping)) == "cpu"


def test_data_that_is_shared_with_a_random_state_is_not_pinned() -> None:
    """Only a storage that nothing but a random number state looks into stays on the CPU."""
    shared = catalog([storage("0", "sim:0")], [entry("0", "rng"), entry("0", "model")])
    assert place_storages(shared, Wish(device="sim:1"), HERE) == {"0": "sim:1"}


@pytest.mark.parametrize(
    ("flags", "expected"), [({}, "cpu"), ({"capturable": True}, "sim:0"), ({"fused": True}, "sim:0")], ids=str
)
def test_a_step_counter_goes_to_the_device_only_where_its_group_wants_it(flags: dict[str, bool], expected: str) -> None:
    """Adam's step is on the CPU unless its group is capturable or fused; moments are beside their parameter."""
    groups = [{"params": [0], **flags}, {"params": [1]}]
    part = Part("optimizer", "state_dict", ("optimizer",), 0, 0, {}, node={"state": {}, "param_groups": groups})
    keys = [("optimizer", "state", 0, "step"), ("optimizer", "state", 1, "step"), ("optimizer", "state", 0, "exp_avg")]
    entries = [entry(str(i), "optimizer", *path) for i, path in enumerate(keys)]
    storages = [storage(str(i), "cuda:0") for i in range(3)]
    found = place_storages(catalog(storages, entries, (part,)), Wish(device="sim:0"), HERE)
    assert found == {"0": expected, "1": "cpu", "2": "sim:0"}


def test_a_callable_gets_everything_on_the_cpu_first() -> None:
    """A map_location callable is handed CPU storages, as by torch.load."""
    assert placed("model", "cuda:7", Wish(by_call=True)) == "cpu"


@pytest.mark.parametrize("spelling", ["cpu:0", "CPU", "cpu"])
def test_every_spelling_of_the_cpu_in_a_file_is_the_cpu(spelling: str) -> None:
    """A tag cpu:0 in a file is no device of its own."""
    assert placed("model", spelling, Wish()) == "cpu"


def test_all_absent_devices_are_reported_together() -> None:
    """Every absent device is named with its tensors and roles, and the call that works keeps what was asked."""
    storages = [storage("0", "cuda:3"), storage("1", "cuda:7"), storage("2", "cpu"), storage("3", "mps")]
    entries = [entry("0", "model"), entry("1", "model"), entry("1", "ema"), entry("2", "model"), entry("3", "loss")]
    with pytest.raises(DeviceError) as caught:
        place_storages(catalog(storages, entries), Wish(mapping={"mps": "cpu"}), HERE)
    advice = 'model_device="auto"), or map_location={"mps": "cpu", "cuda:3": "cpu", "cuda:7": "cpu"}.'
    assert str(caught.value).splitlines() == [
        "run.pt was saved on cuda:3 and cuda:7, and this machine has no CUDA device",
        "  cuda:3   1 tensor    model",
        "  cuda:7   2 tensors   model, ema",
        f"Say where it should go: unmoor.load('run.pt', {advice}",
    ]


@pytest.mark.parametrize(
    ("stored", "lacks"),
    [
        ("sim:7", "only cpu, sim:0, sim:1"),
        ("maia:0", "no maia device"),
        ("a_new_one:0", "no a_new_one device"),
        ("not a tag!", "no not a tag! device"),
    ],
)
def test_an_absent_device_is_told_by_what_is_missing(stored: str, lacks: str) -> None:
    """An index too high is told by the devices that are there, a type that is not there by its name."""
    with pytest.raises(DeviceError) as caught:
        placed("model", stored, Wish())
    assert f"run.pt was saved on {stored}, and this machine has {lacks}" in str(caught.value)


@pytest.mark.parametrize(
    "wish", [Wish(mapping="cuda:0"), Wish(mapping={"cpu": "cuda:0"}), Wish(device="cuda:0")], ids=str
)
def test_a_device_that_was_asked_for_is_not_blamed_on_the_file(wish: Wish) -> None:
    """Where the caller named the absent device, the error says so and lists the devices that are here."""
    with pytest.raises(DeviceError) as caught:
        placed("model", "cpu", wish)
    assert str(caught.value).splitlines()[:2] == [
        "cuda:0 was asked for, and this machine does not have it",
        "  present here: cpu, sim:0, sim:1",
    ]


@pytest.mark.parametrize(
    ("tag", "present"),
    [
        ("cpu", True),
        ("cpu:0", True),
        ("sim", True),
        ("sim:1", True),
        ("sim:2", False),
        ("cuda:0", False),
        ("meta", True),
    ],
)
def test_a_device_is_present_by_type_and_index(tag: str, present: bool) -> None:
    """An index must be below the number of devices of its type; no index means the first."""
    assert is_present(tag, HERE) is present
