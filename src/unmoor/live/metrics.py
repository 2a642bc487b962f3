"""torchmetrics modules: all of their state, which their own state_dict leaves out unless each was made persistent.

The keys are those of their own state dict, so that files written with persistent states restore too, and what is
written here can be loaded by torchmetrics itself. Known by their class, without importing the package.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

from unmoor.errors import MismatchError

__all__ = ["MetricState", "with_metric_state"]

_METRIC: Final = "torchmetrics.metric"
_COLLECTION: Final = "torchmetrics.collections"
_COUNT: Final = "_update_count"
_BESIDE: Final[dict[str, tuple[str, ...]]] = {"MinMaxMetric": ("min_val", "max_val"), "Running": ("_num_vals_seen",)}
"""Wrappers that keep more than states: class -> its attributes."""

_MISSING: Final = object()


def with_metric_state(item: Any) -> Any:
    """A torchmetrics module, or one that is made of them, as an object whose state dict holds all of its state."""
    if not isinstance(item, nn.Module):
        return item
    whole = _is_a(item, _METRIC, "Metric") or _is_a(item, _COLLECTION, "MetricCollection")
    return MetricState(item) if whole else item


def _is_a(value: Any, module: str, name: str) -> bool:
    return any(cls.__module__ == module and cls.__name__ == name for cls in type(value).__mro__)


class MetricState:
    """The state of a metric: every state of every metric in it, how often it was updated, and what else it saves."""

    def __init__(self, metric: Any) -> None:
        self.metric = metric

    def _metrics(self) -> Iterator[tuple[str, Any]]:
        """Each metric within, with what its keys begin with."""
        for name, module in self.metric.named_modules():
            if _is_a(module, _METRIC, "Metric"):
                yield f"{name}." if name else "", module

    def state_dict(self) -> dict[str, Any]:
        """Every state by name, with the number of updates of each metric."""
        for module in self.metric.modules():
            if _is_a(module, _COLLECTION, "MetricCollection"):
                module.values(copy_state=False)  # members of one compute group take the state of its first
        state = dict(self.metric.state_dict())
        for prefix, metric in self._metrics():
            for key in (*metric._defaults, *_BESIDE.get(type(metric).__name__, ())):
                state[prefix + key] = _detached(getattr(metric, key))
            state[prefix + _COUNT] = metric._update_count
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take every state, on the device where each metric is; what was computed before is forgotten."""
        left = dict(state)
        missing = [p + key for p, metric in self._metrics() for key in metric._defaults if p + key not in left]
        own = {p + key for p, metric in self._metrics() for key in self._keys(metric)}
        others = {name for name in self.metric.state_dict() if name not in own}
        missing += sorted(others - left.keys())
        unexpected = sorted(left.keys() - others - own)
        if missing or unexpected:
            raise MismatchError(
                f"the saved state is not that of a {type(self.metric).__name__} built like this one",
                details=[*(f"missing: {name}" for name in missing[:8]), *(f"unexpected: {n}" for n in unexpected[:8])],
            )
        for prefix, metric in self._metrics():
            _fill(metric, {key: left.pop(prefix + key, _MISSING) for key in self._keys(metric)})
        self.metric.load_state_dict(left, strict=False)

    def _keys(self, metric: Any) -> tuple[str, ...]:
        return (*metric._defaults, *_BESIDE.get(type(metric).__name__, ()), _COUNT)


def _fill(metric: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if value is not _MISSING:
            setattr(metric, key, _placed(value, metric.device))
    if values[_COUNT] is _MISSING:
        metric._update_count = int(any(not _is_default(metric, key) for key in metric._defaults))
    metric._computed = metric._forward_cache = metric._cache = None
    metric._is_synced = False


def _is_default(metric: Any, key: str) -> bool:
    value, default = getattr(metric, key), metric._defaults[key]
    if isinstance(default, torch.Tensor):
        return value.shape == default.shape and bool(torch.equal(value.cpu(), default.cpu()))
    return not value


def _placed(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [_placed(item, device) for item in value] if isinstance(value, list) else value


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, list):
        return [_detached(item) for item in value]
    return copy.copy(value)
