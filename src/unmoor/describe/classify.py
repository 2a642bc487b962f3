"""The role of a part of a training run, told from its structure alone: never from a file's name or a trusted key.

Pure: takes a node of an inert tree and the key it stands under, answers a `Match` or None. A key only ever decides
between readings that a structure leaves open (sixteen bytes may be a CUDA generator or anything else).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from unmoor.values.nodes import CompositeTensor, NumpyArray, NumpyScalar, Opaque, TensorNode
from unmoor.values.optimizers import guess_family
from unmoor.values.schedulers import CHILDREN, guess_scheduler

__all__ = ["Match", "match"]


class Match(NamedTuple):
    """What a node is: a role of the role table, the kind within it, and what its structure tells."""

    role: str
    kind: str
    detail: dict[str, Any]


_MAPPINGS: Final = frozenset({dict, OrderedDict, Counter})
_SEQUENCES: Final = frozenset({list, tuple})
_TENSORS: Final = frozenset({TensorNode, CompositeTensor})
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_EXTRA_STATE: Final = "_extra_state"
_CPU_STATES: Final = frozenset({5056, 5048})
_CUDA_STATES: Final = frozenset({16, 816016})
_RNG_WORDS: Final = ("rng", "random", "cuda", "seed", "generator")
_MODEL_WORDS: Final = ("state_dict", "model", "net", "module", "weight", "param", "ema", "loss", "criterion")
_PARAMETERS: Final = frozenset({"weight", "bias", "running_mean", "running_var"})
_DEVICES: Final = ("xpu", "npu", "hpu", "mlu", "musa")
_PYTHON_STATE: Final = 625
_NUMPY_STATE: Final = 624
_SCALER: Final = frozenset({"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"})
_LOADERS: Final = (
    frozenset({"batches", "digest", "start", "generators"}),
    frozenset({"_sampler_iter_state", "_sampler_iter_yielded", "_num_yielded"}),
    frozenset({"_snapshot", "_steps_since_snapshot", "_iterator_finished"}),
)
"""What marks the position of a loader: of unmoor.resumable, and of torchdata with and without workers."""
_PLATEAU: Final = frozenset({"factor", "patience", "cooldown", "num_bad_epochs"})
_RATES: Final = ("_last_lr", "base_lrs")
_SHOWN: Final = 64
_LONG_NAME: Final = 1024
_PARAMS: Final = frozenset({"params", "param_names"})
_MAX_BITS: Final = 256


def match(node: Any, key: Any) -> Match | None:
    """What `node`, standing under `key`, is; None where its structure tells nothing."""
    kind = type(node)
    if kind is TensorNode:
        state = _generator(node, key)
        return Match("rng", state, {"streams": 1}) if state else None
    if kind in _MAPPINGS:
        return _mapping(node, key)
    if kind in _SEQUENCES:
        return _sequence(node, key)
    return _object(node) if kind is Opaque else None


def _mapping(node: Mapping[Any, Any], key: Any) -> Match | None:
    if "param_groups" in node:
        found = _optimizer(node, "state_dict")
    elif node.keys() >= _SCALER:
        found = Match("scaler", "state_dict", {"scale": _told(node["scale"])})
    elif any(node.keys() >= keys for keys in _LOADERS):
        found = Match("loader", "state_dict", {})
    elif "bit_generator" in node and "state" in node:
        found = Match("rng", "numpy", {"generator": _told(node["bit_generator"])})
    else:
        found = _scheduler(node)
    return found or _model(node, key)


def _model(node: Mapping[Any, Any], key: Any) -> Match | None:
    """A flat mapping of parameter names to tensors; an `_extra_state` may be anything.

    So may every value of what a module's own state_dict gave (it bears `_metadata`): packed weights are no tensors.
    Of kind tensors where it may as well be values of the user's own: a plain dict whose names are no path into a
    module, under a key that says nothing.
    """
    tensors, flat, dotted = 0, 0, False
    given = type(node) is OrderedDict and type(getattr(node, "_metadata", None)) in (dict, OrderedDict)
    for name, value in node.items():
        if type(name) is not str or len(name) > _LONG_NAME or " " in name:
            return None
        if type(value) in _TENSORS:
            if type(value) is TensorNode and value.dtype == "uint8" and _generator(value, name):
                return None
            tensors += 1
            flat += not value.shape
            dotted = dotted or "." in name
        elif not given and not name.endswith(_EXTRA_STATE):
            return None
    if not tensors or (flat == tensors and type(node) is dict and not (dotted and _are_names(node))):
        return None
    sure = dotted or type(node) is not dict or _is_worded(key) or not _PARAMETERS.isdisjoint(node)
    return Match("model", "state_dict" if sure else "tensors", {})


def _are_names(node: Mapping[str, Any]) -> bool:
    """Whether no key is the path of a file, as where a score is kept for each checkpoint of a run."""
    return not any("/" in name or "\\" in name for name in node)


def _is_worded(key: Any) -> bool:
    return type(key) is str and (not key or any(word in key.lower() for word in _MODEL_WORDS))


def _optimizer(node: Mapping[Any, Any], kind: str) -> Match | None:
    state, groups = node.get("state"), node.get("param_groups")
    if not isinstance(state, Mapping) or type(groups) not in _SEQUENCES or not groups:
        return None
    if any(type(group) not in _MAPPINGS or not _are_ids(group.get("params")) for group in groups):
        return None
    keys = {key for entry in state.values() if type(entry) in _MAPPINGS for key in islice(entry, _SHOWN)}
    options = [{k: group[k] for k in islice(group, _SHOWN) if type(k) is str and k not in _PARAMS} for group in groups]
    detail = {
        "family": guess_family((key for key in keys if type(key) is str), options[0]),
        "groups": len(groups),
        "params": sum(len(group["params"]) for group in groups),
        "with_state": sum(_holds(entry) for entry in state.values()),
        "state_keys": sorted(key for key in keys if type(key) is str)[:_SHOWN],
        "options": [{k: _told(v) for k, v in group.items()} for group in options[:_SHOWN]],
        "names": _has_names(state, groups),
    }
    return Match("optimizer", kind, detail)


def _are_ids(params: Any) -> bool:
    """Whether the parameters of a group are a list of what can stand for one: a number, a name, a tensor."""
    return type(params) in _SEQUENCES and not any(type(one) in _MAPPINGS or type(one) in _SEQUENCES for one in params)


def _holds(entry: Any) -> bool:
    """Whether a parameter has state: `{"momentum_buffer": None}` is none."""
    if type(entry) in _MAPPINGS:
        return any(value is not None for value in islice(entry.values(), _SHOWN))
    return entry is not None


def _has_names(state: Mapping[Any, Any], groups: Sequence[Mapping[Any, Any]]) -> bool:
    first = groups[0]["params"]
    by_name = type(first) in _SEQUENCES and bool(first) and type(first[0]) is str
    return by_name or any("param_names" in group for group in groups) or type(next(iter(state), None)) is str


def _scheduler(node: Mapping[Any, Any]) -> Match | None:
    if not _counts(node):
        return None
    rates = any(key in node for key in _RATES)
    if len(node) > _SHOWN or any(type(value) in _TENSORS or _has_parts(value, rates=rates) for value in node.values()):
        return None
    family = guess_scheduler(node.keys())
    detail = {"guess": family.name if family else "", "last_epoch": _told(node.get("last_epoch"))}
    if family and family.length in node:
        detail["total"] = _told(node[family.length])
    return Match("scheduler", "state_dict", detail)


def _counts(node: Mapping[Any, Any]) -> bool:
    """Whether a mapping has what only a scheduler has: a counter, a patience, or schedulers of its own."""
    counter = type(node.get("last_epoch")) is int or type(node.get("_step_count")) is int
    children = node.get(CHILDREN) if "_last_lr" in node else None
    return counter or node.keys() >= _PLATEAU or (type(children) in _SEQUENCES and bool(children))


def _has_parts(value: Any, *, rates: bool) -> bool:
    """Whether a value under a counter is a part of its own: then the mapping is a whole checkpoint, no scheduler.

    `rates` tells that learning rates stand there too: then a pickled scheduler is one that this one goes on to.
    """
    if type(value) in _MAPPINGS:
        return "param_groups" in value or any(type(inner) in _TENSORS for inner in islice(value.values(), _SHOWN))
    found = _object(value) if type(value) is Opaque else None
    return found is not None and not (rates and found.role == "scheduler")


def _generator(node: TensorNode, key: Any) -> str:
    """The generator whose state a tensor may be: torch-cpu by its size, a device's by size and a word in its key."""
    if node.dtype != "uint8" or len(node.shape) != 1:
        return ""
    if node.shape[0] in _CPU_STATES:
        return "torch-cpu"
    words = key.lower() if type(key) is str else ""
    device = next((device for device in _DEVICES if device in words), "cuda")
    return device if node.shape[0] in _CUDA_STATES and any(word in words for word in (*_RNG_WORDS, *_DEVICES)) else ""


