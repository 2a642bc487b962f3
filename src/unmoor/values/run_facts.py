"""Facts of a live run before its next step, as values: where every tensor is, and what will meet what.

Collected by `live`, judged by `diagnose`. No live object is in here: a number stands for one (`key`), equal where two
names mean the same object. `at` is Python that reaches a thing from the caller's own variables, "" where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = [
    "BatchFacts",
    "GeneratorFact",
    "GroupFacts",
    "HeldFacts",
    "LeafFact",
    "LossFacts",
    "ModelFacts",
    "ModuleFacts",
    "OptimizerFacts",
    "ParamFacts",
    "RunFacts",
    "ScalerFacts",
    "ScheduleFacts",
    "TensorFact",
    "WrapperFacts",
]


@dataclass(frozen=True, slots=True)
class TensorFact:
    """A tensor by its name within what holds it. `kind` is parameter, buffer, attribute, unregistered or state.

    Unregistered is what a module in a plain list or dict has; `at` is that list. `lazy` tells that it has no shape yet.
    `grade` is for attributes: used (forward reads it as it is), moved (forward reads it, and moves tensors) or idle
    (forward does not name it).
    """

    name: str
    device: str
    dtype: str
    shape: tuple[int, ...]
    key: int = 0
    kind: str = "parameter"
    trains: bool = False
    lazy: bool = False
    grade: str = ""
    at: str = ""

    @property
    def scalar(self) -> bool:
        """Whether it has no dimension: on the CPU, it may meet tensors of any device."""
        return not self.shape and not self.lazy


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """One module: its own tensors, and whether its forward lets its children be on several devices.

    `name` is canonical, "" for the root; `path` the same with wrappers' segments. `container` tells that it has no
    forward of its own (ModuleList). `moves` tells that its forward, or hooks on its children, move tensors; `opaque`
    that its code cannot be read. `hooked` tells that hooks of accelerate place its tensors.
    """

    name: str
    class_name: str
    tensors: tuple[TensorFact, ...] = ()
    container: bool = False
    moves: bool = False
    opaque: bool = False
    hooked: bool = False
    at: str = ""


@dataclass(frozen=True, slots=True)
class WrapperFacts:
    """A wrapper around a module. `source` is the device that its device_ids begin with, "" where it has none.

    `built` is the device on which the module was when it was wrapped, "" where that is not kept.
    """

    class_name: str
    source: str = ""
    device_ids: tuple[int, ...] = ()
    built: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model. `compute` is the device that its wrapper brings inputs to, "" where the caller brings them.

    `arguments` are the names that its forward takes in order, `moved` those that forward moves itself ("*" for all),
    `any_name` tells that it takes further keywords. `casts` tells that a wrapper casts inputs.
    """

    label: str
    at: str
    class_name: str
    modules: tuple[ModuleFacts, ...]
    wrappers: tuple[WrapperFacts, ...] = ()
    compute: str = ""
    brings: bool = False
    arguments: tuple[str, ...] = ()
    moved: frozenset[str] = frozenset()
    any_name: bool = False
    casts: bool = False
    untied: tuple[tuple[str, str], ...] = ()

    def tensors(self, *kinds: str) -> Iterator[TensorFact]:
        """Its tensors of these kinds, one that is registered twice twice."""
        return (tensor for module in self.modules for tensor in module.tensors if tensor.kind in kinds)


@dataclass(frozen=True, slots=True)
class ParamFacts:
    """A parameter in a group: its tensor, its state by key path (`old_dirs[0]`), and the keys of that state."""

    tensor: TensorFact
    state: tuple[TensorFact, ...] = ()
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A parameter group: its switches, what of its options is a tensor, its parameters in order."""

    flags: Mapping[str, object]
    options: tuple[TensorFact, ...]
    params: tuple[ParamFacts, ...]


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer. `made` is Python that builds its class anew for some parameters, with {} in their place.

    `keys` are the objects that a scheduler may call this optimizer: it, what it wraps, what steps for it; and its
    groups, which another optimizer may share (SAM and its base). `stale` tells that a wrapper around it shows groups
    which the wrapped one has replaced. `copies` tells that its class is known to step copies of the parameters (master
    weights).
    """

    label: str
    at: str
    class_name: str
    family: str
    groups: tuple[GroupFacts, ...]
    made: str = ""
    keys: frozenset[int] = frozenset()
    stale: str = ""
    copies: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """A scheduler. `follows` is the key of its optimizer, `size` its number of parameters and `optimizer` its class.

    `groups` are the keys of that optimizer's groups, in which it sets the rate.
    `last` is the rate that it set last by group, `rates` what the groups have now; both empty where that is not known.
    """

    label: str
    at: str
    class_name: str
    follows: int
    optimizer: str = ""
    size: int = 0
    last: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    groups: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ScalerFacts:
    """A gradient scaler. `device_type` is what it was made for, `scale` where its scale is, "" before its first use."""

    label: str
    at: str
    enabled: bool
    device_type: str
    scale: str = ""


@dataclass(frozen=True, slots=True)
class LeafFact:
    """A tensor of the batch.

    `path` are the steps that lead there: kind of container (map, list, tuple, named, object, set) and key. `target`
    tells that the loss compares with it, `argument` which argument of forward it is part of, "" where that is not
    known. `sure` tells that the model is sure to read it.
    """

    tensor: TensorFact
    path: tuple[tuple[str, object], ...] = ()
    target: bool = False
    argument: str = ""
    sure: bool = True


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """A batch: its tensors, and places of numpy arrays in it."""

    at: str
    leaves: tuple[LeafFact, ...]
    arrays: tuple[str, ...] = ()
    autocast: bool = False


@dataclass(frozen=True, slots=True)
class LossFacts:
    """A loss: its own tensors (weights, pos_weight, what its closure holds), and the name of its class or function.

    `module` tells that .to moves it.
    """

    label: str
    at: str
    class_name: str
    tensors: tuple[TensorFact, ...]
    module: bool = True


@dataclass(frozen=True, slots=True)
class HeldFacts:
    """Any other object with tensors (metrics, averages): on which devices it is."""

    label: str
    at: str
    class_name: str
    devices: tuple[str, ...]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class GeneratorFact:
    """A torch.Generator: where it is, and `wants`, the device type of what it draws, "" where that is not known."""

    place: str
    device: str
    wants: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A whole run.

    `capturable` and `fused` are the device types that have kernels for these switches, `others` the devices of other
    ranks of this machine. `bad` are places of values that are not finite, looked for on request. `unseen` are labels
    with the reason why nothing can be told of them.
    """

    models: tuple[ModelFacts, ...] = ()
    losses: tuple[LossFacts, ...] = ()
    averages: tuple[HeldFacts, ...] = ()
    metrics: tuple[HeldFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    schedules: tuple[ScheduleFacts, ...] = ()
    scalers: tuple[ScalerFacts, ...] = ()
    batch: BatchFacts | None = None
    generators: tuple[GeneratorFact, ...] = ()
    capturable: frozenset[str] = frozenset()
    fused: frozenset[str] = frozenset()
    others: Mapping[str, int] = field(default_factory=dict)
    bad: tuple[tuple[str, str], ...] = ()
    unseen: tuple[tuple[str, str], ...] = ()
