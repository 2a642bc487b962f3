"""Values that are made quickly are what frozen dataclasses are in every other way."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from unmoor.values.catalog import TensorEntry
from unmoor.values.nodes import Chunk, Span, Storage, TensorNode
from unmoor.values.plan import Change, Copy
from unmoor.values.quick import quickly_made
from unmoor.values.target import Slot, TargetParam

CLASSES = (Change, Chunk, Copy, Slot, Span, Storage, TargetParam, TensorEntry, TensorNode)


def _twin(kind: Any) -> Any:
    """The same dataclass without the quick constructor."""
    fields = [
        (f.name, f.type, dataclasses.field(default=f.default, default_factory=f.default_factory))
        for f in dataclasses.fields(kind)
    ]
    return dataclasses.make_dataclass(kind.__name__, fields, frozen=True, slots=True)


def _required(kind: Any) -> list[str]:
    return [
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]


@pytest.mark.parametrize("kind", CLASSES)
def test_quick_values_hold_what_slow_ones_hold(kind: Any) -> None:
    """Same signature, same fields and defaults, same printing; still frozen, copied and pickled as they are."""
    twin, given = _twin(kind), {name: f"<{name}>" for name in _required(kind)}
    made, slow = kind(**given), twin(**given)
    assert type(made) is kind
    assert list(inspect.signature(kind).parameters) == list(inspect.signature(twin).parameters)
    assert repr(made) == repr(slow).replace(twin.__qualname__, kind.__qualname__) or kind is TensorEntry
    for field in dataclasses.fields(kind):
        assert getattr(made, field.name) == getattr(slow, field.name), field.name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, None)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(made, field.name)
    everything = {field.name: object() for field in dataclasses.fields(kind)}
    full = kind(*everything.values())
    assert all(getattr(full, name) is value for name, value in everything.items())
    for again in (copy.copy(made), dataclasses.replace(made), pickle.loads(pickle.dumps(made))):
        assert type(again) is kind
        assert all(getattr(again, f.name) == getattr(made, f.name) for f in dataclasses.fields(kind))


@pytest.mark.parametrize("kind", CLASSES)
def test_quick_values_refuse_what_slow_ones_refuse(kind: Any) -> None:
    """A field that is missing and one that is not there are errors in the same words."""
    twin = _twin(kind)
    for given in ({}, {**dict.fromkeys(_required(kind)), "nonsense": 1}):
        words = []
        for one in (kind, twin):
            with pytest.raises(TypeError) as error:
                one(**given)
            words.append(str(error.value).partition("__init__")[2])
        assert words[0] == words[1]


def test_each_quick_value_has_a_container_of_its_own() -> None:
    """A default that is made for each instance is not shared."""

    @quickly_made
    @dataclasses.dataclass(frozen=True, slots=True)
    class Bag:
        name: str
        things: list[int] = dataclasses.field(default_factory=list)

    one, other = Bag("a"), Bag("a")
    one.things.append(1)
    assert other.things == []
    assert Bag("a", [2]).things == [2]
    assert Bag("a") == other
    assert hash(Span(1, 2)) == hash(Span(1, 2))
