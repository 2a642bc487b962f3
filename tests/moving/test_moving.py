"""`to_device`: every kind of batch arrives whole, nothing is copied that need not be, and the caller's batch stays."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import unmoor
from unmoor.errors import ArgumentConflict, DeviceError, UsageError

pytestmark = pytest.mark.usefixtures("sim")
HOME = "sim:1"


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Sample:
    image: Any
    labels: Any
    name: str = "a"
    shape: Any = dataclasses.field(init=False, default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    image: Any
    note: str = "b"


class Encoding(collections.UserDict):
    """As transformers' BatchEncoding: it moves itself in place, and has attributes beside its data."""

    def __init__(self, data=None, encodings=None) -> None:
        super().__init__(data or {})
        self.encodings = encodings

    def to(self, device, non_blocking=False):
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


class Output(collections.OrderedDict):
    """As transformers' ModelOutput: a mapping whose keys are attributes too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Attributes(dict):
    """As many write it: a dict whose keys are attributes, and a missing one is a KeyError."""

    __getattr__ = dict.__getitem__


class Proxy:
    """As proxies of frameworks: it raises whatever is asked of it outside of its context."""

    def __getattr__(self, name):
        raise RuntimeError("outside of context")


class TensorDictLike(collections.abc.MutableMapping):
    """As a TensorDict: a mapping with a batch size and a method `to` that gives another."""

    def __init__(self, data, batch_size) -> None:
        self._data, self.batch_size = data, batch_size

    def __getitem__(self, key):
        return self._data[key]

    def __setitem__(self, key, value):
        self._data[key] = value

    def __delitem__(self, key):
        del self._data[key]

    def __iter__(self):
        return iter(self._data)

    def __len__(self):
        return len(self._data)

    def to(self, device, non_blocking=False):
        return TensorDictLike({k: v.to(device) for k, v in self._data.items()}, self.batch_size)


class Graph:
    """As torch_geometric's Data: it moves itself in place and gives itself back, its tensors a level down."""

    def __init__(self, **tensors) -> None:
        self._store = dict(tensors)

    def __copy__(self):
        return Graph(**self._store)

    def to(self, device):
        for key, value in self._store.items():
            self._store[key] = value.to(device)
        return self


class Items(collections.abc.Mapping):
    def __init__(self, data) -> None:
        self._data = dict(data)

    def __getitem__(self, key):
        return self._data[key]

    def __iter__(self):
        return iter(self._data)

    def __len__(self):
        return len(self._data)


class Numbers(tuple):
    pass


class Opaque:
    def __init__(self, tensor) -> None:
        self.tensor = tensor


class Colour(enum.Enum):
    RED = 1


def t() -> torch.Tensor:
    return torch.arange(3.0)