def _sequence(node: Sequence[Any], key: Any) -> Match | None:
    if not node:
        return None
    if type(node[0]) is TensorNode:
        kinds = {_generator(part, key) if type(part) is TensorNode else "" for part in node[:_SHOWN]}
        kind = kinds.pop()
        return Match("rng", kind, {"streams": len(node)}) if kind and not kinds else None
    if len(node) == 3 and type(node[0]) is int and type(node[1]) in _SEQUENCES and len(node[1]) == _PYTHON_STATE:
        return Match("rng", "python", {"version": node[0]})
    if len(node) == 5 and node[0] == "MT19937" and _words(node[1]):
        return Match("rng", "numpy", {"generator": "MT19937"})
    return None


def _words(value: Any) -> bool:
    if type(value) in (NumpyArray, TensorNode):
        return bool(value.shape == (_NUMPY_STATE,))
    return type(value) in _SEQUENCES and len(value) == _NUMPY_STATE


def _object(node: Opaque) -> Match | None:
    """A pickled nn.Module, TorchScript module, optimizer or scheduler, known by the attributes that all such have."""
    state = node.state
    if type(state) is not dict:
        return None
    if ("_parameters" in state and "_modules" in state) or node.name.startswith("__torch__."):
        return Match("model", "object", {"class": node.name})
    found = _optimizer(state, "object") if "param_groups" in state else _scheduler_object(state)
    return found and found._replace(detail={**found.detail, "class": node.name})


def _scheduler_object(state: Mapping[Any, Any]) -> Match | None:
    """A pickled scheduler: it holds its optimizer, and counts; one that runs others may do neither by itself."""
    if not _counts(state) or not (type(state.get("optimizer")) is Opaque or CHILDREN in state):
        return None
    family = guess_scheduler(state.keys())
    detail = {"guess": family.name if family else "", "last_epoch": _told(state.get("last_epoch"))}
    return Match("scheduler", "object", detail)


def _told(value: Any) -> Any:
    """A value as JSON can hold it, cut to what a person would read."""
    if type(value) in _SEQUENCES:
        return [_told_one(part) for part in value[:_SHOWN]]
    return _told_one(value)


def _told_one(value: Any) -> Any:
    if type(value) is NumpyScalar:
        value = value.value
    if type(value) is int and value.bit_length() > _MAX_BITS:
        return f"<an integer of {value.bit_length()} bits>"
    if type(value) is str:
        return value[:_LONG_NAME]
    if type(value) in _PLAIN:
        return value
    return f"<{value.name}>" if type(value) is Opaque else f"<{type(value).__name__}>"
