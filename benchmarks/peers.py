"""What other libraries do with the same run, behind the pair of calls that the exactness matrices use.

Each does what its documentation tells a user to do, and brings the random streams along where it has no way of its
own. accelerate and Lightning Fabric are not among this project's dependencies: their packages come from the
environment that the tests of other programs' files use (`tests/dialects/environment.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed.checkpoint as dcp
from tests.matrix.carriers import Carrier, PlainTorch, Unmoor, set_streams, streams
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from .peers_packages import reach

__all__ = ["PEERS", "Accelerate", "DcpStateDict", "Fabric", "LenientTorch", "Whole"]


class LenientTorch(PlainTorch):
    """The same with strict=False for the model where a cell lets names be missing or left over."""

    lenient = False

    def restore(self, path: Path, **objects: Any) -> None:
        if self.lenient:
            model = objects["model"]
            objects = {**objects, "model": _Lenient(model)}
        super().restore(path, **objects)


class _Lenient:
    """A model whose load_state_dict is called with strict=False."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = model.parameters
        self.load_state_dict = lambda state: model.load_state_dict(state, strict=False)


class DcpStateDict:
    """torch.distributed.checkpoint with get_state_dict and set_state_dict, without a process group.

    Optimizer state is flattened, which is how that API lets parameter groups differ; where a cell lets names be missing
    or left over, strict is off and a partial load is allowed.
    """

    name = "DCP get/set_state_dict"
    lenient = False

    def save(self, path: Path, **objects: Any) -> None:
        with _ordinary_errors():
            dcp.save({**self._states(objects), "rng": streams()}, checkpoint_id=path, no_dist=True)

    def restore(self, path: Path, **objects: Any) -> None:
        states = {**self._states(objects), "rng": streams()}
        planner = DefaultLoadPlanner(allow_partial_load=self.lenient)
        with _ordinary_errors():
            dcp.load(states, checkpoint_id=path, planner=planner, no_dist=True)
        for role, item in objects.items():
            if role == "model":
                dcp_state.set_model_state_dict(item, states[role], options=self._options())
            elif role == "optimizer":
                dcp_state.set_optimizer_state_dict(objects["model"], item, states[role], options=self._options())
            else:
                item.load_state_dict(states[role].state)
        set_streams(states["rng"])

    def _options(self) -> dcp_state.StateDictOptions:
        return dcp_state.StateDictOptions(flatten_optimizer_state_dict=True, strict=not self.lenient)

    def _states(self, objects: Mapping[str, Any]) -> dict[str, Any]:
        states: dict[str, Any] = {}
        for role, item in objects.items():
            if role == "model":
                states[role] = dcp_state.get_model_state_dict(item, options=self._options())
            elif role == "optimizer":
                states[role] = dcp_state.get_optimizer_state_dict(objects["model"], item, options=self._options())
            else:
                states[role] = Whole(item.state_dict())
        return states


@dataclass
class Whole:
    """A state that DCP keeps as one object: of a dict it fills only the keys that the live state has already."""

    state: Any


@contextmanager
def _ordinary_errors() -> Iterator[None]:
    """CheckpointException is no Exception: give the first rank's failure as one."""
    try:
        yield
    except CheckpointException as error:
        raise RuntimeError(str(next(iter(error.failures.values()))[0])) from None


class Accelerate:
    """Accelerator.prepare, save_state and load_state; the devices are left as the run has them."""

    name = "accelerate"

    def save(self, path: Path, **objects: Any) -> None:
        self.prepared(objects).save_state(str(path))
        torch.save(streams(), path / "streams.pt")

    def restore(self, path: Path, **objects: Any) -> None:
        self.prepared(objects).load_state(str(path))
        set_streams(torch.load(path / "streams.pt", weights_only=False))

    def prepared(self, objects: Mapping[str, Any]) -> Any:
        """An Accelerator that knows the live objects."""
        reach()
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState, PartialState

        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        accelerator = Accelerator(cpu=True)
        accelerator.prepare(objects["model"], device_placement=[False])
        for role, item in objects.items():
            if role == "optimizer":
                accelerator.prepare_optimizer(item, device_placement=False)
            elif role == "scheduler":
                accelerator.prepare_scheduler(item)
            elif role != "model":
                accelerator.register_for_checkpointing(item)
        return accelerator


class Fabric:
    """Fabric.save and Fabric.load of the live objects."""

    name = "Lightning Fabric"
    lenient = False

    def save(self, path: Path, **objects: Any) -> None:
        self.fabric().save(str(path), {**objects, "rng": streams()})

    def restore(self, path: Path, **objects: Any) -> None:
        left = self.fabric().load(str(path), dict(objects), strict=not self.lenient, weights_only=False)
        set_streams(left["rng"])

    def fabric(self) -> Any:
        reach()
        from lightning.fabric import Fabric as Theirs

        return Theirs(accelerator="cpu", devices=1)


PEERS: Final[dict[str, Callable[[], Carrier]]] = {
    "unmoor": Unmoor,
    "torch": LenientTorch,
    "dcp": DcpStateDict,
    "accelerate": Accelerate,
    "fabric": Fabric,
}
"""Word on the command line -> the carrier, unmoor first."""
