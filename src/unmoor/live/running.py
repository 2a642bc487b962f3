"""Carries out the parts of a plan that touch live objects: moves, states, streams. Data arrives through the executor.

What can fail without tensor data having moved goes first; objects whose load_state_dict fails are put back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from unmoor.errors import MismatchError, RestoreError
from unmoor.values.dtypes import dtype_bytes
from unmoor.values.plan import AdvanceSchedule, Copy, LoadSchedule, LoadState, MoveModule, SetOptimizer, SetRng
from unmoor.values.target import Slot

from . import aside, rng, schedulers
from .held import Held
from .loaders import give_state, put_back_later
from .loading import allocate, dtype_of
from .materialise import materialise
from .memory import roomy_all
from .modules import own_state
from .optimizers import apply_state, keep_precise, left_over, live_params, same_groups
from .redundancy import present_state
from .shards import Seat, fresh, gather, group_seats
from .sinks import HeldSink, TensorSink, sink_of
from .survey import Handles
from .trees import Realizer

__all__ = ["Run"]


class Run:
    """One restore in progress over the live objects in `handles`."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._made: dict[str, Any] = {}
        self._lookup = _Lookup(handles, self._made)
        self._undo: list[tuple[Any, Callable[[], Any], Callable[[], Any] | None]] = []
        self._fresh: set[str] = set()

    def move(self, steps: Iterable[MoveModule]) -> None:
        """Move modules to their devices, then look again at the tensors of what was moved, or loaded before."""
        steps = tuple(steps)
        if not steps and not self._undo:
            return
        for step in steps:
            item = self._handles.modules.get(step.label, self._handles.objects.get(step.label))
            if isinstance(item, nn.Module):
                if materialise(item, step.device):
                    self._fresh.add(step.label)
                item.to(step.device)
        self._handles.refresh()
        self._lookup.forget()

    def sinks(self, copies: Sequence[Copy]) -> dict[str, TensorSink | HeldSink]:
        """Slot id -> sink, making the tensors of slots that do not exist yet."""
        seats = self._seats() if any(step.slot.make and step.slot.boxes is not None for step in copies) else {}
        found: dict[str, TensorSink | HeldSink] = {}
        made: list[torch.Tensor] = []
        for step in copies:
            slot = step.slot
            tensor = self._made.get(slot.id) if slot.make else self._lookup[slot.id]
            if tensor is None:
                seat = _owner(slot.id, seats) if slot.boxes is not None else None
                own = fresh(seat, dtype_of(slot.dtype), torch.device(slot.device)) if seat else allocate(slot)
                tensor = self._made[slot.id] = own
                made += _parts(own)
            found[slot.id] = sink_of(tensor, dense=slot.dense, fresh=slot.make or step.label in self._fresh)
        roomy_all(made)
        return found

    def _seats(self) -> dict[str, Seat]:
        """What the ids of state that is to be made begin with -> the parameter that it is for."""
        return {
            f"{label}/state/{position}": seat
            for label, optimizer in self._handles.optimizers.items()
            for position, seat in enumerate(s for group in optimizer.param_groups for s in group_seats(group))
        }

    def difference(self, one: Copy, other: Copy, fill: Callable[[Sequence[Copy]], Any]) -> str:
        """How two stored tensors differ, in words; "" where they are equal. Reads one pair at a time."""
        a, b = one.node.storage, other.node.storage
        whole = _is_whole(one) and _is_whole(other)
        if (
            whole
            and a is not None
            and b is not None
            and a.crc32 is not None
            and (a.crc32, a.nbytes) == (b.crc32, b.nbytes)
        ):
            return ""
        scratch = [
            replace(c, slot=replace(c.slot, id=f"twin/{i}", device="cpu", alias="", make=True))
            for i, c in enumerate((one, other))
        ]
        fill(scratch)
        left, right = (self._made.pop(c.slot.id) for c in scratch)
        pairs = [(a, b) for a, b in zip(_parts(left), _parts(right), strict=True) if not torch.equal(a, b)]
        return f"by at most {max(map(_gap, pairs)):g}" if pairs else ""

    def value(self, tree: Any) -> Any:
        """A plan's inert tree as live values, its Slots as the tensors that arrived."""
        if type(tree) is Slot and not tree.array:  # what most are, as the Realizer makes it
            return self._lookup[tree.id]
        return Realizer(slots=self._lookup)(tree)

    def extra_states(self, steps: Iterable[LoadState]) -> None:
        """Hand modules their extra states."""
        for step in steps:
            self._handles.views[step.label].extra[step.name].set_extra_state(self.value(step.tree))

    def load(self, steps: Iterable[LoadState | LoadSchedule | AdvanceSchedule]) -> None:
        """Hand objects their states. If one refuses, all are put back and MismatchError says which and why."""
        for step in steps:
            item = self._handles.objects[step.label]
            try:
                self._undo.append((item, _way_back(item), self._groups_before(step)))
                self._load_one(item, step)
            except Exception as error:
                stuck = self.undo()
                outcome = f"what could not be put back: {', '.join(stuck)}" if stuck else "nothing was changed"
                raise MismatchError(
                    f"{step.label}: {type(item).__name__}.load_state_dict refused the saved state; {outcome}",
                    details=(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}",),
                    remedy=f"{step.label}=None leaves it as it is.",
                ) from error

    def _load_one(self, item: Any, step: LoadState | LoadSchedule | AdvanceSchedule) -> None:
        if isinstance(step, AdvanceSchedule):
            scheduler = self._handles.schedulers[step.label]
            state, groups = schedulers.advanced(scheduler, step.steps)
            schedulers.load_state(scheduler, state)
            schedulers.set_groups(scheduler, groups)
            return
        state = self.value(step.tree)
        if isinstance(step, LoadSchedule):
            schedulers.load_state(item, state)
        else:
            give_state(item, own_state(item, state) if isinstance(item, nn.Module) else state)
        if isinstance(step, LoadSchedule) and step.groups:
            groups = tuple(self.value(dict(options)) for options in step.groups)
            schedulers.set_groups(self._handles.schedulers[step.label], groups)

    def _groups_before(self, step: LoadState | LoadSchedule | AdvanceSchedule) -> Callable[[], Any] | None:
        """What puts the groups of a scheduler's optimizer back as they are now."""
        if isinstance(step, LoadState):
            return None
        scheduler = self._handles.schedulers[step.label]
        return partial(schedulers.put_back, scheduler, copy.deepcopy(schedulers.group_options(scheduler)))

    def undo(self) -> list[str]:
        """Put back the states of the objects that were loaded; the classes of those that could not be."""
        stuck = []
        while self._undo:
            item, put_back, groups = self._undo.pop()
            try:
                put_back()
                if groups is not None:
                    groups()
            except Exception:  # noqa: BLE001 - the caller's own code may raise anything; it is named in the error
                stuck.append(type(item).__name__)
        return stuck

    def set_optimizers(self, steps: Iterable[SetOptimizer]) -> None:
        """Give optimizers their options and state. If one refuses, RestoreError says which and why."""
        for step in steps:
            optimizer = self._handles.optimizers[step.label]
            try:
                if step.through:
                    self._load_through(optimizer, step)
                else:
                    apply_state(optimizer, step.options, step.state, self.value, step.left, step.unassigned)
                aside.keep(optimizer, self.value(dict(step.aside)), more=bool(step.left))
            except Exception as error:
                raise self._refusal(step.label, optimizer, error) from error
            self._lookup.forget()

    def _load_through(self, optimizer: Any, step: SetOptimizer) -> None:
        """Hand a class what it loads itself, and keep what it would round."""
        state = gather(optimizer, {position: self.value(dict(entry)) for position, entry in step.state.items()})
        with same_groups(optimizer):
            optimizer.load_state_dict(self._state_dict(optimizer, step, state))
        keep_precise(optimizer, state)

    def _refusal(self, label: str, optimizer: Any, error: Exception) -> RestoreError:
        made = RestoreError(
            f"{label}: {type(optimizer).__name__} refused the saved state",
            details=(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}",),
            remedy=f"{label}=None restores the rest without it.",
        )
        made.done = frozenset(self._handles.tensors())
        return made

    def _state_dict(self, optimizer: Any, step: SetOptimizer, filled: Mapping[torch.Tensor, Any]) -> dict[str, Any]:
        """The plan's state as a state dict in the live optimizer's own numbering, or in a form of its own.

        `filled` is the state by live parameter, in the form that the parameter has.
        """
        own: dict[str, Any] = self.value(dict(step.own))
        if step.whole:
            return own
        present = present_state(optimizer)
        packed = present["param_groups"]
        groups = [
            {k: v for k, v in {**group, **self.value(dict(new))}.items() if k not in left_over(optimizer, group, new)}
            for group, new in zip(packed, step.options, strict=True)
        ]
        numbers = [identity for group in packed for identity in group["params"]]
        ids = dict(zip(live_params(optimizer), numbers, strict=True))
        seats = [seat for group in optimizer.param_groups for seat in group_seats(group)] if step.left else []
        left = [ids[seats[i].owner] for i in step.left]
        state = {identity: present["state"][identity] for identity in left if identity in present["state"]}
        state |= {ids[param]: entry for param, entry in filled.items()} | self.value(dict(step.unassigned))
        return {**own, "state": state, "param_groups": groups}

    def rng_setters(self, steps: Iterable[SetRng]) -> list[rng.Setter]:
        """One call for each stream, every state tried on a scratch generator first."""
        chosen = [rng.Chosen(s.kind, s.name, s.index, self.value(s.state), s.spawn_key) for s in steps]
        return rng.setters(chosen, self._handles.generators)