KINDS: dict[str, Any] = {
    "a tensor": (t, lambda b: [b]),
    "a parameter": (lambda: nn.Parameter(t()), lambda b: [b]),
    "a dict": (lambda: {"x": t(), "labels": t().long()}, lambda b: [b["x"], b["labels"]]),
    "a dict in a list in a tuple": (lambda: ([{"x": t()}, 3],), lambda b: [b[0][0]["x"]]),
    "a named tuple": (lambda: Pair(t(), [t()]), lambda b: [b.x, b.y[0]]),
    "an ordered dict": (lambda: collections.OrderedDict(x=t()), lambda b: [b["x"]]),
    "a default dict": (lambda: collections.defaultdict(list, x=[t()]), lambda b: [b["x"][0]]),
    "a deque": (lambda: collections.deque([t()], maxlen=4), lambda b: [b[0]]),
    "a set": (lambda: {t()}, list),
    "a frozen set": (lambda: frozenset([t()]), list),
    "a read-only mapping": (lambda: MappingProxyType({"x": t()}), lambda b: [b["x"]]),
    "a mapping of one's own": (lambda: Items({"x": t()}), lambda b: [b["x"]]),
    "a tuple of one's own": (lambda: Numbers([t()]), lambda b: [b[0]]),
    "a list of one's own": (lambda: collections.UserList([t()]), lambda b: [b[0]]),
    "a dataclass": (lambda: Sample(t(), {"y": t()}), lambda b: [b.image, b.labels["y"]]),
    "a frozen dataclass": (lambda: Frozen(t()), lambda b: [b.image]),
    "an encoding": (lambda: Encoding({"ids": t().long()}, "kept"), lambda b: [b["ids"]]),
    "an output": (lambda: Output(logits=t()), lambda b: [b.logits]),
    "a dict with attributes": (lambda: Attributes(x=t(), inner=Attributes(y=t())), lambda b: [b.x, b.inner.y]),
    "beside a proxy": (lambda: {"x": t(), "proxy": Proxy()}, lambda b: [b["x"]]),
    "a tensor dict": (lambda: TensorDictLike({"x": t()}, [3]), lambda b: [b["x"]]),
    "a graph": (lambda: Graph(x=t(), edge=t().long()), lambda b: list(b._store.values())),
    "a packed sequence": (
        lambda: pack_sequence([t(), t()[:2]], enforce_sorted=False),
        lambda b: [b.data, b.sorted_indices, b.unsorted_indices],
    ),
    "what a torch operator gives": (lambda: torch.max(torch.ones(2, 3), 1), lambda b: [b.values, b.indices]),
    "half, bool and complex": (
        lambda: [t().half(), t() > 1, t().to(torch.complex64)],
        list,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_batch_arrives_with_its_class_dtypes_and_values(name: str) -> None:
    """All tensors are on the device with the values and dtypes that they had, in containers of the same class."""
    make, tensors_of = KINDS[name]
    batch = make()
    moved = unmoor.to_device(batch, device=HOME)
    assert type(moved) is type(batch) or isinstance(batch, nn.Parameter)
    pairs = list(zip(tensors_of(moved), tensors_of(batch), strict=True))
    assert pairs
    for new, old in pairs:
        assert new.device == torch.device(HOME)
        assert new.dtype == old.dtype
        assert torch.equal(new.cpu(), old)


@pytest.mark.parametrize("name", KINDS)
def test_the_callers_batch_is_not_changed(name: str) -> None:
    """Each tensor of the batch that was given is the object that it was, and on the CPU."""
    make, tensors_of = KINDS[name]
    batch = make()
    before = tensors_of(batch)
    unmoor.to_device(batch, device=HOME)
    after = tensors_of(batch)
    assert [id(tensor) for tensor in after] == [id(tensor) for tensor in before]
    assert {tensor.device.type for tensor in after} == {"cpu"}


@pytest.mark.parametrize("name", KINDS)
def test_a_batch_that_is_there_already_comes_back_itself(name: str) -> None:
    """Where nothing has to move, nothing is made: the same object is given back."""
    make, _ = KINDS[name]
    batch = make()
    assert unmoor.to_device(batch, device="cpu") is batch
    there = unmoor.to_device(batch, device=HOME)
    assert unmoor.to_device(there, device=HOME) is there


def test_parts_that_are_there_already_are_kept() -> None:
    """Only the containers on the way to a tensor that moves are made anew; others are the same objects."""
    there, still = torch.ones(2, device=HOME), {"note": [1, 2]}
    batch = {"x": t(), "y": [there], "still": still}
    moved = unmoor.to_device(batch, device=HOME)
    assert moved is not batch
    assert moved["y"] is batch["y"]
    assert moved["still"] is still
    assert list(moved) == ["x", "y", "still"]


def test_what_is_shared_is_moved_once() -> None:
    """One tensor, one list and one object under two names are one under these names afterwards."""
    shared, inner = t(), [t()]
    graph = Graph(x=t())
    moved = unmoor.to_device({"a": shared, "b": (shared, inner), "c": inner, "g": graph, "h": graph}, device=HOME)
    assert moved["a"] is moved["b"][0]
    assert moved["b"][1] is moved["c"]
    assert moved["g"] is moved["h"]


def test_circles_stay_circles() -> None:
    """A batch that holds itself, through a list, a tuple, a dataclass or a dict, is moved as that."""
    batch: dict[str, Any] = {"x": t()}
    batch["self"] = (batch, [batch])
    sample = Sample(t(), None)
    sample.labels = {"sample": sample}
    batch["sample"] = sample
    moved = unmoor.to_device(batch, device=HOME)
    assert moved["self"][0] is moved
    assert moved["self"][1][0] is moved
    assert moved["sample"].labels["sample"] is moved["sample"]
    assert moved["sample"].image.device == torch.device(HOME)
    assert batch["self"][0] is batch
    assert sample.labels["sample"] is sample


def test_other_values_are_what_they_were() -> None:
    """Numbers, text, arrays, generators, enums and functions come through as the same objects."""
    values = {"n": 3, "s": "a", "none": None, "array": np.ones(2), "gen": torch.Generator(), "e": Colour.RED, "f": len}
    moved = unmoor.to_device({"x": t(), **values}, device=HOME)
    assert all(moved[key] is value for key, value in values.items())


def test_attributes_beside_the_data_are_kept() -> None:
    """An encoding keeps its attributes, a default dict its factory, a deque its length, a dataclass other fields."""
    assert unmoor.to_device(Encoding({"ids": t()}, "kept"), device=HOME).encodings == "kept"
    assert unmoor.to_device(collections.defaultdict(list, x=t()), device=HOME)["new"] == []
    assert unmoor.to_device(collections.deque([t()], maxlen=4), device=HOME).maxlen == 4
    assert unmoor.to_device(TensorDictLike({"x": t()}, [3]), device=HOME).batch_size == [3]
    sample = Sample(t(), None)
    sample.shape = "late"
    assert unmoor.to_device(sample, device=HOME).shape == "late"
    packed: PackedSequence = unmoor.to_device(pack_sequence([t()]), device=HOME)
    assert packed.batch_sizes.device.type == "cpu"


def test_keys_that_are_to_stay_stay() -> None:
    """`keep` leaves keys and attributes where they are, at any depth."""
    batch = {"x": t(), "lengths": t().long(), "more": [{"lengths": t().long()}]}
    moved = unmoor.to_device(batch, device=HOME, keep="lengths")
    assert moved["x"].device == torch.device(HOME)
    assert moved["lengths"] is batch["lengths"]
    assert moved["more"] is batch["more"]


def test_gradients_flow_back_through_the_move() -> None:
    """An input that wants a gradient gets it where it was."""
    x = t().requires_grad_()
    unmoor.to_device({"x": x}, device=HOME)["x"].sum().backward()
    assert x.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("where", ["cpu", HOME])
def test_copies_are_waited_for_on_the_way_to_the_cpu(where: str) -> None:
    """non_blocking reaches tensors and objects that take it on the way to an accelerator, and none to the CPU."""
    asked = []

    class Asked:
        def __init__(self) -> None:
            self.x = torch.ones(1, device="sim:0")

        def to(self, device, non_blocking=False):
            asked.append(non_blocking)
            return self

    unmoor.to_device([Asked()], device=where, non_blocking=True)
    assert asked == [where != "cpu"]


def _models() -> dict[str, tuple[Any, str]]:
    plain = nn.Linear(2, 2).to(HOME)
    buffers = nn.BatchNorm1d(2, affine=False).to(HOME)
    counted = nn.BatchNorm1d(2).to(HOME)
    counted.num_batches_tracked = torch.tensor(0)
    parallel = nn.DataParallel(nn.Linear(2, 2).to("sim:2"), device_ids=[2, 3])
    hooked = nn.Sequential(nn.Linear(2, 2).to("sim:0"), nn.Linear(2, 2).to("sim:1"))
    hooked._hf_hook = type("Hook", (), {"execution_device": "sim:0"})()
    return {
        "a module": (plain, HOME),
        "a compiled one": (torch.compile(plain, backend="eager"), HOME),
        "buffers alone": (buffers, HOME),
        "a count on the CPU": (counted, HOME),
        "DataParallel": (parallel, "sim:2"),
        "hooks of accelerate": (hooked, "sim:0"),
        "a tensor": (torch.ones(1, device=HOME), HOME),
    }


@pytest.mark.parametrize("name", ["a module", "a compiled one", "buffers alone", "a count on the CPU", "DataParallel",
                                  "hooks of accelerate", "a tensor"])  # fmt: skip
def test_the_device_is_that_of_a_models_inputs(name: str) -> None:
    """like= takes the device that inputs of the module belong on, whatever wraps it."""
    like, device = _models()[name]
    assert unmoor.to_device([t()], like=like)[0].device == torch.device(device)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"batch": t}, ArgumentConflict, "either like= or device="),
        ({"batch": t, "like": t, "device": "cpu"}, ArgumentConflict, "was given both"),
        ({"batch": t, "like": "model"}, ArgumentConflict, "like= was given a str"),
        ({"batch": t, "device": "nonsense"}, ArgumentConflict, "is no device"),
        ({"batch": t, "device": "sim:9"}, DeviceError, "asks for sim:9"),
        ({"batch": t, "device": "meta"}, DeviceError, "would hold no data"),
        ({"batch": t, "keep": [1], "device": "cpu"}, ArgumentConflict, "holds what is no key"),
        ({"batch": lambda: nn.Linear(2, 2), "device": "cpu"}, UsageError, "a module (Linear)"),
        (
            {"batch": lambda: torch.optim.SGD([t().requires_grad_()], lr=1), "device": "cpu"},
            UsageError,
            "an optimizer (SGD)",
        ),
        ({"batch": lambda: torch.utils.data.DataLoader([1]), "device": "cpu"}, UsageError, "gives batches and is none"),
        ({"batch": lambda: iter([t()]), "device": "cpu"}, UsageError, "gives batches and is none"),
        ({"batch": t, "like": nn.ReLU}, DeviceError, "has no parameters or buffers"),
        ({"batch": t, "like": lambda: nn.Linear(2, 2, device="meta")}, DeviceError, "is on the meta device"),
        (
            {"batch": t, "like": lambda: nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).to(HOME)])},
            DeviceError,
            "is on 2 devices",
        ),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused_with_what_to_do(arguments, error, words) -> None:
    """The error names what was given, and the call that works."""
    made = {k: v() if callable(v) else v for k, v in arguments.items()}
    with pytest.raises(error) as caught:
        unmoor.to_device(made.pop("batch"), **made)
    assert words in caught.value.headline
    assert caught.value.remedy or "is no device" in words


