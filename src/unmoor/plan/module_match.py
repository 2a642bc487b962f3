"""How the names of a model state dict are those of a live module, and what they are where they are not.

Tried in order: all live names; those that a file must have where it lacks names of tied memory or buffers that old
files do not have; the same with parametrizations of one family spelled alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from unmoor.values.target import TargetModule

from .names import NameMatch, Shape, match_names
from .policy import Fault, Policy
from .ways import other_spelling

__all__ = ["averaged_fault", "match_module"]

_FROM_LIVE = "num_batches_tracked"
"""A buffer that files of torch before 0.4.1 lack; torch keeps the live one, so does unmoor."""

_AVERAGES: Final = "n_averaged"
"""The buffer that torch.optim.swa_utils.AveragedModel keeps beside the model, which it calls `module`."""


def match_module(saved: Mapping[str, Shape | None], target: TargetModule, policy: Policy) -> NameMatch:
    """The match of saved names with the live module's, complete where one can be proved."""
    live = {name: slot.shape for name, slot in target.slots.items()}
    found = _attempts(saved, live, target, policy)
    if found.complete or not target.ways:
        return found

    def match(saved_names: Mapping[str, str], live_names: Mapping[str, str]) -> NameMatch:
        theirs = {saved_names.get(name, name): shape for name, shape in saved.items()}
        ours = {live_names.get(name, name): shape for name, shape in live.items()}
        return match_names(theirs, ours, policy.rename)

    other = other_spelling(saved, target.ways, match)
    return other if other is not None and other.complete else found


def _attempts(
    saved: Mapping[str, Shape | None], live: Mapping[str, Shape], target: TargetModule, policy: Policy
) -> NameMatch:
    found = []
    for dispensable in _dispensable(target):
        needed = {name: shape for name, shape in live.items() if name not in dispensable} if dispensable else live
        found.append(_by_key(match_names(saved, needed, policy.rename), target))
        if found[-1].complete:
            return found[-1]
    return next((m for m in found if m.reading.pairs and not m.missing and not m.rivals), found[0])


def _by_key(match: NameMatch, target: TargetModule) -> NameMatch:
    """Of proved readings, the one whose prefix is the key under which the module was passed: model={"gen": g}."""
    key = target.label.partition("[")[2].removesuffix("]")
    own = [r for r in match.rivals if all(saved == f"{key}.{live}" for live, saved in r.pairs.items())]
    return NameMatch(own[0], (), (), ()) if key and len(own) == 1 else match


def _dispensable(target: TargetModule) -> Iterator[frozenset[str]]:
    """Names that a file may lack: none, all but one name of a tied memory, buffers that old files do not have."""
    yield frozenset()
    groups: dict[str, list[str]] = {}
    for name, slot in target.slots.items():
        groups.setdefault(slot.alias or slot.id, []).append(name)
    tied = [names for names in groups.values() if len(names) > 1]
    late = frozenset(name for name in target.slots if name.endswith(_FROM_LIVE))
    but_first = frozenset(name for names in tied for name in names[1:])
    but_last = frozenset(name for names in tied for name in names[:-1])
    ways = (but_first, but_last, late, but_first | late, but_last | late)
    yield from dict.fromkeys(way for way in ways if way)


def averaged_fault(target: TargetModule, match: NameMatch, saved: Mapping[str, object], policy: Policy) -> Fault | None:
    """The fault of averages that would become the weights of a model, or of weights that would become averages.

    A caller who says `at=` for the module, or `rename=`, has chosen.
    """
    if policy.rename is not None or {target.label, target.role} & policy.at.keys():
        return None
    live = target.slots.keys()
    outside = [name for name in match.reading.outside if name.rpartition(".")[2] == _AVERAGES]
    if outside:
        prefix = outside[0].removesuffix(_AVERAGES) + "module."
        text = f"the file holds an AveragedModel ({outside[0]}, {prefix}*): averages, not the weights that were trained"
        remedy = f"restore it into an AveragedModel (ema=), or take the averages: rename={{{prefix!r}: ''}}, "
        return Fault("mismatch", target.label, text, remedy + 'unexpected="ignore"')
    if _AVERAGES not in live or policy.missing == "fresh":
        return None
    if any(name.rpartition(".")[2] == _AVERAGES for name in saved):
        return None
    inside = {name.removeprefix("module.") for name in live if name != _AVERAGES}
    if match.missing != (_AVERAGES,) and not inside <= saved.keys():
        return None
    text = "the live module is an AveragedModel and the file holds a plain model: weights, not averages, and no count"
    return Fault("mismatch", target.label, text, f"restore it into the model inside: {target.label}=averaged.module")