class _Lookup(Mapping[str, Any]):
    """Slot id -> tensor, or Held: those made in this run, and those that were there when one was first asked for."""

    def __init__(self, handles: Handles, made: Mapping[str, Any]) -> None:
        self._handles, self._made = handles, made
        self._live: dict[str, Any] | None = None

    def forget(self) -> None:
        """Look again: the live objects hold other tensors now."""
        self._live = None

    def __getitem__(self, key: str) -> Any:
        if key in self._made:
            return self._made[key]
        if self._live is None:
            self._live = self._handles.tensors()
        return self._live[key]

    def __iter__(self) -> Any:
        return iter({**self._handles.tensors(), **self._made})

    def __len__(self) -> int:
        return len({**self._handles.tensors(), **self._made})


def _owner(identity: str, seats: Mapping[str, Seat]) -> Seat | None:
    """The parameter whose state a slot is: its key may have slashes of its own."""
    while identity and identity not in seats:
        identity = identity.rpartition("/")[0]
    return seats.get(identity)


def _parts(tensor: torch.Tensor | Held) -> list[torch.Tensor]:
    return [part for _, part in tensor.parts] if isinstance(tensor, Held) else [tensor]


def _gap(pair: tuple[torch.Tensor, torch.Tensor]) -> float:
    """How far two tensors are apart at most."""
    left, right = pair if pair[0].is_complex() else (pair[0].double(), pair[1].double())
    return float((left - right).abs().max())


def _is_whole(step: Copy) -> bool:
    node = step.node
    return node.storage is not None and node.offset == 0 and node.numel * dtype_bytes(node.dtype) == node.storage.nbytes


def _way_back(item: Any) -> Callable[[], Any]:
    """What puts an object back as it is now."""
    stateful = put_back_later(item)
    if stateful is not None:
        return stateful
    scheduled = schedulers.find_scheduler(item) is not None
    try:
        state = copy.deepcopy(schedulers.saved_state(item) if scheduled else item.state_dict())
    except Exception:  # noqa: BLE001 - an object that cannot be asked cannot be put back; the load goes on
        state = None
    return partial(schedulers.load_state, item, state) if scheduled else partial(item.load_state_dict, state)
