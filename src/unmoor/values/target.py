"""The live run, described as frozen values: what there is to fill, and what decides where things go.

Made by `live`, read by `plan`. Holds names, shapes and devices, never a live object. Must not know torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Slot", "Stream", "Target", "TargetGroup", "TargetModule", "TargetObject", "TargetOptimizer", "TargetParam"]


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory that tensor data goes into, by a name that is unique in one run.

    `device` is where it is, or will be made. `dense` tells that its elements fill one run of bytes without gaps or
    overlap, in the order of `stride`. `make` tells that it does not exist yet: an optimizer state to allocate, a tensor
    of an object's state. `alias` is the id of the slot that shares its memory (tied weights), "" for none.
    `array` tells that it comes back as a numpy array, as which it was saved.
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


@dataclass(frozen=True, slots=True, eq=False)
class TargetModule:
    """A live module: its tensors by canonical name (wrappers' segments removed, see `wrappers`).

    `label` is the role word, with the key of a dict or list in brackets: `model`, `model[gen]`. `parameters` are the
    names that are parameters, the others are buffers. `extra_state` are names whose value is any object.
    """

    role: str
    label: str
    class_name: str
    slots: Mapping[str, Slot]
    parameters: frozenset[str]
    extra_state: frozenset[str] = frozenset()
    wrappers: tuple[str, ...] = ()
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class TargetParam:
    """One parameter of an optimizer. `name` is canonical, "" where no module that was passed holds it.

    `state` are the slots of state tensors that exist already and can be filled where they are.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    stride: tuple[int, ...]
    dense: bool
    state: Mapping[str, Slot] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """One parameter group: its options (plain values, without params) and its parameters in order."""

    options: Mapping[str, Any]
    params: tuple[TargetParam, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TargetOptimizer:
    """A live optimizer. `family` is its row in the table of optimizers, "" for classes the table lacks.

    `direct` tells that its class loads state as torch.optim.Optimizer does, so state can be placed without calling
    `load_state_dict`.
    """

    role: str
    label: str
    class_name: str
    family: str
    groups: tuple[TargetGroup, ...]
    direct: bool = True

    def params(self) -> Iterator[tuple[int, TargetParam]]:
        """Position over all groups and parameter, in order."""
        return enumerate(param for group in self.groups for param in group.params)


@dataclass(frozen=True, slots=True, eq=False)
class TargetObject:
    """Any other live object with state_dict and load_state_dict.

    `placement` is the rule of its role (see the role table). `keys` are the keys of its present state, None where it
    could not be asked.
    """

    role: str
    label: str
    class_name: str
    placement: str
    device: str
    keys: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """One random number stream of this process that a state can be put into.

    `kind` is torch-cpu, torch-device, numpy, python or generator; `name` is the device type for torch-device and
    the caller's key for generator; `count` is the number of devices.
    """

    kind: str
    name: str
    count: int = 1
    flavour: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The whole live run. `devices` are the device types present here, `fallback` what "auto" means here."""

    modules: tuple[TargetModule, ...] = ()
    optimizers: tuple[TargetOptimizer, ...] = ()
    objects: tuple[TargetObject, ...] = ()
    streams: tuple[Stream, ...] = ()
    devices: Mapping[str, int] = field(default_factory=dict)

    def labels(self) -> tuple[str, ...]:
        """The labels of all objects that can be restored."""
        return tuple(t.label for group in (self.modules, self.optimizers, self.objects) for t in group)
