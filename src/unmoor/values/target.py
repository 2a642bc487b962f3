"""The live run, described as frozen values: what there is to fill, and what decides where things go.

Made by `live`, read by `plan`. Holds names, shapes and devices, never a live object. Must not know torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .boxes import Box
from .positions import Position
from .quick import quickly_made

__all__ = [
    "Slot",
    "Stream",
    "Target",
    "TargetGroup",
    "TargetModule",
    "TargetObject",
    "TargetOptimizer",
    "TargetParam",
    "TargetSchedule",
]


@quickly_made
@dataclass(frozen=True, slots=True)
class Slot:
    """Memory that tensor data goes into, by a name that is unique in one run.

    `device` is where it is, or will be made. `dense` tells that its elements fill one run of bytes without gaps or
    overlap, in the order of `stride`. `make` tells that it does not exist yet: an optimizer state to allocate, a tensor
    of an object's state. `alias` is the id of the slot that shares its memory (tied weights), "" for none.
    `array` tells that it comes back as a numpy array, as which it was saved. `layout` names what is no strided tensor
    (sparse_csr, nested, ...), into which no bytes can be streamed. `boxes` are the parts that this process holds of a
    tensor that is spread over ranks (`shape` is the whole tensor's, `stride` and `dense` are those of the whole laid
    out without gaps); None where it holds all of it.
    """

    id: str
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    device: str
    dense: bool
    make: bool = False
    alias: str = ""
    array: bool = False
    layout: str = "strided"
    boxes: tuple[Box, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TargetModule:
    """A live module: its tensors by canonical name (wrappers' segments removed, see `wrappers`).

    `label` is the role word, with the key of a dict or list in brackets: `model`, `model[gen]`. `parameters` are the
    names that are parameters, the others are buffers. `extra_state` are names whose value is any object. `ways` tells
    for a tensor that is kept in another form which row of the table of parametrizations does so. `through` tells that
    the module saves and loads in a way of its own: its state is handed to its load_state_dict as a whole. `meta` are
    names of tensors that are on the meta device now, `unsaved_meta` buffers there that no state dict holds.
    """

    role: str
    label: str
    class_name: str
    slots: Mapping[str, Slot]
    parameters: frozenset[str]
    extra_state: frozenset[str] = frozenset()
    wrappers: tuple[str, ...] = ()
    device: str = "cpu"
    ways: Mapping[str, str] = field(default_factory=dict)
    through: bool = False
    meta: frozenset[str] = frozenset()
    unsaved_meta: tuple[str, ...] = ()


@quickly_made
@dataclass(frozen=True, slots=True)
class TargetParam:
    """One parameter of an optimizer. `name` is canonical, "" where no module that was passed holds it.

    `state` are the slots of state tensors that exist already and can be filled where they are. `boxes` are the parts
    that this process holds of a parameter that is spread over ranks, and of its state; see `Slot`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    stride: tuple[int, ...]
    dense: bool
    state: Mapping[str, Slot] = field(default_factory=dict)
    boxes: tuple[Box, ...] | None = None


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """One parameter group: its options (plain values, without params) and its parameters in order."""

    options: Mapping[str, Any]
    params: tuple[TargetParam, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TargetOptimizer:
    """A live optimizer. `family` is its row in the table of optimizers, "" for classes the table lacks.

    `direct` tells that its class loads state as torch.optim.Optimizer does, so state can be placed without calling
    `load_state_dict`. `joined` are runs of positions that are one FlatParameter: they have state together or not at
    all. `own_keys` are keys of its state dict that torch's own has not; `whole` tells that it lacks torch's, so that
    nothing can be told of it from outside.
    """

    role: str
    label: str
    class_name: str
    family: str
    groups: tuple[TargetGroup, ...]
    direct: bool = True
    joined: tuple[tuple[int, ...], ...] = ()
    own_keys: frozenset[str] = frozenset()
    whole: bool = False

    def params(self) -> Iterator[tuple[int, TargetParam]]:
        """Position over all groups and parameter, in order."""
        return enumerate(param for group in self.groups for param in group.params)


@dataclass(frozen=True, slots=True)
class TargetSchedule:
    """What a live learning rate scheduler of torch follows.

    `family` is its class, or the class of torch that it derives from, "" where that is none of the table's. `state` is
    its present state as plain values, with what is none left out. `groups` are the options of its optimizer's groups,
    and `optimizer` the label under which that optimizer was passed too, "" where it was not.
    """

    family: str
    state: Mapping[str, Any]
    groups: tuple[Mapping[str, Any], ...]
    optimizer: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class TargetObject:
    """Any other live object with state_dict and load_state_dict.

    `placement` is the rule of its role (see the role table). `devices` are where the tensors of its present state are,
    by the keys that lead there with a dot before each; `device` is where the others go. `schedule` is set for a
    scheduler of torch, `position` for a loader whose order is known, and `enabled` tells that it is at work: a disabled
    GradScaler takes no state. `summed` is set for a metric that adds up what its ranks have.
    """

    role: str
    label: str
    class_name: str
    placement: str
    device: str
    devices: Mapping[str, str] = field(default_factory=dict)
    schedule: TargetSchedule | None = None
    position: Position | None = None
    enabled: bool = True
    summed: bool = False


@dataclass(frozen=True, slots=True)
class Stream:
    """One random number stream of this process that a state can be put into.

    `kind` is torch-cpu, torch-device, numpy, python or generator; `name` is the device type for torch-device and
    the caller's key for generator; `count` is the number of devices, `own` the index of the one that this process works
    on. `flavour` is the kind of a generator, and `asked` tells that the caller named it: then it must be restored.
    `derives` tells that a state can be derived here from that of another rank.
    """

    kind: str
    name: str
    count: int = 1
    flavour: str = ""
    asked: bool = False
    own: int = 0
    derives: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The whole live run. `devices` are the device types present here; `rank` is which of `world` processes this is.

    `shared` is, for a parameter that several modules hold, its name in the others -> the name that it goes by.
    """

    modules: tuple[TargetModule, ...] = ()
    optimizers: tuple[TargetOptimizer, ...] = ()
    objects: tuple[TargetObject, ...] = ()
    streams: tuple[Stream, ...] = ()
    devices: Mapping[str, int] = field(default_factory=dict)
    rank: int = 0
    world: int = 1
    shared: Mapping[str, str] = field(default_factory=dict)

    def labels(self) -> tuple[str, ...]:
        """The labels of all objects that can be restored."""
        return tuple(t.label for group in (self.modules, self.optimizers, self.objects) for t in group)
