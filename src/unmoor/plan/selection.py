"""Which tensors a restore is about: `only=` and `skip=`, patterns over the canonical names of the live run.

One rule. A pattern is held against every name of a live module, and against that name with the label of its module in
front: `encoder.*`, `model.encoder.*`, `model[gen].encoder.*`. What it chooses of a module it chooses of every optimizer
as well. With the label of an optimizer in front (`optimizer.encoder.*`) it speaks of that optimizer's state alone. A
pattern that chooses nothing, or that could be meant in two ways, is a fault. Objects without names of tensors
(schedulers, scalers, streams) are out of its reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from unmoor.values.target import Target, TargetModule, TargetObject, TargetOptimizer, TargetParam
from unmoor.values.text import listing

from .patterns import captures, nearest
from .policy import Fault, Policy

__all__ = ["EVERYTHING", "Chosen", "Selection", "select"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What of one live object is asked for.

    `only` and `skip` are the patterns that speak of it, held against names without its label; `only` is None where
    nothing limits it. `left` are the positions of parameters that are left alone, in an optimizer.
    """

    only: tuple[str, ...] | None = None
    skip: tuple[str, ...] = ()
    left: frozenset[int] = frozenset()

    def asks(self, name: str) -> bool:
        """Whether a name is asked for; also of names that only the file has."""
        wanted = self.only is None or any(captures(pattern, name) is not None for pattern in self.only)
        return wanted and not any(captures(pattern, name) is not None for pattern in self.skip)

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self.only is None and not self.skip

    @property
    def word(self) -> str:
        """The argument that leaves something out, for reports."""
        return "skip=" if self.only is None else "only=" if not self.skip else "only= and skip="


EVERYTHING = Chosen()


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for of every live object, by its label; and what is wrong with the patterns."""

    chosen: Mapping[str, Chosen] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def of(self, label: str) -> Chosen:
        """What is asked for of one object."""
        return self.chosen.get(label, EVERYTHING)


def select(target: Target, policy: Policy) -> Selection:
    """Hold the patterns of a policy against the live run."""
    if policy.only is None and not policy.skip:
        return Selection()
    names = {module.label: _names(module) for module in target.modules}
    params = {o.label: [_address(param, target) for _, param in o.params()] for o in target.optimizers}
    faults = [*_whole(target), *_nameless(target)]
    words: dict[str, dict[str, list[str]]] = {"only": {}, "skip": {}}
    for word, patterns in (("only", policy.only or ()), ("skip", policy.skip)):
        for pattern in patterns:
            found = list(_meanings(pattern, names, params))
            if len(found) == 1:
                words[word].setdefault(found[0][0], []).append(found[0][1])
            else:
                faults.append(_unclear(word, pattern, found, names, params))
    chosen = {label: _chosen(label, words, limited=policy.only is not None) for label in (*names, *params)}
    for optimizer in target.optimizers:
        chosen[optimizer.label] = _of_optimizer(optimizer, params[optimizer.label], chosen, words, policy)
    faults += [fault for module in target.modules for fault in _torn(module, chosen[module.label])]
    faults += [fault for optimizer in target.optimizers for fault in _cut(optimizer, chosen[optimizer.label])]
    return Selection(chosen, tuple(faults))


def _names(module: TargetModule) -> dict[str, None]:
    return dict.fromkeys((*module.slots, *sorted(module.extra_state)))


def _address(param: TargetParam, target: Target) -> tuple[str, str]:
    """The label of the module that holds a parameter, "" where none that was passed does, and its name there."""
    label, colon, name = param.name.partition(":")
    labels = [module.label for module in target.modules]
    if colon and label in labels:
        return label, name
    models = [module for module in target.modules if module.role == "model"]
    if len(models) == 1 and param.name in models[0].slots:
        return models[0].label, param.name
    return "", param.name


def _meanings(
    pattern: str, names: Mapping[str, Mapping[str, None]], params: Mapping[str, Sequence[tuple[str, str]]]
) -> Iterator[tuple[str, str]]:
    """Every label and pattern over its names that a pattern could stand for and that chooses something."""
    loose = {name for own in params.values() for label, name in own if not label}
    if _any(pattern, loose):
        yield "", pattern
    for label, own in names.items():
        if _any(pattern, own):
            yield label, pattern
        if pattern.startswith(f"{label}.") and _any(rest := pattern[len(label) + 1 :], own):
            yield label, rest
    for label, held in params.items():
        if pattern.startswith(f"{label}.") and _any(rest := pattern[len(label) + 1 :], _spelled(held)):
            yield label, rest


def _spelled(held: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The names of an optimizer's parameters, with and without the label of their module."""
    for label, name in held:
        yield name
        if label:
            yield f"{label}.{name}"


def _any(pattern: str, names: Mapping[str, None] | set[str] | Iterator[str]) -> bool:
    return any(captures(pattern, name) is not None for name in names)