def test_everything_that_cannot_be_moved_is_named_at_once_and_nothing_is_moved() -> None:
    """Objects with tensors and no way to move them, and tensors without data, are told together, with their places."""
    batch = {"x": t(), "a": Opaque(t()), "m": [torch.empty(2, device="meta")]}
    with pytest.raises(UsageError) as caught:
        unmoor.to_device(batch, device=HOME)
    assert caught.value.headline == "2 things in the batch cannot be moved to sim:1"
    assert "batch['m'][0]: on the meta device" in str(caught.value)
    assert "batch['a']: a tests.moving.test_moving.Opaque holds tensors" in str(caught.value)
    assert batch["x"].device.type == "cpu"
    assert unmoor.to_device(batch, device=HOME, keep=("a", "m"))["a"] is batch["a"]


def test_deep_and_wide_batches_are_moved() -> None:
    """Hundreds of levels are no trouble for containers that can be filled, and thousands of tensors none at all."""
    deep: Any = [t()]
    for _ in range(60):
        deep = [deep]
    moved = unmoor.to_device([deep, [t() for _ in range(2000)]], device=HOME)
    inner = moved[0]
    for _ in range(60):
        inner = inner[0]
    assert inner[0].device == torch.device(HOME)
    assert all(tensor.device == torch.device(HOME) for tensor in moved[1])


def test_a_copy_of_a_batch_is_moved_alike() -> None:
    """What was moved and what is moved from a deep copy agree."""
    batch = {"x": t(), "s": Sample(t(), [t()])}
    one, other = (unmoor.to_device(b, device=HOME) for b in (batch, copy.deepcopy(batch)))
    assert torch.equal(one["s"].labels[0], other["s"].labels[0])


def test_a_device_map_of_accelerate_tells_where_inputs_go() -> None:
    """Without a hook on the model itself, the first of its parts that has one says where its inputs belong."""
    model = nn.Sequential(nn.Linear(2, 2).to("sim:2"), nn.Linear(2, 2).to("sim:0"))
    model.hf_device_map = {"0": "sim:2", "1": "sim:0"}
    model[0]._hf_hook = type("Hook", (), {"execution_device": torch.device("sim:2")})()
    assert unmoor.to_device(t(), like=model).device == torch.device("sim:2")
