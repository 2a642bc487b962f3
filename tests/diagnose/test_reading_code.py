"""What is told from the code of a forward, without running it: which attributes it reads, and what it moves."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from unmoor.live.run_facts_code import argument_names, read_forward, reads_name, tensors_of_function

DEVICE = "cpu"


def send_to_device(value, device):
    return value


class Base(nn.Module):
    mask = None


class Moves(Base):
    def forward(self, x, y):
        return x.to(self.mask.device) + y


class MovesByName(Base):
    def forward(self, x, y):
        return x.to(DEVICE, non_blocking=True) + y


class MovesByCuda(Base):
    def forward(self, x, y):
        return x.cuda() + y.type_as(x)


class CastsOnly(Base):
    def forward(self, x, y):
        return x.to(torch.float32) + y.to(dtype=x.dtype) + y.float()


class CastsAndMoves(Base):
    def forward(self, x, y):
        return x.to(device=self.mask.device, dtype=torch.float32) + y


class ByHelper(Base):
    def forward(self, x, y):
        x, y = send_to_device((x, y), "cpu")
        return x + y


class ByMethod(Base):
    def forward(self, x, y):
        return self._shifted(x) + y

    def _shifted(self, x):
        return x * self.mask


class ByProperty(Base):
    def forward(self, x, y):
        return x * self.half + y

    @property
    def half(self):
        return self.mask / 2


class InComprehension(Base):
    def forward(self, x, y):
        return sum(part.to(y.device) for part in x)


class Wrapped(Base):
    @functools.wraps(len)
    def other(self):
        return self.mask

    @torch.no_grad()
    def forward(self, x, y):
        return x * self.mask + y


READINGS = [
    (Moves, {"x"}, True, "moved"),
    (MovesByName, {"x"}, True, "idle"),
    (MovesByCuda, {"x", "y"}, True, "idle"),
    (CastsOnly, set(), False, "idle"),
    (CastsAndMoves, {"x"}, True, "moved"),
    (ByHelper, {"*"}, True, "idle"),
    (ByMethod, set(), False, "used"),
    (ByProperty, set(), False, "used"),
    (InComprehension, set(), True, "idle"),
    (Wrapped, set(), False, "used"),
]


@pytest.mark.parametrize(("cls", "moved", "moves", "mask"), READINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_forward_is_read_without_being_run(cls, moved, moves, mask) -> None:
    """Arguments that are moved, whether anything is, and how the attribute `mask` is used."""
    reading = read_forward(cls())
    assert reading.moved == moved
    assert reading.moves is moves
    assert reads_name(reading, "mask") == mask
    assert argument_names(cls()) == (("x", "y"), False)


def test_what_has_no_code_is_taken_to_move() -> None:
    """A scripted module, or a forward that is a C function, is opaque: nothing is held against it."""
    module = nn.Module()
    module.forward = len
    reading = read_forward(module)
    assert reading.opaque
    assert reads_name(reading, "anything") == "moved"


def test_a_forward_of_one_object_is_its_own() -> None:
    """A forward that was set on an object is read, not that of its class."""
    module = ByMethod()
    module.forward = lambda x: x.to("cpu")
    assert read_forward(module).moved == {"x"}
    assert read_forward(ByMethod()).moved == set()


WEIGHT = torch.ones(2)


def test_tensors_that_a_function_carries_are_found() -> None:
    """Closures, defaults, arguments of a partial, methods of an object and globals that the code reads."""
    inner = torch.zeros(1)

    class Loss:
        def __init__(self) -> None:
            self.scale = torch.ones(3)

        def __call__(self):
            return self.scale

        def method(self):
            return self.scale

    def carries(output, labels, default=WEIGHT):
        return inner + WEIGHT

    names = {name for name, value in tensors_of_function(carries) if isinstance(value, torch.Tensor)}
    assert names == {"inner", "default", "WEIGHT"}
    assert dict(tensors_of_function(functools.partial(carries, weight=inner)))["weight"] is inner
    assert "scale" in dict(tensors_of_function(Loss().method))
    assert "scale" in dict(tensors_of_function(Loss()))