def _chosen(label: str, words: Mapping[str, Mapping[str, list[str]]], *, limited: bool) -> Chosen:
    only = tuple(words["only"].get(label, ())) if limited else None
    return Chosen(only, tuple(words["skip"].get(label, ())))


def _of_optimizer(
    optimizer: TargetOptimizer,
    held: Sequence[tuple[str, str]],
    chosen: Mapping[str, Chosen],
    words: Mapping[str, Mapping[str, list[str]]],
    policy: Policy,
) -> Chosen:
    """What is asked for of an optimizer: what is asked for of the modules, and what bears its own label."""
    loose = _chosen("", words, limited=policy.only is not None)
    own = chosen[optimizer.label]
    modules = dict.fromkeys(label for label, _ in held)
    only = None
    if policy.only is not None:
        only = (*(own.only or ()), *(p for m in modules for p in (chosen.get(m, loose).only or ())))
    skip = (*own.skip, *(p for m in modules for p in chosen.get(m, loose).skip))

    def asks(label: str, name: str) -> bool:
        beside = chosen.get(label, loose)
        spelled = (name, f"{label}.{name}") if label else (name,)
        wanted = own.only is None or beside.asks(name) or any(_any(p, set(spelled)) for p in own.only)
        return (
            wanted
            and not any(_any(p, {name}) for p in beside.skip)
            and not any(_any(p, set(spelled)) for p in own.skip)
        )

    left = frozenset(i for i, (label, name) in enumerate(held) if not asks(label, name))
    return Chosen(only, skip, left)


def _whole(target: Target) -> list[Fault]:
    """Models that load through methods of their own take all or nothing."""
    text = "loads through methods or hooks of its own, as a whole: only= and skip= cannot leave out a part"
    whole: list[TargetModule | TargetObject] = [*(m for m in target.modules if m.through), *target.objects]
    return [
        Fault("mismatch", item.label, text, f"{item.label}=None leaves it alone")
        for item in whole
        if item.role in ("model", "ema", "loss")
    ]


def _nameless(target: Target) -> list[Fault]:
    """Optimizers over parameters without names: no pattern can tell what is asked for."""
    found = []
    for optimizer in target.optimizers:
        number = sum(not param.name for _, param in optimizer.params())
        if number:
            text = f"{number} of its parameters have no name that only= or skip= could speak of"
            found.append(Fault("mismatch", optimizer.label, text, "pass model= as well, or leave the optimizer out"))
    return found


def _unclear(
    word: str,
    pattern: str,
    found: Sequence[tuple[str, str]],
    names: Mapping[str, Mapping[str, None]],
    params: Mapping[str, Sequence[tuple[str, str]]],
) -> Fault:
    if found:
        ways = [f"{label}.{rest}" if label else rest for label, rest in found]
        return Fault("ambiguous", word, f"{word}={pattern!r} could mean {' or '.join(ways)}", "put the label in front")
    everything = [name for own in names.values() for name in own]
    everything += [name for own in params.values() for label, name in own if not label]
    below = f"{pattern}.*"
    if any(True for _ in _meanings(below, names, params)):
        return Fault(
            "mismatch", word, f"{word}={pattern!r} is the name of no tensor", f"{word}={below!r} is all below it"
        )
    near = listing(nearest(pattern, everything), 3)
    return Fault("mismatch", word, f"{word}={pattern!r} chooses nothing of the live run", f"names there are: {near}")


def _cut(optimizer: TargetOptimizer, chosen: Chosen) -> list[Fault]:
    """Parameters of one FlatParameter, which have their state together."""
    live = [param.name for _, param in optimizer.params()]
    found = []
    for run in optimizer.joined:
        out = [live[i] for i in run if i in chosen.left]
        if out and len(out) < len(run):
            text = (
                f"{listing(out)} shares a FlatParameter with {listing([live[i] for i in run if i not in chosen.left])}"
            )
            remedy = f"{chosen.word} must speak of all of them"
            found.append(Fault("mismatch", optimizer.label, f"{text}: one cannot be left alone", remedy))
    return found


def _torn(module: TargetModule, chosen: Chosen) -> list[Fault]:
    """Tied weights of which one name is asked for and the other is not."""
    if chosen.everything:
        return []
    owners: dict[str, list[str]] = {}
    for name, slot in module.slots.items():
        owners.setdefault(slot.alias or slot.id, []).append(name)
    found = []
    for tied in owners.values():
        inside = [name for name in tied if chosen.asks(name)]
        if len(tied) > 1 and inside and len(inside) < len(tied):
            outside = [name for name in tied if name not in inside]
            text = f"{listing(inside)} and {listing(outside)} are one tensor: it cannot be restored and left out"
            found.append(Fault("ambiguous", module.label, text, f"{chosen.word} must speak of both names"))
    return found
