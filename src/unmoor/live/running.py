"""Carries out the parts of a plan that touch live objects: moves, states, streams. Data arrives through the executor.

What can fail without tensor data having moved goes first; objects whose load_state_dict fails are put back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from unmoor.errors import MismatchError, RestoreError
from unmoor.values.dtypes import dtype_bytes
from unmoor.values.plan import Copy, LoadState, MoveModule, SetOptimizer, SetRng
from unmoor.values.target import Slot

from . import rng
from .loading import allocate
from .optimizers import apply_state
from .sinks import TensorSink
from .survey import Handles
from .trees import Realizer

__all__ = ["Run"]


class Run:
    """One restore in progress over the live objects in `handles`."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._made: dict[str, torch.Tensor] = {}
        self._undo: list[tuple[Any, Any]] = []

    def move(self, steps: Iterable[MoveModule]) -> None:
        """Move modules to their devices, then look at their tensors again."""
        for step in steps:
            item = self._handles.modules.get(step.label, self._handles.objects.get(step.label))
            if isinstance(item, nn.Module):
                item.to(step.device)
        self._handles.refresh()

    def sinks(self, copies: Sequence[Copy]) -> dict[str, TensorSink]:
        """Slot id -> sink, making the tensors of slots that do not exist yet."""
        live = self._handles.tensors()
        found: dict[str, TensorSink] = {}
        for step in copies:
            slot = step.slot
            if slot.make and slot.id not in self._made:
                self._made[slot.id] = allocate(slot)
            tensor = self._made[slot.id] if slot.make else live[slot.id]
            found[slot.id] = TensorSink(tensor, dense=slot.dense)
        return found

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
        if torch.equal(left, right):
            return ""
        gap = (
            (left.double() - right.double()).abs().max().item()
            if not left.is_complex()
            else (left - right).abs().max().item()
        )
        return f"by at most {gap:g}"

    def value(self, tree: Any) -> Any:
        """A plan's inert tree as live values, its Slots as the tensors that arrived."""
        return Realizer(slots=_Lookup(self._handles, self._made))(tree)

    def load(self, steps: Iterable[LoadState]) -> None:
        """Hand objects their states. If one refuses, all are put back and MismatchError says which and why."""
        for step in steps:
            state = self.value(step.tree)
            if step.name:
                self._handles.views[step.label].extra[step.name].set_extra_state(state)
                continue
            item = self._handles.objects[step.label]
            try:
                self._undo.append((item, _snapshot(item)))
                item.load_state_dict(state)
            except Exception as error:
                stuck = self.undo()
                outcome = f"what could not be put back: {', '.join(stuck)}" if stuck else "nothing was changed"
                raise MismatchError(
                    f"{step.label}: {type(item).__name__}.load_state_dict refused the saved state; {outcome}",
                    details=(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}",),
                    remedy=f"{step.label}=None leaves it as it is.",
                ) from error

    def undo(self) -> list[str]:
        """Put back the states of the objects that were loaded; the classes of those that could not be."""
        stuck = []
        while self._undo:
            item, state = self._undo.pop()
            try:
                item.load_state_dict(state)
            except Exception:  # noqa: BLE001 - the caller's own code may raise anything; it is named in the error
                stuck.append(type(item).__name__)
        return stuck

    def set_optimizers(self, steps: Iterable[SetOptimizer]) -> None:
        """Give optimizers their options and state. If one refuses, RestoreError says which and why."""
        for step in steps:
            optimizer = self._handles.optimizers[step.label]
            try:
                if step.through:
                    optimizer.load_state_dict(self._state_dict(optimizer, step))
                else:
                    apply_state(optimizer, step.options, step.state, self.value)
            except Exception as error:
                raise self._refusal(step.label, optimizer, error) from error

    def _refusal(self, label: str, optimizer: Any, error: Exception) -> RestoreError:
        made = RestoreError(
            f"{label}: {type(optimizer).__name__} refused the saved state",
            details=(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}",),
            remedy=f"{label}=None restores the rest without it.",
        )
        made.done = frozenset(self._handles.tensors())
        return made

    def _state_dict(self, optimizer: Any, step: SetOptimizer) -> dict[str, Any]:
        """The plan's state as a state dict in the live optimizer's own numbering."""
        packed = optimizer.state_dict()["param_groups"]
        groups = [{**own, **self.value(dict(new))} for own, new in zip(packed, step.options, strict=True)]
        ids = [identity for group in packed for identity in group["params"]]
        return {"state": {ids[i]: self.value(dict(entry)) for i, entry in step.state.items()}, "param_groups": groups}

    def rng_setters(self, steps: Iterable[SetRng]) -> list[rng.Setter]:
        """One call for each stream, every state tried on a scratch generator first."""
        chosen = [(step.kind, step.name, step.index, self.value(step.state)) for step in steps]
        return rng.setters(chosen, self._handles.generators)


class _Lookup(Mapping[str, torch.Tensor]):
    """Slot id -> tensor: those made in this run, and those that were there."""

    def __init__(self, handles: Handles, made: Mapping[str, torch.Tensor]) -> None:
        self._handles, self._made = handles, made
        self._live: dict[str, torch.Tensor] | None = None

    def __getitem__(self, key: str) -> torch.Tensor:
        if key in self._made:
            return self._made[key]
        if self._live is None:
            self._live = self._handles.tensors()
        return self._live[key]

    def __iter__(self) -> Any:
        return iter({**self._handles.tensors(), **self._made})

    def __len__(self) -> int:
        return len({**self._handles.tensors(), **self._made})


def _scratch(step: Copy, number: int) -> Slot:
    return replace(step.slot, id=f"twin/{number}", device="cpu", alias="", make=True)


def _is_whole(step: Copy) -> bool:
    node = step.node
    return node.storage is not None and node.offset == 0 and node.numel * dtype_bytes(node.dtype) == node.storage.nbytes


def _snapshot(item: Any) -> Any:
    try:
        return copy.deepcopy(item.state_dict())
    except Exception:  # noqa: BLE001 - an object that cannot be asked cannot be put back; the load goes on
        return None
