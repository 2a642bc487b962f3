"""What each part of a checkpoint is, in a few words: the last column of the role table. Pure.

Facts come from a part's detail, as the describing stage told them; a fact that is not there is left out, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from unmoor.values.catalog import Part, TensorEntry
from unmoor.values.optimizers import keeps_state
from unmoor.values.text import count, listing

from .claims import Claim
from .layout import plain
from .own import OWN, own_text

__all__ = ["class_text", "part_text", "rng_text"]

_BUFFERS: Final = frozenset({"running_mean", "running_var", "num_batches_tracked"})
"""Buffers of torch's own normalization layers: in a state dict they look like parameters."""


def part_text(part: Part, entries: Sequence[TensorEntry], claim: Claim) -> str:
    """What `part` is and holds, given its tensors and what the file claims of the object that it is the state of.

    Escaped; a no-break space stands where a line must not break.
    """
    told = _TEXTS.get(part.role, _state)(part, entries, claim) if part.kind != "tensors" else _MAYBE
    pickled = f"pickled object of {plain(str(part.detail['class']))}" if "class" in part.detail else ""
    wrappers = f"saved out of {plain(listing(claim.wrappers, 3))}" if claim.wrappers else ""
    return "; ".join(filter(None, [told, wrappers, pickled]))


def class_text(part: Part, claim: Claim) -> str:
    """The class of an optimizer or scheduler: as the file claims it, or what the state looks like."""
    if claim.short:
        return plain(claim.short)
    guess = str(part.detail.get("family") or part.detail.get("guess") or "")
    groups = part.detail.get("options")
    if guess == "Adam" and isinstance(groups, list) and any(_is_decoupled(group) for group in groups):
        guess = "AdamW"
    return f"{plain(guess)}-like" if guess else "of a class that is not known here"


def _is_decoupled(group: Any) -> bool:
    return isinstance(group, Mapping) and group.get("decoupled_weight_decay") is True


_MAYBE: Final = "a model's state, or values by name"


def _weights(part: Part, entries: Sequence[TensorEntry], claim: Claim) -> str:
    buffers = [e for e in entries if not e.parameter and _is_buffer(e)]
    told = part.detail.get("parameters")
    numel = told if isinstance(told, int) else sum(map(_numel, entries)) - sum(map(_numel, buffers))
    beside = f" + {sum(map(_numel, buffers)):,} in buffers" if buffers else ""
    name = f"{plain(claim.short)}, " if claim.short and not claim.wrappers else ""
    return f"{name}{count(numel, 'parameter')}{beside}"


def _is_buffer(entry: TensorEntry) -> bool:
    return _last(entry) in _BUFFERS or not entry.dtype.startswith(("float", "bfloat", "complex", "q"))


def _numel(entry: TensorEntry) -> int:
    numel = 1
    for size in entry.shape:
        numel *= size
    return numel


def _optimizer(part: Part, entries: Sequence[TensorEntry], claim: Claim) -> str:
    detail = part.detail
    params = detail.get("params")
    name = class_text(part, claim)
    keys = [plain(str(key)) for key in detail.get("state_keys") or dict.fromkeys(_last(entry) for entry in entries)]
    total = f" of {count(params, 'parameter')}" if isinstance(params, int) else ""
    state = f": {listing(keys, 6)} for {_number(detail.get('with_state'))}{total}" if keys else _stateless(part)
    return "; ".join([f"{name}{state}", *_rates(detail)])


def _stateless(part: Part) -> str:
    """An optimizer that holds no state: of a class that keeps some, it had not stepped yet."""
    groups = [group for group in part.detail.get("options") or () if isinstance(group, Mapping)]
    expected = any(keeps_state(str(part.detail.get("family", "")), group) for group in groups)
    params = part.detail.get("params")
    of = f" for {count(params, 'parameter')}" if isinstance(params, int) else ""
    return f", no state{of} (never stepped)" if expected else ", no state"


def _last(entry: TensorEntry) -> str:
    return entry.path.rpartition(".")[2]


def _rates(detail: Mapping[str, Any]) -> list[str]:
    """The number of groups where there are several, and their learning rates."""
    groups = [group for group in detail.get("options") or () if isinstance(group, Mapping)]
    rates: list[float] = sorted({float(group["lr"]) for group in groups if _is_number(group.get("lr"))})
    words = [count(len(groups), "group")] if len(groups) > 1 else []
    if rates:
        between = " and " if len(rates) == 2 else " to "
        words.append("lr\xa0" + between.join(f"{rate:.3g}" for rate in dict.fromkeys((rates[0], rates[-1]))))
    return [", ".join(words)] if words else []


def _scheduler(part: Part, _: Sequence[TensorEntry], claim: Claim) -> str:
    epoch, total = (part.detail.get(key) for key in ("last_epoch", "total"))
    words = [class_text(part, claim)]
    if _is_number(epoch):
        words.append(f"last_epoch {epoch:,}" + (f" of {total:,}" if _is_number(total) else ""))
    return ", ".join(words)


def _scaler(part: Part, _: Sequence[TensorEntry], __: Claim) -> str:
    scale = part.detail.get("scale")
    return f"loss scale {scale:,g}" if _is_number(scale) else ""


def _rng(part: Part, _: Sequence[TensorEntry], __: Claim) -> str:
    return rng_text(part)


def rng_text(part: Part) -> str:
    """Whose random state a part is."""
    if part.keys[-2:-1] == (_DEVICES,):  # as unmoor saves those of accelerators: by the kind of device
        owner = f"torch's {plain(str(part.keys[-1])).upper()} generators"
    else:
        owner = _OWNERS.get(part.kind, f"torch's {plain(part.kind).upper()} generators")
    streams = part.detail.get("streams")
    return f"{owner} ({streams})" if isinstance(streams, int) and streams > 1 else owner


def _state(part: Part, _: Sequence[TensorEntry], __: Claim) -> str:
    return "" if part.role == "extra" or part.kind in ("state_dict", "object", part.role) else plain(part.kind)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_DEVICES: Final = "devices"

_OWNERS: Final = {
    "torch-cpu": "torch's CPU generator",
    "numpy": "numpy's generator",
    "python": "Python's random",
}

_TEXTS: Final[dict[str, Callable[[Part, Sequence[TensorEntry], Claim], str]]] = {
    "model": _weights,
    "ema": _weights,
    "optimizer": _optimizer,
    "scheduler": _scheduler,
    "scaler": _scaler,
    "rng": _rng,
    OWN: lambda part, *_: plain(own_text(part)),
}
